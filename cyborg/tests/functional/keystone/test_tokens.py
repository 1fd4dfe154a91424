# SPDX-License-Identifier: Apache-2.0
"""Policy and scope with real tokens: checks 103 to 107 of a drop-in replacement."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from keystoneauth1.exceptions import Unauthorized
from keystoneauth1.identity import v3
from keystoneauth1.session import Session

from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.keystone.cloud import Cloud

COLLECTIONS = (
    "/accelerator_requests",
    "/attributes",
    "/deployables",
    "/device_profiles",
    "/devices",
)
#: Seconds that a short-lived token may live. A busy machine may need more than the first to get it.
LIVES = (2, 20, 200)


@pytest.fixture(scope="module")
def tokens(cloud: Cloud) -> dict[str, str]:
    """A token of everybody, by what they are."""
    return {name: cloud.keystone.token(one) for name, one in vars(cloud.people).items()}


def status(cloud: Cloud, token: str | None, path: str, url: str | None = None) -> int:
    return cloud.ask(path, token, url=url).status_code


def test_policy_file_overrides_rules(cloud: Cloud, tokens: dict[str, str], tmp_path: Path):
    file = tmp_path / "policy.yaml"
    file.write_text(
        '"cyborg:device:get_all": "role:member"\n"cyborg:arq:get_all": "rule:admin_api"\n'
    )
    assert status(cloud, tokens["member"], "/devices") == 403
    assert status(cloud, tokens["member"], "/accelerator_requests") == 200
    with cloud.api({"oslo_policy": {"policy_file": file}}) as url:
        assert status(cloud, tokens["member"], "/devices", url) == 200
        assert status(cloud, tokens["reader"], "/devices", url) == 403
        assert status(cloud, tokens["member"], "/accelerator_requests", url) == 403
        assert status(cloud, tokens["admin"], "/accelerator_requests", url) == 200


def test_new_policy_defaults_are_enforced_unless_switched_off(cloud: Cloud, tokens: dict[str, str]):
    found = {name: status(cloud, tokens[name], "/devices") for name in tokens}
    allowed = {"admin", "operator", "manager"}
    assert found == {name: 200 if name in allowed else 403 for name in tokens}
    with cloud.api({"oslo_policy": {"enforce_new_defaults": False}}) as url:
        assert status(cloud, tokens["member"], "/devices", url) == 200
        assert status(cloud, tokens["admin"], "/devices", url) == 200
        profile = [{"name": f"profile-{uuid4().hex}", "groups": [{"resources:FPGA": "1"}]}]
        refused = cloud.ask(
            "/device_profiles", tokens["member"], method="POST", body=profile, url=url
        )
        assert refused.status_code == 403


def test_token_without_project_scope_is_refused(cloud: Cloud):
    admin = cloud.people.admin
    cloud.keystone.grant_on_domain(admin, "admin")
    tokens = {
        cloud.keystone.domain_token(admin): 403,
        cloud.keystone.system_token(admin): 403,
        cloud.keystone.token(admin): 200,
        None: 401,
        "nonsense": 401,
    }
    for path in COLLECTIONS:
        assert {token: status(cloud, token, path) for token in tokens} == tokens, path


def test_service_token_without_service_role_is_refused(cloud: Cloud, tokens: dict[str, str]):
    for path in COLLECTIONS:
        answer = cloud.ask(path, tokens["admin"], service_token="nonsense")
        assert answer.status_code == 401
        assert "WWW-Authenticate" in answer.headers

    def delete(service_token: str | None, url: str | None = None) -> int:
        path = f"/accelerator_requests?instance={uuid4()}"
        answer = cloud.ask(
            path, tokens["admin"], service_token=service_token, method="DELETE", url=url
        )
        if answer.status_code == 403:
            assert "requires a service token" in answer.text.lower()
        return answer.status_code

    assert delete(None) == 403
    assert delete(tokens["nova"]) == 204
    # By default such a token is refused altogether; without that it is as good as none.
    assert delete(tokens["admin"]) == 401
    with cloud.api({"keystone_authtoken": {"service_token_roles_required": False}}) as url:
        assert delete(tokens["admin"], url) == 403
        assert delete(tokens["nova"], url) == 204


@pytest.fixture
def expiring(cloud: Cloud) -> str:
    """A token of the member that is about to expire."""
    for seconds in LIVES[:-1]:
        with suppress(Unauthorized):
            return short_lived(cloud, seconds)
    return short_lived(cloud, LIVES[-1])


def short_lived(cloud: Cloud, seconds: int) -> str:
    """A token made with a short-lived credential; raises Unauthorized if that has expired."""
    member = cloud.people.member
    session = cloud.keystone.session(member)
    user = session.get_user_id()
    until = datetime.now(UTC).replace(tzinfo=None) + timedelta(seconds=seconds)
    wanted = {"name": uuid4().hex, "expires_at": until.isoformat(), "unrestricted": False}
    made = session.post(
        f"{cloud.keystone.url}/users/{user}/application_credentials",
        json={"application_credential": wanted},
    ).json()["application_credential"]
    plugin = v3.ApplicationCredential(
        cloud.keystone.url,
        application_credential_id=made["id"],
        application_credential_secret=made["secret"],
    )
    token = Session(auth=plugin).get_token()
    assert token is not None
    return token


def test_expired_token_is_accepted_with_a_service_token(
    cloud: Cloud, expiring: str, tokens: dict[str, str]
):
    path = "/accelerator_requests"
    eventually(lambda: status(cloud, expiring, path) == 401, "the token expires")
    accepted = cloud.ask(path, expiring, service_token=tokens["nova"])
    assert accepted.status_code == 200
    assert accepted.json() == {"arqs": []}
    assert cloud.ask(path, expiring, service_token=tokens["admin"]).status_code == 401


def test_unreachable_keystone_is_not_reported_as_invalid_token(
    cloud: Cloud, tokens: dict[str, str]
):
    nowhere = {"auth_url": "http://127.0.0.1:1/v3", "http_request_max_retries": 0}
    with cloud.api({"keystone_authtoken": nowhere}) as url:
        assert status(cloud, tokens["admin"], "/devices", url) == 503
        assert status(cloud, None, "", url) == 200
