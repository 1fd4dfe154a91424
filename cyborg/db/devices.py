# SPDX-License-Identifier: Apache-2.0
"""Read, lock and change devices in SQL."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from cyborg.db import listing
from cyborg.db.hosts import AGENT_EPOCH
from cyborg.db.models import (
    Arq,
    AttachHandle,
    Deployable,
    Device,
    Hardware,
    Host,
    Instance,
)
from cyborg.db.rows import Row, Shown, column, nullable, required, select, shown, shown_hardware
from cyborg.db.transaction import Transaction
from cyborg.model.attribute import Origin
from cyborg.model.device import DRAINED, LOST, MOVES, DeviceEvent, DeviceStatus
from cyborg.model.scope import Scope

#: A hidden ARQ (being attached or detached) shows no instance.
_SHOWN = sa.case((~Arq.hidden, Arq.instance_uuid)).label("shown")


def _held(*terms: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """Return the term: an ARQ that matches ``terms`` holds a unit of the device."""
    return (
        sa.exists()
        .where(Deployable.device_id == Device.id, Arq.deployable_id == Deployable.id, *terms)
        .correlate(Device)
    )


#: The API's word for the state of a device, one of DEVICE_STATES: a lost one keeps its status.
STATE: sa.SQLColumnExpression[str] = sa.case(
    (Device.lost_ms.is_not(None), LOST),
    (sa.and_(Device.status == DeviceStatus.DRAINING.value, sa.not_(_held())), DRAINED),
    else_=Device.status,
)


class VisibleDevice(Device, Shown):
    """A device as the API shows it."""

    __abstract__ = True

    state = column(STATE)


# A device belongs to the projects whose ARQs hold units of it.
_VISIBLE = shown_hardware(VisibleDevice, lambda project_id: _held(Arq.project_id == project_id))
# Built once: SQLAlchemy takes longer to build it than the database to execute it.
_SHOW = _VISIBLE.where(Device.uuid == sa.bindparam("uuid"))
SORTABLE = listing.sortable(
    Device,
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


@dataclass(frozen=True)
class Filters:
    """The filters of a list of devices; None: do not filter.

    ``equal`` maps columns to values. ``states`` are words of DEVICE_STATES. ``in_use`` tells
    whether an ARQ holds units of the device; ``instance`` is that of an ARQ that does.
    """

    equal: Mapping[str, str] = field(default_factory=dict)
    states: Collection[str] | None = None
    in_use: bool | None = None
    instance: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


def show(tx: Transaction, uuid: str, scope: Scope) -> VisibleDevice | None:
    """Return the device with this uuid if the scope reaches it."""
    return tx.first(_SHOW.within(scope), {"uuid": uuid})


def page(
    tx: Transaction, page: listing.Page, scope: Scope, filters: Filters
) -> Sequence[VisibleDevice]:
    """Return a page of the devices in the scope that match the filters.

    Filters about users consider only the users in the scope.
    """
    query = listing.paged(tx, _VISIBLE.within(scope), SORTABLE, page)
    query = query.where(*(getattr(Device, name) == value for name, value in filters.equal.items()))
    if filters.states is not None:
        query = query.where(STATE.in_(filters.states))
    # One ARQ has to match all terms: a project must not learn who else uses a device.
    own = [] if scope.project_id is None else [Arq.project_id == scope.project_id]
    if filters.in_use is not None:
        query = query.where(_held(*own) if filters.in_use else sa.not_(_held(*own)))
    if filters.instance is not None:
        query = query.where(_held(Arq.instance_uuid == filters.instance, ~Arq.hidden, *own))
    if filters.labels and own:
        query = query.where(_held(*own))
    query = query.where(
        *(Device.labels[key].as_string() == value for key, value in filters.labels.items())
    )
    return tx.all(query)


class Cleaning(Row):
    """The last cleaning of a unit, see ``cyborg.model.cleaning.CleanRecord``."""

    handle_key = column(AttachHandle.handle_key)
    record: dict[str, Any] = required(AttachHandle.clean_record)
    at_ms = column(AttachHandle.clean_ms)


def cleanings(tx: Transaction, device_id: int) -> Sequence[Cleaning]:
    """Return the last cleanings of the units of a device that were ever cleaned."""
    return tx.all(
        select(Cleaning)
        .join(Deployable, Deployable.id == AttachHandle.deployable_id)
        .where(Deployable.device_id == device_id, AttachHandle.clean_ms.is_not(None))
        .order_by(AttachHandle.id)
    )


@dataclass(frozen=True)
class Holder:
    """An ARQ that holds a unit; ``instance`` is None while the ARQ shows none."""

    arq_uuid: str
    project_id: str | None
    instance: "User | None"


@dataclass(frozen=True)
class User:
    """An instance that holds units; ``name`` and ``status`` are Nova's answer at ``seen_ms``.

    They are None until Nova has answered for the first time.
    """

    uuid: str
    name: str | None
    status: str | None
    seen_ms: int | None


class _Holder(Shown):
    """An ARQ that holds a unit, with the instance that it shows."""

    device_id = column(Deployable.device_id)
    uuid = column(Arq.uuid)
    project_id = column(Arq.project_id)
    shown: str | None = column(_SHOWN)
    name = nullable(Instance.name)
    status = nullable(Instance.status)
    seen_ms = nullable(Instance.seen_ms)


def holders(tx: Transaction, ids: Sequence[int], scope: Scope) -> dict[int, list[Holder]]:
    """Return device id → ARQs in the scope that hold units of the device, in order of instance."""
    query = (
        shown(_Holder, lambda project_id: Arq.project_id == project_id)
        .within(scope)
        .select_from(Arq)
        .join(Deployable, Deployable.id == Arq.deployable_id)
        .outerjoin(Instance, Instance.uuid == _SHOWN)
        .where(Deployable.device_id.in_(ids))
        .order_by(_SHOWN, Arq.id)
    )
    result: dict[int, list[Holder]] = {}
    for row in tx.all(query) if ids else ():
        user = None if row.shown is None else User(row.shown, row.name, row.status, row.seen_ms)
        result.setdefault(row.device_id, []).append(Holder(row.uuid, row.project_id, user))
    return result


#: The deployable that work on a device refers to; a device with work is not removed.
_DEPLOYABLE = (
    sa.select(sa.func.min(Deployable.id))
    .where(Deployable.device_id == Device.id)
    .correlate(Device)
    .scalar_subquery()
)


class DeviceOfWork(Device):
    """A device with the deployable that work on it refers to, None while it has none."""

    __abstract__ = True

    deployable_id: int | None = column(_DEPLOYABLE)


class AgentDevice(DeviceOfWork):
    """A device with its agent, None while its host has none.

    ``unready`` is True when the device needs set-up before use.
    """

    __abstract__ = True

    service_host = column(Host.service_host)
    agent_epoch: int | None = column(AGENT_EPOCH)
    unready = column(sa.func.coalesce(Hardware.setup_required, sa.false()))


#: The hardware row of a device.
_ENTRY = sa.and_(
    Hardware.host_id == Device.host_id,
    Hardware.driver == Device.driver,
    Hardware.hardware_key == Device.device_key,
)


def with_agent(tx: Transaction, uuid: str) -> AgentDevice | None:
    """Return the device with this uuid; None when there is none."""
    return tx.first(
        select(AgentDevice)
        .join(Host, Host.id == Device.host_id)
        .outerjoin(Hardware, _ENTRY)
        .where(Device.uuid == uuid)
    )


def needing_set_up(
    tx: Transaction,
    *terms: sa.ColumnElement[bool],
    status: DeviceStatus = DeviceStatus.ENABLED,
) -> Sequence[DeviceOfWork]:
    """Return the devices that match the terms, have this status, and need set-up before use."""
    in_service = (Device.status == status.value, Device.lost_ms.is_(None))
    return tx.all(
        select(DeviceOfWork)
        .join(Hardware, _ENTRY)
        .where(*terms, *in_service, Hardware.setup_required)
        .order_by(Device.id)
    )


def in_set_up(tx: Transaction, host_id: int, drivers: Collection[str]) -> list[str]:
    """Return the uuids of the devices of these drivers that a host has to set up."""
    query = sa.select(Device.uuid).where(
        Device.host_id == host_id,
        Device.driver.in_(sorted(drivers)),
        Device.status == DeviceStatus.INSTALLING.value,
    )
    return list(tx.execute(query.order_by(Device.id)).scalars())


def arqs_of(tx: Transaction, id_: int) -> list[str]:
    """Return the uuids of the ARQs that refer to a device."""
    own = sa.select(Deployable.id).where(Deployable.device_id == id_)
    return list(
        tx.execute(sa.select(Arq.uuid).where(Arq.deployable_id.in_(own)).order_by(Arq.id)).scalars()
    )


def holds(tx: Transaction, project_id: str, id_: int) -> bool:
    """Return whether an ARQ of this project holds a unit of a device."""
    own = sa.select(Deployable.id).where(Deployable.device_id == id_)
    held = sa.select(Arq.id).where(Arq.deployable_id.in_(own), Arq.project_id == project_id)
    return tx.execute(held.limit(1)).first() is not None


def lock_labels(tx: Transaction, id_: int) -> dict[str, str]:
    """Lock a device and return its labels."""
    result = tx.execute(sa.select(Device.labels).where(Device.id == id_).with_for_update())
    return dict(result.scalar_one() or {})


def set_labels(tx: Transaction, id_: int, new: Mapping[str, str]) -> None:
    """Set the labels of a device that the caller has locked."""
    tx.execute(sa.update(Device).where(Device.id == id_).values(labels=dict(new)))


def set_model(tx: Transaction, id_: int, model: str) -> None:
    """Set the model of a device that an operator created."""
    tx.execute(sa.update(Device).where(Device.id == id_).values(model=model))


def move(tx: Transaction, id_: int, event: DeviceEvent, reason: str | None = None) -> bool:
    """Change the status of a device by an event; False when its status does not allow the event.

    ``reason`` replaces the reason of the previous status.
    """
    return bool(move_all(tx, [id_], event, reason))


def move_all(
    tx: Transaction, ids: Collection[int], event: DeviceEvent, reason: str | None = None
) -> int:
    """Change the statuses of devices as ``move`` does, in one statement; return their number."""
    transition = MOVES[event]
    result = tx.execute(
        sa.update(Device)
        .where(
            Device.id.in_(sorted(ids)),
            Device.status.in_([status.value for status in transition.sources]),
        )
        .values(status=transition.target.value, status_reason=reason)
    )
    return int(result.rowcount)


def set_reason(tx: Transaction, id_: int, reason: str) -> None:
    """Store why the set-up of a device has not finished yet."""
    tx.execute(
        sa.update(Device)
        .where(Device.id == id_, Device.status == DeviceStatus.INSTALLING.value)
        .values(status_reason=reason)
    )


def request_removal(tx: Transaction, id_: int) -> bool:
    """Request the removal of a device that is lost, or that an operator created.

    An operator's device is marked as lost now. The attach handles are marked as lost too, so that
    a concurrent bind claims none of them. Returns False when the host still reports the device and
    would discover it again.
    """
    removable = sa.or_(Device.lost_ms.is_not(None), Device.origin == Origin.OPERATOR.value)
    result = tx.execute(
        sa.update(Device)
        .where(Device.id == id_, removable)
        .values(being_removed=True, lost_ms=sa.func.coalesce(Device.lost_ms, tx.now))
    )
    if not result.rowcount:
        return False
    own = sa.select(Deployable.id).where(Deployable.device_id == id_)
    tx.execute(
        sa.update(AttachHandle)
        .where(AttachHandle.deployable_id.in_(own), AttachHandle.lost_ms.is_(None))
        .values(lost_ms=tx.now)
    )
    return True


def due_health(tx: Transaction) -> list[int]:
    """Return the ids of hosts with devices whose probation, or ignoring of faults, is over."""
    query = sa.select(Device.host_id).where(Device.health_until_ms <= tx.now).distinct()
    return sorted(tx.execute(query).scalars())
