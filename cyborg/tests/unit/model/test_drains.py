# SPDX-License-Identifier: Apache-2.0
"""Where the servers of a drain find room: each on free units of its own."""

from cyborg.model.drains import MAX_KINDS, Guest, Placement, place
from cyborg.model.explanation import Names, Stock
from cyborg.model.satisfiability import Supply

CLASS = "CUSTOM_CARD"
NAMES = Names(frozenset({CLASS}), frozenset())
ONE, TWO = ({f"resources:{CLASS}": amount} for amount in ("1", "2"))


def stock(host: str, free: int, used: int = 0, provider: str = "") -> Stock:
    """A provider with free and used units."""
    words = {word: amount for word, amount in (("free", free), ("used", used)) if amount}
    total = free + used
    supply = Supply(CLASS, (), total, free)
    return Stock(
        host, provider or f"{host}_card", f"{host}_device", supply, words, (total, 0), None
    )


def hosts(placements: list[Placement]) -> list[str | None]:
    return [placement.host for placement in placements]


def test_servers_do_not_count_on_the_same_units() -> None:
    placements = place([Guest([ONE])] * 3, [stock("a", 1), stock("b", 1)], NAMES)
    assert hosts(placements) == ["a", "b", None]
    assert [placement.movable for placement in placements] == [True, True, False]
    assert placements[2].reason == (
        "Other servers of this drain need the free units of a, b: move this one instead of them, "
        "or free more units there."
    )


def test_servers_with_the_fewest_hosts_are_placed_first() -> None:
    """Only host ``b`` has room for the large one, which comes last in the list."""
    guests = [Guest([ONE]), Guest([ONE]), Guest([TWO])]
    assert hosts(place(guests, [stock("a", 1), stock("b", 3)], NAMES)) == ["a", "b", "b"]
    guests = [Guest([ONE]), Guest([TWO])]
    assert hosts(place(guests, [stock("b", 2)], NAMES)) == [None, "b"]


def test_reason_says_what_would_help_or_that_nothing_does() -> None:
    (placement,) = place([Guest([ONE])], [stock("a", 0, used=2)], NAMES)
    assert placement.reason.startswith(
        "No other host has room for it. 2 of 2 matching units on host a are in use"
    )
    (placement,) = place([Guest([ONE])], [], NAMES)
    assert placement == Placement(
        False,
        None,
        "No other host has room for it. No other accelerator has CUSTOM_CARD: add hardware.",
    )


def test_units_that_a_server_leaves_on_its_own_host_are_free_for_it() -> None:
    """It has a unit of another card, which is not drained."""
    guest = Guest([TWO], own={"p": 1})
    stocks = [stock("a", 1, used=1, provider="p")]
    assert hosts(place([guest, Guest([ONE])], stocks, NAMES)) == ["a", None]
    assert hosts(place([Guest([TWO])], stocks, NAMES)) == [None]


def test_attached_accelerators_and_servers_without_a_profile_are_told() -> None:
    attached, bare = place(
        [Guest([ONE], attached=1), Guest([], attached=1)], [stock("a", 1)], NAMES
    )
    assert (attached.movable, attached.host) == (True, "a")
    assert attached.reason.startswith("Its attached accelerators do not move with it")
    assert (bare.movable, bare.host) == (True, None)
    assert bare.reason.startswith("It has no accelerator of a flavor or a port")


def test_number_of_examined_requests_is_limited() -> None:
    guests = [Guest([{f"resources:{CLASS}": str(amount)}]) for amount in range(1, MAX_KINDS + 2)]
    placements = place(guests, [stock("a", 1000)], NAMES)
    assert [placement.movable for placement in placements] == [True] * MAX_KINDS + [None]
    assert placements[-1].reason.startswith("Not examined")
