# SPDX-License-Identifier: Apache-2.0
"""The audit in SQL finds the same as the rules in plain Python, for every kind of damage."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from keystoneauth1 import session
from keystoneauth1.adapter import Adapter

from cyborg.clients.nova import Servers
from cyborg.clients.placement import Node, Placement
from cyborg.conductor.audit.auditor import Auditor
from cyborg.conductor.audit.placement_view import ProviderView
from cyborg.db import models
from cyborg.db.engine import Database, Settings
from cyborg.model.audit_findings import Ages, Kind
from cyborg.model.process import AGENT, CONDUCTOR
from cyborg.model.provider import Inventory
from cyborg.tests.oracle.audit import expected_findings
from cyborg.tests.oracle.rows import ArqRow, AuditViews, HostRow, Snapshot
from cyborg.tests.unit.model.clouds import Whole
from cyborg.tests.unit.model.damages import DAMAGES
from cyborg.tests.unit.model.test_invariants import EVERYTHING

NOW = 1_700_000_000_000
#: The conductors do not ask hosts what they have prepared.
OF_HOSTS = {Kind.UNPREPARED, Kind.LEFTOVER}


class ShownPlacement(Placement):
    """A Placement that shows the views of a test."""

    def __init__(self, peers: AuditViews) -> None:
        super().__init__(Adapter(session.Session()))
        self._roots = {host: view.root for host, view in peers.placement.items()}
        self._shown: dict[str, dict[str, ProviderView]] = {
            view.root: dict(view.providers) for view in peers.placement.values() if view.root
        }

    def find_by_name(self, name: str) -> Node | None:
        root = self._roots[name]
        return None if root is None else Node(root, name, 1, None, root)

    def find_by_uuid(self, uuid: str) -> Node | None:
        return None

    def tree(self, uuid: str) -> dict[str, Node]:
        root = Node(uuid, "", 1, None, uuid)
        nodes = [
            Node(child, shown.name, 1, shown.parent_uuid, uuid)
            for child, shown in self._shown[uuid].items()
        ]
        return {node.uuid: node for node in [root, *nodes]}

    def inventories(self, uuid: str) -> tuple[int, dict[str, Inventory]]:
        return 1, dict(self._provider(uuid).inventories)

    def traits(self, uuid: str) -> tuple[int, frozenset[str]]:
        return 1, self._provider(uuid).traits

    def allocations_of(self, uuid: str) -> dict[str, dict[str, int]]:
        allocations = self._provider(uuid).allocations
        return {consumer: dict(resources) for consumer, resources in allocations.items()}

    def _provider(self, uuid: str) -> ProviderView:
        return next(shown[uuid] for shown in self._shown.values() if uuid in shown)


class ShownServers(Servers):
    """A Nova without the servers of a test."""

    def __init__(self, peers: AuditViews) -> None:
        super().__init__(Adapter(session.Session()))
        self._vanished = peers.vanished

    def vanished(self, uuids: Iterable[str]) -> frozenset[str]:
        requested = list(uuids)
        assert requested == sorted(requested)
        return self._vanished.intersection(requested)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """An empty database in which several ARQs may have one handle."""
    metadata = sa.MetaData()
    for table in models.METADATA.sorted_tables:
        table.to_metadata(metadata)
    arqs = metadata.tables[models.Arq.__tablename__]
    arqs.constraints -= {
        constraint
        for constraint in arqs.constraints
        if isinstance(constraint, sa.UniqueConstraint) and "attach_handle_id" in constraint.columns
    }
    settings = Settings(sqlite_synchronous=False)
    url = f"sqlite:///{tmp_path}/cyborg.sqlite"
    db = Database(url, settings=settings, now=sa.literal(NOW))
    with db.writer() as tx:
        metadata.create_all(tx.connection)
    yield db
    db.close()


@pytest.mark.parametrize("kind", sorted(set(Kind) - OF_HOSTS))
def test_audit_agrees_with_the_oracle(db: Database, kind: Kind) -> None:
    damaged = DAMAGES[kind](EVERYTHING, 0)
    assert damaged is not None
    whole, key = damaged
    store(db, whole)
    placement, servers = ShownPlacement(whole.peers), ShownServers(whole.peers)
    found = Auditor(db=db, placement=placement, servers=servers, ages=Ages()).look().findings
    assert (kind, key) in {(finding.kind, finding.key) for finding in found}
    assert found == expected_findings(db, placement, servers, Ages())


def test_refused_providers_are_published_as_if_they_were_not_refused(db: Database) -> None:
    cloud = EVERYTHING.cloud
    refused = tuple(replace(row, publish_error="refused") for row in cloud.deployables)
    store(db, replace(EVERYTHING, cloud=replace(cloud, deployables=refused)))
    placement, servers = ShownPlacement(EVERYTHING.peers), ShownServers(EVERYTHING.peers)
    found = Auditor(db=db, placement=placement, servers=servers, ages=Ages()).look().findings
    assert {finding.kind for finding in found} == {Kind.REFUSED_PROVIDER}
    assert found == expected_findings(db, placement, servers, Ages())


def test_consistent_cloud_has_no_findings(db: Database) -> None:
    store(db, EVERYTHING)
    placement, servers = ShownPlacement(EVERYTHING.peers), ShownServers(EVERYTHING.peers)
    auditor = Auditor(db=db, placement=placement, servers=servers, ages=Ages())
    assert auditor.look().findings == ()


def store(db: Database, whole: Whole) -> None:
    """Write the rows of a snapshot."""
    with db.writer() as tx:
        for model, rows in tables(whole.cloud, whole.peers.consumer_ages):
            for row in rows:
                tx.execute(sa.insert(model).values(row))


def tables(cloud: Snapshot, ages: Mapping[str, int]) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
    """Yield the tables with their rows, in the order of their foreign keys."""
    hosts = {host.id: host.name for host in cloud.hosts}
    profile = {"id": 1, "uuid": "p", "name": "p", "profile_json": "{}"}
    yield models.DeviceProfile, [profile]
    yield (
        models.Host,
        [
            {"id": row.id, "name": row.name, "service_host": row.name}
            | {"updated_ms": NOW - row.changed_age}
            for row in cloud.hosts
        ],
    )
    seen = NOW - (cloud.conductor_silence or 0)
    yield (
        models.Service,
        [
            {"uuid": "c", "host": "control", "binary": CONDUCTOR, "status": "UP"}
            | {"last_seen_ms": seen},
            *(agent_row(row) for row in cloud.hosts if row.agent_silence is not None),
        ],
    )
    yield (
        models.Driver,
        [
            {"uuid": f"{row.host_id}-{row.name}", "host_id": row.host_id, "name": row.name}
            | {"state": row.state, "error": row.error}
            for row in cloud.drivers
        ],
    )
    yield (
        models.Device,
        [
            {"id": row.id, "uuid": row.uuid, "host_id": row.host_id, "driver": row.driver}
            | {"device_key": str(row.id), "type": "GPU", "vendor": "v", "model": "m"}
            | {"hostname": hosts[row.host_id], "status": row.status, "health": row.health}
            | {"lost_ms": None if row.lost_age is None else NOW - row.lost_age}
            for row in cloud.devices
        ],
    )
    yield (
        models.ControlpathId,
        [
            {"id": row.id, "uuid": str(row.id), "device_id": row.id, "cpid_type": "PCI"}
            | {"cpid_info": "{}"}
            for row in cloud.devices
        ],
    )
    yield (
        models.Deployable,
        [
            {"id": row.id, "uuid": str(row.id), "name": row.name, "rp_uuid": row.rp_uuid}
            | {"num_accelerators": 1, "device_id": row.device_id, "prepare": row.prepare}
            | {"resource_class": row.resource_class, "publish_error": row.publish_error}
            for row in cloud.deployables
        ],
    )
    yield (
        models.Attribute,
        [
            {"uuid": f"{row.id}-{trait}", "deployable_id": row.id, "key": "trait0", "value": trait}
            for row in cloud.deployables
            for trait in row.traits
        ],
    )
    devices = {row.id: row.device_id for row in cloud.deployables}
    yield (
        models.AttachHandle,
        [
            {"id": row.id, "uuid": row.uuid, "deployable_id": row.deployable_id}
            | {"cpid_id": devices[row.deployable_id], "attach_type": "PCI", "attach_info": "{}"}
            | {"handle_key": row.key, "state": row.state, "lost_ms": NOW if row.lost else None}
            for row in cloud.handles
        ],
    )
    yield models.Arq, [arq_row(row) for row in cloud.arqs]
    yield (
        models.Instance,
        [
            *(
                {"uuid": row.uuid, "bound": row.bound, "hostname": row.hostname, "updated_ms": 0}
                for row in cloud.instances
            ),
            *(
                {"uuid": uuid, "bound": False, "hostname": None, "updated_ms": NOW - age}
                for uuid, age in ages.items()
            ),
        ],
    )
    yield (
        models.Work,
        [
            {"uuid": row.uuid, "kind": row.kind, "created_ms": NOW - row.age}
            | {"not_before_ms": NOW - row.waiting, "arq_uuid": row.arq_uuid}
            | {"instance_uuid": row.instance_uuid, "attach_handle_id": row.handle_id}
            | {"deadline_ms": None if row.overdue is None else NOW - row.overdue}
            | {"attempts": row.attempts, "error": row.error, "host_id": row.host_id}
            for row in cloud.work
        ],
    )


def agent_row(row: HostRow) -> dict[str, Any]:
    process = row.agent
    return (
        {"uuid": row.name, "host": row.name, "binary": AGENT, "status": "UP"}
        | {"last_seen_ms": NOW - (row.agent_silence or 0), "disabled": row.disabled}
        | {"bus_error": process.bus_error if process else None}
        | {"bus_error_ms": process.bus_error_ms if process else None}
    )


def arq_row(row: ArqRow) -> dict[str, Any]:
    changed = datetime.fromtimestamp((NOW - (row.age or 0)) / 1000, UTC).replace(tzinfo=None)
    return (
        {"uuid": row.uuid, "state": row.state, "device_profile_id": 1}
        | {"device_profile_group_id": 0, "hostname": row.hostname, "hidden": row.hidden}
        | {"device_rp_uuid": row.rp_uuid, "instance_uuid": row.instance_uuid}
        | {"attach_handle_id": row.handle_id, "deployable_id": row.deployable_id}
        | {"prepared": row.prepared, "created_at": changed, "updated_at": None}
    )
