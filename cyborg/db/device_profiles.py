# SPDX-License-Identifier: Apache-2.0
"""Read, lock and change device profiles in SQL."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from cyborg.db import events, listing, models
from cyborg.db.models import Arq
from cyborg.db.rows import Row, column, select
from cyborg.db.transaction import Transaction
from cyborg.model.device_profile import DeviceProfile, ProfileChange


class _Profile(Row):
    """A stored profile."""

    uuid = column(models.DeviceProfile.uuid)
    name = column(models.DeviceProfile.name)
    description = column(models.DeviceProfile.description)
    profile_json = column(models.DeviceProfile.profile_json)
    created_at = column(models.DeviceProfile.created_at)
    updated_at = column(models.DeviceProfile.updated_at)


_VISIBLE = select(_Profile)
SORTABLE = listing.sortable(models.DeviceProfile, "id", "uuid", "name", "created_at", "updated_at")


def show(tx: Transaction, uuid: str | None, name: str) -> DeviceProfile | None:
    """Return the profile with this uuid, else the one with this name; None when there is none.

    Without ``uuid`` only the name counts.
    """
    key = sa.or_(models.DeviceProfile.name == name, models.DeviceProfile.uuid == uuid)
    matching = tx.all(_VISIBLE.where(key))
    rows = sorted(matching, key=lambda row: row.uuid != uuid)
    return _profile(rows[0]) if rows else None


def page(
    tx: Transaction, page: listing.Page, names: Sequence[str] | None = None
) -> list[DeviceProfile]:
    """Return a page of all profiles, or of those with these names."""
    query = listing.paged(tx, _VISIBLE, SORTABLE, page)
    if names is not None:
        query = query.where(models.DeviceProfile.name.in_(names))
    return [_profile(row) for row in tx.all(query)]


@dataclass(frozen=True)
class ProfileGroups:
    """The groups of a profile; ``repeated`` is True when the operation has run before."""

    id: int
    groups: tuple[dict[str, str], ...]
    repeated: bool


def groups(tx: Transaction, name: str, request_key: str) -> ProfileGroups | None:
    """Return the groups of the profile with this name; None when there is none."""
    row = tx.execute(
        sa.select(
            models.DeviceProfile.id,
            models.DeviceProfile.profile_json,
            events.has_operation(request_key),
        ).where(models.DeviceProfile.name == name)
    ).one_or_none()
    if row is None:
        return None
    id_, profile_json, repeated = row
    return ProfileGroups(id_, tuple(json.loads(profile_json)["groups"]), bool(repeated))


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


def lock(tx: Transaction, keys: Sequence[str]) -> Sequence[LockedProfile]:
    """Lock the profiles with these uuids or names, and return them."""
    return tx.all(
        select(LockedProfile)
        .where(sa.or_(models.DeviceProfile.uuid.in_(keys), models.DeviceProfile.name.in_(keys)))
        .order_by(models.DeviceProfile.id)
        .with_for_update()
    )


def insert(tx: Transaction, profile: DeviceProfile) -> None:
    """Store a profile that the caller has validated."""
    tx.execute(
        sa.insert(models.DeviceProfile).values(
            uuid=profile.uuid,
            name=profile.name,
            profile_json=json.dumps({"groups": list(profile.groups)}),
            description=profile.description,
            created_at=profile.created_at,
        )
    )


def change(tx: Transaction, id_: int, request: ProfileChange) -> None:
    """Change the requested values of a profile that the caller has locked."""
    values: dict[str, Any] = {}
    if request.name is not None:
        values["name"] = request.name
    if request.groups is not None:
        values["profile_json"] = json.dumps({"groups": list(request.groups)})
    if request.sets_description:
        values["description"] = request.description
    tx.execute(
        sa.update(models.DeviceProfile).where(models.DeviceProfile.id == id_).values(**values)
    )


def remove(tx: Transaction, ids: Sequence[int]) -> None:
    """Delete profiles that the caller has locked."""
    tx.execute(sa.delete(models.DeviceProfile).where(models.DeviceProfile.id.in_(ids)))


def _profile(row: _Profile) -> DeviceProfile:
    return DeviceProfile(
        uuid=row.uuid,
        name=row.name,
        description=row.description,
        groups=tuple(json.loads(row.profile_json)["groups"]),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
