# SPDX-License-Identifier: Apache-2.0
"""The machine of the kernel tests as a simulated host: its drivers, and its tree by code.

It has an IOMMU with a group that the host shares, an NVMe controller with four VFs, two plain
ones, a switch with two functions that make mediated devices, and a network card.
"""

from cyborg.testing import servers
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.host_driver import HostDriver, MdevProfile, MdevType, VgpuProfile
from cyborg.testing.kernel.nvme_tool import ONLINE, NvmeTool
from cyborg.testing.kernel.simulated import SimulatedKernel

_MDEV_TEXT = "num_heads=1, framebuffer={}M, max_instance={}"
#: The drivers of the guest. The driver nvme refuses a VF whose controller is not online.
DRIVERS = (
    HostDriver(
        "nvme",
        ids=frozenset({"class:010802"}),
        vfs=False,
        vf_mark=ONLINE,
        sriov=True,
        children=("msi_irqs", "nvme", "pools"),
    ),
    HostDriver(
        "simaccel",
        ids=frozenset({"1234:11e8"}),
        any_function=True,
        enables=False,
        mdev=MdevProfile(
            4,
            {
                "1": MdevType(1, "SIM T4-1Q", _MDEV_TEXT.format(1024, 4)),
                "4": MdevType(4, "SIM T4-4Q", _MDEV_TEXT.format(4096, 1)),
            },
        ),
        vgpu=VgpuProfile(
            4, {1430: ("SIM A1-4C", 4), 1429: ("SIM A1-2C", 2), 1428: ("SIM A1-1C", 1)}
        ),
    ),
    HostDriver("vfio-pci", any_function=True, enables=False, vfio=True),
    HostDriver("e1000e", ids=frozenset({"8086:10d3"}), children=("msi_irqs", "net", "ptp")),
    HostDriver("ahci", ids=frozenset({"class:010601"}), children=("ata*", "msi_irqs")),
    HostDriver(
        "i801_smbus", ids=frozenset({"8086:2930"}), leaves_enabled=True, children=("i2c-*",)
    ),
    HostDriver("pcieport", ids=frozenset({"class:060400"}), shares_dma=True),
)
_QEMU = {"subsystem_vendor": "0x1af4", "subsystem_device": "0x1100"}
_NVME = {**_QEMU, "revision": "0x02", "reset_method": "flr bus"}
_LINK = {
    f"{limit}_link_{name}": text
    for limit in ("current", "max")
    for name, text in (("speed", "2.5 GT/s PCIe"), ("width", "1"))
}
_EDU = {**_QEMU, "revision": "0x10", "reset_method": "bus", "resource0": ""}
_PORT = "1b36:000c:060400"
_SWITCH = "104c:8233:060400"
#: Directory below /sys/devices, ids and class, NUMA node, further files.
_FUNCTIONS: tuple[tuple[str, str, int, dict[str, str]], ...] = (
    ("pci0000:00/0000:00:00.0", "8086:29c0:060000", -1, _QEMU),
    ("pci0000:00/0000:00:03.0", _PORT, -1, {}),
    ("pci0000:00/0000:00:04.0", _PORT, -1, {}),
    ("pci0000:00/0000:00:05.0", _PORT, -1, {}),
    ("pci0000:00/0000:00:1f.0", "8086:2918:060100", -1, _QEMU),
    ("pci0000:00/0000:00:1f.2", "8086:2922:010601", -1, _QEMU),
    ("pci0000:00/0000:00:1f.3", "8086:2930:0c0500", -1, _QEMU),
    (
        "pci0000:00/0000:00:03.0/0000:01:00.0",
        "1b36:0010:010802",
        -1,
        {**_NVME, **_LINK, "sriov_totalvfs": "4", "ari_enabled": "1", "resource0": ""},
    ),
    ("pci0000:00/0000:00:04.0/0000:02:00.0", "1b36:0010:010802", -1, _NVME),
    (
        "pci0000:00/0000:00:05.0/0000:03:00.0",
        "8086:10d3:020000",
        -1,
        {"subsystem_vendor": "0x8086", "reset_method": "pm bus"},
    ),
    ("pci0000:40/0000:40:00.0", _PORT, 1, {}),
    ("pci0000:40/0000:40:01.0", _PORT, 1, {}),
    ("pci0000:40/0000:40:00.0/0000:41:00.0", "1b36:0010:010802", 1, _NVME),
    ("pci0000:40/0000:40:01.0/0000:42:00.0", "104c:8232:060400", 1, {"reset_method": "flr bus"}),
    ("pci0000:40/0000:40:01.0/0000:42:00.0/0000:43:00.0", _SWITCH, 1, {}),
    ("pci0000:40/0000:40:01.0/0000:42:00.0/0000:43:01.0", _SWITCH, 1, {}),
    ("pci0000:40/0000:40:01.0/0000:42:00.0/0000:43:00.0/0000:44:00.0", "1234:11e8:00ff00", 1, _EDU),
    ("pci0000:40/0000:40:01.0/0000:42:00.0/0000:43:01.0/0000:45:00.0", "1234:11e8:00ff00", 1, _EDU),
)
#: Addresses that share an IOMMU group with one before them.
_SHARED = {
    "0000:00:1f.2": "0000:00:1f.0",
    "0000:00:1f.3": "0000:00:1f.0",
    "0000:44:00.0": "0000:43:00.0",
    "0000:45:00.0": "0000:43:01.0",
}
#: NVMe controllers and their serial numbers.
_DISKS = {"0000:01:00.0": "SRIOV0001", "0000:02:00.0": "PLAIN0001", "0000:41:00.0": "IDLE00001"}


