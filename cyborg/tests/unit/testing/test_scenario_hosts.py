# SPDX-License-Identifier: Apache-2.0
"""Tests of the scenario hosts: each is complete, guarded, and behaves like a machine."""

import json
from pathlib import Path

import pytest

from cyborg import exception
from cyborg.drivers.archive import ArchivedHost
from cyborg.drivers.loader import load
from cyborg.drivers.pci import PciDriver
from cyborg.drivers.serial_numbers import dsn_of_config
from cyborg.model.device import Hardware
from cyborg.testing import scenario_hosts, situations
from cyborg.testing.driver_checks import look
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.simulated import SimulatedKernel
from cyborg.testing.kernel.sysfs import PCI
from cyborg.testing.scenario_file import Scenario
from cyborg.tests.unit.drivers.configured import configured, written

NAMES = scenario_hosts.names()
#: The hosts that the documents name.
DOCUMENTED = (
    *("a100-mig", "alveo-u250", "ascend-910", "bluefield-3", "dgx-h100", "e810", "gaudi3"),
    *("hgx-b200", "hgx-h200", "l40s-vgpu", "mi300x", "mixed", "n6001", "nvme-24", "qat-4xxx"),
)


def hardware(host: FakeHost) -> dict[str, Hardware]:
    """What the pci_driver says about each function when the whitelist names all of them."""
    everything = PciDriver(host, configured('{"address": "*:*:*.*"}'))
    return {item.key: item for item in look(everything).hardware()}


def kernel_of(host: FakeHost) -> SimulatedKernel:
    assert isinstance(host.kernel, SimulatedKernel)
    return host.kernel


def directory(host: FakeHost, address: str) -> str:
    return host.realpath(f"{PCI}/devices/{address}")


def text(host: FakeHost, address: str, name: str) -> str:
    return host.read_text(f"{PCI}/devices/{address}/{name}").strip()


def test_documented_hosts_are_there() -> None:
    assert tuple(NAMES) == DOCUMENTED


def test_unknown_host_is_refused() -> None:
    with pytest.raises(ValueError, match="no scenario host 'dgx'; there are a100-mig, alveo-u250"):
        scenario_hosts.load("dgx")


@pytest.mark.parametrize("name", NAMES)
def test_ownership_check_refuses_what_the_host_uses(name: str) -> None:
    """The disks in use, the interface of the default route and bridges, whatever is whitelisted."""
    scenario = scenario_hosts.read(name)
    found = hardware(scenario_hosts.build(scenario))
    for refusal in scenario.refused:
        assert refusal.reason in (found[refusal.address].reason or ""), refusal
    reasons = " ".join(refusal.reason for refusal in scenario.refused)
    for use in ("is mounted at /", "carries the default route", "bridge"):
        assert use in reasons, f"{name} must list a function that is refused: {use}"
    for function in scenario.functions:
        if function.class_.startswith("06"):
            assert not found[function.address].offered, function.address


@pytest.mark.parametrize("name", NAMES)
def test_drivers_offer_what_the_file_says(name: str, tmp_path: Path) -> None:
    scenario = scenario_hosts.read(name)
    host = scenario_hosts.build(scenario)
    refused = {refusal.address for refusal in scenario.refused}
    assert scenario.drivers
    for driver in scenario.drivers:
        conf = written(tmp_path / "cyborg.conf", driver.options)
        (loaded,) = load([driver.name], host, conf)
        assert loaded.driver is not None, loaded.error
        devices = look(loaded.driver).discover()
        assert len(devices) == driver.offers, driver.name
        # A guest may get a refused function together with others.
        parts = [part for one in devices for part in one.deployables if part.group_size == 1]
        units = {handle.key for part in parts for handle in part.handles}
        assert refused.isdisjoint(units)


@pytest.mark.parametrize("name", NAMES)
def test_drivers_that_run_together_offer_different_functions(name: str, tmp_path: Path) -> None:
    scenario = scenario_hosts.read(name)
    together = scenario_hosts.together(scenario)
    assert together
    text = "".join(driver.options for driver in together)
    conf = written(tmp_path / "cyborg.conf", text)
    host = scenario_hosts.build(scenario)
    keys = [
        device.key
        for loaded in load([driver.name for driver in together], host, conf)
        if loaded.driver is not None
        for device in look(loaded.driver).discover()
    ]
    assert len(keys) == len(set(keys)) == sum(driver.offers for driver in together)


