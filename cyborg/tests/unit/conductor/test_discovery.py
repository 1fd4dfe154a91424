# SPDX-License-Identifier: Apache-2.0
"""A discovery on one host: whom it asks, what it waits for, and how each answer ends it."""

import logging
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID, uuid4, uuid5

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.hosts.heartbeats import Heartbeats
from cyborg.conductor.leases import ConductorLease
from cyborg.conductor.operations.discovery import AgentQuery, DiscoveryAPI
from cyborg.conductor.operations.operations import Operations, Order
from cyborg.conductor.reports.apply import ReportApplier
from cyborg.conductor.tasks.agent_task import AGENT_POLL_MS
from cyborg.conductor.tasks.queue import WorkQueue
from cyborg.db import operations, work
from cyborg.db.engine import Database
from cyborg.db.models import Device, Event, Hardware, Host, Service, Work
from cyborg.db.work import ClaimedWork
from cyborg.model.caller import Caller
from cyborg.model.operation import HostResult, ResultState
from cyborg.model.report import AgentHeartbeat, DriverState
from cyborg.model.scope import EVERYWHERE
from cyborg.model.work import BackendFindings, Discovered, DriverFindings, WorkKind
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.verbs import Discover
from cyborg.tests.fixtures.host_reports import DRIVER, report_of

HOST, OTHER = "compute", "other"
CALLER = Caller("project", "user", "req-1", all_projects=True)
#: Milliseconds.
DOWN_AFTER = 30_000
SILENT = exception.NoAnswer(peer="The agent", reason="it does not answer")
READY = DriverFindings(DRIVER, DriverState.READY, discovered=2)
DEAF = "its agent sends heartbeats but receives no requests: "


@dataclass
class Agents:
    """Notes what is asked of which host; answers with these findings, or raises an error."""

    asked: list[tuple[str, Discover]] = field(default_factory=list)
    answer: Any = ()

    def request(self, host: str, verb: Discover) -> Discovered:
        self.asked.append((host, verb))
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is None:
            return Discovered(verb.task.request_key, done=False)
        return Discovered(verb.task.request_key, drivers=tuple(self.answer))


@dataclass
class Site:
    """Two hosts with two devices each, whose agents are up."""

    db: Database
    lease: ConductorLease
    epochs: dict[str, int]
    agents: Agents = field(default_factory=Agents)
    #: The operation that is looked at.
    key: str = ""

    @property
    def query(self) -> AgentQuery:
        agents = cast(AgentClient, self.agents)
        return AgentQuery(queue=WorkQueue(db=self.db), agents=agents, down_after=DOWN_AFTER)

    def order(
        self,
        *hosts: str,
        driver: str | None = None,
        setup: bool = False,
        wait: bool = False,
        key: str | None = None,
    ) -> str:
        """Begin a discovery on these hosts; the uuid of the operation."""
        begun = Operations(db=self.db, wake=lambda: None, down_after=DOWN_AFTER)
        self.key = key or str(uuid4())
        order = Order(CALLER, self.key, "discover", wait=wait)
        api = DiscoveryAPI(operations=begun)
        return api.discover(order, hosts=hosts or None, driver=driver, setup=setup).uuid

    def claim(self) -> list[ClaimedWork]:
        """All work, whenever it is due."""
        assert self.lease.owner is not None
        with self.db.writer() as tx:
            tx.execute(sa.update(Work).values(not_before_ms=0))
            return list(work.claim(tx, owner=self.lease.owner, lease_ms=-60_000, limit=50))

    def step(self) -> None:
        """Do the work of discoveries once."""
        handler = self.query.handlers()[WorkKind.DISCOVER]
        for row in self.claim():
            if row.kind == WorkKind.DISCOVER:
                handler([row])

    def result(self, host: str = HOST) -> HostResult:
        with self.db.reader() as tx:
            shown = operations.show(tx, self.key, EVERYWHERE)
        assert shown is not None
        (found,) = (result for result in shown.results if result.host == host)
        return found

    def waits(self) -> tuple[str | None, int]:
        """The error of the only work, and in how many milliseconds it is due again."""
        with self.db.reader() as tx:
            row = tx.execute(sa.select(Work.error, Work.not_before_ms - tx.now)).one()
        return row[0], row[1]

    def change(self, model: Any, *terms: sa.ColumnElement[bool], **values: Any) -> None:
        with self.db.writer() as tx:
            tx.execute(sa.update(model).where(*terms).values(**values))

    def count(self, *terms: sa.ColumnElement[bool]) -> int:
        """How much work fits."""
        with self.db.reader() as tx:
            return int(tx.execute(sa.select(sa.func.count(Work.id)).where(*terms)).scalar_one())

    def silence(self, host: str) -> None:
        """Its agent has sent no heartbeat for a long time."""
        self.change(Service, Service.host == host, last_seen_ms=1)

    def statuses(self, host: str) -> list[str]:
        with self.db.reader() as tx:
            own = sa.select(Host.id).where(Host.name == host).scalar_subquery()
            query = sa.select(Device.status).where(Device.host_id == own)
            return list(tx.execute(query.order_by(Device.id)).scalars())

    def generation(self, host: str) -> int:
        with self.db.reader() as tx:
            query = sa.select(Host.desired_generation).where(Host.name == host)
            return int(tx.execute(query).scalar_one())


