# SPDX-License-Identifier: Apache-2.0
"""Many at once through the whole service; ``functional/races`` has what needs no agent or API."""

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import uuid4

from cyborg.db.engine import Database
from cyborg.tests.fixtures.compute_host import ComputeHost
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.functional.life.cards import CARD
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client, bind_body, unbind_body
from cyborg.tests.functional.life.steps import (
    ARQS,
    Arqs,
    create_many,
    eventually,
    eventually_offered,
    handle_states,
)
from cyborg.tests.functional.races.arena import at_once, sound

Computes = Callable[..., ComputeHost]
Profiles = Callable[..., str]


def seen(host: RackedCompute) -> None:
    """Wait until the agent has looked at its machine from now on."""
    scans = host.driver.scans
    eventually(lambda: host.driver.scans > scans + 1)


def asked(client: Client, method: str, path: str, body: Any = None) -> Callable[[], int]:
    return lambda: client.answer(method, path, body)


def test_concurrent_reports_and_binds(
    racked: Callable[..., RackedCompute],
    resource_class: str,
    profile: Profiles,
    nova: Client,
    *,
    database: Database,
    placement: PlacementService,
) -> None:
    host = racked(cards={CARD: 8})
    rounds = create_many(nova, profile, resource_class, 16)

    def lifecycle(arqs: Arqs) -> int:
        body = bind_body(arqs, host.compute, host.provider(), str(uuid4()))
        answer = nova.answer("PATCH", ARQS, body)
        if answer == 202:
            nova.patch(ARQS, unbind_body(arqs))
        return answer

    def wiggle() -> int:
        for units in (3, 9, 8):
            host.plug(CARD, units)
            seen(host)
        return 0

    verbs: list[Callable[[], int]] = [wiggle, *(partial(lifecycle, arqs) for arqs in rounds)]
    answers = at_once(verbs)
    assert set(answers[1:]) <= {202, 409}
    sound(database)
    eventually(lambda: set(handle_states(database).values()) == {"free"})
    host.plug(CARD, 9)
    eventually_offered(placement, host.provider(), 9)


def test_concurrent_enable_disable_and_reports(
    racked: Callable[..., RackedCompute], admin: Client, placement: PlacementService
) -> None:
    host = racked(cards={CARD: 2})
    uuid = admin.get("/devices")["devices"][0]["uuid"]
    for units in (3, 4, 5):
        host.plug(CARD, units)
        verbs = [
            asked(admin, "POST", f"/devices/{uuid}/{one}") for one in ("disable", "enable") * 3
        ]
        assert set(at_once(verbs)) == {204}
    admin.post(f"/devices/{uuid}/disable", status=204)
    eventually_offered(placement, host.provider(), 0)
    admin.post(f"/devices/{uuid}/enable", status=204)
    eventually_offered(placement, host.provider(), 5)
