# SPDX-License-Identifier: Apache-2.0
"""A correct driver of a simulated card, and drivers that each break one rule of the contract."""

import contextlib
import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

from cyborg import exception
from cyborg.drivers.base import (
    CardLayouts,
    CleanStep,
    Driver,
    ImageFile,
    Progress,
    no_progress,
)
from cyborg.drivers.command import Completed
from cyborg.drivers.files import is_missing
from cyborg.drivers.host import Host
from cyborg.drivers.pci_function import PciFunction
from cyborg.drivers.privileged.actions import Reset
from cyborg.drivers.scan import Scan
from cyborg.model.cleaning import CleanLevel
from cyborg.model.device import (
    AttachHandle,
    AttachType,
    Attribute,
    Confidence,
    Deployable,
    Device,
    DeviceType,
    Hardware,
    Identity,
    IdentityKind,
)
from cyborg.model.health import Signal
from cyborg.model.pci import PciAddress
from cyborg.model.work import HandleTask, Unit
from cyborg.testing import servers
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.unit.drivers.configured import configured

CARDS = ("0000:c1:00.0", "0000:c2:00.0", "0000:c3:00.0")
#: The virtual functions of the first card of ``divided_host``.
PARTS = ("0000:c1:00.1", "0000:c1:00.2", "0000:c1:00.3")
_FUNCTIONS = "/sys/bus/pci/devices"
_CLASS = "CUSTOM_CARD"


def host() -> FakeHost:
    """Return a machine with three cards; the files ``mode`` and ``owner`` prepare a card."""
    machine = servers.bare()
    servers.add_function(machine, servers.ROOT_PORT, "8086:2030:060400", driver="pcieport")
    for node, address in enumerate(CARDS):
        path = servers.add_function(machine, address, "1d55:0001:120000", node=node)
        for name, text in _files(str(node)).items():
            machine.add_file(f"{path}/{name}", text)
        machine.answers["/usr/bin/card-tool", address] = Completed(0, "", "")
    machine.programs["/usr/bin/card-tool"] = _tool
    machine.add_file("/var/lib/card/trace", "")
    return machine


def _tool(machine: FakeHost, argv: tuple[str, ...]) -> Completed:
    """Write ``argv[2]`` to the file ``argv[1]`` of all cards."""
    for address in CARDS:
        machine.add_file(f"{machine.realpath(f'{_FUNCTIONS}/{address}')}/{argv[1]}", argv[2])
    return Completed(0, "", "")


def divided_host() -> FakeHost:
    """Return a machine with a card whose three virtual functions are cards of the driver."""
    machine = host()
    path = machine.realpath(f"{_FUNCTIONS}/{CARDS[0]}")
    machine.add_file(f"{path}/reset", "")
    servers.add_vfs(machine, CARDS[0], PARTS, "1d55:0001:120000")
    for part in PARTS:
        for name, text in _files("0").items():
            machine.add_file(f"{machine.realpath(f'{_FUNCTIONS}/{part}')}/{name}", text)
    return machine


def _files(serial: str) -> dict[str, str]:
    card = {"health": "ok", "serial": serial, "layout": "whole", "times": "0", "memory": ""}
    return {**card, **IDLE}


#: What the files of an idle card read.
IDLE = {"owner": "none", "mode": "host"}


