# SPDX-License-Identifier: Apache-2.0
"""The pci_driver on simulated servers: what it offers, what it refuses, and what it says."""

import errno
import json
import pathlib

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.drivers import pci_scan
from cyborg.drivers.base import Driver, DriverContext
from cyborg.drivers.host import LocalHost
from cyborg.drivers.pci import PciDriver, device_type
from cyborg.model.device import AttachType, DeviceType
from cyborg.testing import servers
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.unit.drivers.configured import configured

EVERYTHING = '{"vendor_id": "*"}'
#: A network card as an operator names it for ports of Neutron.
PORT = '{"vendor_id": "8086", "product_id": "1572", "physical_network": "net-1.blue"}'


def both() -> cfg.ConfigOpts:
    return configured(PORT, EVERYTHING)


class TestContract(DriverContract):
    """The shared contract on a server where much is offered and much is not."""

    def make_host(self) -> FakeHost:
        return servers.server()

    def make_driver(self, host: FakeHost) -> Driver:
        return PciDriver(host, both())


def offered(host: FakeHost, *whitelist: str, context: DriverContext | None = None) -> list[str]:
    driver = PciDriver(host, configured(*whitelist))
    return [one.key for one in driver.discover(context or DriverContext())]


def reasons(host: FakeHost, *whitelist: str) -> dict[str, str | None]:
    return {one.key: one.reason for one in PciDriver(host, configured(*whitelist)).hardware()}


def forced(address: str) -> str:
    return json.dumps({"address": address, "force": True})


def test_nothing_is_offered_without_a_whitelist() -> None:
    host = servers.server()
    before = host.touches
    assert offered(host) == []
    assert host.touches == before
    assert not any(one.offered for one in PciDriver(host, configured()).hardware())


def test_a_host_without_a_bus_is_fine() -> None:
    driver = PciDriver(servers.bare(), configured(EVERYTHING))
    assert driver.discover() == []
    assert driver.hardware() == []


def test_offers_what_is_idle_and_says_why_not_of_the_rest() -> None:
    assert reasons(servers.server(), EVERYTHING) == {
        servers.HOST_BRIDGE: "a bridge of the bus itself",
        servers.ROOT_PORT: "a bridge of the bus itself",
        servers.GPU: None,
        servers.GPU_ON_VFIO: None,
        servers.QAT_PF: "it has 2 virtual functions; those can be offered",
        servers.QAT_VFS[0]: None,
        servers.QAT_VFS[1]: None,
        servers.NVME_MOUNTED: "its disk nvme0n1p1 is mounted at /",
        servers.NVME_FREE: None,
        servers.NIC_DEFAULT_ROUTE: "its interface eno1 carries the default route",
        servers.NIC_IDLE: None,
        servers.FPGA: None,
    }


def test_a_function_off_the_list_is_known_but_not_offered() -> None:
    found = reasons(servers.server(), '{"vendor_id": "10de"}')
    assert found[servers.GPU] is None
    assert found[servers.FPGA] == "not on the whitelist"


def test_a_whole_gpu_as_clients_and_rows_in_the_field_know_it() -> None:
    driver = PciDriver(servers.server(), configured('{"address": "0000:3b:00.0"}'))
    (device,) = driver.discover()
    (deployable,) = device.deployables
    (handle,) = deployable.handles
    assert device.key == "0000:3b:00.0"
    assert device.type is DeviceType.GPU
    assert device.vendor == "10de"
    assert device.model == "GA100 [A100 PCIe 80GB]"
    assert device.numa_node == 0
    assert json.dumps(device.std_board_info) == '{"product_id": "20b5", "controller": null}'
    assert device.vendor_board_info == "miss_vb_info"
    assert deployable.name == "compute-1_0000:3b:00.0"
    assert deployable.driver_name == "NVIDIA"
    assert deployable.resource_class == "CUSTOM_PCI"
    assert deployable.traits == (
        "OWNER_CYBORG",
        "CUSTOM_PCI_NVIDIA",
        "CUSTOM_PCI_PRODUCT_ID_20B5",
    )
    assert [(one.key, one.value) for one in deployable.attributes] == [
        ("rc", "CUSTOM_PCI"),
        ("trait0", "OWNER_CYBORG"),
        ("trait1", "CUSTOM_PCI_NVIDIA"),
        ("trait2", "CUSTOM_PCI_PRODUCT_ID_20B5"),
    ]
    assert handle.key == "0000:3b:00.0"
    assert handle.type is AttachType.PCI
    assert json.dumps(handle.info) == (
        '{"bus": "3b", "device": "00", "domain": "0000", "function": "0"}'
    )


