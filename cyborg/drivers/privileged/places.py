# SPDX-License-Identifier: Apache-2.0
"""Find the directories and nodes of devices on which an action works.

Each is reached by one link of sysfs, whose target is checked: no field of an action is a path.
"""

import posixpath
import re
from collections.abc import Collection
from typing import Final

from cyborg import exception
from cyborg.drivers.files import is_missing
from cyborg.drivers.pci_function import addresses_in_path
from cyborg.drivers.privileged.kernel import Kernel, Node
from cyborg.model.pci import PciAddress

_DEVICES: Final = "/sys/devices"
_PCI: Final = "/sys/bus/pci"
_MEDIATED: Final = "/sys/bus/mdev/devices"
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


def mediated_device(kernel: Kernel, uuid: str) -> str:
    return device(kernel, f"{_MEDIATED}/{uuid}")


def mediated(kernel: Kernel, functions: Collection[PciAddress]) -> tuple[str, ...]:
    """Return the directories of the mediated devices of these functions."""
    try:
        names = kernel.names(_MEDIATED)
    except exception.HostError as error:
        if is_missing(error):
            return ()
        raise
    paths = (mediated_device(kernel, name) for name in names)
    return tuple(path for path in paths if {*addresses_in_path(path)[-1:]} & {*functions})


def virtual_functions(kernel: Kernel, address: PciAddress) -> dict[int, PciAddress]:
    """Return the virtual functions of a function by their numbers."""
    path = function(kernel, address)
    functions = {}
    for name in kernel.names(path):
        number = name.removeprefix("virtfn")
        if number != name and number.isdecimal():
            target = kernel.readlink(f"{path}/{name}").rpartition("/")[2]
            functions[int(number)] = PciAddress.parse(target)
    return functions


def on_card(kernel: Kernel, address: PciAddress) -> list[PciAddress]:
    """Return all functions with the domain, bus and device number of a function."""
    card = str(address).rpartition(".")[0]
    names = kernel.names(f"{_PCI}/devices")
    return [PciAddress.parse(name) for name in names if name.rpartition(".")[0] == card]


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
