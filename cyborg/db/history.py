# SPDX-License-Identifier: Apache-2.0
"""Delete old rows: events, instances that are no longer bound, and finished operations.

Each transaction deletes a bounded batch, so that locks are short and a replica can keep up.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg.db.engine import Database, Reader, retried
from cyborg.db.events import BRIEF_MS
from cyborg.db.models import Arq, Event, Instance, Operation

#: Milliseconds of a day, the unit of retention periods.
DAY_MS = 24 * 3600 * 1000
#: How many events of requests that were never bound a project has: members can write any number.
MAX_BRIEF: Final = 10_000
#: Milliseconds for which they stay in any case, because a repeated request needs them.
_LEAST_MS: Final = 60_000


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


def purge_brief(db: Database, how: Purge = Purge(), most: int = MAX_BRIEF) -> int:
    """Delete the events that were to stay for a short time only; return how many.

    Those of a project with more than ``most`` go earlier, the oldest first, but not in a minute.
    Raises Unavailable; batches before the error stay deleted.
    """
    total = batches = 0
    for terms in ((), *_surplus(db, most)):
        deleted = how.batch
        while deleted == how.batch and (how.batches is None or batches < how.batches):
            deleted = _delete_brief(db, terms, how.batch)
            total, batches = total + deleted, batches + 1
    return total


@retried
def _surplus(db: Database, most: int) -> list[tuple[sa.ColumnElement[bool], ...]]:
    """Return the terms for the brief events of each project that are older than ``most`` others."""
    brief = Event.expires_ms.is_not(None)
    with db.reader() as tx:
        projects = tx.execute(
            sa.select(Event.project_id)
            .where(brief)
            .group_by(Event.project_id)
            .having(sa.func.count() > most)
        ).scalars()
        return [
            (Event.project_id.is_not_distinct_from(project), Event.id <= newest)
            for project in projects.all()
            for newest in tx.execute(
                sa.select(Event.id)
                .where(brief, Event.project_id.is_not_distinct_from(project))
                .order_by(Event.id.desc())
                .offset(most)
                .limit(1)
            ).scalars()
        ]


@retried
def _delete_brief(db: Database, terms: Sequence[sa.ColumnElement[bool]], limit: int) -> int:
    """Delete one batch of brief events: with ``terms`` before they expire."""
    with db.writer() as tx:
        due = tx.now + BRIEF_MS - _LEAST_MS if terms else tx.now
        query = sa.select(Event.id).where(Event.expires_ms < due, *terms)
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
        return Instance.updated_ms < before_ms, ~named
    return Operation.created_ms < before_ms, Operation.finished_ms < before_ms
