# SPDX-License-Identifier: Apache-2.0
"""The ownership check: which PCI functions the host or other services use.

A function is refused when it is in use, and also when it is not known whether it is: a list that
cannot be read, a disk that cannot be tried, processes that cannot be seen. A bound host driver is
not a sign of use, because every idle card has one. Each reason says what an operator can do.
"""

import contextlib
import re
from collections.abc import Iterable, Mapping, Set
from functools import cached_property
from typing import Final

from cyborg import exception
from cyborg.drivers import monitors, pci_scan, platform_functions
from cyborg.drivers.files import OpenFiles, read_if_exists
from cyborg.drivers.host import Host
from cyborg.drivers.pci_function import PciFunction, addresses_in_path
from cyborg.drivers.pci_scan import Network, Snapshot, Storage
from cyborg.drivers.rtnetlink import Traffic
from cyborg.model.pci import PciAddress

#: Base classes of the PCI Code and ID Assignment Specification.
_STORAGE, _NETWORK, _DISPLAY, _BRIDGE = 0x01, 0x02, 0x03, 0x06
#: Functions that a GPU has beside itself, by class without the programming interface: audio (of
#: its video outputs), USB host controller and serial bus controller (of its USB-C port).
_COMPANIONS = {0x0403: "audio", 0x0C03: "USB", 0x0C80: "serial bus"}
#: The class of InfiniBand cards that are serial bus controllers, such as older ones of Mellanox.
_INFINIBAND = 0x0C06
#: The class of CXL memory devices, without their programming interface.
_CXL_MEMORY = 0x0502
#: libvirt knows domains of 16 bits only.
_MAX_DOMAIN = 0xFFFF
#: Host drivers that the other functions of a group may have while a guest has one of them: those
#: that set driver_managed_dma in the kernel, besides the VFIO drivers.
_NEUTRAL_DRIVERS = frozenset({None, "pci-stub", "pcieport"})
#: The vendors whose drivers do not show in sysfs to which card a device file belongs.
_NVIDIA, _HUAWEI = 0x10DE, 0x19E5
#: Their device files: /dev/nvidiaN has the minor number N, and of /dev/davinciN the kernel does not
#: tell the card.
_UNKNOWN_CARD = re.compile(r"/dev/(?:nvidia(?P<nvidia>[0-9]+)|davinci[0-9]+)")
#: A part of the paths of devices that VFIO drivers make.
_VFIO_DEVICES = "/vfio-dev/"


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
        #: Why a card that may manage NVSwitches must not be offered.
        self._managers: dict[PciAddress, str | None] = {}

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
            or (None if function.address in self._gpus else platform_functions.reason(function))
            or self._claim(function)
            or self.uses.get(function.address)
            or self._unknown_use(function)
            or (
                self._carved(function)
                or self._group(function, together)
                or self._companion_use(function, together)
                or self._token(function)
                if whole
                else None
            )
        )

    def probe(
        self, function: PciFunction, *, managed: bool, whole: bool, typed: bool = False
    ) -> str | None:
        """Ask the function itself why it must not be offered; return a clause or None.

        Its own files are read, its disks are tried, and the open files of processes are read. The
        driver of a broken device may never answer. ``managed`` says that the conductor keeps the
        function as a deployable. A guest that holds a managed function most likely got it from this
        service: Nova attaches a bound unit through VFIO, so a successful bind makes the function
        look held. If it were refused then, every bind would withdraw its own device. Only a
        function that is not managed is refused because it is held. ``typed`` says that this service
        sets the vGPU type of the virtual function, which may have one only if it is managed.
        """
        reason = (
            (self._parts(function, typed=typed and managed) if whole else None)
            or (self._direct_regions(function) if whole else None)
            or self._manager(function)
            or self._disk_claim(function)
            or (self._opened(function) if whole else None)
            or (None if managed else self._holder(function))
        )
        for other in self._companions.get(function.address, ()) if whole else ():
            use = (
                self._disk_claim(other)
                or self._opened(other)
                or (None if managed else self._holder(other))
            )
            reason = reason or _of_companion(other, use)
        return reason

    def use(self, function: PciFunction, *, opened: bool = False) -> str | None:
        """Return what uses a function now, the host or a guest, None if nothing does.

        This part of the check needs neither a configuration nor the conductor. The privileged
        process judges with it again what the agent requests. A vendor's driver may offer a function
        to guests through VFIO as well, so the nodes of VFIO count with every host driver. With
        ``opened``, the other device files of the function count as well: an action that takes the
        function from its driver waits in the kernel until they are closed.
        """
        return (
            self._kind(function)
            or self.uses.get(function.address)
            or self._unknown_use(function)
            or self._disk_claim(function)
            or (self._opened(function) if opened else None)
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
        base, is_network = function.class_code >> 16, _is_network(function)
        storage, network = self._devices.get(function.address, ([], []))
        for error, decides in (
            (self._snapshot.storage.error, storage or base == _STORAGE),
            (self._snapshot.network.error, network or is_network),
        ):
            if error is not None and decides:
                return f"it is not known what the host uses: {error}"
        if is_network and not network and not function.vfs:
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

    def _parts(self, function: PciFunction, *, typed: bool) -> str | None:
        """Return what the function itself tells of its parts, of which ``typed`` allows a vGPU."""
        files = ["sriov_numvfs"]
        if function.parent is not None and function.host_driver is not None and not typed:
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

    def _token(self, function: PciFunction) -> str | None:
        """Return why VFIO would not open a virtual function although it is free.

        While a VFIO driver has the physical function, the kernel opens a virtual function only with
        the token that the user of the physical function has set (``vfio_pci_validate_vf_token`` of
        drivers/vfio/pci), and libvirt passes none.
        """
        parent = None if function.parent is None else self._functions.get(function.parent)
        if parent is None or not parent.on_vfio:
            return None
        return (
            f"{parent.host_driver} has its physical function {parent.address}, so the kernel asks "
            "for a token that libvirt does not pass; bind the physical function to its own driver"
        )

    def _direct_regions(self, function: PciFunction) -> str | None:
        """Return why VFIO would not open a group for which the firmware needs fixed addresses.

        The kernel refuses a group with a region of type ``direct``; ``direct-relaxable`` is allowed
        (Documentation/ABI/testing/sysfs-kernel-iommu_groups).
        """
        path = f"/sys/kernel/iommu_groups/{function.group}/reserved_regions"
        try:
            text = read_if_exists(self._host.read_text, path) or ""
        except exception.HostError as error:
            return f"it is not known whether it can be assigned: {error}"
        if any(line.split()[2:] == ["direct"] for line in text.splitlines()):
            return (
                f"the firmware reserves memory for it ({path} has a region of type direct), so "
                "the kernel does not let a guest have it; turn that off in the firmware"
            )
        return None

    def _manager(self, function: PciFunction) -> str | None:
        """Return why a function, or the physical function of a virtual one, manages the host."""
        card = function if function.parent is None else self._functions.get(function.parent)
        if card is None or not platform_functions.may_manage_nvlink(card):
            return None
        if card.address not in self._managers:
            self._managers[card.address] = platform_functions.manager_reason(
                self._host, card, self._functions.values()
            )
        return self._managers[card.address]

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

    def _opened(self, function: PciFunction) -> str | None:
        """Return who has a device file of the function open, other than those of VFIO.

        The remove function of a host driver waits until they are closed, or fails, so a function
        that libvirt unbinds for a guest must not be open in any process. A monitor counts as well:
        NVIDIA's driver, for example, waits for the last close of any process.
        """
        if (console := self._console(function)) is not None:
            return console
        if (file := self._opened_files.get(function.address)) is not None:
            process = self._open_files.holders[file]
            if (remedy := monitors.remedy(process, function.address)) is not None:
                return f"the monitor {process} has its device file {file} open; {remedy}"
            return f"its device file {file} is open in {process}"
        if self._open_files.reason is None or self._is_idle(function):
            return None
        return (
            f"a process may have its device files open: {self._open_files.reason}; run "
            "cyborg-privileged in the process namespace of the host, or bind the function to "
            "vfio-pci"
        )

    def _console(self, function: PciFunction) -> str | None:
        """Return why the display of a function may show the console of the host.

        The frame buffer that the firmware has set up belongs to no PCI function in sysfs, but to
        the one with ``boot_vga`` (Documentation/ABI/testing/sysfs-bus-pci).
        """
        if function.class_code >> 16 != _DISPLAY:
            return None
        try:
            buffers = self._frame_buffers
            if any(function.address in addresses_in_path(path) for path in buffers) or (
                any(not addresses_in_path(path) for path in buffers)
                and pci_scan.attribute(self._host, str(function.address), "boot_vga") == "1"
            ):
                return (
                    "the console of the host is on its frame buffer; boot with another display, "
                    "or without the console on it (video=efifb:off)"
                )
        except exception.HostError as error:
            return f"the console of the host may be on its frame buffer: {error}"
        return None

    @cached_property
    def _frame_buffers(self) -> list[str]:
        return pci_scan.console_frame_buffers(self._host)

    def _is_idle(self, function: PciFunction) -> bool:
        """Return whether a function needs no list of open files to be known as closed.

        A network card without RDMA has no device file with which a process uses it, and is judged
        by its interfaces. ``_holder`` judges a function that a VFIO driver has. A process cannot
        use a function that has no driver and is not enabled.
        """
        name = str(function.address)
        if function.on_vfio:
            return True
        with contextlib.suppress(exception.HostError):
            if function.host_driver in _NEUTRAL_DRIVERS:
                return pci_scan.attribute(self._host, name, "enable") == "0"
            if _is_network(function):
                return not pci_scan.has_rdma(self._host, name)
        return False

    @cached_property
    def _opened_files(self) -> dict[PciAddress, str]:
        """Return for each function a device file of it that a process has open."""
        files: dict[PciAddress, str] = {}
        numbers = {minor: address for address, minor in self._snapshot.nvidia_minors.items()}
        for file in self._open_files.holders:
            place = self._open_files.devices.get(file, "")
            addresses = [] if _VFIO_DEVICES in place else addresses_in_path(place)
            with contextlib.suppress(exception.HostError):
                # A controller that has just gone is not offered anyway.
                for path in pci_scan.controllers(self._host, place):
                    addresses += addresses_in_path(path)
            if (match := _UNKNOWN_CARD.fullmatch(file)) is not None:
                if match["nvidia"] in numbers:
                    addresses += addresses_in_path(numbers[match["nvidia"]])
                else:
                    vendor = _NVIDIA if match["nvidia"] else _HUAWEI
                    addresses += [
                        function.address
                        for function in self._functions.values()
                        if function.vendor == vendor
                        and function.host_driver not in _NEUTRAL_DRIVERS
                        and not function.on_vfio
                    ]
            for address in addresses:
                files.setdefault(address, file)
        return files

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


def _is_network(function: PciFunction) -> bool:
    """Return whether a function is a network card; InfiniBand has a class of two bases."""
    return function.class_code >> 16 == _NETWORK or function.class_code >> 8 == _INFINIBAND


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
    for use in sorted(network.uses, key=lambda use: _ORDER.index(use.traffic)):
        busy.setdefault(use.interface, _TRAFFIC[use.traffic])
    _add_lower_layers(busy, {interface.name: interface.lower for interface in interfaces})
    for interface in interfaces:
        if interface.master:
            # A port of a bond, a bridge or Open vSwitch carries traffic of its master.
            busy.setdefault(interface.name, f"is a port of {interface.master}")
        if interface.upper:
            # Whatever is above, such as a VLAN or the macvtap device of a guest, has no address
            # where the traffic is that of a guest or of a container.
            busy.setdefault(interface.name, f"is below {', '.join(interface.upper)}")
    return busy


#: Clauses about interfaces with addresses, routes, sockets or programs, the most telling first.
_TRAFFIC: Final = {
    Traffic.DEFAULT_ROUTE: "carries the default route",
    Traffic.ADDRESS: "has an address",
    Traffic.ROUTE: "carries a route",
    Traffic.XDP: "has a program or a socket of XDP",
    Traffic.PACKET_SOCKET: (
        "has a packet socket, as of a DHCP client or of lldpd (ss -0p shows the process); end it "
        "or exclude the interface there"
    ),
}
_ORDER: Final = list(_TRAFFIC)


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
