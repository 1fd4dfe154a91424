# SPDX-License-Identifier: Apache-2.0
"""Clients against a limit: together they get what it allows, and never more."""

from collections import Counter
from dataclasses import replace
from functools import partial
from random import Random
from uuid import uuid4

import pytest

from cyborg import exception
from cyborg.conductor.arqs import bind, create
from cyborg.conductor.context import Conductor
from cyborg.db.models import Arq
from cyborg.db.projects import REQUESTS, of_class
from cyborg.model.arq import Binding
from cyborg.model.caller import Caller
from cyborg.rpc.verbs import CreateArqs, PatchArqs
from cyborg.tests.fixtures.contexts import changed
from cyborg.tests.fixtures.fixed_limits import FixedLimits
from cyborg.tests.fixtures.host_reports import RESOURCE_CLASS, provider_of
from cyborg.tests.fixtures.use_cases import NOVA
from cyborg.tests.functional.races.arena import WORKERS, Arena, at_once
from cyborg.tests.functional.races.conftest import DEVICES, HOST, UNITS

LIMIT = 50


def with_quotas(arena: Arena, limits: FixedLimits) -> list[Conductor]:
    """Return the context of each worker, with quotas."""
    return [replace(conductor.ctx, limits=limits) for conductor in arena.take_turns(WORKERS)]


def contexts(arena: Arena, *, unbound: int = LIMIT) -> list[Conductor]:
    """Return a context for each worker, of the two conductors alternately."""
    return [
        changed(conductor.ctx, max_arqs_per_request=8, max_unbound_arqs=unbound)
        for conductor in arena.take_turns(WORKERS)
    ]


def test_concurrent_creations_stop_at_the_limit_of_the_project(arena: Arena, dice: Random) -> None:
    """The project has no row to lock yet."""
    project = f"project-{uuid4()}"
    other = f"project-{uuid4()}"
    sizes = [dice.randint(1, 8) for _ in range(WORKERS)]
    profiles = [arena.first.profile_of(size) for size in sizes]
    outcomes = arena.outcomes(
        [
            partial(
                create.create,
                ctx,
                CreateArqs(replace(NOVA, project_id=project), str(uuid4()), profile),
            )
            for ctx, profile in zip(contexts(arena), profiles, strict=True)
        ]
    )
    created = sum(size for size, outcome in zip(sizes, outcomes, strict=True) if outcome is None)
    assert set(outcomes) <= {None, exception.OverLimit}
    assert created == arena.first.count(Arq, Arq.project_id == project)
    assert created <= LIMIT
    refused = [size for size, outcome in zip(sizes, outcomes, strict=True) if outcome]
    assert all(created + size > LIMIT for size in refused) or sum(sizes) <= LIMIT
    # Another project has a limit of its own.
    create.create(
        contexts(arena)[0],
        CreateArqs(replace(NOVA, project_id=other), str(uuid4()), arena.first.profile_of(8)),
    )
    assert arena.first.count(Arq, Arq.project_id == other) == 8


def test_repeated_creation_at_the_limit_returns_its_own_arqs(arena: Arena, dice: Random) -> None:
    caller = replace(NOVA, project_id=f"project-{uuid4()}")
    profile, request_key = arena.first.profile_of(8), str(uuid4())
    made = at_once(
        [
            partial(create.create, ctx, CreateArqs(caller, request_key, profile))
            for ctx in contexts(arena, unbound=8)
        ]
    )
    assert Counter(tuple(arq.uuid for arq in arqs) for arqs in made).keys() == {
        tuple(arq.uuid for arq in made[0])
    }
    assert arena.first.count(Arq, Arq.project_id == caller.project_id) == 8


def test_request_for_too_many_arqs_names_the_limit(arena: Arena) -> None:
    caller = replace(NOVA, project_id=f"project-{uuid4()}")
    with pytest.raises(exception.OverLimit, match=r"needs 9 .* the limit is 8"):
        create.create(
            contexts(arena)[0], CreateArqs(caller, str(uuid4()), arena.first.profile_of(9))
        )
    ctx = contexts(arena, unbound=10)[0]
    create.create(ctx, CreateArqs(caller, str(uuid4()), arena.first.profile_of(8)))
    with pytest.raises(exception.OverLimit, match=r"needs 3 .* limit is 10 and 8 are in use"):
        create.create(ctx, CreateArqs(caller, str(uuid4()), arena.first.profile_of(3)))
    create.create(ctx, CreateArqs(caller, str(uuid4()), arena.first.profile_of(2)))
    assert arena.first.count(Arq, Arq.project_id == caller.project_id) == 10


FPGA = of_class(RESOURCE_CLASS)


def new_project() -> Caller:
    """Return Nova, acting for a project that has nothing."""
    return replace(NOVA, project_id=f"project-{uuid4()}")


