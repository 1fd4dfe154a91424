# SPDX-License-Identifier: Apache-2.0
"""The door at which the database's errors become ours; no other floor sees an SQL error."""

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from oslo_db import exception as db_exc

from cyborg import exception

_TRANSIENT = (db_exc.DBDeadlock, db_exc.DBConnectionError, db_exc.DBConsistencyError)
# PostgreSQL: serialization_failure and lock_not_available. SQLite: SQLITE_BUSY, low byte.
_TRANSIENT_SQLSTATES = frozenset({"40001", "55P03"})
_SQLITE_BUSY = 5
_SQLITE_CANTOPEN = 14
# MySQL and MariaDB: the server is about to end, or only reads for now, as in a failover.
_TRANSIENT_MYSQL = frozenset({1053, 1290})


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
        or getattr(error.orig, "sqlite_errorcode", 0) & 0xFF == _SQLITE_BUSY
    )


def _mysql_code(error: object) -> object:
    arguments = getattr(error, "args", ())
    return arguments[0] if arguments else None


@contextmanager
def translated() -> Iterator[None]:
    """Raise our own errors for what the database refuses.

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
        if is_transient(error) or isinstance(error, sa.exc.TimeoutError):
            raise exception.Unavailable(peer="The database", reason=_kind(error)) from error
        if _is_too_late(error):
            raise exception.Unavailable(
                peer="The conductor", reason="it came to this request when nobody waited any more"
            ) from error
        if _is_data_error(error):
            raise _unfit() from error
        raise


@contextmanager
def connecting() -> Iterator[None]:
    """Whatever goes wrong while a connection is made means that the database is not there."""
    try:
        yield
    except db_exc.DBInvalidUnicodeParameter as error:
        raise _unfit() from error
    except (db_exc.DBError, sa.exc.DBAPIError) as error:
        raise exception.Unavailable(peer="The database", reason=_hindrance(error)) from error


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


def _hindrance(error: Exception) -> str:
    """Why there is no connection."""
    inner = error.inner_exception if isinstance(error, db_exc.DBError) else error
    if getattr(getattr(inner, "orig", None), "sqlite_errorcode", 0) & 0xFF == _SQLITE_CANTOPEN:
        return (
            "there is no file of SQLite that it could open; set [database] connection, or make it "
            "with 'cyborg-dbsync upgrade'"
        )
    return _kind(error)


def _kind(error: BaseException) -> str:
    # The text of an SQL error names hosts, users and statements: it belongs into the log only.
    return type(error).__name__
