# SPDX-License-Identifier: Apache-2.0
"""What it costs to be watched: the same number of statements, whatever there is."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.leases import ConductorLease
from cyborg.conductor.metrics import store_readings
from cyborg.conductor.notifications import NotificationPublisher
from cyborg.db import metrics
from cyborg.db.models import Host, Service
from cyborg.db.services import Process
from cyborg.model.notification import Notification
from cyborg.model.process import AGENT, CONDUCTOR
from cyborg.rpc.verbs import SendReadings
from cyborg.tests.fixtures.contexts import context
from cyborg.tests.fixtures.cost_meter import Tally
from cyborg.tests.fixtures.costs import DELETE_BY_INSTANCE, Scenarios, bind_allowance
from cyborg.tests.fixtures.counted_service import CountedService

Statements = Callable[[], AbstractContextManager[Tally]]


class Recorder:
    """A notifier that records messages."""

    enabled = True

    def __init__(self) -> None:
        self.sent: list[Notification] = []

    def send(self, messages: Sequence[Notification]) -> None:
        self.sent += messages


@pytest.fixture
def enabled(counted_service: CountedService) -> Iterator[None]:
    """Notifications are enabled."""
    counted_service.db.outbox = True
    yield
    counted_service.db.outbox = False


@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("units", [1, 8])
def test_cost_of_notifications_in_a_request(scenarios: Scenarios, units: int) -> None:
    bindable = scenarios.bindable(units, 1)
    tally = scenarios.bind(bindable)
    allowed = bind_allowance(1)
    assert replace(allowed, statements=allowed.statements + 1).covers(tally), str(tally)
    assert len(tally.writes_to("outbox")) == 1
    tally = scenarios.delete(bindable.instance)
    allowed = DELETE_BY_INSTANCE
    assert replace(allowed, statements=allowed.statements + 1).covers(tally), str(tally)


@pytest.mark.usefixtures("enabled")
def test_cost_of_publishing_does_not_depend_on_the_history(
    counted_service: CountedService, statements: Statements
) -> None:
    # The counted conductor, so that no other one is older.
    process = Process("counted", CONDUCTOR, "0", "cyborg-conductor", "0")
    lease = ConductorLease(db=counted_service.db, process=process)
    lease.renew()
    notifier: Any = Recorder()
    publisher = NotificationPublisher(
        db=counted_service.db,
        lease=lease,
        notifier=notifier,
        down_after={AGENT: 3600_000},
        lease_ms=3600_000,
    )
    publisher.run_once()
    with statements() as empty:
        publisher.run_once()
    assert empty.costs == (3, 0, 0), str(empty)
    notifier.sent.clear()
    scenarios = Scenarios(counted_service)
    scenarios.bind(scenarios.bindable(8, 1))
    with statements() as tally:
        publisher.run_once()
    assert len(notifier.sent) >= 8
    assert tally.costs == (8, 1, 0), str(tally)


def test_cost_of_a_scrape_and_of_storing_readings(
    counted_service: CountedService, statements: Statements
) -> None:
    with statements() as tally, counted_service.db.reader() as tx:
        metrics.totals(tx)
    assert tally.costs == (11, 0, 0), str(tally)
    with statements() as tally, pytest.raises(exception.NotFound):
        store_readings(context(counted_service.db), SendReadings("nobody", 1, []))
    assert tally.costs == (1, 0, 0), str(tally)
    with counted_service.db.writer() as tx:
        host = sa.insert(Host).values(name="measured", service_host="measured", updated_ms=0)
        tx.execute(host)
        tx.execute(
            sa.insert(Service).values(
                uuid=str(uuid4()),
                host="measured",
                binary=AGENT,
                epoch=1,
                status="READY",
                last_seen_ms=0,
            )
        )
    for expected in ((5, 1, 0), (2, 1, 0), (2, 1, 0)):
        with statements() as tally:
            store_readings(context(counted_service.db), SendReadings("measured", 1, []))
        assert tally.costs == expected, str(tally)
