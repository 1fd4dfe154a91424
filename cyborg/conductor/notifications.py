# SPDX-License-Identifier: Apache-2.0
"""Publish notifications of committed changes: follow the history, and watch the services.

One work row, which never ends, exists for this in a database. One conductor has it while it runs,
and another takes it over then, with the position that was stored. A position is stored after the
messages before it were sent. So each message is sent at least once, and twice if a conductor ends
in between.
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

#: Seconds between two reads of the history.
_PAUSE: Final = 1.0
#: Seconds between checks that the work row exists.
_INTERVAL: Final = 60.0
#: So many lines of the history are sent before the position is stored.
_LIMIT: Final = 200


@dataclass(frozen=True)
class _Batch:
    """The messages to send, the position after them, and whether there are more at once."""

    messages: list[Notification]
    position: Position
    more: bool


class NotificationPublisher:
    """Follow the history while notifications are enabled.

    ``down_after`` maps a binary to the milliseconds of silence after which a process of it is down.
    The history is read every ``pause`` seconds at least.
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
        # Silent services → (time of the last heartbeat, time when the silence was first seen), ms.
        self._suspects: dict[tuple[str, str], tuple[int, int]] = {}

    def job(self) -> PeriodicTask:
        """Return the job that adds the work row, so that messages begin at the present time."""
        return PeriodicTask("notifications", self.begin, interval=_INTERVAL)

    @retried
    def begin(self) -> None:
        """Add the work row unless it exists."""
        with self._db.reader() as tx:
            if notifications.is_enabled(tx):
                return
        # One of several conductors that start together adds it.
        with contextlib.suppress(exception.Conflict), self._db.writer() as tx:
            down = notifications.down_services(tx, self._db.now, self._down_after)
            start = Position(notifications.newest(tx), {}, frozenset(down))
            notifications.begin(tx, self._db.now, start)

    def publish(self, rows: Sequence[Record]) -> None:
        """Send messages until ``stop``; the handler of the work. Raises Fenced.

        The work ends when notifications are disabled.
        """
        if not self._notifier.enabled:
            with self._queue.complete(rows):
                LOG.info("Notifications are disabled: the history is not followed any more")
            return
        (row,) = rows
        position, logged = Position.load(row.spec), ""
        self._suspects = {}
        while not self._stopped.is_set():
            more = False
            try:
                position, more = self._send_batch(row, position)
                logged = ""
            except exception.CyborgError as error:
                # No service is known to be silent: the database may have been away for all.
                self._suspects = {}
                if str(error) != logged:
                    logged = str(error)
                    LOG.warning("Notifications cannot be sent and wait: %s", error)
            if not more:
                self._stopped.wait(self._pause)
        self._queue.reschedule(rows, None, pause_ms=1)

    def stop(self) -> None:
        """Stop; another conductor continues."""
        self._stopped.set()
        self._notifier.close()

    def _send_batch(self, row: Record, position: Position) -> tuple[Position, bool]:
        """Send the next messages; return the position after them, and whether there are more."""
        batch = self._read(row, position)
        # No transaction is open while this waits for the message bus.
        self._notifier.send(batch.messages)
        if batch.position != position:
            self._store(row, batch.position)
        return batch.position, batch.more

    @retried
    def _store(self, row: Record, position: Position) -> None:
        with self._queue.checkpoint([row]) as tx:
            work.set_spec(tx, row, position.dump())

    def _read(self, row: Record, position: Position) -> _Batch:
        with self._db.reader() as tx:
            now_ms = notifications.owned_now(tx, self._db.now, row)
            if now_ms is None:
                raise Fenced
            happenings, more = notifications.next_events(tx, position, _LIMIT)
            arqs = {happening.uuid for happening in happenings if happening.noun == "arq"}
            devices = {happening.uuid for happening in happenings if happening.noun == "device"}
            owners = notifications.arq_projects(tx, arqs)
            facts = notifications.devices(tx, devices)
            silent = notifications.down_services(tx, self._db.now, self._down_after)
            back = notifications.last_heartbeats(tx, position.down - silent.keys())
        messages: list[Notification | None] = []
        for happening in happenings:
            uuid = happening.uuid
            if happening.noun == "arq":
                messages.append(notification.arq_state(happening, owners.get(uuid)))
            elif happening.noun == "device":
                messages.append(notification.device_state(happening, facts.get(uuid)))
                messages.append(notification.device_health(happening, facts.get(uuid)))
        for (binary, host), seen_ms in sorted(back.items()):
            messages.append(
                notification.service(binary, host, up=True, at_ms=now_ms, seen_ms=seen_ms)
            )
        still_down = position.down & silent.keys()
        newly_down = self._down(silent, now_ms) - still_down
        for binary, host in sorted(newly_down):
            seen_ms = silent[binary, host]
            messages.append(
                notification.service(binary, host, up=False, at_ms=now_ms, seen_ms=seen_ms)
            )
        after = replace(position.after(happenings, now_ms), down=still_down | newly_down)
        return _Batch([message for message in messages if message is not None], after, more)

    def _down(self, silent: Mapping[tuple[str, str], int], now_ms: int) -> set[tuple[str, str]]:
        """Return the services that are certainly down.

        After an outage of the database all services seem to be down until their next heartbeat. So
        a service must stay silent for another half of ``down_after`` since it was first seen
        silent.
        """
        suspects = {}
        for service, seen_ms in silent.items():
            first = self._suspects.get(service, (seen_ms, now_ms))
            suspects[service] = first if first[0] == seen_ms else (seen_ms, now_ms)
        self._suspects = suspects
        return {
            (binary, host)
            for (binary, host), (_, since_ms) in suspects.items()
            if now_ms - since_ms >= self._down_after[binary] / 2
        }
