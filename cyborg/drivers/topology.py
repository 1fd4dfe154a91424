# SPDX-License-Identifier: Apache-2.0
"""Read what identifies PCI functions and where they are, for the devices that drivers offer.

File names and formats are those of the kernel's ABI documents (sysfs-bus-pci, sysfs-bus-cxl), of
its NVMe and amdgpu drivers, and of ``/sys/bus/pci/slots``.
"""

import contextlib
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypeVar

from cyborg import exception
from cyborg.drivers import serial_numbers
from cyborg.drivers.files import is_missing
from cyborg.drivers.host import Host
from cyborg.drivers.pci_function import PciFunction, parse_name
from cyborg.drivers.worker import Worker
from cyborg.model.device import Confidence, Identity, IdentityKind, Topology
from cyborg.model.pci import PciAddress

T = TypeVar("T")

_FUNCTIONS = "/sys/bus/pci/devices"
_SLOTS = "/sys/bus/pci/slots"
_ROOT_COMPLEX = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_CXL_MEMORY = re.compile(r"mem[0-9]+")
_BRIDGE = 0x06
#: Largest size of VPD in bytes; that of most cards has less than 1 kB.
_VPD_LIMIT: Final = 4096

#: A card has several functions at one place: domain, bus and device.
_Place = tuple[int, int, int]


@dataclass
class Facts:
    """What cannot change while a function is on the bus; what was not read yet is missing.

    ``numbers`` are the Device Serial Number and that of the VPD, None where the card has none.
    ``path`` is in ``/sys/devices``. ``vf`` is the number of a virtual function.
    """

    inode: int
    path: str | None = None
    vf: int | None = None
    numbers: dict[IdentityKind, str | None] = field(default_factory=dict)


class FactCache:
    """The facts of functions, for all scans of an agent; any thread may use it.

    The kernel removes the directory of a function together with the function, and the directory of
    the next one at this address has another inode number. So nothing of a card that was pulled is
    taken for a fact of its successor, also when no scan ran and no uevent came between.
    """

    def __init__(self) -> None:
        self._facts: dict[PciAddress, Facts] = {}

    def of(self, address: PciAddress, inode: int) -> Facts:
        """Return the facts of the function that has a directory with this inode number now."""
        facts = self._facts.get(address)
        if facts is None or facts.inode != inode:
            facts = self._facts[address] = Facts(inode)
        return facts


