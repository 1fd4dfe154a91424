# SPDX-License-Identifier: Apache-2.0
"""PCI functions that appear and disappear: SR-IOV, remove and rescan, hot plug, reset."""

import errno
import posixpath
import struct
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from cyborg.model.pci import PciAddress
from cyborg.testing.fake_host import FakeHost, Subtree
from cyborg.testing.kernel.binding import Binding
from cyborg.testing.kernel.sysfs import (
    NO_OVERRIDE,
    PCI,
    Sysfs,
    error,
    parse_boolean,
    parse_unsigned,
)
from cyborg.testing.kernel.vfio import IommuGroups

#: What every function has besides its identity, as Linux 6.12 shows an idle function.
_FILES = {
    "ari_enabled": "0",
    "broken_parity_status": "0",
    "consistent_dma_mask_bits": "32",
    "d3cold_allowed": "1",
    "dma_mask_bits": "32",
    "driver_override": NO_OVERRIDE,
    "enable": "0",
    "irq": "0",
    "local_cpulist": "0-1",
    "local_cpus": "3",
    "msi_bus": "1",
    "numa_node": "-1",
    "power_state": "unknown",
    "resource": "",
    "revision": "0x00",
    "subsystem_device": "0x0000",
    "subsystem_vendor": "0x0000",
}
#: The length of the header of a configuration space, in bytes.
_HEADER = 64
#: What a VF has like its PF, if the PF has it.
_INHERITED = (
    "ari_enabled",
    "class",
    "current_link_speed",
    "current_link_width",
    "local_cpulist",
    "local_cpus",
    "max_link_speed",
    "max_link_width",
    "numa_node",
    "resource0",
    "revision",
    "subsystem_device",
    "subsystem_vendor",
    "vendor",
)
#: Actions of uevents (Linux: lib/kobject_uevent.c).
_ACTIONS = frozenset({"add", "remove", "change", "move", "online", "offline", "bind", "unbind"})


@dataclass
class Absent:
    """A function that is in its slot but not known to the kernel, or in nobody's slot.

    ``methods`` are the ways to reset it.
    """

    path: str
    tree: Subtree
    methods: list[str]


