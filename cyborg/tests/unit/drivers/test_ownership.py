# SPDX-License-Identifier: Apache-2.0
"""The ownership check on simulated servers, one kind of use per test."""

import errno
from collections.abc import Mapping

import pytest

from cyborg import exception
from cyborg.drivers import pci_scan
from cyborg.drivers.ownership import NO_IOMMU, Ownership
from cyborg.drivers.privileged.actions import ReadVpd
from cyborg.drivers.rtnetlink import NETWORK, Traffic
from cyborg.drivers.scan import Scan
from cyborg.model.pci import PciAddress
from cyborg.testing import servers
from cyborg.testing.fake_host import FakeHost

DISK = "0000:5f:00.0"
PORT = "0000:18:00.0"


@pytest.fixture
def host() -> FakeHost:
    """Return a host with an idle NVMe disk with a partition, and an idle network port."""
    made = servers.bare()
    servers.add_function(made, DISK, "144d:a808:010802", driver="nvme")
    servers.add_disk(made, DISK, "nvme/nvme0/nvme0n1", number="259:0")
    servers.add_disk(made, DISK, "nvme/nvme0/nvme0n1/nvme0n1p1", number="259:1")
    servers.add_function(made, PORT, "8086:1572:020000", driver="i40e")
    servers.add_interface(made, PORT, "eno1")
    return made


def uses(host: FakeHost) -> dict[str, str]:
    reasons = Ownership(host, pci_scan.read(host), {}, {}).uses
    return {str(address): reason for address, reason in reasons.items()}


def refusal(
    host: FakeHost,
    address: str,
    *,
    managed: bool = False,
    whole: bool = True,
    claims: Mapping[str, str] | None = None,
) -> str:
    """Return why a function is refused; empty if it is not."""
    scan = Scan(host, claims=claims or {})
    function = scan.functions[PciAddress.parse(address)]
    return scan.refusal(function, managed=managed, whole=whole) or ""


def mapper(host: FakeHost, name: str, number: str, *slaves: str) -> None:
    path = f"/sys/devices/virtual/block/{name}"
    host.add_file(f"{path}/dev", f"{number}\n")
    host.add_dir(f"{path}/holders")
    host.add_link(f"/sys/class/block/{name}", f"../../devices/virtual/block/{name}")
    for slave in slaves:
        host.add_link(f"{path}/slaves/{slave}", f"../../{slave}")


def upper(host: FakeHost, name: str, lower: str) -> None:
    path = servers.add_interface(host, None, name)
    host.add_link(f"{path}/lower_{lower}", f"../{lower}")


def test_idle_devices_are_not_in_use(host: FakeHost) -> None:
    assert uses(host) == {}


def test_a_mounted_partition_is_in_use(host: FakeHost) -> None:
    servers.add_mount(host, "259:1", "/srv/images")
    assert uses(host) == {DISK: "its disk nvme0n1p1 is mounted at /srv/images"}


def test_a_mount_in_the_namespace_of_process_one_is_in_use(host: FakeHost) -> None:
    """In a container, the host's mounts are those of process 1."""
    host.add_file("/proc/1/mountinfo", "27 1 259:0 / /var rw - xfs /dev/nvme0n1 rw\n")
    assert uses(host) == {DISK: "its disk nvme0n1 is mounted at /var"}


def test_a_disk_below_a_mounted_logical_volume_is_in_use(host: FakeHost) -> None:
    mapper(host, "md0", "9:0", "nvme0n1p1")
    mapper(host, "dm-0", "253:0", "md0")
    servers.add_mount(host, "253:0", "/home")
    assert uses(host) == {DISK: "its disk nvme0n1p1 is mounted at /home"}


def test_a_disk_with_a_holder_is_in_use(host: FakeHost) -> None:
    host.add_link(f"{servers.place(DISK)}/nvme/nvme0/nvme0n1/holders/dm-3", "x/dm-3")
    assert uses(host) == {DISK: "its disk nvme0n1 is held by dm-3"}


