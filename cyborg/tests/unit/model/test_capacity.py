# SPDX-License-Identifier: Apache-2.0
"""How many instances of a profile fit; Placement counts the same in functional tests."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

from cyborg.model import satisfiability
from cyborg.model.availability import UnitWord
from cyborg.model.capacity import By, Fleet, HostRoom, Limit, ProfileCapacity, fitting
from cyborg.model.device_profile import units
from cyborg.model.explanation import Stock
from cyborg.model.satisfiability import Satisfiable, Supply
from cyborg.tests.fixtures.properties import fuzzed, given, st

A, B = "CUSTOM_GPU_A100", "CUSTOM_NIC"
FAST, SLOW = "CUSTOM_FAST", "CUSTOM_SLOW"


def wants(amount: int, name: str = A, **traits: str) -> dict[str, str]:
    return {f"resources:{name}": str(amount)} | {
        f"trait:{trait}": word for trait, word in traits.items()
    }


def card(total: int, *traits: str, name: str = A, size: int = 1) -> Supply:
    return Supply(name, traits, total, total, size)


def stock(host: str, supply: Supply, **words: int) -> Stock:
    free = supply.total - sum(words.values())
    every = {UnitWord.FREE.value: free, **words}
    pair = supply.total, 0
    provider = f"{host} {supply.traits} {sorted(every.items())}"
    return Stock(host, provider, host, replace(supply, free=free), every, pair, pair)


def of(fleet: Fleet, *groups: dict[str, str]) -> ProfileCapacity:
    (capacity,) = fleet.capacities(groups)
    return capacity


@pytest.mark.parametrize(
    ("groups", "host", "expected"),
    [
        ([wants(1)], [], 0),
        ([wants(1)], [card(4), card(2)], 6),
        ([wants(2)], [card(5), card(1)], 2),
        ([wants(1), wants(1)], [card(1), card(1), card(1)], 1),
        ([wants(4)], [card(8, size=2), card(3)], 2),
        ([wants(3)], [card(8, size=2)], 0),
        # Each class on its own; the scarcest decides.
        ([wants(1)] * 4 + [wants(2, B)], [card(8), card(2, name=B)], 1),
        ([{**wants(1), **wants(1, B)}], [card(1), card(1, name=B)], 0),
        # Any unit serves the first group, so the fast ones are left to the second one.
        ([wants(1), wants(1, **{FAST: "required"})], [card(2, FAST), card(2)], 2),
        ([wants(1), wants(1, **{FAST: "required"})], [card(1, FAST), card(5)], 1),
        # Groups of different sizes are packed.
        ([wants(2), wants(1)], [card(3), card(3)], 2),
        ([wants(3), wants(2)], [card(4)] * 4, 2),
        ([wants(16), wants(8)], [card(32)] * 2, 2),
    ],
)
def test_instances_that_fit_on_a_host(
    groups: list[dict[str, str]], host: Sequence[Supply], expected: int
) -> None:
    free = [supply.free for supply in host]
    assert fitting(groups, host, free) == expected
    assert fitting(groups, host, free, most=1) == min(expected, 1)


SUPPLIES = st.builds(
    Supply,
    st.sampled_from([A, A, B]),
    st.sets(st.sampled_from([FAST, SLOW])).map(lambda traits: tuple(sorted(traits))),
    st.just(4),
    st.integers(0, 4),
    st.sampled_from([1, 1, 2]),
)
GROUPS = st.builds(
    lambda amount, name, traits: wants(amount, name, **traits),
    st.integers(1, 3),
    st.sampled_from([A, A, B]),
    st.dictionaries(st.sampled_from([FAST, SLOW]), st.sampled_from(["required", "forbidden"])),
)


@given(st.lists(GROUPS, min_size=1, max_size=3), st.lists(SUPPLIES, max_size=3))
@fuzzed(400)
def test_number_is_that_of_all_ways_to_place_instances(
    groups: list[dict[str, str]], host: list[Supply]
) -> None:
    @cache
    def most(index: int, left: tuple[int, ...]) -> int:
        if index == len(groups):
            return 1 + most(0, left)
        group, counts = groups[index], [0]
        for place, supply in enumerate(host):
            if supply.fits(group) and left[place] >= units(group):
                rest = (*left[:place], left[place] - units(group), *left[place + 1 :])
                counts.append(most(index + 1, rest))
        return max(counts)

    free = [supply.free for supply in host]
    assert fitting(groups, host, free) == most(0, tuple(free))


def test_search_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with many ways to place groups of different sizes costs a bounded number of tries."""
    tried = []
    fits = satisfiability.Supply.fits

    def counted(supply: Supply, group: dict[str, str]) -> bool:
        tried.append(group)
        return fits(supply, group)

    monkeypatch.setattr(satisfiability.Supply, "fits", counted)
    groups = [wants(amount) for amount in (7, 5, 3)]
    host = [card(11 + place % 5) for place in range(64)]
    assert 40 < fitting(groups, host, [supply.free for supply in host]) <= 54
    assert len(tried) < 10_000
    many = [card(1000), card(1001)]
    assert fitting([wants(2), wants(1)], many, [1000, 1001]) == 200


