# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests over the whole service: made, read and deleted (check list, 36 to 51)."""

from collections.abc import Callable
from uuid import uuid4

import pytest

from cyborg.tests.fixtures.compute_host import ComputeHost
from cyborg.tests.functional.life.cards import Traits
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import (
    ARQS,
    FPGA,
    bind,
    create,
    delete_arqs,
    eventually_bound,
    of_instance,
    states,
)

Computes = Callable[..., ComputeHost]
Profiles = Callable[..., str]


def test_create_returns_initial_arq(profile: Profiles, member: Client) -> None:
    name = profile(FPGA)
    (arq,) = create(member, name)
    assert arq.pop("uuid")
    assert arq.pop("created_at")
    assert arq.pop("links")
    assert arq == {
        "state": "Initial",
        "device_profile_name": name,
        "device_profile_group_id": 0,
        "hostname": None,
        "device_rp_uuid": None,
        "instance_uuid": None,
        "project_id": member.project,
        "attach_handle_type": "",
        "attach_handle_uuid": None,
        "attach_handle_info": {},
        "updated_at": None,
    }


def test_create_makes_one_arq_for_each_requested_unit(profile: Profiles, member: Client) -> None:
    name = profile(
        {"resources:FPGA": "2", "resources:CUSTOM_OTHER": "1"},
        {"accel:only": "a wish"},
        {"resources:PGPU": "3"},
    )
    arqs = create(member, name)
    assert [one["device_profile_group_id"] for one in arqs] == [0, 0, 0, 2, 2, 2]
    assert len({one["uuid"] for one in arqs}) == 6


@pytest.mark.parametrize("name", ["unknown", "", "odd name!", "☃", "x" * 300])
def test_create_with_unknown_profile_returns_404(member: Client, name: str) -> None:
    member.post(ARQS, {"device_profile_name": name}, status=404)
    assert member.get(ARQS)["arqs"] == []


@pytest.mark.parametrize("body", [{}, {"device_profile_name": None}, {"device_profile_name": 1}])
def test_create_without_profile_name_returns_400(member: Client, body: dict[str, object]) -> None:
    member.post(ARQS, body, status=400)


def test_create_ignores_extra_keys_and_needs_no_hardware(profile: Profiles, member: Client) -> None:
    extra: dict[str, object] = {
        "device_profile_group_id": None,
        "image_uuid": str(uuid4()),
        "other": [],
    }
    body = {"device_profile_name": profile(FPGA), **extra}
    assert len(member.post(ARQS, body)["arqs"]) == 1


def test_member_lists_only_arqs_of_own_project(
    profile: Profiles, member: Client, admin: Client
) -> None:
    name = profile(FPGA)
    (mine,) = create(member, name)
    stranger = Client(member.app)
    (other,) = create(stranger, name)
    assert [one["uuid"] for one in member.get(ARQS)["arqs"]] == [mine["uuid"]]
    seen = {one["uuid"] for one in admin.get(ARQS)["arqs"]}
    assert seen == {mine["uuid"], other["uuid"]}


def test_list_by_instance_returns_all_its_arqs(
    compute: Computes, profile: Profiles, member: Client
) -> None:
    host = compute()
    flavor, port = profile({**FPGA, "resources:FPGA": "2"}), profile(FPGA)
    nova = member.with_service_token()
    arqs = create(member, flavor) + create(member, port)
    create(member, port)
    instance = bind(nova, arqs, host.fake_provider)
    found = {one["uuid"] for one in of_instance(member, instance)}
    assert found == {one["uuid"] for one in arqs}
    assert of_instance(member, str(uuid4())) == []
    member.get(ARQS, instance="no-uuid", status=400)


def test_list_of_resolved_arqs_returns_423_while_bind_is_in_progress(
    racked: Callable[..., RackedCompute],
    resource_class: str,
    profile: Profiles,
    member: Client,
) -> None:
    host = racked(Traits(resource_class, prepare=True))
    host.driver.behaviour.preparing.clear()
    nova = member.with_service_token()
    instance = bind(
        nova, create(member, profile({f"resources:{resource_class}": "1"})), host.provider()
    )
    member.get(ARQS, instance=instance, bind_state="resolved", status=423)
    host.driver.behaviour.open()
    eventually_bound(member, instance)
    for one, count in ((instance, 1), (str(uuid4()), 0)):
        assert len(member.get(ARQS, instance=one, bind_state="resolved")["arqs"]) == count
    member.get(ARQS, instance=instance, bind_state="odd", status=400)


