# SPDX-License-Identifier: Apache-2.0
"""Each write that comes too late to its conductor is not done; each one that is repeated, once.

On a database server the answer to its COMMIT is lost on the wire as well. SQLite has no wire.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
import webtest
from oslo_config import cfg

from cyborg.clients.placement import Placement
from cyborg.clients.placement_sync import Publisher
from cyborg.conductor.context import Conductor
from cyborg.conductor.hosts import heartbeats
from cyborg.conductor.reports import apply, desired_state
from cyborg.db.engine import Database, Settings
from cyborg.db.models import Arq, AttachHandle, Device, Event, Work
from cyborg.db.models import Service as ServiceRow
from cyborg.model.report import AgentHeartbeat, DriverReport, Report
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.transport import Bus
from cyborg.rpc.verbs import ApiHeartbeat, FetchDesired, Heartbeat, SendReport, Write
from cyborg.tests.fixtures.contexts import context
from cyborg.tests.fixtures.crash import Boundary, FaultPlan
from cyborg.tests.fixtures.host_reports import RESOURCE_CLASS, provider_of, report_of
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.fixtures.proxy import Proxy
from cyborg.tests.fixtures.single_step import Clock, Environment, RunningClock
from cyborg.tests.functional.life.http import Client, bind_body, unbind_body
from cyborg.tests.functional.life.steps import ARQS, create, everything
from cyborg.tests.functional.schema.databases import SERVER, upgraded_database

HOST = fresh_host("late")
PLACE = provider_of(HOST, 0)
#: Drivers that find nothing.
IDLE = ("updated_driver", "uninstalled_driver")
UPDATED, UNINSTALLED = (f"/drivers/{name}" for name in IDLE)
#: How long the API waits for an answer, in seconds, over all repeats of its message.
PATIENCE = 10.0


class Freezer(Clock):
    """The database's clock, and a conductor that is frozen when a message is on its way to it."""

    def __init__(self) -> None:
        super().__init__()
        #: How long it is frozen before it looks at the next message of this verb.
        self.verb = ""
        self.for_ms = 0

    def meanwhile(self, _kind: Boundary, message: str) -> None:
        """See ``FaultPlan``."""
        if self.verb and message == f"arrival of {self.verb}":
            self.verb, late = "", self.for_ms
            self.ms += late


class Repeater(ConductorClient):
    """Sends each write once more while somebody looks whether that changes anything."""

    look: Callable[[], object] | None = None

    def __init__(self, bus: Bus, **more: Any) -> None:
        super().__init__(bus, **more)
        #: Whether each repetition was answered the same, and changed nothing.
        self.repeats: list[tuple[bool, bool]] = []

    def write(self, command: Write[Any]) -> Any:
        answer = super().write(command)
        if self.look is not None:
            before = self.look()
            same = super().write(command) == answer
            self.repeats.append((same, self.look() == before))
        return answer


