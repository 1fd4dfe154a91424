# SPDX-License-Identifier: Apache-2.0
"""The PCI functions of a guest, and the changes that a test makes to them."""

import errno
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from cyborg import exception
from cyborg.drivers.host import LocalHost

#: Seconds; a guest is slow.
PATIENCE = 300.0
BUS = "/sys/bus/pci"
#: QEMU's NVMe controller, its card for education (an accelerator of simaccel), and the network
#: cards, the CXL memory and the display (see dfl.py) of the machine ``pci``: vendor and device id.
NVME = ("0x1b36", "0x0010")
CARD = ("0x1234", "0x11e8")
E1000E = ("0x8086", "0x10d3")
IGB = ("0x8086", "0x10c9")
CXL = ("0x8086", "0x0d93")
DISPLAY = ("0x1234", "0x1111")


@contextmanager
def refused(number: int) -> Iterator[None]:
    """Expect that the kernel refuses what happens inside with this error number."""
    with pytest.raises(exception.HostError) as raised:
        yield
    names = [errno.errorcode[value] for value in (raised.value.fields["errno"], number)]
    assert names[0] == names[1]


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until the kernel has done what it does in the background."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"not true within {PATIENCE:g} s"
        time.sleep(0.05)


def catalogued(directory: Path, ids: tuple[str, str], driver: str, kind: str) -> str:
    """Return the configuration with which a driver takes a card of the guest for one of its own.

    ``ids`` are those of the card, vendor and product, and ``kind`` its type of device.
    """
    directory.mkdir()
    name = ":".join(word.removeprefix("0x") for word in ids)
    entry = f"- {{pci_ids: [{name}], driver: {driver}, device_type: {kind}}}\n"
    (directory / "card.yaml").write_text(entry)
    return f"[generic_driver]\ndevices_dir = {directory}\n"


class Functions:
    """Addresses of PCI functions, and their files; ``undo`` restores what the tests change."""

    def __init__(self, host: LocalHost, undo: ExitStack) -> None:
        self._host = host
        self._undo = undo

    def path(self, address: str, name: str = "") -> str:
        """Return the path of a function, or of a file of it."""
        return f"{BUS}/devices/{address}/{name}".rstrip("/")

    def read(self, address: str, name: str) -> str:
        """Return a file of a function without the white space around it."""
        return self._host.read_text(self.path(address, name)).strip()

    def write(self, address: str, name: str, value: object) -> None:
        """Write a file of a function."""
        self._host.write_text(self.path(address, name), f"{value}\n")

    def link(self, address: str, name: str) -> str | None:
        """Return the last part of a link of a function, None if it does not exist."""
        path = self.path(address, name)
        return self._host.realpath(path).rpartition("/")[2] if self._host.exists(path) else None

    def matching(self, identity: tuple[str, str]) -> list[str]:
        """Return the addresses of all functions with this vendor and device id, VFs last."""
        addresses = [
            address
            for address in self._host.list_dir(f"{BUS}/devices")
            if (self.read(address, "vendor"), self.read(address, "device")) == identity
        ]
        return sorted(addresses, key=lambda address: self.link(address, "physfn") is not None)

    def nvme(self, serial: str) -> str:
        """Return the address of the NVMe controller with this serial number."""
        [address] = [
            address
            for address in self.matching(NVME)
            for name in self.names(address, "nvme")
            if self.read(address, f"nvme/{name}/serial") == serial
        ]
        return address

    def disk(self, address: str) -> str:
        """Return the name of the disk of an NVMe controller.

        With multipath the controller has a hidden path nvme1c2n3 to the disk nvme1n3.
        """
        [controller] = self.names(address, "nvme")
        names = self.names(address, f"nvme/{controller}")
        [path] = [name for name in names if re.fullmatch(r"nvme\d+(c\d+)?n\d+", name)]
        return re.sub(r"c\d+", "", path)

    def interface(self, address: str) -> str:
        """Return the name of the network interface of a function."""
        [name] = self.names(address, "net")
        return name

    def names(self, address: str, directory: str) -> list[str]:
        """Return the names in a directory of a function; none if it does not exist."""
        path = self.path(address, directory)
        return self._host.list_dir(path) if self._host.exists(path) else []

    def bind(self, address: str, driver: str | None) -> None:
        """Bind a function to the driver by ``driver_override``; None only unbinds it."""
        former = self.link(address, "driver")
        self._undo.callback(self._bind, address, former, "")
        self._bind(address, driver, driver or "")

    def remove(self, address: str) -> None:
        """Remove a function from the bus; after the test, a rescan finds it again."""
        self._undo.callback(self.rescan)
        self.write(address, "remove", 1)

    def rescan(self) -> None:
        """Look for functions that are not known."""
        self._host.write_text(f"{BUS}/rescan", "1\n")

    def create_vfs(self, address: str, number: int, *, probe: bool = False) -> list[str]:
        """Create virtual functions and return their addresses; ``probe`` lets drivers have them."""
        self.write(address, "sriov_drivers_autoprobe", int(probe))
        self._undo.callback(self.write, address, "sriov_drivers_autoprobe", 1)
        self._undo.callback(self.write, address, "sriov_numvfs", 0)
        self.write(address, "sriov_numvfs", number)
        links = (self.link(address, f"virtfn{index}") for index in range(number))
        return [link for link in links if link]

    def create_mdev(self, address: str, kind: str) -> str:
        """Create a mediated device of one of the types of a function; return its UUID."""
        name = str(uuid.uuid4())
        self.write(address, f"mdev_supported_types/{kind}/create", name)
        self._undo.callback(self._host.write_text, f"/sys/bus/mdev/devices/{name}/remove", "1\n")
        return name

    def _bind(self, address: str, driver: str | None, override: str) -> None:
        if not self._host.exists(self.path(address)):
            return
        self.write(address, "driver_override", override)
        if self.link(address, "driver"):
            self.write(address, "driver/unbind", address)
            while self.read(address, "enable") != "0":
                # Some drivers leave their function enabled, and enable it again when they return.
                self.write(address, "enable", 0)
        if driver:
            self._host.write_text(f"{BUS}/drivers_probe", address)
            assert self.link(address, "driver") == driver
