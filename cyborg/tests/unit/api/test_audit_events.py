# SPDX-License-Identifier: Apache-2.0
"""The audit filter of the shipped paste file names what each request does."""

import configparser
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import webtest
from paste import deploy

import cyborg
from cyborg.api import app
from cyborg.db.engine import Reader
from cyborg.tests.unit.api import world
from cyborg.tests.unit.api.conductor import RecordedConductor
from cyborg.tests.unit.api.conftest import MakeConf

FILES = Path(cyborg.__file__).parents[1] / "etc" / "cyborg"
LOGGER = "keystonemiddleware.audit"
#: The ids of Keystone are UUIDs, those of the personas are words.
pytestmark = pytest.mark.filterwarnings("ignore:Invalid uuid:UserWarning:pycadf")
CATALOGUE = [
    {"type": kind, "name": kind, "endpoints": [{"publicURL": f"http://{kind}.test"}]}
    for kind in ("compute", "accelerator")
]
#: Request, action and target of its events, and status of its answer.
REQUESTS = [
    ("GET /v2/devices", "read/list", "devices", "200"),
    ("GET /v2/devices/<device>", "read", "devices/device", "200"),
    ("GET /v2/devices/<random>", "read", "devices/device", "404"),
    ("POST /v2/devices/<device>/disable", "disable", "devices/device", "204"),
    ("POST /v2/device_profiles", "create", "device_profiles", "400"),
    ("DELETE /v2/device_profiles/nothing", "delete", "device_profiles/device_profile", "404"),
    ("PATCH /v2/accelerator_requests", "update", "accelerator_requests", "400"),
    ("POST /v2/services/discover", "start/discover", "services/service", "404"),
    (
        "PATCH /v2/deployables/<deployable>/program",
        *("deploy/program", "deployables/deployable", "400"),
    ),
    (
        "DELETE /v2/instances/<instance>/accelerators/<arq>",
        *("delete", "instances/instance/accelerators/accelerator_request", "404"),
    ),
]


@pytest.fixture
def audited(
    make_conf: MakeConf,
    reader: Reader,
    conductor: RecordedConductor,
    tokens: Any,
    facts: dict[str, str],
) -> world.Client:
    """A client of the API with the filter behind that of tokens, as its comment says."""
    log = {"use_oslo_messaging": "false", "log_name": LOGGER}
    audit = deploy.loadfilter(f"config:{FILES}/api-paste.ini", "audit", global_conf=log)
    conf = make_conf()
    core = app.core(conf, reader=reader, conductor=conductor)  # type: ignore[arg-type]

    def with_catalogue(environ: dict[str, Any], start_response: Any) -> Any:
        """Give what keystonemiddleware gives for a token of a Keystone with a catalogue."""
        environ["HTTP_X_SERVICE_CATALOG"] = json.dumps(CATALOGUE)
        return audit(core)(environ, start_response)

    return world.Client(webtest.TestApp(app.behind_filters(with_catalogue, conf)), facts)


def events(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    """Type and content of the events so far."""
    records = [record for record in caplog.records if record.msg.startswith("Event type")]
    arguments_of: list[Any] = [record.args for record in records]
    return [(arguments["event_type"], arguments["payload"]) for arguments in arguments_of]


@pytest.mark.parametrize(("request_", "action", "target", "status"), REQUESTS)
def test_request_and_answer_are_events_with_action_target_and_initiator(
    request_: str,
    action: str,
    target: str,
    status: str,
    audited: world.Client,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, LOGGER):
        answer = audited.ask(request_)
    assert str(answer.status) == status
    (asked, first), (answered, last) = events(caplog)
    assert (asked, answered) == ("audit.http.request", "audit.http.response")
    for event in (first, last):
        assert event["action"] == action
        assert event["target"]["typeURI"] == f"service/accelerator/{target}"
        assert event["initiator"]["id"] == "user-of-admin"
        assert event["initiator"]["request_id"] == answer.headers["x-openstack-request-id"]
    assert first["outcome"] == "pending"
    assert last["outcome"] == ("success" if int(status) < 400 else "failure")
    assert last["reason"] == {"reasonType": "HTTP", "reasonCode": status}


def test_map_knows_all_collections_and_the_filter_is_off() -> None:
    known = configparser.ConfigParser()
    known.read(FILES / "api_audit_map.conf")
    collections = {noun.collection for noun in app.NOUNS}
    assert {name for name, _ in known.items("path_keywords")} >= collections
    paste = configparser.ConfigParser(interpolation=None)
    paste.read(FILES / "api-paste.ini")
    assert "audit" not in paste["pipeline:main"]["pipeline"].split()
