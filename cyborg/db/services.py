# SPDX-License-Identifier: Apache-2.0
"""SQL for services: heartbeats, epochs that fence earlier processes, and host removal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from cyborg.db import attach_handles
from cyborg.db.base import Record
from cyborg.db.hosts import IS_AGENT
from cyborg.db.models import (
    Arq,
    AttachHandle,
    Backend,
    Deployable,
    Device,
    Driver,
    Hardware,
    Host,
    Service,
    Work,
)
from cyborg.model import health_view
from cyborg.model.work import WorkKind


@dataclass(frozen=True)
class Process:
    """Who a process is; ``process`` tells several of one binary on a host apart."""

    host: str
    binary: str
    version: str
    endpoint: str
    process: str = ""


def register(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    process: Process,
    status: str,
    *,
    status_reason: str = "",
    bus_error: str = "",
) -> tuple[int, int]:
    """Begin a new epoch of this process; answers (id, epoch).

    What an older epoch did or does under the same name no longer counts from now on.
    ``status_reason`` and ``bus_error`` are stored as by ``beat``.
    """
    row = tx.execute(
        sa.select(Service.id, Service.epoch).where(*_named(process)).with_for_update()
    ).one_or_none()
    values = {
        "version": process.version,
        "endpoint": process.endpoint,
        "status": status,
        "last_seen_ms": now,
        "status_reason": status_reason or None,
        "bus_error": bus_error or None,
        "bus_error_ms": now if bus_error else None,
    }
    if row is None:
        fresh = {"host": process.host, "binary": process.binary, "process": process.process}
        made = tx.execute(
            sa.insert(Service).values(uuid=str(uuid4()), disabled=False, epoch=1, **fresh, **values)
        )
        return int((made.inserted_primary_key or (0,))[0]), 1
    tx.execute(sa.update(Service).where(Service.id == row.id).values(epoch=row.epoch + 1, **values))
    return int(row.id), int(row.epoch) + 1


def beat(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    process: Process,
    *,
    epoch: int,
    status: str,
    status_reason: str = "",
    bus_error: str = "",
) -> bool:
    """Renew the lease of an epoch; False when it is over.

    ``status_reason`` says why the status is FAILED.
    ``bus_error`` says why the process receives no requests over the bus, and is empty while it
    does. The row keeps the time since which it has had such an error.
    """
    since = sa.func.coalesce(Service.bus_error_ms, now) if bus_error else None
    result = tx.execute(
        sa.update(Service)
        .where(*_named(process), Service.epoch == epoch)
        .values(
            last_seen_ms=now,
            status=status,
            version=process.version,
            status_reason=status_reason or None,
            bus_error=bus_error or None,
            bus_error_ms=since,
        )
    )
    return int(result.rowcount) == 1


def first(tx: sa.Connection, now: sa.ColumnElement[int], binary: str, silent_ms: int) -> int | None:
    """The id of the process of a binary that was there before all others that live now.

    ``silent_ms`` is how long a silent one counts as living; None when none does.
    """
    found: int | None = tx.execute(
        sa.select(sa.func.min(Service.id)).where(
            Service.binary == binary, Service.last_seen_ms > now - silent_ms
        )
    ).scalar_one()
    return found


def renew(tx: sa.Connection, now: sa.ColumnElement[int], process: Process) -> bool:
    """Renew the row of a process that needs no epoch; False when there is none."""
    result = tx.execute(
        sa.update(Service)
        .where(*_named(process))
        .values(last_seen_ms=now, version=process.version, endpoint=process.endpoint)
    )
    return int(result.rowcount) == 1


def end(tx: sa.Connection, process: Process, *, epoch: int) -> None:
    """Delete the row of a process that ends; not that of a successor with the same name."""
    tx.execute(sa.delete(Service).where(*_named(process), Service.epoch == epoch))


@dataclass(frozen=True)
class Seen:
    """A process as its row shows it; ``silent_ms`` is the age of its last heartbeat."""

    process: Process
    status: str
    epoch: int
    silent_ms: int
    up: bool


def listed(
    tx: sa.Connection, now: sa.ColumnElement[int], down_after: Mapping[str, int]
) -> list[Seen]:
    """The processes of the binaries that ``down_after`` names, by binary, host and process.

    One is up while its last heartbeat, by the database's clock, is not older than what
    ``down_after`` says of its binary, in milliseconds.
    """
    rows = tx.execute(
        sa.select(
            Service.host,
            Service.binary,
            Service.version,
            Service.endpoint,
            Service.process,
            Service.status,
            Service.epoch,
            (now - Service.last_seen_ms).label("silent_ms"),
        )
        .where(Service.binary.in_(down_after))
        .order_by(Service.binary, Service.host, Service.process)
    )
    return [
        Seen(
            Process(row.host, row.binary, row.version or "", row.endpoint or "", row.process),
            row.status,
            int(row.epoch),
            int(row.silent_ms),
            up=row.silent_ms <= down_after[row.binary],
        )
        for row in rows
    ]


def processes(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    *,
    uuid: str | None = None,
    host: str | None = None,
    binary: str | None = None,
) -> Sequence[Record]:
    """The rows of processes with their silence, in their order; of one, of one host or binary.

    A host goes by its own name or the compute's in Placement.
    """
    terms = [] if uuid is None else [Service.uuid == uuid]
    if binary is not None:
        terms.append(Service.binary == binary)
    if host is not None:
        agents = sa.select(Host.service_host).where(Host.name == host)
        terms.append(sa.or_(Service.host == host, Service.host.in_(agents)))
    return tx.execute(
        sa.select(
            Service.uuid,
            Service.host,
            Service.binary,
            Service.version,
            Service.endpoint,
            Service.disabled,
            Service.disabled_reason,
            Service.last_seen_ms,
            Service.status_reason,
            Service.bus_error,
            Service.bus_error_ms,
            (now - Service.last_seen_ms).label("silent_ms"),
        )
        .where(*terms)
        .order_by(Service.id)
    ).all()


def health(row: Record) -> health_view.Process:
    """What the health view judges of a row of ``processes``."""
    return health_view.Process(
        binary=row.binary,
        host=row.host,
        silent_ms=int(row.silent_ms),
        last_seen_ms=int(row.last_seen_ms),
        bus_error=row.bus_error,
        bus_error_ms=row.bus_error_ms,
        status_reason=row.status_reason,
    )


def current(tx: sa.Connection, now: sa.ColumnElement[int], process: Process) -> Record:
    """The epoch in force and its age since last seen: (epoch, silent_ms); None when unknown."""
    return tx.execute(
        sa.select(Service.epoch, (now - Service.last_seen_ms).label("silent_ms")).where(
            *_named(process)
        )
    ).one_or_none()


def forget_silent(
    tx: sa.Connection, now: sa.ColumnElement[int], process: Process, *, silent_ms: int
) -> None:
    """Remove rows of the same binary and host whose process ended long ago."""
    tx.execute(
        sa.delete(Service).where(
            Service.host == process.host,
            Service.binary == process.binary,
            Service.process != process.process,
            Service.last_seen_ms < now - silent_ms,
        )
    )


def _named(process: Process) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        Service.host == process.host,
        Service.binary == process.binary,
        Service.process == process.process,
    )


def process(tx: sa.Connection, now: sa.ColumnElement[int], uuid: str) -> Record | None:
    """A process with its silence and, of an agent, the id of its host; None when there is none."""
    return tx.execute(
        sa.select(
            Service.id,
            Service.uuid,
            Service.host,
            Service.binary,
            Service.disabled,
            Host.id.label("host_id"),
            (now - Service.last_seen_ms).label("silent_ms"),
        )
        .outerjoin(Host, IS_AGENT)
        .where(Service.uuid == uuid)
    ).one_or_none()


def disable(tx: sa.Connection, id_: int, *, disabled: bool, reason: str | None) -> None:
    """Have a process disabled for a reason, or enabled."""
    tx.execute(
        sa.update(Service)
        .where(Service.id == id_)
        .values(disabled=disabled, disabled_reason=reason)
    )


def remove(tx: sa.Connection, id_: int) -> None:
    """Delete the row of a process; work that it held is anybody's."""
    tx.execute(sa.delete(Service).where(Service.id == id_))


