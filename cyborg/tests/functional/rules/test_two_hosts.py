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
from cyborg.conductor.hosts import heartbeats, lost_devices, removal
from cyborg.conductor.hosts.agent_failover import Absences, reserve_absent
from cyborg.conductor.operations import discovery
from cyborg.conductor.operations.created_accelerators import create as create_accelerator
from cyborg.conductor.operations.drivers import INSTALL, UNINSTALL, UPDATE
from cyborg.conductor.reports import desired_state
from cyborg.db import events, listing, notifications, operations, services, units
from cyborg.db.models import AttachHandle, Deployable, Device, Driver, Event, Hardware, Host, Work
from cyborg.model.caller import Caller
from cyborg.model.creation import Creation
from cyborg.model.device import AttachType, DeviceStatus, DeviceType
from cyborg.model.operation import ResultState
from cyborg.model.process import CONDUCTOR, HostStatus
from cyborg.model.provider import provider_uuid
from cyborg.model.report import AgentHeartbeat, DriverReport, DriverState, Report
from cyborg.model.scope import EVERYWHERE
from cyborg.model.work import WorkKind
from cyborg.rpc.verbs import (
    CreateDevice,
    DiscoverServices,
    FetchUnitUses,
    Heartbeat,
    InstallDriver,
    RemoveService,
    SendProvidersRemoved,
    SetServiceStatus,
    UninstallDriver,
    UpdateDriver,
)
from cyborg.tests.fixtures.contexts import changed
from cyborg.tests.fixtures.host_reports import DRIVER, RESOURCE_CLASS, provider_of, report_of
from cyborg.tests.fixtures.use_cases import UseCases
from cyborg.tests.functional.rules.pair import DOWN_AFTER, FIRST, SECOND, both, generations
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


@pytest.fixture
def providers(pair: UseCases) -> Providers:
    """Stand for the inventories in Placement."""
    made = Providers()
    pair.ctx = replace(pair.ctx, publisher=lambda: cast(Publisher, made))
    return made


@pytest.fixture
def shown(pair: UseCases) -> UseCases:
    """Both hosts show two devices."""
    both(pair, 2)
    return pair


@pytest.fixture
def divided(pair: UseCases) -> UseCases:
    """Each host has two drivers, of whose names one begins with the other."""
    for host in HOSTS:
        pair.report(host, two_drivers(host))
    return pair


def install(
    pair: UseCases,
    key: str,
    driver: str,
    *,
    hosts: list[str] | None,
    options: Any,
    wait: bool = False,
) -> None:
    pair.ask(InstallDriver(OPERATOR, key, driver, hosts, options, wait))


def update(
    pair: UseCases, key: str, driver: str, *, options: Any, enabled: bool | None = None
) -> None:
    pair.ask(UpdateDriver(OPERATOR, key, driver, options, enabled, wait=False))


def uninstall(pair: UseCases, key: str, driver: str) -> None:
    pair.ask(UninstallDriver(OPERATOR, key, driver, drain=False, wait=False))


def forget(pair: UseCases, host: str) -> str:
    """Request the removal of the agent of a host; the uuid of the operation."""
    return pair.ask(RemoveService(OPERATOR, str(uuid4()), pair.agent_row(host).uuid)).uuid


def results(pair: UseCases, operation: str) -> dict[str, ResultState]:
    """The states of the results of an operation by host."""
    return {result.host: result.state for result in pair.operation(operation).results}


def driver_of(pair: UseCases, host: str, name: str = DRIVER) -> Any:
    own = sa.select(Host.id).where(Host.service_host == host).scalar_subquery()
    return pair.row(Driver, Driver.host_id == own, Driver.name == name)


def statuses(pair: UseCases) -> dict[tuple[str, str], str]:
    """The status of each device by host and driver."""
    return {(row.hostname, row.driver): row.status for row in pair.rows(Device)}


