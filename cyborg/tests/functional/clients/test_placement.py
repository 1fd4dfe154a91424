# SPDX-License-Identifier: Apache-2.0
"""Tests of the typed calls, and of the stand-in for Nova's scheduler, against real Placement."""

import uuid

import pytest

from cyborg import exception
from cyborg.clients.placement import Placement
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.functional.clients.conftest import Wire


def test_names_and_paths_are_quoted(client: Placement, wire: Wire):
    assert client.find_by_name("a&in_tree=b c/..") is None
    with pytest.raises(exception.NotFound):
        client.create_trait("../resource_providers/x")
    assert wire.calls[-1] == "PUT /traits/..%2Fresource_providers%2Fx"


def test_conflict_has_code_and_text_of_placement(
    client: Placement, placement: PlacementService, host: str
):
    root = placement.make_compute(host)
    with pytest.raises(exception.Conflict) as caught:
        client.create(str(uuid.uuid4()), host, root)
    assert caught.value.fields["code"] == "placement.duplicate_name"
    assert str(caught.value) == f"Conflicting resource provider name: {host} already exists."


def test_missing_provider_is_not_found(client: Placement):
    unknown = str(uuid.uuid4())
    for call in (client.inventories, client.traits, client.allocations_of, client.delete_provider):
        with pytest.raises(exception.NotFound, match=unknown):
            call(unknown)
    assert client.tree(unknown) == {}
    assert client.find_by_uuid(unknown) is None


def test_unexpected_status_is_reported_as_unavailable(client: Placement, wire: Wire):
    wire.before = lambda _call: 406
    with pytest.raises(exception.Unavailable, match="406"):
        client.known_traits({"CUSTOM_A"})


def test_first_existing_provider_name_is_the_compute(
    client: Placement, placement: PlacementService, host: str
):
    first, second = fresh_host(), fresh_host()
    assert client.find_root([first, host]) == (placement.make_compute(host), host)
    with pytest.raises(exception.NotFound) as caught:
        client.find_root([first, second])
    assert str(caught.value) == f"Compute provider {first} or {second} could not be found."
