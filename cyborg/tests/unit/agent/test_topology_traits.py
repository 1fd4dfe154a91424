# SPDX-License-Identifier: Apache-2.0
"""The traits of places: what the agent adds to the devices of all drivers."""

from dataclasses import replace

import pytest

from cyborg.agent.topology_traits import with_topology_traits
from cyborg.model.device import (
    AttachHandle,
    AttachType,
    Attribute,
    Deployable,
    Device,
    DeviceType,
    Topology,
)
from cyborg.model.provider import is_trait_name
from cyborg.testing.driver_checks import check_device

NODE = "CUSTOM_NUMA_NODE_1"
SWITCH, ROOT_PORT = "CUSTOM_PCI_SWITCH_0000_41_00_0", "CUSTOM_PCI_ROOT_PORT_0000_40_01_0"
INFO = {"domain": "0000", "bus": "44", "device": "00", "function": "0"}
KEY = "0000:44:00.0"
UNIT = Deployable(
    "unit",
    "CUSTOM_PCI",
    "d",
    (AttachHandle(KEY, AttachType.PCI, INFO),),
    traits=("OWNER_CYBORG",),
    attributes=(Attribute("rc", "CUSTOM_PCI"), Attribute("trait0", "OWNER_CYBORG")),
)
DEVICE = Device(
    KEY,
    DeviceType.GPU,
    "10de",
    "m",
    INFO,
    (UNIT, replace(UNIT, name="other")),
    numa_node=1,
    topology=Topology("0000:40:01.0", "0000:41:00.0"),
)


@pytest.mark.parametrize(
    ("numa_node", "topology", "traits"),
    [
        (1, Topology("0000:40:01.0", "0000:41:00.0"), [NODE, SWITCH, ROOT_PORT]),
        (None, Topology("0000:40:01.0"), [ROOT_PORT]),
        (0, None, ["CUSTOM_NUMA_NODE_0"]),
        (None, Topology("10000:e0:1a.0"), ["CUSTOM_PCI_ROOT_PORT_10000_E0_1A_0"]),
        (None, Topology(), []),
        (None, None, []),
    ],
)
def test_each_known_place_is_a_trait_of_all_deployables(
    numa_node: int | None, topology: Topology | None, traits: list[str]
) -> None:
    device = with_topology_traits(replace(DEVICE, numa_node=numa_node, topology=topology))
    check_device(device)
    for deployable in device.deployables:
        assert deployable.traits == ("OWNER_CYBORG", *traits)
        assert all(map(is_trait_name, deployable.traits))


def test_trait_that_the_driver_has_is_not_added_again() -> None:
    unit = replace(UNIT, traits=(NODE,), attributes=(UNIT.attributes[0], Attribute("trait0", NODE)))
    [located] = with_topology_traits(replace(DEVICE, deployables=(unit,))).deployables
    assert located.traits == (NODE, SWITCH, ROOT_PORT)
    assert len(set(located.attributes)) == 4


def test_name_that_placement_refuses_is_left_out() -> None:
    odd = replace(DEVICE, numa_node=None, topology=Topology("x" * 255))
    assert with_topology_traits(odd) == odd


def test_created_device_keeps_the_traits_of_its_operator() -> None:
    created = replace(DEVICE, operator_created=True)
    assert with_topology_traits(created) == created
