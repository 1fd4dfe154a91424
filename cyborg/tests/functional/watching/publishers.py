# SPDX-License-Identifier: Apache-2.0
"""Conductors that only publish notifications, and crash on request."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from cyborg.conductor.leases import ConductorLease
from cyborg.conductor.notifications import NotificationPublisher
from cyborg.db import events, notifications
from cyborg.db.engine import Database
from cyborg.db.models import Service
from cyborg.db.services import Process
from cyborg.model.notification import Notification
from cyborg.model.process import AGENT, CONDUCTOR
from cyborg.tests.functional.watching.conftest import Watched


class FakeNotifier:
    """A notifier that records messages; it raises ``error`` if there are any."""

    def __init__(self, error: BaseException | None = None, *, enabled: bool = True) -> None:
        self.sent: list[Notification] = []
        self.error = error
        self.enabled = enabled

    def send(self, messages: Sequence[Notification]) -> None:
        if not self.enabled:
            return
        self.sent += messages
        if messages and self.error is not None:
            raise self.error

    def close(self) -> None:
        """Nothing is open."""

    def states(self, uuid: str) -> list[str]:
        return [one.payload["state"] for one in self.sent if one.payload.get("uuid") == uuid]

    @property
    def types(self) -> list[str]:
        return [one.event_type for one in self.sent]


class FakePublisher:
    """A conductor that only publishes notifications, once per call of ``run_once``."""

    def __init__(self, watched: Watched, notifier: FakeNotifier, host: str) -> None:
        self.db = Database(watched.stack.database_url)
        self.notifier = notifier
        process = Process(host, CONDUCTOR, "0", f"cyborg-conductor@{host}", host)
        self._lease = ConductorLease(db=self.db, process=process)
        self._lease.renew()
        untyped: Any = notifier
        publisher = NotificationPublisher(
            db=self.db,
            lease=self._lease,
            notifier=untyped,
            down_after={AGENT: 2000},
            lease_ms=3600_000,
        )
        self.run_once = publisher.run_once
        watched.endings.append(self.db.close)

    def die(self) -> None:
        """Be silent for longer than the lease; another conductor is the oldest then."""
        assert self._lease.owner is not None
        with self.db.writer() as tx:
            row = Service.id == self._lease.owner[0]
            tx.execute(sa.update(Service).where(row).values(last_seen_ms=1))

    def resume(self) -> None:
        """Show a sign of life again."""
        self._lease.renew()


def write_history(db: Database, *uuids: str) -> None:
    """Record events that must be sent."""
    db.outbox = True
    with db.writer() as tx:
        events.record(tx, [events.Entry("arq", one, "Bound") for one in uuids])


def waiting(db: Database) -> int:
    """How many events are in the outbox."""
    with db.reader() as tx:
        return len(notifications.pending(tx, 1000))
