# SPDX-License-Identifier: Apache-2.0
"""Start the daemons and their peers, and show the output of the daemons."""

import argparse
from contextlib import ExitStack
from pathlib import Path

from cyborg.model.process import AGENT, API, CONDUCTOR
from cyborg.tests.fixtures import ports
from cyborg.tests.fixtures.processes import Options, Program
from cyborg_tools.quickstart.screen import Screen
from cyborg_tools.servers import Cloud

_DBSYNC = "cyborg-dbsync"
#: Lines of output shown if the migrations fail.
_TAIL = 5


class Environment(Cloud):
    """Start the peers; ``begin`` starts or restarts the daemons."""

    name, computes, host = "cyborg_dev", ("dev",), "dev"

    def __init__(self, plan: argparse.Namespace, directory: Path, screen: Screen) -> None:
        super().__init__(plan, directory)
        self._screen = screen
        self._port = plan.port or ports.reserved()
        self._programs: dict[str, Program] = {}
        self._read: dict[str, int] = {}
        self.url = f"http://127.0.0.1:{self._port}"

    @property
    def more(self) -> Options:
        return {
            "api": {"port": self._port},
            "conductor": {"auto_enable": "*"},
            "agent": {"resource_provider_name": "dev", "enabled_drivers": self.plan.drivers},
        }

    def start(self, endings: ExitStack) -> None:
        super().start(endings)
        self._screen.fact("Database", self.database.rpartition("@")[2])
        self._screen.fact("Placement", f"{self.placement.url}, the real one, with one compute")
        self._screen.fact("Nova", f"{self.nova.url}, simulated")
        self._screen.fact("Settings", str(self.deployment.conf))

    def begin(self) -> None:
        """Start the three daemons with the current code; stop those that run first."""
        # The last first: an agent whose conductor has gone takes longer to end.
        self.deployment.stop()
        self._programs = {name: self.deployment.begin(name) for name in (CONDUCTOR, API, AGENT)}

    def upgrade(self) -> None:
        ran = self.deployment.run(_DBSYNC, "upgrade")
        if ran.returncode:
            self._screen.log(_DBSYNC, ran.stderr.splitlines()[-_TAIL:])

    def listen(self) -> None:
        """Show the new output of the daemons, whole lines only, and which of them have ended."""
        for name, program in list(self._programs.items()):
            ended = not program.running
            seen = self._read.get(name, 0)
            with program.log.open("rb") as log:
                log.seek(seen)
                whole, newline, _ = log.read().rpartition(b"\n")
            self._read[name] = seen + len(whole) + len(newline)
            self._screen.log(name, whole.decode(errors="replace").splitlines())
            if ended:
                del self._programs[name]
                self._screen.problem(f"{name} has ended; it starts again at the next change.")
