# SPDX-License-Identifier: Apache-2.0
"""Mediated devices, and vGPUs by vendor-specific VFIO.

What is general comes from the kernel (drivers/vfio/mdev); what a vendor's driver decides, such as
how types exclude each other, comes from the profile of the host driver.
"""

import errno
import posixpath
import re

from cyborg.testing.kernel.host_driver import MdevProfile, VgpuProfile
from cyborg.testing.kernel.sysfs import Sysfs, error, parse_unsigned
from cyborg.testing.kernel.vfio import IommuGroups, VfioDevices

_DEVICES = "/sys/bus/mdev/devices"
_PARENTS = "/sys/class/mdev_bus"
_UUID = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\n?", re.IGNORECASE)
_VGPU_HEADER = "ID    : vGPU Name"


class MediatedDevices:
    """The parents of mediated devices and their instances."""

    def __init__(self, sysfs: Sysfs, groups: IommuGroups, vfio: VfioDevices) -> None:
        self._sysfs = sysfs
        self._groups = groups
        self._vfio = vfio
        self._profiles: dict[str, tuple[str, MdevProfile]] = {}
        #: Parent and type of each instance by uuid, in the order of creation.
        self._instances: dict[str, tuple[str, str]] = {}

    def adopt(self, path: str, driver: str, profile: MdevProfile) -> None:
        """Take over a parent that the tree already has, with its instances."""
        self._profiles[path] = (driver, profile)
        for name in profile.types:
            for uuid in self._sysfs.names(f"{self._type(path, name)}/devices"):
                self._instances[uuid] = (path, name)

    def register(self, path: str, driver: str, profile: MdevProfile) -> None:
        """Make a function a parent, as its driver does when it is bound."""
        self._profiles[path] = (driver, profile)
        for name, kind in profile.types.items():
            place = self._type(path, name)
            texts = {"name": kind.name, "description": kind.description, "device_api": "vfio-pci"}
            for file, text in texts.items():
                self._sysfs.put(f"{place}/{file}", text)
            self._sysfs.put(f"{place}/create", "")
            self._sysfs.add_dir(f"{place}/devices")
        self._count(path)
        self._sysfs.link(f"{_PARENTS}/{posixpath.basename(path)}", path)
        self._sysfs.emit_function("change", path, {"MDEV_STATE": "registered"})

    def unregister(self, path: str) -> None:
        """Remove the instances of a parent and the types."""
        if path not in self._profiles:
            return
        for uuid, (parent, _) in list(self._instances.items()):
            if parent == path:
                self._remove(uuid)
        del self._profiles[path]
        self._sysfs.remove(f"{path}/mdev_supported_types")
        self._sysfs.remove(f"{_PARENTS}/{posixpath.basename(path)}")
        self._sysfs.emit_function("change", path, {"MDEV_STATE": "unregistered"})

    def create(self, path: str, name: str, text: str) -> None:
        """Make an instance of the type of this directory name.

        Raises OSError: EINVAL for text that is not a UUID, EEXIST for a UUID that any parent has,
        the error of the profile when no instance is left.
        """
        match = _UUID.fullmatch(text)
        if match is None:
            raise error(errno.EINVAL)
        uuid = match[1].lower()
        if uuid in self._instances:
            raise error(errno.EEXIST)
        driver, profile = self._profiles[path]
        kind = name.removeprefix(f"{driver}-")
        device = f"{path}/{uuid}"
        self._sysfs.emit("add", device, "mdev", {})
        if self._available(path, kind) < 1:
            self._sysfs.emit("remove", device, "mdev", {})
            raise error(profile.exhausted)
        self._instances[uuid] = (path, kind)
        self._sysfs.put(f"{device}/remove", "")
        self._sysfs.put(f"{device}/uevent", f"DRIVER={driver}")
        self._sysfs.add_dir(f"{device}/power")
        self._sysfs.link(f"{device}/subsystem", "/sys/bus/mdev")
        self._sysfs.link(f"{device}/mdev_type", self._type(path, kind))
        self._sysfs.link(f"{device}/driver", f"/sys/bus/mdev/drivers/{driver}")
        self._sysfs.link(f"{self._type(path, kind)}/devices/{uuid}", device)
        self._sysfs.link(f"{_DEVICES}/{uuid}", device)
        self._groups.join_emulated(device)
        self._vfio.register(device)
        self._sysfs.emit("bind", device, "mdev", {"DRIVER": driver})
        self._count(path)

    def remove(self, uuid: str, text: str) -> None:
        """Obey a write to ``remove``: 0 changes nothing. Raises OSError (EINVAL) for no number."""
        try:
            number = parse_unsigned(text, 64)
        except OSError:
            raise error(errno.EINVAL) from None
        if number:
            self._remove(uuid)

    def _remove(self, uuid: str) -> None:
        path, kind = self._instances[uuid]
        device = f"{path}/{uuid}"
        self._vfio.unregister(device)
        del self._instances[uuid]
        self._sysfs.emit("unbind", device, "mdev", {})
        self._groups.leave(device)
        for gone in (device, f"{_DEVICES}/{uuid}", f"{self._type(path, kind)}/devices/{uuid}"):
            self._sysfs.remove(gone)
        self._sysfs.emit("remove", device, "mdev", {})
        self._count(path)

    def _type(self, path: str, kind: str) -> str:
        driver, _ = self._profiles[path]
        return f"{path}/mdev_supported_types/{driver}-{kind}"

    def _available(self, path: str, kind: str) -> int:
        _, profile = self._profiles[path]
        kinds = [name for parent, name in self._instances.values() if parent == path]
        if profile.homogeneous and any(name != kind for name in kinds):
            return 0
        left = profile.capacity - sum(profile.types[name].slices for name in kinds)
        return left // profile.types[kind].slices

    def _count(self, path: str) -> None:
        for kind in self._profiles[path][1].types:
            left = self._available(path, kind)
            self._sysfs.put(f"{self._type(path, kind)}/available_instances", left)


