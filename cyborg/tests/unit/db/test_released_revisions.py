# SPDX-License-Identifier: Apache-2.0
"""A revision that a release has shipped never changes: databases in the field stand there."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg.db import schema
from cyborg.db.engine import Database

#: Revision → SHA-256 of the schema that it makes on SQLite (see ``shape``).
RELEASED = {
    schema.EXISTING: "9a4ca7aa57658664f162c57529bd0bc8b8cf2123b0544d921460d2af73b9dafd",
    "c3e1d9f0a7b2": "b964a7fc00af7459aa2f912f7c72ee5f5b265cd70ae41c4aaf7cd6c05143ba55",
}


def shape(db: Database) -> list[Any]:
    """All that a database says about its tables, in one order."""
    inspector = sa.inspect(db.engine)
    return [
        (
            table,
            [
                (one["name"], str(one["type"]), one["nullable"], one["default"])
                for one in inspector.get_columns(table)
            ],
            sorted(tuple(one["column_names"]) for one in inspector.get_unique_constraints(table)),
            sorted(
                (str(one["name"]), tuple(one["column_names"]), bool(one["unique"]))
                for one in inspector.get_indexes(table)
            ),
            sorted(
                (tuple(one["constrained_columns"]), one["referred_table"], str(one["options"]))
                for one in inspector.get_foreign_keys(table)
            ),
        )
        for table in sorted(inspector.get_table_names())
    ]


@pytest.mark.parametrize("revision", RELEASED)
def test_a_released_revision_makes_the_same_schema(revision: str, tmp_path: Path) -> None:
    db = Database(f"sqlite:///{tmp_path}/cyborg.sqlite")
    schema.upgrade(db, revision)
    digest = hashlib.sha256(repr(shape(db)).encode()).hexdigest()
    db.close()
    assert digest == RELEASED[revision], (
        "this revision was released: undo the change to it, and write a new one ('cyborg-dbsync "
        "revision')"
    )
