# SPDX-License-Identifier: Apache-2.0
"""Steps that bring a table to a wanted shape, each looking first at what is there.

MySQL and MariaDB commit every DDL statement by itself, so an upgrade may be killed between any two;
run again, a step does what is left. PostgreSQL and SQLite take back a whole revision. SQLite
cannot alter what matters here: a table is built anew, with foreign keys off
(``cyborg.db.schema`` sees to that).
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

import sqlalchemy as sa
from alembic import op
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable

_CHARSET, _COLLATION = "utf8mb4", "utf8mb4_bin"


def create_tables(metadata: sa.MetaData, tables: Iterable[sa.Table]) -> None:
    """Create those that are missing. ``settle_keys`` adds indexes that a killed run left out."""
    metadata.create_all(op.get_bind(), tables=list(tables), checkfirst=True)


def add_columns(table: sa.Table) -> None:
    """Add missing columns; without a default they may be NULL until ``reshape``."""
    present = {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table.name)}
    for column in table.columns:
        if column.name not in present:
            default = _default(column)
            added = sa.Column(
                column.name,
                column.type,
                nullable=column.nullable or default is None,
                server_default=default,
            )
            op.add_column(table.name, added)


def reshape(table: sa.Table, *, drop: Collection[str] = ()) -> None:
    """Give every column its wanted type, default, nullability and character set; drop some."""
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        _rebuild(connection, table)
        return
    if connection.dialect.name == "mysql":
        _reshape_mysql(connection, table)
    else:
        _reshape_postgresql(connection, table)
    present = {column["name"] for column in sa.inspect(connection).get_columns(table.name)}
    for name in present.intersection(drop):
        op.drop_column(table.name, name)


def settle_keys(table: sa.Table, *, obsolete: Collection[str] = ()) -> None:
    """Make unique constraints, indexes and foreign keys those of ``table``.

    What does the same work under another name, and what ``obsolete`` names, goes; keys that an
    operator added stay.
    """
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        _create_indexes(connection, table)
        return
    unique = {
        str(one.name): [column.name for column in one.columns]
        for one in table.constraints
        if isinstance(one, sa.UniqueConstraint)
    }
    indexes = {str(one.name): [column.name for column in one.columns] for one in table.indexes}
    there = _keys(connection, table.name)
    for name, columns in unique.items():
        if name not in there:
            op.create_unique_constraint(name, table.name, columns)
    for name, columns in indexes.items():
        if name not in there:
            op.create_index(name, table.name, columns)
    wanted = {**unique, **indexes}
    for name, (columns, is_constraint) in there.items():
        if name in wanted or not (name in obsolete or columns in unique.values()):
            continue
        if is_constraint:
            op.drop_constraint(name, table.name, type_="unique")
        else:
            op.drop_index(name, table.name)
    _settle_foreign_keys(connection, table)


def _keys(connection: sa.Connection, table: str) -> dict[str, tuple[list[str], bool]]:
    # Name to columns, and whether it goes as a constraint. (MySQL drops both as an index.)
    inspector = sa.inspect(connection)
    found = {
        str(index["name"]): ([str(name) for name in index["column_names"]], False)
        for index in inspector.get_indexes(table)
    }
    for constraint in inspector.get_unique_constraints(table):
        found[str(constraint["name"])] = (list(constraint["column_names"]), True)
    return found


def _settle_foreign_keys(connection: sa.Connection, table: sa.Table) -> None:
    there = {
        (tuple(key["constrained_columns"]), key["referred_table"]): key
        for key in sa.inspect(connection).get_foreign_keys(table.name)
    }
    for wanted in table.foreign_key_constraints:
        columns, target = [str(name) for name in wanted.column_keys], wanted.referred_table.name
        found = there.get((tuple(columns), target))
        if found is not None:
            if _on_delete(found["options"].get("ondelete")) == _on_delete(wanted.ondelete):
                continue
            op.drop_constraint(str(found["name"]), table.name, type_="foreignkey")
        op.create_foreign_key(
            cast("str", wanted.name), table.name, target, columns, ["id"], ondelete=wanted.ondelete
        )


def _on_delete(action: object) -> str | None:
    # RESTRICT and NO ACTION are what a database does anyway.
    word = str(action or "RESTRICT").upper()
    return None if word in ("RESTRICT", "NO ACTION") else word


def _reshape_mysql(connection: sa.Connection, table: sa.Table) -> None:
    rows = connection.execute(
        sa.text(
            "SELECT column_name AS name, data_type AS type, is_nullable AS nullable,"
            " column_default AS standard, collation_name AS collation"
            " FROM information_schema.columns"
            " WHERE table_schema = DATABASE() AND table_name = :table"
        ),
        {"table": table.name},
    )
    columns = {row.name: row for row in rows}
    if all(_is_settled(column, columns[column.name]) for column in table.columns):
        return
    changes = [
        f"MODIFY COLUMN {CreateColumn(column).compile(dialect=connection.dialect)}"
        for column in table.columns
        # Text keeps its size only when told: CONVERT would make TEXT a MEDIUMTEXT.
        if isinstance(column.type, sa.String) or not _is_settled(column, columns[column.name])
    ]
    convert = f"CONVERT TO CHARACTER SET {_CHARSET} COLLATE {_COLLATION}"
    op.execute(sa.text(f"ALTER TABLE {table.name} " + ", ".join([convert, *changes])))


def _is_settled(column: sa.Column[Any], row: sa.Row[Any]) -> bool:
    # MariaDB spells "no default" of a nullable column as the word NULL.
    has_default = row.standard not in (None, "NULL")
    return (
        row.type.lower() != "enum"
        and (row.nullable == "YES") == bool(column.nullable)
        and has_default == (column.server_default is not None)
        and row.collation in (None, _COLLATION)
    )


def _reshape_postgresql(connection: sa.Connection, table: sa.Table) -> None:
    present = {one["name"]: one for one in sa.inspect(connection).get_columns(table.name)}
    for column in table.columns:
        found: Mapping[str, Any] = present[column.name]
        if found["nullable"] != bool(column.nullable):
            op.alter_column(table.name, column.name, nullable=column.nullable)
        if found["default"] is None and column.server_default is not None:
            op.alter_column(table.name, column.name, server_default=_default(column))


def _rebuild(connection: sa.Connection, table: sa.Table) -> None:
    preparer = connection.dialect.identifier_preparer
    name, fresh = preparer.format_table(table), f"_new_{table.name}"
    present = {column["name"] for column in sa.inspect(connection).get_columns(table.name)}
    shared = ", ".join(preparer.quote(c.name) for c in table.columns if c.name in present)
    create = str(CreateTable(table).compile(dialect=connection.dialect))
    for statement in (
        create.replace(f"CREATE TABLE {name}", f"CREATE TABLE {fresh}", 1),
        f"INSERT INTO {fresh} ({shared}) SELECT {shared} FROM {name}",
        f"DROP TABLE {name}",
        f"ALTER TABLE {fresh} RENAME TO {name}",
    ):
        connection.exec_driver_sql(statement)


def _create_indexes(connection: sa.Connection, table: sa.Table) -> None:
    there = {index["name"] for index in sa.inspect(connection).get_indexes(table.name)}
    for index in table.indexes:
        if index.name not in there:
            connection.execute(CreateIndex(index))


def _default(column: sa.Column[Any]) -> Any:
    default = column.server_default
    return default.arg if isinstance(default, sa.DefaultClause) else None