def lock_host(tx: sa.Connection, host_id: int) -> str:
    """Lock a host and, after it, all its attach handles by id: no bind takes one after that.

    Answers its name.
    """
    locked = sa.select(Host.name).where(Host.id == host_id).with_for_update()
    name = str(tx.execute(locked).scalar_one())
    attach_handles.lock(tx, AttachHandle.deployable_id.in_(_deployables(host_id)))
    return name


def arqs(tx: sa.Connection, host_id: int) -> list[str]:
    """The ARQs that have a unit of a host, or are to get one."""
    mine = _deployables(host_id)
    handles = sa.select(AttachHandle.id).where(AttachHandle.deployable_id.in_(mine))
    return list(
        tx.execute(
            sa.select(Arq.uuid)
            .where(sa.or_(Arq.attach_handle_id.in_(handles), Arq.deployable_id.in_(mine)))
            .order_by(Arq.id)
        ).scalars()
    )


def forgotten_by(tx: sa.Connection, host_id: int) -> str | None:
    """The operation that is to forget this host; None when nobody has asked for that."""
    query = sa.select(Work.operation_id).where(
        Work.host_id == host_id, Work.kind == WorkKind.FORGET.value
    )
    found: str | None = tx.execute(query.limit(1)).scalar()
    return found


def providers(tx: sa.Connection, host_id: int) -> Sequence[Record]:
    """The deployables of a host that may have a provider: (id, parent_id, name, rp_uuid)."""
    return tx.execute(
        sa.select(Deployable.id, Deployable.parent_id, Deployable.name, Deployable.rp_uuid)
        .join(Device, Device.id == Deployable.device_id)
        .where(Device.host_id == host_id, Deployable.rp_uuid.is_not(None))
    ).all()


