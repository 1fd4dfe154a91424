# SPDX-License-Identifier: Apache-2.0
"""Compare database, Placement and Nova, and return the invariants that are violated.

The auditor asks Placement and Nova between two reads of the database. A difference is a finding
only if both reads show it: a bind, a delete or a report in progress shows in one of them only.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from cyborg import exception
from cyborg.clients.nova import Servers
from cyborg.clients.placement import Node, Placement
from cyborg.db import snapshot
from cyborg.db.engine import Reader
from cyborg.model.audit_findings import Finding
from cyborg.model.audit_rules import Ages, check, confirmed
from cyborg.model.audit_snapshot import AuditViews, HostView, ProviderView, Snapshot


@dataclass(frozen=True)
class AuditResult:
    """The findings of an audit, and one sentence for each service that did not answer."""

    findings: tuple[Finding, ...]
    unasked: tuple[str, ...] = ()


class Auditor:
    """Reads, and changes nothing.

    It remembers what Placement showed at which generation, and since when a consumer has an
    allocation without an ARQ. Only the cost of repeated audits depends on this memory. An auditor
    is for one thread.
    """

    def __init__(self, *, db: Reader, placement: Placement, servers: Servers, ages: Ages) -> None:
        self._db = db
        self._placement_view = PlacementView(placement)
        self._servers = servers
        self._ages = ages
        self._first_seen: dict[str, int] = {}

    def look(self, host: str | None = None) -> AuditResult:
        """Return the findings of the cloud, or of one host (by its provider's name).

        With one host, Placement is asked about that host only, and findings that belong to no
        single host are left out. When a service does not answer, its part of the invariants is not
        checked; the other parts are.

        Raises exception.Unavailable for the database, exception.NotFound for the host.
        """
        first = snapshot.take(self._db)
        if host is not None and all(row.name != host for row in first.hosts):
            raise exception.NotFound(noun="Host", key=host)
        views, unasked = self._views(first, host)
        instances = {
            arq.instance_uuid
            for arq in first.arqs
            if arq.instance_uuid is not None and (host is None or first.place_of(arq) == host)
        }
        consumers = _unbound_consumers(first, views)
        vanished: frozenset[str] = frozenset()
        try:
            vanished = self._servers.vanished(instances | consumers)
        except exception.CyborgError as error:
            unasked.append(str(error))
        # Milliseconds, at least, for which the consumers have had no ARQ. The database knows since
        # when an instance is not bound. Of a consumer that never was an instance with ARQs, only
        # the time since the auditor first saw it is known.
        ages = {
            consumer: first.taken_ms - since
            for consumer, since in self._first_seen.items()
            if consumer in consumers
        }
        ages |= snapshot.unbound_for(self._db, consumers)
        evidence = AuditViews(views, vanished, ages)
        second = snapshot.take(self._db)
        self._first_seen = {
            consumer: self._first_seen.get(consumer, second.taken_ms)
            for consumer in _unbound_consumers(second, views)
        }
        findings = confirmed(
            check(first, evidence, self._ages), check(second, evidence, self._ages)
        )
        shown = [finding for finding in findings if host is None or finding.host == host]
        return AuditResult(tuple(shown), tuple(unasked))

    def _views(self, cloud: Snapshot, host: str | None) -> tuple[dict[str, HostView], list[str]]:
        """Return what Placement shows of the hosts, and the error when it does not answer."""
        views = {}
        try:
            for row in cloud.hosts:
                if host is None or row.name == host:
                    deployables = cloud.deployables_of.get(row.id, [])
                    providers = [
                        deployable.rp_uuid
                        for deployable in deployables
                        if deployable.rp_uuid is not None
                    ]
                    views[row.name] = self._placement_view.view(row.name, providers)
        except exception.CyborgError as error:
            # For instance, a wrong endpoint answers 404 to everything.
            return {}, [str(error)]
        return views, []


class PlacementView:
    """Reads what Placement shows of each host, and asks only for what may have changed.

    This costs one request for the tree of a host, one more to find its root for the first time,
    and three for each provider with a new generation. A new allocation changes the generation and
    a deleted one does not, so the allocations of providers that had any are read each time.
    """

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._roots: dict[str, str] = {}
        self._details: dict[str, tuple[int | None, ProviderView]] = {}

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
        generation, shown = self._details.get(node.uuid, (None, ProviderView("", None)))
        try:
            if generation != node.generation:
                # The generation comes with the first answer, so that what changes after it is
                # read again in the next pass.
                generation, inventories = self._placement.inventories(node.uuid)
                _, traits = self._placement.traits(node.uuid)
                shown = ProviderView("", None, inventories, traits, {"": {}})
            if shown.allocations:
                shown = replace(shown, allocations=self._placement.allocations_of(node.uuid))
        except exception.NotFound:
            return None
        self._details[node.uuid] = generation, shown
        return replace(shown, name=node.name, parent_uuid=node.parent_uuid)


def _unbound_consumers(cloud: Snapshot, views: Mapping[str, HostView]) -> set[str]:
    """Return the consumers with allocations of Cyborg's providers and no ARQ that binds a unit."""
    consumers: set[str] = set()
    for view in views.values():
        for uuid, shown in view.providers.items():
            consumers |= shown.allocations.keys() - cloud.bound_units.get(uuid, {}).keys()
    return consumers
