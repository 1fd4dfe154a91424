# SPDX-License-Identifier: Apache-2.0
"""What it costs to be watched: the same number of statements, whatever there is."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import SimpleNamespace

import pytest

from cyborg import exception
from cyborg.conductor.metrics import Readings
from cyborg.db import metrics, notifications
from cyborg.db.notifications import Position
from cyborg.model.process import AGENT
from cyborg.tests.fixtures.cost_meter import Tally
from cyborg.tests.fixtures.counted_service import CountedService

Statements = Callable[[], AbstractContextManager[Tally]]


def test_cost_of_a_scrape_of_a_conductor(
    counted_service: CountedService, statements: Statements
) -> None:
    with statements() as tally, counted_service.db.reader() as tx:
        metrics.totals(tx, counted_service.db.now)
    assert tally.costs == (9, 0, 0), str(tally)


def test_cost_of_reading_unchanged_history(
    counted_service: CountedService, statements: Statements
) -> None:
    with counted_service.db.reader() as tx:
        position = Position(notifications.newest(tx), {}, frozenset())
    nobody = SimpleNamespace(id=0, fence=0)
    with statements() as tally, counted_service.db.reader() as tx:
        notifications.owned_now(tx, counted_service.db.now, nobody)
        assert notifications.next_events(tx, position, 200) == ([], False)
        assert notifications.arq_projects(tx, ()) == {}
        assert notifications.devices(tx, ()) == {}
        notifications.down_services(tx, counted_service.db.now, {AGENT: 30_000})
        notifications.last_heartbeats(tx, ())
    assert tally.costs == (3, 0, 0), str(tally)


def test_cost_of_storing_readings(counted_service: CountedService, statements: Statements) -> None:
    with statements() as tally, pytest.raises(exception.NotFound):
        Readings(db=counted_service.db).store("nobody", 1, [])
    assert tally.costs == (1, 0, 0), str(tally)
