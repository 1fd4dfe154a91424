# SPDX-License-Identifier: Apache-2.0
"""What publishing does to the real Placement, and what it leaves alone."""

import logging
import uuid
from dataclasses import replace

import pytest

from cyborg import exception
from cyborg.clients.placement import Placement
from cyborg.clients.placement_sync import Publisher
from cyborg.model.provider import Verdict
from cyborg.tests.fixtures.placement import PlacementService, fresh_host, requested
from cyborg.tests.functional.clients.conftest import Wire
from cyborg.tests.functional.clients.trees import (
    TRAITS,
    card,
    everything,
    put_by_hand,
    shown,
    shows,
    tree,
)


def test_children_of_the_compute_are_allocation_candidates(
    publisher: Publisher, placement: PlacementService, host: str
):
    root = placement.make_compute(host)
    assert publisher.publish(tree(host, size=2)).root_uuid == root
    groups = requested([{"resources:FPGA": "4", "trait:CUSTOM_TEST_CARD": "required"}])
    found = placement.candidates(groups, in_tree=root)
    answered = {one.mappings["device_profile_0"][0] for one in found}
    assert answered == {card(host, 0).uuid, card(host, 1).uuid}
    assert all(one.mappings[""] == [root] for one in found)


def test_compute_and_foreign_providers_are_unchanged(
    publisher: Publisher, placement: PlacementService, host: str
):
    root = placement.make_compute(host)
    foreign = str(uuid.uuid4())
    body = {"name": f"{host}_nova_pci", "uuid": foreign, "parent_provider_uuid": root}
    placement.call("POST", "/resource_providers", body)
    put_by_hand(placement, foreign, "inventories", {"PGPU": {"total": 2}})
    before = [everything(placement, one) for one in (root, foreign)]
    publisher.publish(tree(host, size=2))
    publisher.publish(tree(host, card(host, reserved=4)))
    publisher.check(tree(host, card(host, 1)))
    assert [everything(placement, one) for one in (root, foreign)] == before
    # Providers that are missing in the tree stay as they are.
    assert shows(placement, card(host, reserved=4))


def test_foreign_traits_are_kept_and_own_traits_follow_the_tree(
    publisher: Publisher, placement: PlacementService, host: str
):
    publisher.publish(tree(host))
    put_by_hand(placement, card(host).uuid, "traits", [*TRAITS, "HW_GPU_API_VULKAN"])
    renamed = card(host, traits=frozenset({"OWNER_CYBORG", "CUSTOM_TEST_CARD_2"}))
    assert publisher.publish(tree(host, renamed)).problems == {}
    _, traits = shown(placement, renamed)
    assert traits == {"OWNER_CYBORG", "CUSTOM_TEST_CARD_2", "HW_GPU_API_VULKAN"}


def test_own_traits_are_removed_after_a_write_that_failed(
    publisher: Publisher, placement: PlacementService, wire: Wire, host: str
):
    publisher.publish(tree(host, card(host, traits=TRAITS | {"CUSTOM_TEST_OLD"})))
    wire.before = lambda call: 503 if call.startswith("PUT /resource_providers") else None
    with pytest.raises(exception.Unavailable):
        publisher.publish(tree(host))
    wire.before = lambda _call: None
    assert publisher.publish(tree(host)).problems == {}
    assert shows(placement, card(host))


def test_check_repairs_manual_changes(publisher: Publisher, placement: PlacementService, host: str):
    publisher.publish(tree(host, size=3))
    spoiled = {"FPGA": {"total": 4, "reserved": 3, "allocation_ratio": 16.0}}
    put_by_hand(placement, card(host, 0).uuid, "inventories", spoiled)
    put_by_hand(placement, card(host, 1).uuid, "traits", [])
    placement.call("DELETE", f"/resource_providers/{card(host, 2).uuid}")
    assert publisher.check(tree(host, size=3)).problems == {}
    assert all(shows(placement, card(host, one)) for one in range(3))
    # A publish finds it out when it has something to write.
    placement.call("DELETE", f"/resource_providers/{card(host).uuid}")
    changed = card(host, reserved=1)
    assert publisher.publish(tree(host, changed)).problems == {}
    assert shows(placement, changed)


@pytest.mark.parametrize("renamed", [False, True])
def test_provider_that_is_deleted_during_a_check_is_created_again(
    publisher: Publisher, placement: PlacementService, wire: Wire, host: str, *, renamed: bool
):
    mine = card(host)
    Publisher(Placement(wire)).publish(tree(host))
    if renamed:
        placement.call("PUT", f"/resource_providers/{mine.uuid}", {"name": f"other-{uuid.uuid4()}"})

    def delete(call: str) -> None:
        if call == f"GET /resource_providers/{mine.uuid}/inventories":
            wire.before = lambda _call: None
            placement.call("DELETE", f"/resource_providers/{mine.uuid}")

    wire.before = delete
    wire.take()
    assert publisher.check(tree(host)).problems == {}
    # The new provider has the right name.
    assert "PUT /resource_providers/*" not in wire.take()
    assert shows(placement, mine)