def test_swap_space_is_in_use(host: FakeHost) -> None:
    servers.append(host, "/proc/swaps", "/dev/nvme0n1p1 partition\t8388604\t0\t-2\n")
    assert uses(host) == {DISK: "its disk nvme0n1p1 holds swap space"}


def test_every_disk_of_a_btrfs_is_in_use(host: FakeHost) -> None:
    """The list of mounts shows only the first disk of such a file system."""
    host.add_link("/sys/fs/btrfs/6f1b7c2e/devices/nvme0n1", "x/nvme0n1")
    assert uses(host) == {DISK: "its disk nvme0n1 is part of a mounted btrfs file system"}


def test_a_multipath_disk_makes_its_controllers_in_use() -> None:
    """The path of such a disk in sysfs is virtual and contains no PCI function."""
    host = servers.bare()
    path = servers.add_function(host, DISK, "144d:a808:010802", driver="nvme")
    host.add_dir(f"{path}/nvme/nvme0")
    subsystem = "/sys/devices/virtual/nvme-subsystem/nvme-subsys0"
    host.add_link(f"{subsystem}/nvme0", f"{path}/nvme/nvme0")
    host.add_file(f"{subsystem}/nvme0n1/dev", "259:0\n")
    host.add_link("/sys/class/block/nvme0n1", f"{subsystem}/nvme0n1")
    servers.add_mount(host, "259:0", "/")
    assert uses(host) == {DISK: "its disk nvme0n1 is mounted at /"}


def test_a_disk_that_cannot_be_read_is_in_use(host: FakeHost) -> None:
    host.faults[f"{servers.place(DISK)}/nvme/nvme0/nvme0n1/holders"] = errno.EIO
    assert uses(host) == {DISK: "its disk nvme0n1 cannot be read"}


def test_all_functions_on_the_path_to_a_disk_are_in_use() -> None:
    """A guest that gets a controller with a separate domain (Intel VMD) gets its disks, too."""
    host = servers.bare()
    servers.add_function(host, "0000:5d:05.5", "8086:201d:010400", driver="vmd")
    path = f"{servers.place('0000:5d:05.5')}/pci10000:e1/10000:e1:00.0"
    host.add_file(f"{path}/nvme/nvme0/nvme0n1/dev", "259:0\n")
    host.add_link("/sys/class/block/nvme0n1", f"{path}/nvme/nvme0/nvme0n1")
    servers.add_mount(host, "259:0", "/")
    assert set(uses(host)) == {"0000:5d:05.5", "10000:e1:00.0"}


def test_an_interface_with_the_default_route_is_in_use(host: FakeHost) -> None:
    servers.add_default_route(host, "eno1")
    assert uses(host) == {PORT: "its interface eno1 carries the default route"}


@pytest.mark.parametrize(
    ("traffic", "clause"),
    [
        (Traffic.ADDRESS, "has an address"),
        (Traffic.ROUTE, "carries a route"),
        (Traffic.XDP, "has a program or a socket of XDP"),
        (Traffic.PACKET_SOCKET, "has a packet socket, as of a DHCP client or of lldpd"),
    ],
)
def test_an_interface_with_traffic_is_in_use(host: FakeHost, traffic: Traffic, clause: str) -> None:
    servers.add_use(host, "eno1", traffic)
    assert uses(host)[PORT].startswith(f"its interface eno1 {clause}")
    # The most telling use is told, whatever the order.
    servers.add_default_route(host, "eno1")
    assert uses(host) == {PORT: "its interface eno1 carries the default route"}


def test_an_interface_below_another_is_in_use(host: FakeHost) -> None:
    """A VLAN in the bridge of Neutron and the macvtap of a guest have no address on the host."""
    path = f"{servers.place(PORT)}/net/eno1"
    for name in ("eno1.100", "macvtap0"):
        upper(host, name, "eno1")
        host.add_link(f"{path}/upper_{name}", f"../../../../virtual/net/{name}")
    assert uses(host) == {PORT: "its interface eno1 is below eno1.100, macvtap0"}


