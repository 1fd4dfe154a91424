# SPDX-License-Identifier: Apache-2.0
"""The ``openstack`` command of this environment, in one of its generations."""

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from cyborg.tests.fixtures.keystone import Account, KeystoneService
from cyborg.tests.unit.cli.conftest import CommandResult
from cyborg_cli import shell


class Shell:
    """Runs commands with the same options; a context manager.

    ``overlook`` is a module whose commands are not seen, as if it were not installed; ``variables``
    are those of the environment.
    """

    def __init__(
        self, directory: Path, options: Sequence[str], *, overlook: str = "", **variables: str
    ) -> None:
        self.home = directory
        self.options = list(options)
        self._errors = (directory / "shell.err").open("w")
        self._child = subprocess.Popen(
            [
                sys.executable,
                "-P",
                str(Path(__file__).with_name("shell_child.py")),
                *([overlook] if overlook else []),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment(directory) | variables,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self._child.communicate()
        self._errors.close()

    def run(self, command: str, *arguments: str) -> tuple[int, str, str]:
        """Run one command; its status, output and error output."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        line = [*self.options, *command.split(), *arguments]
        self._child.stdin.write(json.dumps(line) + "\n")
        self._child.stdin.flush()
        status, out, err = json.loads(self._child.stdout.readline())
        return status, out, err

    def do(self, command: str, *arguments: str) -> None:
        """Run a command that must succeed; what it shows is meant for people."""
        status, out, err = self.run(command, *arguments)
        assert status in {0, None}, out + err

    def show(self, command: str, *arguments: str) -> Any:
        """What a command shows, parsed; it must succeed."""
        status, out, err = self.run(command, *arguments, "-f", "json")
        assert status == 0, out + err
        return json.loads(out)

    def fails(self, command: str, *arguments: str) -> str:
        """What a command complains about; it must fail."""
        status, out, err = self.run(command, *arguments)
        assert status not in {0, None}, out
        return out + err


def cyborg(who: str, command: str, *arguments: str) -> CommandResult:
    """One command of the ``cyborg`` program, in this process, as somebody of ``clouds.yaml``."""
    out, err = io.StringIO(), io.StringIO()
    line = ["--os-cloud", who, *command.split(), *arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = shell.main(line, stdout=out, stderr=err)
    return CommandResult(status, out.getvalue(), err.getvalue())


def environment(directory: Path) -> dict[str, str]:
    """Variables of a client: a home of its own, and nothing that others left."""
    return {"HOME": str(directory), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}


def write_clouds(
    directory: Path, keystone: KeystoneService, accounts: Mapping[str, Account], **more: Any
) -> None:
    """Write ``clouds.yaml`` into a client's home, with a cloud for each account by name.

    ``more`` are settings of all of them.
    """
    clouds = {
        name: {
            "auth": {
                "auth_url": keystone.url,
                "username": account.user,
                "password": account.password,
                "project_name": account.project,
                "user_domain_id": "default",
                "project_domain_id": "default",
            },
            "region_name": "RegionOne",
            **more,
        }
        for name, account in accounts.items()
    }
    place = directory / ".config" / "openstack"
    place.mkdir(parents=True, exist_ok=True)
    (place / "clouds.yaml").write_text(yaml.safe_dump({"clouds": clouds}))
