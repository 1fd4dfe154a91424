# SPDX-License-Identifier: Apache-2.0
"""Slices of several sizes share one card: a bind reserves what no longer fits beside it."""

from collections.abc import Callable
from uuid import uuid4

import pytest

from cyborg.db.engine import Database
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.functional.life.cards import CARD, Traits
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client, bind_body
from cyborg.tests.functional.life.steps import (
    ARQS,
    bind,
    create,
    delete_arqs,
    eventually_bound,
    eventually_idle,
    eventually_offered,
)

#: Units of the card's memory, and what a slice of each size takes of them.
MEMORY = 8
SLICES = {"big": 6, "half": 4, "small": 1}
#: Seconds between two heartbeats, and between two scans: only a message makes the agent act.
SELDOM = 3600.0


@pytest.fixture
def sliced(
    racked: Callable[..., RackedCompute], beside: Callable[..., Stack], resource_class: str
) -> RackedCompute:
    """A compute with one card, all of it free, whose agent does nothing by itself."""
    host = racked(
        Traits(resource_class, prepare=True, slices=SLICES),
        cards={CARD: MEMORY},
        on=beside(agent_heartbeat=SELDOM, scan=SELDOM),
        started=False,
    )
    host.start()
    return host


@pytest.fixture
def offers(sliced: RackedCompute, placement: PlacementService) -> Callable[..., None]:
    """Wait until Placement shows so many units of each size that are not reserved."""

    def check(**units: int) -> None:
        for name, count in units.items():
            eventually_offered(placement, sliced.provider(f"{CARD}_{name}"), count)

    check(big=1, half=2, small=8)
    return check


def test_bind_and_release_change_what_placement_offers_of_the_siblings(
    sliced: RackedCompute,
    offers: Callable[..., None],
    profile: Callable[..., str],
    nova: Client,
    operator: Client,
    *,
    database: Database,
) -> None:
    name, scans = profile(sliced.one_unit), sliced.driver.scans
    instance = bind(nova, create(nova, name), sliced.provider(f"{CARD}_half"))
    # The slice that is taken counts: Placement has it allocated.
    offers(big=0, half=2, small=4)
    eventually_bound(nova, instance)
    (device,) = operator.get("/devices")["devices"]
    assert device["pools"] == {"memory": {"total": MEMORY, "used": 4}}
    assert device["units"]["reasons"]["no_room"] == 1 + 4
    # Whatever Placement allowed before it was told.
    big = sliced.provider(f"{CARD}_big")
    body = bind_body(create(nova, name), sliced.compute, big, str(uuid4()))
    answer = nova.patch(ARQS, body, status=409)
    assert "memory (4 of 8 used, 6 needed for each unit)" in str(answer)
    delete_arqs(nova, instance)
    eventually_idle(database)
    offers(big=1, half=2, small=8)
    (device,) = operator.get("/devices")["devices"]
    assert device["pools"] == {"memory": {"total": MEMORY, "used": 0}}
    # The hardware was read once after each change of the unit, and not for the siblings.
    assert sliced.driver.scans <= scans + 2
