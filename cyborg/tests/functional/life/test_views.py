# SPDX-License-Identifier: Apache-2.0
"""What operators see of devices and their units (microversion 2.5), compared with Placement."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from cyborg.clients.placement import Placement
from cyborg.db.engine import Database
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.functional.life.cards import CARD, OTHER, Traits
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import (
    bind,
    create,
    delete_arqs,
    eventually,
    of_instance,
)

Racked = Callable[..., RackedCompute]
Profiles = Callable[..., str]
THIRD = "0000:83:00.0"


@pytest.fixture
def operator(app: Any) -> Client:
    return Client(app, role="operator", version="2.5")


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


def agrees(operator: Client, placement: PlacementService) -> bool:
    """Whether each provider has the total and the reserved units that Placement has."""
    peer = Placement(placement.adapter())
    for device in by_address(operator).values():
        for provider in device["providers"]:
            _, inventories = peer.inventories(provider["uuid"])
            inventory = inventories[provider["resource_class"]]
            shown = (provider["total"], provider["reserved"])
            if shown != (inventory["total"], inventory["reserved"]):
                return False
    return True


def agent(operator: Client, rack: RackedCompute) -> str:
    found = operator.get("/services", kind="process", host=rack.compute)["services"]
    (uuid,) = (one["uuid"] for one in found if one["binary"] == "cyborg-agent")
    return f"/services/{uuid}"


def test_equal_devices_differ_by_address_and_provider(
    rack: RackedCompute, operator: Client, resource_class: str
) -> None:
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
                "error": None,
            }
        ]
        assert (device["model"], device["numa_node"]) == ("card", None)
        assert (device["resource_classes"], device["traits"]) == ([resource_class], ["CUSTOM_CARD"])
        assert (device["units"], device["holders"]) == (units(2), [])
        shown = operator.get(f"/devices/{device['uuid']}")
        assert shown.pop("events")[-1]["action"] == "discovered"
        assert shown == device


def test_holder_of_a_unit_is_shown(
    rack: RackedCompute, operator: Client, nova: Client, profile: Profiles, resource_class: str
) -> None:
    arqs = create(nova, profile({f"resources:{resource_class}": "1"}))
    instance = bind(nova, arqs, rack.provider(), host=rack.compute)
    device = by_address(operator)[CARD]
    assert device["units"] == units(2, 1)
    assert device["holders"] == [
        {
            "arq_uuid": arqs[0]["uuid"],
            "instance_uuid": instance,
            "instance_name": "unknown",
            "project_id": nova.project,
        }
    ]
    assert by_address(operator)[OTHER]["holders"] == []


def test_all_views_count_units_like_placement(
    rack: RackedCompute,
    operator: Client,
    nova: Client,
    profile: Profiles,
    placement: PlacementService,
    database: Database,
    resource_class: str,
) -> None:
    def expect(cards: dict[str, dict[str, Any]], offered: int) -> None:
        """All displays agree on the units of cards, and on how many cards are offered."""

        def shown() -> dict[str, Any]:
            return {address: one["units"] for address, one in by_address(operator).items()}

        eventually(lambda: shown() == cards)
        assert offered_devices(operator, rack) == offered
        reasons: dict[str, int] = {}
        for one in cards.values():
            for reason, amount in one["reasons"].items():
                reasons[reason] = reasons.get(reason, 0) + amount
        total, used = (sum(one[name] for one in cards.values()) for name in ("total", "used"))
        (whole,) = usage(operator)
        assert whole == {
            "resource_class": resource_class,
            **dict.fromkeys(("type", "host", "project_id")),
            **units(total, used, **reasons),
        }
        older = replace(operator, version="2.4").get("/usage")["usage"]
        assert sum(one["offered"] for one in older) == whole["free"]
        assert sum(one["bound"] for one in older) == whole["used"]
        eventually(lambda: agrees(operator, placement))

    arqs = create(nova, profile({f"resources:{resource_class}": "1"}))
    bind(nova, arqs, rack.provider(), host=rack.compute)
    expect({CARD: units(2, 1), OTHER: units(2), THIRD: units(1)}, offered=3)
    other = by_address(operator)[OTHER]["uuid"]
    operator.post(f"/devices/{other}/disable", status=204)
    expect({CARD: units(2, 1), OTHER: units(2, maintaining=2), THIRD: units(1)}, offered=2)
    operator.patch(agent(operator, rack), {"status": "disabled"}, status=200)
    away = {CARD: units(2, 1, host_disabled=1), THIRD: units(1, host_disabled=1)}
    expect({**away, OTHER: units(2, host_disabled=2)}, offered=0)
    operator.patch(agent(operator, rack), {"status": "enabled"}, status=200)
    operator.post(f"/devices/{other}/enable", status=204)
    rack.pull(THIRD)
    expect({CARD: units(2, 1), OTHER: units(2), THIRD: units(1, lost=1)}, offered=2)
    rack.driver.behaviour.broken = RuntimeError("the bus is stuck")
    broken = {CARD: units(2, 1, driver_not_ready=1), OTHER: units(2, driver_not_ready=2)}
    expect({**broken, THIRD: units(1, lost=1)}, offered=0)


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
    for older in ({"group_by": "host"}, {"resource_class": "FPGA"}):
        replace(operator, version="2.4").get("/usage", status=400, **older)
    operator.get("/usage", status=400, group_by="colour")
    member = replace(nova, service=False, version="2.5")
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
    member = replace(nova, service=False, version="2.5")
    (listed,) = member.get("/devices")["devices"]
    shown = member.get(f"/devices/{listed['uuid']}")
    assert shown == listed
    hidden = {"hostname", "address", "numa_node", "providers", "units", "events"}
    assert listed.keys().isdisjoint(hidden)
    assert listed["resource_classes"] == [resource_class]
    assert [one["instance_uuid"] for one in listed["holders"]] == [instance]
    for place in (rack.compute, CARD, rack.provider(), neighbour.project):
        assert place not in str(shown)


def test_devices_at_2_4_are_unchanged(
    rack: RackedCompute, operator: Client, nova: Client, profile: Profiles, resource_class: str
) -> None:
    arqs = create(nova, profile({f"resources:{resource_class}": "2"}))
    instance = bind(nova, arqs, rack.provider(), host=rack.compute)
    older = replace(operator, version="2.4")
    device = by_address(operator)[CARD]
    shown = older.get(f"/devices/{device['uuid']}")
    added = {"address", "numa_node", "resource_classes", "traits", "providers", "units", "holders"}
    added |= {"health", "health_reasons", "health_since"}
    assert device.keys() - shown.keys() == added
    # Two units of one instance, which is listed once.
    assert [one["uuid"] for one in shown["instances"]] == [instance]
    assert len(device["holders"]) == 2
    delete_arqs(nova, instance)
    assert of_instance(nova, instance) == []
    operator.get(f"/devices/{uuid4()}", status=404)
