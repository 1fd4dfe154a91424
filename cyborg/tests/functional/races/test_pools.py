# SPDX-License-Identifier: Apache-2.0
"""Binds of slices of one card, which share its capacity."""

from functools import partial
from random import Random
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.arqs import bind, release
from cyborg.conductor.hosts import lost_devices
from cyborg.db.lost_devices import REMOVAL_REQUESTED
from cyborg.db.models import Arq, AttachHandle, Deployable, Work
from cyborg.model.arq import Binding, State
from cyborg.model.availability import Pooled, blocked
from cyborg.model.device import AttachHandle as Handle
from cyborg.model.device import AttachType, Device, DeviceType
from cyborg.model.device import Deployable as Slice
from cyborg.model.provider import provider_uuid
from cyborg.model.report import DriverReport, DriverState, Report
from cyborg.rpc.verbs import DeleteArqs, PatchArqs
from cyborg.tests.fixtures.commits import FollowedCommits
from cyborg.tests.fixtures.host_reports import DRIVER, RESOURCE_CLASS, facts
from cyborg.tests.fixtures.unit_states import UNIT
from cyborg.tests.fixtures.use_cases import NOVA
from cyborg.tests.functional.races.arena import WORKERS, Arena, holds
from cyborg.tests.functional.rules.rows import execute, work_kinds

HOST = "sliced"
#: The pools of the card, and what a slice of each size takes of them.
POOLS = {"memory": 16, "engines": 7}
COSTS = {
    "whole": {"memory": 16, "engines": 7},
    "half": {"memory": 8, "engines": 3},
    "quarter": {"memory": 4, "engines": 2},
    "small": {"memory": 2, "engines": 1},
}