class CorrectDriver(Driver):
    """Offers whole cards, each to one guest, and prepares a card in two steps."""

    name = "card_driver"

    def __init__(self, machine: Host) -> None:
        super().__init__(machine, configured())

    def discover(self, scan: Scan) -> list[Device]:
        devices = (self.device(scan, card) for card in self.cards(scan))
        return [device for device in devices if device is not None]

    def hardware(self, scan: Scan) -> list[Hardware]:
        entries = []
        for card in self.cards(scan):
            reason, device = self.refusal(scan, card), self.describe(scan, card, None)
            entries.append(replace(Hardware.of(device), offered=reason is None, reason=reason))
        return entries

    def prepare(
        self, task: HandleTask, image: ImageFile | None = None, *, progress: Progress = no_progress
    ) -> None:
        self.write(task, "owner", task.handle_uuid)
        self.write(task, "mode", "guest")

    def release(self, task: HandleTask, *, progress: Progress = no_progress) -> None:
        for name in ("mode", "owner"):
            self.write(task, name, IDLE[name])

    def prepared(self, scan: Scan) -> Sequence[Unit]:
        return [
            Unit(self.name_of(scan, card), str(card.address))
            for card in self.cards(scan)
            if self.read(str(card.address), "mode") == "guest"
        ]

    def signals(self, scan: Scan, device_key: str) -> Iterable[Signal]:
        text = self.read(device_key, "health")
        if text != "ok":
            yield Signal("fake", "fault", "set", text)

    def layouts(self, scan: Scan) -> Sequence[CardLayouts]:
        return [
            CardLayouts(
                card=str(card.address),
                layouts=("whole", "halves"),
                current=self.layout(str(card.address)),
                desired=None,
                deployables=frozenset({self.name_of(scan, card)}),
            )
            for card in self.cards(scan)
        ]

    def partition(self, card_key: str, layout: str, *, progress: Progress = no_progress) -> None:
        if self.layout(card_key) != layout:
            scan = Scan(self.host)
            card = scan.functions[PciAddress.parse(card_key)]
            reason = scan.refusal(card, managed=False)
            if reason is not None:
                raise exception.DriverFailed(driver=self.name, verb="partition", reason=reason)
            self.divide(card_key, layout)

    def layout(self, key: str) -> str | None:
        """Return the layout of a card, None if it cannot be read."""
        try:
            return self.read(key, "layout")
        except exception.HostError:
            return None

    def divide(self, key: str, layout: str) -> None:
        """Change the layout of a card."""
        self.host.write_text(f"{_FUNCTIONS}/{key}/layout", layout)

    def cards(self, scan: Scan) -> list[PciFunction]:
        """Return the cards on the bus, ordered by address."""
        cards = [card for card in scan.functions.values() if card.vendor == 0x1D55]
        return sorted(cards, key=lambda card: str(card.address))

    def refusal(self, scan: Scan, card: PciFunction) -> str | None:
        """Return why a card must not be offered."""
        return scan.refusal(card, managed=scan.is_managed(self.name_of(scan, card)))

    def name_of(self, scan: Scan, card: PciFunction) -> str:
        """Return the name of the deployable of a card."""
        return f"compute-1_{card.address}"

    def device(self, scan: Scan, card: PciFunction) -> Device | None:
        """Return a card as a device, None when it is not offered."""
        if self.refusal(scan, card) is not None:
            return None
        try:
            device = self.describe(scan, card, scan.numa_node(card.address))
            serial = self.serial(device.key)
            number = Identity(IdentityKind.VENDOR, serial, Confidence.UNIQUE)
            return replace(device, identity=(number,))
        except exception.HostError:
            # It has just been removed.
            return None

    def describe(self, scan: Scan, card: PciFunction, node: int | None) -> Device:
        """Return what is known about a card."""
        key, info = str(card.address), card.address.info()
        deployable = Deployable(
            name=self.name_of(scan, card),
            resource_class=_CLASS,
            driver_name="CARD",
            handles=(AttachHandle(key, AttachType.PCI, info),),
            attributes=(Attribute("rc", _CLASS),),
            prepare=True,
        )
        vendor = f"{card.vendor:04x}"
        device = Device(key, DeviceType.AICHIP, vendor, "card", info, (deployable,))
        return replace(device, numa_node=node)

    def serial(self, key: str) -> str:
        """Return the serial number of a card."""
        return self.read(key, "serial")

    def read(self, key: str, name: str) -> str:
        """Return the text of a file of a card."""
        return self.host.read_text(f"{_FUNCTIONS}/{key}/{name}").strip()

    def write(self, task: HandleTask, name: str, text: str) -> None:
        """Write a file of the card of a task."""
        self.host.write_text(f"{_FUNCTIONS}/{task.device_key}/{name}", text)


class OffersMountedDisks(CorrectDriver):
    """Never asks whether a card is in use."""

    def refusal(self, scan: Scan, card: PciFunction) -> str | None:
        return None


