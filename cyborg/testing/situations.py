# SPDX-License-Identifier: Apache-2.0
"""Situations of a simulated host: a function in use, a card in another slot, two cards swapped.

A function is named by its address, as in ``/sys/bus/pci/devices``. File names and formats are those
of the kernel's ABI documents (sysfs-bus-pci, proc(5)).
"""

import contextlib
import errno
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from cyborg import exception
from cyborg.drivers.rtnetlink import Traffic
from cyborg.testing import servers
from cyborg.testing.fake_host import FakeHost

_FUNCTIONS = "/sys/bus/pci/devices"
_MOUNTS = "/proc/self/mountinfo"
#: Names and numbers that no recording has.
_DISK, _DISK_NUMBER, _INTERFACE, _PROCESS = "kitdisk", "251:4095", "kitnet", 4190001
_NODE = "kitnode"
#: A name that the kernel numbers: nvme0, renderD128, mlx5_0, dfl-fme.0.
_NUMBERED = re.compile(r"((?:[A-Za-z]+|[a-z]+[0-9]+_|[a-z-]+\.))([0-9]+)")
_GROUP = "iommu_groups/"
#: Classes whose names have other rules: disks have those of their controllers, and udev names
#: interfaces by their place.
_NAMED_OTHERWISE = frozenset({"block", "net"})
_PART = "5a1fbd6e-6f5c-4c59-9c0b-6d1f1f0d3c11"


@dataclass(frozen=True)
class Situation:
    """A use of a function. ``reason`` is a clause, ``arrange`` changes the host.

    With ``whole`` the use matters only for a function that a guest gets as a whole.
    """

    reason: str
    arrange: Callable[[FakeHost, str], None]
    whole: bool = False
    claimed: bool = False

    def claims(self, address: str) -> dict[str, str]:
        """Return the claims of other services that belong to the situation; see ``Scan``."""
        return {address: "Nova offers it"} if self.claimed else {}


def uses() -> tuple[Situation, ...]:
    """Return the situations in which no driver may offer a function."""
    return (
        Situation("a disk behind it is mounted", _mount),
        Situation("it has a disk, and the list of mounts cannot be read", _hide_mounts),
        Situation("a disk behind it is claimed exclusively", _claim_disk),
        Situation("an interface behind it has the default route", _route),
        Situation("an interface behind it has an address", _address),
        Situation("an interface behind it has a VLAN", _vlan),
        Situation("Nova offers it", lambda host, address: None, claimed=True),
        Situation("a process has a device file of it open", _open_node, whole=True),
        Situation("a process has its memory mapped", _map_memory, whole=True),
        Situation("a process holds it through VFIO", hold, whole=True),
        Situation(
            "a host driver has another function of its IOMMU group", _share_group, whole=True
        ),
        Situation("the firmware reserves memory for its group", _reserve, whole=True),
        Situation("it has a mediated device", _carve, whole=True),
        Situation("its sriov_numvfs is not 0", _split, whole=True),
    )


def directory(host: FakeHost, address: str) -> str | None:
    """Return the real directory of a function, None when the bus does not have it."""
    place = f"{_FUNCTIONS}/{address}"
    return host.realpath(place) if host.exists(place) else None


def unplug(host: FakeHost, address: str) -> None:
    """Take a function off the bus."""
    real = directory(host, address)
    if real is not None:
        host.remove(real)
    host.remove(f"{_FUNCTIONS}/{address}")


def hold(host: FakeHost, address: str) -> None:
    """Bind a function to vfio-pci and let a process hold its group, as a guest does."""
    real = _real(host, address)
    host.add_link(f"{real}/driver", "/sys/bus/pci/drivers/vfio-pci")
    uevent = host.content(f"{real}/uevent")
    if uevent is not None:
        lines = [line for line in uevent.splitlines() if not line.startswith(b"DRIVER=")]
        host.add_file(f"{real}/uevent", b"\n".join([b"DRIVER=vfio-pci", *lines, b""]))
    servers.open_vfio(host, _group(host, real), _PROCESS, "qemu-system-x86")


def free_addresses(host: FakeHost) -> tuple[str, str]:
    """Return two addresses without a function: one before most functions, and one after them."""
    names = host.list_dir(_FUNCTIONS) if host.exists(_FUNCTIONS) else []
    used = {name[: len("0000:00")] for name in names}
    buses = [bus for bus in range(1, 0xFF) if f"0000:{bus:02x}" not in used]
    return f"0000:{buses[0]:02x}:00.0", f"0000:{buses[-1]:02x}:00.0"


