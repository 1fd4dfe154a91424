# SPDX-License-Identifier: Apache-2.0
"""A cloud that comes from the existing service goes on, seen through the API and Placement.

Its hosts report the same devices to this release; its servers are rebooted and deleted, new ones
are booted beside them.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg.cmd import dbsync
from cyborg.db.engine import Database
from cyborg.db.models import AttachHandle, Attribute, Deployable, Device, Host, Instance
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.life.http import Client, open_client
from cyborg.tests.functional.life.steps import (
    PUBLISHED,
    bind,
    create,
    delete_arqs,
    of_instance,
    published,
)
from cyborg.tests.functional.schema.commands import run

PROJECT = "a16ab9bb0bff41aeb4d519a9d7d223ac"
#: Hosts of the dump: one in service, one whose device an operator has disabled.
IN_SERVICE, DISABLED = "lab-sim-1", "lab-host-1"


@dataclass(frozen=True)
class Old:
    """A bound request as the existing service's tables have it."""

    uuid: str
    instance: str
    host: str
    provider: str
    handle: str
    type: str
    stored: str

    @property
    def info(self) -> dict[str, str]:
        """What the guest was given."""
        found: dict[str, str] = json.loads(self.stored)
        return found


@dataclass(frozen=True)
class Cloud:
    """The upgraded service, running for both hosts."""

    db: Database
    stack: Stack
    placement: PlacementService
    member: Client
    old: list[Old]
    migrated: dict[str, Any]

    @property
    def nova(self) -> Client:
        return self.member.with_service_token()

    def provider(self, host: str) -> str:
        return next(one.provider for one in self.old if one.host == host)

    def flaws(self) -> list[str]:
        """What an audit finds on the two hosts."""
        found = self.stack.auditor().look().findings
        return [f"{one.kind}: {one.cause}" for one in found if one.host in (IN_SERVICE, DISABLED)]

    def states(self) -> dict[str, str]:
        """The state of every unit by its uuid."""
        with self.db.reader() as tx:
            return {
                row.uuid: row.state if row.arq_id is None else "held"
                for row in tx.execute(sa.text("SELECT uuid, state, arq_id FROM attach_handles"))
            }


def _bound(db: Database) -> list[Old]:
    query = (
        "SELECT a.uuid, a.instance_uuid, a.hostname, a.device_rp_uuid, h.uuid, h.attach_type,"
        " h.attach_info FROM extended_accelerator_requests a"
        " JOIN attach_handles h ON h.id = a.attach_handle_id ORDER BY a.id"
    )
    with db.reader() as tx:
        rows = tx.execute(sa.text(query)).all()
    return [Old(*row) for row in rows]


_NEW: Final = (*PUBLISHED, "product_traits", "updated_at")


def _devices(db: Database) -> dict[str, Any]:
    """All that the tables say of devices and their parts, as the existing service knows it.

    Agents tell as well what they have published, and which traits name a product.
    """
    tables: tuple[Any, ...] = (Device, Deployable, Attribute, AttachHandle)
    with db.reader() as tx:
        return {
            table.__tablename__: tx.execute(
                sa.select(*(one for one in table.__table__.c if one.name not in _NEW)).order_by(
                    table.id
                )
            ).all()
            for table in tables
        }


def _published(placement: PlacementService, old: list[Old]) -> None:
    """Placement as the existing service and the scheduler left it."""
    placement.call("PUT", "/traits/CUSTOM_FAKE_DEVICE")
    for host in (IN_SERVICE, DISABLED):
        (provider,) = {one.provider for one in old if one.host == host}
        name, root = f"{host}_FakeDevice", placement.make_compute(host)
        body = {"uuid": provider, "name": name, "parent_provider_uuid": root}
        placement.call("POST", "/resource_providers", body)
        path = f"/resource_providers/{provider}"
        fpga = {"total": 16, "max_unit": 16}
        inventories = {"resource_provider_generation": 0, "inventories": {"FPGA": fpga}}
        placement.call("PUT", f"{path}/inventories", inventories)
        traits = {"resource_provider_generation": 1, "traits": ["CUSTOM_FAKE_DEVICE"]}
        placement.call("PUT", f"{path}/traits", traits)
    for one in old:
        if one.host in (IN_SERVICE, DISABLED):
            held: dict[str, object] = {
                "allocations": {one.provider: {"resources": {"FPGA": 1}}},
                "consumer_generation": None,
                "project_id": PROJECT,
                "user_id": PROJECT,
            }
            placement.call("PUT", f"/allocations/{one.instance}", held)


