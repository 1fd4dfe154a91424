# SPDX-License-Identifier: Apache-2.0
"""Which device profiles a project reaches in SQL, and how many statements a list takes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg.db import device_profiles, schema
from cyborg.db.engine import Database
from cyborg.db.listing import Page
from cyborg.db.models import Event, ProfileProject
from cyborg.db.transaction import Transaction
from cyborg.model.caller import Caller
from cyborg.model.device_profile import DeviceProfile, ProfileChange
from cyborg.model.scope import EVERYWHERE, Scope

#: Name of a profile → its projects.
PROFILES = {
    "public": None,
    "of-a": ("a",),
    "of-b": ("b",),
    "of-both": ("a", "b"),
    "of-c": ("c",),
    "later": None,
}
A = Scope.of_project("a")
CALLER = Caller("a", "user", "req-1")
ADMIN = Caller("a", "user", "req-1", all_projects=True)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path}/cyborg.sqlite")
    schema.upgrade(database)
    with database.writer() as tx:
        for name, projects in PROFILES.items():
            profile = DeviceProfile(f"uuid-{name}", name, ({"resources:FPGA": "1"},))
            device_profiles.insert(tx, DeviceProfile(**{**vars(profile), "projects": projects}))
    yield database
    database.close()


@contextmanager
def statements(tx: Transaction) -> Iterator[list[Any]]:
    """Collect what is executed in the block."""
    seen: list[Any] = []

    def note(_tx: Any, statement: Any, *_rest: Any) -> None:
        seen.append(statement)

    sa.event.listen(tx.connection, "before_execute", note)
    try:
        yield seen
    finally:
        sa.event.remove(tx.connection, "before_execute", note)


def id_of(db: Database, name: str) -> int:
    with db.writer() as tx:
        (row,) = device_profiles.lock(tx, [name], ADMIN)
        return int(row.id)


def named(db: Database) -> Sequence[tuple[int, str]]:
    with db.reader() as tx:
        query = sa.select(ProfileProject.device_profile_id, ProfileProject.project_id)
        return [(row[0], row[1]) for row in tx.execute(query.order_by(*query.selected_columns))]


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        (EVERYWHERE, PROFILES),
        (A, {"public": None, "of-a": ("a",), "of-both": ("a",), "later": None}),
        (Scope.of_project("d"), {"public": None, "later": None}),
        (Scope.of_project(None), {"public": None, "later": None}),
        (Scope.of_project("d", shows_hosts=True, unheld=True), {"public": None, "later": None}),
    ],
)
def test_scope_decides_which_profiles_and_projects_are_read(
    db: Database, scope: Scope, expected: dict[str, Any]
) -> None:
    with db.reader() as tx:
        rows = device_profiles.page(tx, Page(), scope)
        assert {row.name: row.projects for row in rows} == expected
        some = device_profiles.page(tx, Page(), scope, list(PROFILES)[1:4])
        assert {row.name for row in some} == expected.keys() & set(list(PROFILES)[1:4])
        for name in PROFILES:
            for key in (name, f"uuid-{name}"):
                shown = device_profiles.show(tx, key, key, scope)
                assert (shown is not None) == (name in expected)
                assert shown is None or shown.projects == expected[name]


def test_pages_are_full_although_other_projects_have_profiles(db: Database) -> None:
    with db.reader() as tx:
        first = device_profiles.page(tx, Page(limit=2), A)
        assert [row.name for row in first] == ["public", "of-a"]
        rest = device_profiles.page(tx, Page(limit=2, marker=first[-1].uuid), A)
        assert [row.name for row in rest] == ["of-both", "later"]


@pytest.mark.parametrize("scope", [EVERYWHERE, A])
def test_list_takes_two_statements_however_many_profiles_are_private(
    db: Database, scope: Scope
) -> None:
    with db.writer() as tx:
        for number in range(30):
            profile = DeviceProfile(f"uuid-{number}", f"n-{number}", ({"resources:FPGA": "1"},))
            projects = ("a", *(f"p{other}" for other in range(number)))
            device_profiles.insert(tx, DeviceProfile(**{**vars(profile), "projects": projects}))
    with db.reader() as tx, statements(tx) as seen:
        assert len(device_profiles.page(tx, Page(), scope)) >= 34
    assert len(seen) == 2


def test_public_profiles_take_one_statement(db: Database) -> None:
    with db.reader() as tx, statements(tx) as seen:
        device_profiles.page(tx, Page(), EVERYWHERE, ["public", "later"])
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("name", "caller", "reached"),
    [
        ("public", CALLER, True),
        ("of-a", CALLER, True),
        ("of-b", CALLER, False),
        ("of-b", ADMIN, True),
        ("public", Caller(None, "user", "req-1"), True),
        ("of-a", Caller(None, "user", "req-1"), False),
    ],
)
def test_caller_locks_and_uses_only_profiles_that_it_reaches(
    db: Database, name: str, caller: Caller, reached: bool
) -> None:
    with db.writer() as tx:
        keys = [name, f"uuid-{name}"]
        assert [row.name for row in device_profiles.lock(tx, keys, caller)] == [name] * reached
        groups = device_profiles.groups(tx, name, "key", caller)
        assert (groups is not None) == reached
        tx.execute(
            sa.insert(Event).values(
                at_ms=1, noun="arq", subject_uuid="x", action="Initial", operation_id="key"
            )
        )
        repeated = device_profiles.groups(tx, name, "key", caller)
        assert repeated is not None
        assert repeated.repeated


def test_profile_is_usable_while_it_exists_and_names_the_project(db: Database) -> None:
    ids = {name: id_of(db, name) for name in PROFILES}
    with db.writer() as tx:
        usable = {
            project: {
                name for name, id_ in ids.items() if device_profiles.is_usable(tx, id_, project)
            }
            for project in ("a", "d", "", None)
        }
        device_profiles.remove(tx, [ids["public"]])
        assert not device_profiles.is_usable(tx, ids["public"], None)
    public = {"public", "later"}
    assert usable == {"a": {*public, "of-a", "of-both"}, "d": public, "": public, None: {*PROFILES}}


def test_change_replaces_the_projects(db: Database) -> None:
    id_ = id_of(db, "of-both")
    others = [row for row in named(db) if row[0] != id_]
    changes: list[tuple[ProfileChange, tuple[str, ...] | None]] = [
        (ProfileChange(name="renamed"), ("a", "b")),
        (ProfileChange(projects=("b", "c"), sets_projects=True), ("b", "c")),
        (ProfileChange(projects=("b", "c"), sets_projects=True), ("b", "c")),
        (ProfileChange(sets_projects=True), None),
        (ProfileChange(projects=("a",), sets_projects=True), ("a",)),
    ]
    for change, expected in changes:
        with db.writer() as tx:
            device_profiles.change(tx, id_, change)
            shown = device_profiles.show(tx, None, "renamed", EVERYWHERE)
            assert shown is not None
            assert shown.projects == expected
        assert named(db) == sorted([*others, *((id_, project) for project in expected or ())])


def test_projects_are_deleted_with_their_profile(db: Database) -> None:
    """Also by a process of an older release, which does not know the table."""
    id_ = id_of(db, "of-both")
    with db.writer() as tx:
        device_profiles.remove(tx, [id_])
    assert id_ not in {row[0] for row in named(db)}
    assert len(named(db)) == 3