def test_a_port_that_is_in_use_does_not_make_its_virtual_functions_busy(host: FakeHost) -> None:
    virtual = "0000:18:02.0"
    servers.add_vfs(host, PORT, (virtual,), "8086:154c:020000")
    upper(host, "eno1.100", "eno1")
    host.add_link(f"{servers.place(PORT)}/net/eno1/upper_eno1.100", "../x/eno1.100")
    servers.add_default_route(host, "eno1.100")
    assert uses(host) == {PORT: "its interface eno1 carries the default route"}
    assert refusal(host, virtual) == ""


def test_an_interface_below_a_vlan_with_the_default_route_is_in_use(host: FakeHost) -> None:
    upper(host, "eno1.100", "eno1")
    servers.add_default_route(host, "eno1.100")
    assert uses(host) == {PORT: "its interface eno1 carries the default route"}


def test_a_port_of_a_bridge_is_in_use(host: FakeHost) -> None:
    host.add_link(f"{servers.place(PORT)}/net/eno1/master", "../../virtual/net/ovs-system")
    host.add_file("/sys/class/net/bonding_masters", "bond0\n")
    assert uses(host) == {PORT: "its interface eno1 is a port of ovs-system"}


def test_an_interface_that_cannot_be_read_is_in_use(host: FakeHost) -> None:
    for path in ("eno1", "eno1/master"):
        host.faults[f"{servers.place(PORT)}/net/{path}"] = errno.EIO
        # The link tells whose interface it is: other cards are not concerned.
        assert uses(host) == {PORT: "its interface eno1 cannot be read"}
        host.faults.clear()


def test_interfaces_whose_place_is_not_known_are_in_doubt(host: FakeHost) -> None:
    host.faults["/sys/class/net/eno1"] = errno.EIO
    assert "Input/output error" in refusal(host, PORT)


def test_invalid_lines_in_the_lists_are_ignored(host: FakeHost) -> None:
    for path in ("/proc/swaps", "/proc/self/mountinfo"):
        servers.append(host, path, "\nx\n☃ ☃ ☃ ☃ ☃ ☃ ☃ ☃ ☃ eno1\n")
    servers.add_mount(host, "259:1", "/")
    assert uses(host) == {DISK: "its disk nvme0n1p1 is mounted at /"}


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("/proc/self/mountinfo", "27 1 259:1 / /srv"),
    ],
)
def test_a_line_counts_if_it_has_all_fields_that_are_read(
    host: FakeHost, path: str, line: str
) -> None:
    fields = line.split()
    for end in range(len(fields)):
        servers.append(host, path, " ".join(fields[:end]) + "\n")
    assert uses(host) == {}
    servers.append(host, path, f"{line}\n")
    assert len(uses(host)) == 1


@pytest.mark.parametrize("path", ["/proc/self/mountinfo", "/proc/swaps"])
def test_a_missing_list_of_uses_is_not_an_empty_one_for_disks(host: FakeHost, path: str) -> None:
    assert refusal(host, DISK) == ""
    host.remove(path)
    assert "it is not known what the host uses" in refusal(host, DISK)
    assert path in refusal(host, DISK)
    assert refusal(host, PORT) == ""


def test_unknown_traffic_is_a_doubt_for_ports(host: FakeHost) -> None:
    assert refusal(host, PORT) == ""
    for content in (None, "eno1 something\n", "eno1\n"):
        host.remove(NETWORK)
        if content is not None:
            host.add_file(NETWORK, content)
        assert "it is not known what the host uses" in refusal(host, PORT)
        assert refusal(host, DISK) == ""


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/sys/fs/ext4/nvme0n1p1/errors_count", None),
        ("/sys/fs/xfs/nvme0n1/stats", None),
        ("/sys/fs/bcachefs/6f1b/dev-0/block", "../../nvme0n1"),
    ],
)
def test_a_file_system_of_another_mount_namespace_is_in_use(
    host: FakeHost, path: str, target: str | None
) -> None:
    if target is None:
        host.add_file(path, "0")
    else:
        host.add_link(path, target)
    assert "is part of a mounted" in refusal(host, DISK)


