# SPDX-License-Identifier: Apache-2.0
"""Select the cards of the generic_driver: what its backends, and operators, want offered.

Nothing here tells whether a card may be offered: ``pci_survey`` does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cyborg.drivers.device_options import UnitScope
from cyborg.drivers.generic_backend import GenericBackend
from cyborg.drivers.generic_match import ClassMembers
from cyborg.drivers.local_command import placeholder_values
from cyborg.drivers.ownership import NO_IOMMU
from cyborg.drivers.pci_function import PciFunction, parse_name
from cyborg.drivers.pci_survey import Card
from cyborg.drivers.scan import Scan
from cyborg.model.device import AttachHandle, AttachType, Device
from cyborg.model.pci import PciAddress, deployable_name
from cyborg.model.work import HandleTask


@dataclass(frozen=True, kw_only=True)
class GenericCard(Card):
    """One device of a backend.

    ``created`` is the device that an operator created, None for a discovered one. ``units`` is the
    number of mediated devices that the card can have, None where the configuration alone decides.
    """

    backend: GenericBackend
    created: Device | None = None
    units: int | None = None

    @property
    def members(self) -> tuple[PciAddress, ...]:
        """Return the functions that guests get together; none where a guest gets one function."""
        if self.unit is None:
            return ()
        parts = {part.address for part in self.parts}
        return tuple(sorted(parts | self.refused.keys()))

    @property
    def functions(self) -> tuple[PciAddress, ...]:
        """Return the addresses of the functions of the device."""
        return self.members or (self.address,)

    @property
    def values(self) -> list[dict[str, str]]:
        """Return the placeholder values of each function, for the commands of the device."""
        return [placeholder_values(str(address)) for address in self.functions]

    def values_of(self, task: HandleTask) -> dict[str, str]:
        """Return the placeholder values of a unit, for the commands of the unit."""
        address = self.address_of(task.handle_key)
        return placeholder_values(address, task.handle_key, task.handle_uuid)

    @property
    def facts(self) -> dict[str, Any]:
        """Return what the list of hardware shows about the device."""
        members = [str(address) for address in self.members]
        return {
            **({"functions": members} if members else {}),
            **({"layout": self.division.facts} if self.division else {}),
            **self.backend.capability,
        }

    @property
    def is_divided(self) -> bool:
        """Return whether the device is a card that has, or is to have, virtual functions."""
        return self.division is not None and bool(self.division.desired or self.division.current)

    def address_of(self, handle_key: str) -> str:
        """Return the address of the function that a unit is, or is a part of."""
        return handle_key if self.members else self.key

    @property
    def handles(self) -> tuple[AttachHandle, ...]:
        """Return the attach handles of the device."""
        if self.created is not None:
            return tuple(
                handle for deployable in self.created.deployables for handle in deployable.handles
            )
        handles = (handle for address in self.functions for handle in self.backend.handles(address))
        return tuple(handles)[: self.units]

    def refusal(self, refused: Mapping[PciAddress, str]) -> str:
        """See Card; the reason names the function of a device that has several, or is declared."""
        address, reason = next(iter(refused.items()))
        # That there is no IOMMU concerns all functions of the host.
        if self.backend.attach_type is AttachType.TEST_PCI:
            return f"{address}: {reason}"
        if reason == NO_IOMMU or (self.unit is None and address == self.address):
            return reason
        whole = "card" if self.backend.unit is UnitScope.CARD else "unit"
        return f"function {address} of the {whole}: {reason}"


@dataclass(frozen=True)
class Selection:
    """Selects the cards of the backends on one host at one moment.

    ``members`` are the functions with an entry in ``/sys/class``. ``created`` maps keys to the
    devices that operators created. ``platform_reason`` returns why only the host can use a
    function.
    """

    node: str
    scan: Scan
    members: ClassMembers
    backends: Sequence[GenericBackend]
    created: Mapping[str, Device]
    platform_reason: Callable[[PciFunction], str | None]

    def cards(self) -> list[GenericCard]:
        """Return one card for each address, by the first source that has it."""
        fixed = [
            GenericCard(address, None, backend=backend)
            for backend in self.backends
            for address in backend.selector.fixed
        ]
        cards: dict[PciAddress, GenericCard] = {}
        for card in (
            *self._created(),
            *(self._declared(card) for card in fixed if card.backend.is_declared),
            *self._present(),
            # Earlier cards have precedence: these were not found.
            *(replace(card, reason="it is not on the bus") for card in fixed),
        ):
            cards.setdefault(card.address, card)
        divided = {card.address for card in cards.values() if card.desired_vfs is not None}
        return list(self._in_units([_of_divided(card, divided) for card in cards.values()]))

    def _created(self) -> Iterator[GenericCard]:
        """Yield the devices that operators created on existing backends."""
        by_name = {backend.name: backend for backend in self.backends}
        for key, device in sorted(self.created.items()):
            backend, address = by_name.get(device.backend or ""), parse_name(key)
            if backend is None or address is None:
                continue
            card = GenericCard(address, None, backend=backend, created=device)
            types = {handle.type for handle in card.handles}
            if backend.creates is None or types != {backend.creates}:
                offered = backend.creates or "nothing that could be created"
                yield replace(card, reason=f"backend {backend.name} offers {offered}")
            elif backend.creates is AttachType.TEST_PCI:
                yield self._declared(card)
            elif address in self.scan.functions:
                function = self.scan.functions[address]
                yield self._known(replace(card, present=function, parts=(function,)))
            else:
                reason = self.scan.unreadable.get(key, "it is not on the bus")
                yield replace(card, reason=reason)

    def _declared(self, card: GenericCard) -> GenericCard:
        """Return a device of type TEST_PCI, with the functions at the addresses of its units.

        No guest gets its units, but the commands of the backend run on them. So the functions that
        the host really has there must not be in use.
        """
        addresses = {card.address, *(parse_name(handle.key) for handle in card.handles)}
        parts = (
            self.scan.functions[address]
            for address in addresses
            if address is not None and address in self.scan.functions
        )
        ordered = tuple(sorted(parts, key=lambda part: part.address))
        return self._known(replace(card, parts=ordered, together=True, whole=False))

    def _known(self, card: GenericCard) -> GenericCard:
        """Return a card with the functions that the backend, or an operator, must not offer."""
        selector, refused = card.backend.selector, dict[PciAddress, str]()
        for part in card.parts:
            reason = None
            if not (selector.ids or selector.addresses or selector.fixed):
                # A class of functions also has those that only the host can use.
                reason = self.platform_reason(part)
            if (
                reason is None
                and card.created is not None
                and not selector.admits(part, self.members, part.subsystem)
            ):
                reason = (
                    f"backend {card.backend.name} selects no devices of its kind; only the "
                    "configuration files of the host can change this"
                )
            if reason is not None:
                refused[part.address] = reason
        return replace(card, refused=refused)

    def _present(self) -> Iterator[GenericCard]:
        """Yield the functions of the bus that a backend selects; the first one counts."""
        if all(backend.is_declared for backend in self.backends):
            return
        # A class entry disappears when a guest gets the device, so backends without one come first.
        ordered = sorted(
            self.backends, key=lambda backend: backend.selector.sysfs_class is not None
        )
        for function in self.scan.functions.values():
            managed = self.scan.is_managed(deployable_name(self.node, function.address))
            for backend in ordered:
                if backend.selector.matches(
                    function, self.members, managed=managed, subsystem=function.subsystem
                ):
                    yield self._selected(function, backend)
                    break
        for name, reason in self.scan.unreadable.items():
            # A function that cannot be parsed is listed if a backend names its address.
            address = parse_name(name)
            if address is not None:
                for backend in ordered:
                    if backend.selector.names(address):
                        yield GenericCard(address, None, backend=backend, reason=reason)
                        break

    def _selected(self, function: PciFunction, backend: GenericBackend) -> GenericCard:
        card = GenericCard(
            *(function.address, function, (function,)),
            backend=backend,
            whole=backend.attach_type is AttachType.PCI,
            desired_vfs=backend.vfs if function.parent is None else None,
        )
        if backend.attach_type is AttachType.TEST_PCI:
            return self._declared(card)
        return self._known(card)

    def _in_units(self, cards: Sequence[GenericCard]) -> Iterator[GenericCard]:
        """Yield the cards, those that guests get together as one."""
        units: dict[tuple[object, ...], list[GenericCard]] = {}
        for card in sorted(cards, key=lambda card: card.key):
            address, backend = card.address, card.backend
            if backend.unit is UnitScope.FUNCTION:
                yield card
            elif backend.unit is UnitScope.ALL:
                units.setdefault((backend.name,), []).append(card)
            elif card.present is not None and card.present.parent is not None:
                # Virtual functions of one card have several device numbers.
                reason = "it is a virtual function, and no part of a unit CARD; use unit FUNCTION"
                yield replace(card, reason=reason)
            else:
                slot = backend.name, address.domain, address.bus, address.device
                units.setdefault(slot, []).append(card)
        for members in units.values():
            yield self._unit(members)

    def _unit(self, members: Sequence[GenericCard]) -> GenericCard:
        """Return functions that guests get together as one device, named by the first."""
        size, count, reason = members[0].backend.group_size, len(members), None
        refused = {
            address: text
            for member in members
            for address, text in (
                member.refused if member.reason is None else {member.address: member.reason}
            ).items()
        }
        if count < size:
            reason = f"{count} of {size} functions are there; see option unit_functions"
        elif count > size:
            reason = f"{count} functions match, and a unit has {size}; see option unit_functions"
        return replace(
            members[0],
            parts=tuple(part for member in members for part in member.parts),
            unit=deployable_name(self.node, members[0].address),
            together=True,
            refused=refused,
            reason=reason,
        )


def _of_divided(card: GenericCard, divided: set[PciAddress]) -> GenericCard:
    """Return a card; a virtual function whose backend divides cards, but not its card, is out."""
    parent = None if card.present is None else card.present.parent
    if card.created or card.backend.vfs is None or parent is None or parent in divided:
        return card
    reason = (
        "it is a virtual function, and option layout divides cards; no section with this option "
        f"selects its card {parent}"
    )
    return replace(card, reason=reason)
