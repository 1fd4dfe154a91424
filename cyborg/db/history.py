# SPDX-License-Identifier: Apache-2.0
"""Delete old rows: events, instances that are no longer bound, and finished operations.

Each transaction deletes a bounded batch, so that locks are short and a replica can keep up.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg.db.engine import Database, Reader, retried
from cyborg.db.models import Arq, Event, Instance, Operation

#: Milliseconds of a day, the unit of retention periods.
DAY_MS = 24 * 3600 * 1000


class Table(StrEnum):
    """The tables with a retention period, in the order of deletion."""

    EVENTS = "events"
    INSTANCES = "instances"
    OPERATIONS = "operations"


@dataclass(frozen=True)
class Purge:
    """How to delete: ``batch`` rows at a time, at most ``batches`` batches per table (None: all).

    ``progress`` is called after each batch with the table and the number of rows deleted so far.
    """

    batch: int = 1000
    batches: int | None = None
    progress: Callable[[Table, int], None] = field(default=lambda table, count: None)


def cutoff(db: Reader, age_ms: int) -> int:
    """Return the time ``age_ms`` ago by the database's clock, in milliseconds."""
    with db.reader() as tx:
        return int(tx.execute(sa.select(db.now)).scalar_one()) - age_ms


def count(db: Reader, before_ms: int) -> dict[Table, int]:
    """Return how many rows of each table ended before ``before_ms``."""
    with db.reader() as tx:
        return {
            table: int(
                tx.execute(sa.select(sa.func.count()).where(*_old(table, before_ms))).scalar_one()
            )
            for table in Table
        }


def purge(db: Database, before_ms: int, how: Purge = Purge()) -> dict[Table, int]:
    """Delete the rows that ended before ``before_ms``; return how many of each table.

    Raises Unavailable; batches before the error stay deleted.
    """
    totals = dict.fromkeys(Table, 0)
    for table in Table:
        batches = 0
        more = True
        while more and (how.batches is None or batches < how.batches):
            deleted, more = _delete_some(db, table, before_ms, how.batch)
            batches += 1
            totals[table] += deleted
            if deleted:
                how.progress(table, totals[table])
    return totals


def purge_brief(db: Database, how: Purge = Purge()) -> int:
    """Delete the events that were to stay for a short time only; return how many.

    Raises Unavailable; batches before the error stay deleted.
    """
    total = batches = 0
    deleted = how.batch
    while deleted == how.batch and (how.batches is None or batches < how.batches):
        deleted = _delete_brief(db, how.batch)
        total, batches = total + deleted, batches + 1
    return total


@retried
def _delete_brief(db: Database, limit: int) -> int:
    with db.writer() as tx:
        query = sa.select(Event.id).where(Event.expires_ms < tx.now)
        ids = tx.execute(query.order_by(Event.expires_ms).limit(limit)).scalars().all()
        if ids:
            tx.execute(sa.delete(Event).where(Event.id.in_(sorted(ids))))
    return len(ids)


@retried
def _delete_some(db: Database, table: Table, before_ms: int, limit: int) -> tuple[int, bool]:
    """Delete one batch; return its size, and whether more rows may be left."""
    key, moment = _COLUMNS[table]
    old = _old(table, before_ms)
    with db.writer() as tx:
        # In two statements: MySQL does not accept LIMIT in an IN subquery.
        ids = tx.execute(sa.select(key).where(*old).order_by(moment, key).limit(limit)).scalars()
        chosen = sorted(ids)
        if not chosen:
            return 0, False
        # The terms apply again: an instance may have been bound since the SELECT.
        deleted = tx.execute(sa.delete(key.class_).where(key.in_(chosen), *old))
    return int(deleted.rowcount), len(chosen) == limit


#: The key, and the indexed column that orders the rows by age.
_COLUMNS: Mapping[Table, tuple[orm.InstrumentedAttribute[Any], sa.SQLColumnExpression[int]]] = {
    Table.EVENTS: (Event.id, Event.at_ms),
    Table.INSTANCES: (Instance.uuid, Instance.updated_ms),
    Table.OPERATIONS: (Operation.id, Operation.created_ms),
}


def _old(table: Table, before_ms: int) -> tuple[sa.ColumnElement[bool], ...]:
    if table is Table.EVENTS:
        return (Event.at_ms < before_ms,)
    if table is Table.INSTANCES:
        named = sa.exists().where(Arq.instance_uuid == Instance.uuid)
        return Instance.bound.is_(False), Instance.updated_ms < before_ms, ~named
    return Operation.created_ms < before_ms, Operation.finished_ms < before_ms
