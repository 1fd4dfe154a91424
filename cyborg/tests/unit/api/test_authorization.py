# SPDX-License-Identifier: Apache-2.0
"""Who may do what: the matrix of personas, scopes of tokens, the policy file; lines 103 to 107."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from oslo_utils import timeutils

from cyborg.tests.unit.api import people
from cyborg.tests.unit.api.conductor import RecordedConductor
from cyborg.tests.unit.api.world import Client

MakeClient = Callable[..., Client]

PROFILES = ("GET", "/v2/device_profiles", None)
PROFILE = ("GET", "/v2/device_profiles/gpu", None)
CREATE_PROFILE = (
    "POST",
    "/v2/device_profiles",
    [{"name": "new", "groups": [{"resources:FPGA": "1"}]}],
)
DELETE_PROFILE = ("DELETE", "/v2/device_profiles/pair", None)
ARQS = ("GET", "/v2/accelerator_requests", None)
ARQ = ("GET", "/v2/accelerator_requests/<arq>", None)
CREATE_ARQ = ("POST", "/v2/accelerator_requests", {"device_profile_name": "gpu"})
DELETE_ARQ = ("DELETE", "/v2/accelerator_requests?arqs=<arq>", None)
UNBIND = (
    "PATCH",
    "/v2/accelerator_requests",
    {"<bound>": [{"op": "remove", "path": "/hostname"}]},
)
DEVICES = ("GET", "/v2/devices", None)
DEVICE = ("GET", "/v2/devices/<device>", None)
DEPLOYABLES = ("GET", "/v2/deployables", None)
DEPLOYABLE = ("GET", "/v2/deployables/<deployable>", None)
ATTRIBUTES = ("GET", "/v2/attributes", None)
ATTRIBUTE = ("GET", "/v2/attributes/<attribute>", None)
DISABLE = ("POST", "/v2/devices/<device>/disable", None)
ENABLE = ("POST", "/v2/devices/<device>/enable", None)
PROGRAM = (
    "PATCH",
    "/v2/deployables/<deployable>/program",
    [{"path": "/program", "op": "replace", "value": [{"image_uuid": "<image>"}]}],
)
CREATE_ATTRIBUTE = (
    "POST",
    "/v2/attributes",
    {"deployable_id": "<deployable>", "key": "k", "value": "v"},
)
DELETE_ATTRIBUTE = ("DELETE", "/v2/attributes/<attribute>", None)

UPDATE_PROFILE = ("PATCH", "/v2/device_profiles/pair", {"description": "d"})

ORDER_DEVICE = ("PATCH", "/v2/devices/<device>", {"status": "ready"})
DELETE_DEVICE = ("DELETE", "/v2/devices/<device>", None)
LABEL_DEVICE = ("PATCH", "/v2/devices/<device>", {"labels": {"rack": "7"}})

READ_PROFILES = [PROFILES, PROFILE]
READ_ARQS = [ARQS, ARQ]
WRITE_ARQS = [CREATE_ARQ, DELETE_ARQ, UNBIND]
READ_HARDWARE = [DEVICES, DEVICE, DEPLOYABLES, DEPLOYABLE, ATTRIBUTES, ATTRIBUTE]
ADMINISTER = [
    CREATE_PROFILE,
    DELETE_PROFILE,
    DISABLE,
    ENABLE,
    PROGRAM,
    CREATE_ATTRIBUTE,
    DELETE_ATTRIBUTE,
]
EVERYTHING = READ_PROFILES + READ_ARQS + WRITE_ARQS + READ_HARDWARE + ADMINISTER

#: requests, and who may send them
ENFORCED: list[tuple[list[Any], set[str]]] = [
    (READ_PROFILES, {"admin", "bare-admin", "manager", "member", "reader"}),
    (READ_ARQS, {"admin", "bare-admin", "manager", "member", "reader", "service"}),
    (WRITE_ARQS, {"admin", "manager", "member", "service"}),
    (READ_HARDWARE, {"admin", "bare-admin", "manager"}),
    (ADMINISTER, {"admin", "bare-admin"}),
]
ALL = {"admin", "bare-admin", "manager", "member", "reader", "service", "nobody"}
RELAXED: list[tuple[list[Any], set[str]]] = [
    (READ_PROFILES, ALL),
    (READ_ARQS, ALL),
    (WRITE_ARQS, ALL),
    (READ_HARDWARE, ALL),
    (ADMINISTER, {"admin", "bare-admin"}),
]


#: The same for requests of the newest microversion, whatever defaults are in force.
OPERATED: list[tuple[list[Any], set[str]]] = [
    ([UPDATE_PROFILE], {"admin", "bare-admin", "operator"}),
    ([ENABLE, DISABLE, DELETE_DEVICE], {"admin", "bare-admin", "operator"}),
    # To a stranger the device is not there.
    ([ORDER_DEVICE], {"admin", "bare-admin", "operator", "stranger"}),
    (
        [DEVICES, DEVICE],
        {"admin", "bare-admin", "operator", "manager", "member", "reader", "stranger"},
    ),
    ([LABEL_DEVICE], {"admin", "bare-admin", "operator", "manager", "member", "stranger"}),
]


def allowed(client: Client, request: Any, as_: str, version: str | None = None) -> bool:
    method, path, body = request
    answer = client.send(method, path, body, as_=as_, service="service", version=version)
    # Who may ask, but not see another project's, gets 404.
    assert answer.status in (200, 201, 202, 204, 403, 404, 409)
    return answer.status != 403


@pytest.mark.parametrize("as_", sorted(ALL))
@pytest.mark.parametrize(("requests", "who"), ENFORCED)
def test_new_policy_defaults_are_enforced(
    client: Client, requests: list[Any], who: set[str], as_: str
) -> None:
    for request in requests:
        assert allowed(client, request, as_) == (as_ in who), request


@pytest.mark.filterwarnings("ignore:Policy:UserWarning")
@pytest.mark.parametrize("as_", sorted(ALL))
def test_enforce_new_defaults_false_relaxes_rules(make_client: MakeClient, as_: str) -> None:
    client = make_client("[oslo_policy]\nenforce_new_defaults = false\n")
    for requests, who in RELAXED:
        for request in requests:
            assert allowed(client, request, as_) == (as_ in who), request


@pytest.mark.parametrize("as_", sorted({*ALL, "operator", "stranger"}))
@pytest.mark.parametrize(("requests", "who"), OPERATED)
def test_operators_without_admin_role_use_their_rules(
    client: Client, requests: list[Any], who: set[str], as_: str
) -> None:
    for request in requests:
        assert allowed(client, request, as_, "accelerator 2.4") == (as_ in who), request


@pytest.mark.parametrize("as_", ["system-admin", "domain-admin"])
def test_token_without_project_scope_is_refused(
    client: Client, conductor: RecordedConductor, as_: str
) -> None:
    for method, path, body in EVERYTHING:
        answer = client.send(method, path, body, as_=as_, service="service")
        assert (answer.status, bool(answer.fault)) == (403, True)
    assert conductor.calls == []


def test_policy_file_overrides_rules_by_name(make_client: MakeClient, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        '"cyborg:device:get_all": "role:reader"\n"cyborg:arq:get_all": "role:heat_stack_user"\n'
    )
    client = make_client(f"[oslo_policy]\npolicy_file = {path}\n")
    assert allowed(client, DEVICES, "member")
    assert not allowed(client, DEVICE, "member")
    assert not allowed(client, ARQS, "member")
    # A rule that does not ask for the project gives the requests of all projects.
    listed = client.send(*ARQS[:2], as_="nobody").body["arqs"]
    assert {arq["project_id"] for arq in listed} == {people.OWN, people.OTHER}


def test_scope_is_checked_by_its_own_rule(make_client: MakeClient, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text('"cyborg:arq:all_projects": "role:manager"\n')
    client = make_client(f"[oslo_policy]\npolicy_file = {path}\n")
    assert client.send("DELETE", "/v2/accelerator_requests/<foreign>", as_="member").status == 404
    assert client.send("DELETE", "/v2/accelerator_requests/<foreign>", as_="manager").status == 204


def test_an_administrator_reaches_every_project(client: Client) -> None:
    assert (
        client.send("DELETE", "/v2/accelerator_requests/<arq>", as_="elsewhere-admin").status == 204
    )


@pytest.mark.parametrize("token", ["forged", "no-service", "expired-member"])
@pytest.mark.parametrize("request_", [ARQS, UNBIND])
def test_invalid_service_token_is_refused_with_401(
    client: Client, conductor: RecordedConductor, token: str, request_: Any
) -> None:
    answer = client.send(*request_, as_="admin", service=token)
    assert answer.status == 401
    assert conductor.calls == []


def test_service_token_without_role_does_not_count_when_roles_are_optional(
    make_client: MakeClient,
) -> None:
    client = make_client("service_token_roles_required = false\n")
    assert client.send(*ARQS, as_="member", service="no-service").status == 200
    answer = client.send(*UNBIND, as_="member", service="no-service")
    assert answer.status == 403
    assert "requires a service token" in answer.fault


def test_service_token_roles_option_sets_accepted_roles(make_client: MakeClient) -> None:
    client = make_client("service_token_roles = nova,member\n")
    assert client.send(*UNBIND, as_="member", service="no-service").status == 202


def test_expired_token_is_accepted_with_a_service_token(client: Client, tokens: Any) -> None:
    # The fixture refuses what has expired, as Keystone does for one who may not ask; so the user's
    # token is answered as Keystone answers a service: with its past.
    expired = timeutils.utcnow() - timedelta(hours=1)
    tokens.add_token_data(
        token_id="old", project_id=people.OWN, role_list=["reader"], expires=expired
    )
    tokens._assert_token_not_expired = lambda moment: None
    assert client.send(*ARQS, as_="old").status == 401
    assert client.send(*ARQS, as_="old", service="service").status == 200


def test_identity_headers_of_a_client_are_ignored(client: Client) -> None:
    forged = {"X-Roles": "admin", "X-Project-Id": people.OTHER, "X-Service-Roles": "service"}
    answer = client.send("GET", "/v2/devices", as_="member", headers=forged)
    assert answer.status == 403
    unbind = client.send(*UNBIND, as_="member", headers=forged)
    assert unbind.status == 403


def test_caller_is_authorized_without_a_token(client: Client, conductor: RecordedConductor) -> None:
    client.send(*CREATE_ARQ, as_="member", service="service")
    [(_, caller, _)] = conductor.calls
    assert caller.project_id == people.OWN
    assert caller.user_id == "user-of-member"
    assert caller.service
    assert not caller.all_projects
    assert "member" not in caller.request_id
