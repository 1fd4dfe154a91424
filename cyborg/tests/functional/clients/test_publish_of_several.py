# SPDX-License-Identifier: Apache-2.0
"""Several providers, hosts and resource classes in the real Placement."""

from uuid import uuid4

import pytest

from cyborg import exception
from cyborg.clients.placement import Placement
from cyborg.clients.placement_sync import Publisher
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.functional.clients.conftest import Wire
from cyborg.tests.functional.clients.trees import (
    TRAITS,
    card,
    put_by_hand,
    shown,
    shows,
    tree,
)


def word() -> str:
    """Return the end of a custom name that Placement does not have."""
    return f"CUSTOM_{uuid4().hex.upper()}"


def test_each_provider_has_its_own_new_class_and_traits(
    publisher: Publisher, placement: PlacementService, host: str
):
    cards = [
        card(host, index, resource_class=word(), traits=frozenset({word(), word()}))
        for index in range(3)
    ]
    assert publisher.publish(tree(host, *cards)).problems == {}
    assert all(shows(placement, one) for one in cards)


def test_all_classes_of_a_provider_are_reserved(
    publisher: Publisher, placement: PlacementService, host: str
):
    publisher.publish(tree(host))
    put_by_hand(
        placement, card(host).uuid, "inventories", {"FPGA": {"total": 4}, "VGPU": {"total": 2}}
    )
    assert publisher.reserve([card(host).uuid]) == [card(host).uuid]
    inventories, _ = shown(placement, card(host))
    reserved = {name: (one["total"], one["reserved"]) for name, one in inventories.items()}
    assert reserved == {"FPGA": (4, 4), "VGPU": (2, 2)}


def test_reservation_that_broke_half_way_is_completed_by_the_next(
    publisher: Publisher, wire: Wire, placement: PlacementService, host: str
):
    publisher.publish(tree(host, size=2))
    first, second = card(host, 0), card(host, 1)
    wire.before = lambda call: 503 if second.uuid in call else None
    with pytest.raises(exception.Unavailable):
        publisher.reserve([first.uuid, second.uuid])
    wire.before = lambda _call: None
    assert publisher.reserve([first.uuid, second.uuid]) == [second.uuid]
    assert shows(placement, card(host, 0, reserved=4))
    assert shows(placement, card(host, 1, reserved=4))
    # Neither is taken for what was published last.
    assert publisher.publish(tree(host, size=2)).problems == {}
    assert shows(placement, first)
    assert shows(placement, second)


def test_what_is_known_of_a_provider_outlives_the_removal_of_another(
    publisher: Publisher, wire: Wire, placement: PlacementService, host: str
):
    kept = card(host, 1, traits=TRAITS | {"CUSTOM_TEST_OLD"})
    publisher.publish(tree(host, card(host), kept))
    publisher.retire(card(host).uuid)
    wire.take()
    assert publisher.publish(tree(host, kept)).problems == {}
    assert wire.take() == []
    assert publisher.publish(tree(host, card(host, 1))).problems == {}
    assert shows(placement, card(host, 1))


def test_provider_that_somebody_deleted_costs_no_request_for_another(
    publisher: Publisher, wire: Wire, placement: PlacementService, host: str
):
    publisher.publish(tree(host, size=2))
    placement.call("DELETE", f"/resource_providers/{card(host, 0).uuid}")
    wire.calls.clear()
    changed = card(host, 0, reserved=1)
    assert publisher.publish(tree(host, changed, card(host, 1))).problems == {}
    assert not any(card(host, 1).uuid in call for call in wire.calls)
    assert shows(placement, changed)


def test_computes_of_one_publisher_have_their_own_providers(
    client: Placement, placement: PlacementService, host: str
):
    """The name of the one begins the name of the other."""
    publisher, other = Publisher(client), f"{host}0"
    roots = [publisher.find_root([host])[0], placement.make_compute(other)]
    results = [publisher.publish(tree(name)) for name in (host, other, host)]
    assert [result.root_uuid for result in results] == [*roots, roots[0]]
    for name, root in zip((host, other), roots, strict=True):
        (child,) = (node for node in client.tree(root).values() if node.parent_uuid is not None)
        assert (child.uuid, child.parent_uuid) == (card(name).uuid, root)
    with pytest.raises(exception.NotFound):
        publisher.find_root([fresh_host()])
