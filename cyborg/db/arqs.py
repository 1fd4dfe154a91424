# SPDX-License-Identifier: Apache-2.0
"""SQL for ARQs: find, read, lock and change them."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

import sqlalchemy as sa

from cyborg import exception
from cyborg.db import base, listing, models
from cyborg.db.base import Record
from cyborg.db.models import Arq, Deployable, Device
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
_EXPLAINED = _SHOW.add_columns(_R.fault)
_EXPLAINED_OF_PROJECT = _SHOW_OF_PROJECT.add_columns(_R.fault)
#: Filters of the API by name; all compare for equality.
FILTERS: Mapping[str, sa.ColumnElement[Any]] = {
    "instance": _R.instance_uuid,
    "state": _R.state,
    "hostname": _R.hostname,
    "device_rp_uuid": _R.device_rp_uuid,
    "device_profile_name": _P.name,
    "project_id": _R.project_id,
}
SORTABLE = listing.Sortable(
    id=_R.id,
    uuid=_R.uuid,
    columns={
        "id": _R.id,
        "device_profile_name": _P.name,
        **{
            name: _R[name]
            for name in (
                "uuid",
                "state",
                "device_profile_group_id",
                "hostname",
                "device_rp_uuid",
                "instance_uuid",
                "project_id",
                "created_at",
                "updated_at",
            )
        },
    },
)


#: The values of ``cyborg.model.arq.Arq`` in its order, but for the last: the handle's JSON, if any.
Row = sa.Row[*tuple[Any, ...]]


def show(tx: sa.Connection, uuid: str, project_id: str | None) -> Row | None:
    """The ARQ with this uuid, if it is of this project (None: of any)."""
    return _one(tx, (_SHOW, _SHOW_OF_PROJECT), uuid, project_id)


def explained(tx: sa.Connection, uuid: str, project_id: str | None) -> Row | None:
    """The same with one value more: why its bind failed, or None."""
    return _one(tx, (_EXPLAINED, _EXPLAINED_OF_PROJECT), uuid, project_id)


def _one(
    tx: sa.Connection,
    queries: tuple[sa.Select[*tuple[Any, ...]], sa.Select[*tuple[Any, ...]]],
    uuid: str,
    project_id: str | None,
) -> Row | None:
    of_all, of_project = queries
    if project_id is None:
        return tx.execute(of_all, {"uuid": uuid}).first()
    return tx.execute(of_project, {"uuid": uuid, "project_id": project_id}).first()


def page(
    tx: sa.Connection,
    wanted: listing.Page,
    project_id: str | None,
    equal: Mapping[str, str],
    *,
    resolved: bool = False,
) -> Sequence[Row]:
    """A page of the ARQs of a project (None: of all) to which the ``FILTERS`` apply.

    ``resolved`` keeps those whose state is final.
    """
    query = listing.paged(tx, _visible(project_id), SORTABLE, wanted)
    query = query.where(*(FILTERS[name] == value for name, value in equal.items()))
    if "instance" in equal:
        # Nova hands a guest whatever is listed; what is not ready yet, or on its way out, is not.
        query = query.where(~_R.hidden)
    if resolved:
        query = query.where(_R.state.in_(_RESOLVED))
    return tx.execute(query).all()


def all_resolved(tx: sa.Connection, instance_uuid: str, project_id: str | None) -> bool:
    """Whether no ARQ of the instance is on its way to a final state."""
    query = sa.select(sa.literal(1)).where(
        _R.instance_uuid == instance_uuid,
        ~_R.hidden,
        _R.state.not_in(_RESOLVED),
        *_of(project_id),
    )
    return tx.execute(query.limit(1)).first() is None


def _visible(project_id: str | None) -> sa.Select[*tuple[Any, ...]]:
    return _VISIBLE.where(*_of(project_id))


def _of(project_id: str | None) -> list[sa.ColumnElement[bool]]:
    return [] if project_id is None else [_R.project_id == project_id]


#: What a move may set on an ARQ, besides its state.
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


def insert(tx: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Store new ARQs; a repeated operation meets their uuids as a duplicate key."""
    base.insert(tx, Arq, rows)


def made_at(tx: sa.Connection, uuids: Sequence[str]) -> datetime | None:
    """When these ARQs, all of one operation, were stored; None unless all of them are there."""
    moments = tx.execute(sa.select(Arq.created_at).where(Arq.uuid.in_(uuids))).scalars().all()
    return moments[0] if len(moments) == len(uuids) else None


def of_caller(caller: Caller) -> list[sa.ColumnElement[bool]]:
    """The WHERE terms of the scope that the API decided on."""
    return [] if caller.everywhere else [Arq.project_id == caller.project_id]