def guest(*, iommu: bool = True) -> FakeHost:
    """Return the machine after its boot; its ``kernel`` is a SimulatedKernel."""
    host = servers.bare()
    groups: dict[str, str] = {}
    for place, what, node, files in _FUNCTIONS:
        path = f"/sys/devices/{place}"
        address = path.rpartition("/")[2]
        vendor, device, code = what.split(":")
        ids = {"vendor": f"0x{vendor}", "device": f"0x{device}", "class": f"0x{code}"}
        for name, text in {**ids, "numa_node": str(node), **files}.items():
            host.add_file(f"{path}/{name}", f"{text}\n")
        host.add_link(f"/sys/bus/pci/devices/{address}", f"../../../devices/{place}")
        if iommu:
            groups[address] = groups.get(_SHARED.get(address, ""), str(len(groups)))
            group = f"/sys/kernel/iommu_groups/{groups[address]}"
            host.add_link(f"{path}/iommu_group", group)
            host.add_link(f"{path}/iommu", "/sys/devices/virtual/iommu/dmar0")
    for driver in DRIVERS:
        module = f"/sys/module/{driver.name.replace('-', '_')}"
        host.add_link(f"/sys/bus/pci/drivers/{driver.name}/module", module)
    host.programs["nvme"] = NvmeTool(sanitizes=False)
    for number, (address, serial) in enumerate(_DISKS.items()):
        path = host.realpath(f"/sys/bus/pci/devices/{address}")
        name = f"nvme{number}"
        host.add_file(f"{path}/nvme/{name}/serial", f"{serial}\n")
        host.add_file(f"{path}/nvme/{name}/dev", f"239:{number}\n")
        host.add_file(f"{path}/nvme/{name}/{name}n1/dev", f"259:{number}\n")
        host.add_file(f"{path}/nvme/{name}/{name}n1/nsid", "1\n")
        host.add_file(f"{path}/nvme/{name}/{name}n1/size", "2048\n")
        host.add_link(f"/sys/class/nvme/{name}", f"{path}/nvme/{name}")
        host.add_link(f"/sys/class/block/{name}n1", f"{path}/nvme/{name}/{name}n1")
        for device in (name, f"{name}n1"):
            host.add_file(f"/dev/{device}", "")
    host.add_file("/sys/devices/pci0000:40/pci_bus/0000:40/rescan", "")
    SimulatedKernel(host, DRIVERS, iommu=iommu).boot()
    return host
