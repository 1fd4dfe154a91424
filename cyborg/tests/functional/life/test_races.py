# SPDX-License-Identifier: Apache-2.0
"""Many at once, on whatever database the run has: whoever wins, nothing is held twice or lost."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.db.engine import Database
from cyborg.db.models import Arq, AttachHandle, Instance
from cyborg.testing.placement import PlacementService
from cyborg.tests.functional.conftest import Compute
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
    eventually,
    eventually_offered,
    handle_states,
    of_instance,
    work_left,
)

Computes = Callable[..., Compute]
Profiles = Callable[..., str]


@pytest.fixture
def nova(member: Client) -> Client:
    return member.with_service_token()


def all_at_once(verbs: Sequence[Callable[[], int]]) -> list[int]:
    """The answers of verbs that begin at the same moment, in their order."""
    answers: list[int] = [0] * len(verbs)
    start = threading.Barrier(len(verbs))

    def run(index: int) -> None:
        start.wait(10)
        answers[index] = verbs[index]()

    threads = [threading.Thread(target=run, args=(one,)) for one in range(len(verbs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return answers


def consistent(database: Database) -> None:
    """Held handles and bound ARQs are the same, and instances know what they have."""
    with database.reader() as tx:
        held = tx.execute(sa.select(AttachHandle.id).where(AttachHandle.state == "held")).scalars()
        bound = tx.execute(
            sa.select(Arq.attach_handle_id, Arq.instance_uuid, Arq.state).where(
                sa.or_(Arq.attach_handle_id.is_not(None), Arq.instance_uuid.is_not(None))
            )
        ).all()
        open_ = set(tx.execute(sa.select(Instance.uuid).where(Instance.bound.is_(False))).scalars())
    assert sorted(held) == sorted(row.attach_handle_id for row in bound)
    assert all(row.state == "Bound" and row.instance_uuid for row in bound)
    assert not open_ & {row.instance_uuid for row in bound}


def seen(host: RackedCompute) -> None:
    """Wait until the agent has looked at its machine from now on."""
    scans = host.driver.scans
    eventually(lambda: host.driver.scans > scans + 1)


def asked(client: Client, method: str, path: str, body: Any = None) -> Callable[[], int]:
    return lambda: client.answer(method, path, body)


def test_line_59_fifty_instances_on_one_provider(
    racked: Callable[..., RackedCompute],
    resource_class: str,
    profile: Profiles,
    nova: Client,
    database: Database,
) -> None:
    host = racked(cards={CARD: 50})
    arqs = create_many(nova, profile, resource_class, 50)
    bodies = [bind_body(one, host.compute, host.provider(), str(uuid4())) for one in arqs]
    answers = all_at_once([asked(nova, "PATCH", ARQS, body) for body in bodies])
    assert Counter(answers) == {202: 50}
    handles = {one["attach_handle_uuid"] for one in nova.get(ARQS, limit=100)["arqs"]}
    assert len(handles) == 50
    consistent(database)


def test_sixteen_bind_the_same_request(
    compute: Computes, profile: Profiles, nova: Client, database: Database
) -> None:
    host = compute()
    arqs = create(nova, profile(FPGA))
    bodies = [bind_body(arqs, host.name, host.fake_provider, str(uuid4())) for _ in range(16)]
    answers = all_at_once([asked(nova, "PATCH", ARQS, body) for body in bodies])
    assert Counter(answers) == {202: 1, 409: 15}
    winner = next(iter(bodies[answers.index(202)].values()))[2]["value"]
    assert [one["uuid"] for one in of_instance(nova, winner)] == [arqs[0]["uuid"]]
    consistent(database)


@pytest.mark.parametrize("known", [False, True], ids=["new instance", "known instance"])
def test_one_instance_is_bound_by_one_request(
    compute: Computes, profile: Profiles, nova: Client, database: Database, *, known: bool
) -> None:
    host = compute()
    instance, arqs = str(uuid4()), create_many(nova, profile, "FPGA", 12)
    if known:
        bind(nova, create(nova, profile(FPGA)), host.fake_provider, instance=instance)
        nova.delete(f"{ARQS}?instance={instance}")
    bodies = [bind_body(one, host.name, host.fake_provider, instance) for one in arqs]
    answers = all_at_once([asked(nova, "PATCH", ARQS, body) for body in bodies])
    assert Counter(answers) == {202: 1, 400: 11}
    assert len(of_instance(nova, instance)) == 1
    consistent(database)


@pytest.mark.parametrize("way", ["instance", "arqs", "unbind"])
def test_bind_against_letting_go(
    compute: Computes, profile: Profiles, nova: Client, database: Database, way: str
) -> None:
    host = compute()
    name = profile({**FPGA, "resources:FPGA": "2"})
    for _ in range(4):
        arqs, instance = create(nova, name), str(uuid4())
        body = bind_body(arqs, host.name, host.fake_provider, instance)
        let_go = {
            "instance": asked(nova, "DELETE", f"{ARQS}?instance={instance}"),
            "arqs": asked(nova, "DELETE", f"{ARQS}?arqs={','.join(a['uuid'] for a in arqs)}"),
            "unbind": asked(nova, "PATCH", ARQS, unbind_body(arqs)),
        }[way]
        answers = all_at_once([asked(nova, "PATCH", ARQS, body), let_go, let_go])
        assert answers[0] in (202, 404)
        assert set(answers[1:]) <= {202, 204, 404}
        consistent(database)
        nova.delete(f"{ARQS}?instance={instance}")
        assert set(handle_states(database).values()) == {"free"}


def test_two_delete_what_a_third_binds_again(
    compute: Computes, profile: Profiles, nova: Client, database: Database
) -> None:
    """Evacuation and a late clean-up at once: the new bind stands or is refused, wholly."""
    host = compute()
    name, instance = profile({**FPGA, "resources:FPGA": "2"}), str(uuid4())
    for _ in range(4):
        old, new = create(nova, name), create(nova, name)
        bind(nova, old, host.fake_provider, instance=instance)
        body = bind_body(new, host.name, host.fake_provider, instance)
        answers = all_at_once(
            [
                asked(nova, "PATCH", ARQS, body),
                asked(nova, "DELETE", f"{ARQS}?instance={instance}"),
                asked(nova, "DELETE", f"{ARQS}?arqs={','.join(a['uuid'] for a in old)}"),
            ]
        )
        assert answers[0] in (202, 400)
        assert answers[1] == 204
        assert answers[2] in (204, 404)
        consistent(database)
        nova.delete(f"{ARQS}?instance={instance}")
        assert set(handle_states(database).values()) == {"free"}


def test_reports_against_binds(
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

    def life(arqs: Arqs) -> int:
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

    answers = all_at_once([wiggle, *(partial(life, arqs) for arqs in rounds)])
    assert set(answers[1:]) <= {202, 409}
    consistent(database)
    eventually(lambda: set(handle_states(database).values()) == {"free"})
    host.plug(CARD, 9)
    eventually_offered(placement, host.provider(), 9)


def test_enable_and_disable_against_reports(
    racked: Callable[..., RackedCompute], admin: Client, placement: PlacementService
) -> None:
    host = racked(cards={CARD: 2})
    uuid = admin.get("/devices")["devices"][0]["uuid"]
    for units in (3, 4, 5):
        host.plug(CARD, units)
        verbs = [
            asked(admin, "POST", f"/devices/{uuid}/{one}") for one in ("disable", "enable") * 3
        ]
        assert set(all_at_once(verbs)) == {204}
    admin.post(f"/devices/{uuid}/disable", status=204)
    eventually_offered(placement, host.provider(), 0)
    admin.post(f"/devices/{uuid}/enable", status=204)
    eventually_offered(placement, host.provider(), 5)


def test_prepared_handles_change_hands(
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
    eventually(lambda: work_left(database) == [])
    waiting = create_many(nova, profile, resource_class, 4)
    instances = [str(uuid4()) for _ in waiting]

    def change(index: int) -> int:
        nova.delete(f"{ARQS}?instance={first[index]}")
        body = bind_body(waiting[index], host.compute, host.provider(), instances[index])
        return nova.answer("PATCH", ARQS, body)

    answers = all_at_once([partial(change, index) for index in range(4)])
    assert answers == [202] * 4
    eventually(lambda: {of_instance(nova, one)[0]["state"] for one in instances} == {"Bound"})
    for one in instances:
        nova.delete(f"{ARQS}?instance={one}")
    eventually(lambda: work_left(database) == [])
    assert set(handle_states(database).values()) == {"free"}
    assert host.driver.prepared == set()
