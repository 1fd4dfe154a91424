# SPDX-License-Identifier: Apache-2.0
"""What only a database server does: deadlocks, killed connections, sessions."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from oslo_db import exception as db_exc

from cyborg import exception
from cyborg.db import revisions, schema
from cyborg.db.engine import Database, Reader, Retry, retried
from cyborg.db.models import Host
from cyborg.db.transaction import Transaction
from cyborg.tests.fixtures.proxy import Proxy
from cyborg.tests.fixtures.waiting import Meeting, result


def _add(db: Database, *names: str) -> None:
    with db.writer() as tx:
        tx.execute(sa.insert(Host), [{"name": name, "updated_ms": 1} for name in names])


def test_deadlock_is_retried(current: Database) -> None:
    _add(current, "a", "b")
    meeting = Meeting(2)
    runs: list[str] = []

    @retried
    def touch(first: str, second: str) -> None:
        runs.append(first)
        with current.writer() as tx:
            for name in (first, second):
                tx.execute(
                    sa.update(Host).where(Host.name == name).values(generation=Host.generation + 1)
                )
                if name == first and runs.count(first) == 1:
                    meeting.meet()

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.submit(touch, "a", "b"), pool.submit(touch, "b", "a")
        result(one)
        result(other)
    assert len(runs) == 3
    with current.reader() as tx:
        assert list(tx.scalars(sa.select(Host.generation))) == [2, 2]


def test_locks_of_a_frozen_process_expire(current: Database) -> None:
    questions = {
        "postgresql": "SHOW idle_in_transaction_session_timeout",
        "mysql": "SELECT @@idle_transaction_timeout",
    }
    with current.reader() as tx:
        answer = tx.exec_driver_sql(questions[current.engine.dialect.name]).scalar_one()
    assert str(answer).rstrip("s") == "10"


def test_killed_connection_is_replaced(current: Database) -> None:
    _add(current, "a")
    runs: list[int] = []

    @retried
    def touch() -> None:
        with current.writer() as tx:
            runs.append(_session(tx))
            if len(runs) == 1:
                _kill(current, runs[0])
            tx.execute(sa.update(Host).values(generation=7))

    touch()
    assert len(set(runs)) == 2
    with pytest.raises(exception.Unavailable):
        _touch_once(current)
    with current.reader() as tx:
        assert tx.scalar(sa.select(Host.generation)) == 7


def test_lock_timeout_is_retried(current: Database) -> None:
    _add(current, "a")
    is_mysql = current.engine.dialect.name == "mysql"
    rival = current.engine.connect()
    rival.execute(sa.update(Host).values(generation=7))
    pauses: list[float] = []

    def let_go(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 1:
            rival.commit()

    @Retry(sleep=let_go)
    def touch() -> None:
        with current.writer() as tx:
            words = "SET innodb_lock_wait_timeout = 1" if is_mysql else "SET lock_timeout = 200"
            tx.exec_driver_sql(words)
            tx.execute(sa.update(Host).values(generation=Host.generation + 1))

    try:
        touch()
    finally:
        rival.close()
    assert len(pauses) == 1
    with current.reader() as tx:
        assert tx.scalar(sa.select(Host.generation)) == 8


def test_server_restart_within_retry_budget_is_no_error(current: Database) -> None:
    _add(current, "a")
    url = current.engine.url
    with Proxy(url.host or "127.0.0.1", url.port or 0) as proxy:
        there = url.set(host="127.0.0.1", port=proxy.port)
        db = Database(there.render_as_string(hide_password=False))
        with db.reader():
            pass
        proxy.cut()
        pauses: list[float] = []

        def come_back(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 2:
                proxy.heal()

        @Retry(sleep=come_back)
        def touch() -> None:
            with db.writer() as tx:
                tx.execute(sa.update(Host).values(generation=7))

        touch()
        # First the connection that was there is found broken, then there is none to be had.
        assert len(pauses) == 2
        db.close()
    with current.reader() as tx:
        assert tx.scalar(sa.select(Host.generation)) == 7


def _touch_once(db: Database) -> None:
    with db.writer() as tx:
        _kill(db, _session(tx))
        tx.execute(sa.update(Host).values(generation=8))


def _session(tx: Transaction) -> int:
    is_mysql = tx.dialect.name == "mysql"
    words = "SELECT connection_id()" if is_mysql else "SELECT pg_backend_pid()"
    return int(tx.exec_driver_sql(words).scalar_one())


def _kill(db: Database, session: int) -> None:
    is_mysql = db.engine.dialect.name == "mysql"
    words = f"KILL {session}" if is_mysql else f"SELECT pg_terminate_backend({session}, 10000)"
    with db.reader() as tx:
        tx.exec_driver_sql(words)


def test_sessions_read_committed_rows(current: Database) -> None:
    _add(current, "a")
    with current.reader() as tx:
        assert tx.scalar(sa.select(sa.func.count()).select_from(Host)) == 1
        _add(current, "b")
        assert tx.scalar(sa.select(sa.func.count()).select_from(Host)) == 2


def test_a_reader_cannot_write(current: Database) -> None:
    reader = Reader(current.engine.url.render_as_string(hide_password=False))
    for _ in range(2):
        with (
            pytest.raises((sa.exc.SQLAlchemyError, db_exc.DBError), match=r"(?i)read.only"),
            reader.reader() as tx,
        ):
            tx.execute(sa.insert(Host).values(name="a", updated_ms=1))
    reader.close()


def test_forked_child_leaves_connections_of_parent(current: Database) -> None:
    _add(current, "a")
    with current.reader() as tx:
        before = _session(tx)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with current.reader() as tx:
                status = 2 if _session(tx) == before else 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with current.reader() as tx:
        assert _session(tx) == before


def test_concurrent_upgrades(existing: Database) -> None:
    other = Database(existing.engine.url.render_as_string(hide_password=False))
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(schema.upgrade, one) for one in (existing, other)]:
            result(done)
    assert revisions.version(other) == revisions.HEAD
    other.close()


def test_too_large_values_are_invalid(current: Database) -> None:
    for name in ("x" * 256, "\ud800"):
        with pytest.raises(exception.Invalid):
            _add(current, name)
    with pytest.raises(exception.Invalid), current.writer() as tx:
        tx.execute(sa.insert(Host).values(name="a", updated_ms=2**63))
