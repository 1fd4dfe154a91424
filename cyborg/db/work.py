# SPDX-License-Identifier: Apache-2.0
"""Store, claim, change and delete work rows in SQL: work to do after a commit.

A conductor (its services row and epoch) owns a row while its lease is valid. When the lease has
expired, another conductor takes over the row and raises the fencing number, so that the former
owner can no longer change the row.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from cyborg.db import events, rows
from cyborg.db.models import Deployable, Event, Service, Work
from cyborg.db.rows import column
from cyborg.db.transaction import Transaction
from cyborg.model.work import WorkKind


def _ordering(term: sa.SQLColumnExpression[Any]) -> sa.ScalarSelect[Any]:
    """Return a value of an event of the request that ordered the work."""
    return (
        sa.select(term)
        .where(Event.operation_id == Work.operation_id, Event.request_id.is_not(None))
        .limit(1)
        .scalar_subquery()
    )


class ClaimedWork(Work):
    """Work that this conductor owns.

    ``request_id`` and ``detail`` are those of an event of the request that ordered the work.
    """

    __abstract__ = True

    request_id: str | None = column(_ordering(Event.request_id))
    detail: dict[str, Any] | None = column(_ordering(Event.detail))
    overdue: bool
    #: Milliseconds until the deadline; None: it has none.
    left_ms: int | None
    age_ms: int


def add(tx: Transaction, new: Sequence[Mapping[str, Any]]) -> None:
    """Store work that is due now, in one statement; the runner is woken after the commit.

    Each row has ``kind`` and the objects of the work; ``deadline_in`` (milliseconds or None) counts
    from now by the database's clock.
    """
    if not new:
        return
    blank = dict.fromkeys(
        ("instance_uuid", "arq_uuid", "host_id", "deployable_id", "attach_handle_id", "spec")
    )
    values = []
    for row in new:
        value = {**blank, "operation_id": None, "deadline_in": None, **row}
        values.append({**value, "uuid": str(uuid4()), "kind": WorkKind(value["kind"]).value})
    tx.execute(_insert(tx.now), values)
    tx.wake_runner()


def claim(
    tx: Transaction,
    *,
    owner: tuple[int, int],
    lease_ms: int,
    limit: int,
) -> Sequence[ClaimedWork]:
    """Claim due work without a live owner; return the claimed rows, oldest first.

    Work of a kind that only a later release has is left to the conductors of that release.
    ``owner`` is (services id, epoch) of this conductor; an owner is live for ``lease_ms`` after its
    last heartbeat.
    """
    due = tx.execute(_due(tx.now, limit), {"lease_ms": lease_ms})
    ids = list(due.scalars())
    if not ids:
        return []
    tx.execute(_TAKE, {"ids": ids, "owner": owner[0], "epoch": owner[1]})
    return tx.all(_taken(tx.now), {"ids": ids})


def origin(row: ClaimedWork) -> dict[str, str]:
    """Return the ids (see ``cyborg.context``) of the request that ordered this work, if any."""
    return {} if row.request_id is None else events.origin(row.request_id, row.detail)


def record(tx: Transaction, row: ClaimedWork, entries: Sequence[events.Entry]) -> None:
    """Append entries to the history with the operation of this work and the ids of its request."""
    events.record_for(tx, entries, request_key=row.operation_id, ordered_by=origin(row))


def finish(tx: Transaction, claimed: Sequence[ClaimedWork]) -> bool:
    """Delete finished work, in the transaction of its changes.

    Returns False when another conductor has taken over a row; the caller must then roll back.
    """
    result = tx.execute(sa.delete(Work).where(_fenced(len(claimed))), _fences(claimed))
    return int(result.rowcount) == len(claimed)


def lock_owned(tx: Transaction, claimed: Sequence[ClaimedWork]) -> bool:
    """Lock work rows; False when another conductor has taken over one, or it was cancelled."""
    locked = sa.select(Work.id).where(_fenced(len(claimed))).with_for_update()
    held = tx.execute(locked, _fences(claimed)).all()
    return len(held) == len(claimed)


def set_spec(
    tx: Transaction, row: ClaimedWork, spec: Mapping[str, Any], *, deadline_in: int | None = None
) -> None:
    """Store the ``spec`` of a work row, unless another conductor has taken it over.

    With ``deadline_in`` (milliseconds from now) the work gets a new deadline.
    """
    values: dict[str, Any] = {"spec": dict(spec)}
    if deadline_in is not None:
        values["deadline_ms"] = tx.now + deadline_in
    tx.execute(sa.update(Work).where(_fenced(1)).values(values), _fences([row]))


def postpone(
    tx: Transaction,
    claimed: Sequence[ClaimedWork],
    *,
    delay_ms: int,
    error: str | None,
) -> None:
    """Release work, so that any conductor can retry it.

    It is due ``delay_ms`` from now, or at its deadline if that is sooner. Without a delay the
    runner is woken after the commit.
    """
    later = tx.now + delay_ms
    at_deadline = sa.and_(Work.deadline_ms > tx.now, Work.deadline_ms < later)
    due = sa.case((at_deadline, Work.deadline_ms + 1), else_=later)
    tx.execute(
        sa.update(Work)
        .where(_fenced(len(claimed)))
        .values(owner_id=None, owner_epoch=None, not_before_ms=due, error=error),
        _fences(claimed),
    )
    if not delay_ms:
        tx.wake_runner()


def make_due(tx: Transaction, handle_id: int) -> None:
    """Make the work that waits for an attach handle due now, unless a conductor owns it.

    The runner is woken after the commit.
    """
    tx.execute(
        sa.update(Work)
        .where(
            Work.attach_handle_id == handle_id,
            Work.kind == WorkKind.PREPARE.value,
            Work.owner_id.is_(None),
        )
        .values(not_before_ms=tx.now)
    )
    tx.wake_runner()


def cancel_prepare(tx: Transaction, arq_uuids: Sequence[str]) -> None:
    """Delete the work that prepares these ARQs."""
    tx.execute(
        sa.delete(Work).where(Work.arq_uuid.in_(arq_uuids), Work.kind == WorkKind.PREPARE.value)
    )


def supersede_program(tx: Transaction, deployable_id: int, request_key: str) -> list[str]:
    """Delete the work of other operations that program a deployable; return these operations.

    ``request_key`` has stored its own work before; that row makes concurrent operations wait.
    """
    older = tx.execute(
        sa.select(Work.id, Work.operation_id)
        .where(
            Work.deployable_id == deployable_id,
            Work.kind == WorkKind.PROGRAM.value,
            Work.operation_id != request_key,
        )
        .order_by(Work.id)
        .with_for_update()
    ).all()
    if older:
        tx.execute(sa.delete(Work).where(Work.id.in_([row.id for row in older])))
    return [str(row.operation_id) for row in older]


def cancel_install(tx: Transaction, device_id: int) -> None:
    """Delete the work that sets up a device."""
    own = sa.select(Deployable.id).where(Deployable.device_id == device_id)
    tx.execute(
        sa.delete(Work).where(
            Work.kind == WorkKind.SET_UP_DEVICE.value, Work.deployable_id.in_(own)
        )
    )


def cancel_release(tx: Transaction, handle_id: int) -> None:
    """Delete the work that releases a unit."""
    tx.execute(
        sa.delete(Work).where(
            Work.kind == WorkKind.RELEASE.value, Work.attach_handle_id == handle_id
        )
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
        .where(
            Work.kind.in_([kind.value for kind in WorkKind]),
            Work.not_before_ms <= now,
            sa.or_(Work.owner_id.is_(None), ~alive),
        )
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
def _taken(now: sa.ColumnElement[int]) -> sa.Select[ClaimedWork]:
    return (
        rows.select(
            ClaimedWork,
            overdue=sa.func.coalesce(Work.deadline_ms < now, sa.false()),
            left_ms=Work.deadline_ms - now,
            age_ms=now - Work.created_ms,
        )
        .where(Work.id.in_(sa.bindparam("ids", expanding=True)))
        .order_by(Work.not_before_ms, Work.id)
    )


@cache
def _fenced(count: int) -> sa.ColumnElement[bool]:
    """Return the term: one of ``count`` rows, at the fence that ``_fences`` gives."""
    return sa.or_(
        *(
            sa.and_(
                Work.id == sa.bindparam(f"id_{index}"), Work.fence == sa.bindparam(f"fence_{index}")
            )
            for index in range(count)
        )
    )


def _fences(claimed: Sequence[ClaimedWork]) -> dict[str, int]:
    fences: dict[str, int] = {}
    for index, row in enumerate(claimed):
        fences |= {f"id_{index}": row.id, f"fence_{index}": row.fence}
    return fences
