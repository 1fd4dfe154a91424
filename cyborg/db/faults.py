# SPDX-License-Identifier: Apache-2.0
"""The door at which the database's errors become ours; no other floor sees an SQL error."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from oslo_db import exception as db_exc

from cyborg import exception

_TRANSIENT = (db_exc.DBDeadlock, db_exc.DBConnectionError, db_exc.DBConsistencyError)
# PostgreSQL: serialization_failure and lock_not_available. SQLite: SQLITE_BUSY, low byte.
_TRANSIENT_SQLSTATES = frozenset({"40001", "55P03"})
_SQLITE_BUSY = 5
_SQLITE_READONLY = 8
_SQLITE_CANTOPEN = 14
# MySQL and MariaDB: the server is about to end, or only reads for now, as in a failover.
_TRANSIENT_MYSQL = frozenset({1053, 1290})
# The database has no room or cannot read or write its files; a repetition does not help at once.
# SQLite: IOERR, FULL, CANTOPEN. MySQL: disk full, error of the storage engine, table full.
_SQLITE_BROKEN = frozenset({10, 13, _SQLITE_CANTOPEN})
_MYSQL_BROKEN = frozenset({1021, 1030, 1114})
# PostgreSQL: insufficient resources, and system errors.
_POSTGRESQL_BROKEN = ("53", "58")
#: What callers of the API read; host names and accounts are for the log, and for operators.
PUBLIC = "The database is not available. Repeating the request later is safe."


#: Why a request is refused for which nobody waits any more.
EXPIRED = "the request expired before it was processed; nothing was changed"


def is_transient(error: BaseException | None) -> bool:
    """Whether the same transaction may succeed if it is simply begun again."""
    if isinstance(error, _TRANSIENT):
        return True
    if isinstance(error, db_exc.DBError):
        error = error.inner_exception
    if not isinstance(error, sa.exc.DBAPIError):
        return False
    if isinstance(error, sa.exc.OperationalError) and error.statement is None:
        # It broke while connecting, or at the end; only some of these have names of their own.
        return True
    return (
        error.connection_invalidated
        or _mysql_code(error.orig) in _TRANSIENT_MYSQL
        or getattr(error.orig, "pgcode", None) in _TRANSIENT_SQLSTATES
        or _sqlite_code(error.orig) == _SQLITE_BUSY
    )


def _sqlite_code(error: object) -> int:
    """The primary code of an error of SQLite; 0 for all other errors."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _mysql_code(error: object) -> object:
    arguments = getattr(error, "args", ())
    return arguments[0] if arguments else None


@contextmanager
def translated(place: str, *, writes: bool = False) -> Iterator[None]:
    """Raise our own errors for what the database refuses.

    ``place`` is where the database is (host:port or file), for the reason. ``writes``: the
    connection may write, so a refused write is a fault of the database's files.

    A duplicate or a broken reference becomes Conflict, a value that the database cannot hold
    Invalid, a lost connection or a deadlock Unavailable (with the original as its cause, from
    which ``is_transient`` tells that repeating helps), and so does a request that has expired (see
    ``events.record``). Anything else passes as it is: it is a fault of ours.
    """
    try:
        yield
    except db_exc.DBDuplicateEntry as error:
        columns = ", ".join(error.columns) or "key"
        raise exception.Conflict(reason=f"Another row has the same {columns} already.") from error
    except db_exc.DBReferenceError as error:
        raise exception.Conflict(
            reason="Something that this refers to has just gone, or is still referred to."
        ) from error
    except db_exc.DBInvalidUnicodeParameter as error:
        raise _unfit() from error
    except (db_exc.DBError, sa.exc.SQLAlchemyError) as error:
        no_connection = is_transient(error) or isinstance(error, sa.exc.TimeoutError)
        if no_connection or _is_broken(error, writes):
            raise _away(error, place) from error
        if _is_too_late(error):
            raise exception.Unavailable(peer="The conductor", reason=EXPIRED) from error
        if _is_data_error(error):
            raise _unfit() from error
        raise


@contextmanager
def connecting(place: str) -> Iterator[None]:
    """Raise Unavailable for every error while a connection to ``place`` is made."""
    try:
        yield
    except db_exc.DBInvalidUnicodeParameter as error:
        raise _unfit() from error
    except (db_exc.DBError, sa.exc.DBAPIError) as error:
        raise _away(error, place) from error


def _unfit() -> exception.Invalid:
    return exception.Invalid(
        field="request",
        reason="a value is too long, out of range, or text that the database cannot hold",
    )


def _is_too_late(error: Exception) -> bool:
    """Whether an entry of the history was refused because there is no moment for it."""
    inner = error.inner_exception if isinstance(error, db_exc.DBError) else error
    return isinstance(inner, sa.exc.IntegrityError) and "at_ms" in str(inner.orig)


def _is_data_error(error: Exception) -> bool:
    # Drivers raise plain Python errors for what they cannot send: psycopg2 ValueError for a NUL in
    # a string, sqlite3 OverflowError for an integer beyond 64 bits.
    if isinstance(error, db_exc.DBDataError):
        return True
    inner = error.inner_exception if isinstance(error, db_exc.DBError) else error
    return isinstance(inner, sa.exc.DataError | ValueError | OverflowError)


def _is_broken(error: Exception, writes: bool) -> bool:
    """Whether the database answers and cannot work: no room, or files that it cannot write."""
    inner = error.inner_exception if isinstance(error, db_exc.DBError) else error
    if not isinstance(inner, sa.exc.DBAPIError):
        return False
    code = _sqlite_code(inner.orig)
    return (
        (writes and code == _SQLITE_READONLY)
        or code in _SQLITE_BROKEN
        or _mysql_code(inner.orig) in _MYSQL_BROKEN
        or str(getattr(inner.orig, "pgcode", None)).startswith(_POSTGRESQL_BROKEN)
    )


def _away(error: Exception, place: str) -> exception.Unavailable:
    return exception.Unavailable(peer="The database", reason=reason(error, place), public=PUBLIC)


def reason(error: Exception, place: str) -> str:
    """Why the database cannot be used, in the words of its driver, for logs and operators.

    The words name host, account and database. They contain no password, no statement and no
    values: only the driver's own error is read, and of errors with a statement only those that
    ``is_transient`` and ``_is_broken`` name get here.
    """
    inner = error.inner_exception if isinstance(error, db_exc.DBError) else error
    orig = getattr(inner, "orig", None)
    if orig is None:
        # The pool of connections: SQLAlchemy appends a link to its manual.
        return str(inner).partition(" (Background on")[0] or type(error).__name__
    system = getattr(orig, "original_exception", None)
    if isinstance(system, OSError):
        return f"{_lower(system.strerror or str(system))} at {place}"
    if len(orig.args) == 2 and isinstance(orig.args[0], int):
        code, text = orig.args
        # ProxySQL and MaxScale answer in the same form.
        return f"{_first_line(text)} ({code})"
    text = _first_line(orig)
    if _sqlite_code(orig) == _SQLITE_CANTOPEN:
        return (
            f"SQLite cannot open the file {place}; set [database] connection, or make the file "
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


def _first_line(text: object) -> str:
    return str(text).strip().partition("\n")[0]


def _lower(text: str) -> str:
    """The text without a capital at its start, unless its first word is an abbreviation."""
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]
