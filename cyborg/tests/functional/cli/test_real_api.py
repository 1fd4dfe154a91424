# SPDX-License-Identifier: Apache-2.0
"""Commands against the real API, conductor and agent."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from cyborg.tests.fixtures.compute_host import ComputeHost
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.cli.conftest import UserCommand
from cyborg.tests.functional.life.http import Client, bind_body
from cyborg.tests.functional.life.made import Bench

GROUP = {"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICE": "required"}
GROUPS = ("--group", ",".join(f"{key}={value}" for key, value in GROUP.items()))


@pytest.fixture
def name() -> str:
    return f"profile-{uuid4().hex}"


def test_profile_is_created_shown_listed_and_deleted(
    as_user: Callable[..., UserCommand], name: str
):
    admin, reader = as_user("admin"), as_user("reader")
    created = admin(f"profile-create {name} --description d -f json", *GROUPS).json
    UUID(created["uuid"])
    assert (created["name"], created["groups"], created["description"]) == (name, [GROUP], "d")
    for key in (name, created["uuid"]):
        assert reader(f"profile-show {key} -f json").json == created
    (listed,) = reader(f"profile-list --name {name} -f json").json
    columns = ("uuid", "name", "groups", "satisfiable", "description")
    assert listed == {key: created[key] for key in columns}
    duplicate = admin(f"profile-create {name}", *GROUPS)
    assert duplicate.status == 1
    assert name in duplicate.err
    assert "(HTTP 409)" in duplicate.err
    assert admin(f"profile-delete {name}").status == 0
    deleted = reader(f"profile-show {name}")
    assert (deleted.status, deleted.out) == (1, "")
    assert "could not be found" in deleted.err


def test_profile_of_a_device_is_one_that_the_device_satisfies(
    as_user: Callable[..., UserCommand],
    compute: Callable[..., ComputeHost],
    name: str,
) -> None:
    host, admin = compute(), as_user("admin")
    (device,) = admin(f"accelerator-list --host {host.compute} -f json").json
    created = admin(f"profile-create {name} --from-device {device['uuid']} --count 3 -f json")
    assert created.json["groups"] == [GROUP | {"resources:FPGA": "3"}]
    assert (created.json["satisfiable"], created.err) == ("now", "")
    for role in ("admin", "operator"):
        shown = as_user(role)(f"accelerator-show {device['uuid']} -f json").json["profiles"]
        mine = {"uuid": created.json["uuid"], "name": name, "groups": [0]}
        assert mine in shown
    assert admin(f"profile-delete {name}").status == 0


def test_exported_profiles_are_applied_without_a_change(
    as_user: Callable[..., UserCommand],
    served: tuple[ComputeHost, str, dict[str, Any]],
    name: str,
    tmp_path: Path,
) -> None:
    admin, held = as_user("admin"), served[2]["device_profile_name"]
    file = tmp_path / "profiles.yaml"
    for more in ("", " --description d --project blue --project 0123"):
        admin(f"profile-create {name}{len(more)}{more}", *GROUPS)
    everything = admin("profile-list -f json --long").json
    assert admin(f"profile-export --output {file}").status == 0
    for options in ("", "--dry-run", "--prune"):
        outcome = admin(f"profile-apply -f {file} {options}")
        assert (outcome.status, outcome.out) == (0, ""), outcome.err
    assert admin("profile-list -f json --long").json == everything
    # A profile in use keeps its uuid when it changes, and is not deleted.
    own = tmp_path / "own.yaml"
    uuid = admin(f"profile-show {held} -f value -c uuid").out
    assert admin(f"profile-export {held} --output {own}").status == 0
    own.write_text(own.read_text().replace("'1'", "3"))
    assert admin(f"profile-apply -f {own} --dry-run").status == 3
    assert admin(f"profile-apply -f {own}").out.endswith(f"{held}: updated\n")
    assert admin(f"profile-apply -f {own}").status == 0
    changed = admin(f"profile-show {held} -f json").json
    assert (f"{changed['uuid']}\n", changed["groups"]) == (uuid, [GROUP | {"resources:FPGA": "3"}])
    documents = [text for text in file.read_text().split("---\n") if held not in text]
    file.write_text("---\n".join(documents))
    outcome = admin(f"profile-apply -f {file} --prune --yes")
    assert (outcome.status, "(HTTP 409)" in outcome.err) == (1, True), outcome.err
    assert f"{held}: not deleted" in outcome.err
    assert as_user("reader")(f"profile-apply -f {own}").status == 0
    refused = as_user("reader")(f"profile-apply -f {file} --prune --yes")
    assert (refused.status, "(HTTP 403)" in refused.err) == (1, True)


def test_refused_profile_names_role_and_invalid_group(
    as_user: Callable[..., UserCommand], name: str
):
    outcome = as_user("manager")(f"profile-create {name}", *GROUPS)
    assert outcome.status == 1
    assert "(HTTP 403)" in outcome.err
    assert "accelerator_operator" in outcome.err
    outcome = as_user("admin")(f"profile-create {name} --group resources:FPGA=many")
    assert outcome.status == 1
    assert "resources:FPGA" in outcome.err
    assert "(HTTP 400)" in outcome.err
    assert as_user("admin")(f"profile-list --name {name} -f json").json == []


@pytest.fixture
def served(
    app, compute: Callable[..., ComputeHost], profile: Callable[..., str]
) -> Iterator[tuple[ComputeHost, str, dict[str, Any]]]:
    """Bind a request; yield the host, the uuid of the instance, and the request as created."""
    host, instance = compute(), str(uuid4())
    nova = Client(app, role="member", project="blue", service=True)
    arqs = nova.post("/accelerator_requests", {"device_profile_name": profile(GROUP)})["arqs"]
    nova.patch("/accelerator_requests", bind_body(arqs, host.compute, host.fake_provider, instance))
    yield host, instance, arqs[0]
    nova.delete(f"/accelerator_requests?instance={instance}")


def test_arqs_are_visible_to_members_of_their_project_only(
    as_user: Callable[..., UserCommand], served: tuple[ComputeHost, str, dict[str, Any]]
):
    host, instance, created = served
    (arq,) = as_user("member")(f"arq-list --instance {instance} -f json").json
    assert (arq["uuid"], arq["state"]) == (created["uuid"], "Bound")
    assert isinstance(arq["attach_handle_info"], dict)
    details = as_user("reader")(f"arq-show {arq['uuid']} -f json").json
    assert details["device_profile_name"] == created["device_profile_name"]
    (device,) = as_user("member")(f"accelerator-list --instance {instance} --long -f json").json
    assert (device["instance_name"], device["instance_status"]) == ([instance], ["unknown"])
    assert (device["holder"], device["resource_classes"]) == ([instance], ["FPGA"])
    assert re.fullmatch("[0-9a-f]{56}", device["hostname"])
    assert (device["address"], device["provider"]) == (None, None)
    (listed,) = as_user("admin")(f"accelerator-list --instance {instance} --long -f json").json
    assert (listed["hostname"], listed["instances"][0]["uuid"]) == (host.compute, instance)
    other_project = as_user("member", "green")
    assert other_project(f"accelerator-list --instance {instance} -f json").json == []
    assert other_project(f"arq-list --instance {instance} -f json").json == []
    outcome = other_project(f"arq-show {arq['uuid']}")
    assert (outcome.status, outcome.out) == (1, "")


def test_operators_read_events_and_usage_of_a_device(
    as_user: Callable[..., UserCommand], served: tuple[ComputeHost, str, dict[str, Any]]
):
    host, instance, created = served
    operator = as_user("operator")
    (device,) = operator(f"accelerator-list --host {host.compute} -f json").json
    assert (device["free"], device["total"], device["holder"]) == (
        device["total"] - 1,
        16,
        [instance],
    )
    details = operator(f"accelerator-show {device['uuid']} -f json").json
    assert details["providers"][0]["uuid"] == host.fake_provider
    assert details["address"] == device["address"]
    assert "links" not in details
    missing = operator("accelerator-show", str(uuid4()))
    assert (missing.status, "could not be found" in missing.err) == (1, True)
    bound, discovered = operator(f"event-list --device {device['uuid']} -f json").json
    assert [bound["action"], discovered["action"]] == ["Bound", "discovered"]
    assert bound["at"].endswith("+00:00")
    for name, value in (
        ("instance", instance),
        ("request", bound["request_id"]),
        ("arq", f"{created['uuid']} --limit 1"),
        ("host", f"{host.compute} --since {bound['at'].replace('+00:00', 'Z')}"),
    ):
        assert operator(f"event-list --{name} {value} -f json").json == [bound]
    (counts,) = operator(f"usage-show --by host --host {host.compute} -f json").json
    assert (counts["resource_class"], counts["total"], counts["used"]) == ("FPGA", 16, 1)
    (used,) = operator(f"usage-list --by host --host {host.compute} -f json").json
    assert (used["resource_class"], used["host"]) == ("FPGA", host.compute)
    assert used["unit_seconds"] > 0
    for role in ("reader", "member", "manager"):
        outcome = as_user(role)("event-list")
        assert (outcome.status, "cyborg:event:get_all" in outcome.err) == (1, True)


def test_accelerator_is_created_changed_and_deleted(
    as_user: Callable[..., UserCommand], beside: Callable[..., Stack], tmp_path: Path
):
    bench = Bench.begin(beside(agent_heartbeat=0.2), tmp_path, "CUSTOM_SHELL", "left")
    admin = as_user("admin")
    listing = f"accelerator-list --host {bench.compute} -f json"
    eventually(lambda: len(admin(listing).json) == 1)
    create = (
        f"accelerator-create --host {bench.compute} --driver generic_driver --model soft "
        "--type FPGA --resource-class CUSTOM_SHELL --trait CUSTOM_SOFT --label rack=7 -f json"
    )
    (creates,) = admin(f"backend-list --host {bench.compute} -f value -c creates").out.split()
    assert creates == "TEST_PCI"
    outcome = admin(f"{create} --backend left --units 2")
    uuid = outcome.json["uuid"]
    assert (outcome.status, outcome.json["labels"], outcome.json["model"]) == (
        0,
        {"rack": "7"},
        "soft",
    )
    assert admin(f"accelerator-update {uuid} --model softer -f value -c model").out == "softer\n"
    refused = admin(f"{create} --backend middle")
    assert (refused.status, refused.out) == (1, "")
    assert "Backend middle could not be found" in refused.err
    forbidden = as_user("member")(f"{create} --backend left")
    assert "accelerator_operator" in forbidden.err
    assert admin(f"accelerator-delete {uuid}").status == 0
    eventually(lambda: len(admin(listing).json) == 1)


def test_dry_run_foretells_the_change_of_an_accelerator(
    as_user: Callable[..., UserCommand], served: tuple[ComputeHost, str, dict[str, Any]]
) -> None:
    host, operator = served[0], as_user("operator")
    (device,) = operator(f"accelerator-list --host {host.compute} -f json").json
    line = f"accelerator-update {device['uuid']} --status maintaining --reason fans -f json"
    foretold = operator(f"{line} --dry-run")
    assert operator(f"accelerator-list --host {host.compute} -f json").json == [device]
    assert "1 unit(s) in use stay with their instances" in foretold.err
    assert operator(line).json == foretold.json


def test_dry_run_of_a_driver_in_use_fails_like_the_command(
    as_user: Callable[..., UserCommand], served: tuple[ComputeHost, str, dict[str, Any]]
) -> None:
    host, operator = served[0], as_user("operator")
    (row,) = operator(f"driver-list --host {host.compute} --name fake_driver -f json").json
    foretold = operator(f"uninstall-driver {row['uuid']} --dry-run")
    assert (foretold.status, "1 of its devices are in use" in foretold.err) == (1, True)
    refused = operator(f"uninstall-driver {row['uuid']}")
    assert (refused.status, "(HTTP 409)" in refused.err) == (1, True)
    (after,) = operator(f"driver-list --host {host.compute} --name fake_driver -f json").json
    assert after == row