def test_a_disk_that_something_has_claimed_or_opened_is_in_use(host: FakeHost) -> None:
    host.claimed.add("/dev/nvme0n1")
    assert "nvme0n1 is claimed exclusively" in refusal(host, DISK)
    host.claimed.clear()
    host.add_file("/proc/77/comm", "qemu")
    host.add_link("/proc/77/fd/9", "/dev/nvme0n1")
    assert refusal(host, DISK) == "its disk nvme0n1 is open in qemu (process 77)"


def test_a_disk_that_cannot_be_tried_is_in_doubt(host: FakeHost) -> None:
    host.faults["/dev/nvme0n1"] = errno.EACCES
    assert "may be in use" in refusal(host, DISK)
    host.faults.clear()
    host.add_link("/proc/self/ns/pid", "pid:[4026532001]")
    assert "own container" in refusal(host, DISK)


@pytest.mark.parametrize("claimed", [servers.QAT_PF, servers.QAT_VFS[1]])
def test_a_claim_covers_parents_and_children(claimed: str) -> None:
    """Nova names the provider of virtual functions after their physical function."""
    server, claims = servers.server(), {claimed: "Nova offers it"}
    assert refusal(server, servers.QAT_PF, claims=claims) == "Nova offers it"
    assert refusal(server, servers.QAT_VFS[1], claims=claims) == "Nova offers it"
    other = "Nova offers it" if claimed == servers.QAT_PF else ""
    assert refusal(server, servers.QAT_VFS[0], claims=claims) == other


def test_a_carved_card_is_not_whole() -> None:
    host = servers.server()
    card = servers.place(servers.GPU, servers.ROOT_PORT)
    assert refusal(host, servers.GPU) == ""
    host.add_link("/sys/bus/mdev/devices/8f5d", f"{card}/8f5d")
    host.add_link(f"{card}/8f5d/mdev_type", "../mdev_supported_types/nvidia-222")
    assert "1 mediated device(s), for example 8f5d" in refusal(host, servers.GPU)
    assert refusal(host, servers.GPU, whole=False) == ""
    host.remove("/sys/bus/mdev/devices/8f5d")
    host.add_file(f"/proc/driver/nvidia/gpus/{servers.GPU}/information", "Device Minor: \t 0\n")
    host.add_file("/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access", "")
    assert "MIG instances" in refusal(host, servers.GPU)
    host.remove("/proc/driver/nvidia")
    virtual = servers.place(servers.QAT_VFS[0])
    host.add_link(f"{virtual}/driver", "/sys/bus/pci/drivers/nvidia")
    host.add_file(f"{virtual}/nvidia/current_vgpu_type", "1428\n")
    assert "current_vgpu_type reads '1428'" in refusal(host, servers.QAT_VFS[0])
    host.add_file(f"{virtual}/nvidia/current_vgpu_type", "0\n")
    assert refusal(host, servers.QAT_VFS[0]) == ""


@pytest.mark.parametrize("path", ["/sys/bus/mdev/devices", "/proc/driver/nvidia/gpus"])
def test_a_list_of_parts_that_cannot_be_read_makes_no_card_whole(path: str) -> None:
    host = servers.server()
    host.add_dir(path)
    assert refusal(host, servers.GPU) == ""
    host.faults[path] = errno.EIO
    assert "it is not known which parts it has" in refusal(host, servers.GPU)
    assert refusal(host, servers.GPU, whole=False) == ""


def test_a_function_of_an_earlier_scan_has_an_answer() -> None:
    host = servers.server()
    function = Scan(host).functions[PciAddress.parse(servers.GPU)]
    host.remove(f"/sys/bus/pci/devices/{servers.GPU}")
    assert Scan(host).refusal(function, managed=False) is None


def test_a_host_without_iommu_offers_no_whole_function(host: FakeHost) -> None:
    for address in (DISK, PORT):
        host.remove(f"{servers.place(address)}/iommu_group")
    assert (refusal(host, DISK), refusal(host, PORT)) == (NO_IOMMU, NO_IOMMU)
    assert refusal(host, PORT, whole=False) == ""
    host.add_link(f"{servers.place(PORT)}/iommu_group", "/sys/kernel/iommu_groups/2")
    assert "in no IOMMU group" in refusal(host, DISK)
    assert refusal(host, PORT) == ""


