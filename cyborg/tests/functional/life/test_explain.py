# SPDX-License-Identifier: Apache-2.0
"""Why a profile does not fit, as operators ask for it: through HTTP, with the real Placement."""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from keystoneauth1.adapter import Adapter

from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.life.cards import CARD, OTHER, Traits
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import bind, create, eventually_published

Racked = Callable[..., RackedCompute]
Profiles = Callable[..., str]


@pytest.fixture
def rack(racked: Racked, operator: Client, resource_class: str) -> RackedCompute:
    """A compute with two cards of two units."""
    rack = racked(Traits(resource_class), cards={CARD: 2, OTHER: 2})
    eventually_published(operator)
    return rack


def explained(client: Client, name: str, **query: Any) -> dict[str, Any]:
    answer: dict[str, Any] = client.get(f"/device_profiles/{name}/explain", **query)["explanation"]
    return answer


def left(answer: dict[str, Any]) -> dict[str, int]:
    """The hosts that are left after each step."""
    return {f"{step['step']} {step['subject']}": step["hosts"] for step in answer["steps"]}


def test_steps_lead_to_the_hosts_that_fit(
    rack: RackedCompute, operator: Client, nova: Client, profile: Profiles, resource_class: str
) -> None:
    name = profile({f"resources:{resource_class}": "2", "trait:CUSTOM_CARD": "required"})
    answer = explained(operator, name)
    assert (answer["fits"], answer["satisfiable"], answer["suggestion"]) == (True, "now", None)
    assert rack.compute in answer["summary"]
    assert left(answer) == {
        f"resource_class {resource_class}": 1,
        "trait CUSTOM_CARD=required": 1,
        "amount 2 of one provider": 1,
        "state units that can be given out now": 1,
        "shape all groups on one host": 1,
        "free free units": 1,
        "compute COMPUTE_ACCELERATORS=required": 1,
        "compute OWNER_NOVA=required": 1,
        "compute COMPUTE_STATUS_DISABLED=forbidden": 1,
        "placement candidates": 1,
    }
    (host,) = answer["hosts"]
    figures = {"total": 4, "reserved": 0}
    assert host == {
        "host": rack.compute,
        "step": None,
        "reason": "",
        "desired": figures,
        "published": figures,
    }
    assert explained(operator, name, host=rack.compute)["fits"]
    nowhere = explained(operator, name, host="nowhere")
    assert (nowhere["fits"], nowhere["hosts"], nowhere["suggestion"]) == (False, [], None)
    member = replace(nova, service=False, version="2.100")
    told = explained(member, name)
    assert told["summary"] == "The cloud can give these accelerators now."
    assert told.keys().isdisjoint({"steps", "hosts", "suggestion", "further"})
    assert rack.compute not in str(told)
    for query in ({"host": rack.compute}, {"flavor": "m1"}):
        member.get(f"/device_profiles/{name}/explain", status=403, **query)
    operator.get(f"/device_profiles/{uuid4()}/explain", status=404)
    replace(operator, version="2.3").get(f"/device_profiles/{name}/explain", status=404)


def test_explanation_says_how_many_instances_fit(
    rack: RackedCompute, operator: Client, nova: Client, profile: Profiles, resource_class: str
) -> None:
    group = {f"resources:{resource_class}": "1"}
    name = profile(group)

    def further() -> int:
        count = explained(operator, name)["further"]
        path = "/device_profiles/explain"
        assert operator.post(path, {"groups": [group]}, status=200)["explanation"]["further"] == (
            count
        )
        return int(count)

    assert further() == 4
    bind(nova, create(nova, name), rack.provider(CARD), host=rack.compute)
    assert further() == 3
    (row,) = operator.get("/capacity", profile=name)["capacity"]
    assert row["further"] == 3
    assert explained(operator, name, host="nowhere")["further"] == 0
    (agent,) = operator.get("/services", kind="process", host=rack.compute)["services"]
    operator.patch(f"/services/{agent['uuid']}", {"status": "disabled"}, status=200)
    eventually_published(operator)
    assert further() == 0


