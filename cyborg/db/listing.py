# SPDX-License-Identifier: Apache-2.0
"""Sort and limit lists in SQL by keyset paging: the last page costs as much as the first.

A page follows its marker by comparing sort value and id, so rows that are added or removed between
two pages neither repeat nor hide others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVarTuple

import sqlalchemy as sa

from cyborg import exception
from cyborg.db.base import Base
from cyborg.db.transaction import Transaction

Ts = TypeVarTuple("Ts")


@dataclass(frozen=True)
class Page:
    """The page that a caller requests, with the values of the query string."""

    limit: int | None = None
    marker: str | int | None = None
    sort_key: str | None = None
    sort_dir: str | None = None


@dataclass(frozen=True)
class Sortable:
    """The sort keys of a list.

    ``columns`` maps the API's sort keys to columns; without a sort key, rows are in the order of
    their creation (``id``). ``uuid`` is the column that markers name: ``id`` where rows have
    no uuid.
    """

    id: sa.SQLColumnExpression[int]
    uuid: sa.SQLColumnExpression[Any]
    columns: Mapping[str, sa.SQLColumnExpression[Any]]


def sortable(
    model: type[Base],
    *names: str,
    **others: sa.SQLColumnExpression[Any],
) -> Sortable:
    """Return the sort keys that are columns of a model with these names, and others."""
    table = model.__table__.c
    columns = {name: table[name] for name in names}
    return Sortable(id=table.id, uuid=table.uuid, columns={**columns, **others})


def paged(
    tx: Transaction, visible: sa.Select[*Ts], sortable: Sortable, page: Page
) -> sa.Select[*Ts]:
    """Return the query of a page of ``visible``; execute one SELECT when there is a marker.

    ``visible`` selects what the caller may see. Filters belong on the returned select
    (``.where()`` works after paging too): the marker of a page is looked up without them, so
    a row that changed since the last page still marks its place.

    Rows without a value come last when ascending and first when descending, on every database.
    Raises Invalid with the field ``sort_key``, ``sort_dir``, ``limit`` or ``marker``.
    """
    if page.sort_key is not None and page.sort_key not in sortable.columns:
        names = ", ".join(sorted(sortable.columns))
        raise exception.Invalid(field="sort_key", reason=f"{page.sort_key!r} is none of {names}")
    if page.sort_dir not in (None, "asc", "desc"):
        raise exception.Invalid(field="sort_dir", reason="it is asc or desc")
    column = sortable.id if page.sort_key is None else sortable.columns[page.sort_key]
    descending = page.sort_dir == "desc"
    # An expression counts as nullable; a column has the attribute.
    nullable = bool(getattr(column, "nullable", True))
    order = [sortable.id] if column is sortable.id else [column, sortable.id]
    if nullable:
        order.insert(0, sa.case((column.is_(None), 1), else_=0))
    query = visible.order_by(*(key.desc() if descending else key.asc() for key in order))
    if page.limit is not None:
        if page.limit < 0:
            raise exception.Invalid(field="limit", reason="it must not be negative")
        query = query.limit(page.limit)
    if page.marker is None:
        return query
    marker: sa.Row[Any, int] | None = tx.execute(
        visible.with_only_columns(column.label("value"), sortable.id.label("id")).where(
            sortable.uuid == page.marker
        )
    ).first()
    if marker is None:
        raise exception.Invalid(field="marker", reason=f"there is no {page.marker}")
    value, id_ = marker
    beyond_id = _beyond(sortable.id, id_, descending)
    if column is sortable.id:
        return query.where(beyond_id)
    return query.where(_after(column, value, beyond_id, nullable=nullable, descending=descending))


def _after(
    column: sa.SQLColumnExpression[Any],
    value: Any,
    beyond_id: sa.ColumnElement[bool],
    *,
    nullable: bool,
    descending: bool,
) -> sa.ColumnElement[bool]:
    if value is None:
        same = sa.and_(column.is_(None), beyond_id)
        return sa.or_(column.is_not(None), same) if descending else same
    # ``further`` alone is sufficient; databases use no index for its OR, so the plain comparison
    # below is added for the index.
    further = sa.or_(_beyond(column, value, descending), sa.and_(column == value, beyond_id))
    if nullable and not descending:
        return sa.or_(further, column.is_(None))
    return sa.and_(column <= value if descending else column >= value, further)


def _beyond(
    column: sa.SQLColumnExpression[Any], value: Any, descending: bool
) -> sa.ColumnElement[bool]:
    beyond: sa.ColumnElement[bool] = column < value if descending else column > value
    return beyond
