# SPDX-License-Identifier: Apache-2.0
"""Define the declarative base of all tables: names, character set, types."""

import datetime
from typing import Annotated, Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


def _zeroed(constraint: sa.UniqueConstraint, table: sa.Table) -> str:
    return "0".join([table.name, *(column.name for column in constraint.columns)])


NAMING: dict[str, Any] = {
    "zeroed": _zeroed,
    "uq": "uniq_%(zeroed)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
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
