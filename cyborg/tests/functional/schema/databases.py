# SPDX-License-Identifier: Apache-2.0
"""Databases for tests: empty and upgraded ones, and one as the existing service leaves it."""

import ast
import functools
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from cyborg.db import revisions, schema
from cyborg.db.engine import Database
from cyborg.db.models import METADATA

#: A server, ending in "/"; without it everything runs on SQLite files.
SERVER = os.environ.get("CYBORG_TEST_DATABASE_URL", "")
DUMP = Path(__file__).with_name("existing_service.sql")
#: Ends what upgraded databases are copied from.
TEMPLATES: Final = ExitStack()


@contextmanager
def empty_database(directory: Path) -> Iterator[Database]:
    """A new database, dropped afterwards."""
    if not SERVER:
        db = Database(f"sqlite:///{directory}/cyborg.sqlite")
        yield db
        db.close()
        return
    with _on_server() as db:
        yield db


@contextmanager
def upgraded_database(directory: Path) -> Iterator[Database]:
    """A new database at the newest revision, dropped afterwards.

    It is a copy of a database that ran the revisions, one in each process that asks for copies.
    """
    if not SERVER:
        (directory / "cyborg.sqlite").write_bytes(_upgraded_file())
        with empty_database(directory) as db:
            yield db
    elif SERVER.startswith("postgresql"):
        with _on_server(f" TEMPLATE {_upgraded_template()}") as db:
            yield db
    else:
        with _on_server() as db:
            with db.writer() as tx:
                for statement in _upgrading_statements():
                    tx.exec_driver_sql(statement.replace("%", "%%"))
            yield db


@functools.cache
def _upgraded_file() -> bytes:
    with TemporaryDirectory() as directory:
        with empty_database(Path(directory)) as db:
            schema.upgrade(db)
        return Path(directory, "cyborg.sqlite").read_bytes()


@functools.cache
def _upgraded_template() -> str:
    db = TEMPLATES.enter_context(_on_server())
    schema.upgrade(db)
    # PostgreSQL copies no database to which somebody is connected.
    db.close()
    return str(db.engine.url.database)


@functools.cache
def _upgrading_statements() -> list[str]:
    """Return what makes the tables of an upgraded database on MariaDB."""
    with _on_server() as db:
        schema.upgrade(db)
        with db.reader() as tx:
            names = [row[0] for row in tx.exec_driver_sql("SHOW TABLES")]
            made = [tx.exec_driver_sql(f"SHOW CREATE TABLE `{name}`").one()[1] for name in names]
    revision = f"INSERT INTO alembic_version VALUES ('{revisions.HEAD}')"
    return ["SET foreign_key_checks = 0", *made, revision, "SET foreign_key_checks = 1"]


@contextmanager
def _on_server(options: str = "") -> Iterator[Database]:
    """A new database of the server, dropped afterwards."""
    name = f"cyborg_test_{uuid.uuid4().hex[:12]}"
    is_mysql = SERVER.startswith(("mysql", "mariadb"))
    admin = sa.create_engine(
        SERVER if is_mysql else f"{SERVER}postgres", isolation_level="AUTOCOMMIT"
    )
    # The character set that the existing service's installation guide asks for.
    options = " CHARACTER SET utf8mb3" if is_mysql else options
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}{options}")
    # PyMySQL reads the certificates of the machine for each connection: 50 ms.
    plain = "?ssl_disabled=true" if SERVER.startswith("mysql+pymysql:") else ""
    db = Database(f"{SERVER}{name}{plain}")
    try:
        yield db
    finally:
        db.close()
        # A process that a test has killed may not have hung up yet; PostgreSQL minds, MariaDB not.
        force = "" if is_mysql else " WITH (FORCE)"
        with admin.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name}{force}")
        admin.dispose()


def load_existing_service(db: Database) -> None:
    """Make ``db`` what the dump holds: itself on MariaDB, the same rows elsewhere."""
    text = DUMP.read_text()
    if db.engine.dialect.name == "mysql":
        with db.writer() as tx:
            for statement in _statements(text):
                tx.exec_driver_sql(statement.replace("%", "%%"))
        return
    schema.upgrade(db, schema.EXISTING)
    tables = sa.MetaData()
    with db.writer() as tx:
        tables.reflect(tx.connection)
        rows = _rows(text)
        for table in tables.sorted_tables:
            if table.name in rows and table.name != "alembic_version":
                names = [column.name for column in table.columns]
                values = [
                    dict(zip(_columns(text, table.name), row, strict=True))
                    for row in rows[table.name]
                ]
                assert all(set(value) == set(names) for value in values)
                tx.execute(sa.insert(table), [_typed(table, value) for value in values])
                if tx.dialect.name == "postgresql":
                    # Rows that bring their ids leave the sequence where it was.
                    name = f"pg_get_serial_sequence('{table.name}', 'id')"
                    tx.exec_driver_sql(f"SELECT setval({name}, max(id)) FROM {table.name}")


def differences(db: Database) -> list[Any]:
    """What alembic finds between the database and the models."""
    options = {
        "compare_type": schema.same_type,
        "compare_server_default": _same_default,
        "include_name": schema.is_of_models,
    }
    with db.reader() as tx:
        return list(
            compare_metadata(MigrationContext.configure(tx.connection, opts=options), METADATA)
        )


def _same_default(
    context: Any, inspected: Any, model: Any, inspected_sql: str | None, *rest: Any
) -> bool | None:
    model_sql = rest[1]
    if inspected_sql is None or model_sql is None:
        return inspected_sql is not model_sql
    words = {"false": "0", "true": "1"}
    plain = [str(one).split("::", maxsplit=1)[0].strip("'()") for one in (inspected_sql, model_sql)]
    return words.get(plain[0], plain[0]) != words.get(plain[1], plain[1])


def _statements(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if not line.startswith("--")]
    return [one.strip() for one in "\n".join(lines).split(";\n") if one.strip(" ;\n")]


def _rows(text: str) -> dict[str, list[tuple[Any, ...]]]:
    found = {}
    for statement in _statements(text):
        match = re.match(r"INSERT INTO `(\w+)` VALUES\n", statement)
        if match:
            literal = re.sub(r"(?<=[,(])NULL(?=[,)])", "None", statement[match.end() :])
            found[match[1]] = ast.literal_eval(f"[{literal.rstrip(';')}]")
    return found


def _columns(text: str, table: str) -> list[str]:
    create = text[text.index(f"CREATE TABLE `{table}`") :]
    return re.findall(r"^  `(\w+)` ", create[: create.index("ENGINE=")], re.MULTILINE)


def _typed(table: sa.Table, value: dict[str, Any]) -> dict[str, Any]:
    typed = dict(value)
    for column in table.columns:
        found = typed[column.name]
        if found is not None and isinstance(column.type, sa.DateTime):
            typed[column.name] = datetime.fromisoformat(found)
        elif found is not None and isinstance(column.type, sa.Boolean):
            typed[column.name] = bool(found)
    return typed
