# SPDX-License-Identifier: Apache-2.0
"""Cleaning of several disks and of disks with several namespaces, on a simulated kernel."""

import pytest

from cyborg import exception
from cyborg.drivers.base import no_progress
from cyborg.drivers.command import Completed
from cyborg.drivers.pci import PciDriver
from cyborg.model.work import HandleTask
from cyborg.testing.driver_checks import look
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.guest import guest
from cyborg.testing.kernel.nvme_tool import NvmeTool
from cyborg.tests.unit.drivers.configured import configured

DISK, OTHER = "0000:02:00.0", "0000:41:00.0"
FIRST, SECOND, THIRD = "/dev/nvme1n1", "/dev/nvme1n2", "/dev/nvme2n1"
CANARY = b"data of the first tenant"
#: Blocks are sampled at the begin of the disk, and after this many bytes.
LATER = 16_384
SIZE = LATER + 4096


class Tool(NvmeTool):
    """Formats disks; those in ``forgotten`` keep their data, and ``meanwhile`` is called."""

    def __init__(self) -> None:
        super().__init__(sanitizes=False)
        self.forgotten: set[str] = set()
        self.formatted: list[str] = []

    def meanwhile(self, device: str) -> None:
        """Do nothing."""

    def __call__(self, host: FakeHost, argv: tuple[str, ...]) -> Completed:
        if argv[1] != "format":
            return super().__call__(host, argv)
        device = argv[2]
        self.formatted.append(device)
        self.meanwhile(device)
        content = host.content(device)
        answer = super().__call__(host, argv)
        if device in self.forgotten:
            host.add_file(device, content or b"")
        return answer


@pytest.fixture
def tool() -> Tool:
    return Tool()


@pytest.fixture
def host(tool: Tool) -> FakeHost:
    """Return a machine with two disks, the first of which has two namespaces."""
    machine = guest()
    machine.programs["nvme"] = tool
    controller = machine.realpath("/sys/class/block/nvme1n1").rpartition("/")[0]
    for name, text in {"dev": "259:9", "nsid": "2", "size": "2048"}.items():
        machine.add_file(f"{controller}/nvme1n2/{name}", f"{text}\n")
    machine.add_link("/sys/class/block/nvme1n2", f"../..{controller[4:]}/nvme1n2")
    for node in (FIRST, SECOND, THIRD):
        machine.add_file(node, CANARY.ljust(SIZE, b"\0"))
    return machine


@pytest.fixture
def driver(host: FakeHost) -> PciDriver:
    return PciDriver(host, configured('{"vendor_id": "*"}'))


def erase(driver: PciDriver, address: str = DISK) -> None:
    """Run the erasure of a disk alone."""
    name = f"compute-1_{address}"
    task = HandleTask("r", driver.name, address, name, address, "uuid")
    (work,) = (step.work for step in driver.clean_steps(task) if step.name == "NVMe erase")
    assert callable(work)
    work(no_progress)


def test_every_namespace_of_a_disk_is_erased(host: FakeHost, driver: PciDriver, tool: Tool) -> None:
    erase(driver)
    assert tool.formatted == [FIRST, SECOND]
    assert [CANARY in (host.content(node) or b"") for node in (FIRST, SECOND, THIRD)] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(("node", "number"), [(FIRST, 1), (SECOND, 2)])
@pytest.mark.parametrize("offset", [0, LATER])
def test_data_that_survives_in_any_namespace_is_found(
    host: FakeHost, driver: PciDriver, tool: Tool, node: str, number: int, offset: int
) -> None:
    host.add_file(node, CANARY.rjust(offset + len(CANARY), b"\0").ljust(SIZE, b"\0"))
    tool.forgotten = {node}
    with pytest.raises(exception.DriverFailed, match=f"namespace {number} still has data"):
        erase(driver)


def test_disk_that_is_erased_stays_offered_when_another_erasure_ends(
    host: FakeHost, driver: PciDriver, tool: Tool
) -> None:
    offered: list[set[str]] = []

    def meanwhile(device: str) -> None:
        host.claimed.add(device)
        if device == FIRST:
            erase(driver, OTHER)
        offered.append({one.key for one in look(driver).discover()} & {DISK, OTHER})
        host.claimed.discard(device)

    tool.meanwhile = meanwhile  # type: ignore[method-assign]
    erase(driver)
    assert tool.formatted == [FIRST, THIRD, SECOND]
    assert offered == [{DISK, OTHER}] * 3
    host.claimed.update((FIRST, THIRD))
    assert not {one.key for one in look(driver).discover()} & {DISK, OTHER}


def test_bus_with_the_same_number_in_another_domain_is_another_bus(
    host: FakeHost, driver: PciDriver
) -> None:
    """The reset of a bus is safe for a function that is alone on it."""
    card, neighbour = "0000:44:00.0", "0001:44:00.1"
    (before,) = (one for one in look(driver).discover() if one.key == card)
    path = f"/sys/devices/pci0001:44/{neighbour}"
    for name, text in {"vendor": "0x1234", "device": "0x11e8", "class": "0x00ff00"}.items():
        host.add_file(f"{path}/{name}", f"{text}\n")
    host.add_link(f"/sys/bus/pci/devices/{neighbour}", path)
    (after,) = (one for one in look(driver).discover() if one.key == card)
    assert [one.deployables[0].clean for one in (before, after)] == ["default"] * 2
