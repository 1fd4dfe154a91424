# SPDX-License-Identifier: Apache-2.0
"""A request that reaches a conductor when nobody waits for it any more changes nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
import webtest
from oslo_config import cfg
from oslo_middleware import RequestId

from cyborg.api import app as api_app
from cyborg.clients.allocations import Allocations
from cyborg.clients.nova import Nova
from cyborg.conductor import app as conductor_app
from cyborg.conductor.discovery import Discovery
from cyborg.conductor.endpoint import Endpoint
from cyborg.conductor.services import Greeter
from cyborg.db import schema
from cyborg.db.engine import Database, Reader
from cyborg.model.report import DriverReport, Hello, Report
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.transport import CONDUCTOR_TOPIC
from cyborg.testing.absent import absent
from cyborg.testing.direct import DirectBus, Exchange
from cyborg.testing.machines import RESOURCE_CLASS, provider_of, report_of
from cyborg.tests.functional.life.http import Client, bind_body
from cyborg.tests.functional.life.steps import ARQS, create, everything
from cyborg.tests.functional.schema.databases import empty_database

HOST = "compute"
#: How long the API waits for an answer, in seconds; twice that and a bit is the end of it.
PATIENCE = 10.0
TOO_LONG_MS = 60_000


@dataclass
class Freezer:
    """The database's clock, and a conductor that is frozen when a message is on its way to it."""

    ms: int = 1_700_000_000_000
    #: How long it is frozen before it looks at the next message of this verb.
    verb: str = ""
    for_ms: int = 0

    @contextmanager
    def crossing(self, message: str) -> Iterator[None]:
        """See ``direct.Crossing``."""
        if self.verb and message == f"arrival of {self.verb}":
            self.verb, late = "", self.for_ms
            self.ms += late
        yield


@dataclass
class Service:
    """One conductor and the API in front of it, on a bus without a wire."""

    freezer: Freezer
    db: Database
    client: Client

    @property
    def nova(self) -> Client:
        return self.client.with_service_token()


