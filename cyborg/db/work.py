# SPDX-License-Identifier: Apache-2.0
"""Work rows: what is to be done after a commit, who is at it, and the number that fences it.

A row belongs to a conductor (its services row and epoch) while that one's lease lives; any other
takes over what a dead one held and raises the fencing number, so that one that wakes up late
finds that its row has moved on.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from cyborg.db import events
from cyborg.db.base import Record
from cyborg.db.models import Deployable, Event, Service, Work
from cyborg.model.work import WorkKind

_COLUMNS = (
    Work.id,
    Work.uuid,
    Work.kind,
    Work.instance_uuid,
    Work.arq_uuid,
    Work.host_id,
    Work.deployable_id,
    Work.attach_handle_id,
    Work.spec,
    Work.error,
    Work.fence,
    Work.attempts,
    Work.deadline_ms,
    Work.created_ms,
    Work.operation_id,
)


def add(tx: sa.Connection, now: sa.ColumnElement[int], rows: Sequence[Mapping[str, Any]]) -> None:
    """Store work, due at once, in one statement.

    Rows name ``kind`` and what it concerns; ``deadline_in`` (milliseconds or None) is counted from
    now by the database's clock.
    """
    if not rows:
        return
    blank = dict.fromkeys(
        ("instance_uuid", "arq_uuid", "host_id", "deployable_id", "attach_handle_id", "spec")
    )
    values = []
    for row in rows:
        value = {**blank, "operation_id": None, "deadline_in": None, **row}
        values.append({**value, "uuid": str(uuid4()), "kind": WorkKind(value["kind"]).value})
    tx.execute(_insert(now), values)


def claim(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    *,
    owner: tuple[int, int],
    lease_ms: int,
    limit: int,
) -> Sequence[Record]:
    """Take over due work that nobody alive is at; answers the rows as they are now, oldest first.

    ``owner`` is (services id, epoch) of this conductor.
    """
    due = tx.execute(_due(now, limit), {"lease_ms": lease_ms})
    ids = list(due.scalars())
    if not ids:
        return []
    tx.execute(_TAKE, {"ids": ids, "owner": owner[0], "epoch": owner[1]})
    return tx.execute(_taken(now), {"ids": ids}).all()


def origin(row: Record) -> dict[str, str]:
    """The ids (see ``cyborg.context``) of the request that ordered this work; empty: none did."""
    return {} if row.request_id is None else events.origin(row.request_id, row.detail)


def record(
    tx: sa.Connection, now: sa.ColumnElement[int], row: Record, entries: Iterable[events.Entry]
) -> None:
    """Append entries to the history with the operation of this work and the ids of its request."""
    events.record(tx, now, entries, operation=row.operation_id, ordered_by=origin(row))


def finish(tx: sa.Connection, rows: Sequence[Record]) -> bool:
    """Remove done work, in the transaction of what it changed.

    False when another has taken a row over: then nothing of this transaction may stand.
    """
    result = tx.execute(_delete(len(rows)), _fences(rows))
    return int(result.rowcount) == len(rows)


def still_ours(tx: sa.Connection, rows: Sequence[Record]) -> bool:
    """Lock work rows; False when another has taken one over, or the work is called off."""
    locked = sa.select(Work.id).where(_fenced(len(rows))).with_for_update()
    held = tx.execute(locked, _fences(rows)).all()
    return len(held) == len(rows)


def note(tx: sa.Connection, row: Record, spec: Mapping[str, Any]) -> None:
    """Remember something with work that is still ours."""
    tx.execute(sa.update(Work).where(_fenced(1)).values(spec=dict(spec)), _fences([row]))


def postpone(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    rows: Sequence[Record],
    *,
    delay_ms: int,
    error: str | None,
) -> None:
    """Give work back, to be tried again by whoever comes first.

    That is ``delay_ms`` from now, or at its deadline if that comes sooner.
    """
    later = now + delay_ms
    at_deadline = sa.and_(Work.deadline_ms > now, Work.deadline_ms < later)
    due = sa.case((at_deadline, Work.deadline_ms + 1), else_=later)
    tx.execute(
        sa.update(Work)
        .where(_fenced(len(rows)))
        .values(owner_id=None, owner_epoch=None, not_before_ms=due, error=error),
        _fences(rows),
    )


def due_now(tx: sa.Connection, now: sa.ColumnElement[int], handle_id: int) -> None:
    """Wake what waits for an attach handle."""
    tx.execute(
        sa.update(Work)
        .where(
            Work.attach_handle_id == handle_id,
            Work.kind == WorkKind.PREPARE.value,
            Work.owner_id.is_(None),
        )
        .values(not_before_ms=now)
    )


def cancel_prepare(tx: sa.Connection, arq_uuids: Sequence[str]) -> None:
    """Nobody waits for these ARQs' preparation any more."""
    tx.execute(
        sa.delete(Work).where(Work.arq_uuid.in_(arq_uuids), Work.kind == WorkKind.PREPARE.value)
    )


