# SPDX-License-Identifier: Apache-2.0
"""Taking units back in the real Placement, when nobody can vouch for their devices."""

from uuid import uuid4

import pytest

from cyborg import exception
from cyborg.clients.placement import Placement
from cyborg.clients.placement_sync import Publisher
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.functional.clients.conftest import Wire
from cyborg.tests.functional.clients.trees import (
    card,
    everything,
    put_by_hand,
    shown,
    shows,
    tree,
)

READ = "GET /resource_providers/*/inventories"
WRITE = "PUT /resource_providers/*/inventories"


def free(placement: PlacementService, host: str, index: int = 0) -> int:
    inventories, _ = shown(placement, card(host, index))
    return sum(one["total"] - one["reserved"] for one in inventories.values())


def test_reserve_reserves_all_units_and_changes_nothing_else(
    publisher: Publisher, wire: Wire, placement: PlacementService, host: str
):
    publisher.publish(tree(host, size=2))
    before, traits = shown(placement, card(host))
    wire.take()
    assert publisher.reserve([card(host).uuid]) == [card(host).uuid]
    assert wire.take() == [READ, WRITE]
    after = shown(placement, card(host))
    assert after == ({"FPGA": {**before["FPGA"], "reserved": 4}}, traits)
    assert shows(placement, card(host, 1))
    # What is reserved is only read.
    assert publisher.reserve([card(host).uuid]) == []
    assert wire.take() == [READ]
    publisher.publish(tree(host, size=2))
    assert shows(placement, card(host))
    wire.before = lambda _call: 503
    with pytest.raises(exception.Unavailable):
        publisher.reserve([card(host).uuid])


@pytest.mark.parametrize("another", [False, True], ids=["the-same", "after-a-restart"])
def test_next_check_releases_the_reservation(
    publisher: Publisher, client: Placement, placement: PlacementService, host: str, another: bool
):
    publisher.publish(tree(host))
    Publisher(client).reserve([card(host).uuid])
    back = Publisher(client) if another else publisher
    assert back.check(tree(host)).problems == {}
    assert shows(placement, card(host))
    # A provider without units stays as it is.
    publisher.publish(tree(host, card(host, total=0)))
    before = everything(placement, card(host).uuid)
    assert publisher.reserve([card(host).uuid]) == []
    assert everything(placement, card(host).uuid) == before


def test_provider_in_use_is_read_again_after_a_conflict(
    publisher: Publisher, wire: Wire, placement: PlacementService, host: str
):
    publisher.publish(tree(host))
    moved: list[str] = []
    traits = ["HW_GPU_API_VULKAN", "HW_NIC_SRIOV"]

    def move(call: str) -> None:
        if call.startswith("PUT") and len(moved) < 2:
            put_by_hand(placement, card(host).uuid, "traits", [traits[len(moved)]])
            moved.append(call)

    wire.before = move
    assert publisher.reserve([card(host).uuid]) == [card(host).uuid]
    assert free(placement, host) == 0


def test_provider_that_changes_constantly_is_not_reserved(
    publisher: Publisher,
    wire: Wire,
    placement: PlacementService,
    host: str,
    caplog: pytest.LogCaptureFixture,
):
    publisher.publish(tree(host, size=2))
    busy, idle = card(host, 0).uuid, card(host, 1).uuid

    def move(call: str) -> None:
        if call.startswith("PUT") and busy in call:
            put_by_hand(placement, busy, "inventories", {"FPGA": {"total": 4}})

    wire.before = move
    assert publisher.reserve([busy, idle]) == [idle]
    assert (free(placement, host, 0), free(placement, host, 1)) == (4, 0)
    (warning,) = (text for text in caplog.messages if "cannot be reserved" in text)
    assert busy in warning
    assert "it changed" in warning


def test_missing_provider_does_not_stop_the_others(
    publisher: Publisher, wire: Wire, placement: PlacementService, host: str
):
    publisher.publish(tree(host, size=2))
    first, second = card(host, 0).uuid, card(host, 1).uuid
    wire.before = lambda call: 409 if call.startswith("PUT") and first in call else None
    wire.take()
    assert publisher.reserve([str(uuid4()), first, second]) == [second]
    # Only a provider that has changed in the meantime is tried again.
    assert wire.take().count(WRITE) == 2
    assert (free(placement, host, 0), free(placement, host, 1)) == (4, 0)
