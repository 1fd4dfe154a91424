# SPDX-License-Identifier: Apache-2.0
"""Showing costs at most two statements, a list at most three; neither asks the conductor.

Devices cost five from microversion 2.5 on.
"""

import pytest

from cyborg.api import microversion
from cyborg.tests.fixtures.costs import DEVICES, LIST, SHOW, Allowance, Scenarios, listings
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


def _allowed(collection: str, version: str, otherwise: Allowance) -> Allowance:
    return DEVICES if (collection, version) == ("devices", NEWEST) else otherwise


@pytest.mark.parametrize("version", ["2.4", NEWEST])
@pytest.mark.parametrize("collection", COLLECTIONS)
def test_cost_of_show(
    counted_service: CountedService, instance: str, collection: str, version: str
):
    tally, _ = counted_service.counted(
        "GET", f"/{collection}/{_first(counted_service, collection)}", version=version
    )
    assert _allowed(collection, version, SHOW).covers(tally), tally


def test_cost_of_show_profile_by_name(counted_service: CountedService, scenarios: Scenarios):
    tally, _ = counted_service.counted("GET", f"/device_profiles/{scenarios.profile(1)}")
    assert SHOW.covers(tally), tally


@pytest.mark.parametrize("version", ["2.4", NEWEST])
def test_cost_of_every_list_with_every_filter(
    counted_service: CountedService, instance: str, version: str
):
    markers = {collection: _first(counted_service, collection) for collection in COLLECTIONS}
    for path in listings(markers, instance):
        tally, _ = counted_service.counted("GET", path, version=version)
        collection = path[1:].partition("?")[0]
        assert _allowed(collection, version, LIST).covers(tally), f"{path}\n{tally}"


def test_cost_of_device_list_is_independent_of_its_length(
    counted_service: CountedService, scenarios: Scenarios
):
    few, found = counted_service.counted("GET", "/devices", version=NEWEST)
    Scenarios(counted_service, devices=7)
    many, more = counted_service.counted("GET", "/devices", version=NEWEST)
    assert len(more["devices"]) >= len(found["devices"]) + 7
    assert many.sql == few.sql


def test_cost_of_event_list(counted_service: CountedService, instance: str):
    marker = counted_service.send("GET", "/events?limit=1", version=NEWEST)["events"][0]["id"]
    queries = ("", f"instance={instance}", f"device={instance}", f"arq={instance}")
    for query in (*queries, "host=nowhere&since=2026-01-01", f"marker={marker}&host=nowhere"):
        tally, _ = counted_service.counted("GET", f"/events?{query}", version=NEWEST)
        assert LIST.covers(tally), f"{query}\n{tally}"


@pytest.mark.parametrize("version", ["2.4", NEWEST])
@pytest.mark.parametrize("query", ["", "?type=FPGA", "?host=nowhere"])
def test_cost_of_usage(counted_service: CountedService, instance: str, query: str, version: str):
    tally, _ = counted_service.counted("GET", f"/usage{query}", version=version)
    assert SHOW.covers(tally), tally


def test_cost_of_resolved_list_after_a_marker(counted_service: CountedService, instance: str):
    marker = counted_service.send("GET", f"/accelerator_requests?instance={instance}")["arqs"][0][
        "uuid"
    ]
    tally, answer = counted_service.counted(
        "GET",
        f"/accelerator_requests?instance={instance}&bind_state=resolved&marker={marker}&limit=1",
    )
    assert len(answer["arqs"]) == 1
    assert LIST.covers(tally), tally
