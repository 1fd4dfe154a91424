# SPDX-License-Identifier: Apache-2.0
"""Showing costs at most two statements, a list at most three; neither asks the conductor.

Devices cost five from microversion 2.100 on.
"""

import re
import time

import pytest

from cyborg.api import answers, microversion
from cyborg.tests.fixtures.costs import EXTENDED, LIST, SHOW, Scenarios, listings
from cyborg.tests.fixtures.counted_service import CountedService

NEWEST = microversion.MAXIMUM
COLLECTIONS = {
    "device_profiles": "device_profiles",
    "accelerator_requests": "arqs",
    "devices": "devices",
    "deployables": "deployables",
    "attributes": "attributes",
    "drivers": "drivers",
    "backends": "backends",
    "hardware": "hardware",
    "services": "services",
}


def _first(counted_service: CountedService, collection: str) -> str:
    answer = counted_service.send("GET", f"/{collection}?limit=1", version=NEWEST)
    uuid: str = answer[COLLECTIONS[collection]][0]["uuid"]
    return uuid


@pytest.fixture
def instance(scenarios: Scenarios) -> str:
    """An instance with three bound requests."""
    wanted = scenarios.bindable(3, 2)
    scenarios.bind(wanted)
    return wanted.instance


def test_cost_of_device_list_is_independent_of_its_length(
    counted_service: CountedService, scenarios: Scenarios
):
    few, found = counted_service.counted("GET", "/devices?limit=2", version=NEWEST)
    Scenarios(counted_service, devices=7)
    many, more = counted_service.counted("GET", "/devices?limit=9", version=NEWEST)
    assert (len(found["devices"]), len(more["devices"])) == (2, 9)
    assert many.sql == few.sql


@pytest.mark.parametrize("path", ["device_profiles", "capacity"])
def test_cost_of_profiles_is_independent_of_their_number(
    counted_service: CountedService, scenarios: Scenarios, path: str
):
    """Whether the hardware can satisfy them, too."""
    for units in (1, 2):
        scenarios.profile(units)
    few, shown = counted_service.counted("GET", f"/{path}?limit=2", version=NEWEST)
    for units in (1, 2, 3, 3, 3):
        scenarios.profile(units)
    many, more = counted_service.counted("GET", f"/{path}?limit=7", version=NEWEST)
    assert (len(shown[path]), len(more[path])) == (2, 7)
    assert all(row["satisfiable"] for row in more[path])
    assert many.sql == few.sql


def test_cost_of_show_list_and_usage(
    counted_service: CountedService, scenarios: Scenarios, instance: str
):
    """Every list with every filter."""
    markers = {collection: _first(counted_service, collection) for collection in COLLECTIONS}
    paths = [(f"/{name}/{uuid}", SHOW) for name, uuid in markers.items()]
    paths.append((f"/device_profiles/{scenarios.profile(1)}", SHOW))
    paths += [(f"/usage{query}", SHOW) for query in ("", "?type=FPGA", "?host=nowhere")]
    yesterday = answers.instant(int((time.time() - 86_400) * 1000)).replace("+", "%2B")
    paths += [
        (f"/usage?start={yesterday}{query}", LIST)
        for query in ("", "&group_by=host,instance", "&host=nowhere")
    ]
    paths += [(f"/capacity{query}", SHOW) for query in ("", "?by=host", "?by=numa&host=nowhere")]
    paths += [(path, LIST) for path in listings(markers, instance)]
    for path, allowance in paths:
        tally, _ = counted_service.counted("GET", path, version=NEWEST)
        more = EXTENDED.get(re.split("[/?]", path)[1], allowance)
        assert more.covers(tally), f"{path}\n{tally}"
    for path, allowance in (("/devices", LIST), (f"/devices/{markers['devices']}", SHOW)):
        tally, _ = counted_service.counted("GET", path, version="2.3")
        assert allowance.covers(tally), f"{path}\n{tally}"


def test_cost_of_lists_after_a_marker(counted_service: CountedService, instance: str):
    marker = counted_service.send("GET", "/events?limit=1", version=NEWEST)["events"][0]["id"]
    queries = ("", f"instance={instance}", f"device={instance}", f"arq={instance}")
    for query in (*queries, "host=nowhere&since=2026-01-01", f"marker={marker}&host=nowhere"):
        tally, _ = counted_service.counted("GET", f"/events?{query}", version=NEWEST)
        assert LIST.covers(tally), f"{query}\n{tally}"
    path = f"/accelerator_requests?instance={instance}"
    first = counted_service.send("GET", path)["arqs"][0]["uuid"]
    path += f"&bind_state=resolved&marker={first}&limit=1"
    tally, answer = counted_service.counted("GET", path)
    assert len(answer["arqs"]) == 1
    assert LIST.covers(tally), tally
