# SPDX-License-Identifier: Apache-2.0
"""Private device profiles over HTTP: who may give one to projects, and which projects see it."""

import json
from typing import Any

import pytest

from cyborg.tests.unit.api import people
from cyborg.tests.unit.api.conductor import RecordedConductor
from cyborg.tests.unit.api.world import FACTS, Answer, Client

PATH = "/v2/device_profiles"
NEWEST = "accelerator 2.100"
VERSIONS = [None, "2.1", "2.2", "2.3", "2.100"]
PRIVATE: dict[str, Any] = {"name": "secret", "groups": [{"resources:FPGA": "1"}]}
THIRD = "d" * 32
ALLOWED = "1 to 64 ASCII letters, digits and '-'"


def create(client: Client, *projects: str) -> Any:
    """Create the profile "secret" for these projects, and return the answer's body."""
    body = [{**PRIVATE, "projects": list(projects)}]
    answer = client.send("POST", PATH, body, version=NEWEST)
    assert answer.status == 201, answer.raw
    return answer.body


def show(client: Client, key: str, **sent: Any) -> Answer:
    return client.send("GET", f"{PATH}/{key}", **sent)


def listed(client: Client, query: str = "", **sent: Any) -> dict[str, Any]:
    """Return name → projects of the listed profiles."""
    profiles = client.send("GET", f"{PATH}{query}", **sent).body["device_profiles"]
    return {profile["name"]: profile.get("projects", "absent") for profile in profiles}


def test_profile_without_projects_is_public(client: Client) -> None:
    bodies: list[dict[str, Any]] = [PRIVATE, {**PRIVATE, "projects": None}]
    for number, body in enumerate(bodies):
        answer = client.send("POST", PATH, [{**body, "name": f"n{number}"}], version=NEWEST)
        assert (answer.status, answer.body["projects"]) == (201, None)
    everyone = {"gpu": None, "pair": None, "n0": None, "n1": None}
    for persona in ("admin", "operator", "member", "stranger"):
        assert listed(client, as_=persona, version=NEWEST) == everyone


def test_administrators_see_all_projects_of_a_private_profile(client: Client) -> None:
    assert create(client, people.OTHER, people.OWN)["projects"] == [people.OWN, people.OTHER]
    for persona in ("admin", "elsewhere-admin", "bare-admin", "operator"):
        shown = show(client, "secret", as_=persona, version=NEWEST).body["device_profile"]
        assert shown["projects"] == [people.OWN, people.OTHER]
        assert listed(client, as_=persona, version=NEWEST)["secret"] == shown["projects"]


def test_project_of_a_private_profile_sees_no_other_project(client: Client) -> None:
    create(client, people.OTHER, people.OWN, THIRD)
    for persona, project in {"member": people.OWN, "elsewhere-manager": people.OTHER}.items():
        answer = show(client, "secret", as_=persona, version=NEWEST)
        assert answer.body["device_profile"]["projects"] == [project]
        assert listed(client, as_=persona, version=NEWEST)["secret"] == [project]


@pytest.mark.parametrize("version", VERSIONS)
def test_other_projects_do_not_see_a_private_profile(client: Client, version: str | None) -> None:
    uuid = create(client, people.OWN)["uuid"]
    for persona in ("stranger", "elsewhere-manager"):
        for key in ("secret", uuid, uuid.upper()):
            answer = show(client, key, as_=persona, version=version)
            assert answer.status == 404
            assert answer.fault == show(client, "nothing", as_=persona).fault.replace(
                "nothing", key
            )
        assert list(listed(client, as_=persona, version=version)) == ["gpu", "pair"]
        assert listed(client, "?name=secret", as_=persona, version=version) == {}
        marker = client.send("GET", f"{PATH}?marker={uuid}", as_=persona, version=version)
        assert marker.status == 400
    for persona in ("member", "admin", "operator"):
        assert show(client, "secret", as_=persona, version=version).status == 200
        assert "secret" in listed(client, as_=persona, version=version)


@pytest.mark.parametrize("version", VERSIONS[:-1])
def test_older_microversions_do_not_have_projects(client: Client, version: str | None) -> None:
    create(client, people.OWN)
    assert "projects" not in show(client, "secret", version=version).body["device_profile"]
    assert listed(client, version=version)["secret"] == "absent"


WRONG: list[tuple[Any, str, str]] = [
    ([], "projects", "a list of 1 to 100 ids of projects, or null, is needed"),
    ("a", "projects", "a list of 1 to 100 ids of projects, or null, is needed"),
    ({"a": "b"}, "projects", "a list of 1 to 100 ids of projects, or null, is needed"),
    (False, "projects", "a list of 1 to 100 ids of projects, or null, is needed"),
    ([f"p{n}" for n in range(101)], "projects", "a list of 1 to 100 ids"),
    ([""], "projects[0]", ALLOWED),
    (["a", "b" * 65], "projects[1]", ALLOWED),
    (["a", "b", "c c"], "projects[2]", ALLOWED),
    (["a\n"], "projects[0]", ALLOWED),
    (["a_b"], "projects[0]", ALLOWED),
    (["\u0661"], "projects[0]", ALLOWED),
    ([None], "projects[0]", ALLOWED),
    ([7], "projects[0]", ALLOWED),
    ([["a"]], "projects[0]", ALLOWED),
    (["a", "b", "a"], "projects[2]", "given twice"),
]


