# SPDX-License-Identifier: Apache-2.0
"""Read and change services in SQL: heartbeats, epochs that fence old processes, host removal."""

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
    """The identity of a process; ``process`` distinguishes processes of one binary on a host."""

    host: str
    binary: str
    version: str
    endpoint: str
    process: str = ""


@dataclass(frozen=True)
class Seen:
    """A process from its row; ``silent_ms`` is the age of its last heartbeat in milliseconds."""

    process: Process
    status: str
    epoch: int
    silent_ms: int
    up: bool


def listed(
    tx: sa.Connection, now: sa.ColumnElement[int], down_after: Mapping[str, int]
) -> list[Seen]:
    """Return the processes of the binaries in ``down_after``, by binary, host and process.

    A process is up while its last heartbeat, by the database's clock, is not older than
    ``down_after`` of its binary, in milliseconds.
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
    """Return the rows of processes with ``silent_ms``, in order of id, optionally filtered.

    ``host`` is the name of the service's host, or the name of the compute host in Placement.
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
    """Return a row of ``processes`` in the form that the health view evaluates."""
    return health_view.Process(
        binary=row.binary,
        host=row.host,
        silent_ms=int(row.silent_ms),
        last_seen_ms=int(row.last_seen_ms),
        bus_error=row.bus_error,
        bus_error_ms=row.bus_error_ms,
        status_reason=row.status_reason,
    )


def process(tx: sa.Connection, now: sa.ColumnElement[int], uuid: str) -> Record | None:
    """Return a process with ``silent_ms`` and, for an agent, ``host_id``; None: not found."""
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


def current(tx: sa.Connection, now: sa.ColumnElement[int], process: Process) -> Record:
    """Return (epoch, silent_ms) of a process; None when it has no row."""
    return tx.execute(
        sa.select(Service.epoch, (now - Service.last_seen_ms).label("silent_ms")).where(
            *_named(process)
        )
    ).one_or_none()


def first(tx: sa.Connection, now: sa.ColumnElement[int], binary: str, silent_ms: int) -> int | None:
    """Return the lowest id among the processes of a binary that are alive; None: none is.

    A process is alive while its last heartbeat is less than ``silent_ms`` milliseconds old.
    """
    id_: int | None = tx.execute(
        sa.select(sa.func.min(Service.id)).where(
            Service.binary == binary, Service.last_seen_ms > now - silent_ms
        )
    ).scalar_one()
    return id_


def arqs(tx: sa.Connection, host_id: int) -> list[str]:
    """Return the ARQs that hold or have claimed units of a host."""
    own = _deployables(host_id)
    handles = sa.select(AttachHandle.id).where(AttachHandle.deployable_id.in_(own))
    return list(
        tx.execute(
            sa.select(Arq.uuid)
            .where(sa.or_(Arq.attach_handle_id.in_(handles), Arq.deployable_id.in_(own)))
            .order_by(Arq.id)
        ).scalars()
    )


def providers(tx: sa.Connection, host_id: int) -> Sequence[Record]:
    """Return (id, parent_id, name, rp_uuid) of a host's deployables that may have a provider."""
    return tx.execute(
        sa.select(Deployable.id, Deployable.parent_id, Deployable.name, Deployable.rp_uuid)
        .join(Device, Device.id == Deployable.device_id)
        .where(Device.host_id == host_id, Deployable.rp_uuid.is_not(None))
    ).all()


def devices(tx: sa.Connection, host_id: int) -> Sequence[Record]:
    """Return (id, uuid) of the devices of a host."""
    query = sa.select(Device.id, Device.uuid).where(Device.host_id == host_id)
    return tx.execute(query.order_by(Device.id)).all()


def removal_operation(tx: sa.Connection, host_id: int) -> str | None:
    """Return the operation that removes this host; None when no removal was requested."""
    query = sa.select(Work.operation_id).where(
        Work.host_id == host_id, Work.kind == WorkKind.REMOVE_SERVICE.value
    )
    operation_id: str | None = tx.execute(query.limit(1)).scalar()
    return operation_id


