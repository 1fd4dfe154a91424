# SPDX-License-Identifier: Apache-2.0
"""Tests of how JSON is laid out: within its room, and nothing lost but what is said to be."""

import json
from typing import Any

import pytest

from cyborg.tests.fixtures.properties import given, st
from cyborg_tools.quickstart.layout import compact

_SCALARS = st.none() | st.booleans() | st.integers(-999, 999) | st.text('abc"{},', max_size=8)
_SHORT = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("xyz", max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(_SHORT)
def test_compact_text_equals_the_value(value: Any) -> None:
    lines = compact(value, 40)
    assert json.loads("\n".join(lines)) == value


@pytest.mark.parametrize(
    ("value", "lines"),
    [
        ({"a": [1, "b"], "c": None}, ['{"a": [1, "b"], "c": null}']),
        ({"links": [{"rel": "self"}], "a": 1}, ['{"links": [...], "a": 1}']),
        (
            {"uuid": "0" * 20, "n": 1, "inner": {"first": "1" * 12, "second": "2" * 12}, "end": 2},
            [
                "{",
                '  "uuid": "00000000000000000000", "n": 1,',
                '  "inner": {',
                '    "first": "111111111111",',
                '    "second": "222222222222"',
                "  },",
                '  "end": 2',
                "}",
            ],
        ),
        (
            [{"first": "1" * 20, "second": "2" * 20}],
            [
                "[{",
                '  "first": "11111111111111111111",',
                '  "second": "22222222222222222222"',
                "}]",
            ],
        ),
    ],
    ids=["short", "links", "shared-lines", "list-of-one"],
)
def test_value_is_laid_out(value: Any, lines: list[str]) -> None:
    assert compact(value, 42) == lines


@pytest.mark.parametrize("room", [20, 100])
def test_long_list_shows_its_first_entries(room: int) -> None:
    lines = compact(list(range(9)), room)
    assert "".join(line.strip() + " " for line in lines).strip("[ ]") == "0, 1, 2, ... 6 more"
    many: dict[str, Any] = {f"key{number}": {} for number in range(5)}
    shown = " ".join(" ".join(compact(many, room)).split())
    assert shown.strip("{ }") == '"key0": {}, "key1": {}, "key2": {}, ... 2 more'


@given(_SHORT, st.integers(30, 90))
def test_lines_keep_to_the_width(value: Any, room: int) -> None:
    # No string above is longer than 18 columns with its quotes and escapes, no key than 9.
    deepest = max(len(line) - len(line.lstrip()) for line in compact(value, room))
    assert all(len(line) <= max(room, deepest + 32) for line in compact(value, room))
