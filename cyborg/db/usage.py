# SPDX-License-Identifier: Apache-2.0
"""Count for how long units were in use: begin and end uses with the history, and sum them.

A use begins with the event by which an ARQ gets a unit, and ends with the event by which it gives
the unit back, whether or not the host still has to clean it. ``cyborg.db.events`` writes both in
the transaction of the event, with the time of the event: what the history says and what is counted
cannot differ. A row is kept, although the history has both events, because

* after the ARQ is deleted, no row says whose unit it was, or what was requested;
* the history is deleted after ``[conductor] history_retention``, and then an instance that runs for
  longer would have no begin;
* a sum over the pairs of events of a history would read all of it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from cyborg.db.engine import Database, retried
from cyborg.db.models import (
    Arq,
    Deployable,
    Device,
    DeviceProfile,
    Event,
    Host,
    UsageRecord,
    UsageStart,
)
from cyborg.db.rows import Shown, shown
from cyborg.db.transaction import Transaction
from cyborg.model.scope import Scope

#: The columns by which uses can be summed, besides their resource class; filters as well.
GROUPS: Final[Mapping[str, sa.SQLColumnExpression[Any]]] = {
    "type": UsageRecord.type,
    "host": UsageRecord.hostname,
    "project_id": UsageRecord.project_id,
    "profile": UsageRecord.profile,
    "instance": UsageRecord.instance_uuid,
}


@dataclass(frozen=True)
class Span:
    """A half-open range of time, in milliseconds since 1970 by the database's clock."""

    start_ms: int
    end_ms: int


class UsedUnits(Shown):
    """How long units of a group were in use, in milliseconds: one unit for a second is 1000."""

    resource_class: str
    type: str | None
    host: str | None
    project_id: str | None
    profile: str | None
    instance: str | None
    unit_ms: int


def begin(tx: Transaction, arqs: Collection[str]) -> None:
    """Begin the uses of the units that ARQs have got, at the times of the last events of these."""
    if arqs:
        tx.execute(_BEGIN, {"uuids": sorted(arqs)})


def end(tx: Transaction, arqs: Collection[int]) -> None:
    """End the uses of the units of ARQs, by id, at the times of the last events of these."""
    if arqs:
        tx.execute(_END, {"ids": sorted(arqs)})


def total(
    tx: Transaction,
    span: Span,
    scope: Scope,
    *,
    filters: Mapping[str, Any],
    groups: Collection[str],
    limit: int,
) -> Sequence[UsedUnits]:
    """Return the sums over a range by resource class and ``groups``, in this order, in a statement.

    Columns that are not in ``groups`` are None; there are at most ``limit`` rows. A use that has
    not ended counts until the end of the range. Sums of ranges that follow each other add up.
    """
    chosen: dict[str, sa.SQLColumnExpression[Any]] = {"resource_class": UsageRecord.resource_class}
    chosen |= {name: GROUPS[name] for name in GROUPS if name in groups}
    first = sa.case(
        (UsageRecord.began_ms > span.start_ms, UsageRecord.began_ms), else_=span.start_ms
    )
    last = sa.case((UsageRecord.ended_ms < span.end_ms, UsageRecord.ended_ms), else_=span.end_ms)
    each = (
        sa.select(*(chosen[name].label(name) for name in chosen), (last - first).label("ms"))
        .where(
            UsageRecord.began_ms < span.end_ms,
            sa.or_(UsageRecord.ended_ms.is_(None), UsageRecord.ended_ms > span.start_ms),
            *_terms(filters, scope),
        )
        .subquery()
    )
    terms = {name: each.c.get(name, sa.null()) for name in ("resource_class", *GROUPS)}
    keys = [each.c[name] for name in chosen]
    amount = sa.func.sum(each.c.ms)
    return tx.all(
        # The subquery has the term of the scope.
        shown(UsedUnits, None, **terms, unit_ms=sa.cast(amount, sa.BigInteger))
        .within(scope)
        .group_by(*keys)
        # A use that ended as it began.
        .having(amount > 0)
        # The place of NULL in an order differs between databases.
        .order_by(*(sa.func.coalesce(key, "") for key in keys))
        .limit(limit)
    )


def complete_from(tx: Transaction) -> int | None:
    """Return from when on all uses are there, in milliseconds; None: none is missing.

    Read it after the sums: a deletion that commits in between is then known.
    """
    return tx.execute(sa.select(sa.func.max(UsageStart.at_ms))).scalar_one()


