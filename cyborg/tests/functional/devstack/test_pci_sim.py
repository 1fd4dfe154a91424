# SPDX-License-Identifier: Apache-2.0
"""Simulated PCI devices: building, loading, sharing them, and what Nova and tests are told."""

import json
from pathlib import Path

import pytest

from cyborg.drivers import whitelist
from cyborg.tests.functional.devstack.node import MINIMAL, Node

ON = "ENABLE_PCI_SIM=True\nPCI_SIM_SOURCE_DIR={home}/sources\n"


def node(home: Path, *lines: str) -> Node:
    """A node where simulated devices are wanted, and the sources of their module are."""
    (home / "sources").mkdir()
    (home / "sources" / "Makefile").touch()
    return Node(home, MINIMAL + ON.format(home=home) + "\n".join(lines) + "\n")


def functions(physical: int, virtual: int = 4) -> list[str]:
    """The virtual functions of one physical function, as the options name them."""
    return [json.dumps({"address": f"0000:a{physical}:00.{one + 1}"}) for one in range(virtual)]


def test_module_is_built_loaded_and_removed_and_has_flavors(tmp_path: Path) -> None:
    simulated = node(tmp_path)
    simulated.do("stack")
    installed = tmp_path / "kernel" / "cyborg-pci-sim"
    assert [path.name for path in installed.iterdir()] == ["fake_pci_sriov.ko"]
    assert [path.name for path in (tmp_path / "sources").iterdir()] == ["Makefile"]
    assert simulated.called("modprobe") == [
        "vfio_iommu_type1 allow_unsafe_interrupts=1",
        "fake_pci_sriov num_pfs=2 num_vfs=4",
    ]
    unsafe = tmp_path / "sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts"
    assert unsafe.read_text() == "1\n"
    # Flavors and a profile for tests.
    flavor = "--os-cloud devstack-admin flavor create {} --ram 512 --disk 1 --vcpus 1 --property {}"
    nova, profile, cyborg = simulated.called("openstack")
    assert nova == flavor.format("pci-sim-nova", "pci_passthrough:alias=pci_sim_vf:1")
    assert cyborg == flavor.format("pci-sim-cyborg", "accel:device_profile=pci-sim-cyborg-dp")
    command, _, groups = profile.partition(" pci-sim-cyborg-dp ")
    assert command == "--os-cloud devstack-admin accelerator device profile create"
    assert json.loads(groups) == [
        {"resources:CUSTOM_PCI": "1", "trait:CUSTOM_PCI_PRODUCT_ID_1001": "required"}
    ]
    assert simulated.options("tempest.conf")["cyborg_pci"] == {
        "device_profile_name": ["pci-sim-cyborg-dp"],
        "vendor_id": ["10a9"],
        "product_id": ["0003"],
    }
    for _ in range(2):
        simulated.do("clean")
    assert simulated.called("modprobe")[2:] == ["-r fake_pci_sriov"]
    assert not installed.exists()


def test_nova_and_cyborg_share_simulated_functions(tmp_path: Path) -> None:
    simulated = node(tmp_path, "PCI_SIM_NUM_PFS=3")
    simulated.write_options("nova.conf", "filter_scheduler", enabled_filters="ComputeFilter")
    simulated.do("stack")
    nova = simulated.options("nova.conf")
    assert nova["pci"]["device_spec"] == functions(0) + functions(2)
    assert [json.loads(one) for one in nova["pci"]["alias"]] == [
        {"name": "pci_sim_vf", "vendor_id": "1d55", "product_id": "1001", "device_type": "type-VF"}
    ]
    assert nova["pci"]["report_in_placement"] == ["True"]
    assert nova["filter_scheduler"] == {
        "enabled_filters": ["ComputeFilter,PciPassthroughFilter"],
        "pci_in_placement": ["True"],
    }
    cyborg = simulated.options("etc/cyborg.conf")
    assert cyborg["pci"]["passthrough_whitelist"] == functions(1)
    assert cyborg["agent"]["enabled_drivers"] == ["fake_driver,pci_driver"]
    # The agent understands it.
    assert len(whitelist.parse(cyborg["pci"]["passthrough_whitelist"])) == 4


def test_cyborg_alone_gets_all_simulated_functions(tmp_path: Path) -> None:
    simulated = node(
        tmp_path, "PCI_SIM_CONFIGURE_NOVA_PCI=False", "CYBORG_ENABLED_DRIVERS=pci_driver"
    )
    simulated.do("stack")
    cyborg = simulated.options("etc/cyborg.conf")
    assert cyborg["pci"]["passthrough_whitelist"] == functions(0) + functions(1)
    assert cyborg["agent"]["enabled_drivers"] == ["pci_driver"]
    assert not (tmp_path / "nova.conf").exists()


def test_virtual_functions_are_requested_when_module_creates_none(tmp_path: Path) -> None:
    simulated = node(
        tmp_path,
        "PCI_SIM_MODULE_ARGS=num_pfs=1",
        "PCI_SIM_CONFIGURE_CYBORG_PCI=False",
        "PCI_SIM_ALLOW_UNSAFE_INTERRUPTS=False",
        "PCI_SIM_NOVA_PCI_IN_PLACEMENT=False",
        "PCI_SIM_NUM_VFS=3",
    )
    simulated.do("stack")
    count = tmp_path / "sys/bus/pci/devices/0000:a0:00.0/sriov_numvfs"
    assert count.read_text() == "3\n"
    assert simulated.called("modprobe") == ["fake_pci_sriov num_pfs=1"]
    assert "filter_scheduler" not in simulated.options("nova.conf")


def test_controller_creates_flavors_for_simulating_computes(tmp_path: Path) -> None:
    controller = Node(tmp_path, f"{MINIMAL}PCI_SIM_CREATE_TEST_FLAVORS=True\n")
    controller.do("stack")
    assert len(controller.called("openstack")) == 3
    assert controller.called("modprobe") == []


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("PCI_SIM_SOURCE_DIR=", 'no Makefile in PCI_SIM_SOURCE_DIR (""): name their directory'),
        ("PCI_SIM_NUM_PFS=0", "shows no PCI function 1d55:1000; look at dmesg"),
        ("PCI_SIM_NUM_PFS=1", "No simulated virtual function is left for Cyborg"),
        ("PCI_SIM_NUM_VFS=0", "No simulated virtual function is left for Cyborg"),
    ],
)
def test_invalid_simulation_settings_are_refused(tmp_path: Path, line: str, sentence: str) -> None:
    ran = node(tmp_path, line).run("stack")
    assert ran.returncode == 1
    assert sentence in ran.stderr.splitlines()[-1]
