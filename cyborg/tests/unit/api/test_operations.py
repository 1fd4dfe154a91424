# SPDX-License-Identifier: Apache-2.0
"""Long verbs over HTTP: what the conductor is asked, and 202 with the location of the operation."""

from typing import Any
from uuid import uuid4

import pytest

from cyborg.api.answers import instant
from cyborg.db import operations
from cyborg.db.engine import Database
from cyborg.model.caller import Caller
from cyborg.model.creation import Creation
from cyborg.model.device import DeviceType
from cyborg.model.operation import HostResult, ResultState
from cyborg.model.scope import EVERYWHERE
from cyborg.tests.unit.api import people
from cyborg.tests.unit.api.world import NEW_DEVICE, Client, uuid_of

DISCOVER = "/v2/services/discover"
NEWEST = "2.100"


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
    answer = client.send("POST", DISCOVER, {}, as_="operator", version=NEWEST)
    assert answer.status == 202
    uuid = answer.body["uuid"]
    assert answer.headers["Location"].endswith(f"/v2/operations/{uuid}")
    assert answer.body["links"] == [{"href": answer.headers["Location"], "rel": "self"}]
    shown = client.send("GET", f"/v2/operations/{uuid}", as_="operator", version=NEWEST)
    assert shown.body == answer.body
    assert (shown.body["verb"], shown.body["state"]) == ("discover", "running")
    assert shown.body["results"] == [
        {"host": "host-1", "state": "running", "result": None, "error": None}
    ]


ONE = "/v2/drivers/card_driver"
PLACE = "/v2/instances/<instance>/accelerators"
INSTANCE = uuid_of("instance")
PLAIN = {"hosts": None, "driver": None, "wait": False, "setup": None}
INSTALL = {"driver": "d", "hosts": None, "options": None, "wait": False}
UPDATE = {"driver": "card_driver", "options": None, "enabled": None, "wait": False}
UNINSTALL = {"driver": "card_driver", "drain": False, "wait": False, "force": None}
ATTACH = {"instance_uuid": INSTANCE, "profile_name": None}
DETACH = {"instance_uuid": INSTANCE, "arq_uuid": None}
CREATION = Creation("host-1", "generic_driver", "b", "m", DeviceType.FPGA, "CUSTOM_A")
CREATE = {"creation": CREATION, "wait": False}


def created(**change: Any) -> dict[str, Any]:
    return {"creation": Creation(**{**vars(CREATION), **change}), "wait": False}


#: Request and body → verb and arguments.
CALLS: list[tuple[str, Any, str, dict[str, Any]]] = [
    (f"POST {DISCOVER}", {}, "discover_services", PLAIN),
    (
        f"POST {DISCOVER}?wait=true",
        {"hosts": ["host-1", "host-1"], "driver": "card_driver"},
        "discover_services",
        PLAIN | {"hosts": ["host-1"], "driver": "card_driver", "wait": True},
    ),
    ("POST /v2/drivers", {"driver": "d"}, "install_driver", INSTALL),
    (
        "POST /v2/drivers?wait=true",
        {"driver": "d", "hosts": ["host-1"], "options": {"k": "v"}},
        "install_driver",
        {"driver": "d", "hosts": ["host-1"], "options": {"k": "v"}, "wait": True},
    ),
    (f"PATCH {ONE}", {"options": {"k": None}}, "update_driver", UPDATE | {"options": {"k": None}}),
    (f"PATCH {ONE}", {"enabled": False}, "update_driver", UPDATE | {"enabled": False}),
    (f"PATCH {ONE}?wait=true", {}, "update_driver", UPDATE | {"wait": True}),
    (f"DELETE {ONE}", None, "uninstall_driver", UNINSTALL),
    (
        f"DELETE {ONE}?drain=true&wait=true",
        None,
        "uninstall_driver",
        UNINSTALL | {"drain": True, "wait": True},
    ),
    (f"POST {PLACE}", {}, "attach", ATTACH),
    (f"POST {PLACE}", {"device_profile": "gpu"}, "attach", ATTACH | {"profile_name": "gpu"}),
    (f"DELETE {PLACE}", None, "detach", DETACH),
    (f"DELETE {PLACE}/<bound>", None, "detach", DETACH | {"arq_uuid": uuid_of("bound")}),
    ("POST /v2/devices", NEW_DEVICE, "create_device", CREATE),
    ("POST /v2/devices?wait=true", NEW_DEVICE, "create_device", CREATE | {"wait": True}),
    *(
        ("POST /v2/devices", {**NEW_DEVICE, **more}, "create_device", created(**expected))
        for more, expected in (
            ({"handles": 255}, {"units": 255}),
            (
                {"handles": ["0c:00.1", "0000:0C:1f.7"]},
                {"units": None, "addresses": ("0000:0c:00.1", "0000:0c:1f.7")},
            ),
            ({"traits": ["CUSTOM_B", "CUSTOM_B"]}, {"traits": ("CUSTOM_B",)}),
            ({"labels": {"rack": "7"}}, {"labels": {"rack": "7"}}),
        )
    ),
]


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize(("request_", "body", "verb", "arguments"), CALLS)
def test_long_verb_calls_the_conductor(
    client: Client, request_: str, body: Any, *, verb: str, arguments: Any
) -> None:
    key = str(uuid4())
    headers = {"Idempotency-Key": key}
    answer = client.ask(request_, body, as_="operator", version=NEWEST, headers=headers)
    ((called, caller, sent),) = client.calls
    assert (called, sent) == (verb, arguments)
    assert (caller.project_id, caller.all_projects) == (people.OTHER, True)
    if "instances" in request_:
        assert (answer.status, answer.fault[:21]) == (503, "Nova is not available")
    else:
        begun = (answer.status, answer.body["uuid"], answer.body["verb"])
        assert begun == (202, key, verb.removesuffix("_services"))