@pytest.fixture
def cloud(
    existing: Database,
    beside: Callable[..., Stack],
    conf: cfg.ConfigOpts,
    placement: PlacementService,
    *,
    nova_api: SimulatedNova,
    tmp_path: Path,
) -> Iterator[Cloud]:
    old = _bound(existing)
    _published(placement, old)
    for one in old:
        nova_api.own(one.instance, PROJECT, one.host)
    assert run(existing, tmp_path, "dbsync", "upgrade")[0] == 0
    migrated = _devices(existing)
    own = beside(existing)
    own.start_conductor()
    member = open_client(own, project=PROJECT)
    for host in (IN_SERVICE, DISABLED):
        conf.set_override("host", host)
        own.start_agent(host, machine=FakeHost(), state_path=tmp_path / host)
    yield Cloud(existing, own, placement, member, old, migrated)
    conf.clear_override("host")
    for one in old:
        nova_api.disown(one.instance)


@pytest.mark.proves("fake_driver", "discover", "bind", by="simulated")
def test_service_runs_during_migration(cloud: Cloud) -> None:
    _reported(cloud)
    # The first reports of the hosts have changed nothing.
    assert _devices(cloud.db) == cloud.migrated
    assert len(cloud.old) == 5
    for one in cloud.old:
        _assert_same(one, of_instance(cloud.member, one.instance))
    _migrated_meanwhile(cloud)
    _booted_beside(cloud)
    assert cloud.flaws() == []
    for one in cloud.old:
        delete_arqs(cloud.nova, one.instance)
        assert of_instance(cloud.nova, one.instance) == []
        cloud.placement.free(one.instance)
    eventually(lambda: set(cloud.states().values()) == {"ready"})
    assert cloud.flaws() == []
    assert offered(cloud.placement, cloud.provider(IN_SERVICE)) == 16
    assert offered(cloud.placement, cloud.provider(DISABLED)) == 0
    with cloud.db.reader() as tx:
        assert set(tx.scalars(sa.select(Instance.look_ms))) == {None}


def _reported(cloud: Cloud) -> None:
    """Both agents have told what they have, and Placement shows what it should."""

    def told() -> bool:
        with cloud.db.reader() as tx:
            known = set(tx.scalars(sa.select(Host.name).where(Host.digest.is_not(None))))
        return known >= {IN_SERVICE, DISABLED} and cloud.flaws() == []

    eventually(told)
    units = {f"{IN_SERVICE}_FakeDevice": (16, 0), f"{DISABLED}_FakeDevice": (16, 16)}
    eventually(lambda: published(cloud.db) == units)
    assert offered(cloud.placement, cloud.provider(IN_SERVICE)) == 16
    assert offered(cloud.placement, cloud.provider(DISABLED)) == 0
    with cloud.db.reader() as tx:
        devices = tx.execute(sa.select(Device.hostname, Device.status)).all()
    assert sorted(map(tuple, devices)) == [
        (DISABLED, "maintaining"),
        ("lab-host-2", "enabled"),
        (IN_SERVICE, "enabled"),
    ]


def _assert_same(old: Old, arqs: list[dict[str, Any]]) -> None:
    """What a reboot hands the guest is what it had."""
    (now,) = arqs
    assert (now["uuid"], now["state"], now["project_id"]) == (old.uuid, "Bound", PROJECT)
    assert (now["hostname"], now["device_rp_uuid"]) == (old.host, old.provider)
    assert now["attach_handle_uuid"] == old.handle
    assert now["attach_handle_type"] == old.type
    assert now["attach_handle_info"] == old.info


def _migrated_meanwhile(cloud: Cloud) -> None:
    """Online migrations run while the services do."""
    with cloud.db.writer() as tx:
        tx.execute(sa.update(Device).values(device_state=None))
    assert dbsync.online_data_migrations(cloud.db, lambda _: None) == 0
    with cloud.db.reader() as tx:
        assert set(tx.scalars(sa.select(Device.device_state))) == {"allocated"}


def _booted_beside(cloud: Cloud) -> None:
    """A new server gets a unit that nobody has; a disabled device gives none."""
    arqs = create(cloud.member, "up-0")
    refused = str(uuid4())
    bind(cloud.nova, arqs, cloud.provider(DISABLED), instance=refused, status=409)
    instance = bind(cloud.nova, arqs, cloud.provider(IN_SERVICE), host=IN_SERVICE)
    (new,) = of_instance(cloud.nova, instance)
    assert new["state"] == "Bound"
    assert new["attach_handle_uuid"] not in {one.handle for one in cloud.old}
    delete_arqs(cloud.nova, instance)
