# SPDX-License-Identifier: Apache-2.0
"""Read every PCI function of a host and its uses from sysfs and /proc in one pass.

The pass needs no privileges and runs no command. The result is the unprocessed content of the
files. File names and formats are those of the kernel's ABI documents (sysfs-bus-pci, proc(5)).
"""

import errno
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from cyborg import exception
from cyborg.drivers.files import TABLE_LIMIT, is_missing, read_if_exists
from cyborg.drivers.host import Host
from cyborg.drivers.pci_function import RawFunction
from cyborg.drivers.rtnetlink import Use

_FUNCTIONS = "/sys/bus/pci/devices"
_INTERFACES = "/sys/class/net"
_DISKS = "/sys/class/block"
_FILE_SYSTEMS = "/sys/fs"
_MEDIATED = "/sys/bus/mdev/devices"
_CONSOLES = "/sys/class/vtconsole"
_FRAME_BUFFERS = "/sys/class/graphics"
_NVIDIA = "/proc/driver/nvidia"
#: Files of functions that tell what they are, for trees of a host without ``uevent``.
_IDENTITY = ("vendor", "device", "class")
#: The numbers of virtual functions have 16 bits.
_VFS_DIGITS = 5
#: The kernel counts mediated devices in 32 bits.
_COUNT_DIGITS = 10


