# SPDX-License-Identifier: Apache-2.0
"""SQL for devices: find, read, lock and change them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from cyborg.db import listing, models, units
from cyborg.db.base import Record
from cyborg.db.hosts import AGENT_EPOCH
from cyborg.db.models import Arq, AttachHandle, Deployable, Device, Hardware, Host
from cyborg.model.attribute import Origin
from cyborg.model.device import DeviceStatus
from cyborg.model.device_life import LOST, MOVES, DeviceEvent

_D = models.Device.__table__.c
_U = models.Deployable.__table__.c
_R = models.Arq.__table__.c
_I = models.Instance.__table__.c
#: A request that is on its way in or out shows no instance.
_SHOWN: sa.Label[Any] = sa.case((~_R.hidden, _R.instance_uuid)).label("shown")
#: In service: enabled by the operator, and there.
_IN_SERVICE = sa.and_(_D.status == DeviceStatus.ENABLED.value, _D.lost_ms.is_(None))
_VISIBLE: sa.Select[*tuple[Any, ...]] = sa.select(
    _D.id,
    _D.uuid,
    _D.type,
    _D.vendor,
    _D.model,
    _D.std_board_info,
    _D.vendor_board_info,
    _D.hostname,
    _D.device_key,
    _D.numa_node,
    _D.driver,
    _D.backend,
    _D.labels,
    _D.status,
    _D.status_reason,
    _D.lost_ms,
    _D.health,
    _D.health_reason,
    _D.health_ms,
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


@dataclass(frozen=True)
class Wanted:
    """Which devices are listed; what is None decides nothing.

    ``equal`` are values of columns. ``in_service`` True keeps those that are enabled and not lost,
    False the others; ``status`` is one word of the life, a lost device being that alone.
    ``in_use`` tells whether a request holds units of it, ``instance`` is one's that does;
    ``project_id`` is that of a request that does.
    """

    equal: Mapping[str, str] = field(default_factory=dict)
    in_service: bool | None = None
    status: str | None = None
    in_use: bool | None = None
    instance: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    project_id: str | None = None


def show(
    tx: sa.Connection, uuid: str, project_id: str | None = None
) -> sa.Row[*tuple[Any, ...]] | None:
    """The device with this uuid, if a request of this project (None: of any, or none) holds it."""
    query = _SHOW if project_id is None else _SHOW.where(_held(_R.project_id == project_id))
    return tx.execute(query, {"uuid": uuid}).first()


def page(
    tx: sa.Connection, wanted: listing.Page, which: Wanted
) -> Sequence[sa.Row[*tuple[Any, ...]]]:
    """A page of the devices that are wanted."""
    query = listing.paged(tx, _VISIBLE, SORTABLE, wanted)
    return tx.execute(query.where(*_terms(which))).all()


@dataclass(frozen=True)
class Part:
    """A deployable of a device, which is a provider in Placement.

    ``reserved`` of its ``total`` units are not to be given out by Placement; ``error`` is why
    Placement refuses the provider.
    """

    uuid: str
    name: str
    rp_uuid: str | None
    resource_class: str
    error: str | None
    total: int
    reserved: int
    #: How many of its units count as what, see ``units.WORD``.
    words: Mapping[str, int]
    traits: tuple[str, ...]


def parts(tx: sa.Connection, ids: Sequence[int]) -> dict[int, list[Part]]:
    """The deployables of these devices with units and traits, by device, in two statements."""
    if not ids:
        return {}
    traits: dict[str, set[str]] = {}
    for row in tx.execute(_traits(ids)):
        traits.setdefault(row.uuid, set()).add(row.value)
    by_uuid: dict[str, list[units.Row]] = {}
    for row in units.of_devices(tx, ids):
        by_uuid.setdefault(row.uuid, []).append(row)
    result: dict[int, list[Part]] = {}
    for uuid, rows in by_uuid.items():
        words: dict[str, int] = {}
        for row in rows:
            if row.word is not None:
                words[row.word] = words.get(row.word, 0) + row.amount
        part = Part(
            uuid=uuid,
            name=rows[0].name,
            rp_uuid=rows[0].rp_uuid,
            resource_class=rows[0].resource_class,
            error=rows[0].publish_error,
            total=sum(words.values()),
            reserved=sum(row.amount for row in rows if row.word is not None and not row.offered),
            words=words,
            traits=tuple(sorted(traits.get(uuid, ()))),
        )
        result.setdefault(rows[0].device_id, []).append(part)
    return result


def _traits(ids: Sequence[int]) -> sa.Select[*tuple[Any, ...]]:
    """The traits that the providers of devices have in Placement."""
    return (
        sa.select(_U.uuid, models.Attribute.value)
        .select_from(models.Attribute)
        .join(models.Deployable, _U.id == models.Attribute.deployable_id)
        .where(
            _U.device_id.in_(ids),
            models.Attribute.key.startswith("trait"),
            models.Attribute.origin == Origin.DISCOVERED.value,
        )
    )


@dataclass(frozen=True)
class Holder:
    """An ARQ that holds a unit; ``instance`` is None while the ARQ shows none."""

    arq_uuid: str
    project_id: str | None
    instance: "User | None"


@dataclass(frozen=True)
class User:
    """An instance that holds units, and what Nova said of it at ``seen_ms`` (None: nothing yet)."""

    uuid: str
    name: str | None
    status: str | None
    seen_ms: int | None


def holders(
    tx: sa.Connection, ids: Sequence[int], project_id: str | None
) -> dict[int, list[Holder]]:
    """The ARQs that hold units of these devices: device id → holders, by instance.

    ``project_id`` keeps those of one project.
    """
    query = (
        sa.select(_U.device_id, _R.uuid, _R.project_id, _SHOWN, _I.name, _I.status, _I.seen_ms)
        .select_from(models.Arq)
        .join(models.Deployable, _U.id == _R.deployable_id)
        .outerjoin(models.Instance, _I.uuid == _SHOWN)
        .where(_U.device_id.in_(ids))
        .order_by(_SHOWN, _R.id)
    )
    if project_id is not None:
        query = query.where(_R.project_id == project_id)
    result: dict[int, list[Holder]] = {}
    for row in tx.execute(query) if ids else ():
        user = None if row.shown is None else User(row.shown, row.name, row.status, row.seen_ms)
        result.setdefault(row.device_id, []).append(Holder(row.uuid, row.project_id, user))
    return result


def _terms(which: Wanted) -> Iterator[sa.ColumnElement[bool]]:
    yield from (_D[name] == value for name, value in which.equal.items())
    if which.in_service is not None:
        yield _IN_SERVICE if which.in_service else sa.not_(_IN_SERVICE)
    if which.status == LOST:
        yield _D.lost_ms.is_not(None)
    elif which.status is not None:
        yield sa.and_(_D.status == which.status, _D.lost_ms.is_(None))
    if which.in_use is not None:
        yield _held() if which.in_use else sa.not_(_held())
    if which.instance is not None or which.project_id is not None:
        # By the same request: who else shares a device is not for its users to find out.
        yield _held(*_of(which))
    for key, value in which.labels.items():
        yield _D.labels[key].as_string() == value


def _of(which: Wanted) -> Iterator[sa.ColumnElement[bool]]:
    if which.instance is not None:
        yield _R.instance_uuid == which.instance
        yield ~_R.hidden
    if which.project_id is not None:
        yield _R.project_id == which.project_id


def _held(*terms: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """Whether a request of this kind holds a unit of a device."""
    return sa.exists().where(_U.device_id == _D.id, _R.deployable_id == _U.id, *terms)


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


def arqs_of(tx: sa.Connection, id_: int) -> list[str]:
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
