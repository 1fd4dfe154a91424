# SPDX-License-Identifier: Apache-2.0
"""Read, lock, change and remove compute hosts in SQL.

A report locks the row of its host. The generations in the row are those that agents compare.
"""

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from cyborg.db import attach_handles
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
from cyborg.db.rows import Row, column, required, select
from cyborg.db.transaction import Transaction
from cyborg.model.availability import UnitWord
from cyborg.model.process import AGENT, HostStatus
from cyborg.model.work import WorkKind

#: Term: the services row is that of the host's agent.
IS_AGENT = sa.and_(
    Service.host == Host.service_host, Service.binary == AGENT, Service.process == ""
)
#: The current epoch of a host's agent, as a term of a statement on hosts.
AGENT_EPOCH = sa.select(Service.epoch).where(IS_AGENT).correlate(Host).scalar_subquery()
#: Why an operator has taken a host out of service, as a term of a statement on hosts; NULL: it is
#: in service.
OUT_OF_SERVICE: sa.SQLColumnExpression[str | None] = (
    sa.select(
        sa.case(
            (Service.host_status == HostStatus.DRAINING.value, UnitWord.HOST_DRAINING.value),
            (Service.host_status == HostStatus.DISABLED.value, UnitWord.HOST_DISABLED.value),
        )
    )
    .where(IS_AGENT)
    .correlate(Host)
    .scalar_subquery()
)
#: Term of a statement on hosts: Placement does not take what the host's agent publishes.
CANNOT_PUBLISH = (
    sa.exists().where(IS_AGENT, sa.func.coalesce(Service.publish_error, "") != "").correlate(Host)
)
_HAS_DEVICES = sa.exists().where(Device.host_id == Host.id).correlate(Host)
_HAS_DRIVERS = sa.exists().where(Driver.host_id == Host.id).correlate(Host)


def is_of_project(project_id: str) -> sa.ColumnElement[bool]:
    """Return the term of a statement on hosts: an ARQ of the project holds a unit of the host."""
    devices = sa.select(Device.host_id).join(Deployable, Deployable.device_id == Device.id)
    held = devices.join(Arq, Arq.deployable_id == Deployable.id)
    return Host.id.in_(held.where(Arq.project_id == project_id))


class LockedHost(Host):
    """A locked host, with the current epoch of its agent."""

    __abstract__ = True

    epoch: int | None = column(AGENT_EPOCH)


class ReportedHost(LockedHost):
    """A locked host, with what may be stored of it.

    ``has_devices`` and ``has_drivers`` tell whether it has any; both are true after a report.
    """

    __abstract__ = True

    has_devices = column(sa.or_(Host.digest.is_not(None), _HAS_DEVICES))
    has_drivers = column(sa.or_(Host.digest.is_not(None), _HAS_DRIVERS))


class HostAgent(Row):
    """A host with its agent, which is ``up`` or down."""

    id = column(Host.id)
    name = column(Host.name)
    service_host = column(Service.host)
    epoch = column(Service.epoch)
    bus_error = column(Service.bus_error)
    up: bool


class SilentProvider(Row):
    """A provider, with its host and the time of the last heartbeat of the host's agent."""

    id = column(Host.id)
    name = column(Host.name)
    last_seen_ms = column(Service.last_seen_ms)
    rp_uuid = required(Deployable.rp_uuid)


def of_agent(tx: Transaction, service_host: str) -> Host | None:
    """Return the host that an agent reports for; None before the agent's first contact."""
    return tx.first(_of_agent(service_host))


def _of_agent(service_host: str) -> sa.Select[Host]:
    return select(Host).where(Host.service_host == service_host)


def lock_for_agent(tx: Transaction, service_host: str) -> LockedHost | None:
    """Lock and return the host of an agent; None before the agent's first contact."""
    query = select(LockedHost).where(Host.service_host == service_host)
    return tx.first(query.with_for_update())


def lock_for_report(tx: Transaction, service_host: str) -> ReportedHost | None:
    """Lock and return the host of an agent; None before the agent's first contact."""
    query = select(ReportedHost).where(Host.service_host == service_host)
    return tx.first(query.with_for_update())


def with_agents(
    tx: Transaction,
    down_after: int,
    names: Collection[str] | None = None,
) -> Sequence[HostAgent]:
    """Return the hosts that ever had an agent, or those of them with one of these names, by id.

    An agent is up when its last heartbeat is at most ``down_after`` milliseconds old. A name is
    that of Placement or of the agent.
    """
    query = _with_agents(tx.now, down_after)
    if names is not None:
        query = query.where(sa.or_(Host.name.in_(names), Host.service_host.in_(names)))
    return tx.all(query)


def agent_of(tx: Transaction, down_after: int, host_id: int) -> HostAgent | None:
    """Return the row of ``with_agents`` of one host; None when the host was removed."""
    return tx.first(_with_agents(tx.now, down_after).where(Host.id == host_id))


def _with_agents(now: sa.ColumnElement[int], down_after: int) -> sa.Select[HostAgent]:
    return (
        select(HostAgent, up=Service.last_seen_ms >= now - down_after)
        .join(Service, IS_AGENT)
        .order_by(Host.id)
    )


def name_of(tx: Transaction, host_id: int) -> str:
    """Return the name of a host that exists."""
    return str(tx.execute(sa.select(Host.name).where(Host.id == host_id)).scalar_one())


