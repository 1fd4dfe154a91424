# SPDX-License-Identifier: Apache-2.0
"""Many at once through the whole service; ``functional/races`` has what needs no agent or API."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import uuid4

from cyborg.db.engine import Database
from cyborg.tests.fixtures.compute_host import ComputeHost
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.functional.life.cards import CARD, Traits
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client, bind_body, unbind_body
from cyborg.tests.functional.life.steps import (
    ARQS,
    FPGA,
    Arqs,
    bind,
    create,
    create_many,
    delete_arqs,
    eventually,
    eventually_idle,
    eventually_offered,
    handle_states,
    of_instance,
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


def test_fifty_concurrent_binds_get_distinct_handles(
    racked: Callable[..., RackedCompute],
    resource_class: str,
    profile: Profiles,
    nova: Client,
    database: Database,
) -> None:
    host = racked(cards={CARD: 50})
    arqs = create_many(nova, profile, resource_class, 50)
    bodies = [bind_body(one, host.compute, host.provider(), str(uuid4())) for one in arqs]
    answers = at_once([asked(nova, "PATCH", ARQS, body) for body in bodies])
    assert Counter(answers) == {202: 50}
    handles = {one["attach_handle_uuid"] for one in nova.get(ARQS, limit=100)["arqs"]}
    assert len(handles) == 50
    sound(database)


def test_sixteen_concurrent_binds_of_one_arq(
    compute: Computes, profile: Profiles, nova: Client, database: Database
) -> None:
    host = compute()
    arqs = create(nova, profile(FPGA))
    bodies = [bind_body(arqs, host.compute, host.fake_provider, str(uuid4())) for _ in range(16)]
    answers = at_once([asked(nova, "PATCH", ARQS, body) for body in bodies])
    assert Counter(answers) == {202: 1, 409: 15}
    winner = next(iter(bodies[answers.index(202)].values()))[2]["value"]
    assert [one["uuid"] for one in of_instance(nova, winner)] == [arqs[0]["uuid"]]
    sound(database)


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


def test_concurrent_rebinds_of_prepared_handles(
    racked: Callable[..., RackedCompute],
    resource_class: str,
    profile: Profiles,
    nova: Client,
    database: Database,
) -> None:
    """Binds that wait for releases that end meanwhile: each gets one, none is left over."""
    host = racked(Traits(resource_class, prepare=True), cards={CARD: 4})
    first = [
        bind(nova, one, host.provider()) for one in create_many(nova, profile, resource_class, 4)
    ]
    eventually_idle(database)
    waiting = create_many(nova, profile, resource_class, 4)
    instances = [str(uuid4()) for _ in waiting]

    def change(index: int) -> int:
        nova.delete(f"{ARQS}?instance={first[index]}")
        body = bind_body(waiting[index], host.compute, host.provider(), instances[index])
        return nova.answer("PATCH", ARQS, body)

    answers = at_once([partial(change, index) for index in range(4)])
    assert answers == [202] * 4
    eventually(lambda: {of_instance(nova, one)[0]["state"] for one in instances} == {"Bound"})
    for one in instances:
        delete_arqs(nova, one)
    eventually_idle(database)
    assert set(handle_states(database).values()) == {"free"}
    assert host.driver.ready == set()
