# SPDX-License-Identifier: Apache-2.0
"""Files under the state path: whatever becomes of them, the agent works on and says it once."""

import logging
from pathlib import Path

import pytest

from cyborg.agent.state_store import DesiredStateCache, OperationJournal, StateFiles
from cyborg.model.provider import ProviderTree
from cyborg.model.report import Desired
from cyborg.model.work import HandleTask, ProgramTask, Unit
from cyborg.tests.unit.agent.world import seen

FILE = "agent-host.journal"
DESIRED = Desired(3, ProviderTree("compute", ()), {"unit": "refused"})


def task(operation: str, key: str = "k") -> HandleTask:
    return HandleTask(operation, "driver", "d", "u", key, "uuid")


def journal(directory: Path) -> OperationJournal:
    return OperationJournal(StateFiles(directory), "host")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said since the last look."""
    said = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    caplog.clear()
    return said


def half_done(directory: Path) -> bytes:
    """A journal of an agent that ended in the middle; what it had written."""
    book = journal(directory)
    book.begin("prepare", task("o1"))
    book.end("o1")
    book.begin("prepare", task("o2", "k2"))
    book.begin("program", ProgramTask("o3", "driver", "d", "u", "image"))
    book.begin("release", task("o4", "k4"))
    book.end("o4", "no such thing")
    return (directory / FILE).read_bytes()


def test_what_was_under_way_is_told_and_suspected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    half_done(tmp_path)
    book = journal(tmp_path)
    assert book.unsettled
    assert book.suspects == {Unit("u", "k2")}
    book.tell()
    first, second = warnings(caplog)
    assert "prepare of u (o2, begun " in first
    assert "program of u (o3, begun " in second


def test_what_has_been_seen_to_is_told_no_more(tmp_path: Path) -> None:
    half_done(tmp_path)
    book = journal(tmp_path)
    book.settle()
    assert (book.unsettled, book.suspects) == (False, frozenset())
    assert not journal(tmp_path).unsettled


def test_what_is_asked_for_again_is_nobody_else_s(tmp_path: Path) -> None:
    half_done(tmp_path)
    book = journal(tmp_path)
    book.begin("prepare", task("o2", "k2"))
    assert book.suspects == frozenset()
    book.settle()
    assert journal(tmp_path).suspects == {Unit("u", "k2")}


def test_a_journal_torn_at_any_byte(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = half_done(tmp_path)
    ends = [0]
    for line in whole.splitlines(keepends=True):
        ends.append(ends[-1] + len(line))
    for at in range(len(whole)):
        directory = tmp_path / str(at)
        directory.mkdir()
        (directory / FILE).write_bytes(whole[:at])
        book = journal(directory)
        assert len(warnings(caplog)) == (at not in ends)
        # o2 begins in the third line, and never ends.
        assert (Unit("u", "k2") in book.suspects) == (at >= ends[3]), at
        book.begin("release", task("o5", "k5"))
        assert journal(directory).suspects == book.suspects | {Unit("u", "k5")}
        assert warnings(caplog) == []


@pytest.mark.parametrize(
    "content",
    [b"\0" * 4096, b"# a note of somebody\n", b"\xff\xfe\n", b"00000000 \n", b"\n\n"],
    ids=["zeroes", "text", "bytes", "empty-record", "blank"],
)
def test_a_foreign_file_is_put_aside(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    for name in (FILE, "agent-host.cache"):
        (tmp_path / name).write_bytes(content)
        made = (
            journal(tmp_path) if name == FILE else DesiredStateCache(StateFiles(tmp_path), "host")
        )
        assert isinstance(made, DesiredStateCache) or not made.unsettled
        (said,) = warnings(caplog)
        assert f"{name}.damaged" in said
        assert (tmp_path / f"{name}.damaged").read_bytes() == content


def test_a_byte_that_turned_over_is_seen(tmp_path: Path) -> None:
    whole = half_done(tmp_path)
    for at in range(0, len(whole), 7):
        (tmp_path / FILE).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        records = StateFiles(tmp_path).read(FILE)
        assert len(records) == whole[:at].count(b"\n")


def test_a_file_in_the_way_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    way = tmp_path / "state"
    way.write_text("in the way")
    files = StateFiles(way)
    book, cache = OperationJournal(files, "host"), DesiredStateCache(files, "host")
    for number in range(3):
        book.begin("prepare", task(f"o{number}"))
        book.end(f"o{number}")
        cache.keep(desired=DESIRED, report=seen(f"unit-{number}"))
    (said,) = warnings(caplog)
    assert str(way) in said
    assert cache.desired == DESIRED
    # Whoever clears the way has a journal and a cache again.
    way.unlink()
    book.begin("prepare", task("o9", "k9"))
    assert journal(way).suspects == {Unit("u", "k9")}
    cache.keep(report=seen("last"))
    assert DesiredStateCache(StateFiles(way), "host").report == seen("last")
    assert warnings(caplog) == []


def test_a_full_disk_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    files = StateFiles(Path("/dev"))
    # The one file that is always full; nothing can be put in its place, since it is not ours.
    results = [files.append("full", {"a": "record"}) for _ in range(3)]
    assert results == [False] * 3
    (said,) = warnings(caplog)
    assert "No space left" in said


def test_an_emptied_path_is_filled_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    way = tmp_path / "state"
    book = journal(way)
    book.begin("prepare", task("o1", "k1"))
    (way / FILE).unlink()
    way.rmdir()
    book.begin("prepare", task("o2", "k2"))
    book.begin("prepare", task("o3", "k3"))
    assert journal(way).suspects == {Unit("u", "k1"), Unit("u", "k2"), Unit("u", "k3")}
    assert len(warnings(caplog)) == 1


def test_a_journal_does_not_grow_for_ever(tmp_path: Path) -> None:
    half_done(tmp_path)
    book = journal(tmp_path)
    for number in range(3000):
        book.begin("prepare", task(f"more-{number}"))
        book.end(f"more-{number}")
    assert (tmp_path / FILE).read_bytes().count(b"\n") <= 2000
    assert book.suspects == journal(tmp_path).suspects == {Unit("u", "k2")}


def test_the_cache_remembers(tmp_path: Path) -> None:
    files = StateFiles(tmp_path)
    cache = DesiredStateCache(files, "a/host")
    assert (cache.desired, cache.report) == (None, None)
    cache.keep(desired=DESIRED)
    cache.keep(report=seen("unit"))
    again = DesiredStateCache(files, "a/host")
    assert (again.desired, again.report) == (DESIRED, seen("unit"))
    assert DesiredStateCache(files, "another").desired is None


def test_the_cache_of_another_release_is_put_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    envelope = {"kind": "Desired", "version": 99, "body": {}}
    records: list[object] = [{"desired": envelope, "report": None}, {}, [], "text"]
    for record in records:
        StateFiles(tmp_path).replace("agent-host.cache", [record])
        assert DesiredStateCache(StateFiles(tmp_path), "host").desired is None
        assert len(warnings(caplog)) == 1


def test_nothing_is_written_when_nothing_is_news(tmp_path: Path) -> None:
    cache = DesiredStateCache(StateFiles(tmp_path), "host")
    cache.keep(desired=DESIRED, report=seen("unit"))
    before = (tmp_path / "agent-host.cache").stat().st_ino
    cache.keep(desired=DESIRED, report=seen("unit"))
    assert (tmp_path / "agent-host.cache").stat().st_ino == before
