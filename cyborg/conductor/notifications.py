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
from dataclasses import replace
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

LOG = logging.getLogger(__name__)

#: Seconds between two reads of the history.
_PAUSE: Final = 1.0
#: Maximum number of history entries that are sent before the position is stored.
_LIMIT: Final = 200


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

    @retried
    def begin(self) -> None:
        """Add the work row unless it exists; messages begin at the present time."""
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
                messages, after, unread = self._read(row, position)
                # No transaction is open while this waits for the message bus.
                self._notifier.send(messages)
                if after != position:
                    self._store(row, after)
                position, more, logged = after, unread, ""
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

    @retried
    def _store(self, row: Record, position: Position) -> None:
        with self._queue.checkpoint([row]) as tx:
            work.set_spec(tx, row, position.dump())

    def _read(self, row: Record, position: Position) -> tuple[list[Notification], Position, bool]:
        """Return the messages to send, the position after them, and whether there are more."""
        with self._db.reader() as tx:
            now_ms = notifications.owned_now(tx, self._db.now, row)
            if now_ms is None:
                raise Fenced
            entries, more = notifications.next_events(tx, position, _LIMIT)
            arqs = {entry.uuid for entry in entries if entry.noun == "arq"}
            devices = {entry.uuid for entry in entries if entry.noun == "device"}
            owners = notifications.arq_projects(tx, arqs)
            facts = notifications.devices(tx, devices)
            silent = notifications.down_services(tx, self._db.now, self._down_after)
            back = notifications.last_heartbeats(tx, position.down - silent.keys())
        messages: list[Notification | None] = []
        for entry in entries:
            uuid = entry.uuid
            if entry.noun == "arq":
                messages.append(notification.arq_state(entry, owners.get(uuid)))
            elif entry.noun == "device":
                messages.append(notification.device_state(entry, facts.get(uuid)))
                messages.append(notification.device_health(entry, facts.get(uuid)))
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
        after = replace(position.after(entries, now_ms), down=still_down | newly_down)
        return [message for message in messages if message is not None], after, more

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