@dataclass
class Service:
    """One conductor and the API in front of it, on a bus without a wire.

    The conductor is behind a ``proxy`` on a server; ``db`` is how others see its database.
    """

    freezer: Freezer
    db: Database
    client: Client
    servers: SimulatedNova
    conductor: Repeater
    ctx: Conductor
    proxy: Proxy | None

    @property
    def nova(self) -> Client:
        return self.client.with_service_token()

    @property
    def newest(self) -> Client:
        """The same user of the newest API."""
        return replace(self.client, version="2.100")

    def origins(self) -> list[tuple[Any, ...]]:
        """Project, user, request and operation of each event, the oldest first."""
        columns = (Event.project_id, Event.user_id, Event.request_id, Event.operation_id)
        with self.db.reader() as tx:
            return [tuple(row) for row in tx.execute(sa.select(*columns).order_by(Event.id))]

    def happened(self) -> list[tuple[Any, ...]]:
        """What each event tells of which object."""
        with self.db.reader() as tx:
            query = sa.select(Event.noun, Event.subject_uuid, Event.action).order_by(Event.id)
            return [tuple(row) for row in tx.execute(query)]

    def works(self) -> dict[str, str]:
        """The operation of each work that waits."""
        with self.db.reader() as tx:
            rows = tx.execute(sa.select(Work.uuid, Work.operation_id))
            return {row.uuid: row.operation_id for row in rows}

    @contextmanager
    def losing(self) -> Iterator[None]:
        """In the block a COMMIT is done and, on a server, goes unanswered."""
        before = 0 if self.proxy is None else self.proxy.lost
        if self.proxy is not None:
            self.proxy.lose_answer_to(b"COMMIT")
        yield
        assert self.proxy is None or self.proxy.lost == before + 1

    def profile(self) -> str:
        return self.client.make_profile({f"resources:{RESOURCE_CLASS}": "1"})

    def arqs(self) -> Any:
        return create(self.nova, self.profile())

    def bound(self) -> tuple[Any, str]:
        """ARQs that are bound, and their instance."""
        arqs, instance = self.arqs(), str(uuid4())
        self.nova.patch(ARQS, bind_body(arqs, HOST, PLACE, instance))
        return arqs, instance

    def first(self, noun: str, query: str = "") -> str:
        """The uuid of the first one of a list."""
        return str(self.newest.get(f"/{noun}{query}")[noun][0]["uuid"])

    def owned(self, instance: str, profile: str | None = None) -> str:
        """Where accelerators of a server that Nova knows are attached."""
        self.servers.own(instance, self.client.project, HOST, profile)
        return f"/instances/{instance}/accelerators"

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
    freezer = Freezer()
    with (
        upgraded_database(tmp_path_factory.mktemp("late")) as database,
        proxied(database.engine.url) as (proxy, place),
    ):
        url = database.engine.url.render_as_string(hide_password=False)
        behind = Environment(
            database_url=place,
            nova=nova_api.adapter(),
            placement=placement.adapter(),
            clock=freezer,
            engine=Settings(),
        )
        process = behind.conductor(
            faults=FaultPlan(meanwhile=freezer.meanwhile), auto_enable=frozenset()
        )
        process.renew()
        process.serve()
        conductor = Repeater(behind.bus(), timeout=PATIENCE, now_ms=lambda: freezer.ms)
        before = Environment(database_url=url, clock=RunningClock(), engine=Settings())
        api = before.api(conf, conductor=conductor)
        watch = Database(url, now=freezer.now)
        _seed(watch, placement)
        client = Client(webtest.TestApp(api.app), role="admin")
        yield Service(freezer, watch, client, nova_api, conductor, process.ctx, proxy)
        for ending in (api.stop, process.stop, behind.close, before.close, watch.close):
            ending()


@contextmanager
def proxied(url: sa.URL) -> Iterator[tuple[Proxy | None, str]]:
    """A proxy before the database server if there is one, and the URL of the database there."""
    if not SERVER:
        yield None, url.render_as_string(hide_password=False)
        return
    with Proxy(url.host or "127.0.0.1", url.port or 0) as proxy:
        there = url.set(host="127.0.0.1", port=proxy.port)
        yield proxy, there.render_as_string(hide_password=False)


def _seed(db: Database, placement: PlacementService) -> None:
    """A host with a card that can be programmed, one that is lost, and drivers that do nothing."""
    ctx = context(db)
    reply = heartbeats.heartbeat(
        ctx, Heartbeat(AgentHeartbeat(HOST, (HOST,), "0", f"agent@{HOST}", None))
    )
    (found,) = report_of(HOST, 2, handles=100).drivers
    device, lost = found.devices
    (deployable,) = device.deployables
    device = replace(device, deployables=(replace(deployable, programmable=True),))
    idle = [DriverReport(one, found.state) for one in IDLE]
    report = Report((DriverReport(found.driver, found.state, (device, lost)), *idle))
    apply.store(ctx, SendReport(HOST, reply.epoch, report))
    with db.writer() as tx:
        tx.execute(sa.update(Device).where(Device.device_key == lost.key).values(lost_ms=db.now))
    placement.make_compute(HOST)
    tree = desired_state.desired(ctx, FetchDesired(HOST, reply.epoch)).tree
    assert Publisher(Placement(placement.adapter())).publish(tree).problems == {}


#: Who asks, method, path, body, and the status when it is carried out.
Request = tuple[Client, str, str, Any, int]


def _enabling(service: Service) -> Request:
    """It is in service again after that: others bind to it."""
    path = f"/devices/{service.first('devices')}"
    service.client.post(f"{path}/disable", status=204)
    return service.client, "POST", f"{path}/enable", None, 204