def test_concurrent_creations_stay_within_the_quota(arena: Arena, dice: Random) -> None:
    caller, limit = new_project(), 20
    sizes = [dice.randint(1, 4) for _ in range(WORKERS)]
    contexts = with_quotas(arena, FixedLimits({REQUESTS: limit}))
    outcomes = arena.outcomes(
        [
            partial(
                create.create, ctx, CreateArqs(caller, str(uuid4()), arena.first.profile_of(size))
            )
            for ctx, size in zip(contexts, sizes, strict=True)
        ]
    )
    created = sum(size for size, outcome in zip(sizes, outcomes, strict=True) if outcome is None)
    assert set(outcomes) == {None, exception.OverLimit}
    assert limit - 4 < created <= limit
    assert arena.first.count(Arq, Arq.project_id == caller.project_id) == created


def test_concurrent_binds_stay_within_the_quota_of_the_class(arena: Arena, dice: Random) -> None:
    caller, limit = new_project(), 7
    arqs = create.create(
        arena.first.ctx, CreateArqs(caller, str(uuid4()), arena.first.profile_of(16))
    )
    places = [provider_of(HOST, index % DEVICES) for index in range(16)]
    assert DEVICES * UNITS >= 16
    dice.shuffle(places)
    contexts = with_quotas(arena, FixedLimits({FPGA: limit}))
    outcomes = arena.outcomes(
        [
            partial(
                bind.patch,
                ctx,
                PatchArqs(caller, str(uuid4()), [Binding(arq.uuid, HOST, place, str(uuid4()))], []),
            )
            for ctx, arq, place in zip(contexts, arqs, places, strict=False)
        ]
    )
    assert Counter(outcomes) == {None: limit, exception.OverLimit: 16 - limit}
    held = arena.first.count(
        Arq, Arq.project_id == caller.project_id, Arq.deployable_id.is_not(None)
    )
    assert held == limit


def test_refusal_names_resource_limit_and_usage(arena: Arena) -> None:
    caller = new_project()
    ctx = with_quotas(arena, FixedLimits({REQUESTS: 3, FPGA: 1}))[0]
    made = create.create(ctx, CreateArqs(caller, str(uuid4()), arena.first.profile_of(2)))
    with pytest.raises(exception.OverLimit) as refused:
        create.create(ctx, CreateArqs(caller, str(uuid4()), arena.first.profile_of(2)))
    assert str(refused.value).startswith(
        f"The request needs 2 accelerator_requests of project {caller.project_id}, but the limit "
        "is 3 and 2 are in use. "
    )
    bindings = [Binding(arq.uuid, HOST, provider_of(HOST, 0), str(uuid4())) for arq in made]
    with pytest.raises(exception.OverLimit, match=r"2 class:FPGA of .* limit is 1 and 0 are"):
        bind.patch(ctx, PatchArqs(caller, str(uuid4()), bindings, []))
    bind.patch(ctx, PatchArqs(caller, str(uuid4()), bindings[:1], []))
    with pytest.raises(exception.OverLimit, match=r"1 class:FPGA of .* limit is 1 and 1 are"):
        bind.patch(ctx, PatchArqs(caller, str(uuid4()), bindings[1:], []))


def test_resource_without_a_registered_limit_has_the_limit_0(arena: Arena) -> None:
    ctx = with_quotas(arena, FixedLimits({}))[0]
    with pytest.raises(exception.OverLimit, match="the limit is 0 and 0 are in use"):
        create.create(ctx, CreateArqs(new_project(), str(uuid4()), arena.first.profile_of(1)))


def test_resource_with_limit_minus_1_has_no_limit(arena: Arena) -> None:
    ctx = with_quotas(arena, FixedLimits({REQUESTS: -1}))[0]
    assert (
        len(create.create(ctx, CreateArqs(new_project(), str(uuid4()), arena.first.profile_of(8))))
        == 8
    )


def test_without_keystone_nothing_is_created_and_what_exists_can_be_bound(arena: Arena) -> None:
    caller = new_project()
    fault = exception.Unavailable(peer="Keystone", reason="it is down")
    (arq,) = create.create(
        arena.first.ctx, CreateArqs(caller, str(uuid4()), arena.first.profile_of(1))
    )
    ctx = with_quotas(arena, FixedLimits({}, fault))[0]
    with pytest.raises(exception.Unavailable, match="it is down"):
        create.create(ctx, CreateArqs(caller, str(uuid4()), arena.first.profile_of(1)))
    assert arena.first.count(Arq, Arq.project_id == caller.project_id) == 1
    bind.patch(
        ctx,
        PatchArqs(
            caller, str(uuid4()), [Binding(arq.uuid, HOST, provider_of(HOST, 0), str(uuid4()))], []
        ),
    )
