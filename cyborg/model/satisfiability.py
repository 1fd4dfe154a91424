# SPDX-License-Identifier: Apache-2.0
"""Whether the hardware of the cloud can satisfy a device profile, by the rules of Placement.

Nova asks Placement for all groups of a profile at once. All come from one host, and each from one
resource provider, which has all its traits and enough units. Several groups may share a provider.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Final

from cyborg.model.device_profile import Group, resource_classes, units

#: Partial assignments of groups to the providers of a host that are tried; a host with more of
#: them counts as one that can satisfy the profile.
_MAX_TRIED: Final = 20_000
_CUSTOM: Final = "CUSTOM_"


class Satisfiable(StrEnum):
    """Whether the cloud can satisfy a profile now, after units become free, or never."""

    NOW = "now"
    WHEN_FREE = "when free"
    NEVER = "never"


@dataclass(frozen=True, order=True)
class Supply:
    """What a resource provider can give to profiles.

    ``total`` are the units that its host reports, ``free`` those that a bind can get now.
    Placement allocates ``group_size`` units at a time.
    """

    resource_class: str
    traits: tuple[str, ...]
    total: int
    free: int
    group_size: int = 1

    def has_traits(self, group: Group) -> bool:
        """Return whether the traits are those that a group requires and does not forbid."""
        return all(
            (name in self.traits) is (word == "required") for name, word in traits(group).items()
        )

    def fits(self, group: Group) -> bool:
        """Return whether Placement can allocate its units to a group, if all are free."""
        amount = units(group)
        return (
            resource_classes(group) == {self.resource_class}
            and self.has_traits(group)
            and 0 < amount <= self.total
            and amount % self.group_size == 0
        )


def satisfiable(groups: Sequence[Group], hosts: Collection[Sequence[Supply]]) -> Satisfiable:
    """Return whether a host can satisfy all groups; ``hosts`` has the providers of each host.

    Equal hosts need to be given only once.
    """
    requests = [group for group in groups if units(group)]
    fits: dict[Supply, bool] = {}
    for host in hosts:
        for supply in host:
            if supply not in fits:
                fits[supply] = any(supply.fits(group) for group in requests)
    result = Satisfiable.NEVER
    # Hosts that differ in other providers only are alike.
    for host in {tuple(supply for supply in host if fits[supply]) for host in hosts}:
        if assign(requests, host, [supply.free for supply in host]) is not None:
            return Satisfiable.NOW
        if (
            result is Satisfiable.NEVER
            and assign(requests, host, [supply.total for supply in host]) is not None
        ):
            result = Satisfiable.WHEN_FREE
    return result


def groups_of(groups: Sequence[Group], supplies: Collection[Supply]) -> list[int]:
    """Return the positions of the groups that one of the providers can satisfy, if it is free."""
    return [
        index
        for index, group in enumerate(groups)
        if any(supply.fits(group) for supply in supplies)
    ]


def assign(
    requests: Sequence[Group], host: Sequence[Supply], capacities: Sequence[int]
) -> list[int] | None:
    """Return the index of a provider for each group, if the providers have so many units.

    The groups request units. Providers that come first are preferred. None: the host cannot
    satisfy them. The list is empty if it was not found out whether the host can.
    """
    # A provider has one class, so the groups of each class can be assigned on their own.
    by_class: dict[frozenset[str], list[int]] = defaultdict(list)
    for index, group in enumerate(requests):
        by_class[resource_classes(group)].append(index)
    chosen: dict[int, int] = {}
    for classes, indexes in by_class.items():
        if len(classes) > 1:
            return None
        offers = [
            (place, supply, capacity)
            for place, (supply, capacity) in enumerate(zip(host, capacities, strict=True))
            if supply.resource_class in classes and capacity
        ]
        order = sorted(indexes, key=lambda index: units(requests[index]), reverse=True)
        places = _Assignment([requests[index] for index in order], offers).find()
        if places is None:
            return None
        chosen |= dict(zip(order, places, strict=False))
    if len(chosen) < len(requests):
        return []
    return [chosen[index] for index in range(len(requests))]


class _Assignment:
    """Assigns groups of one class, the largest first, to the providers of a host."""

    def __init__(self, groups: Sequence[Group], offers: Sequence[tuple[int, Supply, int]]) -> None:
        kinds: dict[tuple[tuple[str, str], ...], int] = {}
        self._groups = [
            (kinds.setdefault(tuple(sorted(group.items())), len(kinds)), units(group))
            for group in groups
        ]
        self._places = [place for place, _, _ in offers]
        #: The kinds of groups that each provider can serve.
        self._able = [
            frozenset(number for items, number in kinds.items() if supply.fits(dict(items)))
            for _, supply, _ in offers
        ]
        alike: dict[frozenset[int], int] = {}
        self._alike = [alike.setdefault(able, len(alike)) for able in self._able]
        self._capacities = tuple(capacity for _, _, capacity in offers)
        #: How many groups are assigned, and what the providers of each kind have left after that.
        self._failed: set[tuple[int, tuple[tuple[int, int], ...]]] = set()

    def find(self) -> list[int] | None:
        """Return the place of a provider for each group; see ``assign``."""
        return self._from(0, self._capacities)

    def _from(self, index: int, left: tuple[int, ...]) -> list[int] | None:
        if index == len(self._groups):
            return []
        state = (index, tuple(sorted(zip(self._alike, left, strict=True))))
        if state in self._failed:
            return None
        kind, amount = self._groups[index]
        tried: set[tuple[int, int]] = set()
        for place, able in enumerate(self._able):
            # Providers that can serve the same groups, with as many units left, are one choice.
            choice = (self._alike[place], left[place])
            if choice in tried or left[place] < amount or kind not in able:
                continue
            tried.add(choice)
            after = (*left[:place], left[place] - amount, *left[place + 1 :])
            rest = self._from(index + 1, after)
            if rest is not None:
                return [self._places[place], *rest]
        self._failed.add(state)
        return [] if len(self._failed) > _MAX_TRIED else None


def warnings(groups: Sequence[Group], supplies: Collection[Supply]) -> list[str]:
    """Return a sentence for each thing that a profile requests and no provider has.

    ``supplies`` are those of all hosts. Names that nothing has come with the nearest existing one.
    """
    classes = {supply.resource_class for supply in supplies}
    existing = {trait for supply in supplies for trait in supply.traits}
    sentences = []
    for index, group in enumerate(groups):
        if not units(group):
            continue
        place, requested = f"groups[{index}]", sorted(resource_classes(group))
        missing = [
            f"resource class {name}{nearest_clause(name, classes)}"
            for name in requested
            if name not in classes
        ]
        missing += [
            f"trait {name}{nearest_clause(name, existing)}"
            for name, word in sorted(traits(group).items())
            if word == "required" and name not in existing
        ]
        sentences += [f"{place}: no resource provider has {what}." for what in missing]
        if not missing:
            sentences += _shortage(place, group, requested, supplies)
    return sentences


def _shortage(
    place: str, group: Group, requested: Sequence[str], supplies: Collection[Supply]
) -> list[str]:
    """Return why no provider can satisfy a group whose class and traits exist, if so."""
    if len(requested) > 1:
        return [
            (
                f"{place}: a resource provider has one resource class, and one provider would have "
                f"to have {', '.join(requested)}. Use a group for each class."
            )
        ]
    (name,), amount = requested, units(group)
    matching = [
        supply for supply in supplies if supply.resource_class == name and supply.has_traits(group)
    ]
    if not matching:
        said = ", ".join(f"{trait}={word}" for trait, word in sorted(traits(group).items()))
        return [f"{place}: no resource provider of {name} has these traits together: {said}."]
    if any(supply.fits(group) for supply in matching):
        return []
    sizes = sorted({supply.group_size for supply in matching if supply.total >= amount})
    if sizes:
        steps = ", ".join(map(str, sizes))
        return [f"{place}: units of {name} are given out in multiples of {steps}, not {amount}."]
    largest = max(supply.total for supply in matching)
    return [
        (
            f"{place}: it requests {amount} units of {name} from one resource provider, and the "
            f"largest one with these traits has {largest}."
        )
    ]


def traits(group: Group) -> Mapping[str, str]:
    """Return the traits of a group: ``required`` or ``forbidden`` by name."""
    return {key.partition(":")[2]: word for key, word in group.items() if key.startswith("trait:")}


def nearest(name: str, names: Collection[str]) -> str | None:
    """Return the existing name that is most like this one; None: no other name is like it."""
    # The prefix makes all custom names alike.
    plain = {other.removeprefix(_CUSTOM): other for other in sorted(names)}
    close = get_close_matches(name.removeprefix(_CUSTOM), plain, n=1)
    return plain[close[0]] if close else None


def nearest_clause(name: str, names: Collection[str]) -> str:
    """Return a clause with the nearest existing name; empty for none."""
    other = nearest(name, names)
    return f"; the nearest existing one is {other}" if other else ""
