# SPDX-License-Identifier: Apache-2.0
"""Private device profiles for two projects and for Nova, which asks for their users."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from cyborg.tests.fixtures.accelerators import NovaFault
from cyborg.tests.fixtures.compute import ComputeWalk
from cyborg.tests.functional.life.cards import CARD
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import ARQS, bind, create, of_instance

Racks = Callable[..., RackedCompute]
PROFILES = "/device_profiles"


@pytest.fixture
def chief(app: Any) -> Client:
    """An administrator who uses the newest microversion."""
    return Client(app, role="admin", version="2.100")


@pytest.fixture
def stranger(app: Any) -> Client:
    """The manager of another project than that of ``member``."""
    return Client(app, role="manager")


@pytest.fixture
def private(chief: Client, member: Client, resource_class: str) -> str:
    """The name of a profile of the project of ``member``."""
    name = f"private-{uuid4().hex[:12]}"
    groups = [{f"resources:{resource_class}": "1"}]
    chief.post(PROFILES, [{"name": name, "groups": groups, "projects": [member.project]}])
    return name


def names(client: Client, **query: Any) -> list[str]:
    return [profile["name"] for profile in client.get(PROFILES, **query)["device_profiles"]]


def test_profile_is_shared_with_more_projects_and_taken_from_them(
    chief: Client, member: Client, stranger: Client, private: str
) -> None:
    assert names(member) == names(member, name=private) == [private]
    assert names(stranger) == names(stranger, name=private) == []
    stranger.get(f"{PROFILES}/{private}", status=404)
    stranger.post(ARQS, {"device_profile_name": private}, status=404)
    both = {"projects": sorted([member.project, stranger.project])}
    assert chief.patch(f"{PROFILES}/{private}", both, 200)["projects"] == both["projects"]
    (arq,) = create(stranger, private)
    assert names(stranger) == [private]
    chief.patch(f"{PROFILES}/{private}", {"projects": [member.project]}, 200)
    assert names(stranger) == []
    stranger.post(ARQS, {"device_profile_name": private}, status=404)
    assert stranger.get(f"{ARQS}/{arq['uuid']}")["state"] == "Initial"
    chief.patch(f"{PROFILES}/{private}", {"projects": None}, 200)
    assert len(create(stranger, private)) == 1


def test_arqs_of_a_profile_that_became_private_can_be_bound(
    racked: Racks, chief: Client, member: Client, stranger: Client, private: str
) -> None:
    """The schedule of a boot that has begun goes on."""
    host = racked(cards={CARD: 1})
    chief.patch(f"{PROFILES}/{private}", {"projects": None}, 200)
    arqs = create(stranger.with_service_token(), private)
    chief.patch(f"{PROFILES}/{private}", {"projects": [member.project]}, 200)
    instance = bind(stranger.with_service_token(), arqs, host.provider())
    assert [arq["state"] for arq in of_instance(stranger, instance)] == ["Bound"]


def test_only_servers_of_its_projects_boot_with_a_private_profile(
    racked: Racks,
    member: Client,
    stranger: Client,
    walk: Callable[..., ComputeWalk],
    private: str,
) -> None:
    host = racked(cards={CARD: 2})
    with pytest.raises(NovaFault):
        walk("member", stranger.project).boot(private)
    with pytest.raises(NovaFault):
        walk("member", stranger.project).boot(None, ports={str(uuid4()): private})
    assert stranger.get(ARQS)["arqs"] == []
    server = walk("member", member.project).boot(private)
    assert [arq["device_rp_uuid"] for arq in server.arqs] == [host.provider()]


def test_administrator_unshelves_and_evacuates_a_server_with_a_private_profile(
    racked: Racks,
    chief: Client,
    member: Client,
    walk: Callable[..., ComputeWalk],
    private: str,
) -> None:
    """Nova asks with the token of the administrator, whose project is another."""
    racked(cards={CARD: 1})
    racked(cards={CARD: 1})
    user, boss = (
        walk(role, project) for role, project in (("member", member.project), ("admin", "admins"))
    )
    server = user.boot(private)
    user.shelve_offload(server)
    boss.unshelve(server)
    first = server.host
    boss.evacuate(server)
    assert server.host != first
    assert [arq["project_id"] for arq in of_instance(member, server.uuid)] == [member.project]
    chief.patch(f"{PROFILES}/{private}", {"projects": ["another"]}, 200)
    user.reboot(server)
    user.shelve_offload(server)
    with pytest.raises(NovaFault):
        user.unshelve(server)
