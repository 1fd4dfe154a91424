# SPDX-License-Identifier: Apache-2.0
"""Test the cached reading of the database's clock."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.api.clock import CachedClock
from cyborg.db.engine import Reader
from cyborg.db.transaction import Transaction


class SlowReader(Reader):
    """A reader whose every query takes two seconds; the time does not pass otherwise."""

    def __init__(self, path: Path) -> None:
        self.seconds = 100.0
        self.ms = 5_000
        self.unavailable = False
        now = sa.bindparam("moment", type_=sa.BigInteger(), callable_=lambda: self.ms)
        super().__init__(f"sqlite:///{path}/cached.sqlite", now=now)

    @contextmanager
    def reader(self) -> Iterator[Transaction]:
        if self.unavailable:
            raise exception.Unavailable(peer="The database", reason="it is not available")
        with super().reader() as connection:
            yield connection
        self.seconds += 2


@pytest.fixture
def db(tmp_path: Path) -> Iterator[SlowReader]:
    (tmp_path / "cached.sqlite").touch()
    reader = SlowReader(tmp_path)
    yield reader
    reader.close()


@pytest.fixture
def clock(db: SlowReader) -> CachedClock:
    return CachedClock(db, seconds=lambda: db.seconds)


def test_first_reading_queries_the_database(clock: CachedClock) -> None:
    assert clock.now_ms() == 5_000


def test_clock_is_behind_by_the_duration_of_the_query(db: SlowReader, clock: CachedClock) -> None:
    clock.set()
    db.ms += 2_000
    assert clock.now_ms() == db.ms - 2_000
    db.seconds += 10
    db.ms += 10_000
    assert clock.now_ms() == db.ms - 2_000


def test_old_reading_is_not_used(db: SlowReader, clock: CachedClock) -> None:
    clock.set()
    db.seconds += 300
    db.ms += 900_000
    assert clock.now_ms() == 905_000
    db.seconds += 300
    db.unavailable = True
    with pytest.raises(exception.Unavailable):
        clock.now_ms()


def test_failed_set_keeps_the_last_reading(db: SlowReader, clock: CachedClock) -> None:
    clock.set()
    db.unavailable = True
    with pytest.raises(exception.Unavailable):
        clock.set()
    db.seconds += 1
    assert clock.now_ms() == 5_000 + 1_000


def test_default_clock_counts_real_time(db: SlowReader) -> None:
    clock = CachedClock(db)
    clock.set()
    first, second = clock.now_ms(), clock.now_ms()
    assert 5_000 <= first <= second < 5_000 + 60_000
