# SPDX-License-Identifier: Apache-2.0
"""Read and delete lost devices that are due for removal, by age or at an operator's request.

This is a device with all its rows or, if the device is present, a lost deployable or attach handle:
for example of a card that is now partitioned into fewer parts. An operator's request is stored in
the row itself: a device is ``being_removed``, a part is lost since
``REMOVAL_REQUESTED``. So the request ends when the host reports the device or part again.
"""

from collections.abc import Collection, Sequence
from functools import cache
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import exception
from cyborg.db import attach_handles
from cyborg.db.hosts import IS_AGENT
from cyborg.db.models import (
    Arq,
    AttachHandle,
    Attribute,
    ControlpathId,
    Deployable,
    Device,
    Driver,
    Host,
    Service,
    Work,
)
from cyborg.db.rows import Row, column, nullable, select
from cyborg.db.transaction import Transaction
from cyborg.model.attribute import Origin
from cyborg.model.device import HandleState
from cyborg.model.report import DriverState

T = TypeVar("T")

#: States in which the host has no clean-up to do. A handle is in quarantine when its host cannot
#: clean it up; the lost card needs no clean-up.
RELEASED = (HandleState.READY.value, HandleState.QUARANTINED.value)
#: ``lost_ms`` of parts whose removal an operator has requested.
REMOVAL_REQUESTED = 0
#: Term: the driver of the device has been uninstalled.
_UNINSTALLED = sa.exists().where(
    Driver.host_id == Device.host_id, Driver.name == Device.driver, Driver.requested.is_(False)
)


class Due(Row):
    """A lost device or part that is due for removal, and why; ``lost_for`` is in milliseconds."""

    id: int
    uuid: str
    #: The device to remove, or the device of the part to remove.
    device_uuid = column(Device.uuid)
    lost_for: int
    being_removed: bool
    uninstalled = column(sa.false())


class DueDevice(Due):
    """A lost device that is due for removal."""

    id = column(Device.id)
    uuid = column(Device.uuid)
    being_removed = column(Device.being_removed)
    uninstalled = column(_UNINSTALLED)
    operator_created = column(Device.origin == Origin.OPERATOR.value)


class DueDeployable(Due):
    """A lost deployable that is due for removal."""

    id = column(Deployable.id)
    uuid = column(Deployable.uuid)
    name = column(Deployable.name)
    being_removed = column(Deployable.lost_ms == REMOVAL_REQUESTED)


class DueHandle(Due):
    """A lost attach handle that is due for removal."""

    id = column(AttachHandle.id)
    uuid = column(AttachHandle.uuid)
    being_removed = column(AttachHandle.lost_ms == REMOVAL_REQUESTED)


class LostDeployable(Row):
    """A deployable that is lost; ``whole`` is true when its device is lost.

    A lost device without deployables has one row, whose ``id`` and ``name`` are None.
    """

    id = nullable(Deployable.id)
    name = nullable(Deployable.name)
    device_id = column(Device.id)
    whole = column(Device.lost_ms.is_not(None))


def due_hosts(tx: Transaction, age_ms: int, silent_ms: int) -> list[int]:
    """Return the ids of the hosts with devices or parts that are due for removal.

    ``age_ms`` and ``silent_ms`` are those of ``due_devices`` and ``due_handles``.
    """
    host_ids = sa.select(Device.host_id)
    devices = host_ids.where(*_devices_due(tx.now, age_ms))
    deployables = _of_deployables(host_ids).where(*_deployables_due(tx.now, age_ms))
    handles = _of_handles(host_ids).where(*_handles_due(tx.now, age_ms, silent_ms))
    return sorted(tx.execute(sa.union(devices, deployables, handles)).scalars())


def due_devices(tx: Transaction, host_id: int, age_ms: int) -> Sequence[DueDevice]:
    """Return the devices of a host that are due for removal.

    A lost device is due when it has been lost for ``age_ms`` (0: never); at once when its removal
    was requested or its driver has been uninstalled. No device is due while an ARQ has a unit of it
    or work on it is in progress. Without a request, a device is not due either while its driver
    fails, because the driver cannot tell whether the device is present.
    """
    return tx.all(
        select(DueDevice, lost_for=tx.now - Device.lost_ms)
        .where(Device.host_id == host_id, *_devices_due(tx.now, age_ms))
        .order_by(Device.id)
    )


