# SPDX-License-Identifier: Apache-2.0
"""Rows of results whose columns have types.

A row of a whole table is its model: ``tx.all(select(Device))`` has the type ``Sequence[Device]``. A
row with further columns is an abstract subclass of the model, which names only those::

    class AgentDevice(Device):
        __abstract__ = True

        agent: str | None = column(Host.service_host)

    query = select(AgentDevice).join(Host, Host.id == Device.host_id)

A subclass of ``Row`` is for joins and parts of tables. It names the columns of a query and gets
their types from the tables::

    class Card(Row):
        uuid = column(Device.uuid)
        lost = nullable(Driver.state)

        age_ms: int

    query = select(Card, age_ms=tx.now - Device.lost_ms).outerjoin(Driver, ...)
    cards: Sequence[Card] = tx.all(query)

A column that depends on the transaction, such as on its clock, has only a type in the class, and
its term is an argument of ``select``.

A subclass of ``Shown`` is a row that the API shows; it may be one of a model, too. Its query is a
``Query``, which gives the ``Select`` that a transaction executes only within a scope: a type
checker refuses a query of such rows that leaves the scope out, and ``select`` refuses the rows.

The rows themselves are those of SQLAlchemy's connection; the classes exist for type checkers and
have no instances. So a row belongs to no session: it outlives its transaction, it loads nothing
later, and it cannot be changed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, Self, TypeVar, cast

import sqlalchemy as sa

from cyborg.db.base import Base
from cyborg.model.scope import Scope

T = TypeVar("T")
#: Returns the term: the row belongs to the project with this id.
Owned = Callable[[str], sa.ColumnElement[bool]]


class Result:
    """A row of a result; see the module."""


class Row(Result):
    """A row that the service reads for itself."""


class Shown(Result):
    """A row that the API shows; see the module."""


A = TypeVar("A", bound=Result | Base)
R = TypeVar("R", bound=Row | Base)
S = TypeVar("S", bound=Shown)


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
    return them with their types. Raises TypeError for rows that the API shows.
    """
    if issubclass(row, Shown):
        raise TypeError(f"{row.__name__} is shown: its query needs a scope")
    return _select(row, terms)


@dataclass(frozen=True)
class Query(Generic[S]):
    """A query of rows that the API shows; its rows are read ``within`` a scope."""

    _select: sa.Select[S]
    _owned: Owned | None
    _hardware: bool

    def where(self, *terms: sa.ColumnElement[bool]) -> Self:
        """Return the query of the rows that also meet the terms."""
        return replace(self, _select=self._select.where(*terms))

    def join(self, table: Any, on: sa.ColumnElement[bool], *, outer: bool = False) -> Self:
        """Return the query with another table."""
        return replace(self, _select=self._select.join(table, on, isouter=outer))

    def within(self, scope: Scope) -> sa.Select[S]:
        """Return the query of the rows that the scope reaches."""
        if scope.project_id is None or self._owned is None or (self._hardware and scope.unheld):
            return self._select
        return self._select.where(self._owned(scope.project_id))


def shown(row: type[S], owned: Owned | None, **terms: sa.SQLColumnExpression[Any]) -> Query[S]:
    """Return the query of rows that the API shows.

    ``owned`` decides which of them belong to a project; None: all projects share them.
    """
    return Query(_select(row, terms), owned, _hardware=False)


def shown_hardware(row: type[S], owned: Owned, **terms: sa.SQLColumnExpression[Any]) -> Query[S]:
    """Return the query of rows about hardware, which a scope with ``unheld`` reaches all."""
    return Query(_select(row, terms), owned, _hardware=True)


def columns(row: type[Any]) -> dict[str, sa.SQLColumnExpression[Any]]:
    """Return name → term of the columns that a row declares with their terms."""
    members: dict[str, Any] = {}
    for base in reversed(row.__mro__):
        table = vars(base).get("__table__")
        if table is not None:
            members |= {column.key: getattr(base, column.key) for column in table.columns}
        elif issubclass(base, Result | Base) and base is not Base:
            members |= {name: term for name, term in vars(base).items() if name[0] != "_"}
    return members


def _select(row: type[A], terms: dict[str, sa.SQLColumnExpression[Any]]) -> sa.Select[A]:
    members = columns(row) | terms
    return cast("sa.Select[A]", sa.select(*(term.label(name) for name, term in members.items())))
