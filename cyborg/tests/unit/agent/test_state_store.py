# SPDX-License-Identifier: Apache-2.0
"""The state file: the agent works with a damaged, lost or locked file, and logs it once."""

import contextlib
import logging
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cyborg import exception
from cyborg.agent import state_store
from cyborg.agent.state_store import (
    ActionJournal,
    DesiredStateCache,
    HealthBaselines,
    StateStore,
    TaskJournal,
)
from cyborg.drivers.privileged.actions import ReadOpenFiles, Reset
from cyborg.drivers.privileged.client import Client
from cyborg.drivers.privileged.contexts import EXPORTS
from cyborg.model.pci import PciAddress
from cyborg.model.provider import ProviderTree
from cyborg.model.report import Desired
from cyborg.model.work import HandleTask, ProgramTask, Unit
from cyborg.tests.fixtures.waiting import joined
from cyborg.tests.unit.agent.fake_peers import report_of

FILE = "agent-host.sqlite"
DESIRED = Desired(3, ProviderTree("compute", ()), {"unit": "refused"})


def task(request_key: str, key: str = "k") -> HandleTask:
    return HandleTask(request_key, "driver", "d", "u", key, "uuid")


def journal(directory: Path) -> TaskJournal:
    return TaskJournal(StateStore(directory, "host"))


