# SPDX-License-Identifier: Apache-2.0
"""Clients that create ARQs while their device profile becomes private, or public again."""

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from uuid import uuid4

import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.arqs import create, device_profiles
from cyborg.conductor.context import Conductor
from cyborg.db.models import Arq
from cyborg.model.caller import Caller
from cyborg.model.device_profile import DeviceProfile, ProfileChange
from cyborg.rpc.verbs import CreateArqs, CreateDeviceProfile, UpdateDeviceProfile
from cyborg.tests.fixtures.contexts import changed
from cyborg.tests.fixtures.host_reports import RESOURCE_CLASS
from cyborg.tests.fixtures.use_cases import NOVA
from cyborg.tests.fixtures.waiting import acquired
from cyborg.tests.functional.races.arena import WORKERS, Arena, at_once

#: More than any client creates before it is refused.
_MANY = 10_000


def arqs_of(arena: Arena, project: str | None) -> set[str]:
    """Return the uuids of a project's ARQs."""
    with arena.db.reader() as tx:
        return set(tx.execute(sa.select(Arq.uuid).where(Arq.project_id == project)).scalars())


def new_profile(arena: Arena, projects: tuple[str, ...] | None = None) -> str:
    group = {f"resources:{RESOURCE_CLASS}": "1"}
    profile = DeviceProfile(str(uuid4()), f"p-{uuid4()}", (group,), projects=projects)
    device_profiles.create(arena.first.ctx, CreateDeviceProfile(NOVA, str(uuid4()), profile))
    return profile.name


def caller_of(project: str) -> Caller:
    """Return the user of a project, for whom Nova asks."""
    return replace(NOVA, project_id=project, all_projects=False)


def test_no_arq_of_another_project_is_created_once_a_profile_is_private(
    arena: Arena, dice: Random
) -> None:
    own, foreign = (caller_of(f"{name}-{uuid4().hex[:8]}") for name in ("own", "foreign"))
    profile = new_profile(arena)
    created, answered = threading.Semaphore(0), threading.Event()
    existing: set[str] = set()

    def create_all(ctx: Conductor, caller: Caller) -> list[bool]:
        """Create ARQs until refused; return for each whether the change was answered before."""
        late: list[bool] = []
        while not (late and late[-1]):
            began_late = answered.is_set()
            try:
                create.create(ctx, CreateArqs(caller, str(uuid4()), profile))
            except exception.NotFound:
                break
            created.release()
            late.append(began_late)
        return late

    def change() -> list[bool]:
        for _ in range(dice.randint(0, 2 * WORKERS)):
            acquired(created, "an ARQ of a creator")
        request = ProfileChange(projects=(str(own.project_id),), sets_projects=True)
        made_private = device_profiles.update(
            dice.choice(arena.conductors).ctx,
            UpdateDeviceProfile(NOVA, str(uuid4()), profile, request),
        )
        existing.update(arqs_of(arena, foreign.project_id))
        answered.set()
        assert made_private.projects == (own.project_id,)
        return []

    contexts = [
        changed(conductor.ctx, max_arqs_per_request=8, max_unbound_arqs=_MANY)
        for conductor in arena.take_turns(WORKERS)
    ]
    verbs: list[Callable[[], list[bool]]] = [change]
    verbs += [
        partial(create_all, ctx, own if index % 8 == 0 else foreign)
        for index, ctx in enumerate(contexts)
    ]
    late = at_once(verbs)[1:]
    for index, answers in enumerate(late):
        if index % 8 == 0:
            # The project of the profile is never refused.
            assert answers[-1]
        else:
            assert not any(answers)
    assert arqs_of(arena, foreign.project_id) == existing
    made = sum(len(answers) for index, answers in enumerate(late) if index % 8)
    assert len(existing) == made


def test_concurrent_changes_leave_the_projects_of_one_of_them(arena: Arena, dice: Random) -> None:
    profile = new_profile(arena, ("first",))
    changes = [
        None if dice.random() < 0.2 else tuple(sorted({f"p{dice.randint(0, 9)}" for _ in range(4)}))
        for _ in range(WORKERS)
    ]
    outcomes = arena.outcomes(
        [
            partial(
                device_profiles.update,
                conductor.ctx,
                UpdateDeviceProfile(
                    *(NOVA, str(uuid4()), profile),
                    ProfileChange(projects=projects, sets_projects=True),
                ),
            )
            for conductor, projects in zip(arena.take_turns(WORKERS), changes, strict=True)
        ]
    )
    assert set(outcomes) == {None}
    final = device_profiles.update(
        arena.first.ctx,
        UpdateDeviceProfile(NOVA, str(uuid4()), profile, ProfileChange(name=profile)),
    )
    assert final.projects in changes