class SharesWithoutPools(CorrectDriver):
    """Names a cost, and not what its units share."""

    def describe(self, scan: Scan, card: PciFunction, node: int | None) -> Device:
        device = super().describe(scan, card, node)
        (deployable,) = device.deployables
        return replace(device, deployables=(replace(deployable, cost={"memory": 1}),))


class InventsAStandardClass(CorrectDriver):
    """Has a resource class that only Placement could define."""

    def describe(self, scan: Scan, card: PciFunction, node: int | None) -> Device:
        device = super().describe(scan, card, node)
        (part,) = device.deployables
        own = replace(part, resource_class="GPU", attributes=(Attribute("rc", "GPU"),))
        return replace(device, deployables=(own,))


class NamesCardsByAddress(CorrectDriver):
    """Gives the cards of all hosts the same names."""

    def name_of(self, scan: Scan, card: PciFunction) -> str:
        return str(card.address)


class WithdrawsBoundCards(CorrectDriver):
    """Takes the guest of a bound card for a foreign one."""

    def refusal(self, scan: Scan, card: PciFunction) -> str | None:
        return scan.refusal(card, managed=False)


class Leaks(CorrectDriver):
    """Leaves the owner on a released card."""

    def release(self, task: HandleTask, *, progress: Progress = no_progress) -> None:
        self.write(task, "mode", IDLE["mode"])


class CleansHalf(CorrectDriver):
    """Changes something in its clean step and leaves it so."""

    def clean_steps(self, task: HandleTask) -> Sequence[CleanStep]:
        return [CleanStep("erase", lambda progress: self.write(task, "owner", "erased"))]


class CleansUnpreparedUnits(CorrectDriver):
    """Has clean steps for units whose release the agent never calls."""

    def describe(self, scan: Scan, card: PciFunction, node: int | None) -> Device:
        device = super().describe(scan, card, node)
        (part,) = device.deployables
        return replace(device, deployables=(replace(part, prepare=False),))

    def clean_steps(self, task: HandleTask) -> Sequence[CleanStep]:
        return [CleanStep("erase", do_nothing)]


class KnowsNoProgress(CorrectDriver):
    """Has a release without the argument that the agent gives."""

    def release(self, task: HandleTask) -> None:  # type: ignore[override]
        super().release(task)


class CountsPercent(CorrectDriver):
    """Tells its progress in percent."""

    def prepare(
        self, task: HandleTask, image: ImageFile | None = None, *, progress: Progress = no_progress
    ) -> None:
        super().prepare(task, image, progress=progress)
        progress(50, "half of it")


def do_nothing(progress: Progress) -> None:
    """Do nothing."""


class ForgetsTheImage(CorrectDriver):
    """Prepares a unit without the image that its guest needs."""

    can_program = True

    def describe(self, scan: Scan, card: PciFunction, node: int | None) -> Device:
        device = super().describe(scan, card, node)
        (part,) = device.deployables
        return replace(device, deployables=(replace(part, programmable=True),))


class AlwaysHealthy(CorrectDriver):
    """Reports each device that is there as healthy."""

    def signals(self, scan: Scan, device_key: str) -> Sequence[Signal]:
        self.read(device_key, "health")
        return ()


class HealthyForEver(CorrectDriver):
    """Reads the health of a device once."""

    def __init__(self, machine: Host) -> None:
        super().__init__(machine)
        self._signals: dict[str, list[Signal]] = {}

    def signals(self, scan: Scan, device_key: str) -> list[Signal]:
        if device_key not in self._signals:
            self._signals[device_key] = list(super().signals(scan, device_key))
        return self._signals[device_key]


class HalfPrepares(CorrectDriver):
    """Takes a card whose first step is done for one that is prepared."""

    def prepare(
        self, task: HandleTask, image: ImageFile | None = None, *, progress: Progress = no_progress
    ) -> None:
        if self.read(task.device_key, "owner") != task.handle_uuid:
            super().prepare(task)