def test_groups_are_explained_before_they_are_stored(
    rack: RackedCompute, operator: Client, nova: Client, profile: Profiles, resource_class: str
) -> None:
    group = {f"resources:{resource_class}": "2", "trait:CUSTOM_CARD": "required"}
    path = "/device_profiles/explain"
    before = operator.get("/device_profiles")["device_profiles"]
    answer = operator.post(path, {"groups": [group]}, status=200)["explanation"]
    assert operator.get("/device_profiles")["device_profiles"] == before
    assert answer == explained(operator, profile(group))
    wrong = operator.post(path, {"groups": [{f"resources:{resource_class}": "0"}]}, status=400)
    assert f"groups[0].resources:{resource_class}" in str(wrong)
    operator.post(path, {"groups": [group], "name": "a"}, status=400)
    operator.post(path, {}, status=400)
    replace(nova, service=False, version="2.100").post(path, {"groups": [group]}, status=403)
    replace(operator, version="2.3").post(path, {"groups": [group]}, status=404)


def test_wrong_names_have_the_nearest_ones_and_a_profile_that_works(
    rack: RackedCompute, operator: Client, profile: Profiles, resource_class: str
) -> None:
    name = profile({f"resources:{resource_class}": "1", "trait:CUSTOM_CARDS": "required"})
    answer = explained(operator, name)
    assert (answer["fits"], answer["satisfiable"]) == (False, "never")
    (reason,) = {step["reason"] for step in answer["steps"] if step["reason"]}
    assert reason == "No resource provider has it; the nearest existing one is CUSTOM_CARD."
    groups = answer["suggestion"]["groups"]
    assert groups == [{f"resources:{resource_class}": "1", "trait:CUSTOM_CARD": "required"}]
    assert explained(operator, profile(*groups))["fits"]
    absent = explained(operator, profile({f"resources:{resource_class}X": "1"}))
    assert absent["steps"][0]["reason"].endswith(f"the nearest existing one is {resource_class}.")


def test_groups_that_no_host_has_together(
    rack: RackedCompute, operator: Client, profile: Profiles, resource_class: str
) -> None:
    group = {f"resources:{resource_class}": "2"}
    answer = explained(operator, profile(group, group, group))
    assert not answer["fits"]
    assert [step["reason"] for step in answer["steps"] if step["step"] == "shape"] == [
        "Each group finds a provider, but no host has enough of them for all together."
    ]
    assert answer["suggestion"]["groups"] == [group, group]


def test_units_that_wait_for_the_operator_are_counted(
    rack: RackedCompute, operator: Client, nova: Client, profile: Profiles, resource_class: str
) -> None:
    name = profile({f"resources:{resource_class}": "1"})
    for device in operator.get("/devices", hostname=rack.compute)["devices"]:
        operator.post(f"/devices/{device['uuid']}/disable", status=204)
    eventually_published(operator)
    answer = explained(operator, name)
    assert (answer["fits"], answer["satisfiable"]) == (False, "when free")
    assert answer["summary"] == (
        f"4 of 4 matching units on host {rack.compute} are taken out of service: cyborg "
        "accelerator-update --status ready offers them again; 1 of them is enough."
    )
    (step,) = (step for step in answer["steps"] if step["step"] == "state")
    assert (step["units"], step["words"]) == (0, {"maintaining": 4})
    (host,) = answer["hosts"]
    assert (host["step"], host["desired"]) == ("free", {"total": 4, "reserved": 4})
    (change,) = answer["suggestion"]["units"]
    assert (change["state"], change["amount"]) == ("maintaining", 1)
    operator.post(f"/devices/{change['device']}/enable", status=204)
    eventually_published(operator)
    assert explained(operator, name)["fits"]
    arqs = create(nova, name)
    address = operator.get(f"/devices/{change['device']}")["address"]
    instance = bind(nova, arqs, rack.provider(address), host=rack.compute)
    told = explained(operator, name, instance=instance)
    assert told["failures"] == []


def test_units_that_only_placement_has_given_away_are_claimed(
    placement: PlacementService,
    rack: RackedCompute,
    operator: Client,
    profile: Profiles,
    resource_class: str,
) -> None:
    name = profile({f"resources:{resource_class}": "1"})
    consumer = str(uuid4())
    taken = {rack.provider(card): {resource_class: 2} for card in (CARD, OTHER)}
    assert placement.claim(consumer, taken)
    try:
        answer = explained(operator, name)
        (step,) = (step for step in answer["steps"] if step["step"] == "state")
        assert (answer["fits"], step["words"]) == (False, {"claimed": 4})
        assert answer["further"] == 0
        assert "a server that has no accelerator request for them" in answer["summary"]
    finally:
        placement.free(consumer)
    assert explained(operator, name)["fits"]


