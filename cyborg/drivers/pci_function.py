# SPDX-License-Identifier: Apache-2.0
"""Parse what sysfs says about one PCI function; pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from cyborg.model.pci import PciAddress

#: The format of a function's name in the kernel; domains above ffff exist (Intel VMD).
_NAME = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([01][0-9a-f])\.([0-7])")
#: The vendor ids that a bus returns when no device responds.
_NO_RESPONSE = frozenset({0x0000, 0xFFFF})
_CLASS = re.compile(r"[0-9A-Fa-f]{4,6}")
_PCI_ID = re.compile(r"([0-9A-Fa-f]{4}):([0-9A-Fa-f]{4})")


def answers(config: bytes) -> bool:
    """Return whether a function answers, from its configuration space (8 bytes or more).

    A bus returns ones where no function does. The vendor and device ids of a virtual function are
    ones as well (PCI Express Base Specification 6.0, section 9.3.4.1.1), so the command and status
    registers decide, as in the kernel (``pci_dev_wait`` of drivers/pci/pci.c).
    """
    return config[4:8] not in (b"", b"\xff\xff\xff\xff")


@dataclass(frozen=True)
class RawFunction:
    """One directory of the PCI bus: stripped file contents, and the last part of each link.

    ``files`` also has the lines of ``uevent`` by key. ``error`` says what could not be read.
    """

    name: str
    files: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class PciFunction:
    """One PCI function; ``class_code`` has 24 bits, ``parent`` is the PF of a VF.

    ``subsystem`` are the vendor and the id of the board, None where they are not known. ``vfs`` is
    the number of its virtual functions on the bus. ``group`` is its IOMMU group.
    """

    address: PciAddress
    vendor: int
    product: int
    class_code: int
    subsystem: tuple[int, int] | None = None
    host_driver: str | None = None
    parent: PciAddress | None = None
    vfs: int = 0
    group: str | None = None

    @property
    def on_vfio(self) -> bool:
        """Return whether vfio-pci or one of its variants is its driver, in use or not."""
        return "vfio" in (self.host_driver or "")


def parse_function(raw: RawFunction) -> PciFunction:
    """Return the PCI function that the files and links describe.

    Raises ValueError with a clause that says which of them is not valid.
    """
    if raw.error is not None:
        raise ValueError(raw.error)
    address = parse_name(raw.name)
    if address is None:
        raise ValueError("its name is not a PCI address")
    vendor, product, class_code = _identity(raw.files)
    if vendor in _NO_RESPONSE:
        raise ValueError("it does not answer on the bus")
    board = _PCI_ID.fullmatch(raw.files.get("PCI_SUBSYS_ID", ""))
    parent = raw.links.get("physfn")
    if parent is not None and parse_name(parent) is None:
        raise ValueError(f"its physfn points to {parent!r}")
    return PciFunction(
        address=address,
        vendor=vendor,
        product=product,
        class_code=class_code,
        subsystem=(int(board[1], 16), int(board[2], 16)) if board else None,
        host_driver=raw.files.get("DRIVER"),
        parent=parse_name(parent) if parent is not None else None,
        group=raw.links.get("iommu_group"),
    )


def _identity(files: Mapping[str, str]) -> tuple[int, int, int]:
    """Return vendor, product and class, from ``uevent`` or from the files of these names."""
    if "PCI_ID" not in files:
        return (
            _parse_hexadecimal(files, "vendor", 4),
            _parse_hexadecimal(files, "device", 4),
            _parse_hexadecimal(files, "class", 6),
        )
    identity, class_text = _PCI_ID.fullmatch(files["PCI_ID"]), files.get("PCI_CLASS", "")
    if identity is None or _CLASS.fullmatch(class_text) is None:
        raise ValueError(f"its uevent has {files['PCI_ID'][:40]!r} and class {class_text[:40]!r}")
    return int(identity[1], 16), int(identity[2], 16), int(class_text, 16)


def parse_name(name: str) -> PciAddress | None:
    """Return the address of a name in the kernel's format, None for any other name."""
    match = _NAME.fullmatch(name)
    return PciAddress(*(int(part, 16) for part in match.groups())) if match else None


def addresses_in_path(path: str) -> list[PciAddress]:
    """Return the addresses of the functions on a path in ``/sys/devices``, bridges first."""
    addresses = (parse_name(part) for part in path.split("/"))
    return [address for address in addresses if address is not None]


def _parse_hexadecimal(files: Mapping[str, str], name: str, digits: int) -> int:
    text = files.get(name)
    if text is None:
        raise ValueError(f"it has no {name}")
    if re.fullmatch(rf"0x[0-9a-f]{{{digits}}}", text) is None:
        raise ValueError(f"its {name} reads {text[:40]!r}")
    return int(text, 16)
