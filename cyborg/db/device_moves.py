# SPDX-License-Identifier: Apache-2.0
"""How devices and deployables change by an operator's word, and by the end of a set-up."""

from collections.abc import Collection, Mapping, Sequence

import sqlalchemy as sa

from cyborg.db.bulk import Record
from cyborg.db.hosts import AGENT_EPOCH
from cyborg.db.models import Arq, AttachHandle, Deployable, Device, Hardware, Host
from cyborg.model.attribute import Origin
from cyborg.model.device import DeviceStatus
from cyborg.model.device_life import MOVES, DeviceEvent

#: What stands on a device's work: retirement leaves a device alone that has any.
_DEPLOYABLE = (
    sa.select(sa.func.min(Deployable.id))
    .where(Deployable.device_id == Device.id)
    .correlate(Device)
    .scalar_subquery()
)
_COLUMNS = (
    Device.id,
    Device.uuid,
    Device.host_id,
    Device.hostname,
    Device.status,
    Device.status_reason,
    Device.health,
    Device.health_reason,
    Device.driver,
    Device.device_key,
    Device.origin,
    _DEPLOYABLE.label("deployable_id"),
)
#: The entry of the host's hardware that tells of a device.
_ENTRY = sa.and_(
    Hardware.host_id == Device.host_id,
    Hardware.driver == Device.driver,
    Hardware.hardware_key == Device.device_key,
)


def of_operator(tx: sa.Connection, uuid: str) -> Record | None:
    """A device with its agent (``service_host``, ``agent_epoch``); None when there is none.

    ``unready`` tells that it has to be set up before it can be used.
    """
    return tx.execute(
        sa.select(
            *_COLUMNS,
            Host.service_host,
            AGENT_EPOCH.label("agent_epoch"),
            sa.func.coalesce(Hardware.setup_required, sa.false()).label("unready"),
        )
        .join(Host, Host.id == Device.host_id)
        .outerjoin(Hardware, _ENTRY)
        .where(Device.uuid == uuid)
    ).one_or_none()


def unready(
    tx: sa.Connection,
    *which: sa.ColumnElement[bool],
    status: DeviceStatus = DeviceStatus.ENABLED,
) -> Sequence[Record]:
    """Return those of these devices that have this status and need set-up before use."""
    in_service = (Device.status == status.value, Device.lost_ms.is_(None))
    return tx.execute(
        sa.select(*_COLUMNS)
        .join(Hardware, _ENTRY)
        .where(*which, *in_service, Hardware.setup_required)
        .order_by(Device.id)
    ).all()


def being_set_up(tx: sa.Connection, host_id: int, drivers: Collection[str]) -> list[str]:
    """The uuids of the devices of these drivers that a host is to set up."""
    query = sa.select(Device.uuid).where(
        Device.host_id == host_id,
        Device.driver.in_(sorted(drivers)),
        Device.status == DeviceStatus.INSTALLING.value,
    )
    return list(tx.execute(query.order_by(Device.id)).scalars())


def holders(tx: sa.Connection, id_: int) -> list[str]:
    """The uuids of the accelerator requests that refer to a device."""
    mine = sa.select(Deployable.id).where(Deployable.device_id == id_)
    return list(
        tx.execute(
            sa.select(Arq.uuid).where(Arq.deployable_id.in_(mine)).order_by(Arq.id)
        ).scalars()
    )


def holds(tx: sa.Connection, project_id: str, id_: int) -> bool:
    """Whether a request of this project holds a unit of a device."""
    mine = sa.select(Deployable.id).where(Deployable.device_id == id_)
    held = sa.select(Arq.id).where(Arq.deployable_id.in_(mine), Arq.project_id == project_id)
    return tx.execute(held.limit(1)).first() is not None


def labels(tx: sa.Connection, id_: int) -> dict[str, str]:
    """The labels of a device, which is locked."""
    found = tx.execute(sa.select(Device.labels).where(Device.id == id_).with_for_update())
    return dict(found.scalar_one() or {})


def label(tx: sa.Connection, id_: int, new: Mapping[str, str]) -> None:
    """Set the labels of a device that the caller has locked."""
    tx.execute(sa.update(Device).where(Device.id == id_).values(labels=dict(new)))


def set_model(tx: sa.Connection, id_: int, model: str) -> None:
    """Set the model of a device that an operator created."""
    tx.execute(sa.update(Device).where(Device.id == id_).values(model=model))


def move(tx: sa.Connection, id_: int, event: DeviceEvent, reason: str | None = None) -> bool:
    """Have something happen to a device; False when it cannot happen in the status it has now.

    What was said about the status before is forgotten.
    """
    return bool(move_all(tx, [id_], event, reason))


def move_all(
    tx: sa.Connection, ids: Collection[int], event: DeviceEvent, reason: str | None = None
) -> int:
    """The same of many, in one statement; answers to how many it happened."""
    way = MOVES[event]
    changed = tx.execute(
        sa.update(Device)
        .where(Device.id.in_(sorted(ids)), Device.status.in_([one.value for one in way.sources]))
        .values(status=way.target.value, status_reason=reason)
    )
    return int(changed.rowcount)


def explain(tx: sa.Connection, id_: int, reason: str) -> None:
    """Say why a device is being set up, and is not yet."""
    tx.execute(
        sa.update(Device)
        .where(Device.id == id_, Device.status == DeviceStatus.INSTALLING.value)
        .values(status_reason=reason)
    )


def let_go(tx: sa.Connection, now: sa.ColumnElement[int], id_: int) -> bool:
    """Have a device forgotten that is lost, or lost now, for an operator created it.

    Its attach handles are lost with it, so that a bind which has read the device as being there
    finds none to claim. False when its host shows it and would find it again.
    """
    goes = sa.or_(Device.lost_ms.is_not(None), Device.origin == Origin.OPERATOR.value)
    gone = tx.execute(
        sa.update(Device)
        .where(Device.id == id_, goes)
        .values(leaving=True, lost_ms=sa.func.coalesce(Device.lost_ms, now))
    )
    if not gone.rowcount:
        return False
    mine = sa.select(Deployable.id).where(Deployable.device_id == id_)
    tx.execute(
        sa.update(AttachHandle)
        .where(AttachHandle.deployable_id.in_(mine), AttachHandle.lost_ms.is_(None))
        .values(lost_ms=now)
    )
    return True
