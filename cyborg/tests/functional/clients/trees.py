# SPDX-License-Identifier: Apache-2.0
"""Desired trees for the tests, and a look at what the real Placement shows of them."""

from typing import Any

from cyborg.model.provider import Provider, ProviderTree, provider_uuid
from cyborg.tests.fixtures.placement import PlacementService

TRAITS = frozenset({"CUSTOM_TEST_CARD", "OWNER_CYBORG"})


def card(
    host: str,
    index: int = 0,
    *,
    total: int = 4,
    reserved: int = 0,
    resource_class: str = "FPGA",
    traits: frozenset[str] = TRAITS,
) -> Provider:
    """The provider of one card of a host."""
    name = f"{host}_{index}"
    return Provider(provider_uuid(name), name, resource_class, total, reserved, traits)


def tree(host: str, *providers: Provider, size: int = 1) -> ProviderTree:
    """A host with these providers, or with ``size`` equal cards."""
    return ProviderTree(host, providers or tuple(card(host, index) for index in range(size)))


def shown(placement: PlacementService, provider: Provider) -> tuple[dict[str, Any], set[str]]:
    """Inventories and traits of a provider, as Placement has them now."""
    path = f"/resource_providers/{provider.uuid}"
    inventories = placement.call("GET", f"{path}/inventories")["inventories"]
    return inventories, set(placement.call("GET", f"{path}/traits")["traits"])


def shows(placement: PlacementService, provider: Provider) -> bool:
    """Whether Placement shows a provider exactly as desired."""
    return shown(placement, provider) == (provider.inventories(), set(provider.traits))


def put_by_hand(placement: PlacementService, uuid: str, what: str, value: Any, **more: Any) -> None:
    """Replace ``inventories`` or ``traits`` of a provider, as an operator would."""
    path = f"/resource_providers/{uuid}"
    generation = placement.call("GET", path)["generation"]
    body = {"resource_provider_generation": generation, what: value, **more}
    placement.call("PUT", f"{path}/{what}", body)


def everything(placement: PlacementService, uuid: str) -> dict[str, Any]:
    """All that Placement has of one provider, its generation included."""
    path = f"/resource_providers/{uuid}"
    return {
        "provider": placement.call("GET", path),
        "inventories": placement.call("GET", f"{path}/inventories"),
        "traits": placement.call("GET", f"{path}/traits"),
    }
