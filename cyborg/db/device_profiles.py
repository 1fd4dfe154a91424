# SPDX-License-Identifier: Apache-2.0
"""Device profiles in SQL: how they are found and read."""

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from cyborg.db import listing, models
from cyborg.model.device_profile import DeviceProfile

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
