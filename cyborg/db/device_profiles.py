# SPDX-License-Identifier: Apache-2.0
"""SQL for device profiles: find, read, lock and change them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from cyborg.db import events, listing, models
from cyborg.db.base import Record
from cyborg.db.models import Arq
from cyborg.model.device_profile import DeviceProfile, ProfileChange

_P = models.DeviceProfile.__table__.c
_VISIBLE: sa.Select[*tuple[Any, ...]] = sa.select(
    _P.uuid, _P.name, _P.description, _P.profile_json, _P.created_at, _P.updated_at
)
SORTABLE = listing.Sortable(
    id=_P.id,
    uuid=_P.uuid,
    columns={
        "id": _P.id,
        "uuid": _P.uuid,
        "name": _P.name,
        "created_at": _P.created_at,
        "updated_at": _P.updated_at,
    },
)


def show(tx: sa.Connection, uuid: str | None, name: str) -> DeviceProfile | None:
    """The profile with this uuid (None: look by name only), else the one with this name."""
    found = tx.execute(_VISIBLE.where(sa.or_(_P.name == name, _P.uuid == uuid))).all()
    rows = sorted(found, key=lambda row: row.uuid != uuid)
    return _profile(rows[0]) if rows else None


def page(
    tx: sa.Connection, wanted: listing.Page, names: Sequence[str] | None = None
) -> list[DeviceProfile]:
    """A page of all profiles, or of those with these names."""
    query = listing.paged(tx, _VISIBLE, SORTABLE, wanted)
    if names is not None:
        query = query.where(_P.name.in_(names))
    return [_profile(row) for row in tx.execute(query).all()]


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


@dataclass(frozen=True)
class Wanted:
    """What one profile asks for; ``repeated`` when the operation that asks has been carried out."""

    id: int
    groups: tuple[dict[str, str], ...]
    repeated: bool


def wanted(tx: sa.Connection, name: str, operation: str) -> Wanted | None:
    """What a profile asks for, by its name; None when there is none."""
    row = tx.execute(
        sa.select(
            models.DeviceProfile.id,
            models.DeviceProfile.profile_json,
            events.mark_of(operation).label("repeated"),
        ).where(models.DeviceProfile.name == name)
    ).one_or_none()
    if row is None:
        return None
    return Wanted(row.id, tuple(json.loads(row.profile_json)["groups"]), bool(row.repeated))


def insert(tx: sa.Connection, profile: DeviceProfile) -> None:
    """Store a checked profile."""
    tx.execute(
        sa.insert(models.DeviceProfile).values(
            uuid=profile.uuid,
            name=profile.name,
            profile_json=json.dumps({"groups": list(profile.groups)}),
            description=profile.description,
            created_at=profile.created_at,
        )
    )


def change(tx: sa.Connection, id_: int, wish: ProfileChange) -> None:
    """Set what is wished of a profile that the caller has locked."""
    values: dict[str, Any] = {}
    if wish.name is not None:
        values["name"] = wish.name
    if wish.groups is not None:
        values["profile_json"] = json.dumps({"groups": list(wish.groups)})
    if wish.describes:
        values["description"] = wish.description
    tx.execute(
        sa.update(models.DeviceProfile).where(models.DeviceProfile.id == id_).values(**values)
    )


def uuid_of(tx: sa.Connection, name: str) -> str | None:
    """The uuid of the profile with this name; None when there is none."""
    uuid: str | None = tx.execute(
        sa.select(models.DeviceProfile.uuid).where(models.DeviceProfile.name == name)
    ).scalar_one_or_none()
    return uuid


def lock(tx: sa.Connection, keys: Sequence[str]) -> Sequence[Record]:
    """Lock the profiles with these uuids or names; rows of (id, uuid, name)."""
    return tx.execute(
        sa.select(models.DeviceProfile.id, models.DeviceProfile.uuid, models.DeviceProfile.name)
        .where(sa.or_(models.DeviceProfile.uuid.in_(keys), models.DeviceProfile.name.in_(keys)))
        .order_by(models.DeviceProfile.id)
        .with_for_update()
    ).all()


def users(tx: sa.Connection, ids: Sequence[int]) -> dict[int, int]:
    """How many ARQs refer to each profile; those without any are left out."""
    rows = tx.execute(
        sa.select(Arq.device_profile_id, sa.func.count().label("users"))
        .where(Arq.device_profile_id.in_(ids))
        .group_by(Arq.device_profile_id)
    )
    return {row.device_profile_id: row.users for row in rows}


def delete(tx: sa.Connection, ids: Sequence[int]) -> None:
    """Remove profiles that the caller has locked."""
    tx.execute(sa.delete(models.DeviceProfile).where(models.DeviceProfile.id.in_(ids)))
