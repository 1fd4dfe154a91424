# SPDX-License-Identifier: Apache-2.0
"""One scenario for a real and for a simulated kernel: the same steps must get the same answers.

The transcript of the real kernel is ``transcript.json``. To write it again, on all sections::

    tools/kernel run --machine pci .test-venv/bin/python -P -m cyborg.tests.kernel.scenario |
        sed -n '/^.$/,/^.$/p' > cyborg/tests/kernel/transcript.json
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import posixpath
import re
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, Self

from cyborg import exception
from cyborg.drivers.host import Events, Host, LocalHost
from cyborg.drivers.uevents import Uevent
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.recorder import RecordingHost

#: One line of a transcript: what was done, and the answer or the name of the errno.
Transcript = list[tuple[str, str | list[str]]]

_PCI = "/sys/bus/pci"
_DEVICES = f"{_PCI}/devices"
_DRIVERS = f"{_PCI}/drivers"
_PROBE = f"{_PCI}/drivers_probe"

_MDEV = [f"83b8f4f2-509f-382f-3c1e-e6bfe0fa100{number}" for number in range(8)]
#: Subsystems whose uevents are compared; others depend on the drivers of disks and interfaces.
_SUBSYSTEMS = frozenset({"pci", "vfio", "vfio-dev", "mdev"})
#: Entries of a function that its machine's firmware describes.
_FIRMWARE = frozenset({"firmware_node", "waiting_for_supplier"})
#: Fields of a uevent that count or name things in the order of their appearance since boot.
_UNSTABLE = frozenset({"ACTION", "DEVPATH", "SEQNUM", "MAJOR", "MINOR"})
#: Numbers that the kernel gives: of an IOMMU group and of a VFIO device.
_NUMBERED = re.compile(r"(iommu_groups/|vfio/|vfio-dev/vfio)([0-9]+)")
#: The buses and bridges above a function.
_PLACE = re.compile(r"devices/pci[0-9a-f:]+/(?:[0-9a-f:.]+/)*")
#: Seconds until a wait for events fails.
_PATIENCE = 60.0
_MARK = "00000000-0000-4000-8000-00000000c0de"


class Holder(Protocol):
    """Opens functions through their VFIO group and closes them; raises OSError."""

    def hold(self, address: str) -> None: ...

    def release(self, address: str) -> None: ...


@dataclass(frozen=True)
class Guest:
    """Addresses of the functions that the scenario uses; ``paths`` are their directories."""

    pf: str
    disk: str
    nic: str
    parent: str
    card: str
    sata: str
    smbus: str
    paths: Mapping[str, str]

    @classmethod
    def of(cls, host: Host) -> Self:
        """Find the functions by what they are, for addresses depend on the version of QEMU."""
        by_kind: dict[str, list[str]] = {}
        paths = {}
        for address in host.list_dir(_DEVICES):
            paths[address] = place = host.realpath(f"{_DEVICES}/{address}")
            vendor, device = (host.read_text(f"{place}/{name}") for name in ("vendor", "device"))
            kind = f"{vendor[2:6]}:{device[2:6]}"
            if host.exists(f"{place}/sriov_totalvfs"):
                kind += " sriov"
            by_kind.setdefault(kind, []).append(address)
        (pf,) = by_kind["1b36:0010 sriov"]
        disk, _ = by_kind["1b36:0010"]
        parent, card = by_kind["1234:11e8"]
        (nic,), (sata,), (smbus,) = (by_kind[f"8086:{name}"] for name in ("10d3", "2922", "2930"))
        return cls(pf, disk, nic, parent, card, sata, smbus, paths)

    @property
    def vfs(self) -> list[str]:
        """Return the addresses that the VFs get: those after the PF."""
        return [f"{self.pf[:-1]}{number}" for number in (1, 2, 3, 4)]

    def above(self, address: str) -> str:
        """Return the address of the bridge above a function."""
        return posixpath.basename(posixpath.dirname(self.paths[address]))

    def root(self, address: str) -> str:
        """Return the directory of the root bus of a function."""
        place = "/".join(self.paths[address].split("/")[:4])
        return f"{place}/pci_bus/{posixpath.basename(place).removeprefix('pci')}"

    def names(self) -> dict[str, str]:
        """Return what stands for each address in a transcript."""
        names = {vf: f"<vf {index}>" for index, vf in enumerate(self.vfs)}
        for name in ("pf", "disk", "nic", "parent", "card", "sata", "smbus"):
            names[getattr(self, name)] = f"<{name}>"
        for name in ("nic", "parent", "card"):
            names[self.above(getattr(self, name))] = f"<above {name}>"
        return names


@dataclass(frozen=True)
class Step:
    """One call of a port or of the holder: ``verb`` is a case of ``Player``.

    ``text`` is what ``write`` writes; ``hold`` and ``release`` have an address as ``path``.
    """

    verb: str
    path: str = ""
    text: str = ""

    def __str__(self) -> str:
        written = f" {self.text!r}" if self.verb == "write" else ""
        return f"{self.verb} {self.path}{written}".strip()


def on(address: str, name: str, *texts: str) -> list[Step]:
    """Return the steps that write to a file of a function."""
    return [Step("write", f"{_DEVICES}/{address}/{name}", text) for text in texts]


def read(address: str, *names: str) -> list[Step]:
    """Return the steps that read files of a function."""
    return [Step("read", f"{_DEVICES}/{address}/{name}") for name in names]


def to(driver: str, file: str, *addresses: str) -> list[Step]:
    """Return the steps that write to ``bind`` or ``unbind`` of a driver."""
    return [Step("write", f"{_DRIVERS}/{driver}/{file}", address) for address in addresses]


def probe(*addresses: str) -> list[Step]:
    """Return the steps that look for a driver, and say which there is."""
    return [
        step
        for address in addresses
        for step in (Step("write", _PROBE, address), Step("link", f"{_DEVICES}/{address}/driver"))
    ]


def sriov(guest: Guest) -> Iterator[Step]:
    """SR-IOV: numbers and errors, the directories of VFs, drivers with and without autoprobe."""
    yield from read(guest.pf, "sriov_totalvfs", "sriov_offset", "sriov_stride", "sriov_vf_device")
    yield from on(guest.pf, "sriov_numvfs", "5", "x", "-1", "70000", "", "0", "0x1")
    yield Step("events", guest.pf)
    yield from read(guest.pf, "sriov_numvfs")
    yield from on(guest.pf, "sriov_numvfs", "0")
    yield from on(guest.pf, "sriov_drivers_autoprobe", "2", "0\n")
    yield from on(guest.pf, "sriov_numvfs", "2\n", "2", "4", "5")
    yield Step("events", guest.pf)
    vf = guest.vfs[0]
    yield Step("list", f"{_DEVICES}/{vf}")
    for name in ("driver", "physfn", "iommu_group", "subsystem"):
        yield Step("link", f"{_DEVICES}/{vf}/{name}")
    yield Step("link", f"{_DEVICES}/{guest.pf}/virtfn1")
    yield from read(vf, "vendor", "device", "class", "uevent", "enable", "driver_override")
    yield from read(vf, "numa_node", "modalias", "reset_method", "reset", "revision")
    yield from probe(vf)
    yield from to("nvme", "bind", vf)
    yield from on(vf, "driver_override", "nvme")
    yield from to("nvme", "bind", vf)
    yield from on(vf, "driver_override", "vfio-pci")
    yield from probe(vf)
    yield Step("list", f"{_DEVICES}/{vf}/vfio-dev")
    yield from read(vf, "enable", "uevent")
    yield Step("events", guest.pf)
    # Reset by the bus needs a function that is alone there.
    yield from on(guest.pf, "reset_method", "bus", "default")
    yield from read(guest.pf, "reset_method")
    # A PF without its driver keeps its VFs, and VFIO refuses it.
    yield from to("nvme", "unbind", guest.pf)
    yield from on(guest.pf, "sriov_numvfs", "0", "2", "3", "5")
    yield from on(guest.pf, "driver_override", "vfio-pci")
    yield from probe(guest.pf)
    yield from to("vfio-pci", "bind", guest.pf)
    yield from on(guest.pf, "driver_override", "\n")
    yield from probe(guest.pf)
    yield Step("events", guest.pf)
    yield from on(guest.pf, "sriov_numvfs", "0")
    yield Step("exists", f"{_DEVICES}/{vf}")
    yield Step("exists", f"{_DEVICES}/{guest.pf}/virtfn0")
    yield Step("events", guest.pf)


def binding(guest: Guest) -> Iterator[Step]:
    """Drivers: bind, unbind, override, probe, and the counter ``enable``."""
    yield from read(guest.card, "driver_override", "enable")
    yield from to("nvme", "unbind", guest.card)
    yield from to("simaccel", "unbind", "0000:99:00.0")
    yield from to("simaccel", "bind", guest.card)
    yield from to("nvme", "bind", guest.card)
    yield from on(guest.card, "enable", "1")
    yield from to("simaccel", "unbind", guest.card, guest.card)
    yield Step("exists", f"{_DEVICES}/{guest.card}/mdev_supported_types")
    yield Step("list", f"{_DEVICES}/{guest.card}")
    yield from on(guest.card, "enable", "x", "0", "1", "1")
    yield from read(guest.card, "enable")
    yield from on(guest.card, "enable", "0")
    yield from on(guest.card, "driver_override", "nothing")
    yield from probe(guest.card, "junk")
    yield from to("simaccel", "bind", guest.card)
    yield from on(guest.card, "driver_override", "nvme\n")
    yield from read(guest.card, "driver_override")
    yield from probe(guest.card)
    yield from to("nvme", "bind", guest.card)
    # Left enabled by its former driver.
    yield from on(guest.card, "driver_override", "vfio-pci\n")
    yield from to("vfio-pci", "bind", guest.card)
    yield from probe(guest.card)
    yield from read(guest.card, "enable")
    yield Step("hold", guest.card)
    yield Step("holders")
    yield from read(guest.card, "enable")
    yield Step("release", guest.card)
    yield Step("holders")
    yield from read(guest.card, "enable")
    yield Step("events", guest.card)
    for text in ("x" * 4096, "x" * 4095, "a b", "first\nsecond", "", "\n"):
        yield from on(guest.card, "driver_override", text)
        if len(text) < 100:
            yield from read(guest.card, "driver_override")
    yield Step("link", f"{_DEVICES}/{guest.card}/driver")
    yield from to("vfio-pci", "unbind", f"{guest.card}\n")
    yield from probe(f"{guest.card}")
    yield from read(guest.card, "enable", "uevent")
    yield Step("events", guest.card)
    yield from on(guest.card, "vendor", "0x10de")
    yield Step("read", _PROBE)
    yield Step("read", f"{_DRIVERS}/simaccel/bind")


def groups(guest: Guest) -> Iterator[Step]:
    """A group with members of the host: viable only when all of them are free or under VFIO."""
    for address in (guest.sata, guest.smbus):
        yield Step("link", f"{_DEVICES}/{address}/iommu_group")
    yield Step("hold", guest.sata)
    yield from on(guest.sata, "driver_override", "vfio-pci")
    yield from to("ahci", "unbind", guest.sata)
    yield from read(guest.sata, "enable")
    yield from probe(guest.sata)
    yield from read(guest.sata, "enable")
    yield Step("hold", guest.sata)
    yield from to("i801_smbus", "unbind", guest.smbus)
    # This driver does not disable the function.
    yield from read(guest.smbus, "enable")
    yield Step("hold", guest.smbus)
    yield Step("hold", guest.sata)
    yield Step("hold", guest.sata)
    yield from read(guest.sata, "enable")
    yield from to("i801_smbus", "bind", guest.smbus)
    yield from probe(guest.smbus)
    yield Step("release", guest.sata)
    yield from probe(guest.smbus)
    yield from read(guest.smbus, "enable")
    yield Step("hold", guest.sata)
    yield from to("vfio-pci", "unbind", guest.sata)
    yield Step("hold", guest.sata)
    yield from on(guest.sata, "driver_override", "\n")
    yield from probe(guest.sata)
    yield Step("events", guest.sata)
    # A bridge in the group is no obstacle.
    yield from on(guest.parent, "driver_override", "vfio-pci")
    yield from to("simaccel", "unbind", guest.parent)
    yield from probe(guest.parent)
    yield Step("hold", guest.parent)
    yield Step("release", guest.parent)
    yield from to("vfio-pci", "unbind", guest.parent)
    yield from on(guest.parent, "driver_override", "\n")
    yield from probe(guest.parent)


def mediated(guest: Guest) -> Iterator[Step]:
    """Mediated devices: types that take instances from each other, and errors."""
    types = f"{_DEVICES}/{guest.parent}/mdev_supported_types"
    small, whole = f"{types}/simaccel-1", f"{types}/simaccel-4"

    def left() -> Iterator[Step]:
        yield Step("read", f"{small}/available_instances")
        yield Step("read", f"{whole}/available_instances")

    yield Step("list", types)
    yield Step("list", small)
    for name in ("name", "description", "device_api", "create"):
        yield Step("read", f"{small}/{name}")
    yield from left()
    yield Step("write", f"{small}/create", "junk")
    yield Step("write", f"{small}/create", _MDEV[0])
    yield Step("events", guest.parent)
    device = f"/sys/bus/mdev/devices/{_MDEV[0]}"
    yield Step("list", device)
    yield Step("read", f"{device}/uevent")
    for name in ("driver", "iommu_group", "mdev_type"):
        yield Step("link", f"{device}/{name}")
    yield Step("link", device)
    yield Step("link", f"{small}/devices/{_MDEV[0]}")
    yield Step("link", f"/sys/class/mdev_bus/{guest.parent}")
    yield Step("write", f"{small}/create", _MDEV[0].upper())
    other = f"{_DEVICES}/{guest.card}/mdev_supported_types/simaccel-1/create"
    yield Step("write", other, _MDEV[0])
    yield Step("write", f"{whole}/create", _MDEV[1])
    yield from left()
    for uuid in _MDEV[2:5]:
        yield Step("write", f"{small}/create", uuid)
    yield Step("write", f"{small}/create", _MDEV[5])
    yield from left()
    yield Step("write", f"{small}/available_instances", "4")
    for text in ("0", "x", "1", "1"):
        yield Step("write", f"{device}/remove", text)
    yield from left()
    yield Step("list", f"{small}/devices")
    yield Step("events", guest.parent)
    # The instances go with the driver of the parent, and with the parent.
    yield from to("simaccel", "unbind", guest.parent)
    yield Step("list", "/sys/bus/mdev/devices")
    yield from to("simaccel", "bind", guest.parent)
    yield from left()
    yield Step("write", f"{whole}/create", _MDEV[1])
    yield from left()
    yield from on(guest.parent, "remove", "1")
    yield Step("list", "/sys/bus/mdev/devices")
    yield Step("exists", f"/sys/class/mdev_bus/{guest.parent}")
    yield from on(guest.above(guest.parent), "rescan", "1")
    yield Step("link", f"{_DEVICES}/{guest.parent}/driver")
    yield from left()
    yield Step("events", guest.pf)


def vgpus(guest: Guest) -> Iterator[Step]:
    """Vendor-specific VFIO: the list of types shrinks on all VFs of the card."""
    yield from on(guest.pf, "sriov_drivers_autoprobe", "0")
    yield from on(guest.pf, "sriov_numvfs", "4")
    for vf in guest.vfs[:3]:
        yield from on(vf, "driver_override", "simaccel")
        yield from probe(vf)
    first, second, third = guest.vfs[:3]
    kind, types = "nvidia/current_vgpu_type", "nvidia/creatable_vgpu_types"
    yield Step("list", f"{_DEVICES}/{first}/nvidia")
    yield from read(first, types, kind)
    yield from on(first, types, "1")
    yield from on(first, kind, "x", "99", "0x595", "1429", "1428")
    yield from read(first, types, kind)
    yield from read(second, types)
    yield from on(second, kind, "1430", "1429\n")
    yield from read(third, types)
    yield from on(third, kind, "1428")
    yield from on(first, kind, "0", "0")
    yield from read(third, types)
    yield from to("simaccel", "unbind", second)
    yield Step("exists", f"{_DEVICES}/{second}/nvidia")
    yield from read(third, types)
    yield from probe(second)
    yield from read(second, kind, "enable")
    yield Step("events", guest.pf)
    yield from on(guest.pf, "sriov_numvfs", "0")
    yield from on(guest.pf, "sriov_drivers_autoprobe", "1")
    yield Step("events", guest.pf)


def slots(guest: Guest) -> Iterator[Step]:
    """Remove and rescan, on the bus of the function, of its bridge and of the host; uevents."""
    yield from on(guest.card, "driver_override", "abc")
    yield from on(guest.card, "remove", "x", "0", "1")
    yield from read(guest.card, "vendor")
    for text in ("0", "x", "1"):
        yield Step("write", f"{_PCI}/rescan", text)
    yield Step("link", f"{_DEVICES}/{guest.card}/driver")
    yield Step("link", f"{_DEVICES}/{guest.card}/iommu_group")
    yield from read(guest.card, "driver_override", "enable", "uevent")
    yield Step("events", guest.disk)
    # Everything below a bridge goes with it.
    yield from on(guest.above(guest.card), "remove", "1")
    yield from read(guest.card, "vendor")
    yield Step("write", f"{guest.root(guest.card)}/rescan", "1")
    for address in (guest.above(guest.card), guest.card):
        yield Step("link", f"{_DEVICES}/{address}/driver")
    yield Step("events", guest.disk)
    yield from on(guest.nic, "remove", "1")
    yield Step("list", f"{_DRIVERS}/e1000e")
    yield from on(guest.above(guest.nic), "rescan", "1")
    yield Step("events", f"{guest.disk} bind {guest.nic}")
    yield Step("link", f"{_DEVICES}/{guest.nic}/driver")
    yield from read(guest.nic, "enable")
    # The setting of the bus does not hold back a function that a scan finds.
    yield Step("write", f"{_PCI}/drivers_autoprobe", "0")
    yield from on(guest.card, "remove", "1")
    yield Step("write", f"{_PCI}/rescan", "1")
    yield Step("link", f"{_DEVICES}/{guest.card}/driver")
    yield Step("write", f"{_PCI}/drivers_autoprobe", "1")
    yield from on(guest.disk, "uevent", "change", "junk", f"add {_MDEV[0]} A=B")
    yield Step("events", guest.pf)


def resets(guest: Guest) -> Iterator[Step]:
    """The ways to reset a function: list, order, disable."""
    choices = ("pm", "bus", "flr bus", "junk", "", "default", "bus pm", " bus  pm ", "\n")
    for address in (guest.card, guest.nic, guest.disk):
        yield from read(address, "reset_method")
        for text in choices:
            yield from on(address, "reset_method", text)
            yield from read(address, "reset_method")
        yield from on(address, "reset", "1", "0")
        yield from on(address, "reset_method", "default")
        yield from on(address, "reset", "1", "0x1", "2")
    yield from read(guest.sata, "reset_method")
    yield from on(guest.sata, "reset", "1")
    yield Step("events", guest.pf)


def orphans(guest: Guest) -> Iterator[Step]:
    """A guest.pf that is removed leaves its VFs behind, and cannot make new ones."""
    yield from on(guest.pf, "sriov_drivers_autoprobe", "0")
    yield from on(guest.pf, "sriov_numvfs", "2")
    yield from on(guest.pf, "remove", "1")
    yield Step("exists", f"{_DEVICES}/{guest.vfs[0]}")
    yield Step("link", f"{_DEVICES}/{guest.vfs[0]}/physfn")
    yield Step("exists", f"{_DEVICES}/{guest.vfs[0]}/physfn")
    yield Step("write", f"{_PCI}/rescan", "1")
    yield Step("events", f"{guest.disk} bind {guest.pf}")
    yield from read(guest.pf, "sriov_numvfs", "sriov_drivers_autoprobe")
    yield Step("exists", f"{_DEVICES}/{guest.pf}/virtfn0")
    yield from on(guest.pf, "sriov_numvfs", "2", "0")


def without_iommu(card: str) -> Iterator[Step]:
    """Without an IOMMU, VFIO refuses a function, and mediated devices work."""
    yield Step("exists", f"{_DEVICES}/{card}/iommu_group")
    yield Step("list", "/sys/kernel/iommu_groups")
    create = f"{_DEVICES}/{card}/mdev_supported_types/simaccel-1/create"
    yield Step("write", create, _MDEV[0])
    yield Step("link", f"/sys/bus/mdev/devices/{_MDEV[0]}/iommu_group")
    yield Step("write", f"/sys/bus/mdev/devices/{_MDEV[0]}/remove", "1")
    yield from to("simaccel", "unbind", card)
    yield from on(card, "driver_override", "vfio-pci")
    yield from probe(card)
    yield from to("vfio-pci", "bind", card)
    yield Step("hold", card)
    yield from on(card, "driver_override", "\n")
    yield from probe(card)
    yield Step("events", card)


def clean(guest: Guest) -> Iterator[Step]:
    """Return the steps after which the machine is as it was before."""
    for section in (sriov, binding, groups, mediated, vgpus, slots, resets):
        yield from section(guest)


def complete(guest: Guest) -> Iterator[Step]:
    """Return all steps; the PF makes no VFs afterwards."""
    yield from clean(guest)
    yield from orphans(guest)


@dataclass
class Player:
    """Plays steps on one host and writes the transcript; ``names`` stand for its addresses."""

    host: Host
    holder: Holder
    names: Mapping[str, str]
    transcript: Transcript = field(default_factory=list)
    _numbers: dict[str, dict[str, str]] = field(default_factory=dict)

    def play(self, steps: Iterable[Step]) -> Transcript:
        """Play steps and return the transcript."""
        with self.host.events() as events:
            for step in steps:
                answer = self._answer(step, events)
                self.transcript.append((self._stable(str(step)), answer))
        return self.transcript

    def _answer(self, step: Step, events: Events) -> str | list[str]:
        try:
            match step.verb:
                case "write":
                    self.host.write_text(step.path, step.text)
                    return "ok"
                case "read":
                    return self._stable(self.host.read_text(step.path))
                case "list":
                    names = self.host.list_dir(step.path)
                    return [self._stable(name) for name in names if name not in _FIRMWARE]
                case "link":
                    return self._stable(self.host.readlink(step.path))
                case "exists":
                    return str(self.host.exists(step.path))
                case "holders":
                    return sorted(self._stable(path) for path in self._open_nodes())
                case "hold":
                    self.holder.hold(step.path)
                    return "ok"
                case "release":
                    self.holder.release(step.path)
                    return "ok"
        except exception.HostError as error:
            return errno.errorcode[error.fields["errno"]]
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        assert step.verb == "events", step
        return self._events(step.path, events)

    def _open_nodes(self) -> Iterator[str]:
        """Yield the nodes of VFIO that processes have open."""
        processes = self.host.list_dir("/proc") if self.host.exists("/proc") else []
        for process in filter(str.isdecimal, processes):
            # A process may end, and the one that looks has closed the directory again.
            with contextlib.suppress(exception.HostError):
                for number in self.host.list_dir(f"/proc/{process}/fd"):
                    with contextlib.suppress(exception.HostError):
                        target = self.host.readlink(f"/proc/{process}/fd/{number}")
                        if target.startswith("/dev/vfio/"):
                            yield target

    def _events(self, path: str, events: Events) -> list[str]:
        """Return all events so far: those before one that a function is made to send.

        ``path`` is the address of that function; after it, an action and an address may name an
        event that comes by a thread of the kernel and is waited for.
        """
        marker, *awaited = path.split()
        lines: list[str] = []
        if not awaited:
            self._mark(marker)
        while (event := events.poll(_PATIENCE)) is not None:
            if event.fields.get("SYNTH_UUID") == _MARK:
                return lines
            if event.fields.get("SUBSYSTEM") in _SUBSYSTEMS:
                lines.append(self._line(event))
            if awaited == [event.action, posixpath.basename(event.devpath)]:
                self._mark(marker)
        return [*lines, "no end"]

    def _mark(self, address: str) -> None:
        self.host.write_text(f"{_DEVICES}/{address}/uevent", f"change {_MARK}")

    def _line(self, event: Uevent) -> str:
        fields = sorted(
            f"{key}={self._stable(value)}"
            for key, value in event.fields.items()
            if key not in _UNSTABLE
        )
        return " ".join([event.action, self._stable(event.devpath), *fields])

    def _stable(self, text: str) -> str:
        """Replace what depends on the machine: addresses, places, and numbers that are given."""
        for address, name in self.names.items():
            text = text.replace(address, name)
        text = _PLACE.sub("devices/.../", text)

        def letter(match: re.Match[str]) -> str:
            kind = "vfio" if match[1] == "vfio-dev/vfio" else "group"
            numbers = self._numbers.setdefault(kind, {})
            return match[1] + numbers.setdefault(match[2], f"<{kind} {len(numbers)}>")

        return _NUMBERED.sub(letter, text)


class VfioHolder:
    """Opens functions of this machine as QEMU does (Linux: include/uapi/linux/vfio.h)."""

    _SET_IOMMU = 0x3B66
    _SET_CONTAINER = 0x3B68
    _GET_DEVICE = 0x3B6A
    _TYPE1 = 1

    def __init__(self) -> None:
        self._open: dict[str, contextlib.ExitStack] = {}

    def hold(self, address: str) -> None:
        """Open the group, attach it to a container and open the function."""
        group = posixpath.basename(os.readlink(f"{_DEVICES}/{address}/iommu_group"))
        with contextlib.ExitStack() as stack:
            container = os.open("/dev/vfio/vfio", os.O_RDWR)
            stack.callback(os.close, container)
            handle = os.open(f"/dev/vfio/{group}", os.O_RDWR)
            stack.callback(os.close, handle)
            fcntl.ioctl(handle, self._SET_CONTAINER, struct.pack("i", container))
            fcntl.ioctl(container, self._SET_IOMMU, self._TYPE1)
            # fcntl.ioctl does not return the descriptor when the argument is a string.
            library = ctypes.CDLL(None, use_errno=True)
            device = library.ioctl(
                handle, ctypes.c_ulong(self._GET_DEVICE), ctypes.c_char_p(address.encode())
            )
            if device < 0:
                raise OSError(ctypes.get_errno(), "VFIO_GROUP_GET_DEVICE_FD")
            stack.callback(os.close, device)
            self._open[address] = stack.pop_all()

    def release(self, address: str) -> None:
        """Close what ``hold`` opened."""
        self._open.pop(address).close()


def play(host: Host, holder: Holder, steps: Callable[[Guest], Iterable[Step]]) -> Transcript:
    """Play ``clean`` or ``complete`` and return the transcript."""
    guest = Guest.of(host)
    return Player(host, holder, guest.names()).play(steps(guest))


def capture() -> FakeHost:
    """Return a copy of the part of this machine's tree that the scenario and its rules need."""
    recording = RecordingHost()
    for place in (
        "/sys/bus/mdev",
        "/sys/bus/pci",
        "/sys/class/mdev_bus",
        "/sys/class/vfio",
        "/sys/class/vfio-dev",
        "/sys/kernel/iommu_groups",
    ):
        _copy(recording, place)
    for name in recording.list_dir("/sys/devices"):
        if name.startswith("pci"):
            _copy(recording, f"/sys/devices/{name}")
    recording.list_dir("/dev/vfio")
    # A file that only can be written is unreadable by its mode, which the simulated kernel knows.
    recording.tree.faults.clear()
    return recording.tree


def _copy(recording: RecordingHost, place: str) -> None:
    """Copy a sub-tree, without what is binary or can be slow."""
    for name in recording.list_dir(place):
        path = f"{place}/{name}"
        if os.path.islink(path):
            recording.readlink(path)
        elif os.path.isdir(path):
            _copy(recording, path)
        elif not name.startswith(("config", "resource", "rom", "vpd")):
            with contextlib.suppress(exception.HostError):
                recording.read_text(path)


def main() -> int:
    """Play all sections here; print the transcript as JSON with one step in each line."""
    transcript = play(LocalHost(), VfioHolder(), complete)
    lines = ",\n".join(json.dumps(entry) for entry in transcript)
    sys.stdout.write(f"[\n{lines}\n]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
