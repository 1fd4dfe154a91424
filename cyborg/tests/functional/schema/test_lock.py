# SPDX-License-Identifier: Apache-2.0
"""Upgrades at the same time, on servers that refuse locks of their own, after a dead upgrade."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa
from oslo_db import exception as db_exc

from cyborg import exception
from cyborg.db import revisions, schema
from cyborg.db.engine import Database
from cyborg.db.schema_lock import LOCK, Rules, SchemaLock
from cyborg.tests.fixtures.proxy import Proxy, mysql_error
from cyborg.tests.fixtures.waiting import PATIENCE, eventually, happened, result
from cyborg.tests.functional.schema.commands import run
from cyborg.tests.functional.schema.databases import SERVER

#: The answers to GET_LOCK of Percona XtraDB Cluster, and of MariaDB Galera 10.6.13 and 10.11.3.
REFUSALS: Final = {
    "percona": mysql_error(
        1105,
        b"HY000",
        b"Percona-XtraDB-Cluster prohibits use of GET_LOCK with pxc_strict_mode = ENFORCING",
    ),
    "mariadb": mysql_error(
        1235,
        b"42000",
        b"This version of MariaDB doesn't yet support 'GET_LOCK in cluster (WSREP_ON=ON)'",
    ),
}
#: The heartbeats of the tests, in seconds. No owner that lives counts as dead.
FAST: Final = Rules(heartbeat=0.1, stale=PATIENCE, look=0.05, report=0.2)


@contextmanager
def _through(db: Database, proxy: Proxy) -> Iterator[Database]:
    url = db.engine.url.set(host="127.0.0.1", port=proxy.port)
    with closing(Database(url.render_as_string(hide_password=False))) as there:
        yield there


@contextmanager
def _proxy(db: Database) -> Iterator[Proxy]:
    url = db.engine.url
    with Proxy(url.host or "127.0.0.1", url.port or 0) as proxy:
        yield proxy


@contextmanager
def _second(db: Database) -> Iterator[Database]:
    with closing(Database(db.engine.url.render_as_string(hide_password=False))) as second:
        yield second


def _owner(db: Database) -> str | None:
    with db.reader() as tx:
        owner: str | None = tx.scalar(sa.select(LOCK.c.owner))
        return owner


if SERVER.startswith("mysql"):

    @pytest.mark.parametrize("server", REFUSALS)
    def test_upgrade_needs_no_lock_of_the_server(
        empty: Database, tmp_path: Path, server: str
    ) -> None:
        with _proxy(empty) as proxy, _through(empty, proxy) as there:
            proxy.refuse(REFUSALS[server], b"GET_LOCK")
            with there.reader() as tx, pytest.raises((sa.exc.DBAPIError, db_exc.DBError)):
                tx.exec_driver_sql("SELECT GET_LOCK('cyborg', 1)")
            status, _, err = run(there, tmp_path, "dbsync", "upgrade")
            assert (status, proxy.refusals) == (0, 1), err
        assert revisions.version(empty) == revisions.HEAD

    def test_refused_statement_is_reported_in_one_line(empty: Database, tmp_path: Path) -> None:
        with _proxy(empty) as proxy, _through(empty, proxy) as there:
            denied = b"CREATE command denied to user 'cyborg'@'control-1' for table 'devices'"
            proxy.refuse(mysql_error(1142, b"42000", denied), b"CREATE TABLE devices")
            status, out, err = run(there, tmp_path, "dbsync", "upgrade")
        assert (status, out) == (1, "")
        assert "Traceback" not in err
        *_, line = err.strip().splitlines()
        assert line.startswith("cyborg-dbsync: The database refused a change of the schema: CREATE")
        assert line.endswith("then run the command again: it completes what is missing.")
        assert _owner(empty) is None
        schema.upgrade(empty, schema.EXISTING)
        assert revisions.version(empty) == schema.EXISTING

    @pytest.mark.parametrize(
        ("code", "state", "text"),
        [
            (1684, b"HY000", b"Table was skipped since its definition is being modified"),
            (1213, b"40001", b"Deadlock: wsrep aborted transaction"),
            (1205, b"HY000", b"Lock wait timeout exceeded; try restarting transaction"),
            (1050, b"42S01", b"Table 'devices' already exists"),
        ],
    )
    def test_change_is_repeated_after_a_rival(
        empty: Database, code: int, state: bytes, text: bytes
    ) -> None:
        with _proxy(empty) as proxy, _through(empty, proxy) as there:
            proxy.refuse(mysql_error(code, state, text), b"CREATE TABLE devices")
            with ThreadPoolExecutor(1) as pool:
                done = pool.submit(schema.upgrade, there, schema.EXISTING)
                eventually(lambda: proxy.refusals, "the refusal")
                proxy.heal()
                result(done)
        assert revisions.version(empty) == schema.EXISTING


def _upgrade(db: Database, rules: Rules, begin: threading.Event, delay: float) -> None:
    happened(begin)
    threading.Event().wait(delay)
    schema.upgrade(db, schema.EXISTING, rules=rules)


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.5])
def test_two_upgrades_take_turns(empty: Database, delay: float) -> None:
    begin = threading.Event()
    with _second(empty) as second, ThreadPoolExecutor(2) as pool:
        ends: list[Future[None]] = [
            pool.submit(_upgrade, db, FAST, begin, wait)
            for db, wait in ((empty, 0.0), (second, delay))
        ]
        begin.set()
        for end in ends:
            result(end)
    assert revisions.version(empty) == schema.EXISTING
    assert _owner(empty) is None


def _rules(said: list[str], stale: float) -> Rules:
    return Rules(heartbeat=0.1, stale=stale, look=0.05, report=0.2, progress=said.append)


def test_waiting_upgrade_reports_the_owner_until_it_ends(current: Database) -> None:
    schema.stamp(current, revisions.HEAD)
    said: list[str] = []
    stale = 10.0
    with _second(current) as second, ThreadPoolExecutor(1) as pool:
        with SchemaLock(second, FAST):
            owner = _owner(current)
            done = pool.submit(schema.upgrade, current, rules=_rules(said, stale))
            # Longer than a dead owner keeps the lock.
            eventually(lambda: len(said) > stale / 0.2 + 3, "reports of the progress")
            assert not done.done()
            assert _owner(current) == owner
        result(done)
    assert all(f"({owner})" in sentence for sentence in said)


def test_place_of_a_dead_owner_is_taken(current: Database) -> None:
    schema.stamp(current, revisions.HEAD)
    with current.writer() as tx:
        tx.execute(sa.update(LOCK).values(owner="control-1", heartbeat_ms=current.now))
    said: list[str] = []
    schema.upgrade(current, rules=_rules(said, 1.0))
    assert "(control-1)" in said[0]
    assert said[-1].startswith("The process that changed the schema (control-1) has sent no heart")
    assert _owner(current) is None


def test_owner_that_was_suspended_notices_its_loss(current: Database) -> None:
    schema.stamp(current, revisions.HEAD)
    with SchemaLock(current, FAST) as lock:
        with current.writer() as tx:
            tx.execute(sa.update(LOCK).values(owner="control-2"))
        with (
            current.engine.connect() as connection,
            pytest.raises(exception.SchemaError, match="Another process has taken the lock"),
        ):
            lock.confirm(connection)
    # It leaves the lock to its new owner.
    assert _owner(current) == "control-2"


def test_heartbeats_continue_after_an_outage(
    current: Database, caplog: pytest.LogCaptureFixture
) -> None:
    schema.stamp(current, revisions.HEAD)

    def heartbeat() -> int:
        with current.reader() as tx:
            return int(tx.execute(sa.select(LOCK.c.heartbeat_ms)).scalar_one())

    def later_than(before: int) -> Callable[[], bool]:
        return lambda: heartbeat() > before

    with _proxy(current) as proxy, _through(current, proxy) as there, SchemaLock(there, FAST):
        eventually(later_than(heartbeat()), "a heartbeat")
        proxy.cut()
        eventually(lambda: "heartbeat of the lock of the schema failed" in caplog.text)
        proxy.heal()
        eventually(later_than(heartbeat()), "a heartbeat after the outage")
