# SPDX-License-Identifier: Apache-2.0
"""The guests of the hosts and their units, as agents see them, compared with what is bound."""

from collections.abc import Collection, Sequence
from typing import TypeVarTuple

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg.db.hosts import IS_AGENT
from cyborg.db.models import (
    Arq,
    AttachHandle,
    Deployable,
    Device,
    Event,
    Guest,
    Host,
    Instance,
    Service,
    Work,
)
from cyborg.db.rows import Row, column, nullable, select
from cyborg.db.transaction import Transaction
from cyborg.model.arq import State
from cyborg.model.device import AttachType
from cyborg.model.guests import HostGuests
from cyborg.model.work import WorkKind

Ts = TypeVarTuple("Ts")


class UnattachedBind(Row):
    """A bound ARQ whose guest runs without its unit, and what was done about it in this boot."""

    arq: str = column(Arq.uuid)
    instance = nullable(Arq.instance_uuid)
    hostname: str = column(Host.name)
    boot_id: str | None = column(Host.boot_id)
    handle: str = column(AttachHandle.uuid)
    deployable: str = column(Deployable.name)
    device_uuid: str = column(Device.uuid)
    reported = nullable(Instance.unattached_boot)
    repaired = nullable(Instance.repaired_boot)


_RUNNING = orm.aliased(Guest)
_HOLDS = (
    sa.exists()
    .where(Guest.instance_uuid == Arq.instance_uuid, Guest.handle_id == AttachHandle.id)
    .correlate(Arq, AttachHandle)
)
_CHANGING = (
    sa.exists()
    .where(
        Work.instance_uuid == Arq.instance_uuid,
        Work.kind.in_([WorkKind.ATTACH.value, WorkKind.DETACH.value]),
    )
    .correlate(Arq)
)
_CHANGED = (
    sa.select(sa.func.max(Event.at_ms))
    .where(Event.subject_uuid == Arq.uuid)
    .correlate(Arq)
    .scalar_subquery()
)


def replace(tx: Transaction, host_id: int, reported: HostGuests) -> None:
    """Store the guests of a host in place of those before; the caller holds the host's lock."""
    name = sa.func.coalesce(Deployable.key, Deployable.name)
    query = (
        sa.select(name, AttachHandle.handle_key, AttachHandle.id)
        .join(Deployable, Deployable.id == AttachHandle.deployable_id)
        .join(Device, Device.id == Deployable.device_id)
        .where(Device.host_id == host_id)
    )
    ids = {(deployable, key): id_ for deployable, key, id_ in tx.execute(query)}
    rows = [
        {
            "host_id": host_id,
            "instance_uuid": process.instance_uuid,
            "process": process.name,
            "handle_id": handle_id,
        }
        for process in reported.processes
        for handle_id in (
            *((None,) if process.instance_uuid is not None else ()),
            *filter(None, (ids.get((unit.deployable, unit.handle_key)) for unit in process.units)),
        )
    ]
    forget(tx, host_id)
    if rows:
        tx.execute(sa.insert(Guest), rows)
    tx.execute(sa.update(Host).where(Host.id == host_id).values(boot_id=reported.boot_id or None))


def forget(tx: Transaction, host_id: int) -> None:
    """Delete what is stored of the guests of a host."""
    tx.execute(sa.delete(Guest).where(Guest.host_id == host_id))


def unattached(
    tx: Transaction,
    *,
    settle: int,
    agent_silence: int,
    instances: Collection[str] | None = None,
) -> Sequence[UnattachedBind]:
    """Return the bound ARQs whose guests run without the unit, in order of instance and ARQ.

    The bind is older than ``settle`` milliseconds, nothing is attached to or detached from the
    instance, and the agent, which sees the guests, is silent for less than ``agent_silence``.
    """
    query = (
        select(UnattachedBind)
        .join(AttachHandle, AttachHandle.arq_id == Arq.id)
        .join(Deployable, Deployable.id == AttachHandle.deployable_id)
        .join(Device, Device.id == Deployable.device_id)
        .join(Host, Host.id == Device.host_id)
        .join(Service, IS_AGENT)
        .join(
            _RUNNING,
            sa.and_(
                _RUNNING.host_id == Host.id,
                _RUNNING.instance_uuid == Arq.instance_uuid,
                _RUNNING.handle_id.is_(None),
            ),
        )
        .outerjoin(Instance, Instance.uuid == Arq.instance_uuid)
        .where(
            Arq.state == State.BOUND.value,
            sa.not_(Arq.hidden),
            AttachHandle.attach_type == AttachType.PCI.value,
            AttachHandle.lost_ms.is_(None),
            Service.last_seen_ms >= tx.now - agent_silence,
            sa.or_(_CHANGED.is_(None), tx.now - settle > _CHANGED),
            sa.not_(_HOLDS),
            sa.not_(_CHANGING),
        )
        .order_by(Arq.instance_uuid, Arq.id)
    )
    if instances is not None:
        query = query.where(Arq.instance_uuid.in_(instances))
    return tx.all(query)