@pytest.fixture
def site(db: Database, lease: ConductorLease) -> Site:
    lease.renew()
    epochs = {}
    heartbeats = Heartbeats(db=db, down_after=DOWN_AFTER)
    applier = ReportApplier(db=db, auto_enable=frozenset({"*"}), wake=lambda: None)
    for host in (HOST, OTHER):
        beat = AgentHeartbeat(host, (host,), "0", f"agent@{host}", None)
        epochs[host] = heartbeats.heartbeat(beat).epoch
        applier.report(host, epochs[host], report_of(host, 2))
    return Site(db, lease, epochs)


def test_hosts_that_are_up_are_asked_once_each(site: Site) -> None:
    site.silence(OTHER)
    site.agents.answer = [READY]
    uuid = site.order()
    (row,) = site.claim()
    assert (row.spec, row.operation_id) == ({"driver": None, "setup": False, "host": HOST}, uuid)
    site.step()
    ((host, verb),) = site.agents.asked
    assert (host, verb.task.driver, verb.task.agent_epoch) == (HOST, None, site.epochs[HOST])
    assert verb.task.request_key == str(uuid5(UUID(row.uuid), "discover"))
    assert site.count() == 0
    result = site.result()
    assert (result.state, result.error) == (ResultState.SUCCEEDED, None)
    assert result.result is not None
    assert result.result["installing"] == []
    (shown,) = result.result["drivers"]
    assert (shown["name"], shown["found"]) == (DRIVER, 2)
    assert "discovered" not in shown


def test_driver_is_named_in_the_request_and_the_operation(site: Site) -> None:
    site.order(HOST, driver=DRIVER)
    with site.db.reader() as tx:
        shown = operations.show(tx, site.key, EVERYWHERE)
    assert shown is not None
    assert shown.subject == {"driver": DRIVER, "hosts": [HOST]}
    site.step()
    assert [verb.task.driver for _, verb in site.agents.asked] == [DRIVER]


@pytest.mark.parametrize(
    ("hosts", "driver"), [([HOST], "another_driver"), (["a third host"], None)]
)
def test_missing_host_or_driver_is_not_found(
    site: Site, hosts: list[str], driver: str | None
) -> None:
    with pytest.raises(exception.NotFound):
        site.order(*hosts, driver=driver)
    assert site.count() == 0


def test_host_whose_agent_is_down_is_waited_for_if_that_is_ordered(site: Site) -> None:
    site.silence(HOST)
    with pytest.raises(exception.Unavailable):
        site.order(HOST)
    site.order(HOST, wait=True)
    site.step()
    assert site.agents.asked == []
    assert site.result() == HostResult(HOST, ResultState.WAITING, error="its agent is down")
    error, pause_ms = site.waits()
    assert error == "its agent is down"
    assert pause_ms > AGENT_POLL_MS // 2
    site.change(Service, last_seen_ms=site.db.now)
    site.agents.answer = None
    site.step()
    assert site.result() == HostResult(HOST, ResultState.RUNNING)


