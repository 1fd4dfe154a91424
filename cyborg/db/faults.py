# SPDX-License-Identifier: Apache-2.0
"""Translation of database errors to errors of this service; callers never see an SQL error."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from oslo_db import exception as db_exc
from oslo_db.sqlalchemy import exc_filters

from cyborg import exception

_TRANSIENT = (db_exc.DBDeadlock, db_exc.DBConnectionError, db_exc.DBConsistencyError)
# PostgreSQL: serialization_failure and lock_not_available. SQLite: SQLITE_BUSY, low byte.
_TRANSIENT_SQLSTATES = frozenset({"40001", "55P03"})
_SQLITE_BUSY = 5
_SQLITE_READONLY = 8
_SQLITE_CANTOPEN = 14
# MySQL and MariaDB: the node cannot commit, or is read-only, as during a failover.
_WRONG_NODE = (1180, 1290, 1836)
# The server is shutting down, or another server would do it.
_TRANSIENT_MYSQL = frozenset({1053, *_WRONG_NODE})
# PostgreSQL: read_only_sql_transaction, on a standby.
_POSTGRESQL_READONLY = "25006"
# Another process, or an owner of the schema's lock that counts as dead, is changing the same table.
# MySQL: a table, a column or a key exists already; the definition of a table is being modified.
_RIVALRY_MYSQL = frozenset({1050, 1060, 1061, 1684})
# PostgreSQL: a table, a column or another object exists already; two sessions create the same one.
_RIVALRY_SQLSTATES = frozenset({"42P07", "42701", "42710", "23505"})
# The database has no space, or cannot read or write its files; an immediate retry does not help.
# SQLite: IOERR, FULL, CANTOPEN. MySQL: disk full, error of the storage engine, table full.
_SQLITE_BROKEN = frozenset({10, 13, _SQLITE_CANTOPEN})
_MYSQL_BROKEN = frozenset({1021, 1030, 1114})
# PostgreSQL: insufficient resources, and system errors.
_POSTGRESQL_BROKEN = ("53", "58")
#: The sentence for callers of the API. Only the log and operators see host names and accounts.
PUBLIC = "The database is not available. Repeating the request later is safe."


@exc_filters.filters(  # type: ignore[untyped-decorator]
    "mysql", sa.exc.OperationalError, rf".*\((?:{'|'.join(map(str, _WRONG_NODE))}),"
)
def _lose_connection(error: sa.exc.OperationalError, *_details: object) -> None:
    """Let oslo.db replace all connections to a node that cannot commit or has become read-only.

    A node of Galera that leaves its cluster refuses COMMIT with 1180. It refuses other statements
    with 1047, for which oslo.db does this by itself. After a failover (1290 and 1836), connections
    that exist lead to the old node. The pool closes the connections without a ROLLBACK, whose
    failure it would log with a traceback.
    """
    raise db_exc.DBConnectionError(error)


def is_transient(error: BaseException | None) -> bool:
    """Return whether the same transaction may succeed if it is started again."""
    if isinstance(error, _TRANSIENT):
        return True
    if isinstance(error, db_exc.DBError):
        error = error.inner_exception
    if not isinstance(error, sa.exc.DBAPIError):
        return False
    if isinstance(error, sa.exc.OperationalError) and error.statement is None:
        # The error occurred while connecting or disconnecting; only some of these errors have a
        # class of their own in oslo.db.
        return True
    return (
        error.connection_invalidated
        or _mysql_code(error.orig) in _TRANSIENT_MYSQL
        or getattr(error.orig, "pgcode", None) in _TRANSIENT_SQLSTATES
        or _sqlite_code(error.orig) == _SQLITE_BUSY
    )


def is_rivalry(error: BaseException | None) -> bool:
    """Return whether a repeated change of the schema may find that another process has made it."""
    if is_transient(error):
        return True
    if isinstance(error, db_exc.DBError):
        error = error.inner_exception
    if not isinstance(error, sa.exc.DBAPIError):
        return False
    return (
        _mysql_code(error.orig) in _RIVALRY_MYSQL
        or getattr(error.orig, "pgcode", None) in _RIVALRY_SQLSTATES
    )


def _sqlite_code(error: object) -> int:
    """Return the primary code of a SQLite error; 0 for all other errors."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _mysql_code(error: object) -> object:
    arguments = getattr(error, "args", ())
    return arguments[0] if arguments else None


