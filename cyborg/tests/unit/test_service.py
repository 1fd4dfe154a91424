# SPDX-License-Identifier: Apache-2.0
"""Periodic jobs and daemons: what runs when, and what ends how."""

import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import cyborg
from cyborg import exception
from cyborg.model.process import BusFault
from cyborg.service import Daemon, PeriodicTask, wait_until
from cyborg.tests.fixtures.waiting import Gate, Meeting, eventually, happened, joined, ran


@contextmanager
def running(job: Any, interval: float) -> Iterator[PeriodicTask]:
    periodic = PeriodicTask("job", job, interval=interval)
    periodic.start()
    try:
        yield periodic
    finally:
        periodic.stop()


class Counter:
    """A job that counts its turns, and fails as long as it is told to."""

    def __init__(self) -> None:
        self.turns = 0
        self.error: Exception | None = None

    def __call__(self) -> None:
        self.turns += 1
        # The test may take it away at any moment.
        error = self.error
        if error is not None:
            raise error

    def reaches(self, turns: int) -> bool:
        return eventually(lambda: self.turns >= turns, step=0.005)


def test_task_runs_at_once_and_again() -> None:
    job = Counter()
    with running(job, 0.01):
        assert job.reaches(3)


def test_task_runs_when_woken() -> None:
    job = Counter()
    with running(job, 3600) as periodic:
        assert job.reaches(1)
        periodic.wake()
        assert job.reaches(2)
        assert not wait_until(lambda: job.turns > 2, timeout=0.1)


def test_wake_during_a_run_is_not_lost() -> None:
    gate, job = Gate(), Counter()

    def slow() -> None:
        job()
        gate.hold()

    with running(slow, 3600) as periodic:
        assert job.reaches(1)
        periodic.wake()
        gate.set()
        assert job.reaches(2)


def test_stop_finishes_the_current_run() -> None:
    gate, ended, job = Gate(), threading.Event(), Counter()

    def slow() -> None:
        job()
        gate.hold()
        ended.set()

    periodic = PeriodicTask("job", slow, interval=0.001)
    periodic.start()
    assert job.reaches(1)
    stopper = threading.Thread(target=periodic.stop)
    stopper.start()
    stopper.join(0.1)
    assert stopper.is_alive()
    gate.set()
    joined(stopper)
    assert ended.is_set()
    turns = job.turns
    periodic.wake()
    assert not wait_until(lambda: job.turns > turns, timeout=0.1)


def test_stop_interrupts_the_current_run() -> None:
    job, interrupted = Counter(), Gate()

    def waiting() -> None:
        job()
        interrupted.hold()

    periodic = PeriodicTask("job", waiting, interval=3600, interrupt=interrupted.set)
    periodic.start()
    assert job.reaches(1)
    periodic.stop()
    assert interrupted.is_set()
    periodic.stop()


@pytest.mark.parametrize("line", range(1, 25))
def test_stop_ends_the_thread_at_any_time(line: int) -> None:
    """``stop`` is called before the thread runs this line of its loop."""
    job, stopped, lines = Counter(), threading.Event(), itertools.count(1)
    turns: list[int] = []

    def run() -> None:
        job()
        if not stopped.is_set():
            periodic.wake()

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        if frame.f_code is not PeriodicTask._run.__code__:
            return None
        if event == "line" and next(lines) == line:
            turns.append(job.turns)
            stopper.start()
            happened(stopped)
        return trace

    periodic = PeriodicTask("job", run, interval=3600, interrupt=stopped.set)
    stopper = threading.Thread(target=periodic.stop)
    before = threading.gettrace()
    threading.settrace(trace)
    try:
        periodic.start()
        happened(stopped)
        joined(stopper)
    finally:
        threading.settrace(before)
    assert "job" not in {thread.name for thread in threading.enumerate()}
    assert job.turns <= turns[0] + 1


def test_stop_before_start_has_no_effect() -> None:
    PeriodicTask("job", Counter(), interval=1).stop()


