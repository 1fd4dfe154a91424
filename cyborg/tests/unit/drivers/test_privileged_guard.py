# SPDX-License-Identifier: Apache-2.0
"""The privileged process refuses actions on what is in use, and lets all other work go on."""

import errno
from collections.abc import Callable
from typing import Any

import pytest

from cyborg import exception
from cyborg.cmd.functions import find
from cyborg.drivers import whitelist
from cyborg.drivers.files import INITIAL_PROCESSES
from cyborg.drivers.loader import LoadResult
from cyborg.drivers.pci import PciDriver
from cyborg.drivers.privileged.action import Action
from cyborg.drivers.privileged.actions import (
    CreateMdev,
    Probe,
    ProgramIntelFpga,
    RemoveMdev,
    Reset,
    SetDriverOverride,
    SetMigMode,
    SetVf,
    SetVfs,
    SetVgpuType,
    Unbind,
)
from cyborg.drivers.privileged.disk_actions import FormatNamespace, ReadController, Sanitize
from cyborg.drivers.privileged.guard import Guard
from cyborg.drivers.rtnetlink import NETWORK
from cyborg.model.pci import PciAddress
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.fake_privileges import SimulatedKernel
from cyborg.tests.unit.drivers.configured import configured

LIST = "/etc/cyborg-privileged/functions"
#: A bridge, a card with two virtual functions and two mediated devices below it, and a disk.
BRIDGE, CARD, DISK = (PciAddress.parse(f"0000:3{text}:00.0") for text in "abc")
VFS = [PciAddress.parse(f"0000:3b:00.{number}") for number in (1, 2)]
MDEVS = ["8f3c1d2e-0b5a-4c6d-9e7f-1a2b3c4d5e6f", "8f3c1d2e-0b5a-4c6d-9e7f-1a2b3c4d5e60"]
PATH = f"/sys/devices/pci0000:3a/{BRIDGE}"
IDENTITY = "DRIVER={}\nPCI_CLASS={}\nPCI_ID=8086:1592\n"
#: Whether somebody uses the device, and how a test starts and ends that.
HostChange = Callable[[FakeHost], None]


@pytest.fixture
def host() -> FakeHost:
    """A host on which nothing is in use, and whose root has listed everything."""
    files = {
        f"{PATH}/uevent": IDENTITY.format("pcieport", "60400"),
        f"{PATH}/{CARD}/uevent": IDENTITY.format("ice", "20000"),
        f"{PATH}/{DISK}/uevent": IDENTITY.format("nvme", "10802"),
        f"{PATH}/{DISK}/nvme/nvme0/nvme0n1/dev": "259:0\n",
        f"{PATH}/{CARD}/net/ens1/ifindex": "7\n",
        **dict.fromkeys(("/proc/swaps", "/proc/self/mountinfo", NETWORK), ""),
        f"{PATH}/{CARD}/fpga/dfl-port.0/uevent": "DEVNAME=dfl-port.0\n",
        "/dev/nvme0n1": "",
        LIST: '{"vendor_id": "8086"}\n',
    }
    links = {
        "/proc/self/ns/pid": INITIAL_PROCESSES,
        f"/sys/bus/pci/devices/{BRIDGE}": f"../../..{PATH.removeprefix('/sys')}",
        "/sys/class/net/ens1": f"../..{PATH.removeprefix('/sys')}/{CARD}/net/ens1",
        "/sys/class/block/nvme0n1": f"../..{PATH.removeprefix('/sys')}/{DISK}/nvme/nvme0/nvme0n1",
    }
    for address in (CARD, DISK, *VFS):
        links[f"/sys/bus/pci/devices/{address}"] = f"../../..{PATH.removeprefix('/sys')}/{address}"
    for number, address in enumerate(VFS):
        files[f"{PATH}/{address}/uevent"] = IDENTITY.format("vfio-pci", "20000")
        links[f"{PATH}/{address}/physfn"] = f"../{CARD}"
        links[f"{PATH}/{address}/iommu_group"] = f"../../../../kernel/iommu_groups/{number}"
        links[f"{PATH}/{CARD}/virtfn{number}"] = f"../{address}"
    for number, uuid in enumerate(MDEVS, len(VFS)):
        files[f"{PATH}/{CARD}/{uuid}/remove"] = ""
        links[f"/sys/bus/mdev/devices/{uuid}"] = (
            f"../../..{PATH.removeprefix('/sys')}/{CARD}/{uuid}"
        )
        links[f"{PATH}/{CARD}/{uuid}/iommu_group"] = f"/sys/kernel/iommu_groups/{number}"
        files[f"/sys/kernel/iommu_groups/{number}/name"] = ""
    return FakeHost(files, links)


