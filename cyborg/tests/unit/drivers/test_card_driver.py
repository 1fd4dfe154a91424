# SPDX-License-Identifier: Apache-2.0
"""The base class of drivers for cards, by a driver of QuickAssist cards with nothing of its own."""

import socket
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import pytest

from cyborg import exception
from cyborg.drivers.base import Driver, ResetLevel
from cyborg.drivers.card_driver import CardDriver, PhysicalCardDriver, address_of, info_of
from cyborg.drivers.host import Host
from cyborg.drivers.pci import PciDriver
from cyborg.drivers.pci_function import PciFunction
from cyborg.drivers.pci_survey import Card
from cyborg.drivers.scan import Scan
from cyborg.model.device import Device, DeviceType
from cyborg.model.work import HandleTask
from cyborg.testing import servers, situations
from cyborg.testing.driver_checks import look
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.unit.drivers.configured import configured

PF, VFS = servers.QAT_PF, servers.QAT_VFS


class Cards(PhysicalCardDriver):
    """Offers the virtual functions of each card."""

    name = "cards"
    group = "pci"
    type = DeviceType.QAT

    def selects(self, function: PciFunction) -> bool:
        return (function.vendor, function.product) == (0x8086, 0x37C8)

    def device(self, scan: Scan, card: Card) -> Device:
        function, names = card.function, self.names(scan)
        return Device(
            key=card.key,
            type=self.type,
            vendor=f"{function.vendor:04x}",
            model=self.model(function, names),
            control_path=info_of(function.address),
            deployables=tuple(
                self.deployable(guest, resource_class="CUSTOM_QAT", driver_name="intel")
                for guest in card.guests
            ),
        )


class NamedAfterMachine(Cards):
    named_after_machine = True


class WholeCards(Cards):
    def selects(self, function: PciFunction) -> bool:
        return str(function.address) == servers.FPGA


class Counting(Cards):
    """Offers functions of one kind; ``lists`` counts how often all cards are listed."""

    lists = 0

    def selects(self, function: PciFunction) -> bool:
        return function.product == 0x20B5

    def cards(self, scan: Scan) -> Collection[Card]:
        self.lists += 1
        return super().cards(scan)


class Refusing(Cards):
    """Offers the first virtual function only."""

    def refusal(self, scan: Scan, function: PciFunction) -> str | None:
        return None if str(function.address) == VFS[0] else "it is not the first"


class Together(Cards):
    """Guests get all virtual functions of a card, which are one unit in the eyes of Placement."""

    together: ClassVar[bool] = True

    def unit_name(self, guests: Sequence[PciFunction]) -> str:
        return self.name_of(guests[0].address)


def driver_on(host: Host, kind: type[PhysicalCardDriver] = Cards) -> PhysicalCardDriver:
    return kind(host, configured())


class TestContract(DriverContract):
    """The driver contract; the driver itself has no reset, health or statistics."""

    def make_host(self) -> FakeHost:
        return servers.server()

    def make_driver(self, host: FakeHost) -> Driver:
        return driver_on(host)


def test_virtual_functions_of_a_card_are_the_units_of_one_device() -> None:
    (device,) = look(driver_on(servers.server())).discover()
    assert device.key == PF
    assert [deployable.name for deployable in device.deployables] == [
        f"compute-1_{vf}" for vf in VFS
    ]
    (handle,) = device.deployables[0].handles
    assert (handle.key, handle.info) == (VFS[0], info_of(address_of(VFS[0])))
    assert list(handle.info) == ["bus", "device", "domain", "function"]


def test_a_card_without_virtual_functions_is_one_unit() -> None:
    (device,) = look(driver_on(servers.server(), WholeCards)).discover()
    assert [deployable.name for deployable in device.deployables] == [f"compute-1_{servers.FPGA}"]


def host_with(count: int) -> FakeHost:
    """Return a host with so many functions that can be reset."""
    host = servers.bare()
    for number in range(count):
        place = servers.add_function(host, f"0000:c{number}:00.0", "10de:20b5:030200")
        host.add_file(f"{place}/reset_method", "flr\n")
    return host


