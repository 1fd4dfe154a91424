# SPDX-License-Identifier: Apache-2.0
"""Give the devices of all drivers the traits of the rules that hold for them.

``cyborg.drivers.trait_rules`` says what a rule is.
"""

import contextlib
from collections.abc import Collection, Sequence

from cyborg import exception
from cyborg.agent.topology_traits import with_traits
from cyborg.drivers.catalogue import Catalogue
from cyborg.drivers.pci_function import PciFunction, parse_name
from cyborg.drivers.scan import Scan
from cyborg.drivers.trait_rules import Unit
from cyborg.model.device import AttachType, Deployable, Device


class TraitRules:
    """The rules of a host that have an effect: those with ``compat`` only if it is true."""

    def __init__(self, catalogue: Catalogue, *, compat: bool) -> None:
        self._catalogue = catalogue
        self._rules = tuple(rule for rule in catalogue.rules if compat or not rule.compat)
        self._facts = frozenset(fact for rule in self._rules for fact in rule.facts)

    def need(self, fact: str) -> bool:
        """Return whether a rule needs a fact."""
        return fact in self._facts

    def applied(
        self,
        driver: str,
        device: Device,
        scan: Scan,
        *,
        nics: Collection[str] = (),
        islands: Sequence[Collection[str]] = (),
    ) -> Device:
        """Return a device of a driver whose deployables also have the traits of the rules.

        ``nics`` and ``islands`` are as for ``with_topology_traits``. Rules see the traits that the
        device has, and not those of other rules. Deployables that an operator created keep the
        traits of the operator.
        """
        if not self._rules or device.operator_created:
            return device
        island = next((len(island) for island in islands if device.key in island), None)
        kinds = [(int(vendor, 16), int(product, 16)) for vendor, product in map(_split, nics)]

        def more(deployable: Deployable) -> list[tuple[str, str]]:
            unit = Unit(
                driver,
                device,
                deployable,
                function=None if _simulated(deployable) else _function(scan, device.key),
                memory=self._memory(scan, deployable),
                nics=kinds,
                island_size=island,
            )
            traits = dict.fromkeys(rule.trait for rule in self._rules if rule.holds(unit))
            return [(_key(trait), trait) for trait in traits]

        return with_traits(device, more)

    def _memory(self, scan: Scan, deployable: Deployable) -> int | None:
        """Return the size of the memory of a unit by the catalogue, in bytes.

        It is known of physical functions only that guests get as a whole: part of a card has part
        of its memory, with the same ids.
        """
        sizes = set()
        for handle in deployable.handles:
            function = _function(scan, handle.key) if handle.type is AttachType.PCI else None
            if function is None or function.parent is not None:
                return None
            entry = self._catalogue.entry(
                function.vendor, function.product, function.class_code, subsystem=function.subsystem
            )
            sizes.add(entry.memory)
        return sizes.pop() if len(sizes) == 1 else None


def _key(trait: str) -> str:
    """Return the key of the attribute of a trait; the conductor publishes those with ``trait``."""
    return f"trait_rule_{trait.removeprefix('CUSTOM_').lower()}"


def _split(kind: str) -> tuple[str, str]:
    """Return vendor and product of a kind of network cards, such as ``15b3:1021``."""
    vendor, _, product = kind.partition(":")
    return vendor, product


def _simulated(deployable: Deployable) -> bool:
    """Return whether a device has the address of a function only by chance."""
    return any(handle.type is AttachType.TEST_PCI for handle in deployable.handles)


def _function(scan: Scan, key: str) -> PciFunction | None:
    """Return the function that a device or a handle is, None if it is none, or not known."""
    address = parse_name(key)
    if address is None:
        return None
    with contextlib.suppress(exception.HostError):
        return scan.functions.get(address)
    return None