def _programming(service: Service) -> Request:
    # While a request holds a unit, an image is refused.
    service.change(AttachHandle, arq_id=None)
    path = f"/deployables/{service.first('deployables')}/program"
    body = [{"path": "/program", "op": "replace", "value": [{"image_uuid": str(uuid4())}]}]
    return service.client, "PATCH", path, body, 200


def _attribute(service: Service) -> dict[str, Any]:
    return {
        "deployable_id": service.first("deployables"),
        "key": "rack",
        "value": uuid4().hex,
    }


def _removing_an_attribute(service: Service) -> Request:
    made = service.client.post("/attributes", _attribute(service))
    return service.client, "DELETE", f"/attributes/{made['uuid']}", None, 204


def _detaching(service: Service) -> Request:
    """One that attach has made, by all that can be seen."""
    ((arq,), instance) = service.bound()
    service.change(Arq, Arq.uuid == arq["uuid"], origin="attached")
    return service.newest, "DELETE", service.owned(instance), None, 202


def _returning_a_host(service: Service) -> Request:
    """Out of service before, and back again: others bind to it."""
    path = f"/services/{service.first('services', f'?host={HOST}&kind=process')}"
    service.newest.patch(path, {"status": "disabled"}, 200)
    return service.newest, "PATCH", path, {"status": "enabled"}, 200


def _removing_a_process(service: Service) -> Request:
    uuid = str(uuid4())
    with service.db.writer() as tx:
        gone = {"host": f"api-{uuid[:8]}", "binary": "cyborg-api", "status": "READY"}
        tx.execute(sa.insert(ServiceRow).values(uuid=uuid, last_seen_ms=0, **gone))
    return service.newest, "DELETE", f"/services/{uuid}", None, 202


def _with_a_driver(service: Service) -> dict[str, Any]:
    return {"driver": f"driver-{uuid4().hex[:12]}", "hosts": [HOST]}


def _with_a_profile(_service: Service) -> list[dict[str, Any]]:
    return [{"name": f"late-{uuid4().hex[:12]}", "groups": [{"resources:FPGA": "1"}]}]


REQUESTS: list[tuple[str, Callable[[Service], Request]]] = [
    (
        "create_arqs",
        lambda s: (s.client, "POST", ARQS, {"device_profile_name": s.profile()}, 201),
    ),
    (
        "patch_arqs",
        lambda s: (s.nova, "PATCH", ARQS, bind_body(s.arqs(), HOST, PLACE, str(uuid4())), 202),
    ),
    ("patch_arqs", lambda s: (s.nova, "PATCH", ARQS, unbind_body(s.bound()[0]), 202)),
    (
        "delete_arqs",
        lambda s: (s.client, "DELETE", f"{ARQS}?arqs={s.arqs()[0]['uuid']}", None, 204),
    ),
    (
        "delete_instance_arqs",
        lambda s: (s.nova, "DELETE", f"{ARQS}?instance={s.bound()[1]}", None, 204),
    ),
    # Even the delete of nothing leaves a mark.
    ("delete_instance_arqs", lambda s: (s.nova, "DELETE", f"{ARQS}?instance={uuid4()}", None, 204)),
    (
        "create_device_profile",
        lambda s: (s.client, "POST", "/device_profiles", _with_a_profile(s), 201),
    ),
    (
        "delete_device_profiles",
        lambda s: (s.client, "DELETE", f"/device_profiles/{s.profile()}", None, 204),
    ),
    ("set_device_status", _enabling),
    ("create_attribute", lambda s: (s.client, "POST", "/attributes", _attribute(s), 201)),
    (
        "create_attribute",
        lambda s: (s.client, "POST", "/attributes", {**_attribute(s), "uuid": str(uuid4())}, 201),
    ),
    ("delete_attribute", _removing_an_attribute),
    ("attach", lambda s: (s.newest, "POST", s.owned(str(uuid4()), s.profile()), {}, 202)),
    ("detach", _detaching),
    ("detach", lambda s: (s.newest, "DELETE", s.owned(str(uuid4())), None, 202)),
    (
        "discover_services",
        lambda s: (s.newest, "POST", "/services/discover?wait=true", {}, 202),
    ),
    (
        "install_driver",
        lambda s: (s.newest, "POST", "/drivers?wait=true", _with_a_driver(s), 202),
    ),
    (
        "update_driver",
        lambda s: (s.newest, "PATCH", f"{UPDATED}?wait=true", {"options": {"count": "2"}}, 202),
    ),
    ("update_driver", lambda s: (s.newest, "PATCH", f"{UPDATED}?wait=true", {}, 202)),
    ("uninstall_driver", lambda s: (s.newest, "DELETE", f"{UNINSTALLED}?wait=true", None, 202)),
    (
        "update_device",
        lambda s: (
            s.newest,
            "PATCH",
            f"/devices/{s.first('devices')}",
            {"labels": {"rack": uuid4().hex}},
            200,
        ),
    ),
    (
        "delete_device",
        lambda s: (
            s.newest,
            "DELETE",
            f"/devices/{s.first('devices', '?status=lost')}",
            None,
            204,
        ),
    ),
    (
        "update_device_profile",
        lambda s: (
            s.newest,
            "PATCH",
            f"/device_profiles/{s.profile()}",
            {"description": uuid4().hex},
            200,
        ),
    ),
    ("set_service_status", _returning_a_host),
    ("remove_service", _removing_a_process),
    # The last: while its image is under way, units of the device wait for the agent.
    ("program_deployable", _programming),
]