def test_what_limits_hosts() -> None:
    two = wants(2)
    fleet = Fleet(
        [
            stock("full", card(2), used=2),
            stock("sick", card(4), used=1, unhealthy=2),
            stock("split", card(2), used=1),
            stock("split", card(2, FAST), used=1),
            stock("room", card(4), used=1),
            stock("none", card(1)),
            stock("small", card(2)),
        ]
    )
    capacity = of(fleet, two)
    limits = {each.host: (each.room.further, each.room.limit) for each in capacity.rooms}
    assert limits == {
        "full": (0, Limit.UNITS),
        "sick": (0, Limit.HEALTH),
        "split": (0, Limit.SHAPE),
        "room": (1, Limit.UNITS),
        "small": (1, Limit.UNITS),
    }
    assert capacity.limits == {Limit.UNITS: 3, Limit.HEALTH: 1, Limit.SHAPE: 1}
    assert (capacity.further, capacity.satisfiable) == (2, Satisfiable.NOW)
    assert capacity.reserved == {"unhealthy": 2}
    assert of(fleet, two, two, wants(1)).limits == {Limit.SHAPE: 6}
    assert of(fleet, wants(1, B)).satisfiable is Satisfiable.NEVER


def test_units_without_room_in_their_card_do_not_count_as_sick() -> None:
    capacity = of(Fleet([stock("a", card(4), used=1, no_room=3)]), wants(1))
    assert (capacity.limits, capacity.satisfiable) == ({Limit.UNITS: 1}, Satisfiable.WHEN_FREE)
    assert capacity.reserved == {"no_room": 3}


def test_headroom_and_largest_group() -> None:
    fleet = Fleet(
        [
            stock("a", card(8), used=6),
            stock("b", card(8), used=3),
            stock("c", card(1, SLOW)),
            stock("c", card(1)),
            stock("c", card(1, FAST)),
        ],
        unattached={stock("a", card(8), used=6).provider or "": 2},
    )
    capacity = of(fleet, wants(2))
    assert capacity.headroom is not None
    assert (capacity.headroom.host, capacity.headroom.in_use) == ("a", 3)
    # Host b has room for two of the three instances of host a.
    assert (capacity.further, capacity.headroom.further) == (3, -1)
    assert capacity.sum_of(lambda room: room.unattached) == 2
    largest = of(fleet, wants(1)).largest
    assert isinstance(largest, HostRoom)
    assert (largest.host, largest.room.free, largest.room.provider) == ("b", 5, 5)


def test_parts_have_all_units_of_an_instance() -> None:
    def at(host: str, node: int | None, kind: str) -> Stock:
        return replace(stock(host, card(1)), numa_node=node, type=kind, service_host=f"{host}-nova")

    stocks = [at("a", 0, "GPU"), at("a", 1, "GPU"), at("a", None, "FPGA"), at("b", 0, "GPU")]
    pair = [wants(1), wants(1)]

    def counts(by: By | None, groups: list[dict[str, str]]) -> list[tuple[object, ...]]:
        fleet = Fleet(stocks, by=by, zones={"a": "east", "b-nova": "west"})
        return [
            (part.part.host, part.part.type, part.part.numa_node, part.part.zone, part.further)
            for part in fleet.capacities(groups)
        ]

    assert counts(None, pair) == [(None, None, None, None, 1)]
    assert counts(By.HOST, pair) == [("a", None, None, None, 1), ("b", None, None, None, 0)]
    assert counts(By.TYPE, pair) == [(None, "FPGA", None, None, 0), (None, "GPU", None, None, 1)]
    assert counts(By.NUMA, [wants(1)]) == [
        ("a", None, None, None, 1),
        ("a", None, 0, None, 1),
        ("a", None, 1, None, 1),
        ("b", None, 0, None, 1),
    ]
    assert counts(By.AZ, pair) == [
        (None, None, None, "east", 1),
        (None, None, None, "west", 0),
    ]
