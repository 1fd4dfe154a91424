# SPDX-License-Identifier: Apache-2.0
"""The ``cyborg`` program with a real Keystone: its accounts, its catalogue, its refusals."""

from dataclasses import replace
from pathlib import Path

import pytest

from cyborg.tests.functional.keystone.cloud import Cloud
from cyborg.tests.functional.keystone.shell import cyborg, write_clouds


def test_cyborg_finds_the_service_and_names_wrong_credentials_and_regions(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    admin = cloud.people.admin
    accounts = {"admin": admin, "forgetful": replace(admin, password="wrong")}
    write_clouds(tmp_path, cloud.keystone, accounts)
    place = tmp_path / ".config" / "openstack" / "clouds.yaml"
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(place))
    (found,) = cyborg("admin", f"accelerator-list --host {cloud.host} -f json").json
    assert cyborg("admin", f"accelerator-show {found['uuid']} -f json").json["type"] == "FPGA"
    ran = cyborg("forgetful", "profile-list")
    assert (ran.status, ran.err.startswith("Keystone rejects the credentials")) == (1, True)
    ran = cyborg("admin", "--os-region-name Elsewhere profile-list")
    assert (ran.status, "Elsewhere is not a valid region name" in ran.err) == (1, True)