@contextmanager
def translated(place: str, *, writes: bool = False) -> Iterator[None]:
    """Raise errors of this service for errors of the database.

    ``place`` is the location of the database (host:port or file), for the reason. ``writes`` means
    that the connection may write, so a rejected write is a fault of the database's files.

    A duplicate or a broken reference becomes Conflict. A value that the database cannot store
    becomes Invalid. A lost connection or a deadlock becomes DatabaseUnavailable, with the original
    error as its cause, for ``is_transient``. Any other error is a fault in this service and is not
    changed.
    """
    try:
        yield
    except db_exc.DBDuplicateEntry as error:
        columns = ", ".join(error.columns) or "key"
        raise exception.Conflict(
            reason=f"Another row already has the same {columns}; nothing was changed."
        ) from error
    except db_exc.DBReferenceError as error:
        raise exception.Conflict(
            reason="A row that this row refers to was removed, or another row still refers to this "
            "row. Read the current state before you repeat the request."
        ) from error
    except db_exc.DBInvalidUnicodeParameter as error:
        raise _invalid() from error
    except (db_exc.DBError, sa.exc.SQLAlchemyError) as error:
        no_connection = is_transient(error) or isinstance(error, sa.exc.TimeoutError)
        if no_connection or _is_broken(error, writes):
            raise _unavailable(error, place) from error
        inner = error.inner_exception if isinstance(error, db_exc.DBError) else error
        # Drivers raise plain Python errors for values that they cannot send: psycopg2 ValueError
        # for a NUL in a string, sqlite3 OverflowError for an integer of more than 64 bits.
        data_errors = db_exc.DBDataError, sa.exc.DataError, ValueError, OverflowError
        if isinstance(error, data_errors) or isinstance(inner, data_errors):
            raise _invalid() from error
        raise


@contextmanager
def connecting(place: str) -> Iterator[None]:
    """Raise DatabaseUnavailable for every error while the block connects to ``place``."""
    try:
        yield
    except db_exc.DBInvalidUnicodeParameter as error:
        raise _invalid() from error
    except (db_exc.DBError, sa.exc.DBAPIError) as error:
        raise _unavailable(error, place) from error


def _invalid() -> exception.Invalid:
    return exception.Invalid(
        field="request",
        reason="a value is too long, out of range, or text that the database cannot store",
    )


def _is_broken(error: Exception, writes: bool) -> bool:
    """Return whether the database answers but cannot work: no space, or unusable files."""
    inner = error.inner_exception if isinstance(error, db_exc.DBError) else error
    if not isinstance(inner, sa.exc.DBAPIError):
        return False
    code = _sqlite_code(inner.orig)
    return (
        (writes and code == _SQLITE_READONLY)
        or (writes and getattr(inner.orig, "pgcode", None) == _POSTGRESQL_READONLY)
        or code in _SQLITE_BROKEN
        or _mysql_code(inner.orig) in _MYSQL_BROKEN
        or str(getattr(inner.orig, "pgcode", None)).startswith(_POSTGRESQL_BROKEN)
    )


def _unavailable(error: Exception, place: str) -> exception.DatabaseUnavailable:
    return exception.DatabaseUnavailable(
        peer="The database", reason=reason(error, place), public=PUBLIC
    )


def reason(error: Exception, place: str) -> str:
    """Return why the database cannot be used, in the words of its driver, for logs and operators.

    The text names host, account and database. It contains no password, no statement and no values:
    it is the text of the driver's error, and errors with a statement reach this function only if
    ``is_transient`` or ``_is_broken`` accepts them.
    """
    inner = error.inner_exception if isinstance(error, db_exc.DBError) else error
    orig = getattr(inner, "orig", None)
    if orig is None:
        # An error of the connection pool: SQLAlchemy appends a link to its manual.
        return str(inner).partition(" (Background on")[0] or type(error).__name__
    system = getattr(orig, "original_exception", None)
    if isinstance(system, OSError):
        return f"{_lower(system.strerror or str(system))} at {place}"
    if len(orig.args) == 2 and isinstance(orig.args[0], int):
        code, text = orig.args
        # ProxySQL and MaxScale answer in the same form.
        line = str(text).strip().partition("\n")[0]
        return f"{line} ({code})"
    text = str(orig).strip().partition("\n")[0]
    if _sqlite_code(orig) == _SQLITE_CANTOPEN:
        return (
            f"SQLite cannot open the file {place}; set [database] connection, or create the file "
            "with 'cyborg-dbsync upgrade'"
        )
    if _sqlite_code(orig):
        return f"{text}: {place}"
    # libpq: 'connection to server at "db" (192.0.2.1), port 5432 failed: FATAL:  sentence'.
    refusal = re.search(r"(?:FATAL|ERROR):\s+(.*)", text)
    if refusal:
        return refusal[1]
    attempt = re.search(r"connection to server .* failed: (.*)", text)
    return f"{_lower(attempt[1] if attempt else text)} at {place}"


def _lower(text: str) -> str:
    """Return the text with a lower-case first letter, unless it starts with an abbreviation."""
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]
