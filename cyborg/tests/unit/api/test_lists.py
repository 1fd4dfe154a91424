# SPDX-License-Identifier: Apache-2.0
"""Pages and order of every list (checklist line 113), and what requests cost in SQL."""

from typing import Any

import pytest
import sqlalchemy as sa

from cyborg.db import models
from cyborg.db.engine import Database
from cyborg.tests.unit.api import people
from cyborg.tests.unit.api.conductor import NOW
from cyborg.tests.unit.api.world import FACTS, Client, uuid_of

LISTS = [
    f"/v2/{noun}"
    for noun in ("accelerator_requests", "attributes", "deployables", "device_profiles", "devices")
]


def uuids(client: Client, path: str, **sent: Any) -> list[str]:
    answer = client.send("GET", path, **sent)
    assert answer.status == 200
    [listed] = answer.body.values()
    return [row["uuid"] for row in listed]


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("order", ["", "&sort_dir=desc", "&sort_key=created_at", "&sort_key=uuid"])
def test_pages_cover_the_whole_list_once(client: Client, path: str, order: str) -> None:
    everything = uuids(client, f"{path}?{order.removeprefix('&')}")
    walked: list[str] = []
    marker = ""
    while page := uuids(client, f"{path}?limit=1{marker}{order}", version="2.3"):
        walked += page
        marker = f"&marker={page[-1]}"
    assert walked == everything
    assert len(set(walked)) == len(walked)


INVALID = (
    *("limit=x", "limit=-1", "limit=1.5", "limit=true", "limit=99999999999999999999999", "limit="),
    *("limit=%D9%A3", "marker=nonsense", "marker=<random>", "marker=", "sort_key=nonsense"),
    *("sort_key=__class__", "sort_key=id%3Bdrop", "sort_dir=up", "page=2", "offset=1"),
)


@pytest.mark.parametrize("path", LISTS)
def test_page_parameters_are_checked(client: Client, path: str) -> None:
    for query in INVALID:
        answer = client.send("GET", f"{path}?{query}")
        assert answer.status == 400
        assert query.partition("=")[0] in answer.fault
    assert uuids(client, f"{path}?limit=2147483647") == uuids(client, path)
    assert uuids(client, f"{path}?limit=0") == []


def test_marker_of_another_project_is_refused(client: Client) -> None:
    path = "/v2/accelerator_requests?marker=<foreign>"
    assert client.send("GET", path, as_="member").status == 400
    assert client.send("GET", path, as_="admin").status == 200


def test_marker_may_have_any_spelling_of_uuid(client: Client) -> None:
    marker = FACTS["device"].upper().replace("-", "")
    assert uuids(client, f"/v2/devices?marker={marker}") == [FACTS["lost"]]


def test_lists_are_sorted_by_key_and_direction(client: Client) -> None:
    path = "/v2/accelerator_requests?sort_key=state"
    states = [arq["state"] for arq in client.send("GET", path).body["arqs"]]
    assert states == sorted(states)
    by_name = "/v2/device_profiles?sort_key=name&sort_dir=desc"
    assert uuids(client, by_name) == [FACTS["unused"], FACTS["profile"]]


@pytest.fixture(params=[0, 1000])
def crowd(db: Database, request: pytest.FixtureRequest) -> int:
    """That many unrelated ARQs, attributes and profiles."""
    count: int = request.param
    if count:
        with db.writer() as tx:
            profile = tx.scalar(sa.select(models.DeviceProfile.id).limit(1))
            deployable = tx.scalar(sa.select(models.Deployable.id).limit(1))
            arq = {
                "project_id": people.OTHER,
                "state": "Initial",
                "device_profile_id": profile,
                "device_profile_group_id": 0,
                "created_at": NOW,
            }
            attribute = {"deployable_id": deployable, "value": "v"}
            numbers = range(count)
            tx.execute(
                sa.insert(models.Arq),
                [{**arq, "uuid": uuid_of(f"crowd-{number}")} for number in numbers],
            )
            tx.execute(
                sa.insert(models.Attribute),
                [
                    {**attribute, "uuid": uuid_of(f"attribute-{number}"), "key": f"k{number}"}
                    for number in numbers
                ],
            )
    return count


COSTS = [
    ("/v2/accelerator_requests/<bound>", 2),
    ("/v2/attributes/<attribute>", 2),
    ("/v2/deployables/<deployable>", 2),
    ("/v2/device_profiles/gpu", 2),
    ("/v2/device_profiles/<profile>", 2),
    ("/v2/devices/<device>", 2),
    ("/v2/accelerator_requests", 3),
    ("/v2/accelerator_requests?instance=<instance>", 3),
    ("/v2/accelerator_requests?instance=<instance>&bind_state=resolved", 3),
    ("/v2/accelerator_requests?instance=<instance>&bind_state=resolved&marker=<arq>&limit=5", 3),
    ("/v2/attributes?deployable_id=<deployable>&key=rc&marker=<attribute>", 3),
    ("/v2/deployables?marker=<deployable>&limit=5&sort_key=name", 3),
    ("/v2/device_profiles?name=gpu,pair&marker=<profile>", 3),
    ("/v2/devices?status=enabled&type=FPGA&marker=<device>&sort_key=updated_at", 3),
]


def test_reads_cost_a_constant_number_of_statements(
    client: Client, statements: list[str], *, crowd: int
) -> None:
    for path, most in COSTS:
        statements.clear()
        assert client.send("GET", path).status == 200
        assert 1 <= len(statements) <= most, path
        assert all(statement.startswith("SELECT") for statement in statements)
    assert len(client.send("GET", "/v2/accelerator_requests").body["arqs"]) == crowd + 5
    assert client.calls == []


WRITES = [
    ("POST", "/v2/accelerator_requests", {"device_profile_name": "gpu"}),
    ("DELETE", "/v2/accelerator_requests?arqs=<arq>,<arq-2>", None),
    ("DELETE", "/v2/accelerator_requests?instance=<instance>", None),
    ("DELETE", "/v2/device_profiles/pair", None),
    ("POST", "/v2/devices/<device>/disable", None),
]


def test_change_is_one_call_without_statements(client: Client, statements: list[str]) -> None:
    for number, (method, path, body) in enumerate(WRITES):
        assert client.send(method, path, body, service="service").status < 300, path
        assert (len(client.calls), statements) == (number + 1, [])
