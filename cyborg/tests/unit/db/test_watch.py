# SPDX-License-Identifier: Apache-2.0
"""A watch is never ahead of the database's clock, and asks when it does not know the time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.db.cached_clock import CachedClock
from cyborg.db.engine import Reader


class SlowReader(Reader):
    """Each answer takes two seconds of a clock that stands still otherwise."""

    def __init__(self, path: Path) -> None:
        self.seconds = 100.0
        self.ms = 5_000
        self.away = False
        now = sa.bindparam("moment", type_=sa.BigInteger(), callable_=lambda: self.ms)
        super().__init__(f"sqlite:///{path}/watch.sqlite", now=now)

    @contextmanager
    def reader(self) -> Iterator[sa.Connection]:
        if self.away:
            raise exception.Unavailable(peer="The database", reason="it is away")
        with super().reader() as connection:
            yield connection
        self.seconds += 2


@pytest.fixture
def db(tmp_path: Path) -> Iterator[SlowReader]:
    (tmp_path / "watch.sqlite").touch()
    reader = SlowReader(tmp_path)
    yield reader
    reader.close()


@pytest.fixture
def watch(db: SlowReader) -> CachedClock:
    return CachedClock(db, seconds=lambda: db.seconds)


def test_a_watch_that_was_never_set_asks(watch: CachedClock) -> None:
    assert watch.now_ms() == 5_000


def test_it_is_behind_by_as_long_as_the_answer_took(db: SlowReader, watch: CachedClock) -> None:
    watch.set()
    db.ms += 2_000
    assert watch.now_ms() == db.ms - 2_000
    db.seconds += 10
    db.ms += 10_000
    assert watch.now_ms() == db.ms - 2_000


def test_an_answer_of_long_ago_is_not_trusted(db: SlowReader, watch: CachedClock) -> None:
    watch.set()
    db.seconds += 300
    db.ms += 900_000
    assert watch.now_ms() == 905_000
    db.seconds += 300
    db.away = True
    with pytest.raises(exception.Unavailable):
        watch.now_ms()


def test_without_an_answer_it_goes_on_as_it_was(db: SlowReader, watch: CachedClock) -> None:
    watch.set()
    db.away = True
    with pytest.raises(exception.Unavailable):
        watch.set()
    db.seconds += 1
    assert watch.now_ms() == 5_000 + 1_000


def test_by_itself_it_counts_real_time(db: SlowReader) -> None:
    watch = CachedClock(db)
    watch.set()
    first, second = watch.now_ms(), watch.now_ms()
    assert 5_000 <= first <= second < 5_000 + 60_000
