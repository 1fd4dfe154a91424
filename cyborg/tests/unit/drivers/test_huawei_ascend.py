# SPDX-License-Identifier: Apache-2.0
"""The huawei_ascend_driver on simulated hosts with Ascend processors.

What npu-smi prints, and what that says, is in ``readings.d``.
"""

from pathlib import Path

import pytest

from cyborg import exception
from cyborg.drivers.base import Driver
from cyborg.drivers.command import Completed
from cyborg.drivers.huawei_ascend import HuaweiAscendDriver
from cyborg.drivers.scan import Scan
from cyborg.model.device import AttachType, Device, DeviceType
from cyborg.testing import servers
from cyborg.testing.driver_checks import look
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.host_driver import HostDriver
from cyborg.testing.kernel.simulated import SimulatedKernel
from cyborg.tests.unit.drivers.configured import written

FIRST, SECOND = "0000:c1:00.0", "0000:3d:00.0"
VFS = ("0000:c1:00.1", "0000:c1:00.2")
TOOL = "/usr/local/bin/npu-smi"
#: An NPU with HBM, in the order of two columns that name its two lines.
TABLE = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc2                 Version: 24.1.rc2                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | {0:13} | 99.1        37                0    / 0             |
| 0                         | 0000:C1:00.0  | 25          0    / 0          59784/ 65536         |
+===========================+===============+====================================================+
| 7     910B3               | {1:13} | 88.1        34                0    / 0             |
| 0                         | 0000:3D:00.0  | 0           0    / 0          3394 / 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       0                 | 6277          | python3                  | 56448                   |
+===========================+===============+====================================================+
"""


def npus() -> FakeHost:
    host = servers.bare()
    for address in (FIRST, SECOND):
        place = servers.add_function(host, address, "19e5:d802:120000", driver="devdrv_device")
        host.add_file(f"{place}/sriov_totalvfs", "12\n")
        host.add_file(f"{place}/sriov_numvfs", "0\n")
    return answering(host)


def answering(host: FakeHost, words: tuple[str, str] = ("OK", "OK")) -> FakeHost:
    """Let npu-smi tell these words about the two NPUs."""

    def run(_: FakeHost, argv: tuple[str, ...]) -> Completed:
        if argv[1:] == ("info",):
            return Completed(0, TABLE.format(*words), "")
        return Completed(1, "", "not supported")

    host.add_file(TOOL, "")
    host.programs[TOOL] = run
    return host


def driver_on(host: FakeHost, tmp_path: Path, text: str = "") -> HuaweiAscendDriver:
    return HuaweiAscendDriver(host, written(tmp_path / "cyborg.conf", text))


@pytest.mark.proves("huawei_ascend_driver", "discover", "health", by="simulated")
class TestContract(DriverContract):
    """The driver contract; an alarm is the fault."""

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path

    def make_host(self) -> FakeHost:
        return npus()

    def make_driver(self, host: FakeHost) -> Driver:
        return driver_on(host, self.tmp_path)

    def break_device(self, host: FakeHost, key: str) -> None:
        answering(host, ("Alarm", "OK") if key == FIRST else ("OK", "Alarm"))

    def mend_device(self, host: FakeHost, key: str) -> None:
        answering(host)


def found(driver: Driver) -> dict[str, Device]:
    return {device.key: device for device in look(driver).discover()}


def test_whole_processors_are_units_of_custom_npu(tmp_path: Path) -> None:
    devices = found(driver_on(npus(), tmp_path))
    assert set(devices) == {FIRST, SECOND}
    device = devices[FIRST]
    assert (device.type, device.vendor, device.model) == (
        DeviceType.AICHIP,
        "19e5",
        "Ascend 910B",
    )
    assert device.std_board_info == {"device_id": "d802", "class": "1200"}
    (unit,) = device.deployables
    assert (unit.name, unit.driver_name) == (f"compute-1_{FIRST}", "huawei")
    assert (unit.resource_class, unit.traits) == (
        "CUSTOM_NPU",
        ("OWNER_CYBORG", "CUSTOM_HUAWEI_D802"),
    )
    assert [(handle.key, handle.type) for handle in unit.handles] == [(FIRST, AttachType.PCI)]


def test_virtual_functions_are_units_of_another_class(tmp_path: Path) -> None:
    host = npus()
    servers.add_vfs(host, FIRST, VFS, "19e5:d80a:120000")
    units = found(driver_on(host, tmp_path))[FIRST].deployables
    assert [(unit.name, unit.resource_class) for unit in units] == [
        (f"compute-1_{vf}", "CUSTOM_VNPU") for vf in VFS
    ]


@pytest.mark.proves("huawei_ascend_driver", "partition", by="simulated")
def test_the_option_creates_virtual_functions(tmp_path: Path) -> None:
    host = npus()
    SimulatedKernel(host, [HostDriver("devdrv_device", frozenset({"19e5:d802"}), sriov=True)])
    driver = driver_on(host, tmp_path, "[huawei_ascend]\nvirtual_functions = 2\n")
    card = {card.card: card for card in driver.layouts(Scan(host))}[FIRST]
    assert (card.current, card.desired, card.refusal) == ("vfs=0", "vfs=2", None)
    driver.partition(FIRST, "vfs=2")
    units = found(driver)[FIRST].deployables
    assert [unit.resource_class for unit in units] == ["CUSTOM_VNPU", "CUSTOM_VNPU"]


def test_without_the_tool_there_is_no_health(tmp_path: Path) -> None:
    host = npus()
    host.remove(TOOL)
    driver = driver_on(host, tmp_path)
    assert set(found(driver)) == {FIRST, SECOND}
    for question in (look(driver).health, look(driver).stats):
        with pytest.raises(exception.DriverCannot):
            question(FIRST)


def test_a_processor_in_a_guest_is_not_asked(tmp_path: Path) -> None:
    host = servers.bare()
    servers.add_function(host, FIRST, "19e5:d802:120000", driver="vfio-pci")
    answering(host)
    driver = driver_on(host, tmp_path)
    for question in (look(driver).health, look(driver).stats):
        with pytest.raises(exception.DriverCannot):
            question(FIRST)
    assert host.commands == []
