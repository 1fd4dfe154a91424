# SPDX-License-Identifier: Apache-2.0
"""The intel_gpu_driver on simulated hosts with Flex and Arc Pro GPUs.

What xpu-smi prints, and what that says, is in ``readings.d``.
"""

import json
from pathlib import Path

import pytest

from cyborg import exception
from cyborg.drivers.base import Driver
from cyborg.drivers.command import Completed
from cyborg.drivers.intel_gpu import IntelGpuDriver
from cyborg.drivers.scan import Scan
from cyborg.model.device import Device, DeviceType
from cyborg.model.health import Judgement
from cyborg.testing import servers
from cyborg.testing.driver_checks import look
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.host_driver import HostDriver
from cyborg.testing.kernel.simulated import SimulatedKernel
from cyborg.tests.unit.drivers.configured import written

FLEX, ARC = "0000:4d:00.0", "0000:9a:00.0"
VFS = ("0000:4d:00.1", "0000:4d:00.2")
TOOL = "/usr/bin/xpu-smi"
COMPONENTS = ("core_temperature", "memory_temperature", "power", "memory", "frequency")
METRICS = {
    "XPUM_STATS_GPU_UTILIZATION": 25.0,
    "XPUM_STATS_MEMORY_USED": 4096,
    "XPUM_STATS_GPU_CORE_TEMPERATURE": 55,
    "XPUM_STATS_POWER": 71.5,
    "XPUM_STATS_GPU_FREQUENCY": 1600,
}


def gpus() -> FakeHost:
    """A Flex 170 on i915, about which xpu-smi is asked, and an Arc Pro B60 on xe."""
    host = servers.bare()
    place = servers.add_function(host, FLEX, "8086:56c0:038000", driver="i915", node=0)
    host.add_file(f"{place}/sriov_totalvfs", "31\n")
    host.add_file(f"{place}/sriov_numvfs", "0\n")
    place = servers.add_function(host, ARC, "8086:e211:030000", driver="xe", node=1)
    host.add_file(f"{place}/gpu_health", "ok\n")
    answering(host, {})
    return host


def answering(host: FakeHost, faults: dict[str, dict[str, str]]) -> FakeHost:
    """Let xpu-smi report these statuses by address and component; all others are OK."""

    def run(_: FakeHost, argv: tuple[str, ...]) -> Completed:
        command, address = argv[1], argv[argv.index("-d") + 1]
        answer: dict[str, object] = {"device_id": 0}
        if command == "health":
            for name in COMPONENTS:
                status = faults.get(address, {}).get(name, "OK")
                answer[name] = {"status": status, "description": f"The {name}\nis so."}
        else:
            answer["device_level"] = [
                {"metrics_type": name, "value": value} for name, value in METRICS.items()
            ]
        return Completed(0, json.dumps(answer), "")

    host.add_file(TOOL, "")
    host.programs[TOOL] = run
    return host


def set_health(host: FakeHost, key: str, word: str) -> None:
    host.add_file(f"{host.realpath(f'/sys/bus/pci/devices/{key}')}/gpu_health", f"{word}\n")


def driver_on(host: FakeHost, tmp_path: Path, text: str = "") -> IntelGpuDriver:
    return IntelGpuDriver(host, written(tmp_path / "cyborg.conf", text))


@pytest.mark.proves("intel_gpu_driver", "discover", "health", by="simulated")
class TestContract(DriverContract):
    """The driver contract; a critical memory is the fault."""

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path

    def make_host(self) -> FakeHost:
        return gpus()

    def make_driver(self, host: FakeHost) -> Driver:
        return driver_on(host, self.tmp_path)

    def break_device(self, host: FakeHost, key: str) -> None:
        if key == ARC:
            set_health(host, key, "critical")
        answering(host, {key: {"memory": "Critical"}})

    def mend_device(self, host: FakeHost, key: str) -> None:
        if key == ARC:
            set_health(host, key, "ok")
        answering(host, {})


class TestDividedContract(TestContract):
    """The same with virtual functions, which have the ids of their GPU."""

    def make_host(self) -> FakeHost:
        return divided()


