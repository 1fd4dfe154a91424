# SPDX-License-Identifier: Apache-2.0
"""Read and change the whole device tree of a host in SQL, and read its prepared units."""

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from cyborg.db.base import Record
from cyborg.db.deployables import clear_lost_images
from cyborg.db.models import Arq, AttachHandle, Attribute, ControlpathId, Deployable, Device
from cyborg.db.transaction import Transaction
from cyborg.model.attribute import Origin


def devices(tx: Transaction, host_id: int) -> Sequence[Record]:
    """Return all devices of a host."""
    return tx.execute(
        sa.select(
            Device.id,
            Device.uuid,
            Device.driver,
            Device.backend,
            Device.device_key,
            Device.type,
            Device.vendor,
            Device.model,
            Device.std_board_info,
            Device.vendor_board_info,
            Device.numa_node,
            Device.status,
            Device.lost_ms,
            Device.health,
            Device.health_reason,
            Device.origin,
            Device.being_removed,
        ).where(Device.host_id == host_id)
    ).all()


def deployables(tx: Transaction, host_id: int) -> Sequence[Record]:
    """Return all deployables of a host."""
    return tx.execute(
        sa.select(
            Deployable.id,
            Deployable.parent_id,
            Deployable.device_id,
            Deployable.name,
            Deployable.rp_uuid,
            Deployable.num_accelerators,
            Deployable.driver_name,
            Deployable.resource_class,
            Deployable.prepare,
            Deployable.programmable,
            Deployable.lost_ms,
            Deployable.publish_error,
        )
        .join(Device, Device.id == Deployable.device_id)
        .where(Device.host_id == host_id)
    ).all()


def handles(tx: Transaction, host_id: int) -> Sequence[Record]:
    """Return all attach handles of a host."""
    return tx.execute(
        sa.select(
            AttachHandle.id,
            AttachHandle.deployable_id,
            AttachHandle.handle_key,
            AttachHandle.attach_type,
            AttachHandle.attach_info,
            AttachHandle.state,
            AttachHandle.lost_ms,
        )
        .join(Deployable, Deployable.id == AttachHandle.deployable_id)
        .join(Device, Device.id == Deployable.device_id)
        .where(Device.host_id == host_id)
    ).all()


def attributes(tx: Transaction, host_id: int) -> Sequence[Record]:
    """Return all discovered attributes of a host, without those that operators added."""
    return tx.execute(
        sa.select(Attribute.id, Attribute.deployable_id, Attribute.key, Attribute.value)
        .join(Deployable, Deployable.id == Attribute.deployable_id)
        .join(Device, Device.id == Deployable.device_id)
        .where(Device.host_id == host_id, Attribute.origin == Origin.DISCOVERED.value)
    ).all()


def control_paths(tx: Transaction, device_ids: Collection[int]) -> dict[int, int]:
    """Return device id → id of its control path."""
    rows = tx.execute(
        sa.select(ControlpathId.device_id, ControlpathId.id).where(
            ControlpathId.device_id.in_(device_ids)
        )
    )
    return {row.device_id: row.id for row in rows}


def taken_names(tx: Transaction, names: Iterable[str]) -> dict[str, Record]:
    """Return name → (device id, driver, host name) of those deployable names that exist."""
    rows = tx.execute(
        sa.select(Deployable.name, Deployable.device_id, Device.driver, Device.hostname)
        .join(Device, Device.id == Deployable.device_id)
        .where(Deployable.name.in_(sorted(names)))
    )
    return {row.name: row for row in rows}


def prepared_units(tx: Transaction, host_id: int) -> Sequence[Record]:
    """Return the attach handles of a host that need, or have, preparation.

    ``holder_state`` is the state of the ARQ that has the handle (None: no ARQ). One statement.
    """
    lost = sa.or_(
        AttachHandle.lost_ms.is_not(None),
        Deployable.lost_ms.is_not(None),
        Device.lost_ms.is_not(None),
    )
    return tx.execute(
        sa.select(
            AttachHandle.uuid,
            AttachHandle.handle_key,
            AttachHandle.state,
            Deployable.name,
            Device.driver,
            Device.device_key,
            lost.label("lost"),
            Arq.state.label("holder_state"),
            Arq.prepared,
            Arq.group_spec,
        )
        .join(Deployable, Deployable.id == AttachHandle.deployable_id)
        .join(Device, Device.id == Deployable.device_id)
        .outerjoin(Arq, Arq.attach_handle_id == AttachHandle.id)
        .where(Device.host_id == host_id, sa.or_(Deployable.prepare, Arq.prepared))
        .order_by(AttachHandle.id)
    ).all()


def set_lost(
    tx: Transaction, model: Any, ids: Collection[int], now: sa.ColumnElement[int] | None
) -> None:
    """Mark devices, deployables or handles (``model``) as lost, or as present again (``now`` None).

    A device that is present again stays: a request to remove it is dropped. The image of a lost
    deployable becomes unknown, because the device may have been without power.
    """
    values: dict[str, Any] = {"lost_ms": now}
    if model is Device and now is None:
        values["being_removed"] = False
    if model is Deployable and now is not None:
        values["bitstream_id"] = None
    if model is Device and now is not None and ids:
        clear_lost_images(tx, ids)
    if ids:
        tx.execute(sa.update(model).where(model.id.in_(sorted(ids))).values(**values))


def set_health(
    tx: Transaction,
    uuids: Collection[str],
    word: str | None,
    reason: str | None,
    *,
    since: sa.ColumnElement[int] | None,
) -> None:
    """Store the health of devices; without ``since`` the time of the last change stays."""
    values: dict[str, Any] = {"health": word, "health_reason": reason}
    if since is not None:
        values["health_ms"] = since if word is not None else None
    tx.execute(sa.update(Device).where(Device.uuid.in_(sorted(uuids))).values(**values))


def board_text(info: dict[str, str | None]) -> str | None:
    """Return the JSON text of board information, as stored and shown; None when it is empty."""
    return json.dumps(info) if info else None
