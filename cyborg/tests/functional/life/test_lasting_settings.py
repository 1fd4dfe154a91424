# SPDX-License-Identifier: Apache-2.0
"""A guest that changes its card for good, such as its firmware: no other guest gets the card."""

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from cyborg.agent.lasting_settings import LastingSettings
from cyborg.agent.state_store import StateStore
from cyborg.db.engine import Database
from cyborg.db.models import Event
from cyborg.drivers.worker import Worker
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.life.cards import CARD, CardDriver, Traits
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import (
    Arqs,
    bind,
    create,
    delete_arqs,
    eventually_bound,
    eventually_idle,
    eventually_offered,
    handle_states,
    hasten,
    work_left,
)

BEFORE = {"firmware": "1.0", "ECC mode": "on"}


@pytest.fixture
def host(
    racked: Callable[..., RackedCompute], resource_class: str, placement: PlacementService
) -> RackedCompute:
    """A compute with one card, whose settings the agent has recorded."""
    compute = racked(Traits(resource_class, prepare=True), cards={CARD: 1}, started=False)
    compute.driver.behaviour.settings = dict(BEFORE)
    compute.start()
    eventually_offered(placement, compute.provider(), 1)
    return compute


@pytest.fixture
def arqs(nova: Client, profile: Callable[..., str], resource_class: str) -> Callable[[], Arqs]:
    name = profile({f"resources:{resource_class}": "1"})
    return lambda: create(nova, name)


def has_guest_that_leaves(
    host: RackedCompute, nova: Client, arqs: Callable[[], Arqs], after: dict[str, str]
) -> None:
    """Let a guest have the card, which shows these settings when it has gone."""
    instance = bind(nova, arqs(), host.provider())
    eventually_bound(nova, instance)
    host.driver.behaviour.settings = dict(after)
    delete_arqs(nova, instance)


def quarantined(database: Database) -> bool:
    hasten(database)
    return "quarantined" in handle_states(database).values()


def reasons(database: Database) -> list[str]:
    with database.reader() as tx:
        query = sa.select(Event.reason).where(Event.action == "quarantined")
        return [str(reason) for reason in tx.scalars(query)]


def test_card_with_other_firmware_after_its_guest_is_in_quarantine_until_it_is_accepted(
    host: RackedCompute,
    arqs: Callable[[], Arqs],
    nova: Client,
    database: Database,
    placement: PlacementService,
) -> None:
    has_guest_that_leaves(host, nova, arqs, {**BEFORE, "firmware": "6.66"})
    eventually(lambda: quarantined(database))
    (reason,) = reasons(database)
    assert "its firmware was 1.0 before the guest and is 6.66 now" in reason
    assert f"cyborg-agent --recovered {CardDriver.name}/{CARD}" in reason
    assert "ECC" not in reason
    eventually(lambda: offered(placement, host.provider()) == 0)
    # Another agent process does not take the change for the first sight of the card.
    host.restart()
    scans = host.driver.scans
    eventually(lambda: host.driver.scans > scans + 1)
    assert quarantined(database)
    assert offered(placement, host.provider()) == 0
    store = StateStore(host.state_path, host.compute)
    assert LastingSettings(store, Worker()).forget(CardDriver.name, CARD)

    def is_released() -> bool:
        hasten(database)
        return work_left(database) == []

    eventually(is_released)
    eventually_offered(placement, host.provider(), 1)
    # The accepted firmware is what the next guest must leave.
    has_guest_that_leaves(host, nova, arqs, {**BEFORE, "firmware": "6.67"})
    eventually(lambda: quarantined(database))
    assert "was 6.66 before the guest and is 6.67 now" in reasons(database)[-1]


def test_card_whose_settings_cannot_be_read_after_its_guest_is_in_quarantine(
    host: RackedCompute, arqs: Callable[[], Arqs], nova: Client, database: Database
) -> None:
    has_guest_that_leaves(host, nova, arqs, {"ECC mode": "on"})
    eventually(lambda: quarantined(database))
    assert "its firmware was 1.0 before the guest and cannot be read now" in reasons(database)[0]


def test_card_that_its_guest_left_as_it_was_is_offered_again(
    host: RackedCompute,
    arqs: Callable[[], Arqs],
    nova: Client,
    database: Database,
    placement: PlacementService,
) -> None:
    has_guest_that_leaves(host, nova, arqs, {**BEFORE, "serial port": "new in this release"})
    eventually_idle(database)
    assert set(handle_states(database).values()) == {"free"}
    eventually_offered(placement, host.provider(), 1)
