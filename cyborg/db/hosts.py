# SPDX-License-Identifier: Apache-2.0
"""Read, lock, change and remove compute hosts in SQL.

A report locks the row of its host. The generations in the row are those that agents compare.
"""

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from cyborg.db import attach_handles
from cyborg.db.base import Record
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
from cyborg.db.transaction import Transaction
from cyborg.model.process import AGENT
from cyborg.model.work import WorkKind

#: Term: the services row is that of the host's agent.
IS_AGENT = sa.and_(
    Service.host == Host.service_host, Service.binary == AGENT, Service.process == ""
)
#: The current epoch of a host's agent, as a term of a statement on hosts.
AGENT_EPOCH = sa.select(Service.epoch).where(IS_AGENT).correlate(Host).scalar_subquery()
#: Term of a statement on hosts: an operator has disabled the host's agent.
DISABLED = sa.exists().where(IS_AGENT, Service.disabled).correlate(Host)
_HAS_DEVICES = sa.exists().where(Device.host_id == Host.id).correlate(Host)
_HAS_DRIVERS = sa.exists().where(Driver.host_id == Host.id).correlate(Host)

_COLUMNS = (Host.id, Host.name, Host.digest, Host.generation, Host.desired_generation)


def of_agent(tx: Transaction, service_host: str) -> Record:
    """Return the host that an agent reports for; None before the agent's first contact."""
    return tx.execute(sa.select(*_COLUMNS).where(Host.service_host == service_host)).one_or_none()


def lock_for_agent(tx: Transaction, service_host: str) -> Record:
    """Lock the host of an agent; return it with ``epoch`` and ``disabled`` of the agent."""
    return tx.execute(
        sa.select(*_COLUMNS, AGENT_EPOCH.label("epoch"), DISABLED.label("disabled"))
        .where(Host.service_host == service_host)
        .with_for_update()
    ).one_or_none()


def lock_for_report(tx: Transaction, service_host: str) -> Record:
    """Lock the host of an agent; return it with the agent's ``epoch``.

    ``has_devices`` and ``has_drivers`` tell whether it has any; both are true after a report.
    """
    reported = Host.digest.is_not(None)
    return tx.execute(
        sa.select(
            *_COLUMNS,
            AGENT_EPOCH.label("epoch"),
            sa.or_(reported, _HAS_DEVICES).label("has_devices"),
            sa.or_(reported, _HAS_DRIVERS).label("has_drivers"),
        )
        .where(Host.service_host == service_host)
        .with_for_update()
    ).one_or_none()


def with_agents(
    tx: Transaction,
    down_after: int,
    names: Collection[str] | None = None,
) -> Sequence[Record]:
    """Return the hosts that ever had an agent, or those of them with one of these names.

    Rows are (id, name, service_host, epoch, bus_error, up), in order of id. ``up`` is true when the
    agent's last heartbeat is at most ``down_after`` milliseconds old. A name is that of Placement
    or of the agent.
    """
    query = _with_agents(tx.now, down_after)
    if names is not None:
        query = query.where(sa.or_(Host.name.in_(names), Host.service_host.in_(names)))
    return tx.execute(query).all()


def agent_of(tx: Transaction, down_after: int, host_id: int) -> Record:
    """Return the row of ``with_agents`` of one host; None when the host was removed."""
    return tx.execute(_with_agents(tx.now, down_after).where(Host.id == host_id)).one_or_none()


def _with_agents(now: sa.ColumnElement[int], down_after: int) -> sa.Select[*tuple[Any, ...]]:
    return (
        sa.select(
            Host.id,
            Host.name,
            Host.service_host,
            Service.epoch,
            Service.bus_error,
            (Service.last_seen_ms >= now - down_after).label("up"),
        )
        .join(Service, IS_AGENT)
        .order_by(Host.id)
    )


def name_of(tx: Transaction, host_id: int) -> str:
    """Return the name of a host that exists."""
    return str(tx.execute(sa.select(Host.name).where(Host.id == host_id)).scalar_one())


def silent_providers(tx: Transaction, silent_ms: int) -> Sequence[Record]:
    """Return the providers whose units need preparation by an agent that is silent.

    An agent is silent when its last heartbeat is more than ``silent_ms`` milliseconds old. There is
    one row for each provider that Placement has accepted, with the id and name of its host and the
    time of the agent's last heartbeat.
    """
    return tx.execute(
        sa.select(Host.id, Host.name, Service.last_seen_ms, Deployable.rp_uuid)
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
    ).all()


def assign_agent(tx: Transaction, service_host: str, names: Sequence[str]) -> None:
    """Assign an agent to its host: one with any of the names, else a new one with the first."""
    rows = tx.execute(
        sa.select(Host.id, Host.name)
        .where(Host.name.in_(names), Host.service_host.is_(None))
        .with_for_update()
    ).all()
    if rows:
        host = min(rows, key=lambda row: list(names).index(row.name))
        tx.execute(
            sa.update(Host)
            .where(Host.id == host.id)
            .values(service_host=service_host, updated_ms=tx.now)
        )
        return
    tx.execute(
        sa.insert(Host).values(
            name=names[0],
            service_host=service_host,
            generation=0,
            desired_generation=1,
            updated_ms=tx.now,
        )
    )


def rename(tx: Transaction, host_id: int, name: str) -> None:
    """Change the name of a host and of its devices to the name that Placement uses."""
    tx.execute(
        sa.update(Host)
        .where(Host.id == host_id)
        .values(name=name, desired_generation=Host.desired_generation + 1, updated_ms=tx.now)
    )
    tx.execute(sa.update(Device).where(Device.host_id == host_id).values(hostname=name))


def lock(tx: Transaction, host_id: int) -> None:
    """Lock a host, so that no report is applied at the same time."""
    tx.execute(sa.select(Host.id).where(Host.id == host_id).with_for_update()).all()


def bump_desired_generation(tx: Transaction, host_id: int) -> None:
    """Raise the desired generation of a host, because its desired state changes; lock the host."""
    tx.execute(
        sa.update(Host)
        .where(Host.id == host_id)
        .values(desired_generation=Host.desired_generation + 1, updated_ms=tx.now)
    )


def record_report(tx: Transaction, host: Record, digest: str, *, changed: bool) -> int:
    """Store that a report was applied; return the new desired generation."""
    desired = int(host.desired_generation) + (1 if changed else 0)
    tx.execute(
        sa.update(Host)
        .where(Host.id == host.id)
        .values(
            digest=digest,
            generation=Host.generation + (1 if changed else 0),
            desired_generation=desired,
            updated_ms=tx.now,
        )
    )
    return desired


def arqs(tx: Transaction, host_id: int) -> list[str]:
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


def providers(tx: Transaction, host_id: int) -> Sequence[Record]:
    """Return (id, parent_id, name, rp_uuid) of a host's deployables that may have a provider."""
    return tx.execute(
        sa.select(Deployable.id, Deployable.parent_id, Deployable.name, Deployable.rp_uuid)
        .join(Device, Device.id == Deployable.device_id)
        .where(Device.host_id == host_id, Deployable.rp_uuid.is_not(None))
    ).all()


def devices(tx: Transaction, host_id: int) -> Sequence[Record]:
    """Return (id, uuid) of the devices of a host."""
    query = sa.select(Device.id, Device.uuid).where(Device.host_id == host_id)
    return tx.execute(query.order_by(Device.id)).all()


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
    attach_handles.lock(tx, AttachHandle.deployable_id.in_(_deployables(host_id)))
    return name


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
