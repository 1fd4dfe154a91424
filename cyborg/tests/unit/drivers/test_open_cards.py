# SPDX-License-Identifier: Apache-2.0
"""A card that a process has open is not offered, whatever its device files are called."""

import errno
import os
import signal
import subprocess
from pathlib import Path

import pytest

from cyborg.drivers.files import ProcessId
from cyborg.drivers.host import LocalHost
from cyborg.drivers.pci import PciDriver
from cyborg.drivers.privileged.actions import ReadOpenFiles
from cyborg.drivers.scan import Scan
from cyborg.model.pci import PciAddress
from cyborg.testing import scenario_hosts, servers
from cyborg.testing.driver_checks import look
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.sysfs import PCI
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.unit.drivers.configured import configured

EVERYTHING = '{"address": "*:*:*.*"}'
#: For each family: the scenario host, a card, the directory of the device below that of the card
#: (empty if the kernel shows none), and the path of what a process has open.
FAMILIES = {
    "nvidia": ("dgx-h100", "0000:1b:00.0", "", "/dev/nvidia0"),
    "render node": ("mi300x", "0000:05:00.0", "drm/renderD128", "/dev/dri/renderD128"),
    "accel": ("gaudi3", "0000:19:00.0", "accel/accel0", "/dev/accel/accel0"),
    "davinci": ("ascend-910", "0000:c1:00.0", "", "/dev/davinci0"),
    "dfl": ("n6001", "0000:b1:00.0", "", "/dev/dfl-port.0"),
    "xclmgmt": ("alveo-u250", "0000:3b:00.0", "", "/dev/xclmgmt0"),
    "xocl": ("alveo-u250", "0000:3b:00.1", "", "/dev/xocl0"),
    "nvme-generic": ("nvme-24", "0000:25:00.0", "nvme/nvme6/ng6n1", "/dev/ng6n1"),
    "uio": ("qat-4xxx", "0000:70:00.0", "uio/uio0", "/dev/uio0"),
    "infiniband": (
        *("hgx-h200", "0000:19:00.0", "infiniband_verbs/uverbs0", "/dev/infiniband/uverbs0"),
    ),
}


def add_device(host: FakeHost, address: str, below: str, node: str) -> None:
    """Put a device below a function, with its node."""
    path = f"{host.realpath(f'{PCI}/devices/{address}')}/{below}"
    host.add_file(f"{path}/uevent", f"DEVNAME={node.removeprefix('/dev/')}\n")
    host.add_file(f"{path}/dev", "240:7\n")
    host.add_file(node, "")


def open_file(host: FakeHost, path: str, process: int = 4711, name: str = "trainer") -> None:
    """Let a process have a file open."""
    host.add_file(f"/proc/{process}/comm", f"{name}\n")
    number = len(host.names(f"/proc/{process}/fd") or ())
    host.add_link(f"/proc/{process}/fd/{number}", path)


def separate(host: FakeHost, address: str) -> None:
    """Put a function into an IOMMU group of its own."""
    place = host.realpath(f"{PCI}/devices/{address}")
    host.add_link(f"{place}/iommu_group", "/sys/kernel/iommu_groups/4711")


def reason(host: FakeHost, address: str) -> str:
    """Return why the agent does not offer a function; empty if it offers it."""
    driver = PciDriver(host, configured(EVERYTHING))
    offered = {device.key for device in look(driver).discover()}
    (row,) = (item for item in look(driver).hardware() if item.key == address)
    assert (address in offered) is (row.reason is None)
    return row.reason or ""


@pytest.mark.parametrize("family", FAMILIES)
def test_card_that_a_process_has_open_is_not_offered(family: str) -> None:
    scenario, address, below, path = FAMILIES[family]
    host = scenario_hosts.load(scenario)
    if below:
        add_device(host, address, below, path)
    if scenario == "alveo-u250":
        # A guest gets both functions of the card; alone, neither can be assigned.
        separate(host, address)
    assert "open" not in reason(host, address)
    open_file(host, path)
    assert reason(host, address) == f"its device file {path} is open in trainer (process 4711)"