def purge(db: Database, before_ms: int, *, batch: int, batches: int) -> int:
    """Delete at most ``batch * batches`` uses that ended before ``before_ms``; return how many.

    From the first one on, ``complete_from`` is at least ``before_ms``. Raises Unavailable; batches
    before the error stay deleted.
    """
    total = 0
    for _ in range(batches):
        deleted = _delete_some(db, before_ms, batch)
        total += deleted
        if deleted < batch:
            break
    return total


@retried
def _delete_some(db: Database, before_ms: int, limit: int) -> int:
    old = sa.select(UsageRecord.id).where(UsageRecord.ended_ms < before_ms)
    with db.writer() as tx:
        # In two statements: MySQL does not accept LIMIT in an IN subquery.
        ids = (
            tx.execute(old.order_by(UsageRecord.ended_ms, UsageRecord.id).limit(limit))
            .scalars()
            .all()
        )
        if ids:
            _set_start(tx, before_ms)
            tx.execute(sa.delete(UsageRecord).where(UsageRecord.id.in_(sorted(ids))))
    return len(ids)


def _set_start(tx: Transaction, at_ms: int) -> None:
    present = complete_from(tx)
    if present is None:
        tx.execute(sa.insert(UsageStart).values(at_ms=at_ms))
    elif present < at_ms:
        tx.execute(sa.update(UsageStart).values(at_ms=at_ms))


def _terms(filters: Mapping[str, Any], scope: Scope) -> list[sa.ColumnElement[bool]]:
    """Return the terms of the filters of a request, and of the scope that limits it."""
    columns = {**GROUPS, "resource_class": UsageRecord.resource_class}
    terms = [
        columns[name] == filters[name] for name in columns if name in filters and name != "host"
    ]
    if scope.project_id is not None:
        terms.append(UsageRecord.project_id == scope.project_id)
    if "host" in filters:
        named = sa.select(Host.name).where(Host.service_host == filters["host"])
        terms.append(
            sa.or_(
                UsageRecord.hostname == filters["host"],
                UsageRecord.hostname == named.scalar_subquery(),
            )
        )
    return terms


# Statements of the hot path are built once: SQLAlchemy takes longer to build one than the database
# to execute it.

_VALUES: Final[Mapping[str, sa.SQLColumnExpression[Any]]] = {
    "arq_id": Arq.id,
    "instance_uuid": Arq.instance_uuid,
    "project_id": Arq.project_id,
    "profile": DeviceProfile.name,
    "resource_class": Deployable.resource_class,
    "type": Device.type,
    "hostname": Device.hostname,
    "began_ms": sa.select(Event.at_ms)
    .where(Event.subject_uuid == Arq.uuid)
    .order_by(Event.id.desc())
    .limit(1)
    .correlate(Arq)
    .scalar_subquery(),
}
_BEGIN: Final = sa.insert(UsageRecord).from_select(
    list(_VALUES),
    sa.select(*_VALUES.values())
    .select_from(Arq)
    .join(DeviceProfile, DeviceProfile.id == Arq.device_profile_id)
    .join(Deployable, Deployable.id == Arq.deployable_id)
    .join(Device, Device.id == Deployable.device_id)
    .where(Arq.uuid.in_(sa.bindparam("uuids", expanding=True))),
)
_LAST_EVENT: Final = (
    sa.select(Event.at_ms)
    .where(
        Event.subject_uuid
        == sa.select(Arq.uuid)
        .where(Arq.id == UsageRecord.arq_id)
        .correlate(UsageRecord)
        .scalar_subquery()
    )
    .order_by(Event.id.desc())
    .limit(1)
    .correlate(UsageRecord)
    .scalar_subquery()
)
_END: Final = (
    sa.update(UsageRecord)
    .where(UsageRecord.arq_id.in_(sa.bindparam("ids", expanding=True)))
    # In this order: MySQL reads the ARQ as the assignments before have left it. A clock that was
    # set back makes no use end before it began.
    .ordered_values(
        (
            UsageRecord.ended_ms,
            sa.case((UsageRecord.began_ms < _LAST_EVENT, _LAST_EVENT), else_=UsageRecord.began_ms),
        ),
        (UsageRecord.arq_id, None),
    )
)
