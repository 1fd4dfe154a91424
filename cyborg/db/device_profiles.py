# SPDX-License-Identifier: Apache-2.0
"""Read, lock and change device profiles in SQL.

A project reaches the public profiles, and the private ones that name it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from cyborg.db import bulk, events, listing, models
from cyborg.db.models import Arq, ProfileProject
from cyborg.db.rows import Row, Shown, column, select, shown
from cyborg.db.transaction import Transaction
from cyborg.model.caller import Caller
from cyborg.model.device_profile import DeviceProfile, ProfileChange
from cyborg.model.scope import Scope


class _Profile(models.DeviceProfile, Shown):
    """A stored profile."""

    __abstract__ = True


class _Project(ProfileProject, Shown):
    """A project of a private profile."""

    __abstract__ = True


def _of_project(project_id: str) -> sa.ColumnElement[bool]:
    """Return the term: the project may use the profile."""
    named = sa.exists().where(
        ProfileProject.device_profile_id == models.DeviceProfile.id,
        ProfileProject.project_id == project_id,
    )
    return sa.or_(~models.DeviceProfile.private, named)


_VISIBLE = shown(_Profile, _of_project)
# A project learns of itself only.
_PROJECTS = shown(_Project, lambda project_id: ProfileProject.project_id == project_id)
SORTABLE = listing.sortable(models.DeviceProfile, "id", "uuid", "name", "created_at", "updated_at")


def show(tx: Transaction, uuid: str | None, name: str, scope: Scope) -> DeviceProfile | None:
    """Return the profile with this uuid, else the one with this name; None when there is none.

    Without ``uuid`` only the name counts.
    """
    key = sa.or_(models.DeviceProfile.name == name, models.DeviceProfile.uuid == uuid)
    matching = tx.all(_VISIBLE.where(key).within(scope))
    rows = sorted(matching, key=lambda row: row.uuid != uuid)
    return _profiles(tx, rows[:1], scope)[0] if rows else None


def page(
    tx: Transaction, page: listing.Page, scope: Scope, names: Sequence[str] | None = None
) -> list[DeviceProfile]:
    """Return a page of the profiles in the scope, or of those with these names."""
    query = listing.paged(tx, _VISIBLE.within(scope), SORTABLE, page)
    if names is not None:
        query = query.where(models.DeviceProfile.name.in_(names))
    return _profiles(tx, tx.all(query), scope)


@dataclass(frozen=True)
class NamedGroups:
    """The groups of a profile, with its names."""

    uuid: str
    name: str
    groups: tuple[dict[str, str], ...]


def every(tx: Transaction, scope: Scope) -> list[NamedGroups]:
    """Return the groups of all profiles in the scope, by name; in one statement."""
    rows = tx.all(_VISIBLE.within(scope).order_by(models.DeviceProfile.name))
    return [NamedGroups(row.uuid, row.name, _groups(row)) for row in rows]


@dataclass(frozen=True)
class ProfileGroups:
    """The groups of a profile; ``repeated`` is True when the operation has run before."""

    id: int
    name: str
    groups: tuple[dict[str, str], ...]
    repeated: bool


def groups(tx: Transaction, name: str, request_key: str, caller: Caller) -> ProfileGroups | None:
    """Return the groups of the profile with this name; None when the caller has none to use.

    An operation that has run before gets the groups even if the profile has become private since.
    """
    repeated = events.has_operation(request_key)
    terms = [sa.or_(repeated, term) for term in of_caller(caller)]
    row = tx.execute(
        sa.select(models.DeviceProfile.id, models.DeviceProfile.profile_json, repeated).where(
            models.DeviceProfile.name == name, *terms
        )
    ).one_or_none()
    if row is None:
        return None
    id_, profile_json, has_run = row
    return ProfileGroups(id_, name, tuple(json.loads(profile_json)["groups"]), bool(has_run))


def is_usable(tx: Transaction, id_: int, project_id: str | None) -> bool:
    """Return whether a profile exists and a project may use it; None: only whether it exists.

    That stays true until the end of the transaction: a change of the profile waits for it. This is
    the last lock before ARQs are inserted. PostgreSQL lets further users pass a change that waits,
    so the lock must be short, and comes after that of the project, which has one user at a time.
    """
    private = tx.execute(_SHARE, {"id": id_}).scalar_one_or_none()
    if private is None or not private or project_id is None:
        return private is not None
    # Another statement: it sees what was committed while the first one waited.
    return tx.execute(_NAMED, {"id": id_, "project_id": project_id}).first() is not None


def of_caller(caller: Caller) -> list[sa.ColumnElement[bool]]:
    """Return the WHERE terms of the scope that the API has determined for the caller."""
    return [] if caller.all_projects else [_of_project(caller.project_id or "")]


def uuid_of(tx: Transaction, name: str) -> str | None:
    """Return the uuid of the profile with this name; None when there is none."""
    return tx.execute(
        sa.select(models.DeviceProfile.uuid).where(models.DeviceProfile.name == name)
    ).scalar_one_or_none()


def users(tx: Transaction, ids: Sequence[int]) -> dict[int, int]:
    """Return profile id → number of ARQs that refer to it; profiles without ARQs are left out."""
    rows = tx.execute(
        sa.select(Arq.device_profile_id, sa.func.count())
        .where(Arq.device_profile_id.in_(ids))
        .group_by(Arq.device_profile_id)
    )
    return dict(rows.all())


class LockedProfile(Row):
    """The keys of a profile."""

    id = column(models.DeviceProfile.id)
    uuid = column(models.DeviceProfile.uuid)
    name = column(models.DeviceProfile.name)


def lock(tx: Transaction, keys: Sequence[str], caller: Caller) -> Sequence[LockedProfile]:
    """Lock the profiles with these uuids or names that the caller reaches, and return them."""
    return tx.all(
        select(LockedProfile)
        .where(
            sa.or_(models.DeviceProfile.uuid.in_(keys), models.DeviceProfile.name.in_(keys)),
            *of_caller(caller),
        )
        .order_by(models.DeviceProfile.id)
        .with_for_update()
    )


def insert(tx: Transaction, profile: DeviceProfile) -> None:
    """Store a profile that the caller has validated."""
    row = {
        "uuid": profile.uuid,
        "name": profile.name,
        "profile_json": json.dumps({"groups": list(profile.groups)}),
        "description": profile.description,
        "created_at": profile.created_at,
        "private": profile.projects is not None,
    }
    if profile.projects is None:
        tx.execute(sa.insert(models.DeviceProfile).values(row))
        return
    ids = bulk.insert_ids(tx, models.DeviceProfile, [row])
    _insert_projects(tx, ids[profile.uuid], profile.projects)


def change(tx: Transaction, id_: int, request: ProfileChange) -> None:
    """Change the requested values of a profile that the caller has locked."""
    values: dict[str, Any] = {}
    if request.name is not None:
        values["name"] = request.name
    if request.groups is not None:
        values["profile_json"] = json.dumps({"groups": list(request.groups)})
    if request.sets_description:
        values["description"] = request.description
    if request.sets_projects:
        values["private"] = request.projects is not None
        tx.execute(sa.delete(ProfileProject).where(ProfileProject.device_profile_id == id_))
        _insert_projects(tx, id_, request.projects or ())
    tx.execute(
        sa.update(models.DeviceProfile).where(models.DeviceProfile.id == id_).values(**values)
    )


def remove(tx: Transaction, ids: Sequence[int]) -> None:
    """Delete profiles that the caller has locked."""
    tx.execute(sa.delete(models.DeviceProfile).where(models.DeviceProfile.id.in_(ids)))


def _insert_projects(tx: Transaction, id_: int, projects: Sequence[str]) -> None:
    rows = [{"device_profile_id": id_, "project_id": project} for project in projects]
    bulk.insert(tx, ProfileProject, rows)


def _groups(row: models.DeviceProfile) -> tuple[dict[str, str], ...]:
    return tuple(json.loads(row.profile_json)["groups"])


def _profiles(tx: Transaction, rows: Sequence[_Profile], scope: Scope) -> list[DeviceProfile]:
    """Return profiles with their projects; one more statement reads those of all of them."""
    projects: dict[int, list[str]] = {row.id: [] for row in rows if row.private}
    if projects:
        query = _PROJECTS.where(ProfileProject.device_profile_id.in_(projects))
        for named in tx.all(query.within(scope)):
            projects[named.device_profile_id].append(named.project_id)
    return [
        DeviceProfile(
            uuid=row.uuid,
            name=row.name,
            description=row.description,
            groups=_groups(row),
            created_at=row.created_at,
            updated_at=row.updated_at,
            projects=tuple(sorted(projects[row.id])) if row.private else None,
        )
        for row in rows
    ]


# Statements of the hot path are built once: SQLAlchemy takes longer to build one than the database
# to execute it.

_SHARE = (
    sa.select(models.DeviceProfile.private)
    .where(models.DeviceProfile.id == sa.bindparam("id"))
    .with_for_update(read=True)
)
_NAMED = sa.select(sa.literal(1)).where(
    ProfileProject.device_profile_id == sa.bindparam("id"),
    ProfileProject.project_id == sa.bindparam("project_id"),
)
