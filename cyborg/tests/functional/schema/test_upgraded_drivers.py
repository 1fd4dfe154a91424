# SPDX-License-Identifier: Apache-2.0
"""After an upgrade, the drivers keep what those of the existing service have stored.

For each driver that both have: the providers, the devices, their parts and units, and the bound
requests, of a host whose hardware has not changed and whose guests go on running.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.db import schema
from cyborg.db.engine import Database
from cyborg.db.models import AttachHandle, Deployable, Device, Host
from cyborg.drivers.loader import load
from cyborg.model.provider import provider_uuid
from cyborg.testing import situations
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.compute_host import ComputeHost, compute_host
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.unit_states import UNIT
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.life.http import Client, open_client
from cyborg.tests.functional.life.steps import delete_arqs, eventually_idle, of_instance
from cyborg.tests.functional.schema.commands import run
from cyborg.tests.functional.schema.existing_drivers import (
    ASCENDS,
    DISKS_AS_FPGAS,
    HOSTS,
    OldArq,
    OldDevice,
    OldHost,
    OldPart,
    ascends,
    info,
    insert,
    left_over,
    named,
)
from cyborg.tests.unit.drivers.configured import written

#: What no report may change: the tables of the existing service, without facts of the hardware.
_KEPT = {
    "devices": "id, uuid, hostname, status",
    "controlpath_ids": "id, uuid, device_id, cpid_type",
    "deployables": "id, uuid, name, device_id, rp_uuid, driver_name",
    "attach_handles": "id, uuid, deployable_id, cpid_id, attach_type",
    "extended_accelerator_requests": (
        "id, uuid, project_id, state, instance_uuid, hostname, device_rp_uuid, deployable_id"
    ),
}
#: Which ARQ has which unit: of the existing service, and of this one.
_HELD = (
    "SELECT id, attach_handle_id FROM extended_accelerator_requests WHERE attach_handle_id > 0",
    "SELECT arq_id, id FROM attach_handles WHERE arq_id > 0",
)
#: Traits with facts that only the driver of the host shows: they go while a guest has the card.
_OF_HOST_DRIVERS = ("CUSTOM_FPGA_FUNCTION_ID_", "CUSTOM_FPGA_REGION_")


@dataclass(frozen=True)
class Site:
    """An upgraded host whose agent has reported."""

    db: Database
    host: ComputeHost
    member: Client
    devices: list[OldDevice]
    arqs: list[OldArq]
    before: dict[str, list[Any]]


def kept(db: Database) -> dict[str, list[Any]]:
    """Return the rows of ``_KEPT``, and what guests get, with the texts of JSON as values."""
    with db.reader() as tx:
        rows: dict[str, list[Any]] = {
            table: [tuple(row) for row in tx.execute(sa.text(f"SELECT {columns} FROM {table}"))]
            for table, columns in _KEPT.items()
        }
        for table, column in (("attach_handles", "attach_info"), ("controlpath_ids", "cpid_info")):
            query = f"SELECT id, {column} FROM {table}"
            rows[column] = [(row[0], json.loads(row[1])) for row in tx.execute(sa.text(query))]
        columns = sa.inspect(tx.connection).get_columns("attach_handles")
        is_upgraded = "arq_id" in {column["name"] for column in columns}
        rows["held"] = [tuple(row) for row in tx.execute(sa.text(_HELD[is_upgraded]))]
    return {name: sorted(found, key=lambda row: int(row[0])) for name, found in rows.items()}


def hold(machine: FakeHost, address: str) -> None:
    """Give a function to a guest, as libvirt does."""
    place = machine.realpath(f"/sys/bus/pci/devices/{address}")
    if machine.kernel is not None and machine.exists(f"{place}/driver"):
        machine.kernel.write(f"{machine.realpath(f'{place}/driver')}/unbind", address)
    situations.hold(machine, address)


def publish(
    placement: PlacementService, root: str, arqs: Sequence[OldArq], *parts: OldPart
) -> None:
    """Leave Placement as the agent of the existing service and the scheduler did."""
    for part in parts:
        if part.resource_class.startswith("CUSTOM_"):
            placement.call("PUT", f"/resource_classes/{part.resource_class}")
        for trait in part.traits:
            if trait.startswith("CUSTOM_"):
                placement.call("PUT", f"/traits/{trait}")
        provider = provider_uuid(part.name)
        body = {"uuid": provider, "name": part.name, "parent_provider_uuid": root}
        placement.call("POST", "/resource_providers", body)
        path = f"/resource_providers/{provider}"
        inventory = {part.resource_class: {"total": part.total, "max_unit": part.total}}
        inventories = {"resource_provider_generation": 0, "inventories": inventory}
        placement.call("PUT", f"{path}/inventories", inventories)
        traits = {"resource_provider_generation": 1, "traits": list(part.traits)}
        placement.call("PUT", f"{path}/traits", traits)
    for arq in arqs:
        allocation: dict[str, object] = {
            "allocations": {arq.provider: {"resources": {arq.resource_class: 1}}},
            "consumer_generation": None,
            "project_id": "demo",
            "user_id": "demo",
        }
        placement.call("PUT", f"/allocations/{arq.instance}", allocation)


@pytest.fixture
def upgraded(
    empty: Database,
    beside: Callable[..., Stack],
    placement: PlacementService,
    nova_api: SimulatedNova,
    *,
    machine_name: str,
    tmp_path: Path,
) -> Iterator[Callable[[OldHost], Site]]:
    """Upgrade the database of a host, and start its agent with our driver."""
    instances = []

    def start(old: OldHost) -> Site:
        machine = old.machine()
        for address in old.held:
            hold(machine, address)
        schema.upgrade(empty, schema.EXISTING)
        own = beside(empty, agent_heartbeat=0.2)
        host = compute_host(own, tmp_path / "state", machine)
        devices = named(old.devices, host.compute, machine_name)
        arqs = insert(empty, host.compute, devices, lambda: str(uuid4()))
        publish(placement, host.root, arqs, *(part for one in devices for part in one.parts))
        for arq in arqs:
            nova_api.own(arq.instance, "demo", host.compute)
            instances.append(arq.instance)
            if arq.attach_type == "MDEV":
                place = situations.directory(
                    machine, "{domain}:{bus}:{device}.{function}".format(**arq.info)
                )
                machine.write_text(
                    f"{place}/mdev_supported_types/{arq.info['asked_type']}/create", arq.handle
                )
        before = kept(empty)
        status, _, error = run(empty, tmp_path, "dbsync", "upgrade")
        assert status == 0, error
        own.start_conductor()
        member = open_client(own, project="demo")
        conf = written(tmp_path / "driver.conf", old.options, host=host.compute)
        (loaded,) = load([old.driver], machine, conf)
        assert loaded.driver is not None, loaded.error
        host.start(loaded)
        eventually(lambda: _reported(empty, host.compute))
        return Site(empty, host, member, devices, arqs, before)

    yield start
    for instance in instances:
        nova_api.disown(instance)


def _reported(db: Database, host: str) -> bool:
    with db.reader() as tx:
        return host in set(tx.scalars(sa.select(Host.name).where(Host.digest.is_not(None))))


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.proves("fake_driver", "discover", by="simulated")
@pytest.mark.proves("pci_driver", "discover", by="simulated")
@pytest.mark.proves("nvidia_gpu_driver", "discover", by="simulated")
@pytest.mark.proves("intel_fpga_driver", "discover", by="simulated")
@pytest.mark.proves("inspur_fpga_driver", "discover", by="simulated")
@pytest.mark.proves("xilinx_fpga_driver", "discover", by="simulated")
@pytest.mark.proves("intel_qat_driver", "discover", by="simulated")
@pytest.mark.proves("intel_nic_driver", "discover", by="simulated")
@pytest.mark.proves("inspur_nvme_ssd_driver", "discover", by="simulated")
def test_driver_keeps_what_the_existing_service_stored(
    upgraded: Callable[[OldHost], Site], placement: PlacementService, name: str
) -> None:
    old = HOSTS[name]
    site = upgraded(old)
    assert kept(site.db) == site.before
    parts = [part for device in site.devices for part in device.parts]
    with site.db.reader() as tx:
        assert set(tx.scalars(sa.select(Device.driver))) == {old.driver}
        for table in (Device, Deployable, AttachHandle):
            assert set(tx.scalars(sa.select(table.lost_ms))) == {None}
        assert set(tx.scalars(sa.select(Deployable.publish_error))) == {None}
        query = sa.select(AttachHandle.__table__, UNIT.label("unit"))
        states = {row.uuid: row.unit for row in tx.execute(query)}
    held = {arq.handle for arq in site.arqs}
    assert states == {unit: "held" if unit in held else "free" for unit in states}

    sizes = {provider_uuid(part.name): len(part.units) for part in parts}
    eventually(lambda: {one: offered(placement, one) for one in sizes} == sizes)
    for part in parts:
        provider = placement.call("GET", f"/resource_providers/{provider_uuid(part.name)}")
        assert provider["name"] == part.name
        assert provider["parent_provider_uuid"] == site.host.root
        # The device profiles of the cloud request these.
        traits = {trait for trait in part.traits if not trait.startswith(_OF_HOST_DRIVERS)}
        path = f"/resource_providers/{provider['uuid']}"
        assert traits <= {*placement.call("GET", f"{path}/traits")["traits"]}
        assert [*placement.call("GET", f"{path}/inventories")["inventories"]] == [
            part.resource_class
        ]
    assert len(site.arqs) == len(site.devices)
    for arq in site.arqs:
        (now,) = of_instance(site.member, arq.instance)
        assert (now["uuid"], now["state"], now["project_id"]) == (arq.uuid, "Bound", "demo")
        assert (now["hostname"], now["device_rp_uuid"]) == (site.host.compute, arq.provider)
        assert (now["attach_handle_type"], now["attach_handle_uuid"]) == (
            arq.attach_type,
            arq.handle,
        )
        assert now["attach_handle_info"] == arq.info
        allocations = placement.call("GET", f"/allocations/{arq.instance}")["allocations"]
        resources = {provider: one["resources"] for provider, one in allocations.items()}
        assert resources == {arq.provider: {arq.resource_class: 1}}
        if arq.attach_type == "MDEV":
            assert site.host.machine.list_dir("/sys/bus/mdev/devices") == [arq.handle]


def test_marks_name_the_drivers_of_the_hosts() -> None:
    marks = vars(test_driver_keeps_what_the_existing_service_stored)["pytestmark"]
    claims = {mark.args[0] for mark in marks if mark.name == "proves"}
    assert claims == {host.driver for host in HOSTS.values()}


@pytest.mark.proves("nvidia_gpu_driver", "cleaning", by="simulated")
def test_vgpu_of_the_existing_service_is_removed_after_its_guest(
    upgraded: Callable[[OldHost], Site], placement: PlacementService
) -> None:
    site = upgraded(HOSTS["nvidia_gpu_driver-2"])
    arq = next(one for one in site.arqs if one.attach_type == "MDEV")
    delete_arqs(site.member.with_service_token(), arq.instance)
    placement.free(arq.instance)
    eventually_idle(site.db)
    assert site.host.machine.list_dir("/sys/bus/mdev/devices") == []
    eventually(lambda: offered(placement, arq.provider) == 4)


def test_disks_that_the_existing_service_took_for_fpgas_are_kept_and_reserved(
    upgraded: Callable[[OldHost], Site], placement: PlacementService
) -> None:
    site = upgraded(DISKS_AS_FPGAS)
    assert kept(site.db) == site.before
    with site.db.reader() as tx:
        assert None not in set(tx.scalars(sa.select(Device.lost_ms)))
    for arq in site.arqs:
        (now,) = of_instance(site.member, arq.instance)
        assert (now["state"], now["attach_handle_uuid"]) == ("Bound", arq.handle)
    eventually(lambda: not any(offered(placement, arq.provider) for arq in site.arqs))


@pytest.mark.parametrize(("path", "number"), [(info(ASCENDS[0]), 1), (None, 1), (None, 2)])
@pytest.mark.proves("huawei_ascend_driver", "discover", by="simulated")
def test_ascends_are_offered_beside_what_failed_reports_left(
    upgraded: Callable[[OldHost], Site],
    placement: PlacementService,
    path: dict[str, str] | None,
    number: int,
) -> None:
    """The existing service stores a row of a device, and fails before it has a provider.

    A row with the address is that of the device. Others are lost devices, which have nothing.
    """
    devices = (left_over(path),) * number
    site = upgraded(OldHost(driver="huawei_ascend_driver", machine=ascends, devices=devices))
    with site.db.reader() as tx:
        rows = tx.execute(sa.select(Device.uuid, Device.device_key, Device.lost_ms)).all()
    stored = {row[1] for row in site.before["devices"]}
    present = {row.device_key: row.uuid for row in rows if row.lost_ms is None}
    assert present.keys() == set(ASCENDS)
    if path is not None:
        assert stored == {present[ASCENDS[0]]}
    assert {row.uuid for row in rows if row.lost_ms is not None} == (set() if path else stored)
    names = {f"{site.host.compute}_{address}" for address in ASCENDS}
    eventually(lambda: all(offered(placement, provider_uuid(name)) == 1 for name in names))
