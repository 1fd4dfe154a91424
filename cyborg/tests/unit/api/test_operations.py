# SPDX-License-Identifier: Apache-2.0
"""Long verbs over HTTP: 202 with the location of the operation, and policy."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import pytest

from cyborg.api.rendering import instant
from cyborg.db import operations
from cyborg.db.engine import Database
from cyborg.model.caller import Caller
from cyborg.model.operation import HostResult, ResultState
from cyborg.tests.unit.api import people
from cyborg.tests.unit.api.conductor import RecordedConductor
from cyborg.tests.unit.api.world import Client

DISCOVER = "/v2/services/discover"
V24 = "2.4"


@pytest.fixture
def ours(db: Database) -> str:
    """An operation of the members' own project, half done."""
    uuid = str(uuid4())
    caller = Caller(people.OWN, "somebody", "req-1")
    with db.writer() as tx:
        operations.begin(tx, caller, uuid=uuid, verb="attach", hosts=["a", "b"])
        done = HostResult("a", ResultState.SUCCEEDED, {"what": ["ever"]})
        operations.end(tx, uuid, done)
        waits = HostResult("b", ResultState.WAITING, error="its agent is down")
        operations.update_result(tx, uuid, waits)
    return uuid


@pytest.mark.usefixtures("agent")
def test_request_returns_operation_that_can_be_polled(client: Client) -> None:
    answer = client.send("POST", DISCOVER, {}, as_="operator", version=V24)
    assert answer.status == 202
    uuid = answer.body["uuid"]
    assert answer.headers["Location"].endswith(f"/v2/operations/{uuid}")
    assert answer.body["links"] == [{"href": answer.headers["Location"], "rel": "self"}]
    shown = client.send("GET", f"/v2/operations/{uuid}", as_="operator", version=V24)
    assert shown.body == answer.body
    assert (shown.body["verb"], shown.body["state"]) == ("discover", "running")
    assert shown.body["results"] == [
        {"host": "host-1", "state": "running", "result": None, "error": None}
    ]


@pytest.mark.parametrize(
    ("query", "body", "expected"),
    [
        ("", {}, {"hosts": None, "driver": None, "wait": False, "setup": None}),
        (
            "?wait=true",
            {"hosts": ["a", "b", "a"], "driver": "d"},
            {"hosts": ["a", "b"], "driver": "d", "wait": True, "setup": None},
        ),
    ],
)
def test_discovery_calls_the_conductor(
    client: Client, conductor: RecordedConductor, query: str, body: Any, expected: Mapping[str, Any]
) -> None:
    client.send("POST", DISCOVER + query, body, version=V24)
    ((verb, _, arguments),) = conductor.calls
    assert (verb, arguments) == ("discover_services", expected)


@pytest.mark.parametrize(
    ("query", "body", "field"),
    [
        ("?wait=maybe", {}, "wait"),
        ("?patience=1", {}, "patience"),
        ("", {"hosts": []}, "hosts"),
        ("", {"hosts": "a"}, "hosts"),
        ("", {"hosts": [7]}, "hosts[0]"),
        ("", {"hosts": [""]}, "hosts[0]"),
        ("", {"driver": 1}, "driver"),
        ("", {"drivers": "d"}, "drivers"),
        ("", [], "body"),
    ],
)
def test_invalid_discovery_requests_are_refused(
    client: Client, conductor: RecordedConductor, query: str, body: Any, field: str
) -> None:
    answer = client.send("POST", DISCOVER + query, body, version=V24)
    assert (answer.status, conductor.calls) == (400, [])
    assert f"Invalid value for {field}:" in answer.fault


@pytest.mark.usefixtures("agent")
def test_client_chooses_the_operation_uuid(client: Client, conductor: RecordedConductor) -> None:
    key = str(uuid4())
    answer = client.send(
        "POST", DISCOVER, {}, version=V24, headers={"Idempotency-Key": key.upper()}
    )
    assert answer.body["uuid"] == key
    for odd in ("", "7", f"{key} {key}"):
        answer = client.send("POST", DISCOVER, {}, version=V24, headers={"Idempotency-Key": odd})
        assert (answer.status, "Idempotency-Key" in answer.fault) == (400, True)
    assert len(conductor.calls) == 1


