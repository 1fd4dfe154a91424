# SPDX-License-Identifier: Apache-2.0
"""The message signing keys of a run."""

from collections.abc import Sequence
from pathlib import Path

from cyborg import exception
from cyborg.tests.fixtures.processes import at_home, run


class Keys:
    """Files of keys in a directory: one for the controllers, and one for each host."""

    def __init__(self, directory: Path, hosts: Sequence[str]) -> None:
        self._directory = directory
        self._hosts = hosts

    def make(self) -> None:
        """Write the files. Raises ConfigError."""
        master = str(self.file())
        self._run("create", master)
        for host in self._hosts:
            self._run("derive", master, "--host", host, "--output", str(self.file(host)))

    def file(self, host: str = "") -> Path:
        """Return the file of a host; that of the controllers without a name."""
        return self._directory / f"{host or 'controllers'}.json"

    def _run(self, *arguments: str) -> None:
        ran = run("cyborg-signing-key", *arguments, environment=at_home(self._directory))
        if ran.returncode:
            raise exception.ConfigError(reason=f"cyborg-signing-key fails: {ran.stderr}")
