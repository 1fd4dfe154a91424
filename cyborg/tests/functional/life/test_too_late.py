# SPDX-License-Identifier: Apache-2.0
"""A request that reaches a conductor when nobody waits for it any more changes nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
import webtest
from oslo_config import cfg
from oslo_middleware import RequestId

from cyborg.api import app as api_app
from cyborg.clients.placement import Placement
from cyborg.clients.placement_sync import Publisher
from cyborg.conductor.hosts.heartbeats import Heartbeats
from cyborg.conductor.reports.apply import ReportApplier
from cyborg.conductor.reports.desired_state import DesiredStates
from cyborg.db import schema
from cyborg.db.engine import Database, Reader
from cyborg.db.models import Arq, Device, Event
from cyborg.db.models import Service as ServiceRow
from cyborg.model.report import AgentHeartbeat, DriverReport, Report
from cyborg.rpc.conductor import ConductorClient
from cyborg.tests.fixtures.direct_bus import DirectBus, Exchange
from cyborg.tests.fixtures.host_reports import RESOURCE_CLASS, provider_of, report_of
from cyborg.tests.fixtures.manual_processes import ManualConductor
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.functional.life.http import Client, bind_body
from cyborg.tests.functional.life.steps import ARQS, create, everything
from cyborg.tests.functional.schema.databases import empty_database

HOST = fresh_host("late")
#: Drivers that find nothing.
UPDATED, UNINSTALLED = "updated_driver", "uninstalled_driver"
#: How long the API waits for an answer, in seconds, over all repeats of its message.
PATIENCE = 10.0


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
    servers: SimulatedNova

    @property
    def nova(self) -> Client:
        return self.client.with_service_token()

    @property
    def newest(self) -> Client:
        """The same user of the newest API."""
        return replace(self.client, version="2.4")

    def origins(self) -> list[tuple[Any, ...]]:
        """Project, user, request and operation of each event, the oldest first."""
        columns = (Event.project_id, Event.user_id, Event.request_id, Event.operation_id)
        with self.db.reader() as tx:
            return [tuple(row) for row in tx.execute(sa.select(*columns).order_by(Event.id))]

    def change(self, model: Any, *which: Any, **values: Any) -> None:
        """Change rows behind everybody's back."""
        with self.db.writer() as tx:
            tx.execute(sa.update(model).where(*which).values(**values))


@pytest.fixture(scope="module")
def service(
    conf: cfg.ConfigOpts,
    tmp_path_factory: pytest.TempPathFactory,
    placement: PlacementService,
    nova_api: SimulatedNova,
) -> Iterator[Service]:
    freezer, exchange = Freezer(), Exchange()
    now = sa.bindparam("moment", type_=sa.BigInteger(), callable_=lambda: freezer.ms)
    with empty_database(tmp_path_factory.mktemp("late")) as empty:
        schema.upgrade(empty)
        url = empty.engine.url.render_as_string(hide_password=False)
        process = ManualConductor(
            Database(url, now=now),
            DirectBus(exchange, crossing=freezer.crossing),
            nova=nova_api.adapter(),
            placement=placement.adapter(),
            auto_enable=frozenset(),
        )
        process.serve()
        reader = Reader(url)
        conductor = ConductorClient(
            DirectBus(exchange), timeout=PATIENCE, now_ms=lambda: freezer.ms
        )
        app = webtest.TestApp(RequestId(api_app.core(conf, reader=reader, conductor=conductor)))
        _seed(process.db, placement)
        yield Service(freezer, process.db, Client(app, role="admin"), nova_api)
        for ending in (conductor.close, reader.close, process.stop):
            ending()


def _seed(db: Database, placement: PlacementService) -> None:
    """A host with a card that can be programmed, one that is lost, and drivers that do nothing."""
    reply = Heartbeats(db=db, down_after=30_000).heartbeat(
        AgentHeartbeat(HOST, (HOST,), "0", f"agent@{HOST}", None)
    )
    (found,) = report_of(HOST, 2, handles=100).drivers
    device, lost = found.devices
    (deployable,) = device.deployables
    device = replace(device, deployables=(replace(deployable, programmable=True),))
    idle = [DriverReport(one, found.state) for one in (UPDATED, UNINSTALLED)]
    report = Report((DriverReport(found.driver, found.state, (device, lost)), *idle))
    ReportApplier(db=db, auto_enable=frozenset({"*"}), wake=lambda: None).report(
        HOST, reply.epoch, report
    )
    with db.writer() as tx:
        tx.execute(sa.update(Device).where(Device.device_key == lost.key).values(lost_ms=db.now))
    placement.make_compute(HOST)
    tree = DesiredStates(db=db).desired(HOST, reply.epoch).tree
    assert Publisher(Placement(placement.adapter())).publish(tree).problems == {}


Request = Callable[[int], Any]


def _profile(service: Service) -> str:
    return service.client.make_profile({f"resources:{RESOURCE_CLASS}": "1"})


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
    # While a request holds a unit, an image is refused.
    service.change(Arq, attach_handle_id=None)
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


