# SPDX-License-Identifier: Apache-2.0
"""Read, lock and change device profiles in SQL."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from cyborg.db import events, listing, models
from cyborg.db.base import Record
from cyborg.db.models import Arq
from cyborg.db.transaction import Transaction
from cyborg.model.device_profile import DeviceProfile, ProfileChange

_P = models.DeviceProfile.__table__.c
_VISIBLE: sa.Select[*tuple[Any, ...]] = sa.select(
    _P.uuid, _P.name, _P.description, _P.profile_json, _P.created_at, _P.updated_at
)
SORTABLE = listing.sortable(models.DeviceProfile, "id", "uuid", "name", "created_at", "updated_at")


def show(tx: Transaction, uuid: str | None, name: str) -> DeviceProfile | None:
    """Return the profile with this uuid, else the one with this name; None when there is none.

    Without ``uuid`` only the name counts.
    """
    matching = tx.execute(_VISIBLE.where(sa.or_(_P.name == name, _P.uuid == uuid))).all()
    rows = sorted(matching, key=lambda row: row.uuid != uuid)
    return _profile(rows[0]) if rows else None


def page(
    tx: Transaction, page: listing.Page, names: Sequence[str] | None = None
) -> list[DeviceProfile]:
    """Return a page of all profiles, or of those with these names."""
    query = listing.paged(tx, _VISIBLE, SORTABLE, page)
    if names is not None:
        query = query.where(_P.name.in_(names))
    return [_profile(row) for row in tx.execute(query).all()]


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
            events.has_operation(request_key).label("repeated"),
        ).where(models.DeviceProfile.name == name)
    ).one_or_none()
    if row is None:
        return None
    return ProfileGroups(row.id, tuple(json.loads(row.profile_json)["groups"]), bool(row.repeated))


def uuid_of(tx: Transaction, name: str) -> str | None:
    """Return the uuid of the profile with this name; None when there is none."""
    uuid: str | None = tx.execute(
        sa.select(models.DeviceProfile.uuid).where(models.DeviceProfile.name == name)
    ).scalar_one_or_none()
    return uuid


def users(tx: Transaction, ids: Sequence[int]) -> dict[int, int]:
    """Return profile id → number of ARQs that refer to it; profiles without ARQs are left out."""
    rows = tx.execute(
        sa.select(Arq.device_profile_id, sa.func.count().label("users"))
        .where(Arq.device_profile_id.in_(ids))
        .group_by(Arq.device_profile_id)
    )
    return {row.device_profile_id: row.users for row in rows}


def lock(tx: Transaction, keys: Sequence[str]) -> Sequence[Record]:
    """Lock the profiles with these uuids or names, and return (id, uuid, name) of each."""
    return tx.execute(
        sa.select(models.DeviceProfile.id, models.DeviceProfile.uuid, models.DeviceProfile.name)
        .where(sa.or_(models.DeviceProfile.uuid.in_(keys), models.DeviceProfile.name.in_(keys)))
        .order_by(models.DeviceProfile.id)
        .with_for_update()
    ).all()


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


def _profile(row: sa.Row[*tuple[Any, ...]]) -> DeviceProfile:
    uuid, name, description, profile_json, created_at, updated_at = row
    return DeviceProfile(
        uuid=uuid,
        name=name,
        description=description,
        groups=tuple(json.loads(profile_json)["groups"]),
        created_at=created_at,
        updated_at=updated_at,
    )