@pytest.mark.usefixtures("agent")
def test_client_chooses_the_operation_uuid(client: Client) -> None:
    key = str(uuid4())
    answer = client.send(
        "POST", DISCOVER, {}, version=NEWEST, headers={"Idempotency-Key": key.upper()}
    )
    assert answer.body["uuid"] == key
    for odd in ("", "7", f"{key} {key}"):
        answer = client.send("POST", DISCOVER, {}, version=NEWEST, headers={"Idempotency-Key": odd})
        assert (answer.status, "Idempotency-Key" in answer.fault) == (400, True)
    assert len(client.calls) == 1


def test_operation_shows_all_fields(client: Client, db: Database, ours: str) -> None:
    shown = client.send("GET", f"/v2/operations/{ours}", as_="operator", version=NEWEST).body
    with db.reader() as tx:
        stored = operations.show(tx, ours, EVERYWHERE)
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
    ("who", "status", "listed"),
    [
        ("admin elsewhere-admin operator manager member reader", 200, 1),
        ("stranger", 404, 0),
        ("nobody", 403, None),
    ],
)
def test_owner_and_operators_see_an_operation(
    client: Client, ours: str, who: str, status: int, listed: int | None
) -> None:
    for as_ in who.split():
        assert (
            client.send("GET", f"/v2/operations/{ours}", as_=as_, version=NEWEST).status == status
        )
        answer = client.send("GET", "/v2/operations", as_=as_, version=NEWEST)
        assert (None if answer.status == 403 else len(answer.body["operations"])) == listed


def test_operations_are_listed_in_pages_and_filtered(
    client: Client, db: Database, ours: str
) -> None:
    other = str(uuid4())
    with db.writer() as tx:
        caller = Caller(people.OWN, "somebody", "req-2")
        operations.begin(tx, caller, uuid=other, verb="discover", hosts=["a"])
        operations.end(tx, other, HostResult("a", ResultState.FAILED, error="no"))

    def listed(query: str) -> list[str]:
        answer = client.send("GET", f"/v2/operations?{query}", version=NEWEST)
        return [operation["uuid"] for operation in answer.body["operations"]]

    assert listed("") == [ours, other]
    assert listed("limit=1") == [ours]
    assert listed(f"limit=5&marker={ours}") == [other]
    assert listed("state=failed") == [other]
    assert listed("verb=attach") == [ours]
    assert listed("sort_key=verb&sort_dir=desc") == [other, ours]
    failed = client.send("GET", f"/v2/operations/{other}", version=NEWEST).body
    assert (failed["state"], failed["error"]) == ("failed", "1 of 1 host(s) failed")
    assert failed["finished_at"] is not None


def test_a_list_costs_two_statements(
    client: Client, db: Database, statements: list[str], ours: str
) -> None:
    with db.writer() as tx:
        caller = Caller(people.OWN, "somebody", "req-2")
        for _ in range(20):
            operations.begin(tx, caller, uuid=str(uuid4()), verb="v", hosts=["a", "b"])
    answer = client.send("GET", "/v2/operations", version=NEWEST)
    assert len(answer.body["operations"]) == 21
    assert len(statements) == 2