def add_bridges(host: FakeHost, count: int) -> None:
    """Add functions that no driver offers, up to 256, because large servers have many."""
    bus = free_addresses(host)[1].rpartition(":")[0]
    for number in range(count):
        device, function = divmod(number, 8)
        servers.add_function(host, f"{bus}:{device:02x}.{function}", "8086:2030:060400")


def readdress(host: FakeHost, addresses: Mapping[str, str]) -> None:
    """Give functions other addresses wherever the host shows them: old address → new one."""
    _rewrite(host, re.compile("|".join(map(re.escape, addresses))), addresses)


def reboot(host: FakeHost) -> None:
    """Let the kernel number everything in another order, as it may do after a reboot.

    This concerns IOMMU groups and the names of devices, such as nvme0 and card1. The addresses, the
    names of interfaces and all that a driver has prepared are as before.
    """
    names = {}
    for prefix, numbers in _numbers(host).items():
        # In the reverse order, above all old numbers: each is another one.
        for old in numbers:
            new = 2 * max(numbers) + 1 - old
            names[f"{prefix}{old}"] = f"{prefix}{new}"
            if prefix == _GROUP:
                names[f"vfio/{old}"] = f"vfio/{new}"
    if names:
        # A longer name has a number, a part or a port after it: nvme0n1, card0-DP-1.
        pattern = rf"(?<![0-9A-Za-z_])(?:{'|'.join(map(re.escape, names))})(?![0-9])"
        _rewrite(host, re.compile(pattern), names)


def _numbers(host: FakeHost) -> dict[str, set[int]]:
    """Return what the kernel has numbered: the numbers that are in use by prefix."""
    numbers: dict[str, set[int]] = {}
    for kind in set(_names(host, "/sys/class")) - _NAMED_OTHERWISE:
        place = f"/sys/class/{kind}"
        names = _names(host, place)
        if any(host.realpath(f"{place}/{name}").startswith("/sys/devices/pci") for name in names):
            for match in filter(None, map(_NUMBERED.fullmatch, names)):
                numbers.setdefault(match[1], set()).add(int(match[2]))
    for name in _names(host, _FUNCTIONS):
        with contextlib.suppress(exception.HostError):
            numbers.setdefault(_GROUP, set()).add(int(_group(host, f"{_FUNCTIONS}/{name}")))
    return numbers


def _names(host: FakeHost, path: str) -> list[str]:
    return host.list_dir(path) if host.exists(path) else []


def _rewrite(host: FakeHost, pattern: re.Pattern[str], names: Mapping[str, str]) -> None:
    """Give what the pattern matches its new name wherever the host shows it.

    Files, links, faults, claimed disks and the answers of commands follow.
    """

    def text(old: str) -> str:
        return pattern.sub(lambda match: names[match[0]], old)

    def content(old: bytes) -> bytes:
        # Every byte is one character of Latin-1.
        return text(old.decode("latin-1")).encode("latin-1")

    tree = host.tree()
    host.remove("/")
    for path, entry in tree.items():
        if entry is None:
            host.add_dir(text(path))
        elif isinstance(entry, str):
            host.add_link(text(path), text(entry))
        else:
            host.add_file(text(path), content(entry))
    host.faults = {text(path): number for path, number in host.faults.items()}
    host.claimed = {text(path) for path in host.claimed}
    host.answers = {tuple(map(text, argv)): answer for argv, answer in host.answers.items()}
    if host.kernel is not None:
        host.kernel.read_again()


#: The tree of a host, see ``FakeHost.tree``.
Tree = Mapping[str, bytes | str | None]


def changed(before: Tree, after: Tree) -> set[str]:
    """Return the paths in which two trees of a host differ."""
    return {path for path in {*before, *after} if before.get(path, ...) != after.get(path, ...)}


def differences(before: Tree, after: Tree, paths: Collection[str] | None = None) -> str:
    """Return how two trees of a host differ, for a message; empty if they do not.

    Only ``paths`` count; None: all of them.
    """

    def lines() -> Iterator[str]:
        for path in sorted(changed(before, after)):
            if paths is not None and path not in paths:
                continue
            if path not in after:
                yield f"{path} is gone"
            elif path not in before:
                yield f"{path} is new"
            else:
                yield f"{path} changed from {before[path]!r:.60} to {after[path]!r:.60}"

    return "; ".join(lines())


