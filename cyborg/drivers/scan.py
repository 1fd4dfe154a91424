# SPDX-License-Identifier: Apache-2.0
"""One round of reading the host, which all drivers share."""

import contextlib
import logging
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType

from cyborg import exception
from cyborg.drivers import ownership, pci_scan
from cyborg.drivers.host import Host
from cyborg.drivers.ownership import Ownership
from cyborg.drivers.pci_function import PciFunction, addresses_in_path, parse_function
from cyborg.drivers.pci_scan import Snapshot
from cyborg.drivers.topology import Cards, FactCache
from cyborg.drivers.worker import Worker
from cyborg.model.device import Device
from cyborg.model.pci import PciAddress

LOG = logging.getLogger(__name__)

_MAX_NODE = 0xFFFF
_NETWORK, _INFINIBAND = 0x02, 0x0C06
#: The arguments of ``Scan.refusal``.
_Question = tuple[PciAddress, bool, bool, bool, bool, Set[PciAddress]]


class Scan:
    """The PCI functions of a host and their uses at one moment, read once, when first needed.

    ``claims`` maps canonical PCI addresses to a sentence that says why another service owns the
    function (Nova's providers in Placement). ``managed_deployables`` holds the names of the
    deployables that the conductor keeps for this host, lost ones included: their units may be in a
    guest because this service attached them. With ``all_managed`` every function counts as one that
    the conductor keeps. ``worker`` asks devices that may hang, and ``cache`` keeps what cannot
    change while a function is on the bus; the scan has its own without them. Any thread may use a
    scan. Every attribute raises exception.HostError when the host's functions cannot be listed.
    """

    def __init__(
        self,
        host: Host,
        *,
        claims: Mapping[str, str] = MappingProxyType({}),
        managed_deployables: Set[str] = frozenset(),
        all_managed: bool = False,
        worker: Worker | None = None,
        cache: FactCache | None = None,
    ) -> None:
        self._host = host
        self.claims = claims
        self.managed_deployables = managed_deployables
        self._all_managed = all_managed
        self._worker = worker or Worker()
        self._cache = cache or FactCache()
        self._lock = threading.RLock()
        self._attributes: dict[tuple[PciAddress, str], str | None] = {}
        self._refusals: dict[_Question, str | None] = {}

    @property
    def snapshot(self) -> Snapshot:
        """Return what was read."""
        with self._lock:
            return self._snapshot

    @property
    def functions(self) -> Mapping[PciAddress, PciFunction]:
        """Return the functions that can be understood, in the order of their addresses."""
        with self._lock:
            return self._parsed[0]

    @property
    def unreadable(self) -> Mapping[str, str]:
        """Return the other entries of the bus: name → a clause that says what is wrong."""
        with self._lock:
            return self._parsed[1]

    def virtual_functions(self, address: PciAddress) -> Sequence[PciFunction]:
        """Return the virtual functions of a function that can be understood, by address."""
        card = self.functions.get(address)
        if card is None or not card.vfs:
            return ()
        return [vf for vf in self.functions.values() if vf.parent == address]

    def is_managed(self, deployable: str) -> bool:
        """Return whether the conductor keeps a deployable of this name."""
        return self._all_managed or deployable in self.managed_deployables

    def refusal(
        self,
        function: PciFunction,
        *,
        managed: bool,
        whole: bool = True,
        typed: bool = False,
        probe: bool = True,
        together: frozenset[PciAddress] = frozenset(),
    ) -> str | None:
        """Return a clause that says why a function must not be offered, None when it may be.

        See ``Ownership`` for ``managed``, ``whole``, ``typed`` and ``together``. Without ``probe``
        the function itself is not asked. A function that does not answer in time is refused.
        """
        question = function.address, managed, whole, typed, probe, together
        with self._lock:
            if question in self._refusals:
                return self._refusals[question]
            use = self._ownership
            reason = use.refusal(function, whole=whole, together=together)
        if reason is None and probe:
            try:
                reason = self._worker.read(
                    str(function.address),
                    lambda: use.probe(function, managed=managed, whole=whole, typed=typed),
                )
            except exception.HostError as error:
                reason = f"it is not known whether it is in use: {error}"
        with self._lock:
            self._refusals[question] = reason
        return reason

    def interfaces(self, address: PciAddress) -> list[str]:
        """Return the names of the network interfaces of a function."""
        return [
            interface.name
            for interface in self.snapshot.network.interfaces
            if addresses_in_path(interface.path)[-1:] == [address]
        ]

    def numa_node(self, address: PciAddress) -> int | None:
        """Return the NUMA node of a function, None where the firmware does not tell it.

        Raises exception.HostError when the function has left the bus.
        """
        try:
            text = pci_scan.attribute(self._host, str(address), "numa_node")
        except exception.HostError:
            return None
        if text is None:
            # A kernel without NUMA has no such file.
            self._host.realpath(f"/sys/bus/pci/devices/{address}")
            return None
        # Firmware that does not tell the node shows -1.
        node = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else -1
        return node if 0 <= node <= _MAX_NODE else None

    def with_facts(self, device: Device, function: PciFunction) -> Device:
        """Return a device of a function with its NUMA node, identity and topology.

        Only this call reads them, so call it for devices that are offered. An identity that the
        driver gave comes first, and replaces one of the same kind. Raises exception.HostError when
        the function has left the bus.
        """
        with self._lock:
            cards = self._cards
        given = {identity.kind for identity in device.identity}
        others = (fact for fact in cards.identity(function) if fact.kind not in given)
        return replace(
            device,
            numa_node=self.numa_node(function.address),
            topology=cards.topology(function),
            identity=(*device.identity, *others),
        )

    def nics_behind(self, switch: str) -> frozenset[str]:
        """Return the kinds of network cards behind a PCIe switch, as ``15b3:1021``."""
        with self._lock:
            return frozenset(self._nics.get(switch, ()))

    @cached_property
    def _nics(self) -> Mapping[str, Set[str]]:
        """The kinds of network cards by the address of their switch."""
        kinds = defaultdict[str, set[str]](set)
        for function in self.functions.values():
            if function.parent is not None or not _is_network(function):
                continue
            # A card that has just gone is behind no switch.
            with contextlib.suppress(exception.HostError):
                topology = self._cards.topology(function)
                if topology is not None and topology.switch is not None:
                    kinds[topology.switch].add(f"{function.vendor:04x}:{function.product:04x}")
        return kinds

    def mdev_types(self, address: PciAddress) -> Mapping[str, tuple[int, int]]:
        """Return the types of mediated devices of a function; see ``pci_scan.mdev_types``."""
        name = str(address)
        return self._worker.read(name, lambda: pci_scan.mdev_types(self._host, name))

    def attribute(self, address: PciAddress, file: str) -> str | None:
        """Return the text of a file of a function, read once; see ``pci_scan.attribute``."""
        question, name = (address, file), str(address)
        if question not in self._attributes:
            self._attributes[question] = self._worker.read(
                name, lambda: pci_scan.attribute(self._host, name, file)
            )
        return self._attributes[question]

    def vfs(self, address: PciAddress) -> tuple[int, int]:
        """Return how many virtual functions a function has, and can have; see ``pci_scan.vfs``."""
        name = str(address)
        return self._worker.read(name, lambda: pci_scan.vfs(self._host, name))

    @cached_property
    def _snapshot(self) -> Snapshot:
        return pci_scan.read(self._host)

    @cached_property
    def _parsed(self) -> tuple[dict[PciAddress, PciFunction], dict[str, str]]:
        functions: dict[PciAddress, PciFunction] = {}
        unreadable = {}
        for raw in self._snapshot.functions:
            try:
                function = parse_function(raw)
            except ValueError as error:
                unreadable[raw.name] = str(error)
            else:
                functions[function.address] = function
        children = Counter(function.parent for function in functions.values())
        for address in functions.keys() & children.keys():
            functions[address] = replace(functions[address], vfs=children[address])
        return functions, unreadable

    @cached_property
    def _cards(self) -> Cards:
        return Cards(self._host, self.functions, self._worker, self._cache)

    @cached_property
    def _ownership(self) -> Ownership:
        return Ownership(self._host, self._snapshot, self._parsed[0], self.claims)


def _is_network(function: PciFunction) -> bool:
    """Return whether a function is a network card: class 02, or InfiniBand of class 0c06."""
    return function.class_code >> 16 == _NETWORK or function.class_code >> 8 == _INFINIBAND


class RefusalLog:
    """Log each function that is selected and not offered, once for each reason."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, str, str]] = set()

    def log(self, refusals: Iterable[tuple[str, str, str]]) -> None:
        """Log the new ones of these refusals: key of the device, what selects it, and reason."""
        refused = set(refusals)
        new = refused - self._logged
        if any(reason == ownership.NO_IOMMU for _, _, reason in new):
            LOG.warning("No PCI function is offered: %s", ownership.NO_IOMMU)
        for key, source, reason in sorted(new):
            if reason != ownership.NO_IOMMU:
                LOG.warning(
                    "PCI function %s, selected by %s, is not offered: %s", key, source, reason
                )
        self._logged = refused
