# SPDX-License-Identifier: Apache-2.0
"""What identifies the functions of the guest and where they are, as the kernel shows it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from cyborg.drivers.host import LocalHost
from cyborg.drivers.scan import Scan
from cyborg.model.device import Confidence, Device, DeviceType, Topology
from cyborg.model.pci import PciAddress
from cyborg.tests.kernel.functions import CARD, CXL, E1000E, IGB, Functions

Describe = Callable[[str], Device]


@pytest.fixture
def describe(host: LocalHost) -> Describe:
    """Return a function that returns an address as a device, with what a new scan adds to it."""

    def describe(address: str) -> Device:
        scan = Scan(host)
        device = Device(address, DeviceType.PCI, "v", "m", {}, ())
        return scan.with_facts(device, scan.functions[PciAddress.parse(address)])

    return describe


def identity(device: Device) -> dict[str, str]:
    return {item.kind.value: item.value for item in device.identity}


def test_nvme_disk_has_the_serial_number_of_its_driver(
    functions: Functions, describe: Describe
) -> None:
    """A disk in use by a guest has no such driver; the conductor keeps the number then."""
    address = functions.nvme("IDLE00001")
    device = describe(address)
    first, *_, last = device.identity
    assert (first.value, first.confidence) == ("QEMU NVMe Ctrl IDLE00001", Confidence.UNIQUE)
    assert (last.value, last.confidence) == (address, Confidence.PLACE)
    assert identity(device)["slot"].startswith("3 1b36:0010:")
    assert device.numa_node == 1
    assert describe(address) == device
    functions.bind(address, None)
    assert [item.kind for item in describe(address).identity] == ["slot", "address"]


def test_cxl_memory_has_its_serial_number(functions: Functions, describe: Describe) -> None:
    """The card has the same number in its Device Serial Number capability."""
    [card] = functions.matching(CXL)
    facts = identity(describe(card))
    assert facts["vendor"] == "0x1234567"
    assert facts["dsn"] == "00-00-00-00-01-23-45-67"


def test_network_card_has_a_device_serial_number(functions: Functions, describe: Describe) -> None:
    """QEMU makes the number of an e1000e from its MAC address."""
    [card] = functions.matching(E1000E)
    mac = functions.read(card, f"net/{functions.interface(card)}/address").split(":")
    assert identity(describe(card))["dsn"].split("-") == [*mac[:3], "ff", "ff", *mac[3:]]


def test_vfs_have_the_identity_of_their_parent_with_their_number(
    functions: Functions, describe: Describe
) -> None:
    """The address of a VF depends on how many there are; its number does not."""
    card = functions.nvme("SRIOV0001")
    parent = describe(card)
    vfs = functions.create_vfs(card, 2)
    for number, vf in enumerate(vfs):
        device = describe(vf)
        assert identity(device) == {
            "vendor": f"QEMU NVMe Ctrl SRIOV0001/vf{number}",
            "slot": f"{identity(parent)['slot']}/vf{number}",
            "address": vf,
        }
        assert parent.topology is not None
        assert device.topology == replace(parent.topology, siblings=(card,))
    assert describe(card) == parent


def test_vfs_of_a_network_card_are_not_its_siblings(
    functions: Functions, describe: Describe
) -> None:
    """A report must not change when the number of VFs does."""
    [card, *_] = functions.matching(IGB)
    before = describe(card)
    functions.create_vfs(card, 7)
    assert describe(card) == before
    assert before.topology is not None
    assert before.topology.siblings == ()


def test_functions_behind_one_switch_have_it_in_common(
    functions: Functions, describe: Describe, host: LocalHost
) -> None:
    """The switch is its upstream port; its downstream ports differ."""
    first, second = functions.matching(CARD)
    root, upstream, port = host.realpath(functions.path(first)).split("/")[4:-1]
    expected = Topology(root_port=root, switch=upstream)
    assert functions.link(upstream, "driver") == functions.link(port, "driver") == "pcieport"
    assert describe(first).topology == describe(second).topology == expected
    assert describe(first).numa_node == describe(second).numa_node == 1
    assert identity(describe(first))["slot"] != identity(describe(second))["slot"]


def test_function_below_a_root_port_has_no_switch(functions: Functions, describe: Describe) -> None:
    """A root port leads to one place, so that nothing shares it with the function."""
    topology = describe(functions.nvme("PLAIN0001")).topology
    assert topology is not None
    assert (topology.switch, topology.siblings) == (None, ())
    assert topology.root_port is not None
    assert functions.read(topology.root_port, "class") == "0x060400"


def test_function_of_the_root_complex_has_siblings_and_no_port(
    functions: Functions, describe: Describe
) -> None:
    """The functions of the chipset are one card: SATA, SMBus and LPC."""
    assert describe("0000:00:1f.0").topology == Topology(siblings=("0000:00:1f.2", "0000:00:1f.3"))