def _mount(host: FakeHost, address: str) -> None:
    _add_disk(host, address)
    line = f"4190 1 {_DISK_NUMBER} / /srv rw,relatime shared:1 - ext4 /dev/{_DISK} rw\n"
    servers.append(host, _resolved(host, _MOUNTS), line)


def _hide_mounts(host: FakeHost, address: str) -> None:
    _add_disk(host, address)
    host.faults[_resolved(host, _MOUNTS)] = errno.EACCES


def _claim_disk(host: FakeHost, address: str) -> None:
    _add_disk(host, address)
    host.claimed.add(f"/dev/{_DISK}")


def _add_disk(host: FakeHost, address: str) -> None:
    path = f"{_real(host, address)}/block/{_DISK}"
    host.add_file(f"{path}/dev", f"{_DISK_NUMBER}\n")
    host.add_dir(f"{path}/holders")
    host.add_dir(f"{path}/slaves")
    host.add_link(f"/sys/class/block/{_DISK}", path)
    host.add_file(f"/dev/{_DISK}", "")


def _route(host: FakeHost, address: str) -> None:
    _add_interface(host, address)
    servers.add_default_route(host, _INTERFACE)


def _address(host: FakeHost, address: str) -> None:
    _add_interface(host, address)
    servers.add_use(host, _INTERFACE, Traffic.ADDRESS)


def _vlan(host: FakeHost, address: str) -> None:
    """Put an interface without an address above the one of the function."""
    path = _add_interface(host, address)
    above = f"/sys/devices/virtual/net/{_INTERFACE}.7"
    host.add_link(f"/sys/class/net/{_INTERFACE}.7", above)
    host.add_link(f"{above}/lower_{_INTERFACE}", path)
    host.add_link(f"{path}/upper_{_INTERFACE}.7", above)


def _add_interface(host: FakeHost, address: str) -> str:
    path = f"{_real(host, address)}/net/{_INTERFACE}"
    host.add_file(f"{path}/operstate", "up\n")
    host.add_link(f"/sys/class/net/{_INTERFACE}", path)
    return path


def _open_node(host: FakeHost, address: str) -> None:
    node = f"/dev/{_NODE}"
    host.add_file(f"{_real(host, address)}/misc/{_NODE}/uevent", f"DEVNAME={_NODE}\n")
    host.add_file(node, "")
    host.add_file(f"/proc/{_PROCESS}/comm", "trainer\n")
    host.add_link(f"/proc/{_PROCESS}/fd/17", node)


def _map_memory(host: FakeHost, address: str) -> None:
    """Let a process have the memory mapped, and the file closed."""
    line = f"7f1c00000000-7f1c00001000 rw-s 00000000 00:17 4190 {_real(host, address)}/resource0\n"
    host.add_file(f"/proc/{_PROCESS}/comm", "trainer\n")
    host.add_dir(f"/proc/{_PROCESS}/fd")
    host.add_file(f"/proc/{_PROCESS}/maps", line)


def _share_group(host: FakeHost, address: str) -> None:
    """Add a function of the same IOMMU group that a host driver has."""
    other = free_addresses(host)[1]
    path = servers.add_function(host, other, "144d:a808:010802", driver="nvme")
    host.add_link(f"{path}/iommu_group", host.readlink(f"{_real(host, address)}/iommu_group"))


def _reserve(host: FakeHost, address: str) -> None:
    group = _group(host, _real(host, address))
    path = f"/sys/kernel/iommu_groups/{group}/reserved_regions"
    host.add_file(path, "0x000000007a000000 0x000000007affffff direct\n")


def _carve(host: FakeHost, address: str) -> None:
    path = f"{_real(host, address)}/{_PART}"
    host.add_link(f"{path}/mdev_type", "../mdev_supported_types/part-1")
    host.add_link(f"/sys/bus/mdev/devices/{_PART}", path)


def _split(host: FakeHost, address: str) -> None:
    host.add_file(f"{_real(host, address)}/sriov_numvfs", "4\n")


def _real(host: FakeHost, address: str) -> str:
    return host.realpath(f"{_FUNCTIONS}/{address}")


def _group(host: FakeHost, place: str) -> str:
    """Return the number of the IOMMU group of a function."""
    return host.readlink(f"{place}/iommu_group").rpartition("/")[2]


def _resolved(host: FakeHost, path: str) -> str:
    """Return the real path of a list, because ``/proc/self`` of a recorded tree is a link."""
    return host.realpath(path) if host.exists(path) else path
