# SPDX-License-Identifier: Apache-2.0
"""NVMe disks with SR-IOV: a virtual function is offered when its controller is online.

The host is the simulated guest of the kernel tests, whose ``cyborg/tests/kernel/test_nvme.py`` does
the same on a real kernel with QEMU's controller.
"""

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cyborg import exception
from cyborg.drivers import nvme_disk
from cyborg.drivers.base import CardLayouts, Driver
from cyborg.drivers.nvme_disk import InspurNvmeSsdDriver, NvmeDriver
from cyborg.drivers.privileged import disk_actions
from cyborg.drivers.privileged.action import Action
from cyborg.drivers.privileged.actions import Probe, SetDriverOverride, Unbind
from cyborg.drivers.scan import Scan
from cyborg.model.pci import PciAddress
from cyborg.model.work import HandleTask
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.guest import guest
from cyborg.testing.kernel.nvme_tool import NvmeTool
from cyborg.tests.unit.drivers.configured import written
from cyborg.tests.unit.drivers.test_nvme_disk import Contract

DISK, PLAIN = "0000:01:00.0", "0000:02:00.0"
VFS = [f"0000:01:00.{index}" for index in range(1, 5)]
DIVIDED = f"""\
[nvme]
device_spec = [{{"address": "{DISK}"}}, {{"address": "{PLAIN}"}}]
virtual_functions = 2
"""
OFFLINE = (
    "its NVMe controller is offline; set option [nvme] virtual_functions, or take it online with "
    "nvme virt-mgmt"
)


def host_with(*, holds: bool = False) -> FakeHost:
    """Return the guest, with controllers that work."""
    host = guest()
    host.programs["nvme"] = NvmeTool(sanitizes=False, holds=holds)
    for number, address in enumerate((DISK, PLAIN)):
        place = host.realpath(f"/sys/bus/pci/devices/{address}")
        host.add_file(f"{place}/nvme/nvme{number}/state", "live\n")
    return host


def driver_on(host: FakeHost, tmp_path: Path, text: str = DIVIDED) -> NvmeDriver:
    return NvmeDriver(host, written(tmp_path / "cyborg.conf", text))


class TestDivided(Contract):
    """The driver contract on a disk whose virtual functions work, and one that is whole."""

    selects_by_address = True
    #: The controller itself tells which of the others are online.
    commands_in_discover = True

    def make_host(self) -> FakeHost:
        host = host_with()
        driver_on(host, self.tmp_path).partition(DISK, "vfs=2")
        host.writes.clear()
        return host

    def make_driver(self, host: FakeHost) -> Driver:
        return driver_on(host, self.tmp_path)

    def dirty_unit(self, host: FakeHost, task: HandleTask) -> bool:
        with lent_to_nvme(host, task.handle_key):
            return super().dirty_unit(host, task)

    def is_clean(self, host: FakeHost, task: HandleTask) -> bool:
        with lent_to_nvme(host, task.handle_key):
            return super().is_clean(host, task)


@contextlib.contextmanager
def lent_to_nvme(host: FakeHost, address: str) -> Iterator[None]:
    """Bind a virtual function, which has no driver between its guests, so that it shows its disk.

    It is bound as the guest binds it: the host sees the same disk.
    """
    function = PciAddress.parse(address)
    lent = not host.exists(f"/sys/bus/pci/devices/{address}/driver")
    run = host.privileged.run
    if lent:
        run(SetDriverOverride(function, "nvme"))
        run(Probe(function))
    try:
        yield
    finally:
        if lent:
            run(Unbind(function))
            run(SetDriverOverride(function, ""))


def offered(driver: NvmeDriver, **scan: Any) -> dict[str, list[str]]:
    """Return the units of each disk that is offered."""
    return {
        device.key: [unit.handles[0].key for unit in device.deployables]
        for device in driver.discover(Scan(driver.host, **scan))
    }


def reasons(driver: NvmeDriver) -> dict[str, str | None]:
    return {item.key: item.reason for item in driver.hardware(Scan(driver.host)) if item.reason}


def layouts(driver: NvmeDriver) -> CardLayouts:
    [layouts] = driver.layouts(Scan(driver.host))
    return layouts


def virtual_commands(host: FakeHost) -> list[str]:
    return [" ".join(words[3:]) for words in host.commands if words[1] == "virt-mgmt"]


@pytest.mark.parametrize("holds", [False, True])
@pytest.mark.proves("nvme_driver", "partition", by="simulated")
def test_functions_get_controllers_and_are_offered_then(tmp_path: Path, holds: bool) -> None:
    host = host_with(holds=holds)
    driver = driver_on(host, tmp_path)
    # The other disk has no SR-IOV, and keeps what it is.
    assert offered(driver) == {PLAIN: [PLAIN]}
    assert reasons(driver) == {DISK: "it is being divided into 2 virtual functions"}
    assert (layouts(driver).current, layouts(driver).desired) == ("vfs=0", "vfs=2")
    driver.partition(DISK, "vfs=2")
    assert offered(driver) == {PLAIN: [PLAIN], DISK: VFS[:2]}
    assert layouts(driver).current == "vfs=2"
    released = ["-c 0 -a 1 -r 0 -n 0", "-c 0 -a 1 -r 1 -n 0"] if holds else []
    assert virtual_commands(host) == [
        *released,
        *("-c 1 -a 8 -r 0 -n 2", "-c 1 -a 8 -r 1 -n 1", "-c 1 -a 9 -r 0 -n 0"),
        *("-c 2 -a 8 -r 0 -n 2", "-c 2 -a 8 -r 1 -n 1", "-c 2 -a 9 -r 0 -n 0"),
    ]
    driver.partition(DISK, "vfs=2")
    assert len(virtual_commands(host)) == 6 + len(released)


