# SPDX-License-Identifier: Apache-2.0
"""The program in front of the real API, for somebody with a role in a project."""

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cyborg.cli import shell
from cyborg.tests.fixtures.loopback import Loopback
from cyborg.tests.functional.life.http import TokenReader
from cyborg.tests.unit.cli.conftest import Ran

#: Runs one command as somebody.
Seat = Callable[..., Ran]


@pytest.fixture(scope="session")
def url(app: Any) -> Iterator[str]:
    """The API on a real port, for those who bring tokens."""
    with Loopback(TokenReader(app.app)) as door:
        yield f"{door.url}/v2"


@pytest.fixture
def seat(url: str, monkeypatch: pytest.MonkeyPatch, clean: None) -> Callable[..., Seat]:
    """Take a seat at a shell, in a role and a project."""
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", "/nonexistent/clouds.yaml")

    def take(role: str, project: str = "blue") -> Seat:
        account = ("--os-auth-type", "admin_token", "--os-token", f"{role}:{project}")

        def run(command: str, *more: str) -> Ran:
            out, err = io.StringIO(), io.StringIO()
            arguments = (*account, "--os-endpoint", url, *command.split(), *more)
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = shell.main(arguments, stdout=out, stderr=err)
            return Ran(status, out.getvalue(), err.getvalue())

        return run

    return take