def test_reserved_provider_keeps_its_allocations(
    publisher: Publisher, placement: PlacementService, client: Placement, host: str
):
    root = placement.make_compute(host)
    publisher.publish(tree(host))
    instance, groups = str(uuid.uuid4()), requested([{"resources:FPGA": "1"}])
    placement.allocate(instance, placement.candidates(groups, in_tree=root)[0])
    disabled = card(host, reserved=4)
    assert publisher.publish(tree(host, disabled)).problems == {}
    assert shows(placement, disabled)
    assert placement.candidates(groups, in_tree=root) == []
    assert client.allocations_of(disabled.uuid) == {instance: {"FPGA": 1}}


def test_name_used_in_another_tree_is_refused_and_others_continue(
    publisher: Publisher, placement: PlacementService, wire: Wire, host: str
):
    holder = placement.call("POST", "/resource_providers", {"name": f"{host}_1"})["uuid"]
    result = publisher.publish(tree(host, size=3))
    assert result.problems == {f"{host}_1": f"claimed in Placement by {holder}"}
    assert [one.verdict for one in result.outcomes] == ["published", "refused", "published"]
    assert wire.take().count("POST /resource_providers") == 3
    assert shows(placement, card(host, 2))
    assert publisher.publish(tree(host, size=3)).problems == result.problems
    assert wire.take() == []
    placement.call("DELETE", f"/resource_providers/{holder}")
    assert publisher.check(tree(host, size=3)).problems == {}
    assert shows(placement, card(host, 1))


def test_a_name_that_is_free_again_is_used_by_the_next_publish(
    publisher: Publisher, placement: PlacementService, wire: Wire, host: str
):
    holder = placement.call("POST", "/resource_providers", {"name": card(host).name})["uuid"]

    def delete(call: str) -> None:
        if call.startswith("GET /resource_providers?name=") and card(host).name in call:
            placement.call("DELETE", f"/resource_providers/{holder}")

    wire.before = delete
    (outcome,) = publisher.publish(tree(host)).outcomes
    assert (outcome.verdict, "is free again" in outcome.reason) == (Verdict.FAILED, True)
    wire.before = lambda _call: None
    assert publisher.publish(tree(host)).problems == {}
    assert shows(placement, card(host))


def test_a_conflict_that_is_not_about_the_name_may_be_tried_again(
    publisher: Publisher, placement: PlacementService, wire: Wire, host: str
):
    """It is its reason: nobody looks for another provider with the name."""
    wire.before = lambda call: 409 if call.startswith("POST") else None
    (outcome,) = publisher.publish(tree(host)).outcomes
    assert (outcome.verdict, outcome.reason) == (Verdict.FAILED, "answered 409")
    wire.before = lambda _call: None
    assert publisher.publish(tree(host)).problems == {}
    placement.call("PUT", f"/resource_providers/{card(host).uuid}", {"name": fresh_host()})
    wire.before = lambda call: 409 if call.startswith("PUT") else None
    (outcome,) = publisher.check(tree(host)).outcomes
    assert (outcome.verdict, outcome.reason) == (Verdict.FAILED, "answered 409")


@pytest.mark.parametrize("taken", [False, True], ids=["its name is free", "its name is taken"])
def test_a_renamed_provider_gets_its_name_back(
    publisher: Publisher, placement: PlacementService, host: str, *, taken: bool
):
    mine, other = card(host), f"other-{uuid.uuid4()}"
    publisher.publish(tree(host))
    placement.call("PUT", f"/resource_providers/{mine.uuid}", {"name": other})
    if taken:
        placement.call("POST", "/resource_providers", {"name": mine.name})
    # Whether it does or not, what it offers is right.
    changed = replace(mine, reserved=3)
    assert publisher.check(tree(host, changed)).problems == {}
    assert placement.name_of(mine.uuid) == (other if taken else mine.name)
    offered = placement.call("GET", f"/resource_providers/{mine.uuid}/inventories")
    assert offered["inventories"]["FPGA"]["reserved"] == 3


def test_uuid_used_in_another_tree_is_refused(
    publisher: Publisher, placement: PlacementService, host: str
):
    other = placement.make_compute(fresh_host())
    mine = card(host)
    body = {"name": fresh_host(), "uuid": mine.uuid, "parent_provider_uuid": other}
    placement.call("POST", "/resource_providers", body)
    before = everything(placement, mine.uuid)
    for attempt in (publisher.publish, publisher.check):
        problems = attempt(tree(host)).problems
        assert problems == {
            mine.name: f"claimed in Placement by {mine.uuid} in the tree of {other}"
        }
    assert everything(placement, mine.uuid) == before


