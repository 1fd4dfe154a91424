# SPDX-License-Identifier: Apache-2.0
"""Processes that die at a chosen boundary: walls around what connects one with its world.

A boundary is an SQL statement, a COMMIT, an RPC message, an HTTP request or an action on hardware.
A ``Fate`` counts those of one process; at the chosen one, before or after it takes effect, the
process dies: every boundary of it from then on, in any of its threads, raises ``Died``.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

import requests
import sqlalchemy as sa
from keystoneauth1.adapter import Adapter

from cyborg.drivers.base import Driver
from cyborg.testing.direct import Died

_ACTIONS = frozenset({"install", "prepare", "release", "program"})
_CONTROL = ("BEGIN", "COMMIT", "ROLLBACK")
_PING = "SELECT 1"
_SHOWN = 120


class Kind(StrEnum):
    """What lies between a process and its world."""

    SQL = "SQL"
    COMMIT = "COMMIT"
    RPC = "RPC"
    HTTP = "HTTP"
    HOST = "host"


#: Those whose two sides differ for others.
CALLS = frozenset({Kind.COMMIT, Kind.RPC, Kind.HTTP, Kind.HOST})


@dataclass(frozen=True)
class Death:
    """At which boundary of those that count (from 1) a process dies, and on which side of it."""

    number: int
    after: bool


class Fate:
    """What one process passes, and when it dies.

    ``kinds`` are the boundaries that count, between ``begin`` and ``rest``. ``endings`` are called
    once, by the thread that died first.
    """

    def __init__(self, death: Death | None = None, kinds: frozenset[Kind] = frozenset(Kind)):
        self._death = death
        self._kinds = kinds
        self._lock = threading.RLock()
        self._begun = False
        self.passed: list[str] = []
        self.dead = False
        self.endings: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Count from now on."""
        self._begun = True

    def rest(self) -> None:
        """Count no more: who has come so far dies no more."""
        self._begun = False

    def before(self, kind: Kind, text: str) -> int:
        """A boundary is reached; answers its number, 0 for one that does not count."""
        with self._lock:
            if self.dead:
                raise Died
            if not self._begun or kind not in self._kinds:
                return 0
            self.passed.append(f"{kind} {' '.join(text.split())[:_SHOWN]}")
            number = len(self.passed)
        if self._death == Death(number, after=False):
            self.die()
        return number

    def after(self, number: int) -> None:
        """What the boundary of this number leads to has taken effect."""
        if self.dies_after(number):
            self.die()
        if self.dead:
            raise Died

    def dies_after(self, number: int) -> bool:
        """Whether this is where the process dies, on the far side."""
        return self._death == Death(number, after=True)

    def die(self) -> None:
        """End this process now; raises Died."""
        with self._lock:
            first, self.dead = not self.dead, True
        if first:
            for ending in self.endings:
                ending()
        raise Died

    @contextmanager
    def crossing(self, kind: Kind, text: str) -> Iterator[None]:
        """Around something that takes effect in the block."""
        number = self.before(kind, text)
        yield
        self.after(number)

    def message(self, text: str) -> Any:
        """See ``direct.Crossing``."""
        return self.crossing(Kind.RPC, text)


class Wire:
    """Counts the statements and commits of an engine; ``fate`` is that of who has it now."""

    def __init__(self, engine: sa.Engine) -> None:
        self.fate = Fate()
        self._here = threading.local()
        sa.event.listen(engine, "before_cursor_execute", self._statement)
        sa.event.listen(engine, "after_cursor_execute", self._executed)
        sa.event.listen(engine, "commit", self._commit)

    def _statement(self, connection: sa.Connection, _cursor: Any, text: str, *_: Any) -> None:
        bare = text.strip()
        self._here.number = 0
        with _cut_off(connection):
            if bare != _PING and not bare.upper().startswith(_CONTROL):
                self._here.number = self.fate.before(Kind.SQL, text)
            elif self.fate.dead:
                raise Died

    def _executed(self, connection: sa.Connection, *_event: Any) -> None:
        with _cut_off(connection):
            self.fate.after(self._here.number)

    def _commit(self, connection: sa.Connection) -> None:
        with _cut_off(connection):
            number = self.fate.before(Kind.COMMIT, "")
            if self.fate.dies_after(number):
                # There is no event on the far side of it.
                connection.engine.dialect.do_commit(connection.connection)
                self.fate.die()


@contextmanager
def _cut_off(connection: sa.Connection) -> Iterator[None]:
    """Let the database see at once that whoever dies in this block is gone.

    SQLAlchemy takes a transaction for ended whose commit failed before it began, and SQLite keeps
    the locks of a closed connection as long as anybody knows one of its cursors.
    """
    try:
        yield
    except Died:
        connection.engine.dialect.do_rollback(connection.connection)
        connection.invalidate()
        raise


class MortalAdapter(Adapter):
    """An adapter whose requests are boundaries of a process; ``peer`` names who is asked."""

    def __init__(self, adapter: Adapter, fate: Fate, peer: str) -> None:
        super().__init__(adapter.session, service_type=adapter.service_type)
        self._fate = fate
        self._peer = peer

    def request(self, url: str, method: str, **arguments: Any) -> requests.Response:
        """Send it; who dies after it never reads the answer."""
        with self._fate.crossing(Kind.HTTP, f"{self._peer} {method} {url}"):
            return super().request(url, method, **arguments)


class _MortalDriver:
    """Stands before a driver, and makes boundaries of what it does to the hardware."""

    def __init__(self, driver: Driver, fate: Fate) -> None:
        self._driver = driver
        self._fate = fate

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._driver, verb)
        if verb not in _ACTIONS:
            return found

        def act(*arguments: Any) -> Any:
            with self._fate.crossing(Kind.HOST, verb):
                return found(*arguments)

        return act


def mortal(driver: Driver, fate: Fate) -> Driver:
    """The same driver, in the hands of a process that may die."""
    return cast(Driver, _MortalDriver(driver, fate))
