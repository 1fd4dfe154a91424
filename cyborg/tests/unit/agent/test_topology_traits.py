# SPDX-License-Identifier: Apache-2.0
"""The traits of places: what the agent adds to the devices of all drivers."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cyborg.agent.topology_traits import with_topology_traits
from cyborg.drivers.command import Completed
from cyborg.drivers.loader import LoadResult
from cyborg.drivers.nvidia_gpu import NvidiaGpuDriver
from cyborg.drivers.scan import Scan
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
from cyborg.testing import scenario_hosts
from cyborg.testing.driver_checks import check_device
from cyborg.tests.unit.agent.test_reporter import reporter_of
from cyborg.tests.unit.drivers.configured import written

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


def test_traits_of_neighbours_mean_the_same_on_all_hosts() -> None:
    place = replace(DEVICE, numa_node=None, topology=None)
    islands = (["0000:01:00.0", "0000:02:00.0"], [KEY, "0000:45:00.0", "0000:46:00.0"])
    device = with_topology_traits(place, {"15b3:1021", "15b3:a2dc"}, islands)
    check_device(device)
    assert device.deployables[0].traits[1:] == (
        "CUSTOM_PCI_SWITCH_WITH_NIC_15B3_1021",
        "CUSTOM_PCI_SWITCH_WITH_NIC_15B3_A2DC",
        "CUSTOM_LINK_ISLAND_1",
        "CUSTOM_LINK_ISLAND_OF_3",
    )
    assert with_topology_traits(place, (), [["0000:01:00.0", "0000:02:00.0"]]) == place


def test_gpus_of_a_host_have_the_traits_of_their_network_cards_and_links(tmp_path: Path) -> None:
    host = scenario_hosts.load("dgx-h100")
    driver = NvidiaGpuDriver(host, written(tmp_path / "cyborg.conf", ""))
    keys = [device.key for device in driver.discover(Scan(host))]
    ends = keys[1:] + keys[:1]
    links = {key: {"links": [f"0000{end}"]} for key, end in zip(keys, ends, strict=True)}
    host.programs[sys.executable] = lambda _, argv: Completed(
        0, json.dumps({"driver": "570", "gpus": links}), ""
    )
    loaded = LoadResult(driver.name, driver=driver)
    report = reporter_of(loaded, topology_traits=True).scan(Scan(host))
    (listed,) = [entry for entry in report.drivers if entry.driver == driver.name]
    assert [device.key for device in listed.devices] == keys
    assert len(keys) == 8
    for device in listed.devices:
        assert {
            "CUSTOM_PCI_SWITCH_WITH_NIC_15B3_1021",
            "CUSTOM_LINK_ISLAND_0",
            "CUSTOM_LINK_ISLAND_OF_8",
        } <= set(device.deployables[0].traits)


def test_gpus_without_links_are_no_island(tmp_path: Path) -> None:
    host = scenario_hosts.load("dgx-h100")
    driver = NvidiaGpuDriver(host, written(tmp_path / "cyborg.conf", ""))
    assert driver.islands(Scan(host)) == []


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
