# SPDX-License-Identifier: Apache-2.0
"""The reasons of database errors: the driver's words, without passwords and statements."""

import sqlite3
from pathlib import Path
from typing import Any

import psycopg2
import pymysql
import pytest
import sqlalchemy as sa
from oslo_db import exception as db_exc

from cyborg import exception
from cyborg.db import faults
from cyborg.db.engine import Database
from cyborg.db.models import METADATA, Host

PLACE = "db.example.org:3306"


def mysql(code: int, text: str, system: OSError | None = None) -> pymysql.err.OperationalError:
    error = pymysql.err.OperationalError(code, text)
    if system is not None:
        error.original_exception = system
    return error


def connecting(orig: Exception) -> sa.exc.OperationalError:
    """The error as SQLAlchemy raises it while a connection is made: without a statement."""
    return sa.exc.OperationalError(None, None, orig)


REFUSED = OSError(111, "Connection refused")
_LIBPQ = 'connection to server at "db.example.org" (192.0.2.1), port 5432 failed: '


@pytest.mark.parametrize(
    ("orig", "words"),
    [
        (
            mysql(1045, "Access denied for user 'cyborg'@'host' (using password: YES)"),
            "Access denied for user 'cyborg'@'host' (using password: YES) (1045)",
        ),
        (mysql(1049, "Unknown database 'x'"), "Unknown database 'x' (1049)"),
        (mysql(1040, "Too many connections"), "Too many connections (1040)"),
        (
            mysql(2003, "Can't connect to MySQL server on 'db.example.org'", REFUSED),
            f"connection refused at {PLACE}",
        ),
        (
            mysql(2003, "Can't connect", OSError(-2, "Name or service not known")),
            f"name or service not known at {PLACE}",
        ),
        (mysql(2003, "Can't connect", TimeoutError("timed out")), f"timed out at {PLACE}"),
        (
            mysql(2013, "Lost connection to MySQL server during query"),
            "Lost connection to MySQL server during query (2013)",
        ),
        (
            psycopg2.OperationalError(
                f'{_LIBPQ}FATAL:  password authentication failed for user "cyborg"\n'
                f'{_LIBPQ}FATAL:  password authentication failed for user "cyborg"\n'
            ),
            'password authentication failed for user "cyborg"',
        ),
        (
            psycopg2.OperationalError(f'{_LIBPQ}FATAL:  database "x" does not exist\n'),
            'database "x" does not exist',
        ),
        (
            psycopg2.OperationalError(f"{_LIBPQ}FATAL:  sorry, too many clients already\n"),
            "sorry, too many clients already",
        ),
        (
            psycopg2.OperationalError(f"{_LIBPQ}Connection refused\n\tIs the server running?\n"),
            f"connection refused at {PLACE}",
        ),
        (
            psycopg2.OperationalError("SSL connection has been closed unexpectedly\n"),
            f"SSL connection has been closed unexpectedly at {PLACE}",
        ),
    ],
)
def test_reason_of_a_server_is_in_the_words_of_its_driver(orig: Exception, words: str) -> None:
    error = connecting(orig)
    assert faults.reason(error, PLACE) == words
    with pytest.raises(exception.Unavailable) as raised, faults.connecting(PLACE):
        raise db_exc.DBConnectionError(error)
    assert str(raised.value) == f"The database is not available: {words}"


def test_callers_of_the_api_read_no_reason() -> None:
    with pytest.raises(exception.Unavailable) as raised, faults.connecting(PLACE):
        raise connecting(mysql(1045, "Access denied for user 'cyborg'@'host'"))
    assert raised.value.public == faults.PUBLIC
    for detail in ("cyborg", "host", "1045", PLACE):
        assert detail not in raised.value.public
    # Over the bus an error is its class and its fields.
    assert type(raised.value)(**raised.value.fields).public == faults.PUBLIC


def test_statement_and_values_are_left_out_of_the_reason() -> None:
    orig = mysql(1213, "Deadlock found when trying to get lock; try restarting transaction")
    error = sa.exc.OperationalError("UPDATE t SET a = %s", {"a": "secret"}, orig)
    words = faults.reason(db_exc.DBDeadlock(error), PLACE)
    assert words == "Deadlock found when trying to get lock; try restarting transaction (1213)"


def test_an_exhausted_pool_is_named_without_the_link() -> None:
    text = "QueuePool limit of size 1 overflow 0 reached, connection timed out, timeout 1.00"
    error = sa.exc.TimeoutError(f"{text} (Background on this error at: https://sqlalche.me/e/3o7r)")
    assert faults.reason(error, PLACE) == text


@pytest.mark.parametrize(
    "orig",
    [
        mysql(1021, "Disk full (/tmp); waiting for someone to free some space"),
        mysql(1114, "The table 'events' is full"),
        mysql(1030, 'Got error 28 "No space left on device" from storage engine InnoDB'),
    ],
)
def test_a_full_disk_of_a_server_makes_it_unavailable_and_is_not_retried(orig: Exception) -> None:
    error = sa.exc.OperationalError("INSERT INTO events VALUES (%s)", {"a": "secret"}, orig)
    with pytest.raises(exception.Unavailable) as raised, faults.translated(PLACE):
        raise error
    assert str(orig.args[1]) in str(raised.value)
    assert "secret" not in str(raised.value)
    assert not faults.is_transient(error)


def _with_tables(tmp_path: Path) -> Path:
    path = tmp_path / "cyborg.sqlite"
    db = Database(f"sqlite:///{path}")
    with db.writer() as tx:
        METADATA.create_all(tx.connection)
    db.close()
    return path


def test_a_full_sqlite_file_makes_the_database_unavailable(tmp_path: Path) -> None:
    path = _with_tables(tmp_path)
    db = Database(f"sqlite:///{path}")

    def limit(dbapi: sqlite3.Connection, _record: Any) -> None:
        dbapi.execute("PRAGMA max_page_count = 1")

    sa.event.listen(db.engine, "connect", limit)
    rows = [{"name": f"{number:>200}", "updated_ms": 1} for number in range(1000)]
    with pytest.raises(exception.Unavailable) as raised, db.writer() as tx:
        tx.execute(sa.insert(Host), rows)
    assert str(raised.value).endswith(f"database or disk is full: {path}")
    db.close()


def test_a_sqlite_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = _with_tables(tmp_path)
    db = Database(f"sqlite:///file:{path}?mode=ro&uri=true")
    with pytest.raises(exception.Unavailable) as raised, db.writer() as tx:
        tx.execute(sa.insert(Host).values(name="one", updated_ms=1))
    assert "attempt to write a readonly database" in str(raised.value)
    assert str(path) in str(raised.value)
    db.close()


def test_a_file_that_is_not_a_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cyborg.sqlite"
    path.write_text("not a database, but long enough to be read as a page" * 100)
    db = Database(f"sqlite:///{path}")
    with pytest.raises(exception.Unavailable) as raised, db.reader():
        pass
    assert str(raised.value).endswith(f"file is not a database: {path}")
