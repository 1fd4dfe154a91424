# SPDX-License-Identifier: Apache-2.0
"""Accelerators that operators create over HTTP: the calls to the conductor, refusals and policy."""

from typing import Any
from uuid import uuid4

import pytest

from cyborg.model.creation import Creation
from cyborg.model.device import DeviceType
from cyborg.tests.unit.api.conductor import RecordedConductor
from cyborg.tests.unit.api.world import Client

PATH = "/v2/devices"
V24 = "2.4"
LEAST: dict[str, Any] = {
    "host": "host-1",
    "driver": "generic_driver",
    "backend": "b",
    "model": "m",
    "type": "FPGA",
    "resource_class": "CUSTOM_A",
}
PLAIN = Creation("host-1", "generic_driver", "b", "m", DeviceType.FPGA, "CUSTOM_A")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, {}),
        ({"handles": 255}, {"units": 255}),
        (
            {"handles": ["0c:00.1", "0000:0C:1f.7"]},
            {"units": None, "addresses": ("0000:0c:00.1", "0000:0c:1f.7")},
        ),
        ({"traits": ["CUSTOM_B", "CUSTOM_B"]}, {"traits": ("CUSTOM_B",)}),
        ({"labels": {"rack": "7"}}, {"labels": {"rack": "7"}}),
    ],
)
def test_create_calls_the_conductor(
    client: Client, conductor: RecordedConductor, more: Any, expected: dict[str, Any]
) -> None:
    client.send("POST", PATH, LEAST | more, version=V24)
    ((verb, _, request),) = conductor.calls
    assert (verb, request["wait"]) == ("create_device", False)
    assert vars(request["creation"]) == vars(PLAIN) | expected


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize(("query", "wait"), [("", False), ("?wait=true", True)])
def test_create_begins_an_operation(
    client: Client, conductor: RecordedConductor, query: str, *, wait: bool
) -> None:
    key = str(uuid4())
    headers = {"Idempotency-Key": key}
    answer = client.send("POST", f"{PATH}{query}", LEAST, version=V24, headers=headers)
    assert (answer.status, answer.body["uuid"]) == (202, key)
    assert conductor.calls[0][2]["wait"] is wait


@pytest.mark.parametrize(
    ("change", "field"),
    [
        *(({name: None}, name) for name in LEAST),
        *(({name: ""}, name) for name in LEAST),
        *(({name: 7}, name) for name in LEAST),
        *(({name: "x" * 256}, name) for name in LEAST),
        ({"driver": "x" * 101}, "driver"),
        ({"type": "fpga"}, "type"),
        ({"resource_class": "fpga"}, "resource_class"),
        ({"traits": "CUSTOM_A"}, "traits"),
        ({"traits": {}}, "traits"),
        ({"traits": ["CUSTOM_A"] * 101}, "traits"),
        ({"traits": ["CUSTOM_A", "custom"]}, "traits[1]"),
        ({"traits": [7]}, "traits[0]"),
        ({"handles": 0}, "handles"),
        ({"handles": -1}, "handles"),
        ({"handles": 256}, "handles"),
        ({"handles": 1.5}, "handles"),
        ({"handles": True}, "handles"),
        ({"handles": "1"}, "handles"),
        ({"handles": []}, "handles"),
        ({"handles": ["0000:0c:00.0"] * 256}, "handles"),
        ({"handles": ["nowhere"]}, "handles[0]"),
        ({"handles": ["0000:0c:20.0"]}, "handles[0]"),
        ({"handles": ["0000:0c:00.8"]}, "handles[0]"),
        ({"handles": ["10000:0c:00.0"]}, "handles[0]"),
        ({"handles": ["0c:00.0", {"bus": "0c"}]}, "handles[1]"),
        ({"handles": ["0c:00.0", "0000:0c:00.0"]}, "handles[1]"),
        ({"labels": {"rack": None}}, "labels.rack"),
        ({"labels": {"a b": "c"}}, "labels"),
        ({"labels": []}, "labels"),
        ({"uuid": "<random>"}, "uuid"),
        ({"hostname": "host-1"}, "hostname"),
        ({"model": "\ud800"}, "body"),
    ],
)
def test_invalid_body_is_refused_with_its_field(
    client: Client, conductor: RecordedConductor, change: Any, field: str
) -> None:
    answer = client.send("POST", PATH, LEAST | change, version=V24)
    assert (answer.status, conductor.calls) == (400, [])
    assert f"Invalid value for {field}:" in answer.fault


@pytest.mark.parametrize("name", sorted(LEAST))
def test_missing_field_is_named(client: Client, conductor: RecordedConductor, name: str) -> None:
    body = {key: value for key, value in LEAST.items() if key != name}
    answer = client.send("POST", PATH, body, version=V24)
    assert (answer.status, conductor.calls) == (400, [])
    assert f"Invalid value for {name}:" in answer.fault


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize(
    ("as_", "status"),
    [
        ("admin", 202),
        ("bare-admin", 202),
        ("operator", 202),
        ("manager", 403),
        ("member", 403),
        ("reader", 403),
        ("stranger", 403),
        ("nobody", 403),
        ("service", 403),
        ("system-admin", 403),
    ],
)
def test_role_decides_who_creates_accelerators(
    client: Client, conductor: RecordedConductor, as_: str, status: int
) -> None:
    assert client.send("POST", PATH, LEAST, as_=as_, version=V24).status == status
    assert len(conductor.calls) == (status == 202)


@pytest.mark.parametrize("version", [None, "2.0", "2.3"])
def test_accelerators_are_not_created_before_2_4(
    client: Client, conductor: RecordedConductor, version: str | None
) -> None:
    assert client.send("POST", PATH, LEAST, version=version).status == 404
    assert conductor.calls == []
