# SPDX-License-Identifier: Apache-2.0
"""A card that was divided into fewer parts: those that stay lost are given up, the card stays."""

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from cyborg.clients.placement import Placement
from cyborg.db.engine import Database
from cyborg.db.models import AttachHandle, Deployable, Device
from cyborg.model.provider import Inventory, provider_uuid
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.audit.cloud import age_lost
from cyborg.tests.functional.audit.division import DividedCards, count, retirements
from cyborg.tests.functional.life.cards import CARD, CardDriver, Rack, Traits
from cyborg.tests.functional.life.steps import eventually_offered

Plugged = Callable[[type[CardDriver]], Rack]


@pytest.fixture
def plugged(keeping: Stack, placement: PlacementService, tmp_path: Path) -> Plugged:
    """Start the agent of a compute with one card of four units."""

    def plug(kind: type[CardDriver]) -> Rack:
        compute = fresh_host("divided")
        placement.make_compute(compute)
        machine = FakeHost()
        machine.add_dir("/cards")
        traits = Traits(f"CUSTOM_CARD_{uuid4().hex[:12].upper()}")
        rack = Rack(compute, machine, kind(machine, compute, traits))
        rack.plug(CARD, 4)
        keeping.start_agent(compute, machine=machine, drivers=[rack.loaded], state_path=tmp_path)
        return rack

    return plug


def shows(placement: PlacementService, provider: str) -> bool:
    """Whether Placement has this provider."""
    return Placement(placement.adapter()).find_by_uuid(provider) is not None


def inventory(placement: PlacementService, provider: str) -> Inventory:
    """The only inventory that Placement shows of a provider."""
    (shown,) = Placement(placement.adapter()).inventories(provider)[1].values()
    return shown


def test_lost_units_leave_inventory_and_rows(
    plugged: Plugged, placement: PlacementService, quiet: Database
) -> None:
    rack = plugged(CardDriver)
    eventually_offered(placement, rack.provider(), 4)
    rack.plug(CARD, 2)
    eventually_offered(placement, rack.provider(), 2)
    assert count(quiet, AttachHandle) == 4
    assert inventory(placement, rack.provider())["total"] == 4
    age_lost(quiet)
    eventually(lambda: count(quiet, AttachHandle) == 2)
    eventually(lambda: inventory(placement, rack.provider())["total"] == 2)
    assert inventory(placement, rack.provider())["reserved"] == 0
    assert count(quiet, Deployable) == 1
    assert retirements(quiet) == [("handle", "it had been lost for 31 days")] * 2
    rack.plug(CARD, 4)
    eventually_offered(placement, rack.provider(), 4)
    assert count(quiet, AttachHandle) == 4


def test_lost_deployables_leave_placement_before_the_database(
    plugged: Plugged, placement: PlacementService, quiet: Database
) -> None:
    rack = plugged(DividedCards)
    parts = [provider_uuid(f"{rack.compute}_{CARD}_{index}") for index in range(4)]
    for one in parts:
        eventually_offered(placement, one, 1)
    rack.plug(CARD, 3)
    eventually_offered(placement, parts[3], 0)
    assert inventory(placement, parts[3])["total"] == 1
    age_lost(quiet)
    eventually(lambda: count(quiet, Deployable) == 3)
    assert [shows(placement, one) for one in parts] == [True, True, True, False]
    assert (count(quiet, AttachHandle), count(quiet, Device)) == (3, 1)
    assert retirements(quiet) == [("deployable", "it had been lost for 31 days")]
    rack.plug(CARD, 4)
    eventually_offered(placement, parts[3], 1)
