# SPDX-License-Identifier: Apache-2.0
"""Which devices belong to a backend of the generic_driver, as its options say."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from cyborg import exception
from cyborg.drivers import whitelist
from cyborg.drivers.host import Host, if_there, is_missing
from cyborg.drivers.pci_function import PciFunction, addresses_on, parse_name
from cyborg.drivers.whitelist import Entry
from cyborg.model.pci import PciAddress

_ID = re.compile(r"([0-9a-fA-F]{4}):([0-9a-fA-F]{4}|\*)")
_CLASS = re.compile(r"(?:[0-9a-f]{2}){1,3}")
_CLASS_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")

#: The functions that have an entry below each directory of /sys/class that was asked for.
Members = Mapping[str, frozenset[PciAddress]]


@dataclass(frozen=True)
class Selector:
    """What a backend's devices have in common: a fixed list, or all of what else is given."""

    ids: tuple[Entry, ...] = ()
    classes: tuple[str, ...] = ()
    addresses: tuple[Entry, ...] = ()
    sysfs_class: str | None = None
    listed: tuple[PciAddress, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is given at all."""
        return self == Selector()

    @property
    def is_mixed(self) -> bool:
        """Whether there is a fixed list and something else."""
        return bool(self.listed) and self != Selector(listed=self.listed)

    def matches(self, function: PciFunction, members: Members, *, ours: bool) -> bool:
        """Whether the function belongs to the backend.

        A guest's driver takes the function's entry in /sys/class away: one of ``ours`` that is
        prepared for guests is then known by the rest alone.
        """
        if self.listed:
            return function.address in self.listed
        digits = f"{function.class_code:06x}"
        return (
            _one_matches(self.ids, function)
            and _one_matches(self.addresses, function)
            and (not self.classes or digits.startswith(self.classes))
            and (
                self.sysfs_class is None
                or function.address in members[self.sysfs_class]
                or (ours and function.on_vfio)
            )
        )

    def names(self, address: PciAddress) -> bool:
        """Whether the options mention this very address, or a pattern of it."""
        return address in self.listed or any(
            one.address is not None and one.address.matches(address) for one in self.addresses
        )

    def collides(self, other: "Selector") -> bool:
        """Whether a function in a guest might belong to either, for want of its class entry."""
        if self.sysfs_class is None or other.sysfs_class is None:
            return False
        return not (self.ids and other.ids) or any(
            one.vendor == two.vendor
            and (one.product == two.product or one.product is None or two.product is None)
            for one in self.ids
            for two in other.ids
        )


def pci_id(text: str) -> Entry:
    """Read ``vendor:product``; raises ValueError with a clause when it is none."""
    match = _ID.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not of the form 10de:20b5 or 10de:*")
    product = None if match[2] == "*" else int(match[2], 16)
    return Entry(vendor=int(match[1], 16), product=product)


def class_code(text: str) -> str:
    """Read the start of a class code; raises ValueError with a clause when it is none."""
    digits = text.lower().removeprefix("0x")
    if _CLASS.fullmatch(digits) is None:
        raise ValueError(f"{text!r} is not two, four or six hexadecimal digits")
    return digits


def addresses(text: str) -> Entry:
    """Read an address with ``*``; raises ValueError with a clause when it is none."""
    return Entry(address=whitelist.glob(text))


def one_address(text: str) -> PciAddress:
    """Read one full address; raises ValueError with a clause when it is none."""
    found = parse_name(text.lower())
    if found is None:
        raise ValueError(f"{text!r} is not a PCI address such as 0000:81:00.0")
    return found


def class_name(text: str) -> str:
    """Read the name of a directory below /sys/class; raises ValueError when it is none."""
    if _CLASS_NAME.fullmatch(text) is None:
        raise ValueError("it is not the name of a directory below /sys/class")
    return text


def find_members(host: Host, selectors: Sequence[Selector]) -> Members:
    """Read the directories of /sys/class that the selectors need.

    An entry that cannot be followed says nothing; a directory that is not there is empty. Raises
    exception.HostError when a directory cannot be listed.
    """
    names = {one.sysfs_class for one in selectors if one.sysfs_class is not None}
    return {name: frozenset(_members(host, name)) for name in names}


def colliding(selectors: Mapping[str, Selector]) -> tuple[str, str] | None:
    """The names of two that cannot be told apart while a guest has a device; None for none."""
    for (name, one), (other_name, other) in combinations(selectors.items(), 2):
        if one.collides(other):
            return name, other_name
    return None


def _one_matches(entries: Sequence[Entry], function: PciFunction) -> bool:
    return not entries or any(one.matches(function, {}, ours=False) for one in entries)


def _members(host: Host, name: str) -> list[PciAddress]:
    try:
        entries = host.list_dir(f"/sys/class/{name}")
    except exception.HostError as error:
        if is_missing(error):
            return []
        raise
    found = []
    for one in entries:
        try:
            path = if_there(host.realpath, f"/sys/class/{name}/{one}")
        except exception.HostError:
            continue
        found += addresses_on(path or "")[-1:]
    return found