def opened(node: str) -> HostChange:
    """Return a change after which a process has a device file open."""

    def change(host: FakeHost) -> None:
        host.add_file("/proc/12/comm", "qemu\n")
        host.add_link("/proc/12/fd/4", node)

    return change


def written(path: str, text: str) -> HostChange:
    return lambda host: host.add_file(path, text)


def claimed(host: FakeHost) -> None:
    host.faults["/dev/nvme0n1"] = errno.EBUSY


MOUNTED = written("/proc/self/mountinfo", "36 35 259:0 / / rw - ext4 /dev/nvme0n1 rw\n")
#: The clause of a refusal, and what the host or a guest does.
USES: dict[str, tuple[str, HostChange]] = {
    "mount": ("is mounted at /", MOUNTED),
    "swap": ("holds swap space", written("/proc/swaps", "/dev/nvme0n1 partition 1 0 -2\n")),
    "claim": ("its disk nvme0n1 may be in use", claimed),
    "open disk": ("is open in qemu (process 12)", opened("/dev/nvme0n1")),
    "traffic": ("its interface ens1 ", written(NETWORK, "ens1 route\n")),
    "open card": ("its device file /dev/dfl-port.0 is open in qemu", opened("/dev/dfl-port.0")),
    "first VF": ("held through VFIO by qemu", opened("/dev/vfio/0")),
    "second VF": ("held through VFIO by qemu", opened("/dev/vfio/1")),
    "first mdev": ("held through VFIO by qemu", opened("/dev/vfio/2")),
    "second mdev": ("held through VFIO by qemu", opened("/dev/vfio/3")),
}
WHOLE: dict[Action[Any], set[str]] = {
    action: {"traffic", "first VF", "second VF", "first mdev", "second mdev"}
    for action in (
        *(SetVfs(CARD, 0), Reset(CARD), Unbind(CARD), Probe(CARD), SetMigMode(CARD, True)),
        *(SetDriverOverride(CARD, "vfio-pci"), ProgramIntelFpga(CARD, "/var/lib/image")),
    )
}
for detaching in (Reset(CARD), Unbind(CARD), ProgramIntelFpga(CARD, "/var/lib/image")):
    WHOLE[detaching].add("open card")
#: The uses with which an action is refused. With all others it is done.
REFUSED: dict[Action[Any], set[str]] = {
    **WHOLE,
    CreateMdev(CARD, "i915", MDEVS[0]): {"traffic"},
    RemoveMdev(MDEVS[0]): {"first mdev"},
    # A port carries traffic of the host, and guests have its other functions.
    SetVf(CARD, "ens1", 0, trust=False): {"first VF"},
    Reset(VFS[1], "flr"): {"second VF"},
    SetVgpuType(VFS[1], 0): {"second VF"},
    FormatNamespace(DISK, "nvme0", 1, "crypto"): {"mount", "swap", "claim", "open disk"},
    Sanitize(DISK, "nvme0", "crypto"): {"mount", "swap", "claim", "open disk"},
    Unbind(DISK): {"mount", "swap", "claim", "open disk"},
    # Reading changes nothing.
    ReadController(DISK, "nvme0"): set(),
}


def judge(host: FakeHost, action: Action[Any]) -> dict[str, Any] | None:
    """Return the fields of the error, None if the action may run."""
    try:
        Guard(host, SimulatedKernel(host), LIST).check(action)
    except exception.HostError as error:
        return dict(error.fields)
    return None


@pytest.mark.parametrize("action", REFUSED, ids=str)
def test_action_on_idle_devices_may_run(host: FakeHost, action: Action[Any]) -> None:
    assert judge(host, action) is None


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("action", REFUSED, ids=str)
def test_action_is_refused_exactly_if_something_uses_what_it_disturbs(
    host: FakeHost, action: Action[Any], use: str
) -> None:
    clause, change = USES[use]
    change(host)
    refusal = judge(host, action)
    if use not in REFUSED[action]:
        assert refusal is None
        return
    assert refusal is not None
    assert clause in refusal["reason"]
    assert refusal["errno"] == errno.EBUSY


