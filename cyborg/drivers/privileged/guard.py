# SPDX-License-Identifier: Apache-2.0
"""Judge again, in the privileged process, on which functions an action may work.

The agent judges what it offers; this process does not trust it. A function must be on a list that
only root can change, and nothing may use it or a part of it: the host, a process or a guest.
"""

import errno
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from cyborg import exception
from cyborg.drivers import mediated, pci_scan, whitelist
from cyborg.drivers.files import TABLE_LIMIT
from cyborg.drivers.host import Host
from cyborg.drivers.ownership import Ownership
from cyborg.drivers.pci_function import PciFunction, parse_function
from cyborg.drivers.pci_scan import Snapshot
from cyborg.drivers.privileged.action import Action, Reach
from cyborg.drivers.privileged.kernel import Kernel
from cyborg.drivers.whitelist import Entry
from cyborg.model.pci import PciAddress

#: How often a use is looked for again, and the seconds between: udev and scans of the agent open a
#: disk for a moment, and a guest that ends closes its devices after a while.
_ATTEMPTS: Final = 6
_INTERVAL: Final = 0.5
#: The last words of a refusal because of the list.
_REMEDY: Final = "root makes it with cyborg-agent --list-functions"


class Guard:
    """Refuses actions on functions that are in use, or that root has not listed.

    ``functions`` is the path of the list. It has one entry of ``[pci] passthrough_whitelist`` in
    each line; lines that begin with ``#`` are comments. The list is read for each action.
    """

    def __init__(self, host: Host, kernel: Kernel, functions: str) -> None:
        self._host = host
        self._kernel = kernel
        self._path = functions

    def check(self, action: Action[Any]) -> None:
        """Raise exception.HostError if an action that changes the host must not run."""
        if not action.changes:
            return
        reach = action.reach(self._kernel)
        _, functions = _read(self._host, [reach.named])
        reason = self._not_listed(functions[reach.named])
        if reason is not None:
            raise exception.HostError(action=str(action), reason=reason, errno=errno.EPERM)
        check_use(self._host, action, reach)

    def _not_listed(self, function: PciFunction) -> str | None:
        """Return why the list does not have a function, None if it has."""
        try:
            entries = read_list(self._host, self._path)
        except (exception.HostError, exception.ConfigError) as error:
            return f"root's list of functions cannot be used: {str(error).rstrip('.')}; {_REMEDY}"
        if any(entry.matches(function, {}, managed=False) for entry in entries):
            return None
        return f"{function.address} is not in {self._path}, root's list of functions; {_REMEDY}"


def read_list(host: Host, path: str) -> Sequence[Entry]:
    """Return the entries of a list of functions that only root can change.

    Raises exception.HostError if others can change it or if it cannot be read, and
    exception.ConfigError if an entry is not valid.
    """
    place = host.writable_by_others(path)
    if place is not None:
        raise exception.HostError(
            action=f"reading {path}", reason=f"others than root can change {place}"
        )
    lines = host.read_text(path, TABLE_LIMIT).splitlines()
    entries = [line for line in lines if line.strip() and not line.startswith("#")]
    return whitelist.parse(entries, path)


def check_use(host: Host, action: Action[Any], reach: Reach) -> None:
    """Raise exception.HostError if something still uses a part of the reach after a while."""
    for attempt in range(_ATTEMPTS):
        if attempt:
            host.pause(_INTERVAL)
        snapshot, functions = _read(host, reach.disturbed)
        ownership = Ownership(host, snapshot, functions, {})
        uses = (
            *(
                (str(address), ownership.use(functions[address], opened=action.detaches))
                for address in reach.disturbed
            ),
            *((place, _holder(host, place)) for place in reach.mediated),
        )
        reasons = [f"{name} is in use: {use}" for name, use in uses if use is not None]
        if not reasons:
            return
    raise exception.HostError(action=str(action), reason=reasons[0], errno=errno.EBUSY)


def _holder(host: Host, place: str) -> str | None:
    """Return who holds the mediated device in a directory, or that this is not known."""
    holder = mediated.holder(host, place)
    if holder is not None:
        return f"held through VFIO by {holder}"
    reason = host.open_files().reason
    return None if reason is None else f"a process may hold it through VFIO: {reason}"


def _read(
    host: Host, addresses: Iterable[PciAddress]
) -> tuple[Snapshot, dict[PciAddress, PciFunction]]:
    """Read functions, and what the host uses now.

    Raises exception.HostError for a function that is not on the bus.
    """
    snapshot = pci_scan.read_uses(host, map(str, addresses))
    functions: dict[PciAddress, PciFunction] = {}
    for raw in snapshot.functions:
        try:
            function = parse_function(raw)
        except ValueError as error:
            raise exception.HostError(action=f"reading {raw.name}", reason=str(error)) from error
        functions[function.address] = function
    for address in addresses:
        if address not in functions:
            raise exception.HostError(
                action=f"looking for {address}",
                reason=os.strerror(errno.ENODEV),
                errno=errno.ENODEV,
            )
    children = Counter(function.parent for function in functions.values())
    for address in functions.keys() & children.keys():
        functions[address] = replace(functions[address], vfs=children[address])
    return snapshot, functions
