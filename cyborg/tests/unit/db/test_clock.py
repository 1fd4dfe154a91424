# SPDX-License-Identifier: Apache-2.0
"""Test the database's clock: its SQL, and its value on SQLite."""

import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from cyborg.db.clock import db_now_ms
from cyborg.db.engine import Database


@pytest.mark.parametrize(
    ("dialect", "word"),
    [
        (mysql.dialect(), "UTC_TIMESTAMP(3)"),
        (postgresql.dialect(), "statement_timestamp()"),
        (sqlite.dialect(), "julianday('now')"),
    ],
)
def test_clock_uses_the_function_of_each_database(dialect: sa.Dialect, word: str) -> None:
    assert word in str(sa.select(db_now_ms()).compile(dialect=dialect))


def test_clock_counts_milliseconds_of_utc(tmp_path: Path) -> None:
    db = Database(f"sqlite:///{tmp_path}/clock.sqlite")
    before = time.time() * 1000
    with db.reader() as tx:
        now = tx.scalar(sa.select(db.now))
        assert tx.scalar(sa.select(db.now > 0).where(db.now - 1000 < db.now)) == 1
    assert isinstance(now, int)
    assert before - 1 <= now <= time.time() * 1000 + 1
    db.close()