CARD = "0000:1b:00.0"


@pytest.fixture
def host() -> FakeHost:
    """Return a host with eight GPUs that NVIDIA's driver has."""
    return scenario_hosts.load("dgx-h100")


def test_other_cards_of_the_host_stay_offered(host: FakeHost) -> None:
    open_file(host, "/dev/nvidia0")
    open_file(host, "/dev/nvidiactl")
    assert reason(host, CARD)
    assert reason(host, "0000:43:00.0") == ""


def test_node_of_a_card_that_the_driver_does_not_tell_is_of_every_card(host: FakeHost) -> None:
    open_file(host, "/dev/nvidia99")
    for card in (CARD, "0000:43:00.0"):
        assert (
            reason(host, card) == "its device file /dev/nvidia99 is open in trainer (process 4711)"
        )


@pytest.mark.parametrize("suffix", ["resource0", "resource2_wc"])
def test_card_whose_memory_a_process_has_open_or_mapped_is_not_offered(
    host: FakeHost, suffix: str
) -> None:
    path = f"{host.realpath(f'{PCI}/devices/{CARD}')}/{suffix}"
    open_file(host, path)
    assert reason(host, CARD) == f"its device file {path} is open in trainer (process 4711)"
    host.remove("/proc/4711/fd/0")
    assert reason(host, CARD) == ""
    line = f"7f00-7f01 rw-s 00000000 00:17 99    {path}\n"
    host.add_file("/proc/4711/maps", f"7e00-7e01 r-xp 00000000 fe:01 5 /usr/bin/trainer\n{line}")
    assert reason(host, CARD) == f"its device file {path} is open in trainer (process 4711)"


def test_card_whose_device_file_is_mapped_is_not_offered(host: FakeHost) -> None:
    host.add_dir("/proc/4711/fd")
    host.add_file("/proc/4711/maps", "7f00-7f01 rw-s 00000000 00:05 99 /dev/nvidia0\n\n")
    assert reason(host, CARD) == "its device file /dev/nvidia0 is open in process 4711"


def test_other_files_of_a_card_are_no_use(host: FakeHost) -> None:
    place = host.realpath(f"{PCI}/devices/{CARD}")
    for path in (f"{place}/config", f"{place}/numa_node", "/srv/dev/resource0", "/dev/shm/x"):
        open_file(host, path)
    assert reason(host, CARD) == ""


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("nvidia-persiste", f"nvidia-smi -i {CARD} -pm 0"),
        ("nv-hostengine", "systemctl stop nvidia-dcgm"),
        ("dcgm-exporter", "stop it on this host"),
    ],
)
def test_card_that_a_monitor_has_open_is_not_offered_and_the_remedy_is_told(
    host: FakeHost, name: str, remedy: str
) -> None:
    """NVIDIA's driver waits in unbind until the last process has closed its files."""
    open_file(host, "/dev/nvidia0", name=name)
    assert reason(host, CARD).startswith(
        f"the monitor {name} (process 4711) has its device file /dev/nvidia0 open; "
    )
    assert remedy in reason(host, CARD)


def test_controller_behind_a_multipath_node_is_in_use() -> None:
    host = scenario_hosts.load("nvme-24")
    address = "0000:25:00.0"
    controller = f"{host.realpath(f'{PCI}/devices/{address}')}/nvme/nvme6"
    subsystem = "/sys/devices/virtual/nvme-subsystem/nvme-subsys6"
    host.add_link(f"{subsystem}/nvme6", controller)
    host.add_file(f"{subsystem}/ng6n1/uevent", "DEVNAME=ng6n1\n")
    open_file(host, "/dev/ng6n1")
    assert reason(host, address) == "its device file /dev/ng6n1 is open in trainer (process 4711)"


