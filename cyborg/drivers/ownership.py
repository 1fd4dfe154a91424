# SPDX-License-Identifier: Apache-2.0
"""The ownership check: which PCI functions the host or other services use.

A function is refused when it is in use, and also when it is not known whether it is: a list that
cannot be read, a disk that cannot be tried, processes that cannot be seen. A bound host driver is
not a sign of use, because every idle card has one. Each reason says what an operator can do.
"""

import contextlib
import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cached_property

from cyborg import exception
from cyborg.drivers import pci_scan
from cyborg.drivers.host import Host, OpenFiles
from cyborg.drivers.pci_function import PciFunction, addresses_in_path
from cyborg.drivers.pci_scan import Network, Snapshot, Storage
from cyborg.model.pci import PciAddress

#: Base classes of the PCI Code and ID Assignment Specification.
_STORAGE, _NETWORK, _DISPLAY, _BRIDGE = 0x01, 0x02, 0x03, 0x06
#: Functions that a GPU has beside itself, by class without the programming interface: audio (of
#: its video outputs), USB host controller and serial bus controller (of its USB-C port).
_COMPANIONS = {0x0403: "audio", 0x0C03: "USB", 0x0C80: "serial bus"}
#: The class of CXL memory devices, without their programming interface.
_CXL_MEMORY = 0x0502
#: libvirt knows domains of 16 bits only.
_MAX_DOMAIN = 0xFFFF
#: Host drivers that the other functions of a group may have while a guest has one of them: those
#: that set driver_managed_dma in the kernel, besides the VFIO drivers.
_NEUTRAL_DRIVERS = frozenset({None, "pci-stub", "pcieport"})


