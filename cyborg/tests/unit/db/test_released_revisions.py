# SPDX-License-Identifier: Apache-2.0
"""Test that released revisions do not change: installed databases are at these revisions."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg.db import schema
from cyborg.db.engine import Database

#: Revision → SHA-256 of the schema that it creates on SQLite (see ``shape``).
RELEASED = {
    schema.EXISTING: "9a4ca7aa57658664f162c57529bd0bc8b8cf2123b0544d921460d2af73b9dafd",
}


def shape(db: Database) -> list[Any]:
    """Return the tables of a database with columns, constraints and indexes, in a fixed order."""
    inspector = sa.inspect(db.engine)
    return [
        (
            table,
            [
                (column["name"], str(column["type"]), column["nullable"], column["default"])
                for column in inspector.get_columns(table)
            ],
            sorted(tuple(key["column_names"]) for key in inspector.get_unique_constraints(table)),
            sorted(
                (str(index["name"]), tuple(index["column_names"]), bool(index["unique"]))
                for index in inspector.get_indexes(table)
            ),
            sorted(
                (tuple(key["constrained_columns"]), key["referred_table"], str(key["options"]))
                for key in inspector.get_foreign_keys(table)
            ),
        )
        for table in sorted(inspector.get_table_names())
    ]


@pytest.mark.parametrize("revision", RELEASED)
def test_released_revision_creates_the_same_schema(revision: str, tmp_path: Path) -> None:
    db = Database(f"sqlite:///{tmp_path}/cyborg.sqlite")
    schema.upgrade(db, revision)
    digest = hashlib.sha256(repr(shape(db)).encode()).hexdigest()
    db.close()
    assert digest == RELEASED[revision], (
        "this revision was released: undo the change to it, and write a new one ('cyborg-dbsync "
        "revision')"
    )
