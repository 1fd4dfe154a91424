# SPDX-License-Identifier: Apache-2.0
"""Rules of the simulated kernel that the scenario of the kernel tests does not reach."""

import contextlib
import errno
from collections.abc import Iterator

import pytest

from cyborg import exception
from cyborg.testing import servers
from cyborg.testing.fake_host import FakeEvents, FakeHost
from cyborg.testing.kernel.guest import DRIVERS, guest
from cyborg.testing.kernel.host_driver import HostDriver, MdevProfile, MdevType
from cyborg.testing.kernel.simulated import SimulatedKernel

DEVICES = "/sys/bus/pci/devices"
PF = "0000:01:00.0"
CARD = "0000:45:00.0"
BRIDGE = "0000:43:01.0"
SATA = "0000:00:1f.2"
SMBUS = "0000:00:1f.3"
DISK = "0000:02:00.0"
UUIDS = [f"83b8f4f2-509f-382f-3c1e-e6bfe0fa100{number}" for number in range(4)]


@contextlib.contextmanager
def refused(number: int) -> Iterator[None]:
    """Expect this error number from the host."""
    with pytest.raises(exception.HostError) as raised:
        yield
    assert errno.errorcode[raised.value.fields["errno"]] == errno.errorcode[number]


def machine() -> tuple[FakeHost, SimulatedKernel]:
    """Return the simulated guest and its kernel."""
    host = guest()
    return host, SimulatedKernel(host, DRIVERS)


def set_file(host: FakeHost, address: str, name: str, text: str) -> None:
    """Write to a file of a function."""
    host.write_text(f"{DEVICES}/{address}/{name}", text)


def text_of(host: FakeHost, address: str, name: str) -> str:
    """Return a file of a function without its newline."""
    return host.read_text(f"{DEVICES}/{address}/{name}").strip()


def under_vfio(host: FakeHost, address: str) -> None:
    """Give a function to vfio-pci."""
    set_file(host, address, "driver_override", "vfio-pci")
    set_file(host, address, "driver/unbind", address)
    host.write_text("/sys/bus/pci/drivers_probe", address)


def actions(events: FakeEvents) -> list[tuple[str, str]]:
    """Return action and name of all events until now."""
    received = list(iter(lambda: events.poll(0.0), None))
    events.close()
    return [(event.action, event.devpath.rpartition("/")[2]) for event in received]


def test_vfs_have_the_addresses_of_offset_and_stride_on_further_buses() -> None:
    host = servers.bare()
    path = servers.add_function(host, "0000:3d:00.0", "8086:4940:0b4000", driver="4xxx")
    for name, text in (("totalvfs", "16"), ("offset", "255"), ("stride", "2")):
        host.add_file(f"{path}/sriov_{name}", f"{text}\n")
    host.add_file(f"{path}/sriov_vf_device", "4941\n")
    SimulatedKernel(host, [HostDriver("4xxx", sriov=True)])
    set_file(host, "0000:3d:00.0", "sriov_numvfs", "3")
    vfs = ["0000:3d:1f.7", "0000:3e:00.1", "0000:3e:00.3"]
    assert host.list_dir(DEVICES) == ["0000:3d:00.0", *vfs]
    assert text_of(host, vfs[2], "device") == "0x4941"
    assert host.readlink(f"{DEVICES}/0000:3d:00.0/virtfn2") == "../0000:3e:00.3"


def test_hand_written_server_keeps_the_distance_of_its_vfs() -> None:
    host = servers.server()
    SimulatedKernel(host, [HostDriver("c6xx", sriov=True)])
    for number in ("0", "3"):
        set_file(host, servers.QAT_PF, "sriov_numvfs", number)
    names = [f"virtfn{index}" for index in range(3)]
    targets = [host.readlink(f"{DEVICES}/{servers.QAT_PF}/{name}") for name in names]
    assert targets == ["../0000:3d:01.0", "../0000:3d:01.1", "../0000:3d:01.2"]


def test_vfs_are_bound_to_their_driver_with_autoprobe_only() -> None:
    vf_driver = HostDriver("c6xxvf", ids=frozenset({"8086:37c9"}))
    host = servers.server()
    SimulatedKernel(host, [HostDriver("c6xx", sriov=True), vf_driver])
    host.add_file(f"{DEVICES}/{servers.QAT_PF}/sriov_vf_device", "37c9\n")
    host.add_file(f"{servers.place(servers.QAT_PF)}/sriov_vf_device", "37c9\n")
    bound = []
    for autoprobe in ("1", "0"):
        set_file(host, servers.QAT_PF, "sriov_numvfs", "0")
        set_file(host, servers.QAT_PF, "sriov_drivers_autoprobe", autoprobe)
        set_file(host, servers.QAT_PF, "sriov_numvfs", "1")
        bound.append(host.exists(f"{DEVICES}/{servers.QAT_VFS[0]}/driver"))
    assert bound == [True, False]


