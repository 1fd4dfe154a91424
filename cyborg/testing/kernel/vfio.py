# SPDX-License-Identifier: Apache-2.0
"""IOMMU groups, and the nodes through which a process holds a group under VFIO."""

import errno
import itertools
import posixpath
from collections.abc import Callable, Iterable

from cyborg.testing.kernel.sysfs import Sysfs, error

_GROUPS = "/sys/kernel/iommu_groups"
_NODES = "/dev/vfio"
_CLASS = "/sys/class/vfio"
_DEVICE_CLASS = "/sys/class/vfio-dev"
#: The processes that hold devices have numbers from here on.
_FIRST_PROCESS = 4200


def _free(used: Iterable[int]) -> int:
    """Return the lowest number that is free, which is what the kernel takes."""
    taken = set(used)
    return next(number for number in itertools.count() if number not in taken)


class IommuGroups:
    """The groups of a host; ``enabled`` is false for a host without an IOMMU."""

    def __init__(self, sysfs: Sysfs, enabled: bool) -> None:
        self._sysfs = sysfs
        self._enabled = enabled

    def group(self, path: str) -> str | None:
        """Return the number of the group of a device, None if it has none."""
        target = self._sysfs.target(f"{path}/iommu_group")
        return None if target is None else posixpath.basename(target)

    def members(self, group: str) -> list[str]:
        """Return the directories of the devices in a group."""
        place = f"{_GROUPS}/{group}/devices"
        targets = (self._sysfs.target(f"{place}/{name}") for name in self._sysfs.names(place))
        return [path for path in targets if path is not None]

    def join(self, path: str, mates: Iterable[str] = ()) -> None:
        """Put a function into the group of the first mate that has one, else into a new group."""
        if not self._enabled:
            return
        groups = (self.group(mate) for mate in mates)
        self._enter(path, next((group for group in groups if group is not None), None))

    def join_emulated(self, path: str) -> None:
        """Put a mediated device into a group of its own, for which no IOMMU is necessary."""
        self._enter(path, None)

    def leave(self, path: str) -> list[str]:
        """Take a device out of its group, and return the other members."""
        group = self.group(path)
        if group is None:
            return []
        self._sysfs.remove(f"{path}/iommu_group")
        self._sysfs.remove(f"{_GROUPS}/{group}/devices/{posixpath.basename(path)}")
        rest = self.members(group)
        if not rest:
            self._sysfs.remove(f"{_GROUPS}/{group}")
        return rest

    def complete(self, path: str) -> None:
        """Give a function of a hand-written tree a group, or its group the missing directory."""
        group = self.group(path)
        if group is None:
            self.join(path)
        else:
            self._enter(path, group)

    def _enter(self, path: str, group: str | None) -> None:
        if group is None:
            group = str(_free(int(name) for name in self._sysfs.names(_GROUPS)))
        place = f"{_GROUPS}/{group}"
        self._sysfs.link(f"{path}/iommu_group", place)
        self._sysfs.link(f"{place}/devices/{posixpath.basename(path)}", path)
        for name, text in (("type", "DMA"), ("reserved_regions", "")):
            if not self._sysfs.exists(f"{place}/{name}"):
                self._sysfs.put(f"{place}/{name}", text)