def due_deployables(tx: Transaction, host_id: int, age_ms: int) -> Sequence[DueDeployable]:
    """Return the lost deployables of a host that are due for removal, on devices that are present.

    A deployable with children is not due before they are removed.
    """
    return tx.all(
        _of_deployables(select(DueDeployable, lost_for=tx.now - Deployable.lost_ms))
        .where(Device.host_id == host_id, *_deployables_due(tx.now, age_ms))
        .order_by(Deployable.id)
    )


def due_handles(
    tx: Transaction, host_id: int, *, age_ms: int, silent_ms: int
) -> Sequence[DueHandle]:
    """Return the lost attach handles of a host that are due for removal, on present deployables.

    Without a request, no handle is due while the last heartbeat of the host's agent is more than
    ``silent_ms`` old: the agent does not look for the handle, and does not update Placement.
    """
    return tx.all(
        _of_handles(select(DueHandle, lost_for=tx.now - AttachHandle.lost_ms))
        .where(Device.host_id == host_id, *_handles_due(tx.now, age_ms, silent_ms))
        .order_by(AttachHandle.id)
    )


def all_lost(tx: Transaction, host_id: int) -> Sequence[LostDeployable]:
    """Return the deployables of a host that are lost, alone or with their devices."""
    lost = sa.or_(Device.lost_ms.is_not(None), Deployable.lost_ms.is_not(None))
    return tx.all(
        select(LostDeployable)
        .select_from(Device)
        .outerjoin(Deployable, Deployable.device_id == Device.id)
        .where(Device.host_id == host_id, lost)
    )


def lock_handles_of(tx: Transaction, deployable_ids: Collection[int]) -> None:
    """Lock the attach handles of deployables, in order of id, so that no bind claims one."""
    attach_handles.lock(tx, AttachHandle.deployable_id.in_(sorted(deployable_ids)))


def lock_handles_of_device(tx: Transaction, device_id: int) -> None:
    """Lock the attach handles of a device, in order of id, so that no bind claims one."""
    own = sa.select(Deployable.id).where(Deployable.device_id == device_id)
    attach_handles.lock(tx, AttachHandle.deployable_id.in_(own))


def request_part_removal(tx: Transaction, device_id: int) -> int:
    """Request the removal of the lost parts of a device that is present; return their number."""
    own_parts = sa.select(Deployable.id).where(Deployable.device_id == device_id)
    count = 0
    for model, own in (
        (Deployable, Deployable.device_id == device_id),
        (AttachHandle, AttachHandle.deployable_id.in_(own_parts)),
    ):
        lost = model.lost_ms.is_not(None)
        result = tx.execute(sa.update(model).where(own, lost).values(lost_ms=REMOVAL_REQUESTED))
        count += result.rowcount
    return count


