# SPDX-License-Identifier: Apache-2.0
"""What all tables share: naming, character set and the column types that the models are made of."""

import datetime
from typing import Annotated, Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.schema import SchemaItem


def _zeroed(constraint: sa.UniqueConstraint, table: sa.Table) -> str:
    return "0".join([table.name, *(column.name for column in constraint.columns)])


NAMING: dict[str, Any] = {
    "zeroed": _zeroed,
    "uq": "uniq_%(zeroed)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
}

#: What MySQL and MariaDB need to be told of every table.
MYSQL: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_bin",
}

# JSON None is SQL NULL: "nothing there" has one form only.
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
    """Ids are never used twice (SQLite needs to be told), so that "newer" can be read from them."""

    metadata = sa.MetaData(naming_convention=NAMING)
    __table_args__: Any = {**MYSQL, "sqlite_autoincrement": True}  # noqa: RUF012 - read by SQLAlchemy


def keys(*items: SchemaItem) -> Any:
    return (*items, Base.__table_args__)


class Dated:
    """The two columns that every table of the first days has."""

    created_at: Mapped[datetime.datetime | None] = mapped_column(sa.DateTime, default=_now)
    updated_at: Mapped[datetime.datetime | None] = mapped_column(sa.DateTime, onupdate=_now)