def test_a_group_that_the_host_uses_is_not_viable(host: FakeHost) -> None:
    other = servers.add_function(host, "0000:18:00.1", "8086:1572:020000", driver="i40e")
    group = host.readlink(f"{servers.place(PORT)}/iommu_group")
    host.add_link(f"{other}/iommu_group", group)
    assert "has 0000:18:00.1, too: i40e drives it" in refusal(host, PORT)
    for driver in ("vfio-pci", "pci-stub"):
        host.add_link(f"{other}/driver", f"/sys/bus/pci/drivers/{driver}")
        assert refusal(host, PORT) == ""
    host.remove(f"{other}/driver")
    assert refusal(host, PORT) == ""


def test_a_port_whose_interface_is_not_visible_is_in_doubt(host: FakeHost) -> None:
    host.remove("/sys/class/net/eno1")
    assert "another network namespace" in refusal(host, PORT)
    host.add_link(f"{servers.place(PORT)}/driver", "/sys/bus/pci/drivers/vfio-pci")
    assert refusal(host, PORT) == ""


def test_a_function_that_its_former_driver_left_enabled_is_free() -> None:
    host = servers.server()
    host.add_file(f"{servers.place(servers.GPU_ON_VFIO)}/enable", "1\n")
    assert refusal(host, servers.GPU_ON_VFIO) == ""
    # The agent does not see all processes: then only a function that is not enabled is free.
    host.add_link("/proc/self/ns/pid", "pid:[4026532001]")
    assert "may hold it through VFIO" in refusal(host, servers.GPU_ON_VFIO)
    host.add_file(f"{servers.place(servers.GPU_ON_VFIO)}/enable", "0\n")
    assert refusal(host, servers.GPU_ON_VFIO) == ""
    host.remove(f"{servers.place(servers.GPU_ON_VFIO)}/enable")
    assert "may hold it through VFIO" in refusal(host, servers.GPU_ON_VFIO)


@pytest.mark.parametrize("name", ["enable", "numa_node"])
def test_files_that_no_decision_needs_may_be_unreadable(name: str) -> None:
    host = servers.server()
    host.faults[f"{servers.place(servers.FPGA)}/{name}"] = errno.EACCES
    assert refusal(host, servers.FPGA) == ""


@pytest.mark.parametrize(
    ("address", "what", "reason"),
    [
        ("10000:01:00.0", "144d:a808:010802", "domains above ffff"),
        ("0000:c1:00.0", "1af4:0d93:050210", "CXL memory"),
        ("0000:c1:00.0", "8086:2030:060400", "bridge"),
    ],
)
def test_kinds_that_no_guest_can_have_are_refused(address: str, what: str, reason: str) -> None:
    host = servers.bare()
    servers.add_function(host, address, what)
    assert reason in refusal(host, address)


@pytest.mark.parametrize("text", ["-1", "", "x", "70000", "99999999999999999999"])
def test_an_invalid_numa_node_is_none(text: str) -> None:
    host, card = servers.server(), servers.place(servers.GPU, servers.ROOT_PORT)
    assert Scan(host).numa_node(PciAddress.parse(servers.GPU)) == 0
    host.add_file(f"{card}/numa_node", text)
    assert Scan(host).numa_node(PciAddress.parse(servers.GPU)) is None


def test_virtual_functions_that_are_not_on_the_bus_are_in_doubt() -> None:
    host = servers.server()
    for address in servers.QAT_VFS:
        host.remove(f"/sys/bus/pci/devices/{address}")
    assert "sriov_numvfs reads '2'" in refusal(host, servers.QAT_PF)
    host.faults[f"{servers.place(servers.QAT_PF)}/sriov_numvfs"] = errno.EIO
    assert "it may have parts" in refusal(host, servers.QAT_PF)


def test_the_last_domain_that_libvirt_knows_is_offered() -> None:
    host = servers.bare()
    servers.add_function(host, "ffff:01:00.0", "10de:20b5:030200")
    assert refusal(host, "ffff:01:00.0") == ""


