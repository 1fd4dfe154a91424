# SPDX-License-Identifier: Apache-2.0
"""Devices, deployables and attributes over HTTP: checklist lines 85 to 93."""

import json
from typing import Any

import pytest

from cyborg.model.device import DeviceStatus
from cyborg.tests.unit.api.world import FACTS, HANDLES, Client, is_moment

DEVICES = "/v2/devices"
ARQS = "/v2/accelerator_requests"
DEPLOYABLES = "/v2/deployables"
ATTRIBUTES = "/v2/attributes"
LATEST = "accelerator 2.3"


def hosts(client: Client, query: str = "", **sent: Any) -> list[str]:
    answer = client.send("GET", f"{DEVICES}{query}", **sent)
    assert answer.status == 200
    return [device["hostname"] for device in answer.body["devices"]]


def test_shown_object_equals_its_list_entry(client: Client) -> None:
    """The samples of the API reference have all members."""
    for noun, key in (("devices", "device"), ("deployables", "deployable"), ("attributes",) * 2):
        listed = client.send("GET", f"/v2/{noun}").body[noun]
        one = listed[0]
        assert (one["uuid"], one["updated_at"]) == (FACTS[key.removesuffix("s")], None)
        assert one["created_at"] == "2026-03-04T05:06:07+00:00"
        assert one["links"][0]["href"] == f"http://localhost/v2/{noun}/{one['uuid']}"
        for path in (f"/v2/{noun}", f"/{noun}"):
            assert client.send("GET", f"{path}/{one['uuid']}").body == one
    (deployable, _) = client.send("GET", DEPLOYABLES).body["deployables"]
    assert json.loads(deployable["attributes_list"]) == [
        *({"rc": "FPGA"}, {"trait0": "CUSTOM_FAKE_DEVICE"})
    ]
    assert isinstance(deployable["device_id"], int)
    assert (deployable["num_accelerators"], deployable["rp_uuid"]) == (HANDLES, FACTS["provider"])
    (attribute, *others) = client.send("GET", ATTRIBUTES).body["attributes"]
    assert attribute["deployable_id"] == int(client.facts["deployable-id"])
    assert (attribute["key"], attribute["value"], len(others)) == ("rc", "FPGA", 3)


def test_device_status_is_returned_from_2_3(client: Client) -> None:
    assert "status" not in client.send("GET", f"{DEVICES}/<device>", version="2.2").body
    assert client.send("GET", f"{DEVICES}/<device>", version=LATEST).body["status"] == "enabled"
    listed = client.send("GET", DEVICES, version=LATEST).body["devices"]
    assert [device["status"] for device in listed] == ["enabled", "maintaining"]


FILTERS = {
    "type=FPGA": ["host-1", "host-2"],
    "type=NVME": [],
    "vendor=0xABCD": ["host-1", "host-2"],
    "vendor=0xabcd": [],
    "hostname=host-1": ["host-1"],
    "hostname=host-3": [],
    "type=FPGA&vendor=0xABCD&hostname=host-2": ["host-2"],
    "type=GPU&vendor=0xABCD": [],
    "hostname=": ["host-1", "host-2"],
    "hostname=%F0%9F%98%80": [],
    "status=enabled": ["host-1"],
    "status=maintaining": ["host-2"],
    "filters.field=limit&filters.value=1": ["host-1"],
    "filters.field=sort_dir&filters.value=desc&filters.field=sort_key&filters.value=hostname": [
        *("host-2", "host-1")
    ],
    "filters.field=availability&filters.value=x&hostname=host-2": ["host-2"],
}
INVALID = (
    *("status=inactive", "status=", "type=a%00", "type=" + "x" * 256, "filters.field=limit"),
    *("filters.field=colour&filters.value=red", "filters.field=limit&filters.value=one"),
    "filters=%7B%7D",
)


def test_list_filters_devices(client: Client) -> None:
    for query, expected in FILTERS.items():
        assert hosts(client, f"?{query}") == expected, query
    for query in INVALID:
        assert client.send("GET", f"{DEVICES}?{query}").status == 400, query


@pytest.mark.parametrize("path", [DEVICES, DEPLOYABLES, ATTRIBUTES])
def test_missing_uuid_returns_404_and_invalid_uuid_400(client: Client, path: str) -> None:
    assert client.send("GET", f"{path}/<random>").status == 404
    assert client.send("GET", f"{path}/nonsense").status == 400
    assert client.send("GET", f"{path}/{FACTS['random'].upper()}").status == 404


def test_disable_and_enable_set_device_status(client: Client) -> None:
    for verb, status in (("disable", "maintaining"), ("enable", "enabled")):
        answer = client.send("POST", f"{DEVICES}/<device>/{verb}")
        assert (answer.status, answer.raw) == (204, b"")
        assert client.send("GET", f"{DEVICES}/<device>", version=LATEST).body["status"] == status
        assert client.calls[-1][2] == {"uuid": FACTS["device"], "status": DeviceStatus(status)}
        assert client.send("POST", f"{DEVICES}/<random>/{verb}").status == 404
        assert client.send("POST", f"{DEVICES}/nonsense/{verb}").status == 400


