# SPDX-License-Identifier: Apache-2.0
"""Reader, writer and repetition, on SQLite files."""

import os
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.db import events, faults
from cyborg.db.engine import Database, Reader, Retry, Settings
from cyborg.db.models import METADATA, Host
from cyborg.db.transaction import Transaction
from cyborg.model.caller import Caller
from cyborg.tests.fixtures.waiting import Meeting, result


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """A database with all tables."""
    database = Database(_url(tmp_path))
    with database.writer() as tx:
        METADATA.create_all(tx.connection)
    yield database
    database.close()


def _url(directory: Path) -> str:
    return f"sqlite:///{directory}/cyborg.sqlite"


def _add(tx: Transaction, name: str, at: int = 1) -> None:
    tx.execute(sa.insert(Host).values(name=name, updated_ms=at))


def _broken(db: Database, statement: sa.Executable) -> None:
    with db.writer() as tx:
        tx.execute(statement)
        raise ZeroDivisionError


def _names(db: Reader) -> list[str]:
    with db.reader() as tx:
        return list(tx.scalars(sa.select(Host.name).order_by(Host.id)))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite://", "in-memory"),
        ("sqlite:///:memory:", "in-memory"),
        ("sqlite:///file:x?mode=memory&uri=true", "in-memory"),
        ("oracle://host/name", "dialect oracle, which is not supported"),
        ("nonsense", "not a database URL"),
        ("mysql+nonsense://host/name", "driver mysql\\+nonsense, which cannot be loaded"),
    ],
)
def test_unusable_urls_are_refused(url: str, words: str) -> None:
    with pytest.raises(exception.ConfigError, match=words):
        Database(url)


def test_writer_commits_all_or_nothing(db: Database) -> None:
    with db.writer() as tx:
        _add(tx, "one")
    with pytest.raises(ZeroDivisionError):
        _broken(db, sa.insert(Host).values(name="two", updated_ms=1))
    assert _names(db) == ["one"]


class Clocks:
    """The clock of the database in milliseconds, and that of this machine in seconds."""

    def __init__(self) -> None:
        self.ms = 1_000
        self.seconds = 10.0

    def freeze(self, seconds: float) -> None:
        """Let time pass in which this process does nothing."""
        self.ms += int(seconds * 1000)
        self.seconds += seconds


@pytest.mark.parametrize(("frozen", "committed"), [(0.1, True), (3.9, True), (4.1, False)])
def test_process_frozen_before_commit_does_not_commit_late(
    tmp_path: Path, frozen: float, committed: bool
) -> None:
    clocks = Clocks()
    now = sa.bindparam("moment", type_=sa.BigInteger(), callable_=lambda: clocks.ms)
    db = Database(_url(tmp_path), now=now, seconds=lambda: clocks.seconds)
    with db.writer() as tx:
        METADATA.create_all(tx.connection)
    caller = Caller(None, None, "req-1", expires_ms=5_000)

    def change() -> None:
        with db.writer(caller) as tx:
            _add(tx, "one")
            events.record(tx, [events.Entry("host", "uuid", "made")])
            clocks.freeze(frozen)

    if committed:
        change()
    else:
        with pytest.raises(exception.Unavailable, match="expired before it was processed"):
            change()
    assert _names(db) == (["one"] if committed else [])
    # The next transaction of this thread is not about that request.
    clocks.freeze(60)
    with db.writer() as tx:
        _add(tx, "two")
    assert _names(db)[-1] == "two"
    db.close()


@pytest.mark.parametrize("returning", [True, False])
@pytest.mark.parametrize("before", [True, False])
def test_process_frozen_at_the_history_does_not_commit_late(
    tmp_path: Path, returning: bool, before: bool
) -> None:
    clocks = Clocks()
    now = sa.bindparam("moment", type_=sa.BigInteger(), callable_=lambda: clocks.ms)
    db = Database(_url(tmp_path), now=now, seconds=lambda: clocks.seconds)
    # MySQL has no INSERT ... RETURNING.
    db.engine.dialect.insert_executemany_returning = returning
    with db.writer() as tx:
        METADATA.create_all(tx.connection)

    def freeze(*event: object) -> None:
        if "INTO events" in str(event[2]):
            clocks.freeze(4.1)

    if not before:
        sa.event.listen(db.engine, "after_cursor_execute", freeze)
    caller = Caller(None, None, "req-1", expires_ms=5_000)

    def change() -> None:
        with db.writer(caller) as tx:
            _add(tx, "one")
            if before:
                clocks.freeze(4.1)
            events.record(tx, [events.Entry("host", "uuid", "made")])

    with pytest.raises(exception.Unavailable, match="expired before it was processed"):
        change()
    assert _names(db) == []
    db.close()


