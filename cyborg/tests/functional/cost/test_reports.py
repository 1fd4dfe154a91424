# SPDX-License-Identifier: Apache-2.0
"""Reports: the first writes in few statements, an unchanged one is the heartbeat and no more."""

from uuid import uuid4

import pytest

from cyborg.tests.fixtures.costs import (
    DEVICE_TABLES,
    SIGN_OF_LIFE,
    UNCHANGED_REPORT,
    Scenarios,
    first_report_allowance,
)
from cyborg.tests.fixtures.counted_service import CountedService
from cyborg.tests.fixtures.host_reports import report_of


def test_cost_of_an_api_heartbeat(counted_service: CountedService):
    counted_service.sign_of_life()  # the first one makes the row
    tally = counted_service.sign_of_life()
    assert SIGN_OF_LIFE.covers(tally), tally
    assert tally.rpc == ["api_heartbeat"]


@pytest.mark.parametrize("devices", [1, 8, 300])
def test_cost_of_a_first_and_an_unchanged_report(scenarios: Scenarios, devices: int):
    host = f"reported-{uuid4().hex[:12]}"
    report = report_of(host, devices)
    tally = scenarios.first_report(report, host)
    assert first_report_allowance(report).covers(tally), tally
    assert tally.writes_to("devices")
    tally = scenarios.unchanged_report(report, host)
    assert UNCHANGED_REPORT.covers(tally), tally
    assert tally.rpc == ["heartbeat"]
    assert tally.writes_to(*DEVICE_TABLES) == []
