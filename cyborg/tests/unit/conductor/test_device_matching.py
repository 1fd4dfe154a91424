# SPDX-License-Identifier: Apache-2.0
"""Match reported devices to rows."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cyborg.conductor.reports.apply import _match
from cyborg.model import device as facts
from cyborg.tests.fixtures.host_reports import report_of

KEY, OTHER = "0000:00:00.0", "0000:00:01.0"


def device(key: str, *, operator_created: bool = False) -> facts.Device:
    (driver,) = report_of("compute", 1).drivers
    return replace(driver.devices[0], key=key, operator_created=operator_created)


def row(id_: int, driver: str, key: str, origin: str = "discovered") -> Any:
    return SimpleNamespace(id=id_, driver=driver, device_key=key, origin=origin)


@pytest.mark.parametrize(
    ("reported", "rows", "matched"),
    [
        pytest.param([("a", device(KEY))], [], {}, id="new"),
        pytest.param([("a", device(KEY))], [row(1, "a", KEY)], {0: 1}, id="same driver and key"),
        pytest.param([("b", device(KEY))], [row(1, "a", KEY)], {0: 1}, id="driver changed"),
        pytest.param([("a", device(OTHER))], [row(1, "a", KEY)], {}, id="another key"),
        pytest.param(
            [("b", device(KEY)), ("a", device(KEY))],
            [row(1, "a", KEY)],
            {1: 1},
            id="the row's own driver comes before a driver that only has the key",
        ),
        pytest.param(
            [("a", device(KEY)), ("b", device(KEY))],
            [row(1, "a", KEY), row(2, "b", KEY)],
            {0: 1, 1: 2},
            id="two drivers with the same key",
        ),
        pytest.param(
            [("b", device(KEY)), ("c", device(KEY))],
            [row(1, "a", KEY)],
            {0: 1},
            id="a row matches one device only",
        ),
        pytest.param(
            [("b", device(KEY, operator_created=True))],
            [row(1, "a", KEY)],
            {},
            id="a created device never takes the row of another driver",
        ),
        pytest.param(
            [("b", device(KEY))],
            [row(1, "a", KEY, "operator")],
            {},
            id="the row of a created device is never taken by another driver",
        ),
        pytest.param(
            [("a", device(KEY, operator_created=True))],
            [row(1, "a", KEY, "operator")],
            {0: 1},
            id="a created device has its own row",
        ),
    ],
)
def test_a_reported_device_is_matched_to_its_row(
    reported: list[tuple[str, facts.Device]], rows: list[Any], matched: dict[int, int]
) -> None:
    rows_by_index = _match(reported, rows)
    assert {index: row.id for index, row in rows_by_index.items()} == matched