class VendorVgpus:
    """vGPUs on VFs: the directory ``nvidia`` of each VF under the driver.

    The errors are those that the module simaccel of the kernel tests chooses; NVIDIA documents
    only that the write fails.
    """

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self._profiles: dict[str, VgpuProfile] = {}

    def adopt(self, path: str, profile: VgpuProfile) -> None:
        """Take over a VF that the tree already has under the driver."""
        self._profiles[path] = profile

    def attach(self, path: str, profile: VgpuProfile) -> None:
        """Give a VF its files, as its driver does when it is bound."""
        self._profiles[path] = profile
        self._sysfs.put(f"{path}/nvidia/current_vgpu_type", 0)
        self._list(path)

    def detach(self, path: str) -> None:
        """Take the files of a VF away, and its vGPU with them."""
        if self._profiles.pop(path, None) is not None:
            self._sysfs.remove(f"{path}/nvidia")
            self._list(path)

    def assign(self, path: str, text: str) -> None:
        """Obey a write to ``current_vgpu_type``; 0 destroys the vGPU.

        Raises OSError: EINVAL for a type that does not exist, EEXIST if the VF has a vGPU,
        ENOSPC if the siblings leave too little.
        """
        profile = self._profiles[path]
        number = parse_unsigned(text, 32, base=10)
        if number and self._current(path):
            raise error(errno.EEXIST)
        if number and number not in profile.types:
            raise error(errno.EINVAL)
        if number and profile.types[number][1] > self._left(path, profile):
            raise error(errno.ENOSPC)
        self._sysfs.put(f"{path}/nvidia/current_vgpu_type", number)
        self._list(path)

    def _current(self, path: str) -> int:
        return self._sysfs.number(f"{path}/nvidia/current_vgpu_type")

    def _siblings(self, path: str) -> list[str]:
        parent = self._sysfs.target(f"{path}/physfn")
        return [vf for vf in self._profiles if self._sysfs.target(f"{vf}/physfn") == parent]

    def _left(self, path: str, profile: VgpuProfile) -> int:
        current = (self._current(vf) for vf in self._siblings(path))
        return profile.capacity - sum(profile.types[one][1] for one in current if one)

    def _list(self, path: str) -> None:
        """Write the lists of the VF and its siblings."""
        for vf in self._siblings(path):
            profile = self._profiles[vf]
            left = 0 if self._current(vf) else self._left(vf, profile)
            lines = [
                f"{number:<5} : {name}"
                for number, (name, slices) in profile.types.items()
                if slices <= left
            ]
            text = "\n".join([_VGPU_HEADER, *lines])
            self._sysfs.put(f"{vf}/nvidia/creatable_vgpu_types", text)
