# SPDX-License-Identifier: Apache-2.0
"""IOMMU groups and VFIO: which functions a guest can get, and how a held one looks."""

import errno
import os
import subprocess
from pathlib import Path

import pytest

from cyborg.drivers.host import LocalHost
from cyborg.tests.kernel import vfio
from cyborg.tests.kernel.functions import BUS, CARD, E1000E, Functions, refused

#: The LPC bridge, the SATA controller and the SMBus controller of the chipset share a group.
SATA, SMBUS = "0000:00:1f.2", "0000:00:1f.3"


def test_every_function_has_a_group_where_there_is_an_iommu(
    functions: Functions, host: LocalHost
) -> None:
    """pci_function derives the nodes of VFIO from the group; the simulated host needs one, too."""
    addresses = host.list_dir(f"{BUS}/devices")
    assert [name for name in addresses if functions.link(name, "iommu_group") is None] == []


@pytest.mark.machine("iommu-off")
def test_no_function_has_a_group_where_there_is_no_iommu(
    functions: Functions, host: LocalHost
) -> None:
    """No group is how the guard knows that nothing can be passed through."""
    addresses = host.list_dir(f"{BUS}/devices")
    assert [name for name in addresses if functions.link(name, "iommu_group")] == []


@pytest.mark.machine("iommu-off")
def test_vfio_refuses_a_function_where_there_is_no_iommu(
    functions: Functions, host: LocalHost
) -> None:
    """A bind through Nova fails there, so the function must not be offered."""
    address = functions.nvme("PLAIN0001")
    functions.bind(address, None)
    functions.write(address, "driver_override", "vfio-pci")
    host.write_text(f"{BUS}/drivers_probe", address)
    assert functions.link(address, "driver") is None


def test_group_is_viable_when_no_member_has_a_host_driver(functions: Functions) -> None:
    """One member with a host driver makes the others useless for guests."""
    group = functions.link(SATA, "iommu_group")
    assert group
    assert group == functions.link(SMBUS, "iommu_group")
    functions.bind(SATA, "vfio-pci")
    assert not vfio.is_viable(group)
    with pytest.raises(OSError) as raised, vfio.held(group, SATA):
        pass
    assert raised.value.errno == errno.EPERM
    functions.bind(SMBUS, "vfio-pci")
    assert vfio.is_viable(group)


def test_bridge_in_a_group_leaves_it_viable(functions: Functions) -> None:
    """A port of a switch without ACS shares the group of the function behind it (B7)."""
    card, _ = functions.matching(CARD)
    port = Path(functions.path(card)).resolve().parent.name
    group = functions.link(card, "iommu_group")
    assert group
    assert functions.link(port, "iommu_group") == group
    assert functions.link(port, "driver") == "pcieport"
    functions.bind(card, "vfio-pci")
    assert vfio.is_viable(group)


def test_enable_reads_1_only_while_the_device_is_held(functions: Functions) -> None:
    """The ownership check takes ``enable`` for the sign that a guest holds the function."""
    [card] = functions.matching(E1000E)
    assert functions.read(card, "enable") == "1"
    functions.bind(card, "vfio-pci")
    group = functions.link(card, "iommu_group") or ""
    readings = [functions.read(card, "enable")]
    with vfio.held(group, card):
        readings.append(functions.read(card, "enable"))
    readings.append(functions.read(card, "enable"))
    assert readings == ["0", "1", "0"]


def test_enable_stays_1_when_the_former_driver_left_it_so(functions: Functions) -> None:
    """The number tells nothing then: /proc tells who holds the function."""
    [card] = functions.matching(E1000E)
    functions.bind(card, None)
    functions.write(card, "enable", 1)
    functions.bind(card, "vfio-pci")
    group = functions.link(card, "iommu_group") or ""
    readings = [functions.read(card, "enable")]
    with vfio.held(group, card):
        readings.append(functions.read(card, "enable"))
    readings.append(functions.read(card, "enable"))
    assert readings == ["1", "2", "1"]


def test_enable_of_a_driven_function_cannot_be_written(functions: Functions) -> None:
    """``enable`` of a card with its host driver says nothing about its use."""
    [card] = functions.matching(E1000E)
    with refused(errno.EBUSY):
        functions.write(card, "enable", 0)


def test_held_group_is_an_open_file_of_its_process(functions: Functions, host: LocalHost) -> None:
    """The ownership check reads the links below /proc/PID/fd."""
    [card] = functions.matching(E1000E)
    functions.bind(card, "vfio-pci")
    group = functions.link(card, "iommu_group") or ""
    assert f"/dev/vfio/{group}" not in host.open_files().holders
    with vfio.held(group, card):
        command = Path("/proc/self/comm").read_text().strip()
        holder = host.open_files().holders[f"/dev/vfio/{group}"]
        assert holder == f"{command} (process {os.getpid()})"
    assert host.open_files().reason is None


def test_group_that_is_held_cannot_be_opened_again(functions: Functions) -> None:
    """Two guests cannot share a group: a function that is held is not offered."""
    [card] = functions.matching(E1000E)
    functions.bind(card, "vfio-pci")
    group = functions.link(card, "iommu_group") or ""
    with vfio.held(group, card), pytest.raises(OSError) as raised:
        os.open(f"/dev/vfio/{group}", os.O_RDWR)
    assert raised.value.errno == errno.EBUSY


def test_other_user_reads_enable_but_not_who_holds_the_group(functions: Functions) -> None:
    """The ownership check reads ``enable`` where the agent cannot see who holds a function."""
    [card] = functions.matching(E1000E)
    functions.bind(card, "vfio-pci")
    group = functions.link(card, "iommu_group") or ""
    files = (functions.path(card, "enable"), f"/proc/{os.getpid()}/fd")
    with vfio.held(group, card):
        enable, descriptors = (
            subprocess.run(
                ["ls" if os.path.isdir(path) else "cat", path],
                user="nobody",
                group="nogroup",
                extra_groups=(),
                capture_output=True,
                text=True,
                check=False,
            )
            for path in files
        )
    assert enable.stdout == "1\n"
    assert "Permission denied" in descriptors.stderr
