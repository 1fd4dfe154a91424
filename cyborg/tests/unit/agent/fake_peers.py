# SPDX-License-Identifier: Apache-2.0
"""One fake for all peers of an agent's loop: conductor, Placement, drivers and clock."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from oslo_config import cfg

from cyborg import exception
from cyborg.agent.device_tasks import DeviceTasks
from cyborg.agent.discovery_requests import DiscoveryRequests
from cyborg.agent.driver_manager import DriverManager
from cyborg.agent.guests import GuestReports
from cyborg.agent.health import HealthChecks
from cyborg.agent.heartbeats import Heartbeats
from cyborg.agent.layout_sync import LayoutSync
from cyborg.agent.loop import AgentLoop
from cyborg.agent.prepared_sync import PreparedUnitsSync
from cyborg.agent.providers import Providers
from cyborg.agent.reporter import Reporter
from cyborg.agent.schedule import Schedule
from cyborg.agent.state_store import DesiredStateCache, StateStore
from cyborg.clients.placement import Node, Placement
from cyborg.clients.placement_sync import Publisher
from cyborg.drivers import catalogue
from cyborg.drivers.base import CardLayouts, Driver
from cyborg.drivers.catalogue import Catalogue
from cyborg.drivers.loader import LoadResult
from cyborg.drivers.scan import Scan
from cyborg.drivers.worker import Worker
from cyborg.model.device import AttachHandle, AttachType, Deployable, Device, DeviceType
from cyborg.model.health import DeviceHealth
from cyborg.model.provider import (
    Provider,
    ProviderOutcome,
    ProviderTree,
    PublishResult,
    Verdict,
    provider_uuid,
)
from cyborg.model.report import (
    Acknowledged,
    AgentHeartbeat,
    CreatedDevice,
    Desired,
    DriverReport,
    DriverState,
    HeartbeatReply,
    ObsoleteProvider,
    Report,
)
from cyborg.model.work import PartitionTask
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.verbs import AgentRequest
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.agent_runs import run_agent

AWAY = exception.Unavailable(peer="peer", reason="away", http=503)


#: The one provider that is desired.
UNIT = "unit"


def report_of(*names: str) -> Report:
    """Return the report of a host with one card that has these deployables."""
    address = {"domain": "0", "bus": "0", "device": "0", "function": "0"}
    handle = AttachHandle("0000:00:00.0", AttachType.PCI, address)
    deployables = tuple(Deployable(name, "FPGA", "card", (handle,)) for name in names)
    card = Device("0000:00:00.0", DeviceType.FPGA, "v", "m", address, deployables)
    return Report((DriverReport("d", DriverState.READY, (card,)),))


@dataclass
class FakePeers:
    """Conductor, Placement, drivers and clock in one object; ``calls`` are in order."""

    calls: list[str] = field(default_factory=list)
    now: float = 0.0
    #: The calls that fail: heartbeat, report, desired, find_root, tree, publish …
    away: set[str] = field(default_factory=set)
    epoch: int = 1
    digest: str | None = None
    generation: int = 1
    #: How many units are desired; None: a different number in each generation.
    units: int | None = None
    refused: dict[str, str] = field(default_factory=dict)
    verdicts: dict[str, ProviderOutcome] = field(default_factory=dict)
    hardware: Report = field(default_factory=lambda: report_of(UNIT))
    tree_nodes: dict[str, Node] = field(default_factory=dict)
    #: The names of providers to remove, and the errors of their removal.
    retiring: tuple[str, ...] = ()
    removal_errors: dict[str, Exception] = field(default_factory=dict)
    scan: Scan | None = None
    machine: FakeHost = field(default_factory=FakeHost)
    heartbeats: list[AgentHeartbeat] = field(default_factory=list)
    published_refusals: list[dict[str, str]] = field(default_factory=list)
    #: What the conductor was told that Placement has.
    published_units: dict[str, list[int]] = field(default_factory=dict)
    reserved: list[str] = field(default_factory=list)
    store: StateStore = field(default_factory=lambda: StateStore(Path("/dev/null/nowhere"), "host"))
    discoveries: DiscoveryRequests = field(default_factory=lambda: DiscoveryRequests(timeout=0.0))
    rejected: dict[str, str] = field(default_factory=dict)
    #: The cards that the driver can divide, and the operations that divide them.
    cards: tuple[CardLayouts, ...] = ()
    partitions: list[Future[None]] = field(default_factory=list)
    #: The devices that operators created.
    created: tuple[CreatedDevice, ...] = ()
    overdue: str = ""
    read_catalogue: Callable[[], Catalogue] = catalogue.shipped
    #: The health that the last poll of the driver gave.
    health: tuple[DeviceHealth, ...] = ()

    def record(self, call: str) -> None:
        self.calls.append(call)
        if call in self.away:
            raise AWAY

    def supersede(self) -> None:
        """Refuse each heartbeat from now on: there is a newer agent."""

        def refuse(heartbeat: AgentHeartbeat) -> HeartbeatReply:
            raise exception.StaleEpoch(epoch=1, binary="cyborg-agent", host="host", current=2)

        object.__setattr__(self, "heartbeat", refuse)

    def take_calls(self) -> list[str]:
        """Return and forget the calls, without scans, syncs and those that read Placement."""
        calls, self.calls = self.calls, []
        return [call for call in calls if call not in ("find_root", "tree", "scan", "sync")]

    # The conductor.

    def request(self, command: AgentRequest[Any]) -> Any:
        return getattr(self, command.verb)(**vars(command))

    def heartbeat(self, heartbeat: AgentHeartbeat) -> HeartbeatReply:
        self.heartbeats.append(heartbeat)
        self.record("heartbeat")
        return HeartbeatReply(self.epoch, self.digest, self.generation)

    def report(self, host: str, epoch: int, report: Report) -> Acknowledged:
        assert (host, epoch) == ("host", self.epoch)
        self.record("report")
        self.digest = report.digest()
        self.generation += 1
        return Acknowledged(self.generation, self.rejected)

    def desired(self, host: str, epoch: int) -> Desired:
        assert (host, epoch) == ("host", self.epoch)
        self.record("desired")
        total = self.generation if self.units is None else self.units
        unit = Provider(provider_uuid(UNIT), UNIT, "FPGA", total, 0, frozenset())
        retired = tuple(ObsoleteProvider(provider_uuid(name), name) for name in self.retiring)
        return Desired(
            self.generation,
            ProviderTree("compute", (unit,)),
            self.refused,
            retired,
            operator_created=self.created,
            published=self.published_units,
        )

    def published(
        self, host: str, epoch: int, refused: dict[str, str], published: dict[str, list[int]]
    ) -> None:
        self.published_units = published
        # Most tests are about refusals, and only these are recorded.
        if refused != self.refused:
            self.record("published")
            self.published_refusals.append(refused)
            self.refused = refused

    def providers_removed(self, host: str, epoch: int, names: list[str]) -> None:
        self.record("providers_removed")
        self.retiring = tuple(name for name in self.retiring if name not in names)

    # Placement.

    def retire(self, uuid: str, *, root: str) -> None:
        assert root == "root"
        (name,) = [name for name in self.retiring if provider_uuid(name) == uuid]
        self.record(f"retire {name}")
        if name in self.removal_errors:
            raise self.removal_errors[name]

    def find_root(self, names: Any) -> tuple[str, str]:
        self.record("find_root")
        return "root", "compute"

    def account_roles(self) -> tuple[str, ...]:
        return ("service",)

    def tree(self, root: str) -> dict[str, Node]:
        self.record("tree")
        return self.tree_nodes

    def recall(self, tree: ProviderTree) -> None:
        """Do nothing."""

    def publish(self, tree: ProviderTree) -> PublishResult:
        self.record("publish")
        return self._result(tree)

    def check(self, tree: ProviderTree, listing: Mapping[str, Node] | None = None) -> PublishResult:
        self.record("check")
        return self._result(tree)

    def reserve(self, uuids: Iterable[str]) -> list[str]:
        requested = list(uuids)
        if requested:
            self.record("reserve")
            self.reserved += requested
        return requested

    def _result(self, tree: ProviderTree) -> PublishResult:
        published = (
            ProviderOutcome(provider.uuid, provider.name, Verdict.PUBLISHED)
            for provider in tree.providers
        )
        outcomes = (self.verdicts.get(outcome.name, outcome) for outcome in published)
        return PublishResult("root", tuple(outcomes))

    # The driver.

    def discover(self, scan: Scan) -> list[Device]:
        self.calls.append("scan")
        self.scan = scan
        drivers = self.hardware.drivers
        if drivers and drivers[0].error is not None:
            raise exception.DriverFailed(driver="d", verb="discover", reason=drivers[0].error)
        return [device for driver in drivers for device in driver.devices]

    def sync(self, host: str, epoch: int) -> None:
        assert (host, epoch) == ("host", self.epoch)
        self.record("sync")

    def partition(self, task: PartitionTask) -> Future[None]:
        self.record(f"partition {task.device_key} {task.layout}")
        self.partitions.append(Future())
        return self.partitions[-1]

    def agent(self) -> "FakeAgent":
        """Return a new agent with these peers."""
        reporter = Reporter(
            DriverManager(
                [LoadResult("d", FakeDriver(self))],
                lambda name, options: LoadResult(name, FakeDriver(self)),
            ),
            cast(HealthChecks, FakeHealth(self)),
            Worker(),
            read_catalogue=self.read_catalogue,
        )
        schedule = Schedule(scan=60, full_check=600, clock=lambda: self.now)
        providers = Providers(
            host="host",
            names=("fqdn", "host"),
            schedule=schedule,
            conductor=cast(ConductorClient, self),
            placement=cast(Placement, self),
            publisher=cast(Publisher, self),
        )
        heartbeats = Heartbeats(
            version="1",
            endpoint="topic@host",
            conductor=cast(ConductorClient, self),
            cache=DesiredStateCache(self.store),
            providers=providers,
            reporter=reporter,
            discoveries=self.discoveries,
            bus_error=str,
            overdue=lambda: self.overdue,
            wake=lambda: None,
        )
        loop = AgentLoop(
            heartbeats=heartbeats,
            reporter=reporter,
            providers=providers,
            prepared_sync=cast(PreparedUnitsSync, self),
            layout_sync=LayoutSync(cast(DeviceTasks, self)),
            guests=cast(GuestReports, FakeGuests()),
            schedule=schedule,
            machine=self.machine,
            worker=Worker(),
        )
        return FakeAgent(heartbeats, loop)

    def set_verdict(self, verdict: Verdict, reason: str) -> None:
        """Set the outcome of publishing the unit."""
        self.verdicts[UNIT] = ProviderOutcome("u", UNIT, verdict, reason)


class FakeGuests:
    """Guests that nobody wants to know of."""

    def send(self, epoch: int, report: Report) -> None:
        """See GuestReports."""


@dataclass
class FakeHealth:
    """Health checks whose answers are those of the peers."""

    peers: FakePeers

    def poll_new(self, report: Report, scan: Scan) -> None:
        """Do nothing."""

    def acknowledge(self, report: Report) -> None:
        """Do nothing."""

    def add_health(self, report: Report) -> Report:
        return Report(tuple(replace(driver, health=self.peers.health) for driver in report.drivers))


class FakeDriver(Driver):
    """The driver whose devices are the hardware of the peers."""

    name = "d"

    def __init__(self, peers: FakePeers) -> None:
        super().__init__(FakeHost(), cfg.ConfigOpts())
        self._peers = peers

    def discover(self, scan: Scan) -> list[Device]:
        return self._peers.discover(scan)

    def layouts(self, scan: Scan) -> tuple[CardLayouts, ...]:
        return self._peers.cards


@dataclass(frozen=True)
class FakeAgent:
    """The parts of an agent that run periodically."""

    heartbeats: Heartbeats
    loop: AgentLoop

    def run_once(self) -> None:
        """Send a heartbeat and run the loop."""
        run_agent(self.heartbeats, self.loop)
