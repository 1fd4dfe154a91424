# SPDX-License-Identifier: Apache-2.0
"""Find the guests of a host among its processes, and the units that they have.

libvirt starts qemu with ``-uuid`` and the UUID of the domain, which is that of Nova's server. It
names the PCI functions of the guest on the command line (``-device vfio-pci,host=ADDRESS``), also
before qemu has opened them. A function that was added later shows only as an open file.
"""

import contextlib
import re
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from cyborg import exception
from cyborg.drivers import pci_scan
from cyborg.drivers.files import TABLE_LIMIT
from cyborg.drivers.host import Host
from cyborg.model.guests import GuestProcess, HostGuests, UnitInUse
from cyborg.model.pci import PciAddress

_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
#: The end of the name of a process; see ``files.find_open_files``.
_NUMBER: Final = re.compile(r"\(process ([0-9]+)\)$")


def read(host: Host, units: Mapping[UnitInUse, PciAddress]) -> HostGuests:
    """Return the guests, and the processes that have one of these units.

    Raises exception.HostError if the processes of the host or their open files cannot be seen.
    """
    files = host.open_files()
    if files.reason is not None:
        raise exception.HostError(action="reading open files", reason=files.reason)
    names: dict[str, str] = {}
    instances: dict[str, str] = {}
    named: dict[str, list[str]] = {}
    for process in filter(str.isdecimal, host.list_dir("/proc")):
        instance, addresses = _guest(host, process)
        if instance is not None:
            instances[process] = instance
            names[process] = f"qemu (process {process})"
        for text in addresses:
            named.setdefault(text, []).append(process)
    holders: dict[str, str] = {}
    for node, name in files.holders.items():
        if (number := _NUMBER.search(name)) is not None:
            holders[node] = number[1]
            names[number[1]] = name
    held: dict[str, list[UnitInUse]] = {process: [] for process in instances}
    for unit, address in sorted(units.items(), key=lambda item: str(item)):
        nodes = pci_scan.vfio_nodes(host, str(address), _group(host, address))
        having = {holders[node] for node in nodes if node in holders}
        for process in sorted(having.union(named.get(str(address), ()))):
            held.setdefault(process, []).append(unit)
    processes = (
        GuestProcess(names[process], instances.get(process), tuple(units_of))
        for process, units_of in sorted(held.items())
    )
    return HostGuests(boot_id(host), tuple(processes))


def boot_id(host: Host) -> str:
    """Return what identifies the boot of the host (random(4)); empty if it cannot be read."""
    try:
        return host.read_text(_BOOT_ID).strip()[:36]
    except exception.HostError:
        return ""


def _guest(host: Host, process: str) -> tuple[str | None, list[str]]:
    """Return the server of a process, None if it runs none, and the functions that it names."""
    try:
        arguments = host.read_text(f"/proc/{process}/cmdline", TABLE_LIMIT).split("\0")
    except exception.HostError:
        # The process has ended, or belongs to another user of a machine that hides processes: then
        # it is not known to be a guest.
        return None, []
    if "-uuid" not in arguments[:-1] or not re.search("qemu|kvm", arguments[0]):
        return None, []
    with contextlib.suppress(ValueError):
        instance = str(UUID(arguments[arguments.index("-uuid") + 1]))
        devices = (argument for argument in arguments if "vfio-pci" in argument)
        return instance, [address for text in devices for address in _ADDRESS.findall(text)]
    return None, []


def _group(host: Host, address: PciAddress) -> str | None:
    """Return the IOMMU group of a function; None if it has none."""
    try:
        return host.readlink(f"/sys/bus/pci/devices/{address}/iommu_group").rpartition("/")[2]
    except exception.HostError:
        return None