def test_operation_shows_all_fields(client: Client, db: Database, ours: str) -> None:
    shown = client.send("GET", f"/v2/operations/{ours}", as_="member", version=V24).body
    with db.reader() as tx:
        stored = operations.show(tx, ours)
    assert stored is not None
    assert shown["results"] == [
        {"host": "a", "state": "succeeded", "result": {"what": ["ever"]}, "error": None},
        {"host": "b", "state": "waiting", "result": None, "error": "its agent is down"},
    ]
    assert shown["steps"] == [{"name": "begun", "at": instant(stored.created_ms)}]
    assert shown["created_at"] == instant(stored.created_ms)
    assert (shown["finished_at"], shown["error"]) == (None, None)
    assert (shown["project_id"], shown["user_id"]) == (people.OWN, "somebody")
    assert shown["request_id"] == "req-1"


@pytest.mark.parametrize(
    ("as_", "status", "listed"),
    [
        ("admin", 200, 1),
        ("elsewhere-admin", 200, 1),
        ("operator", 200, 1),
        ("manager", 200, 1),
        ("member", 200, 1),
        ("reader", 200, 1),
        ("stranger", 404, 0),
        ("nobody", 403, None),
    ],
)
def test_owner_and_operators_see_an_operation(
    client: Client, ours: str, as_: str, status: int, listed: int | None
) -> None:
    assert client.send("GET", f"/v2/operations/{ours}", as_=as_, version=V24).status == status
    answer = client.send("GET", "/v2/operations", as_=as_, version=V24)
    assert (None if answer.status == 403 else len(answer.body["operations"])) == listed


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize(
    ("as_", "status"),
    [
        ("admin", 202),
        ("operator", 202),
        ("manager", 403),
        ("member", 403),
        ("reader", 403),
        ("stranger", 403),
        ("nobody", 403),
    ],
)
def test_role_decides_who_starts_discovery(client: Client, as_: str, status: int) -> None:
    assert client.send("POST", DISCOVER, {}, as_=as_, version=V24).status == status


@pytest.mark.parametrize("version", [None, "2.0", "2.3"])
def test_operations_are_not_served_before_2_4(
    client: Client, conductor: RecordedConductor, ours: str, version: str | None
) -> None:
    for method, path in (
        ("GET", "/v2/operations"),
        ("GET", f"/v2/operations/{ours}"),
        ("POST", DISCOVER),
    ):
        assert client.send(method, path, version=version).status == 404
    assert conductor.calls == []


def test_operations_are_listed_in_pages_and_filtered(
    client: Client, db: Database, ours: str
) -> None:
    other = str(uuid4())
    with db.writer() as tx:
        caller = Caller(people.OWN, "somebody", "req-2")
        operations.begin(tx, caller, uuid=other, verb="discover", hosts=["a"])
        operations.end(tx, other, HostResult("a", ResultState.FAILED, error="no"))

    def listed(query: str) -> list[str]:
        answer = client.send("GET", f"/v2/operations?{query}", version=V24)
        return [operation["uuid"] for operation in answer.body["operations"]]

    assert listed("") == [ours, other]
    assert listed("limit=1") == [ours]
    assert listed(f"limit=5&marker={ours}") == [other]
    assert listed("state=failed") == [other]
    assert listed("verb=attach") == [ours]
    assert listed("sort_key=verb&sort_dir=desc") == [other, ours]
    failed = client.send("GET", f"/v2/operations/{other}", version=V24).body
    assert (failed["state"], failed["error"]) == ("failed", "1 of 1 host(s) failed")
    assert failed["finished_at"] is not None


def test_a_list_costs_two_statements(
    client: Client, db: Database, statements: list[str], ours: str
) -> None:
    with db.writer() as tx:
        caller = Caller(people.OWN, "somebody", "req-2")
        for _ in range(20):
            operations.begin(tx, caller, uuid=str(uuid4()), verb="v", hosts=["a", "b"])
    answer = client.send("GET", "/v2/operations", version=V24)
    assert len(answer.body["operations"]) == 21
    assert len(statements) == 2
