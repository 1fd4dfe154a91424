# SPDX-License-Identifier: Apache-2.0
"""Conductors that only publish notifications, and crash on request."""

import threading
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from cyborg.conductor.leases import ConductorLease
from cyborg.conductor.notifications import NotificationPublisher
from cyborg.conductor.tasks.queue import Fenced, WorkQueue
from cyborg.db import events, notifications, work
from cyborg.db.engine import Database
from cyborg.db.models import Work
from cyborg.db.services import Process
from cyborg.model.notification import Notification
from cyborg.model.process import AGENT, CONDUCTOR
from cyborg.model.work import WorkKind
from cyborg.tests.fixtures.direct_bus import Died
from cyborg.tests.functional.watching.conftest import Watched, soon


def marked(watched: Watched) -> bool:
    """Whether the history is followed by now."""
    with watched.database.reader() as tx:
        return notifications.is_enabled(tx)


def followed(watched: Watched) -> None:
    soon(lambda: marked(watched))


class FakeNotifier:
    """A notifier that records messages; it raises ``error`` if there are any."""

    enabled = True

    def __init__(self, error: BaseException | None = None) -> None:
        self.sent: list[Notification] = []
        self.error = error

    def send(self, messages: Sequence[Notification]) -> None:
        self.sent += messages
        if messages and self.error is not None:
            raise self.error

    def close(self) -> None:
        """Nothing is open."""

    def states(self, uuid: str) -> list[str]:
        return [one.payload["state"] for one in self.sent if one.payload.get("uuid") == uuid]


class FakePublisher:
    """A conductor that only publishes notifications; it can crash."""

    def __init__(self, watched: Watched, notifier: FakeNotifier, host: str) -> None:
        self.db = Database(watched.stack.database_url)
        self.notifier = notifier
        process = Process(host, CONDUCTOR, "0", f"cyborg-conductor@{host}", host)
        self._lease = ConductorLease(db=self.db, process=process)
        self._lease.renew()
        self.queue = WorkQueue(db=self.db)
        untyped: Any = notifier
        self.publisher = NotificationPublisher(
            db=self.db,
            queue=self.queue,
            notifier=untyped,
            down_after={AGENT: 2000},
            pause=0.01,
        )
        self.publisher.begin()
        self._thread: threading.Thread | None = None
        self.ended: list[BaseException] = []
        watched.endings += [self.db.close, self.stop]

    def follow(self) -> None:
        """Take over what the dead had in hand, and go on with it."""
        assert self._lease.owner is not None
        with self.db.writer() as tx:
            # No other conductor shows a sign of life meanwhile.
            rows = work.claim(tx, self.db.now, owner=self._lease.owner, lease_ms=-1, limit=1)
        assert [row.kind for row in rows] == [WorkKind.PUBLISH_NOTIFICATIONS]
        self._thread = threading.Thread(target=self._follow, args=(rows,))
        self._thread.start()

    def _follow(self, rows: Sequence[Any]) -> None:
        try:
            self.publisher.publish(rows)
        except (Died, Fenced) as end:
            self.ended.append(end)

    def stop(self) -> None:
        """End in good order, unless it has ended."""
        self.publisher.stop()
        if self._thread is not None:
            self._thread.join()


def write_history(db: Database, *uuids: str) -> None:
    with db.writer() as tx:
        events.record(tx, db.now, [events.Entry("arq", one, "Bound") for one in uuids])


def position(db: Database) -> notifications.Position:
    with db.reader() as tx:
        spec = tx.execute(
            sa.select(Work.spec).where(Work.uuid == notifications.WORK_UUID)
        ).scalar_one()
    return notifications.Position.load(spec)
