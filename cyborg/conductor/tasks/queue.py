# SPDX-License-Identifier: Apache-2.0
"""The durable work queue: the runner claims due work, runs its handler, and reschedules failures.

Handlers end, continue or reschedule their work with the functions of this module. They lock the
rows of work last, after ARQs and handles, as all transactions do.

Work is a row with an owner and a fencing number. Another conductor takes over the work of a dead
conductor when that conductor's lease is over. The changes of a handler commit together with the
removal of its row, or not at all.
"""

import logging
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Final

from cyborg import exception, tracing
from cyborg.conductor.context import Conductor
from cyborg.conductor.leases import ConductorLease
from cyborg.context import working_for
from cyborg.db import work
from cyborg.db.engine import retried
from cyborg.db.transaction import Transaction
from cyborg.db.work import ClaimedWork
from cyborg.model.work import WorkKind
from cyborg.service import PeriodicTask

LOG = logging.getLogger(__name__)

#: Handles rows of one kind and one group (all notifications of an instance are one group).
Handler = Callable[[Conductor, Sequence[ClaimedWork]], None]

_FIRST_PAUSE_MS = 500
_LONGEST_PAUSE_MS = 30_000
#: Maximum number of rows that the runner claims at once.
_BATCH = 50
#: Seconds after which a job that calls nothing but the database counts as stuck. When a database
#: server disappears silently, the kernel notices after about fifteen minutes; a restart is faster.
DATABASE_LIMIT: Final = 300.0


class Fenced(Exception):
    """Another conductor has taken the work over: this transaction must be rolled back."""


@contextmanager
def complete(ctx: Conductor, rows: Sequence[ClaimedWork]) -> Iterator[Transaction]:
    """Yield a transaction that also ends the work; raises Fenced and rolls all back."""
    with ctx.db.writer() as tx:
        yield tx
        if not work.finish(tx, rows):
            raise Fenced


@contextmanager
def checkpoint(ctx: Conductor, rows: Sequence[ClaimedWork]) -> Iterator[Transaction]:
    """Yield a transaction in the middle of the work.

    Raises Fenced when the work belongs to another conductor.
    """
    with ctx.db.writer() as tx:
        yield tx
        if not work.lock_owned(tx, rows):
            raise Fenced


def postpone(
    tx: Transaction, rows: Sequence[ClaimedWork], error: str | None, *, pause_ms: int = 0
) -> None:
    """Make work due again after a pause; without ``pause_ms`` it grows with the attempts."""
    tries = max(row.attempts for row in rows)
    growing = min(_LONGEST_PAUSE_MS, _FIRST_PAUSE_MS * 2 ** min(tries - 1, 10))
    pause = pause_ms or int(growing * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load
    work.postpone(tx, rows, delay_ms=pause, error=error)


@retried
def reschedule(ctx: Conductor, rows: Sequence[ClaimedWork], error: str | None) -> None:
    """Make work due again after a pause that grows with the attempts."""
    with ctx.db.writer() as tx:
        postpone(tx, rows, error)


class WorkRunner:
    """Runs handlers for due work, a limited number of each kind at a time, until stopped.

    A conductor that has sent no heartbeat for its lease loses its work to others. ``pool`` makes
    the executor for the handlers of one kind.
    """

    def __init__(
        self,
        ctx: Conductor,
        *,
        lease: ConductorLease,
        handlers: Mapping[WorkKind, Handler],
        pool: Callable[..., Executor] = ThreadPoolExecutor,
    ) -> None:
        self._ctx = ctx
        self._lease = lease
        self._lease_ms = ctx.settings.lease_ms
        self._handlers = handlers
        # One pool for each kind: hosts that do not answer must not delay notifications to Nova.
        self._pools = {
            kind: pool(
                max_workers=ctx.settings.default.thread_pool_size, thread_name_prefix=kind.value
            )
            for kind in WorkKind
        }
        self._periodic: PeriodicTask | None = None
        self._running: set[Future[None]] = set()
        self._unreturned: deque[tuple[Sequence[ClaimedWork], str]] = deque()

    def periodic(self, interval: float) -> PeriodicTask:
        """Return the job that runs due work every ``interval`` seconds, and when woken."""
        self._periodic = PeriodicTask(
            "work", self.run_once, interval=interval, limit=DATABASE_LIMIT
        )
        return self._periodic

    def wake(self) -> None:
        """Look for due work at once."""
        if self._periodic is not None:
            self._periodic.wake()

    def run_once(self) -> int:
        """Claim due work and start its handlers; return how many rows were claimed."""
        owner = self._lease.owner
        if owner is None:
            return 0
        # The database did not accept these before. This raises when it still does not.
        while self._unreturned:
            reschedule(self._ctx, *self._unreturned[0])
            self._unreturned.popleft()
        rows = self._claim(owner)
        groups: dict[tuple[str, str], list[ClaimedWork]] = defaultdict(list)
        for row in rows:
            key = (row.kind == WorkKind.NOTIFY and row.instance_uuid) or row.uuid
            groups[row.kind, key].append(row)
        self._running = {future for future in self._running if not future.done()}
        for (kind, _), group in groups.items():
            self._running.add(self._pools[WorkKind(kind)].submit(self._run, group))
        return len(rows)

    def stop(self) -> None:
        """Wait for running handlers; the next conductor does what was claimed and not started.

        The lease is renewed while this waits, so that no other conductor does the same work.
        """
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        # A cancelled future is done, but wait() never reports it.
        while running := [future for future in self._running if not future.done()]:
            if not wait(running, timeout=self._lease_ms / 3000).not_done:
                return
            try:
                self._lease.renew()
            except exception.CyborgError as error:
                LOG.warning("The lease of this conductor cannot be renewed: %s", error)

    @retried
    def _claim(self, owner: tuple[int, int]) -> Sequence[ClaimedWork]:
        with self._ctx.db.writer() as tx:
            return work.claim(tx, owner=owner, lease_ms=self._lease_ms, limit=_BATCH)

    def _run(self, rows: Sequence[ClaimedWork]) -> None:
        """Run the handler with the request ids of the first row's origin."""
        uuid, kind = rows[0].uuid, WorkKind(rows[0].kind)
        origin = work.origin(rows[0])
        with working_for(origin), tracing.span(f"work {kind.value}", origin=origin):
            try:
                self._handlers[kind](self._ctx, rows)
                return
            except Fenced:
                LOG.info("Another conductor has taken over work %s (%s)", uuid, kind.value)
                return
            except exception.CyborgError as error:
                reason = str(error)
            except Exception as error:
                # An error in our code must not lose the row: it is tried again, and stays visible.
                LOG.exception("Work %s (%s) failed with an unexpected error", uuid, kind.value)
                reason = str(error)
            try:
                reschedule(self._ctx, rows, reason)
            except exception.CyborgError as error:
                # No other conductor claims it while this one is alive, so it is kept here.
                LOG.warning(
                    "Work %s (%s) cannot be rescheduled yet, and will be: %s",
                    *(uuid, kind.value, error),
                )
                self._unreturned.append((rows, reason))
