# SPDX-License-Identifier: Apache-2.0
"""Start the daemons and their peers, and show the output of the daemons."""

from contextlib import ExitStack
from pathlib import Path
from typing import Self

from cyborg.model.process import AGENT, API, CONDUCTOR
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.pages import free_port
from cyborg.tests.fixtures.placement import TOKEN, PlacementService
from cyborg.tests.fixtures.processes import Deployment, Options, Program
from cyborg_tools.dev.options import Plan
from cyborg_tools.quickstart.screen import Screen
from cyborg_tools.walkthrough import servers

#: The name of the one host.
HOST = "dev"
_DBSYNC = "cyborg-dbsync"
#: Lines of output shown if the migrations fail.
_TAIL = 5


class Environment:
    """The peers start in ``enter``. ``begin`` starts or restarts the daemons.

    ``exit`` stops everything. Raises exception.ConfigError if a required server cannot be used.
    """

    def __init__(self, plan: Plan, directory: Path, screen: Screen) -> None:
        self._plan = plan
        self._directory = directory
        self._screen = screen
        self._port = plan.port or free_port()
        self._programs: dict[str, Program] = {}
        self._read: dict[str, int] = {}
        self._endings = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as endings:
            database = endings.enter_context(
                servers.database(self._plan.mysql_url, self._directory, "cyborg_dev")
            )
            exchange = endings.enter_context(servers.exchange(self._plan.rabbit_url, HOST))
            (self._directory / "placement").mkdir()
            placement = endings.enter_context(PlacementService(self._directory / "placement"))
            placement.make_compute(HOST)
            nova = endings.enter_context(SimulatedNova())
            options = self._options(database, exchange, placement, nova)
            self._deployment = Deployment(self._directory, options)
            self._screen.fact("Database", database.rpartition("@")[2])
            self._screen.fact("Placement", f"{placement.url}, the real one, with one compute")
            self._screen.fact("Nova", f"{nova.url}, simulated")
            self._screen.fact("Settings", str(self._deployment.conf))
            endings.callback(self._deployment.stop)
            self._endings = endings.pop_all()
        return self

    def __exit__(self, *_details: object) -> None:
        self._endings.close()

    @property
    def url(self) -> str:
        """Return the URL of the REST API, without a version."""
        return f"http://127.0.0.1:{self._port}"

    def begin(self) -> None:
        """Start the three daemons with the current code; stop those that run first."""
        # The last first: an agent whose conductor has gone takes longer to end.
        self._deployment.stop()
        self._programs = {name: self._deployment.begin(name) for name in (CONDUCTOR, API, AGENT)}

    def upgrade(self) -> None:
        """Upgrade the database; show the error if that fails."""
        ran = self._deployment.run(_DBSYNC, "upgrade")
        if ran.returncode:
            self._screen.log(_DBSYNC, ran.stderr.splitlines()[-_TAIL:])

    def listen(self) -> None:
        """Show the new output of the daemons, and which of them have ended."""
        for name, program in list(self._programs.items()):
            ended = not program.running
            self._screen.log(name, self._new_lines(name, program))
            if ended:
                del self._programs[name]
                self._screen.problem(f"{name} has ended; it starts again at the next change.")

    def _new_lines(self, name: str, program: Program) -> list[str]:
        """Return complete lines only."""
        seen = self._read.get(name, 0)
        with program.log.open("rb") as log:
            log.seek(seen)
            whole, newline, _ = log.read().rpartition(b"\n")
        self._read[name] = seen + len(whole) + len(newline)
        return whole.decode(errors="replace").splitlines()

    def _options(
        self, database: str, exchange: str, placement: PlacementService, nova: SimulatedNova
    ) -> Options:
        return {
            "DEFAULT": {
                "host": HOST,
                "transport_url": self._plan.rabbit_url,
                "control_exchange": exchange,
                "state_path": self._directory / "state",
            },
            # The broker removes objects of a connection soon after it closes.
            "oslo_messaging_rabbit": {"rabbit_transient_queues_ttl": 60},
            "api": {"auth_strategy": "noauth", "port": self._port},
            "conductor": {"auto_enable": "*"},
            "agent": {"resource_provider_name": HOST, "enabled_drivers": self._plan.drivers},
            "database": {"connection": database},
            "placement": {"auth_type": "admin_token", "endpoint": placement.url, "token": TOKEN},
            "nova": {"auth_type": "none", "endpoint": nova.url},
        }
