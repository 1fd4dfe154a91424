# SPDX-License-Identifier: Apache-2.0
"""Rows of results whose columns have types.

A subclass of ``Row`` names the columns of a query and gets their types from the tables::

    class Card(Row):
        uuid = column(Device.uuid)
        lost = nullable(Driver.state)

        age_ms: int

    query = select(Card, age_ms=tx.now - Device.lost_ms).outerjoin(Driver, ...)
    cards: Sequence[Card] = tx.all(query)

A column that depends on the transaction, such as on its clock, has only a type in the class, and
its term is an argument of ``select``.

The rows themselves are those of SQLAlchemy; the classes exist for type checkers and have no
instances.
"""

from typing import Any, TypeVar, cast

import sqlalchemy as sa

T = TypeVar("T")


class Row:
    """A row of a result; see the module."""


R = TypeVar("R", bound=Row)


def column(term: sa.SQLColumnExpression[T]) -> T:
    """Declare a column of a subclass of ``Row``."""
    return cast("T", term)


def nullable(term: sa.SQLColumnExpression[T]) -> T | None:
    """Declare a column that is None where an outer join or a subquery finds no row."""
    return cast("T", term)


def required(term: sa.SQLColumnExpression[T | None]) -> T:
    """Declare a column that may be None in the table, but not in rows that meet the WHERE."""
    return cast("T", term)


def select(row: type[R], **terms: sa.SQLColumnExpression[Any]) -> sa.Select[R]:
    """Return the query of the columns of ``row``, those of its base classes first.

    Its type names the rows, not the columns, so that ``Transaction.all`` and ``Transaction.first``
    return them with their types.
    """
    members = {
        name: term
        for base in reversed(row.__mro__)
        if issubclass(base, Row)
        for name, term in vars(base).items()
        if not name.startswith("__")
    }
    labels = [term.label(name) for name, term in (*members.items(), *terms.items())]
    return cast("sa.Select[R]", sa.select(*labels))
