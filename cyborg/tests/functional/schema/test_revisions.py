# SPDX-License-Identifier: Apache-2.0
"""From each revision that a database of ours may stand at, with rows in it, to the newest."""

from pathlib import Path
from typing import Any
from uuid import NAMESPACE_DNS, uuid3

import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory

from cyborg.db import revisions, schema
from cyborg.db.engine import Database
from cyborg.db.schema_lock import LOCK
from cyborg.tests.functional.schema.databases import differences, load_existing_service

_SCRIPTS = ScriptDirectory(str(Path(schema.__file__).with_name("migrations")))
#: The tables of alembic and of the lock, which are no part of the revisions.
_OWN = ("alembic_version", LOCK.name)
#: Columns that may be NULL, but not in a row of which all other such columns are NULL.
_CHECKED = ("ended_ms",)
CHAIN = [one.revision for one in _SCRIPTS.walk_revisions()][::-1]


def test_chain_begins_with_existing_service() -> None:
    assert CHAIN[0] == schema.EXISTING
    # The services compare with the constant, because they do not import alembic.
    assert CHAIN[-1] == revisions.HEAD


@pytest.mark.parametrize("revision", CHAIN)
def test_rows_of_every_revision_are_kept(empty: Database, revision: str) -> None:
    if revision == schema.EXISTING:
        load_existing_service(empty)
    else:
        schema.upgrade(empty, revision)
        _fill(empty)
    assert revisions.version(empty) == revision
    before = _ids(empty)
    assert sum(map(len, before.values())) > 10
    schema.upgrade(empty)
    assert revisions.version(empty) == revisions.HEAD
    assert differences(empty) == []
    after = _ids(empty)
    assert {table: after[table] for table in before} == before


def _fill(db: Database) -> None:
    """One row in every table, as the database itself describes it."""
    tables = sa.MetaData()
    with db.writer() as tx:
        tables.reflect(tx.connection)
        for table in tables.sorted_tables:
            if table.name not in _OWN:
                values = {
                    column.name: _value(column)
                    for column in table.columns
                    if not (column.nullable or _counts(column)) or column.name in _CHECKED
                }
                tx.execute(sa.insert(table).values(values))


def _counts(column: sa.Column[Any]) -> bool:
    own = column.primary_key and not column.foreign_keys
    return own and isinstance(column.type, sa.Integer)


def _value(column: sa.Column[Any]) -> Any:
    if column.name == "uuid":
        return str(uuid3(NAMESPACE_DNS, column.table.name))
    if isinstance(column.type, sa.String):
        return "text"
    # References lead to the only row there is.
    return True if isinstance(column.type, sa.Boolean) else 1


def _ids(db: Database) -> dict[str, list[str]]:
    """Every row of every table by its uuid, or else by its id."""
    tables = sa.MetaData()
    with db.reader() as tx:
        tables.reflect(tx.connection)
        return {
            table.name: sorted(map(str, tx.scalars(sa.select(_name(table)))))
            for table in tables.sorted_tables
            if table.name not in _OWN
        }


def _name(table: sa.Table) -> sa.Column[Any]:
    return table.c.uuid if "uuid" in table.c else table.primary_key.columns[0]
