# SPDX-License-Identifier: Apache-2.0
"""Device profiles over HTTP: checklist lines 18 to 35, and bodies that nobody should send."""

from collections.abc import Callable
from typing import Any

import pytest

from cyborg.tests.unit.api.conductor import RecordedConductor
from cyborg.tests.unit.api.world import FACTS, Client, is_moment

PATH = "/v2/device_profiles"
GROUPS = [{"resources:FPGA": "1", "trait:CUSTOM_A": "required"}]


def names(client: Client) -> list[str]:
    return [profile["name"] for profile in client.send("GET", PATH).body["device_profiles"]]


def test_create_returns_unwrapped_profile(client: Client) -> None:
    answer = client.send("POST", PATH, [{"name": "new", "groups": GROUPS, "description": "d"}])
    assert answer.status == 201
    uuid = answer.body["uuid"]
    assert answer.body == {
        "name": "new",
        "description": "d",
        "uuid": uuid,
        "groups": GROUPS,
        "created_at": answer.body["created_at"],
        "updated_at": None,
        "links": [{"href": f"http://localhost{PATH}/{uuid}", "rel": "self"}],
    }
    assert is_moment(answer.body["created_at"])
    shown = client.send("GET", f"{PATH}/{uuid}").body["device_profile"]
    assert shown == answer.body
    assert list(shown)[:4] == ["name", "description", "uuid", "groups"]


ONE = {"name": "new", "groups": GROUPS}
#: line of the checklist, body, field that the answer names
REFUSED: list[tuple[int, Any, str]] = [
    (19, ONE, "body"),
    (19, [], "body"),
    (19, [ONE, ONE], "body"),
    (19, None, "body"),
    (19, "x", "body"),
    (19, 1, "body"),
    (19, [None], "[0]"),
    (19, ["x"], "[0]"),
    (19, [[ONE]], "[0]"),
    (19, {"device_profile": ONE}, "body"),
    (21, [{**ONE, "name": "white space"}], "name"),
    (21, [{**ONE, "name": "new\n"}], "name"),
    (21, [{**ONE, "name": "näme"}], "name"),
    (21, [{**ONE, "name": "\U0001f600"}], "name"),
    (21, [{**ONE, "name": "a\u0000"}], "body"),
    (21, [{**ONE, "name": "\ud800"}], "body"),
    (21, [{**ONE, "name": 7}], "name"),
    (21, [{**ONE, "name": None}], "name"),
    (21, [{**ONE, "name": ["gpu"]}], "name"),
    (21, [{"groups": GROUPS}], "name"),
    (22, [{**ONE, "groups": [{"memory:FPGA": "1"}]}], "groups[0].memory:FPGA"),
    (22, [{**ONE, "groups": [{"resources": "1"}]}], "groups[0].resources"),
    (22, [{**ONE, "groups": [{"": "1"}]}], "groups[0]."),
    (23, [{**ONE, "groups": [{"trait:CUSTOM_A": "maybe"}]}], "groups[0].trait:CUSTOM_A"),
    (23, [{**ONE, "groups": [{"trait:custom_a": "required"}]}], "groups[0].trait:custom_a"),
    (23, [{**ONE, "groups": [{"resources:FPGA": "one"}]}], "groups[0].resources:FPGA"),
    (23, [{**ONE, "groups": [{"resources:FPGA": "0"}]}], "groups[0].resources:FPGA"),
    (23, [{**ONE, "groups": [{"resources:FPGA": -1}]}], "groups[0].resources:FPGA"),
    (23, [{**ONE, "groups": [{"resources:FPGA": 1.5}]}], "groups[0].resources:FPGA"),
    (23, [{**ONE, "groups": [{"resources:FPGA": True}]}], "groups[0].resources:FPGA"),
    (23, [{**ONE, "groups": [{"resources:FPGA": None}]}], "groups[0].resources:FPGA"),
    (23, [{**ONE, "groups": [{"resources:FPGA": "9" * 5000}]}], "groups[0].resources:FPGA"),
    (23, [{**ONE, "groups": [{"resources:FPGA": "65"}]}], "groups[0]"),
    (23, [{**ONE, "groups": [{"resources:NOSUCH": "1"}]}], "groups[0].resources:NOSUCH"),
    (23, [{**ONE, "groups": [{"trait:CUSTOM_A": "required"}]}], "groups"),
    (23, [{**ONE, "groups": []}], "groups"),
    (23, [{**ONE, "groups": [{}]}], "groups"),
    (23, [{**ONE, "groups": None}], "groups"),
    (23, [{**ONE, "groups": "x"}], "groups"),
    (23, [{**ONE, "groups": {"a": 1}}], "groups"),
    (23, [{**ONE, "groups": [1]}], "groups[0]"),
    (23, [{**ONE, "groups": GROUPS * 101}], "groups"),
    (23, [{**ONE, "groups": [{**GROUPS[0], "accel:x": "y" * 16_000}] * 5}], "groups"),
    (23, [{"name": "new"}], "groups"),
    (25, [{**ONE, "uuid": "nonsense"}], "[0].uuid"),
    (25, [{**ONE, "uuid": 5}], "[0].uuid"),
    (27, [{**ONE, "name": ""}], "name"),
    (27, [{**ONE, "name": "x" * 256}], "name"),
    (35, [{**ONE, "description": 5}], "[0].description"),
    (35, [{**ONE, "description": "x" * 16_001}], "[0].description"),
]


