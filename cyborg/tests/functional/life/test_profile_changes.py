# SPDX-License-Identifier: Apache-2.0
"""A profile changes while it is in use: those who asked before keep what they asked for."""

from collections.abc import Callable
from uuid import uuid4

from cyborg.model.caller import Caller
from cyborg.tests.fixtures.compute_host import ComputeHost
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import FPGA, bind, create, states

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