@pytest.mark.parametrize("verb", [INSTALL, UPDATE, UNINSTALL])
def test_operation_on_a_driver_changes_the_desired_state_of_both_hosts(
    shown: UseCases, verb: str
) -> None:
    before, order = generations(shown), str(uuid4())
    if verb == INSTALL:
        install(shown, order, DRIVER, hosts=None, options={"speed": "2"})
    elif verb == UPDATE:
        update(shown, order, DRIVER, options={"speed": "2"}, enabled=None)
    else:
        uninstall(shown, order, DRIVER)
    assert generations(shown) == [generation + 1 for generation in before]
    assert results(shown, order) == dict.fromkeys(HOSTS, ResultState.RUNNING)


def test_each_host_keeps_its_own_settings_of_a_driver(shown: UseCases) -> None:
    for host, name in zip(HOSTS, ("slots", "speed"), strict=True):
        install(shown, str(uuid4()), DRIVER, hosts=[host], options={name: "2"})
    update(shown, str(uuid4()), DRIVER, options={"mode": "fast"}, enabled=None)
    options = [driver_of(shown, host).options for host in HOSTS]
    assert options == [{"slots": "2", "mode": "fast"}, {"speed": "2", "mode": "fast"}]
    shown.change(Driver, Driver.id == driver_of(shown, FIRST).id, enabled=False)
    order = str(uuid4())
    update(shown, order, DRIVER, options=None, enabled=None)
    rows = shown.rows(Work, Work.operation_id == order)
    assert [row.spec["enabled"] for row in rows] == [False, True]


def test_uninstall_on_one_host_leaves_the_other_one_and_other_drivers(divided: UseCases) -> None:
    order = str(uuid4())
    uninstall(divided, order, driver_of(divided, FIRST, OTHER_DRIVER).uuid)
    assert statuses(divided) == {
        (FIRST, DRIVER): "enabled",
        (FIRST, OTHER_DRIVER): "maintaining",
        (SECOND, DRIVER): "enabled",
        (SECOND, OTHER_DRIVER): "enabled",
    }
    with pytest.raises(exception.Conflict, match="is being uninstalled"):
        update(
            divided,
            str(uuid4()),
            driver_of(divided, FIRST, OTHER_DRIVER).uuid,
            options={},
            enabled=True,
        )
    for host, name in ((FIRST, DRIVER), (SECOND, OTHER_DRIVER)):
        uuid = driver_of(divided, host, name).uuid
        update(divided, str(uuid4()), uuid, options={"speed": "2"}, enabled=None)


def test_uninstall_is_refused_only_where_the_driver_is_in_use(shown: UseCases) -> None:
    shown.boot(provider_of(SECOND, 0))
    with pytest.raises(exception.Conflict, match="accelerator requests use it"):
        uninstall(shown, str(uuid4()), driver_of(shown, SECOND).uuid)
    uninstall(shown, str(uuid4()), driver_of(shown, FIRST).uuid)


def test_undone_uninstall_enables_what_was_enabled_before(shown: UseCases) -> None:
    """On one host the agent does not know the request; the other host goes on."""
    out = shown.device(FIRST, 1)
    shown.change(Device, Device.id == out.id, status=DeviceStatus.MAINTAINING.value)
    order = str(uuid4())
    uninstall(shown, order, DRIVER)
    shown.agents.answers = {
        FIRST: exception.UnknownVerb(peer="agent", verb="discover"),
        SECOND: exception.NoAnswer(peer="agent", reason="busy"),
    }
    shown.do(WorkKind.UNINSTALL_DRIVER)
    assert [row.status for row in shown.rows(Device)] == [
        *("enabled", "maintaining"),
        *("maintaining", "maintaining"),
    ]
    assert results(shown, order) == {
        FIRST: ResultState.FAILED,
        SECOND: ResultState.WAITING,
    }


def test_undone_install_removes_the_driver_of_its_own_host(shown: UseCases) -> None:
    order = str(uuid4())
    install(shown, order, "new_driver", hosts=None, options=None)
    shown.agents.answers = {
        FIRST: exception.UnknownVerb(peer="agent", verb="discover"),
        SECOND: exception.NoAnswer(peer="agent", reason="busy"),
    }
    shown.do(WorkKind.CONFIGURE_DRIVER)
    (left,) = shown.rows(Driver, Driver.name == "new_driver")
    assert left.host_id == shown.device(SECOND).host_id
    assert left.requested


