# SPDX-License-Identifier: Apache-2.0
"""Bodies that are refused: the answer names the place of the fault, and nothing is changed.

``test_types`` has the values that each type refuses. Here a row shows that a field has its type and
bounds, or that the handler has a rule of its own; numbers are lines of the checklist.
"""

from typing import Any

import pytest

from cyborg.tests.unit.api.world import NEW_DEVICE, Client

Rows = list[tuple[Any, str]]
FPGA = {"resources:FPGA": "1"}
LARGE = [{**FPGA, "accel:x": "y" * 16_000}] * 5
ATTRIBUTE = {"deployable_id": "#deployable-id", "key": "rack", "value": "r7"}
PROGRAM = {"path": "/program", "op": "replace", "value": [{"image_uuid": "<image>"}]}
#: Bodies that are no list of one object, and members of a profile (lines 19 to 35).
PROFILES: Rows = [
    *((body, "body") for body in ({"name": "new"}, [], [{"name": "new"}] * 2, b"null", "x", 1)),
    *(([item], "[0]") for item in (None, "x", [{}])),
]
PROFILE: Rows = [
    *(({"name": name}, "name") for name in ("white space", "new\n", "näme", "", "x" * 256)),
    *(({"name": name}, "name") for name in (7, None, ["gpu"])),
    *(({"name": name}, "body") for name in ("a\u0000", "\ud800")),
    *(({"groups": groups}, "groups") for groups in ([], [{}], None, "x", {"a": 1}, LARGE)),
    ({"groups": [FPGA] * 101}, "groups"),
    ({"groups": [1]}, "groups[0]"),
    ({"groups": [{"trait:CUSTOM_A": "required"}]}, "groups"),
    ({"uuid": "nonsense"}, "[0].uuid"),
    ({"uuid": 5}, "[0].uuid"),
    ({"description": 5}, "[0].description"),
    ({"description": "x" * 16_001}, "[0].description"),
]
#: A group with this key and value, and what is named besides the group.
GROUP: list[tuple[str, Any, str]] = [
    *((key, "1", f".{key}") for key in ("memory:FPGA", "resources", "", "resources:NOSUCH")),
    ("trait:CUSTOM_A", "maybe", ".trait:CUSTOM_A"),
    ("trait:custom_a", "required", ".trait:custom_a"),
    *(
        ("resources:FPGA", value, ".resources:FPGA")
        for value in ("one", "0", -1, 1.5, True, None, "9" * 5000)
    ),
    ("resources:FPGA", "65", ""),
]
CHANGE: Rows = [
    *((body, "body") for body in ({}, [], [{"name": "new"}], "new", b"null")),
    ({"uuid": "<random>"}, "uuid"),
    ({"name": "new", "colour": 1}, "colour"),
    *(({"name": name}, "name") for name in (None, "", "white space", "x" * 256)),
    *(({"description": text}, "description") for text in (5, "x" * 16_001)),
    *(({"groups": groups}, "groups") for groups in (None, [], LARGE)),
    ({"groups": [{"resources:FPGA": "0"}]}, "groups[0].resources:FPGA"),
    ({"groups": [{"resources:FPGA": "65"}]}, "groups[0]"),
]
CREATION: Rows = [
    *(({name: value}, name) for name in NEW_DEVICE for value in (None, "", 7, "x" * 256)),
    ({"driver": "x" * 101}, "driver"),
    ({"type": "fpga"}, "type"),
    ({"resource_class": "fpga"}, "resource_class"),
    *(({"traits": traits}, "traits") for traits in ("CUSTOM_A", {}, ["CUSTOM_A"] * 101)),
    ({"traits": ["CUSTOM_A", "custom"]}, "traits[1]"),
    ({"traits": [7]}, "traits[0]"),
    *(({"handles": handles}, "handles") for handles in (0, -1, 256, 1.5, True, "1", [])),
    ({"handles": ["0000:0c:00.0"] * 256}, "handles"),
    *(
        ({"handles": [address]}, "handles[0]")
        for address in ("nowhere", "0000:0c:20.0", "0000:0c:00.8", "10000:0c:00.0")
    ),
    ({"handles": ["0c:00.0", {"bus": "0c"}]}, "handles[1]"),
    ({"handles": ["0c:00.0", "0000:0c:00.0"]}, "handles[1]"),
    ({"labels": {"rack": None}}, "labels.rack"),
    ({"labels": {"a b": "c"}}, "labels"),
    ({"labels": []}, "labels"),
    ({"uuid": "<random>"}, "uuid"),
    ({"hostname": "host-1"}, "hostname"),
    ({"model": "\ud800"}, "body"),
]
#: Microversion and request, and its bodies.
BODIES: dict[str, Rows] = {
    "2.0 POST /v2/device_profiles": [
        *PROFILES,
        ([{"groups": [FPGA]}], "name"),
        ([{"name": "new"}], "groups"),
        *(([{"name": "new", "groups": [FPGA], **change}], field) for change, field in PROFILE),
        *(
            ([{"name": "new", "groups": [{key: value}]}], f"groups[0]{place}")
            for key, value, place in GROUP
        ),
    ],
    "2.4 PATCH /v2/device_profiles/gpu": CHANGE,
    "2.0 POST /v2/attributes": [
        ([ATTRIBUTE], "body"),
        ({}, "deployable_id"),
        ({"attribute": []}, "attribute"),
        *(
            ({**ATTRIBUTE, "deployable_id": value}, "deployable_id")
            for value in (None, "nonsense", 1.0, True, -1, 2**31, 10**30)
        ),
        *(({**ATTRIBUTE, "key": key}, "key") for key in (None, "", 5, "x" * 256)),
        *(({**ATTRIBUTE, "value": value}, "value") for value in (None, {"a": 1}, "x" * 16_001)),
        ({**ATTRIBUTE, "value": "a\u0000"}, "body"),
        ({**ATTRIBUTE, "uuid": "nonsense"}, "uuid"),
    ],
    "2.0 PATCH /v2/deployables/<deployable>/program": [
        *((body, "body") for body in ([], {}, [PROGRAM] * 2, PROGRAM)),
        ([None], "[0]"),
        ([{}], "[0].path"),
        ([{**PROGRAM, "op": "remove"}], "[0].op"),
        ([{**PROGRAM, "path": "/name"}], "[0].path"),
        ([{**PROGRAM, "extra": 1}], "[0].extra"),
        *(([{**PROGRAM, "value": value}], "[0].value") for value in (None, [], {}, "<image>")),
        *(
            ([{**PROGRAM, "value": [value]}], "[0].value[0].image_uuid")
            for value in ({}, {"image_uuid": None}, {"image_uuid": "x"}, {"image_uuid": ["x"]})
        ),
    ],
    "2.4 POST /v2/devices": [
        *(({**NEW_DEVICE, **change}, field) for change, field in CREATION),
        *(
            ({key: value for key, value in NEW_DEVICE.items() if key != name}, name)
            for name in NEW_DEVICE
        ),
    ],
    "2.4 PATCH /v2/devices/<device>": [
        *((body, "body") for body in ({}, [])),
        *(({"status": status}, "status") for status in (None, "inactive", "lost", ["ready"])),
        ({"uuid": "<random>"}, "uuid"),
        *(({"model": model}, "model") for model in (None, "")),
        *(({"traits": traits}, "traits") for traits in (None, "CUSTOM_A")),
        ({"traits": ["CUSTOM_A", "b"]}, "traits[1]"),
        *(({"labels": labels}, "labels") for labels in (None, ["rack"])),
        *(({"labels": {"rack": value}}, "labels.rack") for value in (7, "x" * 256)),
        *(({"labels": {name: "x"}}, "labels") for name in ("", "a b", "x" * 64, 'a"b')),
        ({"labels": {"rack": "\ud800"}}, "body"),
    ],
    "2.4 POST /v2/drivers": [
        ({}, "driver"),
        *(({"driver": driver}, "driver") for driver in ("", "x" * 101, None)),
        ({"driver": "d", "options": []}, "options"),
        *(({"driver": "d", "options": {"k": value}}, "options.k") for value in (1, None)),
        ({"driver": "d", "options": dict.fromkeys(map(str, range(101)), "")}, "options"),
        ({"driver": "d", "enabled": True}, "enabled"),
    ],
    "2.4 PATCH /v2/drivers/card_driver": [
        ({"enabled": "yes"}, "enabled"),
        ({"option": {}}, "option"),
    ],
    "2.4 PATCH /v2/drivers/card_driver?drain=true": [({"enabled": True}, "drain")],
    "2.4 DELETE /v2/drivers/card_driver?drain=1": [(None, "drain")],
    f"2.4 DELETE /v2/drivers/{'x' * 101}": [(None, "uuid")],
    "2.4 POST /v2/services/discover": [
        ([], "body"),
        *(({"hosts": hosts}, "hosts") for hosts in ([], "a")),
        *(({"hosts": [host]}, "hosts[0]") for host in (7, "")),
        ({"driver": 1}, "driver"),
        ({"drivers": "d"}, "drivers"),
    ],
    "2.4 POST /v2/services/discover?wait=maybe": [({}, "wait")],
    "2.4 POST /v2/services/discover?patience=1": [({}, "patience")],
    "2.4 POST /v2/instances/<instance>/accelerators": [
        *((body, "body") for body in (None, [], "x", {"device_profile": "\0"})),
        *(({"device_profile": name}, "device_profile") for name in ("", 1)),
        ({"profile": "gpu"}, "profile"),
    ],
    "2.4 POST /v2/instances/x/accelerators": [({}, "uuid")],
    "2.4 DELETE /v2/instances/<instance>/accelerators/x": [(None, "uuid")],
    "2.4 DELETE /v2/instances/<instance>/accelerators?force=true": [(None, "force")],
}


@pytest.mark.parametrize("request_", BODIES)
def test_refused_body_names_its_field_and_changes_nothing(client: Client, request_: str) -> None:
    version, method, path = request_.split()
    for body, field in BODIES[request_]:
        answer = client.send(method, path, body, version=version)
        assert answer.status == 400, body
        assert f"Invalid value for {field}:" in answer.fault, body
    assert client.calls == []
