# SPDX-License-Identifier: Apache-2.0
"""Who may do what: the matrix of personas, scopes of tokens, the policy file; lines 103 to 107."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from oslo_utils import timeutils

from cyborg.tests.unit.api import people
from cyborg.tests.unit.api.world import NEW_DEVICE, Answer, Client

MakeClient = Callable[..., Client]

Requests = tuple[str, ...]
UNBIND = "PATCH /v2/accelerator_requests"
ARQS = "GET /v2/accelerator_requests"
DELETE_ARQ = "DELETE /v2/accelerator_requests"
CREATE_ARQ = "POST /v2/accelerator_requests"
DEVICES, DEVICE = "GET /v2/devices", "GET /v2/devices/<device>"
#: Requests with a body → the body.
BODIES: Mapping[str, Any] = {
    "POST /v2/device_profiles": [{"name": "new", "groups": [{"resources:FPGA": "1"}]}],
    CREATE_ARQ: {"device_profile_name": "gpu"},
    UNBIND: {"<bound>": [{"op": "remove", "path": "/hostname"}]},
    "PATCH /v2/deployables/<deployable>/program": [
        {"path": "/program", "op": "replace", "value": [{"image_uuid": "<image>"}]}
    ],
    "POST /v2/attributes": {"deployable_id": "<deployable>", "key": "k", "value": "v"},
    "PATCH /v2/device_profiles/pair": {"description": "d"},
    "PATCH /v2/devices/<device>": {"status": "ready"},
    "PATCH /v2/devices/<lost>": {"labels": {"rack": "7"}},
    "POST /v2/devices": NEW_DEVICE,
    "POST /v2/drivers": {"driver": "d"},
    "PATCH /v2/drivers/card_driver": {"enabled": True},
    "POST /v2/services/discover": {},
    "POST /v2/instances/<instance>/accelerators": {},
    "PATCH /v2/services/<random>": {"status": "enabled"},
}
READ_PROFILES = ("GET /v2/device_profiles", "GET /v2/device_profiles/gpu")
READ_ARQS = (ARQS, f"{ARQS}/<arq>")
WRITE_ARQS = (CREATE_ARQ, f"{DELETE_ARQ}?arqs=<arq>", UNBIND)
READ_DEVICES = (DEVICES, DEVICE)
READ_HARDWARE = (
    *("GET /v2/deployables", "GET /v2/deployables/<deployable>"),
    *("GET /v2/attributes", "GET /v2/attributes/<attribute>"),
)
ADMINISTER = (
    *("POST /v2/device_profiles", "DELETE /v2/device_profiles/pair"),
    "PATCH /v2/deployables/<deployable>/program",
    *("POST /v2/attributes", "DELETE /v2/attributes/<attribute>"),
)
SWITCH = ("POST /v2/devices/<device>/disable", "POST /v2/devices/<device>/enable")
ADMINS = {"admin", "bare-admin"}
OPERATORS = {*ADMINS, "operator"}
READERS = {*OPERATORS, "manager", "member", "reader", "stranger"}
ALL = {*READERS, "service", "nobody"}
#: Requests, and who may send them.
ENFORCED: list[tuple[Requests, set[str]]] = [
    (READ_PROFILES, READERS),
    (READ_ARQS, {*READERS, "service"}),
    (WRITE_ARQS, {"admin", "manager", "member", "operator", "stranger", "service"}),
    (READ_DEVICES, {*OPERATORS, "manager"}),
    (READ_HARDWARE, {*ADMINS, "manager"}),
    (ADMINISTER, ADMINS),
    (SWITCH, OPERATORS),
]
RELAXED: list[tuple[Requests, set[str]]] = [
    ((*READ_PROFILES, *READ_ARQS, *WRITE_ARQS[1:], *READ_DEVICES, *READ_HARDWARE), ALL),
    # A user with any role must not create ARQs.
    ((CREATE_ARQ,), ALL - {"reader", "nobody"}),
    (ADMINISTER, ADMINS),
    (SWITCH, OPERATORS),
]
#: What 2.100 adds and nobody has below.
NEWER_FOR_OPERATORS = (
    *("PATCH /v2/device_profiles/pair", "POST /v2/devices", "DELETE /v2/devices/<device>"),
    *("POST /v2/drivers", "PATCH /v2/drivers/card_driver", "DELETE /v2/drivers/card_driver"),
    *("POST /v2/services/discover", "PATCH /v2/services/<random>", "DELETE /v2/services/<random>"),
    "POST /v2/instances/<instance>/accelerators",
    *(f"DELETE /v2/instances/<instance>/accelerators{arq}" for arq in ("", "/<bound>")),
)
NEWER_READ = tuple(
    f"GET /v2/{noun}{one}"
    for noun in ("services", "backends", "drivers", "hardware")
    for one in ("", "/<random>")
)
#: The same for requests of the newest microversion; to a stranger a device is not there.
OPERATED: list[tuple[Requests, set[str]]] = [
    (NEWER_FOR_OPERATORS, OPERATORS),
    (SWITCH, OPERATORS),
    (("PATCH /v2/devices/<device>",), {*OPERATORS, "stranger"}),
    (("PATCH /v2/devices/<lost>",), READERS - {"reader"}),
    (READ_DEVICES, READERS),
    (NEWER_READ, {*OPERATORS, "manager"}),
    (("GET /v2/events",), OPERATORS),
    (("GET /v2/usage", "GET /v2/capacity", "GET /v2/limits", "GET /v2/operations"), READERS),
]
NEWER = (
    *NEWER_FOR_OPERATORS,
    *("PATCH /v2/devices/<device>", *NEWER_READ),
    *("GET /v2/usage", "GET /v2/limits", "GET /v2/operations", "GET /v2/operations/<random>"),
    *("GET /v2/capacity", "GET /v2/events"),
)


def ask(client: Client, request: str, as_: str | None, **sent: Any) -> Answer:
    return client.ask(request, BODIES.get(request), as_=as_, **sent)


def allowed(client: Client, request: str, as_: str, version: str | None = None) -> bool:
    answer = ask(client, request, as_, service="nova", version=version)
    # Who may ask, but not see another project's, gets 404; attach and detach ask Nova first.
    assert answer.status in (200, 201, 202, 204, 403, 404, 409, 503)
    assert answer.status != 503 or answer.fault.startswith("Nova is not available")
    return answer.status != 403


@pytest.mark.parametrize("as_", sorted(ALL))
def test_role_decides_about_every_request(client: Client, as_: str) -> None:
    for version, rights in ((None, ENFORCED), ("2.100", OPERATED)):
        for requests, who in rights:
            for request in requests:
                assert allowed(client, request, as_, version) == (as_ in who), request


@pytest.mark.filterwarnings("ignore:Policy:UserWarning")
def test_enforce_new_defaults_false_relaxes_rules(make_client: MakeClient) -> None:
    client = make_client("[oslo_policy]\nenforce_new_defaults = false\n")
    for as_ in sorted(ALL):
        for requests, who in RELAXED:
            for request in requests:
                assert allowed(client, request, as_) == (as_ in who), (as_, request)


@pytest.mark.parametrize("as_", ["system-admin", "domain-admin", None])
def test_token_without_project_scope_is_refused(client: Client, as_: str | None) -> None:
    for version, rights in ((None, ENFORCED), ("2.100", OPERATED)):
        for request in (request for requests, _ in rights for request in requests):
            answer = ask(client, request, as_, service="nova", version=version)
            assert answer.status == (401 if as_ is None else 403), request
            assert as_ is None or answer.fault
    assert client.calls == []


def test_newer_requests_are_not_served_below_their_microversion(client: Client) -> None:
    for request in NEWER:
        for version in (None, "2.0", "2.3"):
            answer = ask(client, request, "admin", version=version)
            assert (answer.status, "2.100" in answer.fault) == (404, True), request
    assert client.calls == []


def test_members_see_usage_of_their_project_only(client: Client) -> None:
    def usage(as_: str) -> list[dict[str, Any]]:
        answer = ask(client, "GET /v2/usage?group_by=type,project_id", as_, version="2.100")
        rows: list[dict[str, Any]] = answer.body["usage"]
        return rows

    group = {"resource_class": "FPGA", "type": "FPGA", "host": None, "project_id": None}
    free = {"total": 6, "used": 0, "free": 2, "out_of_service": 4, "reasons": {"lost": 4}}
    used = {"total": 2, "used": 2, "free": 0, "out_of_service": 0, "reasons": {}}
    mine = {**group, "project_id": people.OWN, **used}
    for as_ in ("manager", "member", "reader"):
        assert usage(as_) == [mine]
    assert usage("stranger") == []
    for as_ in ("operator", "admin"):
        assert usage(as_) == [{**group, **free}, mine]


def test_policy_file_overrides_rules_by_name(with_rules: MakeClient) -> None:
    rules = {"cyborg:device:get_all": "role:reader", "cyborg:arq:get_all": "role:heat_stack_user"}
    client = with_rules(rules)
    assert allowed(client, DEVICES, "member")
    assert not allowed(client, DEVICE, "member")
    assert not allowed(client, ARQS, "member")
    # A rule that does not ask for the project gives the requests of all projects.
    listed = ask(client, ARQS, "nobody").body["arqs"]
    assert {arq["project_id"] for arq in listed} == {people.OWN, people.OTHER}


def test_policy_may_allow_owners_to_attach(with_rules: MakeClient) -> None:
    client = with_rules({"cyborg:instance:attach": "rule:operator_api or rule:project_member_api"})
    attach, detach, _ = NEWER_FOR_OPERATORS[-3:]
    assert ask(client, attach, "member", version="2.100").status == 503
    ((_, caller, _),) = client.calls
    assert (caller.project_id, caller.all_projects) == (people.OWN, False)
    assert ask(client, detach, "member", version="2.100").status == 403


#: Rule → a request that changes hardware, and the answer to a project that holds no unit of it.
CHANGES: Mapping[str, tuple[str, int]] = {
    "cyborg:device:enable": ("POST /v2/devices/<device>/enable", 404),
    "cyborg:device:disable": ("POST /v2/devices/<device>/disable", 404),
    "cyborg:device:update": ("PATCH /v2/devices/<device>", 404),
    "cyborg:device:create": ("POST /v2/devices", 403),
    "cyborg:device:delete": ("DELETE /v2/devices/<lost>", 403),
    "cyborg:deployable:program": ("PATCH /v2/deployables/<deployable>/program", 404),
    "cyborg:attribute:create": ("POST /v2/attributes", 403),
    "cyborg:attribute:delete": ("DELETE /v2/attributes/<attribute>", 403),
    "cyborg:driver:install": ("POST /v2/drivers", 403),
    "cyborg:driver:update": ("PATCH /v2/drivers/card_driver", 403),
    "cyborg:driver:uninstall": ("DELETE /v2/drivers/card_driver", 403),
    "cyborg:service:discover": ("POST /v2/services/discover", 403),
    "cyborg:service:update": ("PATCH /v2/services/<random>", 403),
    "cyborg:service:delete": ("DELETE /v2/services/<random>", 403),
}


def test_rule_of_a_project_changes_only_hardware_that_it_holds(with_rules: MakeClient) -> None:
    client = with_rules(dict.fromkeys(CHANGES, "rule:project_manager_api"))
    for request, status in CHANGES.values():
        answer = ask(client, request, "elsewhere-manager", version="2.100")
        assert answer.status == status, (request, answer.fault)
    request, _ = CHANGES["cyborg:device:disable"]
    assert ask(client, request, "manager", version="2.100").status == 204


@pytest.mark.parametrize(
    "request_",
    ["DELETE /v2/devices/<lost>", "DELETE /v2/drivers/<random>"],
    ids=("device", "driver"),
)
def test_only_administrators_remove_units_that_are_not_cleaned(
    client: Client, request_: str
) -> None:
    refused = ask(client, f"{request_}?force=true", "operator", version="2.100")
    assert refused.status == 403
    assert "cyborg:device:leave_unclean" in refused.fault
    assert client.calls == []
    assert ask(client, f"{request_}?force=false", "operator", version="2.100").status != 403
    assert ask(client, f"{request_}?force=true", "admin", version="2.100").status != 403
    assert [arguments["force"] for _, _, arguments in client.calls] == [None, True]


def test_policy_is_checked_before_the_body(client: Client) -> None:
    assert client.send("POST", "/v2/device_profiles", "nonsense", as_="member").status == 403


def test_scope_is_checked_by_its_own_rule(client: Client, with_rules: MakeClient) -> None:
    widened = with_rules({"cyborg:arq:all_projects": "role:manager"})
    assert ask(widened, f"{DELETE_ARQ}/<foreign>", "member").status == 404
    assert ask(widened, f"{DELETE_ARQ}/<foreign>", "manager").status == 204
    assert ask(client, f"{DELETE_ARQ}/<arq>", "elsewhere-admin").status == 204


def test_invalid_service_token_is_refused_with_401(client: Client) -> None:
    for token in ("forged", "no-service", "expired-member"):
        for request in (ARQS, UNBIND):
            assert ask(client, request, "admin", service=token).status == 401, (token, request)
    assert client.calls == []


def test_options_set_roles_of_service_tokens(make_client: MakeClient) -> None:
    client = make_client("service_token_roles_required = false\n")
    assert ask(client, ARQS, "member", service="no-service").status == 200
    answer = ask(client, UNBIND, "member", service="no-service")
    assert answer.status == 403
    assert "requires a service token" in answer.fault
    client = make_client("service_token_roles = nova,member\n")
    assert ask(client, UNBIND, "member", service="no-service").status == 202


def test_expired_token_is_accepted_with_a_service_token(client: Client, tokens: Any) -> None:
    # The fixture refuses what has expired, as Keystone does for one who may not ask; so the user's
    # token is answered as Keystone answers a service: with its past.
    expired = timeutils.utcnow() - timedelta(hours=1)
    tokens.add_token_data(
        token_id="old", project_id=people.OWN, role_list=["reader"], expires=expired
    )
    tokens._assert_token_not_expired = lambda moment: None
    assert ask(client, ARQS, "old").status == 401
    assert ask(client, ARQS, "old", service="nova").status == 200


def test_identity_headers_of_a_client_are_ignored(client: Client) -> None:
    forged = {"X-Roles": "admin", "X-Project-Id": people.OTHER, "X-Service-Roles": "service"}
    for request in (DEVICES, UNBIND):
        assert ask(client, request, "member", headers=forged).status == 403


def test_caller_is_authorized_without_a_token(client: Client) -> None:
    ask(client, CREATE_ARQ, "member", service="nova")
    [(_, caller, _)] = client.calls
    assert caller.project_id == people.OWN
    assert caller.user_id == "user-of-member"
    assert caller.service
    assert not caller.all_projects
    assert "member" not in caller.request_id
