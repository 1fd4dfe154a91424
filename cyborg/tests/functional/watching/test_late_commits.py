# SPDX-License-Identifier: Apache-2.0
"""What commits out of turn is told all the same; SQLite has one writer, and no such thing."""

from uuid import uuid4

from cyborg.db import events
from cyborg.db.engine import Database
from cyborg.tests.functional.watching.conftest import Watched
from cyborg.tests.functional.watching.publishers import FakeNotifier, fake_publisher, write_history


def test_late_commit_is_notified(watched: Watched):
    publisher = fake_publisher(watched, FakeNotifier(), "control-1")
    late, early = str(uuid4()), str(uuid4())
    slow = Database(watched.stack.database_url)
    slow.outbox = True
    with slow.writer() as tx:
        events.record(tx, [events.Entry("arq", late, "Bound")])
        write_history(watched.database, early)
        publisher.run_once()
        assert publisher.notifier.states(early) == ["Bound"]
        assert publisher.notifier.states(late) == []
    slow.close()
    publisher.run_once()
    assert publisher.notifier.states(late) == ["Bound"]
    assert publisher.notifier.states(early) == ["Bound"]
