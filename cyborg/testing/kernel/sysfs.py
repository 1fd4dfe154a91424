# SPDX-License-Identifier: Apache-2.0
"""Access to the tree of a simulated host without its kernel's rules, and parsing of writes."""

import errno
import os
import posixpath
import re

from cyborg.drivers.uevents import Uevent
from cyborg.testing.fake_host import FakeHost

PCI = "/sys/bus/pci"
#: A function's name; domains above ffff have up to eight digits.
ADDRESS = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]"
#: What ``driver_override`` reads when nothing is set.
NO_OVERRIDE = "(null)"
#: The forms of an integer that the kernel parses (lib/kstrtox.c): base by prefix, one newline.
_NUMBER = re.compile(r"\+?(0x[0-9a-f]+|[0-9]+)\n?", re.IGNORECASE)
_BOOLEAN = {"1": 1, "y": 1, "t": 1, "on": 1, "0": 0, "n": 0, "f": 0, "of": 0}


def error(number: int) -> OSError:
    """Return the error of the operating system with this number."""
    return OSError(number, os.strerror(number))


def parse_unsigned(text: str, bits: int, base: int = 0) -> int:
    """Return the integer that the kernel reads in a write; base 0 means base by prefix.

    Raises OSError (EINVAL) for other text and (ERANGE) for a number of more than ``bits`` bits.
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise error(errno.EINVAL)
    digits = match[1].lower()
    if base == 0:
        base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10
    try:
        number = int(digits, base)
    except ValueError:
        raise error(errno.EINVAL) from None
    if number >> bits:
        raise error(errno.ERANGE)
    return number


def parse_boolean(text: str) -> int:
    """Return 1 or 0 as the kernel's kstrtobool does, which looks at one or two characters."""
    lowered = text.lower()
    for length in (1, 2):
        if (value := _BOOLEAN.get(lowered[:length])) is not None:
            return value
    raise error(errno.EINVAL)


class Sysfs:
    """The tree of a host; no call here counts as a call of a driver or meets a fault."""

    def __init__(self, host: FakeHost) -> None:
        self._host = host
        self._sequence = 0

    def text(self, path: str, default: str = "") -> str:
        """Return the content of a file without its newline."""
        content = self._host.content(path)
        return default if content is None else content.decode(errors="replace").rstrip("\n")

    def number(self, path: str) -> int:
        """Return the decimal number in a file, 0 if it has none."""
        text = self.text(path)
        return int(text) if text.isdecimal() else 0

    def put(self, path: str, value: object) -> None:
        """Write a value and a newline, whether or not the file exists."""
        self._host.add_file(path, f"{value}\n")

    def link(self, path: str, target: str) -> None:
        """Put a link with a relative target, as the kernel writes them."""
        self._host.add_link(path, posixpath.relpath(target, posixpath.dirname(path)))

    def link_absolute(self, path: str, target: str) -> None:
        """Put a link with its target as it is."""
        self._host.add_link(path, target)

    def add_dir(self, path: str) -> None:
        """Make a directory."""
        self._host.add_dir(path)

    def remove(self, path: str) -> None:
        """Remove a file, a link or a sub-tree; nothing there does no harm."""
        self._host.remove(path)

    def target(self, path: str) -> str | None:
        """Return the absolute target of a link; None if there is no link."""
        target = self._host.target(path)
        if target is None:
            return None
        return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, none if it does not exist."""
        return self._host.names(path) or []

    def exists(self, path: str) -> bool:
        """Return whether there is a file, a link or a directory."""
        host = self._host
        places = (host.content(path), host.target(path), host.names(path))
        return any(place is not None for place in places)

    def functions(self) -> list[str]:
        """Return the directories of all functions, in the order of their addresses."""
        devices = f"{PCI}/devices"
        targets = (self.target(f"{devices}/{name}") for name in self.names(devices))
        return [path for path in targets if path is not None]

    def function(self, text: str) -> str:
        """Return the directory of the function that a write names.

        Raises OSError (ENODEV) for a function that does not exist.
        """
        path = self.target(f"{PCI}/devices/{text.removesuffix(chr(10))}")
        if path is None:
            raise error(errno.ENODEV)
        return path

    def children(self, path: str) -> list[str]:
        """Return the directories of the functions directly below a bridge or a root bus."""
        return [f"{path}/{name}" for name in self.names(path) if re.fullmatch(ADDRESS, name)]

    def emit(self, action: str, path: str, subsystem: str, fields: dict[str, str]) -> None:
        """Send a uevent about the device in this directory."""
        self._sequence += 1
        devpath = path.removeprefix("/sys")
        event = {"ACTION": action, "DEVPATH": devpath, "SUBSYSTEM": subsystem, **fields}
        self._host.emit(Uevent(action, devpath, {**event, "SEQNUM": str(self._sequence)}))

    def emit_function(self, action: str, path: str, extra: dict[str, str] | None = None) -> None:
        """Send a uevent about a function; an ``unbind`` has no MODALIAS, as in the kernel."""
        lines = self.text(f"{path}/uevent").splitlines()
        fields = dict(line.split("=", 1) for line in lines if "=" in line)
        if action == "unbind":
            fields.pop("MODALIAS", None)
        self.emit(action, path, "pci", {**(extra or {}), **fields})

    def refresh(self, path: str) -> None:
        """Write the files of a function that repeat others: ``modalias`` and ``uevent``."""
        names = ("vendor", "device", "subsystem_vendor", "subsystem_device", "class")
        read = (self.text(f"{path}/{name}", "0x0").removeprefix("0x") for name in names)
        vendor, device, owner, model, code = (int(text or "0", 16) for text in read)
        base, sub, interface = code >> 16, code >> 8 & 0xFF, code & 0xFF
        alias = (
            f"pci:v{vendor:08X}d{device:08X}sv{owner:08X}sd{model:08X}"
            f"bc{base:02X}sc{sub:02X}i{interface:02X}"
        )
        driver = self.target(f"{path}/driver")
        lines = [] if driver is None else [f"DRIVER={posixpath.basename(driver)}"]
        lines += [
            f"PCI_CLASS={code:04X}",
            f"PCI_ID={vendor:04X}:{device:04X}",
            f"PCI_SUBSYS_ID={owner:04X}:{model:04X}",
            f"PCI_SLOT_NAME={posixpath.basename(path)}",
            f"MODALIAS={alias}",
        ]
        self.put(f"{path}/modalias", alias)
        self.put(f"{path}/uevent", "\n".join(lines))