def test_host_whose_agent_is_down_does_not_make_the_other_one_wait(shown: UseCases) -> None:
    order = str(uuid4())
    install(shown, order, DRIVER, hosts=list(HOSTS), options=None, wait=True)
    shown.silence(FIRST)
    shown.agents.answers = {SECOND: exception.NoAnswer(peer="agent", reason="busy")}
    shown.do(WorkKind.CONFIGURE_DRIVER)
    with shown.db.reader() as tx:
        errors = [operations.result_of(tx, order, host) for host in HOSTS]
    assert errors[0] == (ResultState.WAITING.value, "its agent is down")
    assert errors[1] is not None
    assert errors[1] != errors[0]


def creating(host: str) -> Report:
    """A host with a backend on which operators create accelerators."""
    (driver,) = report_of(host, 1).drivers
    (backend,) = driver.backends or ()
    backends = (replace(backend, creates=AttachType.TEST_PCI),)
    return Report((replace(driver, backends=backends),))


def test_accelerators_are_created_on_their_own_hosts(pair: UseCases) -> None:
    """Both hosts get one at the same address, and the first one another."""
    for host in HOSTS:
        pair.report(host, creating(host))

    def create(host: str, *addresses: str) -> None:
        request = Creation(
            *(host, DRIVER, "engine-0", "virtual", DeviceType.FPGA, RESOURCE_CLASS),
            units=None if addresses else 1,
            addresses=addresses,
        )
        create_accelerator(pair.ctx, CreateDevice(OPERATOR, str(uuid4()), request, wait=False))

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


def test_created_devices_have_their_own_deployables(pair: UseCases) -> None:
    for host in HOSTS:
        pair.report(host, report_of(host, 2))
    pair.change(Device, origin="operator")
    for host in HOSTS:
        created = [one.device for one in pair.desired(host).operator_created]
        names = [[part.name for part in device.deployables] for device in created]
        assert names == [[f"{host}_0"], [f"{host}_1"]]


def test_renamed_host_renames_its_own_devices(shown: UseCases) -> None:
    epoch = shown.epochs[FIRST]
    heartbeat = AgentHeartbeat(FIRST, ("node-1.example",), "0", f"agent@{FIRST}", epoch)
    heartbeats.heartbeat(shown.ctx, Heartbeat(heartbeat))
    names = [row.hostname for row in shown.rows(Device)]
    assert names == ["node-1.example", "node-1.example", SECOND, SECOND]
    assert [row.name for row in shown.rows(Host)] == ["node-1.example", SECOND]


def test_restart_of_an_agent_forgets_the_unused_images_of_its_host(shown: UseCases) -> None:
    shown.boot(provider_of(FIRST, 0))
    shown.change(Deployable, bitstream_id=IMAGE)
    heartbeat = AgentHeartbeat(FIRST, (FIRST,), "0", f"agent@{FIRST}", None)
    heartbeats.heartbeat(shown.ctx, Heartbeat(heartbeat))
    images = [row.bitstream_id for row in shown.rows(Deployable)]
    assert images == [IMAGE, None, IMAGE, IMAGE]


def aged(pair: UseCases, *models: Any) -> None:
    """What is lost has been so for longer than it is kept."""
    for model in models:
        pair.change(model, model.lost_ms.is_not(None), lost_ms=1)


def retired(pair: UseCases) -> list[tuple[str, str]]:
    """Noun and host of what was removed."""
    return [(row.noun, row.hostname) for row in pair.rows(Event, Event.action == "retired")]


def test_lost_units_of_every_host_are_removed(pair: UseCases) -> None:
    both(pair, handles=3)
    both(pair, handles=1)
    aged(pair, AttachHandle)
    before = generations(pair)
    lost_devices.expire(pair.ctx)
    assert retired(pair) == [("handle", host) for host in HOSTS for _ in range(2)]
    assert len(pair.rows(AttachHandle)) == 2
    assert generations(pair) == [generation + 1 for generation in before]


def test_lost_units_stay_while_the_agent_of_their_host_is_silent(pair: UseCases) -> None:
    both(pair, handles=2)
    both(pair, handles=1)
    aged(pair, AttachHandle)
    pair.silence(FIRST)
    lost_devices.expire(pair.ctx)
    assert retired(pair) == [("handle", SECOND)]