def test_ddl_is_rolled_back(db: Database) -> None:
    with pytest.raises(ZeroDivisionError):
        _broken(db, sa.text("CREATE TABLE extra (id INTEGER)"))
    assert not sa.inspect(db.engine).has_table("extra")


def test_reader_cannot_write(db: Database, tmp_path: Path) -> None:
    only_reader = Reader(_url(tmp_path))
    with (
        pytest.raises(sa.exc.OperationalError, match="readonly"),
        only_reader.reader() as tx,
    ):
        _add(tx, "one")
    assert not hasattr(only_reader, "writer")
    assert _names(only_reader) == []
    only_reader.close()


@pytest.mark.parametrize("form", ["sqlite:///{}/a b#c.sqlite", "sqlite:///file:{}/a?uri=true"])
def test_reader_creates_no_file(tmp_path: Path, form: str) -> None:
    only_reader = Reader(form.format(tmp_path))
    refused = r"set \[database\] connection, or create the file"
    with pytest.raises(exception.Unavailable, match=refused), only_reader.reader():
        pass
    assert list(tmp_path.iterdir()) == []
    db = Database(form.format(tmp_path))
    with db.writer() as tx:
        METADATA.create_all(tx.connection)
    assert _names(only_reader) == []
    db.close()
    only_reader.close()


def test_galera_setting_is_not_sent_to_sqlite(tmp_path: Path) -> None:
    db = Database(_url(tmp_path), settings=Settings(mysql_wsrep_sync_wait=1))
    with db.reader() as tx:
        assert tx.scalar(sa.select(sa.literal(1))) == 1
    db.close()


def test_foreign_keys_are_checked(db: Database) -> None:
    with pytest.raises(exception.Conflict, match="refers to"), db.writer() as tx:
        tx.exec_driver_sql("INSERT INTO backends (uuid, driver_id, name, state) VALUES (1,2,3,4)")


def test_duplicates_become_conflicts(db: Database) -> None:
    with db.writer() as tx:
        _add(tx, "one")
    with pytest.raises(exception.Conflict, match="already has the same name"), db.writer() as tx:
        _add(tx, "one")


@pytest.mark.parametrize(("name", "at"), [("one", 2**70), ("\ud800", 1)])
def test_values_that_do_not_fit_are_invalid(db: Database, name: str, at: int) -> None:
    with pytest.raises(exception.Invalid), db.writer() as tx:
        _add(tx, name, at)


def test_programming_errors_are_not_converted(db: Database) -> None:
    with pytest.raises(sa.exc.OperationalError), db.writer() as tx:
        tx.exec_driver_sql("SELECT nothing FROM hosts")


def test_second_transaction_in_a_thread_is_refused(db: Database) -> None:
    with (
        pytest.raises(RuntimeError, match="already has an open transaction"),
        db.writer(),
        db.writer(),
    ):
        pass
    with db.writer() as tx:
        _add(tx, "afterwards")
    assert _names(db) == ["afterwards"]


def test_writers_are_serialised(db: Database) -> None:
    with db.writer() as tx:
        _add(tx, "counter", 0)

    def count(_: int) -> None:
        with db.writer() as tx:
            seen = tx.scalar(sa.select(Host.updated_ms)) or 0
            tx.execute(sa.update(Host).values(updated_ms=seen + 1))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, range(100)))
    with db.reader() as tx:
        assert tx.scalar(sa.select(Host.updated_ms)) == 100


def test_readers_do_not_wait_for_the_writer(db: Database) -> None:
    with db.writer() as tx:
        _add(tx, "unseen")
        with ThreadPoolExecutor(1) as pool:
            assert result(pool.submit(_names, db)) == []


