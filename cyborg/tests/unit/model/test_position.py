# SPDX-License-Identifier: Apache-2.0
"""Positions of readers of the history: what they have read, and how a client keeps them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyborg.model.position import MOST_RUNS, Position

ids = st.sets(st.integers(min_value=1, max_value=60))


@given(after=st.integers(min_value=0, max_value=60), steps=st.lists(ids), settled=ids)
def test_position_knows_what_is_read(after: int, steps: list[set[int]], settled: set[int]) -> None:
    position = Position(after)
    expected = set(range(1, after + 1))
    for step in steps:
        position = position.read(step)
        expected |= step
    for id_ in settled:
        position = position.settled(id_)
        expected |= set(range(1, id_ + 1))
    assert {id_ for id_ in range(1, 70) if position.has_read(id_)} == expected
    ends = [(position.after - 1, position.after - 1), *position.runs]
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(ends))
    assert Position.parse(position.after, position.text) == position


def test_text_counts_from_the_id() -> None:
    position = Position(1000).read([1002, 1003, 1004, 1009])
    assert position.text == "2-4,9"
    assert position.settled(1003).text == "1,6"
    assert Position(7).text == ""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0", "for example 1-3,7"),
        ("1,", "for example 1-3,7"),
        ("-1", "for example 1-3,7"),
        ("1;2", "for example 1-3,7"),
        ("9" * 30, "for example 1-3,7"),
        ("\u0661", "for example 1-3,7"),
        ("3-1", "must grow"),
        ("1-3,3", "must grow"),
        ("5,4", "must grow"),
        ("9" * 18 + "," + "9" * 18, "must grow"),
        (",".join(str(2 * n) for n in range(1, MOST_RUNS + 2)), f"more than {MOST_RUNS} parts"),
    ],
)
def test_text_that_is_no_position_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Position.parse(10, text)


def test_numbers_beyond_the_greatest_id_are_refused() -> None:
    with pytest.raises(ValueError, match="too large"):
        Position.parse(2**63 - 3, "1,3")


def test_room_is_bounded() -> None:
    position = Position(0).read(range(2, 2 * MOST_RUNS + 1, 2))
    assert position.room(0) == 0
    assert position.room(100) == 50
    assert len(position.text) < 16_384