def test_what_a_driver_made_goes_and_comes_back_with_it() -> None:
    host = servers.server()
    SimulatedKernel(host, [HostDriver("nvme", children=("nvme",))])
    before = host.paths()
    unbind = f"{DEVICES}/{servers.NVME_FREE}/driver/unbind"
    host.write_text(unbind, servers.NVME_FREE)
    assert host.list_dir("/sys/class/block") == ["nvme0n1", "nvme0n1p1"]
    assert not host.exists(f"{DEVICES}/{servers.NVME_FREE}/nvme")
    set_file(host, servers.NVME_FREE, "driver_override", "nvme")
    with refused(errno.ENODEV):
        host.write_text("/sys/bus/pci/drivers/nvme/bind", servers.NVME_FREE)
    named = HostDriver("nvme", ids=frozenset({"144d:a808"}), children=("nvme",))
    host = servers.server()
    SimulatedKernel(host, [named])
    host.write_text(unbind, servers.NVME_FREE)
    host.write_text("/sys/bus/pci/drivers/nvme/bind", servers.NVME_FREE)
    assert host.paths() == before


def test_held_function_keeps_its_driver_and_its_vfs() -> None:
    host, kernel = machine()
    set_file(host, PF, "sriov_drivers_autoprobe", "0")
    set_file(host, PF, "sriov_numvfs", "1")
    vf = "0000:01:00.1"
    set_file(host, vf, "driver_override", "vfio-pci")
    host.write_text("/sys/bus/pci/drivers_probe", vf)
    kernel.hold(vf)
    with refused(errno.EINTR):
        host.write_text("/sys/bus/pci/drivers/vfio-pci/unbind", vf)
    with refused(errno.EINTR):
        set_file(host, PF, "sriov_numvfs", "0")
    kernel.release(vf)
    host.write_text("/sys/bus/pci/drivers/vfio-pci/unbind", vf)
    set_file(host, PF, "sriov_numvfs", "0")
    assert not host.exists(f"{DEVICES}/{vf}")


def test_function_outside_vfio_cannot_be_held_through_its_group() -> None:
    host, kernel = machine()
    under_vfio(host, SATA)
    set_file(host, SMBUS, "driver/unbind", SMBUS)
    with pytest.raises(OSError) as raised:
        kernel.hold(SMBUS)
    assert raised.value.errno == errno.ENODEV


def test_copy_of_a_host_has_a_kernel_of_its_own() -> None:
    host, _ = machine()
    events = host.events()
    copy = host.copy()
    set_file(copy, PF, "sriov_numvfs", "2")
    assert text_of(copy, PF, "sriov_numvfs") == "2"
    assert text_of(host, PF, "sriov_numvfs") == "0"
    assert actions(events) == []


def test_every_listener_gets_the_events_until_it_closes() -> None:
    host, _ = machine()
    first, second = host.events(), host.events()
    set_file(host, CARD, "uevent", "change")
    assert actions(first) == [("change", CARD)]
    set_file(host, CARD, "uevent", "add")
    assert actions(second) == [("change", CARD), ("add", CARD)]


def test_fault_of_a_file_comes_before_its_rule() -> None:
    host, _ = machine()
    host.faults[host.realpath(f"{DEVICES}/{PF}/sriov_numvfs")] = errno.EIO
    with refused(errno.EIO):
        set_file(host, PF, "sriov_numvfs", "2")
    assert not host.exists(f"{DEVICES}/{PF}/virtfn0")


def test_file_without_a_rule_stores_its_text() -> None:
    host, _ = machine()
    host.add_file("/etc/cyborg", "")
    host.write_text("/etc/cyborg", "text")
    set_file(host, CARD, "d3cold_allowed", "0")
    assert host.read_text("/etc/cyborg") == "text"
    assert text_of(host, CARD, "d3cold_allowed") == "0"


def test_rescan_of_another_bus_does_not_find_a_removed_function() -> None:
    host, _ = machine()
    set_file(host, CARD, "remove", "1")
    set_file(host, DISK, "rescan", "1")
    assert not host.exists(f"{DEVICES}/{CARD}")
    set_file(host, BRIDGE, "rescan", "1")
    assert host.exists(f"{DEVICES}/{CARD}/driver")


def test_member_of_a_shared_group_returns_to_it_after_all_were_removed() -> None:
    host, _ = machine()
    addresses = ("0000:00:1f.0", SATA, SMBUS)
    for address in addresses:
        set_file(host, address, "remove", "1")
    host.write_text("/sys/bus/pci/rescan", "1")
    groups = {host.realpath(f"{DEVICES}/{address}/iommu_group") for address in addresses}
    assert [host.list_dir(f"{group}/devices") for group in groups] == [sorted(addresses)]


def test_unplugged_card_leaves_with_events_and_no_scan_finds_it() -> None:
    host, kernel = machine()
    events = host.events()
    card = kernel.unplug(CARD)
    host.write_text("/sys/bus/pci/rescan", "1")
    assert not host.exists(f"{DEVICES}/{CARD}")
    kernel.plug(card)
    assert actions(events) == [
        (action, CARD) for action in ("change", "unbind", "remove", "add", "change", "bind")
    ]


