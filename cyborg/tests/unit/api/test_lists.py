# SPDX-License-Identifier: Apache-2.0
"""Pages and order of every list (checklist line 113), and what requests cost in SQL."""

from collections.abc import Callable
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


#: The size of a page, and the longest list below 2.100, in the tests that follow.
BOUNDS = "[api]\nmax_limit = 2\nmax_unpaged = 3\n"
VERSION = "2.100"


@pytest.fixture
def bounded(make_client: Callable[..., Client]) -> Client:
    return make_client(BOUNDS)


def walked(client: Client, path: str, **sent: Any) -> list[list[str]]:
    """Return the uuids of each page, from the first one along the links."""
    pages: list[list[str]] = []
    while path:
        answer = client.send("GET", path, version=VERSION, **sent)
        assert answer.status == 200
        (name, rows), *rest = answer.body.items()
        pages.append([row["uuid"] for row in rows])
        links = dict(rest).get(f"{name}_links", [])
        assert [link["rel"] for link in links] == ["next"] * len(links)
        path = links[0]["href"].removeprefix("http://localhost") if links else ""
    return pages


@pytest.mark.parametrize("query", ["", "&sort_key=state&sort_dir=desc", "&project_id=<own>"])
@pytest.mark.parametrize(
    ("limit", "size"), [("", 2), ("&limit=1", 1), ("&limit=2", 2), ("&limit=5000", 2)]
)
def test_links_lead_through_the_whole_list(
    bounded: Client, client: Client, query: str, limit: str, size: int
) -> None:
    path = f"/v2/accelerator_requests?{query}{limit}"
    everything = uuids(client, f"/v2/accelerator_requests?{query}")
    pages = walked(bounded, path)
    assert [uuid for page in pages for uuid in page] == everything
    assert {len(page) for page in pages[:-1]} == {size}
    assert 1 <= len(pages[-1]) <= size


def test_page_that_holds_the_rest_of_the_list_has_no_link(bounded: Client) -> None:
    for path in ("/v2/devices", "/v2/devices?limit=0", "/v2/accelerator_requests?state=Bound"):
        answer = bounded.send("GET", path, version=VERSION)
        assert len(answer.body) == 1


def test_next_link_is_below_the_public_endpoint(make_client: Callable[..., Client]) -> None:
    client = make_client(f"{BOUNDS}public_endpoint = https://cloud.test/accelerator\n")
    body = client.send("GET", "/v2/accelerator_requests?limit=1", version=VERSION).body
    assert body["arqs_links"] == [
        {
            "rel": "next",
            "href": "https://cloud.test/accelerator/v2/accelerator_requests?limit=1&marker="
            + body["arqs"][0]["uuid"],
        }
    ]


@pytest.mark.parametrize("version", ["2.0", "2.3"])
def test_long_list_is_refused_and_never_cut_without_links(bounded: Client, version: str) -> None:
    path = "/v2/accelerator_requests"
    for query in ("", "?limit=4", "?limit=2147483647"):
        answer = bounded.send("GET", path + query, version=version)
        assert answer.status == 400
        assert "limit" in answer.fault
        assert "more than 3 objects" in answer.fault
        assert "2.100" in answer.fault
    assert len(uuids(bounded, f"{path}?limit=3", version=version)) == 3
    for query in ("instance=<instance>", "project_id=<other>", "limit=4&state=BindStarted"):
        answer = bounded.send("GET", f"{path}?{query}", version=version)
        assert len(answer.body["arqs"]) == 1
        assert list(answer.body) == ["arqs"]


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