def supersede_program(tx: sa.Connection, deployable_id: int, operation: str) -> list[str]:
    """Call off what else is to be loaded into a deployable; answers whose operations that was.

    ``operation`` has stored its own work before, which keeps others that do the same waiting.
    """
    older = tx.execute(
        sa.select(Work.id, Work.operation_id)
        .where(
            Work.deployable_id == deployable_id,
            Work.kind == WorkKind.PROGRAM.value,
            Work.operation_id != operation,
        )
        .order_by(Work.id)
        .with_for_update()
    ).all()
    if older:
        tx.execute(sa.delete(Work).where(Work.id.in_([row.id for row in older])))
    return [str(row.operation_id) for row in older]


def cancel_install(tx: sa.Connection, device_id: int) -> None:
    """Nobody wants this device set up any more."""
    mine = sa.select(Deployable.id).where(Deployable.device_id == device_id)
    tx.execute(
        sa.delete(Work).where(Work.kind == WorkKind.INSTALL.value, Work.deployable_id.in_(mine))
    )


# Statements of the hot path are built once: SQLAlchemy takes longer to build one than the database
# to execute it.


@cache
def _insert(now: sa.ColumnElement[int]) -> sa.Insert:
    deadline = now + sa.bindparam("deadline_in", type_=sa.BigInteger)
    return sa.insert(Work).values(not_before_ms=now, created_ms=now, deadline_ms=deadline)


@cache
def _due(now: sa.ColumnElement[int], limit: int) -> sa.Select[int]:
    alive = sa.exists().where(
        Service.id == Work.owner_id,
        Service.epoch == Work.owner_epoch,
        Service.last_seen_ms > now - sa.bindparam("lease_ms", type_=sa.BigInteger),
    )
    return (
        sa.select(Work.id)
        .where(Work.not_before_ms <= now, sa.or_(Work.owner_id.is_(None), ~alive))
        .order_by(Work.not_before_ms, Work.id)
        .limit(limit)
        .with_for_update(skip_locked=True, of=Work)
    )


_TAKE = (
    sa.update(Work)
    .where(Work.id.in_(sa.bindparam("ids", expanding=True)))
    .values(
        owner_id=sa.bindparam("owner"),
        owner_epoch=sa.bindparam("epoch"),
        fence=Work.fence + 1,
        attempts=Work.attempts + 1,
    )
)


@cache
def _taken(now: sa.ColumnElement[int]) -> sa.Select[Any]:
    return (
        sa.select(
            *_COLUMNS,
            sa.func.coalesce(Work.deadline_ms < now, sa.false()).label("overdue"),
            (Work.deadline_ms - now).label("left_ms"),
            (now - Work.created_ms).label("age_ms"),
            _ordered(Event.request_id).label("request_id"),
            _ordered(Event.detail).label("detail"),
        )
        .where(Work.id.in_(sa.bindparam("ids", expanding=True)))
        .order_by(Work.not_before_ms, Work.id)
    )


def _ordered(column: Any) -> Any:
    """What the history says of the request that ordered a piece of work."""
    mine = Event.operation_id == Work.operation_id
    return sa.select(column).where(mine, Event.request_id.is_not(None)).limit(1).scalar_subquery()


@cache
def _delete(count: int) -> sa.Delete:
    return sa.delete(Work).where(_fenced(count))


@cache
def _fenced(count: int) -> sa.ColumnElement[bool]:
    """So many rows at the fences given by ``_fences``."""
    return sa.or_(
        *(
            sa.and_(
                Work.id == sa.bindparam(f"id_{index}"), Work.fence == sa.bindparam(f"fence_{index}")
            )
            for index in range(count)
        )
    )


def _fences(rows: Sequence[Record]) -> dict[str, int]:
    fences: dict[str, int] = {}
    for index, row in enumerate(rows):
        fences |= {f"id_{index}": row.id, f"fence_{index}": row.fence}
    return fences
