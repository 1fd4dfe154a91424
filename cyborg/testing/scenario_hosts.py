# SPDX-License-Identifier: Apache-2.0
"""Simulated hosts for every kind of accelerator, built from the files of ``hosts.d``.

A file describes a host as its vendor delivers it; see ``cyborg.testing.scenario_file`` for the
schema. The tree has the form of Linux (sysfs-bus-pci and the other ABI documents), the writes to it
have the effects of the simulated kernel, and the tools answer as recorded.
"""

import struct
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from cyborg.drivers.command import Completed
from cyborg.testing import scenario_file, servers
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.host_driver import (
    HostDriver,
    MdevProfile,
    MdevType,
    VgpuProfile,
)
from cyborg.testing.kernel.ip_tool import IpTool
from cyborg.testing.kernel.nvme_tool import NvmeTool
from cyborg.testing.kernel.simulated import SimulatedKernel
from cyborg.testing.kernel.sysfs import PCI
from cyborg.testing.scenario_file import Command, CyborgDriver, Function, Scenario

#: The files of this package.
SHIPPED: Final = Path(__file__).with_name("hosts.d")
#: What host drivers add to the directory of a function.
_CHILDREN = (
    *("accel", "ata*", "drm", "fpga_region", "habanalabs", "hwmon", "infiniband", "infiniband_mad"),
    *("infiniband_verbs", "msi_irqs", "net", "nvme", "ptp"),
)
#: The directories below /dev with the nodes of some classes.
_NODE_DIRECTORIES = {"accel": "accel/", "drm": "dri/"}
#: Host drivers that leave an IOMMU group viable.
_SHARING = frozenset({"pcieport", "pci-stub"})
_VENDORS = {
    "1000": "Broadcom / LSI",
    "1002": "Advanced Micro Devices, Inc. [AMD/ATI]",
    "1022": "Advanced Micro Devices, Inc. [AMD]",
    "10de": "NVIDIA Corporation",
    "10ee": "Xilinx Corporation",
    "1344": "Micron Technology Inc",
    "144d": "Samsung Electronics Co Ltd",
    "14e4": "Broadcom Inc. and subsidiaries",
    "15b3": "Mellanox Technologies",
    "19e5": "Huawei Technologies Co., Ltd.",
    "1a03": "ASPEED Technology, Inc.",
    "1b4b": "Marvell Technology Group Ltd.",
    "1bd4": "Inspur Electronic Information Industry Co., Ltd.",
    "1da3": "Habana Labs Ltd.",
    "1e0f": "KIOXIA Corporation",
    "8086": "Intel Corporation",
}
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
#: Codes of link speeds in the PCI Express capability.
_SPEEDS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
#: Counters of Advanced Error Reporting (Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats).
_CORRECTABLE = ("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr")
_UNCORRECTABLE = ("Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt")


def names(directory: Path = SHIPPED) -> list[str]:
    """Return the names of the scenarios in a directory."""
    return sorted(file.stem for file in directory.glob("*.yaml"))


def read(name: str, directory: Path = SHIPPED) -> Scenario:
    """Return the description of a scenario.

    Raises ValueError with one sentence if there is none of this name or its file is not valid.
    """
    if name not in (known := names(directory)):
        raise ValueError(f"there is no scenario host {name!r}; there are {', '.join(known)}")
    return scenario_file.read(directory / f"{name}.yaml")


def load(name: str, directory: Path = SHIPPED) -> FakeHost:
    """Return a new simulated host of a scenario; its ``kernel`` is a SimulatedKernel.

    Raises ValueError as ``read`` does.
    """
    return build(read(name, directory))


def build(scenario: Scenario) -> FakeHost:
    """Return a new simulated host from its description."""
    host = servers.bare()
    host.release = scenario.kernel
    _Builder(host, scenario).build()
    drivers = _host_drivers(scenario)
    kernel = SimulatedKernel(host, drivers, iommu=scenario.iommu)
    for function in scenario.functions:
        path = host.realpath(f"{PCI}/devices/{function.address}")
        if function.driver is not None:
            if "vfio" in function.driver:
                kernel.write(f"{path}/driver_override", function.driver)
            kernel.write(f"{PCI}/drivers/{function.driver}/bind", function.address)
        if function.sriov is not None and function.sriov.enabled:
            kernel.write(f"{path}/sriov_numvfs", str(function.sriov.enabled))
    for address, number in scenario.vgpus.items():
        path = host.realpath(f"{PCI}/devices/{address}")
        kernel.write(f"{path}/nvidia/current_vgpu_type", number)
    host.touches = 0
    return host


