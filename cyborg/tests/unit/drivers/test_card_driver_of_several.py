# SPDX-License-Identifier: Apache-2.0
"""Several cards of one driver, and several functions of one card."""

from collections.abc import Sequence

import pytest

from cyborg.drivers.card_driver import PhysicalCardDriver, info_of
from cyborg.drivers.pci_function import PciFunction
from cyborg.drivers.pci_survey import Card
from cyborg.drivers.scan import Scan
from cyborg.model.device import AttachHandle, AttachType, Deployable, Device, DeviceType
from cyborg.model.work import HandleTask
from cyborg.testing import servers, situations
from cyborg.testing.driver_checks import look
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.unit.drivers.configured import configured

FIRST, SECOND = "0000:18:00.0", "0000:19:00.0"
VFS = {card: tuple(f"{card[:-4]}01.{number}" for number in range(3)) for card in (FIRST, SECOND)}


class Cards(PhysicalCardDriver):
    """Offers the virtual functions of each card, each as a deployable."""

    name = "cards"
    group = "pci"
    type = DeviceType.QAT

    def selects(self, function: PciFunction) -> bool:
        return (function.vendor, function.product) == (0x8086, 0x37C8)

    def device(self, scan: Scan, card: Card) -> Device:
        deployables = tuple(
            self.deployable(guest, resource_class="CUSTOM_QAT", driver_name="intel")
            for guest in card.guests
        )
        return Device(
            card.key, self.type, "8086", "QAT", info_of(card.function.address), deployables
        )


class Together(Cards):
    """Offers all virtual functions of a card in one deployable."""

    together = True

    def unit_name(self, guests: Sequence[PciFunction]) -> str:
        return self.name_of(guests[0].address)

    def device(self, scan: Scan, card: Card) -> Device:
        handles = tuple(
            AttachHandle(str(guest.address), AttachType.PCI, info_of(guest.address))
            for guest in card.guests
        )
        unit = Deployable(str(card.unit), "QAT", "intel", handles)
        return Device(card.key, self.type, "8086", "QAT", info_of(card.function.address), (unit,))


@pytest.fixture
def host() -> FakeHost:
    """Two cards with three virtual functions each."""
    host = servers.bare()
    for card, vfs in VFS.items():
        servers.add_function(host, card, "8086:37c8:0b4000", driver="c6xx")
        servers.add_vfs(host, card, vfs, "8086:37c9:0b4000")
    return host


def resettable(host: FakeHost, *addresses: str) -> None:
    for address in addresses:
        host.add_file(f"{servers.place(address)}/reset_method", "flr\n")


def reasons(driver: PhysicalCardDriver, scan: Scan | None = None) -> dict[str, str | None]:
    """Return the reasons of the hardware that is not offered, by address."""
    items = driver.hardware(scan or Scan(driver.host))
    return {item.key: item.reason for item in items if not item.offered}


def test_each_card_has_its_own_virtual_functions(host: FakeHost) -> None:
    devices = look(Cards(host, configured())).discover()
    assert {
        device.key: tuple(deployable.name for deployable in device.deployables)
        for device in devices
    } == {card: tuple(f"compute-1_{vf}" for vf in vfs) for card, vfs in VFS.items()}


def test_part_that_the_conductor_does_not_keep_is_refused_although_another_is_kept(
    host: FakeHost,
) -> None:
    """Somebody else has it; the other one is in a guest of this service."""
    for number in (0, 1):
        situations.hold(host, VFS[FIRST][number])
    driver = Cards(host, configured())
    scan = Scan(host, managed_deployables={f"compute-1_{VFS[FIRST][0]}"})
    assert [deployable.name for deployable in driver.discover(scan)[0].deployables] == [
        f"compute-1_{VFS[FIRST][number]}" for number in (0, 2)
    ]
    assert list(reasons(driver, scan)) == [VFS[FIRST][1]]


def test_each_function_that_goes_with_a_refused_one_has_the_reason(host: FakeHost) -> None:
    situations.hold(host, VFS[FIRST][1])
    driver = Together(host, configured())
    assert [device.key for device in look(driver).discover()] == [SECOND]
    refused = reasons(driver)
    assert refused.keys() == {FIRST, *VFS[FIRST]}
    for number in (0, 2):
        text = f"guests get it together with {VFS[FIRST][1]}: held through VFIO"
        assert str(refused[VFS[FIRST][number]]).startswith(text)


def test_unit_is_cleaned_only_if_all_of_its_functions_can_be(host: FakeHost) -> None:
    resettable(host, *VFS[FIRST], *VFS[SECOND][:2])
    devices = look(Together(host, configured())).discover()
    words = {device.key: device.deployables[0].clean for device in devices}
    assert words == {FIRST: "default", SECOND: None}


def test_list_shows_the_steps_that_all_functions_of_a_card_have(host: FakeHost) -> None:
    resettable(host, *VFS[FIRST], *VFS[SECOND][:2])
    items = look(Cards(host, configured())).hardware()
    cleaning = {item.key: item.capability["clean"] for item in items}
    assert cleaning == {FIRST: ["function reset"], SECOND: []}
    # Each unit by itself can be cleaned, or not.
    (_, second) = look(Cards(host, configured())).discover()
    assert [unit.clean for unit in second.deployables] == ["default", "default", None]


def test_every_function_of_a_card_can_be_cleaned_offered_or_not(host: FakeHost) -> None:
    """One that is refused now may be the unit of a guest that has just gone."""
    driver = Cards(host, configured())
    for card in (FIRST, SECOND):
        resettable(host, card, *VFS[card])
    host.add_file(f"{servers.place(VFS[FIRST][1])}/sriov_numvfs", "1\n")
    assert list(reasons(driver)) == [VFS[FIRST][1]]
    for address in (*VFS[FIRST], *VFS[SECOND]):
        name = f"compute-1_{address}"
        task = HandleTask("r", "cards", FIRST, name, address, "uuid")
        assert [step.name for step in driver.clean_steps(task)] == ["function reset"]
