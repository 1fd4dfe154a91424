# SPDX-License-Identifier: Apache-2.0
"""Binding and unbinding over HTTP: checklist lines 52 to 65, as far as the API decides them."""

from typing import Any

import pytest

from cyborg.model.arq import Binding
from cyborg.tests.unit.api import people
from cyborg.tests.unit.api.world import FACTS, Client

PATH = "/v2/accelerator_requests"
BIND: list[dict[str, Any]] = [
    {"op": "add", "path": "/hostname", "value": "any.node-name"},
    {"op": "add", "path": "/device_rp_uuid", "value": "<provider>"},
    {"op": "add", "path": "/instance_uuid", "value": "<fresh>"},
]
UNBIND = [{"op": "remove", "path": op["path"]} for op in BIND]
PROJECT = {"op": "add", "path": "/project_id", "value": "<other>"}
#: The two names of the path to the owner.
PROJECT_PATHS = ("/project_id", "/instance_project_id")


def patch(client: Client, body: Any, path: str = PATH, **sent: Any) -> Any:
    return client.send("PATCH", path, body, **{"as_": "member", "service": "nova", **sent})


@pytest.mark.parametrize("ops", [BIND, [BIND[2], BIND[0], BIND[1]], BIND[::-1]])
def test_bind_ignores_order_of_operations_and_fills_arq(client: Client, ops: Any) -> None:
    answer = patch(client, {"<arq>": ops})
    assert (answer.status, answer.raw) == (202, b"")
    [arq] = client.send("GET", f"{PATH}?instance=<fresh>", as_="member").body["arqs"]
    assert arq["state"] == "Bound"
    assert arq["hostname"] == "any.node-name"
    assert arq["device_rp_uuid"] == FACTS["provider"]
    assert arq["instance_uuid"] == FACTS["fresh"]
    assert arq["project_id"] == people.OWN
    assert arq["attach_handle_type"] == "TEST_PCI"
    assert all(isinstance(value, str) for value in arq["attach_handle_info"].values())


@pytest.mark.parametrize("path", [PATH, f"{PATH}/<arq>"])
def test_patch_returns_the_arqs_of_its_body_from_2_100_on(client: Client, path: str) -> None:
    body = {"<arq-2>": BIND, "<bound>": UNBIND, "<arq>": BIND}
    answer = patch(client, body, path, version="2.100")
    assert answer.status == 202
    answered = client.send("GET", PATH, as_="member", service="nova", version="2.100")
    named = {client.fill(key) for key in body}
    assert answer.body == {"arqs": [arq for arq in answered.body["arqs"] if arq["uuid"] in named]}
    assert [arq["state"] for arq in answer.body["arqs"]].count("Bound") == 2
    older = patch(client, {"<arq>": UNBIND}, path, version="2.3")
    assert (older.status, older.raw) == (202, b"")


@pytest.mark.parametrize("ops", [BIND, UNBIND], ids=["bind", "unbind"])
def test_bind_without_service_token_is_refused(client: Client, ops: Any) -> None:
    for as_ in ("member", "admin", "service"):
        answer = patch(client, {"<arq>": ops}, as_=as_, service=None)
        assert answer.status == 403
        assert "requires a service token" in answer.fault
        # A token that is no service's is refused by keystonemiddleware already.
        assert patch(client, {"<arq>": ops}, as_=as_, service="no-service").status == 401
    assert client.calls == []


@pytest.mark.parametrize("segment", ["<arq>", "<random>", "decoration", "<arq>/"])
def test_bind_ignores_the_uuid_in_the_path(client: Client, segment: str) -> None:
    assert patch(client, {"<arq>": BIND}, f"{PATH}/{segment}").status == 202
    assert client.send("GET", f"{PATH}/<arq>").body["state"] == "Bound"


def test_bind_fails_when_no_handle_is_free(client: Client) -> None:
    assert patch(client, {"<arq>": BIND, "<arq-2>": BIND}).status == 202
    another = changed("/instance_uuid", "<random>")
    answer = patch(client, {"<foreign>": another}, as_="admin")
    assert answer.status == 409
    shown = client.send("GET", f"{PATH}/<foreign>").body
    assert (shown["state"], shown["instance_uuid"]) == ("Initial", None)


def changed(path: str, value: Any) -> list[dict[str, Any]]:
    return [{**op, "value": value} if op["path"] == path else op for op in BIND]


def mine(*ops: Any) -> dict[str, Any]:
    return {"<arq>": list(ops)}


def holding(word: str, *bodies: Any) -> list[tuple[Any, str]]:
    return [(body, word) for body in bodies]


def bound_to(path: str, *values: Any) -> list[tuple[Any, str]]:
    return holding(path, *(mine(*changed(path, value)) for value in values))