def cache(directory: Path) -> DesiredStateCache:
    return DesiredStateCache(StateStore(directory, "host"))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return and forget the warnings, without those about interrupted operations."""
    messages = [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and "stopped in the middle" not in record.msg
    ]
    caplog.clear()
    return messages


def interrupted_journal(directory: Path) -> bytes:
    """Write the journal of an agent that stopped in the middle; return its bytes."""
    operations = journal(directory)
    operations.begin("prepare", task("o1"))
    operations.end("o1")
    operations.begin("prepare", task("o2", "k2"))
    operations.begin("program", ProgramTask("o3", "driver", "d", "u", "image"))
    operations.begin("release", task("o4", "k4"))
    # An error of a driver may have any characters.
    operations.end("o4", "no file b\udcffd\0")
    return (directory / FILE).read_bytes()


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Refuse every write to a file of this process."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_interrupted_operations_are_logged_until_they_are_resolved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted_journal(tmp_path)
    operations = journal(tmp_path)
    assert operations.has_interrupted
    assert operations.interrupted_units == {Unit("u", "k2")}
    first, second = caplog.messages
    assert "prepare of u (request key o2, begun " in first
    assert "program of u (request key o3, begun " in second
    # What is repeated is not resolved with the others.
    operations.begin("prepare", task("o2", "k2"))
    assert operations.interrupted_units == frozenset()
    operations.resolve_interrupted()
    assert (operations.has_interrupted, operations.interrupted_units) == (False, frozenset())
    operations = journal(tmp_path)
    assert operations.interrupted_units == {Unit("u", "k2")}
    operations.resolve_interrupted()
    assert (operations.has_interrupted, operations.interrupted_units) == (False, frozenset())
    assert not journal(tmp_path).has_interrupted


def test_agent_starts_with_a_file_that_ends_anywhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = interrupted_journal(tmp_path)
    for length in range(0, len(whole), len(whole) // 30):
        (tmp_path / FILE).write_bytes(whole[:length])
        operations = journal(tmp_path)
        # The last page has no rows, and an empty file is a database without tables.
        complete = length > len(whole) - 4000
        assert len(warnings(caplog)) == (length > 0 and not complete), length
        assert operations.has_interrupted == complete
        operations.begin("release", task("o5", "k5"))
        assert Unit("u", "k5") in journal(tmp_path).interrupted_units
        assert warnings(caplog) == []


def test_operations_survive_a_kill(tmp_path: Path) -> None:
    lines = 8
    program = (
        "import itertools, sys\n"
        "from pathlib import Path\n"
        "from cyborg.tests.unit.agent.test_state_store import journal, task\n"
        "operations = journal(Path(sys.argv[1]))\n"
        "for number in itertools.count():\n"
        "    operations.begin('prepare', task(f'o{number}', f'k{number}'))\n"
        "    print(number, flush=True)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        for number in range(lines):
            assert agent.stdout.readline() == f"{number}\n"
        agent.kill()
    # The kill comes at any point of the next operations.
    units = journal(tmp_path).interrupted_units
    assert units >= {Unit("u", f"k{number}") for number in range(lines)}


def test_the_state_is_read_from_a_read_only_disk(tmp_path: Path) -> None:
    interrupted_journal(tmp_path)
    cache(tmp_path).store(desired=DESIRED)
    (tmp_path / FILE).chmod(0o400)
    tmp_path.chmod(0o500)
    # Without its capabilities, root cannot write there either.
    limits = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"] if os.geteuid() == 0 else []
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from cyborg.tests.unit.agent.test_state_store import cache, journal\n"
        "state = Path(sys.argv[1])\n"
        "print(journal(state).has_interrupted, cache(state).desired is not None)\n"
    )
    command = [*limits, sys.executable, "-c", program, str(tmp_path)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    assert answer.stdout == "True True\n"


def test_a_foreign_file_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for content in (b"\0" * 4096, b"# a text file\n"):
        (tmp_path / FILE).write_bytes(content)
        assert not journal(tmp_path).has_interrupted
        (warning,) = warnings(caplog)
        assert f"{FILE}.damaged" in warning
        assert (tmp_path / f"{FILE}.damaged").read_bytes() == content
        assert cache(tmp_path).desired is None
        assert warnings(caplog) == []


def test_a_database_with_other_tables_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as connection:
        connection.execute("CREATE TABLE tasks (something)")
    interrupted_journal(tmp_path)
    assert journal(tmp_path).interrupted_units == {Unit("u", "k2")}
    assert len(warnings(caplog)) == 1
    with contextlib.closing(sqlite3.connect(tmp_path / f"{FILE}.damaged")) as connection:
        connection.execute("SELECT something FROM tasks")


def test_a_file_that_is_damaged_while_the_agent_runs_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    operations = journal(tmp_path)
    operations.begin("prepare", task("o1", "k1"))
    (tmp_path / FILE).write_bytes(b"noise" * 1000)
    operations.begin("prepare", task("o2", "k2"))
    assert journal(tmp_path).interrupted_units == {Unit("u", "k1"), Unit("u", "k2")}
    assert len(warnings(caplog)) == 1


def test_a_damaged_file_that_cannot_be_renamed_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).write_bytes(b"noise" * 1000)
    (tmp_path / f"{FILE}.damaged").mkdir()
    operations = journal(tmp_path)
    (warning,) = warnings(caplog)
    assert "the agent works without it" in warning
    operations.begin("prepare", task("o1"))
    assert warnings(caplog) == []


def test_a_state_path_that_cannot_be_created_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "state"
    path.write_text("a file")
    store = StateStore(path, "host")
    operations, state = TaskJournal(store), DesiredStateCache(store)
    for number in range(3):
        operations.begin("prepare", task(f"o{number}"))
        operations.end(f"o{number}")
        state.store(desired=DESIRED, report=report_of(f"unit-{number}"))
    (warning,) = warnings(caplog)
    assert str(path) in warning
    assert state.desired == DESIRED
    # When the path is free the agent has a journal and a cache again.
    path.unlink()
    operations.begin("prepare", task("o9", "k9"))
    assert caplog.messages == [f"State directory {path} can be written again"]
    assert journal(path).interrupted_units == {Unit("u", "k9")}
    state.store(report=report_of("last"))
    assert cache(path).report == report_of("last")
    assert warnings(caplog) == []
    # The next failure is logged again.
    shutil.rmtree(path)
    path.write_text("a file")
    state.store(report=report_of("lost"))
    assert len(warnings(caplog)) == 1


def test_operations_of_a_full_disk_are_written_when_it_has_space_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    interrupted_journal(tmp_path)
    with full_disk():
        operations = journal(tmp_path)
        assert operations.interrupted_units == {Unit("u", "k2")}
        operations.begin("prepare", task("o5", "k5"))
        operations.end("o5")
        operations.begin("prepare", task("o6", "k6"))
    assert len(warnings(caplog)) == 1
    operations.begin("prepare", task("o7", "k7"))
    assert caplog.messages == [f"State directory {tmp_path} can be written again"]
    assert journal(tmp_path).interrupted_units == {
        Unit("u", "k2"),
        Unit("u", "k6"),
        Unit("u", "k7"),
    }


def test_a_state_path_that_was_removed_is_created_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state"
    operations = journal(path)
    operations.begin("prepare", task("o1", "k1"))
    (path / FILE).unlink()
    path.rmdir()
    operations.begin("prepare", task("o2", "k2"))
    operations.begin("prepare", task("o3", "k3"))
    assert journal(path).interrupted_units == {Unit("u", "k1"), Unit("u", "k2"), Unit("u", "k3")}
    assert warnings(caplog) == []


def test_the_journal_of_a_file_that_was_removed_is_not_applied_to_the_next_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    operations = journal(tmp_path)
    operations.begin("prepare", task("o1", "k1"))
    other = sqlite3.connect(tmp_path / FILE)
    other.execute("PRAGMA cache_size = 1")
    other.execute("UPDATE tasks SET handle = ?", ("k" * 100_000,))
    # As if the process was killed in this transaction.
    rollback_journal = (tmp_path / f"{FILE}-journal").read_bytes()
    other.close()
    (tmp_path / FILE).unlink()
    (tmp_path / f"{FILE}-journal").write_bytes(rollback_journal)
    operations.begin("prepare", task("o2", "k2"))
    assert journal(tmp_path).interrupted_units == {Unit("u", "k1"), Unit("u", "k2")}
    assert warnings(caplog) == []


def test_two_agents_of_one_host_share_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each transaction waits for the disk: on a busy one, another can wait longer than a second.
    monkeypatch.setattr(state_store, "_BUSY_TIMEOUT", 60.0)
    agents = [journal(tmp_path), journal(tmp_path)]

    def work(name: int) -> None:
        for number in range(10):
            agents[name].begin("prepare", task(f"{name}-{number}", f"{name}-{number}"))
            if number:
                agents[name].end(f"{name}-{number}")

    threads = [threading.Thread(target=work, args=(name,)) for name in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        joined(thread)
    assert journal(tmp_path).interrupted_units == {Unit("u", "0-0"), Unit("u", "1-0")}
    assert warnings(caplog) == []


def test_an_agent_works_while_another_one_is_suspended_in_a_transaction(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    operations = journal(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        operations.begin("prepare", task("o1", "k1"))
        assert "locked" in warnings(caplog)[0]
    operations.begin("prepare", task("o2", "k2"))
    assert journal(tmp_path).interrupted_units == {Unit("u", "k1"), Unit("u", "k2")}


def test_a_journal_is_bounded_in_size(tmp_path: Path) -> None:
    interrupted_journal(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as connection, connection:
        connection.executemany(
            "INSERT INTO tasks (request_key, ended_at) VALUES (?, 'once')",
            [(str(number),) for number in range(3000)],
        )
    operations = journal(tmp_path)
    operations.begin("prepare", task("o9"))
    operations.end("o9")
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as connection:
        rows = connection.execute("SELECT request_key FROM tasks ORDER BY rowid").fetchall()
    assert len(rows) == 400 + 2
    assert rows[-1] == ("o9",)
    assert operations.interrupted_units == journal(tmp_path).interrupted_units == {Unit("u", "k2")}


def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        interrupted_journal(tmp_path)
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()] == [0o600]


def test_the_cache_restores_desired_state_and_report_of_its_host(tmp_path: Path) -> None:
    # With its parents the directory is created.
    store = StateStore(tmp_path / "new" / "state", "a/host")
    state = DesiredStateCache(store)
    assert (state.desired, state.report) == (None, None)
    state.store(desired=DESIRED)
    state.store(report=report_of("unit"))
    restored = DesiredStateCache(store)
    assert (restored.desired, restored.report) == (DESIRED, report_of("unit"))
    assert DesiredStateCache(StateStore(tmp_path / "new" / "state", "another")).desired is None


@pytest.mark.parametrize(
    "value", ['{"kind": "Desired", "version": 99, "body": {}}', "{}", "[]", '"text"', "{", None]
)
def test_the_cache_of_another_release_is_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, value: str | None
) -> None:
    interrupted_journal(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as connection, connection:
        connection.execute("INSERT INTO cache VALUES ('Desired', ?)", (value,))
    assert cache(tmp_path).desired is None
    (warning,) = warnings(caplog)
    assert FILE in warning
    assert journal(tmp_path).has_interrupted


def test_the_cache_is_written_when_something_has_changed(tmp_path: Path) -> None:
    state = cache(tmp_path)
    state.store(desired=DESIRED, report=report_of("unit"))
    (tmp_path / FILE).unlink()
    state.store(desired=DESIRED, report=report_of("unit"))
    assert not (tmp_path / FILE).exists()
    # It is complete although the file was lost.
    state.store(report=report_of("unit", "news"))
    restored = cache(tmp_path)
    assert (restored.desired, restored.report) == (DESIRED, report_of("unit", "news"))


def recorded(store: StateStore) -> list[str]:
    """The privileged actions in the file, the oldest first."""
    rows = store.run(lambda file: file.execute("SELECT action FROM actions").fetchall())
    return [action for (action,) in rows or ()]


def test_privileged_action_is_on_the_disk_before_it_is_sent(tmp_path: Path):
    store = StateStore(tmp_path, "compute-1")
    journal = ActionJournal(store)
    client = Client(
        socket_path=str(tmp_path / "absent"), exports=lambda: EXPORTS, journal=journal.record
    )
    with pytest.raises(exception.HostError, match=r"start cyborg-privileged\.socket"):
        client.run(Reset(PciAddress.parse("0000:81:00.0")))
    assert recorded(store) == ["Reset(function=0000:81:00.0)"]
    with pytest.raises(exception.HostError):
        client.run(ReadOpenFiles())
    assert len(recorded(store)) == 1


def test_oldest_privileged_actions_are_removed(tmp_path: Path):
    store = StateStore(tmp_path, "compute-1")
    rows = [("", str(number)) for number in range(401)]
    store.run(lambda file: file.executemany("INSERT INTO actions VALUES (?, ?)", rows))
    ActionJournal(store).record("401")
    assert recorded(store) == [str(number) for number in range(2, 402)]


@pytest.mark.parametrize("text", ["{", "[[1]]", '[["driver", "key", {}]]'])
def test_error_counters_that_cannot_be_read_are_left_out(tmp_path: Path, text: str) -> None:
    store = StateStore(tmp_path, "host")
    baselines = HealthBaselines(store)
    baselines.store({})
    store.run(lambda file: file.execute("UPDATE cache SET value = ?", (text,)))
    assert baselines.load() == {}
