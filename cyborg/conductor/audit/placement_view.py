# SPDX-License-Identifier: Apache-2.0
"""Read what Placement shows of a host, and compare it with the rows of the host.

Units: Placement offers ``total - reserved`` of a provider, less the allocated units. The scheduler
allocates before a bind, so an allocation without (enough) ARQs is a future bind. There must be a
free handle for every unit that is offered, or allocated but not bound yet.
"""

import json
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from cyborg import exception
from cyborg.clients.placement import Node, Placement
from cyborg.db.audit import HostRow
from cyborg.db.providers import Part
from cyborg.model.audit_findings import Ages, Finding, Kind
from cyborg.model.provider import Inventory, Provider, provider_uuid

_CANNOT_PUBLISH = "Remove the finding cannot-publish of {host}; its agent publishes it then."


@dataclass(frozen=True)
class ProviderView:
    """One resource provider as Placement shows it; ``allocations`` by consumer, then class."""

    name: str
    parent_uuid: str | None
    inventories: Mapping[str, Inventory] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    allocations: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class HostView:
    """What Placement shows of one host: the compute's own provider, and providers by uuid.

    ``root`` is None when Placement does not know the compute.
    """

    root: str | None
    providers: Mapping[str, ProviderView] = field(default_factory=dict)


class PlacementView:
    """Reads what Placement shows of each host, and asks only for what may have changed.

    This costs one request for the tree of a host, one more to find its root for the first time,
    and three for each provider with a new generation. A new allocation changes the generation and
    a deleted one does not, so the allocations of providers that had any are read each time.
    """

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self.units_of = placement.units_of
        self._roots: dict[str, str] = {}
        #: Generation, inventories and traits of a provider as JSON, and whether it had allocations.
        #: Equal documents share their memory.
        self._details: dict[str, tuple[int | None, str, bool]] = {}

    def view(self, host: str, providers: Collection[str]) -> HostView:
        """Return a host's tree, and those of ``providers`` that are in other trees.

        Raises exception.Unavailable.
        """
        root = self._roots.get(host)
        tree = {} if root is None else self._placement.tree(root)
        if root is None or not tree:
            self._roots.pop(host, None)
            node = self._placement.find_by_name(host)
            if node is None:
                return HostView(None)
            root = self._roots[host] = node.uuid
            tree = self._placement.tree(root)
        for uuid in set(providers) - tree.keys():
            node = self._placement.find_by_uuid(uuid)
            if node is not None:
                tree[uuid] = node
        shown = {
            uuid: self._shown(node, in_detail=uuid in providers)
            for uuid, node in tree.items()
            if uuid != root
        }
        return HostView(
            root, {uuid: detail for uuid, detail in shown.items() if detail is not None}
        )

    def _shown(self, node: Node, *, in_detail: bool) -> ProviderView | None:
        """Return what Placement shows of a provider; None when it has just been deleted."""
        if not in_detail:
            return ProviderView(node.name, node.parent_uuid)
        generation, document, has_allocations = self._details.get(node.uuid, (None, "", False))
        try:
            if generation != node.generation:
                # The generation comes with the first answer, so that what changes after it is
                # read again in the next pass.
                generation, inventories = self._placement.inventories(node.uuid)
                _, traits = self._placement.traits(node.uuid)
                document = sys.intern(json.dumps([inventories, sorted(traits)], sort_keys=True))
                has_allocations = True
            allocations = self._placement.allocations_of(node.uuid) if has_allocations else {}
        except exception.NotFound:
            return None
        self._details[node.uuid] = generation, document, bool(allocations)
        inventories, listed = json.loads(document)
        return ProviderView(
            node.name, node.parent_uuid, inventories, frozenset(listed), allocations
        )