class IgnoresFailures(CorrectDriver):
    """Reports success when the second step fails."""

    def prepare(
        self, task: HandleTask, image: ImageFile | None = None, *, progress: Progress = no_progress
    ) -> None:
        self.write(task, "owner", task.handle_uuid)
        try:
            self.write(task, "mode", "guest")
        except exception.HostError:
            return


class KeysByPosition(CorrectDriver):
    """Names a deployable by the position of its card, counted from the end."""

    def name_of(self, scan: Scan, card: PciFunction) -> str:
        cards = self.cards(scan)
        return f"compute-1_{len(cards) - cards.index(card)}_{card.address}"


class RemembersCards(CorrectDriver):
    """Reads the NUMA node at an address once."""

    def __init__(self, machine: Host) -> None:
        super().__init__(machine)
        self._nodes: dict[PciAddress, int | None] = {}

    def describe(self, scan: Scan, card: PciFunction, node: int | None) -> Device:
        return super().describe(scan, card, self._nodes.setdefault(card.address, node))


class RemembersOverRestarts(CorrectDriver):
    """Reads the NUMA node at an address once, for all drivers of the process."""

    nodes: ClassVar[dict[PciAddress, int | None]] = {}

    def device(self, scan: Scan, card: PciFunction) -> Device | None:
        device = super().device(scan, card)
        if device is None:
            return None
        node = self.nodes.setdefault(card.address, device.numa_node)
        return replace(device, numa_node=node)


class NumbersPlaces(CorrectDriver):
    """Takes the address of a card for its serial number."""

    def serial(self, key: str) -> str:
        return f"card at {key}"


class WaitsForFiles(CorrectDriver):
    """Reads a file that does not answer again and again."""

    def read(self, key: str, name: str) -> str:
        for _ in range(9):
            try:
                return super().read(key, name)
            except exception.HostError:
                continue
        return super().read(key, name)


class StopsAtFiles(CorrectDriver):
    """Reports nothing when one card cannot be read."""

    def device(self, scan: Scan, card: PciFunction) -> Device | None:
        device = super().device(scan, card)
        try:
            serial = self.read(str(card.address), "serial")
        except exception.HostError as error:
            if is_missing(error):
                return None
            raise
        return device and replace(device, vendor_board_info=serial)


class RunsTools(CorrectDriver):
    """Runs a command for each card in each discovery."""

    patience = 5.0

    def discover(self, scan: Scan) -> list[Device]:
        for card in self.cards(scan):
            with contextlib.suppress(exception.HostError):
                self.host.run(["/usr/bin/card-tool", str(card.address)], timeout=self.patience)
        return super().discover(scan)


class RunsToolsWithoutTimeout(CorrectDriver):
    """Waits for a command for ever."""

    def prepare(
        self, task: HandleTask, image: ImageFile | None = None, *, progress: Progress = no_progress
    ) -> None:
        self.host.run(["/usr/bin/card-tool", task.device_key], timeout=math.inf)
        super().prepare(task)


class StopsAtTools(CorrectDriver):
    """Needs the answer of the tool of the first card for the health of each card."""

    def signals(self, scan: Scan, device_key: str) -> Iterable[Signal]:
        self.host.run(["/usr/bin/card-tool", CARDS[0]], timeout=5.0)
        return super().signals(scan, device_key)


class ScansAgain(CorrectDriver):
    """Reads the whole host instead of using the scan."""

    def cards(self, scan: Scan) -> list[PciFunction]:
        assert Scan(self.host).functions is not scan.functions
        return super().cards(scan)


class WritesInDiscover(CorrectDriver):
    """Leaves a trace in each discovery."""

    def discover(self, scan: Scan) -> list[Device]:
        self.host.write_text("/var/lib/card/trace", "seen")
        return super().discover(scan)


class WritesInHealth(CorrectDriver):
    """Leaves a trace when it reads the health."""

    def signals(self, scan: Scan, device_key: str) -> Iterable[Signal]:
        self.host.write_text("/var/lib/card/trace", "seen")
        return super().signals(scan, device_key)


class DividesUsedCards(CorrectDriver):
    """Never asks whether a card that it divides is in use."""

    def partition(self, card_key: str, layout: str, *, progress: Progress = no_progress) -> None:
        self.divide(card_key, layout)


