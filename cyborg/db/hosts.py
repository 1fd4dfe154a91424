# SPDX-License-Identifier: Apache-2.0
"""Compute hosts: the row that reports lock, and the generations that agents compare."""

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from cyborg.db.base import Record
from cyborg.db.models import Deployable, Device, Driver, Host, Service
from cyborg.model.names import AGENT

#: Which row of services is that of a host's agent.
IS_AGENT = sa.and_(
    Service.host == Host.service_host, Service.binary == AGENT, Service.process == ""
)
#: The epoch of a host's agent that is in force, as a term of a statement on hosts.
AGENT_EPOCH = sa.select(Service.epoch).where(IS_AGENT).correlate(Host).scalar_subquery()
#: Whether an operator has taken a host out of service, as such a term.
DISABLED = sa.exists().where(IS_AGENT, Service.disabled).correlate(Host)
_HAS_DEVICES = sa.exists().where(Device.host_id == Host.id).correlate(Host)
_HAS_DRIVERS = sa.exists().where(Driver.host_id == Host.id).correlate(Host)

_COLUMNS = (Host.id, Host.name, Host.digest, Host.generation, Host.desired_generation)


def of_agent(tx: sa.Connection, service_host: str) -> Record:
    """The host that an agent reports for; None before its first hello."""
    return tx.execute(sa.select(*_COLUMNS).where(Host.service_host == service_host)).one_or_none()


def lock_for_agent(tx: sa.Connection, service_host: str) -> Record:
    """The same, locked, with its agent's epoch in force, and whether it is out of service."""
    return tx.execute(
        sa.select(*_COLUMNS, AGENT_EPOCH.label("epoch"), DISABLED.label("disabled"))
        .where(Host.service_host == service_host)
        .with_for_update()
    ).one_or_none()


def lock_for_report(tx: sa.Connection, service_host: str) -> Record:
    """The same, and whether the host has devices or drivers: true of one that has reported."""
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
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    down_after: int,
    names: Collection[str] | None = None,
) -> Sequence[Record]:
    """The hosts that ever had an agent, or those of them that carry one of these names.

    (id, name, service_host, epoch, up), by id; one is up while its agent has been heard of within
    ``down_after`` milliseconds. A host is called as Placement or as its agent calls it.
    """
    query = _with_agents(now, down_after)
    if names is not None:
        query = query.where(sa.or_(Host.name.in_(names), Host.service_host.in_(names)))
    return tx.execute(query).all()


def agent_of(
    tx: sa.Connection, now: sa.ColumnElement[int], down_after: int, host_id: int
) -> Record:
    """The same of one host; None when it is gone."""
    return tx.execute(_with_agents(now, down_after).where(Host.id == host_id)).one_or_none()


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


def name_of(tx: sa.Connection, host_id: int) -> str:
    """The name of a host that is known to be there."""
    return str(tx.execute(sa.select(Host.name).where(Host.id == host_id)).scalar_one())


def without_agent(
    tx: sa.Connection, now: sa.ColumnElement[int], silent_ms: int
) -> Sequence[Record]:
    """The providers of units to be prepared on hosts whose agents are silent for so long.

    One row for each provider that Placement took from us, with its host's id and name and the
    agent's last heartbeat.
    """
    return tx.execute(
        sa.select(Host.id, Host.name, Service.last_seen_ms, Deployable.rp_uuid)
        .join(Service, IS_AGENT)
        .join(Device, Device.host_id == Host.id)
        .join(Deployable, Deployable.device_id == Device.id)
        .where(
            Service.last_seen_ms < now - silent_ms,
            Deployable.prepare,
            Deployable.rp_uuid.is_not(None),
            Deployable.publish_error.is_(None),
        )
        .order_by(Deployable.id)
    ).all()


def adopt(
    tx: sa.Connection, now: sa.ColumnElement[int], service_host: str, names: Sequence[str]
) -> None:
    """Give an agent its host: one that carries any of the names, else a new one of the first."""
    rows = tx.execute(
        sa.select(Host.id, Host.name)
        .where(Host.name.in_(names), Host.service_host.is_(None))
        .with_for_update()
    ).all()
    if rows:
        best = min(rows, key=lambda row: list(names).index(row.name))
        tx.execute(
            sa.update(Host)
            .where(Host.id == best.id)
            .values(service_host=service_host, updated_ms=now)
        )
        return
    tx.execute(
        sa.insert(Host).values(
            name=names[0],
            service_host=service_host,
            generation=0,
            desired_generation=1,
            updated_ms=now,
        )
    )


def rename(tx: sa.Connection, now: sa.ColumnElement[int], host_id: int, name: str) -> None:
    """Placement knows the compute by another name: the host and its devices follow."""
    tx.execute(
        sa.update(Host)
        .where(Host.id == host_id)
        .values(name=name, desired_generation=Host.desired_generation + 1, updated_ms=now)
    )
    tx.execute(sa.update(Device).where(Device.host_id == host_id).values(hostname=name))


def lock(tx: sa.Connection, host_id: int) -> None:
    """Take the host's lock: no report is taken in meanwhile."""
    tx.execute(sa.select(Host.id).where(Host.id == host_id).with_for_update()).all()


def bump_desired_generation(tx: sa.Connection, now: sa.ColumnElement[int], host_id: int) -> None:
    """The desired state has changed; takes the host's lock."""
    tx.execute(
        sa.update(Host)
        .where(Host.id == host_id)
        .values(desired_generation=Host.desired_generation + 1, updated_ms=now)
    )


def acknowledge(
    tx: sa.Connection, now: sa.ColumnElement[int], host: Record, digest: str, *, changed: bool
) -> int:
    """Note the report that was taken in; answers the desired generation from now on."""
    desired = int(host.desired_generation) + (1 if changed else 0)
    tx.execute(
        sa.update(Host)
        .where(Host.id == host.id)
        .values(
            digest=digest,
            generation=Host.generation + (1 if changed else 0),
            desired_generation=desired,
            updated_ms=now,
        )
    )
    return desired
