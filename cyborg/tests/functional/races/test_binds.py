# SPDX-License-Identifier: Apache-2.0
"""Clients against clients: the same request, the last units, the same instance."""

from collections import Counter
from functools import partial
from random import Random
from uuid import uuid4

from cyborg import exception
from cyborg.conductor.arqs import bind
from cyborg.db.models import Arq, AttachHandle, Instance
from cyborg.model.arq import Binding
from cyborg.rpc.verbs import PatchArqs
from cyborg.tests.fixtures.host_reports import provider_of
from cyborg.tests.fixtures.single_step import Conductor
from cyborg.tests.fixtures.unit_states import UNIT
from cyborg.tests.fixtures.use_cases import NOVA
from cyborg.tests.functional.races.arena import WORKERS, Arena, Outcome, Verb, at_once, holds
from cyborg.tests.functional.races.conftest import DEVICES, HOST, UNITS


def provider(dice: Random) -> str:
    """Any of the host's."""
    return provider_of(HOST, dice.randrange(DEVICES))


def test_concurrent_binds_of_one_arq(arena: Arena, dice: Random) -> None:
    ((arq,),) = arena.first.request(1)
    instances = [str(uuid4()) for _ in range(WORKERS)]
    places = [provider(dice) for _ in instances]
    outcomes = arena.outcomes(
        [
            partial(conductor.bind, [arq], place, instance)
            for conductor, place, instance in zip(
                arena.take_turns(WORKERS), places, instances, strict=True
            )
        ]
    )
    assert Counter(outcomes) == {None: 1, exception.BadState: WORKERS - 1}
    holds(arena.first, {instances[outcomes.index(None)]: [arq]})
    assert arena.first.count(Instance) == 1


