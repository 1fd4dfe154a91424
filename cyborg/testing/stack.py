# SPDX-License-Identifier: Apache-2.0
"""The whole service in one process: API, conductors and agents on one bus, around real peers.

Tests, the benchmark and quickstart run this; the daemons put the same parts together in processes
of their own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from keystoneauth1.adapter import Adapter
from oslo_config import cfg

from cyborg import service
from cyborg.agent import app as agent_app
from cyborg.agent.fleet import Load
from cyborg.api import app as api_app
from cyborg.clients.allocations import Allocations
from cyborg.clients.glance import Glance
from cyborg.clients.nova import Nova
from cyborg.clients.placement import Placement
from cyborg.clients.reconcile import Publisher
from cyborg.clients.servers import Servers
from cyborg.conductor import app as conductor_app
from cyborg.conductor.audit import Auditor
from cyborg.db.engine import Database, Reader
from cyborg.drivers import loader
from cyborg.drivers.host import Host
from cyborg.metrics.meters import Meters
from cyborg.model.invariants import Ages
from cyborg.model.names import AGENT, CONDUCTOR
from cyborg.rpc.conductor import Client, ConductorClient
from cyborg.rpc.notifications import Notifier
from cyborg.rpc.transport import Bus
from cyborg.testing.broker import SweptBus

_Client = TypeVar("_Client", bound=Client)
_PATIENCE = 30.0


def reach(client: _Client) -> _Client:
    """The client, once a conductor has answered it; RuntimeError when none does in 30 s.

    A client's first call waits for its connection only as long as a user would; a busy machine may
    need longer.
    """
    if not service.wait_until(client.reached, timeout=_PATIENCE, step=0.005):
        raise RuntimeError("no conductor answers over the bus")
    return client


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
    Nor are instances looked up unless a test wants that: in a simulated Nova tasks go on by looks.
    """

    conductor_heartbeat: float = 0.2
    lease: float = 1.0
    bind_timeout: float = 10.0
    agent_heartbeat: float = 0.5
    scan: float = 0.5
    full_check: float = 600.0
    agent_down_after: float = 30.0
    agent_grace: float = 3600.0
    audit: float = 86_400.0
    housekeeping: float = 86_400.0
    lost_retention: float = 30 * 86_400.0
    history_retention: float = 90 * 86_400.0
    instance_refresh: float = 0.0
    instance_turn: float = 0.2
    ages: Ages = field(default_factory=Ages)
    #: 0: devices are not measured.
    usage: float = 0.0
    #: 0: drivers are not asked for the health of devices.
    health: float = 0.0
    rpc: float = 10.0


class _InProcessBus(Bus):
    """``fake://``, of which there is one in a process."""

    def close(self) -> None:
        """Nothing: oslo.messaging would drop what others have under way on it."""


@dataclass
class Stack:
    """One database, one bus, and as many processes' worth of daemons as are started.

    ``conf`` is the prepared global configuration; ``transport_url`` and ``exchange`` name the
    bus. New devices of the drivers in ``auto_enable`` need no operator's word. Everything started
    is stopped by ``stop``, the last first.
    """

    conf: cfg.ConfigOpts
    database_url: str
    transport_url: str
    peers: Peers
    times: Times = Times()
    auto_enable: frozenset[str] = frozenset({"*"})
    exchange: str = field(default_factory=lambda: f"cyborg-{uuid4().hex[:12]}")
    _endings: list[Callable[[], object]] = field(default_factory=list)

    def bus(self) -> Bus:
        """A connection of its own, as every process has.

        Its queues outlive its end as those of any process do, until this stack is stopped.
        """
        if self.transport_url.startswith("fake:"):
            return _InProcessBus(self.conf, url=self.transport_url, exchange=self.exchange)
        made = SweptBus(self.conf, url=self.transport_url, exchange=self.exchange)
        self._endings.insert(0, made.sweep)
        return made

    def start_conductor(
        self, host: str = "control-1", *, metrics: str | None = None
    ) -> service.Daemon:
        """A conductor; any number may run. ``metrics`` is where it shows what it counts."""
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
                housekeeping_interval=self.times.housekeeping,
                lost_retention=self.times.lost_retention,
                history_retention=self.times.history_retention,
                agent_grace=self.times.agent_grace,
                auto_enable=self.auto_enable,
                instance_refresh=self.times.instance_refresh,
                instance_turn=self.times.instance_turn,
            ),
            db=Database(self.database_url),
            bus=self.bus(),
            peers=conductor_app.Peers(Nova(self.peers.nova()), Allocations(self.peers.placement())),
            auditor=self.auditor,
            publisher=lambda: Publisher(Placement(self.peers.placement())),
            notifier=self._notifier(CONDUCTOR, host),
            meters=Meters(CONDUCTOR, "0", address=metrics),
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
        drivers: Sequence[str | loader.LoadResult] = ("fake_driver",),
        state_path: Path,
        load: Load | None = None,
        metrics: str | None = None,
    ) -> service.Daemon:
        """The agent of one compute host; Placement may know the compute by the same name.

        ``load`` is how drivers come in later; by default from the installed packages.
        """

        def installed(name: str, options: Mapping[str, str]) -> loader.LoadResult:
            return loader.load_with(name, machine, self.conf, options=options)

        loaded: list[loader.LoadResult] = []
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
                usage=self.times.usage,
                health=self.times.health,
            ),
            bus=self.bus(),
            loaded=loaded,
            placement=Placement(self.peers.placement()),
            glance=self._glance,
            load=load or installed,
            notifier=self._notifier(AGENT, host),
            meters=Meters(AGENT, "0", address=metrics),
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

    def _notifier(self, binary: str, host: str) -> Notifier:
        return Notifier(self.conf, f"{binary}:{host}", url=self.transport_url)

    def _glance(self) -> Glance:
        assert self.peers.glance is not None, "this stack has no Glance"
        return Glance(self.peers.glance(), retries=0)

    def _started(self, daemon: service.Daemon) -> service.Daemon:
        daemon.start()
        self._endings.append(daemon.stop)
        return daemon