@dataclass(frozen=True)
class HostComparison:
    """The rows of a host, and what Placement shows of it."""

    host: HostRow
    view: HostView
    ages: Ages

    def differences(self) -> Iterator[Finding]:
        """Yield the differences; an instance without a server may be among UNALLOCATED."""
        if self.view.root is None:
            if self.host.deployables:
                cause = (
                    f"Placement does not know {self.host.name}; none of its devices are offered."
                )
                yield Finding(Kind.NO_COMPUTE, "host", self.host.name, cause, self.host.name)
            return
        for deployable in self.host.deployables:
            yield from self._compare(deployable)
            yield from self._unallocated(deployable)

    def orphans(self) -> Iterator[Finding]:
        """Yield our providers (their UUIDs follow from their names) that the host does not have.

        Another host may have a deployable of this name.
        """
        for uuid, shown in self.view.providers.items():
            ours = uuid == provider_uuid(shown.name) and shown.parent_uuid == self.view.root
            if ours and uuid not in self.host.providers:
                cause = f"Placement shows {shown.name}, but there is no such deployable."
                yield Finding(Kind.ORPHAN_PROVIDER, "provider", uuid, cause, self.host.name)

    def unbound(self) -> Iterator[tuple[str, str]]:
        """Yield provider and consumer of the allocations without an ARQ that binds a unit."""
        for deployable in self.host.deployables:
            shown = self._shown(deployable)
            if shown is not None:
                bound = self.host.bound[deployable.desired.uuid]
                for consumer in shown.allocations.keys() - bound.keys():
                    yield deployable.desired.uuid, consumer

    def surplus(self) -> Iterator[tuple[str, str, int]]:
        """Yield provider, consumer, and how many units it has allocated beyond those it has."""
        for deployable in self.host.deployables:
            shown = self._shown(deployable)
            for consumer, resources in () if shown is None else shown.allocations.items():
                units = resources.get(deployable.desired.resource_class, 0)
                missing = units - self.host.bound[deployable.desired.uuid][consumer]
                if missing > 0:
                    yield deployable.desired.uuid, consumer, missing

    def resource_class(self, provider: str) -> str:
        """Return the resource class of one of the host's providers."""
        return next(
            deployable.desired.resource_class
            for deployable in self.host.deployables
            if deployable.desired.uuid == provider
        )

    def bound(self, consumer: str, resource_class: str) -> int:
        """Return how many units of a class the ARQs of a consumer have on this host."""
        return sum(
            self.host.bound[deployable.desired.uuid][consumer]
            for deployable in self.host.deployables
            if deployable.desired.resource_class == resource_class
        )

    def foreign(self, consumer: str, units: Mapping[str, int]) -> Finding:
        """Return the finding for units (by provider) that the flavor of a server requests itself.

        They are units of this service by their class alone: the server boots without a device.
        """
        parts = [
            f"{units[deployable.desired.uuid]} unit(s) of {deployable.desired.name} "
            f"({deployable.desired.resource_class})"
            for deployable in self.host.deployables
            if deployable.desired.uuid in units
        ]
        cause = (
            f"It uses {', '.join(parts)} without a device: its flavor requests this class itself, "
            "and no device profile."
        )
        return Finding(Kind.FOREIGN_ALLOCATION, "instance", consumer, cause, self.host.name)

    def unknown_holders(self, holders: Mapping[str, Mapping[str, int]]) -> Iterator[Finding]:
        """Yield the providers that ``holders`` (provider, consumer, units) use without an ARQ.

        Nobody knows which of the units that no ARQ has are theirs.
        """
        for deployable in self.host.deployables:
            units = holders.get(deployable.desired.uuid, {})
            if units:
                cause = (
                    f"{sum(units.values())} unit(s) of {deployable.desired.name} are used by "
                    f"{', '.join(sorted(units))}: servers that have no request for them."
                )
                finding = _of_provider(Kind.UNKNOWN_HOLDER, self.host, deployable, cause)
                yield replace(finding, fixable=deployable.unclaimed > 0)

    @property
    def _silent(self) -> bool:
        """Return whether the agent is silent, so that nothing can be published."""
        silence = self.host.agent_silence
        return silence is None or silence > self.ages.agent_silence

    def _shown(self, deployable: Part) -> ProviderView | None:
        return self.view.providers.get(deployable.desired.uuid)

    def _compare(self, deployable: Part) -> Iterator[Finding]:
        """Yield the differences of one provider; a refused one has a finding already."""
        name, shown = deployable.desired.name, self._shown(deployable)
        if shown is None:
            if deployable.row.publish_error is None:
                cause = f"Placement has no provider {name}."
                yield self._late(Kind.MISSING_PROVIDER, deployable, cause)
            return
        if shown.parent_uuid != self.view.root:
            if deployable.row.publish_error is None:
                cause = f"{name} is not below {self.host.name} in Placement."
                yield _of_provider(Kind.MISPLACED_PROVIDER, self.host, deployable, cause)
            return
        difference = _difference(deployable.desired, shown, silent=self._silent)
        if not difference:
            return
        cause = f"{name}: {difference}."
        excess = _excess(deployable, shown, self.host.bound[deployable.desired.uuid])
        if excess:
            cause += f" Placement gives out {excess} unit(s) more than can be bound."
            yield self._late(Kind.EXCESS_INVENTORY, deployable, cause)
        elif deployable.row.publish_error is None:
            yield self._late(Kind.DRIFT, deployable, cause)

    def _unallocated(self, deployable: Part) -> Iterator[Finding]:
        shown = self._shown(deployable)
        if shown is None:
            return
        for instance, count in self.host.owed[deployable.desired.uuid].items():
            of_instance = shown.allocations.get(instance, {})
            allocated = of_instance.get(deployable.desired.resource_class, 0)
            if allocated < count:
                cause = (
                    f"It has {count} unit(s) of {deployable.desired.name}, but Placement knows of "
                    f"{allocated}."
                )
                yield Finding(Kind.UNALLOCATED, "instance", instance, cause, self.host.name)

    def _late(self, kind: Kind, deployable: Part, cause: str) -> Finding:
        """Return the finding for a difference that the agent must remove; PUBLISHING if new.

        An agent that is silent, or that cannot publish, removes no difference.
        """
        unable = self._silent or self.host.publish_error is not None
        if self.host.changed_age <= self.ages.settle and not unable:
            return _of_provider(Kind.PUBLISHING, self.host, deployable, cause)
        finding = _of_provider(kind, self.host, deployable, cause)
        if self.host.publish_error is not None and not self._silent:
            finding = replace(finding, advice=_CANNOT_PUBLISH.format(host=self.host.name))
        return replace(finding, fixable=not unable)