class Functions:
    """The functions of a host."""

    def __init__(self, host: FakeHost, sysfs: Sysfs, groups: IommuGroups, binding: Binding) -> None:
        self._host = host
        self._sysfs = sysfs
        self._groups = groups
        self._binding = binding
        self._absent: dict[str, Absent] = {}
        self._methods: dict[str, list[str]] = {}
        #: Functions that share an IOMMU group by their place, also while they are absent.
        self._mates: defaultdict[str, set[str]] = defaultdict(set)
        #: Addresses of functions in the order of their resets.
        self.resets: list[str] = []

    def adopt(self, path: str) -> None:
        """Complete the files of a function and take note of the ways to reset it."""
        is_vf = self._sysfs.target(f"{path}/physfn") is not None
        files = dict(_FILES)
        if not is_vf:
            files |= {"remove": "", "rescan": ""}
        if self._sysfs.exists(f"{path}/sriov_totalvfs"):
            device = self._sysfs.text(f"{path}/device").removeprefix("0x").lstrip("0")
            files |= {"sriov_stride": "1", "sriov_vf_device": device}
            first = self._sysfs.target(f"{path}/virtfn0")
            offset = 1 if first is None else _routing(first) - _routing(path)
            number = sum(name.startswith("virtfn") for name in self._sysfs.names(path))
            files |= {"sriov_offset": str(offset), "sriov_numvfs": str(number)}
            files |= {"sriov_drivers_autoprobe": "1"}
        if self._sysfs.exists(f"{path}/reset_method"):
            files |= {"reset": ""}
            self._methods[path] = self._sysfs.text(f"{path}/reset_method").split()
        for name, text in files.items():
            if not self._sysfs.exists(f"{path}/{name}"):
                self._sysfs.put(f"{path}/{name}", text)
        if not self._host.content(f"{path}/config"):
            texts = (self._sysfs.text(f"{path}/{name}") for name in ("vendor", "device"))
            # The configuration space of a VF has no ids; sysfs has those of its PF.
            ids = [0xFFFF if is_vf else int(text or "0", 16) for text in texts]
            header = struct.pack("<HH", *ids)
            self._host.add_file(f"{path}/config", header.ljust(_HEADER, b"\0"))
        for name in ("link", "power"):
            self._sysfs.add_dir(f"{path}/{name}")
        self._sysfs.link(f"{path}/subsystem", PCI)
        self._sysfs.refresh(path)
        self._groups.complete(path)

    # SR-IOV (Linux: drivers/pci/iov.c).

    def set_vfs(self, path: str, text: str) -> None:
        """Obey a write to ``sriov_numvfs``.

        Raises OSError: EINVAL for text that is no number, ERANGE above the total, ENOENT without
        a driver that makes VFs or if functions of an earlier PF have the addresses, EBUSY for
        another number than 0 while VFs exist. The number that is there changes nothing.
        """
        try:
            number = parse_unsigned(text, 16)
        except OSError:
            raise error(errno.EINVAL) from None
        current = self._sysfs.number(f"{path}/sriov_numvfs")
        if number > self._sysfs.number(f"{path}/sriov_totalvfs"):
            raise error(errno.ERANGE)
        if number == current:
            return
        driver = self._binding.driver(path)
        if driver is None or not driver.sriov:
            raise error(errno.ENOENT)
        if number and current:
            raise error(errno.EBUSY)
        if number:
            places = [self._vf_path(path, index) for index in range(number)]
            if any(self._sysfs.exists(place) for place in places):
                raise error(errno.ENOENT)
            for index, place in enumerate(places):
                self._add_vf(path, place, index)
            self._sysfs.put(f"{path}/sriov_numvfs", number)
            self._sysfs.emit_function("change", path)
            return
        links = [f"{path}/virtfn{index}" for index in range(current)]
        vfs = [vf for vf in map(self._sysfs.target, links) if vf is not None]
        for vf in vfs:
            self._binding.vfio.check_released(vf)
        for vf in vfs:
            self._stop(vf)
            self._drop(vf)
        for link in links:
            self._sysfs.remove(link)
        self._sysfs.put(f"{path}/sriov_numvfs", 0)

    def set_autoprobe(self, path: str, text: str) -> None:
        """Obey a write to ``sriov_drivers_autoprobe``."""
        self._sysfs.put(f"{path}/sriov_drivers_autoprobe", parse_boolean(text))

    def _vf_path(self, path: str, index: int) -> str:
        """Return the directory of a VF: routing id of the PF + offset + index * stride."""
        offset = self._sysfs.number(f"{path}/sriov_offset")
        routing = _routing(path) + offset + self._sysfs.number(f"{path}/sriov_stride") * index
        domain = PciAddress.parse(posixpath.basename(path)).domain
        vf = PciAddress(domain, routing >> 8, routing >> 3 & 0x1F, routing & 7)
        return f"{posixpath.dirname(path)}/{vf}"

    def _add_vf(self, path: str, vf: str, index: int) -> None:
        device = int(self._sysfs.text(f"{path}/sriov_vf_device") or "0", 16)
        self._sysfs.put(f"{vf}/device", f"0x{device:04x}")
        for name in _INHERITED:
            if self._sysfs.exists(f"{path}/{name}"):
                self._sysfs.put(f"{vf}/{name}", self._sysfs.text(f"{path}/{name}"))
        self._sysfs.put(f"{vf}/sriov_vf_msix_count", "")
        methods = [name for name in self._methods.get(path, ()) if name != "bus"]
        if methods:
            self._sysfs.put(f"{vf}/reset_method", " ".join(methods))
        if (unit := self._sysfs.target(f"{path}/iommu")) is not None:
            self._sysfs.link(f"{vf}/iommu", unit)
        self._sysfs.link(f"{PCI}/devices/{posixpath.basename(vf)}", vf)
        self._sysfs.link(f"{vf}/physfn", path)
        self._sysfs.link(f"{path}/virtfn{index}", vf)
        self.adopt(vf)
        self._sysfs.emit_function("add", vf)
        self._sysfs.emit_function("change", vf)
        self._binding.probe(vf)

    # Remove, rescan and hot plug (Linux: drivers/pci/remove.c and probe.c).

    def remove(self, path: str, text: str) -> None:
        """Obey a write to ``remove``; the VFs of a PF stay, as they do on a real kernel."""
        if _flag(text):
            self._take_out(path)

    def rescan(self, scope: str, text: str) -> None:
        """Obey a write to ``rescan``: what is in a slot below the directory appears again."""
        if _flag(text):
            self._appear(scope)

    def rescan_all(self, text: str) -> None:
        """Obey a write to ``/sys/bus/pci/rescan``."""
        self.rescan("/sys/devices", text)

    def unplug(self, address: str) -> Absent:
        """Pull the card out, and return it. Raises OSError (ENODEV) if there is none."""
        path = self._sysfs.function(address)
        self._take_out(path)
        self._binding.forget(path)
        return self._absent.pop(path)

    def plug(self, card: Absent, attributes: Mapping[str, str] | None = None) -> None:
        """Put a card into its slot, with other texts in some of its files if it is another one."""
        for name, text in (attributes or {}).items():
            card.tree.files[f"{card.path}/{name}"] = f"{text}\n".encode()
        self._absent[card.path] = card
        self._appear(posixpath.dirname(card.path))

    def _take_out(self, path: str) -> None:
        self._check_released(path)
        self._stop(path)
        self._drop(path)

    def _check_released(self, path: str) -> None:
        for child in self._sysfs.children(path):
            self._check_released(child)
        self._binding.vfio.check_released(path)

    def _stop(self, path: str) -> None:
        """Unbind the drivers of a function and of all below it."""
        for child in self._sysfs.children(path):
            self._stop(child)
        self._binding.detach(path)

    def _drop(self, path: str) -> None:
        """Take a function and all below it out of the tree."""
        for child in self._sysfs.children(path):
            self._drop(child)
        defaults = {"driver_override": NO_OVERRIDE, "enable": "0"}
        if self._sysfs.exists(f"{path}/sriov_totalvfs"):
            defaults |= {"sriov_numvfs": "0", "sriov_drivers_autoprobe": "1"}
            for name in self._sysfs.names(path):
                if name.startswith("virtfn"):
                    self._sysfs.remove(f"{path}/{name}")
        for name, text in defaults.items():
            self._sysfs.put(f"{path}/{name}", text)
        for mate in self._groups.leave(path):
            self._mates[path].add(mate)
            self._mates[mate].add(path)
        self._sysfs.remove(f"{PCI}/devices/{posixpath.basename(path)}")
        self._sysfs.emit_function("remove", path)
        methods = self._methods.pop(path, [])
        card = Absent(path, self._host.take(path), methods)
        # A VF exists only by the number of its PF: no scan finds it.
        if f"{path}/physfn" not in card.tree.links:
            self._absent[path] = card

    def _appear(self, scope: str) -> None:
        new = []
        for path in sorted(self._absent):
            if f"{path}/".startswith(f"{scope}/") and self._sysfs.exists(posixpath.dirname(path)):
                card = self._absent.pop(path)
                self._host.put_back(card.tree)
                self._methods[path] = card.methods
                if card.methods:
                    self._sysfs.put(f"{path}/reset_method", " ".join(self._usable(path)))
                self._sysfs.link(f"{PCI}/devices/{posixpath.basename(path)}", path)
                self._sysfs.refresh(path)
                self._groups.join(path, sorted(self._mates[path]))
                self._sysfs.emit_function("add", path)
                new.append(path)
        for path in new:
            self._binding.probe(path)

    def send_uevent(self, path: str, text: str) -> None:
        """Send the event that a write to ``uevent`` asks for: an action, a UUID and variables.

        Raises OSError (EINVAL) for an action that the kernel does not have.
        """
        action, *words = text.split() or [""]
        extra = {"SYNTH_UUID": words[0] if words else "0"}
        for word in words[1:]:
            key, equals, value = word.partition("=")
            extra[f"SYNTH_ARG_{key}"] = value
            if not equals:
                action = ""
        if action not in _ACTIONS:
            raise error(errno.EINVAL)
        self._sysfs.emit_function(action, path, extra)

    # Reset (Linux: drivers/pci/pci.c, pci-sysfs.c).

    def reset(self, path: str, text: str) -> None:
        """Obey a write to ``reset``.

        Raises OSError: EINVAL for anything but 1, ENOTTY if no method is left.
        """
        try:
            number = parse_unsigned(text, 64)
        except OSError:
            number = 0
        if number != 1:
            raise error(errno.EINVAL)
        chosen = self._sysfs.text(f"{path}/reset_method").split()
        if not set(chosen) & set(self._usable(path)):
            raise error(errno.ENOTTY)
        self.resets.append(posixpath.basename(path))

    def set_reset_method(self, path: str, text: str) -> None:
        """Obey a write to ``reset_method``: names in order, ``default``, or nothing to disable.

        Raises OSError (EINVAL) for a method that the function does not have now.
        """
        usable = self._usable(path)
        line = text.removesuffix("\n")
        if not line:
            self._host.add_file(f"{path}/reset_method", "")
            return
        methods = usable if line == "default" else line.split()
        if not set(methods) <= set(usable):
            raise error(errno.EINVAL)
        self._sysfs.put(f"{path}/reset_method", " ".join(methods))

    def _usable(self, path: str) -> list[str]:
        """Return the ways to reset a function; by its bus only if it is alone there."""
        alone = self._sysfs.children(posixpath.dirname(path)) == [path]
        return [name for name in self._methods.get(path, ()) if alone or name != "bus"]


def _routing(path: str) -> int:
    """Return the 16 bits of bus, device and function."""
    address = PciAddress.parse(posixpath.basename(path))
    return address.bus << 8 | address.device << 3 | address.function


def _flag(text: str) -> bool:
    try:
        return parse_unsigned(text, 64) != 0
    except OSError:
        raise error(errno.EINVAL) from None
