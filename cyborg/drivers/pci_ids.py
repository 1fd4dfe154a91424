# SPDX-License-Identifier: Apache-2.0
"""Readable names of PCI vendors, products and classes.

The names come from the host's ``pci.ids`` (the top of that file describes its format). On a host
without the file, this module has names for a few vendors and shows ids for the rest.
"""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from cyborg import exception
from cyborg.drivers.host import Host

#: The paths of the list on Debian and Red Hat.
PATHS = ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids")
#: Maximum size in bytes; the list has 1.5 MB today.
_LIMIT = 32 * 1024 * 1024
#: Width of the database column for a model.
_MODEL_WIDTH = 255

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
    """Names of vendors by id and of products by vendor and product id."""

    vendors: dict[int, str] = field(default_factory=dict)
    products: dict[tuple[int, int], str] = field(default_factory=dict)

    def vendor(self, vendor: int) -> str:
        """Return the vendor's name, or its four hexadecimal digits."""
        return self.vendors.get(vendor) or _VENDORS.get(vendor) or f"{vendor:04x}"

    def product(self, vendor: int, product: int, model: str | None = None) -> str:
        """Return the product's name, else ``model``, else its four hexadecimal digits."""
        return self.products.get((vendor, product)) or model or f"{product:04x}"


class NameCache:
    """Names of products; the host's list is read only when a new product is requested."""

    def __init__(self) -> None:
        self._ids: frozenset[tuple[int, int]] = frozenset()
        self._names = Names()

    def lookup(self, host: Host, ids: Iterable[tuple[int, int]]) -> Names:
        """Return the names of these and all earlier (vendor, product) ids; see ``read_names``."""
        requested = frozenset(ids)
        if not requested <= self._ids:
            self._ids |= requested
            self._names = read_names(host, self._ids)
        return self._names


def kind(class_code: int) -> str:
    """Return the kind of a function by its 24-bit class code."""
    return _KINDS.get(class_code >> 16, "other")


def read_names(host: Host, ids: Iterable[tuple[int, int]]) -> Names:
    """Return the names of these (vendor, product) ids from the host's list.

    Names are optional: without a readable list the result is empty.
    """
    for path in PATHS:
        with contextlib.suppress(exception.HostError):
            return parse(host.read_text(path, limit=_LIMIT), ids)
    return Names()


def parse(text: str, ids: Iterable[tuple[int, int]]) -> Names:
    """Return the names of these ids from the text of a ``pci.ids``; other lines are ignored."""
    requested = frozenset(ids)
    requested_vendors = frozenset(vendor for vendor, _ in requested)
    vendors: dict[int, str] = {}
    products: dict[tuple[int, int], str] = {}
    current = -1
    for line in text.splitlines():
        # Sub-systems (two tabs) and comments are not needed.
        if line.startswith(("#", "\t\t")):
            continue
        if not line.startswith("\t"):
            current = _id(line)
            if current in requested_vendors:
                vendors[current] = line[4:].strip()[:_MODEL_WIDTH]
        elif current in requested_vendors:
            product = _id(line[1:])
            if (current, product) in requested:
                products[current, product] = line[5:].strip()[:_MODEL_WIDTH]
    return Names(vendors, products)


def _id(line: str) -> int:
    """Return the id at the start of a line, -1 for a line without one (``C 03``, a class)."""
    digits, gap = line[:4], line[4:6]
    if len(digits) < 4 or gap != "  ":
        return -1
    try:
        return int(digits, 16)
    except ValueError:
        return -1