def test_concurrent_bind_unbind_and_delete_of_one_arq(arena: Arena, dice: Random) -> None:
    ((arq,),) = arena.first.request(1)
    instances = [str(uuid4()) for _ in range(8)]
    verbs: list[tuple[str, Verb]] = []
    for index, conductor in enumerate(arena.take_turns(WORKERS - 8)):
        instance = instances[index % 8]
        verbs.append(
            (
                ("bind", partial(conductor.bind, [arq], provider(dice), instance)),
                ("unbind", partial(conductor.unbind, [arq])),
                ("delete_of", partial(conductor.delete_of, instance)),
            )[index // 8]
        )
    verbs += [("delete", partial(one.delete, [arq])) for one in arena.take_turns(8)]
    dice.shuffle(verbs)
    outcomes = arena.outcomes([verb for _, verb in verbs])
    seen = Counter((name, outcome) for (name, _), outcome in zip(verbs, outcomes, strict=True))
    gone, moved, done = exception.NotFound, exception.BadState, None
    allowed: dict[str, set[Outcome]] = {
        "bind": {done, moved, gone},
        "unbind": {done, gone},
        "delete": {done, gone},
        "delete_of": {done},
    }
    assert all(outcome in allowed[name] for name, outcome in seen)
    # By uuid it is deleted once, unless its instance was deleted first.
    assert seen["delete", done] <= 1
    holds(arena.first, {})
    assert arena.first.count(Arq) == 0
    assert arena.first.count(AttachHandle, UNIT != "free") == 0


def test_concurrent_binds_of_the_last_units(arena: Arena, dice: Random) -> None:
    """Bodies of several ARQs: each has all its units or none, and none is left that one fits."""
    place, size, free = provider(dice), dice.randint(1, 3), dice.randint(1, UNITS)
    bound = {}
    if free < UNITS:
        (taken,) = arena.first.request(1, UNITS - free)
        bound = {str(uuid4()): taken}
        arena.first.bind(taken, place, *bound)
    bodies = {str(uuid4()): arqs for arqs in arena.first.request(WORKERS, size)}
    outcomes = arena.outcomes(
        [
            partial(conductor.bind, arqs, place, instance)
            for conductor, (instance, arqs) in zip(
                arena.take_turns(WORKERS), bodies.items(), strict=True
            )
        ]
    )
    winners = free // size
    wanted = {None: winners, exception.NoFreeHandle: WORKERS - winners}
    assert Counter(outcomes) == Counter({one: count for one, count in wanted.items() if count})
    holds(arena.first, bound | _won(bodies, outcomes))


def test_concurrent_binds_across_several_providers(arena: Arena, dice: Random) -> None:
    """Every body wants one unit of each of three providers, named in any order."""
    places = [provider_of(HOST, index) for index in range(DEVICES)]
    bodies = {str(uuid4()): arqs for arqs in arena.first.request(WORKERS, 3)}
    verbs = []
    for conductor, (instance, arqs) in zip(arena.take_turns(WORKERS), bodies.items(), strict=True):
        chosen = dice.sample(places, 3)
        binds = [
            Binding(arq, "compute", place, instance)
            for arq, place in zip(arqs, chosen, strict=True)
        ]
        verbs.append(partial(bind.patch, conductor.ctx, PatchArqs(NOVA, str(uuid4()), binds, [])))
    outcomes = arena.outcomes(verbs)
    assert set(outcomes) == {None, exception.NoFreeHandle}
    assert outcomes.count(None) in (5, 6)
    holds(arena.first, _won(bodies, outcomes))


def test_concurrent_binds_for_one_instance(arena: Arena, dice: Random, seed: int) -> None:
    """Clients that bind different requests for the same instance, new or known from before."""
    instance, bodies = str(uuid4()), arena.first.request(WORKERS, 2)
    if seed % 2:
        ((first,),) = arena.first.request(1)
        arena.first.bind([first], provider(dice), instance)
        arena.first.delete_of(instance)
    outcomes = arena.outcomes(
        [
            partial(conductor.bind, arqs, provider(dice), instance)
            for conductor, arqs in zip(arena.take_turns(WORKERS), bodies, strict=True)
        ]
    )
    assert Counter(outcomes) == {None: 1, exception.InstanceAlreadyBound: WORKERS - 1}
    holds(arena.first, {instance: bodies[outcomes.index(None)]})


def test_concurrent_repeats_of_one_request(arena: Arena, dice: Random) -> None:
    """What the API repeats reaches another conductor while the first is still at it."""
    birth, request_key, place, instance = str(uuid4()), str(uuid4()), provider(dice), str(uuid4())
    profile = arena.first.profile_of(3)
    made = at_once([partial(one.create, profile, birth) for one in arena.take_turns(WORKERS)])
    assert len({tuple(one) for one in made}) == 1
    assert arena.first.count(Arq) == 3
    arqs, workers = made[0], arena.take_turns(WORKERS)
    again = [partial(one.bind, arqs, place, instance, request_key=request_key) for one in workers]
    assert set(arena.outcomes(again)) == {None}
    holds(arena.first, {instance: arqs})
    off = str(uuid4())
    verbs = [partial(one.unbind, arqs, request_key=off) for one in workers]
    assert set(arena.outcomes(verbs)) == {None}
    holds(arena.first, {})
    gone = str(uuid4())
    assert set(
        arena.outcomes([partial(one.delete, arqs, request_key=gone) for one in workers])
    ) == {None}
    assert arena.first.count(Arq) == 0


def test_concurrent_binds_and_releases(arena: Arena, dice: Random, seed: int) -> None:
    """Eight servers boot while three others each have what they hold taken away."""
    way = ("instance", "arqs", "unbind")[seed % 3]
    bodies = {str(uuid4()): arqs for arqs in arena.first.request(8, 2)}
    verbs: list[tuple[str, Verb]] = []
    for index, (instance, arqs) in enumerate(bodies.items()):
        first, *others = arena.take_turns(index % 2 + 4)[-4:]
        place = provider_of(HOST, index % DEVICES)
        ways = {
            "instance": [partial(one.delete_of, instance) for one in others],
            "arqs": [partial(one.delete, arqs) for one in others],
            "unbind": [partial(one.unbind, arqs) for one in others],
        }
        verbs.append((instance, partial(first.bind, arqs, place, instance)))
        verbs += [("", one) for one in ways[way]]
    dice.shuffle(verbs)
    outcomes = arena.outcomes([verb for _, verb in verbs])
    binds = {name: one for (name, _), one in zip(verbs, outcomes, strict=True) if name}
    rest = {one for (name, _), one in zip(verbs, outcomes, strict=True) if not name}
    gone = {exception.NotFound} if way == "arqs" else set()
    assert set(binds.values()) <= {None} | gone
    assert rest <= {None} | gone
    bound = {
        instance: arqs
        for instance, arqs in bodies.items()
        if arena.first.count(Arq, Arq.instance_uuid == instance)
    }
    # Whatever is left is a whole bind that was carried out.
    assert all(binds[one] is None for one in bound)
    holds(arena.first, bound)
    if way == "arqs":
        assert not bound


def test_concurrent_evacuation_and_late_delete(arena: Arena, dice: Random) -> None:
    """Two delete what a third binds again: the new bind stands or is refused, as a whole."""
    verbs: list[Verb] = []
    servers = [(str(uuid4()), arena.first.request(2, 2)) for _ in range(4)]
    for index, (instance, (old, new)) in enumerate(servers):
        place = provider_of(HOST, index % 2)
        arena.first.bind(old, place, instance)
        first, second = arena.take_turns(2)
        verbs += [
            partial(first.bind, new, provider_of(HOST, 2 + index % 2), instance),
            partial(second.delete_of, instance),
            partial(first.delete, old),
        ]
    order = dice.sample(range(len(verbs)), len(verbs))
    answers = dict(zip(order, arena.outcomes([verbs[one] for one in order]), strict=True))
    bound = {}
    for index, (instance, (_, new)) in enumerate(servers):
        binding, whole, single = (answers[3 * index + step] for step in range(3))
        assert binding in (None, exception.InstanceAlreadyBound, exception.NoFreeHandle)
        assert whole is None
        assert single in (None, exception.NotFound)
        if arena.first.count(Arq, Arq.instance_uuid == instance):
            bound[instance] = new
            assert binding is None
    holds(arena.first, bound)


def test_boot_storm(arena: Arena, dice: Random) -> None:
    """Whole lives at once: created, bound, then unbound or deleted; all is free in the end."""

    def lifecycle(conductor: Conductor, ending: str) -> Outcome:
        arqs, instance = conductor.create(profile), str(uuid4())
        (outcome,) = arena.outcomes([partial(conductor.bind, arqs, place, instance)])
        {
            "delete_of": partial(conductor.delete_of, instance),
            "unbind": partial(conductor.unbind, arqs),
            "delete": partial(conductor.delete, arqs),
        }[ending]()
        conductor.delete_of(instance)
        return outcome

    profile, place = arena.first.profile_of(2), provider(dice)
    lifecycles = [
        partial(lifecycle, one, dice.choice(("delete_of", "unbind", "delete")))
        for one in arena.take_turns(WORKERS)
    ]
    outcomes = at_once(lifecycles)
    assert set(outcomes) <= {None, exception.NoFreeHandle}
    # A bind finds too few units only where others have them.
    assert outcomes.count(None) >= UNITS // 2
    holds(arena.first, {})
    assert arena.first.count(AttachHandle, UNIT != "free") == 0


def _won(bodies: dict[str, list[str]], outcomes: list[Outcome]) -> dict[str, list[str]]:
    pairs = zip(bodies.items(), outcomes, strict=True)
    return {instance: arqs for (instance, arqs), outcome in pairs if outcome is None}
