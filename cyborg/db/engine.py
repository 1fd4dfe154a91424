# SPDX-License-Identifier: Apache-2.0
"""Access to the database for the other packages: readers, writers and retries of use cases.

The API uses a ``Reader``, whose sessions are read-only in the database itself; the conductor uses a
``Database``. Both connect at first use, from any thread and in any process: after a fork the child
opens its own connections and does not touch those of its parent.

The engines of all supported databases behave alike. They commit a transaction as a whole and check
foreign keys. MySQL, MariaDB and PostgreSQL use READ COMMITTED; SQLite uses a file in WAL mode, so
that readers never wait for the writer.
"""

import dataclasses
import functools
import logging
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, ParamSpec, Self, TypeVar
from urllib.parse import quote

import sqlalchemy as sa
from oslo_config import cfg
from oslo_db.sqlalchemy import engines, exc_filters

from cyborg import exception
from cyborg.db import faults
from cyborg.db.clock import boot_seconds, db_now_ms
from cyborg.db.transaction import AfterCommit, Transaction
from cyborg.model.caller import Caller

LOG = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")

# One writer at a time per SQLite file and process: this lock is fair, whereas SQLite polls. The
# process id is part of the key, because a fork may copy a lock that is held.
_sqlite_writers: dict[tuple[int, str], threading.Lock] = {}
#: Connections that a process keeps open; the default of ``[database] max_pool_size``.
MAX_POOL_SIZE = 20
#: Execution option of a connection whose transaction will write.
WRITES = "cyborg_writes"
#: Seconds after which a server ends an idle transaction. Transactions of this service take
#: milliseconds and never wait for other services, so the process of an idle one is suspended or
#: disconnected; its locks would prevent other conductors from taking over its work. MySQL has no
#: such limit.
_IDLE_TRANSACTION = 10


@dataclass(frozen=True)
class Settings:
    """Parameters of connections, with the names and meanings of oslo.db's ``[database]`` options.

    Times are in seconds.
    """

    max_pool_size: int | None = MAX_POOL_SIZE
    max_overflow: int | None = 50
    pool_timeout: int | None = None
    connection_recycle_time: int = 3600
    mysql_sql_mode: str | None = "TRADITIONAL"
    mysql_wsrep_sync_wait: int | None = None
    sqlite_synchronous: bool = True
    sqlite_busy_timeout: float = 30.0
    connection_debug: int = 0
    connection_trace: bool = False
    connection_parameters: str = ""


class _Thread(threading.local):
    """The open transactions of the current thread."""

    def __init__(self) -> None:
        #: Ids of the Database objects.
        self.databases: set[int] = set()


_thread = _Thread()


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
        settings: Settings = Settings(),
        now: sa.ColumnElement[int] | None = None,
        seconds: Callable[[], float] = boot_seconds,
    ) -> None:
        self._url = _parse_url(url)
        self._is_sqlite = self._url.get_backend_name() == "sqlite"
        self._seconds = seconds
        self._settings = settings
        # The engine and its process; the locks under which a process creates it.
        self._engine: tuple[int, sa.Engine] | None = None
        self._creation: dict[int, threading.Lock] = {}
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
                **{
                    field.name: options[field.name]
                    for field in dataclasses.fields(Settings)
                    if field.name in options
                }
            ),
        )

    @property
    def place(self) -> str:
        """Return the location of the database, for messages: host:port, or the file of SQLite."""
        url = self._url
        if self._is_sqlite:
            return url.database or ""
        port = url.port or (3306 if url.get_backend_name() == "mysql" else 5432)
        return f"{url.host or url.query.get('host', 'localhost')}:{port}"

    @property
    def engine(self) -> sa.Engine:
        """Return the engine of this process, created at the first call; it connects later."""
        pid = os.getpid()
        current = self._engine
        if current is None or current[0] != pid:
            with self._creation.setdefault(pid, threading.Lock()):
                current = self._engine
                if current is None or current[0] != pid:
                    if current is not None:
                        # The parent process still uses these sockets: do not close them.
                        current[1].dispose(close=False)
                    make = _sqlite_engine if self._is_sqlite else _server_engine
                    engine = make(self._url, self._settings, self._read_only)
                    current = self._engine = (pid, engine)
        return current[1]

    @contextmanager
    def reader(self) -> Iterator[Transaction]:
        """Yield a transaction for reads; nothing is ever committed.

        Raises Unavailable when the database cannot be reached.
        """
        with faults.translated(self.place), self._connect() as connection:
            yield Transaction(connection, self.now)

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
        if self._engine is not None and self._engine[0] == os.getpid():
            self._engine[1].dispose()

    def _connect(self) -> sa.Connection:
        with faults.connecting(self.place):
            return self.engine.connect()