def test_repeated_error_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    job = Counter()
    job.error = exception.Unavailable(peer="Placement", reason="it is away")
    with caplog.at_level(logging.INFO), running(job, 0.005):
        assert job.reaches(4)
        job.error = exception.Unavailable(peer="Placement", reason="it is busy")
        assert job.reaches(job.turns + 3)
        job.error = None
        assert job.reaches(job.turns + 3)
    said = [one.getMessage() for one in caplog.records if one.name == "cyborg.service"]
    assert said == [
        "Periodic task job failed: Placement is not available: it is away",
        "Periodic task job failed: Placement is not available: it is busy",
        "Periodic task job succeeds again",
    ]


def test_unexpected_error_is_logged_and_task_continues(caplog: pytest.LogCaptureFixture) -> None:
    job = Counter()
    job.error = ZeroDivisionError("by nobody")
    with running(job, 0.005):
        assert job.reaches(3)
    assert "Traceback" in caplog.text
    assert "by nobody" in caplog.text


class FakeServer:
    """An RPC server that notes what happens to it; it connects when the gate is open."""

    def __init__(self, notes: list[str], gate: Gate | None = None) -> None:
        self._notes = notes
        self._gate = gate

    def start(self) -> None:
        if self._gate is not None:
            self._gate.hold()
        self._notes.append("server started")

    def stop(self) -> None:
        self._notes.append("server stopped")

    def wait(self) -> None:
        self._notes.append("server done")


def runs(daemon: Daemon) -> None:
    """Wait until the servers of a daemon have started, and their starts have returned."""
    eventually(lambda: daemon.state == "Running")


def test_daemon_starts_and_stops_in_order() -> None:
    notes: list[str] = []
    daemon = Daemon("test")
    daemon.at_end(lambda: notes.append("first named"))
    daemon.at_end(lambda: notes.append("last named"))
    daemon.add_server(FakeServer(notes))
    job = Counter()
    daemon.add_task(PeriodicTask("job", job, interval=3600))
    daemon.start()
    assert job.reaches(1)
    runs(daemon)
    assert notes == ["server started"]
    daemon.stop()
    assert notes[1:] == ["server stopped", "server done", "last named", "first named"]


def test_daemon_stops_its_servers_together() -> None:
    meeting, daemon = Meeting(2), Daemon("test")

    class SlowServer(FakeServer):
        def stop(self) -> None:
            meeting.meet()
            super().stop()

    notes: list[str] = []
    for _ in range(2):
        daemon.add_server(SlowServer(notes))
    daemon.start()
    runs(daemon)
    daemon.stop()
    assert notes.count("server stopped") == 2


