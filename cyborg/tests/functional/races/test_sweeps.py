# SPDX-License-Identifier: Apache-2.0
"""Conductors that look for due work at the same moment, and one that wakes up too late."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.context import Conductor as Context
from cyborg.conductor.tasks.queue import WorkRunner, complete
from cyborg.db.models import Arq, AttachHandle, Service, Work
from cyborg.db.work import ClaimedWork
from cyborg.model.arq import State
from cyborg.model.work import WorkKind
from cyborg.tests.fixtures.host_reports import provider_of
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.single_step import Conductor
from cyborg.tests.fixtures.unit_states import UNIT
from cyborg.tests.fixtures.use_cases import UseCases
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.life.cards import Rack
from cyborg.tests.functional.races.arena import WORKERS, Arena, Verb, at_once, sound
from cyborg.tests.functional.races.conftest import DEVICES, HOST, PREPARED_UNITS, UNITS

LEASE_MS = 600_000


def sweep(arena: Arena) -> None:
    """Both conductors look for work at the same moment, again and again, until none is left."""

    def looking(conductor: Conductor) -> None:
        conductor.runner.run_once()

    def done() -> bool:
        at_once([partial(looking, one) for one in arena.take_turns(8)])
        due_now(arena)
        return arena.first.count(Work) == 0

    eventually(done)


def due_now(arena: Arena) -> None:
    """What was put off need not be waited for."""
    with arena.db.writer() as tx:
        tx.execute(sa.update(Work).where(Work.owner_id.is_(None)).values(not_before_ms=0))


def boot(arena: Arena, place: str, count: int, size: int = 1) -> dict[str, list[str]]:
    """Bind so many servers; the ARQs by instance."""
    bodies = {str(uuid4()): arqs for arqs in arena.first.request(count, size)}
    for conductor, (instance, arqs) in zip(arena.take_turns(count), bodies.items(), strict=True):
        conductor.bind(arqs, place, instance)
    return bodies


def told(nova: SimulatedNova, bodies: dict[str, list[str]]) -> Counter[str]:
    """How often Nova heard of each of these ARQs."""
    ours = {arq for arqs in bodies.values() for arq in arqs}
    return Counter(one.tag for one in nova.events if one.tag in ours)


def once(bodies: dict[str, list[str]]) -> Counter[str]:
    return Counter(arq for arqs in bodies.values() for arq in arqs)


class Sweeper:
    """A conductor that notes what it does, and ends it."""

    def __init__(self, cases: UseCases) -> None:
        self.done: list[int] = []
        cases.lease.renew()
        self.runner = WorkRunner(
            cases.ctx, lease=cases.lease, handlers={WorkKind.NOTIFY: self._note}
        )

    def _note(self, ctx: Context, rows: Sequence[ClaimedWork]) -> None:
        self.done += [row.id for row in rows]
        with complete(ctx, rows):
            pass


@pytest.fixture(scope="package")
def sweepers(shared_arena: Arena) -> list[Sweeper]:
    """Many conductors."""
    more = {"agents": shared_arena.first.ctx.agents, "lease": LEASE_MS / 1000}
    names = [f"sweeper-{index}" for index in range(WORKERS)]
    return [Sweeper(UseCases(shared_arena.db, host=name, **more)) for name in names]


def test_concurrent_workers_do_each_work_once(
    arena: Arena, dice: Random, sweepers: list[Sweeper]
) -> None:
    for index in range(DEVICES):
        boot(arena, provider_of(HOST, index), UNITS)
    with arena.db.reader() as tx:
        wanted = sorted(tx.execute(sa.select(Work.id)).scalars())
    for one in sweepers:
        one.done.clear()
    chosen = dice.sample(sweepers, WORKERS)
    claimed = at_once([one.runner.run_once for one in chosen])
    assert sum(claimed) == len(wanted)
    eventually(lambda: arena.first.count(Work) == 0)
    assert sorted(row for one in sweepers for row in one.done) == wanted


def test_concurrent_workers_send_each_event_once(
    arena: Arena, dice: Random, nova: SimulatedNova
) -> None:
    bodies = boot(arena, provider_of(HOST, dice.randrange(DEVICES)), 2, 2)
    calls = len(nova.calls)
    sweep(arena)
    assert told(nova, bodies) == once(bodies)
    assert Counter(states(arena)) == {State.BOUND: 4}
    assert len(nova.calls) <= calls + 4
    sound(arena.db)


def states(arena: Arena) -> list[str]:
    """Those of all ARQs."""
    with arena.db.reader() as tx:
        return list(tx.execute(sa.select(Arq.state)).scalars())


def test_concurrent_workers_call_each_host_once(
    arena: Arena, dice: Random, nova: SimulatedNova, rack: Rack
) -> None:
    """Preparations, releases and binds that wait for them, swept by both conductors."""
    first = boot(arena, rack.provider(), 3)
    sweep(arena)
    going, staying = dice.sample(sorted(first), 3)[:2], len(first) - 2
    for one in going:
        arena.first.delete_of(one)
    # One unit is free, two are being released: all three are given away again.
    second = boot(arena, rack.provider(), 3)
    sweep(arena)
    assert Counter(states(arena)) == {State.BOUND: staying + 3}
    verbs = Counter(verb for verb, _ in rack.driver.calls)
    assert verbs == {"prepare": 6, "release": 2}
    assert told(nova, first | second) == once(first) + once(second)
    sound(arena.db)
    for instance in {*first, *second} - set(going):
        arena.conductors[1].delete_of(instance)
    sweep(arena)
    assert rack.driver.ready == set()
    assert arena.first.count(AttachHandle, UNIT != "free") == 0


def test_each_released_unit_goes_to_one_waiting_bind(
    arena: Arena, dice: Random, rack: Rack
) -> None:
    """Many binds for units that are being released, while their releases end."""
    first = boot(arena, rack.provider(), PREPARED_UNITS)
    sweep(arena)
    for conductor, instance in zip(arena.take_turns(len(first)), first, strict=True):
        conductor.delete_of(instance)
    bodies = {str(uuid4()): arqs for arqs in arena.first.request(WORKERS - 4)}
    verbs: list[Verb] = [one.runner.run_once for one in arena.take_turns(4)]
    verbs += [
        partial(conductor.bind, arqs, rack.provider(), instance)
        for conductor, (instance, arqs) in zip(
            arena.take_turns(len(bodies)), bodies.items(), strict=True
        )
    ]
    order = dice.sample(range(len(verbs)), len(verbs))
    outcomes = dict(zip(order, arena.outcomes([verbs[one] for one in order]), strict=True))
    losers = len(bodies) - PREPARED_UNITS
    assert Counter(outcomes.values()) == {
        None: PREPARED_UNITS + 4,
        exception.NoFreeHandle: losers,
    }
    sound(arena.db)
    sweep(arena)
    assert Counter(states(arena)) == {State.BOUND: PREPARED_UNITS, State.INITIAL: losers}
    assert len(rack.driver.ready) == PREPARED_UNITS
    sound(arena.db)


def test_delayed_conductor_cannot_complete_taken_over_work(
    arena: Arena, dice: Random, nova: SimulatedNova, rack: Rack
) -> None:
    """It falls asleep while it asks a host or Nova; another takes over; it wakes up."""
    late, successor = dice.sample(arena.conductors, 2)
    rack.driver.behaviour.preparing.clear()
    bodies = boot(arena, rack.provider(), 2)
    assert late.runner.run_once() == 2
    silence(arena, late)
    taken = [0]

    def take_over() -> bool:
        # What the late one is just writing to is left for the next look.
        taken[0] += successor.runner.run_once()
        return taken[0] == 2

    eventually(take_over)
    at_once([rack.driver.behaviour.preparing.set, late.lease.renew])
    sweep(arena)
    assert Counter(states(arena)) == {State.BOUND: 2}
    assert Counter(verb for verb, _ in rack.driver.calls) == {"prepare": 2}
    assert told(nova, bodies) == once(bodies)
    sound(arena.db)


def silence(arena: Arena, conductor: Conductor) -> None:
    """Its lease has run out long ago."""
    owner = conductor.lease.owner
    assert owner is not None
    with arena.db.writer() as tx:
        tx.execute(sa.update(Service).where(Service.id == owner[0]).values(last_seen_ms=1))
