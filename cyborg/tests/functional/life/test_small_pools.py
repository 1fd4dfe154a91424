# SPDX-License-Identifier: Apache-2.0
"""Nova and this service with one worker each, and each of them asks the other: nobody waits long.

Nova's worker binds through this API; the event about it needs the same worker, which then asks this
API again before it answers.
"""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
import requests
from keystoneauth1.adapter import Adapter
from keystoneauth1.noauth import NoAuth
from keystoneauth1.session import Session
from oslo_config import cfg

from cyborg.api.server import HttpServer
from cyborg.db.engine import Database
from cyborg.model.caller import Caller
from cyborg.model.device_profile import DeviceProfile
from cyborg.rpc.verbs import CreateDeviceProfile
from cyborg.tests.fixtures.accelerators import AcceleratorClient
from cyborg.tests.fixtures.host_reports import provider_of, report_of
from cyborg.tests.fixtures.loopback import Loopback
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.waiting import PATIENCE, eventually
from cyborg.tests.functional.life.http import TokenReader

HOST = "compute"
PROFILE = "gpu"
BOOTS = 8


class SmallNova:
    """Boots on request, and takes events; both in the one worker that it has."""

    def __init__(self) -> None:
        self.api = ""
        self.seen: dict[str, str] = {}
        self.listener = Loopback(self._answer, one_at_a_time=True)

    def adapter(self) -> Adapter:
        """What the conductor sends events with."""
        session = Session(auth=NoAuth(endpoint=f"{self.listener.url}/v2.1"), timeout=PATIENCE)
        return Adapter(session, service_type="compute")

    def boot(self, instance: str) -> int:
        """Ask it for a server; the status of the answer."""
        url = f"{self.listener.url}/boot"
        return requests.post(url, json=instance, timeout=PATIENCE).status_code

    def _answer(self, environ: Any, start_response: Any) -> list[bytes]:
        body = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        client = AcceleratorClient(self.api, "member:project", "service")
        answer: Any = {}
        if environ["PATH_INFO"] == "/boot":
            arqs = [one["uuid"] for one in client.create(PROFILE)]
            client.bind(body, HOST, {one: provider_of(HOST, 0) for one in arqs})
        else:
            for event in body["events"]:
                (arq,) = client.arqs_of(event["server_uuid"])
                self.seen[event["server_uuid"]] = arq["state"]
            answer = {"events": [{**one, "code": 200} for one in body["events"]]}
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(answer).encode()]


@pytest.fixture
def nova() -> Iterator[SmallNova]:
    nova = SmallNova()
    with nova.listener:
        yield nova


@pytest.fixture
def small(
    stack: Stack,
    beside: Callable[..., Stack],
    nova: SmallNova,
    own_database: Database,
    conf: cfg.ConfigOpts,
) -> Iterator[SmallNova]:
    """A conductor and an API with one thread of its own, around that Nova."""
    own = beside(own_database, peers=replace(stack.peers, nova=nova.adapter))
    own.start_conductor()
    own.report(HOST, report_of(HOST, 1, handles=BOOTS))
    profile = DeviceProfile(str(uuid4()), PROFILE, ({"resources:FPGA": "1"},))
    command = CreateDeviceProfile(Caller("p", "u", "req-1"), str(uuid4()), profile)
    own.conductor_client().write(command)
    for name, value in (("api_workers", 1), ("port", 0), ("host_ip", "127.0.0.1")):
        conf.set_override(name, value, group="api")
    server = HttpServer(TokenReader(own.make_open_api()), conf)
    server.start()
    nova.api = "http://{}:{}/v2".format(*server.address)
    yield nova
    server.stop()
    for name in ("api_workers", "port", "host_ip"):
        conf.clear_override(name, group="api")


def test_concurrent_boots_finish_with_small_pools(small: SmallNova):
    instances = [str(uuid4()) for _ in range(BOOTS)]
    with ThreadPoolExecutor(BOOTS) as users:
        assert list(users.map(small.boot, instances)) == [200] * BOOTS
    eventually(lambda: len(small.seen) == BOOTS)
    assert small.seen == dict.fromkeys(instances, "Bound")
