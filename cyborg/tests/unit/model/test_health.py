# SPDX-License-Identifier: Apache-2.0
"""The words for health, what each means for the offer, and what is worth a line of history."""

import pytest

from cyborg.model import health
from cyborg.model.health import Condition, DeviceHealth
from cyborg.model.report import DriverReport, DriverState, Report


@pytest.mark.parametrize(
    ("before", "after", "notable"),
    [
        (None, "ok", False),
        ("ok", None, False),
        ("drain", "drain", False),
        (None, "drain", True),
        ("ok", "dead", True),
        ("drain", "ok", True),
        ("drain", None, True),
        ("ok", "degraded", True),
    ],
)
def test_faults_and_recoveries_are_recorded(
    before: str | None, after: str | None, notable: bool
) -> None:
    assert health.notable(before, after) is notable


@pytest.mark.parametrize("word", [*health.CONDITIONS, None])
def test_event_action_names_the_health(word: str | None) -> None:
    assert health.of_action(health.action(word)) == (word or health.UNKNOWN)
    assert health.of_action("labelled") is None


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (None, None),
        ("", None),
        (" \n ", None),
        ("two\nlines", "two lines"),
        ("nul\0 \ud800 bell\a", "nul bell"),
        ("é" * 2000, "é" * 1000),
    ],
)
def test_reason_is_reduced_to_one_printable_line(text: str | None, kept: str | None) -> None:
    assert health.legible(text) == kept


def test_digest_depends_on_health() -> None:
    def digest(*healths: DeviceHealth) -> str:
        return Report((DriverReport("d", DriverState.READY, health=healths),)).digest()

    ok, drain = DeviceHealth("k", Condition.OK), DeviceHealth("k", Condition.DRAIN, ("hot",))
    other = DeviceHealth("l", Condition.OK)
    assert len({digest(), digest(ok), digest(drain), digest(DeviceHealth("k"))}) == 4
    assert digest(ok, other) == digest(other, ok)
