# SPDX-License-Identifier: Apache-2.0
"""How much is left, as operators ask for it: through HTTP, with the real Placement."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.functional.life.cards import CARD, OTHER, Traits
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import bind, create, eventually_published

Racked = Callable[..., RackedCompute]
Profiles = Callable[..., str]


@pytest.fixture
def racks(
    racked: Racked, operator: Client, resource_class: str
) -> tuple[RackedCompute, RackedCompute]:
    """A compute with two cards of two units, and one with a card of four units."""
    first = racked(Traits(resource_class), cards={CARD: 2, OTHER: 2})
    second = racked(Traits(resource_class), cards={CARD: 4})
    eventually_published(operator)
    return first, second


@pytest.fixture
def aggregates(nova_api: SimulatedNova) -> Iterator[SimulatedNova]:
    """Nova with the host aggregates that a test gives it."""
    yield nova_api
    nova_api.aggregates = []


def rows_of(client: Client, name: str, **query: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.get("/capacity", profile=name, **query)["capacity"]
    return rows


def test_instances_are_counted_until_none_fits(
    racks: tuple[RackedCompute, RackedCompute],
    operator: Client,
    nova: Client,
    profile: Profiles,
    resource_class: str,
) -> None:
    first, second = racks
    group = {f"resources:{resource_class}": "2"}
    name = profile(group, group)
    (row,) = rows_of(operator, name)
    assert (row["further"], row["satisfiable"], row["limits"]) == (2, "now", {"units": 2})
    assert (row["total"], row["used"], row["free"], row["reserved"]) == (8, 0, 8, {})
    assert row["largest"] == {
        "host": max(first.compute, second.compute),
        "instances": 1,
        "units": 4,
        "provider_units": 2 if first.compute > second.compute else 4,
    }
    assert row["headroom"]["further"] == 1
    arqs = create(nova, name)
    bind(nova, arqs[:2], first.provider(CARD), host=first.compute)
    bind(nova, arqs[2:], first.provider(OTHER), host=first.compute)
    (row,) = rows_of(operator, name)
    assert (row["further"], row["used"], row["free"]) == (1, 4, 4)
    assert row["headroom"] == {"host": first.compute, "in_use": 1, "further": 0}
    assert [(host["host"], host["further"], host["limit"]) for host in row["hosts"]] == [
        (second.compute, 1, "units"),
        (first.compute, 0, "units"),
    ]


def test_shape_and_health_limit_hosts(
    racks: tuple[RackedCompute, RackedCompute],
    operator: Client,
    profile: Profiles,
    resource_class: str,
) -> None:
    _, second = racks
    name = profile({f"resources:{resource_class}": "4"})
    (row,) = rows_of(operator, name)
    # The units of the first host are those of two cards, and none of them has four.
    assert (row["further"], row["total"]) == (1, 4)
    assert [host["host"] for host in row["hosts"]] == [second.compute]
    pair = profile({f"resources:{resource_class}": "2"}, {f"resources:{resource_class}": "4"})
    (row,) = rows_of(operator, pair)
    assert (row["further"], row["satisfiable"], row["limits"]) == (0, "never", {"shape": 2})
    (device,) = operator.get("/devices", hostname=second.compute)["devices"]
    operator.post(f"/devices/{device['uuid']}/disable", status=204)
    eventually_published(operator)
    (row,) = rows_of(operator, name)
    assert (row["further"], row["satisfiable"], row["limits"]) == (0, "when free", {"health": 1})
    assert (row["free"], row["reserved"]) == (0, {"maintaining": 4})
    assert row["largest"]["units"] == 0


def test_capacity_is_divided_and_paged(
    racks: tuple[RackedCompute, RackedCompute],
    aggregates: SimulatedNova,
    operator: Client,
    profile: Profiles,
    resource_class: str,
) -> None:
    hosts = sorted(rack.compute for rack in racks)
    name, other = (profile({f"resources:{resource_class}": str(size)}) for size in (1, 2))
    names = f"{name},{other}"
    by_host = rows_of(operator, name, by="host")
    assert [(row["host"], row["further"], len(row["hosts"])) for row in by_host] == [
        (host, 4, 1) for host in hosts
    ]
    (row,) = rows_of(operator, name, host=hosts[0])
    assert (row["further"], row["host"]) == (4, None)
    assert rows_of(operator, name, host="nowhere", by="host") == []
    assert [row["further"] for row in rows_of(operator, name, host="nowhere")] == [0]
    assert [(row["type"], row["further"]) for row in rows_of(operator, name, by="type")] == [
        ("FPGA", 8)
    ]
    assert [(row["host"], row["numa_node"]) for row in rows_of(operator, name, by="numa")] == [
        (host, None) for host in hosts
    ]
    aggregates.aggregates = [
        {"name": "all", "availability_zone": None, "hosts": hosts},
        {"name": "west", "availability_zone": "west", "hosts": hosts[:1]},
    ]
    by_zone = rows_of(operator, other, by="az")
    assert [(row["zone"], row["further"], row["notes"]) for row in by_zone] == [
        (None, 2, []),
        ("west", 2, []),
    ]
    aggregates.aggregates = None
    (row,) = rows_of(operator, name, by="az")
    assert (row["zone"], row["further"]) == (None, 8)
    assert "GET /os-aggregates was answered 403" in row["notes"][0]
    divisions: list[dict[str, Any]] = [{}, {"by": "host"}]
    for by in divisions:
        whole = operator.get("/capacity", profile=names, **by)["capacity"]
        assert len(whole) == 2 * (len(by) + 1)
        parts: list[dict[str, Any]] = []
        query: dict[str, Any] = {"profile": names, "limit": 1, **by}
        while query:
            page = operator.get("/capacity", **query)
            parts += page["capacity"]
            assert len(page["capacity"]) == 1
            query = {**query, "marker": parts[-1]["id"]} if "capacity_links" in page else {}
        assert parts == whole


def test_wrong_queries_are_refused_by_field(
    operator: Client, nova: Client, profile: Profiles, resource_class: str
) -> None:
    name = profile({f"resources:{resource_class}": "1"})
    (row,) = rows_of(operator, name)
    assert (row["satisfiable"], row["largest"], row["headroom"]) == ("never", None, None)
    for query in (
        {"by": "rack"},
        {"profile": str(uuid4())},
        {"marker": "x"},
        {"marker": f"{row['id']}:x"},
        {"marker": row["id"], "by": "host"},
        {"limit": "-1"},
        {"sort_key": "x"},
    ):
        answer = operator.get("/capacity", status=400, **query)
        assert next(iter(query)) in answer["error_message"]
    replace(operator, version="2.3").get("/capacity", status=404)
    member = replace(nova, service=False, version="2.100")
    (mine,) = rows_of(member, name)
    assert mine.keys() == {"id", "profile", "profile_uuid", "satisfiable"}
    for query in ({"by": "type"}, {"host": "h"}):
        member.get("/capacity", status=403, **query)
