# SPDX-License-Identifier: Apache-2.0
"""Define the declarative base of all tables: names, character set, types, bulk changes."""

import datetime
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from cyborg.db.transaction import Transaction


def _zeroed(constraint: sa.UniqueConstraint, table: sa.Table) -> str:
    return "0".join([table.name, *(column.name for column in constraint.columns)])


NAMING: dict[str, Any] = {
    "zeroed": _zeroed,
    "uq": "uniq_%(zeroed)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
}

#: Options of every table on MySQL and MariaDB.
MYSQL: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_bin",
}

# None is stored as SQL NULL, not as JSON null: a missing value has one form only.
Json = sa.JSON(none_as_null=True)

Id = Annotated[int, mapped_column(primary_key=True)]
Uuid = Annotated[str, mapped_column(sa.String(36))]
UniqueUuid = Annotated[str, mapped_column(sa.String(36), unique=True)]
Milliseconds = Annotated[int, mapped_column(sa.BigInteger)]
Word = Annotated[str, mapped_column(sa.String(16))]
Text = Annotated[str, mapped_column(sa.Text)]
String64 = Annotated[str, mapped_column(sa.String(64))]
String100 = Annotated[str, mapped_column(sa.String(100))]
String255 = Annotated[str, mapped_column(sa.String(255))]


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC).replace(tzinfo=None, microsecond=0)


class Base(DeclarativeBase):
    """Base of all tables.

    The database never reuses an id (an option on SQLite), so a newer row has a higher id.
    """

    metadata = sa.MetaData(naming_convention=NAMING)
    __table_args__: Any = {**MYSQL, "sqlite_autoincrement": True}  # noqa: RUF012 - read by SQLAlchemy


class Dated:
    """The two columns that every table of the existing service has."""

    created_at: Mapped[datetime.datetime | None] = mapped_column(sa.DateTime, default=_now)
    updated_at: Mapped[datetime.datetime | None] = mapped_column(sa.DateTime, onupdate=_now)


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
