# SPDX-License-Identifier: Apache-2.0
"""A discovery on one host: whom it asks, what it waits for, and how each answer ends it."""

import logging
from uuid import UUID, uuid4, uuid5

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.operations.discovery import agent_step, query
from cyborg.conductor.tasks.workflow import POLL_MS, Run, Workflow
from cyborg.db import operations
from cyborg.db.engine import Database
from cyborg.db.hosts import HostAgent
from cyborg.db.models import Device, Event, Hardware, Service, Work
from cyborg.db.models import Operation as OperationRow
from cyborg.db.transaction import Transaction
from cyborg.model.caller import Caller
from cyborg.model.operation import HostResult, Operation, ResultState
from cyborg.model.report import DriverState
from cyborg.model.scope import EVERYWHERE
from cyborg.model.work import BackendFindings, DriverFindings, WorkKind
from cyborg.rpc.verbs import DiscoverServices
from cyborg.tests.fixtures.host_reports import DRIVER, report_of
from cyborg.tests.fixtures.use_cases import UseCases

HOST, OTHER = "compute", "other"
CALLER = Caller("project", "user", "req-1", all_projects=True)
#: Milliseconds.
DOWN_AFTER = 30_000
SILENT = exception.NoAnswer(peer="The agent", reason="it does not answer")
READY = DriverFindings(DRIVER, DriverState.READY, discovered=2)
DEAF = "its agent sends heartbeats but receives no requests: "


@pytest.fixture
def site(db: Database) -> UseCases:
    """Two hosts with two devices each, whose agents are up."""
    made = UseCases(db)
    made.lease.renew()
    for host in (HOST, OTHER):
        made.report(host, report_of(host, 2))
    return made


def order(
    site: UseCases,
    *hosts: str,
    driver: str | None = None,
    setup: bool = False,
    wait: bool = False,
) -> str:
    """Begin a discovery on these hosts; the uuid of the operation."""
    command = DiscoverServices(CALLER, str(uuid4()), list(hosts) or None, driver, wait, setup)
    return site.ask(command).uuid


def step(site: UseCases) -> None:
    """Do the work of discoveries once."""
    site.do(WorkKind.DISCOVER)


def last(site: UseCases) -> Operation:
    """The newest operation."""
    return site.operation(site.rows(OperationRow)[-1].uuid)


def result_of(site: UseCases, host: str = HOST) -> HostResult:
    (shown,) = (result for result in last(site).results if result.host == host)
    return shown


def waits(site: UseCases) -> tuple[str | None, int]:
    """The error of the only work, and in how many milliseconds it is due again."""
    with site.db.reader() as tx:
        row = tx.execute(sa.select(Work.error, Work.not_before_ms - tx.now)).one()
    return row[0], row[1]


def statuses_of(site: UseCases, host: str) -> list[str]:
    return [row.status for row in site.rows(Device, Device.hostname == host)]


def test_hosts_that_are_up_are_asked_once_each(site: UseCases) -> None:
    site.silence(OTHER)
    site.agents.answer = {"drivers": (READY,)}
    uuid = order(site)
    (row,) = site.claim()
    assert (row.spec, row.operation_id) == ({"driver": None, "setup": False, "host": HOST}, uuid)
    step(site)
    ((host, verb),) = site.agents.asked
    assert (host, verb.task.driver, verb.task.agent_epoch) == (HOST, None, site.epochs[HOST])
    assert verb.task.request_key == str(uuid5(UUID(row.uuid), "discover"))
    assert site.count(Work) == 0
    result = result_of(site)
    assert (result.state, result.error) == (ResultState.SUCCEEDED, None)
    assert result.result is not None
    assert result.result["installing"] == []
    (shown,) = result.result["drivers"]
    assert (shown["name"], shown["found"]) == (DRIVER, 2)
    assert "discovered" not in shown


def test_driver_is_named_in_the_request_and_the_operation(site: UseCases) -> None:
    order(site, HOST, driver=DRIVER)
    with site.db.reader() as tx:
        shown = operations.show(tx, last(site).uuid, EVERYWHERE)
    assert shown is not None
    assert shown.subject == {"driver": DRIVER, "hosts": [HOST]}
    step(site)
    assert [verb.task.driver for _, verb in site.agents.asked] == [DRIVER]


@pytest.mark.parametrize(
    ("hosts", "driver"), [([HOST], "another_driver"), (["a third host"], None)]
)
def test_missing_host_or_driver_is_not_found(
    site: UseCases, hosts: list[str], driver: str | None
) -> None:
    with pytest.raises(exception.NotFound):
        order(site, *hosts, driver=driver)
    assert site.count(Work) == 0


