# SPDX-License-Identifier: Apache-2.0
"""Insert, change and delete many rows of a table with few statements."""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from cyborg.db.base import Base
from cyborg.db.transaction import Transaction

Row = Mapping[str, Any]


def insert(
    tx: Transaction, model: type[Base], rows: Sequence[Row], common: Row = MappingProxyType({})
) -> None:
    """Insert rows, one statement per thousand rows; do nothing without rows.

    ``common`` holds values for all rows; they may be SQL expressions.
    """
    if rows:
        tx.execute(sa.insert(model).values(**common), [dict(row) for row in rows])


def insert_ids(
    tx: Transaction, model: Any, rows: Sequence[Row], common: Row = MappingProxyType({})
) -> dict[str, int]:
    """Insert rows that contain their ``uuid``, and return uuid → id; ``common`` as for ``insert``.

    On databases without INSERT ... RETURNING (MySQL), one more statement reads the ids.
    """
    if not rows:
        return {}
    values = [dict(row) for row in rows]
    insertion = sa.insert(model).values(**common)
    if tx.dialect.insert_returning:
        statement = insertion.returning(model.uuid, model.id)
        return {row.uuid: row.id for row in tx.execute(statement, values)}
    tx.execute(insertion, values)
    inserted = tx.execute(
        sa.select(model.uuid, model.id).where(model.uuid.in_([row["uuid"] for row in values]))
    )
    return {row.uuid: row.id for row in inserted}


def change(tx: Transaction, model: Any, changes: Iterable[tuple[int, Row]]) -> bool:
    """Set columns of rows by their ids, in this order; return whether there was any.

    Consecutive changes of the same columns are one statement.
    """
    changed = False
    for _, group in itertools.groupby(changes, key=lambda entry: sorted(entry[1])):
        statement = sa.update(model).where(model.id == sa.bindparam("row_id"))
        tx.execute(statement, [{"row_id": id_, **values} for id_, values in group])
        changed = True
    return changed


def remove(tx: Transaction, model: Any, ids: Collection[int]) -> None:
    """Delete rows by their ids; do nothing without ids."""
    if ids:
        tx.execute(sa.delete(model).where(model.id.in_(sorted(ids))))