def misnamed_providers(host: HostRow) -> Iterator[Finding]:
    """Yield the deployables of a host whose provider is not the one of their name."""
    for deployable in host.deployables:
        name, uuid = deployable.desired.name, deployable.row.rp_uuid
        if uuid != provider_uuid(name):
            cause = f"{name} has provider {uuid}, which its name does not make."
            yield _of_provider(Kind.MISNAMED_PROVIDER, host, deployable, cause)


def _of_provider(kind: Kind, host: HostRow, deployable: Part, cause: str) -> Finding:
    key = deployable.desired.uuid or deployable.desired.name
    return Finding(kind, "provider", key, cause, host.name)


def _difference(desired: Provider, shown: ProviderView, *, silent: bool) -> str:
    """Return the differences in Placement in words; traits of other services are ignored.

    ``silent`` allows more reserved units: units that need a silent agent are reserved.
    """
    parts = []
    if shown.name != desired.name:
        parts.append(f"it is called {shown.name}")
    expected, actual = desired.inventories(), dict(shown.inventories)
    if silent and expected.keys() == actual.keys() and expected:
        (name,) = expected
        if desired.reserved < actual[name].get("reserved", 0) <= desired.total:
            expected[name] = {**expected[name], "reserved": actual[name]["reserved"]}
    for name in sorted(expected.keys() | actual.keys()):
        if name not in actual:
            parts.append(f"no inventory of {name}")
        elif name not in expected:
            consumers = [uuid for uuid, units in shown.allocations.items() if name in units]
            held = f" with allocations of {' and '.join(sorted(consumers))}" if consumers else ""
            parts.append(f"an inventory of {name}{held}")
        else:
            parts += [
                f"{field} of {name} is {actual[name].get(field)} instead of {value}"
                for field, value in expected[name].items()
                if actual[name].get(field) != value
            ]
    lacking = desired.traits - shown.traits
    if lacking:
        parts.append(f"without trait {', '.join(sorted(lacking))}")
    return ", ".join(parts)


def _excess(deployable: Part, shown: ProviderView, bound: Mapping[str, int]) -> int:
    """Return how many more units Placement offers or has allocated for binds than can be bound.

    With a correct inventory this needs an ARQ that has a handle without an allocation, which has
    its own kind of finding.
    """
    inventory = shown.inventories.get(deployable.desired.resource_class, {})
    pending = used = 0
    for consumer, resources in shown.allocations.items():
        units = resources.get(deployable.desired.resource_class, 0)
        used += units
        pending += max(0, units - bound.get(consumer, 0))
    offered = int(inventory.get("total", 0) - inventory.get("reserved", 0)) - used
    return max(0, offered + pending - deployable.claimable) if offered > 0 else 0
