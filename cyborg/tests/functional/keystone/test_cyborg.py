# SPDX-License-Identifier: Apache-2.0
"""The ``cyborg`` program with a real Keystone: its accounts, its catalogue, its refusals."""

from dataclasses import asdict, replace
from pathlib import Path
from uuid import uuid4

import pytest

from cyborg.tests.functional.keystone.cloud import Cloud
from cyborg.tests.functional.keystone.shell import cyborg, write_clouds

GROUP = ("--group", "resources:FPGA=1,trait:CUSTOM_FAKE_DEVICE=required")


@pytest.fixture(autouse=True)
def clouds(cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All people, and one who has forgotten the password."""
    people = cloud.people
    accounts = {name: getattr(people, name) for name in asdict(people)}
    accounts["forgetful"] = replace(people.member, password="wrong")
    write_clouds(tmp_path, cloud.keystone, accounts)
    monkeypatch.setenv(
        "OS_CLIENT_CONFIG_FILE", str(tmp_path / ".config" / "openstack" / "clouds.yaml")
    )


def test_cyborg_finds_the_service_in_the_catalog(cloud: Cloud):
    (found,) = cyborg("admin", f"accelerator-list --host {cloud.host} -f json").json
    assert cyborg("admin", f"accelerator-show {found['uuid']} -f json").json["type"] == "FPGA"


def test_cyborg_commands_follow_the_role():
    name = f"profile-{uuid4().hex}"
    for who in ("manager", "member", "reader", "stranger"):
        ran = cyborg(who, f"profile-create {name}", *GROUP)
        assert ran.status == 1
        assert "accelerator_operator" in ran.err
    assert cyborg("admin", f"profile-create {name}", *GROUP).status == 0
    for who in ("manager", "member", "reader", "stranger"):
        assert cyborg(who, f"profile-show {name} -f json").json["name"] == name
    assert cyborg("admin", f"profile-delete {name}").status == 0


def test_cyborg_names_a_wrong_password():
    ran = cyborg("forgetful", "profile-list")
    assert ran.status == 1
    assert ran.err.startswith("Keystone rejects the credentials")


def test_cyborg_names_an_unknown_region():
    ran = cyborg("admin", "--os-region-name Elsewhere profile-list")
    assert ran.status == 1
    assert "Elsewhere is not a valid region name" in ran.err
