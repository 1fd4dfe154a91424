# SPDX-License-Identifier: Apache-2.0
"""A watch is never behind the database's clock, and says so when it does not know the time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.db.engine import Reader
from cyborg.db.watch import Watch


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
def watch(db: SlowReader) -> Watch:
    return Watch(db, seconds=lambda: db.seconds)


def test_before_it_was_set_it_knows_nothing(watch: Watch) -> None:
    assert watch.now_ms() is None


def test_it_is_ahead_by_as_long_as_the_answer_took(db: SlowReader, watch: Watch) -> None:
    watch.set()
    assert watch.now_ms() == 5_000 + 2_000 + 1
    db.seconds += 10
    assert watch.now_ms() == 5_000 + 12_000 + 1


def test_what_was_known_long_ago_is_not_trusted(db: SlowReader, watch: Watch) -> None:
    watch.set()
    db.seconds += 300
    assert watch.now_ms() is None
    watch.set()
    assert watch.now_ms() == 5_000 + 2_000 + 1


def test_without_an_answer_it_goes_on_as_it_was(db: SlowReader, watch: Watch) -> None:
    watch.set()
    db.away = True
    with pytest.raises(exception.Unavailable):
        watch.set()
    db.seconds += 1
    assert watch.now_ms() == 5_000 + 3_000 + 1


def test_by_itself_it_counts_real_time(db: SlowReader) -> None:
    watch = Watch(db)
    watch.set()
    first, second = watch.now_ms(), watch.now_ms()
    assert first is not None
    assert second is not None
    assert 5_000 < first <= second < 5_000 + 60_000
