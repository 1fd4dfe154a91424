# SPDX-License-Identifier: Apache-2.0
"""The audit of a whole cloud in memory, to compare the auditor with."""

from cyborg.clients.nova import Servers
from cyborg.clients.placement import Placement
from cyborg.conductor.audit.placement_view import PlacementView
from cyborg.db import audit
from cyborg.db.engine import Reader
from cyborg.model.audit_findings import Ages, Finding
from cyborg.tests.oracle import rules, snapshot
from cyborg.tests.oracle.rows import AuditViews


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
    return tuple(rules.check(cloud, AuditViews(views, vanished, consumer_ages), ages))
