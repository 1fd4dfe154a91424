# SPDX-License-Identifier: Apache-2.0
"""Files below the state path: the agent works with damaged or lost files and logs them once."""

import logging
from pathlib import Path

import pytest

from cyborg.agent.state_store import DesiredStateCache, OperationJournal, StateFiles
from cyborg.model.provider import ProviderTree
from cyborg.model.report import Desired
from cyborg.model.work import HandleTask, ProgramTask, Unit
from cyborg.tests.unit.agent.fake_peers import report_of

FILE = "agent-host.journal"
DESIRED = Desired(3, ProviderTree("compute", ()), {"unit": "refused"})


def task(request_key: str, key: str = "k") -> HandleTask:
    return HandleTask(request_key, "driver", "d", "u", key, "uuid")


def journal(directory: Path) -> OperationJournal:
    return OperationJournal(StateFiles(directory), "host")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return and forget the warnings."""
    messages = [
        record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING
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
    operations.end("o4", "no such thing")
    return (directory / FILE).read_bytes()


def test_interrupted_operations_are_logged_and_have_units(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted_journal(tmp_path)
    operations = journal(tmp_path)
    assert operations.has_interrupted
    assert operations.interrupted_units == {Unit("u", "k2")}
    operations.log_interrupted()
    first, second = warnings(caplog)
    assert "prepare of u (request key o2, begun " in first
    assert "program of u (request key o3, begun " in second


def test_resolved_operations_are_not_interrupted_after_the_next_start(tmp_path: Path) -> None:
    interrupted_journal(tmp_path)
    operations = journal(tmp_path)
    operations.resolve_interrupted()
    assert (operations.has_interrupted, operations.interrupted_units) == (False, frozenset())
    assert not journal(tmp_path).has_interrupted


def test_an_operation_that_is_repeated_is_not_interrupted(tmp_path: Path) -> None:
    interrupted_journal(tmp_path)
    operations = journal(tmp_path)
    operations.begin("prepare", task("o2", "k2"))
    assert operations.interrupted_units == frozenset()
    operations.resolve_interrupted()
    assert journal(tmp_path).interrupted_units == {Unit("u", "k2")}


def test_a_journal_can_be_read_when_it_ends_at_any_byte(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = interrupted_journal(tmp_path)
    ends = [0]
    for line in whole.splitlines(keepends=True):
        ends.append(ends[-1] + len(line))
    for length in range(len(whole)):
        directory = tmp_path / str(length)
        directory.mkdir()
        (directory / FILE).write_bytes(whole[:length])
        operations = journal(directory)
        assert len(warnings(caplog)) == (length not in ends)
        # The begin record of o2 is the third line; it has no end record.
        assert (Unit("u", "k2") in operations.interrupted_units) == (length >= ends[3]), length
        operations.begin("release", task("o5", "k5"))
        assert journal(directory).interrupted_units == operations.interrupted_units | {
            Unit("u", "k5")
        }
        assert warnings(caplog) == []


@pytest.mark.parametrize(
    "content",
    [b"\0" * 4096, b"# a text file\n", b"\xff\xfe\n", b"00000000 \n", b"\n\n"],
    ids=["zeroes", "text", "bytes", "empty-record", "blank"],
)
def test_a_foreign_file_is_set_aside(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    for name in (FILE, "agent-host.cache"):
        (tmp_path / name).write_bytes(content)
        if name == FILE:
            assert not journal(tmp_path).has_interrupted
        else:
            assert DesiredStateCache(StateFiles(tmp_path), "host").desired is None
        (warning,) = warnings(caplog)
        assert f"{name}.damaged" in warning
        assert (tmp_path / f"{name}.damaged").read_bytes() == content


def test_reading_stops_at_a_damaged_byte(tmp_path: Path) -> None:
    whole = interrupted_journal(tmp_path)
    for offset in range(0, len(whole), 7):
        (tmp_path / FILE).write_bytes(
            whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :]
        )
        records = StateFiles(tmp_path).read(FILE)
        assert len(records) == whole[:offset].count(b"\n")


def test_a_state_path_that_cannot_be_created_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state"
    path.write_text("a file")
    files = StateFiles(path)
    operations, cache = OperationJournal(files, "host"), DesiredStateCache(files, "host")
    for number in range(3):
        operations.begin("prepare", task(f"o{number}"))
        operations.end(f"o{number}")
        cache.store(desired=DESIRED, report=report_of(f"unit-{number}"))
    (warning,) = warnings(caplog)
    assert str(path) in warning
    assert cache.desired == DESIRED
    # When the path is free the agent has a journal and a cache again.
    path.unlink()
    operations.begin("prepare", task("o9", "k9"))
    assert journal(path).interrupted_units == {Unit("u", "k9")}
    cache.store(report=report_of("last"))
    assert DesiredStateCache(StateFiles(path), "host").report == report_of("last")
    assert warnings(caplog) == []


def test_a_full_disk_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    files = StateFiles(Path("/dev"))
    # Writing to /dev/full always fails.
    results = [files.append("full", {"a": "record"}) for _ in range(3)]
    assert results == [False] * 3
    (warning,) = warnings(caplog)
    assert "No space left" in warning


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
    assert len(warnings(caplog)) == 1


def test_a_journal_is_bounded_in_size(tmp_path: Path) -> None:
    interrupted_journal(tmp_path)
    operations = journal(tmp_path)
    for number in range(3000):
        operations.begin("prepare", task(f"more-{number}"))
        operations.end(f"more-{number}")
    assert (tmp_path / FILE).read_bytes().count(b"\n") <= 2000
    assert operations.interrupted_units == journal(tmp_path).interrupted_units == {Unit("u", "k2")}


def test_the_cache_restores_desired_state_and_report_of_its_host(tmp_path: Path) -> None:
    files = StateFiles(tmp_path)
    cache = DesiredStateCache(files, "a/host")
    assert (cache.desired, cache.report) == (None, None)
    cache.store(desired=DESIRED)
    cache.store(report=report_of("unit"))
    restored = DesiredStateCache(files, "a/host")
    assert (restored.desired, restored.report) == (DESIRED, report_of("unit"))
    assert DesiredStateCache(files, "another").desired is None


def test_the_cache_of_another_release_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    envelope = {"kind": "Desired", "version": 99, "body": {}}
    records: list[object] = [{"desired": envelope, "report": None}, {}, [], "text"]
    for record in records:
        StateFiles(tmp_path).replace("agent-host.cache", [record])
        assert DesiredStateCache(StateFiles(tmp_path), "host").desired is None
        assert len(warnings(caplog)) == 1


def test_the_cache_is_not_written_when_nothing_has_changed(tmp_path: Path) -> None:
    cache = DesiredStateCache(StateFiles(tmp_path), "host")
    cache.store(desired=DESIRED, report=report_of("unit"))
    before = (tmp_path / "agent-host.cache").stat().st_ino
    cache.store(desired=DESIRED, report=report_of("unit"))
    assert (tmp_path / "agent-host.cache").stat().st_ino == before