#: body, a word that the answer holds
REFUSED = [
    *holding("body", {}, [], "x", 1, [mine(*BIND)], b"null"),
    *holding("nonsense", {"nonsense": BIND}),
    *holding("UUID", {"": BIND}),
    *holding(FACTS["arq"], *({"<arq>": ops} for ops in list[Any](([], None, {}, "x")))),
    *holding("[0]", mine(None), mine("x"), mine([])),
    *holding("path", mine({}), mine({"op": "add"})),
    *holding("op", mine({"path": "/hostname", "value": "x"})),
    *holding("op", *(mine({**BIND[0], "op": op}, *BIND[1:]) for op in ("replace", None, 1))),
    *holding(
        "path", *(mine({**BIND[0], "path": at}, *BIND[1:]) for at in ("/state", "hostname", 1))
    ),
    *holding("all add or all remove", mine(*BIND[:2], UNBIND[2])),
    *holding("twice", mine(*BIND, BIND[0]), {"<arq>": BIND, FACTS["arq"].upper(): BIND}),
    *holding("at most", mine(*BIND * 100)),
    *((mine(*(one for one in BIND if one is not op)), op["path"]) for op in BIND),
    *holding("/hostname", mine({"op": "add", "path": "/hostname"}, *BIND[1:])),
    *bound_to("/hostname", None, "", 5, "x" * 256),
    *bound_to("/device_rp_uuid", "", None, "nonsense"),
    *bound_to("/instance_uuid", {"a": 1}),
    *holding("[0].value", mine(*changed("/hostname", "a\u0000b"))),
    *holding("[2].value", mine(*changed("/instance_uuid", "\ud83d"))),
    *holding(FACTS["arq"], {"<arq-2>": BIND, "<arq>": [{}]}),
]


def test_invalid_bind_body_changes_nothing(client: Client) -> None:
    for body, word in REFUSED:
        # The shape is looked at before the service token.
        for service in ("nova", None):
            answer = patch(client, body, service=service)
            assert answer.status == 400, body
            assert word in answer.fault
    assert client.calls == []


def test_bind_on_unknown_provider_returns_404(client: Client) -> None:
    answer = patch(client, {"<arq>": changed("/device_rp_uuid", "<random>")})
    assert answer.status == 404


PROJECT_OPS = [
    (None, "admin", 406),
    ("accelerator 2.0", "member", 406),
    ("accelerator 2.1", "member", 403),
    ("accelerator 2.1", "admin", 202),
    ("accelerator latest", "admin", 202),
    ("accelerator 2.1", "service", 202),
]


@pytest.mark.parametrize("path", PROJECT_PATHS)
@pytest.mark.parametrize(("version", "as_", "status"), PROJECT_OPS)
def test_project_of_arq_is_set_only_by_admin_or_service_from_2_1(
    client: Client, version: str | None, as_: str, status: int, path: str
) -> None:
    ops = [*BIND, {**PROJECT, "path": path}]
    answer = patch(client, {"<arq>": ops}, version=version, as_=as_)
    assert answer.status == status
    owner = client.send("GET", f"{PATH}/<arq>").body["project_id"]
    assert owner == (people.OTHER if status == 202 else people.OWN)


@pytest.mark.parametrize("path", PROJECT_PATHS)
@pytest.mark.parametrize(("version", "as_", "status"), PROJECT_OPS)
def test_removal_of_project_needs_the_same_rights(
    client: Client, version: str | None, as_: str, status: int, path: str
) -> None:
    ops = [*UNBIND, {"op": "remove", "path": path}]
    assert patch(client, {"<bound>": ops}, version=version, as_=as_).status == status
    assert client.send("GET", f"{PATH}/<bound>").body["project_id"] == people.OWN


def test_bind_with_invalid_project_is_refused(client: Client) -> None:
    for value in (None, "", 5, "x" * 256):
        ops = [*BIND, {**PROJECT, "value": value}]
        assert patch(client, {"<arq>": ops}, version="2.1", as_="admin").status == 400


def test_both_names_of_the_project_are_one_path(client: Client) -> None:
    ops = [BIND[0], BIND[1], *({**PROJECT, "path": path} for path in PROJECT_PATHS)]
    answer = patch(client, {"<arq>": ops}, version="2.1", as_="admin")
    assert (answer.status, "twice" in answer.fault) == (400, True)


def test_bind_of_arq_of_another_project_is_refused(client: Client) -> None:
    answer = patch(client, {"<arq>": BIND, "<foreign>": BIND})
    assert answer.status == 404
    assert client.send("GET", f"{PATH}/<arq>").body["state"] == "Initial"


@pytest.mark.parametrize("ops", [UNBIND, UNBIND[:1], [{**UNBIND[1], "value": {"odd": []}}]])
def test_unbound_arq_can_be_bound_again(client: Client, ops: Any) -> None:
    assert patch(client, {"<bound>": ops}).status == 202
    arq = client.send("GET", f"{PATH}/<bound>").body
    assert arq["state"] == "Unbound"
    assert [arq[key] for key in ("hostname", "device_rp_uuid", "instance_uuid")] == [None] * 3
    assert arq["project_id"] == people.OWN
    assert patch(client, {"<bound>": BIND}).status == 202


def test_one_bind_body_is_one_conductor_call_with_canonical_values(client: Client) -> None:
    shouting = changed("/device_rp_uuid", FACTS["provider"].upper())
    bare = FACTS["arq"].replace("-", "")
    assert patch(client, {bare: shouting, "<arq-2>": BIND, "<bound>": UNBIND}).status == 202
    [(verb, caller, arguments)] = client.calls
    assert verb == "patch_arqs"
    assert (caller.project_id, caller.all_projects, caller.service) == (people.OWN, False, True)
    assert caller.request_id.startswith("req-")
    values = ("any.node-name", FACTS["provider"], FACTS["fresh"])
    assert arguments["bindings"] == [
        Binding(FACTS["arq"], *values),
        Binding(FACTS["arq-2"], *values),
    ]
    assert arguments["unbindings"] == [FACTS["bound"]]
