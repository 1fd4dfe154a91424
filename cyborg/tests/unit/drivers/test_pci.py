# SPDX-License-Identifier: Apache-2.0
"""The pci_driver on simulated servers: offered functions, refused functions and log lines."""

import errno
import json
import pathlib

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.drivers.base import Driver
from cyborg.drivers.host import LocalHost
from cyborg.drivers.ownership import NO_IOMMU
from cyborg.drivers.pci import PciDriver
from cyborg.drivers.scan import Scan
from cyborg.model.device import AttachType, DeviceType, Topology
from cyborg.testing import servers
from cyborg.testing.driver_checks import look
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.unit.drivers.configured import configured, written

EVERYTHING = '{"vendor_id": "*"}'
#: A network card as an operator names it for ports of Neutron.
PORT = '{"vendor_id": "8086", "product_id": "1572", "physical_network": "net-1.blue"}'


def both() -> cfg.ConfigOpts:
    return configured(PORT, EVERYTHING)


@pytest.mark.proves("pci_driver", "discover", by="simulated")
class TestContract(DriverContract):
    """The driver contract on a server with many offered and many refused functions."""

    def make_host(self) -> FakeHost:
        return servers.server()

    def make_driver(self, host: FakeHost) -> Driver:
        return PciDriver(host, both())


def offered(host: FakeHost, *whitelist: str, managed: str | None = None) -> list[str]:
    driver = PciDriver(host, configured(*whitelist))
    scan = Scan(host, managed_deployables={f"compute-1_{managed}"})
    return [device.key for device in driver.discover(scan)]


def hold(host: FakeHost, path: str) -> None:
    """Give a function to a guest."""
    host.add_link(f"{path}/driver", "x/vfio-pci")
    group = host.readlink(f"{path}/iommu_group").rpartition("/")[2]
    servers.open_vfio(host, group, 4711, "qemu-system-x86")


def reasons(host: FakeHost, *whitelist: str) -> dict[str, str | None]:
    return {
        entry.key: entry.reason
        for entry in look(PciDriver(host, configured(*whitelist))).hardware()
    }


def forced(address: str) -> str:
    return json.dumps({"address": address, "force": True})


def test_nothing_is_offered_without_a_whitelist() -> None:
    host = servers.server()
    before = host.touches
    assert offered(host) == []
    assert host.touches == before
    assert not any(entry.offered for entry in look(PciDriver(host, configured())).hardware())


def test_idle_functions_are_offered_and_others_have_a_reason() -> None:
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


