# SPDX-License-Identifier: Apache-2.0
"""The desired resource providers of a host, and the changes that Placement needs.

A deployable is one resource provider below the compute's own provider. Its uuid follows from its
name, because allocations in the field hang on exactly these uuids.
"""

import re
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

#: Placement's schemas for names (its ``schemas/common.py`` and ``schemas/trait.py``), unanchored.
_NAME = re.compile(r"(?!CUSTOM_\Z)[A-Z0-9_]{1,255}")
#: What ``HostNames`` replaces.
_UNUSUAL = re.compile(r"[^A-Za-z0-9_-]")
#: Placement's ``schemas/resource_provider.py`` and the largest integer its database columns take.
_MAX_PROVIDER_NAME = 200
MAX_TOTAL = 2**31 - 1

Inventory = Mapping[str, int | float]


@dataclass(frozen=True)
class Provider:
    """The desired provider of one deployable.

    ``total`` counts the units there are, ``reserved`` those not to be given out now; a total of
    0 means no inventory at all. ``traits`` are ours only: those that others set stay beside them.
    ``deployable`` is the name that its driver uses now; None: ``name``, because the device has not
    moved. Placement allocates ``group_size`` units at a time: with fewer of them left it allocates
    none, because the units that are reserved or allocated count against ``total``.
    """

    uuid: str
    name: str
    resource_class: str
    total: int
    reserved: int
    traits: frozenset[str]
    deployable: str | None = None
    group_size: int = 1

    def validate(self) -> str | None:
        """Return why Placement would reject this provider, as a clause; None if it would not."""
        if not 0 < len(self.name) <= _MAX_PROVIDER_NAME:
            return f"a provider's name has 1 to {_MAX_PROVIDER_NAME} characters"
        if not is_resource_class_name(self.resource_class):
            return f"{self.resource_class!r} is not a resource class name"
        for trait in sorted(self.traits):
            if not is_trait_name(trait):
                return f"{trait!r} is not a trait name"
        if not 0 <= self.reserved <= self.total <= MAX_TOTAL:
            return f"{self.reserved} reserved units of {self.total} make no sense"
        if not 1 <= self.group_size <= MAX_TOTAL:
            return f"units cannot be allocated {self.group_size} at a time"
        return None

    def inventories(self) -> dict[str, Inventory]:
        """Return the whole inventory by resource class, with every field.

        Accelerators are never over-committed, hence the ratio. Without groups the other fields are
        Placement's defaults, named so that a value changed by hand is seen as a difference.
        """
        if self.total == 0:
            return {}
        return {
            self.resource_class: {
                "total": self.total,
                "reserved": self.reserved,
                "min_unit": self.group_size,
                "max_unit": self.total,
                "step_size": self.group_size,
                "allocation_ratio": 1.0,
            }
        }


@dataclass(frozen=True)
class ProviderTree:
    """All providers of one host; ``root_name`` is the name of the compute's own provider."""

    root_name: str
    providers: tuple[Provider, ...]

    def deployables(self) -> frozenset[str]:
        """Return the names that the drivers use."""
        return frozenset(self.uuids())

    def uuids(self) -> dict[str, str]:
        """Return the name that the driver uses → uuid of the provider."""
        return {provider.deployable or provider.name: provider.uuid for provider in self.providers}


class Verdict(StrEnum):
    """What became of one provider when its tree was published.

    ``refused`` stays so until an operator acts, ``failed`` may succeed when tried again.
    """

    PUBLISHED = "published"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True)
class ProviderOutcome:
    """One provider's verdict; ``reason`` is a sentence for the operator, empty if published."""

    uuid: str
    name: str
    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True)
class PublishResult:
    """One outcome per provider, in the order of the tree."""

    root_uuid: str
    outcomes: tuple[ProviderOutcome, ...]

    def reasons(self, verdict: Verdict) -> dict[str, str]:
        """Return the reasons, by name, for the providers with this verdict."""
        return {
            outcome.name: outcome.reason for outcome in self.outcomes if outcome.verdict is verdict
        }

    @property
    def problems(self) -> dict[str, str]:
        """Return the reasons, by name, for providers that are not in their desired state."""
        return {
            outcome.name: outcome.reason
            for outcome in self.outcomes
            if outcome.verdict is not Verdict.PUBLISHED
        }


@dataclass(frozen=True)
class Actual:
    """What Placement holds of one provider, foreign traits included, at one generation."""

    generation: int
    inventories: Mapping[str, Inventory]
    traits: frozenset[str]


@dataclass(frozen=True)
class SetInventories:
    """Replace the provider's whole inventory."""

    inventories: Mapping[str, Inventory]


@dataclass(frozen=True)
class SetTraits:
    """Replace the provider's traits; the set holds the foreign ones that stay."""

    traits: frozenset[str]


ProviderChange = SetInventories | SetTraits


@dataclass(frozen=True)
class HostNames:
    """The names in Placement that the agent of a host may use.

    ``host`` is the name that its key has. With ``checked`` False, as where no message needs to be
    signed, every name is allowed. ``more`` has for some hosts one other name of their provider.
    """

    checked: bool = False
    more: Mapping[str, str] = field(default_factory=dict)

    def has_provider(self, host: str, name: str) -> bool:
        """Return whether a host may speak for this provider: its name, with or without a domain."""
        return (
            not self.checked
            or name.partition(".")[0] == host
            or name in (host, self.more.get(host))
        )

    def flaw_of_deployable(self, hosts: Collection[str], name: str) -> str | None:
        """Return why a host with these names may not use a deployable; None if it may."""
        # Some drivers replace what is no letter, digit or hyphen in the name of the host.
        prefixes = {
            f"{spelling}_" for host in hosts for spelling in (host, _UNUSUAL.sub("_", host))
        }
        if not self.checked or name.startswith(tuple(prefixes)):
            return None
        return f"the name {name} does not begin with {' or '.join(sorted(prefixes))}"


ANY_NAMES: Final = HostNames()


def provider_uuid(name: str) -> str:
    """Return the uuid of the provider with this name: version 3 in the DNS namespace."""
    return str(uuid.uuid3(uuid.NAMESPACE_DNS, name))


def is_trait_name(name: str) -> bool:
    """Return whether the name matches Placement's pattern for traits; the trait may not exist."""
    return _NAME.fullmatch(name) is not None


def is_resource_class_name(name: str) -> bool:
    """Return whether the name matches Placement's pattern for classes; it may not exist."""
    return _NAME.fullmatch(name) is not None


def is_custom(name: str) -> bool:
    """Return whether a trait or resource class is created by clients and not a standard one."""
    return name.startswith("CUSTOM_")


def changes(desired: Provider, actual: Actual, ours: frozenset[str]) -> tuple[ProviderChange, ...]:
    """Return the changes, in order, from ``actual`` to ``desired``; none if they are equal.

    ``ours`` are traits that this service has set at some time: those that are no longer desired
    are removed, all other traits stay. Units are withdrawn before traits change, and offered only
    after the traits are right.
    """
    desired_traits = (actual.traits - ours) | desired.traits
    traits = (SetTraits(desired_traits),) if desired_traits != actual.traits else ()
    inventories = desired.inventories()
    if inventories == actual.inventories:
        return traits
    if any(
        _free(inventory) > _free(actual.inventories.get(name, {}))
        for name, inventory in inventories.items()
    ):
        return (*traits, SetInventories(inventories))
    return (SetInventories(inventories), *traits)


def _free(inventory: Inventory) -> int | float:
    return inventory.get("total", 0) - inventory.get("reserved", 0)
