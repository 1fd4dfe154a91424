# SPDX-License-Identifier: Apache-2.0
"""Private device profiles in the use cases: who gets ARQs, and what happens during a creation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.arqs import device_profiles
from cyborg.conductor.arqs.create import create as create_arqs
from cyborg.conductor.context import Conductor
from cyborg.db.engine import Database
from cyborg.db.models import Arq, Event
from cyborg.db.transaction import Transaction
from cyborg.model.caller import Caller
from cyborg.model.device_profile import DeviceProfile, ProfileChange
from cyborg.rpc.verbs import (
    CreateArqs,
    CreateDeviceProfile,
    DeleteDeviceProfiles,
    UpdateDeviceProfile,
)
from cyborg.tests.fixtures.contexts import context

R = TypeVar("R")
OWN = Caller("own", "user", "req-1")
OTHER = Caller("other", "user", "req-2")
NOBODY = Caller(None, "user", "req-3")
ADMIN = Caller("admins", "admin", "req-4", all_projects=True)
PRIVATE = ProfileChange(projects=("own",), sets_projects=True)


class Meanwhile(Database):
    """The database of ``db``; ``event`` happens before each transaction, after the reads."""

    def __init__(self, db: Database, event: Callable[[], object]) -> None:
        super().__init__(db.engine.url.render_as_string(hide_password=False))
        self._event = event

    @contextmanager
    def writer(
        self, caller: Caller | None = None, request_key: str | None = None
    ) -> Iterator[Transaction]:
        """See the parent."""
        self._event()
        with super().writer(caller, request_key) as tx:
            yield tx


@pytest.fixture
def ctx(db: Database) -> Conductor:
    return context(db)


def create(db: Database, caller: Caller, key: str = "") -> list[str]:
    """Create the ARQs of the profile "gpu", and return their uuids."""
    request = CreateArqs(caller, key or str(uuid4()), "gpu")
    return [arq.uuid for arq in create_arqs(context(db), request)]


def store(ctx: Conductor, projects: tuple[str, ...] | None = None) -> DeviceProfile:
    groups = ({"resources:FPGA": "2"},)
    new = DeviceProfile(str(uuid4()), "gpu", groups, projects=projects)
    return device_profiles.create(ctx, CreateDeviceProfile(ADMIN, str(uuid4()), new))


def stored(db: Database) -> list[tuple[str, str | None]]:
    """Return (uuid, project) of all ARQs."""
    with db.reader() as tx:
        rows = tx.execute(sa.select(Arq.uuid, Arq.project_id).order_by(Arq.id))
        return [(row.uuid, row.project_id) for row in rows]


@pytest.mark.parametrize("caller", [OTHER, NOBODY])
def test_project_without_access_gets_no_arqs(db: Database, ctx: Conductor, caller: Caller) -> None:
    store(ctx, ("own",))
    with pytest.raises(exception.NotFound) as refused:
        create(db, caller)
    assert str(refused.value) == str(exception.NotFound(noun="Device profile", key="gpu"))
    assert stored(db) == []


@pytest.mark.parametrize("caller", [OWN, ADMIN])
def test_project_with_access_and_administrators_get_arqs(
    db: Database, ctx: Conductor, caller: Caller
) -> None:
    store(ctx, ("own", "third"))
    uuids = create(db, caller)
    assert stored(db) == [(uuid, caller.project_id) for uuid in uuids]


@pytest.mark.parametrize("caller", [OTHER, NOBODY])
def test_profile_that_becomes_private_after_it_was_read_gives_no_arqs(
    db: Database, ctx: Conductor, caller: Caller
) -> None:
    store(ctx)
    changing = Meanwhile(
        db,
        lambda: device_profiles.update(
            ctx, UpdateDeviceProfile(ADMIN, str(uuid4()), "gpu", PRIVATE)
        ),
    )
    with pytest.raises(exception.NotFound, match="gpu"):
        create(changing, caller)
    assert stored(db) == []
    assert len(create(changing, OWN)) == 2


def test_profile_that_is_deleted_after_it_was_read_is_not_found(
    db: Database, ctx: Conductor
) -> None:
    store(ctx)
    changing = Meanwhile(
        db, lambda: device_profiles.delete(ctx, DeleteDeviceProfiles(ADMIN, str(uuid4()), ["gpu"]))
    )
    for caller in (OWN, ADMIN):
        with pytest.raises(exception.NotFound, match="gpu"):
            create(changing, caller)
        store(ctx)
    assert stored(db) == []


def test_repeated_creation_returns_its_arqs_although_the_profile_is_private_now(
    db: Database, ctx: Conductor
) -> None:
    store(ctx)
    key = str(uuid4())
    uuids = create(db, OTHER, key)
    device_profiles.update(ctx, UpdateDeviceProfile(ADMIN, str(uuid4()), "gpu", PRIVATE))
    assert create(db, OTHER, key) == uuids
    with pytest.raises(exception.NotFound):
        create(db, OTHER)
    assert [uuid for uuid, _ in stored(db)] == uuids


def test_creation_whose_answer_was_lost_returns_its_arqs(db: Database, ctx: Conductor) -> None:
    store(ctx)
    key = str(uuid4())

    def answer_is_lost() -> None:
        create(db, OTHER, key)
        device_profiles.update(ctx, UpdateDeviceProfile(ADMIN, str(uuid4()), "gpu", PRIVATE))

    uuids = create(Meanwhile(db, answer_is_lost), OTHER, key)
    assert [uuid for uuid, _ in stored(db)] == uuids


def test_caller_of_one_project_changes_and_deletes_only_what_it_sees(
    db: Database, ctx: Conductor
) -> None:
    """A policy file may let managers of projects change profiles."""
    profile = store(ctx, ("own",))
    for key in ("gpu", profile.uuid):
        with pytest.raises(exception.NotFound):
            device_profiles.update(
                ctx, UpdateDeviceProfile(OTHER, str(uuid4()), key, ProfileChange(name="mine"))
            )
        with pytest.raises(exception.NotFound):
            device_profiles.delete(ctx, DeleteDeviceProfiles(OTHER, str(uuid4()), [key]))
    away = ProfileChange(projects=("third",), sets_projects=True)
    key = str(uuid4())
    changed = device_profiles.update(ctx, UpdateDeviceProfile(OWN, key, "gpu", away))
    assert changed.projects == ("third",)
    assert device_profiles.update(ctx, UpdateDeviceProfile(OWN, key, "gpu", away)) == changed
    with pytest.raises(exception.NotFound):
        device_profiles.delete(ctx, DeleteDeviceProfiles(OWN, str(uuid4()), ["gpu"]))
    device_profiles.delete(ctx, DeleteDeviceProfiles(ADMIN, str(uuid4()), ["gpu"]))


def test_history_says_who_may_use_a_profile(db: Database, ctx: Conductor) -> None:
    store(ctx)
    for change in (
        PRIVATE,
        ProfileChange(name="gpu"),
        ProfileChange(projects=("a", "b"), sets_projects=True),
        ProfileChange(sets_projects=True),
    ):
        device_profiles.update(ctx, UpdateDeviceProfile(ADMIN, str(uuid4()), "gpu", change))
    device_profiles.delete(ctx, DeleteDeviceProfiles(ADMIN, str(uuid4()), ["gpu"]))
    store(ctx, ("a", "b", "c"))
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