class DividesAgain(CorrectDriver):
    """Divides a card that has the layout already."""

    def partition(self, card_key: str, layout: str, *, progress: Progress = no_progress) -> None:
        if self.layout(card_key) == layout:
            times = int(self.read(card_key, "times")) + 1
            self.host.write_text(f"{_FUNCTIONS}/{card_key}/times", str(times))
        super().partition(card_key, layout)


class LeavesTraces(CorrectDriver):
    """Does not restore all of a card that is whole again."""

    def divide(self, key: str, layout: str) -> None:
        super().divide(key, layout)
        self.host.write_text(f"{_FUNCTIONS}/{key}/times", "1")


class DividesNothing(CorrectDriver):
    """Reports success without a change."""

    def divide(self, key: str, layout: str) -> None:
        pass


class ChangesItsAnswers(CorrectDriver):
    """Counts its answers in the list of hardware."""

    count = 0

    def hardware(self, scan: Scan) -> list[Hardware]:
        self.count += 1
        return [
            replace(entry, capability={"answer": self.count}) for entry in super().hardware(scan)
        ]


class LetsRequestsNamePrograms(CorrectDriver):
    """Runs what a request over the API names."""

    remote_options = frozenset({"colour", "reset_command"})


class ResetsOtherGuests(CorrectDriver):
    """Makes every card idle when one is released."""

    def release(self, task: HandleTask, *, progress: Progress = no_progress) -> None:
        for key in CARDS:
            super().release(replace(task, device_key=key))


class PreparesAnotherCard(CorrectDriver):
    """Takes the last card for the guest of another one, until that one is released."""

    def prepare(
        self, task: HandleTask, image: ImageFile | None = None, *, progress: Progress = no_progress
    ) -> None:
        super().prepare(task)
        self.write(replace(task, device_key=CARDS[-1]), "owner", task.handle_uuid)

    def release(self, task: HandleTask, *, progress: Progress = no_progress) -> None:
        super().release(task)
        self.write(replace(task, device_key=CARDS[-1]), "owner", IDLE["owner"])


class PreparesWithATool(CorrectDriver):
    """Runs a tool that it does not tell which card, and the tool changes all of them."""

    def prepare(
        self, task: HandleTask, image: ImageFile | None = None, *, progress: Progress = no_progress
    ) -> None:
        self.host.run(["/usr/bin/card-tool", "times", "1"], timeout=60)
        super().prepare(task)

    def release(self, task: HandleTask, *, progress: Progress = no_progress) -> None:
        super().release(task)
        self.host.run(["/usr/bin/card-tool", "times", "0"], timeout=60)


class ResetsTheParent(CorrectDriver):
    """Resets the card of a virtual function, and with it the functions of other guests."""

    def release(self, task: HandleTask, *, progress: Progress = no_progress) -> None:
        super().release(task)
        self.host.privileged.run(Reset(PciAddress.parse(CARDS[0])))


class ErasesMemory(CorrectDriver):
    """Erases the memory of a card, which is right."""

    def clean_steps(self, task: HandleTask) -> Sequence[CleanStep]:
        return [CleanStep("secure erase", lambda _: self.erase(task), level=CleanLevel.FULL)]

    def erase(self, task: HandleTask) -> None:
        """Erase the memory of the card of a task."""
        self.write(task, "memory", "")


class ErasesNothing(ErasesMemory):
    """Says that it has erased the memory of a card, and has not."""

    def erase(self, task: HandleTask) -> None:
        pass


class ErasesOtherCards(ErasesMemory):
    """Erases with a tool that it does not tell which card, and the tool erases all of them."""

    def erase(self, task: HandleTask) -> None:
        self.host.run(["/usr/bin/card-tool", "memory", ""], timeout=60)


class PreparedForEver(CorrectDriver):
    """Says that every card is prepared."""

    def prepared(self, scan: Scan) -> Sequence[Unit]:
        return [Unit(self.name_of(scan, card), str(card.address)) for card in self.cards(scan)]


