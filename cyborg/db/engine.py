# SPDX-License-Identifier: Apache-2.0
"""Access to the database for the other packages: readers, writers and retries of use cases.

The API uses a ``Reader``, whose sessions are read-only in the database itself; the conductor uses a
``Database``. Both connect at first use, from any thread and in any process: after a fork the child
opens its own connections and does not touch those of its parent.
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

# One writer at a time per SQLite file and process: this lock is fair, whereas SQLite polls. The
# process id is part of the key, because a fork may copy a lock that is held.
_sqlite_writers: dict[tuple[int, str], threading.Lock] = {}
# Open transactions of the current thread: ids of Database objects.
_open = threading.local()


#: Seconds after a check of the expiry during which COMMIT needs no further check.
_COMMIT_WITHIN = 0.5


@dataclass(frozen=True)
class _Expiry:
    """The expiry of a transaction's request, in ms, and the time of its last check, in seconds."""

    expires_ms: int
    checked: float


def _seconds() -> float:
    """Return the time since this host was booted, in seconds, including suspended time."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def expires(expires_ms: int) -> None:
    """Set the time after which the open transaction of this thread must not be committed.

    The caller has just compared that time with the database's clock.
    """
    _open.expiry = _Expiry(expires_ms, _open.seconds())


def _in_transaction() -> set[int]:
    if not hasattr(_open, "databases"):
        _open.databases = set()
    databases: set[int] = _open.databases
    return databases


class Reader:
    """Read-only access: the database rejects every write.

    ``now`` is the database's clock as an SQL expression in milliseconds; a test passes a literal.
    ``seconds`` is a clock of this host that continues while the host is suspended.
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
        """Return a new object with the settings of oslo.db's ``[database]`` options."""
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
        """Return the location of the database, for messages: host:port, or the file of SQLite."""
        url = self._url
        if url.get_backend_name() == "sqlite":
            return url.database or ""
        port = url.port or (3306 if url.get_backend_name() == "mysql" else 5432)
        return f"{url.host or url.query.get('host', 'localhost')}:{port}"

    @property
    def engine(self) -> sa.Engine:
        """Return the engine of this process, created at the first call; it connects later."""
        pid = os.getpid()
        current = self._made
        if current is None or current[0] != pid:
            with self._making.setdefault(pid, threading.Lock()):
                current = self._made
                if current is None or current[0] != pid:
                    if current is not None:
                        # The parent process still uses these sockets: do not close them.
                        current[1].dispose(close=False)
                    current = self._made = (pid, self._make_engine())
        return current[1]

    @contextmanager
    def reader(self) -> Iterator[sa.Connection]:
        """Yield a connection for reads; nothing is ever committed.

        Raises Unavailable when the database cannot be reached.
        """
        with faults.translated(self.place), self._connect() as connection:
            yield connection

    def wait(
        self, retries: int, interval: float, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Wait until the database can be reached, with an attempt every ``interval`` seconds.

        Raises Unavailable after ``retries`` repeated attempts; -1 means no limit.
        """
        while True:
            try:
                with self.reader():
                    return
            except exception.Unavailable as error:
                if retries == 0:
                    raise
                LOG.warning("%s. Retrying in %s s.", str(error).rstrip("."), interval)
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
    """Read and write access, for the conductor and the commands that work on the schema."""

    _read_only = False

    @contextmanager
    def writer(self) -> Iterator[sa.Connection]:
        """Yield the connection of a new transaction; commit at the end, roll back on an exception.

        Raises Conflict, Invalid and Unavailable for errors of the database (see
        ``faults.translated``), RuntimeError if this thread already has an open transaction.
        """
        databases = _in_transaction()
        if id(self) in databases:
            raise RuntimeError("this thread already has an open transaction on this database")
        translated = faults.translated(self.place, writes=True)
        with translated, self._alone(), self._connect() as connection:
            databases.add(id(self))
            try:
                with connection.execution_options(**{WRITES: True}).begin():
                    _open.expiry, _open.seconds = None, self._seconds
                    yield connection
                    self._check_expiry(connection)
            finally:
                databases.discard(id(self))

    def _check_expiry(self, tx: sa.Connection) -> None:
        """Raise Unavailable if the transaction's request has expired since the last check.

        ``events.record`` compares the expiry with the database's clock. A process that is suspended
        after that must not commit when it resumes.
        """
        expiry = _open.expiry
        if expiry is None or self._seconds() - expiry.checked <= _COMMIT_WITHIN:
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
    """A decorator for use cases, which runs them again after a deadlock or a lost connection.

    It makes at most ``attempts`` runs within ``seconds``, with growing, jittered pauses; then the
    caller gets Unavailable. Inside an open transaction it runs the function only once, because the
    outer transaction has failed. If the connection is lost during COMMIT, the outcome is unknown,
    so a repeated use case must recognise its own rows by their request key.
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
        def with_retries(*args: P.args, **kwargs: P.kwargs) -> R:
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
                    LOG.debug("Repeating %s after: %s", function.__qualname__, error.__cause__)
                self.sleep(pause)
            return function(*args, **kwargs)

        return with_retries


#: The decorator with the default limits.
retried = Retry()
