# SPDX-License-Identifier: Apache-2.0
"""Read all rows that an audit needs at one moment, in a constant number of statements."""

from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from cyborg.db.engine import Reader
from cyborg.db.hosts import IS_AGENT
from cyborg.db.models import (
    Arq,
    AttachHandle,
    Attribute,
    Deployable,
    Device,
    Driver,
    Event,
    Host,
    Service,
    Work,
)
from cyborg.db.transaction import Transaction
from cyborg.model.attribute import Origin
from cyborg.model.process import AGENT, CONDUCTOR, HostStatus
from cyborg.model.readiness import Process
from cyborg.tests.oracle.rows import (
    ArqRow,
    DeployableRow,
    DeviceRow,
    DriverRow,
    HandleRow,
    HostRow,
    Snapshot,
    WorkRow,
)

_DRIVERS = sa.select(Driver.host_id, Driver.name, Driver.state, Driver.error)
_CONDUCTORS = (
    sa.select(
        Service.host,
        Service.last_seen_ms,
        Service.bus_error,
        Service.bus_error_ms,
        Service.publish_error,
        Service.publish_error_ms,
    )
    .where(Service.binary == CONDUCTOR)
    .order_by(Service.id)
)


def take(db: Reader) -> Snapshot:
    """Return all rows that the audit rules check, from one consistent read.

    Raises Unavailable.
    """
    with db.reader() as tx:
        if tx.dialect.name != "sqlite":
            # Otherwise each statement would see all commits before it. The level applies to this
            # transaction only; SQLite always reads like this.
            tx.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        now = int(tx.execute(sa.select(db.now)).scalar_one())
        conductors = tuple(_process(CONDUCTOR, row, now) for row in tx.execute(_CONDUCTORS))
        return Snapshot(
            hosts=_hosts(tx, now),
            drivers=tuple(DriverRow(*row) for row in tx.execute(_DRIVERS)),
            devices=_devices(tx, now),
            deployables=_deployables(tx),
            handles=_handles(tx),
            arqs=_arqs(tx, now),
            work=_work(tx, now),
            conductor_silence=_age(
                now, tx.execute(sa.select(sa.func.max(Service.last_seen_ms))).scalar_one()
            ),
            taken_ms=now,
            conductors=conductors,
        )


def _hosts(tx: Transaction, now: int) -> tuple[HostRow, ...]:
    rows = tx.execute(
        sa.select(
            Host.id,
            Host.name,
            Host.updated_ms,
            Host.unchecked,
            Service.host,
            Service.last_seen_ms,
            Service.host_status,
            Service.bus_error,
            Service.bus_error_ms,
            Service.publish_error,
            Service.publish_error_ms,
        )
        .outerjoin(Service, IS_AGENT)
        .order_by(Host.id)
    )
    return tuple(
        HostRow(
            row.id,
            row.name,
            now - row.updated_ms,
            _age(now, row.last_seen_ms),
            status=row.host_status or HostStatus.ENABLED,
            unchecked=row.unchecked,
            agent=None if row.last_seen_ms is None else _process(AGENT, row, now),
        )
        for row in rows
    )


def _devices(tx: Transaction, now: int) -> tuple[DeviceRow, ...]:
    columns = (Device.id, Device.uuid, Device.host_id, Device.driver, Device.status)
    rows = tx.execute(sa.select(*columns, now - Device.lost_ms, Device.health))
    return tuple(DeviceRow(*row) for row in rows)


def _deployables(tx: Transaction) -> tuple[DeployableRow, ...]:
    traits: dict[int, set[str]] = defaultdict(set)
    for row in tx.execute(
        sa.select(Attribute.deployable_id, Attribute.value).where(
            Attribute.origin == Origin.DISCOVERED.value, Attribute.key.like("trait%")
        )
    ):
        traits[row.deployable_id].add(row.value)
    columns: tuple[Any, ...] = (
        *(Deployable.id, Deployable.device_id, Deployable.name, Deployable.rp_uuid),
        *(Deployable.resource_class, Deployable.prepare),
        *(Deployable.lost_ms.is_not(None), Deployable.publish_error),
        *(Deployable.key, Deployable.group_size),
    )
    rows = tx.execute(sa.select(*columns).order_by(Deployable.id))
    return tuple(DeployableRow(*(*row, frozenset(traits.get(row.id, ())))) for row in rows)


def _handles(tx: Transaction) -> tuple[HandleRow, ...]:
    columns = (
        *(AttachHandle.id, AttachHandle.uuid, AttachHandle.deployable_id),
        *(AttachHandle.handle_key, AttachHandle.state, AttachHandle.lost_ms.is_not(None)),
        *(AttachHandle.suspect, AttachHandle.blocked, AttachHandle.cleaning),
    )
    rows = tx.execute(sa.select(*columns).order_by(AttachHandle.id))
    return tuple(HandleRow(*row) for row in rows)


def _arqs(tx: Transaction, now: int) -> tuple[ArqRow, ...]:
    # The dates of rows are from the clock of the process that wrote them; those of the history
    # are from the database's clock.
    last_event = (
        sa.select(Event.at_ms)
        .where(Event.subject_uuid == Arq.uuid)
        .order_by(Event.id.desc())
        .limit(1)
        .scalar_subquery()
    )
    changed_at = sa.func.coalesce(Arq.updated_at, Arq.created_at)
    own = AttachHandle.arq_id == Arq.id
    handle_id = sa.select(AttachHandle.id).where(own).scalar_subquery()
    columns: tuple[Any, ...] = (
        *(Arq.uuid, Arq.state, Arq.instance_uuid, Arq.hostname, Arq.device_rp_uuid),
        *(handle_id, Arq.deployable_id, Arq.prepared, Arq.hidden),
    )
    rows = tx.execute(sa.select(*columns, changed_at, last_event).order_by(Arq.id))
    return tuple(
        ArqRow(*(*values, _age(now, told_ms or _milliseconds(changed))))
        for *values, changed, told_ms in rows
    )


def _work(tx: Transaction, now: int) -> tuple[WorkRow, ...]:
    columns = (
        *(Work.uuid, Work.kind, now - Work.created_ms, now - Work.not_before_ms),
        *(Work.arq_uuid, Work.instance_uuid, Work.attach_handle_id, Work.host_id),
        *(now - Work.deadline_ms, Work.attempts, Work.error),
    )
    rows = tx.execute(sa.select(*columns).order_by(Work.id))
    return tuple(WorkRow(*row) for row in rows)


def _process(binary: str, row: Any, now: int) -> Process:
    silent = now - row.last_seen_ms
    return Process(
        binary,
        row.host,
        silent,
        row.last_seen_ms,
        row.bus_error,
        row.bus_error_ms,
        publish_error=row.publish_error,
        publish_error_ms=row.publish_error_ms,
    )


def _age(now: int, since: int | None) -> int | None:
    return None if since is None else now - since


def _milliseconds(moment: datetime | None) -> int | None:
    """Return milliseconds since 1970 of a column for display: UTC, without a time zone."""
    return None if moment is None else int(moment.replace(tzinfo=UTC).timestamp() * 1000)
