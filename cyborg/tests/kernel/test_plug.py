# SPDX-License-Identifier: Apache-2.0
"""Functions that come and go, and the uevents with which the kernel tells it."""

import queue
from contextlib import ExitStack

import pytest

from cyborg.agent.device_events import DeviceEvents
from cyborg.drivers.host import LocalHost
from cyborg.drivers.scan import Scan
from cyborg.drivers.topology import FactCache
from cyborg.model.device import Device, DeviceType
from cyborg.model.pci import PciAddress
from cyborg.tests.kernel.functions import CARD, E1000E, PATIENCE, Functions
from cyborg.tests.kernel.monitor import Monitor
from cyborg.tests.kernel.uevents import Recorder


def test_removed_function_is_back_after_a_rescan_with_its_driver(
    functions: Functions, host: LocalHost, uevents: Recorder
) -> None:
    """uevents.KernelEvents yields these; a scan that follows ``add`` may come before ``bind``."""
    [card] = functions.matching(E1000E)
    functions.remove(card)
    uevents.wait("unbind", card)
    assert uevents.wait("remove", card).fields["PCI_SLOT_NAME"] == card
    assert not host.exists(functions.path(card))
    functions.rescan()
    event = uevents.wait("add", card)
    assert event.fields["PCI_ID"] == "8086:10D3"
    uevents.wait("bind", card)
    assert functions.link(card, "driver") == "e1000e"


def test_function_that_comes_back_has_another_inode_number(
    functions: Functions, host: LocalHost
) -> None:
    """So facts that scans keep never belong to another function; nobody listens to uevents."""
    [card] = functions.matching(E1000E)
    driver = functions.link(card, "driver")
    numbers = [host.inode(functions.path(card))]
    functions.bind(card, None)
    functions.bind(card, driver)
    assert host.inode(functions.path(card)) == numbers[0]
    for _ in range(20):
        functions.remove(card)
        functions.rescan()
        numbers.append(host.inode(functions.path(card)))
    assert len(set(numbers)) == len(numbers)
    assert numbers == sorted(numbers)


def test_card_that_replaces_another_is_described_by_its_own_facts(
    functions: Functions, host: LocalHost, monitor: Monitor
) -> None:
    """The Device Serial Number of an e1000e is that of its MAC address."""
    before = set(functions.matching(E1000E))
    cache = FactCache()

    def describe(name: str, mac: str) -> tuple[str, str]:
        with Recorder() as uevents:
            monitor.plug(name, driver="e1000e", bus="empty", romfile="", mac=mac)
            uevents.new_function(E1000E)
            [card] = set(functions.matching(E1000E)) - before
            scan = Scan(host, cache=cache)
            device = Device(card, DeviceType.NIC, "v", "m", {}, ())
            device = scan.with_facts(device, scan.functions[PciAddress.parse(card)])
            monitor.pull(name)
            uevents.wait("remove", card)
        return card, next(item.value for item in device.identity if item.kind == "dsn")

    first, serial = describe("first", "52:54:00:00:00:01")
    second, other = describe("second", "52:54:00:00:00:02")
    assert first == second
    assert (serial[-2:], other[-2:]) == ("01", "02")


def test_open_file_of_a_removed_function_reports_no_device(functions: Functions) -> None:
    """files.is_missing counts this as absent: a card can vanish between open and read."""
    [card] = functions.matching(E1000E)
    with open(functions.path(card, "vendor"), encoding="ascii") as file:
        functions.remove(card)
        with pytest.raises(OSError, match="No such device"):
            file.read()


def test_vfs_appear_with_uevents(functions: Functions, uevents: Recorder) -> None:
    """A driver that creates VFs can wait for them instead of polling sysfs."""
    vfs = functions.create_vfs(functions.nvme("SRIOV0001"), 2)
    assert [uevents.wait("add", vf).fields["PCI_SLOT_NAME"] for vf in vfs] == vfs


def test_card_can_be_plugged_and_pulled(
    functions: Functions, host: LocalHost, monitor: Monitor, uevents: Recorder
) -> None:
    """A card that is pulled vanishes with an event; the agent needs no restart for a new one."""
    before = functions.matching(CARD)
    monitor.plug("new", driver="edu", bus="empty")
    card = uevents.new_function(CARD)
    uevents.wait("bind", card)
    assert sorted(functions.matching(CARD)) == sorted([*before, card])
    monitor.pull("new")
    uevents.wait("remove", card)
    assert not host.exists(functions.path(card))


def test_plugged_and_pulled_cards_start_a_scan_each(
    functions: Functions, host: LocalHost, monitor: Monitor, undo: ExitStack
) -> None:
    """The agent finds such a card without waiting for its interval."""
    found: queue.SimpleQueue[int] = queue.SimpleQueue()
    number = len(functions.matching(CARD))

    def scan() -> None:
        vendor, product = (int(part, 16) for part in CARD)
        cards = Scan(host).functions.values()
        found.put(sum((card.vendor, card.product) == (vendor, product) for card in cards))

    events = DeviceEvents(host, scan)
    events.start()
    undo.callback(events.wait)
    undo.callback(events.stop)

    def scanned(expected: int) -> None:
        while found.get(timeout=PATIENCE) != expected:
            pass

    monitor.plug("new", driver="edu", bus="empty")
    scanned(number + 1)
    monitor.pull("new")
    scanned(number)
