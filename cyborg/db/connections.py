# SPDX-License-Identifier: Apache-2.0
"""SQLAlchemy engines for the three databases, each with what it needs to behave like the others.

All commit what a transaction wrote as a whole and check foreign keys. MySQL, MariaDB and PostgreSQL
run READ COMMITTED; SQLite is a file in WAL mode, so that readers never wait for the writer.
"""

import os
import sqlite3
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from oslo_db.sqlalchemy import engines, exc_filters

from cyborg import exception

#: Connections that a process keeps; as ``[database] max_pool_size``.
MAX_POOL_SIZE = 20
#: Execution option of a connection whose transaction is going to write.
WRITES = "cyborg_writes"


#: Seconds after which a server ends a transaction in which nothing happens. Ours take milliseconds
#: and wait for nobody outside, so its process is frozen or cut off; the locks would keep other
#: conductors from taking its work over. MySQL itself knows no such limit.
_IDLE_TRANSACTION = 10


@dataclass(frozen=True)
class Settings:
    """How to connect; names and meanings are those of oslo.db's ``[database]`` options.

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


def parse_url(text: str) -> sa.URL:
    """Read a database URL; raises ConfigError for one that cannot be used."""
    try:
        url = sa.make_url(text)
    except sa.exc.ArgumentError as error:
        raise exception.ConfigError(
            reason="[database] connection is not a database URL (dialect+driver://…)."
        ) from error
    backend = url.get_backend_name()
    if backend == "sqlite" and _is_in_memory(url):
        raise exception.ConfigError(
            reason="[database] connection names an in-memory SQLite database; give it a file, "
            "as in sqlite:////var/lib/cyborg/cyborg.sqlite."
        )
    if backend == "mariadb":
        # One spelling for both, as oslo.db knows the first only.
        url = url.set(drivername=url.drivername.replace("mariadb", "mysql", 1))
    elif backend not in ("mysql", "postgresql", "sqlite"):
        raise exception.ConfigError(
            reason=f"[database] connection names {backend}; sqlite, mysql and postgresql are known."
        )
    try:
        url.get_dialect().import_dbapi()
    except (ImportError, sa.exc.ArgumentError) as error:
        raise exception.ConfigError(
            reason=f"[database] connection wants the driver {url.drivername}, which cannot be "
            f"loaded: {error}"
        ) from error
    return url


def make_engine(url: sa.URL, settings: Settings, *, read_only: bool) -> sa.Engine:
    """Build an engine; nothing is connected yet.

    The sessions of a ``read_only`` engine refuse every write at the database itself.
    """
    make = _sqlite_engine if url.get_backend_name() == "sqlite" else _server_engine
    return make(url, settings, read_only)


def _server_engine(url: sa.URL, settings: Settings, read_only: bool) -> sa.Engine:
    if url.get_backend_name() == "mysql":
        # Deployers' URLs often say utf8, which is three bytes a character: no emoji.
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
        # PostgreSQL would take the setting back with the first rollback.
        dbapi.commit()

    sa.event.listen(engine, "connect", once_per_connection)
    return engine


def _sqlite_engine(url: sa.URL, settings: Settings, read_only: bool) -> sa.Engine:
    # Not oslo.db's own: it opens the file anew for each transaction, which with WAL means a
    # checkpoint each, and it begins all transactions deferred.
    engine = sa.create_engine(
        _existing(url) if read_only else url,
        pool_size=settings.max_pool_size or MAX_POOL_SIZE,
        max_overflow=settings.max_overflow if settings.max_overflow is not None else 50,
        connect_args={"timeout": settings.sqlite_busy_timeout, "check_same_thread": False},
    )

    def once_per_connection(dbapi: sqlite3.Connection, _record: Any) -> None:
        # Python's own transaction control would commit before DDL and begin late.
        dbapi.isolation_level = None
        if dbapi.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            dbapi.execute("PRAGMA journal_mode = WAL")
        dbapi.execute("PRAGMA foreign_keys = ON")
        if not settings.sqlite_synchronous:
            dbapi.execute("PRAGMA synchronous = OFF")
        if read_only:
            dbapi.execute("PRAGMA query_only = ON")

    def begin(connection: sa.Connection) -> None:
        # A deferred BEGIN that turns writer later may be refused at once, time-out or not.
        writes = connection.get_execution_options().get(WRITES)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    sa.event.listen(engine, "connect", once_per_connection)
    sa.event.listen(engine, "begin", begin)
    exc_filters.register_engine(engine)
    return engine


def _existing(url: sa.URL) -> sa.URL:
    """The same file if it is there; by itself SQLite makes one that is not."""
    if url.query.get("uri") != "true":
        url = url.set(database=f"file:{quote(os.path.abspath(url.database or ''))}")
    return url.update_query_dict({"uri": "true", "mode": url.query.get("mode", "rw")})


def _is_in_memory(url: sa.URL) -> bool:
    name = url.database or ""
    return name in ("", ":memory:", "file::memory:") or url.query.get("mode") == "memory"
