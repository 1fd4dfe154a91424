# SPDX-License-Identifier: Apache-2.0
"""``auth_strategy = noauth``: an administrator for everybody, on one machine."""

from collections.abc import Callable

import pytest

from cyborg import exception
from cyborg.api.middleware.auth_token import PROJECT_ID
from cyborg.tests.unit.api.conductor import RecordedConductor
from cyborg.tests.unit.api.world import Client

MakeClient = Callable[..., Client]
NOAUTH = "[api]\nauth_strategy = noauth\n"
ARQS = "/v2/accelerator_requests"


def test_noauth_makes_every_caller_admin_with_service_token(
    make_client: MakeClient, conductor: RecordedConductor
) -> None:
    client = make_client(NOAUTH)
    for token in (None, "anything", "member"):
        assert client.send("GET", "/v2/devices", as_=token).status == 200
        created = client.send("POST", ARQS, {"device_profile_name": "gpu"}, as_=token)
        assert created.body["arqs"][0]["project_id"] == PROJECT_ID
        assert client.send("DELETE", f"{ARQS}?instance=<instance>", as_=token).status == 204
    assert client.send("DELETE", f"{ARQS}/<foreign>", as_=None).status == 204
    assert conductor.calls[0][1].service


def test_noauth_takes_project_from_a_header(make_client: MakeClient) -> None:
    client = make_client(NOAUTH)
    headers = {"X-Project-Id": "b" * 32, "X-Roles": "reader", "OpenStack-System-Scope": "all"}
    created = client.send("POST", ARQS, {"device_profile_name": "gpu"}, as_=None, headers=headers)
    assert created.body["arqs"][0]["project_id"] == "b" * 32


REMOTE = ("192.0.2.1", "2001:db8::1", "nonsense")
LOCAL = ("127.0.0.1", "127.1.2.3", "::1", "")


def test_noauth_answers_local_clients_only(make_client: MakeClient) -> None:
    for_me = make_client(NOAUTH)
    for_all = make_client(NOAUTH + "noauth_anywhere = true\n")
    for address in REMOTE:
        refused = for_me.send("GET", "/v2/devices", environ={"REMOTE_ADDR": address})
        assert (refused.status, "noauth" in refused.fault) == (403, True)
        assert for_all.send("GET", "/v2/devices", environ={"REMOTE_ADDR": address}).status == 200
    for address in LOCAL:
        assert for_me.send("GET", "/v2/devices", environ={"REMOTE_ADDR": address}).status == 200


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.1", "cloud.example"])
def test_noauth_refuses_to_listen_beyond_loopback(make_client: MakeClient, address: str) -> None:
    with pytest.raises(exception.ConfigError, match=f"host_ip = {address}"):
        make_client(f"{NOAUTH}host_ip = {address}\n")


def test_noauth_listens_on_loopback_or_where_allowed(make_client: MakeClient) -> None:
    for options in (
        "host_ip = localhost\n",
        "host_ip = ::1\n",
        "host_ip = ::\nnoauth_anywhere = 1\n",
    ):
        assert make_client(NOAUTH + options).send("GET", "/").status == 200
