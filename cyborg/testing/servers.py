# SPDX-License-Identifier: Apache-2.0
"""Simulated servers: sysfs and /proc trees as real machines show them, written by code."""

from cyborg.drivers.files import INITIAL_PROCESSES
from cyborg.drivers.pci_function import parse_name
from cyborg.drivers.rtnetlink import NETWORK, Traffic
from cyborg.model.pci import PciAddress
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.ip_tool import IpTool
from cyborg.testing.kernel.nvme_tool import NvmeTool

#: Functions of ``server()``, by what is special about them.
HOST_BRIDGE = "0000:00:00.0"
ROOT_PORT = "0000:3a:00.0"
GPU = "0000:3b:00.0"
GPU_ON_VFIO = "0000:86:00.0"
QAT_PF = "0000:3d:00.0"
QAT_VFS = ("0000:3d:01.0", "0000:3d:01.1")
NVME_MOUNTED = "0000:5e:00.0"
NVME_FREE = "0000:5f:00.0"
NIC_DEFAULT_ROUTE = "0000:18:00.0"
NIC_IDLE = "0000:18:00.1"
FPGA = "0000:af:00.0"

_SWAP_HEADER = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
_PCI_IDS = """\
# A comment
10de  NVIDIA Corporation
\t20b5  GA100 [A100 PCIe 80GB]
\t\t10de 1533  A100 80GB
\t20f1  GA100 [A100 PCIe 40GB]
144d  Samsung Electronics Co Ltd
\ta808  NVMe SSD Controller SM981/PM981/PM983
8086  Intel Corporation
\t1572  Ethernet Controller X710 for 10GbE SFP+
\t37c8  C62x Chipset QuickAssist Technology
C 03  Display controller
\t00  VGA compatible controller
"""


def bare() -> FakeHost:
    """Return a machine without a PCI bus, such as some virtual machines and s390."""
    host = FakeHost()
    host.add_file(NETWORK, "")
    host.add_file("/proc/swaps", _SWAP_HEADER)
    host.add_file("/proc/self/mountinfo", "")
    host.add_link("/proc/self/ns/pid", INITIAL_PROCESSES)
    host.add_file("/usr/sbin/ip", "")
    host.programs["ip"] = host.programs["/usr/sbin/ip"] = IpTool()
    return host


def server() -> FakeHost:
    """Return a two-socket server: two GPUs, QuickAssist, an FPGA, two disks, two ports."""
    host = bare()
    host.add_file("/usr/share/misc/pci.ids", _PCI_IDS)
    add_function(host, HOST_BRIDGE, "8086:2020:060000")
    add_function(host, ROOT_PORT, "8086:2030:060400", driver="pcieport")
    add_function(host, GPU, "10de:20b5:030200", behind=ROOT_PORT, driver="nvidia", node=0)
    add_function(host, GPU_ON_VFIO, "10de:20f1:030200", driver="vfio-pci", node=1)
    add_function(host, QAT_PF, "8086:37c8:0b4000", driver="c6xx", node=0)
    add_vfs(host, QAT_PF, QAT_VFS, "8086:37c9:0b4000")
    add_function(host, NVME_MOUNTED, "144d:a808:010802", driver="nvme", node=0)
    add_disk(host, NVME_MOUNTED, "nvme/nvme0/nvme0n1", number="259:0")
    add_disk(host, NVME_MOUNTED, "nvme/nvme0/nvme0n1/nvme0n1p1", number="259:1")
    add_mount(host, "259:1", "/")
    add_function(host, NVME_FREE, "144d:a808:010802", driver="nvme", node=0)
    path = add_disk(host, NVME_FREE, "nvme/nvme1/nvme1n1", number="259:2")
    host.add_file(f"{path}/nsid", "1\n")
    host.add_file(f"{path}/size", "2048\n")
    host.add_file(f"{place(NVME_FREE)}/nvme/nvme1/dev", "239:1\n")
    host.add_file("/dev/nvme1", "")
    host.programs["nvme"] = NvmeTool()
    add_function(host, NIC_DEFAULT_ROUTE, "8086:1572:020000", driver="i40e", node=0)
    add_interface(host, NIC_DEFAULT_ROUTE, "eno1")
    add_default_route(host, "eno1")
    add_function(host, NIC_IDLE, "8086:1572:020000", driver="i40e", node=0)
    add_interface(host, NIC_IDLE, "eno2")
    add_function(host, FPGA, "10ee:5001:120000", node=1)
    return host


