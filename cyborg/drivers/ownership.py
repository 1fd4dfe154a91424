# SPDX-License-Identifier: Apache-2.0
"""Who owns a PCI function: the guard that keeps what the host or others need from being offered.

Pure: it reasons about a snapshot. It refuses what is certainly in use; that a host driver is
bound says nothing, because every idle card has one.
"""

import ipaddress
from collections.abc import Iterable, Iterator, Mapping

from cyborg.drivers.base import DriverContext
from cyborg.drivers.pci_function import PciFunction, addresses_on
from cyborg.drivers.pci_scan import Snapshot
from cyborg.model.pci import PciAddress


def host_uses(snapshot: Snapshot) -> dict[PciAddress, str]:
    """What this host itself does with each function, as a clause; idle functions are left out.

    Every function on the way to a device in use is in use: a controller that hides others behind
    it would take them along.
    """
    found: dict[PciAddress, str] = {}
    disks, interfaces = _busy_disks(snapshot), _busy_interfaces(snapshot)
    for disk in snapshot.disks:
        if disk.name in disks:
            for path in disk.paths:
                for address in addresses_on(path):
                    found.setdefault(address, f"its disk {disk.name} {disks[disk.name]}")
    for interface in snapshot.interfaces:
        if interface.name in interfaces:
            for address in addresses_on(interface.path):
                reason = f"its interface {interface.name} {interfaces[interface.name]}"
                found.setdefault(address, reason)
    return found


def refusal_reason(
    function: PciFunction,
    busy: Mapping[PciAddress, str],
    open_vfio: Mapping[str, str],
    context: DriverContext,
    *,
    ours: bool,
) -> str | None:
    """Why this function must not be offered, as a clause; None when nothing speaks against it.

    ``ours`` tells that the conductor keeps the function as one of our deployables. A guest that
    holds such a function most likely got it from us: Nova attaches a bound unit through VFIO, so
    that looking held is what success looks like, and withdrawing it then would make every bind
    lose its own device. Only a function that was never ours is refused for being held.
    """
    if function.is_bridge:
        return "a bridge of the bus itself"
    if function.address in busy:
        return busy[function.address]
    if function.vfs:
        return f"it has {function.vfs} virtual functions; those can be offered"
    if not ours and (holder := _holder(function, open_vfio)):
        return f"held through VFIO by {holder}"
    return context.claims.get(str(function.address))


def _holder(function: PciFunction, open_vfio: Mapping[str, str]) -> str | None:
    for node in function.vfio_nodes:
        if node in open_vfio:
            return open_vfio[node]
    # Without the right to see other processes: the VFIO drivers switch a function on when its
    # node is opened and off when it is closed, so that an idle one reads 0 in "enable".
    return "another process" if function.on_vfio and function.enabled else None


def _busy_disks(snapshot: Snapshot) -> dict[str, str]:
    """The block devices in use by name, those that carry them included."""
    named = {disk.number: disk.name for disk in snapshot.disks if disk.number}
    busy = {disk.name: "cannot be read" for disk in snapshot.disks if disk.error}
    for line in snapshot.mounts:
        # proc(5), mountinfo: id, parent, major:minor, root, mount point …
        fields = line.split()
        if len(fields) > 4 and fields[2] in named:
            busy.setdefault(named[fields[2]], f"is mounted at {fields[4]}")
    for line in snapshot.swaps:
        path = line.partition(" ")[0].partition("\t")[0]
        if path.startswith("/dev/"):
            busy.setdefault(path.rpartition("/")[2], "holds swap space")
    for name in snapshot.btrfs:
        busy.setdefault(name, "is part of a mounted btrfs file system")
    _sink(busy, {disk.name: disk.slaves for disk in snapshot.disks})
    for disk in snapshot.disks:
        if disk.holders:
            busy.setdefault(disk.name, f"is held by {', '.join(disk.holders)}")
    return busy


def _busy_interfaces(snapshot: Snapshot) -> dict[str, str]:
    """The network interfaces in use by name, those that carry them included."""
    busy = {one.name: "cannot be read" for one in snapshot.interfaces if one.error}
    for name, reason in sorted(_traffic(snapshot), key=lambda one: one[1] != _DEFAULT_ROUTE):
        busy.setdefault(name, reason)
    _sink(busy, {one.name: one.lower for one in snapshot.interfaces})
    for one in snapshot.interfaces:
        if one.master:
            # A port of a bond, a bridge or Open vSwitch: its traffic is that of the whole.
            busy.setdefault(one.name, f"is a port of {one.master}")
    return busy


_DEFAULT_ROUTE = "carries the default route"


def _traffic(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """Interfaces with a route or an address.

    An IPv4 address shows by the routes that come with it. The link-local addresses that the
    kernel gives to every IPv6 interface which is up say nothing.
    """
    for line in snapshot.routes4:
        # /proc/net/route: interface, destination, gateway, flags, three counts, mask …
        fields = line.split()
        if len(fields) > 7 and fields[1] != "Destination":
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


def _sink(busy: dict[str, str], below: Mapping[str, Iterable[str]]) -> None:
    """Whatever carries something in use is in use as well, layer by layer."""
    todo = list(busy)
    # The list grows while it is walked: first come, first named.
    for name in todo:
        for lower in below.get(name, ()):
            if lower not in busy:
                busy[lower] = busy[name]
                todo.append(lower)
