# SPDX-License-Identifier: Apache-2.0
"""Read and change the whole device tree of a host in SQL, and read its prepared units."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from cyborg.db.deployables import KEY as DEPLOYABLE_KEY
from cyborg.db.deployables import clear_lost_images
from cyborg.db.models import Arq, AttachHandle, Attribute, ControlpathId, Deployable, Device
from cyborg.db.rows import Row, column, nullable, select
from cyborg.db.transaction import Transaction
from cyborg.model import health
from cyborg.model.attribute import Origin
from cyborg.model.probation import State


class NameHolder(Row):
    """The deployable that has a name, and its device; ``key`` is the name that its driver uses."""

    name = column(Deployable.name)
    key = column(DEPLOYABLE_KEY)
    device_id = column(Deployable.device_id)
    driver = column(Device.driver)
    hostname = column(Device.hostname)


class PreparedUnit(Row):
    """An attach handle that needs, or has, preparation.

    ``holder_state`` is the state of the ARQ that has the handle (None: no ARQ).
    """

    uuid = column(AttachHandle.uuid)
    handle_key = column(AttachHandle.handle_key)
    state = column(AttachHandle.state)
    deployable_key = column(DEPLOYABLE_KEY)
    driver = column(Device.driver)
    device_key = column(Device.device_key)
    lost = column(
        sa.or_(
            AttachHandle.lost_ms.is_not(None),
            Deployable.lost_ms.is_not(None),
            Device.lost_ms.is_not(None),
        )
    )
    holder_state = nullable(Arq.state)
    prepared = nullable(Arq.prepared)
    group_spec = nullable(Arq.group_spec)


def devices(tx: Transaction, host_id: int) -> Sequence[Device]:
    """Return all devices of a host."""
    return tx.all(select(Device).where(Device.host_id == host_id))


def deployables(tx: Transaction, host_id: int) -> Sequence[Deployable]:
    """Return all deployables of a host."""
    return tx.all(
        select(Deployable)
        .join(Device, Device.id == Deployable.device_id)
        .where(Device.host_id == host_id)
    )


def handles(tx: Transaction, host_id: int) -> Sequence[AttachHandle]:
    """Return all attach handles of a host."""
    return tx.all(
        select(AttachHandle)
        .join(Deployable, Deployable.id == AttachHandle.deployable_id)
        .join(Device, Device.id == Deployable.device_id)
        .where(Device.host_id == host_id)
    )


def attributes(tx: Transaction, host_id: int) -> Sequence[Attribute]:
    """Return all discovered attributes of a host, without those that operators added."""
    return tx.all(
        select(Attribute)
        .join(Deployable, Deployable.id == Attribute.deployable_id)
        .join(Device, Device.id == Deployable.device_id)
        .where(Device.host_id == host_id, Attribute.origin == Origin.DISCOVERED.value)
    )


def control_paths(tx: Transaction, device_ids: Collection[int]) -> dict[int, int]:
    """Return device id → id of its control path."""
    query = sa.select(ControlpathId.device_id, ControlpathId.id)
    return dict(tx.execute(query.where(ControlpathId.device_id.in_(device_ids))).all())


def taken_names(tx: Transaction, names: Iterable[str]) -> dict[str, NameHolder]:
    """Return name → holder of those deployable names that exist."""
    rows = tx.all(
        select(NameHolder)
        .join(Device, Device.id == Deployable.device_id)
        .where(Deployable.name.in_(sorted(names)))
    )
    return {row.name: row for row in rows}


def prepared_units(tx: Transaction, host_id: int) -> Sequence[PreparedUnit]:
    """Return the attach handles of a host that need, or have, preparation. One statement."""
    return tx.all(
        select(PreparedUnit)
        .join(Deployable, Deployable.id == AttachHandle.deployable_id)
        .join(Device, Device.id == Deployable.device_id)
        .outerjoin(Arq, Arq.id == AttachHandle.arq_id)
        .where(Device.host_id == host_id, sa.or_(Deployable.prepare, Arq.prepared))
        .order_by(AttachHandle.id)
    )


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


def set_health(tx: Transaction, uuids: Collection[str], state: State, *, since: int | None) -> None:
    """Store the health of devices; without ``since`` the time of the last change stays."""
    values: dict[str, Any] = {
        "health": state.health,
        "health_reason": health.text(state.reasons),
        "reported_health": state.reported,
        "reported_health_reason": health.text(state.reported_reasons),
        "health_until_ms": state.until,
        "health_faults": list(state.faults) or None,
    }
    if since is not None:
        values["health_ms"] = since if state.health is not None else None
    tx.execute(sa.update(Device).where(Device.uuid.in_(sorted(uuids))).values(**values))