def count_unattached(tx: Transaction) -> int:
    """Return how many instances were last reported without a unit in the present boot."""
    query = _noted(sa.select(sa.func.count(Instance.uuid.distinct())))
    return int(tx.execute(query).scalar_one())


def unattached_units(tx: Transaction) -> dict[str, int]:
    """Return provider uuid → the bound units that instances were last reported without."""
    query = _noted(sa.select(Deployable.rp_uuid, sa.func.count(AttachHandle.id.distinct())))
    rows = tx.execute(query.where(Deployable.rp_uuid.is_not(None)).group_by(Deployable.rp_uuid))
    return {provider or "": amount for provider, amount in rows}


def _noted(query: sa.Select[*Ts]) -> sa.Select[*Ts]:
    """Return a query over the bound units that instances lack in the present boot; see ``note``."""
    return (
        query.select_from(Instance)
        .join(Arq, Arq.instance_uuid == Instance.uuid)
        .join(AttachHandle, AttachHandle.arq_id == Arq.id)
        .join(Deployable, Deployable.id == AttachHandle.deployable_id)
        .join(Device, Device.id == Deployable.device_id)
        .join(Host, sa.and_(Host.id == Device.host_id, Host.boot_id == Instance.unattached_boot))
        .join(
            _RUNNING,
            sa.and_(
                _RUNNING.host_id == Host.id,
                _RUNNING.instance_uuid == Arq.instance_uuid,
                _RUNNING.handle_id.is_(None),
            ),
        )
        .where(Arq.state == State.BOUND.value, sa.not_(Arq.hidden), sa.not_(_HOLDS))
    )


def note(tx: Transaction, instance: str, *, boot_id: str, repaired: bool) -> None:
    """Store that an instance was found without a unit in this boot, and whether it is rebooted.

    The caller holds the lock of the instance.
    """
    values = {"unattached_boot": boot_id} | ({"repaired_boot": boot_id} if repaired else {})
    tx.execute(sa.update(Instance).where(Instance.uuid == instance).values(values))


def holders(tx: Transaction, handle_uuids: Collection[str]) -> dict[str, str]:
    """Return handle uuid → who has it on its host: the process, and the server if it is a guest."""
    seen = _holders(tx, AttachHandle.uuid.in_(handle_uuids)) if handle_uuids else {}
    return {uuid: holder for units in seen.values() for uuid, holder in units.items()}


def holders_of_providers(tx: Transaction, uuids: Collection[str]) -> dict[str, dict[str, str]]:
    """Return provider uuid → the units that no ARQ has and a process has, as in ``holders``."""
    if not uuids:
        return {}
    return _holders(tx, sa.and_(Deployable.rp_uuid.in_(uuids), AttachHandle.arq_id.is_(None)))


def _holders(tx: Transaction, term: sa.ColumnElement[bool]) -> dict[str, dict[str, str]]:
    query = (
        sa.select(Deployable.rp_uuid, AttachHandle.uuid, Guest.process, Guest.instance_uuid)
        .join(AttachHandle, AttachHandle.id == Guest.handle_id)
        .join(Deployable, Deployable.id == AttachHandle.deployable_id)
        .where(term)
        .order_by(Guest.id)
    )
    seen: dict[str, dict[str, str]] = {}
    for provider, uuid, process, instance in tx.execute(query):
        holder = f"server {instance}, {process}" if instance else process
        seen.setdefault(provider or "", {})[uuid] = holder
    return seen
