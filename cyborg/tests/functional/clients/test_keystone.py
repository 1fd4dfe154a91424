# SPDX-License-Identifier: Apache-2.0
"""Tests of the sessions: how many tokens they take, and what they say of bad configuration."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from keystoneauth1.fixture import DiscoveryList, V3Token
from oslo_config import cfg

from cyborg import exception
from cyborg.clients.http import Sessions
from cyborg.clients.nova import Nova
from cyborg.clients.placement import Placement
from cyborg.conf import clients
from cyborg.tests.fixtures.loopback import Loopback
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService

ACCOUNT = """
auth_type = password
auth_url = {url}
username = {user}
password = secret
user_domain_name = Default
project_domain_name = Default
project_name = service
"""


class Identity:
    """As much of Keystone as hands out tokens, and counts them. ``lifetime`` is in seconds."""

    def __init__(self, catalogue: dict[str, str]) -> None:
        self._catalogue = catalogue
        self._loopback = Loopback(self._application)
        self.url = self._loopback.url
        self.lifetime = 3600
        self.tokens: list[str] = []

    def start(self) -> None:
        self._loopback.start()

    def stop(self) -> None:
        self._loopback.stop()

    def _application(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> list[bytes]:
        headers = [("Content-Type", "application/json")]
        if environ["REQUEST_METHOD"] != "POST":
            start_response("300 Multiple Choices", headers)
            return [json.dumps(DiscoveryList(self.url, v2=False)).encode()]
        asked = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        self.tokens.append(asked["auth"]["identity"]["password"]["user"]["name"])
        token = V3Token(expires=datetime.now(UTC) + timedelta(seconds=self.lifetime))
        token.set_project_scope()
        for kind, url in self._catalogue.items():
            token.add_service(kind).add_standard_endpoints(public=url, internal=url)
        start_response("201 Created", [*headers, ("X-Subject-Token", "admin")])
        return [json.dumps(token).encode()]


@pytest.fixture
def identity(placement: PlacementService, nova: SimulatedNova) -> Iterator[Identity]:
    service = Identity({"placement": placement.url, "compute": nova.url, "image": nova.url})
    service.start()
    yield service
    service.stop()


@pytest.fixture
def configure(tmp_path: Path) -> Callable[[str], cfg.ConfigOpts]:
    def read(text: str) -> cfg.ConfigOpts:
        file = tmp_path / "cyborg.conf"
        file.write_text(text)
        conf = cfg.ConfigOpts()
        clients.register_opts(conf)
        conf([], default_config_files=[str(file)], default_config_dirs=[])
        return conf

    return read


def section(name: str, identity: Identity, user: str = "cyborg", more: str = "") -> str:
    return f"[{name}]{ACCOUNT.format(url=identity.url, user=user)}{more}\n"


def test_a_token_is_renewed_when_it_expires(
    configure: Callable[[str], cfg.ConfigOpts], identity: Identity
):
    identity.lifetime = 1
    client = Placement(Sessions(configure(section("placement", identity))).placement())
    client.find_by_name("nobody")
    taken = len(identity.tokens)
    identity.lifetime = 3600
    for _ in range(3):
        client.find_by_name("nobody")
    assert len(identity.tokens) == taken + 1


def test_glance_uses_its_own_account_or_service_user(
    configure: Callable[[str], cfg.ConfigOpts], identity: Identity
):
    both = section("glance", identity, "images") + section("service_user", identity, "service")
    for text, user in ((both, "images"), (section("service_user", identity, "service"), "service")):
        Sessions(configure(text)).glance().get("/v2/images/0", raise_exc=False)
        assert identity.tokens[-1] == user


def test_request_times_out_after_60_seconds_by_default(
    configure: Callable[[str], cfg.ConfigOpts],
):
    text = "[nova]\nauth_type = none\nendpoint_override = http://127.0.0.1:1\n"
    assert Sessions(configure(text)).nova().session.timeout == 60
    assert Sessions(configure(text + "timeout = 5\n")).nova().session.timeout == 5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ("[nova] auth_type", "not set")),
        ("[nova]\nauth_type = sesame\n", ("[nova] auth_type", "sesame")),
        ("[nova]\nauth_type = password\n", ("[nova] auth_type", "auth_url")),
        ("[nova]\nauth_type = none\nversion = 2\nmin_version = 2\n", ("[nova]", "min_version")),
    ],
)
def test_unusable_group_is_named_in_the_error(
    configure: Callable[[str], cfg.ConfigOpts], text: str, words: tuple[str, ...]
):
    sessions = Sessions(configure(text))
    with pytest.raises(exception.ConfigError) as caught:
        sessions.nova()
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("user", ["cyborg", "nova"])
def test_groups_with_the_same_account_share_a_token(
    configure: Callable[[str], cfg.ConfigOpts], identity: Identity, user: str
):
    sessions = Sessions(configure(section("placement", identity) + section("nova", identity, user)))
    for _ in range(3):
        assert Placement(sessions.placement()).find_by_name("nobody") is None
        assert Nova(sessions.nova()).server_project("0") is None
    assert identity.tokens == list(dict.fromkeys(["cyborg", user]))
    assert sessions.placement() is sessions.placement()


def test_fixed_tokens_and_endpoints_need_no_keystone(
    configure: Callable[[str], cfg.ConfigOpts],
    placement: PlacementService,
    nova: SimulatedNova,
    host: str,
):
    nova.own("1", "blue")
    text = f"[placement]\nauth_type = admin_token\nendpoint = {placement.url}\ntoken = admin\n"
    text += f"[nova]\nauth_type = none\nendpoint_override = {nova.url}\n"
    sessions = Sessions(configure(text))
    assert Placement(sessions.placement()).find_root([host])[1] == host
    assert Nova(sessions.nova()).server_project("1") == "blue"
