# SPDX-License-Identifier: Apache-2.0
"""cyborg-status with accounts of the real Keystone: who may do too little is told its roles."""

from dataclasses import replace
from pathlib import Path

from cyborg.tests.fixtures.keystone import Account, KeystoneService
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.functional.keystone.cloud import Cloud
from cyborg.tests.functional.schema.commands import checked


def test_status_check_names_missing_roles_and_a_wrong_password(
    keystone: KeystoneService, cloud: Cloud, placement: PlacementService, tmp_path: Path
) -> None:
    def details(account: Account, nova: str, placement: str) -> dict[str, str]:
        """What is said of the account in each group, where it is used."""
        options = account.options(cloud.keystone.url)
        more = {
            "nova": {**options, "endpoint_override": nova},
            "placement": {**options, "endpoint_override": placement},
        }
        found = checked(cloud.database, tmp_path, more=more)
        peers = {"nova": "Account at Nova", "placement": "Account at Placement"}
        assert [found.results[name] for name in peers.values()] == [2, 2]
        return {group: found.details[name] for group, name in peers.items()}

    poor, nowhere = keystone.make_account("poor", "service", "member"), "http://127.0.0.1:1"
    with SimulatedNova() as nova:
        nova.answer_calls(403)
        said = details(poor, nova.url, placement.url)
    # This Placement knows nobody but its administrator.
    for group, text in said.items():
        assert f"The account of [{group}] (its roles: member, reader) may not" in text
    for text in details(replace(poor, password="wrong"), nowhere, nowhere).values():
        assert "The request you have made requires authentication." in text