def test_a_network_card_tells_its_physical_network_to_nova_and_to_the_scheduler() -> None:
    devices = {one.key: one for one in PciDriver(servers.server(), both()).discover()}
    (port,) = devices[servers.NIC_IDLE].deployables
    assert json.dumps(port.handles[0].info) == (
        '{"bus": "18", "device": "00", "domain": "0000", "function": "1", '
        '"physical_network": "net-1.blue"}'
    )
    assert port.handles[0].key == servers.NIC_IDLE
    assert port.traits[-1] == "CUSTOM_NET_1_BLUE"
    assert port.attributes[-1].value == "CUSTOM_NET_1_BLUE"
    assert "physical_network" not in devices[servers.NIC_IDLE].control_path
    (gpu,) = devices[servers.GPU].deployables
    assert "physical_network" not in gpu.handles[0].info


def test_the_longest_name_of_a_network_fits_the_database() -> None:
    entry = json.dumps({"vendor_id": "8086", "physical_network": '"' * 64})
    devices = PciDriver(servers.server(), configured(entry)).discover()
    assert devices
    assert [one.flaw() for one in devices] == [None] * len(devices)


def test_an_unknown_vendor_goes_by_its_id() -> None:
    host = servers.bare()
    servers.add_function(host, "0000:01:00.0", "1d5f:ab01:ff0000")
    (device,) = PciDriver(host, configured(EVERYTHING)).discover()
    assert device.model == "ab01"
    assert device.numa_node is None
    assert device.deployables[0].driver_name == "1D5F"
    assert device.deployables[0].traits == ("OWNER_CYBORG", "CUSTOM_PCI_PRODUCT_ID_AB01")


@pytest.mark.parametrize(
    ("class_code", "expected"),
    [
        (0x030000, DeviceType.GPU),
        (0x030200, DeviceType.GPU),
        (0x120000, DeviceType.AICHIP),
        (0x0B4000, DeviceType.QAT),
        (0x020000, DeviceType.NIC),
        (0x020700, DeviceType.NIC),
        (0x010802, DeviceType.NVME),
        (0x010700, DeviceType.SSD),
        (0x0B0100, DeviceType.PCI),
        (0x001234, DeviceType.PCI),
        (0xFF0000, DeviceType.PCI),
    ],
)
def test_type_follows_the_class(class_code: int, expected: DeviceType) -> None:
    assert device_type(class_code) is expected


def test_virtual_functions_come_by_the_address_of_their_parent() -> None:
    entry = json.dumps({"address": servers.QAT_PF})
    assert offered(servers.server(), entry) == list(servers.QAT_VFS)


def test_virtual_functions_of_a_parent_must_still_be_of_the_named_product() -> None:
    entry = json.dumps({"address": servers.QAT_PF, "product_id": "37c8"})
    assert offered(servers.server(), entry) == []


@pytest.mark.parametrize(
    "address",
    [
        servers.HOST_BRIDGE,
        servers.NVME_MOUNTED,
        servers.NIC_DEFAULT_ROUTE,
        servers.QAT_PF,
    ],
)
def test_force_overrules_the_guard(address: str) -> None:
    host = servers.server()
    assert address not in offered(host, EVERYTHING)
    assert address in offered(host, EVERYTHING, forced(address))


def test_force_does_not_offer_what_cannot_be_read() -> None:
    host = servers.server()
    host.add_file(f"{servers.place(servers.FPGA)}/vendor", "0xffff\n")
    assert offered(host, forced(servers.FPGA)) == []
    assert reasons(host)[servers.FPGA] == "it does not answer on the bus"


def test_one_broken_function_stops_no_other() -> None:
    host = servers.server()
    host.faults[servers.place(servers.FPGA)] = errno.EIO
    found = reasons(host, EVERYTHING)
    assert "Input/output error" in (found[servers.FPGA] or "")
    assert found[servers.NVME_FREE] is None


def test_an_unreadable_list_of_mounts_is_an_error_and_no_offer() -> None:
    host = servers.server()
    host.faults["/proc/self/mountinfo"] = errno.EIO
    with pytest.raises(exception.HostError) as caught:
        offered(host, EVERYTHING)
    assert "/proc/self/mountinfo" in str(caught.value)


def test_what_nova_claims_in_placement_is_left_to_nova() -> None:
    told = DriverContext(claims={servers.GPU: "claimed by Nova in Placement"})
    driver = PciDriver(servers.server(), configured(EVERYTHING))
    assert servers.GPU not in {one.key for one in driver.discover(told)}
    (found,) = [one for one in driver.hardware(told) if one.key == servers.GPU]
    assert found.reason == "claimed by Nova in Placement"


def test_a_function_in_a_guest_of_somebody_else_is_refused() -> None:
    host = servers.server()
    group = host.readlink(f"{servers.place(servers.GPU_ON_VFIO)}/iommu_group").rpartition("/")[2]
    servers.open_vfio(host, group, 4711, "qemu-system-x86")
    found = reasons(host, EVERYTHING)
    assert found[servers.GPU_ON_VFIO] == ("held through VFIO by qemu-system-x86 (process 4711)")


