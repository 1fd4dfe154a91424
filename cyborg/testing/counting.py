# SPDX-License-Identifier: Apache-2.0
"""Counts what requests cost: SQL statements, commits, RPC calls and HTTP requests to peers.

Nothing is patched: the counts come from SQLAlchemy's events, from a wall around the RPC endpoint,
and from adapters that keep what passed. BEGIN, COMMIT, ROLLBACK and connection pings are not
statements; an UPDATE or DELETE sent with many sets of values counts each of them, an INSERT of
many rows one per thousand.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import oslo_messaging
import requests
import sqlalchemy as sa
from keystoneauth1.adapter import Adapter

_ROWS_PER_INSERT = 1000
_CONTROL = frozenset({"BEGIN", "COMMIT", "ROLLBACK"})
#: The whole text of oslo.db's and SQLAlchemy's connection pings.
_PINGS = frozenset({"SELECT 1"})
_PING_VERB = "ping"


@dataclass(frozen=True)
class Statement:
    """One statement as it went to the driver; ``many`` tells that ``values`` is a list of sets."""

    text: str
    values: Any
    many: bool

    @property
    def weight(self) -> int:
        """How many statements it counts as."""
        if not self.many:
            return 1
        if self.word == "INSERT":
            return -(-len(self.values) // _ROWS_PER_INSERT)
        return len(self.values)

    @property
    def word(self) -> str:
        """The word that it begins with, in capitals."""
        return self.text.lstrip().partition(" ")[0].upper()

    def touches(self, table: str) -> bool:
        """Whether the statement writes to this table."""
        words = self.text.replace('"', " ").replace("`", " ").split()
        if self.word == "UPDATE":
            return words[1] == table
        return self.word in ("INSERT", "DELETE") and words[2] == table


@dataclass
class Tally:
    """What happened while it was open."""

    statements: list[Statement] = field(default_factory=list)
    commits: int = 0
    rpc: list[str] = field(default_factory=list)
    http: list[str] = field(default_factory=list)
    #: Seconds that the database's driver took for the statements.
    seconds: float = 0.0

    @property
    def sql(self) -> int:
        """How many statements, by the rules of this module."""
        return sum(one.weight for one in self.statements)

    @property
    def costs(self) -> tuple[int, int, int]:
        """Statements, commits and RPC calls."""
        return self.sql, self.commits, len(self.rpc)

    def writes_to(self, *tables: str) -> list[Statement]:
        """The statements that write to any of these tables."""
        return [one for one in self.statements if any(one.touches(table) for table in tables)]

    def __str__(self) -> str:
        """The statements line by line, for the reader of a failed test."""
        shown = [f"{one.weight} x {' '.join(one.text.split())[:150]}" for one in self.statements]
        return "\n".join([f"{self.costs} {self.rpc} {self.http}", *shown])


class Meter:
    """Watches engines, an endpoint and adapters; the tallies that are open count all of it.

    What is watched may run in any thread of this process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[Tally] = []
        self._sent = threading.local()

    @contextmanager
    def tally(self) -> Iterator[Tally]:
        """Count everything from here to the end of the block."""
        made = Tally()
        with self._lock:
            self._open.append(made)
        try:
            yield made
        finally:
            with self._lock:
                self._open = [one for one in self._open if one is not made]

    def watch(self, engine: sa.Engine) -> None:
        """Count the statements and commits of an engine from now on."""
        sa.event.listen(engine, "before_cursor_execute", self._statement)
        sa.event.listen(engine, "after_cursor_execute", self._answer)
        sa.event.listen(engine, "commit", self._commit)

    def endpoint(self, endpoint: object) -> "CountedEndpoint":
        """The same RPC endpoint, its calls counted."""
        return CountedEndpoint(endpoint, self)

    def note_rpc(self, verb: str) -> None:
        """An RPC call arrived; pings, with which a process looks for its peer, are none."""
        if verb != _PING_VERB:
            self._note(lambda tally: tally.rpc.append(verb))

    def note_http(self, request: str) -> None:
        """A request went to a peer."""
        self._note(lambda tally: tally.http.append(request))

    def _statement(
        self,
        _connection: sa.Connection,
        _cursor: Any,
        text: str,
        values: Any,
        *_context: Any,
    ) -> None:
        # A batch of rows that SQLAlchemy put into one statement comes with one set of values,
        # whatever the event's own flag says; the driver's executemany comes with a list of sets.
        many = isinstance(values, Sequence) and bool(values) and _is_set(values[0])
        one = Statement(text, values, many)
        self._sent.at = None
        if one.word.rstrip(";") in _CONTROL or text.strip() in _PINGS:
            return
        self._note(lambda tally: tally.statements.append(one))
        self._sent.at = time.perf_counter()

    def _answer(self, *_event: Any) -> None:
        if self._sent.at is None:
            return
        taken = time.perf_counter() - self._sent.at

        def note(tally: Tally) -> None:
            tally.seconds += taken

        self._note(note)

    def _commit(self, _connection: sa.Connection) -> None:
        def note(tally: Tally) -> None:
            tally.commits += 1

        self._note(note)

    def _note(self, note: Callable[[Tally], None]) -> None:
        with self._lock:
            for one in self._open:
                note(one)


class CountedEndpoint:
    """Stands before an RPC endpoint and tells the meter of each call."""

    target: oslo_messaging.Target

    def __init__(self, endpoint: Any, meter: Meter) -> None:
        self._endpoint = endpoint
        self._meter = meter
        self.target = endpoint.target

    def __getattr__(self, verb: str) -> Any:
        """The verb of the endpoint behind; oslo.messaging looks it up by name."""
        method = getattr(self._endpoint, verb)

        def counted(context: Mapping[str, Any], **arguments: Any) -> Any:
            self._meter.note_rpc(verb)
            return method(context, **arguments)

        return counted


class CountedAdapter(Adapter):
    """An adapter whose requests the meter counts, as ``METHOD path``."""

    def __init__(self, adapter: Adapter, meter: Meter) -> None:
        super().__init__(adapter.session, service_type=adapter.service_type)
        self._meter = meter

    def request(self, url: str, method: str, **arguments: Any) -> requests.Response:
        """Send it, and count it."""
        self._meter.note_http(f"{method} {url}")
        return super().request(url, method, **arguments)


def _is_set(value: Any) -> bool:
    """Whether this is a whole set of values rather than one of them."""
    return isinstance(value, (tuple, list, dict))
