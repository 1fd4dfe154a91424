# SPDX-License-Identifier: Apache-2.0
"""How the words of host and device profile decide about cleaning."""

import pytest

from cyborg.model.cleaning import CleanLevel, HostClean, host_clean, level, profile_level

NONE, RESET, FULL = CleanLevel


@pytest.mark.parametrize(
    ("host", "profile", "expected"),
    [
        ("default", None, FULL),
        ("default", NONE, NONE),
        ("default", RESET, RESET),
        ("default", FULL, FULL),
        ("none", None, NONE),
        ("none", FULL, FULL),
        ("reset", None, RESET),
        ("reset", NONE, RESET),
        ("reset", FULL, FULL),
        ("full", NONE, FULL),
        ("full", RESET, FULL),
        (None, None, None),
        (None, NONE, NONE),
        (None, RESET, None),
        (None, FULL, FULL),
    ],
)
def test_stricter_word_wins_unless_the_host_has_none(
    host: str | None, profile: CleanLevel | None, expected: CleanLevel | None
) -> None:
    assert level(host, profile) is expected


def test_only_an_explicit_full_is_reported_without_a_safe_step() -> None:
    words = [None, *CleanLevel]
    assert [host_clean(word, cleanable=False) for word in words] == [
        *(None, None, None),
        HostClean.FULL,
    ]
    assert [host_clean(word, cleanable=True) for word in words] == list(HostClean)


def test_text_that_is_not_a_level_is_ignored() -> None:
    assert profile_level({"clean": "thoroughly"}) is None
    assert profile_level({}) is None
    assert profile_level({"clean": "none"}) is NONE


def test_each_level_includes_the_levels_before_it() -> None:
    assert [[a.includes(b) for b in CleanLevel] for a in CleanLevel] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]