@pytest.mark.parametrize("name", NAMES)
def test_file_is_documented_and_short(name: str) -> None:
    scenario = scenario_hosts.read(name)
    assert not scenario.description.endswith(".")
    assert any(source.startswith("Ids: ") for source in scenario.sources)
    assert any(source.startswith("Assumed: ") for source in scenario.sources)
    file = scenario_hosts.SHIPPED / f"{name}.yaml"
    assert len(file.read_text().splitlines()) <= 180


@pytest.mark.parametrize("name", NAMES)
def test_libraries_answer_in_json(name: str) -> None:
    for library in scenario_hosts.read(name).libraries.values():
        for answers in (library.answers, *(device.answers for device in library.devices)):
            for answer in answers.values():
                json.loads(answer)


@pytest.mark.parametrize("name", NAMES)
def test_unbound_functions_can_be_bound_again(name: str) -> None:
    """What a driver made goes with it, and comes back."""
    scenario = scenario_hosts.read(name)
    host = scenario_hosts.build(scenario)
    before = host.tree()
    bound = [one for one in scenario.functions if one.driver and "vfio" not in one.driver]
    for function in bound:
        for verb in ("unbind", "bind"):
            host.write_text(f"{PCI}/drivers/{function.driver}/{verb}", function.address)
    after = host.tree()
    # A group that was empty gets the lowest free number, and vGPUs do not outlive their driver.
    assert before.keys() == after.keys()


def test_copies_are_independent() -> None:
    host = scenario_hosts.load("e810")
    copy = host.copy()
    copy.write_text(f"{PCI}/devices/0000:17:00.0/sriov_numvfs", "0")
    assert text(host, "0000:17:00.0", "sriov_numvfs") == "8"
    assert host.exists(f"{PCI}/devices/0000:17:01.0")
    assert not copy.exists(f"{PCI}/devices/0000:17:01.0")


def test_archive_of_a_scenario_host_can_be_read(tmp_path: Path) -> None:
    """So a host can be shown to programs that read archives, such as cyborg-agent --discover."""
    host = scenario_hosts.load("mi300x")
    host.materialise(tmp_path / "archive")
    again = ArchivedHost.recorded(tmp_path / "archive")
    driver = PciDriver(again, configured('{"vendor_id": "1002"}'))
    assert len(look(driver).discover()) == 8


def test_topology_and_link_are_those_of_the_file() -> None:
    host = scenario_hosts.load("dgx-h100")
    place = directory(host, "0000:1b:00.0")
    assert place == ("/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1b:00.0")
    assert text(host, "0000:9d:00.0", "numa_node") == "1"
    assert text(host, "0000:9d:00.0", "local_cpulist") == "56-111,168-223"
    assert text(host, "0000:1b:00.0", "current_link_speed") == "32.0 GT/s PCIe"
    assert host.read_text("/sys/devices/system/node/online") == "0-1\n"
    degraded = scenario_hosts.load("mixed")
    assert text(degraded, "0000:3b:00.0", "current_link_width") == "8"
    assert text(degraded, "0000:3b:00.0", "max_link_width") == "16"


def test_configuration_space_has_serial_number_and_function_level_reset() -> None:
    host = scenario_hosts.load("e810")
    config = host.read_bytes(f"{PCI}/devices/0000:17:00.0/config")
    assert dsn_of_config(config) == "b4-96-91-ff-ff-c4-28-80"
    assert config[:4] == bytes.fromhex("86809215")
    assert config[0x47] & 0x10
    assert int.from_bytes(config[0x15A:0x15C], "little") == 0x1889


def test_nvme_tool_erases() -> None:
    host = scenario_hosts.load("nvme-24")
    assert text(host, "0000:81:00.0", "nvme/nvme8/serial") == "S795NE0TA00008"
    answer = host.run(["nvme", "format", "/dev/nvme8n1", "-s", "1"], timeout=1)
    assert answer.status == 0


def test_quickassist_changes_services_only_when_it_is_down() -> None:
    host = scenario_hosts.load("qat-4xxx")
    place = f"{PCI}/devices/0000:70:00.0/qat"
    with pytest.raises(exception.HostError, match="Invalid argument"):
        host.write_text(f"{place}/cfg_services", "dc")
    host.write_text(f"{place}/state", "down")
    host.write_text(f"{place}/cfg_services", "dc")
    assert host.read_text(f"{place}/cfg_services") == "dc\n"
    heartbeat = "/sys/kernel/debug/qat_4xxx_0000:70:00.0/heartbeat/status"
    assert host.read_text(heartbeat) == "0\n"


