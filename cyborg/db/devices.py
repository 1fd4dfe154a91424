# SPDX-License-Identifier: Apache-2.0
"""Devices in SQL: how they are found and read."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from cyborg.db import listing, models
from cyborg.model.device import DeviceStatus

_D = models.Device.__table__.c
#: In service: enabled by the operator, and there.
_IN_SERVICE = sa.and_(_D.status == DeviceStatus.ENABLED.value, _D.lost_ms.is_(None))
_VISIBLE: sa.Select[*tuple[Any, ...]] = sa.select(
    _D.uuid,
    _D.type,
    _D.vendor,
    _D.model,
    _D.std_board_info,
    _D.vendor_board_info,
    _D.hostname,
    _D.status,
    _D.lost_ms,
    _D.created_at,
    _D.updated_at,
)
# Built once: SQLAlchemy takes longer to build it than the database to execute it.
_SHOW = _VISIBLE.where(_D.uuid == sa.bindparam("uuid"))
SORTABLE = listing.Sortable(
    id=_D.id,
    uuid=_D.uuid,
    columns={
        name: _D[name]
        for name in (
            "id",
            "uuid",
            "type",
            "vendor",
            "model",
            "hostname",
            "status",
            "created_at",
            "updated_at",
        )
    },
)


def show(tx: sa.Connection, uuid: str) -> sa.Row[*tuple[Any, ...]] | None:
    """The device with this uuid."""
    return tx.execute(_SHOW, {"uuid": uuid}).first()


def page(
    tx: sa.Connection,
    wanted: listing.Page,
    equal: Mapping[str, str],
    in_service: bool | None = None,
) -> Sequence[sa.Row[*tuple[Any, ...]]]:
    """A page of the devices whose columns have these values.

    ``in_service`` True keeps those that are enabled and not lost, False the others.
    """
    query = listing.paged(tx, _VISIBLE, SORTABLE, wanted)
    query = query.where(*(_D[name] == value for name, value in equal.items()))
    if in_service is not None:
        query = query.where(_IN_SERVICE if in_service else sa.not_(_IN_SERVICE))
    return tx.execute(query).all()
