# SPDX-License-Identifier: Apache-2.0
"""Reports: the first writes in few statements, an unchanged one is the heartbeat and no more."""

from uuid import uuid4

import pytest

from cyborg.tests.fixtures.costs import (
    DEVICE_TABLES,
    SIGN_OF_LIFE,
    UNCHANGED_REPORT,
    Scenes,
    first_report_allowance,
)
from cyborg.tests.fixtures.counted import CountedService
from cyborg.tests.fixtures.machines import report_of

SIZES = [1, 8, 300]


@pytest.mark.parametrize("devices", SIZES)
def test_a_first_report(scenes: Scenes, devices: int):
    host = f"reported-{uuid4().hex[:12]}"
    report = report_of(host, devices)
    tally = scenes.first_report(report, host)
    assert first_report_allowance(report).covers(tally), tally
    assert tally.writes_to("devices")


def test_a_sign_of_life_of_an_api(house: CountedService):
    house.sign_of_life()  # the first one makes the row
    tally = house.sign_of_life()
    assert SIGN_OF_LIFE.covers(tally), tally
    assert tally.rpc == ["api_heartbeat"]


def test_a_large_first_report_may_cost_one_more_for_its_attributes():
    assert first_report_allowance(report_of("small", 250)).statements == 12
    assert first_report_allowance(report_of("large", 251)).statements == 13


@pytest.mark.parametrize("devices", SIZES)
def test_an_unchanged_report(scenes: Scenes, devices: int):
    host = f"reported-{uuid4().hex[:12]}"
    report = report_of(host, devices)
    scenes.first_report(report, host)
    tally = scenes.unchanged_report(report, host)
    assert UNCHANGED_REPORT.covers(tally), tally
    assert tally.rpc == ["heartbeat"]
    assert tally.writes_to(*DEVICE_TABLES) == []
