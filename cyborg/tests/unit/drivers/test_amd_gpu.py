# SPDX-License-Identifier: Apache-2.0
"""The amd_gpu_driver on simulated hosts with Instinct GPUs.

What amd-smi prints, and what that says, is in ``readings.d``.
"""

import json
from pathlib import Path

import pytest

from cyborg import exception
from cyborg.drivers.amd_gpu import AmdGpuDriver
from cyborg.drivers.base import Driver
from cyborg.drivers.command import Completed
from cyborg.drivers.scan import Scan
from cyborg.model.device import AttachType, Device, DeviceType
from cyborg.testing import servers
from cyborg.testing.driver_checks import look
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.host_driver import HostDriver
from cyborg.testing.kernel.simulated import SimulatedKernel
from cyborg.tests.unit.drivers.configured import written

#: Two MI300X, the first with virtual functions in ``divided``, and a Radeon that is not offered.
FIRST, SECOND, RADEON = "0000:05:00.0", "0000:26:00.0", "0000:c1:00.0"
VFS = ("0000:05:02.0", "0000:05:02.1")
TOOL = "/opt/rocm/bin/amd-smi"
BLOCKS = ("gfx", "sdma", "umc", "xgmi_wafl")


def add_gpu(host: FakeHost, address: str, driver: str = "amdgpu") -> str:
    place = servers.add_function(host, address, "1002:74a1:120000", driver=driver, node=0)
    host.add_file(f"{place}/sriov_totalvfs", "8\n")
    host.add_file(f"{place}/sriov_numvfs", "0\n")
    if driver == "amdgpu":
        for block in BLOCKS:
            host.add_file(f"{place}/ras/{block}_err_count", "ue: 0\nce: 0\n")
        host.add_file(f"{place}/ras/features", "feature mask: 0x1f\n")
        host.add_file(f"{place}/ras/gpu_vram_bad_pages", "0x027f5d43 : 0x00001000 : R\n")
        host.add_file(f"{place}/mem_info_vram_total", "206141652992\n")
        host.add_file(f"{place}/mem_info_vram_used", "297140224\n")
        host.add_file(f"{place}/gpu_busy_percent", "25\n")
        host.add_file(f"{place}/hwmon/hwmon4/temp1_input", "41000\n")
        host.add_file(f"{place}/hwmon/hwmon4/power1_input", "133000000\n")
    return place


def gpus() -> FakeHost:
    host = servers.bare()
    add_gpu(host, FIRST)
    add_gpu(host, SECOND)
    servers.add_function(host, RADEON, "1002:73bf:030000", driver="amdgpu")
    return host


def divided() -> FakeHost:
    host = servers.bare()
    add_gpu(host, FIRST, "gim")
    servers.add_vfs(host, FIRST, VFS, "1002:74b5:120000")
    add_gpu(host, SECOND, "gim")
    return host


def driver_on(host: FakeHost, tmp_path: Path, text: str = "") -> AmdGpuDriver:
    return AmdGpuDriver(host, written(tmp_path / "cyborg.conf", text))


def ras(host: FakeHost, key: str, name: str, text: str) -> None:
    host.add_file(f"{host.realpath(f'/sys/bus/pci/devices/{key}')}/ras/{name}", text)


class Contract(DriverContract):
    """The driver contract; an uncorrectable error of the memory is the fault."""

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path

    def make_driver(self, host: FakeHost) -> Driver:
        return driver_on(host, self.tmp_path)


@pytest.mark.proves("amd_gpu_driver", "discover", "health", by="simulated")
class TestWholeGpus(Contract):
    def make_host(self) -> FakeHost:
        return gpus()

    def break_device(self, host: FakeHost, key: str) -> None:
        ras(host, key, "umc_err_count", "ue: 2\nce: 7\n")

    def mend_device(self, host: FakeHost, key: str) -> None:
        ras(host, key, "umc_err_count", "ue: 0\nce: 0\n")


@pytest.mark.proves("amd_gpu_driver", "discover", "health", by="simulated")
class TestVirtualFunctions(Contract):
    """Without the files of amdgpu, the errors are those that amd-smi tells."""

    def make_host(self) -> FakeHost:
        return answering(divided(), {})

    def break_device(self, host: FakeHost, key: str) -> None:
        answering(host, {key: 1})

    def mend_device(self, host: FakeHost, key: str) -> None:
        answering(host, {})