@pytest.mark.parametrize(
    ("line", "body", "field"),
    REFUSED,
    ids=[f"line-{line}-{i}" for i, (line, *_) in enumerate(REFUSED)],
)
def test_refused_body_names_its_field_and_changes_nothing(
    client: Client, conductor: RecordedConductor, line: int, body: Any, field: str
) -> None:
    sent = b"null" if body is None else body
    answer = client.send("POST", PATH, sent)
    assert answer.status == 400
    assert f"Invalid value for {field}:" in answer.fault
    assert conductor.calls == []


def test_group_values_are_returned_as_strings_in_order(client: Client) -> None:
    groups: list[dict[str, Any]] = [
        {"resources:FPGA": 2, "trait:CUSTOM_B": "forbidden", "accel:bitstream_id": "b"},
        {"trait:HW_CPU_X86_VMX": "required", "resources:CUSTOM_X": "1"},
        {"accel:only": "a requirement"},
    ]
    answer = client.send("POST", PATH, [{"name": "new", "groups": groups}])
    assert answer.body["groups"] == [{**groups[0], "resources:FPGA": "2"}, *groups[1:]]
    assert [list(group) for group in answer.body["groups"]] == [list(group) for group in groups]


def test_spaces_around_resource_names_are_removed(client: Client) -> None:
    groups = [{"resources: FPGA ": "1", "trait: CUSTOM_A": "required"}]
    answer = client.send("POST", PATH, [{"name": "new", "groups": groups}])
    assert answer.body["groups"] == GROUPS


@pytest.mark.parametrize("spelling", [str.lower, str.upper, lambda uuid: uuid.replace("-", "")])
def test_given_uuid_is_stored_in_canonical_form(
    client: Client, spelling: Callable[[str], str]
) -> None:
    answer = client.send("POST", PATH, [{**ONE, "uuid": spelling(FACTS["random"])}])
    assert answer.status == 201
    assert answer.body["uuid"] == FACTS["random"]
    assert client.send("GET", f"{PATH}/{spelling(FACTS['random'])}").status == 200


def test_create_with_used_name_or_uuid_returns_409(client: Client) -> None:
    name = client.send("POST", PATH, [{**ONE, "name": "gpu"}])
    assert (name.status, "gpu" in name.fault) == (409, True)
    uuid = client.send("POST", PATH, [{**ONE, "uuid": "<profile>"}])
    assert (uuid.status, FACTS["profile"] in uuid.fault) == (409, True)
    assert names(client) == ["gpu", "pair"]


@pytest.mark.parametrize("as_", ["admin", "member", "reader", "stranger"])
def test_all_projects_list_the_same_profiles(client: Client, as_: str) -> None:
    answer = client.send("GET", PATH, as_=as_)
    assert [profile["name"] for profile in answer.body["device_profiles"]] == ["gpu", "pair"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("name=gpu", ["gpu"]),
        ("name=nothing", []),
        ("name=pair,gpu", ["gpu", "pair"]),
        ("name=gpu,nothing", ["gpu"]),
        ("name=GPU", []),
        ("name=", []),
        ("name=,", []),
        ("name=%F0%9F%98%80", []),
        ("name=gp", []),
        ("name=gp%25", []),
    ],
)
def test_name_filter_matches_exactly(client: Client, query: str, expected: list[str]) -> None:
    answer = client.send("GET", f"{PATH}?{query}")
    assert answer.status == 200
    assert [profile["name"] for profile in answer.body["device_profiles"]] == expected


@pytest.mark.parametrize("version", [None, "accelerator 2.1", "accelerator 2.2"])
@pytest.mark.parametrize("key", ["<profile>", "gpu"])
def test_show_accepts_uuid_or_name(client: Client, key: str, version: str | None) -> None:
    answer = client.send("GET", f"{PATH}/{key}", as_="member", version=version)
    assert answer.status == 200
    assert list(answer.body) == ["device_profile"]
    assert answer.body["device_profile"]["uuid"] == FACTS["profile"]


@pytest.mark.parametrize("key", ["<random>", "nothing", "%F0%9F%98%80", "a%20b", "GPU"])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_missing_profile_returns_404(client: Client, method: str, key: str) -> None:
    assert client.send(method, f"{PATH}/{key}").status == 404


