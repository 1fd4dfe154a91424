# SPDX-License-Identifier: Apache-2.0
"""``dev`` restarts its daemons when a file changes, and leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import sqlalchemy as sa

from cyborg import service
from cyborg.tests.functional.deployments import TRANSPORT_URL
from cyborg.tests.functional.schema.databases import SERVER

#: The directory of the package of the command.
_TOOLS = Path(__file__).parents[2]

#: Seconds for the daemons to start, and to end.
_PATIENCE = 240
_DAEMONS = ("cyborg-api", "cyborg-conductor", "cyborg-agent")


def pids(log: str) -> dict[str, list[int]]:
    """Return the process ids of the daemons that log that they run, in this order."""
    line = r"\d+:\d+:\d+\.\d+ (\d+) INFO cyborg.service \[-\] {} is running"
    return {name: [int(one) for one in re.findall(line.format(name), log)] for name in _DAEMONS}


def test_dev_restarts_after_a_change_and_cleans_up_at_exit(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    log = tmp_path / "log"
    command = [sys.executable, "-m", "cyborg_tools.dev", "--port", "0", "--watch", str(mine)]
    with log.open("w") as output:
        dev = subprocess.Popen(
            [*command, "--mysql-url", SERVER, "--rabbit-url", TRANSPORT_URL],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(_TOOLS)},
        )

    def all_run(times: int) -> bool:
        found = pids(log.read_text()).values()
        return dev.poll() is not None or all(len(one) == times for one in found)

    try:
        assert service.wait_until(lambda: all_run(1), timeout=_PATIENCE), log.read_text()
        (mine / "driver.py").write_text("")
        assert service.wait_until(lambda: all_run(2), timeout=_PATIENCE), log.read_text()
        dev.send_signal(signal.SIGINT)
        assert dev.wait(_PATIENCE) == 0
    finally:
        if dev.poll() is None:
            dev.kill()
            dev.wait()
    said = log.read_text()
    assert "driver.py changed: restarting." in said
    started = [pid for both in pids(said).values() for pid in both]
    assert [one for one in started if Path(f"/proc/{one}").exists()] == []
    (database,) = re.findall(r"/(cyborg_dev_\w+)", said)
    engine = sa.create_engine(SERVER, poolclass=sa.NullPool)
    with engine.connect() as connection:
        assert database not in connection.execute(sa.text("SHOW DATABASES")).scalars().all()