def test_gpu_whose_companion_is_open_is_not_offered() -> None:
    host = servers.bare()
    servers.add_function(host, GPU, "10de:1eb8:030000")
    servers.add_function(host, AUDIO, "10de:10f8:040300", driver="snd_hda_intel")
    group = host.readlink(f"{servers.place(AUDIO)}/iommu_group")
    assert "audio" not in reason(host, GPU)
    add_device(host, AUDIO, "sound/card1/controlC1", "/dev/snd/controlC1")
    open_file(host, "/dev/snd/controlC1", name="wireplumber")
    assert group
    assert reason(host, GPU) == (
        f"its audio function {AUDIO} goes with it, but is not free: its device file "
        "/dev/snd/controlC1 is open in wireplumber (process 4711)"
    )


def test_card_with_parts_may_be_open(host: FakeHost) -> None:
    """The managers of a vendor have a card open whose parts guests get."""
    open_file(host, "/dev/nvidia0", name="nvidia-vgpu-mgr")
    scan = Scan(host)
    function = scan.functions[PciAddress.parse(CARD)]
    assert scan.refusal(function, managed=False, whole=False) is None
    # A card of this service as well: libvirt would wait for the process.
    assert scan.refusal(function, managed=True)


def forbid(host: FakeHost) -> None:
    """Hide the open files of process 1, as in a container whose root has few capabilities."""
    host.add_dir("/proc/1/fd")
    host.faults["/proc/1/fd"] = errno.EACCES


def test_card_with_a_host_driver_is_in_doubt_if_open_files_are_not_known(host: FakeHost) -> None:
    forbid(host)
    assert reason(host, CARD) == (
        "a process may have its device files open: the agent may not see the open files of other "
        "users' processes: Permission denied; run cyborg-privileged in the process namespace of "
        "the host, or bind the function to vfio-pci"
    )


def test_card_that_no_process_can_use_is_offered_if_open_files_are_not_known() -> None:
    host = servers.server()
    assert reason(host, servers.GPU_ON_VFIO) == reason(host, servers.FPGA) == ""
    forbid(host)
    assert reason(host, servers.GPU_ON_VFIO) == reason(host, servers.FPGA) == ""
    host.add_file(f"{servers.place(servers.FPGA)}/enable", "1\n")
    assert "may have its device files open" in reason(host, servers.FPGA)
    host.faults[f"{servers.place(servers.FPGA)}/enable"] = errno.EIO
    assert "may have its device files open" in reason(host, servers.FPGA)


def test_port_is_offered_if_open_files_are_not_known_unless_processes_use_rdma() -> None:
    host = servers.server()
    forbid(host)
    assert reason(host, servers.NIC_IDLE) == ""
    host.add_dir(f"{servers.place(servers.NIC_IDLE)}/infiniband_verbs/uverbs0")
    assert "may have its device files open" in reason(host, servers.NIC_IDLE)


GPU, AUDIO = "0000:3b:00.0", "0000:3b:00.1"


def show_console(host: FakeHost, frame_buffer: str) -> None:
    """Put the console of the host on a frame buffer."""
    host.add_link("/sys/class/graphics/fb0", f"{frame_buffer}/graphics/fb0")
    host.add_file(f"{frame_buffer}/graphics/fb0/name", "EFI VGA\n")
    host.add_dir("/sys/class/graphics/fbcon")
    for number, name in enumerate(("(S) dummy device", "(M) frame buffer device")):
        host.add_file(f"/sys/class/vtconsole/vtcon{number}/name", f"{name}\n")
        host.add_file(f"/sys/class/vtconsole/vtcon{number}/bind", f"{number}\n")


@pytest.mark.parametrize("platform", [True, False])
def test_display_with_the_console_of_the_host_is_not_offered(platform: bool) -> None:
    host = servers.bare()
    for address, first in ((GPU, "1"), ("0000:86:00.0", "0")):
        place = servers.add_function(host, address, "1002:7550:030000")
        host.add_file(f"{place}/boot_vga", f"{first}\n")
    assert reason(host, GPU) == ""
    firmware = "/sys/devices/platform/efi-framebuffer.0"
    show_console(host, firmware if platform else servers.place("0000:86:00.0"))
    used, idle = (GPU, "0000:86:00.0") if platform else ("0000:86:00.0", GPU)
    assert reason(host, used).startswith("the console of the host is on its frame buffer; ")
    assert reason(host, idle) == ""
    host.add_file("/sys/class/vtconsole/vtcon1/bind", "0\n")
    assert reason(host, used) == ""
    host.faults["/sys/class/vtconsole/vtcon1/bind"] = errno.EIO
    assert "the console of the host may be on its frame buffer" in reason(host, used)


