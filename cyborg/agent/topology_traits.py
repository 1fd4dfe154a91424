# SPDX-License-Identifier: Apache-2.0
"""The traits that tell where a device is, for ``[agent] topology_traits``; pure."""

import re
from collections.abc import Iterator
from dataclasses import replace

from cyborg.model.device import Attribute, Deployable, Device
from cyborg.model.provider import is_trait_name


def with_topology_traits(device: Device) -> Device:
    """Return a device whose deployables have a trait for each place that is known of it.

    Deployables that an operator created keep the traits of the operator.
    """
    places = [(key, trait) for key, trait in _traits(device) if is_trait_name(trait)]
    if not places or device.operator_created:
        return device

    def located(deployable: Deployable) -> Deployable:
        added = [place for place in places if place[1] not in deployable.traits]
        return replace(
            deployable,
            traits=(*deployable.traits, *(trait for _, trait in added)),
            attributes=(*deployable.attributes, *(Attribute(*place) for place in added)),
        )

    return replace(device, deployables=tuple(map(located, device.deployables)))


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