class Ownership:
    """The uses of one snapshot; what the snapshot does not have is read once, when it is needed.

    ``claims`` maps canonical PCI addresses to a sentence that says why another service owns the
    function (Nova's providers in Placement).
    """

    def __init__(
        self,
        host: Host,
        snapshot: Snapshot,
        functions: Mapping[PciAddress, PciFunction],
        claims: Mapping[str, str],
    ) -> None:
        self._host = host
        self._snapshot = snapshot
        self._functions = functions
        self._claims = claims
        self._claimed_disks: dict[str, str | None] = {}

    def refusal(
        self, function: PciFunction, *, whole: bool, together: Set[PciAddress] = frozenset()
    ) -> str | None:
        """Return a clause that says why the function must not be offered, None when it may be.

        ``whole`` says that a guest gets the function itself, not a part of it. ``together`` are
        functions that the same guest gets: they are taken from their host drivers at the same time,
        so they may be in one IOMMU group, and a function that goes with a GPU may be among them.
        Only the snapshot is used: ``probe`` completes the answer.
        """
        return (
            self._kind(function)
            or self._gpu(function, together)
            or self._claim(function)
            or self.uses.get(function.address)
            or self._unknown_use(function)
            or (
                self._carved(function)
                or self._group(function, together)
                or self._companion_use(function, together)
                if whole
                else None
            )
        )

    def probe(self, function: PciFunction, *, managed: bool, whole: bool) -> str | None:
        """Ask the function itself why it must not be offered; return a clause or None.

        Its own files are read, its disks are tried, and the open files of processes are read. The
        driver of a broken device may never answer. ``managed`` says that the conductor keeps the
        function as a deployable. A guest that holds a managed function most likely got it from this
        service: Nova attaches a bound unit through VFIO, so a successful bind makes the function
        look held. If it were refused then, every bind would withdraw its own device. Only a
        function that is not managed is refused because it is held.
        """
        reason = (
            (self._parts(function) if whole else None)
            or self._disk_claim(function)
            or (None if managed else self._holder(function))
        )
        for other in self._companions.get(function.address, ()) if whole else ():
            use = self._disk_claim(other) or (None if managed else self._holder(other))
            reason = reason or _of_companion(other, use)
        return reason

    def use(self, function: PciFunction) -> str | None:
        """Return what uses a function now, the host or a guest, None if nothing does.

        This part of the check needs neither a configuration nor the conductor. The privileged
        process judges with it again what the agent requests. A vendor's driver may offer a function
        to guests through VFIO as well, so the nodes of VFIO count with every host driver.
        """
        return (
            self._kind(function)
            or self.uses.get(function.address)
            or self._unknown_use(function)
            or self._disk_claim(function)
            or self._holder(function)
            or self._node_holder(function)
        )

    @cached_property
    def uses(self) -> dict[PciAddress, str]:
        """Return for each PCI function that the host uses a clause that says for what.

        Every function on the path to a device in use is in use, too: a guest that gets a controller
        gets all devices behind it.
        """
        uses: dict[PciAddress, str] = {}
        storage, network = self._snapshot.storage, self._snapshot.network
        disks, interfaces = _busy_disks(storage), _busy_interfaces(network)
        for disk in storage.disks:
            if disk.name in disks:
                for path in disk.paths:
                    for address in addresses_in_path(path):
                        uses.setdefault(address, f"its disk {disk.name} {disks[disk.name]}")
        for interface in network.interfaces:
            if interface.name in interfaces:
                for address in addresses_in_path(interface.path):
                    reason = f"its interface {interface.name} {interfaces[interface.name]}"
                    uses.setdefault(address, reason)
        return uses

    def _kind(self, function: PciFunction) -> str | None:
        """Return why no function of this kind is offered."""
        if function.class_code >> 16 == _BRIDGE:
            return "a bridge of the bus itself"
        if function.class_code >> 8 == _CXL_MEMORY:
            return "it is CXL memory, which the host itself uses"
        if function.address.domain > _MAX_DOMAIN:
            return (
                "libvirt cannot assign functions of PCI domains above ffff; turn off the volume "
                "management (VMD) of its port in the firmware"
            )
        return None

    def _gpu(self, function: PciFunction, together: Set[PciAddress]) -> str | None:
        """Return the GPU that the function goes with: it is of no use to another guest."""
        gpu = self._gpus.get(function.address)
        return (
            None
            if gpu is None or gpu in together
            else f"it belongs to the GPU {gpu} and goes with it; select the GPU instead"
        )

    @cached_property
    def _gpus(self) -> dict[PciAddress, PciAddress]:
        companions = self._companions.items()
        return {other.address: gpu for gpu, others in companions for other in others}

    @cached_property
    def _companions(self) -> dict[PciAddress, list[PciFunction]]:
        """Return GPU → the other functions of its card that go with it."""
        cards: dict[tuple[int, int, int], list[PciFunction]] = {}
        for function in self._functions.values():
            if function.parent is None:
                address = function.address
                card = address.domain, address.bus, address.device
                cards.setdefault(card, []).append(function)
        companions = {}
        for functions in cards.values():
            gpus = [other for other in functions if other.class_code >> 16 == _DISPLAY]
            if gpus:
                gpu = min(gpus, key=lambda function: function.address.function)
                companions[gpu.address] = [
                    other
                    for other in functions
                    if other.class_code >> 8 in _COMPANIONS and other.vendor == gpu.vendor
                ]
        return companions

    def _companion_use(self, function: PciFunction, together: Set[PciAddress]) -> str | None:
        """Return which function that goes with a GPU is not free: then the GPU is not, either."""
        # The host driver of the GPU itself is none that keeps its companion busy.
        together = {*together, function.address}
        for other in self._companions.get(function.address, ()):
            use = (
                self._claim(other)
                or self.uses.get(other.address)
                or self._unknown_use(other)
                or self._group(other, together)
            )
            if use is not None:
                return _of_companion(other, use)
        return None

    def _claim(self, function: PciFunction) -> str | None:
        """Return the claim on the function, on its physical function or on one of its VFs.

        Nova names the provider of virtual functions after their physical function.
        """
        if not self._claims:
            return None
        for address in (
            function.address,
            function.parent,
            *self._children.get(function.address, ()),
        ):
            if str(address) in self._claims:
                return self._claims[str(address)]
        return None

    @cached_property
    def _children(self) -> dict[PciAddress, list[PciAddress]]:
        children: dict[PciAddress, list[PciAddress]] = {address: [] for address in self._functions}
        for function in self._functions.values():
            if function.parent in children:
                children[function.parent].append(function.address)
        return children

    def _unknown_use(self, function: PciFunction) -> str | None:
        """Return which list that decides about the function cannot be read."""
        base, (storage, network) = (
            function.class_code >> 16,
            self._devices.get(function.address, ([], [])),
        )
        for error, decides in (
            (self._snapshot.storage.error, storage or base == _STORAGE),
            (self._snapshot.network.error, network or base == _NETWORK),
        ):
            if error is not None and decides:
                return f"it is not known what the host uses: {error}"
        if base == _NETWORK and not network and not function.vfs:
            driver = function.host_driver
            if driver not in _NEUTRAL_DRIVERS and not function.on_vfio:
                return (
                    f"{driver} drives it, and the agent does not see its interface, which may be "
                    "in another network namespace; move it back, or bind the function to vfio-pci"
                )
        return None

    def _carved(self, function: PciFunction) -> str | None:
        """Return the parts of the function that the snapshot has, so that it is not whole."""
        if self._snapshot.parts_error is not None:
            return f"it is not known which parts it has: {self._snapshot.parts_error}"
        if function.vfs:
            return f"it has {function.vfs} virtual functions; those can be offered"
        parts = self._mediated.get(function.address)
        if parts:
            return f"it has {len(parts)} mediated device(s), for example {parts[0]}; remove them"
        if str(function.address) in self._snapshot.mig:
            return "it has MIG instances; destroy them with nvidia-smi mig -dci and -dgi"
        return None

    def _parts(self, function: PciFunction) -> str | None:
        """Return what the function itself tells of its parts."""
        files = ["sriov_numvfs"]
        if function.parent is not None and function.host_driver is not None:
            files.append("nvidia/current_vgpu_type")
        for file in files:
            try:
                text = pci_scan.attribute(self._host, str(function.address), file)
            except exception.HostError as error:
                return f"it may have parts: {error}"
            if text not in {None, "0"}:
                return f"its {file} reads {text[:40]!r}; write 0 to it"
        return None

    @cached_property
    def _mediated(self) -> dict[PciAddress, list[str]]:
        parts: dict[PciAddress, list[str]] = {}
        for path in self._snapshot.mediated:
            for address in addresses_in_path(path)[-1:]:
                parts.setdefault(address, []).append(path.rpartition("/")[2])
        return parts

    def _group(self, function: PciFunction, together: Set[PciAddress]) -> str | None:
        """Return why the IOMMU does not allow to assign the function.

        A guest gets a function only if no other driver than VFIO uses DMA in its group
        (Documentation/driver-api/vfio.rst).
        """
        if function.group is None:
            return (
                NO_IOMMU
                if all(other.group is None for other in self._functions.values())
                else "it is in no IOMMU group, so it cannot be assigned"
            )
        for other in self._groups.get(function.group, ()):
            if (
                other.address != function.address
                and other.address not in together
                and other.host_driver not in _NEUTRAL_DRIVERS
                and not other.on_vfio
            ):
                use = self.uses.get(other.address, f"{other.host_driver} drives it")
                return (
                    f"its IOMMU group {function.group} has {other.address}, too: {use}; bind that "
                    "function to vfio-pci"
                )
        return None

    @cached_property
    def _groups(self) -> dict[str | None, list[PciFunction]]:
        groups: dict[str | None, list[PciFunction]] = {}
        for function in self._functions.values():
            groups.setdefault(function.group, []).append(function)
        return groups

    def _disk_claim(self, function: PciFunction) -> str | None:
        """Return the disk of the function that something has claimed or opened."""
        for name in self._devices.get(function.address, ([], []))[0]:
            if name not in self._claimed_disks:
                self._claimed_disks[name] = self._try_disk(name)
            if (reason := self._claimed_disks[name]) is not None:
                return f"its disk {name} {reason}"
        return None

    def _try_disk(self, name: str) -> str | None:
        path = f"/dev/{name.replace('!', '/')}"
        if path in self._open_files.holders:
            return f"is open in {self._open_files.holders[path]}"
        if self._open_files.reason is not None:
            return f"may be open in a process: {self._open_files.reason}"
        try:
            if self._host.is_claimed(path):
                return "is claimed exclusively, for example by ZFS, LVM or a target; stop that"
        except exception.HostError as error:
            return f"may be in use, the agent cannot try it: {error}"
        return None

    def _holder(self, function: PciFunction) -> str | None:
        """Return who holds the function through VFIO."""
        if not function.on_vfio:
            return None
        holder = self._node_holder(function)
        if holder is not None or self._open_files.reason is None:
            return holder
        # The VFIO drivers enable a function when its node is opened, so nobody holds one that is
        # not enabled. One that is may have been left so by its former driver.
        with contextlib.suppress(exception.HostError):
            if pci_scan.attribute(self._host, str(function.address), "enable") == "0":
                return None
        return f"a process may hold it through VFIO: {self._open_files.reason}"

    def _node_holder(self, function: PciFunction) -> str | None:
        """Return who has a node of VFIO open, that of the function or of its IOMMU group."""
        holders = self._open_files.holders
        try:
            nodes = pci_scan.vfio_nodes(self._host, str(function.address), function.group)
        except exception.HostError as error:
            return f"a process may hold it through VFIO: {error}"
        for node in nodes:
            if node in holders:
                return f"held through VFIO by {holders[node]}"
        return None

    @cached_property
    def _open_files(self) -> OpenFiles:
        try:
            return self._host.open_files()
        except exception.HostError as error:
            return OpenFiles({}, str(error))

    @cached_property
    def _devices(self) -> dict[PciAddress, tuple[list[str], list[str]]]:
        """The disks and the interfaces behind each function."""
        devices: dict[PciAddress, tuple[list[str], list[str]]] = {
            address: ([], []) for address in self._functions
        }
        for disk in self._snapshot.storage.disks:
            # The paths of a multipath disk have no number, because nobody can open them.
            for path in disk.paths if disk.number is not None else ():
                for address in addresses_in_path(path):
                    if address in devices:
                        devices[address][0].append(disk.name)
        for interface in self._snapshot.network.interfaces:
            for address in addresses_in_path(interface.path):
                if address in devices:
                    devices[address][1].append(interface.name)
        return devices


