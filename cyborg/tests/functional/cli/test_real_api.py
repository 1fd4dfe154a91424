# SPDX-License-Identifier: Apache-2.0
"""Commands for what has been there before, against the real API, conductor and agent."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from cyborg.testing import servers
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.functional.cli.conftest import Seat
from cyborg.tests.functional.conftest import Compute
from cyborg.tests.functional.life.http import Client, bind_body
from cyborg.tests.functional.life.made import Bench
from cyborg.tests.functional.life.steps import eventually

GROUP = {"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICE": "required"}
GROUPS = ("--group", ",".join(f"{key}={value}" for key, value in GROUP.items()))


@pytest.fixture
def name() -> str:
    """A name for a profile that no other test has."""
    return f"profile-{uuid4().hex}"


def test_the_life_of_a_profile(seat: Callable[..., Seat], name: str):
    admin, reader = seat("admin"), seat("reader")
    made = admin(f"profile-create {name} --description d -f json", *GROUPS).shown
    UUID(made["uuid"])
    assert (made["name"], made["groups"], made["description"]) == (name, [GROUP], "d")
    for key in (name, made["uuid"]):
        assert reader(f"profile-show {key} -f json").shown == made
    (listed,) = reader(f"profile-list --name {name} -f json").shown
    assert listed == {key: made[key] for key in ("uuid", "name", "groups", "description")}
    again = admin(f"profile-create {name}", *GROUPS)
    assert again.status == 1
    assert name in again.err
    assert "(HTTP 409)" in again.err
    assert admin(f"profile-delete {name}").status == 0
    gone = reader(f"profile-show {name}")
    assert (gone.status, gone.out) == (1, "")
    assert "could not be found" in gone.err


@pytest.mark.parametrize("role", ["manager", "member", "reader"])
def test_who_may_not_is_told_who_may(role: str, seat: Callable[..., Seat], name: str):
    ran = seat(role)(f"profile-create {name}", *GROUPS)
    assert ran.status == 1
    assert "(HTTP 403)" in ran.err
    assert "accelerator_operator" in ran.err
    assert seat("admin")(f"profile-list --name {name} -f json").shown == []


def test_a_wrong_group_is_named(seat: Callable[..., Seat], name: str):
    ran = seat("admin")(f"profile-create {name} --group resources:FPGA=many")
    assert ran.status == 1
    assert "resources:FPGA" in ran.err
    assert "(HTTP 400)" in ran.err


def test_accelerators(seat: Callable[..., Seat], compute: Callable[..., Compute]):
    host, admin = compute(), seat("admin")
    (found,) = admin(f"accelerator-list --host {host.name} --long -f json").shown
    assert (found["type"], found["vendor"], found["hostname"]) == ("FPGA", "0xABCD", host.name)
    shown = admin(f"accelerator-show {found['uuid']} -f json").shown
    assert shown["uuid"] == found["uuid"]
    assert "links" not in shown
    assert admin("accelerator-list --vendor none -f json").shown == []
    ran = admin("accelerator-show", str(uuid4()))
    assert ran.status == 1
    assert "could not be found" in ran.err


def test_requests_are_seen_by_their_project(
    seat: Callable[..., Seat], compute: Callable[..., Compute], profile: Callable[..., str], app
):
    host, wanted, instance = compute(), profile(GROUP), str(uuid4())
    nova = Client(app, role="member", project="blue", service=True)
    arqs = nova.post("/accelerator_requests", {"device_profile_name": wanted})["arqs"]
    nova.patch("/accelerator_requests", bind_body(arqs, host.name, host.fake_provider, instance))
    (found,) = seat("member")(f"arq-list --instance {instance} -f json").shown
    assert (found["uuid"], found["state"]) == (arqs[0]["uuid"], "Bound")
    assert isinstance(found["attach_handle_info"], dict)
    shown = seat("reader")(f"arq-show {found['uuid']} -f json").shown
    assert shown["device_profile_name"] == wanted
    (device,) = seat("member")(f"accelerator-list --instance {instance} --long -f json").shown
    assert (device["instance_name"], device["instance_status"]) == (["unknown"], ["unknown"])
    assert (device["holder"], device["resource_classes"]) == (["unknown"], ["FPGA"])
    assert (device["hostname"], device["address"], device["provider"]) == (None, None, None)
    (listed,) = seat("admin")(f"accelerator-list --instance {instance} --long -f json").shown
    assert (listed["hostname"], listed["instances"][0]["uuid"]) == (host.name, instance)
    stranger = seat("member", "green")
    assert stranger(f"accelerator-list --instance {instance} -f json").shown == []
    assert stranger(f"arq-list --instance {instance} -f json").shown == []
    ran = stranger(f"arq-show {found['uuid']}")
    assert (ran.status, ran.out) == (1, "")
    nova.delete(f"/accelerator_requests?instance={instance}")


def test_operators_read_the_history_of_a_card(
    seat: Callable[..., Seat], compute: Callable[..., Compute], profile: Callable[..., str], app
):
    host, wanted, instance = compute(), profile(GROUP), str(uuid4())
    nova = Client(app, role="member", project="blue", service=True)
    arqs = nova.post("/accelerator_requests", {"device_profile_name": wanted})["arqs"]
    nova.patch("/accelerator_requests", bind_body(arqs, host.name, host.fake_provider, instance))
    operator = seat("operator")
    (card,) = operator(f"accelerator-list --host {host.name} -f json").shown
    assert (card["free"], card["total"], card["holder"]) == (card["total"] - 1, 16, ["unknown"])
    shown = operator(f"accelerator-show {card['uuid']} -f json").shown
    assert shown["providers"][0]["uuid"] == host.fake_provider
    assert shown["address"] == card["address"]
    bound, discovered = operator(f"event-list --device {card['uuid']} -f json").shown
    assert [bound["action"], discovered["action"]] == ["Bound", "discovered"]
    assert bound["at"].endswith("+00:00")
    for name, value in (
        ("instance", instance),
        ("request", bound["request_id"]),
        ("arq", f"{arqs[0]['uuid']} --limit 1"),
        ("host", f"{host.name} --since {bound['at'].replace('+00:00', 'Z')}"),
    ):
        assert operator(f"event-list --{name} {value} -f json").shown == [bound]
    (counts,) = operator(f"usage-show --by host --host {host.name} -f json").shown
    assert (counts["resource_class"], counts["total"], counts["used"]) == ("FPGA", 16, 1)
    for refused in ("reader", "member", "manager"):
        ran = seat(refused)("event-list")
        assert (ran.status, "cyborg:event:get_all" in ran.err) == (1, True)
    nova.delete(f"/accelerator_requests?instance={instance}")


def test_pages(seat: Callable[..., Seat]):
    admin = seat("admin")
    names = [f"page-{index}-{uuid4().hex}" for index in range(3)]
    for one in names:
        assert admin(f"profile-create {one}", *GROUPS).status == 0
    everything = admin("profile-list -f value -c uuid").out.split()
    first = admin("profile-list --limit 2 -f value -c uuid").out.split()
    rest = admin(f"profile-list --marker {first[-1]} -f value -c uuid").out.split()
    assert len(first) == 2
    assert first + rest == everything
    admin("profile-delete", *names)
    assert admin("profile-list -f json").shown == []


def test_an_accelerator_is_created_changed_and_deleted(
    seat: Callable[..., Seat], stack: Stack, placement: PlacementService, tmp_path: Path
):
    own = replace(stack, times=replace(stack.times, agent_heartbeat=0.2), _endings=[])
    bench = Bench(fresh_host("shell"), servers.server(), own, tmp_path, "CUSTOM_SHELL")
    placement.make_compute(bench.name)
    bench.start("left")
    admin = seat("admin")
    listing = f"accelerator-list --host {bench.name} -f json"
    eventually(lambda: len(admin(listing).shown) == 1, timeout=60.0)
    order = (
        f"accelerator-create --host {bench.name} --driver generic_driver --model soft --type FPGA "
        "--resource-class CUSTOM_SHELL --trait CUSTOM_SOFT --label rack=7 -f json"
    )
    (creates,) = admin(f"backend-list --host {bench.name} -f value -c creates").out.split()
    assert creates == "TEST_PCI"
    ran = admin(f"{order} --backend left --units 2")
    uuid = ran.shown["uuid"]
    assert (ran.status, ran.shown["labels"], ran.shown["model"]) == (0, {"rack": "7"}, "soft")
    assert admin(f"accelerator-update {uuid} --model softer -f value -c model").out == "softer\n"
    refused = admin(f"{order} --backend middle")
    assert (refused.status, refused.out) == (1, "")
    assert "Backend middle could not be found" in refused.err
    may_not = seat("member")(f"{order} --backend left")
    assert "accelerator_operator" in may_not.err
    assert admin(f"accelerator-delete {uuid}").status == 0
    eventually(lambda: len(admin(listing).shown) == 1)
    own.stop()