class Cards:
    """The identity and the topology of the PCI functions of one scan; any thread may ask.

    Each file is read at most once. A fact that cannot be read is not known, and hides no other.
    ``functions`` are those of the scan; ``worker`` asks cards that may not answer. The facts in
    ``cache`` are not read again. What a host driver, a slot or a bridge tells is read in each scan.
    """

    def __init__(
        self,
        host: Host,
        functions: Mapping[PciAddress, PciFunction],
        worker: Worker,
        cache: FactCache,
    ) -> None:
        self._host = host
        self._functions = functions
        self._worker = worker
        self._cache = cache
        self._lock = threading.RLock()
        self._facts: dict[PciAddress, Facts] = {}
        self._cards: dict[PciAddress, tuple[Identity, ...]] = {}
        self._vfs: dict[PciAddress, Mapping[str, int]] = {}
        self._places: dict[str, frozenset[_Place]] = {}
        #: Vendor id → Device Serial Number → the functions that have it.
        self._serials: dict[int, Mapping[str, list[PciFunction]]] = {}
        #: The Device Serial Numbers that identify a card.
        self._dsns: dict[PciAddress, str] = {}

    def identity(self, function: PciFunction) -> tuple[Identity, ...]:
        """Return what identifies a function, strongest first; at least its address.

        A virtual function has the identity of its parent with its number.
        """
        with self._lock:
            own = Identity(IdentityKind.ADDRESS, str(function.address), Confidence.PLACE)
            if function.parent is None:
                return (*self._physical(function), own)
            parent = self._functions.get(function.parent)
            number = None if parent is None else self._vf_number(parent.address, function)
            if parent is None or number is None:
                return (own,)
            return (
                *(
                    Identity(identity.kind, f"{identity.value}/vf{number}", identity.confidence)
                    for identity in self._physical(parent)
                ),
                own,
            )

    def topology(self, function: PciFunction) -> Topology | None:
        """Return where a function is; None if the host does not tell.

        Raises exception.HostError when the function has left the bus.
        """
        with self._lock:
            try:
                facts = self._facts_of(function)
                if facts.path is None:
                    facts.path = self._host.realpath(f"{_FUNCTIONS}/{function.address}")
            except exception.HostError as error:
                if is_missing(error):
                    raise
                return None
            bridges = _bridges(facts.path)
            switches = (
                address
                for address, below in reversed(bridges)
                if len(self._places_below(below)) > 1
            )
            return Topology(
                root_port=next((str(address) for address, _ in bridges), None),
                switch=next(map(str, switches), None),
                siblings=tuple(map(str, sorted(self._siblings(function)))),
            )

    def _facts_of(self, function: PciFunction) -> Facts:
        """Return the facts of a function; raises exception.HostError if it cannot be looked at."""
        address = function.address
        if address not in self._facts:
            inode = self._host.inode(f"{_FUNCTIONS}/{address}")
            self._facts[address] = self._cache.of(address, inode)
        return self._facts[address]

    def _physical(self, function: PciFunction) -> tuple[Identity, ...]:
        """Return what identifies a physical function, without its address."""
        address = function.address
        if address not in self._cards:
            part = f"/{address.function}" if address.function else ""
            numbers = [
                (IdentityKind.VENDOR, Confidence.UNIQUE, self._vendor_number(function)),
                (IdentityKind.DSN, Confidence.BOARD, self._card(function)[0]),
            ]
            if all(value is None for _, _, value in numbers):
                # Cards answer this slowly.
                vpd = self._kept(IdentityKind.VPD, function, self._vpd_number)
                numbers.append((IdentityKind.VPD, Confidence.BOARD, vpd))
            numbers.append((IdentityKind.SLOT, Confidence.PLACE, self._slot(function)))
            self._cards[address] = tuple(
                Identity(kind, f"{value}{part}", confidence)
                for kind, confidence, value in numbers
                if value is not None
            )
        return self._cards[address]

    def _vendor_number(self, function: PciFunction) -> str | None:
        """Return the number of the manufacturer that the host driver of a function shows."""
        if function.host_driver is None or function.on_vfio:
            return None
        path = f"{_FUNCTIONS}/{function.address}"
        for name in self._names(path):
            text: str | None = None
            if name == "nvme":
                controllers = self._names(f"{path}/nvme")
                parts = [
                    self._number(f"{path}/nvme/{controllers[0]}/{file}") if controllers else None
                    for file in ("model", "serial")
                ]
                text = f"{parts[0] or ''} {parts[1]}".strip() if parts[1] else None
            elif name == "unique_id" and function.host_driver == "amdgpu":
                text = self._number(f"{path}/unique_id")
            elif _CXL_MEMORY.fullmatch(name):
                text = self._number(f"{path}/{name}/serial")
            if text is not None:
                return text
        return None

    def _card(self, function: PciFunction) -> tuple[str | None, list[PciFunction]]:
        """Return the Device Serial Number of a function, and all functions that have it.

        Functions of one card differ in their number or in what they are. Where two do not, the
        manufacturer gave several cards one value, which identifies none of them.
        """
        vendor = function.vendor
        if vendor not in self._serials:
            serials: dict[str, list[PciFunction]] = defaultdict(list)
            for other in self._functions.values():
                # All ports of a switch have the value of the switch.
                physical = other.parent is None and other.class_code >> 16 != _BRIDGE
                if other.vendor == vendor and physical:
                    dsn = self._kept(IdentityKind.DSN, other, self._dsn)
                    if dsn is not None:
                        serials[dsn].append(other)
            for dsn, members in serials.items():
                kinds = {(member.product, member.address.function) for member in members}
                if len(kinds) == len(members):
                    self._dsns |= dict.fromkeys((member.address for member in members), dsn)
            self._serials[vendor] = serials
        dsn = self._dsns.get(function.address)
        return dsn, [] if dsn is None else self._serials[vendor][dsn]

    def _kept(
        self, kind: IdentityKind, function: PciFunction, read: Callable[[PciFunction], str | None]
    ) -> str | None:
        """Return a number of a function from its facts, read first if it is not there.

        A number that cannot be read is None, and is read again in the next scan.
        """
        with contextlib.suppress(exception.HostError):
            numbers = self._facts_of(function).numbers
            if kind not in numbers:
                numbers[kind] = read(function)
            return numbers[kind]
        return None

    def _dsn(self, function: PciFunction) -> str | None:
        """Read the Device Serial Number; raises exception.HostError if the card does not answer."""
        path = f"{_FUNCTIONS}/{function.address}"
        text = self._read(self._host.read_text, f"{path}/serial_number")
        dsn = serial_numbers.dsn_of_file(text) if text is not None else None
        if dsn is not None:
            return dsn
        config = self._host.read_bytes(f"{path}/config")
        dsn = serial_numbers.dsn_of_config(config)
        if dsn is None and int.from_bytes(config[:2], "little") != function.vendor:
            # All bits of a card that does not answer are 1.
            reason = "it does not begin with the vendor of the function"
            raise exception.HostError(action=f"reading {path}/config", reason=reason)
        return dsn

    def _vpd_number(self, function: PciFunction) -> str | None:
        """Read the serial number in the VPD of a function.

        Raises exception.HostError if the card does not answer in time.
        """
        path = f"{_FUNCTIONS}/{function.address}/vpd"
        if not self._host.exists(path):
            return None
        vpd = self._worker.read(
            f"the VPD of {function.address}", lambda: self._host.read_bytes(path, _VPD_LIMIT)
        )
        return serial_numbers.vpd_serial_number(vpd)

    def _slot(self, function: PciFunction) -> str | None:
        label = self._slots.get(_place(function.address))
        if label is None:
            return None
        ids = (function.vendor, function.product, *(function.subsystem or ()))
        return f"{label} {':'.join(f'{number:04x}' for number in ids)}"

    @cached_property
    def _slots(self) -> Mapping[_Place, str]:
        """The labels of the slots; the kernel spells the place of a slot ``dddd:bb:dd``."""
        slots: dict[_Place, str] = {}
        for name in self._names(_SLOTS):
            text = self._read(self._host.read_text, f"{_SLOTS}/{name}/address") or ""
            label, address = serial_numbers.printable(name), parse_name(f"{text.strip()}.0")
            if label and address is not None:
                slots.setdefault(_place(address), label)
        return slots

    def _vf_number(self, parent: PciAddress, function: PciFunction) -> int | None:
        """Return the number of a virtual function of a parent, from its links ``virtfnN``."""
        try:
            facts = self._facts_of(function)
        except exception.HostError:
            return None
        if facts.vf is None:
            facts.vf = self._vf_numbers(parent).get(str(function.address))
        return facts.vf

    def _vf_numbers(self, parent: PciAddress) -> Mapping[str, int]:
        """Return the numbers of all virtual functions of a parent by address."""
        if parent not in self._vfs:
            path = f"{_FUNCTIONS}/{parent}"
            self._vfs[parent] = {
                target.rpartition("/")[2]: int(name.removeprefix("virtfn"))
                for name in self._names(path)
                if re.fullmatch(r"virtfn[0-9]{1,5}", name)
                and (target := self._read(self._host.readlink, f"{path}/{name}")) is not None
            }
        return self._vfs[parent]

    def _siblings(self, function: PciFunction) -> Iterator[PciAddress]:
        """Yield the other physical functions of the card of a function."""
        physical = self._functions.get(function.parent or function.address, function)
        _, members = self._card(physical)
        for place in {_place(member.address) for member in (physical, *members)}:
            for address in self._physical_functions[place]:
                if address != function.address:
                    yield address

    @cached_property
    def _physical_functions(self) -> Mapping[_Place, list[PciAddress]]:
        """The physical functions of the host by their place."""
        functions: dict[_Place, list[PciAddress]] = defaultdict(list)
        for function in self._functions.values():
            if function.parent is None:
                functions[_place(function.address)].append(function.address)
        return functions

    def _places_below(self, bridge: str) -> frozenset[_Place]:
        """Return the places of the physical functions directly below a bridge, by its path.

        A link of PCI Express leads to one place; a bridge with several is one to a bus, such as
        that in a switch.
        """
        if bridge not in self._places:
            addresses = map(parse_name, self._names(bridge))
            self._places[bridge] = frozenset(
                _place(address)
                for address in addresses
                if address is not None and address in self._physical_functions[_place(address)]
            )
        return self._places[bridge]

    def _number(self, path: str) -> str | None:
        text = self._read(self._host.read_text, path)
        return None if text is None else serial_numbers.plain(text)

    def _names(self, path: str) -> list[str]:
        with contextlib.suppress(exception.HostError):
            return self._host.list_dir(path)
        return []

    @staticmethod
    def _read(read: Callable[[str], T], path: str) -> T | None:
        with contextlib.suppress(exception.HostError):
            return read(path)
        return None


def _bridges(path: str) -> list[tuple[PciAddress, str]]:
    """Return the bridges above a function in ``/sys/devices``, from the root, with their paths."""
    bridges: list[tuple[PciAddress, str]] = []
    parts = path.split("/")
    for index, part in enumerate(parts[:-1]):
        address = parse_name(part)
        if _ROOT_COMPLEX.fullmatch(part):
            # Intel VMD is a function with a root complex of its own below it.
            bridges = []
        elif address is not None:
            bridges.append((address, "/".join(parts[: index + 1])))
    return bridges


def _place(address: PciAddress) -> _Place:
    return address.domain, address.bus, address.device
