# SPDX-License-Identifier: Apache-2.0
"""What follows a commit: published hosts, their agents, and the runner; on SQLite files."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.db import hosts, work
from cyborg.db.engine import Database, Retry
from cyborg.db.models import METADATA, Host
from cyborg.db.transaction import AfterCommit, Transaction
from cyborg.model.work import WorkKind


@dataclass
class Site:
    """Two hosts, of which the second has no agent; ``sent`` is what follows the commits."""

    db: Database
    ids: list[int] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    #: Whether a transaction was open when something was sent.
    open: set[bool] = field(default_factory=set)

    def __post_init__(self) -> None:
        with self.db.writer() as tx:
            METADATA.create_all(tx.connection)
            for name, agent in (("node-1", "agent-1"), ("node-2", None)):
                values = {"name": name, "service_host": agent, "updated_ms": 1}
                result = tx.execute(sa.insert(Host).values(**values))
                self.ids.append((result.inserted_primary_key or (0,))[0])
        self.db.after_commit = AfterCommit(
            notify_agent=self._send, wake_runner=lambda: self._send("runner")
        )

    def _send(self, receiver: str) -> None:
        try:
            # One thread has one transaction at a time.
            with self.db.writer():
                self.open.add(False)
        except RuntimeError:
            self.open.add(True)
        self.sent.append(receiver)

    def generations(self) -> list[int]:
        with self.db.reader() as tx:
            return list(tx.scalars(sa.select(Host.desired_generation).order_by(Host.id)))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(Database(f"sqlite:///{tmp_path}/cyborg.sqlite"))
    yield made
    made.db.close()


def _add_work(tx: Transaction) -> None:
    work.add(tx, [{"kind": WorkKind.NOTIFY, "instance_uuid": "instance"}])


def _fail(site: Site) -> None:
    with site.db.writer() as tx:
        tx.publish(site.ids[0], "agent-1")
        _add_work(tx)
        raise ZeroDivisionError


def test_publishing_twice_is_one_generation_and_one_message(site: Site) -> None:
    with site.db.writer() as tx:
        tx.publish(site.ids[0], "agent-1")
        tx.publish(site.ids[0])
        assert site.sent == []
    assert site.generations() == [2, 1]
    assert site.sent == ["agent-1"]
    assert site.open == {False}


def test_agent_of_a_published_host_is_read_if_the_caller_does_not_know_it(site: Site) -> None:
    with site.db.writer() as tx:
        for host_id in site.ids:
            tx.publish(host_id)
    assert site.generations() == [2, 2]
    assert site.sent == ["agent-1"]


def test_process_that_sends_nothing_publishes_with_one_statement(site: Site) -> None:
    site.db.after_commit = None
    statements: list[str] = []
    sa.event.listen(
        site.db.engine, "before_cursor_execute", lambda *args: statements.append(args[2])
    )
    with site.db.writer() as tx:
        tx.publish(site.ids[0])
    assert len([text for text in statements if text != "BEGIN IMMEDIATE"]) == 1
    assert site.generations() == [2, 1]


def test_generation_that_the_answer_tells_is_raised_once_and_sent_to_nobody(site: Site) -> None:
    with site.db.writer() as tx:
        host = hosts.rename(tx, "agent-1", site.ids[0], "node-3")
        hosts.set_unchecked(tx, site.ids[0], unchecked=True)
    assert host.desired_generation == 2
    assert site.generations() == [2, 1]
    assert site.sent == []


def test_work_that_is_added_wakes_the_worker_once(site: Site) -> None:
    with site.db.writer() as tx:
        _add_work(tx)
        _add_work(tx)
        assert site.sent == []
    assert site.sent == ["runner"]
    assert site.open == {False}


def test_transaction_without_work_wakes_nobody(site: Site) -> None:
    with site.db.writer() as tx:
        work.add(tx, [])
    assert site.sent == []


def test_rolled_back_transaction_sends_nothing(site: Site) -> None:
    with pytest.raises(ZeroDivisionError):
        _fail(site)
    assert site.generations() == [1, 1]
    assert site.sent == []


def test_repeated_transaction_sends_what_its_last_run_has_committed(site: Site) -> None:
    runs: list[int] = []

    @Retry(sleep=lambda _seconds: None)
    def use_case() -> None:
        runs.append(len(runs))
        with site.db.writer() as tx:
            tx.publish(site.ids[len(runs) % 2], f"agent of run {len(runs)}")
            _add_work(tx)
            if len(runs) < 3:
                cause = sa.exc.DBAPIError("", None, Exception(), connection_invalidated=True)
                raise exception.Unavailable(peer="The database", reason="deadlock") from cause

    use_case()
    assert len(runs) == 3
    assert site.generations() == [1, 2]
    assert site.sent == ["runner", "agent of run 3"]


def test_failure_after_the_commit_leaves_the_commit(site: Site) -> None:
    def die(_agent: str) -> None:
        raise ZeroDivisionError

    site.db.after_commit = AfterCommit(notify_agent=die, wake_runner=lambda: None)
    with pytest.raises(ZeroDivisionError), site.db.writer() as tx:
        tx.publish(site.ids[0], "agent-1")
    # The next heartbeat of the agent tells it the new generation.
    assert site.generations() == [2, 1]


def test_clock_of_a_transaction_is_read_once(tmp_path: Path) -> None:
    ticks = sa.text("(SELECT count(*) FROM ticks)")
    db = Database(f"sqlite:///{tmp_path}/clock.sqlite", now=sa.literal_column(str(ticks)))
    with db.writer() as tx:
        tx.exec_driver_sql("CREATE TABLE ticks (id INTEGER)")
    for expected in (0, 1):
        with db.writer() as tx:
            assert tx.now_ms == expected
            tx.exec_driver_sql("INSERT INTO ticks VALUES (1)")
            assert tx.now_ms == expected
    db.close()
