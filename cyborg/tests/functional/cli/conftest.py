# SPDX-License-Identifier: Apache-2.0
"""Fixtures that run the program against the real API, as a user with a role in a project."""

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cyborg.cli import shell
from cyborg.tests.fixtures.loopback import Loopback
from cyborg.tests.functional.life.http import TokenReader
from cyborg.tests.unit.cli.conftest import CommandResult

#: Runs one command as a user.
UserCommand = Callable[..., CommandResult]


@pytest.fixture(scope="session")
def url(app: Any) -> Iterator[str]:
    """Return the URL of the real API on a real port, with token authentication."""
    with Loopback(TokenReader(app.app)) as loopback:
        yield f"{loopback.url}/v2"


@pytest.fixture
def as_user(url: str, monkeypatch: pytest.MonkeyPatch, clean: None) -> Callable[..., UserCommand]:
    """Return a function that takes role and project, and returns the commands of that user."""
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", "/nonexistent/clouds.yaml")

    def select(role: str, project: str = "blue") -> UserCommand:
        credentials = ("--os-auth-type", "admin_token", "--os-token", f"{role}:{project}")

        def run(command: str, *more: str) -> CommandResult:
            out, err = io.StringIO(), io.StringIO()
            arguments = (*credentials, "--os-endpoint", url, *command.split(), *more)
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = shell.main(arguments, stdout=out, stderr=err)
            return CommandResult(status, out.getvalue(), err.getvalue())

        return run

    return select
