# SPDX-License-Identifier: Apache-2.0
"""Fixtures that run the program in this process against a fake service on a real port."""

import contextlib
import io
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from openstack.config import loader

from cyborg.tests.fixtures.loopback import Loopback
from cyborg.tests.unit.cli.service import Service
from cyborg_cli import shell


@dataclass(frozen=True)
class CommandResult:
    """Exit status and output of a command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Return the output, parsed as JSON; the command must have succeeded."""
        assert self.status == 0, self.err
        return json.loads(self.out)


class TerminalStream(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


Run = Callable[..., CommandResult]


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def url(service: Service) -> Iterator[str]:
    with Loopback(service) as loopback:
        yield loopback.url


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the variables and files of the user who runs the tests."""
    for name in [name for name in os.environ if name.startswith(("OS_", "CLIFF_"))]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(tmp_path / "clouds.yaml"))
    # openstacksdk before 4.15 adds the file of the variable to its own list.
    monkeypatch.setattr(loader, "CONFIG_FILES", list(loader.CONFIG_FILES))


@pytest.fixture
def pauses() -> list[float]:
    """Return the pauses of the commands, in seconds; no command really waits."""
    return []


@pytest.fixture
def program(pauses: list[float]) -> Run:
    """Return a function that runs the program with its arguments only."""

    def run(
        *arguments: str, terminal: bool = False, pause: Callable[[float], object] = pauses.append
    ) -> CommandResult:
        kind = TerminalStream if terminal else io.StringIO
        out, err = kind(), kind()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = shell.main(arguments, pause=pause, stdout=out, stderr=err)
            except SystemExit as error:
                status = int(error.code or 0)
        return CommandResult(status, out.getvalue(), err.getvalue())

    return run


@pytest.fixture
def cyborg(program: Run, url: str) -> Run:
    """Return a function that runs a command against the fake service, without Keystone."""

    def run(command: str, *arguments: str, terminal: bool = False) -> CommandResult:
        options = ("--os-auth-type", "none", "--os-endpoint", f"{url}/v2")
        return program(*options, *command.split(), *arguments, terminal=terminal)

    return run