#: Why nothing is offered on a host without IOMMU groups; drivers log it once for all functions.
NO_IOMMU = (
    "the host has no IOMMU, so no function can be assigned; turn it on in the firmware, and on the "
    "kernel's command line (intel_iommu=on)"
)


def _of_companion(function: PciFunction, use: str | None) -> str | None:
    """Return the clause about a GPU whose companion is used so; None: it is not."""
    if use is None:
        return None
    kind = _COMPANIONS[function.class_code >> 8]
    return f"its {kind} function {function.address} goes with it, but is not free: {use}"


def _busy_disks(storage: Storage) -> dict[str, str]:
    """Return a clause for each block device in use, including those below it."""
    names = {disk.number: disk.name for disk in storage.disks if disk.number}
    busy = {disk.name: "cannot be read" for disk in storage.disks if disk.error}
    for line in storage.mounts:
        # proc(5), mountinfo: id, parent, major:minor, root, mount point …
        fields = line.split()
        if len(fields) > 4 and fields[2] in names:
            busy.setdefault(names[fields[2]], f"is mounted at {fields[4]}")
    for line in storage.swaps:
        path = line.partition(" ")[0].partition("\t")[0]
        if path.startswith("/dev/"):
            busy.setdefault(path.rpartition("/")[2], "holds swap space")
    for name, kind in storage.file_systems.items():
        busy.setdefault(name, f"is part of a mounted {kind} file system")
    _add_lower_layers(busy, {disk.name: disk.slaves for disk in storage.disks})
    for disk in storage.disks:
        if disk.holders:
            busy.setdefault(disk.name, f"is held by {', '.join(disk.holders)}")
    return busy


