# SPDX-License-Identifier: Apache-2.0
"""What a service manager hears of a daemon: a real socket, and a real process where it matters."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import cyborg
from cyborg.systemd import Manager
from cyborg.tests.fixtures.service_manager import SimulatedManager
from cyborg.tests.fixtures.waiting import ended, eventually

#: How a program of these tests begins.
HEAD = """
import os, pathlib, sys, threading
from cyborg import exception
from cyborg.service import Daemon, PeriodicTask

daemon, place = Daemon("test", ready_timeout=0.5), pathlib.Path(sys.argv[1])
"""
RUN = "\nsys.exit(daemon.run())\n"


@contextmanager
def program(manager: SimulatedManager, place: Path, text: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program that the manager has started; it is ended at the end."""
    script = place / "program"
    script.write_text(HEAD + text + RUN)
    path = str(Path(cyborg.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, script, place],
        env={**os.environ, "PYTHONPATH": path, **manager.environment},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("abstract", [False, True])
def test_messages_have_sd_notify_format(tmp_path: Path, abstract: bool):
    with SimulatedManager(None if abstract else tmp_path, watchdog=3) as listening:
        manager = Manager(listening.environment)
        assert manager.watchdog == 3
        manager.status("Waiting for\nMAINPID=1 " + "x" * 600)
        manager.status("Running")
        manager.status("Running")
        manager.ready()
        manager.alive()
        manager.reloading()
        manager.stopping()
        assert listening.hears("STOPPING=1")
        long, *rest = listening.told
    assert long.startswith("STATUS=Waiting for MAINPID=1 xxx")
    assert len(long) == len("STATUS=") + 500
    assert rest == ["STATUS=Running", "READY=1", "RELOADING=1", "STOPPING=1"]
    assert listening.signs == 1


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WATCHDOG_USEC": "1000"},
        {"NOTIFY_SOCKET": "vsock:2:1234", "WATCHDOG_USEC": "1000"},
        {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"},
        {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "0"},
    ],
)
def test_without_notify_socket_nothing_is_sent(environment: dict[str, str]):
    manager = Manager(environment)
    assert manager.watchdog is None
    manager.alive()
    manager.ready()


def test_vanished_manager_is_ignored(tmp_path: Path):
    with SimulatedManager(tmp_path, watchdog=1) as listening:
        manager = Manager(listening.environment)
    manager.ready()
    (tmp_path / "notify").unlink()
    manager.ready()


def test_daemon_sends_ready_status_and_stopping(tmp_path: Path):
    text = """
def job():
    if (place / "broken").exists():
        raise exception.Unavailable(peer="Placement", reason="it is away")

daemon.add_task(PeriodicTask("heartbeat", job, interval=0.05, limit=60))
"""
    with (
        SimulatedManager(tmp_path, watchdog=0.3) as manager,
        program(manager, tmp_path, text) as process,
    ):
        assert manager.hears("READY=1")
        assert manager.hears("WATCHDOG=1", times=3)
        (tmp_path / "broken").touch()
        assert manager.hears("STATUS=Running; heartbeat: Placement is not available: it is away")
        (tmp_path / "broken").unlink()
        assert manager.hears("STATUS=Running", times=3)
        process.send_signal(signal.SIGHUP)
        signs = manager.signs
        eventually(lambda: manager.signs > signs + 3)
        process.terminate()
        assert ended(process) == 0
        assert manager.hears("STATUS=Finishing")
        assert manager.told[0] == "STATUS=Running"
        assert manager.told[-2:] == ["STOPPING=1", "STATUS=Finishing the current work"]


def test_sighup_runs_the_reload_steps_in_order(tmp_path: Path):
    text = """
def step(name):
    def run():
        with (place / "steps").open("a") as file:
            file.write(name)
    return run

daemon.at_reload(step("a"), step("b"))
"""
    with (
        SimulatedManager(tmp_path, watchdog=0.3) as manager,
        program(manager, tmp_path, text) as process,
    ):
        assert manager.hears("READY=1")
        steps = tmp_path / "steps"
        process.send_signal(signal.SIGHUP)
        eventually(lambda: steps.exists() and steps.read_text() == "ab")
        process.send_signal(signal.SIGHUP)
        eventually(lambda: steps.read_text() == "abab")
        process.terminate()
        assert ended(process) == 0


