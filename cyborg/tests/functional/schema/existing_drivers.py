# SPDX-License-Identifier: Apache-2.0
"""What each driver of the existing service stores about a host, as data, and such hosts.

Rows have the values of the drivers of release 17.0.0: names, resource classes, attributes, and the
keys of attach handles. The last unit of each device is bound.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from cyborg.db.engine import Database
from cyborg.drivers.pci_function import parse_name
from cyborg.model.provider import provider_uuid
from cyborg.testing import scenario_hosts, servers
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.unit.drivers.test_nvidia_vgpu import CONF as VGPUS
from cyborg.tests.unit.drivers.test_nvidia_vgpu import KIND, T4, host_with_t4s

#: Returns a new uuid at each call.
Uuids = Callable[[], str]


@dataclass(frozen=True, kw_only=True)
class OldPart:
    """A deployable: its name, whose first word is for the name of a host, and its units in order.

    ``count`` is its inventory if that is not the number of units, ``trait_key`` the key of its only
    trait if that is not ``trait0``.
    """

    name: str
    resource_class: str
    driver_name: str
    traits: tuple[str, ...]
    units: tuple[Mapping[str, str], ...]
    attach_type: str = "PCI"
    trait_key: str | None = None
    count: int | None = None

    @property
    def attributes(self) -> list[tuple[str, str]]:
        """Key and value of each attribute."""
        traits = enumerate(self.traits)
        keys = [(self.trait_key or f"trait{number}", trait) for number, trait in traits]
        return [("rc", self.resource_class), *keys]

    @property
    def total(self) -> int:
        """The inventory of the provider."""
        return len(self.units) if self.count is None else self.count


@dataclass(frozen=True, kw_only=True)
class OldDevice:
    """A device with its control path, if it has one, and its deployables in order."""

    type: str
    vendor: str
    model: str
    board: Mapping[str, str | None]
    vendor_board: str
    path: Mapping[str, str] | None
    parts: tuple[OldPart, ...]


@dataclass(frozen=True, kw_only=True)
class OldHost:
    """A host with one enabled driver: its hardware, the options of the driver, and the rows.

    ``held`` are the functions that guests have, through VFIO.
    """

    driver: str
    machine: Callable[[], FakeHost]
    devices: tuple[OldDevice, ...]
    held: tuple[str, ...] = ()
    options: str = ""


@dataclass(frozen=True)
class OldArq:
    """A bound request: its unit, and the provider from which Placement allocated it."""

    uuid: str
    instance: str
    handle: str
    info: Mapping[str, str]
    attach_type: str
    provider: str
    resource_class: str


def info(address: str) -> dict[str, str]:
    """Return an address as the drivers that read lspci store it: the keys are in order."""
    place = parse_name(address)
    assert place is not None, address
    return dict(sorted(place.info().items()))


def sysfs_info(address: str, **more: str) -> dict[str, str]:
    """Return an address as the drivers that read sysfs store it."""
    place = parse_name(address)
    assert place is not None, address
    return {**place.info(), **more}


def named(devices: Sequence[OldDevice], host: str, machine: str) -> list[OldDevice]:
    """Return the devices with the names of a host: ``[DEFAULT] host``, and that of the kernel.

    The fake driver replaces what is neither a letter nor a digit.
    """
    words = {"HOST": host, "MACHINE": machine, "FAKE": re.sub("[^A-Za-z0-9_-]", "_", host)}

    def name(part: OldPart) -> OldPart:
        first, _, rest = part.name.partition("_")
        return replace(part, name=f"{words[first]}_{rest}")

    return [replace(device, parts=tuple(map(name, device.parts))) for device in devices]


def insert(db: Database, host: str, devices: Sequence[OldDevice], uuids: Uuids) -> list[OldArq]:
    """Store the devices of a host in a database of the existing service, and bind their units."""
    tables = sa.MetaData()
    arqs = []
    with db.writer() as tx:
        tables.reflect(tx.connection)

        def add(table: str, **columns: Any) -> int:
            row = tx.execute(sa.insert(tables.tables[table]).values(uuid=uuids(), **columns))
            assert row.inserted_primary_key is not None
            return int(row.inserted_primary_key[0])

        groups = json.dumps({"groups": [{"resources:FPGA": "1"}]})
        profile = add("device_profiles", name=f"profile-{host}", profile_json=groups)
        for device in devices:
            device_id = add(
                "devices",
                type=device.type,
                vendor=device.vendor,
                model=device.model,
                std_board_info=json.dumps(device.board),
                vendor_board_info=device.vendor_board,
                hostname=host,
                status="enabled",
                device_state="available",
            )
            path_id = 0
            if device.path is not None:
                path = {"cpid_type": "PCI", "cpid_info": json.dumps(device.path)}
                path_id = add("controlpath_ids", device_id=device_id, **path)
            for part in device.parts:
                part_id = add(
                    "deployables",
                    name=part.name,
                    num_accelerators=part.total,
                    device_id=device_id,
                    rp_uuid=provider_uuid(part.name),
                    driver_name=part.driver_name,
                )
                for key, value in part.attributes:
                    add("attributes", deployable_id=part_id, key=key, value=value)
                for unit in part.units:
                    bound = part is device.parts[-1] and unit is part.units[-1]
                    handle = uuids()
                    row = {"uuid": handle, "deployable_id": part_id, "cpid_id": path_id}
                    row |= {"in_use": bound, "attach_type": part.attach_type}
                    row |= {"attach_info": json.dumps(unit)}
                    result = tx.execute(sa.insert(tables.tables["attach_handles"]).values(**row))
                    if not bound:
                        continue
                    assert result.inserted_primary_key is not None
                    arq = OldArq(
                        *(uuids(), uuids(), handle, unit, part.attach_type),
                        provider=provider_uuid(part.name),
                        resource_class=part.resource_class,
                    )
                    tx.execute(
                        sa.insert(tables.tables["extended_accelerator_requests"]).values(
                            uuid=arq.uuid,
                            project_id="demo",
                            state="Bound",
                            device_profile_id=profile,
                            hostname=host,
                            device_rp_uuid=arq.provider,
                            attach_handle_id=int(result.inserted_primary_key[0]),
                            substate="Initial",
                            deployable_id=part_id,
                            device_profile_group_id=0,
                            instance_uuid=arq.instance,
                        )
                    )
                    arqs.append(arq)
    return arqs


def _device(address: str, type_: str, vendor: str, parts: Sequence[OldPart], **more: Any) -> Any:
    """Return a device as the drivers that read sysfs store it, unless ``more`` has other values."""
    values: dict[str, Any] = {
        "model": "miss_model_info",
        "vendor_board": "miss_vb_info",
        "path": sysfs_info(address),
        **more,
    }
    return OldDevice(type=type_, vendor=vendor, parts=tuple(parts), **values)


def _listed(kind: str, product: str, controller: str | None) -> dict[str, Any]:
    """Return what the drivers that read lspci store about the board of a device."""
    return {
        "board": {"product_id": product, "controller": controller},
        "vendor_board": json.dumps({"vendor_info": f"{kind}_vb_info"}),
    }


def _cards(host: FakeHost, *cards: tuple[str, str, str]) -> FakeHost:
    """Plug cards into a host: address, ids and host driver."""
    for address, ids, driver in cards:
        servers.add_function(host, address, ids, driver=driver, node=0)
    return host


def _fake() -> Iterator[OldHost]:
    units = [divmod(unit, 8) for unit in range(1, 17)]
    part = OldPart(
        name="FAKE_FakeDevice",
        resource_class="FPGA",
        driver_name="fake",
        traits=("CUSTOM_FAKE_DEVICE",),
        trait_key="traits1",
        attach_type="TEST_PCI",
        units=tuple(
            {"domain": "0000", "bus": "0c", "device": str(device), "function": str(function)}
            for device, function in units
        ),
    )
    device = _device(
        *("0000:0c:00.0", "FPGA", "0xABCD", [part]),
        model="miss model info",
        board={"device_id": "0xabcd", "class": "Fake class"},
        vendor_board="fake_vendor_info",
    )
    yield OldHost(driver="fake_driver", machine=FakeHost, devices=(device,))


def _pci() -> Iterator[OldHost]:
    """Cards of a vendor that the driver knows; the existing service calls every card a GPU."""
    addresses = ("0000:01:00.0", "0000:c2:00.0")
    yield OldHost(
        driver="pci_driver",
        machine=lambda: scenario_hosts.load("ascend-910"),
        devices=tuple(
            _device(
                *(address, "GPU", "19e5"),
                [
                    OldPart(
                        name=f"HOST_{address}",
                        resource_class="CUSTOM_PCI",
                        driver_name="HUAWEI",
                        traits=("OWNER_CYBORG", "CUSTOM_PCI_HUAWEI", "CUSTOM_PCI_PRODUCT_ID_D801"),
                        units=(info(address),),
                    )
                ],
                model="d801",
                board={"product_id": "d801", "controller": None},
                path=info(address),
            )
            for address in addresses
        ),
        held=addresses,
        options="[pci]\npassthrough_whitelist = "
        '[{"address": "0000:01:00.0"}, {"address": "0000:c2:00.0"}]\n',
    )


def _nvidia() -> Iterator[OldHost]:
    """A host whose GPUs guests have whole, and one with vGPUs."""
    buses = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
    addresses = tuple(f"0000:{bus}:00.0" for bus in buses)
    yield OldHost(
        driver="nvidia_gpu_driver",
        machine=lambda: scenario_hosts.load("dgx-h100"),
        devices=tuple(
            _device(
                *(address, "GPU", "10de"),
                [
                    OldPart(
                        name=f"HOST_{address}",
                        resource_class="PGPU",
                        driver_name="NVIDIA",
                        traits=("OWNER_CYBORG", "CUSTOM_NVIDIA_2330"),
                        units=(info(address),),
                    )
                ],
                model="GH100 [H100 SXM5 80GB]",
                path=info(address),
                **_listed("gpu", "2330", "3D controller"),
            )
            for address in addresses
        ),
        held=addresses,
    )
    vgpus = OldPart(
        name=f"HOST_{T4}",
        resource_class="VGPU",
        driver_name="NVIDIA",
        traits=("OWNER_CYBORG", "CUSTOM_NVIDIA_1EB8_T4_2B"),
        attach_type="MDEV",
        units=tuple(
            {**info(T4), "asked_type": KIND, "vgpu_mark": f"{KIND}_{number}"} for number in range(4)
        ),
    )
    device = _device(
        *(T4, "GPU", "10de", [vgpus]),
        model="TU104GL [Tesla T4]",
        path=info(T4),
        **_listed("gpu", "1eb8", "3D controller"),
    )
    # The whole GPU of this host, which the driver reports as well, is stored as in the first host.
    whole = "0000:86:00.0"
    part = OldPart(
        name=f"HOST_{whole}",
        resource_class="PGPU",
        driver_name="NVIDIA",
        traits=("OWNER_CYBORG", "CUSTOM_NVIDIA_1EB8"),
        units=(info(whole),),
    )
    other = _device(
        *(whole, "GPU", "10de", [part]),
        model="TU104GL [Tesla T4]",
        path=info(whole),
        **_listed("gpu", "1eb8", "3D controller"),
    )
    yield OldHost(
        driver="nvidia_gpu_driver",
        machine=host_with_t4s,
        devices=(device, other),
        held=(whole,),
        options=VGPUS,
    )


def _arria10(name: str, units: Sequence[str], address: str, **ids: str) -> OldDevice:
    traits = ["CUSTOM_FPGA_INTEL", "CUSTOM_FPGA_INTEL_PAC_ARRIA10"]
    traits += [f"CUSTOM_FPGA_{word}_INTEL_{value.upper()}" for word, value in ids.items()]
    part = OldPart(
        name=f"MACHINE_{name}",
        resource_class="FPGA",
        driver_name="intel",
        traits=tuple(traits),
        units=tuple(sysfs_info(unit) for unit in units),
    )
    board = {"product_id": "0x09c4"}
    device: OldDevice = _device(address, "FPGA", "0x8086", [part], board=board)
    return device


def _split_arria10(address: str, vfs: tuple[str, ...]) -> FakeHost:
    host = _cards(servers.bare(), (address, "8086:09c4:120000", "intel-fpga-pci"))
    servers.add_vfs(host, address, vfs, "8086:09c5:120000")
    return host


def _intel_fpga() -> Iterator[OldHost]:
    """A whole card, and one with virtual functions, which has the name of the last of them."""
    whole = "0000:af:00.0"
    ids = {
        "FUNCTION_ID": "d8424dc4a4a3c413f89e433683f9040b",
        "REGION": "38d782e3b6125343b9342433e348ac4c",
    }
    yield OldHost(
        driver="intel_fpga_driver",
        machine=lambda: scenario_hosts.load("mixed"),
        devices=(_arria10(whole, [whole], whole, **ids),),
        held=(whole,),
    )
    address, vfs = "0000:5d:00.0", ("0000:5d:00.1", "0000:5d:00.2")
    yield OldHost(
        driver="intel_fpga_driver",
        machine=lambda: _split_arria10(address, vfs),
        devices=(_arria10(vfs[-1], vfs, address),),
        held=(vfs[-1],),
    )


def _inspur_fpga() -> Iterator[OldHost]:
    cards = ("0000:3b:00.0", "0000:af:00.0")
    yield OldHost(
        driver="inspur_fpga_driver",
        machine=lambda: _cards(
            servers.bare(), *((address, "1bd4:0911:120000", "pci-stub") for address in cards)
        ),
        devices=tuple(
            _device(
                *(address, "FPGA", "1bd4"),
                [
                    OldPart(
                        name=f"HOST_{address}",
                        resource_class="FPGA",
                        driver_name="INSPUR",
                        traits=("CUSTOM_FPGA_INSPUR", "CUSTOM_FPGA_PRODUCT_ID_0911"),
                        units=(info(address),),
                    )
                ],
                model="Device [1bd4:0911]",
                path=info(address),
                **_listed("fpga", "0911", "Processing accelerators"),
            )
            for address in cards
        ),
        held=cards[:1],
    )


def _xilinx() -> Iterator[OldHost]:
    """Two cards of two functions, which are two handles and an inventory of one."""
    yield OldHost(
        driver="xilinx_fpga_driver",
        options="[xilinx_fpga]\nguest_functions = all\n",
        machine=lambda: scenario_hosts.load("alveo-u250"),
        devices=tuple(
            _device(
                *(f"{slot}.0", "FPGA", "10ee"),
                [
                    OldPart(
                        name=f"HOST_{slot}.0",
                        resource_class="FPGA",
                        driver_name="XILINX",
                        traits=("CUSTOM_FPGA_XILINX", "CUSTOM_FPGA_PRODUCT_ID_5004"),
                        units=(info(f"{slot}.0"), info(f"{slot}.1")),
                        count=1,
                    )
                ],
                model="Device",
                path=info(f"{slot}.0"),
                **_listed("fpga", "5004", "Processing accelerators"),
            )
            for slot in ("0000:3b:00", "0000:d8:00")
        ),
        # The functions share an IOMMU group, so both are on vfio-pci.
        held=("0000:3b:00.0", "0000:3b:00.1", "0000:d8:00.0", "0000:d8:00.1"),
    )


def _functions(
    units: Sequence[str], traits: tuple[str, ...] = (), **more: str
) -> tuple[OldPart, ...]:
    """Return a deployable for each function of a QuickAssist card; with traits, of a port."""
    resource_class = "CUSTOM_NIC" if traits else "CUSTOM_QAT"
    return tuple(
        OldPart(
            name=f"MACHINE_{unit}",
            resource_class=resource_class,
            driver_name="intel",
            traits=traits,
            units=(sysfs_info(unit, **more),),
        )
        for unit in units
    )


def _intel_qat() -> Iterator[OldHost]:
    """A card with virtual functions, and a whole one."""
    split, whole = "0000:b5:00.0", "0000:b7:00.0"
    vfs = tuple(f"0000:b5:01.{number}" for number in range(4))
    board = {"product_id": "0x37c8"}
    yield OldHost(
        driver="intel_qat_driver",
        machine=lambda: scenario_hosts.load("mixed"),
        devices=(
            _device(split, "QAT", "0x8086", _functions(vfs), board=board),
            _device(whole, "QAT", "0x8086", _functions([whole]), board=board),
        ),
        held=(vfs[-1], whole),
    )


def _ports() -> FakeHost:
    """A host with a port that has virtual functions, and one that a guest has whole."""
    split, whole = "0000:5e:00.0", "0000:86:00.0"
    cards = ((address, "8086:158b:020000", "i40e") for address in (split, whole))
    host = _cards(servers.bare(), *cards)
    servers.add_interface(host, split, "ens1f0")
    servers.add_vfs(host, split, ("0000:5e:02.0", "0000:5e:02.1"), "8086:154c:020000")
    return host


def _intel_nic() -> Iterator[OldHost]:
    split, vfs, whole = "0000:5e:00.0", ("0000:5e:02.0", "0000:5e:02.1"), "0000:86:00.0"
    board = {"product_id": "0x158b"}
    network = {"physical_network": "physnet1"}
    first = _functions(vfs, ("CUSTOM_VF", "CUSTOM_PHYSNET1"), **network)
    second = _functions([whole], ("CUSTOM_PF", "CUSTOM_PHYSNET1"), **network)
    yield OldHost(
        driver="intel_nic_driver",
        machine=_ports,
        devices=(
            _device(split, "NIC", "0x8086", first, board=board),
            _device(whole, "NIC", "0x8086", second, board=board),
        ),
        held=(vfs[-1], whole),
        options="[nic_devices]\nenabled_nic_types = x710_static\n[x710_static]\n"
        "physical_device_mappings = physnet1:ens1f0|ens1f1\n",
    )


def _inspur_ssd() -> Iterator[OldHost]:
    addresses = tuple(f"0000:e{number}:00.0" for number in range(1, 5))
    yield OldHost(
        driver="inspur_nvme_ssd_driver",
        machine=lambda: scenario_hosts.load("nvme-24"),
        devices=tuple(
            _device(
                *(address, "SSD", "1bd4"),
                [
                    OldPart(
                        name=f"HOST_{address}",
                        resource_class="CUSTOM_SSD",
                        driver_name="INSPUR",
                        traits=("CUSTOM_SSD_INSPUR", "CUSTOM_SSD_PRODUCT_ID_1003"),
                        units=(info(address),),
                    )
                ],
                model="NS8500G2 NVMe SSD",
                path=info(address),
                **_listed("ssd", "1003", "Non-Volatile memory controller"),
            )
            for address in addresses
        ),
        held=addresses,
    )


#: The hosts whose rows their drivers keep, by a name for people.
HOSTS: Mapping[str, OldHost] = {
    f"{host.driver}-{number}": host
    for hosts in (
        *(_fake, _pci, _nvidia, _intel_fpga, _inspur_fpga, _xilinx),
        *(_intel_qat, _intel_nic, _inspur_ssd),
    )
    for number, host in enumerate(hosts(), 1)
}


#: Disks of Inspur on a host with the inspur_fpga_driver, which takes every device of Inspur for an
#: FPGA: lspci has the name of the vendor in each line.
DISKS_AS_FPGAS = OldHost(
    driver="inspur_fpga_driver",
    machine=lambda: scenario_hosts.load("nvme-24"),
    devices=tuple(
        replace(
            disk,
            type="FPGA",
            parts=tuple(
                replace(
                    part,
                    resource_class="FPGA",
                    traits=("CUSTOM_FPGA_INSPUR", "CUSTOM_FPGA_PRODUCT_ID_1003"),
                )
                for part in disk.parts
            ),
        )
        for disk in HOSTS["inspur_nvme_ssd_driver-1"].devices
    ),
    held=HOSTS["inspur_nvme_ssd_driver-1"].held,
)

#: The addresses of two Ascend 310.
ASCENDS = ("0000:3d:00.0", "0000:c1:00.0")


def ascends() -> FakeHost:
    """Return a host with two Ascend 310, the only ones that the existing service knows."""
    return _cards(
        servers.bare(), *((address, "19e5:d100:120000", "devdrv_device") for address in ASCENDS)
    )


def left_over(path: Mapping[str, str] | None) -> OldDevice:
    """Return what stays of a report of the huawei_ascend_driver, which always fails.

    It has no attributes, so neither a deployable nor a provider of it exists.
    """
    device: OldDevice = _device(
        *(ASCENDS[0], "AICHIP", "19e5", ()),
        model="Device [19e5:d100]",
        board={"device_id": "d100", "class": "Processing accelerators"},
        vendor_board="",
        path=path,
    )
    return device
