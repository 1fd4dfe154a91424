# SPDX-License-Identifier: Apache-2.0
"""What both programs write on a real terminal of 80 columns, and into a pipe."""

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

import cyborg
from cyborg.cli import shell
from cyborg.cli.base import List
from cyborg.cli.catalogue import COMMANDS
from cyborg.tests.fixtures.loopback import Loopback
from cyborg.tests.unit.cli.service import AGENT as SERVICE
from cyborg.tests.unit.cli.service import (
    ARQ,
    DEVICE,
    DRIVER,
    ENGINE,
    INSTANCE,
    OPERATION,
    THINGS,
    Answer,
    Service,
    operation,
    result,
)

ROOT = str(Path(cyborg.__file__).resolve().parent.parent)
LISTS = [name for name, entry in COMMANDS.items() if issubclass(entry.kind, List)]
SHOWS = [
    f"service-show {SERVICE}",
    f"driver-show {DRIVER}",
    f"backend-show {ENGINE}",
    f"hardware-show {DEVICE}",
    f"accelerator-show {DEVICE}",
    f"arq-show {ARQ}",
    "profile-show fpga",
    f"operation-show {OPERATION}",
]
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
COLOUR = re.compile(r"\x1b\[[0-9]*m")
FINDINGS = {
    "drivers": [
        {"name": "generic_driver", "state": "READY", "found": 12, "added": 2, "error": None},
        {"name": "fake_driver", "state": "READY", "found": 1, "added": 0, "error": None},
    ],
    "installing": [DEVICE],
}
DONE = operation(
    "failed",
    result("compute-1.region-one.example.org", "succeeded", result=FINDINGS),
    result("compute-2", "failed", error="The agent of compute-2 did not answer within an hour."),
    steps=[{"name": "begun", "at": "2026-11-01T10:00:00.000+00:00"}],
    subject={"driver": "generic_driver", "hosts": ["compute-1.region-one.example.org"]},
)


@dataclass(frozen=True)
class Written:
    """The end of a program; ``lines`` are without colours."""

    status: int
    lines: list[str]
    errors: str = ""

    @property
    def text(self) -> str:
        """The whole output."""
        return "\n".join(self.lines)


class Screen:
    """A pseudo-terminal of 24 lines; what is written to ``slave`` can be read afterwards."""

    def __init__(self, columns: int) -> None:
        self._master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._output = b""
        # A terminal holds some kilobytes only: what is written must be read meanwhile.
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        # Linux ends the reading with an error when the last writer has closed.
        with contextlib.suppress(OSError):
            while part := os.read(self._master, 65536):
                self._output += part

    def type(self, text: str) -> None:
        """Press these keys."""
        os.write(self._master, text.encode())

    def lines(self) -> list[str]:
        """The lines that were written; the slave must be closed everywhere."""
        self._reader.join()
        os.close(self._master)
        return COLOUR.sub("", self._output.decode()).replace("\r\n", "\n").splitlines()


@dataclass(frozen=True)
class Seat:
    """A place from which the service is reached; ``home`` is the user's directory."""

    url: str
    home: Path

    @property
    def account(self) -> tuple[str, ...]:
        """The options that stand before the command."""
        return ("--os-auth-type", "none", "--os-endpoint", self.url)

    def terminal(self, *arguments: str, columns: int = 80) -> Written:
        """Run the program with a terminal as its output."""
        screen, errors = Screen(columns), io.StringIO()
        with open(screen.slave, "w", encoding="utf-8") as out:
            status = shell.main((*self.account, *arguments), stdout=out, stderr=errors)
        return Written(status, screen.lines(), errors.getvalue())

    def pipe(self, *arguments: str) -> Written:
        """Run the program with an output that is not a terminal."""
        out, errors = io.StringIO(), io.StringIO()
        status = shell.main((*self.account, *arguments), stdout=out, stderr=errors)
        return Written(status, out.getvalue().splitlines(), errors.getvalue())

    def process(self, module: str, *arguments: str, typed: str = "") -> Written:
        """Run a module as a process of its own, on a terminal of 80 columns."""
        screen = Screen(80)
        environment = {
            "HOME": str(self.home),
            "PATH": os.defpath,
            "PYTHONPATH": ROOT,
            "LC_ALL": "C.UTF-8",
            "TERM": "xterm",
        }
        process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", "-m", module, *self.account, *arguments],
            stdin=screen.slave,
            stdout=screen.slave,
            stderr=screen.slave,
            env=environment,
            start_new_session=True,
        )
        os.close(screen.slave)
        screen.type(typed)
        return Written(process.wait(timeout=120), screen.lines())


@pytest.fixture
def service() -> Service:
    """What the commands talk to."""
    service = Service()
    service.course = [DONE]
    return service


