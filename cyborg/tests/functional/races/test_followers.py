# SPDX-License-Identifier: Apache-2.0
"""Readers that follow the history get each event once, whatever the order of the commits is."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.db import events
from cyborg.db.engine import Database, Reader, Settings
from cyborg.db.models import Event
from cyborg.db.transaction import EVENTS_WITHIN, Transaction
from cyborg.model.position import Position
from cyborg.model.scope import EVERYWHERE
from cyborg.tests.fixtures.waiting import joined
from cyborg.tests.functional.races.arena import at_once
from cyborg.tests.functional.schema.databases import SERVER

#: Older than any transaction may be, in milliseconds.
_AGE = 1_000_000


class _RolledBack(Exception):
    """Ends a transaction without a commit."""


@dataclass
class Follower:
    """A client: its position is a text between two requests, which different processes answer."""

    readers: list[Reader]
    filters: Mapping[str, Any]
    limit: int
    place: tuple[int, str] = (0, "")
    seen: list[str] = field(default_factory=list)

    def start(self) -> None:
        with self.readers[0].reader() as tx:
            self._keep(events.newest(tx, EVERYWHERE, self.filters))

    def look(self) -> int:
        """Send one request; return how many events it brought."""
        self.readers.append(self.readers.pop(0))
        with self.readers[0].reader() as tx:
            position = Position.parse(*self.place)
            rows, position = events.follow(tx, position, EVERYWHERE, self.filters, limit=self.limit)
        self._keep(position)
        self.seen += [row.subject_uuid for row in rows]
        return len(rows)

    def _keep(self, position: Position) -> None:
        self.place = position.after, position.text


@dataclass
class History:
    """Writers with a connection each, and readers."""

    writers: list[Database]
    readers: list[Reader]

    def follower(self, limit: int = 1000, **filters: Any) -> Follower:
        follower = Follower(list(self.readers), filters, limit)
        follower.start()
        return follower


@pytest.fixture
def history(own_database: Database) -> Iterator[History]:
    url = own_database.engine.url.render_as_string(hide_password=False)
    writers = [Database(url, settings=Settings()) for _ in range(6)]
    readers = [Reader(url, settings=Settings()) for _ in range(2)]
    yield History(writers, readers)
    for one in (*writers, *readers):
        one.close()


def write(tx: Transaction, count: int, device: str = "device") -> list[str]:
    subjects = [str(uuid4()) for _ in range(count)]
    events.record_for(
        tx, [events.Entry("arq", one, "Bound", device_uuid=device) for one in subjects]
    )
    return subjects


@dataclass
class Interleaving:
    """Transactions that begin, write and end in any order, in one thread."""

    history: History
    dice: random.Random
    committed: dict[str, list[str]] = field(default_factory=dict)

    def run(self, step: Callable[[], object]) -> None:
        """Take some steps, and call ``step`` between them."""
        free, open_ = list(self.history.writers if SERVER else self.history.writers[:1]), []
        for _ in range(60):
            choice = self.dice.random()
            if free and choice < 0.4:
                database = free.pop()
                stack = ExitStack()
                device = self.dice.choice(("one", "two"))
                tx = stack.enter_context(database.writer())
                written = write(tx, self.dice.randint(1, 3), device)
                open_.append((database, stack, device, written))
            elif open_ and choice < 0.75:
                database, stack, device, written = open_.pop(self.dice.randrange(len(open_)))
                self._end(stack, device, written)
                free.append(database)
            elif not open_ and choice < 0.85:
                self._age()
            else:
                step()
        for _, stack, device, written in open_:
            self._end(stack, device, written)

    def _end(self, stack: ExitStack, device: str, written: list[str]) -> None:
        if self.dice.random() < 0.3:
            with pytest.raises(_RolledBack), stack:
                raise _RolledBack
        else:
            stack.close()
            self.committed.setdefault(device, []).extend(written)

    def _age(self) -> None:
        """Let time pass, in which every transaction has ended."""
        with self.history.writers[0].writer() as tx:
            tx.execute(sa.update(Event).values(at_ms=Event.at_ms - _AGE))


def test_followers_get_what_is_committed_in_any_order(
    history: History, dice: random.Random
) -> None:
    followers = {
        "one": history.follower(device="one"),
        "two": history.follower(limit=2, device="two"),
    }
    whole, small = history.follower(), history.follower(limit=1)
    everyone = [*followers.values(), whole, small]
    interleaving = Interleaving(history, dice)
    interleaving.run(lambda: dice.choice(everyone).look())
    for follower in everyone:
        while follower.look():
            pass
    for device, follower in followers.items():
        assert Counter(follower.seen) == Counter(interleaving.committed.get(device, []))
    expected = Counter(chain.from_iterable(interleaving.committed.values()))
    assert Counter(whole.seen) == Counter(small.seen) == expected


def test_followers_get_what_many_threads_write(history: History, dice: random.Random) -> None:
    everything: list[str] = []
    done = threading.Event()
    followers = [history.follower(), history.follower(limit=7)]

    def follow(follower: Follower) -> None:
        while not done.is_set():
            follower.look()
        while follower.look():
            pass

    seeds = [dice.random() for _ in history.writers]

    def writing(database: Database, seed: float) -> Callable[[], list[str]]:
        own = random.Random(seed)

        def run() -> list[str]:
            committed = []
            for _ in range(20):
                with ExitStack() as stack:
                    tx = stack.enter_context(database.writer())
                    written = write(tx, own.randint(1, 4))
                    if own.random() < 0.2:
                        stack.enter_context(pytest.raises(_RolledBack))
                        raise _RolledBack
                committed += written
            return committed

        return run

    threads = [threading.Thread(target=follow, args=(one,)) for one in followers]
    for thread in threads:
        thread.start()
    try:
        for committed in at_once(
            [writing(one, seed) for one, seed in zip(history.writers, seeds, strict=True)]
        ):
            everything += committed
    finally:
        done.set()
        joined(*threads)
    for follower in followers:
        assert Counter(follower.seen) == Counter(everything)


def test_transaction_that_took_too_long_after_its_events_is_not_committed(
    history: History, own_database: Database
) -> None:
    """Readers have stopped to wait for its ids."""
    clock = [0.0]
    slow = Database(
        own_database.engine.url.render_as_string(hide_password=False), seconds=lambda: clock[0]
    )
    follower = history.follower()

    def hang() -> None:
        with slow.writer() as tx:
            write(tx, 1)
            clock[0] += EVENTS_WITHIN + 1
            write(tx, 1)

    with pytest.raises(exception.Unavailable, match="took longer than 30 seconds"):
        hang()
    with slow.writer() as tx:
        clock[0] += EVENTS_WITHIN + 1
        written = write(tx, 1)
    slow.close()
    follower.look()
    assert follower.seen == written


def test_position_is_bounded_and_loses_nothing(history: History) -> None:
    """A cluster leaves gaps between ids: the position has room for so many, then it waits."""
    follower = history.follower(device="one")
    database = history.writers[0]
    written = []
    with database.writer() as tx:
        for _ in range(600):
            written += write(tx, 1, "one")
            write(tx, 1, "two")
    while follower.look():
        assert len(follower.place[1]) < 16_384
    assert follower.seen == written[:500]
    with database.writer() as tx:
        tx.execute(sa.update(Event).values(at_ms=Event.at_ms - _AGE))
    while follower.look():
        pass
    assert follower.seen == written
    assert follower.place[1] == ""