def test_functions_without_a_controller_are_not_offered(tmp_path: Path) -> None:
    """A guest would wait for a controller that never answers."""
    host = host_with()
    host.write_text(f"/sys/bus/pci/devices/{DISK}/sriov_numvfs", "2")
    text = DIVIDED.replace("virtual_functions = 2", "")
    driver = driver_on(host, tmp_path, text)
    assert offered(driver) == {PLAIN: [PLAIN]}
    assert reasons(driver)[VFS[0]] == OFFLINE
    # An operator takes one of them online.
    host.privileged.run(disk_actions.StartVirtualControllers(PciAddress.parse(DISK), "nvme0", 1))
    assert offered(driver) == {PLAIN: [PLAIN], DISK: VFS[:1]}
    assert reasons(driver) == {VFS[1]: OFFLINE}


def test_division_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    """The agent died after the functions were created; the conductor may keep them."""
    host = host_with()
    host.write_text(f"/sys/bus/pci/devices/{DISK}/sriov_numvfs", "2")
    driver = driver_on(host, tmp_path)
    assert offered(driver) == {PLAIN: [PLAIN]}
    found = layouts(driver)
    assert (found.current, found.desired, found.refusal) == ("vfs=2, stopped", "vfs=2", None)
    assert found.deployables == {driver.name_of(PciAddress.parse(DISK))}
    driver.partition(DISK, "vfs=2")
    assert offered(driver)[DISK] == VFS[:2]


def test_unknown_state_is_no_state_for_new_functions_only(tmp_path: Path) -> None:
    """A function that the conductor keeps stays while the privileged process is away."""
    host = host_with()
    driver = driver_on(host, tmp_path)
    driver.partition(DISK, "vfs=2")
    del host.programs["nvme"]
    kept = frozenset({driver.name_of(PciAddress.parse(VFS[0]))})
    assert offered(driver, managed_deployables=kept) == {PLAIN: [PLAIN], DISK: VFS[:1]}
    assert "it is not known whether its NVMe controller is online" in str(reasons(driver)[VFS[1]])
    assert layouts(driver).current == "vfs=2"


@pytest.mark.parametrize("state", ["resetting", None])
def test_disk_whose_controller_does_not_work_is_asked_nothing(
    tmp_path: Path, state: str | None
) -> None:
    host = host_with()
    driver = driver_on(host, tmp_path)
    driver.partition(DISK, "vfs=2")
    place = host.realpath(f"/sys/bus/pci/devices/{DISK}")
    host.commands.clear()
    if state is None:
        host.remove(f"{place}/nvme")
    else:
        host.add_file(f"{place}/nvme/nvme0/state", f"{state}\n")
    text = "it is resetting" if state else "the driver nvme does not have it"
    assert text in str(reasons(driver)[VFS[0]])
    assert host.commands == []


def test_disk_in_use_is_not_divided(tmp_path: Path) -> None:
    host = host_with(holds=True)
    driver = driver_on(host, tmp_path)
    host.write_text(f"/sys/bus/pci/devices/{DISK}/sriov_numvfs", "2")
    host.faults["/dev/nvme0n1"] = errno.EBUSY
    with pytest.raises(exception.DriverFailed):
        driver.partition(DISK, "vfs=2")
    assert virtual_commands(host) == []


def test_more_functions_than_shares_are_refused(tmp_path: Path) -> None:
    """QEMU's disk with four functions has eight queues; with fewer of them one gets none."""
    host = host_with()
    tool: Any = host.programs["nvme"]

    def poor(host: FakeHost, argv: tuple[str, ...]) -> Any:
        result = tool(host, argv)
        return replace(result, stdout=result.stdout.replace('"vqfrt": 8', '"vqfrt": 3'))

    host.programs["nvme"] = poor
    driver = driver_on(host, tmp_path)
    with pytest.raises(
        exception.HostError,
        match="nvme0 has 3 queues for 2 virtual functions, and each needs 2; create fewer",
    ):
        driver.partition(DISK, "vfs=2")
    assert offered(driver) == {PLAIN: [PLAIN]}


def test_existing_driver_divides_its_disks_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of the guest has the vendor of QEMU."""
    host = host_with()
    monkeypatch.setattr(nvme_disk, "_INSPUR", 0x1B36)
    driver = InspurNvmeSsdDriver(
        host, written(tmp_path / "cyborg.conf", "[nvme]\nvirtual_functions = 1\n")
    )
    driver.partition(DISK, "vfs=1")
    device = {device.key: device for device in driver.discover(Scan(host))}[DISK]
    assert [unit.resource_class for unit in device.deployables] == ["CUSTOM_SSD"]
    assert [unit.handles[0].key for unit in device.deployables] == VFS[:1]


def test_actions_have_the_numbers_of_the_specification() -> None:
    action: Action[Any] = disk_actions.ReadVirtualControllers(PciAddress.parse(DISK), "nvme0")
    assert action.answer([[1, 1, True], [2, 2, False]]) == ((1, 1, True), (2, 2, False))
