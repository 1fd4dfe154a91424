# SPDX-License-Identifier: Apache-2.0
"""cyborg-status with accounts of the real Keystone: who may do too little is told its roles."""

from pathlib import Path

from cyborg.tests.fixtures.keystone import Account, KeystoneService
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.functional.keystone.cloud import Cloud
from cyborg.tests.functional.schema.commands import Checked, checked


def checked_as(
    account: Account, cloud: Cloud, tmp_path: Path, *, nova: str, placement: str
) -> Checked:
    """All checks with this account at both peers."""
    options = account.options(cloud.keystone.url)
    more = {
        "nova": {**options, "endpoint_override": nova},
        "placement": {**options, "endpoint_override": placement},
    }
    return checked(cloud.database, tmp_path, more=more)


def test_status_check_fails_without_roles(
    keystone: KeystoneService,
    cloud: Cloud,
    placement: PlacementService,
    tmp_path: Path,
) -> None:
    account = keystone.make_account("poor", "service", "member")
    with SimulatedNova() as nova:
        nova.answer_calls(403)
        found = checked_as(account, cloud, tmp_path, nova=nova.url, placement=placement.url)
    # This Placement knows nobody but its administrator.
    for name, group in (("Account at Nova", "nova"), ("Account at Placement", "placement")):
        assert found.results[name] == 2
        assert (
            f"The account of [{group}] (its roles: member, reader) may not" in found.details[name]
        )


def test_status_check_fails_with_a_wrong_password(
    keystone: KeystoneService, cloud: Cloud, tmp_path: Path
) -> None:
    account = Account("poor", "wrong", "service")
    found = checked_as(
        account, cloud, tmp_path, nova="http://127.0.0.1:1", placement="http://127.0.0.1:1"
    )
    for name in ("Account at Nova", "Account at Placement"):
        assert found.results[name] == 2
        assert "The request you have made requires authentication." in found.details[name]