def test_a_gpu_has_the_values_of_existing_deployments() -> None:
    driver = PciDriver(servers.server(), configured('{"address": "0000:3b:00.0"}'))
    (device,) = look(driver).discover()
    (deployable,) = device.deployables
    (handle,) = deployable.handles
    assert device.key == "0000:3b:00.0"
    assert device.type is DeviceType.GPU
    assert device.vendor == "10de"
    assert device.model == "GA100 [A100 PCIe 80GB]"
    assert device.numa_node == 0
    assert device.topology == Topology(root_port=servers.ROOT_PORT)
    assert [(fact.kind, fact.value) for fact in device.identity] == [("address", servers.GPU)]
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
    assert [(attribute.key, attribute.value) for attribute in deployable.attributes] == [
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


def test_a_network_card_has_its_physical_network_in_handle_and_trait() -> None:
    devices = {
        device.key: device for device in look(PciDriver(servers.server(), both())).discover()
    }
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
    # The longest name fits the database.
    entry = json.dumps({"vendor_id": "8086", "physical_network": '"' * 64})
    found = look(PciDriver(servers.server(), configured(entry))).discover()
    assert found
    assert [device.validate() for device in found] == [None] * len(found)


def test_an_unknown_vendor_is_named_by_its_id() -> None:
    host = servers.bare()
    assert look(PciDriver(host, configured(EVERYTHING))).hardware() == []
    servers.add_function(host, "0000:01:00.0", "1d5f:ab01:ff0000", driver="c6xx")
    # Its driver enables the function when it is bound, before any use.
    assert host.read_text(f"{servers.place('0000:01:00.0')}/enable") == "1\n"
    (device,) = look(PciDriver(host, configured(EVERYTHING))).discover()
    assert device.model == "ab01"
    assert device.numa_node is None
    assert device.deployables[0].driver_name == "1D5F"
    assert device.deployables[0].traits == ("OWNER_CYBORG", "CUSTOM_PCI_PRODUCT_ID_AB01")


def test_the_address_of_a_parent_includes_its_virtual_functions() -> None:
    entry = {"address": servers.QAT_PF}
    assert offered(servers.server(), json.dumps(entry)) == list(servers.QAT_VFS)
    # They must match the product of the entry.
    assert offered(servers.server(), json.dumps(entry | {"product_id": "37c8"})) == []


@pytest.mark.parametrize(
    "address",
    [
        servers.HOST_BRIDGE,
        servers.NVME_MOUNTED,
        servers.NIC_DEFAULT_ROUTE,
        servers.QAT_PF,
    ],
)
def test_force_skips_the_ownership_check(address: str, tmp_path: pathlib.Path) -> None:
    host = servers.server()
    assert address not in offered(host, EVERYTHING)
    file = tmp_path / "cyborg.conf"
    conf = written(file, f"[pci]\npassthrough_whitelist = {forced(address)}\n")
    assert address in {device.key for device in look(PciDriver(host, conf)).discover()}
    # Anybody who can change the file could take the disk of the host.
    host.foreign.add(str(file))
    driver = PciDriver(host, conf)
    assert address not in {device.key for device in look(driver).discover()}
    (entry,) = [entry for entry in look(driver).hardware() if entry.key == address]
    assert str(entry.reason).endswith(
        "; force has no effect, because the whitelist must be in configuration files that only "
        f"root can change; others can change {file}"
    )


def test_force_from_outside_the_configuration_files_has_no_effect() -> None:
    host = servers.server()
    assert servers.NVME_MOUNTED not in offered(host, EVERYTHING, forced(servers.NVME_MOUNTED))


def test_a_broken_function_does_not_hide_others() -> None:
    host = servers.server()
    host.add_file(f"{servers.place(servers.FPGA)}/vendor", "0xffff\n")
    assert offered(host, forced(servers.FPGA)) == []
    assert reasons(host)[servers.FPGA] == "it does not answer on the bus"
    host.faults[servers.place(servers.FPGA)] = errno.EIO
    shown = reasons(host, EVERYTHING)
    assert "Input/output error" in (shown[servers.FPGA] or "")
    assert shown[servers.NVME_FREE] is None


def test_discover_offers_no_disk_when_the_mounts_cannot_be_read() -> None:
    host = servers.server()
    host.faults["/proc/self/mountinfo"] = errno.EIO
    assert servers.NVME_FREE not in offered(host, EVERYTHING)
    assert "/proc/self/mountinfo" in (reasons(host, EVERYTHING)[servers.NVME_FREE] or "")
    host.faults["/sys/bus/pci/devices"] = errno.EIO
    with pytest.raises(exception.HostError):
        offered(host, EVERYTHING)


def test_a_function_that_nova_claims_is_not_offered() -> None:
    host = servers.server()
    scan = Scan(host, claims={servers.GPU: "claimed by Nova in Placement"})
    driver = PciDriver(host, configured(EVERYTHING))
    assert servers.GPU not in {device.key for device in driver.discover(scan)}
    (entry,) = [entry for entry in driver.hardware(scan) if entry.key == servers.GPU]
    assert entry.reason == "claimed by Nova in Placement"


def test_an_unmanaged_function_in_a_guest_is_not_offered() -> None:
    host = servers.server()
    group = host.readlink(f"{servers.place(servers.GPU_ON_VFIO)}/iommu_group").rpartition("/")[2]
    servers.open_vfio(host, group, 4711, "qemu-system-x86")
    shown = reasons(host, EVERYTHING)
    assert shown[servers.GPU_ON_VFIO] == ("held through VFIO by qemu-system-x86 (process 4711)")


def test_each_process_that_has_a_vfio_node_open_is_found() -> None:
    """A process that cannot be read does not hide the others."""
    host = servers.server()
    for number, command in ((4711, "qemu-system-x86"), (4712, "dpdk")):
        servers.open_vfio(host, str(number), number, command)
    servers.open_vfio(host, "hidden", 4000, "secret")
    host.faults["/proc/4000/fd"] = errno.EACCES
    files = host.open_files()
    assert files.holders == {
        "/dev/vfio/4711": "qemu-system-x86 (process 4711)",
        "/dev/vfio/4712": "dpdk (process 4712)",
    }
    denied = "the agent may not see the open files of other users' processes: Permission denied"
    assert files.reason == denied


def test_a_managed_function_in_a_guest_stays_offered() -> None:
    """Otherwise the report after a bind would not contain the bound device."""
    host = servers.server()
    before = offered(host, EVERYTHING)
    hold(host, servers.place(servers.GPU, servers.ROOT_PORT))
    assert servers.GPU not in offered(host, EVERYTHING)
    assert offered(host, EVERYTHING, managed=servers.GPU) == before


def test_a_managed_port_stays_offered_while_a_guest_has_its_interface() -> None:
    """While a guest has the port, the host has no interface with its name."""
    host = servers.server()
    entry = '{"devname": "eno2", "physical_network": "blue"}'
    assert offered(host, entry) == [servers.NIC_IDLE]
    host.remove("/sys/class/net/eno2")
    hold(host, servers.place(servers.NIC_IDLE))
    assert offered(host, entry) == []
    assert offered(host, entry, managed=servers.NIC_IDLE) == [servers.NIC_IDLE]


def test_this_machine_can_be_scanned() -> None:
    """Without a whitelist nothing is offered, and hardware lists what sysfs lists."""
    bus = pathlib.Path("/sys/bus/pci/devices")
    expected = sorted(path.name for path in bus.iterdir()) if bus.exists() else []
    entries = look(PciDriver(LocalHost(), configured())).hardware()
    assert [entry.key for entry in entries] == expected
    assert not any(entry.offered for entry in entries)


def test_an_invalid_whitelist_raises_config_error_at_construction() -> None:
    with pytest.raises(exception.ConfigError) as caught:
        PciDriver(servers.bare(), configured('{"vendor_id": "nvidia"}'))
    assert str(caught.value) == (
        'Option [pci] passthrough_whitelist cannot be \'{"vendor_id": "nvidia"}\': '
        "vendor_id 'nvidia' is neither '*' nor hexadecimal up to ffff."
    )


def test_the_reason_of_a_refused_function_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver = PciDriver(servers.server(), configured(f'{{"address": "{servers.NVME_MOUNTED}"}}'))
    for _ in range(2):
        assert look(driver).discover() == []
    (record,) = caplog.records
    assert record.getMessage().startswith(
        f"PCI function {servers.NVME_MOUNTED}, selected by the whitelist, is not offered: "
    )
    assert "mounted" in record.getMessage()


def test_the_missing_iommu_is_logged_once_for_all_functions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = servers.bare()
    for number in range(3):
        address = f"0000:c{number}:00.0"
        servers.add_function(host, address, "10de:20b5:030200")
        host.remove(f"{servers.place(address)}/iommu_group")
    driver = PciDriver(host, configured("{}"))
    for _ in range(2):
        assert look(driver).discover() == []
    assert set(reasons(host, "{}").values()) == {NO_IOMMU}
    (record,) = caplog.records
    assert record.getMessage().startswith("No PCI function is offered")


def test_nothing_is_logged_about_functions_that_the_whitelist_does_not_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The list of hardware has them all, with the reason why they are not offered."""
    host, absent = servers.server(), '{"address": "0000:ff:00.0"}'
    host.remove(f"{servers.place(servers.GPU, servers.ROOT_PORT)}/iommu_group")
    assert look(PciDriver(host, configured(absent))).discover() == []
    assert caplog.records == []
    assert servers.GPU in reasons(host, absent)


@pytest.mark.parametrize(
    "identity",
    [
        pytest.param("8086:a1a3:0c0500", id="SMBus"),
        pytest.param("8086:a1ba:078000", id="management engine"),
        pytest.param("8086:2f36:110100", id="performance counters"),
        pytest.param("8086:2f98:088000", id="registers of the processor"),
        pytest.param("8086:201d:010400", id="VMD"),
    ],
)
def test_no_function_of_the_platform_is_offered_by_the_widest_whitelist(identity: str) -> None:
    host, address = servers.bare(), "0000:64:1f.0"
    servers.add_function(host, address, identity)
    servers.add_function(host, "0000:c1:00.0", "10de:20b5:030200")
    assert offered(host, "{}") == ["0000:c1:00.0"]
    assert "a function of the platform" in str(reasons(host, "{}")[address])


def test_the_backend_counts_whitelisted_functions_by_type() -> None:
    host, entry = servers.server(), '{"vendor_id": "10de"}'
    (backend,) = look(PciDriver(host, configured(entry))).backends()
    assert (backend.name, backend.state) == ("pci", "READY")
    assert [service.name for service in backend.services] == ["GPU"]
    assert backend.capabilities["GPU"]["num"] >= 1
    assert reasons(host, entry)[servers.FPGA] == "not on the whitelist"
    for whitelist in ((), ('{"vendor_id": "dead"}',)):
        (backend,) = look(PciDriver(host, configured(*whitelist))).backends()
        assert (backend.state, backend.services) == ("STOPPED", ())
