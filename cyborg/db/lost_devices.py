# SPDX-License-Identifier: Apache-2.0
"""What is given up, lost for too long or by an operator's word: found, and removed.

That is a device with all that is its own, or, of one that is still there, a deployable or a
single attach handle: a card that was divided into fewer parts. Whether an operator has spoken
stands on the row itself: a device is ``leaving``, a part has been lost since ``FORGOTTEN``. So the
word is gone when the thing is back.
"""

from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg.db import attach_handles
from cyborg.db.base import Record
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
from cyborg.model.attribute import Origin
from cyborg.model.device import HandleState
from cyborg.model.report import DriverState

#: States in which nobody has a handle. The host of one in quarantine has said for long that it
#: cannot clean up, and the card is not there any more.
UNHELD = (HandleState.FREE.value, HandleState.QUARANTINED.value)
#: The moment since which parts have been lost that an operator has forgotten.
FORGOTTEN = 0
#: The device that goes, or that a part goes of.
_DEVICE = Device.uuid.label("device_uuid")
#: The driver of a device has been uninstalled.
_UNINSTALLED = sa.exists().where(
    Driver.host_id == Device.host_id, Driver.name == Device.driver, Driver.wanted.is_(False)
)


def hosts(tx: sa.Connection, now: sa.ColumnElement[int], age_ms: int, silent_ms: int) -> list[int]:
    """The ids of the hosts that have something to be given up.

    ``silent_ms`` is that of ``handles``.
    """
    devices = sa.select(Device.host_id).where(*_devices_due(now, age_ms))
    deployables = _deployable_rows(Device.host_id).where(*_deployables_due(now, age_ms))
    handles = _handle_rows(Device.host_id).where(*_handles_due(now, age_ms, silent_ms))
    return sorted(tx.execute(sa.union(devices, deployables, handles)).scalars())


def due(
    tx: sa.Connection, now: sa.ColumnElement[int], host_id: int, age_ms: int
) -> Sequence[Record]:
    """The devices of a host that are to be forgotten, or have been lost for ``age_ms`` (0: never).

    (id, uuid, device_uuid, lost_for, leaving, uninstalled, made), ``lost_for`` in milliseconds.
    Those that are to be forgotten, or whose driver has been uninstalled, are due at once. Not while
    anybody has a unit of them or work is under way there. Those that nobody asked to forget stay
    while their driver fails, too: nobody can see then whether they are back.
    """
    return tx.execute(
        sa.select(
            Device.id,
            Device.uuid,
            _DEVICE,
            (now - Device.lost_ms).label("lost_for"),
            Device.leaving,
            _UNINSTALLED.label("uninstalled"),
            (Device.origin == Origin.OPERATOR.value).label("made"),
        )
        .where(Device.host_id == host_id, *_devices_due(now, age_ms))
        .order_by(Device.id)
    ).all()


def deployables(
    tx: sa.Connection, now: sa.ColumnElement[int], host_id: int, age_ms: int
) -> Sequence[Record]:
    """The same of lost deployables whose devices are there, with their names.

    One that others stand below comes after them.
    """
    why = _why(now, Deployable)
    return tx.execute(
        _deployable_rows(Deployable.id, Deployable.uuid, Deployable.name, _DEVICE, *why)
        .where(Device.host_id == host_id, *_deployables_due(now, age_ms))
        .order_by(Deployable.id)
    ).all()


def handles(
    tx: sa.Connection, now: sa.ColumnElement[int], host_id: int, *, age_ms: int, silent_ms: int
) -> Sequence[Record]:
    """The same of lost attach handles whose deployables are there.

    Of those that nobody asked to forget, none while their host's agent has been silent for
    ``silent_ms``: nobody would look whether they are back, nor tell Placement.
    """
    return tx.execute(
        _handle_rows(AttachHandle.id, AttachHandle.uuid, _DEVICE, *_why(now, AttachHandle))
        .where(Device.host_id == host_id, *_handles_due(now, age_ms, silent_ms))
        .order_by(AttachHandle.id)
    ).all()


def lost(tx: sa.Connection, host_id: int) -> Sequence[Record]:
    """A host's deployables that are lost, or whose devices are: (id, name, device_id, whole).

    ``whole`` says that it is the device; one without deployables has a row without id and name.
    """
    whole = Device.lost_ms.is_not(None)
    return tx.execute(
        sa.select(
            Deployable.id, Deployable.name, Device.id.label("device_id"), whole.label("whole")
        )
        .select_from(Device)
        .outerjoin(Deployable, Deployable.device_id == Device.id)
        .where(Device.host_id == host_id, sa.or_(whole, Deployable.lost_ms.is_not(None)))
    ).all()


def lock_handles_of(tx: sa.Connection, deployable_ids: Collection[int]) -> None:
    """Lock the attach handles of deployables, by id: no bind takes one after that."""
    attach_handles.lock(tx, AttachHandle.deployable_id.in_(sorted(deployable_ids)))


def lock_handles_of_device(tx: sa.Connection, device_id: int) -> None:
    """Lock the attach handles of a device, by id: no bind takes one after that."""
    attach_handles.lock(tx, AttachHandle.deployable_id.in_(_of_device(device_id)))


def _of_device(id_: int) -> sa.Select[Any]:
    return sa.select(Deployable.id).where(Deployable.device_id == id_)


def forget_parts(tx: sa.Connection, device_id: int) -> int:
    """Have forgotten what is lost of a device that is there; says how many parts that are."""
    count = 0
    for model, mine in (
        (Deployable, Deployable.device_id == device_id),
        (AttachHandle, AttachHandle.deployable_id.in_(_of_device(device_id))),
    ):
        lost = model.lost_ms.is_not(None)
        gone = tx.execute(sa.update(model).where(mine, lost).values(lost_ms=FORGOTTEN))
        count += gone.rowcount
    return count


