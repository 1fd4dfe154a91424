# SPDX-License-Identifier: Apache-2.0
"""The audit filter, switched on as the page "Security" says, with a token of a real Keystone."""

import json
import re
import shutil
from pathlib import Path

import requests

import cyborg
from cyborg.tests.fixtures.processes import Deployment, Options
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.functional.deployments import merged
from cyborg.tests.functional.keystone.cloud import Cloud, authentication

FILES = Path(cyborg.__file__).parents[1] / "etc" / "cyborg"
PIPELINE = "request_id authtoken api_v2"


def test_events_name_the_service_of_the_catalogue(cloud: Cloud, tmp_path: Path):
    shutil.copy(FILES / "api_audit_map.conf", tmp_path)
    paste = tmp_path / "api-paste.ini"
    shipped = (FILES / paste.name).read_text()
    assert PIPELINE in shipped
    paste.write_text(shipped.replace(PIPELINE, PIPELINE.replace("authtoken", "authtoken audit")))
    database = cloud.database.engine.url.render_as_string(hide_password=False)
    own: Options = {
        "DEFAULT": {"transport_url": "fake://"},
        "database": {"connection": database},
        "api": {"api_paste_config": paste},
        "audit_middleware_notifications": {"driver": "log"},
    }
    options = merged(authentication(cloud.keystone), own)
    token = cloud.keystone.token(cloud.people.admin)
    with Deployment(tmp_path, options) as deployment:
        program, url = deployment.api()
        # Pages without a token have no events.
        for page in ("/", "/v2", "/v2/", "/v2/openapi.json", "/healthcheck"):
            requests.get(f"{url}{page}", timeout=PATIENCE)
        assert cloud.ask("/devices", token, url=url).status_code == 200
        program.wait_for("audit.http.response")
        output = program.output
    events = [
        json.loads(line)
        for line in re.findall(
            r'oslo\.messaging\.notification\S* \[.*?\] (\{"message_id.*\})', output
        )
    ]
    assert [event["event_type"] for event in events] == [
        "audit.http.request",
        "audit.http.response",
    ]
    for event in events:
        payload = event["payload"]
        assert payload["target"]["typeURI"] == "service/accelerator/devices"
        assert payload["action"] == "read/list"
        assert payload["initiator"]["name"] == cloud.people.admin.user
    assert events[-1]["payload"]["outcome"] == "success"
    assert token not in output