def place(address: str, behind: str | None = None) -> str:
    """Return the directory of a function in ``/sys/devices``."""
    where = _parsed(behind or address)
    bridge = f"/{behind}" if behind else ""
    return f"/sys/devices/pci{where.domain:04x}:{where.bus:02x}{bridge}/{address}"


def add_function(
    host: FakeHost,
    address: str,
    what: str,
    *,
    behind: str | None = None,
    driver: str | None = None,
    node: int = -1,
    enable: int | None = None,
) -> str:
    """Plug a function in; ``what`` is vendor:device:class in hex digits. Gives its directory.

    By default ``enable`` reads as it does for an idle card: 1 with a driver of its own, which
    enables the function when it is bound; 0 without a driver, and under VFIO, which enables the
    function only while its node is open.
    """
    path = place(address, behind)
    if enable is None:
        enable = 1 if driver and "vfio" not in driver else 0
    vendor, product, class_code = what.split(":")
    for name, text in {
        "vendor": f"0x{vendor}",
        "device": f"0x{product}",
        "class": f"0x{class_code}",
        "numa_node": str(node),
        "enable": str(enable),
    }.items():
        host.add_file(f"{path}/{name}", f"{text}\n")
    host.add_link(f"/sys/bus/pci/devices/{address}", f"../../..{path.removeprefix('/sys')}")
    if driver:
        host.add_link(f"{path}/driver", f"/sys/bus/pci/drivers/{driver}")
    # One group for each: the order of plugging in makes the numbers.
    group = len(host.list_dir("/sys/bus/pci/devices"))
    host.add_link(f"{path}/iommu_group", f"/sys/kernel/iommu_groups/{group}")
    return path


def add_vfs(host: FakeHost, parent: str, addresses: tuple[str, ...], what: str) -> None:
    """Split a physical function."""
    host.add_file(f"{place(parent)}/sriov_numvfs", f"{len(addresses)}\n")
    host.add_file(f"{place(parent)}/sriov_totalvfs", "16\n")
    for number, address in enumerate(addresses):
        path = add_function(host, address, what)
        host.add_link(f"{path}/physfn", f"../{parent}")
        host.add_link(f"{place(parent)}/virtfn{number}", f"../{address}")


def add_disk(host: FakeHost, address: str, below: str, *, number: str) -> str:
    """Put a block device below a function; gives its directory."""
    path = f"{place(address)}/{below}"
    name = path.rpartition("/")[2]
    host.add_file(f"{path}/dev", f"{number}\n")
    host.add_dir(f"{path}/holders")
    host.add_dir(f"{path}/slaves")
    host.add_link(f"/sys/class/block/{name}", f"../..{path.removeprefix('/sys')}")
    host.add_file(f"/dev/{name}", "")
    return path


def add_mount(host: FakeHost, number: str, point: str) -> None:
    """Mount the block device of this number."""
    line = f"27 1 {number} / {point} rw,relatime shared:1 - ext4 /dev/whatever rw\n"
    append(host, "/proc/self/mountinfo", line)


def add_interface(host: FakeHost, address: str | None, name: str) -> str:
    """Put a network interface below a function, or a virtual one; gives its directory."""
    above = place(address) if address else "/sys/devices/virtual"
    path = f"{above}/net/{name}"
    host.add_file(f"{path}/operstate", "up\n")
    host.add_link(f"/sys/class/net/{name}", f"../..{path.removeprefix('/sys')}")
    if address:
        host.add_link(f"{path}/device", f"../../../{address}")
        host.add_file(f"{path}/ifindex", f"{len(host.list_dir('/sys/class/net')) + 1}\n")
    return path


def add_default_route(host: FakeHost, interface: str) -> None:
    """Send all IPv4 traffic over this interface."""
    add_use(host, interface, Traffic.DEFAULT_ROUTE)


def add_use(host: FakeHost, interface: str, traffic: Traffic) -> None:
    """Let an interface carry traffic."""
    append(host, NETWORK, f"{interface} {traffic}\n")


def open_vfio(host: FakeHost, node: str, process: int, command: str) -> None:
    """Let a process hold a node below ``/dev/vfio``."""
    host.add_file(f"/proc/{process}/comm", f"{command}\n")
    host.add_link(f"/proc/{process}/fd/17", f"/dev/vfio/{node}")


def append(host: FakeHost, path: str, line: str) -> None:
    """Add a line to a file that is there."""
    host.add_file(path, (host.content(path) or b"") + line.encode())


def _parsed(text: str) -> PciAddress:
    address = parse_name(text)
    assert address is not None, text
    return address
