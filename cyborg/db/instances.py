# SPDX-License-Identifier: Apache-2.0
"""Lock, read and change the instances that have, or had, accelerators.

The lock on the row serialises bind and delete. The row stays when the instance is released, because
it holds the owner: an administrator who evacuates or unshelves a server binds new ARQs in the
owner's name. An instance is bound while an ARQ has it; then the row also has Nova's last answer
about it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa

from cyborg.db.models import Arq, Instance
from cyborg.db.rows import Row, column, nullable, select
from cyborg.db.transaction import Transaction


class LockedInstance(Row):
    """An instance that has, or had, accelerators."""

    uuid = column(Instance.uuid)
    project_id = column(Instance.project_id)
    operation_id = column(Instance.operation_id)


def lock(tx: Transaction, uuids: Iterable[str]) -> dict[str, LockedInstance]:
    """Lock the rows that exist; return uuid → row."""
    return {row.uuid: row for row in tx.all(_LOCK, {"uuids": sorted(set(uuids))})}


def bound(tx: Transaction, locked: Mapping[str, LockedInstance]) -> list[LockedInstance]:
    """Return those of the instances, which ``lock`` returned, that an ARQ has."""
    if not locked:
        return []
    # A statement of its own: it sees what the holders of the locks before have committed.
    uuids = set(tx.execute(_BOUND, {"uuids": sorted(locked)}).scalars())
    return [row for uuid, row in locked.items() if uuid in uuids]


def bind(
    tx: Transaction,
    existing: Iterable[str],
    instances: Sequence[dict[str, str | None]],
) -> None:
    """Store instances (uuid, project_id, hostname, operation_id) that are about to be bound.

    Instances that an ARQ has stay as they are. ``existing`` are the uuids that ``lock`` returned.
    Raises Conflict, which ends the transaction, when another transaction has inserted a row for a
    new instance.
    """
    existing = set(existing)
    rows = [instance for instance in instances if instance["uuid"] not in existing]
    if rows:
        tx.execute(_insert(tx.now), rows)
    for instance in instances:
        if instance["uuid"] in existing:
            tx.execute(
                sa.update(Instance)
                .where(Instance.uuid == instance["uuid"], ~_HELD)
                .values(
                    project_id=instance["project_id"],
                    hostname=instance["hostname"],
                    operation_id=instance["operation_id"],
                    look_ms=0,
                    updated_ms=tx.now,
                )
            )


def release(
    tx: Transaction,
    uuids: Collection[str],
    removing: Sequence[sa.ColumnElement[bool]] | None = None,
) -> int:
    """Release instances that have no ARQ left; lock their rows, and return how many there are.

    ``removing`` holds the terms of the ARQs (empty: all) that the same transaction removes later;
    with None, it has removed them already. A released instance can be bound by another operation.
    """
    if not uuids:
        return 0
    statement = _release(tx.now, unheld=removing is None)
    if removing:
        staying = sa.not_(sa.func.coalesce(sa.and_(*removing), False))
        statement = statement.where(~_HELD.where(staying))
    return int(tx.execute(statement, {"uuids": sorted(set(uuids))}).rowcount)


class DueInstance(Row):
    """An instance to look up in Nova, with the times that tell whether it has changed since."""

    uuid = column(Instance.uuid)
    updated_ms = column(Instance.updated_ms)
    look_ms = nullable(Instance.look_ms)


def due(tx: Transaction, limit: int) -> Sequence[DueInstance]:
    """Return the instances to look up in Nova now.

    Those that were never looked up come first.
    """
    return tx.all(
        select(DueInstance)
        .where(Instance.look_ms <= tx.now, _HELD)
        .order_by(Instance.look_ms)
        .limit(limit)
    )


def set_server_info(
    tx: Transaction,
    instance: DueInstance,
    *,
    after_ms: int,
    answer: Mapping[str, str] | None,
) -> None:
    """Store Nova's answer (``name``, ``status``; None: no new one), and look again in ``after_ms``.

    Stores nothing when the instance was released, bound or looked up by another conductor since
    ``due``.
    """
    values = {} if answer is None else {**answer, "seen_ms": tx.now}
    tx.execute(
        sa.update(Instance)
        .where(
            Instance.uuid == instance.uuid,
            Instance.updated_ms == instance.updated_ms,
            Instance.look_ms == instance.look_ms,
        )
        .values(look_ms=tx.now + after_ms, **values)
    )


# Statements of the hot path are built once: SQLAlchemy takes longer to build one than the database
# to execute it.

_UUIDS: sa.BindParameter[str] = sa.bindparam("uuids", expanding=True)
#: Values of an instance that was not looked up in Nova, and of a released one; the owner stays.
_NEVER_SEEN: Mapping[str, Any] = {"name": None, "status": None, "seen_ms": None, "look_ms": None}
_HELD = sa.exists().where(Arq.instance_uuid == Instance.uuid)
_BOUND = sa.select(Arq.instance_uuid).where(Arq.instance_uuid.in_(_UUIDS)).distinct()
_LOCK = (
    select(LockedInstance)
    .where(Instance.uuid.in_(_UUIDS))
    .order_by(Instance.uuid)
    .with_for_update()
)


@cache
def _insert(now: sa.ColumnElement[int]) -> sa.Insert:
    return sa.insert(Instance).values(updated_ms=now)


@cache
def _release(now: sa.ColumnElement[int], *, unheld: bool) -> sa.Update:
    values = {"operation_id": None, "updated_ms": now, **_NEVER_SEEN}
    statement = sa.update(Instance).where(Instance.uuid.in_(_UUIDS)).values(**values)
    return statement.where(~_HELD) if unheld else statement
