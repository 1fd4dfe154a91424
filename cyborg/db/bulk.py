# SPDX-License-Identifier: Apache-2.0
"""Many rows in few statements: inserts that tell the new ids, on every database."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import sqlalchemy as sa

from cyborg.db.base import Base

Row = Mapping[str, Any]
#: A row as read; its columns are attributes, which no type checker can follow through a join.
Record: TypeAlias = Any


def insert(
    tx: sa.Connection, model: type[Base], rows: Sequence[Row], common: Row = MappingProxyType({})
) -> None:
    """Insert rows, one statement per thousand of them; none is fine.

    ``common`` are values of all rows, SQL expressions among them.
    """
    if rows:
        tx.execute(sa.insert(model).values(**common), [dict(row) for row in rows])


def insert_ids(
    tx: sa.Connection, model: Any, rows: Sequence[Row], common: Row = MappingProxyType({})
) -> dict[str, int]:
    """Insert rows that bring their ``uuid``; answers uuid → id. ``common`` as for ``insert``.

    Where the database cannot return what it inserted (MySQL), the ids cost one more statement.
    """
    if not rows:
        return {}
    values = [dict(row) for row in rows]
    insertion = sa.insert(model).values(**common)
    if tx.dialect.insert_returning:
        statement = insertion.returning(model.uuid, model.id)
        return {row.uuid: row.id for row in tx.execute(statement, values)}
    tx.execute(insertion, values)
    found = tx.execute(
        sa.select(model.uuid, model.id).where(model.uuid.in_([row["uuid"] for row in values]))
    )
    return {row.uuid: row.id for row in found}
