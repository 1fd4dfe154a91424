# SPDX-License-Identifier: Apache-2.0
"""The journal with several operations that an agent did not end."""

from pathlib import Path

from cyborg.agent.state_store import StateStore, TaskJournal
from cyborg.model.work import HandleTask, InstallTask, Unit


def journal(directory: Path, host: str = "host") -> TaskJournal:
    """Return the journal of a new agent process."""
    return TaskJournal(StateStore(directory, host))


def task(request_key: str, handle: str) -> HandleTask:
    return HandleTask(request_key, "driver", "d", "u", handle, f"uuid of {handle}")


def test_all_interrupted_operations_are_resolved(tmp_path: Path) -> None:
    before = journal(tmp_path)
    before.begin("prepare", task("o1", "a"))
    before.begin("install", InstallTask("o2", "driver", "d"))
    before.begin("release", task("o3", "b"))
    after = journal(tmp_path)
    assert after.interrupted_units == {Unit("u", "a"), Unit("u", "b")}
    after.resolve_interrupted()
    assert not journal(tmp_path).has_interrupted


def test_operation_that_is_repeated_leaves_the_others_interrupted(tmp_path: Path) -> None:
    before = journal(tmp_path)
    before.begin("prepare", task("o1", "a"))
    before.begin("prepare", task("o2", "b"))
    after = journal(tmp_path)
    after.begin("prepare", task("o1", "a"))
    assert after.interrupted_units == {Unit("u", "b")}
    after.end("o1")
    assert after.interrupted_units == {Unit("u", "b")}
    assert journal(tmp_path).interrupted_units == {Unit("u", "b")}


def test_host_whose_name_begins_another_name_has_its_own_journal(tmp_path: Path) -> None:
    journal(tmp_path, "node-1").begin("prepare", task("o1", "a"))
    assert not journal(tmp_path, "node-10").has_interrupted
    assert not journal(tmp_path, "node").has_interrupted
    assert journal(tmp_path, "node-1").has_interrupted