def devices(tx: sa.Connection, host_id: int) -> Sequence[Record]:
    """The devices of a host: (id, uuid)."""
    query = sa.select(Device.id, Device.uuid).where(Device.host_id == host_id)
    return tx.execute(query.order_by(Device.id)).all()


def call_off_work(tx: sa.Connection, host_id: int, but: int) -> None:
    """Delete all work on a host, and detach the one row ``but`` from it."""
    mine = _deployables(host_id)
    handles = sa.select(AttachHandle.id).where(AttachHandle.deployable_id.in_(mine))
    about = (
        Work.host_id == host_id,
        Work.deployable_id.in_(mine),
        Work.attach_handle_id.in_(handles),
    )
    tx.execute(sa.delete(Work).where(sa.or_(*about), Work.id != but))
    tx.execute(sa.update(Work).where(Work.id == but).values(host_id=None))


def remove_host(tx: sa.Connection, host_id: int) -> None:
    """Delete a host that has no devices and no work any more."""
    drivers = sa.select(Driver.id).where(Driver.host_id == host_id)
    tx.execute(sa.delete(Backend).where(Backend.driver_id.in_(drivers)))
    tx.execute(sa.delete(Driver).where(Driver.host_id == host_id))
    tx.execute(sa.delete(Hardware).where(Hardware.host_id == host_id))
    tx.execute(sa.delete(Host).where(Host.id == host_id))


def _deployables(host_id: int) -> sa.Select[Any]:
    return (
        sa.select(Deployable.id)
        .join(Device, Device.id == Deployable.device_id)
        .where(Device.host_id == host_id)
    )