@pytest.mark.parametrize("name", ["vfio-dev/vfio3", "iommu_group"])
def test_vgpu_of_a_vendors_own_driver_is_seen(host: FakeHost, name: str) -> None:
    """It has the nodes of VFIO, and the driver of the vendor."""
    host.add_file(f"{PATH}/{VFS[0]}/uevent", IDENTITY.format("nvidia", "30200"))
    host.add_dir(f"{PATH}/{VFS[0]}/vfio-dev/vfio3")
    opened("/dev/vfio/0" if name == "iommu_group" else "/dev/vfio/devices/vfio3")(host)
    refusal = judge(host, SetVgpuType(VFS[0], 0))
    assert refusal is not None
    assert "held through VFIO by qemu" in refusal["reason"]


def test_guest_that_ends_and_a_disk_that_udev_reads_are_waited_for(host: FakeHost) -> None:
    opened("/dev/vfio/0")(host)
    claimed(host)
    rounds = []

    def end() -> None:
        rounds.append(1)
        if len(rounds) == 3:
            host.remove("/proc/12")
            host.faults.clear()

    host.on_pause = end
    assert judge(host, Reset(CARD)) is None
    assert len(rounds) == 3
    assert judge(host, Unbind(DISK)) is None


def test_what_cannot_be_known_counts_as_in_use(host: FakeHost) -> None:
    host.remove("/proc/self/ns/pid")
    host.add_link("/proc/self/ns/pid", "pid:[4026532000]")
    for action in (Reset(VFS[0]), RemoveMdev(MDEVS[0]), Unbind(DISK)):
        refusal = judge(host, action)
        assert refusal is not None
        assert "may" in refusal["reason"]


def test_bridge_is_never_changed(host: FakeHost) -> None:
    refusal = judge(host, Reset(BRIDGE, "bus"))
    assert refusal is not None
    assert "a bridge of the bus itself" in refusal["reason"]


@pytest.mark.parametrize(
    ("entry", "listed"),
    [
        ({"address": str(CARD)}, [CARD, *VFS]),
        ({"address": str(VFS[0])}, VFS[:1]),
        ({"address": str(CARD), "vendor_id": "8086"}, [CARD, *VFS]),
        # Another card has the address now.
        ({"address": str(CARD), "vendor_id": "10de"}, []),
    ],
)
def test_list_has_cards_with_their_virtual_functions(
    host: FakeHost, entry: dict[str, str], listed: list[PciAddress]
) -> None:
    host.add_file(LIST, f"# made by root\n\n{str(entry).replace(chr(39), chr(34))}\n")
    for address in (CARD, DISK, *VFS):
        refusal = judge(host, Reset(address))
        assert (refusal is None) is (address in listed)
        if refusal is not None:
            assert refusal["errno"] == errno.EPERM
            assert "is not in /etc/cyborg-privileged/functions" in refusal["reason"]
            assert "cyborg-agent --list-functions" in refusal["reason"]


def test_list_that_others_can_change_lists_nothing(host: FakeHost) -> None:
    host.foreign.add(LIST)
    refusal = judge(host, Reset(CARD))
    assert refusal is not None
    assert "others than root can change" in refusal["reason"]
    assert "cyborg-agent --list-functions" in refusal["reason"]


def test_function_in_a_guest_stays_listed_although_its_interface_has_gone(host: FakeHost) -> None:
    host.remove("/sys/class/net/ens1")
    host.add_file(f"{PATH}/{CARD}/uevent", IDENTITY.format("vfio-pci", "20000"))
    conf = configured('{"devname": "ens1"}')
    loaded = [LoadResult("pci_driver", PciDriver(host, conf))]

    def found(*former: str) -> list[PciAddress]:
        failures: dict[str, str] = {}
        functions = find(loaded, host, conf.host, whitelist.parse(former), failures=failures)
        assert failures == {}
        return [function.address for function in functions]

    assert found() == []
    assert found(f'{{"address": "{DISK}"}}') == []
    assert found(f'{{"address": "{CARD}"}}') == [CARD]
