# SPDX-License-Identifier: Apache-2.0
"""Match reported devices to rows."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cyborg.conductor.reports.matching import displaced, match
from cyborg.model import device as facts
from cyborg.model.device import Confidence, Identity, IdentityKind
from cyborg.tests.fixtures.host_reports import report_of

KEY, OTHER = "0000:00:00.0", "0000:00:01.0"


def device(key: str, *, operator_created: bool = False) -> facts.Device:
    (driver,) = report_of("compute", 1).drivers
    return replace(driver.devices[0], key=key, operator_created=operator_created)


def row(id_: int, driver: str, key: str, origin: str = "discovered") -> Any:
    return SimpleNamespace(id=id_, driver=driver, device_key=key, origin=origin, identity=None)


def numbered(key: str, **numbers: str) -> facts.Device:
    """Return a device whose numbers of these kinds move with it."""
    identity = tuple(
        Identity(IdentityKind(kind), value, Confidence.UNIQUE) for kind, value in numbers.items()
    )
    return replace(device(key), identity=identity)


def numbered_row(id_: int, key: str, **numbers: str) -> Any:
    values = [
        {"kind": kind, "value": value, "confidence": "unique"} for kind, value in numbers.items()
    ]
    return SimpleNamespace(**{**vars(row(id_, "a", key)), "identity": values})


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
        pytest.param(
            [("a", numbered(KEY, vendor="2", dsn="same"))],
            [numbered_row(1, KEY, vendor="1", dsn="same")],
            {},
            id="the strongest number that both have decides",
        ),
        pytest.param(
            [("a", numbered(KEY, dsn="x"))],
            [numbered_row(1, KEY, vendor="1")],
            {0: 1},
            id="numbers of different kinds tell nothing",
        ),
        pytest.param(
            [("b", numbered(OTHER, dsn="x"))],
            [numbered_row(1, KEY, dsn="x")],
            {0: 1},
            id="a moved card may have another driver",
        ),
        pytest.param(
            [("b", numbered(KEY, dsn="y"))],
            [numbered_row(1, KEY, dsn="x")],
            {},
            id="another driver does not take the row of another card",
        ),
        pytest.param(
            [("a", numbered(OTHER, dsn="x"))],
            [numbered_row(1, KEY, dsn="x"), numbered_row(2, OTHER, dsn="x")],
            {0: 2},
            id="the key decides between rows with one number",
        ),
        pytest.param(
            [("a", numbered(OTHER, dsn="x"))],
            [numbered_row(1, KEY, dsn="x"), row(2, "a", OTHER, "operator")],
            {0: 2},
            id="a created device keeps its place",
        ),
    ],
)
def test_a_reported_device_is_matched_to_its_row(
    reported: list[tuple[str, facts.Device]], rows: list[Any], matched: dict[int, int]
) -> None:
    rows_by_index = match(reported, rows)
    assert {index: row.id for index, row in rows_by_index.items()} == matched


@pytest.mark.parametrize(
    ("reported", "stored", "failed", "is_displaced"),
    [
        pytest.param(("a", device(KEY)), row(1, "a", KEY), (), True, id="same driver and key"),
        pytest.param(("b", device(KEY)), row(1, "a", KEY), (), False, id="two drivers"),
        pytest.param(("b", device(KEY)), row(1, "a", KEY, "name"), (), True, id="same name"),
        pytest.param(("b", device(KEY)), row(1, "a", KEY, "name"), ("a",), False, id="failed"),
        pytest.param(
            ("b", numbered(KEY, dsn="y")),
            numbered_row(1, KEY, dsn="x"),
            ("a",),
            True,
            id="another number",
        ),
        pytest.param(
            ("b", numbered(KEY, dsn="x")),
            numbered_row(1, KEY, dsn="x"),
            (),
            False,
            id="same number",
        ),
        pytest.param(("b", device(OTHER)), row(1, "a", KEY, "name"), (), False, id="other key"),
        pytest.param(("b", device(KEY)), row(1, "a", KEY, "operator"), (), False, id="created"),
    ],
)
def test_a_device_displaces_the_row_of_another_one_at_its_place(
    reported: tuple[str, facts.Device], stored: Any, failed: tuple[str, ...], *, is_displaced: bool
) -> None:
    (part,) = reported[1].deployables
    names = {1: {part.name} if stored.origin in ("name", "operator") else set()}
    assert displaced([reported], [stored], names, failed) == ({1} if is_displaced else set())
