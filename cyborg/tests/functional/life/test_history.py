# SPDX-License-Identifier: Apache-2.0
"""The history of devices, hosts, instances and requests through the API (microversion 2.5)."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from cyborg.db.engine import Database
from cyborg.model.provider import provider_uuid
from cyborg.tests.fixtures.compute_host import ComputeHost
from cyborg.tests.functional.life.cards import CARD, OTHER, Traits
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import (
    FPGA,
    bind,
    create,
    delete_arqs,
    eventually,
    eventually_bound,
    handle_states,
    hasten,
    of_instance,
)

Racked = Callable[..., RackedCompute]
Profiles = Callable[..., str]
EVENTS = "/events"


@pytest.fixture
def operator(app: Any) -> Client:
    return Client(app, role="operator", version="2.5")


def history(operator: Client, **filters: Any) -> list[dict[str, Any]]:
    """The events that match, the oldest first."""
    events: list[dict[str, Any]] = operator.get(EVENTS, **filters)["events"]
    return events[::-1]


def actions(operator: Client, **filters: Any) -> list[tuple[str, str]]:
    """What happened to what."""
    return [(one["noun"], one["action"]) for one in history(operator, **filters)]


def card(operator: Client, rack: RackedCompute, address: str = CARD) -> str:
    """The uuid of the device of a card."""
    (uuid,) = (
        one["uuid"]
        for one in operator.get("/devices", hostname=rack.compute)["devices"]
        if one["address"] == address
    )
    return str(uuid)


@pytest.mark.parametrize("fault", [None, RuntimeError("the card is hot")])
def test_end_of_bind_has_request_id_of_its_start(
    racked: Racked,
    profile: Profiles,
    nova: Client,
    operator: Client,
    resource_class: str,
    fault: Exception | None,
) -> None:
    rack = racked(Traits(resource_class, prepare=True))
    rack.driver.behaviour.fault = fault
    arqs = create(nova, profile({f"resources:{resource_class}": "1"}))
    instance = bind(nova, arqs, rack.provider())
    final = "Bound" if fault is None else "BindFailed"
    eventually(lambda: of_instance(nova, instance)[0]["state"] == final)
    started, ended = history(operator, instance=instance)
    assert (started["action"], ended["action"], ended["state"]) == ("BindStarted", final, final)
    assert started["request_id"].startswith("req-")
    assert ended["request_id"] == started["request_id"]
    assert {one["device_uuid"] for one in (started, ended)} == {card(operator, rack)}
    of_request = history(operator, request_id=started["request_id"])
    assert [one["action"] for one in of_request] == ["BindStarted", final]


def test_device_has_one_history_for_all_changes(
    racked: Racked,
    profile: Profiles,
    nova: Client,
    operator: Client,
    database: Database,
    resource_class: str,
) -> None:
    rack = racked(
        Traits(resource_class, prepare=True, programmable=True), cards={CARD: 1, OTHER: 1}
    )
    device = card(operator, rack)
    other = len(history(operator, device=card(operator, rack, OTHER)))
    arqs = create(nova, profile({f"resources:{resource_class}": "1"}))
    instance = bind(nova, arqs, rack.provider())
    eventually_bound(nova, instance)
    rack.driver.behaviour.stuck = RuntimeError("the card hangs")
    delete_arqs(nova, instance)

    def quarantined() -> bool:
        hasten(database)
        return "quarantined" in handle_states(database).values()

    eventually(quarantined)
    operator.post(f"/devices/{device}/disable", status=204)
    events = history(operator, device=device)
    assert [(one["noun"], one["action"]) for one in events[-5:]] == [
        ("arq", "BindStarted"),
        ("arq", "Bound"),
        ("arq", "deleted"),
        ("handle", "quarantined"),
        ("device", "maintaining"),
    ]
    assert {one["device_uuid"] for one in events} == {device}
    deleted, quarantine = events[-3], events[-2]
    assert quarantine["request_id"] == deleted["request_id"]
    assert quarantine["reason"].endswith("the card hangs")
    shown = operator.get(f"/devices/{device}")["events"]
    assert [one["id"] for one in shown] == [one["id"] for one in events[::-1]][: len(shown)]
    assert len(history(operator, device=card(operator, rack, OTHER))) == other


def test_unbind_and_delete_events_name_the_device(
    compute: Callable[..., ComputeHost], profile: Profiles, nova: Client, operator: Client
) -> None:
    host = compute()
    arqs = create(nova, profile(FPGA))
    instance = bind(nova, arqs, host.fake_provider, host=host.compute)
    delete_arqs(nova, instance)
    created, bound, deleted = history(operator, arq=arqs[0]["uuid"])
    assert (created["action"], created["device_uuid"]) == ("Initial", None)
    assert bound["device_uuid"] == deleted["device_uuid"] is not None
    assert (bound["host"], bound["instance_uuid"]) == (host.compute, instance)
    assert (deleted["state"], deleted["instance_uuid"]) == ("Deleted", instance)
    assert bound["project_id"] == nova.project


def test_event_pages_are_complete_and_newest_first(
    compute: Callable[..., ComputeHost], profile: Profiles, nova: Client, operator: Client
) -> None:
    compute()
    name = profile(FPGA)
    for _ in range(3):
        create(nova, name)
    everything = operator.get(EVENTS)["events"]
    ids = [one["id"] for one in everything]
    assert ids == sorted(ids, reverse=True)
    pages: list[int] = []
    marker: dict[str, int] = {}
    while page := operator.get(EVENTS, limit=2, **marker)["events"]:
        pages += [one["id"] for one in page]
        marker = {"marker": page[-1]["id"]}
    assert pages == ids
    rising = operator.get(EVENTS, sort_key="at", sort_dir="asc")["events"]
    assert [one["at"] for one in rising] == sorted(one["at"] for one in everything)


def test_event_times_have_a_time_zone(
    compute: Callable[..., ComputeHost], operator: Client, database: Database
) -> None:
    before = datetime.now(UTC)
    compute()
    event = history(operator)[-1]
    at = datetime.fromisoformat(event["at"])
    assert at.utcoffset() is not None
    assert abs((at - before).total_seconds()) < 3600
    for since in ("2999-01-01", "2999-01-01T00:00:00Z", "2999-01-01T00:00:00+02:00"):
        assert history(operator, since=since) == []
    for since in ("1999-12-31", "2000-01-01T00:00:00-11:00"):
        assert history(operator, since=since)[-1] == event


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"device": "card"}, "device"),
        ({"instance": "x"}, "instance"),
        ({"host": ""}, "host"),
        ({"request_id": ""}, "request_id"),
        ({"since": "yesterday"}, "since"),
        ({"since": "1700000000000"}, "since"),
        ({"since": ""}, "since"),
        ({"limit": "1001"}, "limit"),
        ({"limit": "-1"}, "limit"),
        ({"marker": str(2**63)}, "marker"),
        ({"marker": str(2**62)}, "marker"),
        ({"marker": "uuid"}, "marker"),
        ({"sort_key": "reason"}, "sort_key"),
        ({"sort_dir": "up"}, "sort_dir"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_invalid_event_filter_is_named(operator: Client, query: dict[str, str], field: str) -> None:
    assert field in operator.get(EVENTS, status=400, **query)["error_message"]


def test_events_are_for_operators_from_2_5(app: Any, operator: Client) -> None:
    for role in ("reader", "member", "manager", "service"):
        Client(app, role=role, version="2.5").get(EVENTS, status=403)
    for version in (None, "2.0", "2.4"):
        replace(operator, version=version).get(EVENTS, status=404)
    assert replace(operator, role="admin").get(EVENTS)["events"] == []
    operator.get(f"{EVENTS}/{uuid4()}", status=404)
    assert operator.get(EVENTS, device=provider_uuid("none"))["events"] == []