def test_host_whose_agent_is_down_is_waited_for_if_that_is_ordered(site: UseCases) -> None:
    site.silence(HOST)
    with pytest.raises(exception.Unavailable):
        order(site, HOST)
    order(site, HOST, wait=True)
    step(site)
    assert site.agents.asked == []
    assert result_of(site) == HostResult(HOST, ResultState.WAITING, error="its agent is down")
    error, pause_ms = waits(site)
    assert error == "its agent is down"
    assert pause_ms > POLL_MS // 2
    site.change(Service, last_seen_ms=site.db.now)
    site.agents.answer = {"done": False}
    step(site)
    assert result_of(site) == HostResult(HOST, ResultState.RUNNING)


def test_removed_host_has_failed(site: UseCases) -> None:
    order(site, HOST)
    with site.db.writer() as tx:
        tx.execute(sa.update(Work).values(host_id=None))
    step(site)
    assert result_of(site).error == "the host was removed"
    assert (result_of(site).state, site.count(Work)) == (ResultState.FAILED, 0)


def test_agent_that_never_answers_fails_after_its_second_silence(site: UseCases) -> None:
    """One answer between them begins the count again."""
    site.agents.answer = SILENT
    order(site, HOST)
    step(site)
    silent = HostResult(HOST, ResultState.WAITING, error=f"{DEAF}it does not answer")
    assert result_of(site) == silent
    error, pause_ms = waits(site)
    assert error == silent.error
    assert pause_ms < POLL_MS
    site.agents.answer = {"done": False}
    step(site)
    assert result_of(site) == HostResult(HOST, ResultState.RUNNING)
    site.agents.answer = SILENT
    step(site)
    assert result_of(site) == silent
    step(site)
    assert result_of(site) == HostResult(HOST, ResultState.FAILED, error=silent.error)


def test_agent_that_is_silent_from_the_start_fails_at_its_second_query(site: UseCases) -> None:
    site.agents.answer = SILENT
    order(site, HOST)
    states = []
    for _ in range(2):
        step(site)
        states.append(result_of(site).state)
    assert states == [ResultState.WAITING, ResultState.FAILED]


def test_discovery_without_a_deadline_waits_for_a_silent_agent(site: UseCases) -> None:
    site.agents.answer = SILENT
    order(site, HOST, wait=True)
    for _ in range(4):
        step(site)
    assert result_of(site).state is ResultState.WAITING


def test_agent_that_cannot_listen_fails_at_once_with_its_reason(site: UseCases) -> None:
    site.agents.answer = SILENT
    site.change(Service, Service.host == HOST, bus_error="the broker refuses it")
    order(site, HOST)
    step(site)
    error = f"{DEAF}the broker refuses it"
    assert result_of(site) == HostResult(HOST, ResultState.FAILED, error=error)


def test_work_on_a_driver_waits_for_a_silent_agent(site: UseCases) -> None:
    """It gets such work with the desired state, after its heartbeat."""
    site.agents.answer = SILENT
    order(site, HOST)
    site.change(Work, kind=WorkKind.CONFIGURE_DRIVER.value)
    flow = Workflow({"install": agent_step(query)})
    for _ in range(3):
        flow(site.ctx, site.claim())
    assert result_of(site).state is ResultState.WAITING


def test_unreachable_bus_is_waited_for(site: UseCases) -> None:
    site.agents.answer = exception.Unavailable(peer="The bus", reason="it is away")
    order(site, HOST)
    with pytest.raises(exception.Unavailable):
        step(site)
    assert result_of(site).state is ResultState.WAITING
    assert result_of(site).error == str(site.agents.answer)


@pytest.mark.parametrize(
    ("refusal", "prefix"),
    [
        (exception.UnknownVerb(peer="agent", verb="discover"), ""),
        (
            exception.Invalid(field="driver", reason="it is no name"),
            "the agent is of another release. ",
        ),
    ],
)
def test_agent_of_another_release_ends_the_operation(
    site: UseCases, refusal: exception.CyborgError, prefix: str
) -> None:
    """What the operation has begun on the host is reverted in the same transaction."""
    undone: list[int] = []
    site.agents.answer = refusal
    order(site, HOST)
    (row,) = site.claim()

    def undo(run: Run[HostAgent], tx: Transaction) -> None:
        undone.append(run.subject.id)

    Workflow({"discover": agent_step(query, undo=undo)})(site.ctx, [row])
    failed = HostResult(HOST, ResultState.FAILED, error=f"{prefix}{refusal}")
    assert (result_of(site), undone) == (failed, [row.host_id])


def test_nothing_is_reverted_on_a_removed_host(site: UseCases) -> None:
    undone: list[object] = []
    order(site, HOST)
    site.change(Work, host_id=None)
    flow = Workflow({"discover": agent_step(query, undo=lambda run, tx: undone.append(run))})
    flow(site.ctx, site.claim())
    assert (result_of(site).state, undone) == (ResultState.FAILED, [])


