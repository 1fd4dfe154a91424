# SPDX-License-Identifier: Apache-2.0
"""Accelerators that operators create: the rules for valid requests, and the resulting devices.

The attach type of a backend determines what can be created there. PCI: one function of the host, by
its address. TEST_PCI: any number of units that Nova does not attach, by number or by address. Units
of other types are parts of a card, which its driver discovers.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from cyborg import exception
from cyborg.model.attribute import Labels, parse_labels
from cyborg.model.device import (
    AttachHandle,
    AttachType,
    Attribute,
    Deployable,
    Device,
    DeviceType,
)
from cyborg.model.pci import PciAddress
from cyborg.model.provider import is_resource_class_name, is_trait_name

#: The trait of every provider of this service.
OWNER: Final = "OWNER_CYBORG"
#: The maximum number of units of an accelerator: the addresses of one bus without its first.
MOST_UNITS: Final = 255
_MOST_TRAITS = 100
_SLOTS, _FUNCTIONS = 32, 8
#: The domain of units without an address of their own; no host has this domain.
_UNUSED_DOMAIN = 0xFFFF
_BUSES = 256


@dataclass(frozen=True)
class Creation:
    """An accelerator that an operator requests, checked as far as possible without its host.

    It has either this number of ``units`` or one unit for each of the ``addresses``.
    """

    KIND: ClassVar[str] = "Creation"

    host: str
    driver: str
    backend: str
    model: str
    type: DeviceType
    resource_class: str
    traits: tuple[str, ...] = ()
    units: int | None = 1
    addresses: tuple[str, ...] = ()
    labels: Labels = field(default_factory=dict)


def parse(body: Mapping[str, Any]) -> Creation:
    """Read a body whose plain texts are valid; raises exception.Invalid, which names the field."""
    resource_class = body["resource_class"]
    if not is_resource_class_name(resource_class):
        raise exception.Invalid(
            field="resource_class", reason=f"{resource_class!r} is no name of a resource class"
        )
    units, addresses = _parse_handles(body.get("handles", 1))
    return Creation(
        host=body["host"],
        driver=body["driver"],
        backend=body["backend"],
        model=body["model"],
        type=DeviceType(body["type"]),
        resource_class=resource_class,
        traits=parse_traits(body.get("traits", [])),
        units=units,
        addresses=addresses,
        labels=parse_labels(body.get("labels", {})),
    )


def parse_traits(given: object) -> tuple[str, ...]:
    """Return the names of traits, each once; raises exception.Invalid, which names the field."""
    if not isinstance(given, list) or len(given) > _MOST_TRAITS:
        raise exception.Invalid(
            field="traits", reason=f"a list of at most {_MOST_TRAITS} names is needed"
        )
    for index, name in enumerate(given):
        if not isinstance(name, str) or not is_trait_name(name):
            raise exception.Invalid(
                field=f"traits[{index}]", reason=f"{name!r} is no name of a trait"
            )
    return tuple(dict.fromkeys(given))


def _parse_handles(given: object) -> tuple[int | None, tuple[str, ...]]:
    if isinstance(given, int) and not isinstance(given, bool):
        if not 1 <= given <= MOST_UNITS:
            raise exception.Invalid(
                field="handles", reason=f"it must be between 1 and {MOST_UNITS}"
            )
        return given, ()
    if not isinstance(given, list) or not 1 <= len(given) <= MOST_UNITS:
        raise exception.Invalid(
            field="handles",
            reason=f"a number or a list of 1 to {MOST_UNITS} PCI addresses is needed",
        )
    addresses: list[str] = []
    for index, value in enumerate(given):
        place = f"handles[{index}]"
        try:
            address = PciAddress.parse(value if isinstance(value, str) else repr(value))
        except ValueError as fault:
            raise exception.Invalid(field=place, reason=str(fault)) from None
        if (
            address.domain > _UNUSED_DOMAIN
            or address.device >= _SLOTS
            or address.function >= _FUNCTIONS
        ):
            raise exception.Invalid(field=place, reason=f"no bus has a place {address}")
        if str(address) in addresses:
            raise exception.Invalid(field=place, reason=f"{address} is given twice")
        addresses.append(str(address))
    return None, tuple(addresses)


def handles(
    creation: Creation, attach_type: AttachType, taken: Collection[str]
) -> tuple[AttachHandle, ...]:
    """Return the units of a new accelerator on a backend of this attach type.

    Units without an address get addresses that no hardware has; ``taken`` are the keys of the
    host's devices. Raises exception.Invalid when the backend has no such units, and
    exception.Conflict when no address is left.
    """
    if attach_type is AttachType.PCI and len(creation.addresses) != 1:
        raise exception.Invalid(
            field="handles",
            reason=f"backend {creation.backend} offers whole PCI functions: a list of one address "
            "is needed",
        )
    places = [PciAddress.parse(address) for address in creation.addresses]
    if creation.units is not None:
        for bus in range(_BUSES):
            places = [
                PciAddress(_UNUSED_DOMAIN, bus, *divmod(unit, _FUNCTIONS))
                for unit in range(creation.units)
            ]
            if str(places[0]) not in taken:
                break
        else:
            raise exception.Conflict(
                reason="There is no address left for another accelerator; give addresses as "
                "handles."
            )
    return tuple(AttachHandle(str(place), attach_type, place.info()) for place in places)


def device(creation: Creation, units: tuple[AttachHandle, ...], node: str) -> Device:
    """Return a new accelerator as a device; ``node`` is the agent's name of the host.

    The driver adds the vendor, and whether a bind needs work on the host.
    """
    place = PciAddress.parse(units[0].key)
    deployable = Deployable(
        # The rule for discovered devices: a function that both could offer has one owner.
        name=f"{node}_{place}",
        resource_class=creation.resource_class,
        driver_name=creation.backend[:100],
        handles=units,
        traits=all_traits(creation.traits),
        attributes=attributes(creation.resource_class, creation.traits),
        product_traits=product_traits(creation.traits),
    )
    return Device(
        key=str(place),
        type=creation.type,
        vendor="generic",
        model=creation.model,
        control_path=place.info(),
        deployables=(deployable,),
        backend=creation.backend,
        operator_created=True,
    )


def all_traits(traits: Collection[str]) -> tuple[str, ...]:
    """Return the requested traits and the trait of this service, each once."""
    return tuple(dict.fromkeys((OWNER, *traits)))


def product_traits(traits: Collection[str]) -> tuple[str, ...]:
    """Return those of the requested traits that name the product: all but that of this service."""
    return tuple(trait for trait in all_traits(traits) if trait != OWNER)


def attributes(resource_class: str, traits: Collection[str]) -> tuple[Attribute, ...]:
    """Return the attributes with the resource class and the traits of a deployable."""
    return (
        Attribute("rc", resource_class),
        *(Attribute(f"trait{i}", trait) for i, trait in enumerate(all_traits(traits))),
    )