def test_removed_host_has_failed(site: Site) -> None:
    site.order(HOST)
    with site.db.writer() as tx:
        tx.execute(sa.update(Work).values(host_id=None))
    site.step()
    assert site.result().error == "the host was removed"
    assert (site.result().state, site.count()) == (ResultState.FAILED, 0)


def test_agent_that_never_answers_fails_after_its_second_silence(site: Site) -> None:
    """One answer between them begins the count again."""
    site.agents.answer = SILENT
    site.order(HOST)
    site.step()
    silent = HostResult(HOST, ResultState.WAITING, error=f"{DEAF}it does not answer")
    assert site.result() == silent
    error, pause_ms = site.waits()
    assert error == silent.error
    assert pause_ms < AGENT_POLL_MS
    site.agents.answer = None
    site.step()
    assert site.result() == HostResult(HOST, ResultState.RUNNING)
    site.agents.answer = SILENT
    site.step()
    assert site.result() == silent
    site.step()
    assert site.result() == HostResult(HOST, ResultState.FAILED, error=silent.error)


def test_agent_that_is_silent_from_the_start_fails_at_its_second_query(site: Site) -> None:
    site.agents.answer = SILENT
    site.order(HOST)
    states = []
    for _ in range(2):
        site.step()
        states.append(site.result().state)
    assert states == [ResultState.WAITING, ResultState.FAILED]


def test_discovery_without_a_deadline_waits_for_a_silent_agent(site: Site) -> None:
    site.agents.answer = SILENT
    site.order(HOST, wait=True)
    for _ in range(4):
        site.step()
    assert site.result().state is ResultState.WAITING


def test_agent_that_cannot_listen_fails_at_once_with_its_reason(site: Site) -> None:
    site.agents.answer = SILENT
    site.change(Service, Service.host == HOST, bus_error="the broker refuses it")
    site.order(HOST)
    site.step()
    error = f"{DEAF}the broker refuses it"
    assert site.result() == HostResult(HOST, ResultState.FAILED, error=error)


def test_work_on_a_driver_waits_for_a_silent_agent(site: Site) -> None:
    """It gets such work with the desired state, after its heartbeat."""
    site.agents.answer = SILENT
    site.order(HOST)
    site.change(Work, kind=WorkKind.CONFIGURE_DRIVER.value)
    task = site.query.discovery("install", lambda *end: None)
    for _ in range(3):
        task.run(site.claim())
    assert site.result().state is ResultState.WAITING


def test_unreachable_bus_is_waited_for(site: Site) -> None:
    site.agents.answer = exception.Unavailable(peer="The bus", reason="it is away")
    site.order(HOST)
    with pytest.raises(exception.Unavailable):
        site.step()
    assert site.result().state is ResultState.WAITING
    assert site.result().error == str(site.agents.answer)


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
    site: Site, refusal: exception.CyborgError, prefix: str
) -> None:
    """What the operation has begun on the host is reverted in the same transaction."""
    undone: list[int] = []
    site.agents.answer = refusal
    site.order(HOST)
    (row,) = site.claim()

    def undo(tx: object, row: ClaimedWork, host_id: int) -> None:
        undone.append(host_id)

    site.query.discovery("discover", lambda *end: None, undo).run([row])
    failed = HostResult(HOST, ResultState.FAILED, error=f"{prefix}{refusal}")
    assert (site.result(), undone) == (failed, [row.host_id])


def test_nothing_is_reverted_on_a_removed_host(site: Site) -> None:
    undone: list[int] = []
    site.order(HOST)
    site.change(Work, host_id=None)
    (row,) = site.claim()

    def undo(tx: object, row: ClaimedWork, host_id: int) -> None:
        undone.append(host_id)

    site.query.end(row, HostResult(HOST, ResultState.FAILED), undo)
    assert (site.result().state, undone) == (ResultState.FAILED, [])