@pytest.mark.parametrize(("verb", "prepare"), REQUESTS, ids=[verb for verb, _ in REQUESTS])
def test_expired_request_is_not_executed_and_a_repeated_one_runs_once(
    service: Service, verb: str, prepare: Callable[[Service], Request]
) -> None:
    who, method, path, body, status = prepare(service)
    waiting = service.works()
    before, earlier, told = everything(service.db), service.origins(), len(service.happened())
    service.freezer.verb, service.freezer.for_ms = verb, int(PATIENCE * 1000)
    who.send(method, path, body, 503)
    assert service.freezer.verb == "", "nothing came to the conductor"
    assert everything(service.db) == before
    # While somebody waits it is: the same request again, and a conductor that is only slow.
    service.freezer.verb, service.freezer.for_ms = verb, int(PATIENCE * 1000) // 2
    service.conductor.look, service.conductor.repeats = lambda: everything(service.db), []
    with service.losing():
        who.send(method, path, body, status)
    service.conductor.look = None
    assert service.conductor.repeats == [(True, True)]
    # Nor has the attempt that lost the answer to its COMMIT been done twice.
    happened = service.happened()[told:]
    assert len(happened) == len(set(happened))
    assert everything(service.db) != before
    # All its events belong to this request of this user.
    ((project, user, request_id, operation),) = set(service.origins()[len(earlier) :])
    assert project == service.client.project
    assert user == f"user-of-{project}"[:32]
    assert request_id.startswith("req-")
    assert UUID(operation)
    assert {of for work, of in service.works().items() if work not in waiting} <= {operation}


def test_heartbeat_and_report_survive_a_lost_commit(service: Service) -> None:
    name = fresh_host("lost")

    def heartbeat(epoch: int | None = None) -> Any:
        sent = AgentHeartbeat(name, (name,), "0", f"agent@{name}", epoch)
        return heartbeats.heartbeat(service.ctx, Heartbeat(sent))

    with service.losing():
        reply = heartbeat()
    report = report_of(name, 2)
    with service.losing():
        taken = apply.store(service.ctx, SendReport(name, reply.epoch, report))
    with service.db.reader() as tx:
        query = sa.select(sa.func.count()).where(Device.hostname == name)
        assert tx.execute(query).scalar_one() == 2
    again = heartbeat(reply.epoch)
    assert (again.epoch, again.digest) == (reply.epoch, report.digest())
    assert again.desired_generation == taken.desired_generation
    for _ in range(2):
        with service.losing():
            heartbeats.api_heartbeat(service.ctx, ApiHeartbeat(name, "1", "somewhere"))
    with service.db.reader() as tx:
        own = sa.and_(ServiceRow.host == name, ServiceRow.binary == "cyborg-api")
        assert tx.execute(sa.select(ServiceRow.epoch).where(own)).scalar_one() == 1