def _attaching(service: Service) -> Request:
    name, instance = _profile(service), str(uuid4())
    service.servers.own(instance, service.client.project, HOST, name)
    path = f"/instances/{instance}/accelerators"
    return lambda status: service.newest.post(path, {}, status or 202)


def _detaching(service: Service) -> Request:
    """One that attach has made, by all that can be seen."""
    ((arq,), instance) = _bound(service)
    service.servers.own(instance, service.client.project, HOST)
    service.change(Arq, Arq.uuid == arq["uuid"], origin="attached")
    path = f"/instances/{instance}/accelerators"
    return lambda status: service.newest.delete(path, status or 202)


def _detaching_nothing(service: Service) -> Request:
    instance = str(uuid4())
    service.servers.own(instance, service.client.project, HOST)
    path = f"/instances/{instance}/accelerators"
    return lambda status: service.newest.delete(path, status or 202)


def _discovering(service: Service) -> Request:
    return lambda status: service.newest.post("/services/discover?wait=true", {}, status or 202)


def _installing_a_driver(service: Service) -> Request:
    body = {"driver": f"driver-{uuid4().hex[:12]}", "hosts": [HOST]}
    return lambda status: service.newest.post("/drivers?wait=true", body, status or 202)


def _updating_a_driver(service: Service) -> Request:
    path, body = f"/drivers/{UPDATED}?wait=true", {"options": {"count": "2"}}
    return lambda status: service.newest.patch(path, body, status or 202)


def _reloading_a_driver(service: Service) -> Request:
    path = f"/drivers/{UPDATED}?wait=true"
    return lambda status: service.newest.patch(path, {}, status or 202)


def _uninstalling_a_driver(service: Service) -> Request:
    path = f"/drivers/{UNINSTALLED}?wait=true"
    return lambda status: service.newest.delete(path, status or 202)


def _labelling(service: Service) -> Request:
    uuid = service.client.get("/devices")["devices"][0]["uuid"]
    body = {"labels": {"rack": uuid4().hex}}
    return lambda status: service.newest.patch(f"/devices/{uuid}", body, status or 200)


def _deleting_a_device(service: Service) -> Request:
    (lost,) = service.newest.get("/devices?status=lost")["devices"]
    return lambda status: service.newest.delete(f"/devices/{lost['uuid']}", status or 204)


def _changing_a_profile(service: Service) -> Request:
    path, body = f"/device_profiles/{_profile(service)}", {"description": uuid4().hex}
    return lambda status: service.newest.patch(path, body, status or 200)


def _taking_a_host_out_of_service(service: Service) -> Request:
    """And before that back again: others bind to it."""
    (agent,) = service.newest.get("/services", host=HOST, kind="process")["services"]
    path = f"/services/{agent['uuid']}"
    service.newest.patch(path, {"status": "disabled"}, 200)
    return lambda status: service.newest.patch(path, {"status": "enabled"}, status or 200)


def _forgetting_a_process(service: Service) -> Request:
    uuid = str(uuid4())
    with service.db.writer() as tx:
        gone = {"host": f"api-{uuid[:8]}", "binary": "cyborg-api", "status": "READY"}
        tx.execute(sa.insert(ServiceRow).values(uuid=uuid, last_seen_ms=0, **gone))
    return lambda status: service.newest.delete(f"/services/{uuid}", status or 202)


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
    ("create_attribute", _adding_an_attribute),
    ("delete_attribute", _removing_an_attribute),
    ("attach", _attaching),
    ("detach", _detaching),
    ("detach", _detaching_nothing),
    ("discover_services", _discovering),
    ("install_driver", _installing_a_driver),
    ("update_driver", _updating_a_driver),
    ("update_driver", _reloading_a_driver),
    ("uninstall_driver", _uninstalling_a_driver),
    ("update_device", _labelling),
    ("delete_device", _deleting_a_device),
    ("update_device_profile", _changing_a_profile),
    ("set_service_status", _taking_a_host_out_of_service),
    ("remove_service", _forgetting_a_process),
    # The last: while its image is under way, units of the device wait for the agent.
    ("program_deployable", _programming),
]


@pytest.mark.parametrize(("verb", "prepare"), REQUESTS)
def test_expired_request_is_not_executed(
    service: Service, verb: str, prepare: Callable[[Service], Request]
) -> None:
    request = prepare(service)
    before, earlier = everything(service.db), service.origins()
    service.freezer.verb, service.freezer.for_ms = verb, int(PATIENCE * 1000)
    request(503)
    assert service.freezer.verb == "", "nothing came to the conductor"
    assert everything(service.db) == before
    # While somebody waits it is: the same request again, and a conductor that is only slow.
    service.freezer.verb, service.freezer.for_ms = verb, int(PATIENCE * 1000) // 2
    request(0)
    assert everything(service.db) != before
    # All its events belong to this request of this user.
    ((project, user, request_id, operation),) = set(service.origins()[len(earlier) :])
    assert project == service.client.project
    assert user == f"user-of-{project}"[:32]
    assert request_id.startswith("req-")
    assert UUID(operation)
