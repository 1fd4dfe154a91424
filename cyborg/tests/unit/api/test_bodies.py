# SPDX-License-Identifier: Apache-2.0
"""Bodies that are refused: the answer names the place of the fault, and nothing is changed.

``test_types`` has the values that each type refuses. Here a row shows that a field has its type and
bounds, or that the handler has a rule of its own; numbers are lines of the checklist.
"""

import json
import tracemalloc
from collections.abc import Mapping
from typing import Any

import pytest
import webob

from cyborg import exception
from cyborg.api import parsing
from cyborg.tests.unit.api.world import NEW_DEVICE, Client

Rows = list[tuple[Any, str]]


def at(place: str, *bodies: Any) -> Rows:
    """Bodies for which this place is named."""
    return [(body, place) for body in bodies]


def of(name: str, *values: Any) -> Rows:
    """Bodies with one member, which is named."""
    return at(name, *({name: value} for value in values))


def beside(known: Mapping[str, Any], rows: Rows) -> Rows:
    """The same with these members besides."""
    return [({**known, **body}, place) for body, place in rows]


#: Characters that a terminal obeys: C0, DEL, C1, line separators, and directions of writing.
CONTROL = ("\x1b[2K", "\x07", "\x08", "\x7f", "\x9b2K", "\u2028", "\u202e", "\u2066")
LINE_ENDS = ("a\nb", "a\rb", "a\tb")
FPGA = {"resources:FPGA": "1"}
LARGE = [{**FPGA, "accel:x": "y" * 16_000}] * 5
ATTRIBUTE = {"deployable_id": "#deployable-id", "key": "rack", "value": "r7"}
PROGRAM = {"path": "/program", "op": "replace", "value": [{"image_uuid": "<image>"}]}
#: Bodies that are no list of one object, and members of a profile (lines 19 to 35).
PROFILES = [
    *at("body", {"name": "new"}, [], [{"name": "new"}] * 2, b"null", "x", 1),
    *at("[0]", [None], ["x"], [[{}]]),
]
PROFILE = [
    *of("name", "white space", "new\n", "näme", "", "x" * 256, 7, None, ["gpu"]),
    *at("[0].name", {"name": "a\u0000"}, {"name": "\ud800"}),
    *at("[0].groups[0].accel:x", *({"groups": [{"accel:x": odd}]} for odd in CONTROL)),
    *at("[0].description", *({"description": f"x{odd}"} for odd in CONTROL)),
    *of("groups", [], [{}], None, "x", {"a": 1}, LARGE, [FPGA] * 101),
    *of("groups", [{"trait:CUSTOM_A": "required"}]),
    *at("groups[0]", {"groups": [1]}, {"groups": [{"resources:FPGA": "65"}]}),
    *at("[0].uuid", {"uuid": "nonsense"}, {"uuid": 5}),
    *at("[0].description", {"description": 5}, {"description": "x" * 16_001}),
]
#: Groups with one member, which is named.
GROUPS = [
    *(row for key in ("memory:FPGA", "resources", "", "resources:NOSUCH") for row in of(key, "1")),
    *of("trait:CUSTOM_A", "maybe"),
    *of("accel:x", *LINE_ENDS),
    *of("trait:custom_a", "required"),
    *of("resources:FPGA", "one", "0", -1, 1.5, True, None, "9" * 5000),
]
CHANGE = [
    *at("body", {}, [], [{"name": "new"}], "new", b"null"),
    *of("uuid", "<random>"),
    *at("colour", {"name": "new", "colour": 1}),
    *of("name", None, "", "white space", "x" * 256),
    *of("description", 5, "x" * 16_001),
    *of("groups", None, [], LARGE),
    *at("groups[0].resources:FPGA", {"groups": [{"resources:FPGA": "0"}]}),
    *at("groups[0]", {"groups": [{"resources:FPGA": "65"}]}),
]
CREATION = [
    *(row for name in NEW_DEVICE for row in of(name, None, "", 7, "x" * 256)),
    *of("driver", "x" * 101, "\x9b2K"),
    *of("type", "fpga"),
    *of("resource_class", "fpga"),
    *of("traits", "CUSTOM_A", {}, ["CUSTOM_A"] * 101),
    *at("traits[1]", {"traits": ["CUSTOM_A", "custom"]}),
    *at("traits[0]", {"traits": [7]}),
    *of("handles", 0, -1, 256, 1.5, True, "1", [], ["0000:0c:00.0"] * 256),
    *at("handles[0]", {"handles": ["nowhere"]}, {"handles": ["0000:0c:20.0"]}),
    *at("handles[0]", {"handles": ["0000:0c:00.8"]}, {"handles": ["10000:0c:00.0"]}),
    *at("handles[1]", {"handles": ["0c:00.0", {"bus": "0c"}]}),
    *at("handles[1]", {"handles": ["0c:00.0", "0000:0c:00.0"]}),
    *at("labels.rack", {"labels": {"rack": None}}),
    *of("labels", {"a b": "c"}, []),
    *of("uuid", "<random>"),
    *of("hostname", "host-1"),
    *of("model", "\ud800", *(f"x{odd}" for odd in (*CONTROL, *LINE_ENDS))),
    *at("labels.rack", {"labels": {"rack": "\x1b[2K"}}, {"labels": {"rack": "a\nb"}}),
]
DEVICE = [
    *at("body", {}, []),
    *at("labels.rack", *({"labels": {"rack": odd}} for odd in (*CONTROL, *LINE_ENDS, "\ud800"))),
    *at("labels", {"labels": {"\x1b[2K": "x"}}),
    *of("status_reason", "\x1b[2K", "\u202e"),
    *of("status", None, "inactive", "lost", ["ready"]),
    *of("uuid", "<random>"),
    *of("model", None, ""),
    *of("traits", None, "CUSTOM_A"),
    *at("traits[1]", {"traits": ["CUSTOM_A", "b"]}),
    *of("labels", None, ["rack"], {"": "x"}, {"a b": "x"}, {"x" * 64: "x"}, {'a"b': "x"}),
    *at("labels.rack", {"labels": {"rack": 7}}, {"labels": {"rack": "x" * 256}}),
]
IMAGE = [
    *at("[0].value[0].image_uuid", {}, {"image_uuid": None}, {"image_uuid": "x"}),
    *at("[0].value[0].image_uuid", {"image_uuid": ["x"]}),
]
#: Microversion and request, and its bodies.
BODIES: dict[str, Rows] = {
    "2.0 POST /v2/device_profiles": [
        *PROFILES,
        *at("name", [{"groups": [FPGA]}]),
        *at("groups", [{"name": "new"}]),
        *(([body], place) for body, place in beside({"name": "new", "groups": [FPGA]}, PROFILE)),
        *(([{"name": "new", "groups": [body]}], f"groups[0].{place}") for body, place in GROUPS),
    ],
    "2.100 PATCH /v2/device_profiles/gpu": CHANGE,
    "2.0 POST /v2/attributes": [
        *at("body", [ATTRIBUTE], {"\x1b": 1}),
        *beside(ATTRIBUTE, of("value", "a\u0000", *CONTROL)),
        *beside(ATTRIBUTE, of("key", *CONTROL, *LINE_ENDS)),
        *at("deployable_id", {}),
        *of("attribute", []),
        *beside(ATTRIBUTE, of("deployable_id", None, "x", 1.0, True, -1, 2**31, 10**30)),
        *beside(ATTRIBUTE, of("key", None, "", 5, "x" * 256)),
        *beside(ATTRIBUTE, of("value", None, {"a": 1}, "x" * 16_001)),
        *beside(ATTRIBUTE, of("uuid", "nonsense")),
    ],
    "2.0 PATCH /v2/deployables/<deployable>/program": [
        *at("body", [], {}, [PROGRAM] * 2, PROGRAM),
        *at("[0]", [None]),
        *at("[0].path", [{}], [{**PROGRAM, "path": "/name"}]),
        *at("[0].op", [{**PROGRAM, "op": "remove"}]),
        *at("[0].extra", [{**PROGRAM, "extra": 1}]),
        *(([body], "[0].value") for body, _ in beside(PROGRAM, of("value", None, [], {}, "x"))),
        *(([{**PROGRAM, "value": [value]}], place) for value, place in IMAGE),
    ],
    "2.100 POST /v2/devices": [
        *beside(NEW_DEVICE, CREATION),
        *(
            ({key: value for key, value in NEW_DEVICE.items() if key != name}, name)
            for name in NEW_DEVICE
        ),
    ],
    "2.100 PATCH /v2/devices/<device>": DEVICE,
    "2.100 POST /v2/drivers": [
        *at("driver", {}),
        *of("driver", "", "x" * 101, None),
        *beside({"driver": "d"}, of("options", [], dict.fromkeys(map(str, range(101)), ""))),
        *at(
            "options.k",
            *({"driver": "d", "options": {"k": value}} for value in (1, None, *CONTROL)),
        ),
        *beside({"driver": "d"}, of("enabled", True)),
    ],
    "2.100 PATCH /v2/drivers/card_driver": [*of("enabled", "yes"), *of("option", {})],
    "2.100 PATCH /v2/drivers/card_driver?drain=true": at("drain", {"enabled": True}),
    "2.100 DELETE /v2/drivers/card_driver?drain=1": at("drain", None),
    "2.100 DELETE /v2/drivers/card_driver?force=1": at("force", None),
    "2.100 DELETE /v2/devices/<device>?force=1": at("force", None),
    "2.100 DELETE /v2/services/<random>?force=1": at("force", None),
    f"2.100 DELETE /v2/drivers/{'x' * 101}": at("uuid", None),
    "2.100 POST /v2/services/discover": [
        *at("body", []),
        *of("hosts", [], "a"),
        *at("hosts[1]", {"hosts": ["a", "\x1b"]}, {"hosts": ["a", "b\n"]}),
        *at("hosts[0]", {"hosts": [7]}, {"hosts": [""]}),
        *of("driver", 1),
        *of("drivers", "d"),
    ],
    "2.100 POST /v2/services/discover?wait=maybe": at("wait", {}),
    "2.100 POST /v2/services/discover?patience=1": at("patience", {}),
    "2.100 POST /v2/instances/<instance>/accelerators": [
        *at("body", None, [], "x"),
        *of("device_profile", "", 1, "\0", "a\nb"),
        *of("profile", "gpu"),
    ],
    "2.100 POST /v2/instances/x/accelerators": at("uuid", {}),
    "2.100 DELETE /v2/instances/<instance>/accelerators/x": at("uuid", None),
    "2.100 DELETE /v2/instances/<instance>/accelerators?force=true": at("force", None),
}


@pytest.mark.parametrize("request_", BODIES)
def test_refused_body_names_its_field_and_changes_nothing(client: Client, request_: str) -> None:
    version, _, request = request_.partition(" ")
    for body, field in BODIES[request_]:
        answer = client.ask(request, body, version=version)
        assert answer.status == 400, body
        assert f"Invalid value for {field}:" in answer.fault, body
    assert client.calls == []


def test_text_of_several_lines_is_allowed_where_it_is_shown_as_a_paragraph(client: Client) -> None:
    body = [{"name": "new", "groups": [FPGA], "description": "first line\n\tsecond \u0641"}]
    assert client.ask("POST /v2/device_profiles", body, version="2.0").status == 201


def test_long_name_of_many_values_costs_no_more_than_the_body() -> None:
    body = json.dumps({"n" * 100_000: ["x"] * 5000 + ["\x1b"]}).encode()
    request = webob.Request.blank("/", method="POST", body=body, content_type="application/json")
    tracemalloc.start()
    with pytest.raises(exception.Invalid) as refused:
        parsing.read_body(request)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * len(body)
    assert refused.value.fields["field"] == "n" * 200