class CardAsFull(LocalHost):
    """This machine; /dev/full is the device file of a card."""

    def _device(self, path: str) -> str | None:
        device = super()._device(path)
        return servers.place(GPU) if device == "/sys/devices/virtual/mem/full" else device


def test_processes_that_the_agent_has_started_are_no_users() -> None:
    """NVML keeps the device files of all GPUs open in the process that asks it."""
    host = CardAsFull()
    script = "sleep 3600 < /dev/full & echo $!; wait"
    child = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    grandchild = int(child.stdout.readline())
    name = Path(f"/proc/{grandchild}/comm")
    try:
        # It has the file open before it becomes another program.
        eventually(lambda: name.read_text() == "sleep\n")
        assert "/dev/full" not in host.open_files().holders
        # The parent of the other process ends, so nobody can tell who started it.
        child.kill()
        child.wait()
        files = host.open_files()
        assert files.holders["/dev/full"] == f"sleep (process {grandchild})"
        assert files.devices["/dev/full"] == servers.place(GPU)
    finally:
        os.kill(grandchild, signal.SIGKILL)
        child.stdout.close()


def test_processes_of_the_agent_are_known_in_another_namespace(host: FakeHost) -> None:
    """The privileged process has other numbers for them than the agent in its container."""
    agent = ProcessId("pid:[4026532001]", "7")
    for process, parent, numbers in ((900, 1, "900\t7"), (901, 900, "901\t12"), (902, 1, "902")):
        status = f"Name:\tx\nPPid:\t{parent}\nNSpid:\t{numbers}\n"
        host.add_file(f"/proc/{process}/status", status)
        host.add_link(f"/proc/{process}/ns/pid", agent.namespace)
    open_file(host, "/dev/nvidia0", process=901)
    run = host.privileged.run
    assert run(ReadOpenFiles()).holders == {"/dev/nvidia0": "trainer (process 901)"}
    assert run(ReadOpenFiles(*agent)).holders == {}
    # The generic node of a disk is below a virtual device where the kernel has multipath.
    subsystem = "/sys/devices/virtual/nvme-subsystem/nvme-subsys6"
    host.add_file(f"{subsystem}/ng6n1/uevent", "DEVNAME=ng6n1\n")
    open_file(host, "/dev/ng6n1", process=901)
    assert run(ReadOpenFiles(*agent)).holders == {}
    host.remove("/proc/901/fd/1")
    # A process of another container with the number of the agent.
    host.add_link("/proc/900/ns/pid", "pid:[4026532002]")
    assert run(ReadOpenFiles(*agent)).holders == {"/dev/nvidia0": "trainer (process 901)"}
    host.add_link("/proc/900/ns/pid", agent.namespace)
    open_file(host, "/dev/nvidia0", process=902)
    assert run(ReadOpenFiles(*agent)).holders == {"/dev/nvidia0": "trainer (process 902)"}


@pytest.mark.parametrize("number", [errno.ESRCH, errno.ENOENT])
def test_process_that_ends_while_it_is_read_is_no_doubt(host: FakeHost, number: int) -> None:
    open_file(host, "/dev/nvidia0")
    host.faults["/proc/4711/fd"] = number
    assert reason(host, CARD) == ""


def test_mappings_that_cannot_be_read_are_a_doubt(host: FakeHost) -> None:
    host.add_dir("/proc/4711/fd")
    host.add_file("/proc/4711/maps", "")
    host.faults["/proc/4711/maps"] = errno.EACCES
    assert "may have its device files open" in reason(host, CARD)
