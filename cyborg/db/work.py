# SPDX-License-Identifier: Apache-2.0
"""Work rows: what is to be done after a commit, who is at it, and the number that fences it.

A row belongs to a conductor (its services row and epoch) while that one's lease lives; any other
takes over what a dead one held and raises the fencing number, so that one that wakes up late
finds that its row has moved on.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from cyborg.db.bulk import Record
from cyborg.db.models import Service, Work
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
    tx.execute(
        sa.insert(Work).values(
            not_before_ms=now,
            created_ms=now,
            deadline_ms=now + sa.bindparam("deadline_in", type_=sa.BigInteger),
        ),
        values,
    )


def claim(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    *,
    owner: tuple[int, int],
    lease_ms: int,
    limit: int,
) -> Sequence[Record]:
    """Take over due work that nobody alive is at; answers the rows as they are now.

    ``owner`` is (services id, epoch) of this conductor.
    """
    alive = sa.exists().where(
        Service.id == Work.owner_id,
        Service.epoch == Work.owner_epoch,
        Service.last_seen_ms > now - lease_ms,
    )
    ids = list(
        tx.execute(
            sa.select(Work.id)
            .where(Work.not_before_ms <= now, sa.or_(Work.owner_id.is_(None), ~alive))
            .order_by(Work.not_before_ms, Work.id)
            .limit(limit)
            .with_for_update(skip_locked=True, of=Work)
        ).scalars()
    )
    if not ids:
        return []
    tx.execute(
        sa.update(Work)
        .where(Work.id.in_(ids))
        .values(
            owner_id=owner[0],
            owner_epoch=owner[1],
            fence=Work.fence + 1,
            attempts=Work.attempts + 1,
        )
    )
    overdue = sa.func.coalesce(Work.deadline_ms < now, sa.false()).label("overdue")
    age = (now - Work.created_ms).label("age_ms")
    return tx.execute(sa.select(*_COLUMNS, overdue, age).where(Work.id.in_(ids))).all()


def finish(tx: sa.Connection, rows: Sequence[Record]) -> bool:
    """Remove done work, in the transaction of what it changed.

    False when another has taken a row over: then nothing of this transaction may stand.
    """
    result = tx.execute(sa.delete(Work).where(_fenced(rows)))
    return int(result.rowcount) == len(rows)


def still_ours(tx: sa.Connection, rows: Sequence[Record]) -> bool:
    """Lock work rows; False when another has taken one over, or the work is called off."""
    held = tx.execute(sa.select(Work.id).where(_fenced(rows)).with_for_update()).all()
    return len(held) == len(rows)


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
        .where(_fenced(rows))
        .values(owner_id=None, owner_epoch=None, not_before_ms=due, error=error)
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


def _fenced(rows: Sequence[Record]) -> sa.ColumnElement[bool]:
    return sa.or_(*(sa.and_(Work.id == row.id, Work.fence == row.fence) for row in rows))
