# SPDX-License-Identifier: Apache-2.0
"""The output of both programs on a terminal of 80 columns and in a pipe."""

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import cyborg_cli
from cyborg.tests.fixtures.loopback import Loopback
from cyborg.tests.fixtures.waiting import PATIENCE, joined
from cyborg.tests.unit.cli.service import AGENT as SERVICE
from cyborg.tests.unit.cli.service import (
    ARQ,
    BACKEND,
    DEVICE,
    DRIVER,
    INSTANCE,
    OPERATION,
    RESOURCES,
    Answer,
    Service,
    operation,
    result,
)
from cyborg_cli import shell
from cyborg_cli.base import ListCommand
from cyborg_cli.shell import COMMANDS

ROOT = str(Path(cyborg_cli.__file__).resolve().parent.parent)
LISTS = [name for name, entry in COMMANDS.items() if issubclass(entry.command, ListCommand)]
SHOWS = [
    f"service-show {SERVICE}",
    f"driver-show {DRIVER}",
    f"backend-show {BACKEND}",
    f"hardware-show {DEVICE}",
    f"accelerator-show {DEVICE}",
    f"arq-show {ARQ}",
    "profile-show fpga",
    f"operation-show {OPERATION}",
]
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
COLOUR = re.compile(r"\x1b\[[0-9]*m")
DISCOVERY_RESULT = {
    "drivers": [
        {"name": "generic_driver", "state": "READY", "found": 12, "added": 2, "error": None},
        {"name": "fake_driver", "state": "READY", "found": 1, "added": 0, "error": None},
    ],
    "installing": [DEVICE],
}
ENDED_OPERATION = operation(
    "failed",
    result("compute-1.region-one.example.org", "succeeded", result=DISCOVERY_RESULT),
    result("compute-2", "failed", error="The agent of compute-2 did not answer within an hour."),
    steps=[{"name": "begun", "at": "2026-11-01T10:00:00.000+00:00"}],
    subject={"driver": "generic_driver", "hosts": ["compute-1.region-one.example.org"]},
)


@dataclass(frozen=True)
class Output:
    """Exit status and output of a program; ``lines`` are without colours."""

    status: int
    lines: list[str]
    errors: str = ""

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class PseudoTerminal:
    """A pseudo-terminal of 24 lines; the lines written to ``slave`` can be read afterwards."""

    def __init__(self, columns: int) -> None:
        self._master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._output = b""
        # The buffer of a terminal is a few kilobytes, so a thread must read it all the time.
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        # On Linux, read fails when the last writer has closed the terminal.
        with contextlib.suppress(OSError):
            while part := os.read(self._master, 65536):
                self._output += part

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def lines(self) -> list[str]:
        """Return the lines written; every process must have closed the slave."""
        joined(self._reader)
        os.close(self._master)
        return COLOUR.sub("", self._output.decode()).replace("\r\n", "\n").splitlines()


@dataclass(frozen=True)
class ProgramRunner:
    """Runs the programs against a service; ``home`` is the home directory of the user."""

    url: str
    home: Path

    @property
    def global_options(self) -> tuple[str, ...]:
        return ("--os-auth-type", "none", "--os-endpoint", self.url)

    def terminal(self, *arguments: str, columns: int = 80) -> Output:
        """Run the program with a terminal as its output."""
        terminal, errors = PseudoTerminal(columns), io.StringIO()
        with open(terminal.slave, "w", encoding="utf-8") as out:
            status = shell.main((*self.global_options, *arguments), stdout=out, stderr=errors)
        return Output(status, terminal.lines(), errors.getvalue())

    def pipe(self, *arguments: str) -> Output:
        out, errors = io.StringIO(), io.StringIO()
        status = shell.main((*self.global_options, *arguments), stdout=out, stderr=errors)
        return Output(status, out.getvalue().splitlines(), errors.getvalue())

    def process(self, module: str, *arguments: str, typed: str = "") -> Output:
        """Run a module as a process of its own, on a terminal of 80 columns."""
        terminal = PseudoTerminal(80)
        environment = {
            "HOME": str(self.home),
            "PATH": os.defpath,
            "PYTHONPATH": ROOT,
            "LC_ALL": "C.UTF-8",
            "TERM": "xterm",
        }
        process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", "-m", module, *self.global_options, *arguments],
            stdin=terminal.slave,
            stdout=terminal.slave,
            stderr=terminal.slave,
            env=environment,
            start_new_session=True,
        )
        os.close(terminal.slave)
        terminal.type(typed)
        return Output(process.wait(timeout=PATIENCE), terminal.lines())


@pytest.fixture
def service() -> Service:
    service = Service()
    service.operation_states = [ENDED_OPERATION]
    return service