def test_disabled_compute_service_is_named(
    placement: PlacementService,
    rack: RackedCompute,
    operator: Client,
    profile: Profiles,
    resource_class: str,
) -> None:
    name = profile({f"resources:{resource_class}": "1"})
    (root,) = placement.call("GET", f"/resource_providers?name={rack.compute}")[
        "resource_providers"
    ]
    path = f"/resource_providers/{root['uuid']}/traits"
    traits = placement.call("GET", path)
    disabled = {**traits, "traits": [*traits["traits"], "COMPUTE_STATUS_DISABLED"]}
    placement.call("PUT", path, disabled)
    answer = explained(operator, name)
    assert not answer["fits"]
    assert answer["summary"] == (
        f"Host {rack.compute}: its compute service is disabled: openstack compute service set "
        "--enable."
    )
    (host,) = answer["hosts"]
    assert host["step"] == "compute"


def test_flavor_needs_room_on_the_host(
    rack: RackedCompute,
    nova_api: SimulatedNova,
    operator: Client,
    profile: Profiles,
    resource_class: str,
) -> None:
    """The compute has 8 VCPUs and 16 GiB."""
    name = profile({f"resources:{resource_class}": "1"})
    small = {"id": "1", "name": "g.small", "vcpus": 8, "ram": 16384, "disk": 0}
    large = {"id": "2", "name": "g.large", "vcpus": 9, "ram": 16384, "disk": 0}
    disk = {"id": "3", "name": "g.disk", "vcpus": 1, "ram": 1024, "disk": 10, "swap": ""}
    nova_api.flavors = [small, large, disk]
    nova_api.page = 1
    try:
        answer = explained(operator, name, flavor="1")
        assert answer["fits"]
        assert left(answer)["flavor VCPU:8, MEMORY_MB:16384"] == 1
        answer = explained(operator, name, flavor="g.large")
        assert (answer["fits"], answer["satisfiable"]) == (False, "now")
        assert answer["summary"] == (
            f"Host {rack.compute}: too little is left for the flavor: move or delete other servers."
        )
        assert [host["step"] for host in answer["hosts"]] == ["flavor"]
        # No provider has a disk; only Placement's candidates tell of it.
        answer = explained(operator, name, flavor="g.disk")
        assert (answer["fits"], left(answer)["placement candidates"]) == (False, 0)
        assert "Placement has no candidate" in answer["summary"]
        operator.get(f"/device_profiles/{name}/explain", status=404, flavor="g.none")
        nova_api.flavors[0] = small | {"extra_specs": {"hw:cpu_policy": "dedicated"}}
        answer = explained(operator, name, flavor="g.small")
        assert (answer["fits"], left(answer)["flavor PCPU:8, MEMORY_MB:16384"]) == (False, 0)
    finally:
        nova_api.flavors, nova_api.page = [], 1000


def test_failed_requests_of_a_server_are_named(
    racked: Racked, operator: Client, nova: Client, profile: Profiles, resource_class: str
) -> None:
    rack = racked(Traits(resource_class, prepare=True), cards={CARD: 1})
    rack.driver.behaviour.fault = RuntimeError("the card is on fire")
    name = profile({f"resources:{resource_class}": "1"})
    instance = bind(nova, create(nova, name), rack.provider(), host=rack.compute)
    eventually(lambda: explained(operator, name, instance=instance)["failures"])
    (failure,) = explained(operator, name, instance=instance)["failures"]
    assert failure["state"] == "BindFailed"
    assert "the card is on fire" in failure["reason"]
    assert failure["request_id"].startswith("req-")
    assert explained(operator, name, instance=str(uuid4()))["failures"] == []


def test_explanation_asks_placement_at_most_ten_times(
    rack: RackedCompute,
    operator: Client,
    profile: Profiles,
    resource_class: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = [
        {f"resources:{resource_class}": str(amount), "trait:CUSTOM_CARD": "required"}
        for amount in (1, 2, 3, 4)
    ]
    paths: list[str] = []
    request = Adapter.request
    explaining = threading.get_ident()

    def counted(adapter: Adapter, url: str, method: str, **arguments: Any) -> Any:
        # Agents of other threads ask Placement as well.
        if threading.get_ident() == explaining:
            paths.append(url.partition("?")[0])
        return request(adapter, url, method, **arguments)

    monkeypatch.setattr(Adapter, "request", counted)
    answer = explained(operator, profile(*groups), host=rack.compute)
    assert not answer["fits"]
    assert Counter(paths) == {"/resource_providers": 8, "/allocation_candidates": 1}
