# SPDX-License-Identifier: Apache-2.0
"""The ownership check: which PCI functions the host or other services use.

The functions here are pure: they work on a snapshot. They refuse a function that is certainly in
use. A bound host driver is not a sign of use, because every idle card has one.
"""

import ipaddress
from collections.abc import Iterable, Iterator, Mapping

from cyborg.drivers.base import DriverContext
from cyborg.drivers.pci_function import PciFunction, addresses_in_path
from cyborg.drivers.pci_scan import Snapshot
from cyborg.model.pci import PciAddress

#: The base class of bridges of the bus.
_BRIDGE = 0x06


def host_uses(snapshot: Snapshot) -> dict[PciAddress, str]:
    """Return for each PCI function that the host uses a clause that says for what.

    Every function on the path to a device in use is in use, too: a guest that gets a controller
    gets all devices behind it.
    """
    uses: dict[PciAddress, str] = {}
    disks, interfaces = _busy_disks(snapshot), _busy_interfaces(snapshot)
    for disk in snapshot.disks:
        if disk.name in disks:
            for path in disk.paths:
                for address in addresses_in_path(path):
                    uses.setdefault(address, f"its disk {disk.name} {disks[disk.name]}")
    for interface in snapshot.interfaces:
        if interface.name in interfaces:
            for address in addresses_in_path(interface.path):
                reason = f"its interface {interface.name} {interfaces[interface.name]}"
                uses.setdefault(address, reason)
    return uses


def refusal_reason(
    function: PciFunction,
    uses: Mapping[PciAddress, str],
    open_vfio: Mapping[str, str],
    context: DriverContext,
    *,
    managed: bool,
) -> str | None:
    """Return a clause that says why the function must not be offered, None when it may be.

    ``uses`` comes from ``host_uses``, ``open_vfio`` from the snapshot. ``managed`` says that the
    conductor keeps the function as a deployable. A guest that holds a managed function most likely
    got it from this service: Nova attaches a bound unit through VFIO, so a successful bind makes
    the function look held. If it were refused then, every bind would withdraw its own device. Only
    a function that is not managed is refused because it is held.
    """
    if function.class_code >> 16 == _BRIDGE:
        return "a bridge of the bus itself"
    if function.address in uses:
        return uses[function.address]
    if function.vfs:
        return f"it has {function.vfs} virtual functions; those can be offered"
    if not managed:
        holders = [open_vfio[node] for node in function.vfio_nodes if node in open_vfio]
        # Without the permission to see other processes: the VFIO drivers enable a function when its
        # node is opened and disable it when the node is closed, so "enable" of an idle one is 0.
        if not holders and function.on_vfio and function.enabled:
            holders = ["another process"]
        if holders:
            return f"held through VFIO by {holders[0]}"
    return context.claims.get(str(function.address))


def _busy_disks(snapshot: Snapshot) -> dict[str, str]:
    """Return a clause for each block device in use, including those below it."""
    names = {disk.number: disk.name for disk in snapshot.disks if disk.number}
    busy = {disk.name: "cannot be read" for disk in snapshot.disks if disk.error}
    for line in snapshot.mounts:
        # proc(5), mountinfo: id, parent, major:minor, root, mount point …
        fields = line.split()
        if len(fields) > 4 and fields[2] in names:
            busy.setdefault(names[fields[2]], f"is mounted at {fields[4]}")
    for line in snapshot.swaps:
        path = line.partition(" ")[0].partition("\t")[0]
        if path.startswith("/dev/"):
            busy.setdefault(path.rpartition("/")[2], "holds swap space")
    for name in snapshot.btrfs:
        busy.setdefault(name, "is part of a mounted btrfs file system")
    _add_lower_layers(busy, {disk.name: disk.slaves for disk in snapshot.disks})
    for disk in snapshot.disks:
        if disk.holders:
            busy.setdefault(disk.name, f"is held by {', '.join(disk.holders)}")
    return busy


def _busy_interfaces(snapshot: Snapshot) -> dict[str, str]:
    """Return a clause for each network interface in use, including those below it."""
    interfaces = snapshot.interfaces
    busy = {interface.name: "cannot be read" for interface in interfaces if interface.error}
    for name, reason in sorted(_traffic(snapshot), key=lambda use: use[1] != _DEFAULT_ROUTE):
        busy.setdefault(name, reason)
    _add_lower_layers(busy, {interface.name: interface.lower for interface in interfaces})
    for interface in interfaces:
        if interface.master:
            # A port of a bond, a bridge or Open vSwitch carries traffic of its master.
            busy.setdefault(interface.name, f"is a port of {interface.master}")
    return busy


_DEFAULT_ROUTE = "carries the default route"


def _traffic(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """Yield each interface that has a route or an address, with a clause.

    An IPv4 address is visible through its routes. The link-local addresses that the kernel gives to
    every IPv6 interface that is up are not a sign of use.
    """
    for line in snapshot.routes4:
        # /proc/net/route: interface, destination, gateway, flags, three counts, mask …; the heading
        # is no line of an interface that exists.
        fields = line.split()
        if len(fields) > 7:
            default = fields[1] == fields[7] == "00000000"
            yield fields[0], _DEFAULT_ROUTE if default else "carries an IPv4 network"
    for line in snapshot.routes6:
        # /proc/net/ipv6_route: destination, its prefix length, seven more, interface
        fields = line.split()
        if len(fields) > 9 and fields[9] != "lo" and _is_routed(fields[0]):
            default = fields[1] == "00"
            yield fields[9], _DEFAULT_ROUTE if default else "carries an IPv6 network"
    for line in snapshot.addresses6:
        # /proc/net/if_inet6: address, four numbers, interface
        fields = line.split()
        if len(fields) > 5 and fields[5] != "lo" and _is_routed(fields[0]):
            yield fields[5], "has an IPv6 address"


def _is_routed(text: str) -> bool:
    try:
        address = ipaddress.IPv6Address(bytes.fromhex(text))
    except ValueError:
        return False
    return not (address.is_link_local or address.is_multicast)


def _add_lower_layers(busy: dict[str, str], below: Mapping[str, Iterable[str]]) -> None:
    """Add to ``busy`` all devices below those in use, with the clause of the device above.

    ``below`` maps each device to the devices of the next lower layer.
    """
    queue = list(busy)
    # The loop appends to the list; the first clause of a device stays.
    for name in queue:
        for lower in below.get(name, ()):
            if lower not in busy:
                busy[lower] = busy[name]
                queue.append(lower)