@pytest.fixture
def sliced(arena: Arena) -> None:
    """A host whose card is taken in slices of several sizes."""
    deployables = tuple(
        Slice(
            f"{HOST}_{name}",
            RESOURCE_CLASS,
            "bench",
            tuple(
                Handle(f"{name}-{index}", AttachType.PCI, {})
                for index in range(7 // cost["engines"])
            ),
            attributes=facts(RESOURCE_CLASS),
            prepare=True,
            cost=cost,
        )
        for name, cost in COSTS.items()
    )
    card = Device("0000:81:00.0", DeviceType.GPU, "v", "m", {}, deployables, pools=POOLS)
    arena.first.report(HOST, Report((DriverReport(DRIVER, DriverState.READY, (card,)),)))


def test_concurrent_binds_never_overbook_a_card(arena: Arena, sliced: None, dice: Random) -> None:
    """Bodies of one or two slices, of one size or of several."""
    sizes = [dice.choices([*COSTS], k=dice.randint(1, 2)) for _ in range(WORKERS)]
    requests = [arena.first.request(1, len(body))[0] for body in sizes]
    instances = [str(uuid4()) for _ in sizes]
    verbs = []
    for conductor, body, arqs, instance in zip(
        arena.take_turns(WORKERS), sizes, requests, instances, strict=True
    ):
        binds = [
            Binding(arq, "compute", provider_uuid(f"{HOST}_{name}"), instance)
            for arq, name in zip(arqs, body, strict=True)
        ]
        verbs.append(partial(bind.patch, conductor.ctx, PatchArqs(NOVA, str(uuid4()), binds, [])))
    outcomes = arena.outcomes(verbs)
    assert set(outcomes) <= {None, exception.NoFreeHandle}
    won = [index for index, outcome in enumerate(outcomes) if outcome is None]
    holds(
        arena.first, {instances[index]: requests[index] for index in won}, state=State.BIND_STARTED
    )
    left = {
        pool: size - sum(COSTS[name].get(pool, 0) for index in won for name in sizes[index])
        for pool, size in POOLS.items()
    }
    assert min(left.values()) >= 0
    for body in (body for body, outcome in zip(sizes, outcomes, strict=True) if outcome):
        needed = {pool: sum(COSTS[name][pool] for name in body) for pool in POOLS}
        assert any(needed[pool] > left[pool] for pool in POOLS), "the last body would have fitted"
    with arena.db.reader() as tx:
        rows = tx.execute(
            sa.select(
                AttachHandle.id,
                AttachHandle.deployable_id,
                (UNIT == "free").label("free"),
                AttachHandle.blocked,
                Deployable.cost,
            )
            .join(Deployable, Deployable.id == AttachHandle.deployable_id)
            .where(Deployable.name.startswith(HOST))
        ).all()
    units = [
        Pooled(id_, part, bool(free), lost=False, cost=cost or {})
        for id_, part, free, _, cost in rows
    ]
    assert {row.id for row in rows if row.blocked} == blocked(POOLS, units)


def _bound(arena: Arena, name: str) -> str:
    """An ARQ that is bound to a slice of this size."""
    ((arq,),) = arena.first.request(1)
    arena.first.bind([arq], provider_uuid(f"{HOST}_{name}"), str(uuid4()))
    return arq


def _handle(arena: Arena, arq: str) -> Any:
    """The row of the handle that an ARQ has."""
    with arena.db.reader() as tx:
        query = sa.select(AttachHandle.__table__).join(Arq, Arq.id == AttachHandle.arq_id)
        return tx.execute(query.where(Arq.uuid == arq)).one()


def _blocked(arena: Arena) -> int:
    return arena.first.count(AttachHandle, AttachHandle.blocked.is_(True))


def test_release_keeps_the_capacity_for_the_arq_that_waits(arena: Arena, sliced: None) -> None:
    first = _bound(arena, "whole")
    handle = _handle(arena, first)
    everything_else = _blocked(arena)
    assert everything_else == 2 + 3 + 7
    arena.first.unbind([first])
    assert (
        _blocked(arena),
        arena.first.count(AttachHandle, AttachHandle.state == "releasing"),
    ) == (
        everything_else,
        1,
    )
    # The next ARQ may claim the unit, which takes its capacity already; no other unit fits.
    second = _bound(arena, "whole")
    assert _handle(arena, second).id == handle.id
    with pytest.raises(exception.NoFreeHandle, match=r"engines \(7 of 7 used, 1 needed"):
        _bound(arena, "small")
    # The release has ended, and no agent was asked to prepare the unit yet.
    execute(
        arena.db,
        sa.update(AttachHandle).where(AttachHandle.id == handle.id).values(state="ready"),
        sa.delete(Work),
    )
    arena.first.unbind([second])
    assert work_kinds(arena.db) == ["release"]
    assert arena.first.count(AttachHandle, AttachHandle.state == "releasing") == 1
    assert _blocked(arena) == everything_else


def test_deletion_before_the_preparation_wakes_the_worker(arena: Arena, sliced: None) -> None:
    """The agent returns the capacity, so its work must not wait for the next periodic run."""
    arq = _bound(arena, "whole")
    execute(arena.db, sa.update(Arq).where(Arq.uuid == arq).values(prepared=False))
    commits = FollowedCommits(arena.db)
    release.delete(arena.db, DeleteArqs(NOVA, str(uuid4()), [arq]))
    assert (work_kinds(arena.db), commits.wakes) == (["release"], 1)


def test_removal_of_a_lost_unit_returns_its_capacity(arena: Arena, sliced: None) -> None:
    arq = _bound(arena, "whole")
    handle = _handle(arena, arq)
    arena.first.unbind([arq])
    lost = {"state": "quarantined", "lost_ms": REMOVAL_REQUESTED}
    execute(arena.db, sa.update(AttachHandle).where(AttachHandle.id == handle.id).values(**lost))
    assert _blocked(arena) == 2 + 3 + 7
    lost_devices.expire(arena.first.ctx)
    assert arena.first.count(AttachHandle, AttachHandle.id == handle.id) == 0
    assert _blocked(arena) == 0