def answering(host: FakeHost, errors: dict[str, int]) -> FakeHost:
    """Let amd-smi tell these numbers of uncorrectable errors by address."""

    def run(_: FakeHost, argv: tuple[str, ...]) -> Completed:
        address = argv[argv.index("--gpu") + 1]
        counts = {"total_correctable_count": 3, "total_deferred_count": 0}
        ecc = {**counts, "total_uncorrectable_count": errors.get(address, 0)}
        return Completed(0, json.dumps({"gpu_data": [{"gpu": 0, "ecc": ecc}]}), "")

    host.add_file(TOOL, "")
    host.programs[TOOL] = run
    return host


def found(driver: Driver) -> dict[str, Device]:
    return {device.key: device for device in look(driver).discover()}


def test_whole_gpus_are_units_of_pgpu(tmp_path: Path) -> None:
    devices = found(driver_on(gpus(), tmp_path))
    assert set(devices) == {FIRST, SECOND}
    device = devices[FIRST]
    assert (device.type, device.vendor, device.model) == (
        DeviceType.GPU,
        "1002",
        "Instinct MI300X",
    )
    assert device.std_board_info == {"product_id": "74a1"}
    (unit,) = device.deployables
    assert (unit.name, unit.driver_name) == (f"compute-1_{FIRST}", "amd")
    assert (unit.resource_class, unit.traits) == ("PGPU", ("OWNER_CYBORG", "CUSTOM_AMD_74A1"))
    assert [(handle.key, handle.type) for handle in unit.handles] == [(FIRST, AttachType.PCI)]


def test_virtual_functions_are_units_of_vgpu(tmp_path: Path) -> None:
    units = found(driver_on(divided(), tmp_path))[FIRST].deployables
    assert [(unit.name, unit.resource_class, unit.traits) for unit in units] == [
        (f"compute-1_{vf}", "VGPU", ("OWNER_CYBORG", "CUSTOM_AMD_74A1")) for vf in VFS
    ]


@pytest.mark.proves("amd_gpu_driver", "partition", by="simulated")
def test_the_option_creates_virtual_functions(tmp_path: Path) -> None:
    host = servers.bare()
    add_gpu(host, SECOND, "gim")
    SimulatedKernel(host, [HostDriver("gim", frozenset({"1002:74a1"}), sriov=True)])
    driver = driver_on(host, tmp_path, "[amd_gpu]\nvirtual_functions = 2\n")
    assert found(driver) == {}
    (card,) = driver.layouts(Scan(host))
    assert (card.current, card.desired, card.refusal) == ("vfs=0", "vfs=2", None)
    driver.partition(SECOND, "vfs=2")
    units = found(driver)[SECOND].deployables
    assert [unit.resource_class for unit in units] == ["VGPU", "VGPU"]


def test_without_the_option_no_card_has_a_layout(tmp_path: Path) -> None:
    assert driver_on(gpus(), tmp_path).layouts(Scan(gpus())) == []


@pytest.mark.parametrize(("methods", "names"), [("flr bus\n", ["function reset"]), ("", [])])
def test_a_gpu_is_reset_after_its_guest_if_it_can_be(
    tmp_path: Path, methods: str, names: list[str]
) -> None:
    host = gpus()
    place = host.realpath(f"/sys/bus/pci/devices/{FIRST}")
    host.add_file(f"{place}/reset", "")
    host.add_file(f"{place}/reset_method", methods)
    driver = driver_on(host, tmp_path)
    items = {item.key: item.capability["clean"] for item in look(driver).hardware()}
    assert items == {FIRST: names, SECOND: [], RADEON: []}


def test_without_counters_and_tool_there_is_no_health(tmp_path: Path) -> None:
    driver = driver_on(divided(), tmp_path)
    assert set(found(driver)) == {FIRST, SECOND}
    with pytest.raises(exception.DriverCannot):
        look(driver).health(FIRST)


def test_a_gpu_in_a_guest_is_not_asked(tmp_path: Path) -> None:
    host = servers.bare()
    servers.add_function(host, FIRST, "1002:74a1:120000", driver="vfio-pci")
    driver = driver_on(host, tmp_path)
    for question in (look(driver).health, look(driver).stats):
        with pytest.raises(exception.DriverCannot):
            question(FIRST)
