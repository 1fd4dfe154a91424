# SPDX-License-Identifier: Apache-2.0
"""Read every PCI function of a host, and what uses it, from sysfs and /proc in one pass.

Nothing here needs a privilege, runs a command or draws a conclusion: the result is what the files
say. File names and formats are those of the kernel's ABI documents (sysfs-bus-pci, proc(5)).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from cyborg import exception
from cyborg.drivers.host import Host, if_there, is_missing, table

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

    ``vfio`` names its node below ``/dev/vfio/devices``. ``error`` tells what could not be read.
    """

    name: str
    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    vfio: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class RawInterface:
    """A network interface: its place in ``/sys/devices``, and those it stands on."""

    name: str
    path: str
    master: str | None = None
    lower: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class RawDisk:
    """A block device: its places in ``/sys/devices``, and what stands on it or below it.

    Several places are those of the controllers behind one NVMe multipath disk, whose own place is
    virtual.
    """

    name: str
    paths: tuple[str, ...]
    number: str | None = None
    holders: tuple[str, ...] = ()
    slaves: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Snapshot:
    """All that one pass has read; lists of lines are as the kernel printed them.

    ``open_vfio`` maps the nodes below ``/dev/vfio`` that are open to who has them, as far as this
    process may look; ``btrfs`` names the block devices of mounted btrfs file systems.
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
    """Read the host once; a host without a PCI bus gives an empty snapshot.

    What vanishes meanwhile is left out, what cannot be read carries its error. Raises
    exception.HostError when a whole list cannot be read: without it nobody can tell what is
    in use.
    """
    functions = tuple(_functions(host))
    if not functions:
        return Snapshot()
    vfio = any("vfio" in one.links.get("driver", "") for one in functions)
    return Snapshot(
        functions=functions,
        interfaces=tuple(_interfaces(host)),
        disks=tuple(_disks(host)),
        mounts=(*table(host, "/proc/self/mountinfo"), *_mounts_of_init(host)),
        swaps=tuple(table(host, "/proc/swaps")),
        btrfs=tuple(_btrfs(host)),
        routes4=tuple(table(host, "/proc/net/route")),
        routes6=tuple(table(host, "/proc/net/ipv6_route")),
        addresses6=tuple(table(host, "/proc/net/if_inet6")),
        open_vfio=_open_vfio(host) if vfio else {},
    )


def _names(host: Host, path: str) -> list[str]:
    """The names in a directory, none when there is no such directory."""
    try:
        return host.list_dir(path)
    except exception.HostError as error:
        if is_missing(error):
            return []
        raise


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _functions(host: Host) -> Iterator[RawFunction]:
    for name in _names(host, _FUNCTIONS):
        try:
            yield _function(host, name)
        except exception.HostError as error:
            if not is_missing(error):
                yield RawFunction(name, error=str(error))


def _function(host: Host, name: str) -> RawFunction:
    path = f"{_FUNCTIONS}/{name}"
    there = set(host.list_dir(path))
    # A link may go at any time, for a driver is unbound; a file goes only with the whole function.
    # So the files come last, and one that is missing then means that the card was pulled.
    vfio = _names(host, f"{path}/vfio-dev") if "vfio-dev" in there else []
    links = {one: if_there(host.readlink, f"{path}/{one}") for one in _LINKS if one in there}
    return RawFunction(
        name=name,
        files={one: host.read_text(f"{path}/{one}").strip() for one in _FILES if one in there},
        links={key: _last(target) for key, target in links.items() if target is not None},
        vfio=next(iter(vfio), None),
    )


def _interfaces(host: Host) -> Iterator[RawInterface]:
    for name in _names(host, _INTERFACES):
        path = if_there(host.realpath, f"{_INTERFACES}/{name}")
        if path is None:
            continue
        try:
            there = host.list_dir(path)
            master = if_there(host.readlink, f"{path}/master")
        except exception.HostError as error:
            # /sys/class/net/bonding_masters is a file among the interfaces.
            if not is_missing(error):
                yield RawInterface(name, path, error=str(error))
            continue
        lower = tuple(one.removeprefix("lower_") for one in there if one.startswith("lower_"))
        yield RawInterface(name, path, _last(master) if master else None, lower)


def _disks(host: Host) -> Iterator[RawDisk]:
    for name in _names(host, _DISKS):
        path = if_there(host.realpath, f"{_DISKS}/{name}")
        if path is None:
            continue
        try:
            yield RawDisk(
                name=name,
                paths=(path, *_controllers(host, path)),
                number=(if_there(host.read_text, f"{path}/dev") or "").strip() or None,
                holders=tuple(_names(host, f"{path}/holders")),
                slaves=tuple(_names(host, f"{path}/slaves")),
            )
        except exception.HostError as error:
            yield RawDisk(name, (path,), error=str(error))


def _controllers(host: Host, path: str) -> Iterator[str]:
    """The places of the NVMe controllers behind a disk below a virtual NVMe subsystem."""
    head, virtual, rest = path.partition("/nvme-subsystem/")
    if not virtual:
        return
    subsystem = f"{head}{virtual}{rest.partition('/')[0]}"
    for name in _names(host, subsystem):
        if name.removeprefix("nvme").isdigit():
            place = if_there(host.realpath, f"{subsystem}/{name}")
            if place is not None:
                yield place


def _btrfs(host: Host) -> Iterator[str]:
    for name in _names(host, _BTRFS):
        yield from _names(host, f"{_BTRFS}/{name}/devices")


def _mounts_of_init(host: Host) -> list[str]:
    """The mounts of process 1: in a container with the host's processes, the host's own."""
    try:
        return table(host, "/proc/1/mountinfo")
    except exception.HostError:
        # Not ours to read: then our own view of the mounts must do.
        return []


def _open_vfio(host: Host) -> dict[str, str]:
    """Which nodes below /dev/vfio are open, and in which process."""
    found: dict[str, str] = {}
    for process in _names(host, "/proc"):
        if not process.isdigit():
            continue
        try:
            for one in host.list_dir(f"/proc/{process}/fd"):
                target = if_there(host.readlink, f"/proc/{process}/fd/{one}") or ""
                if target.startswith(_VFIO_NODES):
                    found[target.removeprefix(_VFIO_NODES)] = _command(host, process)
        except exception.HostError:
            # Ended meanwhile, or another user's: the function's own state must tell.
            continue
    return found


def _command(host: Host, process: str) -> str:
    name = (if_there(host.read_text, f"/proc/{process}/comm") or "").strip()
    return f"{name} (process {process})" if name else f"process {process}"
