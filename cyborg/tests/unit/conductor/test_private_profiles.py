# SPDX-License-Identifier: Apache-2.0
"""Private device profiles in the use cases: who gets ARQs, and what happens during a creation."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.arqs.create import ArqCreator
from cyborg.conductor.arqs.device_profiles import Profiles
from cyborg.conductor.arqs.quotas import NO_QUOTAS, Check, Quotas
from cyborg.db.engine import Database
from cyborg.db.models import Arq, Event
from cyborg.model.caller import Caller
from cyborg.model.device_profile import DeviceProfile, ProfileChange

R = TypeVar("R")
OWN = Caller("own", "user", "req-1")
OTHER = Caller("other", "user", "req-2")
NOBODY = Caller(None, "user", "req-3")
ADMIN = Caller("admins", "admin", "req-4", all_projects=True)
PRIVATE = ProfileChange(projects=("own",), sets_projects=True)


@dataclass(frozen=True)
class Meanwhile(Quotas):
    """Runs the use case after ``event``, which happens once the profile has been read.

    ``before`` True: the transaction is carried out before as well, and its answer is lost.
    """

    event: Callable[[], object] = lambda: None
    before: bool = False

    def run(self, use_case: Callable[[Check], R], *, required: bool) -> R:
        """See the parent."""
        if self.before:
            super().run(use_case, required=required)
        self.event()
        return super().run(use_case, required=required)


@pytest.fixture
def profiles(db: Database) -> Profiles:
    return Profiles(db=db)


def create(db: Database, caller: Caller, key: str = "", quotas: Quotas = NO_QUOTAS) -> list[str]:
    """Create the ARQs of the profile "gpu", and return their uuids."""
    creator = ArqCreator(db=db, max_per_request=8, max_unbound=50, quotas=quotas)
    return [arq.uuid for arq in creator.create(caller, key or str(uuid4()), "gpu")]


def store(profiles: Profiles, projects: tuple[str, ...] | None = None) -> DeviceProfile:
    groups = ({"resources:FPGA": "2"},)
    return profiles.create(
        ADMIN, str(uuid4()), DeviceProfile(str(uuid4()), "gpu", groups, projects=projects)
    )


def stored(db: Database) -> list[tuple[str, str | None]]:
    """Return (uuid, project) of all ARQs."""
    with db.reader() as tx:
        rows = tx.execute(sa.select(Arq.uuid, Arq.project_id).order_by(Arq.id))
        return [(row.uuid, row.project_id) for row in rows]


@pytest.mark.parametrize("caller", [OTHER, NOBODY])
def test_project_without_access_gets_no_arqs(
    db: Database, profiles: Profiles, caller: Caller
) -> None:
    store(profiles, ("own",))
    with pytest.raises(exception.NotFound) as refused:
        create(db, caller)
    assert str(refused.value) == str(exception.NotFound(noun="Device profile", key="gpu"))
    assert stored(db) == []


@pytest.mark.parametrize("caller", [OWN, ADMIN])
def test_project_with_access_and_administrators_get_arqs(
    db: Database, profiles: Profiles, caller: Caller
) -> None:
    store(profiles, ("own", "third"))
    uuids = create(db, caller)
    assert stored(db) == [(uuid, caller.project_id) for uuid in uuids]


@pytest.mark.parametrize("caller", [OTHER, NOBODY])
def test_profile_that_becomes_private_after_it_was_read_gives_no_arqs(
    db: Database, profiles: Profiles, caller: Caller
) -> None:
    store(profiles)
    quotas = Meanwhile(event=lambda: profiles.update(ADMIN, str(uuid4()), "gpu", PRIVATE))
    with pytest.raises(exception.NotFound, match="gpu"):
        create(db, caller, quotas=quotas)
    assert stored(db) == []
    assert len(create(db, OWN, quotas=quotas)) == 2


def test_profile_that_is_deleted_after_it_was_read_is_not_found(
    db: Database, profiles: Profiles
) -> None:
    store(profiles)
    quotas = Meanwhile(event=lambda: profiles.delete(ADMIN, str(uuid4()), ["gpu"]))
    for caller in (OWN, ADMIN):
        with pytest.raises(exception.NotFound, match="gpu"):
            create(db, caller, quotas=quotas)
        store(profiles)
    assert stored(db) == []


def test_repeated_creation_returns_its_arqs_although_the_profile_is_private_now(
    db: Database, profiles: Profiles
) -> None:
    store(profiles)
    key = str(uuid4())
    uuids = create(db, OTHER, key)
    profiles.update(ADMIN, str(uuid4()), "gpu", PRIVATE)
    assert create(db, OTHER, key) == uuids
    with pytest.raises(exception.NotFound):
        create(db, OTHER)
    assert [uuid for uuid, _ in stored(db)] == uuids


def test_creation_whose_answer_was_lost_returns_its_arqs(db: Database, profiles: Profiles) -> None:
    store(profiles)
    quotas = Meanwhile(
        event=lambda: profiles.update(ADMIN, str(uuid4()), "gpu", PRIVATE), before=True
    )
    uuids = create(db, OTHER, quotas=quotas)
    assert [uuid for uuid, _ in stored(db)] == uuids


def test_caller_of_one_project_changes_and_deletes_only_what_it_sees(
    db: Database, profiles: Profiles
) -> None:
    """A policy file may let managers of projects change profiles."""
    profile = store(profiles, ("own",))
    for key in ("gpu", profile.uuid):
        with pytest.raises(exception.NotFound):
            profiles.update(OTHER, str(uuid4()), key, ProfileChange(name="mine"))
        with pytest.raises(exception.NotFound):
            profiles.delete(OTHER, str(uuid4()), [key])
    away = ProfileChange(projects=("third",), sets_projects=True)
    key = str(uuid4())
    changed = profiles.update(OWN, key, "gpu", away)
    assert changed.projects == ("third",)
    assert profiles.update(OWN, key, "gpu", away) == changed
    with pytest.raises(exception.NotFound):
        profiles.delete(OWN, str(uuid4()), ["gpu"])
    profiles.delete(ADMIN, str(uuid4()), ["gpu"])


def test_history_says_who_may_use_a_profile(db: Database, profiles: Profiles) -> None:
    store(profiles)
    for change in (
        PRIVATE,
        ProfileChange(name="gpu"),
        ProfileChange(projects=("a", "b"), sets_projects=True),
        ProfileChange(sets_projects=True),
    ):
        profiles.update(ADMIN, str(uuid4()), "gpu", change)
    profiles.delete(ADMIN, str(uuid4()), ["gpu"])
    store(profiles, ("a", "b", "c"))
    with db.reader() as tx:
        rows = tx.execute(
            sa.select(Event.action, Event.reason)
            .where(Event.noun == "device_profile")
            .order_by(Event.id)
        ).all()
    assert [(row.action, row.reason) for row in rows] == [
        ("created", None),
        ("updated", "private, projects: 1"),
        ("updated", None),
        ("updated", "private, projects: 2"),
        ("updated", "public"),
        ("deleted", None),
        ("created", "private, projects: 3"),
    ]