class VfioDevices:
    """Devices under VFIO drivers, with their nodes and the processes that hold them.

    ``blocks`` tells whether the driver of a function makes its IOMMU group unviable.
    """

    def __init__(self, sysfs: Sysfs, groups: IommuGroups, blocks: Callable[[str], bool]) -> None:
        self._sysfs = sysfs
        self._groups = groups
        self._blocks = blocks
        #: By group: the device that is open, and the process that has opened it.
        self._held: dict[str, tuple[str, int]] = {}

    def register(self, path: str) -> None:
        """Make the nodes of a device. Raises OSError (EINVAL) if it has no IOMMU group."""
        group = self._groups.group(path)
        if group is None:
            raise error(errno.EINVAL)
        if not self._sysfs.exists(f"{_CLASS}/{group}"):
            place = f"/sys/devices/virtual/vfio/{group}"
            self._sysfs.put(f"{place}/uevent", f"DEVNAME=vfio/{group}")
            self._sysfs.link(f"{_CLASS}/{group}", place)
            self._sysfs.put(f"{_NODES}/{group}", "")
            self._sysfs.emit("add", place, "vfio", {"DEVNAME": f"vfio/{group}"})
        used = (int(name.removeprefix("vfio")) for name in self._sysfs.names(_DEVICE_CLASS))
        name = f"vfio{_free(used)}"
        place = f"{path}/vfio-dev/{name}"
        self._sysfs.put(f"{place}/uevent", "")
        self._sysfs.link(f"{place}/device", path)
        self._sysfs.link(f"{_DEVICE_CLASS}/{name}", place)
        self._sysfs.emit("add", place, "vfio-dev", {})

    def unregister(self, path: str) -> None:
        """Take the nodes of a device away.

        Raises OSError (EINTR) while a process holds the device; see ``check_released``.
        """
        self.check_released(path)
        for name in self._sysfs.names(f"{path}/vfio-dev"):
            self._sysfs.remove(f"{_DEVICE_CLASS}/{name}")
            self._sysfs.emit("remove", f"{path}/vfio-dev/{name}", "vfio-dev", {})
        self._sysfs.remove(f"{path}/vfio-dev")
        group = self._groups.group(path)
        mates = [] if group is None else self._groups.members(group)
        if group is None or any(self._sysfs.exists(f"{mate}/vfio-dev") for mate in mates):
            return
        place = f"/sys/devices/virtual/vfio/{group}"
        for gone in (f"{_CLASS}/{group}", f"{_NODES}/{group}", place):
            self._sysfs.remove(gone)
        self._sysfs.emit("remove", place, "vfio", {"DEVNAME": f"vfio/{group}"})

    def check_released(self, path: str) -> None:
        """Raise OSError (EINTR) while a process holds a device.

        The real kernel lets the writer wait until the process closes the device. The simulated
        writer is interrupted at once, and nothing has changed.
        """
        if path in (device for device, _ in self._held.values()):
            raise error(errno.EINTR)

    def in_held_group(self, path: str) -> bool:
        """Return whether a process holds a device of the same group."""
        return self._groups.group(path) in self._held

    def hold(self, path: str) -> None:
        """Open the group of a function, attach it to a container and open the function.

        A new process in ``/proc`` has the group and the container open.
        Raises OSError: ENOENT for a group without a node, EBUSY for one that a process holds,
        EPERM while a host driver has a member of the group, ENODEV for a function that itself is
        not under VFIO.
        """
        group = self._groups.group(path)
        if group is None or not self._sysfs.exists(f"{_NODES}/{group}"):
            raise error(errno.ENOENT)
        if group in self._held:
            raise error(errno.EBUSY)
        if any(self._blocks(member) for member in self._groups.members(group)):
            raise error(errno.EPERM)
        if not self._sysfs.exists(f"{path}/vfio-dev"):
            raise error(errno.ENODEV)
        process = next(
            number
            for number in itertools.count(_FIRST_PROCESS)
            if not self._sysfs.exists(f"/proc/{number}")
        )
        self._sysfs.put(f"/proc/{process}/comm", "qemu-system-x86")
        for number, target in enumerate((f"{_NODES}/vfio", f"{_NODES}/{group}")):
            self._sysfs.link_absolute(f"/proc/{process}/fd/{number + 10}", target)
        self._held[group] = (path, process)
        self._sysfs.put(f"{path}/enable", self._sysfs.number(f"{path}/enable") + 1)

    def release(self, path: str) -> None:
        """Close what ``hold`` opened; a function that is not held stays as it is."""
        for group, (device, process) in list(self._held.items()):
            if device == path:
                del self._held[group]
                self._sysfs.remove(f"/proc/{process}")
                self._sysfs.put(f"{path}/enable", self._sysfs.number(f"{path}/enable") - 1)
