# SPDX-License-Identifier: Apache-2.0
"""What operators see of devices, units and their history (microversion 2.100); and Placement."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from uuid import uuid4

import pytest

from cyborg.db.engine import Database
from cyborg.model.provider import provider_uuid
from cyborg.tests.fixtures.compute_host import ComputeHost
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.life.cards import CARD, OTHER, Traits
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import (
    FPGA,
    bind,
    create,
    delete_arqs,
    eventually_bound,
    handle_states,
    hasten,
)

Racked = Callable[..., RackedCompute]
Profiles = Callable[..., str]
THIRD = "0000:83:00.0"
#: What microversion 2.100 shows of a device, and 2.3 does not.
ADDED = {"address", "numa_node", "resource_classes", "traits", "providers", "units", "holders"}
ADDED |= {"status_reason", "driver", "backend", "labels", "in_use", "instances"}
ADDED |= {"health", "health_reasons", "health_since", "identity", "topology", "pools", "reading"}
EVENTS = "/events"


@pytest.fixture
def rack(racked: Racked, resource_class: str) -> RackedCompute:
    """A compute with two equal cards of two units, and one of one unit."""
    return racked(Traits(resource_class), cards={CARD: 2, OTHER: 2, THIRD: 1})


def by_address(operator: Client) -> dict[str, dict[str, Any]]:
    return {one["address"]: one for one in operator.get("/devices")["devices"]}


def units(total: int, used: int = 0, *, free: int | None = None, **reasons: int) -> dict[str, Any]:
    """Counts as answers have them."""
    out = sum(reasons.values())
    return {
        "total": total,
        "used": used,
        "free": total - used - out if free is None else free,
        "out_of_service": out,
        "reasons": reasons,
    }


def usage(operator: Client, **query: Any) -> list[dict[str, Any]]:
    counts: list[dict[str, Any]] = operator.get("/usage", **query)["usage"]
    return counts


def offered_devices(operator: Client, rack: RackedCompute) -> int:
    (driver,) = operator.get("/drivers", host=rack.compute)["drivers"]
    return int(driver["devices"]["offered"])


def test_equal_devices_differ_by_address_provider_and_holders(
    rack: RackedCompute, operator: Client, nova: Client, profile: Profiles, resource_class: str
) -> None:

    def published() -> bool:
        # The agent tells it after Placement has it.
        return all(one["providers"][0]["published"] for one in by_address(operator).values())

    eventually(published)
    devices = by_address(operator)
    assert devices.keys() == {CARD, OTHER, THIRD}
    for address in (CARD, OTHER):
        device = devices[address]
        assert device["providers"] == [
            {
                "uuid": rack.provider(address),
                "name": f"{rack.compute}_{address}",
                "resource_class": resource_class,
                "total": 2,
                "reserved": 0,
                "group_size": 1,
                "product_traits": [],
                "published": {"total": 2, "reserved": 0},
                "error": None,
            }
        ]
        assert (device["model"], device["numa_node"]) == ("card", None)
        assert (device["resource_classes"], device["traits"]) == ([resource_class], ["CUSTOM_CARD"])
        assert (device["units"], device["holders"]) == (units(2), [])
        shown = operator.get(f"/devices/{device['uuid']}")
        assert shown.pop("events")[-1]["action"] == "discovered"
        assert (shown.pop("cleaning"), shown.pop("profiles")) == ([], [])
        assert shown == device
        older = replace(operator, version="2.3").get(f"/devices/{device['uuid']}")
        assert device.keys() - older.keys() == ADDED
    arqs = create(nova, profile({f"resources:{resource_class}": "1"}))
    instance = bind(nova, arqs, rack.provider(), host=rack.compute)
    devices = by_address(operator)
    assert devices[CARD]["units"] == units(2, 1)
    assert devices[CARD]["holders"] == [
        {
            "arq_uuid": arqs[0]["uuid"],
            "instance_uuid": instance,
            "instance_name": "unknown",
            "project_id": nova.project,
        }
    ]
    assert devices[OTHER]["holders"] == []


def test_usage_is_grouped_as_requested(
    rack: RackedCompute, operator: Client, nova: Client, profile: Profiles, resource_class: str
) -> None:
    arqs = create(nova, profile({f"resources:{resource_class}": "1"}))
    bind(nova, arqs, rack.provider(), host=rack.compute)
    row = {"resource_class": resource_class, **dict.fromkeys(("type", "host", "project_id"))}
    host = {**row, "host": rack.compute}
    assert usage(operator, group_by="host") == [{**host, **units(5, 1)}]
    assert usage(operator, group_by="project_id,host") == [
        {**host, **units(4)},
        {**host, "project_id": nova.project, **units(1, 1)},
    ]
    assert usage(operator, group_by="type") == [{**row, "type": "FPGA", **units(5, 1)}]
    assert usage(operator, project_id=nova.project) == [{**row, **units(1, 1)}]
    assert usage(operator, resource_class=resource_class, host=rack.compute) == [
        {**row, **units(5, 1)}
    ]
    assert usage(operator, resource_class="CUSTOM_NONE") == []
    operator.get("/usage", status=400, group_by="colour")
    member = replace(nova, service=False, version="2.100")
    assert usage(member) == [{**row, **units(1, 1)}]
    member.get("/usage", status=403, group_by="host")


def test_members_see_devices_without_place_and_other_users(
    rack: RackedCompute, operator: Client, nova: Client, profile: Profiles, resource_class: str
) -> None:
    name = profile({f"resources:{resource_class}": "1"})
    arqs = create(nova, name)
    instance = bind(nova, arqs, rack.provider(), host=rack.compute)
    neighbour = Client(nova.app).with_service_token()
    bind(neighbour, create(neighbour, name), rack.provider(), host=rack.compute)
    assert by_address(operator)[CARD]["units"] == units(2, 2)
    member = replace(nova, service=False, version="2.100")
    (listed,) = member.get("/devices")["devices"]
    shown = member.get(f"/devices/{listed['uuid']}")
    assert [(one["name"], one["groups"]) for one in shown.pop("profiles")] == [(name, [0])]
    assert shown == listed
    hidden = {"address", "numa_node", "identity", "topology", "providers", "units"}
    hidden |= {"pools"}
    hidden.add("events")
    assert listed.keys().isdisjoint(hidden)
    assert listed["resource_classes"] == [resource_class]
    assert [one["instance_uuid"] for one in listed["holders"]] == [instance]
    for place in (rack.compute, CARD, rack.provider(), neighbour.project):
        assert place not in str(shown)


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
    query: dict[str, Any] = {"limit": "2"}
    while query:
        page = operator.get(EVENTS, **query)
        pages += [one["id"] for one in page["events"]]
        links = page.get("events_links", [])
        query = dict(parse_qsl(urlsplit(links[0]["href"]).query)) if links else {}
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


def test_events_are_for_operators_from_2_100(app: Any, operator: Client) -> None:
    for role in ("reader", "member", "manager", "service"):
        Client(app, role=role, version="2.100").get(EVENTS, status=403)
    for version in (None, "2.0", "2.3"):
        replace(operator, version=version).get(EVENTS, status=404)
    assert replace(operator, role="admin").get(EVENTS)["events"] == []
    operator.get(f"{EVENTS}/{uuid4()}", status=404)
    assert operator.get(EVENTS, device=provider_uuid("none"))["events"] == []


def test_profile_is_satisfiable_while_a_provider_has_enough_free_units(
    rack: RackedCompute, operator: Client, nova: Client, profile: Profiles, resource_class: str
) -> None:
    request = f"resources:{resource_class}"
    one, two, three = (profile({request: amount}) for amount in ("1", "2", "3"))
    bare = profile({request: "1", "trait:CUSTOM_CARD": "forbidden"})

    def words() -> list[str]:
        listed = operator.get("/device_profiles", name=f"{one},{two},{three},{bare}")
        found = {row["name"]: row["satisfiable"] for row in listed["device_profiles"]}
        return [found[name] for name in (one, two, three, bare)]

    assert words() == ["now", "now", "never", "never"]
    for card in (CARD, OTHER):
        bind(nova, create(nova, one), rack.provider(card), host=rack.compute)
    assert words() == ["now", "when free", "never", "never"]
    device = by_address(operator)[CARD]["uuid"]
    operator.post(f"/devices/{device}/disable", status=204)
    assert words() == ["now", "when free", "never", "never"]
