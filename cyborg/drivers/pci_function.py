# SPDX-License-Identifier: Apache-2.0
"""One PCI function as understood from what sysfs says about it; pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cyborg.drivers.pci_scan import RawFunction
from cyborg.model.pci import PciAddress

#: How the kernel spells a function's name; domains above ffff exist (Intel VMD).
_NAME = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
_BRIDGE = 0x06
#: What a bus answers when nobody does.
_NOBODY = frozenset({0x0000, 0xFFFF})
_MAX_NODE = 0xFFFF


@dataclass(frozen=True)
class PciFunction:
    """One function; ``class_code`` has 24 bits, ``parent`` is the PF of a VF.

    ``vfs`` counts the virtual functions it has now, ``enabled`` tells that a driver has switched
    it on, ``vfio_nodes`` are the paths below ``/dev/vfio`` by which a guest would hold it.
    """

    address: PciAddress
    vendor: int
    product: int
    class_code: int
    numa_node: int | None = None
    host_driver: str | None = None
    parent: PciAddress | None = None
    vfs: int = 0
    enabled: bool = False
    vfio_nodes: tuple[str, ...] = ()

    @property
    def is_bridge(self) -> bool:
        """Whether it is part of the bus itself."""
        return self.class_code >> 16 == _BRIDGE

    @property
    def on_vfio(self) -> bool:
        """Whether vfio-pci or one of its variants drives it, in use or not."""
        return "vfio" in (self.host_driver or "")


def parse_function(raw: RawFunction) -> PciFunction:
    """Make a function of its files.

    Raises ValueError with a clause that tells what is wrong when they cannot be trusted.
    """
    if raw.error is not None:
        raise ValueError(raw.error)
    address = parse_name(raw.name)
    if address is None:
        raise ValueError("its name is no PCI address")
    vendor = _hexadecimal(raw.files, "vendor", 4)
    if vendor in _NOBODY:
        raise ValueError("it does not answer on the bus")
    parent = raw.links.get("physfn")
    if parent is not None and parse_name(parent) is None:
        raise ValueError(f"its physfn points to {parent!r}")
    return PciFunction(
        address=address,
        vendor=vendor,
        product=_hexadecimal(raw.files, "device", 4),
        class_code=_hexadecimal(raw.files, "class", 6),
        numa_node=_node(raw.files.get("numa_node", "")),
        host_driver=raw.links.get("driver"),
        parent=parse_name(parent) if parent is not None else None,
        vfs=_count(raw.files, "sriov_numvfs"),
        enabled=_count(raw.files, "enable") > 0,
        vfio_nodes=_vfio_nodes(raw),
    )


def parse_name(name: str) -> PciAddress | None:
    """The address that the kernel spells so, None for any other name."""
    return PciAddress.parse(name) if _NAME.fullmatch(name) else None


def addresses_on(path: str) -> list[PciAddress]:
    """The functions on the way to a place in ``/sys/devices``, bridges first."""
    found = (parse_name(part) for part in path.split("/"))
    return [one for one in found if one is not None]


def _hexadecimal(files: Mapping[str, str], name: str, digits: int) -> int:
    text = files.get(name)
    if text is None:
        raise ValueError(f"it has no {name}")
    if re.fullmatch(rf"0x[0-9a-f]{{{digits}}}", text) is None:
        raise ValueError(f"its {name} reads {text[:40]!r}")
    return int(text, 16)


def _count(files: Mapping[str, str], name: str) -> int:
    text = files.get(name, "0")
    if re.fullmatch(r"[0-9]{1,9}", text) is None:
        raise ValueError(f"its {name} reads {text[:40]!r}")
    return int(text)


def _node(text: str) -> int | None:
    """The NUMA node; the kernel says -1 when the firmware did not tell."""
    node = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else -1
    return node if 0 <= node <= _MAX_NODE else None


def _vfio_nodes(raw: RawFunction) -> tuple[str, ...]:
    """By group, by group without IOMMU, and by the newer node of the device alone."""
    group = raw.links.get("iommu_group")
    groups = (group, f"noiommu-{group}") if group else ()
    return (*groups, f"devices/{raw.vfio}") if raw.vfio else groups
