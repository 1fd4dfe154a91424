# SPDX-License-Identifier: Apache-2.0
"""Tests of the lines to copy: a shell can read them, and they say what they should."""

import json
import re
import shlex

from cyborg.model.device import Deployable
from cyborg.model.provider import provider_uuid
from cyborg.tests.fixtures.keystone import Account
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg_tools.quickstart.clients import Scenario
from cyborg_tools.quickstart.lines import for_account, to_copy

_TRAIT = "CUSTOM_PCI_PRODUCT_ID_1045"
CARD = Deployable("card", "CUSTOM_PCI", "X", (), traits=("OWNER_CYBORG", _TRAIT))
URL, PLACEMENT = "http://127.0.0.1:16666", "http://127.0.0.1:17777"
SCENARIO = Scenario(URL, PLACEMENT, SimulatedNova(), "compute-1", CARD, lambda _provider: {})


def commands(proxied: bool = False) -> list[list[str]]:
    """Every command, split as a shell does, pipes and all."""
    text = to_copy(SCENARIO, proxied)
    found = re.split(r"\n(?=curl|openstack|cyborg|export|[A-Z]+=|#|$)", text.replace("\\\n", " "))
    return [words for one in found if (words := shlex.split(one, comments=True))]


def test_lines_fit_100_columns() -> None:
    lines = to_copy(SCENARIO, False).splitlines()
    assert max(len(line) for line in lines if "PATH" not in line) <= 100


def test_curl_creates_profile_for_the_accelerator() -> None:
    (made,) = [one for one in commands() if one[:3] == ["curl", "-s", f"{URL}/v2/device_profiles"]]
    body = json.loads(made[made.index("-d") + 1])
    group = {"resources:CUSTOM_PCI": "1", f"trait:{_TRAIT}": "required"}
    assert body == [{"name": "mine", "groups": [group]}]


def test_curl_binds_to_the_provider_and_releases() -> None:
    requests = f"{URL}/v2/accelerator_requests"
    bound = next(one for one in commands() if "PATCH" in one)
    (changes,) = json.loads(bound[bound.index("-d") + 1]).values()
    named = {change["path"]: change["value"] for change in changes}
    assert named["/hostname"] == "compute-1"
    assert named["/device_rp_uuid"] == provider_uuid("card")
    (released,) = [one for one in commands() if "DELETE" in one]
    assert released[-1] == f"{requests}?instance={named['/instance_uuid']}"


def test_commands_need_no_keystone() -> None:
    asked = [one for one in commands() if one[0] in ("cyborg", "export")]
    assert ["export", "OS_AUTH_TYPE=none", f"OS_ENDPOINT={URL}"] in asked
    assert asked[-1] == ["cyborg", "hardware-list", "--long"]
    openstack = [one for one in commands() if one[0] == "openstack"]
    prefix = ["openstack", "--os-auth-type", "none", "--os-endpoint", f"{URL}/v2", "accelerator"]
    assert all(one[:6] == prefix for one in openstack)
    assert ["arq", "create", "other"] in [one[6:] for one in openstack]


def test_proxy_is_bypassed_when_set() -> None:
    assert "no_proxy=$no_proxy,127.0.0.1" in commands(proxied=True)[0]
    assert all("no_proxy" not in " ".join(one) for one in commands())


def test_lines_for_an_account_authenticate_with_its_password() -> None:
    account = Account("admin", "a b'c", "admin")
    text = for_account(SCENARIO, "http://127.0.0.1:15000/v3", account, proxied=False)
    words = shlex.split(text, comments=True)
    assert "OS_PASSWORD=a b'c" in words
    assert "OS_AUTH_URL=http://127.0.0.1:15000/v3" in words
    assert words[-4:] == ["cyborg", "host-drain", "compute-1", "--dry-run"]
    assert max(len(line) for line in text.splitlines() if "PATH" not in line) <= 100
