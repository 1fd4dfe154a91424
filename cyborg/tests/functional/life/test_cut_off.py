# SPDX-License-Identifier: Apache-2.0
"""Agents that no conductor answers: what Placement offers meanwhile, and after that."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import sqlalchemy as sa

from cyborg import service
from cyborg.db.engine import Database
from cyborg.db.models import Device
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.stack import Stack, fresh_exchange
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.life.cards import CARD, OTHER, Traits
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import (
    bind,
    create,
    eventually,
    eventually_offered,
    of_instance,
)


@dataclass
class Island:
    """A compute on a bus of its own, whose only conductor comes and goes."""

    host: RackedCompute
    stack: Stack
    conductor: service.Daemon

    def lose_conductor(self) -> None:
        self.conductor.stop()

    def find_conductor(self) -> None:
        self.conductor = self.stack.start_conductor()

    def scanned_again(self) -> None:
        """Wait until the agent has looked at its host from beginning to end once more."""
        scans = self.host.driver.scans
        eventually(lambda: self.host.driver.scans > scans + 2)


@pytest.fixture
def island(beside: Callable[..., Stack], racked: Callable[..., RackedCompute]) -> Island:
    own = beside(exchange=fresh_exchange(), agent_heartbeat=0.2, scan=0.2, rpc=0.5)
    conductor = own.start_conductor()
    return Island(racked(cards={CARD: 2, OTHER: 1}, on=own), own, conductor)


def lost(database: Database) -> int:
    """How many devices the conductor knows to be gone."""
    with database.reader() as tx:
        query = sa.select(sa.func.count()).where(Device.lost_ms.is_not(None))
        return int(tx.execute(query).scalar_one())


def test_agent_alone_reserves_lost_card_until_conductor_knows(
    island: Island, placement: PlacementService
) -> None:
    host = island.host
    island.lose_conductor()
    host.pull(CARD)
    eventually_offered(placement, host.provider(), 0)
    assert offered(placement, host.provider(OTHER)) == 1
    host.plug(CARD, 2)
    island.scanned_again()
    assert offered(placement, host.provider()) == 0
    island.find_conductor()
    eventually_offered(placement, host.provider(), 2)
    assert offered(placement, host.provider(OTHER)) == 1


def test_lost_card_stays_reserved_after_conductor_returns(
    island: Island, placement: PlacementService, database: Database
) -> None:
    host = island.host
    island.lose_conductor()
    host.pull(CARD)
    eventually_offered(placement, host.provider(), 0)
    island.find_conductor()
    eventually(lambda: lost(database) == 1)
    island.scanned_again()
    assert offered(placement, host.provider()) == 0
    host.plug(CARD, 2)
    eventually_offered(placement, host.provider(), 2)


def test_failing_driver_offers_nothing_without_conductor(
    island: Island, placement: PlacementService
) -> None:
    host = island.host
    island.lose_conductor()
    host.driver.behaviour.broken = RuntimeError("the library crashed")
    for card in (CARD, OTHER):
        eventually_offered(placement, host.provider(card), 0)
    host.driver.behaviour.broken = None
    island.scanned_again()
    assert offered(placement, host.provider()) == 0
    island.find_conductor()
    eventually_offered(placement, host.provider(), 2)
    eventually_offered(placement, host.provider(OTHER), 1)


def test_restarted_agent_knows_lost_units_from_its_state_store(
    island: Island,
    placement: PlacementService,
    member: Client,
    profile: Callable[..., str],
    resource_class: str,
) -> None:
    host, nova = island.host, member.with_service_token()
    name = profile({f"resources:{resource_class}": "1"})
    instance = bind(nova, create(nova, name), host.provider())
    host.stop()
    island.lose_conductor()
    host.pull(CARD)
    host.start()
    eventually_offered(placement, host.provider(), 0)
    assert offered(placement, host.provider(OTHER)) == 1
    assert of_instance(nova, instance)[0]["state"] == "Bound"
    host.plug(CARD, 2)
    island.find_conductor()
    eventually_offered(placement, host.provider(), 2)


def test_agent_works_without_state_path(
    stack: Stack,
    placement: PlacementService,
    racked: Callable[..., RackedCompute],
    resource_class: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = racked(Traits(resource_class), cards={CARD: 2})
    host.stop()
    caplog.clear()
    # Not even root can make a directory below a file.
    way = host.state_path / "file"
    way.write_text("in the way")
    host.state_path = way / "state"
    host.start()
    for units in (3, 4, 5):
        host.plug(CARD, units)
        eventually_offered(placement, host.provider(), units)
    said = [one.getMessage() for one in caplog.records]
    assert len([one for one in said if "works without it" in one]) == 1