def test_end_of_a_discovery_is_logged(site: UseCases, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        order(site, HOST)
        step(site)
        assert f"Operation {last(site).uuid} on {HOST}: succeeded" in caplog.text
        order(site, HOST)
        site.change(Work, host_id=None)
        step(site)
    assert f"Operation {last(site).uuid} on {HOST}: failed, the host was removed" in caplog.text


@pytest.mark.parametrize(
    ("found", "error"),
    [
        (READY, None),
        (DriverFindings(DRIVER, DriverState.STARTING), None),
        (DriverFindings(DRIVER, DriverState.READY, error="it is slow"), None),
        (DriverFindings(DRIVER, DriverState.READY, failed=1), None),
        (DriverFindings(DRIVER, DriverState.READY, failed=1, error="no"), f"{DRIVER}: no"),
        (DriverFindings(DRIVER, DriverState.FAILED, error="no"), f"{DRIVER}: no"),
        (DriverFindings(DRIVER, DriverState.READY, error="no", accepted=False), f"{DRIVER}: no"),
    ],
)
def test_host_fails_with_any_of_its_drivers(
    site: UseCases, found: DriverFindings, error: str | None
) -> None:
    site.agents.answer = {
        "drivers": (
            DriverFindings("another", DriverState.READY),
            found,
        )
    }
    order(site, HOST)
    step(site)
    state = ResultState.SUCCEEDED if error is None else ResultState.FAILED
    assert (result_of(site).state, result_of(site).error) == (state, error)


@pytest.mark.parametrize(
    ("driver", "state"), [(None, ResultState.SUCCEEDED), (DRIVER, ResultState.FAILED)]
)
def test_named_driver_must_be_ready(site: UseCases, driver: str | None, state: ResultState) -> None:
    stopped = DriverFindings(DRIVER, DriverState.STOPPED, error="it is not loaded")
    site.agents.answer = {"drivers": (stopped,)}
    order(site, HOST, driver=driver)
    step(site)
    assert result_of(site).state is state


def test_found_devices_of_each_backend_are_shown(site: UseCases) -> None:
    backend = BackendFindings("engine-0", "READY", discovered=3)
    site.agents.answer = {
        "drivers": (DriverFindings(DRIVER, DriverState.READY, backends=(backend,)),)
    }
    order(site, HOST)
    step(site)
    result = result_of(site).result
    assert result is not None
    ((shown,),) = (one["backends"] for one in result["drivers"])
    assert (shown["found"], "discovered" in shown) == (3, False)


@pytest.mark.parametrize(
    ("setup", "statuses"),
    [(False, ["installing", "inactive"]), (True, ["installing", "installing"])],
)
def test_devices_that_need_a_set_up_get_one(
    site: UseCases, setup: bool, statuses: list[str]
) -> None:
    """Inactive ones only if that is ordered, and none of other hosts."""
    with site.db.writer() as tx:
        first = sa.select(sa.func.min(Device.id)).group_by(Device.host_id)
        tx.execute(sa.update(Device).values(status="inactive"))
        tx.execute(sa.update(Device).where(Device.id.in_(first)).values(status="enabled"))
        tx.execute(sa.update(Hardware).values(setup_required=True))
    site.agents.answer = {"drivers": (READY,)}
    order(site, HOST, setup=setup)
    before = {host: site.generation(host) for host in (HOST, OTHER)}
    step(site)
    assert statuses_of(site, HOST) == statuses
    assert statuses_of(site, OTHER) == ["enabled", "inactive"]
    number = statuses.count("installing")
    assert site.count(Work, Work.kind == WorkKind.SET_UP_DEVICE) == number
    result = result_of(site).result
    assert result is not None
    assert len(result["installing"]) == number
    assert site.generation(HOST) == before[HOST] + bool(number)
    assert site.generation(OTHER) == before[OTHER]
    with site.db.reader() as tx:
        query = sa.select(Event.subject_uuid, Event.hostname).where(Event.action == "installing")
        noted = list(tx.execute(query))
    assert [row.subject_uuid for row in noted] == result["installing"]
    assert {row.hostname for row in noted} == {HOST}


def test_devices_of_drivers_that_are_not_ready_get_no_set_up(site: UseCases) -> None:
    site.change(Hardware, setup_required=True)
    site.agents.answer = {"drivers": (DriverFindings(DRIVER, DriverState.STARTING),)}
    order(site, HOST)
    before = site.generation(HOST)
    step(site)
    assert statuses_of(site, HOST) == ["enabled", "enabled"]
    assert site.generation(HOST) == before


def test_discovery_changes_no_device_that_needs_no_set_up(site: UseCases) -> None:
    site.change(Hardware, setup_required=False)
    site.agents.answer = {"drivers": (READY,)}
    order(site, HOST, setup=True)
    before = site.generation(HOST)
    step(site)
    assert site.generation(HOST) == before
