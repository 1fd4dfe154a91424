# SPDX-License-Identifier: Apache-2.0
"""An interrupted walkthrough stops what it started and removes its databases.

CI runs the walkthrough itself, which checks its steps.
"""

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


def databases() -> set[str]:
    engine = sa.create_engine(SERVER, poolclass=sa.NullPool)
    with engine.connect() as connection:
        found = connection.execute(sa.text("SHOW DATABASES")).scalars()
        return {one for one in found if one.startswith("cyborg_walkthrough")}


def test_interrupted_walkthrough_removes_its_databases(tmp_path: Path) -> None:
    before = databases()
    log = tmp_path / "log"
    command = [sys.executable, "-m", "cyborg_tools.walkthrough", "--mysql-url", SERVER]
    with log.open("w") as output:
        walk = subprocess.Popen(
            [*command, "--rabbit-url", TRANSPORT_URL],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(_TOOLS)},
        )
    try:
        begun = service.wait_until(
            lambda: walk.poll() is not None or "1. Services come up" in log.read_text(),
            timeout=_PATIENCE,
        )
        assert begun, log.read_text()
        pids = [int(one) for one in re.findall(r"pid (\d+)", log.read_text())]
        assert len(pids) == 4, log.read_text()
        mine = databases() - before
        assert mine
        walk.send_signal(signal.SIGINT)
        assert walk.wait(_PATIENCE) == 130
    finally:
        if walk.poll() is None:
            walk.kill()
            walk.wait()
    assert "interrupted; everything that was started is stopped" in log.read_text()
    assert [one for one in pids if Path(f"/proc/{one}").exists()] == []
    assert not mine & databases()