@pytest.fixture
def seat(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Seat]:
    """A place from which the service is reached."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(tmp_path / "clouds.yaml"))
    with Loopback(service) as loopback:
        yield Seat(f"{loopback.url}/v2", tmp_path)


@pytest.mark.parametrize("line", [*LISTS, *(f"{name} --long" for name in LISTS), *SHOWS])
def test_a_table_fits_80_columns_with_every_value_and_whole_uuids(line: str, seat: Seat):
    if line == "usage-show --long":
        line = "usage-show"
    shown = seat.terminal(*line.split())
    piped = seat.pipe(*line.split(), "-f", "json")
    assert max(map(len, shown.lines)) <= 80, shown.text
    rows = json.loads(piped.text)
    text = shown.text
    for row in rows if isinstance(rows, list) else [rows]:
        for uuid in UUID.findall(json.dumps(row)):
            assert uuid in text
        for name, value in row.items():
            if value not in (None, "", [], {}):
                assert name in text


def test_a_wide_terminal_has_wide_tables(seat: Seat):
    narrow = seat.terminal("accelerator-list", "--long")
    wide = seat.terminal("accelerator-list", "--long", columns=400)
    assert max(map(len, wide.lines)) > 200
    assert len(wide.lines) < len(narrow.lines)


def test_a_terminal_narrower_than_a_uuid_does_not_break_it(seat: Seat):
    shown = seat.terminal("driver-list", columns=30)
    assert shown.status == 0
    assert any(DRIVER in line for line in shown.lines)


def test_a_column_without_values_goes_unless_it_is_named(seat: Seat, service: Service):
    driver = THINGS["drivers"][0] | {"type": None, "error": None}
    service.answers["/drivers"] = [Answer(200, {"drivers": [driver]}) for _ in range(3)]
    assert "error" not in seat.terminal("driver-list", "--long").text
    assert "error" in seat.terminal("driver-list", "--long", "-c", "error").text
    assert "error" in seat.pipe("driver-list", "--long").lines[1]


def test_a_pipe_gets_every_column_in_one_line_for_each_object(seat: Seat):
    lines = seat.pipe("accelerator-list", "--long").lines
    assert "status_reason" in lines[1]
    assert "vendor_board_info" in lines[1]
    (row,) = seat.pipe("arq-list", "-f", "value").lines
    assert ARQ in row
    assert INSTANCE in row


def test_an_operation_reads_as_sentences(seat: Seat):
    text = seat.terminal("operation-show", OPERATION, columns=200).text
    assert "begun at 2026-11-01T10:00:00.000+00:00" in text
    assert "generic_driver found 12 devices (2 new); fake_driver found 1 device" in text
    assert f"being set up: {DEVICE}" in text
    assert "driver generic_driver on compute-1.region-one.example.org" in text
    assert "found=" not in text


@pytest.mark.parametrize("line", LISTS)
def test_an_empty_list_says_what_to_do(line: str, seat: Seat, service: Service):
    for path, key in (
        ("/services", "services"),
        ("/drivers", "drivers"),
        ("/backends", "backends"),
        ("/hardware", "hardware"),
        ("/devices", "devices"),
        ("/device_profiles", "device_profiles"),
        ("/accelerator_requests", "arqs"),
        ("/operations", "operations"),
        ("/usage", "usage"),
        ("/events", "events"),
    ):
        service.answers[path] = [Answer(200, {key: []}) for _ in range(3)]
    piped = seat.pipe(line, "-f", "json")
    assert (piped.status, piped.lines) == (0, ["[]"])
    assert "There are no" in piped.errors
    assert (seat.pipe("-q", line, "-f", "value").errors) == ""
    assert "There are no" in seat.terminal(line).errors


def test_a_filter_that_matches_nothing_is_named_as_the_reason(seat: Seat, service: Service):
    service.answers["/drivers"] = [Answer(200, {"drivers": []})]
    assert "Leave filters out" in seat.pipe("driver-list", "--host", "nowhere").errors


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("cyborg.cli.shell", "accelerator-list"),
        ("openstackclient.shell", "accelerator list"),
        ("openstackclient.shell", f"accelerator operation show {OPERATION}"),
    ],
)
def test_both_programs_fit_a_real_terminal(module: str, line: str, seat: Seat):
    shown = seat.process(module, *line.split())
    assert max(map(len, shown.lines)) <= 80, shown.text
    assert (DEVICE if "list" in line else OPERATION) in shown.text


@pytest.mark.parametrize(("typed", "status"), [("1\n", 0), ("y\n", 0), ("n\n", 1), ("\n", 1)])
def test_a_terminal_is_asked_before_selected_accelerators_change(
    typed: str, status: int, seat: Seat, service: Service
):
    line = "accelerator-update --driver fake_driver --status maintaining"
    shown = seat.process("cyborg.cli.shell", *line.split(), typed=typed)
    assert "Change 1 accelerator with driver fake_driver? [y/N or 1]" in shown.text
    assert shown.status == status, shown.text
    assert [one.method for one in service.asked] == ["GET", "PATCH"][: 2 - status]