def together(scenario: Scenario, installed: Container[str] | None = None) -> list[CyborgDriver]:
    """Return the drivers to enable on one agent: they offer different functions.

    ``installed`` are the names of the drivers that exist, None for all.
    """
    return [
        driver
        for driver in scenario.drivers
        if driver.beside and (installed is None or driver.name in installed)
    ]


@dataclass(frozen=True)
class RecordedTool:
    """A program for ``FakeHost.programs`` that answers as recorded; copies of a host share it."""

    commands: tuple[Command, ...]

    def __deepcopy__(self, _: object) -> Self:
        return self

    def __call__(self, host: FakeHost, argv: tuple[str, ...]) -> Completed:
        """Return the first answer whose arguments fit; exit status 2 if there is none."""
        for command in self.commands:
            if len(command.argv) == len(argv) and all(
                expected in ("*", actual)
                for expected, actual in zip(command.argv[1:], argv[1:], strict=True)
            ):
                if command.output_option in argv:
                    file = argv[argv.index(command.output_option) + 1]
                    host.add_file(file, command.output)
                lines = command.between.join(line.line for line in command.lines)
                text = f"{command.stdout}{lines}{command.after}\n".lstrip("\n")
                return Completed(command.status, text, command.stderr)
        return Completed(2, "", f"no answer of {' '.join(argv)} was recorded\n")


