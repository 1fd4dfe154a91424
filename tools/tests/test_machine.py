# SPDX-License-Identifier: Apache-2.0
"""Tests of what quickstart shows of a host, and of which accelerator the walk asks for."""

import io

import pytest

from cyborg import exception
from cyborg.drivers.base import Driver
from cyborg.drivers.fake import FakeDriver
from cyborg.drivers.loader import LoadResult
from cyborg.drivers.pci import PciDriver
from cyborg.drivers.scan import Scan
from cyborg.model.device import Device, Hardware
from cyborg.testing.driver_checks import look
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.unit.drivers.configured import configured
from cyborg_tools.quickstart import machine
from cyborg_tools.quickstart.machine import Findings
from cyborg_tools.quickstart.screen import Screen

CARD = Hardware("0000:0c:00.0", "accelerator", "Vendor", "Model X", offered=True)
DISK = Hardware("0000:02:00.0", "storage", "Maker", "0123", offered=False, reason="it is mounted")


class OnePciCard(Driver):
    """What a whitelisted function looks like from outside."""

    name = "pci_driver"

    def discover(self, scan: Scan) -> list[Device]:
        return look(FakeDriver(self.host, configured(host="card"))).discover()

    def hardware(self, scan: Scan) -> list[Hardware]:
        return [DISK, CARD]


class OneDisk(OnePciCard):
    """A host with nothing to offer."""

    def discover(self, scan: Scan) -> list[Device]:
        return []

    def hardware(self, scan: Scan) -> list[Hardware]:
        return [DISK]


class UnreadableBus(OnePciCard):
    """A bus that nobody may look at."""

    def discover(self, scan: Scan) -> list[Device]:
        raise exception.HostError(action="reading /sys", reason="Permission denied")


def findings(driver: type[Driver], *unmatched: str) -> Findings:
    host = FakeHost()
    drivers = [driver(host, configured()), FakeDriver(host, configured(host="fake"))]
    return machine.look([LoadResult(one.name, one) for one in drivers], host, unmatched)


@pytest.mark.parametrize(
    ("driver", "chosen"),
    [
        (OnePciCard, ("card_FakeDevice", True)),
        (PciDriver, ("fake_FakeDevice", False)),
        (UnreadableBus, ("fake_FakeDevice", False)),
    ],
    ids=["offered", "no-bus", "unreadable"],
)
def test_offered_function_is_preferred_to_fake_device(
    driver: type[Driver], chosen: tuple[str, bool]
) -> None:
    result = findings(driver)
    assert (result.deployable.name, result.own) == chosen


@pytest.mark.parametrize(
    ("driver", "notes"),
    [
        (PciDriver, ["This host shows no PCI bus; the fake accelerator needs none."]),
        (UnreadableBus, ["Permission denied"]),
        (OneDisk, ["--whitelist", "pci.ids"]),
        (OnePciCard, []),
    ],
)
def test_notes_say_what_the_table_does_not(driver: type[Driver], notes: list[str]) -> None:
    hints = machine.notes(findings(driver))
    assert [note in hint for note, hint in zip(notes, hints, strict=True)] == [True] * len(notes)


def test_entry_of_whitelist_without_function_is_named() -> None:
    assert "matches no PCI function here" in machine.notes(findings(OnePciCard, "{}"))[0]


@pytest.mark.parametrize("brief", [False, True])
def test_every_device_and_the_choice_are_shown(brief: bool) -> None:
    out = io.StringIO()
    machine.show(Screen(out, brief=brief), findings(OnePciCard))
    text = " ".join(out.getvalue().split())
    assert "The walk asks for the first function that is offered, card_FakeDevice." in text
    if brief:
        assert "2 PCI function(s), 1 of them offered, and 1 fake accelerator" in text
    else:
        assert "no: it is mounted" in text
        assert "yes, by fake_driver" in text
