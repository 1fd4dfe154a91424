# SPDX-License-Identifier: Apache-2.0
"""What a device profile is said to be, and what the real Placement answers for it.

``CYBORG_TEST_FUZZ`` sets how many examples there are, see ``fixtures/properties.py``.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from cyborg.clients.placement_sync import Publisher
from cyborg.model.availability import UnitWord
from cyborg.model.capacity import Fleet, fitting
from cyborg.model.device import DeviceStatus
from cyborg.model.explanation import Names, Stock, explain
from cyborg.model.provider import Provider, ProviderTree, provider_uuid
from cyborg.model.satisfiability import Satisfiable, Supply, satisfiable, warnings
from cyborg.tests.fixtures.placement import PlacementService, fresh_host, requested
from cyborg.tests.fixtures.properties import fuzzed, given, st

TRAITS = ("CUSTOM_FAST", "CUSTOM_SLOW", "HW_GPU_API_VULKAN")


@dataclass(frozen=True)
class Card:
    """A provider; the classes differ in each example, so a card has a number for its own."""

    number: int
    traits: frozenset[str]
    total: int
    used: int
    reserved: int
    group_size: int

    @property
    def free(self) -> int:
        """Return how many units Placement can allocate."""
        return self.total - self.used - self.reserved

    def provider(self, name: str, classes: Sequence[str], *, reserved: int) -> Provider:
        """Return what the agent publishes."""
        return Provider(
            *(provider_uuid(name), name, classes[self.number], self.total, reserved, self.traits),
            group_size=self.group_size,
        )

    def supply(self, classes: Sequence[str]) -> Supply:
        """Return what the service knows of it."""
        traits = tuple(sorted(self.traits))
        return Supply(classes[self.number], traits, self.total, self.free, self.group_size)

    def stock(self, host: str, place: int, classes: Sequence[str]) -> Stock:
        """Return what the service knows of its units; those that are reserved are inactive."""
        words = {
            UnitWord.FREE.value: self.free,
            UnitWord.USED.value: self.used,
            DeviceStatus.INACTIVE.value: self.reserved,
        }
        wanted = self.total, self.reserved
        return Stock(host, None, str(place), self.supply(classes), words, wanted, wanted)


@st.composite
def cards(draw: st.DrawFn) -> Card:
    size = draw(st.sampled_from([1, 1, 1, 2]))
    parts = [size * draw(st.integers(0, 2)) for _ in range(3)]
    total = max(sum(parts), size)
    return Card(
        draw(st.integers(0, 1)),
        frozenset(draw(st.sets(st.sampled_from(TRAITS)))),
        *(total, parts[0], parts[1], size),
    )


@st.composite
def groups(draw: st.DrawFn) -> tuple[Mapping[int, int], Mapping[str, str]]:
    """A group: amounts by number of the class, and traits."""
    numbers = draw(st.sampled_from([[0], [0], [1], [0, 1], [2]]))
    words = st.dictionaries(
        st.sampled_from(TRAITS), st.sampled_from(["required", "forbidden"]), max_size=2
    )
    return {number: draw(st.integers(1, 3)) for number in numbers}, draw(words)


HOSTS = st.lists(st.lists(cards(), max_size=3), min_size=1, max_size=2)
PROFILES = st.lists(st.lists(groups(), min_size=1, max_size=3), min_size=1, max_size=4)


@given(HOSTS, PROFILES)
@fuzzed(60)
def test_profile_is_judged_as_by_placement(
    placement: PlacementService,
    publisher: Publisher,
    hosts: list[list[Card]],
    profiles: list[list[tuple[Mapping[int, int], Mapping[str, str]]]],
) -> None:
    """``never`` is no candidate in an empty cloud, ``now`` a candidate in this one."""
    classes, named = _named(placement, profiles)
    empty = _candidates(placement, publisher, hosts, classes, named, in_use=False)
    used = _candidates(placement, publisher, hosts, classes, named, in_use=True)
    supplies = [[card.supply(classes) for card in host] for host in hosts]
    expected = [
        Satisfiable.NOW if now else Satisfiable.WHEN_FREE if ever else Satisfiable.NEVER
        for now, ever in zip(used, empty, strict=True)
    ]
    assert [satisfiable(profile, supplies) for profile in named] == expected
    every = [supply for host in supplies for supply in host]
    for profile, word in zip(named, expected, strict=True):
        single = len(profile) == 1
        if warnings(profile, every) or single:
            assert bool(warnings(profile, every)) is (word is Satisfiable.NEVER)


@given(HOSTS, st.lists(groups(), min_size=1, max_size=4))
@fuzzed(100)
def test_explanation_agrees_with_placement_and_its_suggestion_helps(
    placement: PlacementService,
    publisher: Publisher,
    hosts: list[list[Card]],
    profile: list[tuple[Mapping[int, int], Mapping[str, str]]],
) -> None:
    """A profile that does not fit does so after the suggested change."""
    classes, (named,) = _named(placement, [profile])
    stocks = [
        card.stock(str(number), place, classes)
        for number, host in enumerate(hosts)
        for place, card in enumerate(host)
    ]
    told = explain(named, stocks, Names(frozenset(classes), frozenset(TRAITS)))
    assert _candidates(placement, publisher, hosts, classes, [named], in_use=True) == [told.fits]
    if told.fits or not stocks:
        assert told.suggestion is None
        return
    assert told.suggestion is not None
    freed: dict[str, Counter[str]] = defaultdict(Counter)
    for change in told.suggestion.units:
        assert change.host == told.suggestion.host
        freed[change.device][change.word] += change.amount
    changed = [
        replace(
            card,
            used=card.used - freed[str(place)][UnitWord.USED],
            reserved=card.reserved - freed[str(place)][DeviceStatus.INACTIVE],
        )
        for place, card in enumerate(hosts[int(told.suggestion.host)])
    ]
    assert all(card.used >= 0 and card.reserved >= 0 for card in changed)
    wanted = told.suggestion.groups or named
    assert _candidates(placement, publisher, [changed], classes, [wanted], in_use=True) == [True]


@given(HOSTS, st.lists(groups(), min_size=1, max_size=4))
@fuzzed(100)
def test_capacity_is_what_placement_gives_one_after_another(
    placement: PlacementService,
    publisher: Publisher,
    hosts: list[list[Card]],
    profile: list[tuple[Mapping[int, int], Mapping[str, str]]],
) -> None:
    """Each candidate leaves at least one instance less, and the best one leaves just one less."""
    classes, (named,) = _named(placement, [profile])
    stocks = [
        card.stock(str(number), place, classes)
        for number, host in enumerate(hosts)
        for place, card in enumerate(host)
    ]
    (capacity,) = Fleet(stocks).capacities(named)
    told = explain(named, stocks, Names(frozenset(classes), frozenset(TRAITS)))
    assert (capacity.further > 0, capacity.satisfiable) == (told.fits, told.satisfiable)
    further = {each.host: each.room.further for each in capacity.rooms}
    consumers = []
    for number, host in enumerate(hosts):
        root, providers, taken = _publish(placement, publisher, host, classes)
        consumers += [_consumer(placement, taken)] if taken else []
        supplies = [card.supply(classes) for card in host]
        left, count = [card.free for card in host], further.get(str(number), 0)
        while candidates := placement.candidates(requested(named), in_tree=root):
            rests = []
            for candidate in candidates:
                units = {
                    provider: dict(part["resources"])
                    for provider, part in candidate.allocations.items()
                    if provider in providers
                }
                rest = list(left)
                for provider, amounts in units.items():
                    rest[providers.index(provider)] -= sum(amounts.values())
                rests.append((fitting(named, supplies, rest), rest, units))
            best, left, units = max(rests, key=lambda item: item[0])
            assert best == count - 1
            consumers.append(_consumer(placement, units))
            count = best
        assert count == 0
    for consumer in consumers:
        placement.free(consumer)


def _consumer(placement: PlacementService, units: Mapping[str, Mapping[str, int]]) -> str:
    """Let a new consumer have units of providers, and return it."""
    consumer = str(uuid4())
    assert placement.claim(consumer, units)
    return consumer


def _named(
    placement: PlacementService,
    profiles: Sequence[Sequence[tuple[Mapping[int, int], Mapping[str, str]]]],
) -> tuple[list[str], list[list[dict[str, str]]]]:
    """Create classes and traits, which Placement must have in a query; return the profiles."""
    classes = [f"CUSTOM_{uuid4().hex.upper()}" for _ in range(3)]
    for name in classes:
        placement.call("PUT", f"/resource_classes/{name}")
    for name in TRAITS[:2]:
        placement.call("PUT", f"/traits/{name}")
    return classes, [
        [
            {f"resources:{classes[number]}": str(amount) for number, amount in amounts.items()}
            | {f"trait:{trait}": word for trait, word in traits.items()}
            for amounts, traits in profile
        ]
        for profile in profiles
    ]


def _candidates(
    placement: PlacementService,
    publisher: Publisher,
    hosts: Sequence[Sequence[Card]],
    classes: Sequence[str],
    profiles: Sequence[Sequence[Mapping[str, str]]],
    *,
    in_use: bool,
) -> list[bool]:
    """Publish the hosts; return whether Placement has a candidate for each profile."""
    consumer, roots = str(uuid4()), []
    taken: dict[str, dict[str, int]] = {}
    for host in hosts:
        root, _, used = _publish(placement, publisher, host, classes, in_use=in_use)
        roots.append(root)
        taken |= used
    if taken:
        assert placement.claim(consumer, taken)
    found = Counter(
        index
        for index, profile in enumerate(profiles)
        for root in roots
        if placement.candidates(requested(profile), in_tree=root)
    )
    placement.free(consumer)
    return [found[index] > 0 for index in range(len(profiles))]


def _publish(
    placement: PlacementService,
    publisher: Publisher,
    cards_: Sequence[Card],
    classes: Sequence[str],
    *,
    in_use: bool = True,
) -> tuple[str, list[str], dict[str, dict[str, int]]]:
    """Publish a host; return its provider, those of its cards, and the units in use."""
    host = fresh_host()
    root = placement.make_compute(host)
    named = {f"{host}_{index}": card for index, card in enumerate(cards_)}
    providers = [
        card.provider(name, classes, reserved=card.reserved if in_use else 0)
        for name, card in named.items()
    ]
    assert publisher.publish(ProviderTree(host, tuple(providers))).problems == {}
    used = {
        provider_uuid(name): {classes[card.number]: card.used}
        for name, card in named.items()
        if in_use and card.used
    }
    return root, [provider_uuid(name) for name in named], used