class OffersCardsTwice(CorrectDriver):
    """Has each card in two deployables, which two guests can have at a time."""

    def describe(self, scan: Scan, card: PciFunction, node: int | None) -> Device:
        device = super().describe(scan, card, node)
        (part,) = device.deployables
        fast = replace(part, name=f"compute-1_fast_{card.address}")
        return replace(device, deployables=(part, fast))

    def prepared(self, scan: Scan) -> Sequence[Unit]:
        self._cannot("tell which of the two has a card")


class OffersTooManyUnits(CorrectDriver):
    """Has three parts of each card, and room for two of them."""

    def describe(self, scan: Scan, card: PciFunction, node: int | None) -> Device:
        device = super().describe(scan, card, node)
        (part,) = device.deployables
        keys = [f"{card.address}/part_{number}" for number in range(3)]
        info = card.address.info()
        handles = tuple(AttachHandle(key, AttachType.MDEV, info) for key in keys)
        return replace(device, deployables=(replace(part, handles=handles),))

    def prepare(
        self, task: HandleTask, image: ImageFile | None = None, *, progress: Progress = no_progress
    ) -> None:
        owners = self.owners(task.device_key) | {task.handle_uuid}
        if len(owners) > 2:
            raise exception.DriverFailed(driver=self.name, verb="prepare", reason="no room")
        self.write(task, "owner", " ".join(sorted(owners)))

    def release(self, task: HandleTask, *, progress: Progress = no_progress) -> None:
        owners = self.owners(task.device_key) - {task.handle_uuid}
        self.write(task, "owner", " ".join(sorted(owners)) or IDLE["owner"])

    def prepared(self, scan: Scan) -> Sequence[Unit]:
        return [
            Unit(self.name_of(scan, card), owner)
            for card in self.cards(scan)
            for owner in sorted(self.owners(str(card.address)))
        ]

    def owners(self, key: str) -> set[str]:
        """Return who has parts of a card."""
        return set(self.read(key, "owner").split()) - {IDLE["owner"]}


class CountsCards(CorrectDriver):
    """Says in the list of hardware that each card has three units."""

    def hardware(self, scan: Scan) -> list[Hardware]:
        return [replace(entry, num=len(CARDS)) for entry in super().hardware(scan)]


class NamesCardsItsOwnWay(CorrectDriver):
    """Names cards by their bus, as no other driver does."""

    def name_of(self, scan: Scan, card: PciFunction) -> str:
        return f"compute-1_card{card.address.bus}"


class NamesGroups(CorrectDriver):
    """Names cards by the number of their IOMMU group as well."""

    def name_of(self, scan: Scan, card: PciFunction) -> str:
        group = ""
        with contextlib.suppress(exception.HostError):
            link = self.host.readlink(f"{_FUNCTIONS}/{card.address}/iommu_group")
            group = link.rpartition("/")[2]
        return f"compute-1_{group}_{card.address}"


class ForgetsAtRelease(CorrectDriver):
    """Forgets all that it prepared when one card is released."""

    def __init__(self, machine: Host) -> None:
        super().__init__(machine)
        self._released = False

    def prepare(
        self, task: HandleTask, image: ImageFile | None = None, *, progress: Progress = no_progress
    ) -> None:
        self._released = False
        super().prepare(task)

    def release(self, task: HandleTask, *, progress: Progress = no_progress) -> None:
        self._released = True
        super().release(task)

    def prepared(self, scan: Scan) -> Sequence[Unit]:
        return [] if self._released else super().prepared(scan)


class BlocksInDiscover(CorrectDriver):
    """Waits without a limit: sets ``blocked`` then, until ``ended`` is set."""

    blocked: threading.Event
    ended: threading.Event

    def discover(self, scan: Scan) -> list[Device]:
        self.block()
        return super().discover(scan)

    def block(self) -> None:
        """Wait until the test has ended."""
        self.blocked.set()
        self.ended.wait()


class BlocksInHealth(BlocksInDiscover):
    """Waits for the health of a card without a limit."""

    def discover(self, scan: Scan) -> list[Device]:
        return CorrectDriver.discover(self, scan)

    def signals(self, scan: Scan, device_key: str) -> Iterable[Signal]:
        self.block()
        yield from super().signals(scan, device_key)
