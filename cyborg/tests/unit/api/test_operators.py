# SPDX-License-Identifier: Apache-2.0
"""The operators' resources: who may ask for them, from which microversion on."""

from typing import Any

import pytest

from cyborg.tests.unit.api.conductor import RecordedConductor
from cyborg.tests.unit.api.world import Client

LISTS = ["/v2/services", "/v2/backends", "/v2/drivers", "/v2/hardware"]
READ = [("GET", path, None) for path in LISTS]
READ += [("GET", f"{path}/<random>", None) for path in LISTS]
USAGE = [("GET", "/v2/usage", None)]
EVENTS = [("GET", "/v2/events", None)]
EVERYTHING = READ + USAGE + EVENTS
ALL = {
    "admin",
    "bare-admin",
    "operator",
    "manager",
    "member",
    "reader",
    "stranger",
    "service",
    "nobody",
}
#: requests, and who may send them
WHO: list[tuple[list[Any], set[str]]] = [
    (READ, {"admin", "bare-admin", "operator", "manager"}),
    (EVENTS, {"admin", "bare-admin", "operator"}),
    (USAGE, {"admin", "bare-admin", "operator", "manager", "member", "reader", "stranger"}),
]


@pytest.mark.parametrize("as_", sorted(ALL))
@pytest.mark.parametrize(("requests", "who"), WHO)
def test_role_decides_about_operator_resources(
    client: Client, requests: list[Any], who: set[str], as_: str
) -> None:
    for method, path, body in requests:
        answer = client.send(method, path, body, as_=as_, version="accelerator 2.5")
        assert (answer.status != 403) == (as_ in who), (method, path)


@pytest.mark.parametrize("as_", ["system-admin", "domain-admin"])
def test_token_without_project_scope_is_refused(
    client: Client, conductor: RecordedConductor, as_: str
) -> None:
    for method, path, body in EVERYTHING:
        answer = client.send(method, path, body, as_=as_, version="accelerator 2.5")
        assert (answer.status, bool(answer.fault)) == (403, True)
    assert conductor.calls == []


@pytest.mark.parametrize("version", [None, "accelerator 2.0", "accelerator 2.3"])
def test_operator_resources_are_not_served_before_2_4(client: Client, version: str | None) -> None:
    for method, path, body in EVERYTHING:
        answer = client.send(method, path, body, version=version)
        assert answer.status == 404
        assert ("2.5" if path == "/v2/events" else "2.4") in answer.fault


def test_members_see_usage_of_their_project_only(client: Client) -> None:
    def usage(as_: str) -> list[dict[str, Any]]:
        answer = client.send("GET", "/v2/usage", as_=as_, version="accelerator 2.4")
        rows: list[dict[str, Any]] = answer.body["usage"]
        return rows

    whole = {"type": "FPGA", "offered": 0, "bound": 0, "reserved": 0, "lost": 0}
    mine = {**whole, "project_id": client.facts["own"], "bound": 2}
    for as_ in ("manager", "member", "reader"):
        assert usage(as_) == [{**mine, "host": None}]
    assert usage("stranger") == []
    for as_ in ("operator", "admin"):
        assert usage(as_) == [
            {**whole, "host": "host-1", "project_id": None, "offered": 2},
            {**mine, "host": "host-1"},
            {**whole, "host": "host-2", "project_id": None, "lost": 4},
        ]
