# SPDX-License-Identifier: Apache-2.0
"""Attach and detach over HTTP: policy, the calls to the conductor, and the answers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cyborg import exception
from cyborg.tests.unit.api import people
from cyborg.tests.unit.api.conductor import RecordedConductor
from cyborg.tests.unit.api.world import Client, uuid_of

PLACE = "/v2/instances/<instance>/accelerators"
VERBS: list[tuple[str, str, Any]] = [
    ("POST", PLACE, {}),
    ("DELETE", PLACE, None),
    ("DELETE", f"{PLACE}/<bound>", None),
]
INSTANCE = uuid_of("instance")


@pytest.mark.parametrize(("method", "path", "body"), VERBS)
@pytest.mark.parametrize(
    ("who", "status"),
    [
        ("admin", 503),
        ("operator", 503),
        ("manager", 403),
        ("member", 403),
        ("reader", 403),
        ("stranger", 403),
        ("nobody", 403),
        (None, 401),
    ],
)
def test_role_decides_who_attaches(
    client: Client, who: str | None, status: int, *, method: str, path: str, body: Any
):
    answer = client.send(method, path, body, as_=who, version="accelerator 2.4")
    assert answer.status == status
    # The conductor has been asked, and asks Nova next.
    assert (status != 503) or answer.fault.startswith("Nova is not available")


@pytest.mark.parametrize(("method", "path", "body"), VERBS)
@pytest.mark.parametrize("version", [None, "accelerator 2.3"])
def test_attach_is_not_served_before_2_4(
    client: Client,
    conductor: RecordedConductor,
    version: str | None,
    *,
    method: str,
    path: str,
    body: Any,
):
    assert client.send(method, path, body, version=version).status == 404
    assert conductor.calls == []


@pytest.mark.parametrize(
    ("method", "path", "body", "passed"),
    [
        ("POST", PLACE, {}, ("attach", {"instance_uuid": INSTANCE, "profile_name": None})),
        (
            "POST",
            PLACE,
            {"device_profile": "gpu"},
            ("attach", {"instance_uuid": INSTANCE, "profile_name": "gpu"}),
        ),
        ("DELETE", PLACE, None, ("detach", {"instance_uuid": INSTANCE, "arq_uuid": None})),
        (
            "DELETE",
            f"{PLACE}/<bound>",
            None,
            ("detach", {"instance_uuid": INSTANCE, "arq_uuid": uuid_of("bound")}),
        ),
    ],
)
def test_attach_and_detach_call_the_conductor(
    client: Client,
    conductor: RecordedConductor,
    *,
    method: str,
    path: str,
    body: Any,
    passed: tuple[str, Any],
):
    client.send(method, path, body, as_="operator", version="accelerator 2.4")
    ((verb, caller, arguments),) = conductor.calls
    assert (verb, arguments) == passed
    assert (caller.project_id, caller.all_projects) == (people.OTHER, True)


def test_policy_may_allow_owners_to_attach(
    make_client: Callable[..., Client], conductor: RecordedConductor, tmp_path: Path
):
    path = tmp_path / "policy.yaml"
    rule = "rule:operator_api or rule:project_member_api"
    path.write_text(f'"cyborg:instance:attach": "{rule}"\n')
    client = make_client(f"[oslo_policy]\npolicy_file = {path}\n")
    answer = client.send("POST", PLACE, {}, as_="member", version="accelerator 2.4")
    assert answer.status == 503
    ((_, caller, _),) = conductor.calls
    assert (caller.project_id, caller.all_projects) == (people.OWN, False)
    answer = client.send("DELETE", PLACE, as_="member", version="accelerator 2.4")
    assert answer.status == 403


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (exception.NotFound(noun="Instance", key="x"), 404),
        (exception.CannotAttach(instance="x", reason="it is PAUSED"), 409),
        (exception.NoFreeHandle(provider="x", requested=1), 409),
        (exception.Unavailable(peer="Nova", reason="it is away"), 503),
    ],
)
def test_errors_of_the_conductor_are_returned(
    client: Client, conductor: RecordedConductor, fault: Exception, status: int
):
    conductor.fault = fault
    answer = client.send("POST", PLACE, {}, version="accelerator 2.4")
    assert (answer.status, answer.fault) == (status, str(fault))


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", PLACE, None, 400),
        ("POST", PLACE, [], 400),
        ("POST", PLACE, "x", 400),
        ("POST", PLACE, {"device_profile": ""}, 400),
        ("POST", PLACE, {"device_profile": 1}, 400),
        ("POST", PLACE, {"device_profile": "\0"}, 400),
        ("POST", PLACE, {"profile": "gpu"}, 400),
        ("POST", "/v2/instances/x/accelerators", {}, 400),
        ("DELETE", f"{PLACE}/x", None, 400),
        ("DELETE", f"{PLACE}?force=true", None, 400),
        ("GET", PLACE, None, 405),
        ("GET", "/v2/instances", None, 404),
    ],
)
def test_invalid_attach_requests_are_refused(
    client: Client, conductor: RecordedConductor, *, method: str, path: str, body: Any, status: int
):
    assert client.send(method, path, body, version="accelerator 2.4").status == status
    assert conductor.calls == []