def register(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    process: Process,
    status: str,
    *,
    status_reason: str = "",
    bus_error: str = "",
) -> tuple[int, int]:
    """Begin a new epoch of this process, and return (id, epoch).

    The new epoch fences every older process with the same identity. ``status_reason`` and
    ``bus_error`` are stored as by ``heartbeat``.
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
        identity = {"host": process.host, "binary": process.binary, "process": process.process}
        result = tx.execute(
            sa.insert(Service).values(
                uuid=str(uuid4()), disabled=False, epoch=1, **identity, **values
            )
        )
        return int((result.inserted_primary_key or (0,))[0]), 1
    tx.execute(sa.update(Service).where(Service.id == row.id).values(epoch=row.epoch + 1, **values))
    return int(row.id), int(row.epoch) + 1


def heartbeat(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    process: Process,
    *,
    epoch: int,
    status: str,
    status_reason: str = "",
    bus_error: str = "",
) -> bool:
    """Store a heartbeat, which renews the lease of an epoch; False when the epoch has ended.

    ``status_reason`` is the reason why the status is FAILED. ``bus_error`` is the reason why the
    process cannot receive requests over the message bus, empty when it can. The row keeps the time
    since which the process has had a bus error.
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


def renew(tx: sa.Connection, now: sa.ColumnElement[int], process: Process) -> bool:
    """Store a heartbeat of a process without an epoch; False when the process has no row."""
    result = tx.execute(
        sa.update(Service)
        .where(*_named(process))
        .values(last_seen_ms=now, version=process.version, endpoint=process.endpoint)
    )
    return int(result.rowcount) == 1


def end(tx: sa.Connection, process: Process, *, epoch: int) -> None:
    """Delete the row of a process that ends, unless a newer epoch has taken it over."""
    tx.execute(sa.delete(Service).where(*_named(process), Service.epoch == epoch))


def remove_silent(
    tx: sa.Connection, now: sa.ColumnElement[int], process: Process, *, silent_ms: int
) -> None:
    """Delete rows of other processes of the same binary and host that are silent.

    A process is silent when its last heartbeat is more than ``silent_ms`` milliseconds old.
    """
    tx.execute(
        sa.delete(Service).where(
            Service.host == process.host,
            Service.binary == process.binary,
            Service.process != process.process,
            Service.last_seen_ms < now - silent_ms,
        )
    )


def disable(tx: sa.Connection, id_: int, *, disabled: bool, reason: str | None) -> None:
    """Disable a process and store the reason, or enable it."""
    tx.execute(
        sa.update(Service)
        .where(Service.id == id_)
        .values(disabled=disabled, disabled_reason=reason)
    )


def remove(tx: sa.Connection, id_: int) -> None:
    """Delete the row of a process; any conductor may take over its work."""
    tx.execute(sa.delete(Service).where(Service.id == id_))


def lock_host(tx: sa.Connection, host_id: int) -> str:
    """Lock a host and return its name; then lock its attach handles, in order of id.

    No bind claims a handle while the locks are held.
    """
    locked = sa.select(Host.name).where(Host.id == host_id).with_for_update()
    name = str(tx.execute(locked).scalar_one())
    attach_handles.lock(tx, AttachHandle.deployable_id.in_(_deployables(host_id)))
    return name


def cancel_work(tx: sa.Connection, host_id: int, kept: int) -> None:
    """Delete all work on a host except the row ``kept``, which no longer refers to the host."""
    own = _deployables(host_id)
    handles = sa.select(AttachHandle.id).where(AttachHandle.deployable_id.in_(own))
    terms = (
        Work.host_id == host_id,
        Work.deployable_id.in_(own),
        Work.attach_handle_id.in_(handles),
    )
    tx.execute(sa.delete(Work).where(sa.or_(*terms), Work.id != kept))
    tx.execute(sa.update(Work).where(Work.id == kept).values(host_id=None))


def remove_host(tx: sa.Connection, host_id: int) -> None:
    """Delete a host without devices and work, with its drivers, backends and hardware."""
    drivers = sa.select(Driver.id).where(Driver.host_id == host_id)
    tx.execute(sa.delete(Backend).where(Backend.driver_id.in_(drivers)))
    tx.execute(sa.delete(Driver).where(Driver.host_id == host_id))
    tx.execute(sa.delete(Hardware).where(Hardware.host_id == host_id))
    tx.execute(sa.delete(Host).where(Host.id == host_id))


def _named(process: Process) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        Service.host == process.host,
        Service.binary == process.binary,
        Service.process == process.process,
    )


def _deployables(host_id: int) -> sa.Select[Any]:
    return (
        sa.select(Deployable.id)
        .join(Device, Device.id == Deployable.device_id)
        .where(Device.host_id == host_id)
    )