def test_server_that_cannot_be_stopped_is_logged_and_keeps_nothing_running(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class BrokenServer(FakeServer):
        def stop(self) -> None:
            raise OSError("the connection is gone")

    notes: list[str] = []
    daemon = Daemon("test")
    daemon.at_end(lambda: notes.append("cleaned up"))
    for server in (BrokenServer(notes), FakeServer(notes)):
        daemon.add_server(server)
    daemon.start()
    runs(daemon)
    daemon.stop()
    assert notes[2:] == ["server stopped", "server done", "cleaned up"]
    assert "the connection is gone" in caplog.text


def test_task_that_never_ends_does_not_keep_a_daemon_from_stopping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cyborg.service._STOP_TIMEOUT", 0.01)
    daemon, gate, job = Daemon("test"), Gate(), Counter()
    daemon.add_task(PeriodicTask("hangs", gate.hold, interval=3600))
    daemon.add_task(PeriodicTask("job", job, interval=3600))
    daemon.start()
    gate.reached()
    assert job.reaches(1)
    stopper = threading.Thread(target=daemon.stop)
    stopper.start()
    joined(stopper)
    gate.set()


def test_daemon_without_broker_runs_and_stops() -> None:
    notes: list[str] = []
    daemon, gate = Daemon("test"), Gate()
    daemon.add_server(FakeServer(notes, gate))
    daemon.at_end(lambda: notes.append("ended"))
    job = Counter()
    daemon.add_task(PeriodicTask("job", job, interval=0.005))
    daemon.start()
    assert job.reaches(3)
    daemon.stop()
    assert notes == ["ended"]
    gate.set()


def run(script: Path, *arguments: Path | str) -> tuple[int, str, str]:
    """Return the exit status, the standard output and the standard error of a program."""
    process = ran(
        [sys.executable, str(script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(Path(cyborg.__file__).parents[1])},
        check=False,
    )
    return process.returncode, process.stdout, process.stderr


ANEW = """
import os, pathlib, signal, sys
from cyborg.service import Daemon, PeriodicTask

daemon, lives = Daemon("test"), pathlib.Path(sys.argv[1])
daemon.at_end(lambda: print("ended", flush=True))

def job():
    lives.open("a").write("x")
    print(os.getpid(), sys.argv[2], flush=True)
    if len(lives.read_text()) < 3:
        daemon.restart()
    else:
        os.kill(os.getpid(), signal.SIGTERM)

daemon.add_task(PeriodicTask("job", job, interval=3600))
sys.exit(daemon.run())
"""


def test_daemon_reexecutes_with_the_same_pid(tmp_path: Path) -> None:
    script = tmp_path / "program"
    script.write_text(ANEW)
    status, output, errors = run(script, tmp_path / "lives", "an argument")
    assert (status, errors) == (0, "")
    *lines, last = output.splitlines()
    assert len(set(lines[::2])) == 1
    assert lines[0].endswith(" an argument")
    assert (lines[1::2], last) == (["ended"] * 2, "ended")


NESTED = """
import os, signal, sys
from cyborg.service import Daemon, PeriodicTask

daemon, left = Daemon("test"), 20
daemon.at_end(lambda: print("ended"))

def trace(frame, event, argument):
    global left
    handler = signal.getsignal(signal.SIGTERM)
    if left < 20 or frame.f_code is getattr(handler, "__code__", None):
        if left:
            left -= 1
            os.kill(os.getpid(), signal.SIGTERM)
    return trace

daemon.add_task(PeriodicTask("job", lambda: os.kill(os.getpid(), signal.SIGTERM), interval=3600))
sys.settrace(trace)
sys.exit(daemon.run())
"""


def test_signal_in_the_handler_of_a_signal_does_not_hang_a_daemon(tmp_path: Path) -> None:
    # A service manager and an operator may end a daemon at the same time.
    script = tmp_path / "program"
    script.write_text(NESTED)
    assert run(script) == (0, "ended\n", "")


ELSEWHERE = """
import signal, sys, threading
from cyborg.service import Daemon, PeriodicTask

daemon, turns = Daemon("test"), []
daemon.at_end(lambda: print("ended"))

def job():
    turns.append(1)
    # In its first turn the main thread does not wait yet.
    if len(turns) == 2:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

daemon.add_task(PeriodicTask("job", job, interval=0.2))
sys.exit(daemon.run())
"""


def test_signal_that_does_not_wake_the_main_thread_ends_a_daemon(tmp_path: Path) -> None:
    # The main thread also misses a signal that arrives just before it sleeps.
    script = tmp_path / "program"
    script.write_text(ELSEWHERE)
    assert run(script) == (0, "ended\n", "")


@pytest.mark.parametrize(
    ("seconds", "refused", "stuck"), [(601, True, True), (540, True, False), (86_400, False, False)]
)
def test_daemon_is_stuck_after_long_refusal_by_broker(
    seconds: float, refused: bool, stuck: bool
) -> None:
    trouble = BusFault("the message bus refuses it", time.monotonic() - seconds, refused)
    daemon = Daemon("test")
    daemon.add_server(FakeServer([]), trouble=lambda: trouble)
    assert bool(daemon.stuck) is stuck
    assert daemon.state == "Receives no requests: the message bus refuses it"
    assert daemon.bus_error == "the message bus refuses it"


def test_daemon_with_listening_server_has_no_bus_error() -> None:
    daemon = Daemon("test")
    daemon.add_server(FakeServer([]), trouble=lambda: None)
    assert (daemon.bus_error, daemon.stuck, daemon.state) == ("", "", "Running")