@pytest.mark.parametrize(("value", "field", "reason"), WRONG)
def test_wrong_projects_are_refused_with_their_place(
    client: Client, value: Any, field: str, reason: str
) -> None:
    requests = [
        ("POST", PATH, [{**PRIVATE, "projects": value}]),
        ("PATCH", f"{PATH}/gpu", {"projects": value}),
    ]
    for method, path, body in requests:
        answer = client.send(method, path, body, version=NEWEST)
        assert answer.status == 400
        assert answer.fault.startswith(f"Invalid value for {field}: ")
        assert reason in answer.fault
    assert listed(client, version=NEWEST) == {"gpu": None, "pair": None}


def test_longest_list_of_longest_ids_is_stored(client: Client) -> None:
    projects = [f"{n:03d}-{'Z' * 60}" for n in range(100)]
    assert create(client, *reversed(projects))["projects"] == projects
    assert show(client, "secret", version=NEWEST).body["device_profile"]["projects"] == projects


def test_case_of_project_ids_counts(client: Client) -> None:
    create(client, people.OWN.upper())
    assert show(client, "secret", as_="member").status == 404


def test_update_replaces_projects_and_keeps_them_unless_given(client: Client) -> None:
    uuid = create(client, people.OWN)["uuid"]
    changes: list[tuple[dict[str, Any], list[str] | None]] = [
        ({"description": "d"}, [people.OWN]),
        ({"groups": PRIVATE["groups"]}, [people.OWN]),
        ({"projects": [people.OTHER, THIRD]}, [people.OTHER, THIRD]),
        ({"projects": [people.OTHER, THIRD]}, [people.OTHER, THIRD]),
        ({"name": "secret"}, [people.OTHER, THIRD]),
        ({"projects": None}, None),
        ({"projects": None, "description": None}, None),
        ({"projects": [people.OWN]}, [people.OWN]),
    ]
    for body, expected in changes:
        answer = client.send("PATCH", f"{PATH}/{uuid}", body, version=NEWEST)
        assert (answer.status, answer.body["projects"]) == (200, expected), body
        sees = {
            persona: show(client, "secret", as_=persona).status
            for persona in ("member", "stranger")
        }
        assert sees == {
            persona: 200 if expected is None or project in expected else 404
            for persona, project in {"member": people.OWN, "stranger": people.OTHER}.items()
        }


def test_update_without_projects_keeps_a_profile_private(client: Client) -> None:
    create(client, people.OWN)
    answer = client.send("PATCH", f"{PATH}/secret", {"description": "d"}, version=NEWEST)
    assert (answer.status, answer.body["projects"]) == (200, [people.OWN])
    assert show(client, "secret", as_="stranger").status == 404


def test_private_profile_can_be_deleted_and_its_name_used_again(client: Client) -> None:
    create(client, people.OWN)
    assert client.send("DELETE", f"{PATH}/secret").status == 204
    assert client.send("POST", PATH, [PRIVATE]).status == 201
    assert show(client, "secret", as_="stranger", version=NEWEST).status == 200


def test_arqs_of_a_private_profile_are_for_its_projects_only(
    client: Client, conductor: RecordedConductor
) -> None:
    create(client, people.OWN)
    body = {"device_profile_name": "secret"}
    missing = client.send(
        "POST", "/v2/accelerator_requests", {"device_profile_name": "nothing"}, as_="stranger"
    )
    for version in VERSIONS:
        for service in (None, "service"):
            sent: dict[str, Any] = {"version": version, "service": service}
            path = "/v2/accelerator_requests"
            refused = client.send("POST", path, body, as_="stranger", **sent)
            assert refused.status == 404
            assert refused.fault == missing.fault.replace("nothing", "secret")
            made = client.send("POST", path, body, as_="member", **sent)
            assert made.status == 201
            (arq,) = made.body["arqs"]
            assert (arq["device_profile_name"], arq["project_id"]) == ("secret", people.OWN)
    foreign = client.send("GET", "/v2/accelerator_requests", as_="stranger").body["arqs"]
    assert [arq["uuid"] for arq in foreign] == [FACTS["foreign"]]
    assert "secret" not in json.dumps(foreign)


def test_administrators_make_arqs_of_private_profiles_of_others(client: Client) -> None:
    """An administrator who evacuates the instance of a project lets Nova make its ARQs again."""
    create(client, THIRD)
    body = {"device_profile_name": "secret"}
    answer = client.send(
        "POST", "/v2/accelerator_requests", body, as_="elsewhere-admin", service="service"
    )
    assert answer.status == 201


def test_existing_arqs_of_a_profile_that_becomes_private_stay(client: Client) -> None:
    changed = client.send("PATCH", f"{PATH}/gpu", {"projects": [people.OWN]}, version=NEWEST)
    assert changed.status == 200
    answer = client.send("GET", "/v2/accelerator_requests/<foreign>", as_="stranger")
    assert (answer.status, answer.body["device_profile_name"]) == (200, "gpu")
    assert client.send("DELETE", "/v2/accelerator_requests/<foreign>", as_="stranger").status == 204