def test_end_of_a_discovery_is_logged(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        site.order(HOST)
        site.step()
        assert f"Operation {site.key} on {HOST}: succeeded" in caplog.text
        site.order(HOST)
        site.change(Work, host_id=None)
        site.step()
    assert f"Operation {site.key} on {HOST}: failed, the host was removed" in caplog.text


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
    site: Site, found: DriverFindings, error: str | None
) -> None:
    site.agents.answer = [DriverFindings("another", DriverState.READY), found]
    site.order(HOST)
    site.step()
    state = ResultState.SUCCEEDED if error is None else ResultState.FAILED
    assert (site.result().state, site.result().error) == (state, error)


@pytest.mark.parametrize(
    ("driver", "state"), [(None, ResultState.SUCCEEDED), (DRIVER, ResultState.FAILED)]
)
def test_named_driver_must_be_ready(site: Site, driver: str | None, state: ResultState) -> None:
    site.agents.answer = [DriverFindings(DRIVER, DriverState.STOPPED, error="it is not loaded")]
    site.order(HOST, driver=driver)
    site.step()
    assert site.result().state is state


def test_found_devices_of_each_backend_are_shown(site: Site) -> None:
    backend = BackendFindings("engine-0", "READY", discovered=3)
    site.agents.answer = [DriverFindings(DRIVER, DriverState.READY, backends=(backend,))]
    site.order(HOST)
    site.step()
    result = site.result().result
    assert result is not None
    ((shown,),) = (one["backends"] for one in result["drivers"])
    assert (shown["found"], "discovered" in shown) == (3, False)


@pytest.mark.parametrize(
    ("setup", "statuses"),
    [(False, ["installing", "inactive"]), (True, ["installing", "installing"])],
)
def test_devices_that_need_a_set_up_get_one(site: Site, setup: bool, statuses: list[str]) -> None:
    """Inactive ones only if that is ordered, and none of other hosts."""
    with site.db.writer() as tx:
        first = sa.select(sa.func.min(Device.id)).group_by(Device.host_id)
        tx.execute(sa.update(Device).values(status="inactive"))
        tx.execute(sa.update(Device).where(Device.id.in_(first)).values(status="enabled"))
        tx.execute(sa.update(Hardware).values(setup_required=True))
    site.agents.answer = [READY]
    site.order(HOST, setup=setup)
    before = {host: site.generation(host) for host in (HOST, OTHER)}
    site.step()
    assert site.statuses(HOST) == statuses
    assert site.statuses(OTHER) == ["enabled", "inactive"]
    number = statuses.count("installing")
    assert site.count(Work.kind == WorkKind.SET_UP_DEVICE) == number
    result = site.result().result
    assert result is not None
    assert len(result["installing"]) == number
    assert site.generation(HOST) == before[HOST] + number
    assert site.generation(OTHER) == before[OTHER]
    with site.db.reader() as tx:
        query = sa.select(Event.subject_uuid, Event.hostname).where(Event.action == "installing")
        noted = list(tx.execute(query))
    assert [row.subject_uuid for row in noted] == result["installing"]
    assert {row.hostname for row in noted} == {HOST}


def test_devices_of_drivers_that_are_not_ready_get_no_set_up(site: Site) -> None:
    site.change(Hardware, setup_required=True)
    site.agents.answer = [DriverFindings(DRIVER, DriverState.STARTING)]
    site.order(HOST)
    before = site.generation(HOST)
    site.step()
    assert site.statuses(HOST) == ["enabled", "enabled"]
    assert site.generation(HOST) == before


def test_discovery_changes_no_device_that_needs_no_set_up(site: Site) -> None:
    site.change(Hardware, setup_required=False)
    site.agents.answer = [READY]
    site.order(HOST, setup=True)
    before = site.generation(HOST)
    site.step()
    assert site.generation(HOST) == before
