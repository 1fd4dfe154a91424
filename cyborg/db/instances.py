# SPDX-License-Identifier: Apache-2.0
"""Instances that have, or had, accelerators: the row that serialises bind against delete.

The row stays when the instance is released, because it remembers the owner: an administrator who
evacuates or unshelves a server binds new ARQs in its owner's name.
"""

from collections.abc import Collection, Iterable, Sequence
from functools import cache

import sqlalchemy as sa

from cyborg.db.bulk import Record
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


# Statements of the hot path are built once: SQLAlchemy takes longer to build one than the database
# to execute it.

_UUIDS: sa.BindParameter[str] = sa.bindparam("uuids", expanding=True)
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
    values = {"bound": False, "operation_id": None, "updated_ms": now}
    return sa.update(Instance).where(Instance.uuid.in_(_UUIDS)).values(**values)


@cache
def _open_left(now: sa.ColumnElement[int]) -> sa.Update:
    return _open(now).where(~_HELD)
