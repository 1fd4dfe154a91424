# SPDX-License-Identifier: Apache-2.0
"""Who counts as Nova, and the log of refusals."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from keystoneauth1 import fixture as keystone

from cyborg.tests.unit.api import people
from cyborg.tests.unit.api.world import Client

MakeClient = Callable[..., Client]
UNBIND = "PATCH /v2/accelerator_requests"
BODY = {"<bound>": [{"op": "remove", "path": "/hostname"}]}
SHOW_FOREIGN = "GET /v2/accelerator_requests/<foreign>"


def unbind(client: Client, as_: str, service: str | None) -> int:
    return client.ask(UNBIND, BODY, as_=as_, service=service).status


@pytest.fixture
def named(tokens: Any) -> None:
    """Two users of the same name with the role service, in different domains."""
    for domain in ("default", "customer"):
        token = keystone.V3Token(
            user_id=f"nova-of-{domain}", user_name="nova", user_domain_id=domain
        )
        token.set_project_scope(id=people.SERVICES)
        token.add_role(name="service")
        tokens.add_token(token, f"nova-of-{domain}")


def test_service_role_alone_is_not_nova(client: Client) -> None:
    assert client.ask(SHOW_FOREIGN, as_="service").status == 404
    assert unbind(client, "service", None) == 403
    # Nobody vouches for itself.
    assert unbind(client, "service", "service") == 403
    assert unbind(client, "service", "nova") == 202
    assert unbind(client, "member", "service") == 202


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize("user", ["nova", "nova-of-default"])
def test_service_token_counts_for_compute_users_only(make_client: MakeClient, user: str) -> None:
    client = make_client(f"[api]\ncompute_users = {user},glance\n")
    assert unbind(client, "member", "service") == 403
    assert unbind(client, "member", "nova-of-customer") == 403
    assert unbind(client, "member", "nova-of-default") == 202


@pytest.mark.usefixtures("named")
def test_compute_user_needs_no_service_token(make_client: MakeClient) -> None:
    client = make_client("[api]\ncompute_users = nova,user-of-member\n")
    assert client.ask(SHOW_FOREIGN, as_="nova-of-default").status == 200
    assert client.ask(SHOW_FOREIGN, as_="nova-of-customer").status == 404
    # A listed user without the role of services is a user.
    assert unbind(client, "member", None) == 403
    assert unbind(client, "nova-of-customer", None) == 403
    assert unbind(client, "nova-of-default", None) == 202


@pytest.mark.parametrize(
    ("request_", "as_", "rule", "reason"),
    [
        ("GET /v2/devices/<device>", "nobody", "cyborg:device:get_one", "Policy does not allow"),
        ("GET /v2/devices?sort_key=hostname", "member", "cyborg:device:get_all", "Lists by"),
        ("PATCH /v2/accelerator_requests", "member", "cyborg:arq:update", "requires a service"),
        ("GET /v2/devices", "system-admin", "cyborg:device:get_all", "Policy does not allow"),
    ],
)
def test_refusal_is_logged_once(
    client: Client,
    caplog: pytest.LogCaptureFixture,
    request_: str,
    as_: str,
    rule: str,
    reason: str,
) -> None:
    body = BODY if request_ == UNBIND else None
    with caplog.at_level(logging.DEBUG):
        answer = client.ask(request_, body, as_=as_, version="2.100")
    assert answer.status == 403
    (record,) = [one for one in caplog.records if " denied by " in one.message]
    assert record.levelname == "WARNING"
    id_ = answer.headers["X-OpenStack-Request-ID"]
    project = None if as_ == "system-admin" else people.OWN
    user = "user-of-admin" if project is None else f"user-of-{as_}"
    path = request_.split("?")[0].replace("<device>", "{id}")
    start = f"{path} of user {user} of project {project} denied by {rule} (request {id_}): "
    assert record.message.startswith(start)
    assert reason in record.message


def test_requests_that_are_answered_log_no_refusal(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    # The rule of operators refuses it, and the rule of projects allows it.
    assert client.ask("GET /v2/devices", as_="member", version="2.100").status == 200
    assert client.ask("GET /v2/devices/<lost>", as_="member", version="2.100").status == 404
    assert " denied by " not in caplog.text
