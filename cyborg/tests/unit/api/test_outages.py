# SPDX-License-Identifier: Apache-2.0
"""What is answered while the database, the bus or Keystone is away; checklist line 122."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import webtest

from cyborg import exception
from cyborg.api import app
from cyborg.db.engine import Reader
from cyborg.tests.unit.api.conductor import RecordedConductor
from cyborg.tests.unit.api.conftest import MakeConf
from cyborg.tests.unit.api.world import FACTS, Client


def test_api_without_a_database_says_so(make_client: Callable[..., Client], tmp_path: Path) -> None:
    with closing(Reader(f"sqlite:///{tmp_path}/no/such/directory/cyborg.sqlite")) as reader:
        dark = make_client(reader=reader)
        for method, path in (("GET", "/"), ("HEAD", "/"), ("GET", "/v2")):
            assert dark.send(method, path, as_=None).status == 200
        answer = dark.send("GET", "/v2/devices")
        assert answer.status == 503
        assert answer.fault.startswith("The database is not available")
        answer = dark.send("GET", "/healthcheck", as_=None, headers={"Accept": "application/json"})
    assert answer.status == 503
    database, bus = answer.body["reasons"]
    assert "database is not available" in database
    assert bus == "A conductor answers."


def test_healthcheck_reports_missing_conductor(
    client: Client, conductor: RecordedConductor
) -> None:
    assert client.send("GET", "/healthcheck", as_=None).status == 200
    assert client.send("HEAD", "/healthcheck/", as_=None).status == 204
    conductor.up = False
    answer = client.send("GET", "/healthcheck", as_=None)
    assert answer.status == 503
    assert b"No conductor answers" in answer.raw


FAULTS: list[tuple[Exception, int, str]] = [
    (exception.Unavailable(peer="conductor", reason="r"), 503, "conductor"),
    (exception.OutcomeUnknown(peer="conductor", reason="r"), 503, "repeating is safe"),
    (exception.PeerFault(peer="conductor", request_id="req-x"), 500, "req-x"),
    (exception.DriverFailed(driver="d", verb="v", reason="secret"), 500, "unexpected"),
    (exception.Conflict(reason="because {braces}"), 409, "because {braces}"),
    (exception.NoFreeHandle(provider="p", requested=2), 409, "p"),
    (exception.InstanceAlreadyBound(instance="i"), 400, "i"),
    (exception.NotFound(noun="Instance", key="x"), 404, "Instance x"),
    (exception.CannotAttach(instance="x", reason="it is PAUSED"), 409, "it is PAUSED"),
]


@pytest.mark.parametrize(("fault", "status", "word"), FAULTS)
def test_errors_of_the_conductor_are_returned(
    client: Client, conductor: RecordedConductor, fault: Exception, status: int, word: str
) -> None:
    conductor.fault = fault
    answer = client.send("POST", "/v2/accelerator_requests", {"device_profile_name": "gpu"})
    assert answer.status == status
    assert word in answer.fault
    assert "secret" not in answer.fault


def test_unreachable_keystone_returns_503(
    make_conf: MakeConf, reader: Reader, conductor: RecordedConductor
) -> None:
    # Port 1 of this machine: nobody listens, and the refusal is immediate.
    conf = make_conf(
        "auth_url = http://127.0.0.1:1\nusername = u\npassword = p\nhttp_request_max_retries = 0\n"
    )
    wsgi = app.build(conf, reader=reader, conductor=conductor)  # type: ignore[arg-type]
    client = Client(webtest.TestApp(wsgi), FACTS)
    answer = client.send("GET", "/v2/devices")
    assert answer.status == 503
    assert answer.fault.startswith("Keystone is not available: the identity service cannot check")
    assert answer.headers["OpenStack-API-Maximum-Version"] == "2.100"
    assert client.send("GET", "/").status == 200
