# SPDX-License-Identifier: Apache-2.0
"""Traits by rule: the agent adds them to the devices of all drivers, from the facts of the host."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from cyborg import exception
from cyborg.agent.discover import changes, discover
from cyborg.agent.reporter import Reporter
from cyborg.agent.trait_rules import TraitRules
from cyborg.drivers import catalogue
from cyborg.drivers.base import Driver
from cyborg.drivers.catalogue import SHIPPED, Catalogue
from cyborg.drivers.command import Completed
from cyborg.drivers.loader import LoadResult, load
from cyborg.drivers.nvidia_gpu import NvidiaGpuDriver
from cyborg.drivers.scan import Scan
from cyborg.model.device import Attribute, Deployable, Device, DeviceType
from cyborg.testing import scenario_hosts, servers
from cyborg.testing.driver_checks import check_device
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.unit.agent.test_reporter import DEVICE, Scripted, reporter_of
from cyborg.tests.unit.drivers.configured import written

INTEL, ARRIA10 = "CUSTOM_FPGA_INTEL", "CUSTOM_FPGA_INTEL_PAC_ARRIA10"
D5005 = "CUSTOM_FPGA_PRODUCT_ID_0B2B"


def reading(directory: Path, *rules: str) -> Callable[[], Catalogue]:
    """Return a function that reads the catalogue of this package and of a file with the rules."""
    (directory / "rules.yaml").write_text("".join(f"- {rule}\n" for rule in rules))
    return lambda: Catalogue.load([SHIPPED, directory])


def reported(driver: Driver, host: FakeHost, read: Callable[[], Catalogue]) -> dict[str, set[str]]:
    """Return the traits of the devices of a driver by key, without those of the driver itself."""
    own = {device.key: device for device in driver.discover(Scan(host))}
    reporter = reporter_of(LoadResult(driver.name, driver), read_catalogue=read)
    (report,) = reporter.scan(Scan(host)).drivers
    assert report.devices
    for device in report.devices:
        check_device(device)
    return {
        device.key: {
            trait
            for unit, before in zip(device.deployables, own[device.key].deployables, strict=True)
            for trait in {*unit.traits} - {*before.traits}
        }
        for device in report.devices
    }


def driver_of(name: str, host: FakeHost, directory: Path, options: str) -> Driver:
    (loaded,) = load([name], host, written(directory / "cyborg.conf", options))
    assert loaded.driver is not None, loaded.error
    return loaded.driver


def test_one_trait_means_this_model_or_better(tmp_path: Path) -> None:
    host = servers.bare()
    for bus, product in ((1, "1eb8"), (2, "2331"), (3, "2335"), (4, "1e30")):
        servers.add_function(host, f"0000:0{bus}:00.0", f"10de:{product}:030200")
    driver = driver_of(
        "pci_driver", host, tmp_path, '[pci]\npassthrough_whitelist = {"vendor_id": "10de"}\n'
    )
    rules = (
        "{trait: CUSTOM_GPU_MEMORY_80G, when: {device_type: GPU, memory: {min: 80 GiB}}}",
        "{trait: CUSTOM_TIER_SMALL, when: {memory: {max: 79 GiB}}}",
    )
    assert reported(driver, host, reading(tmp_path, *rules)) == {
        "0000:01:00.0": {"CUSTOM_TIER_SMALL"},
        "0000:02:00.0": {"CUSTOM_GPU_MEMORY_80G"},
        "0000:03:00.0": {"CUSTOM_GPU_MEMORY_80G"},
        # The catalogue does not have the memory of this one.
        "0000:04:00.0": set(),
    }


def test_part_of_a_card_does_not_have_the_memory_of_the_card(tmp_path: Path) -> None:
    """The functions of a divided Flex 170, and mediated devices of a T4, have its ids."""
    host = servers.bare()
    servers.add_function(host, servers.GPU_ON_VFIO, "8086:56c0:038000")
    servers.add_vfs(host, servers.GPU_ON_VFIO, ("0000:86:00.1",), "8086:56c0:038000")
    driver = driver_of("intel_gpu_driver", host, tmp_path, "")
    rules = (
        "{trait: CUSTOM_MEMORY, when: {memory: {min: 1 MiB}}}",
        "{trait: CUSTOM_FLEX, when: {pci_ids: 8086:56c0}}",
    )
    traits = reported(driver, host, reading(tmp_path, *rules))
    assert traits == {servers.GPU_ON_VFIO: {"CUSTOM_FLEX"}}
    mixed = next(item for item in scenario_hosts.read("mixed").drivers if "mdev" in item.options)
    host = scenario_hosts.load("mixed")
    driver = driver_of(mixed.name, host, tmp_path, mixed.options)
    near = "{trait: CUSTOM_NEAR_NIC, when: {switch_nics: any}}"
    shared = reported(driver, host, reading(tmp_path, *rules, near))
    assert shared["0000:18:00.0"] == set()


@pytest.mark.parametrize(
    ("rule", "near"),
    [
        ("{trait: CUSTOM_NEAR, when: {switch_nics: any}}", True),
        ("{trait: CUSTOM_NEAR, when: {switch_nics: ['15b3:*'], device_type: GPU}}", True),
        ("{trait: CUSTOM_NEAR, when: {switch_nics: any, device_type: NIC}}", False),
        ("{trait: CUSTOM_NEAR, when: {switch_nics: ['8086:*']}}", False),
        ("{trait: CUSTOM_NEAR, when: {island_size: {min: 8}}}", True),
        ("{trait: CUSTOM_NEAR, when: {island_size: {min: 9}}}", False),
    ],
)
def test_gpus_that_share_a_switch_with_a_network_card_or_an_island(
    tmp_path: Path, rule: str, near: bool
) -> None:
    """Without ``topology_traits``."""
    host = scenario_hosts.load("dgx-h100")
    driver = NvidiaGpuDriver(host, written(tmp_path / "cyborg.conf", ""))
    keys = [device.key for device in driver.discover(Scan(host))]
    ends = keys[1:] + keys[:1]
    links = {key: {"links": [f"0000{end}"]} for key, end in zip(keys, ends, strict=True)}
    host.programs[sys.executable] = lambda _, argv: Completed(
        0, json.dumps({"driver": "570", "gpus": links}), ""
    )
    traits = reported(driver, host, reading(tmp_path, rule))
    assert traits == dict.fromkeys(keys, {"CUSTOM_NEAR"} if near else set())
    assert len(keys) == 8


def card(*traits: str) -> Device:
    unit = Deployable(
        "unit",
        "FPGA",
        "intel",
        (),
        traits=traits,
        attributes=(Attribute("rc", "FPGA"),),
        product_traits=traits,
    )
    return Device("key", DeviceType.FPGA, "0x8086", "model", {}, (unit,))


def applied(driver: str, device: Device, read: Callable[[], Catalogue], **given: bool) -> Device:
    return TraitRules(read(), compat=given.get("compat", True)).applied(
        driver, device, Scan(servers.bare())
    )


def test_compat_trait_is_an_attribute_and_no_trait_of_the_product() -> None:
    device = applied("intel_fpga_driver", card(INTEL, D5005), catalogue.shipped)
    (unit,) = device.deployables
    assert unit.traits == (INTEL, D5005, ARRIA10)
    # The conductor publishes the attributes whose key begins with trait.
    attribute = Attribute("trait_rule_fpga_intel_pac_arria10", ARRIA10)
    assert unit.attributes == (Attribute("rc", "FPGA"), attribute)
    assert unit.product_traits == (INTEL, D5005)


@pytest.mark.parametrize(
    ("driver", "device", "compat"),
    [
        ("intel_fpga_driver", card(INTEL, ARRIA10), True),
        ("intel_fpga_driver", card(), True),
        ("intel_fpga_driver", replace(card(INTEL, D5005), operator_created=True), True),
        ("intel_fpga_driver", card(INTEL, D5005), False),
        ("xilinx_fpga_driver", card("CUSTOM_FPGA_XILINX"), True),
        ("other_driver", card(INTEL), True),
    ],
)
def test_other_devices_do_not_change(driver: str, device: Device, compat: bool) -> None:
    assert applied(driver, device, catalogue.shipped, compat=compat) == device


def test_operator_extends_the_compat_traits(tmp_path: Path) -> None:
    rule = "{trait: CUSTOM_OLD_CARD, when: {traits: CUSTOM_NEW_CARD}, compat: true}"
    read = reading(tmp_path, rule)
    (unit,) = applied("any_driver", card("CUSTOM_NEW_CARD"), read).deployables
    assert unit.traits == ("CUSTOM_NEW_CARD", "CUSTOM_OLD_CARD")
    off = applied("any_driver", card("CUSTOM_NEW_CARD"), read, compat=False)
    assert off == card("CUSTOM_NEW_CARD")


def test_rules_do_not_see_the_traits_of_other_rules(tmp_path: Path) -> None:
    rules = "{trait: CUSTOM_B, when: {traits: CUSTOM_A}}", "{trait: CUSTOM_A, when: {units: 0}}"
    (unit,) = applied("any_driver", card(), reading(tmp_path, *rules)).deployables
    assert unit.traits == ("CUSTOM_A",)


def test_simulated_device_is_not_the_function_at_its_address(tmp_path: Path) -> None:
    host = servers.bare()
    servers.add_function(host, "0000:0c:00.0", "10de:2331:030200")
    driver = driver_of("fake_driver", host, tmp_path, "")
    rules = (
        "{trait: CUSTOM_H100, when: {pci_ids: 10de:2331}}",
        "{trait: CUSTOM_FAST, when: {units: 16}}",
    )
    assert reported(driver, host, reading(tmp_path, *rules)) == {"0000:0c:00.0": {"CUSTOM_FAST"}}


def test_discovery_shows_the_devices_as_the_agent_reports_them(tmp_path: Path) -> None:
    read = reading(tmp_path, "{trait: CUSTOM_A, when: {driver: scripted}}")
    loaded = LoadResult("scripted", Scripted(lambda _scan: [DEVICE]))
    report = reporter_of(loaded, read_catalogue=read).scan(Scan(servers.bare()))
    discovery = discover(
        [loaded], servers.bare(), timeout=PATIENCE, traits={"read_catalogue": read}
    )
    assert changes(report, discovery.report) == []
    assert changes(report, discover([loaded], servers.bare(), timeout=PATIENCE).report)


def test_rules_hold_if_the_bus_cannot_be_listed(tmp_path: Path) -> None:
    host = FakeHost()
    reporter = reporter_of(
        LoadResult("scripted", Scripted(lambda _scan: [replace(DEVICE, key="0000:01:00.0")])),
        read_catalogue=reading(
            tmp_path,
            "{trait: CUSTOM_A, when: {driver: scripted}}",
            "{trait: CUSTOM_B, when: {pci_ids: '10de:*'}}",
        ),
    )
    (report,) = reporter.scan(Scan(host)).drivers
    assert report.error is None
    assert report.devices[0].deployables[0].traits == ("CUSTOM_A",)


def traits_of(reporter: Reporter) -> Mapping[str, tuple[str, ...]]:
    (report,) = reporter.scan(Scan(servers.bare())).drivers
    return {device.key: device.deployables[0].traits for device in report.devices}


def test_reload_takes_correct_rules_and_keeps_the_former_ones_otherwise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "rules.yaml"
    read = reading(tmp_path)
    driver = Scripted(lambda _scan: [DEVICE])
    reporter = reporter_of(LoadResult("scripted", driver), read_catalogue=read)
    assert traits_of(reporter) == {"key": ()}
    file.write_text("- {trait: CUSTOM_A, when: {driver: scripted}}\n")
    assert traits_of(reporter) == {"key": ()}
    assert reporter.reload_rules()
    assert traits_of(reporter) == {"key": ("CUSTOM_A",)}
    file.write_text("- {trait: CUSTOM_A, when: {colour: red}}\n")
    assert not reporter.reload_rules()
    assert traits_of(reporter) == {"key": ("CUSTOM_A",)}
    (record,) = (record for record in caplog.records if record.levelname == "ERROR")
    assert record.getMessage().startswith(
        f"The rules for traits stay as they were: {file}:1: 'colour' is not a key of when, which"
    )
    file.write_text("")
    assert reporter.reload_rules()
    assert traits_of(reporter) == {"key": ()}
    file.write_text("- {trait: CUSTOM_A}\n")
    with pytest.raises(exception.ConfigError, match=r"rules\.yaml:1: the rule must set when"):
        reporter_of(LoadResult("scripted", driver), read_catalogue=read)