class _Builder:
    """Writes the tree of a scenario before its kernel runs."""

    def __init__(self, host: FakeHost, scenario: Scenario) -> None:
        self._host = host
        self._scenario = scenario
        self._functions = {function.address: function for function in scenario.functions}
        #: Numbers of block devices by name, and their directories.
        self._numbers: dict[str, str] = {}
        self._disks: dict[str, str] = {}
        self._next_bar = 0x380000000000
        self._interfaces = 1

    def build(self) -> None:
        """Write everything."""
        self._add_nodes()
        groups: dict[str, int] = {}
        for number, function in enumerate(self._scenario.functions):
            self._add_function(function)
            if self._scenario.iommu:
                group = number
                if function.group is not None:
                    group = groups.setdefault(function.group, number)
                place = f"/sys/kernel/iommu_groups/{group}"
                self._link(f"{self._path(function)}/iommu_group", place)
        self._add_names()
        for disk in self._scenario.disks:
            self._add_disk(f"{self._path(self._functions[disk.function])}/{disk.at}", disk.name)
            self._add_partitions(disk.name, disk.partitions)
        for volume in self._scenario.volumes:
            self._add_disk("/sys/devices/virtual/block", volume.name)
            for member in volume.members:
                self._link(f"{self._disks[volume.name]}/slaves/{member}", self._disks[member])
                self._link(f"{self._disks[member]}/holders/{volume.name}", self._disks[volume.name])
        self._add_uses()
        for bond in self._scenario.bonds:
            path = servers.add_interface(self._host, None, bond.name)
            for port in bond.ports:
                real = self._host.realpath(f"/sys/class/net/{port}")
                self._link(f"{path}/lower_{port}", real)
                self._link(f"{real}/master", path)
        servers.add_default_route(self._host, self._scenario.default_route)
        for gpu in self._scenario.nvidia_gpus:
            self._file(
                f"/proc/driver/nvidia/gpus/{gpu.address}/information",
                f"Model: \t\t {gpu.model}\nGPU UUID: \t {gpu.uuid}\nBus Type: \t PCIe\n"
                f"Bus Location: \t {gpu.address}\nDevice Minor: \t {gpu.minor}",
            )
            for instance in gpu.mig:
                place = f"/proc/driver/nvidia/capabilities/gpu{gpu.minor}/mig/gi{instance}"
                self._file(f"{place}/access", "DeviceFileMinor: 3\nDeviceFileMode: 292")
        self._add_tools()
        for path, text in self._scenario.files.items():
            self._file(path, text)
        for path, target in self._scenario.links.items():
            self._host.add_link(path, target)

    def _add_nodes(self) -> None:
        place = "/sys/devices/system/node"
        nodes = self._scenario.nodes
        self._file(f"{place}/online", f"0-{len(nodes) - 1}" if len(nodes) > 1 else "0")
        for number, node in enumerate(nodes):
            self._file(f"{place}/node{number}/cpulist", node.cpus)

    def _path(self, function: Function) -> str:
        if function.below is not None:
            return f"{self._path(self._functions[function.below])}/{function.address}"
        place = function.place
        return f"/sys/devices/pci{place.domain:04x}:{place.bus:02x}/{function.address}"

    def _node(self, function: Function) -> int:
        if function.node is not None:
            return function.node
        return -1 if function.below is None else self._node(self._functions[function.below])

    def _add_function(self, function: Function) -> None:
        path, node = self._path(function), self._node(function)
        vendor, device = function.ids.split(":")
        board_vendor, board = function.subsystem.split(":")
        files: dict[str, str] = {
            "vendor": f"0x{vendor}",
            "device": f"0x{device}",
            "class": f"0x{function.class_}",
            "subsystem_vendor": f"0x{board_vendor}",
            "subsystem_device": f"0x{board}",
            "revision": f"0x{function.revision}",
            "numa_node": str(node),
        }
        if node >= 0:
            files["local_cpulist"] = self._scenario.nodes[node].cpus
        if function.link is not None:
            for limit, text in (
                ("current", function.link),
                ("max", function.link_max or function.link),
            ):
                speed, width = text.rsplit(" x", 1)
                files[f"{limit}_link_speed"] = f"{speed} PCIe"
                files[f"{limit}_link_width"] = width
            files["aer_dev_correctable"] = _counters(_CORRECTABLE, "COR")
            files["aer_dev_fatal"] = _counters(_UNCORRECTABLE, "FATAL")
            files["aer_dev_nonfatal"] = _counters(_UNCORRECTABLE, "NONFATAL")
        if function.reset:
            bus = function.address.rpartition(":")[0]
            beside = sum(one.address.startswith(f"{bus}:") for one in self._scenario.functions) > 1
            methods = [one for one in function.reset if one != "bus" or not beside]
            files["reset_method"] = " ".join(methods)
        if function.sriov is not None:
            files |= {
                "sriov_totalvfs": str(function.sriov.total),
                "sriov_numvfs": "0",
                "sriov_offset": str(function.sriov.offset),
                "sriov_stride": str(function.sriov.stride),
                "sriov_vf_device": function.sriov.device,
            }
        if function.bars:
            files["resource"] = "\n".join(self._bars(function.bars))
            files |= {f"resource{2 * index}": "" for index in range(len(function.bars))}
        for name, text in (files | dict(function.files)).items():
            self._file(f"{path}/{name}", text)
        self._host.add_file(f"{path}/config", _config(function))
        self._link(f"{PCI}/devices/{function.address}", path)
        if function.slot is not None:
            self._file(f"{PCI}/slots/{function.slot}/address", str(function.place)[:-2])
        for name in function.classes:
            kind, _, base = name.rpartition("/")
            device = f"{_NODE_DIRECTORIES.get(kind, '')}{base}"
            self._file(f"{path}/{name}/uevent", f"DEVNAME={device}")
            self._link(f"{path}/{name}/device", path)
            self._link(f"/sys/class/{kind}/{base}", f"{path}/{name}")
            self._file(f"/dev/{device}", "")
        for name in function.dev:
            self._file(name, "")
        for name, target in function.links.items():
            self._host.add_link(f"{path}/{name}", target)
        self._add_parts(function, path)

    def _add_parts(self, function: Function, path: str) -> None:
        """Write what the host driver of a function makes of it."""
        if function.interface is not None:
            self._add_interface(function, path)
        if function.nvme is not None:
            self._add_nvme(function, path)
        if function.qat is not None:
            qat = function.qat
            for name, text in {
                "qat/state": qat.state,
                "qat/cfg_services": qat.services,
                "qat_ras/errors_correctable": "0",
                "qat_ras/errors_nonfatal": "0",
                "qat_ras/errors_fatal": "0",
                "qat_ras/reset_error_counters": "",
            }.items():
                self._file(f"{path}/{name}", text)
            debug = f"/sys/kernel/debug/qat_{qat.device}_{function.address}/heartbeat"
            for name, text in {"status": "0", "queries_sent": "0", "queries_failed": "0"}.items():
                self._file(f"{debug}/{name}", text)
        if function.fpga is not None:
            self._add_fpga(function, path)

    def _add_interface(self, function: Function, path: str) -> None:
        interface = function.interface
        assert interface is not None
        place = f"{path}/net/{interface.name}"
        # Number 1 is that of the loopback interface.
        self._interfaces += 1
        for name, text in {
            "ifindex": str(self._interfaces),
            "operstate": interface.state,
            "carrier": str(int(interface.state == "up")),
            "mtu": "1500",
            "address": interface.mac or "00:00:00:00:00:00",
        }.items():
            self._file(f"{place}/{name}", text)
        self._link(f"{place}/device", path)
        self._link(f"/sys/class/net/{interface.name}", place)
        if interface.rdma is not None:
            place = f"{path}/infiniband/{interface.rdma}"
            digits = (interface.mac or "00:00:00:00:00:00").replace(":", "")
            guid = f"{digits[:4]}:{digits[4:6]}03:00{digits[6:8]}:{digits[8:]}"
            for name, text in {"node_guid": guid, "sys_image_guid": guid}.items():
                self._file(f"{place}/{name}", text)
            self._file(f"{place}/ports/1/state", "4: ACTIVE")
            self._link(f"{place}/device", path)
            self._link(f"/sys/class/infiniband/{interface.rdma}", place)

    def _add_nvme(self, function: Function, path: str) -> None:
        nvme = function.nvme
        assert nvme is not None
        place = f"{path}/nvme/{nvme.name}"
        for name, text in {
            "serial": nvme.serial,
            "model": nvme.model,
            "firmware_rev": nvme.firmware,
            "cntlid": "1",
            # The major number of nvme-generic is the kernel's choice.
            "dev": f"239:{nvme.name.removeprefix('nvme')}",
            "uevent": f"DEVNAME={nvme.name}",
            "transport": "pcie",
            "address": function.address,
            "state": "live",
            "subsysnqn": f"nqn.2014.08.org.nvmexpress:{function.ids.replace(':', '')}{nvme.serial}",
            "numa_node": str(self._node(function)),
        }.items():
            self._file(f"{place}/{name}", text)
        self._link(f"{place}/device", path)
        self._link(f"/sys/class/nvme/{nvme.name}", place)
        self._file(f"/dev/{nvme.name}", "")
        for number, namespace in enumerate(nvme.namespaces, 1):
            disk = f"{nvme.name}n{number}"
            self._add_disk(place, disk)
            self._file(f"{place}/{disk}/nsid", str(number))
            self._file(f"{place}/{disk}/size", str(namespace.size // 512))
            if namespace.uuid is not None:
                self._file(f"{place}/{disk}/uuid", namespace.uuid)
                self._file(f"{place}/{disk}/wwid", f"uuid.{namespace.uuid}")
            self._add_partitions(disk, namespace.partitions)

    def _add_fpga(self, function: Function, path: str) -> None:
        fpga = function.fpga
        assert fpga is not None
        number = fpga.region
        region = f"{path}/fpga_region/region{2 * number}"
        engine, port = f"{region}/dfl-fme.{number}", f"{region}/dfl-port.{number}"
        inner = f"{engine}/dfl-fme-region.{number}/fpga_region/region{2 * number + 1}"
        manager = f"{engine}/dfl-fme-mgr.{number}/fpga_manager/fpga{number}"
        self._file(f"{inner}/compat_id", fpga.compat_id)
        # A manager says "unknown" until it loads the first image.
        for name, text in {"name": fpga.manager, "state": "unknown", "status": ""}.items():
            self._file(f"{manager}/{name}", text)
        for name, text in fpga.files.items():
            self._file(f"{engine}/{name}", text)
        port_files = {
            "id": "0",
            "afu_id": fpga.afu_id,
            "ltr": "0",
            "power_state": "0x0",
            "ap1_event": "0",
            "ap2_event": "0",
            "errors/errors": "0x0",
            "errors/first_error": "0x0",
            "errors/first_malformed_req": f"0x{0:032x}",
            **fpga.port_files,
        }
        for name, text in port_files.items():
            self._file(f"{port}/{name}", text)
        for place in (region, inner):
            self._link(f"/sys/class/fpga_region/{place.rpartition('/')[2]}", place)
        self._link(f"/sys/class/fpga_manager/fpga{number}", manager)
        self._link(f"{region}/device", path)
        for place in (engine, port):
            device = place.rpartition("/")[2]
            self._file(f"{place}/uevent", f"DEVNAME={device}")
            self._file(f"/dev/{device}", "")

    def _add_disk(self, above: str, name: str, *, partition: bool = False) -> None:
        path = f"{above}/{name}"
        majors = {"nvme": 259, "sd": 8, "md": 9, "dm": 253}
        major = next((one for text, one in majors.items() if name.startswith(text)), 252)
        self._numbers[name] = f"{major}:{len(self._numbers)}"
        self._disks[name] = path
        self._file(f"{path}/dev", self._numbers[name])
        self._host.add_dir(f"{path}/holders")
        self._host.add_dir(f"{path}/slaves")
        self._link(f"/sys/class/block/{name}", path)
        self._file(f"/dev/{name}", "")
        if not partition:
            self._link(f"/sys/block/{name}", path)

    def _add_partitions(self, disk: str, count: int) -> None:
        for number in range(1, count + 1):
            name = scenario_file.partition_name(disk, number)
            self._add_disk(self._disks[disk], name, partition=True)
            self._file(f"{self._disks[name]}/partition", str(number))

    def _add_uses(self) -> None:
        """Mount file systems and use swap space."""
        lines = []
        for number, (point, disk) in enumerate(self._scenario.mounts.items(), 27):
            kind = "vfat" if point.startswith("/boot/efi") else "ext4"
            lines.append(
                f"{number} 1 {self._numbers[disk]} / {point} rw,relatime shared:{number} - {kind} "
                f"/dev/{disk} rw\n"
            )
            if kind == "ext4":
                self._host.add_dir(f"/sys/fs/ext4/{disk}")
        servers.append(self._host, "/proc/self/mountinfo", "".join(lines))
        for disk in self._scenario.swaps:
            servers.append(self._host, "/proc/swaps", f"/dev/{disk}\tpartition\t8388604\t0\t-2\n")

    def _add_names(self) -> None:
        """Write the list of PCI ids that a distribution installs."""
        vendors: dict[str, dict[str, str]] = {}
        for function in self._scenario.functions:
            if function.model is not None:
                vendor, device = function.ids.split(":")
                vendors.setdefault(vendor, {})[device] = function.model
        lines = [
            line
            for vendor, devices in sorted(vendors.items())
            for line in (
                f"{vendor}  {_VENDORS.get(vendor, vendor)}",
                *(f"\t{device}  {model}" for device, model in sorted(devices.items())),
            )
        ]
        self._file("/usr/share/misc/pci.ids", "\n".join(lines))

    def _add_tools(self) -> None:
        """Install ip, nvme where there are such disks, and the tools with recorded answers."""
        tools: dict[str, list[Command]] = {}
        for command in self._scenario.commands:
            tools.setdefault(command.argv[0], []).append(command)
        for path, commands in tools.items():
            name = path.rpartition("/")[2]
            for place in (path, name, f"/usr/bin/{name}"):
                self._host.programs[place] = RecordedTool(tuple(commands))
        if any(function.nvme for function in self._scenario.functions):
            self._host.programs["nvme"] = NvmeTool()
        self._file("/usr/sbin/ip", "")
        self._host.programs["ip"] = self._host.programs["/usr/sbin/ip"] = IpTool()

    def _bars(self, sizes: Iterable[str]) -> Iterator[str]:
        """Yield the lines of ``resource``: each BAR has 64 bits, and so two lines."""
        for text in sizes:
            size = int(text[:-1]) * _UNITS[text[-1]]
            start = -(-self._next_bar // size) * size
            self._next_bar = start + size
            yield f"0x{start:016x} 0x{start + size - 1:016x} 0x000000000014220c"
            yield " ".join([f"0x{0:016x}"] * 3)

    def _file(self, path: str, text: str) -> None:
        self._host.add_file(path, f"{text}\n" if text else "")

    def _link(self, path: str, target: str) -> None:
        self._host.add_link(path, target)


def _counters(names: Iterable[str], kind: str) -> str:
    return "\n".join([*(f"{name} 0" for name in names), f"TOTAL_ERR_{kind} 0"])


def _host_drivers(scenario: Scenario) -> list[HostDriver]:
    """Return the host drivers that the functions name, and vfio-pci."""
    ids: dict[str, set[str]] = {"vfio-pci": set(), "pcieport": set()}
    sriov: set[str] = set()
    for function in scenario.functions:
        vendor = function.ids.partition(":")[0]
        if function.driver is not None:
            ids.setdefault(function.driver, set()).add(function.ids)
            if function.sriov is not None:
                sriov.add(function.driver)
        if function.sriov is not None and function.sriov.driver is not None:
            virtual = f"{vendor}:{function.sriov.device}"
            ids.setdefault(function.sriov.driver, set()).add(virtual)
    return [_host_driver(name, ids[name], name in sriov, scenario.host_drivers) for name in ids]


def _host_driver(
    name: str, ids: Iterable[str], sriov: bool, described: Mapping[str, scenario_file.Driver]
) -> HostDriver:
    more = described.get(name, scenario_file.Driver())
    vfio = "vfio" in name
    mdev, vgpu = None, None
    if more.mdev is not None:
        types = {
            key: MdevType(one.slices, one.name, one.description)
            for key, one in more.mdev.types.items()
        }
        mdev = MdevProfile(more.mdev.capacity, types, more.mdev.homogeneous)
    if more.vgpu is not None:
        vgpu = VgpuProfile(
            more.vgpu.capacity,
            {int(key): (one.name, one.slices) for key, one in more.vgpu.types.items()},
        )
    return HostDriver(
        name,
        ids=frozenset() if vfio else frozenset(ids),
        any_function=vfio,
        vfs=more.vfs,
        sriov=sriov and not vfio,
        enables=not vfio,
        vfio=vfio,
        shares_dma=name in _SHARING,
        children=_CHILDREN,
        mdev=mdev,
        vgpu=vgpu,
        qat_services=more.qat_services,
    )


def _config(function: Function) -> bytes:
    """Return the configuration space: header, PCI Express, serial number and SR-IOV.

    The layout is that of the PCI Express Base Specification.
    """
    space = bytearray(4096)
    vendor, device = (int(text, 16) for text in function.ids.split(":"))
    board_vendor, board = (int(text, 16) for text in function.subsystem.split(":"))
    is_bridge = function.class_.startswith("0604")
    struct.pack_into("<HHHH", space, 0, vendor, device, 0x0406, 0x0010)
    code = int(function.class_ + "0", 16) >> 4
    space[8] = int(function.revision, 16)
    space[9:12] = code.to_bytes(3, "little")
    space[14] = int(is_bridge)
    if not is_bridge:
        struct.pack_into("<HH", space, 0x2C, board_vendor, board)
    space[0x34] = 0x40
    port_type = (4 if function.below is None else 5) if is_bridge else 0
    link, most = function.link, function.link_max or function.link
    struct.pack_into("<BBH", space, 0x40, 0x10, 0, port_type << 4 | 2)
    struct.pack_into("<I", space, 0x44, 1 << 28 if "flr" in function.reset else 0)
    if link is not None and most is not None:
        struct.pack_into("<I", space, 0x4C, _link_code(most))
        struct.pack_into("<H", space, 0x52, _link_code(link))
    if function.serial is not None:
        number = int(function.serial.replace("-", ""), 16)
        following = 0x140 if function.sriov is not None else 0
        struct.pack_into("<IQ", space, 0x100, following << 20 | 1 << 16 | 0x0003, number)
    else:
        # The first capability must be here; this one, of a vendor, tells nothing.
        following = 0x140 if function.sriov is not None else 0
        struct.pack_into("<II", space, 0x100, following << 20 | 1 << 16 | 0x000B, 0)
    if function.sriov is not None:
        virtual = function.sriov
        struct.pack_into("<I", space, 0x140, 1 << 16 | 0x0010)
        struct.pack_into("<HH", space, 0x14C, virtual.total, virtual.total)
        struct.pack_into("<HH", space, 0x154, virtual.offset, virtual.stride)
        struct.pack_into("<H", space, 0x15A, int(virtual.device, 16))
    return bytes(space)


def _link_code(text: str) -> int:
    speed, width = text.split(" GT/s x")
    return int(width) << 4 | _SPEEDS.get(speed, 1)
