# SPDX-License-Identifier: Apache-2.0
"""The drivers of network cards on simulated cards with virtual functions and with whole ports."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from cyborg import exception
from cyborg.drivers.base import Driver
from cyborg.drivers.command import Completed
from cyborg.drivers.nic import IntelNicDriver, Mlx5Driver, NicDriver
from cyborg.drivers.scan import Scan
from cyborg.model.device import Device, DeviceType
from cyborg.testing import servers
from cyborg.testing.driver_checks import look
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.unit.drivers.configured import written

DEVLINK = "/usr/sbin/devlink"
#: A port with two virtual functions, whose interface is in use by the host, and a whole port.
BUSY, VFS, IDLE = "0000:5e:00.0", ("0000:5e:02.0", "0000:5e:02.1"), "0000:86:00.0"
DPU, DPU_VF = "0000:c1:00.0", ("0000:c1:00.2",)


def host_with_ports(vendor: str = "8086", product: str = "159b", driver: str = "ice") -> FakeHost:
    host = servers.bare()
    servers.add_function(host, BUSY, f"{vendor}:{product}:020000", driver=driver, node=0)
    servers.add_interface(host, BUSY, "ens1f0")
    servers.add_default_route(host, "ens1f0")
    servers.add_vfs(host, BUSY, VFS, f"{vendor}:1889:020000")
    servers.add_function(host, IDLE, f"{vendor}:{product}:020000", driver=driver, node=0)
    servers.add_interface(host, IDLE, "ens1f1")
    host.add_file(DEVLINK, "")
    host.programs[DEVLINK] = reporters({})
    return host


def reporters(states: dict[str, str], key: str = "") -> Any:
    """Return a devlink whose cards, or the one with this address, have these reporters."""

    def run(_: FakeHost, argv: tuple[str, ...]) -> Completed:
        listed = [{"reporter": name, "state": state} for name, state in states.items()]
        handle = argv[3]
        return Completed(0, json.dumps({"health": {handle: listed if key in handle else []}}), "")

    return run


def driver_on(host: FakeHost, tmp_path: Path, text: str = "") -> IntelNicDriver:
    return IntelNicDriver(host, written(tmp_path / "cyborg.conf", text))


def section(**lists: str) -> str:
    lines = "".join(f"{name} = {value}\n" for name, value in lists.items())
    return f"[nic_devices]\nenabled_nic_types = x710_static\n[x710_static]\n{lines}"


class Contract(DriverContract):
    """The driver contract; a health reporter in error is the fault."""

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path

    def break_device(self, host: FakeHost, key: str) -> None:
        host.programs[DEVLINK] = reporters({"fw_fatal": "error"}, key)

    def mend_device(self, host: FakeHost, key: str) -> None:
        host.programs[DEVLINK] = reporters({})


@pytest.mark.proves("intel_nic_driver", "discover", "health", by="simulated")
class TestIntel(Contract):
    def make_host(self) -> FakeHost:
        return host_with_ports()

    def make_driver(self, host: FakeHost) -> Driver:
        return driver_on(host, self.tmp_path)


@pytest.mark.proves("mlx5_driver", "discover", "health", by="simulated")
class TestMlx5(Contract):
    def make_host(self) -> FakeHost:
        return host_with_ports("15b3", "101d", "mlx5_core")

    def make_driver(self, host: FakeHost) -> Driver:
        return Mlx5Driver(host, written(self.tmp_path / "cyborg.conf", ""))


def found(driver: NicDriver) -> dict[str, Device]:
    return {device.key: device for device in look(driver).discover()}


def test_existing_rows_keep_their_names_and_values(tmp_path: Path) -> None:
    text = section(
        physical_device_mappings="physnet-1:ens1f0|ens9", function_device_mappings="gtp:ens1f0"
    )
    device = found(driver_on(host_with_ports(), tmp_path, text))[BUSY]
    assert (device.type, device.vendor) == (DeviceType.NIC, "0x8086")
    assert json.dumps(device.std_board_info) == '{"product_id": "0x159b"}'
    names = [deployable.name for deployable in device.deployables]
    assert names == [f"{socket.gethostname()}_{vf}" for vf in VFS]
    deployable = device.deployables[0]
    assert (deployable.resource_class, deployable.driver_name) == ("CUSTOM_NIC", "intel")
    assert deployable.traits == ("CUSTOM_VF", "CUSTOM_GTP", "CUSTOM_PHYSNET_1")
    assert deployable.handles[0].info["physical_network"] == "physnet-1"


def test_a_port_without_virtual_functions_is_offered_whole(tmp_path: Path) -> None:
    (deployable,) = found(driver_on(host_with_ports(), tmp_path))[IDLE].deployables
    assert deployable.traits == ("CUSTOM_PF",)
    assert "physical_network" not in deployable.handles[0].info


def test_a_port_that_the_host_uses_is_refused(tmp_path: Path) -> None:
    host = host_with_ports()
    for vf in VFS:
        host.remove(host.realpath(f"/sys/bus/pci/devices/{vf}"))
        host.remove(f"/sys/bus/pci/devices/{vf}")
    driver = driver_on(host, tmp_path)
    assert set(found(driver)) == {IDLE}
    reasons = {item.key: item.reason for item in look(driver).hardware()}
    assert "ens1f0 carries the default route" in str(reasons[BUSY])


def test_options_name_ports_and_virtual_functions(tmp_path: Path) -> None:
    def offered(addresses: str) -> list[str]:
        driver = driver_on(host_with_ports(), tmp_path, section(device_addresses=addresses))
        devices = found(driver).values()
        return [
            handle.key
            for device in devices
            for unit in device.deployables
            for handle in unit.handles
        ]

    assert offered(VFS[1]) == [VFS[1]]
    assert offered(BUSY) == list(VFS)
    assert offered(f"{BUSY}, {IDLE}") == [*VFS, IDLE]


def test_a_port_that_a_guest_has_keeps_the_network_of_its_address(tmp_path: Path) -> None:
    text = section(physical_device_mappings=f"net-a:{IDLE}, net-b:ens1f0")
    host = host_with_ports()
    before = found(driver_on(host, tmp_path, text))[IDLE]
    give_to_guest(host, IDLE)
    driver = driver_on(host, tmp_path, text)
    managed = {f"{socket.gethostname()}_{IDLE}"}
    after = {
        device.key: device for device in driver.discover(Scan(host, managed_deployables=managed))
    }
    assert after[IDLE].deployables == before.deployables


def give_to_guest(host: FakeHost, address: str) -> None:
    place = host.realpath(f"/sys/bus/pci/devices/{address}")
    host.remove(f"{place}/net")
    host.remove("/sys/class/net/ens1f1")
    host.add_link(f"{place}/driver", "../../bus/pci/drivers/vfio-pci")


def test_a_driver_without_reporters_does_not_tell_the_health(tmp_path: Path) -> None:
    host = host_with_ports()
    host.programs[DEVLINK] = lambda _host, _argv: Completed(1, "", "kernel answers: No such device")
    with pytest.raises(exception.DriverCannot):
        look(driver_on(host, tmp_path)).health(BUSY)


@pytest.mark.parametrize(
    ("option", "value", "flaw"),
    [
        ("device_addresses", "eth0", "'eth0' is not a PCI address"),
        ("physical_device_mappings", "physnet1", "'physnet1' is not NAME:INTERFACE"),
        ("physical_device_mappings", "a:eth0, a:eth1", "'a' is there twice"),
        ("function_device_mappings", ":eth0", "':eth0' is not NAME:INTERFACE"),
    ],
)
def test_options_that_cannot_be_used_are_refused(
    tmp_path: Path, option: str, value: str, flaw: str
) -> None:
    with pytest.raises(exception.ConfigError, match=flaw):
        driver_on(servers.bare(), tmp_path, section(**{option: value}))


def test_ports_of_a_dpu_and_sub_functions_are_listed_only(tmp_path: Path) -> None:
    host = host_with_ports("15b3", "1021", "mlx5_core")
    servers.add_function(host, DPU, "15b3:a2dc:020000", driver="mlx5_core", node=1)
    servers.add_interface(host, DPU, "enp193")
    servers.add_vfs(host, DPU, DPU_VF, "15b3:101e:020000")
    host.add_link("/sys/bus/auxiliary/devices/mlx5_core.sf.4", "../../../devices/x/mlx5_core.sf.4")
    driver = Mlx5Driver(host, written(tmp_path / "cyborg.conf", ""))
    assert set(found(driver)) == {BUSY, IDLE}
    (unit,) = found(driver)[IDLE].deployables
    assert unit.traits == ("CUSTOM_PF", "OWNER_CYBORG", "HW_NIC_OFFLOAD_RDMA", "CUSTOM_MLX5_1021")
    assert unit.name == f"compute-1_{IDLE}"
    items = {item.key: item for item in look(driver).hardware()}
    assert "belongs to a DPU" in str(items[DPU_VF[0]].reason)
    assert items["mlx5_core.sf.4"].reason == (
        "Nova cannot attach a sub-function; use virtual functions"
    )