def test_agent_confirms_removals_of_its_own_host(pair: UseCases) -> None:
    for host in HOSTS:
        pair.report(host, parts(host, "ab"))
        pair.report(host, parts(host, "a"))
    aged(pair, Deployable)
    lost_devices.confirm_removal(
        pair.ctx, SendProvidersRemoved(FIRST, pair.epochs[FIRST], [f"{SECOND}_b"])
    )
    assert retired(pair) == []
    lost_devices.confirm_removal(
        pair.ctx,
        SendProvidersRemoved(FIRST, pair.epochs[FIRST], [f"{FIRST}_b", f"{SECOND}_b"]),
    )
    assert retired(pair) == [("deployable", FIRST)]


@pytest.mark.parametrize("failing", HOSTS)
def test_failing_driver_keeps_the_lost_devices_of_its_own_host(
    pair: UseCases, failing: str
) -> None:
    both(pair)
    for host in HOSTS:
        pair.report(host, NOTHING)
    aged(pair, Device)
    own = sa.select(Host.id).where(Host.name == failing).scalar_subquery()
    pair.change(Driver, Driver.host_id == own, state=DriverState.FAILED.value)
    (other,) = set(HOSTS) - {failing}
    obsolete = {host: [one.name for one in pair.desired(host).obsolete_providers] for host in HOSTS}
    assert obsolete == {failing: [], other: [f"{other}_0"]}


def test_lost_devices_of_an_uninstalled_driver_leave_their_own_host(pair: UseCases) -> None:
    both(pair)
    for host in HOSTS:
        pair.report(host, NOTHING)
    own = sa.select(Host.id).where(Host.name == FIRST).scalar_subquery()
    pair.change(Driver, Driver.host_id == own, requested=False)
    obsolete = {host: [one.name for one in pair.desired(host).obsolete_providers] for host in HOSTS}
    assert obsolete == {FIRST: [f"{FIRST}_0"], SECOND: []}


def test_name_of_a_host_is_not_the_beginning_of_another_one(shown: UseCases) -> None:
    """The filters of operators for ``node-1`` show nothing of ``node-10``."""
    shown.boot(provider_of(SECOND, 0))
    for host in HOSTS:
        shown.report(host, NOTHING)
    with shown.db.reader() as tx:
        (row,) = units.by_class(tx, {"host": FIRST}, EVERYWHERE, ["host"])
        agents = services.processes(tx, EVERYWHERE, host=FIRST)
        history = events.page(tx, listing.Page(), EVERYWHERE, {"host": FIRST})
    assert (row.host, row.amount) == (FIRST, 4)
    assert [process.host for process in agents] == [FIRST]
    assert {event.hostname for event in history} == {FIRST}


def test_host_out_of_service_leaves_the_other_one_in_service(shown: UseCases) -> None:
    before = generations(shown)
    agent = shown.agent_row(SECOND).uuid
    change = SetServiceStatus(
        OPERATOR, str(uuid4()), agent, HostStatus.DISABLED, reason="broken fan"
    )
    removal.set_status(shown.ctx, change)
    assert generations(shown) == [before[0], before[1] + 1]
    assert set(shown.reserved(FIRST).values()) == {0}
    assert set(shown.reserved(SECOND).values()) == {2}
    shown.boot(provider_of(FIRST, 0))
    with pytest.raises(exception.DeviceUnavailable):
        shown.boot(provider_of(SECOND, 0))


def test_prepared_units_of_a_host_are_its_own(pair: UseCases) -> None:
    both(pair, prepare=True)
    (arq,), _ = pair.boot(provider_of(SECOND, 0))
    pair.do(WorkKind.PREPARE)
    own: dict[str, set[str]] = {}
    for host in HOSTS:
        request = FetchUnitUses(host, pair.epochs[host])
        uses = desired_state.unit_uses(pair.ctx, request).units
        own[host] = {use.task.handle_uuid for use in uses}
    assert own == {host: {unit.uuid for unit in pair.units(f"{host}_0")} for host in HOSTS}
    assert pair.handle(arq).uuid in own[SECOND]