def test_a_controller_without_disks_is_in_doubt_without_the_lists_of_uses() -> None:
    host = servers.bare()
    servers.add_function(host, DISK, "144d:a808:010802", driver="nvme")
    servers.add_function(host, PORT, "8086:0b25:088000", driver="idxd")
    host.remove("/proc/swaps")
    assert "/proc/swaps" in refusal(host, DISK)
    assert refusal(host, PORT) == ""
    servers.add_disk(host, PORT, "block/pmem0", number="259:7")
    assert "/proc/swaps" in refusal(host, PORT)


def test_a_mediated_device_belongs_to_the_nearest_function() -> None:
    host = servers.bare()
    servers.add_function(host, "0000:5d:05.5", "8086:201d:010400", driver="vmd")
    card = f"{servers.place('0000:5d:05.5')}/pci10000:e1/10000:e1:00.0"
    host.add_link("/sys/bus/mdev/devices/8f5d", f"{card}/8f5d")
    host.add_dir(f"{card}/8f5d")
    assert refusal(host, "0000:5d:05.5") == ""


def test_a_function_whose_vfio_devices_cannot_be_listed_is_in_doubt() -> None:
    host = servers.server()
    path = f"{servers.place(servers.GPU_ON_VFIO)}/vfio-dev"
    host.add_dir(path)
    host.faults[path] = errno.EIO
    assert "a process may hold it through VFIO" in refusal(host, servers.GPU_ON_VFIO)


GPU, AUDIO, USB = "0000:3b:00.0", "0000:3b:00.1", "0000:3b:00.2"


@pytest.fixture
def gpu() -> FakeHost:
    """Return a host with an idle GPU with an audio function, and a USB controller with a disk."""
    made = servers.bare()
    for address, identity, driver in (
        (GPU, "10de:1eb8:030200", None),
        (AUDIO, "10de:10f8:040300", "vfio-pci"),
        (USB, "10de:1ad8:0c0330", "xhci_hcd"),
    ):
        servers.add_function(made, address, identity, driver=driver)
    servers.add_disk(made, USB, "usb1/1-1/block/sda", number="8:0")
    return made


def test_the_companions_of_a_gpu_are_not_offered_themselves(gpu: FakeHost) -> None:
    for address in (AUDIO, USB):
        assert refusal(gpu, address) == (
            f"it belongs to the GPU {GPU} and goes with it; select the GPU instead"
        )
        assert refusal(gpu, address, managed=True)


def test_an_idle_gpu_with_companions_is_offered(gpu: FakeHost) -> None:
    assert refusal(gpu, GPU) == ""


def test_a_gpu_is_refused_if_a_companion_is_in_use(gpu: FakeHost) -> None:
    servers.add_mount(gpu, "8:0", "/backup")
    reason = f"its USB function {USB} goes with it, but is not free: its disk sda is mounted"
    assert refusal(gpu, GPU).startswith(reason)
    # Parts of a GPU do not take its companions along.
    assert refusal(gpu, GPU, whole=False) == ""


def test_a_gpu_is_refused_if_nova_offers_a_companion(gpu: FakeHost) -> None:
    reason = refusal(gpu, GPU, claims={AUDIO: "Nova offers it"})
    assert reason == f"its audio function {AUDIO} goes with it, but is not free: Nova offers it"


def test_a_gpu_is_refused_if_a_guest_holds_a_companion(gpu: FakeHost) -> None:
    group = gpu.readlink(f"{servers.place(AUDIO)}/iommu_group").rpartition("/")[2]
    servers.open_vfio(gpu, group, 4711, "qemu-system-x86")
    assert f"its audio function {AUDIO} goes with it" in refusal(gpu, GPU)
    # The guest has the GPU itself.
    assert refusal(gpu, GPU, managed=True) == ""


def test_audio_without_a_gpu_is_no_companion() -> None:
    made = servers.bare()
    servers.add_function(made, "0000:00:1f.0", "8086:1b81:060100")
    servers.add_function(made, "0000:00:1f.3", "8086:1bc8:040300")
    servers.add_function(made, GPU, "10de:1eb8:030200")
    servers.add_function(made, AUDIO, "8086:1bc8:040300")
    assert refusal(made, "0000:00:1f.3") == ""
    assert refusal(made, AUDIO) == ""