def remove(tx: sa.Connection, device_ids: Collection[int]) -> None:
    """Delete devices with all that is theirs; Conflict when somebody refers to it."""
    ids = sorted(device_ids)
    if not ids:
        return
    _remove_parts(tx, sa.select(Deployable.id).where(Deployable.device_id.in_(ids)))
    tx.execute(sa.delete(ControlpathId).where(ControlpathId.device_id.in_(ids)))
    tx.execute(sa.delete(Deployable).where(Deployable.device_id.in_(ids)))
    tx.execute(sa.delete(Device).where(Device.id.in_(ids)))


def remove_deployables(tx: sa.Connection, ids: Collection[int]) -> None:
    """Delete deployables with all that is theirs; Conflict when somebody refers to it."""
    if not ids:
        return
    _remove_parts(tx, sorted(ids))
    tx.execute(sa.delete(Deployable).where(Deployable.id.in_(sorted(ids))))


def remove_handles(tx: sa.Connection, ids: Collection[int]) -> None:
    """Delete attach handles; Conflict when somebody has one."""
    tx.execute(sa.delete(Work).where(Work.attach_handle_id.in_(sorted(ids))))
    tx.execute(sa.delete(AttachHandle).where(AttachHandle.id.in_(sorted(ids))))


def _remove_parts(tx: sa.Connection, deployables: sa.Select[Any] | list[int]) -> None:
    """Delete what belongs to deployables."""
    for model in (Work, Attribute, AttachHandle):
        tx.execute(sa.delete(model).where(model.deployable_id.in_(deployables)))


def _why(now: sa.ColumnElement[int], model: Any) -> tuple[sa.ColumnElement[Any], ...]:
    """What tells why a part of a device goes, as ``due`` does of devices."""
    return (
        (now - model.lost_ms).label("lost_for"),
        sa.false().label("uninstalled"),
        (model.lost_ms == FORGOTTEN).label("leaving"),
    )


def _deployable_rows(*columns: Any) -> sa.Select[Any]:
    return (
        sa.select(*columns).select_from(Deployable).join(Device, Device.id == Deployable.device_id)
    )


def _handle_rows(*columns: Any) -> sa.Select[Any]:
    return (
        sa.select(*columns)
        .select_from(AttachHandle)
        .join(Deployable, Deployable.id == AttachHandle.deployable_id)
        .join(Device, Device.id == Deployable.device_id)
    )


Terms = tuple[sa.ColumnElement[bool], ...]

_PROMISED = sa.exists().where(Arq.attach_handle_id == AttachHandle.id)
_IN_USE = sa.exists().where(
    AttachHandle.deployable_id == Deployable.id,
    sa.or_(AttachHandle.state.not_in(UNHELD), _PROMISED),
)
_NAMED = sa.exists().where(Arq.deployable_id == Deployable.id)
_AT_WORK = sa.exists().where(Work.deployable_id == Deployable.id, Work.attach_handle_id.is_(None))
_BUSY = sa.or_(_IN_USE, _NAMED, _AT_WORK)
_BLIND = sa.exists().where(
    Driver.host_id == Device.host_id,
    Driver.name == Device.driver,
    Driver.state == DriverState.FAILED.value,
)
#: Terms on ``Device``: what operators made is theirs, and what cannot be seen may be there.
_SEEN_BY_DRIVER: Terms = (Device.origin == Origin.DISCOVERED.value, ~_BLIND)


def _ever(age_ms: int) -> sa.ColumnElement[bool]:
    """An age of 0 is never reached."""
    return sa.true() if age_ms else sa.false()


@cache
def _devices_due(now: sa.ColumnElement[int], age_ms: int) -> Terms:
    """The terms on ``Device``."""
    busy = sa.exists().where(Deployable.device_id == Device.id, _BUSY)
    overdue = sa.and_(_ever(age_ms), *_SEEN_BY_DRIVER, Device.lost_ms < now - age_ms)
    uninstalled = sa.and_(_UNINSTALLED, ~_BLIND)
    return (
        Device.lost_ms.is_not(None),
        sa.or_(overdue, uninstalled, Device.leaving),
        ~busy,
    )


@cache
def _deployables_due(now: sa.ColumnElement[int], age_ms: int) -> Terms:
    """The terms on ``Deployable`` and its ``Device``."""
    other = orm.aliased(Deployable)
    below = sa.exists().where(
        other.id != Deployable.id,
        sa.or_(other.parent_id == Deployable.id, other.root_id == Deployable.id),
    )
    overdue = sa.and_(_ever(age_ms), *_SEEN_BY_DRIVER, Deployable.lost_ms < now - age_ms)
    return (
        Device.lost_ms.is_(None),
        sa.or_(overdue, Deployable.lost_ms == FORGOTTEN),
        ~_BUSY,
        ~below,
    )


@cache
def _handles_due(now: sa.ColumnElement[int], age_ms: int, silent_ms: int) -> Terms:
    """The terms on ``AttachHandle``, its ``Deployable`` and its ``Device``."""
    watched = sa.exists().where(
        Host.id == Device.host_id, IS_AGENT, Service.last_seen_ms > now - silent_ms
    )
    overdue = sa.and_(_ever(age_ms), *_SEEN_BY_DRIVER, AttachHandle.lost_ms < now - age_ms, watched)
    return (
        Device.lost_ms.is_(None),
        Deployable.lost_ms.is_(None),
        sa.or_(overdue, AttachHandle.lost_ms == FORGOTTEN),
        AttachHandle.state.in_(UNHELD),
        ~_PROMISED,
    )