def test_show_returns_arq_to_its_own_project(profile: Profiles, member: Client) -> None:
    (arq,) = create(member, profile(FPGA))
    assert member.get(f"{ARQS}/{arq['uuid']}") == arq
    member.get(f"{ARQS}/{uuid4()}", status=404)
    member.get(f"{ARQS}/no-uuid", status=400)
    Client(member.app).get(f"{ARQS}/{arq['uuid']}", status=404)


def test_repeated_delete_returns_404_with_missing_uuids(profile: Profiles, member: Client) -> None:
    arqs = create(member, profile({**FPGA, "resources:FPGA": "2"}))
    path = f"{ARQS}?arqs={arqs[0]['uuid']},{arqs[1]['uuid']}"
    member.delete(path)
    fault = member.delete(path, status=404)
    assert all(one["uuid"] in str(fault) for one in arqs)


def test_delete_removes_existing_arqs_when_others_are_missing(
    profile: Profiles, member: Client
) -> None:
    (arq,) = create(member, profile(FPGA))
    missing = str(uuid4())
    fault = member.delete(f"{ARQS}?arqs={missing},{arq['uuid']},{arq['uuid']}", status=404)
    assert missing in str(fault)
    assert arq["uuid"] not in str(fault)
    member.get(f"{ARQS}/{arq['uuid']}", status=404)


def test_delete_by_instance_requires_service_token_and_is_idempotent(
    compute: Computes, profile: Profiles, member: Client, admin: Client
) -> None:
    host = compute()
    nova = member.with_service_token()
    nova.delete(f"{ARQS}?instance={uuid4()}")
    instance = bind(nova, create(member, profile(FPGA)), host.fake_provider)
    for one in (member, admin):
        fault = one.delete(f"{ARQS}?instance={instance}", status=403)
        assert "requires a service token" in str(fault)
        one.delete(f"{ARQS}?instance={uuid4()}", status=403)
    delete_arqs(nova, instance)
    delete_arqs(nova, instance)
    assert of_instance(member, instance) == []


def test_delete_requires_either_arqs_or_instance(profile: Profiles, member: Client) -> None:
    (arq,) = create(member, profile(FPGA))
    nova = member.with_service_token()
    nova.delete(ARQS, status=400)
    nova.delete(f"{ARQS}?arqs={arq['uuid']}&instance={uuid4()}", status=400)
    nova.delete(f"{ARQS}?arqs=", status=400)
    assert states(member, [arq]) == ["Initial"]


def test_delete_accepts_uuid_in_the_path(profile: Profiles, member: Client) -> None:
    (arq,) = create(member, profile(FPGA))
    member.delete(f"{ARQS}/{arq['uuid']}")
    member.get(f"{ARQS}/{arq['uuid']}", status=404)


def test_delete_of_bound_arq_requires_service_token(
    compute: Computes, profile: Profiles, member: Client, admin: Client
) -> None:
    host = compute()
    name = profile({**FPGA, "resources:FPGA": "16"})
    nova = member.with_service_token()
    arqs = create(member, name)
    instance = bind(nova, arqs, host.fake_provider)
    uuid = arqs[0]["uuid"]
    for one in (member, admin):
        for path in (f"{ARQS}?arqs={uuid}", f"{ARQS}/{uuid}"):
            fault = str(one.delete(path, status=403))
            assert "bound" in fault
            assert "Compute API" in fault
        fault = str(one.delete(f"{ARQS}?instance={instance}", status=403))
        assert "requires a service token" in fault
    assert states(member, arqs) == ["Bound"] * 16
    nova.delete(f"{ARQS}?arqs={','.join(one['uuid'] for one in arqs)}")
    bind(nova, create(member, name), host.fake_provider)


def test_roles_decide_who_creates_reads_and_lists(
    profile: Profiles, member: Client, compute: Computes
) -> None:
    compute()
    app, project = member.app, member.project
    (arq,) = create(Client(app, role="service", project=project), profile(FPGA))
    reader = Client(app, role="reader", project=project)
    assert [one["uuid"] for one in reader.get(ARQS)["arqs"]] == [arq["uuid"]]
    reader.post(ARQS, {"device_profile_name": arq["device_profile_name"]}, status=403)
    Client(app, role="service", project=project).delete(f"{ARQS}/{arq['uuid']}")
    assert Client(app, role="manager").get("/devices")["devices"]
    member.get("/devices", status=403)
