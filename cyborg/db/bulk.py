# SPDX-License-Identifier: Apache-2.0
"""Many rows in few statements: inserts that tell the new ids, on every database."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import sqlalchemy as sa

from cyborg.db.base import Base

Row = Mapping[str, Any]
#: A row as read; its columns are attributes, which no type checker can follow through a join.
Record: TypeAlias = Any


def insert(tx: sa.Connection, model: type[Base], rows: Sequence[Row]) -> None:
    """Insert rows, one statement per thousand of them; none is fine."""
    if rows:
        tx.execute(sa.insert(model), [dict(row) for row in rows])


def insert_ids(tx: sa.Connection, model: Any, rows: Sequence[Row]) -> dict[str, int]:
    """Insert rows that bring their ``uuid``; answers uuid → id.

    Where the database cannot return what it inserted (MySQL), the ids cost one more statement.
    """
    if not rows:
        return {}
    values = [dict(row) for row in rows]
    if tx.dialect.insert_returning:
        statement = sa.insert(model).returning(model.uuid, model.id)
        return {row.uuid: row.id for row in tx.execute(statement, values)}
    tx.execute(sa.insert(model), values)
    found = tx.execute(
        sa.select(model.uuid, model.id).where(model.uuid.in_([row["uuid"] for row in values]))
    )
    return {row.uuid: row.id for row in found}