@pytest.fixture
def runner(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ProgramRunner]:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(tmp_path / "clouds.yaml"))
    with Loopback(service) as loopback:
        yield ProgramRunner(f"{loopback.url}/v2", tmp_path)


@pytest.mark.parametrize("line", [*LISTS, *(f"{name} --long" for name in LISTS), *SHOWS])
def test_table_fits_80_columns_with_all_values_and_whole_uuids(line: str, runner: ProgramRunner):
    if line.startswith("usage-"):
        # They have no columns more.
        line = line.removesuffix(" --long")
    output = runner.terminal(*line.split())
    piped = runner.pipe(*line.split(), "-f", "json")
    assert max(map(len, output.lines)) <= 80, output.text
    rows = json.loads(piped.text)
    text = output.text
    for row in rows if isinstance(rows, list) else [rows]:
        for uuid in UUID.findall(json.dumps(row)):
            assert uuid in text
        for name, value in row.items():
            if value not in (None, "", [], {}):
                assert name in text


def test_width_of_the_terminal_decides(runner: ProgramRunner):
    narrow = runner.terminal("accelerator-list", "--long")
    wide = runner.terminal("accelerator-list", "--long", columns=400)
    assert max(map(len, wide.lines)) > 200
    assert len(wide.lines) < len(narrow.lines)
    narrowest = runner.terminal("driver-list", columns=30)
    assert narrowest.status == 0
    assert any(DRIVER in line for line in narrowest.lines)


def test_column_without_values_is_omitted_unless_selected(runner: ProgramRunner, service: Service):
    driver = RESOURCES["drivers"][0] | {"type": None, "error": None}
    service.answers["/drivers"] = [Answer(200, {"drivers": [driver]}) for _ in range(3)]
    assert "error" not in runner.terminal("driver-list", "--long").text
    assert "error" in runner.terminal("driver-list", "--long", "-c", "error").text
    assert "error" in runner.pipe("driver-list", "--long").lines[1]


def test_pipe_gets_all_columns_with_one_line_per_object(runner: ProgramRunner):
    lines = runner.pipe("accelerator-list", "--long").lines
    assert "status_reason" in lines[1]
    assert "vendor_board_info" in lines[1]
    (row,) = runner.pipe("arq-list", "-f", "value").lines
    assert ARQ in row
    assert INSTANCE in row


def test_operation_fields_are_shown_as_text(runner: ProgramRunner):
    text = runner.terminal("operation-show", OPERATION, columns=200).text
    assert "begun at 2026-11-01T10:00:00.000+00:00" in text
    assert "generic_driver found 12 devices (2 new); fake_driver found 1 device" in text
    assert f"being set up: {DEVICE}" in text
    assert "driver generic_driver on compute-1.region-one.example.org" in text
    assert "found=" not in text


def test_empty_list_prints_what_to_do_next(runner: ProgramRunner, service: Service):
    nouns = ("services", "drivers", "backends", "hardware", "devices", "device_profiles")
    keys = {f"/{noun}": noun for noun in (*nouns, "operations", "usage", "events", "capacity")}
    keys["/accelerator_requests"] = "arqs"
    for path, key in keys.items():
        service.answers[path] = [Answer(200, {key: []}) for _ in range(8)]
    for line in LISTS:
        piped = runner.pipe(line, "-f", "json")
        assert (piped.status, piped.lines) == (0, ["[]"])
        assert "There are no" in piped.errors
        assert (runner.pipe("-q", line, "-f", "value").errors) == ""
        assert "There are no" in runner.terminal(line).errors
    assert "Remove filters" in runner.pipe("driver-list", "--host", "nowhere").errors


@pytest.mark.parametrize("line", ["accelerator list", f"accelerator operation show {OPERATION}"])
def test_openstack_client_fits_tables_to_a_terminal(line: str, runner: ProgramRunner):
    output = runner.process("openstackclient.shell", *line.split())
    assert max(map(len, output.lines)) <= 80, output.text
    assert (DEVICE if "list" in line else OPERATION) in output.text


def test_program_asks_on_a_terminal_and_fits_its_table(runner: ProgramRunner, service: Service):
    line = "accelerator-update --driver fake_driver --status maintaining"
    output = runner.process("cyborg_cli.shell", *line.split(), typed="1\n")
    assert "Change 1 accelerator with driver fake_driver? [y/N or 1]" in output.text
    assert output.status == 0, output.text
    assert [request.method for request in service.requests] == ["GET", "PATCH"]
    # The first line of the table stands behind the question.
    assert max(map(len, output.lines[2:])) <= 80, output.text
