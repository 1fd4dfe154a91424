# SPDX-License-Identifier: Apache-2.0
"""``auth_strategy = noauth``: an administrator for everybody, on one machine."""

from collections.abc import Callable
from typing import Any

import pytest

from cyborg import exception
from cyborg.api.middleware.auth_token import PROJECT_ID, is_loopback
from cyborg.tests.unit.api.conductor import RecordedConductor
from cyborg.tests.unit.api.world import Client

MakeClient = Callable[..., Client]
NOAUTH = "[api]\nauth_strategy = noauth\n"
ARQS = "/v2/accelerator_requests"


@pytest.mark.parametrize("token", [None, "anything", "member"])
def test_noauth_makes_every_caller_admin_with_service_token(
    make_client: MakeClient, conductor: RecordedConductor, token: str | None
) -> None:
    client = make_client(NOAUTH)
    assert client.send("GET", "/v2/devices", as_=token).status == 200
    created = client.send("POST", ARQS, {"device_profile_name": "gpu"}, as_=token)
    assert created.body["arqs"][0]["project_id"] == PROJECT_ID
    assert client.send("DELETE", f"{ARQS}?instance=<instance>", as_=token).status == 204
    assert client.send("DELETE", f"{ARQS}/<foreign>", as_=token).status == 204
    assert conductor.calls[0][1].service


def test_noauth_takes_project_from_a_header(make_client: MakeClient) -> None:
    client = make_client(NOAUTH)
    headers = {"X-Project-Id": "b" * 32, "X-Roles": "reader", "OpenStack-System-Scope": "all"}
    created = client.send("POST", ARQS, {"device_profile_name": "gpu"}, as_=None, headers=headers)
    assert created.body["arqs"][0]["project_id"] == "b" * 32


@pytest.mark.parametrize("address", ["192.0.2.1", "2001:db8::1", "nonsense"])
def test_noauth_refuses_remote_clients(make_client: MakeClient, address: str) -> None:
    for_me = make_client(NOAUTH)
    refused = for_me.send("GET", "/v2/devices", environ={"REMOTE_ADDR": address})
    assert refused.status == 403
    assert "noauth" in refused.fault
    for_all = make_client(NOAUTH + "noauth_anywhere = true\n")
    assert for_all.send("GET", "/v2/devices", environ={"REMOTE_ADDR": address}).status == 200


@pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "::1", ""])
def test_noauth_answers_local_clients(make_client: MakeClient, address: str) -> None:
    client = make_client(NOAUTH)
    assert client.send("GET", "/v2/devices", environ={"REMOTE_ADDR": address}).status == 200


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.1", "cloud.example"])
def test_noauth_refuses_to_listen_beyond_loopback(make_client: MakeClient, address: str) -> None:
    with pytest.raises(exception.ConfigError, match=f"host_ip = {address}"):
        make_client(f"{NOAUTH}host_ip = {address}\n")
    client = make_client(f"{NOAUTH}host_ip = {address}\nnoauth_anywhere = true\n")
    assert client.send("GET", "/").status == 200


@pytest.mark.parametrize(
    ("host", "answer"),
    [("localhost", True), ("127.0.0.1", True), ("::1", True), ("::", False), ("10.0.0.1", False)],
)
def test_loopback_addresses_are_recognised(host: str, answer: Any) -> None:
    assert is_loopback(host) is answer