def test_other_card_in_the_same_slot_has_its_own_identity() -> None:
    host, kernel = machine()
    card = kernel.unplug(CARD)
    kernel.plug(card, {"vendor": "0x10de", "device": "0x20b5"})
    assert text_of(host, CARD, "uevent").splitlines()[1] == "PCI_ID=10DE:20B5"
    assert not host.exists(f"{DEVICES}/{CARD}/driver")


def test_homogeneous_parent_offers_only_the_type_of_its_first_device() -> None:
    types = {name: MdevType(slices, f"GRID T4-{name}") for name, slices in (("1", 1), ("2", 2))}
    profile = MdevProfile(4, types, homogeneous=True, exhausted=errno.EUSERS)
    host = servers.bare()
    servers.add_function(host, servers.GPU, "10de:1eb8:030200")
    gpu = HostDriver("nvidia", ids=frozenset({"10de:1eb8"}), mdev=profile)
    SimulatedKernel(host, [gpu]).boot()
    place = f"{DEVICES}/{servers.GPU}/mdev_supported_types"
    host.write_text(f"{place}/nvidia-2/create", UUIDS[0])
    left = [host.read_text(f"{place}/nvidia-{name}/available_instances") for name in types]
    assert left == ["0\n", "1\n"]
    with refused(errno.EUSERS):
        host.write_text(f"{place}/nvidia-1/create", UUIDS[1])
    set_file(host, servers.GPU, f"{UUIDS[0]}/remove", "1")
    host.write_text(f"{place}/nvidia-1/create", UUIDS[1])


def test_mediated_devices_of_the_tree_count_for_a_new_kernel() -> None:
    host, _ = machine()
    create = f"{DEVICES}/{CARD}/mdev_supported_types/simaccel-4/create"
    host.write_text(create, UUIDS[0])
    SimulatedKernel(host, DRIVERS)
    with refused(errno.EEXIST):
        host.write_text(create, UUIDS[0])
    with refused(errno.ENOSPC):
        host.write_text(create, UUIDS[1])


def test_vgpu_of_the_tree_counts_for_a_new_kernel() -> None:
    host, _ = machine()
    set_file(host, PF, "sriov_drivers_autoprobe", "0")
    set_file(host, PF, "sriov_numvfs", "2")
    for vf in ("0000:01:00.1", "0000:01:00.2"):
        set_file(host, vf, "driver_override", "simaccel")
        host.write_text("/sys/bus/pci/drivers_probe", vf)
    set_file(host, "0000:01:00.1", "nvidia/current_vgpu_type", "1430")
    SimulatedKernel(host, DRIVERS)
    with refused(errno.ENOSPC):
        set_file(host, "0000:01:00.2", "nvidia/current_vgpu_type", "1428")


def test_reset_is_counted_and_disabled_reset_is_not() -> None:
    host, kernel = machine()
    set_file(host, CARD, "reset", "1")
    set_file(host, CARD, "reset_method", "\n")
    with refused(errno.ENOTTY):
        set_file(host, CARD, "reset", "1")
    assert kernel.functions.resets == [CARD]


def test_function_without_iommu_is_refused_by_vfio() -> None:
    host = guest(iommu=False)
    SimulatedKernel(host, DRIVERS, iommu=False)
    under_vfio(host, CARD)
    assert not host.exists(f"{DEVICES}/{CARD}/driver")
    with refused(errno.EINVAL):
        host.write_text("/sys/bus/pci/drivers/vfio-pci/bind", CARD)


@pytest.mark.parametrize(
    ("services", "state", "accepted"),
    [
        ("dc", "down", True),
        ("asym;sym\n", "down", True),
        ("dcc", "down", True),
        ("dc", "up", False),
        ("dc;dcc", "down", False),
        ("sym;asym;dc", "down", False),
        ("sym;sym", "down", False),
        ("video", "down", False),
    ],
)
def test_quickassist_changes_its_services_only_while_down(
    services: str, state: str, accepted: bool
) -> None:
    host = servers.bare()
    address = "0000:3d:00.0"
    servers.add_function(host, address, "8086:4940:0b4000")
    driver = HostDriver("4xxx", ids=frozenset({"8086:4940"}), qat_services=2)
    SimulatedKernel(host, [driver]).boot()
    assert text_of(host, address, "qat/state") == "up"
    with refused(errno.EINVAL):
        set_file(host, address, "qat/state", "sideways")
    set_file(host, address, "qat/state", state)
    with contextlib.nullcontext() if accepted else refused(errno.EINVAL):
        set_file(host, address, "qat/cfg_services", services)
    expected = services.strip() if accepted else "sym;asym"
    assert text_of(host, address, "qat/cfg_services") == expected
    host.write_text(f"{DEVICES}/{address}/driver/unbind", address)
    assert not host.exists(f"{DEVICES}/{address}/qat")