def test_kernel_knows_functions_at_their_new_addresses() -> None:
    host = scenario_hosts.load("qat-4xxx")
    situations.readdress(host, {"0000:70:00.0": "0000:71:00.0"})
    place = f"{PCI}/devices/0000:71:00.0"
    host.write_text(f"{place}/qat/state", "down")
    host.write_text(f"{place}/qat/cfg_services", "dc")
    host.write_text(f"{place}/sriov_numvfs", "16")
    assert host.exists(f"{PCI}/devices/0000:71:02.0")


def test_vgpu_types_shrink_on_siblings() -> None:
    host = scenario_hosts.load("l40s-vgpu")
    assert text(host, "0000:3d:00.4", "nvidia/current_vgpu_type") == "1151"
    types = text(host, "0000:3d:00.5", "nvidia/creatable_vgpu_types")
    assert "NVIDIA L40S-24Q" in types
    assert "NVIDIA L40S-48Q" not in types
    assert "NVIDIA L40S-48Q" in text(host, "0000:5e:00.5", "nvidia/creatable_vgpu_types")


def test_mediated_devices_of_one_type_exclude_others() -> None:
    host = scenario_hosts.load("mixed")
    types = f"{PCI}/devices/0000:18:00.0/mdev_supported_types"
    assert host.read_text(f"{types}/nvidia-231/name") == "GRID T4-2Q\n"
    host.write_text(f"{types}/nvidia-231/create", "c1a1d1e2-0000-4000-8000-000000000001")
    assert host.read_text(f"{types}/nvidia-231/available_instances") == "7\n"
    assert host.read_text(f"{types}/nvidia-230/available_instances") == "0\n"


def test_fpga_has_manager_region_and_port() -> None:
    host = scenario_hosts.load("n6001")
    assert host.read_text("/sys/class/fpga_manager/fpga0/state") == "unknown\n"
    assert host.read_text("/sys/class/fpga_region/region1/compat_id").startswith("8a0c1f7d")
    port = "/sys/class/fpga_region/region2/dfl-port.1"
    assert host.read_text(f"{port}/afu_id").startswith("d8424dc4")


def test_tools_answer_as_recorded(tmp_path: Path) -> None:
    host = scenario_hosts.load("gaudi3")
    (command,) = scenario_hosts.read("gaudi3").commands
    lines = host.run(["/usr/bin/hl-smi", *command.argv[1:]], timeout=1).stdout.splitlines()
    assert len(lines) == 8
    assert "0000:1a:00.0" in lines[1]
    refused = host.run(["hl-smi", "-L"], timeout=1)
    assert (refused.status, refused.stderr) == (2, "no answer of hl-smi -L was recorded\n")
    listed = json.loads(
        scenario_hosts.load("mi300x").run(["amd-smi", "list", "--json"], timeout=1).stdout
    )
    assert [one["bdf"] for one in listed][:2] == ["0000:05:00.0", "0000:26:00.0"]


def test_tool_writes_its_report_to_the_file_that_is_named() -> None:
    host = scenario_hosts.load("alveo-u250")
    report = "/run/cyborg/report.json"
    argv = ["xrt-smi", "examine", "--format", "JSON", "--output", report, "-r", "host"]
    assert host.run(argv, timeout=1).status == 0
    assert json.loads(host.read_text(report))["system"]["host"]["xrt"]["version"] == "2.16.204"


def test_functions_of_vfio_are_held_through_their_group() -> None:
    host = scenario_hosts.load("hgx-h200")
    kernel_of(host).hold("0000:18:00.0")
    assert "held through VFIO" in (hardware(host)["0000:18:00.0"].reason or "")


def test_another_directory_has_hosts_of_its_own(tmp_path: Path) -> None:
    source = scenario_hosts.SHIPPED / "e810.yaml"
    (tmp_path / "mine.yaml").write_text(source.read_text())
    assert scenario_hosts.names(tmp_path) == ["mine"]
    scenario: Scenario = scenario_hosts.read("mine", tmp_path)
    assert scenario == scenario_hosts.read("e810")
