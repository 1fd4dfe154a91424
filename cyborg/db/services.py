# SPDX-License-Identifier: Apache-2.0
"""Read and change services in SQL: heartbeats, and epochs that fence old processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from cyborg.db import events
from cyborg.db.hosts import IS_AGENT, is_of_project
from cyborg.db.models import Arq, Deployable, Device, Host, Service
from cyborg.db.rows import Row, Shown, column, nullable, select, shown_hardware
from cyborg.db.transaction import Transaction
from cyborg.model import readiness
from cyborg.model.process import AGENT, HostStatus
from cyborg.model.scope import Scope


@dataclass(frozen=True)
class Process:
    """The identity of a process; ``process`` distinguishes processes of one binary on a host."""

    host: str
    binary: str
    version: str
    endpoint: str
    process: str = ""


@dataclass(frozen=True)
class ProcessStatus:
    """A process from its row; ``silent_ms`` is the age of its last heartbeat in milliseconds."""

    process: Process
    status: str
    epoch: int
    silent_ms: int
    up: bool


def statuses(tx: Transaction, down_after: Mapping[str, int]) -> list[ProcessStatus]:
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
            tx.now - Service.last_seen_ms,
        )
        .where(Service.binary.in_(down_after))
        .order_by(Service.binary, Service.host, Service.process)
    )
    return [
        ProcessStatus(
            Process(host, binary, version or "", endpoint or "", process),
            status,
            epoch,
            silent_ms,
            up=silent_ms <= down_after[binary],
        )
        for host, binary, version, endpoint, process, status, epoch, silent_ms in rows
    ]


class FoundProcess(Row):
    """A process, and the age of its last heartbeat in milliseconds."""

    uuid = column(Service.uuid)
    host = column(Service.host)
    binary = column(Service.binary)
    silent_ms: int


#: Term: an ARQ has a unit of the host of an agent.
_HELD = (
    sa.exists()
    .where(
        IS_AGENT,
        Device.host_id == Host.id,
        Deployable.device_id == Device.id,
        Arq.deployable_id == Deployable.id,
    )
    .correlate(Service)
)


class ListedProcess(Service, Shown):
    """A process with all that operators see of it.

    ``drained``: its host drains, and no ARQ has a unit of it any more.
    """

    __abstract__ = True

    drained = column(sa.and_(Service.host_status == HostStatus.DRAINING.value, sa.not_(_HELD)))

    silent_ms: int


class HostProcess(FoundProcess):
    """A process and, for an agent, the id of its host."""

    id = column(Service.id)
    host_id = nullable(Host.id)


def _is_of_project(project_id: str) -> sa.ColumnElement[bool]:
    """Return the term: the process is the agent of a host of which the project holds a unit."""
    return sa.exists().where(IS_AGENT, is_of_project(project_id))


class CurrentEpoch(Row):
    """The epoch of a process, and the age of its last heartbeat in milliseconds."""

    epoch = column(Service.epoch)
    silent_ms: int


def processes(
    tx: Transaction,
    scope: Scope,
    *,
    uuid: str | None = None,
    host: str | None = None,
    binary: str | None = None,
) -> Sequence[ListedProcess]:
    """Return the processes in the scope, in order of id, optionally filtered.

    A project reaches the agents of the hosts of which it holds a unit, and no other process.

    ``host`` is the name of the service's host, or the name of the compute host in Placement.
    """
    terms = [] if uuid is None else [Service.uuid == uuid]
    if binary is not None:
        terms.append(Service.binary == binary)
    if host is not None:
        agents = sa.select(Host.service_host).where(Host.name == host)
        terms.append(sa.or_(Service.host == host, Service.host.in_(agents)))
    query = shown_hardware(ListedProcess, _is_of_project, silent_ms=tx.now - Service.last_seen_ms)
    return tx.all(query.where(*terms).within(scope).order_by(Service.id))


def readiness_of(row: ListedProcess) -> readiness.Process:
    """Return a row of ``processes`` in the form that the health view evaluates."""
    return readiness.Process(
        binary=row.binary,
        host=row.host,
        silent_ms=row.silent_ms,
        last_seen_ms=row.last_seen_ms,
        bus_error=row.bus_error,
        bus_error_ms=row.bus_error_ms,
        status_reason=row.status_reason,
        clock_error=row.clock_error,
        publish_error=row.publish_error,
        publish_error_ms=row.publish_error_ms,
    )


def process(tx: Transaction, uuid: str) -> HostProcess | None:
    """Return the process with this uuid; None when there is none."""
    return tx.first(
        select(HostProcess, silent_ms=tx.now - Service.last_seen_ms)
        .outerjoin(Host, IS_AGENT)
        .where(Service.uuid == uuid)
    )


def current(tx: Transaction, process: Process) -> CurrentEpoch | None:
    """Return the current epoch of a process; None when it has no row."""
    query = select(CurrentEpoch, silent_ms=tx.now - Service.last_seen_ms)
    return tx.first(query.where(*_named(process)))


def record(
    tx: Transaction, agent: str, action: str, hostname: str, *, reason: str | None = None
) -> None:
    """Store in the history what became of the host of an agent, which must have a row.

    ``agent`` is its ``[DEFAULT] host``, and ``hostname`` the name of the host now.
    """
    of_agent = _named(Process(agent, AGENT, "", ""))
    uuid = tx.execute(sa.select(Service.uuid).where(*of_agent)).scalar_one()
    events.record(tx, [events.Entry("service", uuid, action, hostname=hostname, reason=reason)])


def first_alive(tx: Transaction, binary: str, silent_ms: int) -> int | None:
    """Return the lowest id among the processes of a binary that are alive; None: none is.

    A process is alive while its last heartbeat is less than ``silent_ms`` milliseconds old.
    """
    id_: int | None = tx.execute(
        sa.select(sa.func.min(Service.id)).where(
            Service.binary == binary, Service.last_seen_ms > tx.now - silent_ms
        )
    ).scalar_one()
    return id_


def register(
    tx: Transaction,
    process: Process,
    status: str,
    *,
    status_reason: str = "",
    bus_error: str = "",
    publish_error: str = "",
) -> tuple[int, int]:
    """Begin a new epoch of this process, and return (id, epoch).

    The new epoch fences every older process with the same identity. ``status_reason``,
    ``bus_error`` and ``publish_error`` are stored as by ``heartbeat``.
    """
    row = tx.execute(
        sa.select(Service.id, Service.epoch).where(*_named(process)).with_for_update()
    ).one_or_none()
    values: dict[str, Any] = {
        "version": process.version,
        "endpoint": process.endpoint,
        "status": status,
        "last_seen_ms": tx.now,
        "status_reason": status_reason or None,
        "bus_error": bus_error or None,
        "bus_error_ms": tx.now if bus_error else None,
        "clock_error": None,
        "publish_error": publish_error or None,
    }
    if row is None:
        identity = {"host": process.host, "binary": process.binary, "process": process.process}
        values["publish_error_ms"] = tx.now if publish_error else None
        result = tx.execute(
            sa.insert(Service).values(uuid=str(uuid4()), epoch=1, **identity, **values)
        )
        return int((result.inserted_primary_key or (0,))[0]), 1
    id_, epoch = row
    values["publish_error_ms"] = _publish_error_since(tx, publish_error)
    tx.execute(sa.update(Service).where(Service.id == id_).values(epoch=epoch + 1, **values))
    return id_, epoch + 1


def heartbeat(
    tx: Transaction,
    process: Process,
    *,
    epoch: int,
    status: str,
    status_reason: str = "",
    bus_error: str = "",
    publish_error: str = "",
) -> bool:
    """Store a heartbeat, which renews the lease of an epoch; False when the epoch has ended.

    ``status_reason`` is the reason why the status is FAILED. ``bus_error`` is the reason why the
    process cannot receive requests over the message bus, empty when it can. ``publish_error`` is
    the reason why an agent cannot publish in Placement, empty when it can. The row keeps the times
    since which the process has had such errors.
    """
    since = sa.func.coalesce(Service.bus_error_ms, tx.now) if bus_error else None
    result = tx.execute(
        sa.update(Service)
        .where(*_named(process), Service.epoch == epoch)
        .values(
            last_seen_ms=tx.now,
            status=status,
            version=process.version,
            status_reason=status_reason or None,
            bus_error=bus_error or None,
            bus_error_ms=since,
            clock_error=None,
            publish_error=publish_error or None,
            publish_error_ms=_publish_error_since(tx, publish_error),
        )
    )
    return int(result.rowcount) == 1


def _publish_error_since(tx: Transaction, error: str) -> Any:
    """Return the value of the time of an error: the time of the first one in a row."""
    return sa.func.coalesce(Service.publish_error_ms, tx.now) if error else None


def renew(tx: Transaction, process: Process) -> bool:
    """Store a heartbeat of a process without an epoch; False when the process has no row."""
    result = tx.execute(
        sa.update(Service)
        .where(*_named(process))
        .values(
            last_seen_ms=tx.now,
            version=process.version,
            endpoint=process.endpoint,
            clock_error=None,
        )
    )
    return int(result.rowcount) == 1


def set_clock_error(tx: Transaction, process: Process, error: str) -> None:
    """Store why the messages of a process are refused; its next heartbeat removes it."""
    tx.execute(sa.update(Service).where(*_named(process)).values(clock_error=error))


def deregister(tx: Transaction, process: Process, *, epoch: int) -> None:
    """Delete the row of a process that ends, unless a newer epoch has taken it over."""
    tx.execute(sa.delete(Service).where(*_named(process), Service.epoch == epoch))


def remove_silent(tx: Transaction, process: Process, *, silent_ms: int) -> None:
    """Delete rows of other processes of the same binary and host that are silent.

    A process is silent when its last heartbeat is more than ``silent_ms`` milliseconds old. A row
    that was reported as down stays until a notification has said that the service is up again.
    """
    tx.execute(
        sa.delete(Service).where(
            Service.host == process.host,
            Service.binary == process.binary,
            Service.process != process.process,
            Service.last_seen_ms < tx.now - silent_ms,
            Service.reported_down_ms.is_(None),
        )
    )


def set_status(tx: Transaction, id_: int, status: HostStatus, reason: str | None = None) -> None:
    """Store what an operator orders of the host of an agent, and the reason."""
    tx.execute(
        sa.update(Service)
        .where(Service.id == id_)
        .values(host_status=status.value, disabled_reason=reason)
    )


def remove(tx: Transaction, id_: int) -> None:
    """Delete the row of a process; any conductor may take over its work."""
    tx.execute(sa.delete(Service).where(Service.id == id_))


def _named(process: Process) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        Service.host == process.host,
        Service.binary == process.binary,
        Service.process == process.process,
    )
