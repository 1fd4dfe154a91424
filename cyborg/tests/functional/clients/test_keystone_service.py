# SPDX-License-Identifier: Apache-2.0
"""Tests of the real Keystone that tests run beside us, and of sessions that log in there."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from keystoneauth1.exceptions import Unauthorized
from oslo_config import cfg

from cyborg.clients.http import Sessions
from cyborg.conf import clients
from cyborg.tests.fixtures.keystone import ADMIN, Account, KeystoneService


@pytest.fixture(scope="module")
def keystone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeystoneService]:
    with KeystoneService(tmp_path_factory.mktemp("keystone")) as service:
        yield service


def roles(keystone: KeystoneService, token: str) -> set[str]:
    """The roles that a token carries, as the middleware of a service learns them."""
    answer = keystone.session(ADMIN).get(
        f"{keystone.url}/auth/tokens", headers={"X-Subject-Token": token}
    )
    return {one["name"] for one in answer.json()["token"]["roles"]}


def test_account_has_its_roles_and_implied_roles(keystone: KeystoneService):
    nobody = keystone.make_account("nova", "service", "service")
    assert roles(keystone, keystone.token(nobody)) == {"service"}
    again = keystone.make_account("nova", "service", "manager")
    assert roles(keystone, keystone.token(again)) == {"service", "manager", "member", "reader"}


def test_tokens_may_have_domain_or_system_scope(keystone: KeystoneService):
    head = keystone.make_account("head", "blue", "reader")
    keystone.grant_on_domain(head, "member")
    assert roles(keystone, keystone.domain_token(head)) == {"member", "reader"}
    assert "admin" in roles(keystone, keystone.system_token(ADMIN))
    with pytest.raises(Unauthorized):
        keystone.system_token(head)


def test_sessions_find_endpoints_in_the_catalog(keystone: KeystoneService, tmp_path: Path):
    account = keystone.make_account("cyborg", "service", "service")
    keystone.register("compute", "http://127.0.0.1:1/v2.1")
    keystone.register("compute", "http://127.0.0.1:2/v2.1")
    file = tmp_path / "cyborg.conf"
    lines = [f"{name} = {value}" for name, value in account.options(keystone.url).items()]
    file.write_text("\n".join(["[nova]", *lines]))
    conf = cfg.ConfigOpts()
    clients.register_opts(conf)
    conf([], default_config_files=[str(file)], default_config_dirs=[])
    assert Sessions(conf).nova().get_endpoint() == "http://127.0.0.1:2/v2.1"
    assert keystone.project_id("service") == Sessions(conf).nova().get_project_id()


def test_token_with_wrong_password_is_refused(keystone: KeystoneService):
    with pytest.raises(Unauthorized):
        keystone.token(Account("admin", "wrong", "admin"))
