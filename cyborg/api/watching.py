# SPDX-License-Identifier: Apache-2.0
"""Let requests wait for events without a thread each.

A handler that has nothing to answer yet passes a ``Wait`` to the server (``Call.hold``) and returns
an answer that is valid in any case. The server keeps this answer and the connection, and carries
out the whole request again, with its token and its policy, when the wait is woken. One thread polls
the database for all requests that wait, while there are any.

Other web servers have no ``hold``: there a thread would be held for each client that waits.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cyborg.db import events
from cyborg.db.engine import Reader
from cyborg.db.events import WrittenEvent
from cyborg.model.position import Position
from cyborg.model.scope import EVERYWHERE
from cyborg.service import PeriodicTask

#: Key in the environment of a request: ``hold`` of a server that can keep requests.
HOLD: Final = "cyborg.hold"
#: Seconds between two polls of the database while requests wait.
INTERVAL: Final = 1.0
#: Polls without a request that waits, after which polling ends: clients come back at once.
_LINGER: Final = 10
#: Of how many polls the events are kept, for requests that read the database meanwhile.
_KEPT: Final = 10
#: How many events one poll reads.
_LIMIT: Final = 1000

Wake = Callable[[], object]
End = Callable[[], object]


@dataclass(frozen=True)
class Wait:
    """What a request waits for, at most ``seconds``.

    ``begin`` takes a function that is called once, in another thread, when the request is to be
    carried out again. It returns the function that ends the wait, or None if too many wait.
    """

    seconds: float
    begin: Callable[[Wake], End | None]


@dataclass(eq=False)
class _Watch:
    filters: Mapping[str, Any]
    mark: int
    wake: Wake


class EventWatch:
    """Wakes the requests that wait for events; at most ``limit`` of them.

    A request is woken when an event is written that its filters do not exclude: it may be one that
    its caller must not see. Each poll costs two SQL statements, whatever the number of requests.
    """

    def __init__(self, reader: Reader, *, limit: int, interval: float = INTERVAL) -> None:
        self._reader = reader
        self._limit = limit
        self._interval = interval
        self._lock = threading.Lock()
        self._watches: set[_Watch] = set()
        self._task: PeriodicTask | None = None
        #: What the polls have read; None while nobody waits.
        self._position: Position | None = None
        self._round = 0
        #: The round after which ``_news`` has all events, each with its round.
        self._complete_after = 0
        self._news: deque[tuple[int, Sequence[WrittenEvent]]] = deque()
        self._idle = 0

    @property
    def waiting(self) -> int:
        """Return how many requests wait."""
        return len(self._watches)

    @property
    def is_full(self) -> bool:
        """Return whether no further request can wait."""
        return self.waiting >= self._limit

    def mark(self) -> int:
        """Return a mark to set before the database is read, for ``begin``."""
        with self._lock:
            return -1 if self._position is None else self._round

    def begin(self, mark: int, filters: Mapping[str, Any], wake: Wake) -> End | None:
        """Call ``wake`` once, when events are written that a reader since ``mark`` may not know.

        Return the function that ends this; None if too many requests wait.
        """
        watch = _Watch(filters, mark, wake)
        with self._lock:
            if self.is_full:
                return None
            self._watches.add(watch)
            is_first = self._position is None
            if self._task is None:
                # Not earlier: a thread does not survive the fork of a server.
                self._task = PeriodicTask("events", self.poll, interval=self._interval)
                self._task.start()
        if is_first:
            self._task.wake()
        return lambda: self._end(watch)

    def poll(self) -> None:
        """Read what was written since the last poll, and wake those whom it may concern."""
        with self._lock:
            self._idle = 0 if self._watches else self._idle + 1
            if self._idle > _LINGER:
                self._position = None
            if self._idle and self._position is None:
                return
            position = self._position
        rows: Sequence[WrittenEvent] = ()
        with self._reader.reader() as tx:
            if position is None:
                position, complete = events.newest(tx, EVERYWHERE, {}), False
            else:
                rows, position, complete = events.written(tx, position, _LIMIT)
        with self._lock:
            self._round += 1
            self._position = position
            if complete:
                self._news.append((self._round, rows))
                if len(self._news) > _KEPT:
                    self._complete_after, _ = self._news.popleft()
            else:
                # Too many to look at each: all requests look for themselves.
                self._news.clear()
                self._complete_after = self._round
            due = [watch for watch in self._watches if self._is_due(watch)]
            self._watches.difference_update(due)
            for watch in self._watches:
                watch.mark = self._round
        for watch in due:
            watch.wake()

    def _is_due(self, watch: _Watch) -> bool:
        return watch.mark < self._complete_after or any(
            events.may_match(row, watch.filters)
            for number, rows in self._news
            if number > watch.mark
            for row in rows
        )

    def _end(self, watch: _Watch) -> None:
        with self._lock:
            self._watches.discard(watch)
