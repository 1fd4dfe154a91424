# SPDX-License-Identifier: Apache-2.0
"""The ownership check refuses what this kernel shows as in use, or may be in use."""

import subprocess
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from cyborg.drivers.host import LocalHost
from cyborg.drivers.ownership import NO_IOMMU
from cyborg.drivers.scan import Scan
from cyborg.model.pci import PciAddress
from cyborg.tests.kernel import vfio
from cyborg.tests.kernel.another import another_process
from cyborg.tests.kernel.functions import CARD, CXL, E1000E, IGB, Functions
from cyborg.tests.kernel.nobody import as_nobody
from cyborg.tests.kernel.test_vfio import SATA, SMBUS


@pytest.fixture
def refusal(host: LocalHost) -> Callable[..., str]:
    """Return a function that tells why a function of the guest is not offered; empty if it is."""

    def refusal(
        address: str, *, managed: bool = False, claims: Mapping[str, str] | None = None
    ) -> str:
        scan = Scan(host, claims=claims or {})
        function = scan.functions[PciAddress.parse(address)]
        return scan.refusal(function, managed=managed) or ""

    return refusal


def test_idle_functions_are_offered(functions: Functions, refusal: Callable[..., str]) -> None:
    cards = [*functions.matching(CARD), *functions.matching(E1000E)]
    for address in (*cards, functions.nvme("PLAIN0001"), functions.nvme("IDLE00001")):
        assert refusal(address) == ""


def test_functions_that_this_kernel_shows_are_all_understood(host: LocalHost) -> None:
    scan = Scan(host)
    assert scan.unreadable == {}
    names = host.list_dir("/sys/bus/pci/devices")
    assert [str(address) for address in sorted(scan.functions)] == names


def test_a_virtual_function_whose_parent_nova_claims_is_refused(
    functions: Functions, refusal: Callable[..., str]
) -> None:
    [card] = functions.matching(IGB)
    virtual, _ = functions.create_vfs(card, 2)
    assert refusal(virtual) == ""
    assert refusal(virtual, claims={card: "Nova offers it"}) == "Nova offers it"
    assert refusal(card, claims={virtual: "Nova offers it"}) == "Nova offers it"
    assert "2 virtual functions" in refusal(card)


def test_a_disk_that_is_mounted_in_another_mount_namespace_is_refused(
    functions: Functions, refusal: Callable[..., str], undo: ExitStack
) -> None:
    address = functions.nvme("PLAIN0001")
    disk = functions.disk(address)
    subprocess.run(["mkfs.ext4", "-q", "-F", f"/dev/{disk}"], check=True)
    script = f"mount /dev/{disk} /mnt && echo mounted && read end"
    process = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    undo.callback(process.wait)
    assert process.stdin is not None
    undo.callback(process.stdin.close)
    assert process.stdout is not None
    assert process.stdout.readline() == b"mounted\n"
    assert disk not in Path("/proc/self/mountinfo").read_text()
    assert refusal(address) == f"its disk {disk} is part of a mounted ext4 file system"


def test_a_mounted_disk_is_refused_without_a_list_of_mounts(
    functions: Functions, mounted: Callable[[str], Path]
) -> None:
    """As in a container whose /proc does not show the host's."""

    class WithoutLists(LocalHost):
        def read_text(self, path: str, limit: int = 1 << 16) -> str:
            return super().read_text("/nowhere" if "mountinfo" in path else path, limit)

    address = functions.nvme("PLAIN0001")
    mounted(functions.disk(address))
    scan = Scan(WithoutLists())
    reason = scan.refusal(scan.functions[PciAddress.parse(address)], managed=False)
    assert "is part of a mounted ext4" in str(reason)
    idle = scan.functions[PciAddress.parse(functions.nvme("IDLE00001"))]
    assert "it is not known what the host uses" in str(scan.refusal(idle, managed=False))


