# SPDX-License-Identifier: Apache-2.0
"""How processes and whole hosts change, and go, by an operator's word."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from cyborg.db import attach_handles
from cyborg.db.bulk import Record
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
from cyborg.model.work import WorkKind


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
