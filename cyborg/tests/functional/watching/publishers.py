# SPDX-License-Identifier: Apache-2.0
"""Conductors that only publish notifications, and crash on request."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cyborg.conductor.notifications import NotificationPublisher
from cyborg.db import events, notifications
from cyborg.db.engine import Database
from cyborg.model.notification import Notification
from cyborg.model.process import AGENT
from cyborg.tests.fixtures.use_cases import UseCases
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


@dataclass
class FakePublisher:
    """A conductor that only publishes notifications, once per call of ``run_once``."""

    conductor: UseCases
    notifier: FakeNotifier
    run_once: Callable[[], None]

    def die(self) -> None:
        """Be silent for longer than the lease; another conductor is the oldest then."""
        self.conductor.silence(self.conductor.ctx.settings.host)

    def resume(self) -> None:
        """Show a sign of life again."""
        self.conductor.lease.renew()


def fake_publisher(watched: Watched, notifier: FakeNotifier, host: str) -> FakePublisher:
    """Return one with a heartbeat; its database is closed at the end of the test."""
    conductor = UseCases(Database(watched.stack.database_url), host=host)
    watched.endings.append(conductor.db.close)
    conductor.lease.renew()
    untyped: Any = notifier
    publisher = NotificationPublisher(
        db=conductor.db,
        lease=conductor.lease,
        notifier=untyped,
        down_after={AGENT: 2000},
        lease_ms=3600_000,
    )
    return FakePublisher(conductor, notifier, publisher.run_once)


def write_history(db: Database, *uuids: str) -> None:
    """Record events that must be sent."""
    db.outbox = True
    with db.writer() as tx:
        events.record(tx, [events.Entry("arq", one, "Bound") for one in uuids])


def waiting(db: Database) -> int:
    """How many events are in the outbox."""
    with db.reader() as tx:
        return len(notifications.pending(tx, 1000))
