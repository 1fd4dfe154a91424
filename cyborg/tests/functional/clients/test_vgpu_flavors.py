# SPDX-License-Identifier: Apache-2.0
"""The providers that Placement gives to flavors that request VGPU without a device profile."""

from uuid import uuid4

import pytest

from cyborg.tests.fixtures.placement import PlacementService, fresh_host


def add(placement: PlacementService, root: str, *traits: str) -> str:
    """Add a provider with one VGPU below the compute's own provider; return its UUID."""
    uuid = str(uuid4())
    new = {"name": f"vgpu-{uuid}", "uuid": uuid, "parent_provider_uuid": root}
    placement.call("POST", "/resource_providers", new)
    path = f"/resource_providers/{uuid}"
    stock = {"resource_provider_generation": 0, "inventories": {"VGPU": {"total": 1}}}
    generation = placement.call("PUT", f"{path}/inventories", stock)["resource_provider_generation"]
    labels = {"resource_provider_generation": generation, "traits": list(traits)}
    placement.call("PUT", f"{path}/traits", labels)
    return uuid


@pytest.mark.parametrize("numbered", [False, True])
def test_flavor_gets_units_of_this_service_unless_it_forbids_them(
    placement: PlacementService, numbered: bool
) -> None:
    root = placement.make_compute(fresh_host())
    ours, theirs = add(placement, root, "OWNER_CYBORG"), add(placement, root)

    def offered(required: str = "") -> set[str]:
        group = "1" if numbered else ""
        query = [
            *([("resources1", "VGPU:1")] if numbered else []),
            ("resources", "VCPU:1" if numbered else "VCPU:1,VGPU:1"),
            # What Nova adds: it concerns the provider of the compute host alone.
            ("root_required", "COMPUTE_ACCELERATORS,OWNER_NOVA"),
            ("in_tree", root),
            *([(f"in_tree{group}", root)] if numbered else []),
            *([(f"required{group}", required)] if required else []),
        ]
        answer = placement.call("GET", "/allocation_candidates", query=query)
        return {
            provider
            for request in answer["allocation_requests"]
            for provider, units in request["allocations"].items()
            if "VGPU" in units["resources"]
        }

    assert offered() == {ours, theirs}
    assert offered("!OWNER_CYBORG") == {theirs}