def test_disable_ignores_a_body(client: Client) -> None:
    assert client.send("POST", f"{DEVICES}/<device>/disable", {"any": "thing"}).status == 204


def test_list_filters_deployables_by_name(client: Client) -> None:
    for query in ("name=x", "filters.field=name&filters.value=x"):
        assert client.send("GET", f"{DEPLOYABLES}?{query}").body["deployables"] == []
    (one,) = client.send("GET", f"{DEPLOYABLES}?name=host-1_FakeDevice").body["deployables"]
    assert one["uuid"] == FACTS["deployable"]


PROGRAM = [{"path": "/program", "op": "replace", "value": [{"image_uuid": "<image>"}]}]


@pytest.mark.parametrize("suffix", ["", "/<deployable>"])
def test_program_calls_the_conductor(client: Client, suffix: str) -> None:
    # While a guest has a unit, an image is refused.
    for instance in ("<instance>", "<busy>"):
        client.send("DELETE", f"{ARQS}?instance={instance}", service="service")
    answer = client.send("PATCH", f"{DEPLOYABLES}/<deployable>/program{suffix}", PROGRAM)
    assert answer.status == 200
    assert answer.body["uuid"] == FACTS["deployable"]
    (verb, _, arguments) = client.calls[-1]
    assert verb == "program_deployable"
    assert arguments == {"uuid": FACTS["deployable"], "image_uuid": FACTS["image"]}


def test_program_of_missing_deployable_returns_404(client: Client) -> None:
    assert client.send("PATCH", f"{DEPLOYABLES}/<random>/program", PROGRAM).status == 404
    assert client.send("PATCH", f"{DEPLOYABLES}/nonsense/program", PROGRAM).status == 400
    assert client.send("PATCH", f"{DEPLOYABLES}/<deployable>", PROGRAM).status == 405


def test_list_filters_attributes_by_deployable_and_key(client: Client) -> None:
    for query, count in {
        "deployable_id=<deployable-id>": 2,
        "deployable_id=0": 4,
        "deployable_id=777777": 0,
        "deployable_id=<deployable>": 2,
        "deployable_id=<random>": 0,
        "key=rc": 2,
        "key=rc&deployable_id=<other-deployable-id>": 1,
        "key=": 0,
    }.items():
        answer = client.send("GET", f"{ATTRIBUTES}?{query}")
        assert (answer.status, len(answer.body["attributes"])) == (200, count), query
    for number in ("x", "-1", "1e3"):
        assert client.send("GET", f"{ATTRIBUTES}?deployable_id={number}").status == 400


NEW = {"deployable_id": "#deployable-id", "key": "rack", "value": "r7"}


def test_attribute_is_created_and_deleted(client: Client) -> None:
    deployable = FACTS["deployable"].upper()
    for body in (
        *(NEW, {"attribute": NEW}, {**NEW, "deployable_id": "<deployable-id>"}),
        *(
            {**NEW, "deployable_id": "<deployable>"},
            {**NEW, "unknown": "key"},
            {**NEW, "uuid": None},
        ),
        {"attribute": {**NEW, "deployable_id": deployable}},
    ):
        created = client.send("POST", ATTRIBUTES, body)
        assert created.status == 201, body
        shown = created.body
        assert shown["deployable_id"] == int(client.facts["deployable-id"])
        assert (shown["key"], shown["value"], shown["updated_at"]) == ("rack", "r7", None)
        assert is_moment(shown["created_at"])
        path = f"{ATTRIBUTES}/{shown['uuid']}"
        assert client.send("GET", path).body == shown
        assert client.send("DELETE", path).status == 204
        assert client.send("DELETE", path).status == 404


def test_attribute_with_used_uuid_returns_409(client: Client) -> None:
    body = {**NEW, "uuid": FACTS["random"].replace("-", "")}
    assert client.send("POST", ATTRIBUTES, body).body["uuid"] == FACTS["random"]
    assert client.send("POST", ATTRIBUTES, body).status == 409


def test_attribute_of_missing_deployable_is_not_stored(client: Client) -> None:
    for deployable in (777_777, "<random>"):
        answer = client.send("POST", ATTRIBUTES, {**NEW, "deployable_id": deployable})
        assert answer.status == 404
    assert len(client.send("GET", ATTRIBUTES).body["attributes"]) == 4


def test_delete_of_missing_attribute_returns_404(client: Client) -> None:
    assert client.send("DELETE", f"{ATTRIBUTES}/<random>").status == 404
    assert client.send("DELETE", f"{ATTRIBUTES}/nonsense").status == 400
    assert client.send("DELETE", f"{ATTRIBUTES}/").status == 400


def test_emoji_is_accepted_as_attribute_value(client: Client) -> None:
    created = client.send("POST", ATTRIBUTES, {**NEW, "value": "\U0001f600"})
    assert created.body["value"] == "\U0001f600"
