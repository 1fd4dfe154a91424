# SPDX-License-Identifier: Apache-2.0
"""A machine on which a stand-in of devstack runs our plugin, in one directory."""

import configparser
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import cyborg
from cyborg.tests.fixtures.waiting import ran

REPOSITORY = Path(cyborg.__file__).resolve().parent.parent
STANDIN = Path(__file__).with_name("standin")

#: The least that a local.conf has to say.
MINIMAL = """\
[[local|localrc]]
enable_plugin cyborg https://opendev.org/openstack/cyborg
"""


class Node:
    """A node with its own ``local.conf``; everything it writes is below ``home``.

    ``variables`` are added to the environment. Unless ``start`` is set the commands that would
    take long or reach further (our programs, curl, openstack) are only written down.
    """

    def __init__(
        self,
        home: Path,
        local_conf: str = MINIMAL,
        *,
        start: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.home = home.resolve()
        self.etc = self.home / "etc"
        (self.home / "local.conf").write_text(local_conf)
        programs = Path(sys.executable).parent
        places = [STANDIN / "bin", *([] if start else [STANDIN / "dry"]), programs]
        kept = {name: os.environ[name] for name in ("PYTHONPATH", "LANG") if name in os.environ}
        self._environment = {
            **kept,
            "PATH": os.pathsep.join([*map(str, places), "/usr/bin:/bin:/usr/sbin:/sbin"]),
            "HOME": str(self.home),
            "STANDIN_HOME": str(self.home),
            "STANDIN_START": str(start),
            "STANDIN_REPOSITORY": str(REPOSITORY),
            "STANDIN_BIN_DIR": str(programs if start else STANDIN / "dry"),
            "STANDIN_DATABASE_URL": f"sqlite:///{self.home}/cyborg.sqlite",
            "STANDIN_TRANSPORT_URL": "fake://",
            "GRENADE_DIR": str(STANDIN / "grenade"),
            # Not the machine's own.
            "CYBORG_DIR": str(REPOSITORY),
            "CYBORG_CONF_DIR": str(self.etc),
            "CYBORG_STATE_PATH": str(self.home / "state"),
            "CYBORG_PLACEMENT_CONF": str(self.etc / "placement.conf"),
            "CYBORG_PRIVILEGED_SOCKET": str(self.home / "privileged.sock"),
            "CYBORG_PRIVILEGED_DIR": str(self.home / "privileged"),
            "PCI_SIM_SYSFS": str(self.home / "sys"),
            "PCI_SIM_KERNEL_DIR": str(self.home / "kernel"),
            **(variables or {}),
        }

    def put_keys(self, text: str = "") -> None:
        """Put the file of message signing keys where the plugin expects it."""
        self.etc.mkdir(exist_ok=True)
        file = self.etc / "signing-keys.json"
        file.write_text(text)
        file.chmod(0o600)

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run ``stack``, ``unstack`` or ``clean``, whatever comes of it."""
        return self.bash(f"{STANDIN}/devstack/run {command}")

    def do(self, command: str) -> str:
        """Run one of these and answer what it said; it must succeed."""
        ran = self.run(command)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout + ran.stderr

    def hook(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of the hooks of grenade, whatever comes of it."""
        return self.bash(" ".join([str(REPOSITORY / "devstack" / "upgrade" / name), *arguments]))

    def bash(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run a script in the node's environment."""
        return ran(["bash", "-c", script], env=self._environment, stdin=subprocess.DEVNULL)

    @property
    def calls(self) -> list[str]:
        """The calls so far of what is written down only."""
        file = self.home / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def called(self, function: str) -> list[str]:
        """The arguments of each call of one function or command."""
        return [
            rest
            for name, _, rest in (call.partition(" ") for call in self.calls)
            if name == function
        ]

    def options(self, file: str) -> dict[str, dict[str, list[str]]]:
        """A configuration file below ``home``: all values by group and option."""
        found: dict[str, dict[str, list[str]]] = {}
        group = ""
        for line in (self.home / file).read_text().splitlines():
            if line.startswith("["):
                group = line.strip("[]")
            elif " = " in line:
                name, _, value = line.partition(" = ")
                found.setdefault(group, {}).setdefault(name, []).append(value)
        return found

    def write_options(self, file: str, group: str, **options: str) -> None:
        """Make a configuration file below ``home`` that another service would have."""
        written = configparser.ConfigParser(interpolation=None)
        written[group] = options
        with (self.home / file).open("w") as opened:
            written.write(opened)

    def processes(self) -> list[str]:
        """The command lines of all processes that concern this node and live."""
        found = []
        for directory in Path("/proc").glob("[0-9]*"):
            try:
                words = (directory / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            line = b" ".join(words).decode(errors="replace")
            if f"{self.home}/" in line:
                found.append(line)
        return found
