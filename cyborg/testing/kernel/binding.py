# SPDX-License-Identifier: Apache-2.0
"""Binding of host drivers to functions (Linux: drivers/base/dd.c, drivers/pci/pci-driver.c)."""

import errno
import fnmatch
import posixpath
from collections.abc import Iterable, Sequence

from cyborg.testing.fake_host import FakeHost, Subtree
from cyborg.testing.kernel.host_driver import HostDriver
from cyborg.testing.kernel.mdev import MediatedDevices, VendorVgpus
from cyborg.testing.kernel.qat import QatDevices
from cyborg.testing.kernel.sysfs import NO_OVERRIDE, PCI, Sysfs, error, parse_unsigned
from cyborg.testing.kernel.vfio import IommuGroups, VfioDevices

#: A text of one page or more does not fit into ``driver_override``.
_OVERRIDE_LIMIT = 4095
#: Where the kernel keeps links to what drivers make, such as disks and interfaces.
_CLASS_LINKS = ("/sys/class/", "/sys/block/", "/sys/dev/")


class Binding:
    """The drivers of the PCI bus and what they are bound to."""

    def __init__(
        self, host: FakeHost, sysfs: Sysfs, groups: IommuGroups, drivers: Iterable[HostDriver]
    ) -> None:
        self._host = host
        self._sysfs = sysfs
        self._drivers = {driver.name: driver for driver in drivers}
        #: What a driver had made for a function when it was unbound.
        self._children: dict[tuple[str, str], list[Subtree]] = {}
        self.vfio = VfioDevices(sysfs, groups, self._blocks)
        self.mdevs = MediatedDevices(sysfs, groups, self.vfio)
        self.vgpus = VendorVgpus(sysfs)
        self.qats = QatDevices(sysfs)

    def adopt(self, path: str) -> None:
        """Take over a function that the tree shows bound to a driver."""
        driver = self.driver(path)
        if driver is None:
            return
        self._sysfs.link(f"{PCI}/drivers/{driver.name}/{posixpath.basename(path)}", path)
        if driver.mdev is not None and self._sysfs.exists(f"{path}/mdev_supported_types"):
            self.mdevs.adopt(path, driver.name, driver.mdev)
        if driver.vgpu is not None and self._sysfs.exists(f"{path}/nvidia"):
            self.vgpus.adopt(path, driver.vgpu)
        if driver.qat_services:
            self.qats.attach(path, driver.qat_services)

    def add_drivers(self) -> None:
        """Put the files of each driver into the tree, also of those that only the tree names."""
        for name in {*self._drivers, *self._sysfs.names(f"{PCI}/drivers")}:
            for file in ("bind", "unbind", "new_id", "remove_id", "uevent"):
                if not self._sysfs.exists(f"{PCI}/drivers/{name}/{file}"):
                    self._sysfs.put(f"{PCI}/drivers/{name}/{file}", "")

    def driver(self, path: str) -> HostDriver | None:
        """Return the driver of a function."""
        target = self._sysfs.target(f"{path}/driver")
        return None if target is None else self._named(posixpath.basename(target))

    def override(self, path: str, text: str) -> None:
        """Obey a write to ``driver_override``: up to the first newline, nothing clears it."""
        if len(text) >= _OVERRIDE_LIMIT:
            raise error(errno.EINVAL)
        self._sysfs.put(f"{path}/driver_override", text.partition("\n")[0] or NO_OVERRIDE)

    def enable(self, path: str, text: str) -> None:
        """Obey a write to ``enable``, a counter that only functions without a driver let change.

        Raises OSError: EBUSY with a driver, EIO if the function is disabled already.
        """
        try:
            number = parse_unsigned(text, 64)
        except OSError:
            raise error(errno.EINVAL) from None
        if self._sysfs.target(f"{path}/driver") is not None:
            raise error(errno.EBUSY)
        if not number and not self._sysfs.number(f"{path}/enable"):
            raise error(errno.EIO)
        self._count_enable(path, 1 if number else -1)

    def bind(self, name: str, text: str) -> None:
        """Obey a write to a driver's ``bind``.

        Raises OSError: ENODEV for a function that does not exist, does not match or is refused,
        EBUSY for one that has a driver or whose group a process holds.
        """
        driver, path = self._named(name), self._sysfs.function(text)
        if not self._matches(driver, path):
            raise error(errno.ENODEV)
        if self._sysfs.target(f"{path}/driver") is not None:
            raise error(errno.EBUSY)
        self._attach(driver, path)

    def unbind(self, name: str, text: str) -> None:
        """Obey a write to a driver's ``unbind``; ENODEV if the function is not bound to it."""
        path = self._sysfs.function(text)
        driver = self.driver(path)
        if driver is None or driver.name != name:
            raise error(errno.ENODEV)
        self.detach(path)

    def drivers_probe(self, text: str) -> None:
        """Obey a write to ``drivers_probe``.

        A function that no driver takes is no error. Raises OSError: ENODEV for a function that
        does not exist, EINVAL for one whose group a process holds.
        """
        path = self._sysfs.function(text)
        if self._candidates(path) and self._kept_by_user(path):
            raise error(errno.EINVAL)
        self.probe(path)

    def probe(self, path: str) -> None:
        """Bind the first driver that takes a function, as the kernel does for a new one."""
        for driver in self._candidates(path):
            try:
                self._attach(driver, path)
            except OSError:
                continue
            return

    def detach(self, path: str) -> None:
        """Unbind the driver of a function, if it has one."""
        driver = self.driver(path)
        if driver is None:
            return
        address = posixpath.basename(path)
        if driver.vfio:
            self.vfio.unregister(path)
        self.mdevs.unregister(path)
        self.vgpus.detach(path)
        self.qats.detach(path)
        names = [
            name
            for name in self._sysfs.names(path)
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in driver.children)
        ]
        taken = [self._host.take(f"{path}/{name}") for name in names]
        inside = tuple(f"{path}/{name}/" for name in names)
        for link in self._host.paths() if inside else ():
            if link.startswith(_CLASS_LINKS):
                target = self._sysfs.target(link)
                if target is not None and f"{target}/".startswith(inside):
                    taken.append(self._host.take(link))
                    if driver.vf_mark and self._sysfs.exists(f"{path}/{driver.vf_mark}"):
                        taken.append(self._host.take(f"/dev/{posixpath.basename(link)}"))
        self._children[path, driver.name] = taken
        if driver.enables and not driver.leaves_enabled:
            self._count_enable(path, -1)
        self._sysfs.remove(f"{path}/driver")
        self._sysfs.remove(f"{PCI}/drivers/{driver.name}/{address}")
        self._sysfs.refresh(path)
        self._sysfs.emit_function("unbind", path)

    def provide(self, path: str, driver: str, made: Sequence[Subtree]) -> None:
        """Let a driver make these files when it gets a function."""
        self._children[path, driver] = list(made)

    def forget(self, path: str) -> None:
        """Drop what drivers had made for a function, because another card takes its place."""
        for key in [key for key in self._children if key[0] == path]:
            del self._children[key]

    def _attach(self, driver: HostDriver, path: str) -> None:
        address = posixpath.basename(path)
        is_vf = self._sysfs.target(f"{path}/physfn") is not None
        if self._kept_by_user(path) and not (driver.vfio or driver.shares_dma):
            raise error(errno.EBUSY)
        accepted = driver.any_function or self._identified(driver, path)
        marked = driver.vf_mark and self._sysfs.exists(f"{path}/{driver.vf_mark}")
        if not accepted or (is_vf and not driver.vfs and not marked):
            raise error(errno.ENODEV)
        if driver.vfio and self._sysfs.number(f"{path}/sriov_numvfs"):
            raise error(errno.EBUSY)
        self._sysfs.link(f"{path}/driver", f"{PCI}/drivers/{driver.name}")
        self._sysfs.refresh(path)
        try:
            if driver.vfio:
                self.vfio.register(path)
        except OSError:
            self._sysfs.remove(f"{path}/driver")
            self._sysfs.refresh(path)
            raise
        self._sysfs.link(f"{PCI}/drivers/{driver.name}/{address}", path)
        if driver.enables and not driver.vfio:
            self._count_enable(path, 1)
        for subtree in self._children.pop((path, driver.name), ()):
            self._host.put_back(subtree)
        if driver.mdev is not None and not is_vf:
            self.mdevs.register(path, driver.name, driver.mdev)
        if driver.vgpu is not None and is_vf:
            self.vgpus.attach(path, driver.vgpu)
        if driver.qat_services and not is_vf:
            self.qats.attach(path, driver.qat_services)
        self._sysfs.emit_function("bind", path)

    def _named(self, name: str) -> HostDriver:
        return self._drivers.setdefault(name, HostDriver(name))

    def _identified(self, driver: HostDriver, path: str) -> bool:
        read = (
            self._sysfs.text(f"{path}/{name}").removeprefix("0x")
            for name in ("vendor", "device", "class")
        )
        vendor, device, code = read
        return not driver.ids.isdisjoint({f"{vendor}:{device}", f"class:{code}"})

    def _matches(self, driver: HostDriver, path: str) -> bool:
        override = self._sysfs.text(f"{path}/driver_override", NO_OVERRIDE)
        if override != NO_OVERRIDE:
            return override == driver.name
        return self._identified(driver, path)

    def _candidates(self, path: str) -> list[HostDriver]:
        """Return the drivers that may take a function; none for a VF that is kept from them."""
        if self._sysfs.target(f"{path}/driver") is not None:
            return []
        override = self._sysfs.text(f"{path}/driver_override", NO_OVERRIDE)
        parent = self._sysfs.target(f"{path}/physfn")
        kept = self._sysfs.text(f"{parent}/sriov_drivers_autoprobe") == "0"
        if parent is not None and override == NO_OVERRIDE and kept:
            return []
        return [driver for driver in self._drivers.values() if self._matches(driver, path)]

    def _kept_by_user(self, path: str) -> bool:
        return self.vfio.in_held_group(path)

    def _blocks(self, path: str) -> bool:
        driver = self.driver(path)
        return driver is not None and not (driver.vfio or driver.shares_dma)

    def _count_enable(self, path: str, difference: int) -> None:
        count = self._sysfs.number(f"{path}/enable") + difference
        self._sysfs.put(f"{path}/enable", max(count, 0))