def test_a_scan_lists_the_cards_as_often_for_many_devices_as_for_one() -> None:
    """Otherwise the time of a scan grows with the square of their number."""
    lists = []
    for count in (1, 9):
        host = host_with(count)
        driver, scan = Counting(host, configured()), Scan(host)
        assert len(driver.discover(scan)) == len(driver.hardware(scan)) == count
        lists.append(driver.lists)
    assert lists[0] == lists[1]


@pytest.mark.parametrize("kind", [Counting, PciDriver])
def test_a_scan_reads_once_how_a_function_is_reset(kind: type[CardDriver[Any]]) -> None:
    host = host_with(3)
    driver, scan = kind(host, configured('{"vendor_id": "10de"}')), Scan(host)
    reads: Counter[str] = Counter()
    host.on_call = lambda path: reads.update([path] if path.endswith("/reset_method") else [])
    assert len(driver.discover(scan)) == len(driver.hardware(scan)) == 3
    assert sorted(reads.values()) == [1, 1, 1]


def test_names_can_be_those_of_the_machine() -> None:
    (device,) = look(driver_on(servers.server(), NamedAfterMachine)).discover()
    assert device.deployables[0].name == f"{socket.gethostname()}_{VFS[0]}"


def test_a_part_that_is_refused_is_listed_with_its_reason() -> None:
    driver = driver_on(servers.server(), Refusing)
    (device,) = look(driver).discover()
    assert [deployable.name for deployable in device.deployables] == [f"compute-1_{VFS[0]}"]
    items = {item.key: (item.offered, item.reason, item.num) for item in look(driver).hardware()}
    assert items == {PF: (True, None, 1), VFS[1]: (False, "it is not the first", 1)}


def test_functions_that_belong_together_are_offered_all_or_not_at_all() -> None:
    host = servers.server()
    assert len(look(driver_on(host, Together)).discover()) == 1
    situations.hold(host, VFS[1])
    driver = driver_on(host, Together)
    assert look(driver).discover() == []
    reasons = {entry.key: entry.reason for entry in look(driver).hardware()}
    assert str(reasons[VFS[0]]).startswith(f"guests get it together with {VFS[1]}: ")
    # The guest of this service has it.
    managed = Scan(host, managed_deployables={f"compute-1_{VFS[0]}"})
    assert [device.key for device in driver.discover(managed)] == [PF]


def test_a_card_of_which_nothing_is_offered_says_why() -> None:
    host = servers.server()
    scan = Scan(host, claims={PF: "Nova has claimed it"})
    driver = driver_on(host)
    assert driver.discover(scan) == []
    items = {item.key: item.reason for item in driver.hardware(scan)}
    assert items == {
        PF: "none of its 2 virtual functions can be offered",
        **dict.fromkeys(VFS, "Nova has claimed it"),
    }


@pytest.mark.parametrize(
    ("level", "method"), [(ResetLevel.FUNCTION, []), (ResetLevel.CARD, ["bus"])]
)
def test_the_kernel_resets_the_card(level: ResetLevel, method: list[str]) -> None:
    host = servers.server()
    place = host.realpath(f"/sys/bus/pci/devices/{PF}")
    host.add_file(f"{place}/reset", "")
    host.add_file(f"{place}/reset_method", "flr bus\n")
    driver_on(host).reset(PF, level)
    chosen = [(f"{place}/reset_method", text) for text in method]
    kept = [(f"{place}/reset_method", "flr bus\n") for _ in method]
    assert host.writes == [*chosen, (f"{place}/reset", "1"), *kept]


@pytest.mark.parametrize("kind", [servers.GPU, servers.NVME_FREE])
def test_another_kind_of_card_in_the_slot_is_not_cleaned(kind: str) -> None:
    driver = driver_on(servers.server())
    task = HandleTask("operation", driver.name, kind, driver.name_of(address_of(kind)), kind, "")
    with pytest.raises(exception.DriverFailed, match="the card there is not one of the cards"):
        driver.clean_steps(task)


def test_a_card_that_is_gone_is_not_reset() -> None:
    with pytest.raises(exception.DriverFailed, match=r"0000:ff:00\.0 is not on the bus"):
        driver_on(servers.server()).reset("0000:ff:00.0", ResetLevel.FUNCTION)


def test_a_key_that_is_no_address_is_refused() -> None:
    with pytest.raises(ValueError, match="'card' is not a PCI address"):
        address_of("card")
