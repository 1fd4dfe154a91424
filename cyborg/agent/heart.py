# SPDX-License-Identifier: Apache-2.0
"""The agent's one round: look, say hello, report what changed, keep Placement as desired.

Every part may be missing: without the bus or a conductor the agent keeps looking, without
Placement (or the compute's provider in it) it keeps reporting; the round after they return puts
everything right.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cyborg import exception
from cyborg.agent.reporter import Reporter
from cyborg.clients.placement import Node, Placement
from cyborg.clients.reconcile import Publisher
from cyborg.drivers.base import Surroundings
from cyborg.model.pci import PciAddress
from cyborg.model.provider import Verdict, provider_uuid
from cyborg.model.report import Desired, Hello, Report, Welcome
from cyborg.rpc.conductor import ReportClient

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Identity:
    """Who this agent is: its name on the bus, and what Placement may call its compute."""

    host: str
    provider_names: tuple[str, ...]
    version: str
    endpoint: str


@dataclass(frozen=True)
class Intervals:
    """How often the agent looks at its hardware and checks all of Placement, in seconds."""

    scan: float
    full_check: float


@dataclass
class _Memory:
    """What the agent knows of its last rounds; a restart forgets it, and asks."""

    root: tuple[str, str] | None = None
    epoch: int | None = None
    report: Report | None = None
    scanned: float | None = None
    desired: Desired | None = None
    published: int | None = None
    checked: float | None = None
    refused: dict[str, str] = field(default_factory=dict)
    claims: dict[str, str] = field(default_factory=dict)
    #: The compute's tree in Placement, in a round that checks all of it.
    tree: dict[str, Node] | None = None


class Heart:
    """Beats once per call of ``beat``; ``clock`` is monotonic, in seconds."""

    def __init__(
        self,
        *,
        identity: Identity,
        intervals: Intervals,
        reporter: Reporter,
        conductor: ReportClient,
        placement: Placement,
        publisher: Publisher,
        clock: Callable[[], float],
    ) -> None:
        self._identity = identity
        self._intervals = intervals
        self._reporter = reporter
        self._conductor = conductor
        self._placement = placement
        self._publisher = publisher
        self._clock = clock
        self._memory = _Memory()

    def beat(self) -> None:
        """One round; raises what kept it from its end, after doing all that was possible."""
        memory = self._memory
        missing = self._look_around()
        # What guests hold must be known before the first look: it would seem lost otherwise.
        welcome = self._greet()
        if memory.report is None or self._due(memory.scanned, self._intervals.scan):
            memory.report, memory.scanned = self._scan(), self._clock()
        self._report(welcome, memory.report)
        if memory.root is not None:
            self._publish(known_before=welcome.digest is not None)
        elif missing is not None:
            raise missing

    def _look_around(self) -> exception.CyborgError | None:
        """Find the compute's provider, and what Nova claims below it; answers why it cannot."""
        memory = self._memory
        memory.tree = None
        try:
            if memory.root is None:
                memory.root = self._publisher.find_root(self._identity.provider_names)
                LOG.info("Devices of this host go below %s in Placement", memory.root[1])
            if self._due(memory.checked, self._intervals.full_check):
                memory.tree = self._placement.tree(memory.root[0])
                memory.claims = _claims(memory.tree, memory.root[1])
        except exception.CyborgError as error:
            return error
        return None

    def _greet(self) -> Welcome:
        """Say hello, and fetch what is desired when that is news."""
        memory, me = self._memory, self._identity
        names = (memory.root[1],) if memory.root else me.provider_names
        welcome = self._conductor.hello(
            Hello(me.host, names, me.version, me.endpoint, memory.epoch)
        )
        memory.epoch = welcome.epoch
        self._want(welcome.desired_generation)
        return welcome

    def _scan(self) -> Report:
        desired = self._memory.desired
        kept = frozenset(one.name for one in desired.tree.providers) if desired else frozenset()
        return self._reporter.scan(Surroundings(claims=self._memory.claims, kept=kept))

    def _report(self, welcome: Welcome, report: Report) -> None:
        """Hand the report in unless the conductor has it already."""
        if report.digest() == welcome.digest:
            return
        taken = self._conductor.report(self._identity.host, welcome.epoch, report)
        LOG.info("Reported %d device(s)", sum(len(one.devices) for one in report.drivers))
        for name, reason in taken.refused.items():
            LOG.warning("The conductor does not keep %s: %s", name, reason)
        self._want(taken.desired_generation)

    def _want(self, generation: int) -> None:
        memory = self._memory
        if memory.desired is None or memory.desired.generation != generation:
            assert memory.epoch is not None
            before = memory.desired
            memory.desired = self._conductor.desired(self._identity.host, memory.epoch)
            memory.refused = dict(memory.desired.refused)
            if before is not None and before.tree == memory.desired.tree:
                # Not the wish is news but what Placement shows: look at all of it again.
                memory.checked = None

    def _publish(self, *, known_before: bool) -> None:
        """Make Placement show what is desired, and tell which providers it refuses."""
        memory, desired = self._memory, self._memory.desired
        if desired is None or memory.epoch is None:
            return
        if self._due(memory.checked, self._intervals.full_check):
            # A host that nobody has seen before has nothing in Placement to compare with.
            fresh = memory.checked is None and not known_before
            full = True
        elif memory.published != desired.generation:
            fresh, full = True, False
        else:
            return
        memory.published = None
        if fresh:
            result = self._publisher.publish(desired.tree)
        else:
            result = self._publisher.check(desired.tree, listing=memory.tree)
        memory.checked = self._clock() if full else memory.checked
        outcomes = result.outcomes
        if not any(one.verdict is Verdict.FAILED for one in outcomes):
            memory.published = desired.generation
        refused = {one.name: one.reason for one in outcomes if one.verdict is Verdict.REFUSED}
        if refused != memory.refused:
            self._conductor.published(self._identity.host, memory.epoch, refused)
            memory.refused = refused

    def _due(self, since: float | None, interval: float) -> bool:
        return since is None or self._clock() - since >= interval


def _claims(tree: Mapping[str, Node], root_name: str) -> dict[str, str]:
    """The PCI addresses that Nova offers by itself (its providers are ``<compute>_<address>``).

    Ours may be called alike, but their uuids follow from their names.
    """
    claims = {}
    for node in tree.values():
        owner, _, address = node.name.rpartition("_")
        if owner != root_name or node.uuid == provider_uuid(node.name):
            continue
        try:
            claims[str(PciAddress.parse(address))] = f"Nova offers it in Placement as {node.name}"
        except ValueError:
            continue
    return claims
