# SPDX-License-Identifier: Apache-2.0
"""Facts about one function: reset methods, errors, NUMA node, identity, CXL memory."""

import errno
import struct
from pathlib import Path

import pytest

from cyborg.drivers import health_policy, pcie_health
from cyborg.drivers.host import LocalHost
from cyborg.tests.kernel.functions import BUS, CARD, E1000E, IGB, Functions, eventually, refused
from cyborg.tests.kernel.uevents import Recorder

#: A bit of the Uncorrectable and Correctable Error Status registers (PCIe, AER capability).
_BAD_TLP = 0x40
_COMPLETION_TIMEOUT = 0x4000


def inject(address: str, *, correctable: int = 0, uncorrectable: int = 0) -> None:
    """Let the module aer_inject report errors: its struct aer_error_inj (aer_inject.c)."""
    domain, bus, rest = address.split(":")
    device, function = rest.split(".")
    place = (int(bus, 16), int(device, 16), int(function, 16))
    header = (0, 0, 0, 0)
    data = struct.pack("=4B7I", *place, 0, uncorrectable, correctable, *header, int(domain, 16))
    Path("/dev/aer_inject").write_bytes(data)


def total(functions: Functions, address: str, name: str) -> int:
    """Return the total of a file of AER counters; its last line is TOTAL_ERR_… and a number."""
    return int(functions.read(address, name).split()[-1])


def test_reset_methods_are_listed_in_order_and_can_be_chosen(functions: Functions) -> None:
    """A reset of one level is a choice among these; ``bus`` also resets the neighbours."""
    address = functions.nvme("IDLE00001")
    assert functions.read(address, "reset_method") == "flr bus"
    functions.write(address, "reset_method", "bus")
    assert functions.read(address, "reset_method") == "bus"
    with refused(errno.EINVAL):
        functions.write(address, "reset_method", "unknown")
    functions.write(address, "reset_method", "default")
    assert functions.read(address, "reset_method") == "flr bus"


def test_function_whose_reset_methods_are_off_cannot_be_reset(functions: Functions) -> None:
    """The file ``reset`` is still there: that it exists does not mean that a reset works."""
    address = functions.nvme("IDLE00001")
    functions.write(address, "reset_method", "")
    assert functions.read(address, "reset_method") == ""
    with refused(errno.ENOTTY):
        functions.write(address, "reset", 1)
    functions.write(address, "reset_method", "default")


def test_function_without_a_reset_method_has_no_reset_files(
    functions: Functions, host: LocalHost
) -> None:
    """Cleaning a function by reset is impossible there."""
    assert not host.exists(functions.path("0000:00:1f.0", "reset"))
    assert not host.exists(functions.path("0000:00:1f.0", "reset_method"))


def test_driven_function_is_reset_and_keeps_its_driver(functions: Functions) -> None:
    """A reset between two guests leaves the function as discovery saw it before."""
    address = functions.nvme("IDLE00001")
    functions.write(address, "reset", 1)
    assert functions.link(address, "driver") == "nvme"
    assert functions.read(address, "enable") == "1"


def test_correctable_error_is_counted_at_the_function(functions: Functions) -> None:
    """Health from AER counters is a difference of two readings of one function."""
    [card] = functions.matching(E1000E)
    before = total(functions, card, "aer_dev_correctable")
    inject(card, correctable=_BAD_TLP)
    eventually(lambda: total(functions, card, "aer_dev_correctable") == before + 1)
    assert "BadTLP 1" in functions.read(card, "aer_dev_correctable")
    assert total(functions, card, "aer_dev_nonfatal") == 0