def peek(tx: sa.Connection, caller: Caller, uuids: Sequence[str]) -> Sequence[Record]:
    """The ARQs that the caller reaches, without a lock: whose instances to lock first."""
    query = sa.select(Arq.uuid, Arq.instance_uuid)
    return tx.execute(query.where(Arq.uuid.in_(uuids), *of_caller(caller))).all()


def lock(tx: sa.Connection, *terms: sa.ColumnElement[bool]) -> Sequence[Record]:
    """Lock the ARQs that fit, in order of id, and read what a move needs of them."""
    return tx.execute(_LOCK.where(*terms)).all()


def states(tx: sa.Connection, uuids: Sequence[str]) -> dict[str, str]:
    """The states of those ARQs that are (still) there."""
    return {row.uuid: row.state for row in tx.execute(_STATES, {"uuids": uuids})}


def check(row: Record, event: Event) -> None:
    """Raise BadState unless the event may happen to this ARQ."""
    if row.state not in MOVES[event].sources:
        raise exception.BadState(uuid=row.uuid, state=row.state, event=event.value)


def move_each(
    tx: sa.Connection, moves: Mapping[int, tuple[State, Mapping[str, Any]]], sources: set[State]
) -> None:
    """Move ARQs, each with its own values, in one statement.

    ``moves`` maps ids to the new state and the values of all bound columns. Every row must still
    be in one of ``sources``; else BadState, and the transaction is for the caller to end.
    """
    ids = sorted(moves)
    values: dict[str, Any] = {"ids": ids, "sources": sorted(state.value for state in sources)}
    for index, id_ in enumerate(ids):
        state, columns = moves[id_]
        values |= {f"id_{index}": id_, f"state_{index}": state.value}
        values |= {f"{name}_{index}": columns[name] for name in _BOUND_COLUMNS}
    _check_moved(ids, tx.execute(_move_each(len(ids)), values))


def move(tx: sa.Connection, event: Event, ids: Sequence[int], *, fault: str | None = None) -> None:
    """Let one event happen to ARQs whose other values stay; BadState when one has moved on."""
    _update(
        tx, ids, set(MOVES[event].sources), {"state": MOVES[event].target.value, "fault": fault}
    )


def unbind(tx: sa.Connection, ids: Sequence[int]) -> None:
    """Take everything of a bind off ARQs; their owner stays."""
    cleared = {name: None for name in _BOUND_COLUMNS if name not in ("project_id", "prepared")}
    values = {"state": State.UNBOUND.value, "prepared": False, "fault": None, **cleared}
    _update(tx, ids, set(MOVES[Event.UNBIND].sources), values)


def delete(tx: sa.Connection, ids: Sequence[int]) -> None:
    """Remove ARQs that the caller has locked."""
    tx.execute(_DELETE, {"ids": ids})


def _update(
    tx: sa.Connection, ids: Sequence[int], sources: set[State], values: Mapping[str, Any]
) -> None:
    statement = _MOVABLE.values(**values)
    where = {"ids": ids, "sources": sorted(state.value for state in sources)}
    _check_moved(ids, tx.execute(statement, where))


def _check_moved(ids: Sequence[int], result: sa.CursorResult[Any]) -> None:
    if result.rowcount != len(ids):
        raise exception.BadState(
            uuid=", ".join(str(one) for one in ids), state="moving elsewhere", event="be moved"
        )


def mark_prepared(tx: sa.Connection, id_: int, *, prepared: bool = True) -> None:
    """Store whether the host may have begun, so that a release has something to undo."""
    tx.execute(sa.update(Arq).where(Arq.id == id_).values(prepared=prepared))


def hide(tx: sa.Connection, ids: Sequence[int], *, hidden: bool) -> None:
    """Leave ARQs out of their instance's list, or put them into it; their instance stays theirs."""
    if ids:
        tx.execute(sa.update(Arq).where(Arq.id.in_(ids)).values(hidden=hidden))


def drop_handle(tx: sa.Connection, ids: Sequence[int]) -> None:
    """A failed bind holds nothing; what it was for (instance, provider) stays readable."""
    tx.execute(
        sa.update(Arq)
        .where(Arq.id.in_(ids))
        .values(attach_handle_id=None, deployable_id=None, prepared=False)
    )


# Statements of the hot path are built once: SQLAlchemy takes longer to build one than the database
# to execute it.

#: The device that an ARQ has a unit of; a subquery takes no locks.
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
    """So many ARQs, number ``i`` of which is that of ``id_i``."""
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