def test_missing_broker_is_in_status_and_does_not_delay_ready(tmp_path: Path):
    text = """
class Away:
    def start(self):
        while not (place / "broker").exists():
            threading.Event().wait(0.02)
    def stop(self): pass
    wait = stop

daemon.add_server(Away())
daemon.add_task(PeriodicTask("heartbeat", lambda: None, interval=0.05))
"""
    with SimulatedManager(tmp_path) as manager, program(manager, tmp_path, text):
        assert manager.hears("READY=1")
        assert manager.told == ["STATUS=Waiting for the message bus", "READY=1"]
        (tmp_path / "broker").touch()
        assert manager.hears("STATUS=Running")
    assert manager.signs == 0


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        ("threading.Event().wait()", "has been in one run for more than 0.5 seconds"),
        ("sys.exit(3)", "has ended unexpectedly"),
    ],
    ids=["hangs", "ends its thread"],
)
def test_stuck_task_stops_watchdog_messages(tmp_path: Path, job: str, reason: str):
    text = f"""
def job():
    if (place / "stuck").exists():
        {job}

daemon.add_task(PeriodicTask("heartbeat", job, interval=0.05, limit=0.5))
daemon.add_task(PeriodicTask("audit", threading.Event().wait, interval=1))
"""
    with (
        SimulatedManager(tmp_path, watchdog=0.3) as manager,
        program(manager, tmp_path, text) as process,
    ):
        assert manager.hears("WATCHDOG=1", times=8)
        (tmp_path / "stuck").touch()
        assert manager.hears(f"STATUS=Stuck: heartbeat {reason}")
        assert manager.silent(1.0)
        assert process.poll() is None


def test_stuck_server_stops_watchdog_messages(tmp_path: Path):
    text = """
class Server:
    def start(self): pass
    stop = wait = start

daemon.add_server(Server(), alive=lambda: not (place / "dead").exists())
"""
    with SimulatedManager(tmp_path, watchdog=0.3) as manager, program(manager, tmp_path, text):
        assert manager.hears("WATCHDOG=1", times=3)
        (tmp_path / "dead").touch()
        assert manager.hears("STATUS=Stuck: test no longer accepts requests")
        assert manager.silent(1.0)


def test_restarted_daemon_keeps_watchdog_and_is_ready_again(tmp_path: Path):
    """What is in hand takes longer than the watchdog's time; the process id stays."""
    text = """
life = place / f"life-{os.getpid()}"
if not life.exists():
    life.touch()
    def finish():
        while not (place / "done").exists():
            threading.Event().wait(0.1)
    daemon.at_end(finish)
    daemon.add_task(PeriodicTask("job", daemon.restart, interval=3600))
"""
    with (
        SimulatedManager(tmp_path, watchdog=0.3) as manager,
        program(manager, tmp_path, text) as process,
    ):
        assert manager.hears("STATUS=Finishing the current work")
        signs = manager.signs
        eventually(lambda: manager.signs > signs + 5)
        (tmp_path / "done").touch()
        eventually(lambda: manager.told[-1] == "READY=1")
        signs = manager.signs
        eventually(lambda: manager.signs > signs + 3)
        assert "RELOADING=1" in manager.told
        assert manager.told[-2:] == ["STATUS=Running", "READY=1"]
        assert [one.name for one in tmp_path.glob("life-*")] == [f"life-{process.pid}"]
        assert "STOPPING=1" not in manager.told


def test_watchdog_messages_come_from_their_own_thread(tmp_path: Path):
    """Python that nobody lets run gives none: the whole process is frozen then."""
    with (
        SimulatedManager(tmp_path, watchdog=0.3) as manager,
        program(manager, tmp_path, "") as process,
    ):
        assert manager.hears("WATCHDOG=1", times=2)
        process.send_signal(signal.SIGSTOP)
        assert manager.silent(1.0)
        process.send_signal(signal.SIGCONT)
        signs = manager.signs
        eventually(lambda: manager.signs > signs)