def divided() -> FakeHost:
    host = gpus()
    servers.add_vfs(host, FLEX, VFS, "8086:56c0:038000")
    return host


def found(driver: Driver) -> dict[str, Device]:
    return {device.key: device for device in look(driver).discover()}


def test_whole_gpus_are_units_of_pgpu(tmp_path: Path) -> None:
    devices = found(driver_on(gpus(), tmp_path))
    assert {key: device.model for key, device in devices.items()} == {
        FLEX: "Data Center GPU Flex 170",
        ARC: "Arc Pro B60",
    }
    device = devices[FLEX]
    assert (device.type, device.vendor) == (DeviceType.GPU, "8086")
    (unit,) = device.deployables
    assert (unit.name, unit.driver_name) == (f"compute-1_{FLEX}", "intel")
    assert unit.resource_class == "PGPU"
    assert unit.traits == ("OWNER_CYBORG", "CUSTOM_INTEL_GPU_56C0")


def test_virtual_functions_are_units_of_vgpu(tmp_path: Path) -> None:
    units = found(driver_on(divided(), tmp_path))[FLEX].deployables
    assert [(unit.name, unit.resource_class, unit.traits) for unit in units] == [
        (f"compute-1_{vf}", "VGPU", ("OWNER_CYBORG", "CUSTOM_INTEL_GPU_56C0")) for vf in VFS
    ]


@pytest.mark.parametrize(("numvfs", "offered"), [("1", False), ("?", False), ("0", True)])
def test_a_function_beside_a_divided_gpu_is_not_taken_for_a_gpu(
    tmp_path: Path, numvfs: str, offered: bool
) -> None:
    host = divided()
    host.add_file(f"{servers.place(FLEX)}/sriov_numvfs", f"{numvfs}\n")
    host.remove(f"{servers.place(VFS[1])}/physfn")
    driver = driver_on(host, tmp_path)
    assert (VFS[1] in found(driver)) is offered
    reasons = {item.key: item.reason for item in look(driver).hardware()}
    expected = f"it may be a virtual function of {FLEX}, whose ids it has"
    assert reasons[VFS[1]] == (None if offered else expected)


@pytest.mark.proves("intel_gpu_driver", "partition", by="simulated")
def test_the_option_creates_virtual_functions(tmp_path: Path) -> None:
    host = gpus()
    drivers = [
        HostDriver(name, frozenset({ids}), sriov=True)
        for name, ids in (("i915", "8086:56c0"), ("xe", "8086:e211"))
    ]
    SimulatedKernel(host, drivers)
    driver = driver_on(host, tmp_path, "[intel_gpu]\nvirtual_functions = 2\n")
    card = {card.card: card for card in driver.layouts(Scan(host))}[FLEX]
    assert (card.current, card.desired, card.refusal) == ("vfs=0", "vfs=2", None)
    driver.partition(FLEX, "vfs=2")
    (first, second) = found(driver)[FLEX].deployables
    assert {first.resource_class, second.resource_class} == {"VGPU"}


def test_without_the_tool_hwmon_is_left(tmp_path: Path) -> None:
    host = gpus()
    host.remove(TOOL)
    place = host.realpath(f"/sys/bus/pci/devices/{FLEX}")
    host.add_file(f"{place}/hwmon/hwmon5/power1_input", "55000000\n")
    driver = driver_on(host, tmp_path)
    assert set(found(driver)) == {FLEX, ARC}
    with pytest.raises(exception.DriverCannot):
        look(driver).health(FLEX)
    assert look(driver).health(ARC) == Judgement()
    assert look(driver).stats(FLEX) == {"power_watts": pytest.approx(55.0)}


def test_a_gpu_in_a_guest_is_not_asked(tmp_path: Path) -> None:
    host = servers.bare()
    servers.add_function(host, FLEX, "8086:56c0:038000", driver="vfio-pci")
    answering(host, {})
    driver = driver_on(host, tmp_path)
    for question in (look(driver).health, look(driver).stats):
        with pytest.raises(exception.DriverCannot):
            question(FLEX)
    assert host.commands == []
