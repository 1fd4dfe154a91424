# SPDX-License-Identifier: Apache-2.0
"""A profile changes while it is in use: those who asked before keep what they asked for."""

from collections.abc import Callable
from dataclasses import replace
from uuid import uuid4

import pytest

from cyborg import exception
from cyborg.db.engine import Database
from cyborg.model.caller import Caller
from cyborg.model.device_profile import ProfileChange
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.verbs import UpdateDeviceProfile
from cyborg.tests.fixtures.compute_host import ComputeHost
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import FPGA, bind, create, everything, states

CALLER = Caller("project", "user", "req-change")
PATH = "/device_profiles"
OTHER = {"resources:CUSTOM_OTHER": "3"}


def test_arqs_keep_groups_of_the_former_profile(
    compute: Callable[..., ComputeHost],
    profile: Callable[..., str],
    operator: Client,
    member: Client,
    nova: Client,
) -> None:
    host, name = compute(), profile(FPGA)
    bound, unbound = create(member, name), create(member, name)
    bind(nova, bound, host.fake_provider, host=host.compute)
    uuid = member.get(f"{PATH}/{name}")["device_profile"]["uuid"]
    new = f"profile-{uuid4().hex}"
    body = {"name": new, "description": "others", "groups": [OTHER]}
    changed = operator.patch(f"{PATH}/{uuid}", body, status=200)
    assert {**changed, **body} == changed
    assert changed["updated_at"] is not None
    assert member.get(f"{PATH}/{new}")["device_profile"] == changed
    assert member.get(f"{PATH}/{name}", status=404)
    assert states(member, bound) == ["Bound"]
    # What was asked for before is bound to what it was for then.
    bind(nova, unbound, host.fake_provider, host=host.compute)
    assert states(member, unbound) == ["Bound"]
    fresh = create(member, new)
    assert len(fresh) == 3
    bind(nova, fresh, host.fake_provider, host=host.compute, status=400)


def test_profile_rename_to_used_name_is_refused(
    profile: Callable[..., str], operator: Client, database: Database
) -> None:
    name, taken = profile(FPGA), profile(FPGA)
    before = everything(database)
    answer = operator.patch(f"{PATH}/{name}", {"name": taken, "groups": [OTHER]}, status=409)
    assert taken in answer["error_message"]
    assert everything(database) == before
    assert operator.patch(f"{PATH}/{name}", {"name": name}, status=200)["name"] == name


def test_repeated_profile_change_runs_once(
    conductor: ConductorClient, profile: Callable[..., str], database: Database
) -> None:
    name, new, once = profile(FPGA), f"profile-{uuid4().hex}", str(uuid4())
    wish = ProfileChange(name=new, description="d", sets_description=True)
    first = conductor.write(UpdateDeviceProfile(CALLER, once, name, wish))
    before = everything(database)
    assert conductor.write(UpdateDeviceProfile(CALLER, once, name, wish)) == first
    assert everything(database) == before
    with pytest.raises(exception.NotFound):
        conductor.write(UpdateDeviceProfile(CALLER, str(uuid4()), name, wish))


@pytest.mark.parametrize("role", ["manager", "member", "reader"])
def test_only_operators_change_profiles(
    profile: Callable[..., str], operator: Client, role: str, database: Database
) -> None:
    name = profile(FPGA)
    before = everything(database)
    other = replace(operator, role=role)
    assert other.answer("PATCH", f"{PATH}/{name}", {"name": "mine"}) == 403
    assert everything(database) == before
