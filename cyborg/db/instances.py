# SPDX-License-Identifier: Apache-2.0
"""Instances that have, or had, accelerators: the row that serialises bind against delete.

The row stays when the instance is released, because it remembers the owner: an administrator who
evacuates or unshelves a server binds new ARQs in its owner's name. While it is bound the row also
has what Nova last said of it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa

from cyborg.db.base import Record
from cyborg.db.models import Arq, Instance


def lock(tx: sa.Connection, uuids: Iterable[str]) -> dict[str, Record]:
    """Lock the rows that exist; uuid → (uuid, project_id, operation_id, bound)."""
    return {row.uuid: row for row in tx.execute(_LOCK, {"uuids": sorted(set(uuids))})}


def bind(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    known: Iterable[str],
    instances: Sequence[dict[str, str | None]],
) -> None:
    """Mark instances (uuid, project_id, hostname, operation_id) as bound.

    ``known`` are the uuids that ``lock`` found. A rival's row for a new one shows as a
    duplicate key, which ends the transaction.
    """
    known = set(known)
    fresh = [{**one, "bound": True} for one in instances if one["uuid"] not in known]
    if fresh:
        tx.execute(_insert(now), fresh)
    for one in instances:
        if one["uuid"] in known:
            tx.execute(
                sa.update(Instance)
                .where(Instance.uuid == one["uuid"])
                .values(
                    project_id=one["project_id"],
                    hostname=one["hostname"],
                    operation_id=one["operation_id"],
                    bound=True,
                    look_ms=0,
                    updated_ms=now,
                )
            )


def release(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    uuids: Collection[str],
    going: Sequence[sa.ColumnElement[bool]] | None = None,
) -> int:
    """Open instances for their next bind, those only that no ARQ is left to; locks their rows.

    ``going`` are the terms that choose those of their ARQs (all, when empty) which go later in
    the same transaction; without it, they have gone. Answers how many rows it has opened.
    """
    if not uuids:
        return 0
    statement = _open(now)
    if going is None:
        statement = _open_left(now)
    elif going:
        staying = sa.not_(sa.func.coalesce(sa.and_(*going), False))
        statement = statement.where(~_HELD.where(staying))
    return int(tx.execute(statement, {"uuids": sorted(set(uuids))}).rowcount)


def due(tx: sa.Connection, now: sa.ColumnElement[int], limit: int) -> Sequence[Record]:
    """Whom to look up in Nova now: (uuid, updated_ms, look_ms), those never asked about first."""
    return tx.execute(
        sa.select(Instance.uuid, Instance.updated_ms, Instance.look_ms)
        .where(Instance.bound, Instance.look_ms <= now)
        .order_by(Instance.look_ms)
        .limit(limit)
    ).all()


def note(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    asked: Record,
    *,
    after_ms: int,
    said: Mapping[str, str] | None,
) -> None:
    """Keep what Nova said (``name``, ``status``; None: nothing new), and when it is asked again.

    ``asked`` is what ``due`` gave. Nothing is kept when the instance was released or bound since,
    or somebody else asked.
    """
    values = {} if said is None else {**said, "seen_ms": now}
    tx.execute(
        sa.update(Instance)
        .where(
            Instance.uuid == asked.uuid,
            Instance.bound,
            Instance.updated_ms == asked.updated_ms,
            Instance.look_ms == asked.look_ms,
        )
        .values(look_ms=now + after_ms, **values)
    )


# Statements of the hot path are built once: SQLAlchemy takes longer to build one than the database
# to execute it.

_UUIDS: sa.BindParameter[str] = sa.bindparam("uuids", expanding=True)
#: What is not known of an instance, or no longer: of one that is released only the owner is kept.
_NEVER_SEEN: Mapping[str, Any] = {"name": None, "status": None, "seen_ms": None, "look_ms": 0}
_HELD = sa.exists().where(Arq.instance_uuid == Instance.uuid)
_LOCK = (
    sa.select(Instance.uuid, Instance.project_id, Instance.operation_id, Instance.bound)
    .where(Instance.uuid.in_(_UUIDS))
    .order_by(Instance.uuid)
    .with_for_update()
)


@cache
def _insert(now: sa.ColumnElement[int]) -> sa.Insert:
    return sa.insert(Instance).values(updated_ms=now)


@cache
def _open(now: sa.ColumnElement[int]) -> sa.Update:
    values = {"bound": False, "operation_id": None, "updated_ms": now, **_NEVER_SEEN}
    return sa.update(Instance).where(Instance.uuid.in_(_UUIDS)).values(**values)


@cache
def _open_left(now: sa.ColumnElement[int]) -> sa.Update:
    return _open(now).where(~_HELD)
