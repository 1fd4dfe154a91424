# SPDX-License-Identifier: Apache-2.0
"""The runner completes or reschedules claimed work, even when handler or database fail."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.context import Conductor
from cyborg.conductor.leases import ConductorLease
from cyborg.conductor.tasks.queue import Handler, WorkRunner, complete, postpone, reschedule
from cyborg.db import work
from cyborg.db.engine import Database
from cyborg.db.models import Service, Work
from cyborg.db.services import Process
from cyborg.db.transaction import Transaction
from cyborg.model.caller import Caller
from cyborg.model.process import CONDUCTOR
from cyborg.model.work import WorkKind
from cyborg.tests.fixtures.contexts import context
from cyborg.tests.fixtures.waiting import Gate, acquired, eventually, happened, joined


class FailingDatabase(Database):
    """A database that is not available for the next ``away`` transactions."""

    away = 0

    @contextmanager
    def writer(
        self, caller: Caller | None = None, request_key: str | None = None
    ) -> Iterator[Transaction]:
        """See the parent."""
        if self.away:
            self.away -= 1
            raise exception.Unavailable(peer="The database", reason="it is away")
        with super().writer(caller, request_key) as tx:
            yield tx


@pytest.fixture
def handlers() -> dict[WorkKind, Handler]:
    """The handlers of the runner."""
    return {}


@pytest.fixture
def failing(db: Database) -> Iterator[FailingDatabase]:
    """The database of the runner."""
    database = FailingDatabase(db.engine.url.render_as_string(hide_password=False))
    yield database
    database.close()


@pytest.fixture
def runner(
    failing: FailingDatabase, handlers: dict[WorkKind, Handler], lease: ConductorLease
) -> Iterator[WorkRunner]:
    ctx = context(failing, lease=60.0, thread_pool_size=2)
    runner = WorkRunner(ctx, lease=lease, handlers=handlers)
    yield runner
    runner.stop()


def add(db: Database, kind: WorkKind, *instances: str) -> None:
    with db.writer() as tx:
        work.add(tx, [{"kind": kind, "instance_uuid": uuid} for uuid in instances])


def rows(db: Database) -> list[Any]:
    with db.reader() as tx:
        return list(tx.execute(sa.select(Work.kind, Work.attempts, Work.error, Work.owner_id)))


def seen(db: Database) -> int:
    """Return when the lease was renewed."""
    with db.reader() as tx:
        return int(tx.execute(sa.select(Service.last_seen_ms)).scalar_one())


def run_until(runner: WorkRunner, condition: Callable[[], bool]) -> None:
    """Run the runner until a condition is true."""

    def run() -> bool:
        try:
            runner.run_once()
        except exception.Unavailable:
            return False
        return condition()

    eventually(run)


def test_nothing_is_claimed_before_the_lease(
    db: Database, runner: WorkRunner, handlers: dict[WorkKind, Handler], lease: ConductorLease
) -> None:
    add(db, WorkKind.NOTIFY, str(uuid4()))
    assert runner.run_once() == 0
    lease.renew()
    handlers[WorkKind.NOTIFY] = lambda _ctx, _rows: None
    assert runner.run_once() == 1
    assert runner.run_once() == 0


def test_notifications_of_an_instance_are_grouped_and_other_work_is_not(
    db: Database, runner: WorkRunner, handlers: dict[WorkKind, Handler], lease: ConductorLease
) -> None:
    seen: list[tuple[str, int]] = []

    def handler(ctx: Conductor, group: Sequence[Any]) -> None:
        seen.append((group[0].kind, len(group)))
        with complete(ctx, group):
            pass

    first, second = str(uuid4()), str(uuid4())
    add(db, WorkKind.NOTIFY, first, second, first, first)
    add(db, WorkKind.RELEASE, first, first)
    for kind in WorkKind:
        handlers[kind] = handler
    lease.renew()
    assert runner.run_once() == 6
    eventually(lambda: rows(db) == [])
    assert sorted(seen) == [("notify", 1), ("notify", 3), ("release", 1), ("release", 1)]


def test_kinds_of_a_later_release_are_left_to_its_conductors(
    db: Database, runner: WorkRunner, handlers: dict[WorkKind, Handler], lease: ConductorLease
) -> None:
    def handler(ctx: Conductor, group: Sequence[Any]) -> None:
        with complete(ctx, group):
            pass

    add(db, WorkKind.NOTIFY, str(uuid4()), str(uuid4()))
    with db.writer() as tx:
        first = tx.scalar(sa.select(sa.func.min(Work.id)))
        tx.execute(sa.update(Work).where(Work.id == first).values(kind="later"))
    handlers[WorkKind.NOTIFY] = handler
    lease.renew()
    assert runner.run_once() == 1
    eventually(lambda: [row.kind for row in rows(db)] == ["later"])
    assert rows(db)[0].owner_id is None


@pytest.mark.parametrize(
    "error", [exception.Unavailable(peer="Nova", reason="away"), ZeroDivisionError("a fault")]
)
def test_failed_work_is_rescheduled_and_tried_again(
    db: Database,
    runner: WorkRunner,
    handlers: dict[WorkKind, Handler],
    lease: ConductorLease,
    error: Exception,
) -> None:
    errors = [error, error]

    def handler(ctx: Conductor, group: Sequence[Any]) -> None:
        if errors:
            raise errors.pop()
        with complete(ctx, group):
            pass

    handlers[WorkKind.NOTIFY] = handler
    lease.renew()
    add(db, WorkKind.NOTIFY, str(uuid4()))
    runner.run_once()
    eventually(lambda: [row.error for row in rows(db)] == [str(error)])
    assert rows(db)[0].owner_id is None
    run_until(runner, lambda: rows(db) == [])


def test_work_that_cannot_be_rescheduled_is_kept(
    db: Database,
    failing: FailingDatabase,
    runner: WorkRunner,
    handlers: dict[WorkKind, Handler],
    lease: ConductorLease,
) -> None:
    """While this conductor is alive, no other conductor takes the row over."""
    calls: list[int] = []

    def handler(ctx: Conductor, group: Sequence[Any]) -> None:
        calls.append(group[0].attempts)
        if len(calls) == 1:
            failing.away = 3
            raise exception.Unavailable(peer="Nova", reason="away")
        with complete(ctx, group):
            pass

    handlers[WorkKind.NOTIFY] = handler
    lease.renew()
    add(db, WorkKind.NOTIFY, str(uuid4()))
    run_until(runner, lambda: rows(db) == [])
    assert calls == [1, 2]


def test_slow_work_of_one_kind_does_not_delay_another_kind(
    db: Database, runner: WorkRunner, handlers: dict[WorkKind, Handler], lease: ConductorLease
) -> None:
    gate = Gate()

    def slow(ctx: Conductor, group: Sequence[Any]) -> None:
        gate.hold()
        with complete(ctx, group):
            pass

    def quick(ctx: Conductor, group: Sequence[Any]) -> None:
        with complete(ctx, group):
            pass

    handlers[WorkKind.RELEASE] = slow
    handlers[WorkKind.NOTIFY] = quick
    lease.renew()
    add(db, WorkKind.RELEASE, *(str(uuid4()) for _ in range(8)))
    add(db, WorkKind.NOTIFY, str(uuid4()))
    runner.run_once()
    eventually(lambda: {row.kind for row in rows(db)} == {"release"})
    assert len(rows(db)) == 8
    gate.set()
    run_until(runner, lambda: rows(db) == [])


def test_woken_worker_looks_for_work_at_once(
    db: Database, runner: WorkRunner, handlers: dict[WorkKind, Handler], lease: ConductorLease
) -> None:
    called = threading.Semaphore(0)
    handlers[WorkKind.NOTIFY] = lambda _ctx, _rows: called.release()
    runner.wake()  # no job is there yet
    lease.renew()
    add(db, WorkKind.NOTIFY, str(uuid4()))
    job = runner.periodic(3600.0)
    job.start()
    try:
        acquired(called)
        add(db, WorkKind.NOTIFY, str(uuid4()))
        runner.wake()
        acquired(called)
    finally:
        job.stop()


def test_work_is_rescheduled_no_later_than_its_deadline(
    db: Database, lease: ConductorLease
) -> None:
    lease.renew()
    owner = lease.owner
    assert owner is not None
    with db.writer() as tx:
        work.add(tx, [{"kind": WorkKind.PREPARE, "deadline_in": 5_000}])
        claimed = work.claim(tx, owner=owner, lease_ms=1000, limit=1)
    with db.writer() as tx:
        postpone(tx, claimed, "not yet", pause_ms=30_000)
    with db.reader() as tx:
        row = tx.execute(sa.select(Work.not_before_ms, Work.deadline_ms)).one()
    assert row.not_before_ms == row.deadline_ms + 1


@pytest.mark.parametrize(
    ("attempts", "longest"),
    [(1, 500), (2, 1_000), (3, 2_000), (6, 16_000), (7, 30_000), (100, 30_000)],
)
def test_the_pause_grows_with_the_attempts_up_to_its_limit(
    db: Database, lease: ConductorLease, attempts: int, longest: int
) -> None:
    """Each pause is a random part of the longest one, and at least half of it."""
    lease.renew()
    owner = lease.owner
    assert owner is not None
    with db.writer() as tx:
        work.add(tx, [{"kind": WorkKind.NOTIFY}])
        tx.execute(sa.update(Work).values(attempts=attempts - 1))
        claimed = work.claim(tx, owner=owner, lease_ms=1000, limit=1)
        before = tx.execute(sa.select(db.now)).scalar_one()
    reschedule(context(db), claimed, "not yet")
    with db.reader() as tx:
        row = tx.execute(sa.select(Work.not_before_ms, db.now.label("now"))).one()
    assert before + longest // 2 <= row.not_before_ms <= row.now + longest


def test_a_conductor_removes_rows_of_its_former_processes_after_a_day(db: Database) -> None:
    """Only rows of its own host, and none with a recent heartbeat."""
    day = 24 * 3600 * 1000
    ages = {("control", "old"): day + 60_000, ("control", "young"): day - 60_000}
    ages[("other", "old")] = day + 60_000
    for host, process in ages:
        ConductorLease(db=db, process=Process(host, CONDUCTOR, "0", "here", process)).renew()
    with db.writer() as tx:
        for (host, process), age in ages.items():
            mine = sa.and_(Service.host == host, Service.process == process)
            tx.execute(sa.update(Service).where(mine).values(last_seen_ms=db.now - age))
    ConductorLease(db=db, process=Process("control", CONDUCTOR, "0", "here", "new")).renew()
    with db.reader() as tx:
        left = {tuple(row) for row in tx.execute(sa.select(Service.host, Service.process))}
    assert left == {("control", "young"), ("control", "new"), ("other", "old")}


def test_a_lease_that_is_over_gets_a_new_epoch(db: Database) -> None:
    process = Process("control", CONDUCTOR, "0", "here", "1")
    first, second = ConductorLease(db=db, process=process), ConductorLease(db=db, process=process)
    first.renew()
    second.renew()
    assert first.owner is not None
    assert second.owner is not None
    assert second.owner[1] == first.owner[1] + 1
    first.renew()
    assert first.owner[1] == second.owner[1] + 1
    before = first.owner
    first.renew()
    assert first.owner == before


def test_the_lease_is_renewed_while_the_worker_stops(db: Database, lease: ConductorLease) -> None:
    handlers: dict[WorkKind, Handler] = {}
    ctx = context(db, lease=0.3, thread_pool_size=2)
    runner = WorkRunner(ctx, lease=lease, handlers=handlers)
    begun = threading.Event()

    def slow(ctx: Conductor, group: Sequence[Any]) -> None:
        first = seen(db)
        begun.set()
        eventually(lambda: seen(db) > first + 300)
        with complete(ctx, group):
            pass

    handlers[WorkKind.NOTIFY] = slow
    lease.renew()
    add(db, WorkKind.NOTIFY, str(uuid4()))
    runner.run_once()
    happened(begun)
    runner.run_once()  # finds nothing, and still knows what runs
    runner.stop()
    assert rows(db) == []


def test_the_worker_stops_without_work_that_has_not_begun(
    db: Database, lease: ConductorLease
) -> None:
    handlers: dict[WorkKind, Handler] = {}
    ctx = context(db, lease=0.3, thread_pool_size=1)
    runner = WorkRunner(ctx, lease=lease, handlers=handlers)
    gate = Gate()

    def slow(ctx: Conductor, group: Sequence[Any]) -> None:
        gate.hold()
        with complete(ctx, group):
            pass

    handlers[WorkKind.RELEASE] = slow
    lease.renew()
    add(db, WorkKind.RELEASE, str(uuid4()), str(uuid4()))
    runner.run_once()
    gate.reached()
    first = seen(db)
    ending = threading.Thread(target=runner.stop, daemon=True)
    ending.start()
    # Since then no further work begins.
    eventually(lambda: seen(db) > first)
    gate.set()
    joined(ending)
    assert len(rows(db)) == 1
