# SPDX-License-Identifier: Apache-2.0
"""The audit of a whole cloud in memory, to compare the auditor with."""

from collections import Counter

import sqlalchemy as sa

from cyborg.clients.nova import Servers
from cyborg.clients.placement import Placement
from cyborg.conductor.audit.placement_view import PlacementView
from cyborg.db import audit
from cyborg.db.engine import Reader
from cyborg.db.models import Guest
from cyborg.model.audit_findings import Ages, Finding
from cyborg.tests.oracle import rules, snapshot
from cyborg.tests.oracle.rows import AuditViews, Snapshot


def expected_findings(
    db: Reader, placement: Placement, servers: Servers, ages: Ages
) -> tuple[Finding, ...]:
    """Return what an auditor without memory must find while nothing changes."""
    cloud = snapshot.take(db)
    reader = PlacementView(placement)
    views = {
        host.name: reader.view(
            host.name,
            [row.rp_uuid for row in cloud.deployables_of.get(host.id, ()) if row.rp_uuid],
        )
        for host in cloud.hosts
    }
    consumers = {
        consumer
        for view in views.values()
        for uuid, shown in view.providers.items()
        for consumer in shown.allocations.keys() - cloud.bound_units.get(uuid, {}).keys()
    }
    instances = {arq.instance_uuid for arq in cloud.arqs if arq.instance_uuid is not None}
    vanished = servers.vanished(sorted(instances | consumers))
    since = audit.unbound_since(db, consumers)
    consumer_ages = {consumer: cloud.taken_ms - moment for consumer, moment in since.items()}
    nodes, foreign = {}, {}
    for consumer in {
        consumer
        for view in views.values()
        for shown in view.providers.values()
        for consumer in shown.allocations
        if consumer_ages.get(consumer, ages.settle + 1) > ages.settle
    }:
        server = servers.server(consumer)
        if server is not None and server.settled:
            nodes[consumer] = server.node
            units = Counter(placement.units_of(consumer))
            for row in cloud.deployables:
                bound = cloud.bound_units.get(row.rp_uuid or "", Counter())
                units[row.resource_class] -= bound[consumer]
            foreign[consumer] = frozenset(
                name
                for name, amount in server.requested.items()
                if server.profile is None and units[name] == amount
            )
    peers = AuditViews(
        views,
        vanished,
        consumer_ages,
        nodes=nodes,
        foreign=foreign,
        guests=_guests(db, cloud, servers),
    )
    return tuple(rules.check(cloud, peers, ages))


def _guests(db: Reader, cloud: Snapshot, servers: Servers) -> dict[str, tuple[str, frozenset[int]]]:
    """Return the guests that run where Nova shows their servers as active and settled."""
    with db.reader() as tx:
        rows = tx.execute(sa.select(Guest.host_id, Guest.instance_uuid, Guest.handle_id)).all()
    guests = {}
    for host_id, instance, handle_id in rows:
        server = None if instance is None or handle_id else servers.server(instance)
        name = cloud.host_by_id[host_id].name
        if server is None or (server.task, server.status, server.node) != (None, "ACTIVE", name):
            continue
        units = frozenset(row.handle_id for row in rows if row.instance_uuid == instance)
        guests[server.uuid] = name, units - {None}
    return guests
