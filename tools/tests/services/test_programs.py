# SPDX-License-Identifier: Apache-2.0
"""Interrupted programs stop their daemons and remove their databases; ``dev`` restarts daemons.

CI runs the walkthrough itself, which checks its steps.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa

from cyborg import service
from cyborg.tests.functional.deployments import TRANSPORT_URL
from cyborg.tests.functional.schema.databases import SERVER
from cyborg_tools.chaos.servers import MariaDb

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
    tmp_path: Path,
    program: str,
    *arguments: str,
    use: Callable[[Wait], list[int]],
    own_servers: bool = False,
) -> tuple[int, str]:
    """Interrupt a program after its use, which returns pids; return its status and output.

    Nothing of these processes and of the program's databases may be left. A program with its own
    servers makes no database on those of the tests.
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
        assert bool(mine) is not own_servers
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


def test_interrupted_walkthrough_over_tls_leaves_no_server_and_no_key(tmp_path: Path) -> None:
    def use(wait: Wait) -> list[int]:
        wait(lambda log: "1. Connections without TLS" in log)
        found = re.findall(r"pid (\d+) +(.+)", (tmp_path / "log").read_text())
        names = [name.partition(",")[0] for _, name in found]
        assert names[4:] == ["MariaDB", "RabbitMQ", "epmd", "Keystone"]
        return [int(pid) for pid, _ in found]

    status, log = interrupted(tmp_path, "walkthrough", "--tls", use=use, own_servers=True)
    assert status == 130
    ca = re.findall(r"OS_CACERT=(.+)", log)[0]
    # The key of the authority is in no file; those of servers and hosts are beside its certificate.
    assert not Path(ca).parents[2].exists()


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


def test_a_second_server_keeps_the_temporary_tables_of_the_first(tmp_path: Path) -> None:
    """A starting server removes all ``#sql*`` files of its directory for temporary tables.

    Source: ``mysql_rm_tmp_tables`` in ``sql/sql_base.cc`` of MariaDB. A query of another server
    that uses such a file then fails.
    """
    with tempfile.NamedTemporaryFile(prefix="#sql-temptable-", dir="/tmp", delete=False) as file:
        table = Path(file.name)
    server = MariaDb(tmp_path / "server")
    server.begin()
    try:
        server.wait()
        assert table.exists()
    finally:
        server.stop()
        table.unlink(missing_ok=True)