def join(host: FakeHost, group: str, *addresses: str) -> None:
    """Put functions into one IOMMU group."""
    for address in addresses:
        host.remove(f"{servers.place(address)}/iommu_group")
        host.add_link(f"{servers.place(address)}/iommu_group", f"/sys/kernel/iommu_groups/{group}")


@pytest.mark.parametrize("driver", [None, "vfio-pci"])
def test_a_gpu_with_a_host_driver_does_not_keep_its_own_companion_busy(driver: str | None) -> None:
    """The usual card: one group, the GPU has the driver of the host, and audio has none."""
    made = servers.bare()
    servers.add_function(made, GPU, "10de:1eb8:030200", driver="nvidia")
    servers.add_function(made, AUDIO, "10de:10f8:040300", driver=driver)
    join(made, "40", GPU, AUDIO)
    assert refusal(made, GPU) == ""
    # Each of the others in the group of a companion counts.
    servers.add_function(made, "0000:3c:00.0", "144d:a808:010802", driver="nvme")
    join(made, "40", "0000:3c:00.0")
    assert "0000:3c:00.0" in refusal(made, GPU)


def test_an_audio_function_with_a_host_driver_in_the_group_is_to_be_bound_to_vfio() -> None:
    made = servers.bare()
    servers.add_function(made, GPU, "10de:1eb8:030200", driver="nvidia")
    servers.add_function(made, AUDIO, "10de:10f8:040300", driver="snd_hda_intel")
    join(made, "40", GPU, AUDIO)
    assert refusal(made, GPU) == (
        f"its IOMMU group 40 has {AUDIO}, too: snd_hda_intel drives it; bind that function to "
        "vfio-pci"
    )


@pytest.mark.parametrize("driver", ["vfio-pci", "mlx5_vfio_pci"])
def test_a_virtual_function_whose_parent_is_on_vfio_needs_a_token(driver: str) -> None:
    host = servers.server()
    virtual = servers.QAT_VFS[0]
    assert refusal(host, virtual) == ""
    host.add_link(f"{servers.place(servers.QAT_PF)}/driver", f"/sys/bus/pci/drivers/{driver}")
    assert refusal(host, virtual) == (
        f"{driver} has its physical function {servers.QAT_PF}, so the kernel asks for a token that "
        "libvirt does not pass; bind the physical function to its own driver"
    )
    # A guest gets no VFIO device of a part.
    assert refusal(host, virtual, whole=False) == ""


def test_a_group_with_memory_of_the_firmware_cannot_be_assigned(host: FakeHost) -> None:
    group = host.readlink(f"{servers.place(DISK)}/iommu_group")
    lines = "0x00000000fee00000 0x00000000feefffff msi\n0x000000007a000000 0x000000007affffff {}\n"
    host.add_file(f"{group}/reserved_regions", lines.format("direct-relaxable"))
    assert refusal(host, DISK) == ""
    host.add_file(f"{group}/reserved_regions", lines.format("direct"))
    assert "the firmware reserves memory for it" in refusal(host, DISK)
    assert f"{group}/reserved_regions has a region of type direct" in refusal(host, DISK)
    assert refusal(host, DISK, whole=False) == ""
    host.faults[f"{group}/reserved_regions"] = errno.EIO
    assert "it is not known whether it can be assigned" in refusal(host, DISK)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("1d0f:8250:070003", "a serial port, which may be the console"),
        ("8086:a1af:0c0330", "a USB controller, with which the host and its BMC are operated"),
        ("1a03:2000:030000", "a part of the BMC"),
        ("102b:0538:030000", "a part of the BMC"),
        ("103c:3306:088000", "a part of the BMC"),
    ],
)
def test_functions_of_the_platform_are_refused(what: str, reason: str) -> None:
    host = servers.bare()
    servers.add_function(host, "0000:c1:00.0", what)
    assert reason in refusal(host, "0000:c1:00.0")