def test_a_refusal_is_forgotten_when_the_provider_is_published(
    publisher: Publisher, placement: PlacementService, host: str
):
    holder = placement.call("POST", "/resource_providers", {"name": card(host).name})["uuid"]
    assert list(publisher.publish(tree(host)).problems) == [card(host).name]
    placement.call("DELETE", f"/resource_providers/{holder}")
    assert publisher.publish(tree(host, card(host, reserved=1))).problems == {}
    assert publisher.publish(tree(host)).problems == {}
    assert shows(placement, card(host))


def test_invalid_provider_is_refused_without_a_request(
    publisher: Publisher, placement: PlacementService, wire: Wire, host: str
):
    evil = card(host, traits=frozenset({"../resource_providers/x"}))
    result = publisher.publish(tree(host, evil, card(host, 1)))
    assert list(result.problems) == [evil.name]
    assert not [one for one in wire.calls if evil.uuid in one or ".." in one]
    assert shows(placement, card(host, 1))


def test_allocated_resource_class_is_not_changed(
    publisher: Publisher, placement: PlacementService, host: str
):
    root = placement.make_compute(host)
    publisher.publish(tree(host, size=2))
    groups = requested([{"resources:FPGA": "4"}])
    candidate = placement.candidates(groups, in_tree=root)[0]
    placement.allocate(str(uuid.uuid4()), candidate)
    held = candidate.mappings["device_profile_0"][0]
    gpus = [card(host, one, resource_class="PGPU") for one in range(2)]
    result = publisher.publish(tree(host, *gpus))
    (stuck,) = (one for one in gpus if one.uuid == held)
    assert list(result.problems) == [stuck.name]
    assert "in use" in result.problems[stuck.name]
    assert all(shows(placement, one) for one in gpus if one is not stuck)


def test_provider_that_changes_constantly_is_given_up(
    publisher: Publisher, placement: PlacementService, wire: Wire, host: str
):
    publisher.publish(tree(host, size=2))
    busy = card(host, 0, reserved=1)

    def move(call: str) -> None:
        if call.startswith("PUT") and busy.uuid in call:
            put_by_hand(placement, busy.uuid, "inventories", {"FPGA": {"total": 4}})

    wire.before = move
    result = publisher.publish(tree(host, busy, card(host, 1, reserved=1)))
    assert list(result.problems) == [busy.name]
    assert shows(placement, card(host, 1, reserved=1))
    wire.before = lambda _call: None
    assert publisher.publish(tree(host, busy)).problems == {}
    assert shows(placement, busy)


@pytest.mark.parametrize("status", [401, 403, 502, 503])
def test_publish_continues_after_placement_outage(
    publisher: Publisher, wire: Wire, host: str, status: int
):
    wire.before = lambda call: status if card(host, 1).uuid in call else None
    with pytest.raises(exception.Unavailable):
        publisher.publish(tree(host, size=2))
    wire.before = lambda _call: None
    wire.take()
    assert publisher.publish(tree(host, size=2)).problems == {}
    assert "POST /resource_providers" not in wire.take()


@pytest.mark.parametrize("resource_class", ["FPGA", "CUSTOM_TEST_CLASS"])
def test_deleted_trait_is_created_again(
    publisher: Publisher, placement: PlacementService, host: str, resource_class: str
):
    word = f"CUSTOM_{uuid.uuid4().hex.upper()}"
    marked = card(host, resource_class=resource_class, traits=frozenset({word}))
    publisher.publish(tree(host, marked))
    publisher.publish(tree(host, replace(marked, traits=TRAITS)))
    placement.call("DELETE", f"/traits/{word}")
    assert "No such trait" in publisher.publish(tree(host, marked)).problems[marked.name]
    assert publisher.publish(tree(host, marked)).problems == {}
    assert shows(placement, marked)


def test_provider_below_another_compute_is_not_retired(
    publisher: Publisher, placement: PlacementService, host: str
):
    """It was moved there, and the agent of that compute answers for it now."""
    publisher.publish(tree(host))
    elsewhere = placement.make_compute(fresh_host())
    with pytest.raises(exception.Conflict, match="another compute's now"):
        publisher.retire(card(host).uuid, root=elsewhere)
    assert shows(placement, card(host))
    own, _ = publisher.find_root([host])
    publisher.retire(card(host).uuid, root=own)
    found = placement.call("GET", f"/resource_providers?uuid={card(host).uuid}")
    assert found == {"resource_providers": []}


