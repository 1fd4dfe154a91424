# SPDX-License-Identifier: Apache-2.0
"""The program, in this process, in front of a service on a real port."""

import contextlib
import io
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cyborg.cli import shell
from cyborg.tests.fixtures.loopback import Loopback
from cyborg.tests.unit.cli.service import Service


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def shown(self) -> Any:
        """What it printed, as JSON."""
        assert self.status == 0, self.err
        return json.loads(self.out)


class Screen(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


Run = Callable[..., Ran]


@pytest.fixture
def service() -> Service:
    """What the commands talk to."""
    return Service()


@pytest.fixture
def url(service: Service) -> Iterator[str]:
    """Where it listens."""
    with Loopback(service) as loopback:
        yield loopback.url


@pytest.fixture(autouse=True)
def _nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variables and no files of whoever runs the tests."""
    for name in [name for name in os.environ if name.startswith(("OS_", "CLIFF_"))]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(tmp_path / "clouds.yaml"))


@pytest.fixture
def pauses() -> list[float]:
    """How long commands wanted to wait, in seconds; nobody does."""
    return []


@pytest.fixture
def program(pauses: list[float]) -> Run:
    """Run the program with these arguments and no others."""

    def run(
        *arguments: str,
        terminal: bool = False,
        pause: Callable[[float], object] = pauses.append,
    ) -> Ran:
        out, err = (Screen(), Screen()) if terminal else (io.StringIO(), io.StringIO())
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = shell.main(arguments, pause=pause, stdout=out, stderr=err)
            except SystemExit as ended:
                status = int(ended.code or 0)
        return Ran(status, out.getvalue(), err.getvalue())

    return run


@pytest.fixture
def cyborg(program: Run, url: str) -> Run:
    """Run a command against the service, which asks for no token."""

    def run(command: str, *arguments: str, terminal: bool = False) -> Ran:
        options = ("--os-auth-type", "none", "--os-endpoint", f"{url}/v2")
        return program(*options, *command.split(), *arguments, terminal=terminal)

    return run
