# SPDX-License-Identifier: Apache-2.0
"""The worker: takes over due work, hands it to its handler, and lets nothing be forgotten.

Work is a row with an owner and a fencing number. What a dead conductor held is taken over once
its lease is over; a handler's changes commit together with the removal of its row, or not at all.
"""

import logging
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Final

import sqlalchemy as sa

from cyborg import exception, tracing
from cyborg.conductor.leases import ConductorLease
from cyborg.context import working_for
from cyborg.db import work
from cyborg.db.base import Record
from cyborg.db.engine import Database, retried
from cyborg.model.work import WorkKind
from cyborg.service import PeriodicTask

LOG = logging.getLogger(__name__)

#: Handles rows of one kind and one group (an instance's notifications belong together).
Handler = Callable[[Sequence[Record]], None]

_FIRST_PAUSE_MS = 500
_LONGEST_PAUSE_MS = 30_000
_BATCH = 50
#: Seconds after which a job that asks nobody but the database is stuck. A server that goes away
#: without a word is noticed by the kernel after some fifteen minutes; a new start is sooner.
DATABASE_LIMIT: Final = 300.0


class Fenced(Exception):
    """Another conductor has taken the work over: this transaction must not stand."""


class WorkQueue:
    """What handlers use to end or postpone their work.

    The work's own rows are locked last, after ARQs and handles, as everywhere.
    """

    def __init__(self, *, db: Database) -> None:
        self._db = db

    @contextmanager
    def complete(self, rows: Sequence[Record]) -> Iterator[sa.Connection]:
        """A transaction that changes something and ends the work; raises Fenced, all undone."""
        with self._db.writer() as tx:
            yield tx
            if not work.finish(tx, rows):
                raise Fenced

    @contextmanager
    def checkpoint(self, rows: Sequence[Record]) -> Iterator[sa.Connection]:
        """A transaction in mid-work; raises Fenced when the work is no longer ours."""
        with self._db.writer() as tx:
            yield tx
            if not work.still_ours(tx, rows):
                raise Fenced

    @retried
    def reschedule(self, rows: Sequence[Record], error: str | None, *, pause_ms: int = 0) -> None:
        """Give work back; the pause grows with its attempts unless one is given."""
        tries = max(row.attempts for row in rows)
        growing = min(_LONGEST_PAUSE_MS, _FIRST_PAUSE_MS * 2 ** min(tries - 1, 10))
        pause = pause_ms or int(growing * random.uniform(0.5, 1.0))
        with self._db.writer() as tx:
            work.postpone(tx, self._db.now, rows, delay_ms=pause, error=error)


class Worker:
    """Runs handlers for due work, ``threads`` of each kind at a time, until stopped.

    ``lease_ms`` is how long a conductor may be silent before its work is taken over; ``pool``
    makes what runs the handlers of one kind.
    """

    def __init__(
        self,
        *,
        db: Database,
        lease: ConductorLease,
        queue: WorkQueue,
        lease_ms: int,
        threads: int,
        pool: Callable[..., Executor] = ThreadPoolExecutor,
    ) -> None:
        self._db = db
        self._lease = lease
        self._queue = queue
        self._lease_ms = lease_ms
        self._handlers: dict[WorkKind, Handler] = {}
        # A pool for each kind: hosts that do not answer must not keep Nova from being told.
        self._pools = {
            kind: pool(max_workers=threads, thread_name_prefix=kind.value) for kind in WorkKind
        }
        self._turns: PeriodicTask | None = None
        self._in_hand: set[Future[None]] = set()
        self._unreturned: deque[tuple[Sequence[Record], str]] = deque()

    def handle(self, kind: WorkKind, handler: Handler) -> None:
        """Have work of this kind done by ``handler``."""
        self._handlers[kind] = handler

    def turns(self, interval: float) -> PeriodicTask:
        """The job that looks for due work every ``interval`` seconds, and when woken."""
        self._turns = PeriodicTask("work", self.run_once, interval=interval, limit=DATABASE_LIMIT)
        return self._turns

    def wake(self) -> None:
        """There may be work: look at once."""
        if self._turns is not None:
            self._turns.wake()

    def run_once(self) -> int:
        """Claim what is due and start its handlers; answers how many rows were claimed."""
        owner = self._lease.owner
        if owner is None:
            return 0
        self._reschedule_unreturned()
        rows = self._claim(owner)
        groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
        for row in rows:
            together = row.instance_uuid if row.kind == WorkKind.NOTIFY else row.uuid
            groups[row.kind, together].append(row)
        self._in_hand = {one for one in self._in_hand if not one.done()}
        for (kind, _), group in groups.items():
            self._in_hand.add(self._pools[WorkKind(kind)].submit(self._do, group))
        return len(rows)

    def stop(self) -> None:
        """Finish what is in hand; what was claimed and not begun is for the next conductor.

        The lease is kept meanwhile, lest another conductor does the same work again.
        """
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        # What is called off here is done, but no wait() ever says so.
        while going := [one for one in self._in_hand if not one.done()]:
            if not wait(going, timeout=self._lease_ms / 3000).not_done:
                return
            try:
                self._lease.renew()
            except exception.CyborgError as error:
                LOG.warning("The lease cannot be kept: %s", error)

    @retried
    def _claim(self, owner: tuple[int, int]) -> Sequence[Record]:
        with self._db.writer() as tx:
            return work.claim(tx, self._db.now, owner=owner, lease_ms=self._lease_ms, limit=_BATCH)

    def _do(self, rows: Sequence[Record]) -> None:
        """Handle rows for the request that ordered them; of several the first."""
        origin = work.origin(rows[0])
        with working_for(origin), tracing.span(f"work {rows[0].kind}", origin=origin):
            self._handle(rows)

    def _handle(self, rows: Sequence[Record]) -> None:
        kind = WorkKind(rows[0].kind)
        try:
            self._handlers[kind](rows)
        except Fenced:
            LOG.info("Another conductor has taken over %s %s", kind.value, rows[0].uuid)
        except exception.CyborgError as error:
            self._postpone(rows, error)
        except Exception as error:
            # A fault of ours must not strand the row: it is tried again, and stays visible.
            LOG.exception("Work %s %s failed", kind.value, rows[0].uuid)
            self._postpone(rows, error)

    def _postpone(self, rows: Sequence[Record], error: Exception) -> None:
        try:
            self._queue.reschedule(rows, str(error))
        except exception.CyborgError as fault:
            # Nobody else may take it while this conductor lives, so it must not be forgotten here.
            LOG.warning("Work %s cannot be given back yet: %s", rows[0].uuid, fault)
            self._unreturned.append((rows, str(error)))

    def _reschedule_unreturned(self) -> None:
        """Give back what the database could not take before; raises when it still cannot."""
        while self._unreturned:
            rows, error = self._unreturned[0]
            self._queue.reschedule(rows, error)
            self._unreturned.popleft()
