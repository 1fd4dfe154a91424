# SPDX-License-Identifier: Apache-2.0
"""What a network card keeps for a virtual function: MAC address, VLAN, rates, trust and more.

Nova, libvirt and Neutron set these on the host, so a reset of the function leaves them as they are.
The output is that of ``ip`` in iproute2 6 on Linux 6.12, with a card of igb.
"""

import errno
import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cyborg import exception
from cyborg.drivers.base import Progress
from cyborg.drivers.command import summary
from cyborg.drivers.files import read_if_exists
from cyborg.drivers.host import Host
from cyborg.drivers.pci_function import PciFunction
from cyborg.drivers.privileged import actions
from cyborg.drivers.scan import Scan

_IP: Final = "/usr/sbin/ip"
_TIMEOUT: Final = 10.0
#: The class of network controllers, in its highest byte.
_NETWORK: Final = 0x02
#: Its cards do not check the source addresses of new functions; those of others do.
_MELLANOX: Final = 0x15B3
_MAC: Final = "MAC address"
_NO_ADDRESS: Final = "00:00:00:00:00:00"
#: The name of a port's own interface, beside those that stand for its virtual functions.
_UPLINK: Final = re.compile(r"p[0-9]+")
#: Drivers answer with it while a function is being reset.
_ATTEMPTS: Final = 10
_INTERVAL: Final = 1.0


def port_interface(host: Host, scan: Scan, function: PciFunction) -> str | None:
    """Return the interface of the port to which a virtual function belongs.

    None without one, and on a host without the command that shows the settings.
    """
    if function.parent is None or function.class_code >> 16 != _NETWORK:
        return None
    try:
        if not host.exists(_IP):
            return None
    except exception.HostError:
        return None
    names = scan.interfaces(function.parent)
    if len(names) > 1:
        names = [name for name in names if _is_uplink(host, name)]
    return names[0] if names else None


def _is_uplink(host: Host, interface: str) -> bool:
    try:
        name = read_if_exists(host.read_text, f"/sys/class/net/{interface}/phys_port_name")
    except exception.HostError:
        # Drivers without such names answer the read with an error.
        return True
    return name is None or _UPLINK.fullmatch(name.strip()) is not None


@dataclass(frozen=True)
class VfSettings:
    """The settings of one virtual function of a port, which has an interface on the host."""

    host: Host
    function: PciFunction
    parent: PciFunction
    interface: str

    def reset(self, progress: Progress) -> None:
        """Give the function the settings that it has after its creation, and check them.

        A setting that the driver of the card does not have is left out. The MAC address is not
        checked: drivers show one that the function has chosen itself. Raises exception.HostError.
        """
        number = self._number()
        changes = list(self._changes(number))
        for done, (name, values) in enumerate(changes):
            progress(done / len(changes), name)
            self._set(actions.SetVf(self.parent.address, self.interface, number, **values))
        left = [name for name, _ in self._changes(number) if name != _MAC]
        if left:
            raise exception.HostError(
                action=f"resetting the settings of {self.function.address}",
                reason=f"{self.interface} keeps {', '.join(left)}",
            )

    def _number(self) -> int:
        """Return the number of the function, from 0."""
        for number in range(self.parent.vfs):
            link = f"/sys/bus/pci/devices/{self.parent.address}/virtfn{number}"
            if posixpath.basename(self.host.readlink(link)) == str(self.function.address):
                return number
        raise exception.HostError(
            action=f"looking for {self.function.address}",
            reason=f"it is not a virtual function of {self.parent.address}",
        )

    def _changes(self, number: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the settings that differ from those of a new function, with what resets each."""
        shown = self._read(number)
        checks = self.parent.vendor != _MELLANOX
        if shown.get("address", _NO_ADDRESS) != _NO_ADDRESS:
            yield _MAC, {"mac": _NO_ADDRESS}
        if any(shown.get("vlan_list") or ()):
            yield "VLAN", {"vlan": 0}
        if any(shown.get("rate", {}).values()):
            yield "rates", {"min_rate": 0, "max_rate": 0}
        if shown.get("trust", False):
            yield "trust", {"trust": False}
        if shown.get("spoofchk", checks) is not checks:
            yield "spoof check", {"spoof_check": checks}
        if shown.get("link_state", "auto") != "auto":
            yield "link state", {"auto_link": True}

    def _read(self, number: int) -> Mapping[str, Any]:
        """Return what the host shows of the function."""
        action = f"reading the settings of {self.interface}"
        words = [_IP, "-j", "link", "show", "dev", self.interface]
        result = self.host.run(words, timeout=_TIMEOUT)
        if result.status != 0:
            raise exception.HostError(action=action, reason=summary(result))
        try:
            [link] = json.loads(result.stdout)
            [shown] = [entry for entry in link["vfinfo_list"] if entry["vf"] == number]
            if isinstance(shown.get("rate", {}), dict):
                return dict(shown)
            raise TypeError
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f"{_IP} printed no virtual function {number} ({type(error).__name__})"
            raise exception.HostError(action=action, reason=reason) from error

    def _set(self, action: actions.SetVf) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self.host.privileged.run(action)
                return
            except exception.HostError as error:
                match error.fields.get("errno"):
                    case errno.EOPNOTSUPP:
                        return
                    case errno.EAGAIN if attempt < _ATTEMPTS:
                        self.host.pause(_INTERVAL)
                    case _:
                        raise
