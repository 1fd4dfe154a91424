# SPDX-License-Identifier: Apache-2.0
"""The words for health, what each means for the offer, and what is worth a line of history."""

import pytest

from cyborg.model import health
from cyborg.model.availability import Standing, Unit, reserved
from cyborg.model.device import DeviceStatus, HandleState
from cyborg.model.health import Condition, DeviceHealth
from cyborg.model.report import DriverReport, DriverState, Report


@pytest.mark.parametrize(
    ("word", "units"),
    [(None, 1), ("ok", 1), ("degraded", 1), ("drain", 2), ("dead", 2), ("of a later release", 2)],
)
def test_units_of_a_faulty_device_are_reserved(word: str | None, units: int) -> None:
    standing = Standing(DeviceStatus.ENABLED, lost=False, driver="READY", health=word)
    handles = [Unit(HandleState.FREE, lost=False), Unit(HandleState.QUARANTINED, lost=False)]
    assert standing.reason == (None if units == 1 else "unhealthy")
    assert reserved(standing, handles) == units


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


def test_digest_without_health_is_unchanged() -> None:
    report = Report((DriverReport("d", DriverState.READY),))
    assert report.digest() == "11ef1559e3abdc122f144df0624ae865348ae063be5b577de383d27c2aa7960e"
