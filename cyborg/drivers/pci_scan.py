# SPDX-License-Identifier: Apache-2.0
"""Read every PCI function of a host and its uses from sysfs and /proc in one pass.

The scan needs no privileges and runs no command. The result is the unprocessed content of the
files. File names and formats are those of the kernel's ABI documents (sysfs-bus-pci, proc(5)).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from cyborg import exception
from cyborg.drivers.host import Host, is_missing, proc_lines, read_if_exists

_FUNCTIONS = "/sys/bus/pci/devices"
_INTERFACES = "/sys/class/net"
_DISKS = "/sys/class/block"
_BTRFS = "/sys/fs/btrfs"
_VFIO_NODES = "/dev/vfio/"
_FILES = ("vendor", "device", "class", "numa_node", "sriov_numvfs", "enable")
_LINKS = ("driver", "physfn", "iommu_group")


@dataclass(frozen=True)
class RawFunction:
    """One directory of the PCI bus: stripped file contents, and the last part of each link.

    ``vfio`` names its node below ``/dev/vfio/devices``. ``error`` says what could not be read.
    """

    name: str
    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    vfio: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class RawInterface:
    """A network interface: its path in ``/sys/devices``, its master and the interfaces below it."""

    name: str
    path: str
    master: str | None = None
    lower: tuple[str, ...] = ()
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
class Snapshot:
    """The result of one pass; lists of lines are as the kernel printed them.

    ``open_vfio`` maps each open node below ``/dev/vfio`` to the process that has it open, as far as
    this process may read that. ``btrfs`` names the block devices of mounted btrfs file systems.
    """

    functions: tuple[RawFunction, ...] = ()
    interfaces: tuple[RawInterface, ...] = ()
    disks: tuple[RawDisk, ...] = ()
    mounts: tuple[str, ...] = ()
    swaps: tuple[str, ...] = ()
    btrfs: tuple[str, ...] = ()
    routes4: tuple[str, ...] = ()
    routes6: tuple[str, ...] = ()
    addresses6: tuple[str, ...] = ()
    open_vfio: dict[str, str] = field(default_factory=dict)


def read(host: Host) -> Snapshot:
    """Read the host once; the snapshot of a host without a PCI bus is empty.

    A function or device that vanishes meanwhile is left out; one that cannot be read has its error.
    Raises exception.HostError when a whole list cannot be read, because then it is not known what
    is in use.
    """
    functions = tuple(_functions(host))
    if not functions:
        return Snapshot()
    try:
        # In a container with the host's processes, process 1 has the mounts of the host.
        init_mounts = proc_lines(host, "/proc/1/mountinfo")
    except exception.HostError:
        # Without permission, the mounts of this process must suffice.
        init_mounts = []
    vfio = any("vfio" in function.links.get("driver", "") for function in functions)
    return Snapshot(
        functions=functions,
        interfaces=tuple(_interfaces(host)),
        disks=tuple(_disks(host)),
        mounts=(*proc_lines(host, "/proc/self/mountinfo"), *init_mounts),
        swaps=tuple(proc_lines(host, "/proc/swaps")),
        btrfs=tuple(
            device
            for name in _names(host, _BTRFS)
            for device in _names(host, f"{_BTRFS}/{name}/devices")
        ),
        routes4=tuple(proc_lines(host, "/proc/net/route")),
        routes6=tuple(proc_lines(host, "/proc/net/ipv6_route")),
        addresses6=tuple(proc_lines(host, "/proc/net/if_inet6")),
        open_vfio=_open_vfio(host) if vfio else {},
    )


def _names(host: Host, path: str) -> list[str]:
    """Return the names in a directory, none when the directory does not exist."""
    try:
        return host.list_dir(path)
    except exception.HostError as error:
        if is_missing(error):
            return []
        raise


def _last_part(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _functions(host: Host) -> Iterator[RawFunction]:
    for name in _names(host, _FUNCTIONS):
        path = f"{_FUNCTIONS}/{name}"
        try:
            entries = set(host.list_dir(path))
            # A link can vanish at any time, when a driver is unbound; a file vanishes only with the
            # whole function. So the files come last, and a missing file means that the card was
            # removed.
            vfio = _names(host, f"{path}/vfio-dev") if "vfio-dev" in entries else []
            links = {
                link: read_if_exists(host.readlink, f"{path}/{link}")
                for link in _LINKS
                if link in entries
            }
            files = {
                file: host.read_text(f"{path}/{file}").strip() for file in _FILES if file in entries
            }
        except exception.HostError as error:
            if not is_missing(error):
                yield RawFunction(name, error=str(error))
            continue
        targets = {link: _last_part(target) for link, target in links.items() if target is not None}
        yield RawFunction(name, files, targets, vfio=next(iter(vfio), None))


def _interfaces(host: Host) -> Iterator[RawInterface]:
    for name in _names(host, _INTERFACES):
        path = read_if_exists(host.realpath, f"{_INTERFACES}/{name}")
        if path is None:
            continue
        try:
            entries = host.list_dir(path)
            master = read_if_exists(host.readlink, f"{path}/master")
        except exception.HostError as error:
            # /sys/class/net/bonding_masters is a file among the interfaces.
            if not is_missing(error):
                yield RawInterface(name, path, error=str(error))
            continue
        prefix = "lower_"
        lower = tuple(name.removeprefix(prefix) for name in entries if name.startswith(prefix))
        yield RawInterface(name, path, _last_part(master) if master else None, lower)


def _disks(host: Host) -> Iterator[RawDisk]:
    for name in _names(host, _DISKS):
        path = read_if_exists(host.realpath, f"{_DISKS}/{name}")
        if path is None:
            continue
        try:
            yield RawDisk(
                name=name,
                paths=(path, *_controllers(host, path)),
                number=(read_if_exists(host.read_text, f"{path}/dev") or "").strip() or None,
                holders=tuple(_names(host, f"{path}/holders")),
                slaves=tuple(_names(host, f"{path}/slaves")),
            )
        except exception.HostError as error:
            yield RawDisk(name, (path,), error=str(error))


def _controllers(host: Host, path: str) -> Iterator[str]:
    """Yield the paths of the NVMe controllers behind a disk of a virtual NVMe subsystem."""
    head, virtual, rest = path.partition("/nvme-subsystem/")
    if not virtual:
        return
    subsystem = f"{head}{virtual}{rest.partition('/')[0]}"
    for name in _names(host, subsystem):
        if name.removeprefix("nvme").isdigit():
            controller = read_if_exists(host.realpath, f"{subsystem}/{name}")
            if controller is not None:
                yield controller


def _open_vfio(host: Host) -> dict[str, str]:
    """Return the open nodes below /dev/vfio, each with the process that has it open."""
    nodes: dict[str, str] = {}
    for process in _names(host, "/proc"):
        if not process.isdigit():
            continue
        try:
            for descriptor in host.list_dir(f"/proc/{process}/fd"):
                target = read_if_exists(host.readlink, f"/proc/{process}/fd/{descriptor}") or ""
                if target.startswith(_VFIO_NODES):
                    nodes[target.removeprefix(_VFIO_NODES)] = _command(host, process)
        except exception.HostError:
            # Ended, or of another user: then the state of the function must suffice.
            continue
    return nodes


def _command(host: Host, process: str) -> str:
    name = (read_if_exists(host.read_text, f"/proc/{process}/comm") or "").strip()
    return f"{name} (process {process})" if name else f"process {process}"
