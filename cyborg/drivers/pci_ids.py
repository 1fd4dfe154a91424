# SPDX-License-Identifier: Apache-2.0
"""Names of PCI vendors, products and classes, for people.

The names come from the host's ``pci.ids`` (its format stands at the top of that file); a host
without it gets the few vendors below and ids for the rest.
"""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from cyborg import exception
from cyborg.drivers.host import Host

#: Where Debian and Red Hat keep the list.
PATHS = ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids")
#: The list has 1.5 MB today.
_LIMIT = 32 * 1024 * 1024
#: The column that keeps a model.
_LONGEST = 255

_VENDORS = {
    0x1002: "AMD/ATI",
    0x1022: "AMD",
    0x102B: "Matrox",
    0x10DE: "NVIDIA",
    0x10EE: "Xilinx",
    0x1137: "Cisco",
    0x1414: "Microsoft",
    0x144D: "Samsung",
    0x14E4: "Broadcom",
    0x15B3: "Mellanox",
    0x19E5: "Huawei",
    0x1AF4: "Red Hat (virtio)",
    0x1B36: "Red Hat (QEMU)",
    0x1BD4: "Inspur",
    0x1D0F: "Amazon",
    0x1D55: "Simulated",
    0x1DA3: "Habana Labs",
    0x8086: "Intel",
}

#: Base classes (PCI Code and ID Assignment Specification, first byte of the class code).
_KINDS = {
    0x00: "unclassified",
    0x01: "storage",
    0x02: "network",
    0x03: "display",
    0x04: "multimedia",
    0x05: "memory",
    0x06: "bridge",
    0x07: "communication",
    0x08: "system peripheral",
    0x09: "input",
    0x0A: "docking station",
    0x0B: "processor",
    0x0C: "serial bus",
    0x0D: "wireless",
    0x0E: "intelligent",
    0x0F: "satellite",
    0x10: "encryption",
    0x11: "signal processing",
    0x12: "processing accelerator",
    0x13: "instrumentation",
    0x40: "co-processor",
}


@dataclass(frozen=True)
class Names:
    """Vendors by id and products by vendor and id, as far as they were asked for and known."""

    vendors: dict[int, str] = field(default_factory=dict)
    products: dict[tuple[int, int], str] = field(default_factory=dict)

    def vendor(self, vendor: int) -> str:
        """The vendor's name, else its four hexadecimal digits."""
        return self.vendors.get(vendor) or _VENDORS.get(vendor) or f"{vendor:04x}"

    def product(self, vendor: int, product: int) -> str:
        """The product's name, else its four hexadecimal digits."""
        return self.products.get((vendor, product)) or f"{product:04x}"


class Lookup:
    """Names, read from the host only for a product that was not asked for before."""

    def __init__(self) -> None:
        self._asked: frozenset[tuple[int, int]] = frozenset()
        self._names = Names()

    def ask(self, host: Host, wanted: Iterable[tuple[int, int]]) -> Names:
        """The names of these products, and of those asked for earlier; see ``find``."""
        pairs = frozenset(wanted)
        if not pairs <= self._asked:
            self._asked |= pairs
            self._names = find(host, self._asked)
        return self._names


def kind(class_code: int) -> str:
    """What a function is, in a word, by its 24-bit class code."""
    return _KINDS.get(class_code >> 16, "other")


def find(host: Host, wanted: Iterable[tuple[int, int]]) -> Names:
    """The names of these vendors and products, as far as a list of the host can be read.

    Names are a courtesy: a host without the list, or with a broken one, works as well.
    """
    for path in PATHS:
        with contextlib.suppress(exception.HostError):
            return parse(host.read_text(path, limit=_LIMIT), wanted)
    return Names()


def parse(text: str, wanted: Iterable[tuple[int, int]]) -> Names:
    """Pick the wanted names out of a ``pci.ids``; lines of another form are passed over."""
    asked = frozenset(wanted)
    askers = frozenset(vendor for vendor, _ in asked)
    vendors: dict[int, str] = {}
    products: dict[tuple[int, int], str] = {}
    current = -1
    for line in text.splitlines():
        # Sub-systems (two tabs) and comments say nothing here.
        if line.startswith(("#", "\t\t")):
            continue
        if not line.startswith("\t"):
            current = _id(line)
            if current in askers:
                vendors[current] = line[4:].strip()[:_LONGEST]
        elif current in askers:
            product = _id(line[1:])
            if (current, product) in asked:
                products[current, product] = line[5:].strip()[:_LONGEST]
    return Names(vendors, products)


def _id(line: str) -> int:
    """The four digits at the start of a line, -1 for one without (as ``C 03``, a class)."""
    digits, gap = line[:4], line[4:6]
    if len(digits) < 4 or gap != "  ":
        return -1
    try:
        return int(digits, 16)
    except ValueError:
        return -1
