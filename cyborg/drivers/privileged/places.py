# SPDX-License-Identifier: Apache-2.0
"""Find the directories and nodes of devices on which an action works.

Each is reached by one link of sysfs, whose target is checked: no field of an action is a path.
"""

import posixpath
import re
from typing import Final

from cyborg import exception
from cyborg.drivers.privileged.kernel import Kernel, Node
from cyborg.model.pci import PciAddress

_DEVICES: Final = "/sys/devices"
_PCI: Final = "/sys/bus/pci"
#: The kernel counts in 64 bits.
_DIGITS: Final = 20
_NAMESPACE: Final = re.compile(r"(nvme[0-9]+)(?:c[0-9]+)?(n[0-9]+)")


def device(kernel: Kernel, link: str) -> str:
    """Return the directory of a device below /sys/devices that a link in /sys names."""
    directory, _, name = link.rpartition("/")
    path = posixpath.normpath(posixpath.join(directory, kernel.readlink(link)))
    if not path.startswith(f"{_DEVICES}/") or not path.endswith(f"/{name}"):
        reason = f"it leads to {path}, which is not a device with this name below {_DEVICES}"
        raise exception.HostError(action=f"following {link}", reason=reason)
    return path


def function(kernel: Kernel, address: PciAddress) -> str:
    return device(kernel, f"{_PCI}/devices/{address}")


def disk(kernel: Kernel, name: str) -> Node:
    path = device(kernel, f"/sys/class/block/{name}")
    return Node(name, kernel.read(f"{path}/dev").strip())


def controller(kernel: Kernel, address: PciAddress, name: str) -> tuple[str, Node]:
    """Return the directory and the node of an NVMe controller of this PCI function."""
    path = f"{function(kernel, address)}/nvme/{name}"
    return path, Node(name, kernel.read(f"{path}/dev").strip())


def namespaces(kernel: Kernel, path: str) -> dict[int, Node]:
    """Return the disks of an NVMe controller by the number of the namespace.

    With multipath, the directory has ``nvme0c1n2`` for the disk ``nvme0n2``.
    """
    disks = {}
    for name in kernel.names(path):
        match = _NAMESPACE.fullmatch(name)
        if match is not None:
            number = read_number(kernel, f"{path}/{name}/nsid")
            disks[number] = disk(kernel, f"{match[1]}{match[2]}")
    return disks


def read_number(kernel: Kernel, path: str) -> int:
    """Return the decimal number in a file; raises exception.HostError for any other text."""
    text = kernel.read(path).strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
        raise exception.HostError(action=f"reading {path}", reason=f"{text[:40]!r} is no number")
    return int(text)