def service_host_of(tx: Transaction, host_id: int) -> str | None:
    """Return the name of the agent of a host that exists; None: it has none."""
    agent: str | None = tx.execute(
        sa.select(Host.service_host).where(Host.id == host_id)
    ).scalar_one()
    return agent


def silent_providers(tx: Transaction, silent_ms: int) -> Sequence[SilentProvider]:
    """Return the providers whose units need preparation by an agent that is silent.

    An agent is silent when its last heartbeat is more than ``silent_ms`` milliseconds old. There is
    one row for each provider that Placement has accepted.
    """
    return tx.all(
        select(SilentProvider)
        .join(Service, IS_AGENT)
        .join(Device, Device.host_id == Host.id)
        .join(Deployable, Deployable.device_id == Device.id)
        .where(
            Service.last_seen_ms < tx.now - silent_ms,
            Deployable.prepare,
            Deployable.rp_uuid.is_not(None),
            Deployable.publish_error.is_(None),
        )
        .order_by(Deployable.id)
    )


def assign_agent(tx: Transaction, service_host: str, names: Sequence[str]) -> tuple[Host, bool]:
    """Assign an agent to its host, one with any of the names, else a new one with the first.

    Return the host, and whether it existed.
    """
    free = dict(
        tx.execute(
            sa.select(Host.name, Host.id)
            .where(Host.name.in_(names), Host.service_host.is_(None))
            .with_for_update()
        ).all()
    )
    if free:
        tx.execute(
            sa.update(Host)
            .where(Host.id == next(free[name] for name in names if name in free))
            .values(service_host=service_host, updated_ms=tx.now)
        )
    else:
        tx.execute(
            sa.insert(Host).values(
                name=names[0],
                service_host=service_host,
                generation=0,
                desired_generation=1,
                updated_ms=tx.now,
            )
        )
    return tx.one(_of_agent(service_host)), bool(free)


def rename(tx: Transaction, service_host: str, host_id: int, name: str) -> Host:
    """Change the name of an agent's host and of its devices to the name that Placement uses.

    Return the host.
    """
    tx.execute(
        sa.update(Host)
        .where(Host.id == host_id)
        .values(name=name, updated_ms=tx.now, **tx.raise_generation(host_id))
    )
    tx.execute(sa.update(Device).where(Device.host_id == host_id).values(hostname=name))
    return tx.one(_of_agent(service_host))


def lock(tx: Transaction, host_id: int) -> None:
    """Lock a host, so that no report is applied at the same time."""
    tx.execute(sa.select(Host.id).where(Host.id == host_id).with_for_update()).all()


def set_unchecked(tx: Transaction, host_id: int, *, unchecked: bool) -> None:
    """Store whether an audit has still to compare a host with Placement; lock the host."""
    tx.execute(
        sa.update(Host)
        .where(Host.id == host_id)
        .values(unchecked=unchecked, updated_ms=tx.now, **tx.raise_generation(host_id))
    )


def record_report(tx: Transaction, host: Host, digest: str, *, changed: bool) -> int:
    """Store that a report was applied; return the new desired generation."""
    values: dict[str, Any] = {"digest": digest, "updated_ms": tx.now}
    if changed:
        values |= {"generation": Host.generation + 1, **tx.raise_generation(host.id)}
    tx.execute(sa.update(Host).where(Host.id == host.id).values(values))
    return host.desired_generation + (1 if changed else 0)


def arqs(tx: Transaction, host_id: int) -> list[str]:
    """Return the ARQs that hold or have claimed units of a host."""
    own = _deployables(host_id)
    held = sa.select(AttachHandle.arq_id).where(AttachHandle.deployable_id.in_(own))
    return list(
        tx.execute(
            sa.select(Arq.uuid)
            .where(sa.or_(Arq.id.in_(held), Arq.deployable_id.in_(own)))
            .order_by(Arq.id)
        ).scalars()
    )


def devices(tx: Transaction, host_id: int) -> dict[int, str]:
    """Return id → uuid of the devices of a host."""
    query = sa.select(Device.id, Device.uuid).where(Device.host_id == host_id)
    return dict(tx.execute(query.order_by(Device.id)).all())


def removal_operation(tx: Transaction, host_id: int) -> str | None:
    """Return the operation that removes this host; None when no removal was requested."""
    query = sa.select(Work.operation_id).where(
        Work.host_id == host_id, Work.kind == WorkKind.REMOVE_SERVICE.value
    )
    operation_id: str | None = tx.execute(query.limit(1)).scalar()
    return operation_id


def lock_with_handles(tx: Transaction, host_id: int) -> str:
    """Lock a host and return its name; then lock its attach handles, in order of id.

    No bind claims a handle while the locks are held.
    """
    locked = sa.select(Host.name).where(Host.id == host_id).with_for_update()
    name = str(tx.execute(locked).scalar_one())
    lock_handles(tx, host_id)
    return name


def lock_handles(tx: Transaction, host_id: int) -> None:
    """Lock the attach handles of a host, which the caller has locked, in order of id.

    Binds that have begun end first. Later ones see what this transaction commits.
    """
    attach_handles.lock(tx, AttachHandle.deployable_id.in_(_deployables(host_id)))


def cancel_work(tx: Transaction, host_id: int, kept: int) -> None:
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


def remove(tx: Transaction, host_id: int) -> None:
    """Delete a host without devices and work, with its drivers, backends and hardware."""
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