def removable(device_id: int) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the terms on units: the removal of this device removes them."""
    lost = (part.lost_ms.is_not(None) for part in (AttachHandle, Deployable, Device))
    return Device.id == device_id, sa.or_(*lost, Device.origin == Origin.OPERATOR.value)


def remove(tx: Transaction, device_ids: Collection[int]) -> None:
    """Delete devices with their parts; raises Conflict when an ARQ refers to one of them."""
    ids = sorted(device_ids)
    if not ids:
        return
    _remove_parts(tx, sa.select(Deployable.id).where(Deployable.device_id.in_(ids)))
    tx.execute(sa.delete(ControlpathId).where(ControlpathId.device_id.in_(ids)))
    tx.execute(sa.delete(Deployable).where(Deployable.device_id.in_(ids)))
    tx.execute(sa.delete(Device).where(Device.id.in_(ids)))


def remove_deployables(tx: Transaction, ids: Collection[int]) -> None:
    """Delete deployables with their parts; raises Conflict when an ARQ refers to one of them."""
    if not ids:
        return
    _remove_parts(tx, sorted(ids))
    tx.execute(sa.delete(Deployable).where(Deployable.id.in_(sorted(ids))))


def remove_handles(tx: Transaction, ids: Collection[int]) -> None:
    """Delete attach handles; raises Conflict when an ARQ has one of them."""
    tx.execute(sa.delete(Work).where(Work.attach_handle_id.in_(sorted(ids))))
    unused = AttachHandle.id.in_(sorted(ids)), AttachHandle.arq_id.is_(None)
    if tx.execute(sa.delete(AttachHandle).where(*unused)).rowcount != len(ids):
        raise exception.Conflict(reason="An accelerator request has one of the attach handles.")


def _remove_parts(tx: Transaction, deployables: sa.Select[Any] | list[int]) -> None:
    """Delete the work, attributes and attach handles of deployables."""
    for model in (Work, Attribute, AttachHandle):
        tx.execute(sa.delete(model).where(model.deployable_id.in_(deployables)))


def _of_deployables(query: sa.Select[T]) -> sa.Select[T]:
    return query.select_from(Deployable).join(Device, Device.id == Deployable.device_id)


def _of_handles(query: sa.Select[T]) -> sa.Select[T]:
    return (
        query.select_from(AttachHandle)
        .join(Deployable, Deployable.id == AttachHandle.deployable_id)
        .join(Device, Device.id == Deployable.device_id)
    )


Terms = tuple[sa.ColumnElement[bool], ...]

_IN_USE = sa.exists().where(
    AttachHandle.deployable_id == Deployable.id,
    sa.or_(AttachHandle.state.not_in(RELEASED), AttachHandle.arq_id.is_not(None)),
)
_REFERRED_TO = sa.exists().where(Arq.deployable_id == Deployable.id)
_HAS_WORK = sa.exists().where(Work.deployable_id == Deployable.id, Work.attach_handle_id.is_(None))
_BUSY = sa.or_(_IN_USE, _REFERRED_TO, _HAS_WORK)
_DRIVER_FAILED = sa.exists().where(
    Driver.host_id == Device.host_id,
    Driver.name == Device.driver,
    Driver.state == DriverState.FAILED.value,
)


def _overdue(
    now: sa.ColumnElement[int], model: Any, age_ms: int, *terms: sa.ColumnElement[bool]
) -> sa.ColumnElement[bool]:
    """Return the term: the row has been lost for ``age_ms`` (0: never), and its driver works.

    A driver discovered its device, no operator created it, and ``terms`` hold.
    """
    by_age = sa.true() if age_ms else sa.false()
    discovered = Device.origin == Origin.DISCOVERED.value
    return sa.and_(by_age, discovered, ~_DRIVER_FAILED, model.lost_ms < now - age_ms, *terms)


@cache
def _devices_due(now: sa.ColumnElement[int], age_ms: int) -> Terms:
    """Return the terms on ``Device``."""
    busy = sa.exists().where(Deployable.device_id == Device.id, _BUSY)
    uninstalled = sa.and_(_UNINSTALLED, ~_DRIVER_FAILED)
    return (
        Device.lost_ms.is_not(None),
        sa.or_(_overdue(now, Device, age_ms), uninstalled, Device.being_removed),
        ~busy,
    )


@cache
def _deployables_due(now: sa.ColumnElement[int], age_ms: int) -> Terms:
    """Return the terms on ``Deployable`` and its ``Device``."""
    other = orm.aliased(Deployable)
    below = sa.exists().where(
        other.id != Deployable.id,
        sa.or_(other.parent_id == Deployable.id, other.root_id == Deployable.id),
    )
    return (
        Device.lost_ms.is_(None),
        sa.or_(_overdue(now, Deployable, age_ms), Deployable.lost_ms == REMOVAL_REQUESTED),
        ~_BUSY,
        ~below,
    )


@cache
def _handles_due(now: sa.ColumnElement[int], age_ms: int, silent_ms: int) -> Terms:
    """Return the terms on ``AttachHandle``, its ``Deployable`` and its ``Device``."""
    alive = sa.exists().where(
        Host.id == Device.host_id, IS_AGENT, Service.last_seen_ms > now - silent_ms
    )
    overdue = _overdue(now, AttachHandle, age_ms, alive)
    return (
        Device.lost_ms.is_(None),
        Deployable.lost_ms.is_(None),
        sa.or_(overdue, AttachHandle.lost_ms == REMOVAL_REQUESTED),
        AttachHandle.state.in_(RELEASED),
        AttachHandle.arq_id.is_(None),
    )
