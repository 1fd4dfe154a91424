# SPDX-License-Identifier: Apache-2.0
"""Read, lock and change ARQs in SQL."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

import sqlalchemy as sa

from cyborg import exception
from cyborg.db import bulk, dirty_units, listing, rows
from cyborg.db.models import Arq, AttachHandle, Deployable, Device, DeviceProfile
from cyborg.db.rows import Shown, column
from cyborg.db.transaction import Transaction
from cyborg.model.arq import MOVES, RESOLVED, Event, State
from cyborg.model.caller import Caller
from cyborg.model.scope import Scope

_RESOLVED = sorted(state.value for state in RESOLVED)
# A handle is held before its device is prepared; only a bound ARQ shows it.
_BOUND = Arq.state == State.BOUND.value


class VisibleArq(Shown):
    """An ARQ as the API shows it; ``attach_handle_info`` is JSON, None without a handle."""

    uuid = column(Arq.uuid)
    state = column(Arq.state)
    device_profile_name = column(DeviceProfile.name)
    device_profile_group_id = column(Arq.device_profile_group_id)
    project_id = column(Arq.project_id)
    created_at = column(Arq.created_at)
    updated_at = column(Arq.updated_at)
    hostname = column(Arq.hostname)
    device_rp_uuid = column(Arq.device_rp_uuid)
    instance_uuid: str | None = column(sa.case((~Arq.hidden, Arq.instance_uuid)))
    attach_handle_type: str | None = column(sa.case((_BOUND, AttachHandle.attach_type), else_=""))
    attach_handle_uuid: str | None = column(sa.case((_BOUND, AttachHandle.uuid)))
    attach_handle_info: str | None = column(sa.case((_BOUND, AttachHandle.attach_info)))
    #: Why the bind failed; None: it did not fail.
    fault = column(Arq.fault)
    #: The health of the device whose unit it has; None: it has none, or the health is not known.
    health: str | None = column(
        sa.case(
            (
                _BOUND,
                sa.select(Device.health)
                .join(Deployable, Deployable.device_id == Device.id)
                .where(Deployable.id == Arq.deployable_id)
                .correlate(Arq)
                .scalar_subquery(),
            )
        )
    )


# Built once: SQLAlchemy takes longer to build them than the database to execute them.
_VISIBLE = (
    rows.shown(VisibleArq, lambda project_id: Arq.project_id == project_id)
    .join(DeviceProfile, DeviceProfile.id == Arq.device_profile_id)
    .join(AttachHandle, AttachHandle.arq_id == Arq.id, outer=True)
)
_SHOW = _VISIBLE.where(Arq.uuid == sa.bindparam("uuid"))

#: The columns, besides the state, that a change of state may set.
_BOUND_COLUMNS = (
    "hostname",
    "device_rp_uuid",
    "instance_uuid",
    "project_id",
    "deployable_id",
    "prepared",
    "operation_id",
)
#: Filters of the API by name; all compare for equality.
FILTERS: Mapping[str, sa.SQLColumnExpression[Any]] = {
    "instance": Arq.instance_uuid,
    "state": Arq.state,
    "hostname": Arq.hostname,
    "device_rp_uuid": Arq.device_rp_uuid,
    "device_profile_name": DeviceProfile.name,
    "project_id": Arq.project_id,
}
SORTABLE = listing.sortable(
    Arq,
    "id",
    "uuid",
    "state",
    "device_profile_group_id",
    "hostname",
    "device_rp_uuid",
    "instance_uuid",
    "project_id",
    "created_at",
    "updated_at",
    device_profile_name=DeviceProfile.name,
)


def show(tx: Transaction, uuid: str, scope: Scope) -> VisibleArq | None:
    """Return the ARQ with this uuid if the scope reaches it."""
    return tx.first(_SHOW.within(scope), {"uuid": uuid})


def named(tx: Transaction, uuids: Collection[str], scope: Scope) -> Sequence[VisibleArq]:
    """Return the ARQs with these uuids that the scope reaches, oldest first."""
    return tx.all(_VISIBLE.within(scope).where(Arq.uuid.in_(uuids)).order_by(Arq.id))


def page(
    tx: Transaction,
    page: listing.Page,
    scope: Scope,
    equal: Mapping[str, str],
    *,
    resolved: bool = False,
) -> Sequence[VisibleArq]:
    """Return a page of the ARQs in the scope that match all filters.

    ``equal`` maps names of ``FILTERS`` to values. ``resolved`` keeps the ARQs whose state is final.
    """
    query = listing.paged(tx, _VISIBLE.within(scope), SORTABLE, page)
    query = query.where(*(FILTERS[name] == value for name, value in equal.items()))
    if "instance" in equal:
        # Nova attaches every listed ARQ to the guest. Leave out those that are not ready yet or
        # are being removed.
        query = query.where(~Arq.hidden)
    if resolved:
        query = query.where(Arq.state.in_(_RESOLVED))
    return tx.all(query)


def all_resolved(tx: Transaction, instance_uuid: str, scope: Scope) -> bool:
    """Return whether every visible ARQ of the instance in the scope is in a final state."""
    query = sa.select(sa.literal(1)).where(
        Arq.instance_uuid == instance_uuid,
        ~Arq.hidden,
        Arq.state.not_in(_RESOLVED),
    )
    if scope.project_id is not None:
        query = query.where(Arq.project_id == scope.project_id)
    return tx.execute(query.limit(1)).first() is None


class Holder(Arq):
    """An ARQ that has a unit of a device."""

    __abstract__ = True

    held_uuid = column(Device.uuid)


_HOLDERS = (
    rows.select(Holder)
    .join(Deployable, Deployable.id == Arq.deployable_id)
    .join(Device, Device.id == Deployable.device_id)
    .where(_BOUND)
    .order_by(Arq.id)
)


def holders(tx: Transaction, device_uuids: Collection[str]) -> Sequence[Holder]:
    """Return the bound ARQs that have units of these devices, the oldest first."""
    return tx.all(_HOLDERS.where(Device.uuid.in_(device_uuids))) if device_uuids else ()


class GuestUnit(Device):
    """A device with a unit that a bound ARQ has."""

    __abstract__ = True

    arq_uuid = column(Arq.uuid)
    attach_type = column(AttachHandle.attach_type)
    attach_info = column(AttachHandle.attach_info)
    handle_uuid = column(AttachHandle.uuid)
    resource_class = column(Deployable.resource_class)


_GUEST_UNITS = (
    rows.select(GuestUnit)
    .join(Deployable, Deployable.device_id == Device.id)
    .join(Arq, Arq.deployable_id == Deployable.id)
    .join(AttachHandle, AttachHandle.arq_id == Arq.id)
    .where(_BOUND, ~Arq.hidden, Arq.instance_uuid == sa.bindparam("instance"))
    .order_by(Arq.id)
)


def of_guest(tx: Transaction, instance_uuid: str) -> Sequence[GuestUnit]:
    """Return the units that Nova attaches to the guest, that of the oldest ARQ first."""
    return tx.all(_GUEST_UNITS, {"instance": instance_uuid})


def created_at(tx: Transaction, uuids: Sequence[str]) -> datetime | None:
    """Return when one operation stored these ARQs; None unless all of them exist."""
    moments = tx.execute(sa.select(Arq.created_at).where(Arq.uuid.in_(uuids))).scalars().all()
    return moments[0] if len(moments) == len(uuids) else None


def instances_of(
    tx: Transaction, caller: Caller, uuids: Sequence[str]
) -> Sequence[tuple[str, str | None]]:
    """Return (uuid, instance_uuid) of the ARQs in the caller's scope, without a lock.

    The caller of this function locks the instances first, then the ARQs.
    """
    query = sa.select(Arq.uuid, Arq.instance_uuid)
    return tx.execute(query.where(Arq.uuid.in_(uuids), *of_caller(caller))).all()


def states(tx: Transaction, uuids: Sequence[str]) -> dict[str, str]:
    """Return uuid → state of those of the ARQs that exist."""
    return {row.uuid: row.state for row in tx.execute(_STATES, {"uuids": uuids})}


class LockedArq(Arq):
    """An ARQ that the transaction has locked; ``device_uuid`` is the device whose unit it holds."""

    __abstract__ = True

    #: The handle that it has; None: none. The value is that of before the statement has waited for
    #: a lock, so what follows from it checks the handle again, see ``attach_handles.release``.
    attach_handle_id: int | None = column(
        sa.select(AttachHandle.id)
        .where(AttachHandle.arq_id == Arq.id)
        .correlate(Arq)
        .scalar_subquery()
    )
    # A subquery takes no locks.
    device_uuid: str | None = column(
        sa.select(Device.uuid)
        .join(Deployable, Deployable.device_id == Device.id)
        .where(Deployable.id == Arq.deployable_id)
        .correlate(Arq)
        .scalar_subquery()
    )
    #: Whether its unit takes shared capacity of the device; None: it holds no unit.
    pooled: bool | None = column(
        sa.select(Deployable.cost.is_not(None))
        .where(Deployable.id == Arq.deployable_id)
        .correlate(Arq)
        .scalar_subquery()
    )
    #: How the host cleans its unit, see ``HostClean``; None: it cannot, or the ARQ holds no unit.
    host_clean: str | None = column(
        sa.select(Deployable.clean)
        .where(Deployable.id == Arq.deployable_id)
        .correlate(Arq)
        .scalar_subquery()
    )
    #: The level at which its unit must be cleaned since the bind; None: at none.
    dirty_level: str | None = column(dirty_units.LEVEL_OF_ARQ)


_LOCK = rows.select(LockedArq).order_by(Arq.id).with_for_update()


def lock(tx: Transaction, *terms: sa.ColumnElement[bool]) -> Sequence[LockedArq]:
    """Lock the ARQs that match the terms, in order of id, and return their rows."""
    return tx.all(_LOCK.where(*terms))


def check(row: LockedArq, event: Event) -> None:
    """Raise BadState unless the state of the ARQ allows the event."""
    if row.state not in MOVES[event].sources:
        raise exception.BadState(uuid=row.uuid, state=row.state, event=event.value)


def insert(tx: Transaction, values: Sequence[Mapping[str, Any]]) -> None:
    """Store new ARQs; raise Conflict if a repeated operation has stored them."""
    bulk.insert(tx, Arq, values)


def move(tx: Transaction, event: Event, ids: Sequence[int], *, fault: str | None = None) -> None:
    """Change the states of ARQs by one event; other values stay.

    Raises BadState when the state of a row no longer allows the event.
    """
    _update(tx, event, ids, {"fault": fault})


def move_each(
    tx: Transaction, moves: Mapping[int, tuple[State, Mapping[str, Any]]], sources: set[State]
) -> None:
    """Change the states of ARQs, each with its own values, in one statement.

    ``moves`` maps ids to the new state and the values of all bound columns. Raises BadState when
    a row is no longer in one of ``sources``; the caller must then roll back the transaction.
    """
    ids = sorted(moves)
    values: dict[str, Any] = {"ids": ids, "sources": sorted(state.value for state in sources)}
    for index, id_ in enumerate(ids):
        state, columns = moves[id_]
        values |= {f"id_{index}": id_, f"state_{index}": state.value}
        values |= {f"{name}_{index}": columns[name] for name in _BOUND_COLUMNS}
    _check_moved(ids, tx.execute(_move_each(len(ids)), values))


def unbind(tx: Transaction, ids: Sequence[int]) -> None:
    """Set ARQs to UNBOUND and clear all values of the bind; their project stays."""
    cleared = {name: None for name in _BOUND_COLUMNS if name not in ("project_id", "prepared")}
    _update(tx, Event.UNBIND, ids, {"prepared": False, "fault": None, **cleared})


def remove(tx: Transaction, ids: Sequence[int]) -> None:
    """Delete ARQs that the caller has locked."""
    tx.execute(_DELETE, {"ids": ids})


def remove_unbound(tx: Transaction, before: datetime, limit: int) -> Sequence[str]:
    """Delete at most ``limit`` ARQs that have had no instance since ``before``; return their uuids.

    ARQs that another transaction has locked are left: they may be about to be bound.
    """
    chosen = tx.execute(_UNBOUND.limit(limit), {"before": before}).all()
    if chosen:
        remove(tx, [row.id for row in chosen])
    return [row.uuid for row in chosen]


def mark_prepared(tx: Transaction, id_: int, *, prepared: bool = True) -> None:
    """Store whether the host may have begun to prepare the ARQ's unit.

    If so, the release of the unit has to undo the preparation.
    """
    tx.execute(sa.update(Arq).where(Arq.id == id_).values(prepared=prepared))


def hide(tx: Transaction, ids: Sequence[int], *, hidden: bool) -> None:
    """Hide ARQs from the list of their instance, or show them; they stay bound to the instance."""
    if ids:
        tx.execute(sa.update(Arq).where(Arq.id.in_(ids)).values(hidden=hidden))


def clear_handle(tx: Transaction, ids: Sequence[int]) -> None:
    """Clear what ARQs had of their released handles; instance and provider stay readable."""
    tx.execute(sa.update(Arq).where(Arq.id.in_(ids)).values(deployable_id=None, prepared=False))


def of_caller(caller: Caller) -> list[sa.ColumnElement[bool]]:
    """Return the WHERE terms of the scope that the API has determined for the caller."""
    return [] if caller.all_projects else [Arq.project_id == caller.project_id]


def _update(tx: Transaction, event: Event, ids: Sequence[int], values: Mapping[str, Any]) -> None:
    statement = _MOVABLE.values(state=MOVES[event].target.value, **values)
    where = {"ids": ids, "sources": sorted(state.value for state in MOVES[event].sources)}
    _check_moved(ids, tx.execute(statement, where))


def _check_moved(ids: Sequence[int], result: sa.CursorResult[Any]) -> None:
    if result.rowcount != len(ids):
        raise exception.BadState(
            uuid=", ".join(str(id_) for id_ in ids), state="moving elsewhere", event="be moved"
        )


# Statements of the hot path are built once: SQLAlchemy takes longer to build one than the database
# to execute it.

_IDS: sa.BindParameter[int] = sa.bindparam("ids", expanding=True)
_STATES = sa.select(Arq.uuid, Arq.state).where(Arq.uuid.in_(sa.bindparam("uuids", expanding=True)))
_DELETE = sa.delete(Arq).where(Arq.id.in_(_IDS))
_UNBOUND = (
    sa.select(Arq.id, Arq.uuid)
    .where(
        Arq.state.in_(sorted((State.INITIAL.value, State.UNBOUND.value))),
        Arq.instance_uuid.is_(None),
        ~sa.exists().where(AttachHandle.arq_id == Arq.id),
        sa.func.coalesce(Arq.updated_at, Arq.created_at)
        < sa.bindparam("before", type_=sa.DateTime),
    )
    .order_by(Arq.id)
    .with_for_update(skip_locked=True)
)
_MOVABLE = sa.update(Arq).where(
    Arq.id.in_(_IDS), Arq.state.in_(sa.bindparam("sources", expanding=True))
)


@cache
def _move_each(count: int) -> sa.Update:
    """Return the UPDATE of ``count`` ARQs; ``<column>_<i>`` are the values of ARQ ``id_<i>``."""
    columns = Arq.__table__.c
    values: dict[str, Any] = {
        name: sa.case(
            *(
                (
                    Arq.id == sa.bindparam(f"id_{index}", type_=columns.id.type),
                    sa.bindparam(f"{name}_{index}", type_=columns[name].type),
                )
                for index in range(count)
            )
        )
        for name in (*_BOUND_COLUMNS, "state")
    }
    return _MOVABLE.values(fault=None, **values)