@pytest.mark.parametrize("key", ["<unused>", "pair", FACTS["unused"].upper()])
@pytest.mark.parametrize("version", [None, "accelerator 2.3"])
def test_delete_accepts_uuid_or_name(client: Client, key: str, version: str | None) -> None:
    assert client.send("DELETE", f"{PATH}/{key}", version=version).status == 204
    assert names(client) == ["gpu"]
    assert client.send("DELETE", f"{PATH}/{key}", version=version).status == 404


def test_delete_removes_several_profiles(client: Client) -> None:
    client.send("POST", PATH, [ONE])
    assert client.send("DELETE", f"{PATH}?value=new,<unused>,new").status == 204
    assert names(client) == ["gpu"]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("?value=fake1,fake2", 404),
        ("?value=pair,fake", 404),
        ("?value=", 404),
        ("", 400),
        ("/", 400),
    ],
)
def test_failed_delete_removes_no_profile(client: Client, query: str, status: int) -> None:
    assert client.send("DELETE", f"{PATH}{query}").status == status
    assert names(client) == ["gpu", "pair"]


def test_profile_in_use_is_not_deleted(client: Client) -> None:
    answer = client.send("DELETE", f"{PATH}/gpu")
    assert answer.status == 409
    assert "5 accelerator request(s)" in answer.fault


@pytest.mark.parametrize("as_", ["member", "reader", "manager", "service", "nobody"])
def test_only_admin_changes_profiles(
    client: Client, conductor: RecordedConductor, as_: str
) -> None:
    assert client.send("POST", PATH, [ONE], as_=as_).status == 403
    assert client.send("POST", PATH, "nonsense", as_=as_).status == 403
    assert client.send("DELETE", f"{PATH}/pair", as_=as_).status == 403
    assert conductor.calls == []


def test_description_is_optional_and_unlimited(client: Client) -> None:
    assert client.send("POST", PATH, [ONE]).body["description"] is None
    text = "Ünï\U0001f600 " * 2000
    answer = client.send("POST", PATH, [{**ONE, "name": "long", "description": text}])
    assert answer.body["description"] == text
    empty = client.send("POST", PATH, [{**ONE, "name": "empty", "description": ""}])
    assert empty.body["description"] == ""


def test_unknown_keys_are_ignored(client: Client, conductor: RecordedConductor) -> None:
    odd = {"id": 77, "created_at": "1999-01-01", "colour": ["red"], "links": None}
    answer = client.send("POST", PATH, [{**ONE, **odd}])
    assert answer.status == 201
    assert not answer.body["created_at"].startswith("1999")


def test_profile_limits_are_options(make_client: Callable[..., Client]) -> None:
    client = make_client("[api]\nmax_groups = 1\nmax_units_per_group = 2\n")
    assert (
        client.send("POST", PATH, [{"name": "a", "groups": [{"resources:FPGA": 2}]}]).status == 201
    )
    assert (
        client.send("POST", PATH, [{"name": "b", "groups": [{"resources:FPGA": 3}]}]).status == 400
    )
    assert client.send("POST", PATH, [{"name": "b", "groups": GROUPS * 2}]).status == 400


BITSTREAM = "accel:bitstream_id"


@pytest.mark.parametrize(
    ("group", "warning"),
    [
        ({"resources:FPGA": "1", BITSTREAM: "<image>"}, None),
        ({"resources:FPGA": "1", "accel:function_id": "f"}, None),
        ({"resources:PGPU": "1", BITSTREAM: ""}, None),
        (
            {"resources:PGPU": "1", BITSTREAM: "<image>"},
            "groups[0] asks for accel:bitstream_id <image>, but no device of PGPU has a driver",
        ),
        ({"resources:PGPU": "1", "accel:function_id": "f"}, "accel:function_id f, but no device"),
        ({"resources:FPGA": "1", BITSTREAM: "b"}, "'b' is not the UUID of a Glance image"),
        (
            {"resources:FPGA": "1", BITSTREAM: "<image>", "accel:function_id": "f"},
            "accel:bitstream_id or accel:function_id, not both",
        ),
    ],
)
def test_profile_with_unloadable_image_is_stored_with_a_warning(
    client: Client,
    caplog: pytest.LogCaptureFixture,
    group: dict[str, str],
    warning: str | None,
) -> None:
    requests = [
        ("POST", PATH, [{"name": "new", "groups": [group]}], 201),
        ("PATCH", f"{PATH}/<unused>", {"groups": [group]}, 200),
    ]
    for method, path, body, status in requests:
        caplog.clear()
        answer = client.send(method, path, body, version="accelerator 2.5")
        assert answer.status == status
        if warning is None:
            assert answer.body["warnings"] == []
            assert "Device profile" not in caplog.text
        else:
            (sentence,) = answer.body["warnings"]
            assert client.fill(warning) in sentence
            assert sentence in caplog.text


def test_older_microversions_return_no_warnings(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    group = {"resources:PGPU": "1", BITSTREAM: "<image>"}
    body = [{"name": "new", "groups": [group]}]
    answer = client.send("POST", PATH, body, version="accelerator 2.4")
    assert "warnings" not in answer.body
    assert "Device profile new" in caplog.text