def test_removal_of_a_host_leaves_the_other_one(divided: UseCases, providers: Providers) -> None:
    """Both hosts are down, and a removal of each is requested; that of the first one is done."""
    pair = divided
    orders = [str(uuid4()) for _ in range(3)]
    for order, hosts in zip(orders, (HOSTS, [FIRST], [SECOND]), strict=True):
        command = DiscoverServices(OPERATOR, order, list(hosts), None, wait=False)
        discovery.discover(pair.ctx, command)
    top, below = pair.rows(Deployable)[:2]
    pair.change(Deployable, Deployable.id == below.id, parent_id=top.id, root_id=top.id)
    pair.silence(*HOSTS)
    removals = [forget(divided, host) for host in HOSTS]
    with pytest.raises(exception.Conflict, match="is being removed already"):
        forget(divided, FIRST)
    left = pair.device(SECOND).host_id
    pair.change(Work, Work.host_id == left, kind=WorkKind.NOTIFY.value)
    pair.do(WorkKind.REMOVE_SERVICE)
    # Children are deleted before their parents.
    assert providers.retired == [below.rp_uuid, top.rp_uuid]
    assert {row.host_id for row in pair.rows(Device)} == {left}
    assert [row.host_id for row in pair.rows(Driver)] == [left] * 2
    assert [row.host_id for row in pair.rows(Hardware)] == [left] * 2
    assert [row.host_id for row in pair.rows(Work)] == [left] * 3
    assert [row.name for row in pair.rows(Host)] == [SECOND]
    assert [results(divided, order) for order in orders] == [
        {FIRST: ResultState.FAILED, SECOND: ResultState.RUNNING},
        {FIRST: ResultState.FAILED},
        {SECOND: ResultState.RUNNING},
    ]
    assert results(divided, removals[0]) == {FIRST: ResultState.SUCCEEDED}
    assert results(divided, removals[1]) == {SECOND: ResultState.RUNNING}


@pytest.mark.usefixtures("providers")
def test_host_is_removed_although_the_other_one_is_in_use(shown: UseCases) -> None:
    arqs, _ = shown.boot(provider_of(SECOND, 0))
    shown.silence(*HOSTS)
    with pytest.raises(exception.Conflict, match=arqs[0]):
        forget(shown, SECOND)
    forget(shown, FIRST)
    shown.do(WorkKind.REMOVE_SERVICE)
    assert {row.hostname for row in shown.rows(Device)} == {SECOND}


def test_all_devices_of_each_silent_host_are_reserved(pair: UseCases, providers: Providers) -> None:
    """One host has been silent before; that another one is silent now says nothing about it."""
    both(pair, 2, prepare=True)
    ctx, absences = changed(pair.ctx, agent_grace=DOWN_AFTER / 1000), Absences()
    own = {host: [provider_of(host, index) for index in range(2)] for host in HOSTS}
    pair.silence(FIRST)
    reserve_absent(ctx, absences)
    pair.silence(SECOND)
    reserve_absent(ctx, absences)
    assert providers.reserved == [own[FIRST]]
    reserve_absent(ctx, absences)
    reserve_absent(ctx, absences)
    assert providers.reserved == [own[FIRST], own[SECOND]]


def test_notification_about_a_driver_names_the_devices_of_its_own_host(shown: UseCases) -> None:
    with shown.db.reader() as tx:
        told = notifications.drivers(tx, [driver_of(shown, host).uuid for host in HOSTS])
    own = {host: [shown.device(host, index).uuid for index in range(2)] for host in HOSTS}
    assert {uuid: sorted(devices) for uuid, (_, devices) in told.items()} == {
        driver_of(shown, host).uuid: sorted(own[host]) for host in HOSTS
    }


def test_oldest_conductor_is_the_oldest_of_the_conductors(shown: UseCases) -> None:
    """The agents of both hosts have been there before it."""
    newer = replace_lease(shown)
    with shown.db.reader() as tx:
        assert services.first_alive(tx, CONDUCTOR, 600_000) == newer


def replace_lease(shown: UseCases) -> int:
    """The only conductor stops and begins again; the id of its row."""
    shown.lease.end()
    shown.lease.renew()
    owner = shown.lease.owner
    assert owner is not None
    return owner[0]