def test_health_shows_new_errors_of_a_function(functions: Functions, host: LocalHost) -> None:
    """The errors before the first reading are the baseline."""
    [card] = functions.matching(E1000E)
    baseline = pcie_health.Baseline.of(pcie_health.read(host, card))

    def evidence() -> list[str]:
        state = pcie_health.read(host, card)
        health = health_policy.shipped().judge(pcie_health.signals(baseline, state))
        return [text for text in health.evidence if "errors" in text]

    assert evidence() == []
    inject(card, correctable=_BAD_TLP)
    eventually(lambda: evidence() == ["new correctable PCIe errors: 1 BadTLP"])


def test_driver_recovers_from_a_nonfatal_error(functions: Functions, uevents: Recorder) -> None:
    """Recovery ends with uevents of the action ``change``; the counter is all that stays."""
    [card] = functions.matching(IGB)
    inject(card, uncorrectable=_COMPLETION_TIMEOUT)
    events = [uevents.wait("change", card)]
    uevents.wait("change", card, fields={"ERROR_EVENT": "SUCCESSFUL_RECOVERY"})
    assert events[0].fields["ERROR_EVENT"] == "BEGIN_RECOVERY"
    assert total(functions, card, "aer_dev_nonfatal") == 1
    assert total(functions, card, "aer_dev_fatal") == 0
    assert functions.link(card, "driver") == "igb"


def test_numa_node_is_minus_one_where_the_firmware_does_not_tell(functions: Functions) -> None:
    """pci_function.parse_function takes -1 for unknown and not for node 0."""
    assert functions.read(functions.nvme("PLAIN0001"), "numa_node") == "-1"
    assert functions.read(functions.nvme("IDLE00001"), "numa_node") == "1"


def test_path_in_sysfs_shows_which_functions_share_a_switch(
    functions: Functions, host: LocalHost
) -> None:
    """pci_function.addresses_in_path reads bridges from this path."""
    first, second = (
        host.realpath(functions.path(card)).split("/") for card in functions.matching(CARD)
    )
    # The last two parts are the port of the switch below and the function.
    assert first[:-2] == second[:-2]
    assert first[3] == "pci0000:40"


def test_driven_card_reads_enable_1(functions: Functions, host: LocalHost) -> None:
    """The simulated hosts of cyborg/testing read 1 for a card with a driver, held or not."""
    [igb] = functions.matching(IGB)
    [e1000e] = functions.matching(E1000E)
    assert {functions.read(card, "enable") for card in (igb, e1000e)} == {"1"}


def test_root_reads_the_extended_configuration_space(functions: Functions) -> None:
    """The serial number of a card is an extended capability, above the first 256 bytes."""
    assert len(Path(functions.path(functions.nvme("IDLE00001"), "config")).read_bytes()) == 4096


def test_cxl_memory_device_shows_its_identity_and_sizes(host: LocalHost) -> None:
    """The serial number identifies the device; the sizes are what could be offered."""
    base = "/sys/bus/cxl/devices/mem0"
    assert int(host.read_text(f"{base}/serial").strip(), 16) == 0x1234567
    assert int(host.read_text(f"{base}/ram/size").strip(), 16) == 256 << 20
    assert int(host.read_text(f"{base}/pmem/size").strip(), 16) == 0
    assert host.read_text(f"{base}/security/state").strip() == "disabled"
    assert host.read_text(f"{base}/firmware_version").strip()


def test_cxl_memory_device_belongs_to_a_pci_function(host: LocalHost, functions: Functions) -> None:
    """Class 0x050210 is CXL memory; drivers match by PCI function, so the parent is needed."""
    path = host.realpath("/sys/bus/cxl/devices/mem0")
    address = path.split("/")[-2]
    assert functions.read(address, "class") == "0x050210"
    assert functions.link(address, "driver") == "cxl_pci"


@pytest.mark.machine("pci", "iommu-off")
def test_disk_controller_has_the_class_of_nvme(functions: Functions, host: LocalHost) -> None:
    """Device types are derived from the 24 bits of the class."""
    assert functions.read(functions.nvme("PLAIN0001"), "class") == "0x010802"
    assert host.exists(f"{BUS}/drivers/nvme")