def test_locked_file_is_unavailable(db: Database, tmp_path: Path) -> None:
    impatient = Database(_url(tmp_path), settings=Settings(sqlite_busy_timeout=0.01))
    rival = sqlite3.connect(tmp_path / "cyborg.sqlite", isolation_level=None)
    rival.execute("BEGIN IMMEDIATE")
    pauses: list[float] = []

    def give_way(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            rival.rollback()

    @Retry(sleep=give_way, jitter=lambda _low, high: high)
    def add() -> str:
        with impatient.writer() as tx:
            _add(tx, "patient")
        return "done"

    assert add() == "done"
    assert pauses == [0.05, 0.1]
    assert _names(db) == ["patient"]
    rival.close()
    impatient.close()


def _transient() -> exception.Unavailable:
    fault = exception.Unavailable(peer="The database", reason="Deadlock")
    fault.__cause__ = sa.exc.DBAPIError("", None, Exception(), connection_invalidated=True)
    assert faults.is_transient(fault.__cause__)
    return fault


def test_retries_stop_after_their_attempts() -> None:
    runs: list[int] = []

    @Retry(attempts=3, sleep=lambda seconds: None)
    def never() -> None:
        runs.append(1)
        raise _transient()

    with pytest.raises(exception.Unavailable):
        never()
    assert len(runs) == 3


def test_retries_stop_after_their_time() -> None:
    now = [0.0]
    runs: list[float] = []

    def sleep(seconds: float) -> None:
        now[0] += seconds

    @Retry(attempts=100, seconds=1.0, sleep=sleep, clock=lambda: now[0])
    def never() -> None:
        runs.append(now[0])
        raise _transient()

    with pytest.raises(exception.Unavailable):
        never()
    assert 2 < len(runs) < 10
    assert now[0] <= 1.0


@pytest.mark.parametrize(
    "fault", [exception.Conflict(reason="taken"), exception.Unavailable(peer="A", reason="b")]
)
def test_permanent_errors_are_not_retried(fault: exception.CyborgError) -> None:
    runs: list[int] = []

    @Retry(sleep=lambda seconds: None)
    def fail() -> None:
        runs.append(1)
        raise fault

    with pytest.raises(type(fault)):
        fail()
    assert runs == [1]


def test_open_transaction_is_not_retried(db: Database) -> None:
    runs: list[int] = []

    @Retry(sleep=lambda seconds: None)
    def inner() -> None:
        runs.append(1)
        raise _transient()

    with pytest.raises(exception.Unavailable), db.writer():
        inner()
    assert runs == [1]


class _Refusal(Exception):
    """What a driver raises: pymysql with a number first, psycopg2 with a code."""

    def __init__(self, number: int, pgcode: str | None = None) -> None:
        super().__init__(number, "words")
        self.pgcode = pgcode


@pytest.mark.parametrize(
    ("statement", "refusal", "helps"),
    [
        ("UPDATE hosts", _Refusal(1053), True),
        ("UPDATE hosts", _Refusal(1290), True),
        ("UPDATE hosts", _Refusal(0, "40001"), True),
        ("UPDATE hosts", _Refusal(0, "55P03"), True),
        (None, _Refusal(1040), True),
        ("UPDATE hosts", _Refusal(1054), False),
        ("UPDATE hosts", _Refusal(0, "42703"), False),
    ],
    ids=[
        "server-ends",
        "read-only-for-now",
        "serialisation",
        "lock-not-had",
        "while-connecting",
        "no-such-column-mysql",
        "no-such-column-postgresql",
    ],
)
def test_transient_errors_are_recognised(
    statement: str | None, refusal: _Refusal, helps: bool
) -> None:
    assert faults.is_transient(sa.exc.OperationalError(statement, None, refusal)) is helps


def test_threads_share_one_engine(tmp_path: Path) -> None:
    db = Database(_url(tmp_path))
    start = Meeting(8)

    def engine(_: int) -> sa.Engine:
        start.meet()
        return db.engine

    with ThreadPoolExecutor(8) as pool:
        assert len(set(map(id, pool.map(engine, range(8))))) == 1


def test_forked_child_creates_its_own_engine(db: Database) -> None:
    parents = db.engine
    with db.writer() as tx:
        _add(tx, "parent")
    child = os.fork()
    if child == 0:
        # Nothing of pytest may run here: the exit status is the verdict.
        status = 1
        try:
            with db.writer() as tx:
                _add(tx, "child")
            status = 0 if db.engine is not parents else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert _names(db) == ["parent", "child"]
    assert db.engine is parents


def test_fork_during_a_write_leaves_child_usable(db: Database) -> None:
    with ThreadPoolExecutor(1) as pool, db.writer():
        assert result(pool.submit(_forked_read, db)) == 0


def _forked_read(db: Database) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = len(_names(db))
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_wait_ends_when_database_is_up(tmp_path: Path) -> None:
    directory = tmp_path / "later"
    db = Database(_url(directory))
    with pytest.raises(exception.Unavailable):
        db.wait(0, 5.0)
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        directory.mkdir()

    db.wait(3, 5.0, sleep)
    assert pauses == [5.0]
