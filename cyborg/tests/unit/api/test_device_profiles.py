# SPDX-License-Identifier: Apache-2.0
"""Device profiles over HTTP: checklist lines 18 to 35, and their changes."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from cyborg.model.device_profile import ProfileChange
from cyborg.tests.unit.api.conductor import RecordedConductor
from cyborg.tests.unit.api.world import FACTS, Client, is_moment

PATH = "/v2/device_profiles"
NEWEST = "accelerator 2.100"
OLDER = "accelerator 2.3"
GROUPS = [{"resources:FPGA": "1", "trait:CUSTOM_A": "required"}]
ONE = {"name": "new", "groups": GROUPS}


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


def test_given_uuid_is_stored_in_canonical_form(client: Client) -> None:
    random = FACTS["random"]
    for number, spelling in enumerate((random.upper(), random.replace("-", ""))):
        body = [{**ONE, "name": f"new-{number}", "uuid": spelling}]
        answer = client.send("POST", PATH, body)
        assert (answer.status, answer.body["uuid"]) == (201, random)
        assert client.send("DELETE", f"{PATH}/{spelling}").status == 204


def test_create_with_used_name_or_uuid_returns_409(client: Client) -> None:
    name = client.send("POST", PATH, [{**ONE, "name": "gpu"}])
    assert (name.status, "gpu" in name.fault) == (409, True)
    uuid = client.send("POST", PATH, [{**ONE, "uuid": "<profile>"}])
    assert (uuid.status, FACTS["profile"] in uuid.fault) == (409, True)
    assert names(client) == ["gpu", "pair"]


def test_all_projects_list_the_same_profiles(client: Client) -> None:
    for as_ in ("admin", "member", "reader", "stranger"):
        answer = client.send("GET", PATH, as_=as_)
        assert [profile["name"] for profile in answer.body["device_profiles"]] == ["gpu", "pair"]


def test_name_filter_matches_exactly(client: Client) -> None:
    for query, expected in {
        "gpu": "gpu",
        "pair,gpu": "gpu pair",
        "gpu,nothing": "gpu",
        **dict.fromkeys(("", ",", "nothing", "GPU", "gp", "gp%25", "%F0%9F%98%80"), ""),
    }.items():
        answer = client.send("GET", f"{PATH}?name={query}")
        assert answer.status == 200
        assert [one["name"] for one in answer.body["device_profiles"]] == expected.split(), query


def test_show_accepts_uuid_or_name(client: Client) -> None:
    for key in ("<profile>", "gpu"):
        answer = client.send("GET", f"{PATH}/{key}", as_="member", version="2.2")
        assert answer.status == 200
        assert list(answer.body) == ["device_profile"]
        assert answer.body["device_profile"]["uuid"] == FACTS["profile"]


@pytest.mark.parametrize("method", ["GET", "DELETE", "PATCH"])
def test_missing_profile_returns_404(client: Client, method: str) -> None:
    body = {"name": "new"} if method == "PATCH" else None
    for key in ("<random>", "nothing", "%F0%9F%98%80", "a%20b", "GPU"):
        assert client.send(method, f"{PATH}/{key}", body, version=NEWEST).status == 404


@pytest.mark.parametrize("key", ["<unused>", "pair", FACTS["unused"].upper()])
def test_delete_accepts_uuid_or_name(client: Client, key: str) -> None:
    assert client.send("DELETE", f"{PATH}/{key}").status == 204
    assert names(client) == ["gpu"]
    assert client.send("DELETE", f"{PATH}/{key}").status == 404


def test_delete_removes_several_profiles(client: Client) -> None:
    client.send("POST", PATH, [ONE])
    assert client.send("DELETE", f"{PATH}?value=new,<unused>,new").status == 204
    assert names(client) == ["gpu"]


def test_failed_delete_removes_no_profile(client: Client) -> None:
    wrong = {"?value=fake1,fake2": 404, "?value=pair,fake": 404, "?value=": 404, "": 400, "/": 400}
    for query, status in wrong.items():
        assert client.send("DELETE", f"{PATH}{query}").status == status, query
    assert names(client) == ["gpu", "pair"]


def test_profile_in_use_is_not_deleted(client: Client) -> None:
    answer = client.send("DELETE", f"{PATH}/gpu")
    assert answer.status == 409
    assert "5 accelerator request(s)" in answer.fault


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
    for groups, status in (
        ([{"resources:FPGA": 2}], 201),
        ([{"resources:FPGA": 3}], 400),
        (GROUPS * 2, 400),
    ):
        body = [{"name": f"new-{status}", "groups": groups}]
        assert client.send("POST", PATH, body).status == status


CHANGES: list[tuple[dict[str, Any], ProfileChange]] = [
    ({"name": "new"}, ProfileChange(name="new")),
    ({"description": "d"}, ProfileChange(description="d", sets_description=True)),
    ({"description": ""}, ProfileChange(description="", sets_description=True)),
    ({"description": None}, ProfileChange(sets_description=True)),
    (
        {"groups": [{"resources:FPGA": 2, "trait: CUSTOM_A": "required"}]},
        ProfileChange(groups=({"resources:FPGA": "2", "trait:CUSTOM_A": "required"},)),
    ),
]


@pytest.mark.parametrize("key", ["<profile>", "gpu", FACTS["profile"].upper()])
def test_update_changes_only_given_fields(client: Client, key: str) -> None:
    for body, wish in CHANGES:
        before = client.send("GET", f"{PATH}/<profile>").body["device_profile"]
        path = f"{PATH}/{before['name'] if key == 'gpu' else key}"
        answer = client.send("PATCH", path, body, version=NEWEST)
        assert answer.status == 200
        assert client.calls[-1][2]["change"] == wish
        changed = {name for name in before if answer.body[name] != before[name]}
        assert changed <= {*body, "updated_at"}


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
    client: Client, caplog: pytest.LogCaptureFixture, group: dict[str, str], warning: str | None
) -> None:
    requests = [
        ("POST", PATH, [{"name": "new", "groups": [group]}], 201),
        ("PATCH", f"{PATH}/<unused>", {"groups": [group]}, 200),
    ]
    for method, path, body, status in requests:
        caplog.clear()
        answer = client.send(method, path, body, version=NEWEST)
        assert answer.status == status
        # The cloud has no PGPU either.
        sentences = [one for one in answer.body["warnings"] if "no resource provider" not in one]
        if warning is None:
            assert sentences == []
            assert "accel:" not in caplog.text
        else:
            (sentence,) = sentences
            assert client.fill(warning) in sentence
            assert sentence in caplog.text


def test_profile_with_more_than_four_equal_groups_is_stored_with_a_warning(client: Client) -> None:
    gpu, same = {"resources:PGPU": "1"}, {"trait:CUSTOM_A": "required"}
    fifth = {**gpu, **same, "accel:function_id": ""}

    def warnings(*groups: dict[str, str]) -> list[str]:
        body = [{"name": f"profile-{next(numbers)}", "groups": list(groups)}]
        answer = client.send("POST", PATH, body, version=NEWEST)
        assert answer.status == 201
        return [sentence for sentence in answer.body["warnings"] if "equal groups" in sentence]

    numbers = itertools.count()
    assert warnings(*[gpu | same] * 4, gpu) == []
    assert warnings({"resources:PGPU": "8"}) == []
    (sentence,) = warnings(gpu, *[gpu | same] * 4, fifth)
    assert "groups 1, 2, 3, 4, 5 ask for the same: " in sentence
    assert "PGPU, trait:CUSTOM_A=required. " in sentence
    assert "optimize_for_wide_provider_trees" in sentence
    assert "max_allocation_candidates" in sentence


def test_older_microversions_return_no_warnings(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    group = {"resources:PGPU": "1", BITSTREAM: "<image>"}
    body = [{"name": "new", "groups": [group]}]
    answer = client.send("POST", PATH, body, version=OLDER)
    assert "warnings" not in answer.body
    assert "Device profile new" in caplog.text


def cleaned(word: str) -> dict[str, str]:
    return {"resources:FPGA": "1", "accel:clean": word}


@pytest.mark.parametrize("word", ["none", "reset", "full"])
def test_profile_says_how_its_units_are_cleaned(client: Client, word: str) -> None:
    body = [{"name": "new", "groups": [cleaned(word)]}]
    answer = client.send("POST", PATH, body, version=NEWEST)
    assert answer.status == 201
    assert answer.body["groups"] == [cleaned(word)]


def test_unknown_level_of_cleaning_names_its_field(client: Client) -> None:
    groups = [GROUPS[0], cleaned("often")]
    for method, path, body in (
        ("POST", PATH, [{"name": "new", "groups": groups}]),
        ("PATCH", f"{PATH}/<unused>", {"groups": groups}),
    ):
        answer = client.send(method, path, body, version=NEWEST)
        assert answer.status == 400
        assert "groups[1].accel:clean" in answer.fault
        assert "'often' is none of none, reset, full" in answer.fault
    older = client.send("POST", PATH, [{"name": "new", "groups": groups}], version=OLDER)
    assert older.status == 201


@pytest.mark.parametrize("minor", [0, 100])
@pytest.mark.parametrize("word", ["none", "reset"])
def test_only_those_whom_policy_allows_skip_the_cleaning(
    with_rules: Callable[..., Client], minor: int, word: str
) -> None:
    """Clients of every microversion, since the word has an effect for all."""
    rules = {"cyborg:device_profile:create": "role:member"}
    body = [{"name": "new", "groups": [cleaned(word)]}]
    answer = with_rules(rules).send(
        "POST", PATH, body, as_="member", version=f"accelerator 2.{minor}"
    )
    assert answer.status == 403
    assert "cyborg:device_profile:skip_cleaning" in answer.fault
    allowed = {**rules, "cyborg:device_profile:skip_cleaning": "role:member"}
    answer = with_rules(allowed).send(
        "POST", PATH, body, as_="member", version=f"accelerator 2.{minor}"
    )
    assert answer.status == 201


IMAGE = "f81d4fae-7dec-41d0-a765-00a0c91e6bf6"
#: What only administrators may have in a profile after their change, and the rule that says so.
RESTRICTED = [
    (cleaned("none"), "cyborg:device_profile:skip_cleaning"),
    (cleaned("reset"), "cyborg:device_profile:skip_cleaning"),
    ({"resources:FPGA": "1", "accel:bitstream_id": IMAGE}, "cyborg:device_profile:choose_image"),
    ({"resources:FPGA": "1", "accel:function_id": "f"}, "cyborg:device_profile:choose_image"),
]


@pytest.mark.parametrize(
    "change", [{"name": "gold"}, {"projects": None}, {"description": "d"}, {"projects": ["p"]}]
)
@pytest.mark.parametrize(("group", "rule"), RESTRICTED)
@pytest.mark.parametrize("later", [False, True])
def test_operator_changes_no_member_of_a_profile_that_only_administrators_write(
    client: Client, group: dict[str, str], rule: str, change: dict[str, Any], *, later: bool
) -> None:
    body = {"name": "private", "groups": [GROUPS[0], group], "projects": [FACTS["other"]]}
    made = client.send("POST", PATH, [body], version=NEWEST)
    path, place = f"{PATH}/{made.body['uuid']}", "groups[1]"
    if later:
        # The groups are those of the profile after the change, wherever they come from.
        client.send("PATCH", path, {"groups": GROUPS}, version=NEWEST)
        change, place = {**change, "groups": [group]}, "groups[0]"
    before = client.send("GET", path, version=NEWEST).body
    answer = client.send("PATCH", path, change, as_="operator", version=NEWEST)
    assert (answer.status, rule in answer.fault, place in answer.fault) == (403, True, True)
    assert client.send("GET", path, version=NEWEST).body == before
    assert client.send("PATCH", path, change, version=NEWEST).status == 200


def test_operator_changes_profiles_whose_guests_are_cleaned_after(client: Client) -> None:
    body = {"name": "private", "groups": [cleaned("none")], "projects": [FACTS["other"]]}
    path = f"{PATH}/{client.send('POST', PATH, [body], version=NEWEST).body['uuid']}"
    # Only the profile after the change counts.
    for groups in ([cleaned("full")], GROUPS):
        change = {"groups": groups, "name": "cleaned", "projects": None}
        answer = client.send("PATCH", path, change, as_="operator", version=NEWEST)
        assert (answer.status, answer.body["groups"]) == (200, groups)


@pytest.mark.parametrize(
    ("group", "word"),
    [
        ({"resources:FPGA": "1"}, "now"),
        ({"resources:FPGA": "2", "trait:CUSTOM_FAKE_DEVICE": "required"}, "now"),
        ({"resources:FPGA": "3"}, "when free"),
        ({"resources:FPGA": "5"}, "never"),
        ({"resources:FPGA": "1", "trait:CUSTOM_A": "required"}, "never"),
        ({"resources:PGPU": "1"}, "never"),
    ],
)
@pytest.mark.parametrize("as_", ["admin", "member", "stranger"])
def test_profile_says_whether_the_hardware_can_satisfy_it(
    client: Client, group: dict[str, str], word: str, as_: str
) -> None:
    body = [{"name": "new", "groups": [group]}]
    assert client.send("POST", PATH, body, version=NEWEST).body["satisfiable"] == word
    shown = client.send("GET", f"{PATH}/new", as_=as_, version=NEWEST).body["device_profile"]
    assert shown["satisfiable"] == word
    listed = client.send("GET", PATH, as_=as_, version=NEWEST).body["device_profiles"]
    assert shown in listed
    older = client.send("GET", PATH, as_=as_, version=OLDER).body["device_profiles"]
    assert all("satisfiable" not in profile for profile in older)


def test_profile_that_nothing_can_satisfy_is_stored_with_a_warning(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    groups = [
        {"resources:CUSTOM_FPGA": "1"},
        {"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICES": "required"},
    ]
    sentences = [
        (
            "groups[0]: no resource provider has resource class CUSTOM_FPGA; the nearest existing "
            "one is FPGA."
        ),
        (
            "groups[1]: no resource provider has trait CUSTOM_FAKE_DEVICES; the nearest existing "
            "one is CUSTOM_FAKE_DEVICE."
        ),
    ]
    for method, path, status in (("POST", PATH, 201), ("PATCH", f"{PATH}/new", 200)):
        caplog.clear()
        body: Any = {"groups": groups}
        body = [{"name": "new", **body}] if method == "POST" else body
        answer = client.send(method, path, body, version=NEWEST)
        assert (answer.status, answer.body["warnings"]) == (status, sentences)
        assert all(sentence in caplog.text for sentence in sentences)
