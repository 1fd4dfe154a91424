# SPDX-License-Identifier: Apache-2.0
"""Tells the bus of what has been committed: by following the history, and looking at services.

There is one piece of work for that in a database, which never ends: one conductor has it for as
long as it lives, and another takes it over then, with how far it got. What is told is noted after
it was sent, so that all is told at least once, and a message twice if a conductor dies in between.
"""

import contextlib
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cyborg import exception
from cyborg.conductor.tasks.queue import Fenced, WorkQueue
from cyborg.db import notifications, work
from cyborg.db.base import Record
from cyborg.db.engine import Database, retried
from cyborg.db.notifications import Position
from cyborg.model import notification
from cyborg.model.notification import Notification
from cyborg.rpc.notifications import Notifier
from cyborg.service import PeriodicTask

LOG = logging.getLogger(__name__)

#: Seconds between two looks at the history.
_PAUSE: Final = 1.0
#: How often a conductor sees to it that the history is followed, in seconds.
_INTERVAL: Final = 60.0
#: So many lines of the history are told, and noted, together.
_BATCH: Final = 200


@dataclass(frozen=True)
class _News:
    """What one look has found: what to send, and how far all is told when that is done."""

    messages: list[Notification]
    position: Position
    more: bool


class NotificationPublisher:
    """Follows the history while somebody listens.

    ``down_after`` says after how many milliseconds of silence a process of a binary is down.
    """

    def __init__(
        self,
        *,
        db: Database,
        queue: WorkQueue,
        notifier: Notifier,
        down_after: Mapping[str, int],
        pause: float = _PAUSE,
    ) -> None:
        self._db = db
        self._queue = queue
        self._notifier = notifier
        self._down_after = down_after
        self._pause = min(pause, min(down_after.values()) / 4000)
        self._stopped = threading.Event()
        # Services that seem to be down: when they were heard of last, and since when it is known.
        self._suspects: dict[tuple[str, str], tuple[int, int]] = {}

    def beginnings(self) -> PeriodicTask:
        """The job that has the history followed, from the moment at which it is first to be."""
        return PeriodicTask("notifications", self.begin, interval=_INTERVAL)

    @retried
    def begin(self) -> None:
        """Make the piece of work unless it is there."""
        with self._db.reader() as tx:
            if notifications.exists(tx):
                return
        # Of conductors that start together one makes it.
        with contextlib.suppress(exception.Conflict), self._db.writer() as tx:
            down = notifications.silent(tx, self._db.now, self._down_after)
            start = Position(notifications.newest(tx), {}, frozenset(down))
            notifications.begin(tx, self._db.now, start)

    def follow(self, rows: Sequence[Record]) -> None:
        """Tell what there is and what comes, until stopped; raises Fenced.

        Where nobody listens any more the work ends.
        """
        if not self._notifier.enabled:
            with self._queue.complete(rows):
                LOG.info("Nobody listens to notifications any more")
            return
        (row,) = rows
        position, complaint = Position.load(row.spec), ""
        self._suspects = {}
        while not self._stopped.is_set():
            more = False
            try:
                position, more = self._turn(row, position)
                complaint = ""
            except exception.CyborgError as error:
                # Nobody is known to be silent: the database may have been away for all.
                self._suspects = {}
                if str(error) != complaint:
                    complaint = str(error)
                    LOG.warning("Notifications wait: %s", error)
            if not more:
                self._stopped.wait(self._pause)
        self._queue.reschedule(rows, None, pause_ms=1)

    def stop(self) -> None:
        """Have another conductor go on."""
        self._stopped.set()
        self._notifier.close()

    def _turn(self, row: Record, position: Position) -> tuple[Position, bool]:
        """One look; answers how far all is told, and whether there is more to tell at once."""
        news = self._look(row, position)
        # Nothing is open while this waits for the bus.
        self._notifier.send(news.messages)
        if news.position != position:
            self._note(row, news.position)
        return news.position, news.more

    @retried
    def _note(self, row: Record, position: Position) -> None:
        with self._queue.checkpoint([row]) as tx:
            work.note(tx, row, position.dump())

    def _look(self, row: Record, position: Position) -> _News:
        with self._db.reader() as tx:
            now_ms = notifications.clock(tx, self._db.now, row)
            if now_ms is None:
                raise Fenced
            found, more = notifications.happened(tx, position, _BATCH)
            arqs = {one.uuid for one in found if one.noun == "arq"}
            devices = {one.uuid for one in found if one.noun == "device"}
            owners = notifications.owners(tx, arqs)
            facts = notifications.devices(tx, devices)
            silent = notifications.silent(tx, self._db.now, self._down_after)
            back = notifications.known(tx, position.down - silent.keys())
        messages: list[Notification | None] = []
        for one in found:
            if one.noun == "arq":
                messages.append(notification.arq_state(one, owners.get(one.uuid)))
            elif one.noun == "device":
                messages.append(notification.device_state(one, facts.get(one.uuid)))
                messages.append(notification.device_health(one, facts.get(one.uuid)))
        for (binary, host), seen_ms in sorted(back.items()):
            messages.append(
                notification.service(binary, host, up=True, at_ms=now_ms, seen_ms=seen_ms)
            )
        still = position.down & silent.keys()
        gone = self._gone(silent, now_ms) - still
        for binary, host in sorted(gone):
            seen_ms = silent[binary, host]
            messages.append(
                notification.service(binary, host, up=False, at_ms=now_ms, seen_ms=seen_ms)
            )
        after = replace(position.after(found, now_ms), down=still | gone)
        return _News([one for one in messages if one is not None], after, more)

    def _gone(self, silent: Mapping[tuple[str, str], int], now_ms: int) -> set[tuple[str, str]]:
        """Which services are down beyond doubt.

        After an outage of the database all seem to be, until their next heartbeat: so one must
        have been silent for half of its time again since it was first seen to be.
        """
        known = self._suspects
        self._suspects = {
            one: known[one] if one in known and known[one][0] == seen_ms else (seen_ms, now_ms)
            for one, seen_ms in silent.items()
        }
        return {
            one
            for one, (_, since_ms) in self._suspects.items()
            if now_ms - since_ms >= self._down_after[one[0]] / 2
        }
