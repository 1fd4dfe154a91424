# SPDX-License-Identifier: Apache-2.0
"""How many requests publishing costs, counted on the wire to the real Placement."""

import uuid

import pytest

from cyborg.clients.placement import Placement
from cyborg.clients.placement_sync import Publisher
from cyborg.tests.fixtures.placement import PlacementService, fresh_host, requested
from cyborg.tests.functional.clients.conftest import Wire
from cyborg.tests.functional.clients.trees import card, shows, tree

PER_PROVIDER = [
    "POST /resource_providers",
    "PUT /resource_providers/*/traits",
    "PUT /resource_providers/*/inventories",
]
READ = ["GET /resource_providers/*/inventories", "GET /resource_providers/*/traits"]


@pytest.mark.parametrize("size", [1, 8])
def test_a_first_publish_costs_three_requests_per_provider_and_three(
    publisher: Publisher, placement: PlacementService, wire: Wire, *, host: str, size: int
):
    word = f"CUSTOM_{uuid.uuid4().hex.upper()}"
    traits = frozenset({f"{word}_A", f"{word}_B", "OWNER_CYBORG"})
    cards = [card(host, one, resource_class=word, traits=traits) for one in range(size)]
    assert publisher.publish(tree(host, *cards)).problems == {}
    assert wire.take() == [
        "GET /resource_providers?name",
        "GET /traits?name",
        *["PUT /traits/*"] * 2,
        "PUT /resource_classes/*",
        *PER_PROVIDER * size,
    ]
    assert all(shows(placement, one) for one in cards)
    # Traits and classes are known now.
    more = card(host, size, resource_class=word, traits=traits)
    assert publisher.publish(tree(host, *cards, more)).problems == {}
    assert wire.take() == PER_PROVIDER


def test_second_host_looks_up_only_traits(
    publisher: Publisher, placement: PlacementService, wire: Wire, host: str
):
    word = f"CUSTOM_{uuid.uuid4().hex.upper()}"
    traits = frozenset({f"{word}_A"})
    publisher.publish(tree(host, card(host, resource_class=word, traits=traits)))
    wire.take()
    other = fresh_host()
    placement.make_compute(other)
    mine = tree(other, card(other, resource_class=word, traits=traits))
    assert Publisher(Placement(wire)).publish(mine).problems == {}
    assert wire.take() == ["GET /resource_providers?name", "GET /traits?name", *PER_PROVIDER]


def test_missing_class_costs_one_refused_request(
    publisher: Publisher, placement: PlacementService, wire: Wire, host: str
):
    word = f"CUSTOM_{uuid.uuid4().hex.upper()}"
    placement.call("PUT", f"/traits/{word}_A")
    mine = tree(host, card(host, resource_class=word, traits=frozenset({f"{word}_A"})))
    assert publisher.publish(mine).problems == {}
    assert wire.take() == [
        "GET /resource_providers?name",
        "GET /traits?name",
        *PER_PROVIDER,
        "PUT /resource_classes/*",
        PER_PROVIDER[-1],
    ]


def test_known_compute_is_not_looked_up_again(
    publisher: Publisher, placement: PlacementService, wire: Wire, host: str
):
    root = placement.make_compute(host)
    assert publisher.find_root([fresh_host(), host]) == (root, host)
    wire.take()
    assert publisher.publish(tree(host)).root_uuid == root
    assert "GET /resource_providers?name" not in wire.take()


def test_many_long_traits_are_looked_up_in_one_request(publisher: Publisher, wire: Wire, host: str):
    traits = frozenset(f"CUSTOM_{'X' * 90}_{one}" for one in range(50))
    assert publisher.publish(tree(host, card(host, traits=traits))).problems == {}
    assert wire.take().count("GET /traits") == 1


def test_unknown_traits_and_used_names_are_looked_up_once_for_all_providers(
    publisher: Publisher, placement: PlacementService, wire: Wire, host: str
):
    novel = card(host, traits=frozenset({"HW_FROM_THE_FUTURE"}))
    taken = [card(host, index) for index in (1, 2)]
    for one in taken:
        placement.call("POST", "/resource_providers", {"name": one.name})
    assert len(publisher.publish(tree(host, novel, *taken)).problems) == 3
    requests = wire.take()
    assert requests.count("GET /traits?name") == 1
    assert requests.count("GET /resource_providers?in_tree") == 1


def test_an_unchanged_tree_costs_nothing_and_a_reservation_one_request(
    publisher: Publisher, placement: PlacementService, wire: Wire, host: str
):
    publisher.publish(tree(host, size=3))
    wire.take()
    assert publisher.publish(tree(host, size=3)).problems == {}
    assert wire.take() == []
    lost = card(host, 1, reserved=4)
    publisher.publish(tree(host, card(host, 0), lost, card(host, 2)))
    assert wire.take() == ["PUT /resource_providers/*/inventories"]
    assert shows(placement, lost)


def test_a_full_check_costs_one_request_and_two_per_moved_provider(
    publisher: Publisher, placement: PlacementService, wire: Wire, host: str
):
    publisher.publish(tree(host, size=3))
    wire.take()
    assert publisher.check(tree(host, size=3)).problems == {}
    assert wire.take() == ["GET /resource_providers?in_tree"]
    root = placement.make_compute(host)
    groups = requested([{"resources:FPGA": "1"}])
    placement.allocate(str(uuid.uuid4()), placement.candidates(groups, in_tree=root)[0])
    assert publisher.check(tree(host, size=3)).problems == {}
    assert wire.take() == ["GET /resource_providers?in_tree", *READ]
    assert publisher.check(tree(host, size=3)).problems == {}
    assert wire.take() == ["GET /resource_providers?in_tree"]


def test_changed_generation_costs_a_second_attempt(
    publisher: Publisher, placement: PlacementService, wire: Wire, host: str
):
    publisher.publish(tree(host))
    root = placement.make_compute(host)
    groups = requested([{"resources:FPGA": "1"}])
    placement.allocate(str(uuid.uuid4()), placement.candidates(groups, in_tree=root)[0])
    wire.take()
    lost = card(host, reserved=4)
    assert publisher.publish(tree(host, lost)).problems == {}
    assert wire.take() == [
        "PUT /resource_providers/*/inventories",
        *READ,
        "PUT /resource_providers/*/inventories",
    ]
    assert shows(placement, lost)


def test_a_restarted_publisher_reads_its_providers(
    publisher: Publisher, client: Placement, wire: Wire, host: str
):
    publisher.publish(tree(host, size=3))
    root, listing = "GET /resource_providers?name", "GET /resource_providers?in_tree"
    wire.take()
    assert Publisher(client).check(tree(host, size=3)).problems == {}
    assert wire.take() == [root, listing, *READ * 3]
    assert Publisher(client).publish(tree(host, size=3)).problems == {}
    first = "POST /resource_providers"
    assert wire.take() == [root, "GET /traits?name", first, listing, *READ * 3]
