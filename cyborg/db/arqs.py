# SPDX-License-Identifier: Apache-2.0
"""Read, lock and change ARQs in SQL."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

import sqlalchemy as sa

from cyborg import exception
from cyborg.db import base, listing, models
from cyborg.db.base import Record
from cyborg.db.models import Arq, Deployable, Device
from cyborg.db.transaction import Transaction
from cyborg.model.arq import MOVES, RESOLVED, Event, State
from cyborg.model.caller import Caller

_R = models.Arq.__table__.c
_P = models.DeviceProfile.__table__.c
_H = models.AttachHandle.__table__.c
_RESOLVED = sorted(state.value for state in RESOLVED)
# A handle is held before its device is prepared; only a bound ARQ shows it.
_BOUND = _R.state == State.BOUND.value
_VISIBLE: sa.Select[*tuple[Any, ...]] = (
    sa.select(
        _R.uuid,
        _R.state,
        _P.name,
        _R.device_profile_group_id,
        _R.project_id,
        _R.created_at,
        _R.updated_at,
        _R.hostname,
        _R.device_rp_uuid,
        sa.case((~_R.hidden, _R.instance_uuid)),
        sa.case((_BOUND, _H.attach_type), else_=""),
        sa.case((_BOUND, _H.uuid)),
        sa.case((_BOUND, _H.attach_info)),
    )
    .join(models.DeviceProfile, _P.id == _R.device_profile_id)
    .outerjoin(models.AttachHandle, _H.id == _R.attach_handle_id)
)
# Built once: SQLAlchemy takes longer to build them than the database to execute them.
_SHOW = _VISIBLE.where(_R.uuid == sa.bindparam("uuid"))
_SHOW_OF_PROJECT = _SHOW.where(_R.project_id == sa.bindparam("project_id"))
_SHOW_WITH_FAULT = _SHOW.add_columns(_R.fault)
_SHOW_OF_PROJECT_WITH_FAULT = _SHOW_OF_PROJECT.add_columns(_R.fault)


#: The columns, besides the state, that a change of state may set.
_BOUND_COLUMNS = (
    "hostname",
    "device_rp_uuid",
    "instance_uuid",
    "project_id",
    "attach_handle_id",
    "deployable_id",
    "prepared",
    "operation_id",
)
#: Filters of the API by name; all compare for equality.
FILTERS: Mapping[str, sa.ColumnElement[Any]] = {
    "instance": _R.instance_uuid,
    "state": _R.state,
    "hostname": _R.hostname,
    "device_rp_uuid": _R.device_rp_uuid,
    "device_profile_name": _P.name,
    "project_id": _R.project_id,
}
SORTABLE = listing.sortable(
    models.Arq,
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
    device_profile_name=_P.name,
)
#: The values of ``cyborg.model.arq.Arq`` in its order; the last one is the JSON of the handle (None
#: without a handle).
Row = sa.Row[*tuple[Any, ...]]


def show(tx: Transaction, uuid: str, project_id: str | None, *, fault: bool = False) -> Row | None:
    """Return the ARQ with this uuid if this project owns it (None: any project).

    With ``fault``, the reason why the bind failed is the last value (None: it did not fail).
    """
    if project_id is None:
        return tx.execute(_SHOW_WITH_FAULT if fault else _SHOW, {"uuid": uuid}).first()
    query = _SHOW_OF_PROJECT_WITH_FAULT if fault else _SHOW_OF_PROJECT
    return tx.execute(query, {"uuid": uuid, "project_id": project_id}).first()


def page(
    tx: Transaction,
    page: listing.Page,
    project_id: str | None,
    equal: Mapping[str, str],
    *,
    resolved: bool = False,
) -> Sequence[Row]:
    """Return a page of the ARQs of a project (None: of all projects) that match all filters.

    ``equal`` maps names of ``FILTERS`` to values. ``resolved`` keeps the ARQs whose state is final.
    """
    visible = _VISIBLE if project_id is None else _VISIBLE.where(_R.project_id == project_id)
    query = listing.paged(tx, visible, SORTABLE, page)
    query = query.where(*(FILTERS[name] == value for name, value in equal.items()))
    if "instance" in equal:
        # Nova attaches every listed ARQ to the guest. Leave out those that are not ready yet or
        # are being removed.
        query = query.where(~_R.hidden)
    if resolved:
        query = query.where(_R.state.in_(_RESOLVED))
    return tx.execute(query).all()


def all_resolved(tx: Transaction, instance_uuid: str, project_id: str | None) -> bool:
    """Return whether every visible ARQ of the instance is in a final state."""
    query = sa.select(sa.literal(1)).where(
        _R.instance_uuid == instance_uuid,
        ~_R.hidden,
        _R.state.not_in(_RESOLVED),
    )
    if project_id is not None:
        query = query.where(_R.project_id == project_id)
    return tx.execute(query.limit(1)).first() is None


def created_at(tx: Transaction, uuids: Sequence[str]) -> datetime | None:
    """Return when one operation stored these ARQs; None unless all of them exist."""
    moments = tx.execute(sa.select(Arq.created_at).where(Arq.uuid.in_(uuids))).scalars().all()
    return moments[0] if len(moments) == len(uuids) else None


def instances_of(tx: Transaction, caller: Caller, uuids: Sequence[str]) -> Sequence[Record]:
    """Return (uuid, instance_uuid) of the ARQs in the caller's scope, without a lock.

    The caller of this function locks the instances first, then the ARQs.
    """
    query = sa.select(Arq.uuid, Arq.instance_uuid)
    return tx.execute(query.where(Arq.uuid.in_(uuids), *of_caller(caller))).all()


def states(tx: Transaction, uuids: Sequence[str]) -> dict[str, str]:
    """Return uuid → state of those of the ARQs that exist."""
    return {row.uuid: row.state for row in tx.execute(_STATES, {"uuids": uuids})}


def lock(tx: Transaction, *terms: sa.ColumnElement[bool]) -> Sequence[Record]:
    """Lock the ARQs that match the terms, in order of id, and return their rows."""
    return tx.execute(_LOCK.where(*terms)).all()


def check(row: Record, event: Event) -> None:
    """Raise BadState unless the state of the ARQ allows the event."""
    if row.state not in MOVES[event].sources:
        raise exception.BadState(uuid=row.uuid, state=row.state, event=event.value)


def insert(tx: Transaction, rows: Sequence[Mapping[str, Any]]) -> None:
    """Store new ARQs; raise Conflict if a repeated operation has stored them."""
    base.insert(tx, Arq, rows)


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
    """Clear the handles of ARQs whose bind failed; instance and provider stay readable."""
    tx.execute(
        sa.update(Arq)
        .where(Arq.id.in_(ids))
        .values(attach_handle_id=None, deployable_id=None, prepared=False)
    )


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

#: The device whose unit an ARQ holds; a subquery takes no locks.
_DEVICE = (
    sa.select(Device.uuid)
    .join(Deployable, Deployable.device_id == Device.id)
    .where(Deployable.id == Arq.deployable_id)
    .correlate(Arq)
    .scalar_subquery()
)
_LOCK = (
    sa.select(
        Arq.id,
        Arq.uuid,
        Arq.state,
        Arq.project_id,
        Arq.instance_uuid,
        Arq.hostname,
        Arq.attach_handle_id,
        Arq.deployable_id,
        Arq.prepared,
        Arq.group_spec,
        Arq.operation_id,
        Arq.origin,
        Arq.hidden,
        Arq.fault,
        _DEVICE.label("device_uuid"),
    )
    .order_by(Arq.id)
    .with_for_update()
)
_IDS: sa.BindParameter[int] = sa.bindparam("ids", expanding=True)
_STATES = sa.select(Arq.uuid, Arq.state).where(Arq.uuid.in_(sa.bindparam("uuids", expanding=True)))
_DELETE = sa.delete(Arq).where(Arq.id.in_(_IDS))
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
