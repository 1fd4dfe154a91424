# SPDX-License-Identifier: Apache-2.0
"""What is done on one of two hosts, or on both: nothing of the other host, and nothing half."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.clients.placement_sync import Publisher
from cyborg.conductor.hosts.agent_failover import AgentFailover
from cyborg.conductor.hosts.removal import HostRemover, Processes
from cyborg.conductor.operations.created_accelerators import CREATE, AcceleratorCreator
from cyborg.conductor.operations.discovery import VERB, AgentQuery, DiscoveryAPI
from cyborg.conductor.operations.drivers import INSTALL, UNINSTALL, UPDATE, Drivers, DriverWork
from cyborg.conductor.operations.operations import Operations, Order
from cyborg.conductor.tasks.queue import WorkQueue
from cyborg.db import events, listing, notifications, operations, services, units
from cyborg.db.models import AttachHandle, Deployable, Device, Driver, Event, Hardware, Host, Work
from cyborg.model.caller import Caller
from cyborg.model.creation import Creation
from cyborg.model.device import AttachType, DeviceStatus, DeviceType
from cyborg.model.operation import ResultState
from cyborg.model.process import AGENT, CONDUCTOR
from cyborg.model.provider import provider_uuid
from cyborg.model.report import AgentHeartbeat, DriverReport, DriverState, Report
from cyborg.model.scope import EVERYWHERE
from cyborg.model.work import WorkKind
from cyborg.tests.fixtures.host_reports import DRIVER, RESOURCE_CLASS, provider_of, report_of
from cyborg.tests.functional.rules.pair import DOWN_AFTER, FIRST, SECOND, Pair
from cyborg.tests.functional.rules.test_several_devices import OTHER_DRIVER, parts, two_drivers

OPERATOR = Caller("operators", "olga", "req-1", all_projects=True)
HOSTS = (FIRST, SECOND)
#: Nothing is reported any more of the driver.
NOTHING = Report((DriverReport(DRIVER, DriverState.READY),))
IMAGE = "5b0c9f3e-71d2-4f0c-9c0e-2f1a6f3f7c01"


@dataclass
class Providers:
    """Notes which providers are deleted and reserved, in their order."""

    retired: list[str] = field(default_factory=list)
    reserved: list[list[str]] = field(default_factory=list)

    def find_root(self, names: Sequence[str]) -> tuple[str, str]:
        return provider_uuid(names[0]), names[0]

    def retire(self, uuid: str, *, root: str | None = None) -> None:
        self.retired.append(uuid)

    def reserve(self, uuids: list[str]) -> list[str]:
        self.reserved.append(list(uuids))
        return list(uuids)


@dataclass
class Site:
    """Operations on the two hosts, whose agents are up."""

    pair: Pair
    providers: Providers = field(default_factory=Providers)

    @property
    def operations(self) -> Operations:
        return Operations(db=self.pair.db, wake=lambda: None, down_after=DOWN_AFTER)

    @property
    def drivers(self) -> Drivers:
        return Drivers(operations=self.operations)

    @property
    def processes(self) -> Processes:
        return Processes(
            db=self.pair.db,
            agents=self.pair.agent_client,
            operations=self.operations,
            down_after={AGENT: DOWN_AFTER},
        )

    def order(self, verb: str, *, wait: bool = False) -> Order:
        return Order(OPERATOR, str(uuid4()), verb, wait)

    def run_driver_work(self, *kinds: WorkKind) -> None:
        """Do the work on drivers once."""
        queue = WorkQueue(db=self.pair.db)
        agents = self.pair.agent_client
        query = AgentQuery(queue=queue, agents=agents, down_after=DOWN_AFTER)
        handlers = DriverWork(queue=queue, query=query, agents=agents, wake=lambda: None).handlers()
        for row in self.pair.claim(*kinds):
            handlers[WorkKind(row.kind)]([row])

    def results(self, operation: str) -> dict[str, ResultState]:
        """The states of the results of an operation by host."""
        with self.pair.db.reader() as tx:
            shown = operations.show(tx, operation, EVERYWHERE)
        assert shown is not None
        return {result.host: result.state for result in shown.results}

    def remove(self, *kinds: WorkKind) -> None:
        remover = HostRemover(
            db=self.pair.db,
            queue=WorkQueue(db=self.pair.db),
            publisher=lambda: cast(Publisher, self.providers),
            down_after={AGENT: DOWN_AFTER},
        )
        for row in self.pair.claim(*kinds):
            remover.remove([row])

    def driver(self, host: str, name: str = DRIVER) -> Any:
        own = sa.select(Host.id).where(Host.service_host == host).scalar_subquery()
        return self.pair.row(Driver, Driver.host_id == own, Driver.name == name)

    def statuses(self) -> dict[tuple[str, str], str]:
        """The status of each device by host and driver."""
        return {(row.hostname, row.driver): row.status for row in self.pair.rows(Device)}


@pytest.fixture
def site(pair: Pair) -> Site:
    pair.both(2)
    return Site(pair)


@pytest.fixture
def divided(pair: Pair) -> Site:
    """Each host has two drivers, of whose names one begins with the other."""
    for host in HOSTS:
        pair.report(host, two_drivers(host))
    return Site(pair)


@pytest.mark.parametrize("verb", [INSTALL, UPDATE, UNINSTALL])
def test_operation_on_a_driver_changes_the_desired_state_of_both_hosts(
    site: Site, verb: str
) -> None:
    before, order = site.pair.generations(), site.order(verb)
    if verb == INSTALL:
        site.drivers.install(order, DRIVER, hosts=None, options={"speed": "2"})
    elif verb == UPDATE:
        site.drivers.update(order, DRIVER, options={"speed": "2"}, enabled=None)
    else:
        site.drivers.uninstall(order, DRIVER, drain=False)
    assert site.pair.generations() == [generation + 1 for generation in before]
    assert site.results(order.request_key) == dict.fromkeys(HOSTS, ResultState.RUNNING)


def test_each_host_keeps_its_own_settings_of_a_driver(site: Site) -> None:
    for host, name in zip(HOSTS, ("slots", "speed"), strict=True):
        site.drivers.install(site.order(INSTALL), DRIVER, hosts=[host], options={name: "2"})
    site.drivers.update(site.order(UPDATE), DRIVER, options={"mode": "fast"}, enabled=None)
    options = [site.driver(host).options for host in HOSTS]
    assert options == [{"slots": "2", "mode": "fast"}, {"speed": "2", "mode": "fast"}]
    site.pair.change(Driver, Driver.id == site.driver(FIRST).id, enabled=False)
    order = site.order(UPDATE)
    site.drivers.update(order, DRIVER, options=None, enabled=None)
    rows = site.pair.rows(Work, Work.operation_id == order.request_key)
    assert [row.spec["enabled"] for row in rows] == [False, True]


def test_uninstall_on_one_host_leaves_the_other_one_and_other_drivers(divided: Site) -> None:
    order = divided.order(UNINSTALL)
    divided.drivers.uninstall(order, divided.driver(FIRST, OTHER_DRIVER).uuid, drain=False)
    assert divided.statuses() == {
        (FIRST, DRIVER): "enabled",
        (FIRST, OTHER_DRIVER): "maintaining",
        (SECOND, DRIVER): "enabled",
        (SECOND, OTHER_DRIVER): "enabled",
    }
    with pytest.raises(exception.Conflict, match="is being uninstalled"):
        divided.drivers.update(
            divided.order(UPDATE),
            divided.driver(FIRST, OTHER_DRIVER).uuid,
            options={},
            enabled=True,
        )
    for host, name in ((FIRST, DRIVER), (SECOND, OTHER_DRIVER)):
        uuid = divided.driver(host, name).uuid
        divided.drivers.update(divided.order(UPDATE), uuid, options={"speed": "2"}, enabled=None)


def test_uninstall_is_refused_only_where_the_driver_is_in_use(site: Site) -> None:
    site.pair.boot(provider_of(SECOND, 0))
    with pytest.raises(exception.Conflict, match="accelerator requests use it"):
        site.drivers.uninstall(site.order(UNINSTALL), site.driver(SECOND).uuid, drain=False)
    site.drivers.uninstall(site.order(UNINSTALL), site.driver(FIRST).uuid, drain=False)


def test_undone_uninstall_enables_what_was_enabled_before(site: Site) -> None:
    """On one host the agent does not know the request; the other host goes on."""
    out = site.pair.device(FIRST, 1)
    site.pair.change(Device, Device.id == out.id, status=DeviceStatus.MAINTAINING.value)
    order = site.order(UNINSTALL)
    site.drivers.uninstall(order, DRIVER, drain=False)
    site.pair.agents.errors = {
        FIRST: exception.UnknownVerb(peer="agent", verb="discover"),
        SECOND: exception.NoAnswer(peer="agent", reason="busy"),
    }
    site.run_driver_work(WorkKind.UNINSTALL_DRIVER)
    assert [row.status for row in site.pair.rows(Device)] == [
        *("enabled", "maintaining"),
        *("maintaining", "maintaining"),
    ]
    assert site.results(order.request_key) == {
        FIRST: ResultState.FAILED,
        SECOND: ResultState.WAITING,
    }


def test_undone_install_removes_the_driver_of_its_own_host(site: Site) -> None:
    order = site.order(INSTALL)
    site.drivers.install(order, "new_driver", hosts=None, options=None)
    site.pair.agents.errors = {
        FIRST: exception.UnknownVerb(peer="agent", verb="discover"),
        SECOND: exception.NoAnswer(peer="agent", reason="busy"),
    }
    site.run_driver_work(WorkKind.CONFIGURE_DRIVER)
    (left,) = site.pair.rows(Driver, Driver.name == "new_driver")
    assert left.host_id == site.pair.device(SECOND).host_id
    assert left.requested


def test_host_whose_agent_is_down_does_not_make_the_other_one_wait(site: Site) -> None:
    order = site.order(INSTALL, wait=True)
    site.drivers.install(order, DRIVER, hosts=list(HOSTS), options=None)
    site.pair.silence(FIRST)
    site.pair.agents.errors = {SECOND: exception.NoAnswer(peer="agent", reason="busy")}
    site.run_driver_work(WorkKind.CONFIGURE_DRIVER)
    with site.pair.db.reader() as tx:
        errors = [operations.result_of(tx, order.request_key, host) for host in HOSTS]
    assert errors[0] == (ResultState.WAITING.value, "its agent is down")
    assert errors[1] is not None
    assert errors[1] != errors[0]


def creating(host: str) -> Report:
    """A host with a backend on which operators create accelerators."""
    (driver,) = report_of(host, 1).drivers
    (backend,) = driver.backends or ()
    backends = (replace(backend, creates=AttachType.TEST_PCI),)
    return Report((replace(driver, backends=backends),))


def test_accelerators_are_created_on_their_own_hosts(pair: Pair) -> None:
    """Both hosts get one at the same address, and the first one another."""
    for host in HOSTS:
        pair.report(host, creating(host))
    site = Site(pair)
    creator = AcceleratorCreator(operations=site.operations)

    def create(host: str, *addresses: str) -> None:
        request = Creation(
            *(host, DRIVER, "engine-0", "virtual", DeviceType.FPGA, RESOURCE_CLASS),
            units=None if addresses else 1,
            addresses=addresses,
        )
        creator.create(site.order(CREATE), request)

    create(FIRST)
    create(SECOND)
    create(FIRST)
    shown = {
        host: [one.device.key for one in pair.desired(host).operator_created] for host in HOSTS
    }
    assert [len(shown[host]) for host in HOSTS] == [2, 1]
    assert shown[FIRST][0] == shown[SECOND][0] != shown[FIRST][1]
    # The address of hardware of one host is free on the other one.
    create(SECOND, "0000:82:00.0")
    pair.change(Device, Device.hostname == SECOND, device_key="0000:83:00.0")
    create(FIRST, "0000:83:00.0")
    with pytest.raises(exception.Conflict, match="already"):
        create(SECOND, "0000:83:00.0")


def test_created_devices_have_their_own_deployables(pair: Pair) -> None:
    for host in HOSTS:
        pair.report(host, report_of(host, 2))
    pair.change(Device, origin="operator")
    for host in HOSTS:
        created = [one.device for one in pair.desired(host).operator_created]
        names = [[part.name for part in device.deployables] for device in created]
        assert names == [[f"{host}_0"], [f"{host}_1"]]


def test_renamed_host_renames_its_own_devices(site: Site) -> None:
    epoch = site.pair.arena.epochs[FIRST]
    heartbeat = AgentHeartbeat(FIRST, ("node-1.example",), "0", f"agent@{FIRST}", epoch)
    site.pair.conductor.cases.heartbeats.heartbeat(heartbeat)
    names = [row.hostname for row in site.pair.rows(Device)]
    assert names == ["node-1.example", "node-1.example", SECOND, SECOND]
    assert [row.name for row in site.pair.rows(Host)] == ["node-1.example", SECOND]


def test_restart_of_an_agent_forgets_the_unused_images_of_its_host(site: Site) -> None:
    site.pair.boot(provider_of(FIRST, 0))
    site.pair.change(Deployable, bitstream_id=IMAGE)
    heartbeat = AgentHeartbeat(FIRST, (FIRST,), "0", f"agent@{FIRST}", None)
    site.pair.conductor.cases.heartbeats.heartbeat(heartbeat)
    images = [row.bitstream_id for row in site.pair.rows(Deployable)]
    assert images == [IMAGE, None, IMAGE, IMAGE]


def aged(pair: Pair, *models: Any) -> None:
    """What is lost has been so for longer than it is kept."""
    for model in models:
        pair.change(model, model.lost_ms.is_not(None), lost_ms=1)


def retired(pair: Pair) -> list[tuple[str, str]]:
    """Noun and host of what was removed."""
    return [(row.noun, row.hostname) for row in pair.rows(Event, Event.action == "retired")]


def test_lost_units_of_every_host_are_removed(pair: Pair) -> None:
    pair.both(handles=3)
    pair.both(handles=1)
    aged(pair, AttachHandle)
    before = pair.generations()
    pair.lost_devices.expire()
    assert retired(pair) == [("handle", host) for host in HOSTS for _ in range(2)]
    assert len(pair.rows(AttachHandle)) == 2
    assert pair.generations() == [generation + 1 for generation in before]


def test_lost_units_stay_while_the_agent_of_their_host_is_silent(pair: Pair) -> None:
    pair.both(handles=2)
    pair.both(handles=1)
    aged(pair, AttachHandle)
    pair.silence(FIRST)
    pair.lost_devices.expire()
    assert retired(pair) == [("handle", SECOND)]


def test_agent_confirms_removals_of_its_own_host(pair: Pair) -> None:
    for host in HOSTS:
        pair.report(host, parts(host, "ab"))
        pair.report(host, parts(host, "a"))
    aged(pair, Deployable)
    confirm = pair.lost_devices.confirm_removal
    confirm(FIRST, pair.arena.epochs[FIRST], [f"{SECOND}_b"])
    assert retired(pair) == []
    confirm(FIRST, pair.arena.epochs[FIRST], [f"{FIRST}_b", f"{SECOND}_b"])
    assert retired(pair) == [("deployable", FIRST)]


@pytest.mark.parametrize("failing", HOSTS)
def test_failing_driver_keeps_the_lost_devices_of_its_own_host(pair: Pair, failing: str) -> None:
    pair.both()
    for host in HOSTS:
        pair.report(host, NOTHING)
    aged(pair, Device)
    own = sa.select(Host.id).where(Host.name == failing).scalar_subquery()
    pair.change(Driver, Driver.host_id == own, state=DriverState.FAILED.value)
    (other,) = set(HOSTS) - {failing}
    obsolete = {host: [one.name for one in pair.desired(host).obsolete_providers] for host in HOSTS}
    assert obsolete == {failing: [], other: [f"{other}_0"]}


def test_lost_devices_of_an_uninstalled_driver_leave_their_own_host(pair: Pair) -> None:
    pair.both()
    for host in HOSTS:
        pair.report(host, NOTHING)
    own = sa.select(Host.id).where(Host.name == FIRST).scalar_subquery()
    pair.change(Driver, Driver.host_id == own, requested=False)
    obsolete = {host: [one.name for one in pair.desired(host).obsolete_providers] for host in HOSTS}
    assert obsolete == {FIRST: [f"{FIRST}_0"], SECOND: []}


def test_name_of_a_host_is_not_the_beginning_of_another_one(site: Site) -> None:
    """The filters of operators for ``node-1`` show nothing of ``node-10``."""
    site.pair.boot(provider_of(SECOND, 0))
    for host in HOSTS:
        site.pair.report(host, NOTHING)
    with site.pair.db.reader() as tx:
        (row,) = units.by_class(tx, {"host": FIRST}, EVERYWHERE, ["host"])
        agents = services.processes(tx, EVERYWHERE, host=FIRST)
        history = events.page(tx, listing.Page(), EVERYWHERE, {"host": FIRST})
        counts = units.count(tx, {"host": FIRST}, EVERYWHERE)
    assert (row.host, row.amount) == (FIRST, 4)
    assert [process.host for process in agents] == [FIRST]
    assert {event.hostname for event in history} == {FIRST}
    assert [count.host for count in counts] == [FIRST]


def test_host_out_of_service_leaves_the_other_one_in_service(site: Site) -> None:
    before = site.pair.generations()
    change = (OPERATOR, str(uuid4()), site.pair.process(SECOND).uuid, "broken fan")
    site.processes.set_status(*change, disabled=True)
    assert site.pair.generations() == [before[0], before[1] + 1]
    assert set(site.pair.reserved(FIRST).values()) == {0}
    assert set(site.pair.reserved(SECOND).values()) == {2}
    site.pair.boot(provider_of(FIRST, 0))
    with pytest.raises(exception.DeviceUnavailable):
        site.pair.boot(provider_of(SECOND, 0))


def test_prepared_units_of_a_host_are_its_own(pair: Pair) -> None:
    pair.both(prepare=True)
    (arq,), _ = pair.boot(provider_of(SECOND, 0))
    pair.do(WorkKind.PREPARE)
    cases, epochs = pair.conductor.cases, pair.arena.epochs
    own = {
        host: {
            use.task.handle_uuid for use in cases.prepared_units.unit_uses(host, epochs[host]).units
        }
        for host in HOSTS
    }
    assert own == {host: {unit.uuid for unit in pair.units(f"{host}_0")} for host in HOSTS}
    assert pair.handle(arq).uuid in own[SECOND]


def test_removal_of_a_host_leaves_the_other_one(divided: Site) -> None:
    """Both hosts are down, and a removal of each is requested; that of the first one is done."""
    pair = divided.pair
    discover = DiscoveryAPI(operations=divided.operations)
    orders = [divided.order(VERB) for _ in range(3)]
    for order, hosts in zip(orders, (HOSTS, [FIRST], [SECOND]), strict=True):
        discover.discover(order, hosts=hosts, driver=None)
    top, below = pair.rows(Deployable)[:2]
    pair.change(Deployable, Deployable.id == below.id, parent_id=top.id, root_id=top.id)
    pair.silence(*HOSTS)
    removals = [
        divided.processes.request_removal(OPERATOR, str(uuid4()), pair.process(host).uuid)
        for host in HOSTS
    ]
    with pytest.raises(exception.Conflict, match="is being removed already"):
        divided.processes.request_removal(OPERATOR, str(uuid4()), pair.process(FIRST).uuid)
    left = pair.device(SECOND).host_id
    pair.change(Work, Work.host_id == left, kind=WorkKind.NOTIFY.value)
    divided.remove(WorkKind.REMOVE_SERVICE)
    # Children are deleted before their parents.
    assert divided.providers.retired == [below.rp_uuid, top.rp_uuid]
    assert {row.host_id for row in pair.rows(Device)} == {left}
    assert [row.host_id for row in pair.rows(Driver)] == [left] * 2
    assert [row.host_id for row in pair.rows(Hardware)] == [left] * 2
    assert [row.host_id for row in pair.rows(Work)] == [left] * 3
    assert [row.name for row in pair.rows(Host)] == [SECOND]
    assert [divided.results(order.request_key) for order in orders] == [
        {FIRST: ResultState.FAILED, SECOND: ResultState.RUNNING},
        {FIRST: ResultState.FAILED},
        {SECOND: ResultState.RUNNING},
    ]
    assert divided.results(removals[0].uuid) == {FIRST: ResultState.SUCCEEDED}
    assert divided.results(removals[1].uuid) == {SECOND: ResultState.RUNNING}


def test_host_is_removed_although_the_other_one_is_in_use(site: Site) -> None:
    arqs, _ = site.pair.boot(provider_of(SECOND, 0))
    site.pair.silence(*HOSTS)
    with pytest.raises(exception.Conflict, match=arqs[0]):
        site.processes.request_removal(OPERATOR, str(uuid4()), site.pair.process(SECOND).uuid)
    site.processes.request_removal(OPERATOR, str(uuid4()), site.pair.process(FIRST).uuid)
    site.remove(WorkKind.REMOVE_SERVICE)
    assert {row.hostname for row in site.pair.rows(Device)} == {SECOND}


def test_all_devices_of_each_silent_host_are_reserved(pair: Pair) -> None:
    """One host has been silent before; that another one is silent now says nothing about it."""
    pair.both(2, prepare=True)
    site = Site(pair)
    failover = AgentFailover(
        db=pair.db,
        lease=pair.conductor.lease,
        publisher=lambda: cast(Publisher, site.providers),
        grace=DOWN_AFTER,
        lease_ms=600_000,
    )
    own = {host: [provider_of(host, index) for index in range(2)] for host in HOSTS}
    pair.silence(FIRST)
    failover.run_once()
    pair.silence(SECOND)
    failover.run_once()
    assert site.providers.reserved == [own[FIRST]]
    failover.run_once()
    failover.run_once()
    assert site.providers.reserved == [own[FIRST], own[SECOND]]


def test_notification_about_a_driver_names_the_devices_of_its_own_host(site: Site) -> None:
    with site.pair.db.reader() as tx:
        shown = notifications.drivers(tx, [site.driver(host).uuid for host in HOSTS])
    own = {host: [site.pair.device(host, index).uuid for index in range(2)] for host in HOSTS}
    assert {uuid: sorted(devices) for uuid, (_, devices) in shown.items()} == {
        site.driver(host).uuid: sorted(own[host]) for host in HOSTS
    }


def test_oldest_conductor_is_the_oldest_of_the_conductors(site: Site) -> None:
    """The agents of both hosts have been there before it."""
    newer = replace_lease(site)
    with site.pair.db.reader() as tx:
        assert services.first_alive(tx, CONDUCTOR, 600_000) == newer


def replace_lease(site: Site) -> int:
    """The only conductor stops and begins again; the id of its row."""
    site.pair.conductor.lease.end()
    site.pair.conductor.lease.renew()
    owner = site.pair.conductor.lease.owner
    assert owner is not None
    return owner[0]