@pytest.fixture(scope="module")
def service(conf: cfg.ConfigOpts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    freezer, exchange = Freezer(), Exchange()
    now = sa.bindparam("moment", type_=sa.BigInteger(), callable_=lambda: freezer.ms)
    with empty_database(Path(tmp_path_factory.mktemp("late"))) as empty:
        schema.upgrade(empty)
        url = empty.engine.url.render_as_string(hide_password=False)
        db, reader = Database(url, now=now), Reader(url)
        bus = DirectBus(exchange, crossing=freezer.crossing)
        agents = AgentClient(bus, timeout=1.0)
        cases = conductor_app.use_cases(
            settings=conductor_app.Settings(
                host="control",
                process="1",
                version="0",
                heartbeat=1.0,
                lease=5.0,
                bind_timeout=60.0,
                agent_down_after=30.0,
                threads=1,
            ),
            db=db,
            agents=agents,
            peers=conductor_app.Peers(Nova(absent()), Allocations(absent())),
            wake=lambda: None,
        )
        bus.server(CONDUCTOR_TOPIC, "control", Endpoint(cases)).start()
        conductor = ConductorClient(
            DirectBus(exchange), timeout=PATIENCE, now_ms=lambda: freezer.ms
        )
        app = webtest.TestApp(RequestId(api_app.core(conf, reader=reader, conductor=conductor)))
        _seed(db)
        yield Service(freezer, db, Client(app, role="admin"))
        for one in (conductor, agents, reader, db):
            one.close()
        bus.close()


def _seed(db: Database) -> None:
    """A host with a card that can be programmed."""
    welcome = Greeter(db=db, down_after=30_000).hello(
        Hello(HOST, (HOST,), "0", f"agent@{HOST}", None)
    )
    (found,) = report_of(HOST, 1, handles=100).drivers
    (device,) = found.devices
    (deployable,) = device.deployables
    device = replace(device, deployables=(replace(deployable, programmable=True),))
    report = Report((DriverReport(found.driver, found.state, (device,)),))
    Discovery(db=db, auto_enable=frozenset({"*"}), wake=lambda: None).report(
        HOST, welcome.epoch, report
    )


Request = Callable[[int], Any]


def _profile(service: Service) -> str:
    name = f"profile-{uuid4().hex[:12]}"
    groups = [{f"resources:{RESOURCE_CLASS}": "1"}]
    service.client.post("/device_profiles", [{"name": name, "groups": groups}])
    return name


def _bound(service: Service) -> tuple[Any, str]:
    """An ARQ that is bound, and its instance."""
    arqs, instance = create(service.nova, _profile(service)), str(uuid4())
    service.nova.patch(ARQS, bind_body(arqs, HOST, provider_of(HOST, 0), instance))
    return arqs, instance


def _creating(service: Service) -> Request:
    name = _profile(service)
    return lambda status: service.client.post(ARQS, {"device_profile_name": name}, status or 201)


def _binding(service: Service) -> Request:
    arqs = create(service.nova, _profile(service))
    body = bind_body(arqs, HOST, provider_of(HOST, 0), str(uuid4()))
    return lambda status: service.nova.patch(ARQS, body, status or 202)


def _unbinding(service: Service) -> Request:
    ((arq,), _) = _bound(service)
    words = ("hostname", "device_rp_uuid", "instance_uuid")
    body = {arq["uuid"]: [{"path": f"/{one}", "op": "remove"} for one in words]}
    return lambda status: service.nova.patch(ARQS, body, status or 202)


def _deleting(service: Service) -> Request:
    (arq,) = create(service.client, _profile(service))
    return lambda status: service.client.delete(f"{ARQS}?arqs={arq['uuid']}", status or 204)


def _deleting_of_instance(service: Service) -> Request:
    (_, instance) = _bound(service)
    return lambda status: service.nova.delete(f"{ARQS}?instance={instance}", status or 204)


def _deleting_of_nobody(service: Service) -> Request:
    """Even that leaves a mark."""
    path = f"{ARQS}?instance={uuid4()}"
    return lambda status: service.nova.delete(path, status or 204)


def _making_a_profile(service: Service) -> Request:
    body = [{"name": f"late-{uuid4().hex[:12]}", "groups": [{"resources:FPGA": "1"}]}]
    return lambda status: service.client.post("/device_profiles", body, status or 201)


def _deleting_a_profile(service: Service) -> Request:
    path = f"/device_profiles/{_profile(service)}"
    return lambda status: service.client.delete(path, status or 204)


def _disabling(service: Service) -> Request:
    uuid = service.client.get("/devices")["devices"][0]["uuid"]
    # It is in service again after that: others bind to it.
    service.client.post(f"/devices/{uuid}/disable", status=204)
    return lambda status: service.client.post(f"/devices/{uuid}/enable", status=status or 204)


def _programming(service: Service) -> Request:
    uuid = service.client.get("/deployables")["deployables"][0]["uuid"]
    body = [{"path": "/program", "op": "replace", "value": [{"image_uuid": str(uuid4())}]}]
    path = f"/deployables/{uuid}/program"
    return lambda status: service.client.patch(path, body, status or 200)


def _attribute(service: Service) -> dict[str, Any]:
    deployable = service.client.get("/deployables")["deployables"][0]["uuid"]
    return {"deployable_id": deployable, "key": "rack", "value": uuid4().hex}


def _adding_an_attribute(service: Service) -> Request:
    body = _attribute(service)
    return lambda status: service.client.post("/attributes", body, status or 201)


def _removing_an_attribute(service: Service) -> Request:
    made = service.client.post("/attributes", _attribute(service))
    path = f"/attributes/{made['uuid']}"
    return lambda status: service.client.delete(path, status or 204)


REQUESTS = [
    ("create_arqs", _creating),
    ("patch_arqs", _binding),
    ("patch_arqs", _unbinding),
    ("delete_arqs", _deleting),
    ("delete_instance_arqs", _deleting_of_instance),
    ("delete_instance_arqs", _deleting_of_nobody),
    ("create_device_profile", _making_a_profile),
    ("delete_device_profiles", _deleting_a_profile),
    ("set_device_status", _disabling),
    ("program_deployable", _programming),
    ("create_attribute", _adding_an_attribute),
    ("delete_attribute", _removing_an_attribute),
]


@pytest.mark.parametrize(("verb", "prepare"), REQUESTS)
def test_what_nobody_waits_for_is_not_carried_out(
    service: Service, verb: str, prepare: Callable[[Service], Request]
) -> None:
    request = prepare(service)
    before = everything(service.db)
    service.freezer.verb, service.freezer.for_ms = verb, TOO_LONG_MS
    request(503)
    assert service.freezer.verb == "", "nothing came to the conductor"
    assert everything(service.db) == before
    # While somebody waits it is: the same request again, and a conductor that is only slow.
    service.freezer.verb, service.freezer.for_ms = verb, int(PATIENCE * 1000)
    request(0)
    assert everything(service.db) != before