def _busy_interfaces(network: Network) -> dict[str, str]:
    """Return a clause for each network interface in use, including those below it."""
    interfaces = network.interfaces
    busy = {interface.name: "cannot be read" for interface in interfaces if interface.error}
    for name, reason in sorted(_traffic(network), key=lambda use: use[1] != _DEFAULT_ROUTE):
        busy.setdefault(name, reason)
    _add_lower_layers(busy, {interface.name: interface.lower for interface in interfaces})
    for interface in interfaces:
        if interface.master:
            # A port of a bond, a bridge or Open vSwitch carries traffic of its master.
            busy.setdefault(interface.name, f"is a port of {interface.master}")
    return busy


_DEFAULT_ROUTE = "carries the default route"


def _traffic(network: Network) -> Iterator[tuple[str, str]]:
    """Yield each interface that has a route or an address, with a clause.

    An IPv4 address is visible through its routes. The link-local addresses that the kernel gives to
    every IPv6 interface that is up are not a sign of use.
    """
    for line in network.routes4:
        # /proc/net/route: interface, destination, gateway, flags, three counts, mask …; the heading
        # is no line of an interface that exists.
        fields = line.split()
        if len(fields) > 7:
            default = fields[1] == fields[7] == "00000000"
            yield fields[0], _DEFAULT_ROUTE if default else "carries an IPv4 network"
    for line in network.routes6:
        # /proc/net/ipv6_route: destination, its prefix length, seven more, interface
        fields = line.split()
        if len(fields) > 9 and fields[9] != "lo" and _is_routed(fields[0]):
            default = fields[1] == "00"
            yield fields[9], _DEFAULT_ROUTE if default else "carries an IPv6 network"
    for line in network.addresses6:
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
