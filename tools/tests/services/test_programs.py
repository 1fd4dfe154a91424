# SPDX-License-Identifier: Apache-2.0
"""Interrupted programs stop their daemons and remove their databases; ``dev`` restarts daemons.

CI runs the walkthrough itself, which checks its steps.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa

from cyborg import service
from cyborg.tests.functional.deployments import TRANSPORT_URL
from cyborg.tests.functional.schema.databases import SERVER

#: The directory of the package of the commands.
_TOOLS = Path(__file__).parents[2]
#: Seconds for the daemons to start, and to end.
_PATIENCE = 240
_DAEMONS = ("cyborg-api", "cyborg-conductor", "cyborg-agent")

Wait = Callable[[Callable[[str], object]], None]


def databases(program: str) -> set[str]:
    engine = sa.create_engine(SERVER, poolclass=sa.NullPool)
    with engine.connect() as connection:
        names = connection.execute(sa.text("SHOW DATABASES")).scalars()
        return {one for one in names if one.startswith(f"cyborg_{program}")}


def interrupted(
    tmp_path: Path, program: str, *arguments: str, use: Callable[[Wait], list[int]]
) -> tuple[int, str]:
    """Interrupt a program after its use, which returns pids; return its status and output.

    Nothing of these processes and of the program's databases may be left.
    """
    before = databases(program)
    log = tmp_path / "log"
    command = [sys.executable, "-m", f"cyborg_tools.{program}", *arguments]
    with log.open("w") as output:
        child = subprocess.Popen(
            [*command, "--mysql-url", SERVER, "--rabbit-url", TRANSPORT_URL],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(_TOOLS)},
        )

    def wait(holds: Callable[[str], object]) -> None:
        came = service.wait_until(
            lambda: child.poll() is not None or bool(holds(log.read_text())), timeout=_PATIENCE
        )
        assert came, log.read_text()
        assert child.poll() is None, log.read_text()

    try:
        pids = use(wait)
        mine = databases(program) - before
        assert mine
        child.send_signal(signal.SIGINT)
        status = child.wait(_PATIENCE)
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    assert [one for one in pids if Path(f"/proc/{one}").exists()] == []
    assert not mine & databases(program)
    return status, log.read_text()


def test_interrupted_walkthrough_removes_its_databases(tmp_path: Path) -> None:
    def use(wait: Wait) -> list[int]:
        wait(lambda log: "1. Services come up" in log)
        pids = [int(one) for one in re.findall(r"pid (\d+)", (tmp_path / "log").read_text())]
        assert len(pids) == 4
        return pids

    status, log = interrupted(tmp_path, "walkthrough", use=use)
    assert status == 130
    assert "interrupted; everything that was started is stopped" in log


def test_dev_restarts_after_a_change_and_cleans_up_at_exit(tmp_path: Path) -> None:
    line = r"\d+:\d+:\d+\.\d+ (\d+) INFO cyborg.service \[-\] {} is running"
    (tmp_path / "mine").mkdir()

    def pids(log: str) -> list[list[str]]:
        return [re.findall(line.format(name), log) for name in _DAEMONS]

    def use(wait: Wait) -> list[int]:
        wait(lambda log: all(len(one) == 1 for one in pids(log)))
        (tmp_path / "mine" / "driver.py").write_text("")
        wait(lambda log: all(len(one) == 2 for one in pids(log)))
        return [int(pid) for both in pids((tmp_path / "log").read_text()) for pid in both]

    arguments = ("--port", "0", "--watch", str(tmp_path / "mine"))
    status, log = interrupted(tmp_path, "dev", *arguments, use=use)
    assert status == 0
    assert "driver.py changed: restarting." in log
