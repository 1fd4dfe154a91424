# SPDX-License-Identifier: Apache-2.0
"""Nova in front, with real tokens (check 114): its way to find and to ask the service."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from keystoneauth1.adapter import Adapter
from keystoneauth1.identity import v3
from keystoneauth1.service_token import ServiceTokenAuthWrapper
from keystoneauth1.session import Session

from cyborg.tests.fixtures.accelerators import AcceleratorClient, Exchange, NovaFault
from cyborg.tests.fixtures.compute import ComputeWalk
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.functional.keystone.cloud import Cloud


@pytest.fixture
def trait(cloud: Cloud, placement: PlacementService) -> str:
    """A trait that an operator gave to the device of this cloud: Placement has many more hosts."""
    name = f"CUSTOM_{uuid4().hex.upper()}"
    placement.call("PUT", f"/traits/{name}")
    path = f"/resource_providers/{cloud.provider}/traits"
    found = placement.call("GET", path)
    placement.call("PUT", path, {**found, "traits": [*found["traits"], name]})
    return name


@pytest.fixture
def profile(cloud: Cloud, trait: str) -> Iterator[str]:
    """A profile that the administrator made."""
    token = cloud.keystone.token(cloud.people.admin)
    name = f"profile-{uuid4().hex}"
    groups = [{"resources:FPGA": "2", f"trait:{trait}": "required"}]
    body = [{"name": name, "groups": groups}]
    assert cloud.ask("/device_profiles", token, method="POST", body=body).status_code == 201
    yield name
    assert cloud.ask(f"/device_profiles/{name}", token, method="DELETE").status_code == 204


@pytest.fixture
def boots(
    cloud: Cloud, placement: PlacementService, nova_api: SimulatedNova
) -> Callable[..., tuple[ComputeWalk, list[Exchange]]]:
    """Nova acting for the member, with or without its own token; and what it sent."""

    def make(*, as_service: bool) -> tuple[ComputeWalk, list[Exchange]]:
        sent: list[Exchange] = []
        client = AcceleratorClient(
            f"{cloud.url}/v2",
            cloud.keystone.token(cloud.people.member),
            cloud.keystone.token(cloud.people.nova) if as_service else None,
            listener=sent.append,
        )
        return ComputeWalk(client, placement, nova_api), sent

    return make


def test_member_boots_reboots_and_deletes_server_with_accelerators(
    cloud: Cloud, profile: str, boots: Callable[..., tuple[ComputeWalk, list[Exchange]]]
):
    walk, sent = boots(as_service=True)
    server = walk.boot(profile)
    assert [one["state"] for one in server.arqs] == ["Bound", "Bound"]
    assert len({one["attach_handle_uuid"] for one in server.arqs}) == 2
    project = cloud.keystone.project_id(cloud.people.member.project)
    assert {one["project_id"] for one in server.arqs} == {project}
    walk.reboot(server)
    walk.rebuild(server)
    walk.shelve_offload(server)
    walk.unshelve(server)
    walk.delete(server)
    assert {one.status for one in sent} == {200, 201, 202, 204}


def test_bind_fails_when_nova_sends_no_service_token(
    profile: str, boots: Callable[..., tuple[ComputeWalk, list[Exchange]]]
):
    walk, sent = boots(as_service=False)
    with pytest.raises(NovaFault) as refused:
        walk.boot(profile)
    assert refused.value.status == 403
    assert "requires a service token" in str(refused.value)
    # What was created is taken back all the same: nothing of it was bound.
    assert [one.status for one in sent if one.method == "DELETE"] == [204]


@pytest.mark.parametrize("where", ["override", "catalogue"])
def test_adapter_of_nova_finds_the_service(cloud: Cloud, profile: str, where: str):
    user = v3.Token(
        cloud.keystone.url,
        token=cloud.keystone.token(cloud.people.member),
        project_name=cloud.people.member.project,
        project_domain_id="default",
    )
    options: dict[str, Any] = {**cloud.people.nova.options(cloud.keystone.url)}
    options.pop("auth_type")
    auth = ServiceTokenAuthWrapper(user_auth=user, service_auth=v3.Password(**options))
    found: dict[str, Any] = (
        {"endpoint_override": f"{cloud.url}/v2"}
        if where == "override"
        else {"interface": ["internal", "public"], "region_name": "RegionOne"}
    )
    adapter = Adapter(Session(auth=auth), service_type="accelerator", raise_exc=False, **found)
    listed = adapter.get("/device_profiles", params={"name": profile})
    assert [one["name"] for one in listed.json()["device_profiles"]] == [profile]
    assert "OpenStack-API-Version" not in listed.request.headers
    made = adapter.post("/accelerator_requests", json={"device_profile_name": profile})
    uuids = ",".join(one["uuid"] for one in made.json()["arqs"])
    assert bool(adapter.get("/accelerator_requests", params={"instance": str(uuid4())}))
    assert bool(adapter.delete(f"/accelerator_requests?arqs={uuids}"))
    assert bool(adapter.delete(f"/accelerator_requests?instance={uuid4()}"))  # its own token counts
