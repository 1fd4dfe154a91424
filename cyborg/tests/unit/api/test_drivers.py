# SPDX-License-Identifier: Apache-2.0
"""Drivers over HTTP: the calls to the conductor, refusals, and policy."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import pytest

from cyborg.tests.unit.api.conductor import RecordedConductor
from cyborg.tests.unit.api.world import Client

DRIVERS = "/v2/drivers"
ONE = "/v2/drivers/card_driver"
V24 = "2.4"
VERBS = [("POST", DRIVERS, {"driver": "d"}), ("PATCH", ONE, {"enabled": True})]
VERBS.append(("DELETE", ONE, None))


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize(
    ("method", "path", "body", "verb", "expected"),
    [
        (
            "POST",
            DRIVERS,
            {"driver": "d"},
            "install_driver",
            {"driver": "d", "hosts": None, "options": None, "wait": False},
        ),
        (
            "POST",
            f"{DRIVERS}?wait=true",
            {"driver": "d", "hosts": ["host-1"], "options": {"k": "v"}},
            "install_driver",
            {"driver": "d", "hosts": ["host-1"], "options": {"k": "v"}, "wait": True},
        ),
        (
            "PATCH",
            ONE,
            {"options": {"k": None}},
            "update_driver",
            {"driver": "card_driver", "options": {"k": None}, "enabled": None, "wait": False},
        ),
        (
            "PATCH",
            ONE,
            {"enabled": False},
            "update_driver",
            {"driver": "card_driver", "options": None, "enabled": False, "wait": False},
        ),
        (
            "PATCH",
            ONE,
            {},
            "update_driver",
            {"driver": "card_driver", "options": None, "enabled": None, "wait": False},
        ),
        (
            "DELETE",
            ONE,
            None,
            "uninstall_driver",
            {"driver": "card_driver", "drain": False, "wait": False},
        ),
        (
            "DELETE",
            f"{ONE}?drain=true&wait=true",
            None,
            "uninstall_driver",
            {"driver": "card_driver", "drain": True, "wait": True},
        ),
    ],
)
def test_driver_requests_call_the_conductor(
    client: Client,
    conductor: RecordedConductor,
    method: str,
    path: str,
    *,
    body: Any,
    verb: str,
    expected: Mapping[str, Any],
) -> None:
    key = str(uuid4())
    answer = client.send(method, path, body, version=V24, headers={"Idempotency-Key": key})
    assert (answer.status, answer.body["uuid"], answer.body["verb"]) == (202, key, verb)
    ((called, _, arguments),) = conductor.calls
    assert (called, arguments) == (verb, expected)


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("POST", DRIVERS, {}, "driver"),
        ("POST", DRIVERS, {"driver": ""}, "driver"),
        ("POST", DRIVERS, {"driver": "x" * 101}, "driver"),
        ("POST", DRIVERS, {"driver": None}, "driver"),
        ("POST", DRIVERS, {"driver": "d", "options": []}, "options"),
        ("POST", DRIVERS, {"driver": "d", "options": {"k": 1}}, "options.k"),
        ("POST", DRIVERS, {"driver": "d", "options": {"k": None}}, "options.k"),
        (
            "POST",
            DRIVERS,
            {"driver": "d", "options": {f"k{number}": "" for number in range(101)}},
            "options",
        ),
        ("POST", DRIVERS, {"driver": "d", "enabled": True}, "enabled"),
        ("PATCH", ONE, {"enabled": "yes"}, "enabled"),
        ("PATCH", ONE, {"option": {}}, "option"),
        ("PATCH", f"{ONE}?drain=true", {"enabled": True}, "drain"),
        ("DELETE", f"{ONE}?drain=1", None, "drain"),
        ("DELETE", f"/v2/drivers/{'x' * 101}", None, "uuid"),
    ],
)
def test_invalid_driver_requests_are_refused(
    client: Client, conductor: RecordedConductor, method: str, path: str, *, body: Any, field: str
) -> None:
    answer = client.send(method, path, body, version=V24)
    assert (answer.status, conductor.calls) == (400, [])
    assert f"Invalid value for {field}:" in answer.fault


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
        ("service", 403),
    ],
)
def test_role_decides_who_manages_drivers(
    client: Client, conductor: RecordedConductor, as_: str, status: int
) -> None:
    for method, path, body in VERBS:
        assert client.send(method, path, body, as_=as_, version=V24).status == status
    assert len(conductor.calls) == (3 if status == 202 else 0)


def test_driver_requests_are_not_served_before_2_4(
    client: Client, conductor: RecordedConductor
) -> None:
    for method, path, body in VERBS:
        assert client.send(method, path, body, version="2.3").status == 404
    assert conductor.calls == []
