# SPDX-License-Identifier: Apache-2.0
"""SQLAlchemy engines for the supported databases, configured to behave alike.

All of them commit a transaction as a whole and check foreign keys. MySQL, MariaDB and PostgreSQL
use READ COMMITTED; SQLite uses a file in WAL mode, so that readers never wait for the writer.
"""

import os
import sqlite3
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from oslo_db.sqlalchemy import engines, exc_filters

from cyborg import exception

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


def parse_url(text: str) -> sa.URL:
    """Parse a database URL; raises ConfigError if it is invalid or its driver is missing."""
    try:
        url = sa.make_url(text)
    except sa.exc.ArgumentError as error:
        raise exception.ConfigError(
            reason="[database] connection is not a database URL; it has the form "
            "mysql+pymysql://user:password@host/cyborg."
        ) from error
    backend = url.get_backend_name()
    if backend == "sqlite" and _is_in_memory(url):
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


def make_engine(url: sa.URL, settings: Settings, *, read_only: bool) -> sa.Engine:
    """Return a new engine, without connecting.

    With ``read_only`` the database rejects every write in sessions of this engine.
    """
    make = _sqlite_engine if url.get_backend_name() == "sqlite" else _server_engine
    return make(url, settings, read_only)


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
    return engine


def _sqlite_engine(url: sa.URL, settings: Settings, read_only: bool) -> sa.Engine:
    # Not oslo.db's engine: it opens the file again for each transaction, which causes a checkpoint
    # each time in WAL mode, and it begins all transactions deferred.
    engine = sa.create_engine(
        _existing(url) if read_only else url,
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


def _existing(url: sa.URL) -> sa.URL:
    """Return a URL that opens the file only if it exists; by default SQLite creates the file."""
    if url.query.get("uri") != "true":
        url = url.set(database=f"file:{quote(os.path.abspath(url.database or ''))}")
    return url.update_query_dict({"uri": "true", "mode": url.query.get("mode", "rw")})


def _is_in_memory(url: sa.URL) -> bool:
    name = url.database or ""
    return name in ("", ":memory:", "file::memory:") or url.query.get("mode") == "memory"
