# SPDX-License-Identifier: Apache-2.0
"""Select the devices of a backend of the generic_driver by the backend's options."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cyborg import exception
from cyborg.drivers import whitelist
from cyborg.drivers.files import is_missing, read_if_exists
from cyborg.drivers.host import Host
from cyborg.drivers.pci_function import PciFunction, addresses_in_path, parse_name
from cyborg.drivers.whitelist import Entry
from cyborg.model.pci import PciAddress

_ID = re.compile(
    r"(?P<vendor>[0-9a-fA-F]{4}):(?:\*|(?P<first>[0-9a-fA-F]{4})(?:-(?P<last>[0-9a-fA-F]{4}))?)"
)
_LAST_ID = 0xFFFF
_CLASS = re.compile(r"(?:[0-9a-f]{2}){1,3}")

#: For each requested directory of /sys/class, the functions that have an entry in it.
ClassMembers = Mapping[str, frozenset[PciAddress]]


@dataclass(frozen=True)
class PciIds:
    """The ids of one vendor from ``first`` to ``last``: products, or boards (subsystem ids)."""

    vendor: int
    first: int = 0
    last: int = _LAST_ID

    def includes(self, vendor: int, product: int) -> bool:
        """Return whether the ids include this pair."""
        return vendor == self.vendor and self.first <= product <= self.last

    def overlaps(self, other: "PciIds") -> bool:
        """Return whether both include the same pair."""
        return self.vendor == other.vendor and self.first <= other.last and other.first <= self.last

    @property
    def is_vendor(self) -> bool:
        """Return whether these are all ids of the vendor."""
        return self.size == _LAST_ID + 1

    @property
    def size(self) -> int:
        """Return the number of ids."""
        return self.last - self.first + 1


@dataclass(frozen=True)
class Selector:
    """The devices of a backend: a fixed list of addresses, or all that match the other fields."""

    ids: tuple[PciIds, ...] = ()
    subsystems: tuple[PciIds, ...] = ()
    classes: tuple[str, ...] = ()
    addresses: tuple[Entry, ...] = ()
    sysfs_class: str | None = None
    fixed: tuple[PciAddress, ...] = ()

    def matches(
        self,
        function: PciFunction,
        members: ClassMembers,
        *,
        managed: bool,
        subsystem: tuple[int, int] | None = None,
    ) -> bool:
        """Return whether the function belongs to the backend.

        ``subsystem`` is vendor and id of the board; a function whose board is not known matches no
        backend that selects boards. The entry in /sys/class disappears when a guest gets the
        function. A ``managed`` function on a VFIO driver is therefore matched by the other fields
        only.
        """
        if self.fixed:
            return function.address in self.fixed
        digits = f"{function.class_code:06x}"
        return (
            includes(self.ids, (function.vendor, function.product))
            and includes(self.subsystems, subsystem)
            and _any_matches(self.addresses, function)
            and (not self.classes or digits.startswith(self.classes))
            and (
                self.sysfs_class is None
                or function.address in members[self.sysfs_class]
                or (managed and function.on_vfio)
            )
        )

    def admits(
        self, function: PciFunction, members: ClassMembers, subsystem: tuple[int, int] | None
    ) -> bool:
        """Return whether an operator may add the function to the backend by its address.

        It must be of the kind that the backend selects; addresses decide only if nothing else does.
        """
        kind = replace(self, addresses=())
        if self.fixed or kind == Selector():
            kind = self
        return kind.matches(function, members, managed=True, subsystem=subsystem)

    def names(self, address: PciAddress) -> bool:
        """Return whether the address is in the fixed list or matches an address pattern."""
        return address in self.fixed or any(
            entry.address is not None and entry.address.matches(address) for entry in self.addresses
        )

    def is_ambiguous_with(self, other: "Selector") -> bool:
        """Return whether both could match the same function in a guest, without its class entry."""
        if self.sysfs_class is None or other.sysfs_class is None:
            return False
        return not (self.ids and other.ids) or any(
            mine.overlaps(theirs) for mine in self.ids for theirs in other.ids
        )


def parse_pci_id(text: str) -> PciIds:
    """Parse ``vendor:product``; raises ValueError with a clause when it is not valid."""
    match = _ID.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not of the form 10de:20b5, 10de:20b0-20bf or 10de:*")
    vendor = int(match["vendor"], 16)
    if match["first"] is None:
        return PciIds(vendor)
    first = int(match["first"], 16)
    last = int(match["last"] or match["first"], 16)
    if last < first:
        raise ValueError(f"{text!r} ends before it begins")
    return PciIds(vendor, first, last)


def parse_class_code(text: str) -> str:
    """Parse the first digits of a class code; raises ValueError with a clause."""
    digits = text.lower().removeprefix("0x")
    if _CLASS.fullmatch(digits) is None:
        raise ValueError(f"{text!r} is not two, four or six hexadecimal digits")
    return digits


def parse_address_pattern(text: str) -> Entry:
    """Parse an address that may contain ``*``; raises ValueError with a clause."""
    return Entry(address=whitelist.glob(text))


def parse_address(text: str) -> PciAddress:
    """Parse one complete address; raises ValueError with a clause when it is not valid."""
    address = parse_name(text.lower())
    if address is None:
        raise ValueError(f"{text!r} is not a PCI address such as 0000:81:00.0")
    return address


def find_members(host: Host, selectors: Sequence[Selector]) -> ClassMembers:
    """Read the directories of /sys/class that the selectors need.

    An entry that cannot be resolved is ignored; a directory that does not exist is empty. Raises
    exception.HostError when a directory cannot be listed.
    """
    classes = (selector.sysfs_class for selector in selectors)
    names = {name for name in classes if name is not None}
    return {name: frozenset(_members(host, name)) for name in names}


def includes(ids: Sequence[PciIds], pair: tuple[int, int] | None) -> bool:
    """Return whether there are no ids, or one of them includes the pair of vendor and id."""
    return not ids or (pair is not None and any(item.includes(*pair) for item in ids))


def _any_matches(entries: Sequence[Entry], function: PciFunction) -> bool:
    return not entries or any(entry.matches(function, {}, managed=False) for entry in entries)


def _members(host: Host, name: str) -> list[PciAddress]:
    try:
        entries = host.list_dir(f"/sys/class/{name}")
    except exception.HostError as error:
        if is_missing(error):
            return []
        raise
    members = []
    for entry in entries:
        try:
            path = read_if_exists(host.realpath, f"/sys/class/{name}/{entry}")
        except exception.HostError:
            continue
        members += addresses_in_path(path or "")[-1:]
    return members
