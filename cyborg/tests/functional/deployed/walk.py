# SPDX-License-Identifier: Apache-2.0
"""What every way to serve the API must do: the smoke walk, as the clients of the field go it."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import requests
from keystoneauth1 import loading, noauth
from keystoneauth1.session import Session
from openstack.connection import Connection
from oslo_config import cfg

from cyborg.tests.fixtures.waiting import PATIENCE, eventually
from cyborg.tests.functional.daemons.service import (
    FPGA,
    Http,
    Service,
    all_at_once,
    go_through_everything,
)

#: At once: enough to reach every process of a server.
CLIENTS = 8


def smoke(url: str, service: Service, *, base: str = "") -> None:
    """Discover, read, write, bind and release through ``url``, which has no version.

    ``base`` is what links begin with where it is not the URL itself.
    """
    documents(Http(url), base or url)
    errors(Http(url))
    assert all_at_once(CLIENTS, lambda _number: profile_comes_and_goes(url)) == {"done": CLIENTS}
    go_through_everything(Http(url), service.host, service.provider)
    links_lead_back(Http(url), base or url)


def documents(http: Http, base: str, *, deep: bool = True) -> None:
    """The version documents, with links that begin with ``base``; ``deep`` asks for health, too."""
    (version,) = http.ask("GET", "/").json()["versions"]
    assert version["links"][0]["href"] == f"{base}/v2"
    for path in ("/v2", "/v2/"):
        answer = http.ask("GET", path)
        assert answer.json()["links"][0]["href"] == f"{base}/v2/"
        assert answer.headers["OpenStack-API-Version"] == "accelerator 2.0"
        assert answer.headers["Vary"] == "OpenStack-API-Version"
    if deep:
        eventually(http.healthy, "the API is healthy")


def errors(http: Http) -> None:
    """Errors keep their form, and no server puts a page of its own in their place."""
    wrong = http.ask("GET", "/v2/devices?nonsense=1")
    gone = http.ask("GET", f"/v2/devices/{uuid4()}")
    nothing = http.ask("GET", "/v2/nothing")
    body = http.ask("POST", "/v2/device_profiles", {"no": "list"})
    assert [one.status_code for one in (wrong, gone, nothing, body)] == [400, 404, 404, 400]
    for answer in (wrong, gone, nothing, body):
        assert isinstance(answer.json()["error_message"], str)
        assert answer.headers["OpenStack-API-Maximum-Version"]
        assert answer.headers["X-OpenStack-Request-ID"].startswith("req-")
    unknown = microversion(http, "accelerator 2.99")
    assert (unknown.status_code, bool(unknown.json()["error_message"])) == (406, True)
    assert microversion(http, "accelerator 2.3").headers["OpenStack-API-Version"].endswith("2.3")


def microversion(http: Http, header: str) -> requests.Response:
    """The list of devices in a microversion."""
    headers = {"OpenStack-API-Version": header}
    return requests.get(f"{http.url}/v2/devices", headers=headers, timeout=PATIENCE)


def profile_comes_and_goes(url: str) -> str:
    """Make a device profile and delete it."""
    http, name = Http(url), f"profile-{uuid4().hex}"
    http.do("POST", "/device_profiles", [{"name": name, "groups": [FPGA]}], status=201)
    http.do("DELETE", f"/device_profiles/{name}", status=204)
    return "done"


def links_lead_back(http: Http, base: str) -> None:
    """The self link of a device begins with ``base`` and is the device."""
    device = http.get("/devices")["devices"][0]
    (link,) = device["links"]
    assert link["href"] == f"{base}/v2/devices/{device['uuid']}"
    assert requests.get(link["href"], timeout=PATIENCE).json()["uuid"] == device["uuid"]


def nova_finds(endpoint: str) -> None:
    """Nova's way with an ``endpoint_override``: the SDK asks it without a token for its versions.

    What the ``self`` link of the answer says is where everything goes from then on.
    """
    conf = cfg.ConfigOpts()
    loading.register_adapter_conf_options(conf, "cyborg")
    conf.set_override("endpoint_override", endpoint, group="cyborg")
    conf([], default_config_files=[], default_config_dirs=[])
    session = Session(auth=noauth.NoAuth())
    connect: Callable[..., Any] = Connection
    accelerator = connect(
        session=session, oslo_conf=conf, service_types={"accelerator"}, strict_proxies=True
    ).accelerator
    answer = accelerator.get("/device_profiles", params={"name": f"profile-{uuid4().hex}"})
    assert (answer.status_code, answer.json()) == (200, {"device_profiles": []})
    assert "OpenStack-API-Version" not in answer.request.headers
