# SPDX-License-Identifier: Apache-2.0
"""Survey the PCI bus for a driver: what guests may get of the cards that the driver selects.

The driver states which cards it selects, and what it knows of each (``Card``). The survey does the
rest, once for all drivers: it reads how a card is divided, names the deployables, asks the
ownership check about each function, and withholds the functions of a card that is to have another
layout.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from cyborg import exception
from cyborg.drivers import vf_layout
from cyborg.drivers.pci_function import PciFunction
from cyborg.drivers.scan import Scan
from cyborg.drivers.vf_layout import Division
from cyborg.model.pci import PciAddress, deployable_name


@dataclass(frozen=True)
class Card:
    """A device that a driver selects, and what guests may get of it.

    ``address`` is the key of the device. ``present`` is its function, None if the bus does not have
    it. ``parts`` are the functions that guests could get, ordered by address. Each part is a
    deployable, unless all parts belong to the deployable ``unit``. ``together``: guests get all
    parts, or none. ``whole``: guests get the functions themselves, not parts of them. ``typed``:
    the parts are virtual functions whose vGPU type the driver sets.

    ``guarded`` is False for functions that root has exempted from the ownership check, and
    ``probed`` for those that are listed only, so that nothing but the scan is read.
    ``desired_vfs`` is the number of virtual functions that the configuration requests, None if it
    requests none, and ``stopped`` says that some of them do not work.

    ``refused`` maps functions to the reason why they are not offered, as a clause; ``reason`` says
    why nothing is offered, None if something is. A driver sets what it knows without the ownership
    check, and the survey completes both. The survey also sets ``guests``, the parts that guests may
    get now, and ``division``.
    """

    address: PciAddress
    present: PciFunction | None
    parts: tuple[PciFunction, ...] = ()
    unit: str | None = None
    together: bool = False
    whole: bool = True
    typed: bool = False
    guarded: bool = True
    probed: bool = True
    desired_vfs: int | None = None
    stopped: bool = False
    refused: Mapping[PciAddress, str] = field(default_factory=dict)
    reason: str | None = None
    guests: tuple[PciFunction, ...] = ()
    division: Division | None = None

    @property
    def key(self) -> str:
        """Return the key of the device."""
        return str(self.address)

    @property
    def function(self) -> PciFunction:
        """Return the function of the card; raises exception.HostError if there is none."""
        if self.present is None:
            reason = "it is not on the bus, or does not answer"
            raise exception.HostError(action=f"looking for {self.key}", reason=reason)
        return self.present

    def refusal(self, refused: Mapping[PciAddress, str]) -> str:
        """Return why nothing is offered, from the reasons of all functions.

        The functions that are refused for a reason of their own come first.
        """
        if self.together and self.address not in refused:
            address, reason = next(iter(refused.items()))
            return f"{address}: {reason}"
        count = len(refused)
        return refused.get(self.address, f"none of its {count} virtual functions can be offered")


C = TypeVar("C", bound=Card)


@dataclass(frozen=True)
class Survey:
    """What the surveys of one driver have in common.

    ``node`` is the first part of the names of deployables. ``refusal`` returns why the driver
    itself does not offer a function, and is asked after the ownership check. ``erasing`` are the
    functions whose disks the agent erases now: they are not probed. ``failures`` maps the keys of
    cards that could not be divided to the reason.
    """

    node: str
    refusal: Callable[[Scan, PciFunction], str | None]
    erasing: set[PciAddress] = field(default_factory=set)
    failures: dict[str, str] = field(default_factory=dict)

    def cards(self, scan: Scan, selected: Iterable[C]) -> list[C]:
        """Return the selected cards, ordered by key, with what guests may get of each."""
        divided = [
            card
            if card.desired_vfs is None
            else replace(
                card,
                division=vf_layout.read(
                    scan, card.function, card.desired_vfs, stopped=card.stopped
                ),
            )
            for card in sorted(selected, key=lambda card: card.key)
        ]
        divisions = {card.address: card.division for card in divided if card.division is not None}
        return [
            self._judged(scan, card, divisions) if card.reason is None else card for card in divided
        ]

    def _judged(self, scan: Scan, card: C, divisions: Mapping[PciAddress, Division]) -> C:
        refused = dict(card.refused)
        for part in card.parts:
            reason = self._reason(scan, card, part, divisions.get(part.parent or part.address))
            if reason is not None:
                refused[part.address] = reason
        guests = [part for part in card.parts if part.address not in refused]
        if card.together and refused:
            refused = dict(sorted(refused.items()))
            first, reason = next(iter(refused.items()))
            text = f"guests get it together with {first}: {reason}"
            refused |= {guest.address: text for guest in guests}
            guests = []
        reason = card.refusal(refused) if refused and not guests else None
        return replace(card, guests=tuple(guests), refused=refused, reason=reason)

    def _reason(
        self, scan: Scan, card: Card, part: PciFunction, division: Division | None
    ) -> str | None:
        """Return why a part of a card is not offered, None if it is.

        A part that the conductor keeps stays while its card has another layout than it shall have:
        it may be in a guest. The conductor may also keep a part from the time before guests got it
        together with others: then a guest may have it alone.
        """
        own = deployable_name(self.node, part.address)
        managed = scan.is_managed(card.unit or own)
        if division is not None and division.pending and not managed:
            if part.parent is None:
                return self.layout_reason(scan, division)
            # What keeps a virtual function from work says why the layout is not complete.
            reason = card.refused.get(part.address) or self.refusal(scan, part)
            return reason or f"its card {part.parent} does not have its layout"
        reason = None
        if card.guarded:
            alone = card.unit not in (None, own) and own in scan.managed_deployables
            reason = scan.refusal(
                part,
                managed=managed and not (card.together and alone),
                whole=card.whole,
                typed=card.typed,
                probe=card.probed and part.address not in self.erasing,
                together=frozenset(other.address for other in card.parts)
                if card.together and card.whole
                else frozenset(),
            )
        return reason or card.refused.get(part.address) or self.refusal(scan, part)

    def layout_reason(self, scan: Scan, division: Division) -> str:
        """Return why a card is not offered whole before it has its layout."""
        goal = division.goal
        if division.refusal is not None:
            return f"it cannot be {goal}: {division.refusal}"
        kept = scan.managed_deployables & division.deployables(self.node)
        if kept:
            return (
                f"it is {goal} as soon as the conductor keeps no device of it; now it keeps "
                f"{', '.join(sorted(kept))}"
            )
        failure = self.failures.get(str(division.card.address))
        return f"it is being {goal}" if failure is None else f"it could not be {goal}: {failure}"
