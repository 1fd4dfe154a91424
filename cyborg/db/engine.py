# SPDX-License-Identifier: Apache-2.0
"""How the other floors reach the database: a reader, a writer, and use cases that are repeated.

The api is given a ``Reader``, whose sessions the database itself keeps from writing; the conductor
has a ``Database``. Both connect at first use, from any thread and in any process: after a fork the
child makes its own connections and leaves its parent's alone.
"""

import functools
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, ParamSpec, Self, TypeVar

import sqlalchemy as sa
from oslo_config import cfg

from cyborg import exception
from cyborg.db import faults
from cyborg.db.clock import db_now_ms
from cyborg.db.connections import WRITES, Settings, make_engine, parse_url

LOG = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")

# One writer at a time per SQLite file and process: waiting here is fair, SQLite's own is polling.
# The process is part of the key, because a fork may copy a lock that is held.
_sqlite_writers: dict[tuple[int, str], threading.Lock] = {}
# What the current thread has open: ids of Database objects.
_open = threading.local()


#: Seconds that may pass between the last look at the clock and COMMIT without another look.
_COMMIT_WITHIN = 0.5


@dataclass(frozen=True)
class _Expiry:
    """When the request of a transaction expires, and when that was last compared, in seconds."""

    expires_ms: int
    seen: float


