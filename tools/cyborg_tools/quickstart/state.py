# SPDX-License-Identifier: Apache-2.0
"""The state directory: its lock, its files, and how to remove them."""

import fcntl
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TextIO

import sqlalchemy as sa

from cyborg import exception
from cyborg.testing.scenario_file import CyborgDriver

_LOCK = "quickstart.lock"
_DATABASE = "cyborg.sqlite"
_CONF = "cyborg.conf"
_LOG = "quickstart.log"
#: Suffixes of the files that SQLite creates beside a database.
_BESIDE = ("", "-journal", "-wal", "-shm")
#: Everything that a run makes; PlacementService names its own two.
_MADE = (
    _CONF,
    _LOG,
    "placement.conf",
    *(f"{name}{end}" for name in (_DATABASE, "placement.sqlite") for end in _BESIDE),
)
#: The mode of every file: the configuration may name accounts, the log may have data of users.
_PRIVATE = 0o600
#: Directories of Keystone and Horizon.
_DIRECTORIES = ("keystone", "horizon")
_AWKWARD = frozenset("$?\n")
#: What helps if the state is not usable.
ADVICE: Final = "Start again with --clean, or choose another directory with --state."
#: The service without Keystone: everybody who can connect may do everything.
NO_KEYSTONE: Final[Mapping[str, Mapping[str, str]]] = {"api": {"auth_strategy": "noauth"}}
_CONF_TEXT = """\
# tools/quickstart writes this file at each start; changes are lost.
[DEFAULT]
log_file = {log}
state_path = {directory}
[agent]
enabled_drivers = {drivers}
[api]
host_ip = 127.0.0.1
port = {port}
[database]
connection = {database_url}
{options}{authentication}[pci]
"""


class State:
    """A directory that one quickstart locks while ``taken`` is active."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.expanduser().absolute()
        self.log = self.directory / _LOG
        self.database = self.directory / _DATABASE
        url = sa.URL.create("sqlite", database=str(self.database))
        self.database_url = url.render_as_string()

    def taken(self) -> TextIO:
        """Keep everybody else out until what is returned is closed; makes the directory.

        Raises ConfigError when it cannot be written to, when another quickstart uses it, or when
        it holds files of the names that we would use and that we did not make.
        """
        lock = self.directory / _LOCK
        if set(str(self.directory)) & _AWKWARD:
            raise exception.ConfigError(
                reason=f"the path {self.directory} has one of the characters $ and ?, which "
                "configurations and database URLs cannot hold; choose another with --state."
            )
        try:
            # The files are private anyway: a directory that exists belongs to the user.
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            strangers = [] if lock.exists() else self._present()
            if not strangers:
                # The files of earlier releases could be read by all users.
                for path in self._present():
                    path.chmod(_PRIVATE)
                held = lock.open("a")
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return held
            reason = f"{self.directory} holds {strangers[0].name}, which quickstart did not make"
        except BlockingIOError:
            held.close()
            reason = f"another quickstart is using {self.directory}"
        except OSError as error:
            reason = f"the state directory {self.directory} cannot be used ({error.strerror})"
        raise exception.ConfigError(reason=f"{reason}; choose another directory with --state.")

    def clean(self) -> int:
        """Remove what earlier runs made, and nothing else; answers how many files that were."""
        present = self._present()
        for path in present:
            path.unlink()
        for name in _DIRECTORIES:
            shutil.rmtree(self.directory / name, ignore_errors=True)
        return len(present)

    def place(self, name: str) -> Path:
        """Return a private directory for Keystone or Horizon, which exists afterwards."""
        assert name in _DIRECTORIES
        directory = self.directory / name
        directory.mkdir(mode=0o700, exist_ok=True)
        return directory

    def write_conf(
        self,
        port: int,
        whitelist: Sequence[str],
        drivers: Sequence[CyborgDriver] = (),
        authentication: Mapping[str, Mapping[str, str]] = NO_KEYSTONE,
    ) -> Path:
        """Write the configuration of this run; answers the file.

        ``drivers`` are those that fit a scenario host, with their options; without them, the units
        of ``whitelist`` are not cleaned. ``authentication`` has the options that say who may do
        what, by their groups.
        """
        names = dict.fromkeys((*(driver.name for driver in drivers), "pci_driver", "fake_driver"))
        values = {
            "log": self.log,
            "directory": self.directory,
            "database_url": self.database_url,
            "port": port,
            "drivers": ", ".join(names),
        }
        text = _CONF_TEXT.format(
            **{name: _literal(value) for name, value in values.items()},
            options="".join(driver.options for driver in drivers),
            authentication="".join(
                f"[{group}]\n{name} = {_literal(text)}\n"
                for group, members in authentication.items()
                for name, text in members.items()
            ),
        )
        if not drivers:
            # There is no privileged process, and a recorded host has no devices.
            text += "clean = none\n"
        text += "".join(f"passthrough_whitelist = {_literal(one)}\n" for one in whitelist)
        path = self.directory / _CONF
        path.touch(mode=_PRIVATE)
        path.write_text(text)
        return path

    def _present(self) -> list[Path]:
        found = [self.directory / name for name in _MADE]
        # What an agent keeps names the events of a database: without that it is of no use.
        found += sorted(self.directory.glob("agent-*.sqlite*"))
        for name in _DIRECTORIES:
            found += sorted((self.directory / name).rglob("*"))
        return [path for path in found if path.is_file()]


def shown(path: Path) -> str:
    """A path as seen from the current directory, where that is shorter."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _literal(value: object) -> str:
    """A value that oslo.config reads as it is: on one line, nothing substituted."""
    return " ".join(str(value).split("\n")).replace("$", "$$")
