# SPDX-License-Identifier: Apache-2.0
"""The whole service in one process: API, conductors and agents on one bus, around real peers.

Tests, the benchmark and quickstart run this; the daemons put the same parts together in processes
of their own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from keystoneauth1.adapter import Adapter
from oslo_config import cfg

from cyborg import service
from cyborg.agent import app as agent_app
from cyborg.api import app as api_app
from cyborg.clients.glance import Glance
from cyborg.clients.nova import Nova
from cyborg.clients.placement import Placement
from cyborg.clients.servers import Servers
from cyborg.conductor import app as conductor_app
from cyborg.conductor.audit import Auditor
from cyborg.db.engine import Database, Reader
from cyborg.drivers import loader
from cyborg.drivers.host import Host
from cyborg.model.invariants import Ages
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.transport import Bus


@dataclass(frozen=True)
class Peers:
    """The services around ours, each as a way to make an adapter for it."""

    placement: Callable[[], Adapter]
    nova: Callable[[], Adapter]
    glance: Callable[[], Adapter] | None = None


@dataclass(frozen=True)
class Times:
    """How often things happen, in seconds; short, because somebody is waiting.

    But for the audit: a simulated Nova knows of no servers, so that it would find all of them gone.
    """

    conductor_heartbeat: float = 0.2
    lease: float = 1.0
    bind_timeout: float = 10.0
    agent_heartbeat: float = 0.5
    scan: float = 0.5
    full_check: float = 600.0
    agent_down_after: float = 30.0
    audit: float = 86_400.0
    ages: Ages = field(default_factory=Ages)
    rpc: float = 10.0


class _InProcessBus(Bus):
    """``fake://``, of which there is one in a process."""

    def close(self) -> None:
        """Nothing: oslo.messaging would drop what others have under way on it."""


@dataclass
class Stack:
    """One database, one bus, and as many processes' worth of daemons as are started.

    ``conf`` is the prepared global configuration; ``transport_url`` and ``exchange`` name the
    bus. Everything started is stopped by ``stop``, the last first.
    """

    conf: cfg.ConfigOpts
    database_url: str
    transport_url: str
    peers: Peers
    times: Times = Times()
    exchange: str = field(default_factory=lambda: f"cyborg-{uuid4().hex[:12]}")
    _endings: list[Callable[[], object]] = field(default_factory=list)

    def bus(self) -> Bus:
        """A connection of its own, as every process has."""
        kind = _InProcessBus if self.transport_url.startswith("fake:") else Bus
        return kind(self.conf, url=self.transport_url, exchange=self.exchange)

    def start_conductor(self, host: str = "control-1") -> service.Daemon:
        """A conductor; any number may run."""
        daemon = conductor_app.assemble(
            settings=conductor_app.Settings(
                host=host,
                process=uuid4().hex[:8],
                version="0",
                heartbeat=self.times.conductor_heartbeat,
                lease=self.times.lease,
                bind_timeout=self.times.bind_timeout,
                agent_down_after=self.times.agent_down_after,
                threads=4,
                audit_interval=self.times.audit,
            ),
            db=Database(self.database_url),
            bus=self.bus(),
            nova=Nova(self.peers.nova()),
            auditor=self.auditor,
        )
        return self._started(daemon)

    def auditor(self) -> Auditor:
        """One without memory, with what the peers of this stack show."""
        return Auditor(
            db=Reader(self.database_url),
            placement=Placement(self.peers.placement()),
            servers=Servers(self.peers.nova()),
            ages=self.times.ages,
        )

    def start_agent(
        self,
        host: str,
        *,
        machine: Host,
        drivers: Sequence[str | loader.Loaded] = ("fake_driver",),
        state_path: Path,
    ) -> service.Daemon:
        """The agent of one compute host; Placement may know the compute by the same name."""
        loaded: list[loader.Loaded] = []
        for one in drivers:
            loaded += loader.load([one], machine, self.conf) if isinstance(one, str) else [one]
        daemon = agent_app.assemble(
            settings=agent_app.Settings(
                host=host,
                provider_names=(host,),
                version="0",
                heartbeat=self.times.agent_heartbeat,
                scan=self.times.scan,
                full_check=self.times.full_check,
                rpc_timeout=self.times.rpc,
                state_path=state_path,
            ),
            bus=self.bus(),
            loaded=loaded,
            placement=Placement(self.peers.placement()),
            glance=self._glance,
        )
        return self._started(daemon)

    def make_api(self) -> Any:
        """The API as a WSGI application, with a reader and a bus of its own."""
        client = ConductorClient(self.bus(), timeout=self.times.rpc)
        reader = Reader(self.database_url)
        self._endings += [reader.close, client.close]
        return api_app.build(self.conf, reader=reader, conductor=client)

    def stop(self) -> None:
        """Stop everything that was started."""
        while self._endings:
            self._endings.pop()()

    def _glance(self) -> Glance:
        assert self.peers.glance is not None, "this stack has no Glance"
        return Glance(self.peers.glance(), retries=0)

    def _started(self, daemon: service.Daemon) -> service.Daemon:
        daemon.start()
        self._endings.append(daemon.stop)
        return daemon
