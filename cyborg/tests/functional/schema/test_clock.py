# SPDX-License-Identifier: Apache-2.0
"""The database's clock where it is used: in select lists, WHERE and VALUES."""

import time

import sqlalchemy as sa

from cyborg.db.engine import Database
from cyborg.db.models import Host

#: Client and server share a machine; the clocks of SQL functions are cut to milliseconds.
SLACK = 5


def test_clock_is_utc_and_advances(current: Database) -> None:
    before = time.time() * 1000
    with current.reader() as tx:
        first = second = tx.execute(sa.select(current.now)).scalar_one()
        while second == first:
            second = tx.execute(sa.select(current.now)).scalar_one()
    assert before - SLACK <= first < second <= time.time() * 1000 + SLACK


def test_clock_ignores_session_time_zone(current: Database) -> None:
    words = {"mysql": "SET time_zone = '+05:30'", "postgresql": "SET TIME ZONE 'Asia/Kolkata'"}
    before = time.time() * 1000
    with current.reader() as tx:
        tx.exec_driver_sql(words.get(current.engine.dialect.name, "SELECT 1"))
        now = tx.scalar(sa.select(current.now))
        assert now is not None
        assert before - SLACK <= now <= time.time() * 1000 + SLACK
        tx.connection.invalidate()


def test_clock_is_stored_and_compared(current: Database) -> None:
    with current.writer() as tx:
        tx.execute(sa.insert(Host).values(name="a", updated_ms=current.now))
        tx.execute(sa.insert(Host).values(name="b", updated_ms=current.now + 60_000))
        past = sa.select(Host.name).where(Host.updated_ms <= current.now)
        assert list(tx.scalars(past)) == ["a"]
        tx.execute(sa.update(Host).values(updated_ms=current.now - 1))
        assert len(list(tx.scalars(past))) == 2