@dataclass(frozen=True)
class RawInterface:
    """A network interface: its path in ``/sys/devices``, and the interfaces around it.

    ``master`` is a bridge, bond or the like of which it is a port. ``lower`` are the interfaces
    below it, and ``upper`` those above it, such as VLANs and macvtap devices.
    """

    name: str
    path: str
    master: str | None = None
    lower: tuple[str, ...] = ()
    upper: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class RawDisk:
    """A block device: its paths in ``/sys/devices``, and the devices above and below it.

    An NVMe multipath disk has a virtual path and the paths of the controllers behind it.
    """

    name: str
    paths: tuple[str, ...]
    number: str | None = None
    holders: tuple[str, ...] = ()
    slaves: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Storage:
    """The block devices and what uses them; lists of lines are as the kernel printed them.

    ``file_systems`` maps block devices to the kind of the mounted file system below ``/sys/fs``
    that has them, in any mount namespace. ``error`` says which list cannot be read; what is in use
    is not known then.
    """

    disks: tuple[RawDisk, ...] = ()
    mounts: tuple[str, ...] = ()
    swaps: tuple[str, ...] = ()
    file_systems: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class Network:
    """The interfaces of this network namespace, and what shows that they carry traffic.

    ``error`` says which list cannot be read; what is in use is not known then.
    """

    interfaces: tuple[RawInterface, ...] = ()
    uses: tuple[Use, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Snapshot:
    """The result of one pass.

    ``mediated`` are the paths of the mediated devices in ``/sys/devices``, with the name of the
    type of each. ``nvidia_minors`` has the minor numbers of GPUs by their addresses, as NVIDIA's
    driver spells them, and ``mig`` the addresses of the GPUs with MIG instances. ``parts_error``
    says which of these lists cannot be read.
    """

    functions: tuple[RawFunction, ...] = ()
    storage: Storage = Storage()
    network: Network = Network()
    mediated: Mapping[str, str] = field(default_factory=dict)
    nvidia_minors: Mapping[str, str] = field(default_factory=dict)
    mig: frozenset[str] = frozenset()
    parts_error: str | None = None


def read(host: Host) -> Snapshot:
    """Read the host once; the snapshot of a host without a PCI bus is empty.

    A function or device that vanishes meanwhile is left out; one that cannot be read has its error.
    Raises exception.HostError when the functions cannot be listed.
    """
    functions = tuple(_functions(host))
    if not functions:
        return Snapshot()
    snapshot = Snapshot(functions, _storage(host), _network(host))
    try:
        snapshot = replace(snapshot, nvidia_minors=_nvidia_minors(host, functions))
        mig = frozenset(_mig(host, snapshot.nvidia_minors))
        return replace(snapshot, mediated=_mediated(host), mig=mig)
    except exception.HostError as error:
        return replace(snapshot, parts_error=str(error))


def read_uses(host: Host, names: Iterable[str]) -> Snapshot:
    """Read what uses the host, and only these functions; see ``read``.

    A function that is not on the bus is left out.
    """
    functions = (read_function(host, name) for name in names)
    present = tuple(function for function in functions if function is not None)
    snapshot = Snapshot(present, _storage(host), _network(host))
    try:
        return replace(snapshot, nvidia_minors=_nvidia_minors(host, present))
    except exception.HostError as error:
        return replace(snapshot, parts_error=str(error))


def read_function(host: Host, name: str) -> RawFunction | None:
    """Read what one function is; None when it is not on the bus."""
    path = f"{_FUNCTIONS}/{name}"
    try:
        # A link can vanish at any time, when a driver is unbound; a file vanishes only with the
        # whole function. So the files come last, and a missing file means that the card was
        # removed.
        links = {}
        for link in ("physfn", "iommu_group"):
            target = read_if_exists(host.readlink, f"{path}/{link}")
            if target is not None:
                links[link] = _last_part(target)
        files: dict[str, str] = {}
        uevent = read_if_exists(host.read_text, f"{path}/uevent")
        if uevent is not None:
            files = dict(line.partition("=")[::2] for line in uevent.splitlines())
        if "PCI_ID" not in files:
            entries = host.list_dir(path)
            files |= {
                file: host.read_text(f"{path}/{file}").strip()
                for file in _IDENTITY
                if file in entries
            }
            driver = read_if_exists(host.readlink, f"{path}/driver")
            if driver is not None:
                files["DRIVER"] = _last_part(driver)
    except exception.HostError as error:
        return None if is_missing(error) else RawFunction(name, error=str(error))
    return RawFunction(name, files, links)


def attribute(host: Host, name: str, file: str) -> str | None:
    """Return the stripped content of a file of a function, None where there is no such file.

    Raises exception.HostError when it cannot be read.
    """
    text = read_if_exists(host.read_text, f"{_FUNCTIONS}/{name}/{file}")
    return None if text is None else text.strip()


def console_frame_buffers(host: Host) -> list[str]:
    """Return the paths of the frame buffers of a host whose console is on one; none if it is not.

    Sources: Documentation/fb/fbcon.rst and Documentation/ABI/testing/sysfs-class-vtconsole of
    Linux. Raises exception.HostError if the consoles cannot be read.
    """
    for name in _names(host, _CONSOLES):
        kind = host.read_text(f"{_CONSOLES}/{name}/name")
        if "frame buffer" in kind and host.read_text(f"{_CONSOLES}/{name}/bind").strip() == "1":
            buffers = [entry for entry in _names(host, _FRAME_BUFFERS) if entry[2:].isdecimal()]
            places = (_place(host, f"{_FRAME_BUFFERS}/{buffer}") for buffer in buffers)
            return [place for place in places if place is not None]
    return []


def has_rdma(host: Host, name: str) -> bool:
    """Return whether a function has a device with which processes use RDMA."""
    return bool(_names(host, f"{_FUNCTIONS}/{name}/infiniband_verbs"))


def vfio_devices(host: Host, name: str) -> list[str]:
    """Return the names below ``/dev/vfio/devices`` of a function that a VFIO driver has."""
    return _names(host, f"{_FUNCTIONS}/{name}/vfio-dev")


def vfio_nodes(host: Host, name: str, group: str | None) -> list[str]:
    """Return the paths of the VFIO nodes of a function in an IOMMU group, or in none.

    They are those of the function, of its group, and of a group without IOMMU.
    """
    nodes = [f"devices/{device}" for device in vfio_devices(host, name)]
    if group is not None:
        nodes += [group, f"noiommu-{group}"]
    return [f"/dev/vfio/{node}" for node in nodes]


def mdev_types(host: Host, name: str) -> dict[str, tuple[int, int]]:
    """Return the types of mediated devices of a function: the number free now, and of those made.

    Raises exception.HostError when the lists of the card cannot be read.
    """
    path = f"{_FUNCTIONS}/{name}/mdev_supported_types"
    types = {}
    for kind in _names(host, path):
        free = host.read_text(f"{path}/{kind}/available_instances").strip()
        if not (free.isascii() and free.isdecimal() and len(free) <= _COUNT_DIGITS):
            reason = f"available_instances of {kind} reads {free[:40]!r}"
            raise exception.HostError(action=f"reading {path}", reason=reason)
        types[kind] = int(free), len(_names(host, f"{path}/{kind}/devices"))
    return types


def vfs(host: Host, name: str) -> tuple[int, int]:
    """Return how many virtual functions a function has now, and how many it can have.

    Both are 0 without SR-IOV. Raises exception.HostError when they cannot be read.
    """
    numbers = []
    for file in ("sriov_numvfs", "sriov_totalvfs"):
        text = attribute(host, name, file) or "0"
        if not (text.isascii() and text.isdecimal() and len(text) <= _VFS_DIGITS):
            reason = f"{file} reads {text[:40]!r}"
            raise exception.HostError(action=f"reading {_FUNCTIONS}/{name}", reason=reason)
        numbers.append(int(text))
    return numbers[0], numbers[1]


def _names(host: Host, path: str) -> list[str]:
    """Return the names in a directory, none when the directory does not exist."""
    try:
        return host.list_dir(path)
    except exception.HostError as error:
        if is_missing(error):
            return []
        raise


def _lines(host: Host, path: str) -> tuple[str, ...]:
    """Return the lines of a list below /proc, which must exist."""
    return tuple(host.read_text(path, limit=TABLE_LIMIT).splitlines())


def _last_part(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _functions(host: Host) -> Iterator[RawFunction]:
    for name in _names(host, _FUNCTIONS):
        function = read_function(host, name)
        if function is not None:
            yield function


def _storage(host: Host) -> Storage:
    storage = Storage()
    try:
        storage = replace(storage, disks=tuple(_disks(host)))
        storage = replace(storage, file_systems=dict(_file_systems(host)))
        try:
            # In a container with the host's processes, process 1 has the mounts of the host.
            init_mounts = _lines(host, "/proc/1/mountinfo")
        except exception.HostError:
            # Without permission, the mounts of this process and /sys/fs must suffice.
            init_mounts = ()
        storage = replace(storage, mounts=init_mounts, swaps=_lines(host, "/proc/swaps"))
        return replace(storage, mounts=(*_lines(host, "/proc/self/mountinfo"), *init_mounts))
    except exception.HostError as error:
        return replace(storage, error=str(error))


def _file_systems(host: Host) -> Iterator[tuple[str, str]]:
    """Yield the block devices of mounted file systems, each with the kind of the file system.

    ext4, xfs, f2fs and others have a directory for each device, btrfs and bcachefs one for each
    file system (Documentation/ABI/testing/sysfs-fs-*).
    """
    for kind in _names(host, _FILE_SYSTEMS):
        for name in _names(host, f"{_FILE_SYSTEMS}/{kind}"):
            yield name, kind
            if kind == "btrfs":
                for device in _names(host, f"{_FILE_SYSTEMS}/{kind}/{name}/devices"):
                    yield device, kind
            elif kind == "bcachefs":
                for member in _names(host, f"{_FILE_SYSTEMS}/{kind}/{name}"):
                    path = f"{_FILE_SYSTEMS}/{kind}/{name}/{member}/block"
                    if member.startswith("dev-") and (
                        device_link := read_if_exists(host.readlink, path)
                    ):
                        yield _last_part(device_link), kind


def _network(host: Host) -> Network:
    network = Network()
    try:
        network = replace(network, interfaces=tuple(_interfaces(host)))
        return replace(network, uses=tuple(host.network_uses()))
    except exception.HostError as error:
        return replace(network, error=str(error))


def _place(host: Host, entry: str) -> str | None:
    """Return the directory of a device that an entry of a class in sysfs links to.

    Only the link is read: a device that hangs does not keep the place of itself or of others from
    being known. None: the entry has just gone, or it is no device, such as the file
    bonding_masters among the interfaces.
    """
    try:
        target = host.readlink(entry)
    except exception.HostError as error:
        if is_missing(error) or error.fields.get("errno") == errno.EINVAL:
            return None
        raise
    return posixpath.normpath(posixpath.join(posixpath.dirname(entry), target))


def _interfaces(host: Host) -> Iterator[RawInterface]:
    for name in _names(host, _INTERFACES):
        path = _place(host, f"{_INTERFACES}/{name}")
        if path is None:
            continue
        try:
            entries = host.list_dir(path)
            master = read_if_exists(host.readlink, f"{path}/master")
        except exception.HostError as error:
            if not is_missing(error):
                yield RawInterface(name, path, error=str(error))
            continue
        lower, upper = (
            tuple(entry.removeprefix(prefix) for entry in entries if entry.startswith(prefix))
            for prefix in ("lower_", "upper_")
        )
        yield RawInterface(name, path, _last_part(master) if master else None, lower, upper)


def _disks(host: Host) -> Iterator[RawDisk]:
    for name in _names(host, _DISKS):
        path = _place(host, f"{_DISKS}/{name}")
        if path is None:
            continue
        try:
            yield RawDisk(
                name=name,
                paths=(path, *controllers(host, path)),
                number=(read_if_exists(host.read_text, f"{path}/dev") or "").strip() or None,
                holders=tuple(_names(host, f"{path}/holders")),
                slaves=tuple(_names(host, f"{path}/slaves")),
            )
        except exception.HostError as error:
            yield RawDisk(name, (path,), error=str(error))


def controllers(host: Host, path: str) -> Iterator[str]:
    """Yield the paths of the NVMe controllers behind a device of a virtual NVMe subsystem."""
    head, virtual, rest = path.partition("/nvme-subsystem/")
    if not virtual:
        return
    subsystem = f"{head}{virtual}{rest.partition('/')[0]}"
    for name in _names(host, subsystem):
        if name.removeprefix("nvme").isdigit():
            controller = read_if_exists(host.realpath, f"{subsystem}/{name}")
            if controller is not None:
                yield controller


def _mediated(host: Host) -> dict[str, str]:
    """Return the mediated devices: path in ``/sys/devices`` → type."""
    devices = {}
    for name in _names(host, _MEDIATED):
        path = read_if_exists(host.realpath, f"{_MEDIATED}/{name}")
        if path is not None:
            kind = read_if_exists(host.readlink, f"{path}/mdev_type")
            devices[path] = _last_part(kind or "")
    return devices


def _nvidia_minors(host: Host, functions: Iterable[RawFunction]) -> dict[str, str]:
    """Return the minor numbers of the GPUs that NVIDIA's driver has, by address.

    The number of each GPU is in ``gpus/ADDRESS/information``, and its device file is ``nvidiaN``.
    """
    minors: dict[str, str] = {}
    if all(function.files.get("DRIVER") != "nvidia" for function in functions):
        return minors
    read: Callable[[str], str] = host.read_text
    for address in _names(host, f"{_NVIDIA}/gpus"):
        text = read_if_exists(read, f"{_NVIDIA}/gpus/{address}/information") or ""
        for line in text.splitlines():
            if "Device Minor" in line:
                minors[address] = line.partition(":")[2].strip()
    return minors


def _mig(host: Host, minors: Mapping[str, str]) -> Iterator[str]:
    """Yield the addresses of the GPUs with MIG instances.

    NVIDIA's driver has a directory for each instance below ``capabilities/gpuN/mig`` (NVIDIA's MIG
    User Guide, "Device Nodes and Capabilities").
    """
    for address, minor in minors.items():
        names = _names(host, f"{_NVIDIA}/capabilities/gpu{minor}/mig")
        if any(name.startswith("gi") for name in names):
            yield address
