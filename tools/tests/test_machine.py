# SPDX-License-Identifier: Apache-2.0
"""Tests of the table of what a machine has, and of which accelerator the walk asks for."""

import pytest

from cyborg import exception
from cyborg.drivers.base import Driver
from cyborg.drivers.fake import FakeDriver
from cyborg.drivers.pci import PciDriver
from cyborg.drivers.scan import Scan
from cyborg.model.device import Device, Hardware
from cyborg.testing.driver_checks import look
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.unit.drivers.configured import configured
from cyborg_tools.quickstart import machine
from cyborg_tools.quickstart.machine import Findings

CARD = Hardware("0000:81:00.0", "accelerator", "Vendor", "Model X", offered=True)
DISK = Hardware("0000:02:00.0", "storage", "Maker", "0123", offered=False, reason="it is mounted")


def findings(*functions: Hardware, fault: str | None = None) -> Findings:
    fake = FakeDriver(FakeHost(), configured())
    found = machine.look(PciDriver(FakeHost(), configured()), fake)
    return Findings(functions, found.fakes, found.deployable, own=False, fault=fault)


class OnePciCard(Driver):
    """What a whitelisted function looks like from outside."""

    name = "pci_driver"

    def discover(self, scan: Scan) -> list[Device]:
        return look(FakeDriver(self.host, configured(host="card"))).discover()

    def hardware(self, scan: Scan) -> list[Hardware]:
        return [DISK, CARD]


class UnreadableBus(OnePciCard):
    """A bus that nobody may look at."""

    def hardware(self, scan: Scan) -> list[Hardware]:
        raise exception.HostError(action="reading /sys", reason="Permission denied")


@pytest.mark.parametrize(
    ("driver", "chosen", "fault"),
    [
        (OnePciCard, ("card_FakeDevice", True), None),
        (PciDriver, ("fake_FakeDevice", False), None),
        (UnreadableBus, ("fake_FakeDevice", False), "Permission denied"),
    ],
    ids=["offered", "no-bus", "unreadable"],
)
def test_offered_function_is_preferred_to_fake_device(
    driver: type[Driver], chosen: tuple[str, bool], fault: str | None
) -> None:
    fake = FakeDriver(FakeHost(), configured(host="fake"))
    found = machine.look(driver(FakeHost(), configured()), fake)
    assert (found.deployable.name, found.own) == chosen
    assert (found.fault or "").endswith(f"{fault or ''}")


@pytest.mark.parametrize(
    ("functions", "fault", "notes"),
    [
        ((), None, ["This machine shows no PCI bus; the fake accelerator needs none."]),
        ((), "reading /sys failed", ["The PCI bus could not be read: reading /sys failed"]),
        ((DISK,), None, ["--whitelist", "pci.ids"]),
        ((DISK, CARD), None, []),
    ],
)
def test_notes_say_what_the_table_does_not(
    functions: tuple[Hardware, ...], fault: str | None, notes: list[str]
) -> None:
    said = machine.notes(findings(*functions, fault=fault))
    assert [note in one for note, one in zip(notes, said, strict=True)] == [True] * len(notes)


def test_table_shows_every_function_with_its_reason() -> None:
    lines = list(machine.table(findings(DISK, CARD), 100))
    assert lines[0].split() == ["Address", "Kind", "Vendor", "Model", "Offered"]
    assert "no: it is mounted" in lines[2]
    assert lines[2].startswith("0000:02:00.0")
    assert lines[3].split() == ["0000:81:00.0", "accelerator", "Vendor", "Model", "X", "yes"]
    assert lines[4].startswith("fake")
    assert "0xABCD" in lines[4]


def test_long_words_are_wrapped_not_cut() -> None:
    long = Hardware(
        "0000:01:00.0", "network", "V" * 60, "word " * 30, offered=False, reason="no " * 40
    )
    lines = list(machine.table(findings(long), 80))
    assert max(map(len, lines)) <= 80
    text = " ".join(lines)
    assert (text.count("V") - 1, text.count("word")) == (60, 30)