def _seconds() -> float:
    """This machine's time since it was booted; time in which it was suspended counts."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def expires(expires_ms: int) -> None:
    """Note that the open transaction of this thread must not be committed after a moment.

    The caller has just compared that moment with the database's clock.
    """
    _open.expiry = _Expiry(expires_ms, _open.seconds())


def _in_transaction() -> set[int]:
    if not hasattr(_open, "databases"):
        _open.databases = set()
    databases: set[int] = _open.databases
    return databases


class Reader:
    """Reads only: a write through it is refused by the database.

    ``now`` is the database's clock as an SQL expression in milliseconds; a test passes a literal.
    ``seconds`` is a clock of this machine that goes on while the machine is suspended.
    Raises ConfigError when the URL cannot be used.
    """

    _read_only: ClassVar[bool] = True

    def __init__(
        self,
        url: str,
        *,
        settings: Settings = Settings(),  # noqa: B008 - frozen
        now: sa.ColumnElement[int] | None = None,
        seconds: Callable[[], float] = _seconds,
    ) -> None:
        self._url = parse_url(url)
        self._seconds = seconds
        self._settings = settings
        self._made: tuple[int, sa.Engine] | None = None
        self._making: dict[int, threading.Lock] = {}
        self.now: sa.ColumnElement[int] = db_now_ms() if now is None else now

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts) -> Self:
        """Build it from oslo.db's ``[database]`` options."""
        options = conf.database
        if not options.connection:
            raise exception.ConfigError(
                reason="[database] connection is not set; it has the form "
                "mysql+pymysql://user:password@host/cyborg."
            )
        return cls(
            options.connection,
            settings=Settings(
                max_pool_size=options.max_pool_size,
                max_overflow=options.max_overflow,
                pool_timeout=options.pool_timeout,
                connection_recycle_time=options.connection_recycle_time,
                mysql_sql_mode=options.mysql_sql_mode,
                mysql_wsrep_sync_wait=options.mysql_wsrep_sync_wait,
                sqlite_synchronous=options.sqlite_synchronous,
                connection_debug=options.connection_debug,
                connection_trace=options.connection_trace,
                connection_parameters=options.connection_parameters,
            ),
        )

    @property
    def place(self) -> str:
        """Where the database is, for sentences: host:port of a server, or the file of SQLite."""
        url = self._url
        if url.get_backend_name() == "sqlite":
            return url.database or ""
        port = url.port or (3306 if url.get_backend_name() == "mysql" else 5432)
        return f"{url.host or url.query.get('host', 'localhost')}:{port}"

    @property
    def engine(self) -> sa.Engine:
        """This process's engine, made at the first call; connections follow later still."""
        pid = os.getpid()
        made = self._made
        if made is None or made[0] != pid:
            with self._making.setdefault(pid, threading.Lock()):
                made = self._made
                if made is None or made[0] != pid:
                    if made is not None:
                        # The parent still uses these sockets: forget them, do not close them.
                        made[1].dispose(close=False)
                    made = self._made = (pid, self._make_engine())
        return made[1]

    @contextmanager
    def reader(self) -> Iterator[sa.Connection]:
        """A connection to read with; nothing is ever committed.

        Raises Unavailable when the database cannot be reached.
        """
        with faults.translated(self.place), self._connect() as connection:
            yield connection

    def wait(
        self, retries: int, interval: float, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Return as soon as the database can be reached, trying again every ``interval`` seconds.

        Raises Unavailable after ``retries`` repetitions; -1 means without end.
        """
        while True:
            try:
                with self.reader():
                    return
            except exception.Unavailable as error:
                if retries == 0:
                    raise
                LOG.warning("%s Trying again in %s s.", error, interval)
            retries -= 1
            sleep(interval)

    def close(self) -> None:
        """Close idle connections; the object stays usable."""
        if self._made is not None and self._made[0] == os.getpid():
            self._made[1].dispose()

    def _make_engine(self) -> sa.Engine:
        return make_engine(self._url, self._settings, read_only=self._read_only)

    def _connect(self) -> sa.Connection:
        with faults.connecting(self.place):
            return self.engine.connect()


class Database(Reader):
    """Reads and writes; belongs to the conductor and to the schema commands."""

    _read_only = False

    @contextmanager
    def writer(self) -> Iterator[sa.Connection]:
        """One transaction: committed on leaving, rolled back when an exception leaves it.

        Raises Conflict, Invalid and Unavailable for what the database refuses (see
        ``faults.translated``), RuntimeError when the thread has a transaction open already.
        """
        held = _in_transaction()
        if id(self) in held:
            raise RuntimeError("this thread has a transaction open already")
        translated = faults.translated(self.place, writes=True)
        with translated, self._alone(), self._connect() as connection:
            held.add(id(self))
            try:
                with connection.execution_options(**{WRITES: True}).begin():
                    _open.expiry, _open.seconds = None, self._seconds
                    yield connection
                    self._check_expiry(connection)
            finally:
                held.discard(id(self))

    def _check_expiry(self, tx: sa.Connection) -> None:
        """Raise Unavailable when the transaction's request has expired since its last look.

        The history looks at the database's clock (see ``events.record``). A process that is frozen
        after that must not commit when it wakes up.
        """
        expiry = _open.expiry
        if expiry is None or self._seconds() - expiry.seen <= _COMMIT_WITHIN:
            return
        if int(tx.execute(sa.select(self.now)).scalar_one()) >= expiry.expires_ms:
            raise exception.Unavailable(peer="The conductor", reason=faults.EXPIRED)

    def _alone(self) -> AbstractContextManager[object]:
        if self._url.get_backend_name() != "sqlite":
            return nullcontext()
        path = os.path.realpath(self._url.database or "")
        return _sqlite_writers.setdefault((os.getpid(), path), threading.Lock())


@dataclass(frozen=True)
class Retry:
    """A decorator for use cases: begins them again after a deadlock or a lost connection.

    At most ``attempts`` runs within ``seconds``, with growing, jittered pauses; then Unavailable
    goes to the caller. Called inside an open transaction it runs the function once only, because
    what broke is the outer transaction. A connection that broke during COMMIT leaves open whether
    it was done, so a use case must recognise its own rows (by operation id) when it is repeated.
    """

    attempts: int = 5
    seconds: float = 10.0
    first_pause: float = 0.05
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    jitter: Callable[[float, float], float] = random.uniform

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Wrap ``function``."""

        @functools.wraps(function)
        def repeated(*args: P.args, **kwargs: P.kwargs) -> R:
            deadline = self.clock() + self.seconds
            for attempt in range(1, self.attempts):
                try:
                    return function(*args, **kwargs)
                except exception.Unavailable as error:
                    if _in_transaction() or not faults.is_transient(error.__cause__):
                        raise
                    pause = self.jitter(0.5, 1.0) * self.first_pause * 2 ** (attempt - 1)
                    if self.clock() + pause > deadline:
                        raise
                    LOG.debug("%s is repeated after: %s", function.__qualname__, error.__cause__)
                self.sleep(pause)
            return function(*args, **kwargs)

        return repeated


#: The usual budget.
retried = Retry()