class Database(Reader):
    """Read and write access, for the conductor and the commands that work on the schema.

    A process sets two attributes before its first transaction. ``outbox`` is whether
    ``events.record`` puts the events in the outbox, from which a conductor sends them as
    notifications. ``after_commit`` is what the process does after each commit that asks for it.
    """

    _read_only = False
    outbox = False
    after_commit: AfterCommit | None = None

    @contextmanager
    def writer(
        self, caller: Caller | None = None, request_key: str | None = None
    ) -> Iterator[Transaction]:
        """Yield a new transaction; commit at the end, roll back on an exception.

        After the commit, when the transaction and its locks are gone, do what must follow it. See
        ``Transaction`` for ``caller`` and ``request_key``.
        Raises Conflict, Invalid and Unavailable for errors of the database (see
        ``faults.translated``), RuntimeError if this thread already has an open transaction.
        """
        if id(self) in _thread.databases:
            raise RuntimeError("this thread already has an open transaction on this database")
        translated = faults.translated(self.place, writes=True)
        alone: AbstractContextManager[object] = nullcontext()
        if self._is_sqlite:
            path = os.path.realpath(self._url.database or "")
            alone = _sqlite_writers.setdefault((os.getpid(), path), threading.Lock())
        with translated, alone, self._connect() as connection:
            _thread.databases.add(id(self))
            try:
                with connection.execution_options(**{WRITES: True}).begin():
                    tx = Transaction(
                        connection,
                        self.now,
                        outbox=self.outbox,
                        seconds=self._seconds,
                        caller=caller,
                        request_key=request_key,
                        after_commit=self.after_commit,
                    )
                    yield tx
                    tx.check_expiry()
            finally:
                _thread.databases.discard(id(self))
        tx.follow_up()


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
    jitter: Callable[[float, float], float] = random.uniform  # noqa: S311 - spreads load

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Wrap ``function``."""

        @functools.wraps(function)
        def with_retries(*args: P.args, **kwargs: P.kwargs) -> R:
            deadline = self.clock() + self.seconds
            for attempt in range(1, self.attempts):
                try:
                    return function(*args, **kwargs)
                except exception.Unavailable as error:
                    if _thread.databases or not faults.is_transient(error.__cause__):
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


def _parse_url(text: str) -> sa.URL:
    """Parse a database URL; raises ConfigError if it is invalid or its driver is missing."""
    try:
        url = sa.make_url(text)
    except sa.exc.ArgumentError as error:
        raise exception.ConfigError(
            reason="[database] connection is not a database URL; it has the form "
            "mysql+pymysql://user:password@host/cyborg."
        ) from error
    backend, name = url.get_backend_name(), url.database or ""
    in_memory = name in ("", ":memory:", "file::memory:") or url.query.get("mode") == "memory"
    if backend == "sqlite" and in_memory:
        raise exception.ConfigError(
            reason="[database] connection is an in-memory SQLite database, which is not supported; "
            "use a file, as in sqlite:////var/lib/cyborg/cyborg.sqlite."
        )
    if backend == "mariadb":
        # oslo.db supports only the dialect name mysql.
        url = url.set(drivername=url.drivername.replace("mariadb", "mysql", 1))
    elif backend not in ("mysql", "postgresql", "sqlite"):
        raise exception.ConfigError(
            reason=f"[database] connection has the dialect {backend}, which is not supported; use "
            "mysql, postgresql or sqlite."
        )
    try:
        url.get_dialect().import_dbapi()
    except (ImportError, sa.exc.ArgumentError) as error:
        raise exception.ConfigError(
            reason=f"[database] connection needs the driver {url.drivername}, which cannot be "
            f"loaded: {error}"
        ) from error
    return url


def _server_engine(url: sa.URL, settings: Settings, read_only: bool) -> sa.Engine:
    if url.get_backend_name() == "mysql":
        # URLs of deployments often use utf8, which has only three bytes per character (no emoji).
        url = url.update_query_dict({"charset": "utf8mb4"})
    engine: sa.Engine = engines.create_engine(
        url,
        mysql_sql_mode=settings.mysql_sql_mode,
        mysql_wsrep_sync_wait=settings.mysql_wsrep_sync_wait,
        connection_recycle_time=settings.connection_recycle_time,
        max_pool_size=settings.max_pool_size,
        max_overflow=settings.max_overflow,
        pool_timeout=settings.pool_timeout,
        connection_debug=settings.connection_debug,
        connection_trace=settings.connection_trace,
        connection_parameters=settings.connection_parameters,
        thread_checkin=False,
        max_retries=0,
    )
    statement = (
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
        if engine.dialect.name == "mysql"
        else "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED"
    )
    if read_only:
        statement += ", READ ONLY"

    def once_per_connection(dbapi: Any, _record: Any) -> None:
        with dbapi.cursor() as cursor:
            cursor.execute(statement)
            if engine.dialect.name == "postgresql":
                limit = f"idle_in_transaction_session_timeout = '{_IDLE_TRANSACTION}s'"
                cursor.execute(f"SET SESSION {limit}")
            elif "MariaDB" in dbapi.get_server_info():
                cursor.execute(f"SET SESSION idle_transaction_timeout = {_IDLE_TRANSACTION}")
        # Without a commit, PostgreSQL reverts the setting at the first rollback.
        dbapi.commit()

    sa.event.listen(engine, "connect", once_per_connection)
    if not settings.connection_debug:
        logging.getLogger("sqlalchemy.pool.impl.QueuePool").addFilter(_has_no_traceback)
    return engine


def _has_no_traceback(record: logging.LogRecord) -> bool:
    """Return whether the log of the pool has a record: not if it has a traceback.

    The pool logs one if it cannot reset a connection that is given back, as when its node has just
    left its cluster. It replaces the connection, and the next transaction raises the error.
    """
    return not record.exc_info


def _sqlite_engine(url: sa.URL, settings: Settings, read_only: bool) -> sa.Engine:
    if read_only:
        # By default SQLite creates a file that does not exist.
        if url.query.get("uri") != "true":
            url = url.set(database=f"file:{quote(os.path.abspath(url.database or ''))}")
        url = url.update_query_dict({"uri": "true", "mode": url.query.get("mode", "rw")})
    # Not oslo.db's engine: it opens the file again for each transaction, which causes a checkpoint
    # each time in WAL mode, and it begins all transactions deferred.
    engine = sa.create_engine(
        url,
        pool_size=settings.max_pool_size or MAX_POOL_SIZE,
        max_overflow=settings.max_overflow if settings.max_overflow is not None else 50,
        connect_args={"timeout": settings.sqlite_busy_timeout, "check_same_thread": False},
    )

    def once_per_connection(dbapi: sqlite3.Connection, _record: Any) -> None:
        # Python's own transaction control commits before DDL and begins transactions late.
        dbapi.isolation_level = None
        if dbapi.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            dbapi.execute("PRAGMA journal_mode = WAL")
        dbapi.execute("PRAGMA foreign_keys = ON")
        if not settings.sqlite_synchronous:
            dbapi.execute("PRAGMA synchronous = OFF")
        if read_only:
            dbapi.execute("PRAGMA query_only = ON")

    def begin(connection: sa.Connection) -> None:
        # SQLite may reject the first write after a deferred BEGIN at once, in spite of the timeout.
        writes = connection.get_execution_options().get(WRITES)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    sa.event.listen(engine, "connect", once_per_connection)
    sa.event.listen(engine, "begin", begin)
    exc_filters.register_engine(engine)
    return engine
