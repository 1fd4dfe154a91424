# SPDX-License-Identifier: Apache-2.0
"""The hardware of the small cloud: two hosts, three cards, five units."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cyborg.model.pci import PciAddress
from cyborg.testing.driver_checks import look
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.placement import fresh_host
from cyborg.tests.functional.life.cards import (
    CARD,
    OTHER,
    CardDriver,
    Rack,
    SecondDriver,
    Traits,
)
from cyborg.tests.functional.machine.model import Card


@dataclass(frozen=True)
class Machine:
    """A compute host's hardware: a rack for each of its drivers."""

    name: str
    racks: tuple[Rack, ...]

    @property
    def prepared(self) -> frozenset[tuple[str, str]]:
        """The units that the host holds ready for guests."""
        units = [PciAddress.parse(key) for rack in self.racks for key in rack.driver.ready]
        return frozenset(
            (f"{self.name}_{PciAddress(one.domain, one.bus, 0, 0)}", str(one)) for one in units
        )


class Hardware:
    """All of it, under host names that Placement has never heard of."""

    def __init__(self) -> None:
        self.machines = _machines([fresh_host("machine") for _ in range(2)])
        self.cards: dict[str, Card] = {}
        #: Where each card is plugged, by its provider.
        self.racks: dict[str, Rack] = {}
        for card, rack in _cards(self.machines):
            self.cards[card.provider], self.racks[card.provider] = card, rack

    def shown(self, card: Card) -> int:
        """How many units of a card its driver shows now; none while it cannot look."""
        rack = self.racks[card.provider]
        there = card.address in rack.machine.list_dir("/cards")
        if not there or rack.driver.behaviour.broken is not None:
            return 0
        return int(rack.machine.read_text(f"/cards/{card.address}"))

    def image(self, card: Card) -> bytes | None:
        """What was last loaded into a card."""
        return self.racks[card.provider].driver.loaded.get(f"{card.host}_{card.address}")

    def repair(self) -> None:
        """Put everything back as it was at the beginning."""
        for card in self.cards.values():
            rack = self.racks[card.provider]
            rack.plug(card.address, card.units)
            rack.driver.behaviour.broken = rack.driver.behaviour.fault = None


def resource_class(prepare: bool) -> str:
    """What cards offer that need preparing, and what those do that do not."""
    return "CUSTOM_MACHINE_PREPARED" if prepare else "CUSTOM_MACHINE_PLAIN"


def _machines(names: Sequence[str]) -> list[Machine]:
    """One host with cards of both kinds, one with a card that needs preparing."""
    first, second = names
    return [
        Machine(first, (_rack(first, CARD, 2, CardDriver), _rack(first, OTHER, 1, SecondDriver))),
        Machine(second, (_rack(second, CARD, 2, SecondDriver),)),
    ]


def _rack(compute: str, address: str, units: int, kind: type[CardDriver]) -> Rack:
    machine = FakeHost()
    prepare = kind is SecondDriver
    traits = Traits(resource_class(prepare), prepare=prepare, programmable=not prepare)
    rack = Rack(compute, machine, kind(machine, compute, traits))
    rack.plug(address, units)
    return rack


def _cards(machines: Sequence[Machine]) -> Iterator[tuple[Card, Rack]]:
    for machine in machines:
        for rack in machine.racks:
            for device in look(rack.driver).discover():
                (deployable,) = device.deployables
                provider = rack.provider(device.key)
                units = len(deployable.handles)
                yield Card(machine.name, device.key, provider, units, deployable.prepare), rack
