# SPDX-License-Identifier: Apache-2.0
"""Steps that change a table to a given shape; each step first inspects the existing table.

MySQL and MariaDB commit every DDL statement separately, so an upgrade may be interrupted between
any two; when it runs again, a step makes the remaining changes. PostgreSQL and SQLite roll back a
whole revision. SQLite cannot alter columns and keys: the table is rebuilt, with foreign keys off
(``cyborg.db.schema`` switches them off).
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

import sqlalchemy as sa
from alembic import op
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable

_CHARSET, _COLLATION = "utf8mb4", "utf8mb4_bin"


def create_tables(metadata: sa.MetaData, tables: Iterable[sa.Table]) -> None:
    """Create missing tables; ``settle_keys`` adds indexes that an interrupted run left out."""
    metadata.create_all(op.get_bind(), tables=list(tables), checkfirst=True)


def add_columns(table: sa.Table) -> None:
    """Add missing columns; those without a default may be NULL until ``reshape``."""
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
    """Give every column the type, default, nullability and character set of ``table``.

    Then drop the columns that ``drop`` names.
    """
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        _rebuild(connection, table)
        return
    if connection.dialect.name == "mysql":
        _reshape_mysql(connection, table)
    present = {row["name"]: row for row in sa.inspect(connection).get_columns(table.name)}
    if connection.dialect.name == "postgresql":
        for column in table.columns:
            existing: Mapping[str, Any] = present[column.name]
            if existing["nullable"] != bool(column.nullable):
                op.alter_column(table.name, column.name, nullable=column.nullable)
            if existing["default"] is None and column.server_default is not None:
                op.alter_column(table.name, column.name, server_default=_default(column))
    for key in sa.inspect(connection).get_foreign_keys(table.name):
        if not set(drop).isdisjoint(key["constrained_columns"]):
            op.drop_constraint(str(key["name"]), table.name, type_="foreignkey")
    for name in present.keys() & set(drop):
        op.drop_column(table.name, name)


def settle_keys(table: sa.Table, *, obsolete: Collection[str] = ()) -> None:
    """Create the unique and check constraints, indexes and foreign keys of ``table``.

    Keys with the same columns under another name, and keys that ``obsolete`` names, are dropped.
    Other keys, which an operator added, stay.
    """
    connection = op.get_bind()
    inspector = sa.inspect(connection)
    if connection.dialect.name == "sqlite":
        present = {index["name"] for index in inspector.get_indexes(table.name)}
        for missing in (index for index in table.indexes if index.name not in present):
            connection.execute(CreateIndex(missing))
        return
    unique = {
        str(constraint.name): [column.name for column in constraint.columns]
        for constraint in table.constraints
        if isinstance(constraint, sa.UniqueConstraint)
    }
    indexes = {
        str(index.name): [column.name for column in index.columns] for index in table.indexes
    }
    # Name → columns, and whether the key is dropped as a constraint. MySQL drops both as an index.
    existing = {
        str(index["name"]): ([str(name) for name in index["column_names"]], False)
        for index in inspector.get_indexes(table.name)
    }
    for constraint in inspector.get_unique_constraints(table.name):
        existing[str(constraint["name"])] = (list(constraint["column_names"]), True)
    for name, columns in unique.items():
        if name not in existing:
            op.create_unique_constraint(name, table.name, columns)
    for name, columns in indexes.items():
        if name not in existing:
            op.create_index(name, table.name, columns)
    expected = {**unique, **indexes}
    for name, (columns, is_constraint) in existing.items():
        if name in expected or not (name in obsolete or columns in unique.values()):
            continue
        if is_constraint:
            op.drop_constraint(name, table.name, type_="unique")
        else:
            op.drop_index(name, table.name)
    checks = {row["name"] for row in inspector.get_check_constraints(table.name)}
    for check in table.constraints:
        if isinstance(check, sa.CheckConstraint) and check.name not in checks:
            op.create_check_constraint(cast("str", check.name), table.name, check.sqltext)
    references = {
        (tuple(key["constrained_columns"]), key["referred_table"]): key
        for key in sa.inspect(connection).get_foreign_keys(table.name)
    }
    for key in table.foreign_key_constraints:
        columns, target = [str(name) for name in key.column_keys], key.referred_table.name
        old_key = references.get((tuple(columns), target))
        if old_key is not None:
            if _on_delete(old_key["options"].get("ondelete")) == _on_delete(key.ondelete):
                continue
            op.drop_constraint(str(old_key["name"]), table.name, type_="foreignkey")
        op.create_foreign_key(
            cast("str", key.name), table.name, target, columns, ["id"], ondelete=key.ondelete
        )


def _rebuild(connection: sa.Connection, table: sa.Table) -> None:
    preparer = connection.dialect.identifier_preparer
    name, new_name = preparer.format_table(table), f"_new_{table.name}"
    present = {column["name"] for column in sa.inspect(connection).get_columns(table.name)}
    shared = ", ".join(preparer.quote(c.name) for c in table.columns if c.name in present)
    create = str(CreateTable(table).compile(dialect=connection.dialect))
    for statement in (
        create.replace(f"CREATE TABLE {name}", f"CREATE TABLE {new_name}", 1),
        f"INSERT INTO {new_name} ({shared}) SELECT {shared} FROM {name}",  # noqa: S608 - quoted names of the schema
        f"DROP TABLE {name}",
        f"ALTER TABLE {new_name} RENAME TO {name}",
    ):
        connection.exec_driver_sql(statement)


def _on_delete(action: object) -> str | None:
    # RESTRICT and NO ACTION are the default of every database.
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
        # Name the type of every text column: CONVERT would change TEXT to MEDIUMTEXT.
        if isinstance(column.type, sa.String) or not _is_settled(column, columns[column.name])
    ]
    convert = f"CONVERT TO CHARACTER SET {_CHARSET} COLLATE {_COLLATION}"
    op.execute(sa.text(f"ALTER TABLE {table.name} " + ", ".join([convert, *changes])))


def _is_settled(column: sa.Column[Any], row: sa.Row[Any]) -> bool:
    # MariaDB shows a nullable column without default with the default "NULL".
    has_default = row.standard not in (None, "NULL")
    return (
        row.type.lower() != "enum"
        and (row.nullable == "YES") == bool(column.nullable)
        and has_default == (column.server_default is not None)
        and row.collation in (None, _COLLATION)
    )


def _default(column: sa.Column[Any]) -> Any:
    default = column.server_default
    return default.arg if isinstance(default, sa.DefaultClause) else None
