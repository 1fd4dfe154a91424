# SPDX-License-Identifier: Apache-2.0
"""How ARQs change: made in one statement, locked in order, moved by conditional updates."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from cyborg import exception
from cyborg.db import bulk
from cyborg.db.bulk import Record
from cyborg.db.models import Arq
from cyborg.model.arq import MOVES, Event, State
from cyborg.model.caller import Caller

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
    bulk.insert(tx, Arq, rows)


def exist(tx: sa.Connection, uuids: Sequence[str]) -> bool:
    """Whether all of these ARQs are there."""
    count = tx.execute(sa.select(sa.func.count()).where(Arq.uuid.in_(uuids))).scalar_one()
    return int(count) == len(uuids)


def of_caller(caller: Caller) -> list[sa.ColumnElement[bool]]:
    """The WHERE terms of the scope that the API decided on."""
    return [] if caller.everywhere else [Arq.project_id == caller.project_id]


def peek(tx: sa.Connection, caller: Caller, uuids: Sequence[str]) -> Sequence[Record]:
    """The ARQs that the caller reaches, without a lock: whose instances to lock first."""
    query = sa.select(Arq.uuid, Arq.instance_uuid)
    return tx.execute(query.where(Arq.uuid.in_(uuids), *of_caller(caller))).all()


def lock(tx: sa.Connection, *terms: sa.ColumnElement[bool]) -> Sequence[Record]:
    """Lock the ARQs that fit, in order of id, and read what a move needs of them."""
    return tx.execute(
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
        )
        .where(*terms)
        .order_by(Arq.id)
        .with_for_update()
    ).all()


def states(tx: sa.Connection, uuids: Sequence[str]) -> dict[str, str]:
    """The states of those ARQs that are (still) there."""
    rows = tx.execute(sa.select(Arq.uuid, Arq.state).where(Arq.uuid.in_(uuids)))
    return {row.uuid: row.state for row in rows}


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
    values: dict[str, Any] = {
        name: sa.case(
            {id_: sa.literal(moves[id_][1][name], Arq.__table__.c[name].type) for id_ in ids},
            value=Arq.id,
        )
        for name in _BOUND_COLUMNS
    }
    values["state"] = sa.case({id_: moves[id_][0].value for id_ in ids}, value=Arq.id)
    values["fault"] = None
    _update(tx, ids, sources, values)


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
    tx.execute(sa.delete(Arq).where(Arq.id.in_(ids)))


def _update(
    tx: sa.Connection, ids: Sequence[int], sources: set[State], values: Mapping[str, Any]
) -> None:
    result = tx.execute(
        sa.update(Arq)
        .where(Arq.id.in_(ids), Arq.state.in_(sorted(state.value for state in sources)))
        .values(**values)
    )
    if result.rowcount != len(ids):
        raise exception.BadState(
            uuid=", ".join(str(one) for one in ids), state="moving elsewhere", event="be moved"
        )


def mark_prepared(tx: sa.Connection, id_: int) -> None:
    """From now on the host may have begun, so that a release has something to undo."""
    tx.execute(sa.update(Arq).where(Arq.id == id_).values(prepared=True))


def drop_handle(tx: sa.Connection, ids: Sequence[int]) -> None:
    """A failed bind holds nothing; what it was for (instance, provider) stays readable."""
    tx.execute(
        sa.update(Arq)
        .where(Arq.id.in_(ids))
        .values(attach_handle_id=None, deployable_id=None, prepared=False)
    )
