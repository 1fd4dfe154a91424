# SPDX-License-Identifier: Apache-2.0
"""What a host's drivers tell beside devices: drivers themselves, backends and hardware, as rows."""

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from cyborg.db import bulk, drivers
from cyborg.db.bulk import Record
from cyborg.db.models import Backend, Driver, Hardware


def driven(tx: sa.Connection, host_id: int) -> Sequence[Record]:
    """The drivers of a host with their backends (``backend_*``): one row for each pair."""
    return tx.execute(
        sa.select(
            *drivers.COLUMNS,
            Backend.id.label("backend_id"),
            Backend.name.label("backend_name"),
            Backend.state.label("backend_state"),
            Backend.services,
            Backend.capabilities,
            Backend.creates,
        )
        .outerjoin(Backend, Backend.driver_id == Driver.id)
        .where(Driver.host_id == host_id)
    ).all()


def hardware(tx: sa.Connection, host_id: int) -> Sequence[Record]:
    """The hardware of a host."""
    return tx.execute(
        sa.select(
            Hardware.id,
            Hardware.uuid,
            Hardware.driver,
            Hardware.hardware_key,
            Hardware.device_type,
            Hardware.offered,
            Hardware.setup_required,
            Hardware.reboot_required,
            Hardware.reason,
            Hardware.acc_specs,
            Hardware.acc_status,
        ).where(Hardware.host_id == host_id)
    ).all()


def seen(tx: sa.Connection, model: Any, ids: Collection[int], now: sa.ColumnElement[int]) -> None:
    """Note that drivers or backends have just been asked."""
    if ids:
        tx.execute(sa.update(model).where(model.id.in_(sorted(ids))).values(discovered_ms=now))


def remove(tx: sa.Connection, model: Any, ids: Collection[int]) -> None:
    """Delete backends or hardware that are no longer there."""
    if ids:
        tx.execute(sa.delete(model).where(model.id.in_(sorted(ids))))


def add_drivers(tx: sa.Connection, rows: Sequence[bulk.Row], common: bulk.Row) -> dict[str, int]:
    """Store drivers of a host that were not known before; uuid → id."""
    return bulk.insert_ids(tx, Driver, rows, common)
