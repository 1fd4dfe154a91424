# SPDX-License-Identifier: Apache-2.0
"""Compute hosts: the row that reports lock, and the generations that agents compare."""

from collections.abc import Sequence

import sqlalchemy as sa

from cyborg.db.bulk import Record
from cyborg.db.models import Device, Host, Service
from cyborg.model.names import AGENT

_COLUMNS = (Host.id, Host.name, Host.digest, Host.generation, Host.desired_generation)


def of_agent(tx: sa.Connection, service_host: str) -> Record:
    """The host that an agent reports for; None before its first hello."""
    return tx.execute(sa.select(*_COLUMNS).where(Host.service_host == service_host)).one_or_none()


def lock_for_agent(tx: sa.Connection, service_host: str) -> Record:
    """The same, locked, with the epoch of its agent that is in force."""
    epoch = (
        sa.select(Service.epoch)
        .where(Service.host == service_host, Service.binary == AGENT, Service.process == "")
        .scalar_subquery()
        .label("epoch")
    )
    return tx.execute(
        sa.select(*_COLUMNS, epoch).where(Host.service_host == service_host).with_for_update()
    ).one_or_none()


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


def want_anew(tx: sa.Connection, now: sa.ColumnElement[int], host_id: int) -> None:
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