def test_a_companion_of_a_gpu_is_no_function_of_the_platform(gpu: FakeHost) -> None:
    scan = Scan(gpu)
    usb = scan.functions[PciAddress.parse(USB)]
    together = frozenset({PciAddress.parse(GPU)})
    gpu.remove("/sys/class/block/sda")
    assert Scan(gpu).refusal(usb, managed=False, together=together, probe=False) is None


@pytest.mark.parametrize("driver", ["ib_mthca", "mlx4_core"])
def test_an_infiniband_card_of_another_class_is_a_network_card(driver: str) -> None:
    host = servers.bare()
    servers.add_function(host, PORT, "15b3:6278:0c0600", driver=driver)
    assert "the agent does not see its interface" in refusal(host, PORT)
    servers.add_interface(host, PORT, "ib0")
    assert refusal(host, PORT) == ""
    host.remove(NETWORK)
    assert "it is not known what the host uses" in refusal(host, PORT)


CONNECTX, MANAGED = "0000:05:00.0", "it manages the NVLink fabric of all GPUs of the host"


@pytest.fixture
def board() -> FakeHost:
    """Return a host with a GPU and a ConnectX-7 with a virtual function."""
    made = servers.bare()
    servers.add_function(made, GPU, "10de:2901:030200", driver="vfio-pci")
    servers.add_function(made, CONNECTX, "15b3:1021:020700", driver="mlx5_core")
    servers.add_interface(made, CONNECTX, "ib0")
    return made


def test_a_card_that_manages_the_nvlink_fabric_is_never_offered(board: FakeHost) -> None:
    assert refusal(board, CONNECTX) == ""
    board.add_file(f"{servers.place(CONNECTX)}/vpd", "\0MODL=CX7:SMDL=OTHER")
    assert refusal(board, CONNECTX) == ""
    board.add_file(f"{servers.place(CONNECTX)}/vpd", "\0MODL=CX7:SMDL=SW_MNG:")
    for managed in (True, False):
        assert refusal(board, CONNECTX, managed=managed).startswith(MANAGED)
    servers.add_vfs(board, CONNECTX, ("0000:05:00.1",), "15b3:101e:020700")
    assert refusal(board, "0000:05:00.1").startswith(MANAGED)


def test_the_vpd_that_the_agent_may_not_read_is_read_with_privileges(board: FakeHost) -> None:
    path = f"{servers.place(CONNECTX)}/vpd"
    board.add_file(path, "SMDL=SW_MNG")
    assert bytes.fromhex(board.privileged.run(ReadVpd(PciAddress.parse(CONNECTX)))) == (
        b"SMDL=SW_MNG"
    )

    class Unprivileged(FakeHost):
        def read_start(self, name: str, length: int) -> tuple[bytes, int]:
            if name.endswith("/vpd") and self.denied:
                self.denied = False
                raise exception.HostError(action="x", reason="Permission denied", errno=13)
            return super().read_start(name, length)

        denied = True

    host = Unprivileged()
    for place, entry in board.tree().items():
        if isinstance(entry, str):
            host.add_link(place, entry)
        elif entry is not None:
            host.add_file(place, entry)
    assert refusal(host, CONNECTX).startswith(MANAGED)


def test_a_vpd_that_cannot_be_read_is_a_doubt_where_no_nvswitch_is_on_the_bus(
    board: FakeHost,
) -> None:
    """Boards before HGX B200 have NVSwitches on the bus, and other servers no such GPUs."""
    path = f"{servers.place(CONNECTX)}/vpd"
    board.add_file(path, "")
    board.faults[path] = errno.EACCES
    assert "it may manage the NVLink fabric of the host" in refusal(board, CONNECTX)
    servers.add_function(board, "0000:07:00.0", "10de:22a3:068000", driver="nvidia-nvswitch")
    assert refusal(board, CONNECTX) == ""
    board.remove("/sys/bus/pci/devices/0000:07:00.0")
    board.remove(f"/sys/bus/pci/devices/{GPU}")
    assert refusal(board, CONNECTX) == ""
