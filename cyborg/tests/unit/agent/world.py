# SPDX-License-Identifier: Apache-2.0
"""A world for an agent's loop: whoever it talks to, in one object that does as a test says."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from cyborg import exception
from cyborg.agent.discovery_requests import DiscoveryRequests
from cyborg.agent.driver_manager import DriverManager, none_else
from cyborg.agent.health import HealthChecks
from cyborg.agent.loop import AgentLoop, Identity, Intervals
from cyborg.agent.prepared_sync import PreparedUnitsSync
from cyborg.agent.reporter import Reporter
from cyborg.agent.state_store import DesiredStateCache, StateFiles
from cyborg.clients.placement import Node, Placement
from cyborg.clients.placement_sync import Publisher
from cyborg.drivers.base import DriverContext
from cyborg.model.device import AttachHandle, AttachType, Deployable, Device, DeviceType
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
    Desired,
    DriverReport,
    DriverState,
    Hello,
    Report,
    Retired,
    Welcome,
)
from cyborg.rpc.conductor import ReportClient

AWAY = exception.Unavailable(peer="somebody", reason="away")


#: The one provider that is desired.
UNIT = "unit"


def seen(*names: str) -> Report:
    """A report of a card with these deployables."""
    address = {"domain": "0", "bus": "0", "device": "0", "function": "0"}
    handle = AttachHandle("0000:00:00.0", AttachType.PCI, address)
    deployables = tuple(Deployable(one, "FPGA", "card", (handle,)) for one in names)
    card = Device("0000:00:00.0", DeviceType.FPGA, "v", "m", address, deployables)
    return Report((DriverReport("d", DriverState.READY, (card,)),))


@dataclass
class World:
    """Conductor, Placement, drivers and clock in one; ``calls`` are in the order they came."""

    calls: list[str] = field(default_factory=list)
    now: float = 0.0
    #: What is away: hello, report, desired, find_root, tree, publish.
    away: set[str] = field(default_factory=set)
    epoch: int = 1
    digest: str | None = None
    generation: int = 1
    #: How many units are desired; None: other ones in each generation.
    units: int | None = None
    believed: dict[str, str] = field(default_factory=dict)
    verdicts: dict[str, ProviderOutcome] = field(default_factory=dict)
    found: Report = field(default_factory=lambda: seen(UNIT))
    tree_nodes: dict[str, Node] = field(default_factory=dict)
    #: What shall leave Placement, and what keeps it there, by name.
    retiring: tuple[str, ...] = ()
    stays: dict[str, Exception] = field(default_factory=dict)
    context: DriverContext | None = None
    hellos: list[Hello] = field(default_factory=list)
    told: list[dict[str, str]] = field(default_factory=list)
    withheld: list[str] = field(default_factory=list)
    files: StateFiles = field(default_factory=lambda: StateFiles(Path("/dev/null/nowhere")))
    discoveries: DiscoveryRequests = field(default_factory=lambda: DiscoveryRequests(patience=0.0))
    refused_by_conductor: dict[str, str] = field(default_factory=dict)

    def note(self, call: str) -> None:
        self.calls.append(call)
        if call in self.away:
            raise AWAY

    def taken(self) -> list[str]:
        """The calls since the last look, those that only read Placement left out."""
        calls, self.calls = self.calls, []
        return [one for one in calls if one not in ("find_root", "tree", "scan", "tend")]

    # The conductor.

    def hello(self, hello: Hello) -> Welcome:
        self.hellos.append(hello)
        self.note("hello")
        return Welcome(self.epoch, self.digest, self.generation)

    def report(self, host: str, epoch: int, report: Report) -> Acknowledged:
        assert (host, epoch) == ("host", self.epoch)
        self.note("report")
        self.digest = report.digest()
        self.generation += 1
        return Acknowledged(self.generation, self.refused_by_conductor)

    def desired(self, host: str, epoch: int) -> Desired:
        assert (host, epoch) == ("host", self.epoch)
        self.note("desired")
        total = self.generation if self.units is None else self.units
        unit = Provider(provider_uuid(UNIT), UNIT, "FPGA", total, 0, frozenset())
        gone = tuple(Retired(provider_uuid(one), one) for one in self.retiring)
        return Desired(self.generation, ProviderTree("compute", (unit,)), self.believed, gone)

    def published(self, host: str, epoch: int, refused: dict[str, str]) -> None:
        self.note("published")
        self.told.append(refused)
        self.believed = refused

    def retired(self, host: str, epoch: int, names: list[str]) -> None:
        self.note("retired")
        self.retiring = tuple(one for one in self.retiring if one not in names)

    # Placement.

    def retire(self, uuid: str, *, root: str) -> None:
        assert root == "root"
        (name,) = [one for one in self.retiring if provider_uuid(one) == uuid]
        self.calls.append(f"retire {name}")
        if name in self.stays:
            raise self.stays[name]

    def find_root(self, names: Any) -> tuple[str, str]:
        self.note("find_root")
        return "root", "compute"

    def tree(self, root: str) -> dict[str, Node]:
        self.note("tree")
        return self.tree_nodes

    def recall(self, tree: ProviderTree) -> None:
        """It remembers nothing."""

    def publish(self, tree: ProviderTree) -> PublishResult:
        self.note("publish")
        return self._result(tree)

    def check(self, tree: ProviderTree, listing: Mapping[str, Node] | None = None) -> PublishResult:
        self.note("check")
        return self._result(tree)

    def withhold(self, uuids: Iterable[str]) -> list[str]:
        wanted = list(uuids)
        if wanted:
            self.note("withhold")
            self.withheld += wanted
        return wanted

    def _result(self, tree: ProviderTree) -> PublishResult:
        good = (ProviderOutcome(one.uuid, one.name, Verdict.PUBLISHED) for one in tree.providers)
        return PublishResult("root", tuple(self.verdicts.get(one.name, one) for one in good))

    # The drivers.

    def scan(self, context: DriverContext) -> Report:
        self.calls.append("scan")
        self.context = context
        return self.found

    def tend(self, host: str, epoch: int) -> None:
        assert (host, epoch) == ("host", self.epoch)
        self.note("tend")

    def loop(self) -> AgentLoop:
        """A new agent in this world."""
        return AgentLoop(
            identity=Identity("host", ("fqdn", "host"), "1", "topic@host"),
            intervals=Intervals(scan=60, full_check=600),
            driver_manager=DriverManager((), none_else),
            reporter=cast(Reporter, self),
            checks=HealthChecks(
                drivers={}, devices=lambda: (), before=None, changed=lambda: None, asks=False
            ),
            prepared_sync=cast(PreparedUnitsSync, self),
            discoveries=self.discoveries,
            cache=DesiredStateCache(self.files, "host"),
            conductor=cast(ReportClient, self),
            placement=cast(Placement, self),
            publisher=cast(Publisher, self),
            clock=lambda: self.now,
        )

    def verdict(self, verdict: Verdict, reason: str) -> None:
        """What Placement says of the unit from now on."""
        self.verdicts[UNIT] = ProviderOutcome("u", UNIT, verdict, reason)
