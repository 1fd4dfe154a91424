# SPDX-License-Identifier: Apache-2.0
"""How many further instances of a device profile fit, on which hosts, and what limits them.

An instance takes all groups of its profile from one host. The instances are counted that can be
placed one after another, if the best providers are chosen for each. The rules for one of them are
those of ``cyborg.model.satisfiability``, which are Placement's: if providers share the pools of a
device, each of them counts as if no other gave out any.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import combinations
from typing import Final

from cyborg.model.availability import UnitWord
from cyborg.model.device_profile import Group, resource_classes, units
from cyborg.model.explanation import Stock
from cyborg.model.satisfiability import Satisfiable, Supply, assign

#: Groups of one amount that compete for providers are counted by formula up to so many kinds.
_KINDS: Final = 8
#: The most groups that are assigned at once; a host with more of them is said to fit so many.
_ASSIGNED: Final = 400
#: Units of these words do not become free when devices return to service.
_TAKEN: Final = (UnitWord.FREE, UnitWord.USED, UnitWord.NO_ROOM)


class By(StrEnum):
    """What the capacity can be divided by."""

    HOST = "host"
    TYPE = "type"
    NUMA = "numa"
    AZ = "az"


class Limit(StrEnum):
    """Why a host has no room for one more instance than those that fit.

    UNITS: too few units are free. SHAPE: enough units are free, or will be, but not as the groups
    need them. HEALTH: more would fit if no unit were out of service.
    """

    UNITS = "units"
    SHAPE = "shape"
    HEALTH = "health"


@dataclass(frozen=True)
class Room:
    """What a host has for a profile, in units of the providers that can serve a group.

    ``further`` instances fit. ``reserved`` are the units out of service by reason. ``unattached``
    units are bound to instances that run without them. ``in_use`` is as many instances as have all
    used units together. ``provider`` is the largest number of free units of one provider. ``ever``:
    an instance fits if all units are free.
    """

    further: int
    limit: Limit
    total: int
    used: int
    free: int
    unattached: int
    reserved: Mapping[str, int]
    in_use: int
    provider: int
    ever: bool


@dataclass(frozen=True)
class HostRoom:
    """The room of a host by its name."""

    host: str
    room: Room


@dataclass(frozen=True)
class Headroom:
    """What is left if the fullest host fails: the one with the most units in use.

    ``further`` instances fit on other hosts after as many instances as it has in use; a negative
    number is that of the instances that find no place.
    """

    host: str
    in_use: int
    further: int


@dataclass(frozen=True, order=True)
class Part:
    """A part of the cloud: the hosts and devices with these properties; empty: all of them.

    ``key`` names the part among those of one division. ``zone`` and ``numa_node`` may be None in a
    division by them.
    """

    key: str = ""
    host: str | None = None
    type: str | None = None
    numa_node: int | None = None
    zone: str | None = None


@dataclass(frozen=True)
class ProfileCapacity:
    """What a part of the cloud has for a profile; ``rooms`` has each host with such a provider."""

    part: Part
    rooms: Sequence[HostRoom]

    @cached_property
    def further(self) -> int:
        """Return how many further instances fit."""
        return sum(each.room.further for each in self.rooms)

    @property
    def satisfiable(self) -> Satisfiable:
        """Return whether an instance fits."""
        if self.further:
            return Satisfiable.NOW
        ever = any(each.room.ever for each in self.rooms)
        return Satisfiable.WHEN_FREE if ever else Satisfiable.NEVER

    @property
    def limits(self) -> Mapping[Limit, int]:
        """Return how many hosts have each limit."""
        return Counter(each.room.limit for each in self.rooms)

    @property
    def reserved(self) -> Mapping[str, int]:
        """Return the units out of service by reason."""
        words: Counter[str] = Counter()
        for each in self.rooms:
            words.update(each.room.reserved)
        return dict(sorted(words.items()))

    def sum_of(self, amount: Callable[[Room], int]) -> int:
        """Return the sum over the hosts."""
        return sum(amount(each.room) for each in self.rooms)

    @property
    def largest(self) -> HostRoom | None:
        """Return the host with room for the most instances, then units; None without hosts."""
        return max(
            self.rooms,
            key=lambda each: (each.room.further, each.room.free, each.host),
            default=None,
        )

    @property
    def headroom(self) -> Headroom | None:
        """Return what is left if the fullest host fails; None without hosts."""
        fullest = max(
            self.rooms,
            key=lambda each: (each.room.used, each.room.further, each.host),
            default=None,
        )
        if fullest is None:
            return None
        left = self.further - fullest.room.further - fullest.room.in_use
        return Headroom(fullest.host, fullest.room.in_use, left)


@dataclass(frozen=True)
class _Shape:
    """What is equal of equal providers."""

    supply: Supply
    words: tuple[tuple[str, int], ...]
    unattached: int


class Fleet:
    """The units of all hosts, divided into parts; it counts the capacity for any profile.

    ``unattached`` has the units of each provider that are bound to instances that run without
    them, by its uuid. ``zones`` has the availability zone of hosts by each of their names.
    """

    def __init__(
        self,
        stocks: Iterable[Stock],
        *,
        by: By | None = None,
        unattached: Mapping[str, int] | None = None,
        zones: Mapping[str, str] | None = None,
    ) -> None:
        shapes: dict[_Shape, int] = {}
        parts: dict[Part, dict[str, list[int]]] = {}
        amounts = unattached or {}
        for stock in stocks:
            words = tuple(stock.words.items())
            shape = _Shape(stock.supply, words, amounts.get(stock.provider or "", 0))
            number = shapes.setdefault(shape, len(shapes))
            part = _part(stock, by, zones or {})
            parts.setdefault(part, {}).setdefault(stock.host, []).append(number)
        self._shapes = list(shapes)
        self._parts = sorted(parts.items(), key=lambda item: item[0].key)
        self._whole = by is None

    def capacities(
        self, groups: Sequence[Group], after: str | None = None
    ) -> Iterable[ProfileCapacity]:
        """Yield what each part has for a profile, in the order of keys; ``after``: that follow it.

        Without a division this is the whole cloud. Parts without a provider that can serve a group
        are left out, if the cloud is divided.
        """
        requests = [group for group in groups if units(group)]
        able = {
            number
            for number, shape in enumerate(self._shapes)
            if any(shape.supply.fits(group) for group in requests)
        }
        rooms: dict[tuple[int, ...], Room] = {}
        for part, hosts in self._parts:
            if after is not None and part.key <= after:
                continue
            listed = []
            for host, shapes in hosts.items():
                key = tuple(sorted(shape for shape in shapes if shape in able))
                if not key:
                    continue
                room = rooms.get(key)
                if room is None:
                    room = rooms[key] = _room(requests, [self._shapes[number] for number in key])
                listed.append(HostRoom(host, room))
            if listed or self._whole:
                yield ProfileCapacity(part, listed)
        if self._whole and not self._parts and after is None:
            yield ProfileCapacity(Part(), [])


def _part(stock: Stock, by: By | None, zones: Mapping[str, str]) -> Part:
    """Return the part of the cloud to which a provider belongs."""
    if by is By.HOST:
        return Part(stock.host, host=stock.host)
    if by is By.TYPE:
        return Part(stock.type or "", type=stock.type)
    if by is By.NUMA:
        node = "" if stock.numa_node is None else stock.numa_node
        return Part(f"{stock.host}:{node}", host=stock.host, numa_node=stock.numa_node)
    if by is By.AZ:
        zone = zones.get(stock.service_host or stock.host) or zones.get(stock.host)
        return Part(zone or "", zone=zone)
    return Part()


def _room(requests: Sequence[Group], shapes: Sequence[_Shape]) -> Room:
    """Return what a host with these providers has for a profile."""
    supplies = [shape.supply for shape in shapes]
    free = [supply.free for supply in supplies]
    further = fitting(requests, supplies, free)
    words: Counter[str] = Counter()
    for shape in shapes:
        words.update(dict(shape.words))
    ever = fitting(requests, supplies, [supply.total for supply in supplies], most=1) > 0
    mended = [
        sum(amount for word, amount in shape.words if word not in _TAKEN) + shape.supply.free
        for shape in shapes
    ]
    if not ever:
        limit = Limit.SHAPE
    elif mended != free and fitting(requests, supplies, mended, most=further + 1) > further:
        limit = Limit.HEALTH
    else:
        limit = Limit.SHAPE if _enough(requests, supplies, further + 1) else Limit.UNITS
    return Room(
        further=further,
        limit=limit,
        total=sum(supply.total for supply in supplies),
        used=words[UnitWord.USED],
        free=sum(free),
        unattached=sum(shape.unattached for shape in shapes),
        reserved={
            word: amount
            for word, amount in words.items()
            if amount and word not in (UnitWord.FREE, UnitWord.USED)
        },
        in_use=_in_use(requests, shapes),
        provider=max(free),
        ever=ever,
    )


def _in_use(requests: Sequence[Group], shapes: Sequence[_Shape]) -> int:
    """Return how many instances have as many units as are used, of the class that needs most."""
    used: Counter[str] = Counter()
    for shape in shapes:
        used[shape.supply.resource_class] += dict(shape.words).get(UnitWord.USED, 0)
    needed = _by_class(requests)
    return max(-(-used[name] // amount) for name, amount in needed.items())


def _enough(requests: Sequence[Group], supplies: Sequence[Supply], instances: int) -> bool:
    """Return whether so many units of each class are free, wherever on the host."""
    free: Counter[str] = Counter()
    for supply in supplies:
        free[supply.resource_class] += supply.free
    return all(free[name] >= amount * instances for name, amount in _by_class(requests).items())


def _by_class(requests: Sequence[Group]) -> Mapping[str, int]:
    """Return how many units of each class an instance takes."""
    amounts: Counter[str] = Counter()
    for group in requests:
        for name in resource_classes(group):
            amounts[name] += int(group[f"resources:{name}"])
    return amounts


@dataclass(frozen=True)
class _Kind:
    """Equal groups of a profile: how many there are, and the places of the providers for them."""

    group: Group
    amount: int
    times: int
    places: frozenset[int]


def fitting(
    requests: Sequence[Group],
    host: Sequence[Supply],
    capacities: Sequence[int],
    *,
    most: int | None = None,
) -> int:
    """Return how often a host can give all groups, if its providers have so many units.

    The groups request units. ``most`` ends the count early. The number is exact, with two limits:
    a host that can give more than ``_ASSIGNED`` groups of different sizes that compete for
    providers counts as if it could not, and so does one for which this was not found out; see
    ``assign``. That it can give all groups once is assumed then.
    """
    counts: Counter[tuple[tuple[str, str], ...]] = Counter()
    for group in requests:
        counts[tuple(sorted(group.items()))] += 1
    kinds = []
    for items, times in counts.items():
        group = dict(items)
        places = frozenset(place for place, supply in enumerate(host) if supply.fits(group))
        kinds.append(_Kind(group, units(group), times, places))
    result = most
    for competing in _competing(kinds):
        number = _often(competing, host, capacities, result)
        result = number if result is None else min(result, number)
        if not result:
            return 0
    return result or 0


def _competing(kinds: Sequence[_Kind]) -> list[list[_Kind]]:
    """Return the kinds in sets that share no provider."""
    sets: list[tuple[frozenset[int], list[_Kind]]] = []
    for kind in kinds:
        places, members = kind.places, [kind]
        apart = []
        for others, competing in sets:
            if places & others:
                places, members = places | others, [*competing, *members]
            else:
                apart.append((others, competing))
        sets = [*apart, (places, members)]
    return [members for _, members in sets]


def _often(
    kinds: Sequence[_Kind], host: Sequence[Supply], capacities: Sequence[int], most: int | None
) -> int:
    """Return how often a host can give kinds that compete, up to ``most``."""
    # By Hall's theorem this is the answer, if all groups have the same size: any kinds together
    # find as many groups in the providers that can serve one of them. Else it is an upper bound.
    bounds = [] if most is None else [most]
    size = range(1, len(kinds) + 1) if len(kinds) <= _KINDS else (1, len(kinds))
    for chosen in (each for number in size for each in combinations(kinds, number)):
        places = frozenset().union(*(kind.places for kind in chosen))
        amount = min(kind.amount for kind in chosen)
        room = sum(capacities[place] // amount for place in places)
        bounds.append(room // sum(kind.times for kind in chosen))
        needed = sum(kind.times * kind.amount for kind in chosen)
        bounds.append(sum(capacities[place] for place in places) // needed)
    bound = min(bounds)
    if len({kind.amount for kind in kinds}) == 1 and len(kinds) <= _KINDS:
        return bound
    groups = [kind.group for kind in kinds for _ in range(kind.times)]
    low, high = 0, min(bound, max(1, _ASSIGNED // len(groups)))
    # The largest number is tried first: it is the answer for most hosts.
    middle = high
    while low < high:
        assigned = assign(groups * middle, host, capacities)
        if assigned or (assigned is not None and middle == 1):
            low = middle
        else:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low
