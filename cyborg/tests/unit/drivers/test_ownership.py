# SPDX-License-Identifier: Apache-2.0
"""The ownership check on simulated servers, one kind of use per test."""

import errno

import pytest

from cyborg.drivers import ownership, pci_scan
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
    reasons = ownership.host_uses(pci_scan.read(host))
    return {str(address): reason for address, reason in reasons.items()}


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


def test_the_default_route_is_named_before_another_route(host: FakeHost) -> None:
    servers.append(host, "/proc/net/route", "eno1\t000200C0\t0\t1\t0\t0\t0\t00FFFFFF\n")
    servers.add_default_route(host, "eno1")
    assert uses(host) == {PORT: "its interface eno1 carries the default route"}


def test_an_interface_with_the_default_route_of_ipv6_is_in_use(host: FakeHost) -> None:
    zero = "0" * 32
    gateway = f"fe80{'0' * 27}1"
    line = f"{zero} 00 {zero} 00 {gateway} 00000400 00000001 00000000 00000003 eno1\n"
    servers.append(host, "/proc/net/ipv6_route", line)
    assert uses(host) == {PORT: "its interface eno1 carries the default route"}


def test_an_interface_with_an_ipv4_network_is_in_use(host: FakeHost) -> None:
    line = "eno1\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    servers.append(host, "/proc/net/route", line)
    assert uses(host) == {PORT: "its interface eno1 carries an IPv4 network"}


def test_an_interface_with_an_ipv6_address_is_in_use(host: FakeHost) -> None:
    servers.append(host, "/proc/net/if_inet6", f"fd{'0' * 29}2 05 40 00 80     eno1\n")
    assert uses(host) == {PORT: "its interface eno1 has an IPv6 address"}


def test_link_local_addresses_are_not_a_use(host: FakeHost) -> None:
    zero = "0" * 32
    servers.append(host, "/proc/net/if_inet6", f"fe80{'0' * 27}1 05 40 20 80     eno1\n")
    for prefix in (f"fe80{'0' * 28} 40", f"ff{'0' * 30} 08"):
        line = f"{prefix} {zero} 00 {zero} 00000100 00000001 00000000 00000001 eno1\n"
        servers.append(host, "/proc/net/ipv6_route", line)
    assert uses(host) == {}


def test_an_interface_below_a_vlan_with_the_default_route_is_in_use(host: FakeHost) -> None:
    upper(host, "eno1.100", "eno1")
    servers.add_default_route(host, "eno1.100")
    assert uses(host) == {PORT: "its interface eno1 carries the default route"}


def test_a_port_of_a_bridge_is_in_use(host: FakeHost) -> None:
    host.add_link(f"{servers.place(PORT)}/net/eno1/master", "../../virtual/net/ovs-system")
    host.add_file("/sys/class/net/bonding_masters", "bond0\n")
    assert uses(host) == {PORT: "its interface eno1 is a port of ovs-system"}


def test_an_interface_that_cannot_be_read_is_in_use(host: FakeHost) -> None:
    host.faults[f"{servers.place(PORT)}/net/eno1"] = errno.EIO
    with pytest.raises(Exception, match="Input/output error"):
        uses(host)
    host.faults.clear()
    host.faults[f"{servers.place(PORT)}/net/eno1/master"] = errno.EIO
    assert uses(host) == {PORT: "its interface eno1 cannot be read"}


def test_invalid_lines_in_the_lists_are_ignored(host: FakeHost) -> None:
    for path in (
        "/proc/net/route",
        "/proc/net/ipv6_route",
        "/proc/net/if_inet6",
        "/proc/swaps",
        "/proc/self/mountinfo",
    ):
        servers.append(host, path, "\nx\n☃ ☃ ☃ ☃ ☃ ☃ ☃ ☃ ☃ eno1\n")
    servers.add_mount(host, "259:1", "/")
    assert uses(host) == {DISK: "its disk nvme0n1p1 is mounted at /"}


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("/proc/net/route", "eno1 000200C0 0 1 0 0 0 00FFFFFF"),
        ("/proc/net/ipv6_route", f"fd{'0' * 30} 40 0 0 0 0 0 0 0 eno1"),
        ("/proc/net/if_inet6", f"fd{'0' * 30} 05 40 00 80 eno1"),
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
