# SPDX-License-Identifier: Apache-2.0
"""Functions that come and go, and the uevents with which the kernel tells it."""

import queue
from contextlib import ExitStack

import pytest

from cyborg.agent.device_events import DeviceEvents
from cyborg.drivers.host import LocalHost
from cyborg.drivers.scan import Scan
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


def test_open_file_of_a_removed_function_reports_no_device(functions: Functions) -> None:
    """host.is_missing counts this as absent: a card can vanish between open and read."""
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