@pytest.mark.parametrize("recalled", [False, True])
def test_restarted_publisher_removes_only_traits_of_the_recalled_tree(
    publisher: Publisher, client: Placement, placement: PlacementService, host: str, recalled: bool
):
    earlier = tree(host, card(host, traits=TRAITS | {"CUSTOM_TEST_OLD"}))
    publisher.publish(earlier)
    everybody = [*TRAITS, "CUSTOM_TEST_OLD", "HW_GPU_API_VULKAN"]
    put_by_hand(placement, card(host).uuid, "traits", everybody)
    again = Publisher(client)
    if recalled:
        again.recall(earlier)
    assert again.check(tree(host)).problems == {}
    kept = frozenset(() if recalled else ("CUSTOM_TEST_OLD",))
    assert shown(placement, card(host))[1] == TRAITS | {"HW_GPU_API_VULKAN"} | kept


@pytest.mark.parametrize("publishes", [False, True])
def test_children_are_created_below_a_recreated_compute(
    publisher: Publisher, placement: PlacementService, host: str, publishes: bool
):
    """A check finds it; a publish fails once."""
    publisher.publish(tree(host))
    for one in (card(host).uuid, placement.make_compute(host)):
        placement.call("DELETE", f"/resource_providers/{one}")
    anew = placement.make_compute(host)
    changed = tree(host, card(host, reserved=1))
    if publishes:
        assert list(publisher.publish(changed).problems) == [card(host).name]
    result = (publisher.publish if publishes else publisher.check)(changed)
    assert (result.root_uuid, result.problems) == (anew, {})
    child = placement.call("GET", f"/resource_providers/{card(host).uuid}")
    assert child["parent_provider_uuid"] == anew


def test_lasting_problem_and_its_end_are_logged_once(
    publisher: Publisher,
    placement: PlacementService,
    wire: Wire,
    host: str,
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO, "cyborg.clients.placement_sync")
    wire.before = lambda call: 500 if card(host).uuid in call else None
    for _ in range(3):
        result = publisher.publish(tree(host, size=2))
        assert list(result.problems) == [card(host, 0).name]
    assert shows(placement, card(host, 1))
    warnings = [one for one in caplog.records if one.name == "cyborg.clients.placement_sync"]
    assert [one.levelname for one in warnings if "is not as desired" in one.message] == ["WARNING"]
    wire.before = lambda _call: None
    text = f"Provider {card(host).name} is as desired in Placement"
    for written in (1, 0):
        caplog.clear()
        publisher.publish(tree(host, size=2))
        assert caplog.messages.count(text) == written


def test_unknown_standard_trait_stops_only_its_provider_until_it_changes(
    publisher: Publisher, placement: PlacementService, host: str
):
    novel = card(host, traits=frozenset({"HW_FROM_THE_FUTURE"}))
    result = publisher.publish(tree(host, novel, card(host, 1)))
    assert "HW_FROM_THE_FUTURE" in result.problems[novel.name]
    assert result.outcomes[0].verdict is Verdict.REFUSED
    found = placement.call("GET", f"/resource_providers?uuid={novel.uuid}")
    assert found == {"resource_providers": []}
    assert shows(placement, card(host, 1))
    assert publisher.publish(tree(host)).problems == {}
    assert shows(placement, card(host))


def test_compute_is_named_until_it_appears(publisher: Publisher, placement: PlacementService):
    name = fresh_host()
    for attempt in (publisher.publish, publisher.check):
        with pytest.raises(exception.NotFound, match=f"Compute provider {name} could not be found"):
            attempt(tree(name))
    placement.make_compute(name)
    assert publisher.publish(tree(name)).problems == {}


def test_retire_deletes_provider_and_is_idempotent(
    publisher: Publisher, placement: PlacementService, host: str
):
    """Nothing is remembered of it, whoever has deleted it."""
    publisher.publish(tree(host, size=2))
    for _ in range(2):
        publisher.retire(card(host, 0).uuid)
        found = placement.call("GET", f"/resource_providers?uuid={card(host, 0).uuid}")
        assert found == {"resource_providers": []}
    assert shows(placement, card(host, 1))
    placement.call("DELETE", f"/resource_providers/{card(host, 1).uuid}")
    publisher.retire(card(host, 1).uuid)
    assert publisher.publish(tree(host, size=2)).problems == {}
    assert all(shows(placement, card(host, index)) for index in range(2))


def test_compute_and_allocated_providers_are_not_retired(
    publisher: Publisher, placement: PlacementService, host: str
):
    root = placement.make_compute(host)
    publisher.publish(tree(host))
    groups = requested([{"resources:FPGA": "1"}])
    placement.allocate(str(uuid.uuid4()), placement.candidates(groups, in_tree=root)[0])
    with pytest.raises(exception.Conflict):
        publisher.retire(card(host).uuid)
    assert shows(placement, card(host))
    with pytest.raises(exception.Conflict, match="not ours"):
        publisher.retire(root)
    assert placement.call("GET", f"/resource_providers/{root}/inventories")["inventories"]