def test_a_disk_that_is_claimed_or_open_without_a_mount_or_holder_is_refused(
    functions: Functions, host: LocalHost, refusal: Callable[..., str]
) -> None:
    address = functions.nvme("IDLE00001")
    disk = functions.disk(address)
    for flags in ("os.O_RDONLY", "os.O_RDONLY | os.O_EXCL"):
        with another_process(f"file = os.open(path, {flags})", f"/dev/{disk}"):
            assert host.is_claimed(f"/dev/{disk}") is ("EXCL" in flags)
            assert f"its disk {disk} is open in" in refusal(address)
    assert refusal(address) == ""


def test_a_card_with_live_mediated_devices_is_not_offered_whole(
    functions: Functions, refusal: Callable[..., str]
) -> None:
    card = functions.matching(CARD)[0]
    kind = functions.names(card, "mdev_supported_types")[0]
    assert refusal(card) == ""
    made = functions.create_mdev(card, kind)
    assert f"1 mediated device(s), for example {made}" in refusal(card)


def test_a_virtual_function_with_a_vgpu_type_is_not_offered_whole(
    functions: Functions, refusal: Callable[..., str], undo: ExitStack
) -> None:
    virtual, _ = functions.create_vfs(functions.nvme("SRIOV0001"), 2)
    functions.bind(virtual, "simaccel")
    lines = functions.read(virtual, "nvidia/creatable_vgpu_types").splitlines()
    functions.write(virtual, "nvidia/current_vgpu_type", lines[1].split()[0])
    undo.callback(functions.write, virtual, "nvidia/current_vgpu_type", 0)
    assert "current_vgpu_type" in refusal(virtual)


def test_a_function_in_a_group_that_the_host_uses_is_refused(
    functions: Functions, refusal: Callable[..., str]
) -> None:
    """The kernel refuses to open such a group as well: see test_vfio."""
    group = functions.link(SATA, "iommu_group")
    assert group
    functions.bind(SATA, "vfio-pci")
    assert not vfio.is_viable(group)
    assert f"its IOMMU group {group} has {SMBUS}, too" in refusal(SATA)
    functions.bind(SMBUS, "vfio-pci")
    assert vfio.is_viable(group)
    assert refusal(SATA) == ""


@pytest.mark.machine("iommu-off")
def test_no_whole_function_is_offered_where_there_is_no_iommu(
    functions: Functions, refusal: Callable[..., str]
) -> None:
    assert refusal(functions.nvme("PLAIN0001")) == NO_IOMMU


def test_a_card_whose_interface_is_in_another_network_namespace_is_refused(
    functions: Functions,
    refusal: Callable[..., str],
    command: Callable[..., str],
    namespace: str,
    undo: ExitStack,
) -> None:
    [card] = functions.matching(E1000E)
    name = functions.interface(card)
    command("ip", "link", "set", name, "netns", namespace)
    undo.callback(command, "ip", "-n", namespace, "link", "set", name, "netns", "1")
    assert "another network namespace" in refusal(card)


def test_a_held_function_is_refused_and_one_that_was_left_enabled_is_not(
    functions: Functions, refusal: Callable[..., str]
) -> None:
    [card] = functions.matching(E1000E)
    functions.bind(card, None)
    functions.write(card, "enable", 1)
    functions.bind(card, "vfio-pci")
    group = functions.link(card, "iommu_group") or ""
    assert functions.read(card, "enable") != "0"
    assert refusal(card) == ""
    with vfio.held(group, card):
        assert "held through VFIO by" in refusal(card)
        assert refusal(card, managed=True) == ""
    assert refusal(card) == ""


def test_a_held_function_is_refused_by_an_agent_without_privileges(functions: Functions) -> None:
    """It sees the processes of its own user only."""
    [card] = functions.matching(E1000E)
    functions.bind(card, "vfio-pci")
    group = functions.link(card, "iommu_group") or ""

    def answer() -> str | None:
        scan = Scan(LocalHost())
        return scan.refusal(scan.functions[PciAddress.parse(card)], managed=False)

    assert as_nobody(answer) == "None"
    with vfio.held(group, card):
        assert "a process may hold it through VFIO" in as_nobody(answer)


def test_cxl_memory_is_never_offered(functions: Functions, refusal: Callable[..., str]) -> None:
    [card] = functions.matching(CXL)
    assert "CXL memory" in refusal(card)
