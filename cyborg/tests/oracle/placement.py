# SPDX-License-Identifier: Apache-2.0
"""The invariants between database, Placement and hosts; used by ``rules``.

Units: Placement offers ``total - reserved`` of a provider, less the allocated units. The scheduler
allocates before a bind, so an allocation without (enough) ARQs is a future bind. There must be a
free handle for every unit that is offered, or allocated but not bound yet.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from cyborg.conductor.audit.placement_view import HostView, ProviderView
from cyborg.model.arq import State
from cyborg.model.audit_findings import Finding, Kind
from cyborg.model.provider import Provider, provider_uuid
from cyborg.tests.oracle.rows import (
    AuditViews,
    DeployableRow,
    HostRow,
    Snapshot,
)


@dataclass(frozen=True)
class GracePeriods:
    """How long Placement may lag behind, and an agent may be silent, in milliseconds."""

    settle: int
    agent_silence: int


def differences(cloud: Snapshot, peers: AuditViews, patience: GracePeriods) -> Iterator[Finding]:
    """Yield the differences between rows and Placement, for the hosts that have a view."""
    for host in cloud.hosts:
        deployables = cloud.deployables_of.get(host.id, [])
        for deployable in deployables:
            if deployable.publish_error is not None:
                cause = f"Placement refuses {deployable.name}: {deployable.publish_error}"
                yield _finding(Kind.REFUSED_PROVIDER, host, deployable, cause)
            if deployable.rp_uuid != provider_uuid(deployable.name):
                cause = (
                    f"{deployable.name} has provider {deployable.rp_uuid}, "
                    "which its name does not make."
                )
                yield _finding(Kind.MISNAMED_PROVIDER, host, deployable, cause)
        view = peers.placement.get(host.name)
        if view is not None and view.root is not None:
            side = _Side(cloud, host, view, patience)
            for deployable in deployables:
                yield from side.compare(deployable)
            yield from side.orphans()
        elif view is not None and deployables:
            cause = f"Placement does not know {host.name}; none of its devices are offered."
            yield Finding(Kind.NO_COMPUTE, "host", host.name, cause, host.name)


@dataclass(frozen=True)
class _Side:
    """One host, and what Placement shows of it."""

    cloud: Snapshot
    host: HostRow
    view: HostView
    patience: GracePeriods

    @property
    def silent(self) -> bool:
        """Return whether the agent is silent, so that nothing can be published."""
        silence = self.host.agent_silence
        return silence is None or silence > self.patience.agent_silence

    def compare(self, deployable: DeployableRow) -> Iterator[Finding]:
        """Yield the differences of one provider; a refused one has a finding already."""
        shown = self.view.providers.get(deployable.rp_uuid or "")
        refused = deployable.publish_error is not None
        if shown is None:
            if not refused:
                cause = f"Placement has no provider {deployable.name}."
                yield self._late(Kind.MISSING_PROVIDER, deployable, cause)
            return
        if shown.parent_uuid != self.view.root:
            if not refused:
                cause = f"{deployable.name} is not below {self.host.name} in Placement."
                yield _finding(Kind.MISPLACED_PROVIDER, self.host, deployable, cause)
            return
        difference = _difference(self.cloud.desired(deployable), shown, silent=self.silent)
        if not difference:
            return
        cause = f"{deployable.name}: {difference}."
        excess = _excess(self.cloud, deployable, shown)
        if excess:
            cause += f" Placement gives out {excess} unit(s) more than can be bound."
            yield self._late(Kind.EXCESS_INVENTORY, deployable, cause)
        elif not refused:
            yield self._late(Kind.DRIFT, deployable, cause)

    def orphans(self) -> Iterator[Finding]:
        """Yield our providers (their UUIDs follow from their names) without a deployable."""
        for uuid, shown in self.view.providers.items():
            named = uuid == provider_uuid(shown.name) and shown.parent_uuid == self.view.root
            if named and uuid not in self.cloud.providers:
                cause = f"Placement shows {shown.name}, but there is no such deployable."
                yield Finding(Kind.ORPHAN_PROVIDER, "provider", uuid, cause, self.host.name)

    def _late(self, kind: Kind, deployable: DeployableRow, cause: str) -> Finding:
        """Return the finding for a difference that the agent must remove; PUBLISHING if new."""
        refused = self.host.agent is not None and bool(self.host.agent.publish_error)
        unable = self.silent or refused
        if self.host.changed_age <= self.patience.settle and not unable:
            return _finding(Kind.PUBLISHING, self.host, deployable, cause)
        advice = ""
        if refused and not self.silent:
            name = self.host.name
            advice = f"Remove the finding cannot-publish of {name}; its agent publishes it then."
        finding = _finding(kind, self.host, deployable, cause)
        return replace(finding, fixable=not unable, advice=advice)


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


def _excess(cloud: Snapshot, deployable: DeployableRow, shown: ProviderView) -> int:
    """Return how many more units Placement offers or has allocated for binds than can be bound.

    With a correct inventory this needs an ARQ that has a handle without an allocation, which has
    its own kind of finding.
    """
    inventory = shown.inventories.get(deployable.resource_class, {})
    bound = cloud.bound_units.get(deployable.rp_uuid or "", Counter())
    pending = used = 0
    for consumer, resources in shown.allocations.items():
        units = resources.get(deployable.resource_class, 0)
        used += units
        pending += max(0, units - bound[consumer])
    offered = int(inventory.get("total", 0) - inventory.get("reserved", 0)) - used
    return max(0, offered + pending - cloud.claimable(deployable)) if offered > 0 else 0


def _finding(kind: Kind, host: HostRow, deployable: DeployableRow, cause: str) -> Finding:
    return Finding(kind, "provider", deployable.rp_uuid or deployable.name, cause, host.name)


def allocations(cloud: Snapshot, peers: AuditViews, age: int) -> Iterator[Finding]:
    """Yield the differences between ARQs and allocations.

    An allocation without ARQ is not a fault while Nova has its server: a bind may follow, or an
    evacuated host may clean up.
    """
    for host in cloud.hosts:
        view = peers.placement.get(host.name)
        if view is None:
            continue
        stale: set[str] = set()
        for deployable in cloud.deployables_of.get(host.id, []):
            shown = view.providers.get(deployable.rp_uuid or "")
            if shown is None:
                continue
            bound = cloud.bound_units.get(deployable.rp_uuid or "", Counter())
            owed = cloud.owed_units.get(deployable.rp_uuid or "", Counter())
            for instance, units in owed.items():
                units_of_class = shown.allocations.get(instance, {})
                allocated = units_of_class.get(deployable.resource_class, 0)
                # An instance without a server has a finding of its own.
                if allocated < units and instance not in peers.vanished:
                    cause = (
                        f"It has {units} unit(s) of {deployable.name}, but Placement knows of "
                        f"{allocated}."
                    )
                    yield Finding(Kind.UNALLOCATED, "instance", instance, cause, host.name)
            stale |= (shown.allocations.keys() & peers.vanished) - bound.keys()
        for consumer in sorted(stale):
            age_without_arq = peers.consumer_ages.get(consumer)
            if age_without_arq is None or age_without_arq > age:
                kind = Kind.UNDATED_ALLOCATION if age_without_arq is None else Kind.STALE_ALLOCATION
                cause = f"It has an allocation on {host.name}, but no ARQ, and Nova has no server."
                yield Finding(kind, "consumer", consumer, cause, host.name)


def unknown_holders(cloud: Snapshot, peers: AuditViews) -> Iterator[Finding]:
    """Yield the providers of which settled servers of the host use units without an ARQ."""
    for host in cloud.hosts:
        view = peers.placement.get(host.name)
        for deployable in cloud.deployables_of.get(host.id, []) if view is not None else []:
            shown = view.providers.get(deployable.rp_uuid or "") if view is not None else None
            bound = cloud.bound_units.get(deployable.rp_uuid or "", Counter())
            units = {
                consumer: resources.get(deployable.resource_class, 0) - bound[consumer]
                for consumer, resources in (shown.allocations.items() if shown else ())
                if peers.nodes.get(consumer) == host.name
                and deployable.resource_class not in peers.foreign.get(consumer, ())
            }
            units = {consumer: count for consumer, count in units.items() if count > 0}
            if units:
                cause = (
                    f"{sum(units.values())} unit(s) of {deployable.name} are used by "
                    f"{', '.join(sorted(units))}: servers that have no request for them."
                )
                finding = _finding(Kind.UNKNOWN_HOLDER, host, deployable, cause)
                yield replace(finding, fixable=bool(cloud.unclaimed(deployable)))


def foreign_allocations(cloud: Snapshot, peers: AuditViews) -> Iterator[Finding]:
    """Yield the settled servers that have units because their flavors request the class."""
    for consumer, classes in peers.foreign.items():
        for host in cloud.hosts:
            if peers.nodes.get(consumer) != host.name or host.name not in peers.placement:
                continue
            parts = []
            for deployable in cloud.deployables_of.get(host.id, []):
                provider = deployable.rp_uuid or ""
                shown = peers.placement[host.name].providers.get(provider)
                used = shown.allocations.get(consumer, {}) if shown else {}
                units = used.get(deployable.resource_class, 0)
                units -= cloud.bound_units.get(provider, Counter())[consumer]
                if units > 0 and deployable.resource_class in classes:
                    parts.append(
                        f"{units} unit(s) of {deployable.name} ({deployable.resource_class})"
                    )
            if parts:
                cause = (
                    f"It uses {', '.join(parts)} without a device: its flavor requests this class "
                    "itself, and no device profile."
                )
                yield Finding(Kind.FOREIGN_ALLOCATION, "instance", consumer, cause, host.name)


def prepared(cloud: Snapshot, peers: AuditViews) -> Iterator[Finding]:
    """Yield the differences between bound ARQs and the units that hosts have prepared."""
    for host in cloud.hosts:
        there = peers.prepared.get(host.name)
        if there is None:
            continue
        held: set[tuple[str, str]] = set()
        for deployable in cloud.deployables_of.get(host.id, []):
            for handle in cloud.handles_of.get(deployable.id, []):
                unit = deployable.name, handle.key
                holders = cloud.holders.get(handle.id, [])
                if any(arq.binds for arq in holders) or handle.id in cloud.release_of:
                    held.add(unit)
                for arq in holders:
                    if arq.state == State.BOUND and arq.prepared and unit not in there:
                        cause = f"Its unit {handle.key} of {deployable.name} is not prepared."
                        yield Finding(Kind.UNPREPARED, "arq", arq.uuid, cause, host.name)
        for name, key in sorted(there - held):
            cause = f"Unit {key} of {name} is prepared, but nobody has it."
            yield Finding(Kind.LEFTOVER, "unit", f"{name}/{key}", cause, host.name)
