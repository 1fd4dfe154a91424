# SPDX-License-Identifier: Apache-2.0
"""The audit: a look at database, Placement and Nova, and what of the invariants does not hold.

The peers are asked between two looks at the database, and only what both looks show is a finding:
a bind, a delete or a report that was going on shows in one of them alone.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from cyborg import exception
from cyborg.clients.nova import Servers
from cyborg.clients.placement import Node, Placement
from cyborg.db import snapshot
from cyborg.db.engine import Reader
from cyborg.model.audit_findings import Finding, Severity
from cyborg.model.audit_rules import Ages, check, confirmed
from cyborg.model.audit_snapshot import Snapshot
from cyborg.model.audit_views import AuditViews, Shown, View


@dataclass(frozen=True)
class Verdict:
    """What an audit found; ``unasked`` are the sentences of peers that could not be asked."""

    findings: tuple[Finding, ...]
    unasked: tuple[str, ...] = ()

    @property
    def severity(self) -> Severity:
        """That of the worst finding; INFO when there is none."""
        return max((one.severity for one in self.findings), default=Severity.INFO)


class Auditor:
    """Looks, and changes nothing.

    Its memory (what Placement showed at which generation, since when an allocation has been
    without ARQ) makes repeated looks cheap; without it they are only dearer. For one thread.
    """

    def __init__(self, *, db: Reader, placement: Placement, servers: Servers, ages: Ages) -> None:
        self._db = db
        self._gallery = PlacementView(placement)
        self._servers = servers
        self._ages = ages
        self._without_arq: dict[str, int] = {}

    def look(self, host: str | None = None) -> Verdict:
        """The findings of the cloud, or of one host (by its provider's name).

        With one host, Placement is asked about that host only, and what cannot be told to belong
        to a host is left out. A peer that cannot be asked takes its part of the invariants along,
        the rest is looked at all the same.

        Raises exception.Unavailable for the database, exception.NotFound for the host.
        """
        first = snapshot.take(self._db)
        if host is not None and all(one.name != host for one in first.hosts):
            raise exception.NotFound(noun="Host", key=host)
        views, unasked = self._views(first, host)
        wanted = _instances(first, host) | _unbound_consumers(first, views)
        vanished: frozenset[str] = frozenset()
        try:
            vanished = self._servers.vanished(wanted)
        except exception.CyborgError as error:
            unasked.append(str(error))
        peers = AuditViews(views, vanished, self._consumer_ages(first, views))
        second = snapshot.take(self._db)
        self._remember(second, views)
        found = confirmed(check(first, peers, self._ages), check(second, peers, self._ages))
        shown = [one for one in found if host is None or one.host == host]
        return Verdict(tuple(shown), tuple(unasked))

    def _views(self, cloud: Snapshot, host: str | None) -> tuple[dict[str, View], list[str]]:
        views = {}
        try:
            for one in cloud.hosts:
                if host is None or one.name == host:
                    deployables = cloud.deployables_of.get(one.id, [])
                    providers = [each.rp_uuid for each in deployables if each.rp_uuid is not None]
                    views[one.name] = self._gallery.view(one.name, providers)
        except exception.CyborgError as error:
            # A wrong endpoint answers 404 to everything, for instance.
            return {}, [str(error)]
        return views, []

    def _consumer_ages(self, cloud: Snapshot, views: Mapping[str, View]) -> dict[str, int]:
        """For how long at least these consumers have had no ARQ.

        Our own rows tell since when an instance is not bound. Of a consumer that never was an
        instance with ARQs, only the time since it was first seen is known.
        """
        consumers = _unbound_consumers(cloud, views)
        seen = {
            one: cloud.taken_ms - since
            for one, since in self._without_arq.items()
            if one in consumers
        }
        return seen | snapshot.open_since(self._db, consumers)

    def _remember(self, cloud: Snapshot, views: Mapping[str, View]) -> None:
        known = self._without_arq
        consumers = _unbound_consumers(cloud, views)
        self._without_arq = {one: known.get(one, cloud.taken_ms) for one in consumers}


class PlacementView:
    """What Placement shows, host by host; what did not change is not asked for again.

    One request for the host's tree, one more to find its root, three for each provider whose
    generation is news. A new allocation makes it so, one that goes does not: of providers that
    had any, they are asked for each time.
    """

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._roots: dict[str, str] = {}
        self._details: dict[str, tuple[int | None, Shown]] = {}

    def view(self, host: str, providers: Collection[str]) -> View:
        """A host's tree, and those of ``providers`` that stand elsewhere.

        Raises exception.Unavailable.
        """
        root, tree = self._tree(host)
        if root is None:
            return View(None)
        for uuid in set(providers) - tree.keys():
            node = self._placement.find_by_uuid(uuid)
            if node is not None:
                tree[uuid] = node
        shown = {
            uuid: self._shown(node, ours=uuid in providers)
            for uuid, node in tree.items()
            if uuid != root
        }
        return View(root, {uuid: one for uuid, one in shown.items() if one is not None})

    def _tree(self, host: str) -> tuple[str | None, dict[str, Node]]:
        if host in self._roots:
            tree = self._placement.tree(self._roots[host])
            if tree:
                return self._roots[host], tree
            del self._roots[host]
        node = self._placement.find_by_name(host)
        if node is None:
            return None, {}
        self._roots[host] = node.uuid
        return node.uuid, self._placement.tree(node.uuid)

    def _shown(self, node: Node, *, ours: bool) -> Shown | None:
        """A provider in detail if it is ours; None when it has just gone."""
        if not ours:
            return Shown(node.name, node.parent_uuid)
        generation, known = self._details.get(node.uuid, (None, Shown("", None)))
        try:
            if generation != node.generation:
                # The generation comes with the first: what changes after it is asked for anew.
                generation, inventories = self._placement.inventories(node.uuid)
                _, traits = self._placement.traits(node.uuid)
                known = Shown("", None, inventories, traits, {"": {}})
            if known.allocations:
                known = replace(known, allocations=self._placement.allocations_of(node.uuid))
        except exception.NotFound:
            return None
        self._details[node.uuid] = generation, known
        return replace(known, name=node.name, parent_uuid=node.parent_uuid)


def _instances(cloud: Snapshot, host: str | None) -> set[str]:
    """The instances that ARQs name, of one host or of all."""
    return {
        one.instance_uuid
        for one in cloud.arqs
        if one.instance_uuid is not None and (host is None or cloud.place_of(one) == host)
    }


def _unbound_consumers(cloud: Snapshot, views: Mapping[str, View]) -> set[str]:
    """Who has allocations of our providers, and no ARQ that binds a unit there."""
    found: set[str] = set()
    for view in views.values():
        for uuid, shown in view.providers.items():
            found |= shown.allocations.keys() - cloud.bound_units.get(uuid, {}).keys()
    return found
