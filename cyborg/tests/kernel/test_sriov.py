# SPDX-License-Identifier: Apache-2.0
"""SR-IOV: what a driver that creates virtual functions must obey (hardware.md 1.3)."""

import errno

import pytest

from cyborg.drivers import health_policy, pcie_health
from cyborg.drivers.host import LocalHost
from cyborg.drivers.pcie_health import Baseline
from cyborg.tests.kernel.functions import BUS, IGB, Functions, refused


@pytest.fixture
def parent(functions: Functions) -> str:
    return functions.nvme("SRIOV0001")


def test_number_of_vfs_above_the_total_is_out_of_range(functions: Functions, parent: str) -> None:
    """A driver that creates VFs must compare the number with ``sriov_totalvfs`` first."""
    total = int(functions.read(parent, "sriov_totalvfs"))
    with refused(errno.ERANGE):
        functions.write(parent, "sriov_numvfs", total + 1)
    assert functions.read(parent, "sriov_numvfs") == "0"


def test_number_of_vfs_changes_only_through_zero(functions: Functions, parent: str) -> None:
    """A driver that changes the number must drain and remove all VFs before."""
    functions.create_vfs(parent, 2)
    with refused(errno.EBUSY):
        functions.write(parent, "sriov_numvfs", 4)
    assert functions.read(parent, "sriov_numvfs") == "2"
    functions.write(parent, "sriov_numvfs", 0)
    functions.write(parent, "sriov_numvfs", 4)
    assert functions.link(parent, "virtfn3")


def test_writing_the_current_number_of_vfs_changes_nothing(
    functions: Functions, parent: str
) -> None:
    """A repeated preparation may write the number again: no VF is lost."""
    before = functions.create_vfs(parent, 2)
    functions.write(parent, "sriov_numvfs", 2)
    assert [functions.link(parent, f"virtfn{index}") for index in range(2)] == before


def test_parent_without_a_driver_creates_no_vfs(functions: Functions, parent: str) -> None:
    """A parent that is passed through itself has no VFs to offer."""
    functions.bind(parent, None)
    with refused(errno.ENOENT):
        functions.write(parent, "sriov_numvfs", 1)


def test_vf_names_its_parent_and_has_no_vfs_of_its_own(
    functions: Functions, host: LocalHost, parent: str
) -> None:
    """pci_scan reads physfn; without sriov_numvfs it takes the number of VFs for 0."""
    [vf] = functions.create_vfs(parent, 1)
    assert functions.link(vf, "physfn") == parent
    assert not host.exists(functions.path(vf, "sriov_numvfs"))


def test_vf_answers_although_its_ids_are_ones(
    functions: Functions, host: LocalHost, parent: str
) -> None:
    """The configuration space of a VF has ones where others have ids; sysfs has the ids."""
    [card] = functions.matching(IGB)
    for physical in (parent, card):
        [vf] = functions.create_vfs(physical, 1)
        assert functions.read(vf, "vendor") == functions.read(physical, "vendor")
        assert host.read_bytes(functions.path(vf, "config"))[:4] == b"\xff" * 4
        for address in (physical, vf):
            state = pcie_health.read(host, address)
            assert state.access is None
            signals = pcie_health.signals(Baseline.of(state), state)
            assert health_policy.shipped().judge(signals).findings == ()


def test_vf_without_autoprobe_is_bound_only_with_driver_override(
    functions: Functions, host: LocalHost, parent: str
) -> None:
    """Binding VFs to VFIO needs ``driver_override``; ``drivers_probe`` alone succeeds in vain."""
    [vf] = functions.create_vfs(parent, 1)
    assert functions.link(vf, "driver") is None
    host.write_text(f"{BUS}/drivers_probe", vf)
    assert functions.link(vf, "driver") is None
    functions.bind(vf, "vfio-pci")
    assert functions.link(vf, "driver") == "vfio-pci"


def test_vf_of_a_network_card_gets_a_host_driver_with_autoprobe(functions: Functions) -> None:
    """ownership offers a VF with a host driver as long as its interface is not in use."""
    [card] = functions.matching(IGB)
    vfs = functions.create_vfs(card, 2, probe=True)
    assert {functions.link(vf, "driver") for vf in vfs} == {"igbvf"}
    assert all(functions.names(vf, "net") for vf in vfs)


def test_vfs_vanish_with_the_driver_of_their_parent(functions: Functions) -> None:
    """pci_scan leaves out functions that vanish: a parent without its driver takes all VFs away."""
    [card] = functions.matching(IGB)
    vfs = functions.create_vfs(card, 2)
    functions.bind(card, None)
    assert [functions.link(vf, "physfn") for vf in vfs] == [None, None]
