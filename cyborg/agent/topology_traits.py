# SPDX-License-Identifier: Apache-2.0
"""The traits that tell where a device is, for ``[agent] topology_traits``; pure."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from cyborg.model.device import Attribute, Deployable, Device
from cyborg.model.provider import is_trait_name


def with_topology_traits(
    device: Device, nics: Collection[str] = (), islands: Sequence[Collection[str]] = ()
) -> Device:
    """Return a device whose deployables have a trait for each place that is known of it.

    ``nics`` are the kinds of network cards behind the switch of the device, such as ``15b3:1021``.
    ``islands`` are the groups of the driver's devices that fast links join. Deployables that an
    operator created keep the traits of the operator.
    """
    traits = (*_traits(device), *_shared(device, nics, islands))
    places = [(key, trait) for key, trait in traits if is_trait_name(trait)]
    if not places or device.operator_created:
        return device

    return with_traits(device, lambda _deployable: places)


def with_traits(device: Device, more: Callable[[Deployable], Iterable[tuple[str, str]]]) -> Device:
    """Return a device whose deployables also have the traits that ``more`` returns.

    Each comes with the key of its attribute. A trait that a deployable has is not added again.
    """

    def extended(deployable: Deployable) -> Deployable:
        added = [pair for pair in more(deployable) if pair[1] not in deployable.traits]
        return replace(
            deployable,
            traits=(*deployable.traits, *(trait for _, trait in added)),
            attributes=(*deployable.attributes, *(Attribute(*pair) for pair in added)),
        )

    return replace(device, deployables=tuple(map(extended, device.deployables)))


def _traits(device: Device) -> Iterator[tuple[str, str]]:
    """Yield the key of the attribute and the trait of each place.

    The conductor publishes the attributes whose key begins with ``trait``.
    """
    if device.numa_node is not None:
        yield "trait_numa_node", f"CUSTOM_NUMA_NODE_{device.numa_node}"
    if device.topology is not None:
        for key, word, address in (
            ("trait_pci_switch", "SWITCH", device.topology.switch),
            ("trait_pci_root_port", "ROOT_PORT", device.topology.root_port),
        ):
            if address is not None:
                yield key, f"CUSTOM_PCI_{word}_{re.sub(r'[^A-Z0-9]', '_', address.upper())}"


def _shared(
    device: Device, nics: Collection[str], islands: Sequence[Collection[str]]
) -> Iterator[tuple[str, str]]:
    """Yield the traits that mean the same on all hosts, with the keys of their attributes."""
    for kind in sorted(nics):
        word = kind.upper().replace(":", "_")
        yield f"trait_switch_with_nic_{word.lower()}", f"CUSTOM_PCI_SWITCH_WITH_NIC_{word}"
    for number, island in enumerate(islands):
        if device.key in island:
            yield "trait_link_island", f"CUSTOM_LINK_ISLAND_{number}"
            yield "trait_link_island_size", f"CUSTOM_LINK_ISLAND_OF_{len(island)}"
