# SPDX-License-Identifier: Apache-2.0
"""Fixtures that run the program against the real API, as a user with a role in a project."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cyborg.tests.fixtures.loopback import Loopback
from cyborg.tests.functional.life.http import TokenReader
from cyborg.tests.unit.cli.conftest import CommandResult, Run, clean_environment, pauses, program

__all__ = ["clean_environment", "pauses", "program"]

#: Runs one command as a user.
UserCommand = Callable[..., CommandResult]


@pytest.fixture(scope="session")
def url(app: Any) -> Iterator[str]:
    """Return the URL of the real API on a real port, with token authentication."""
    with Loopback(TokenReader(app.app)) as loopback:
        yield f"{loopback.url}/v2"


@pytest.fixture
def as_user(url: str, program: Run, clean: None) -> Callable[..., UserCommand]:
    """Return a function that takes role and project, and returns the commands of that user."""

    def select(role: str, project: str = "blue") -> UserCommand:
        options = ("--os-auth-type", "admin_token", "--os-token", f"{role}:{project}")

        def run(command: str, *more: str) -> CommandResult:
            return program(*options, "--os-endpoint", url, *command.split(), *more)

        return run

    return select