def test_each_process_that_has_a_vfio_node_open_is_found() -> None:
    """A process that nobody may look into hides none of the others."""
    host = servers.server()
    for number, command in ((4711, "qemu-system-x86"), (4712, "dpdk")):
        servers.open_vfio(host, str(number), number, command)
    servers.open_vfio(host, "hidden", 4000, "secret")
    host.faults["/proc/4000/fd"] = errno.EACCES
    assert pci_scan.read(host).open_vfio == {
        "4711": "qemu-system-x86 (process 4711)",
        "4712": "dpdk (process 4712)",
    }


@pytest.mark.parametrize("driver", ["nvidia", "nvme", "i40e", "c6xx"])
def test_an_idle_card_with_its_native_driver_is_offered_though_it_is_enabled(driver: str) -> None:
    """A native driver enables the function when it is bound, long before anybody uses it."""
    host = servers.bare()
    path = servers.add_function(host, "0000:01:00.0", "10de:20b5:030200", driver=driver)
    assert host.read_text(f"{path}/enable") == "1\n"
    assert offered(host, EVERYTHING) == ["0000:01:00.0"]


def test_a_function_that_is_switched_on_under_vfio_is_held_though_nobody_may_look() -> None:
    host = servers.server()
    host.add_file(f"{servers.place(servers.GPU_ON_VFIO)}/enable", "1\n")
    assert reasons(host, EVERYTHING)[servers.GPU_ON_VFIO] == (
        "held through VFIO by another process"
    )


def test_a_function_that_we_gave_to_a_guest_stays_offered() -> None:
    """Else each bind would make the next report lose the very device that was bound."""
    host = servers.server()
    before = offered(host, EVERYTHING)
    servers.add_function(host, servers.GPU, "10de:20b5:030200", behind=servers.ROOT_PORT, enable=1)
    host.add_link(f"{servers.place(servers.GPU, servers.ROOT_PORT)}/driver", "x/vfio-pci")
    assert servers.GPU not in offered(host, EVERYTHING)
    kept = DriverContext(managed_deployables=frozenset({f"compute-1_{servers.GPU}"}))
    assert offered(host, EVERYTHING, context=kept) == before


def test_a_port_by_its_name_stays_ours_while_a_guest_has_it() -> None:
    """In a guest it has no interface here, so that nothing tells its name any more."""
    host = servers.server()
    entry = '{"devname": "eno2", "physical_network": "blue"}'
    assert offered(host, entry) == [servers.NIC_IDLE]
    host.remove("/sys/class/net/eno2")
    host.add_link(f"{servers.place(servers.NIC_IDLE)}/driver", "x/vfio-pci")
    host.add_file(f"{servers.place(servers.NIC_IDLE)}/enable", "1\n")
    assert offered(host, entry) == []
    kept = DriverContext(managed_deployables=frozenset({f"compute-1_{servers.NIC_IDLE}"}))
    assert offered(host, entry, context=kept) == [servers.NIC_IDLE]


def test_a_recorded_tree_on_disk_reads_as_the_one_in_memory(tmp_path: pathlib.Path) -> None:
    host = servers.server()
    host.materialise(tmp_path)
    conf = configured(EVERYTHING)
    assert PciDriver(LocalHost(str(tmp_path)), conf).hardware() == PciDriver(host, conf).hardware()


def test_this_machine_can_be_read() -> None:
    """Whatever it is, nothing is offered unasked, and what sysfs lists is what is told."""
    bus = pathlib.Path("/sys/bus/pci/devices")
    expected = sorted(one.name for one in bus.iterdir()) if bus.exists() else []
    found = PciDriver(LocalHost(), configured()).hardware()
    assert [one.key for one in found] == expected
    assert not any(one.offered for one in found)


def test_a_bad_whitelist_is_one_sentence_at_construction() -> None:
    with pytest.raises(exception.ConfigError) as caught:
        PciDriver(servers.bare(), configured('{"vendor_id": "nvidia"}'))
    assert str(caught.value) == (
        'Option [pci] passthrough_whitelist cannot be \'{"vendor_id": "nvidia"}\': '
        "vendor_id 'nvidia' is neither '*' nor hexadecimal up to ffff."
    )


def test_why_a_listed_function_is_not_offered_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver = PciDriver(servers.server(), configured(f'{{"address": "{servers.NVME_MOUNTED}"}}'))
    for _ in range(2):
        assert driver.discover() == []
    (record,) = [one for one in caplog.records if servers.NVME_MOUNTED in one.getMessage()]
    assert "mounted" in record.getMessage()


def test_backend_is_the_bus_with_the_listed_functions_by_type() -> None:
    host = servers.server()
    (backend,) = PciDriver(host, configured('{"vendor_id": "10de"}')).backends()
    assert (backend.name, backend.state) == ("pci", "READY")
    assert [service.name for service in backend.services] == ["GPU"]
    assert backend.capabilities["GPU"]["num"] >= 1


def test_backend_is_stopped_when_the_whitelist_names_nothing_on_the_bus() -> None:
    for whitelist in ((), ('{"vendor_id": "dead"}',)):
        (backend,) = PciDriver(servers.server(), configured(*whitelist)).backends()
        assert (backend.state, backend.services) == ("STOPPED", ())
