# SPDX-License-Identifier: Apache-2.0
"""How device profiles change, and what making ARQs reads of one."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from cyborg.db import events
from cyborg.db.bulk import Record
from cyborg.db.models import Arq, DeviceProfile
from cyborg.model.device_profile import DeviceProfile as Profile
from cyborg.model.device_profile import ProfileChange


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
            DeviceProfile.id,
            DeviceProfile.profile_json,
            events.mark_of(operation).label("repeated"),
        ).where(DeviceProfile.name == name)
    ).one_or_none()
    if row is None:
        return None
    return Wanted(row.id, tuple(json.loads(row.profile_json)["groups"]), bool(row.repeated))


def insert(tx: sa.Connection, profile: Profile) -> None:
    """Store a checked profile."""
    tx.execute(
        sa.insert(DeviceProfile).values(
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
    tx.execute(sa.update(DeviceProfile).where(DeviceProfile.id == id_).values(**values))


def uuid_of(tx: sa.Connection, name: str) -> str | None:
    """The uuid of the profile with this name; None when there is none."""
    uuid: str | None = tx.execute(
        sa.select(DeviceProfile.uuid).where(DeviceProfile.name == name)
    ).scalar_one_or_none()
    return uuid


def lock(tx: sa.Connection, keys: Sequence[str]) -> Sequence[Record]:
    """Lock the profiles with these uuids or names; rows of (id, uuid, name)."""
    return tx.execute(
        sa.select(DeviceProfile.id, DeviceProfile.uuid, DeviceProfile.name)
        .where(sa.or_(DeviceProfile.uuid.in_(keys), DeviceProfile.name.in_(keys)))
        .order_by(DeviceProfile.id)
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
    tx.execute(sa.delete(DeviceProfile).where(DeviceProfile.id.in_(ids)))
