# SPDX-License-Identifier: Apache-2.0
"""Each privileged action changes exactly what it names, and refuses everything else before that."""

import dataclasses
import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cyborg
from cyborg import exception
from cyborg.drivers.command import Completed
from cyborg.drivers.files import OpenFiles
from cyborg.drivers.host import LocalHost
from cyborg.drivers.privileged import nvme
from cyborg.drivers.privileged.action import Action, Context
from cyborg.drivers.privileged.actions import (
    ACTIONS,
    Bind,
    CreateMdev,
    Probe,
    ProgramIntelFpga,
    ProgramXilinxFpga,
    ReadClaim,
    ReadDeviceErrors,
    ReadOpenFiles,
    ReadQatHeartbeat,
    ReadVpd,
    RemoveMdev,
    Reset,
    SetDriverOverride,
    SetMigLayout,
    SetMigMode,
    SetQatServices,
    SetQatState,
    SetVf,
    SetVfs,
    SetVgpuType,
    Unbind,
    load,
)
from cyborg.drivers.privileged.disk_actions import (
    FormatNamespace,
    ReadController,
    ReadControllerHealth,
    ReadNamespaces,
    ReadSanitize,
    ReadVirtualControllers,
    ReleaseQueues,
    SampleNamespaces,
    Sanitize,
    StartVirtualControllers,
)
from cyborg.model.pci import PciAddress
from cyborg.testing import scenario_hosts
from cyborg.testing.fake_host import FakeHost

CARD = PciAddress.parse("0000:3b:00.0")
OTHER = PciAddress.parse("0000:3b:00.1")
#: What a namespace in its first format says, which only one controller can have.
NAMESPACE = {"flbas": 0, "dps": 0, "nmic": 0}
PATH = f"/sys/devices/pci0000:3a/0000:3a:00.0/{CARD}"
UUID = "8f3c1d2e-0b5a-4c6d-9e7f-1a2b3c4d5e6f"
SMI = "/usr/bin/nvidia-smi"
FPGACONF = "/usr/bin/fpgaconf"
XBMGMT = "/opt/xilinx/xrt/bin/xbmgmt"
IMAGE = "/var/lib/cyborg/images/tmp0/image"


@pytest.fixture
def host() -> FakeHost:
    """Return a host with one card that can do everything, on the driver ``nvidia``."""
    types = "mdev_supported_types/nvidia-63"
    files = {
        "sriov_numvfs": "0\n",
        "sriov_totalvfs": "16\n",
        "sriov_drivers_autoprobe": "1\n",
        "driver_override": "(null)\n",
        "reset": "",
        "reset_method": "flr bus\n",
        "nvidia/current_vgpu_type": "0\n",
        "qat/state": "up\n",
        "qat/cfg_services": "sym\n",
        "net/ens1f0/ifindex": "7\n",
        "nvme/nvme3/dev": "240:3\n",
        "nvme/nvme3/nvme3n1/nsid": "1\n",
        "nvme/nvme3/nvme3n1/dev": "259:0\n",
        "nvme/nvme3/nvme3n1/size": "32\n",
        # A path of a disk with multipath.
        "nvme/nvme3/nvme3c0n2/nsid": "7\n",
        f"{types}/create": "",
        f"{types}/available_instances": "4\n",
        f"{UUID}/remove": "",
    }
    paths = {f"{PATH}/{name}": text for name, text in files.items()}
    paths |= {f"/sys/bus/pci/drivers/nvidia/{name}": "" for name in ("bind", "unbind")}
    paths |= {"/sys/bus/pci/drivers_probe": ""}
    paths |= {"/sys/devices/virtual/block/sda/dev": "8:0\n", "/dev/sda": ""}
    paths |= {"/sys/devices/virtual/nvme-subsystem/nvme-subsys3/nvme3n2/dev": "259:1\n"}
    paths |= {"/sys/devices/virtual/nvme-subsystem/nvme-subsys3/nvme3n2/size": "0\n"}
    paths |= {"/dev/nvme3n1": "", "/dev/nvme3n2": ""}
    links = {
        f"/sys/bus/pci/devices/{CARD}": f"../../..{PATH.removeprefix('/sys')}",
        f"{PATH}/driver": "../../../../bus/pci/drivers/nvidia",
        f"/sys/bus/mdev/devices/{UUID}": f"../../..{PATH.removeprefix('/sys')}/{UUID}",
        "/sys/class/block/sda": "../../devices/virtual/block/sda",
        "/sys/class/block/nvme3n1": f"../..{PATH.removeprefix('/sys')}/nvme/nvme3/nvme3n1",
        "/sys/class/block/nvme3n2": "../../devices/virtual/nvme-subsystem/nvme-subsys3/nvme3n2",
    }
    return FakeHost(paths, links)


@pytest.mark.parametrize(
    ("action", "writes"),
    [
        (SetVfs(CARD, 4), [("sriov_numvfs", "4")]),
        (SetVfs(CARD, 4, False), [("sriov_drivers_autoprobe", "0"), ("sriov_numvfs", "4")]),
        (SetDriverOverride(CARD, "vfio-pci"), [("driver_override", "vfio-pci\n")]),
        (SetDriverOverride(CARD, ""), [("driver_override", "\n")]),
        (Bind(CARD, "nvidia"), [("/sys/bus/pci/drivers/nvidia/bind", str(CARD))]),
        (Unbind(CARD), [("/sys/bus/pci/drivers/nvidia/unbind", str(CARD))]),
        (Probe(CARD), [("/sys/bus/pci/drivers_probe", str(CARD))]),
        (Reset(CARD), [("reset", "1")]),
        (
            Reset(CARD, "bus"),
            [("reset_method", "bus"), ("reset", "1"), ("reset_method", "flr bus\n")],
        ),
        (
            CreateMdev(CARD, "nvidia-63", UUID),
            [("mdev_supported_types/nvidia-63/create", UUID)],
        ),
        (RemoveMdev(UUID), [(f"{UUID}/remove", "1")]),
        (SetVgpuType(CARD, 1428), [("nvidia/current_vgpu_type", "1428")]),
        (SetQatState(CARD, "down"), [("qat/state", "down")]),
        (SetQatServices(CARD, ("sym", "dc")), [("qat/cfg_services", "sym;dc")]),
    ],
    ids=str,
)
def test_action_writes_exactly_its_files(
    host: FakeHost, action: Action[None], writes: list[tuple[str, str]]
) -> None:
    host.privileged.run(action)
    expected = [(path if path[0] == "/" else f"{PATH}/{path}", text) for path, text in writes]
    assert host.writes == expected
    assert host.commands == []


def test_unbind_of_function_without_driver_does_nothing(host: FakeHost) -> None:
    host.remove(f"{PATH}/driver")
    host.privileged.run(Unbind(CARD))
    assert host.writes == []


def test_reset_restores_methods_when_the_kernel_refuses(host: FakeHost) -> None:
    host.faults[f"{PATH}/reset"] = errno.ENOTTY
    with pytest.raises(exception.HostError) as caught:
        host.privileged.run(Reset(CARD, "pm"))
    assert caught.value.fields["errno"] == errno.ENOTTY
    assert host.read_text(f"{PATH}/reset_method") == "flr bus\n"


def test_reset_leaves_the_methods_that_the_kernel_still_has() -> None:
    """Beside another function of its card, a function cannot be reset by the bus."""
    card = scenario_hosts.load("e810")
    port = PciAddress.parse("0000:ca:00.1")
    methods = f"/sys/bus/pci/devices/{port}/reset_method"
    card.add_file(methods, "flr bus")
    card.privileged.run(Reset(port, "flr"))
    assert card.read_text(methods) == "flr\n"


def test_error_of_the_kernel_has_its_number(host: FakeHost) -> None:
    host.faults[f"{PATH}/sriov_numvfs"] = errno.EBUSY
    with pytest.raises(exception.HostError) as caught:
        host.privileged.run(SetVfs(CARD, 4))
    assert caught.value.fields["errno"] == errno.EBUSY


def test_vf_settings_are_sent_for_an_interface_of_the_function(host: FakeHost) -> None:
    host.programs["ip"] = lambda host, argv: Completed(0, "", "")
    action = SetVf(
        *(CARD, "ens1f0", 3),
        mac="02:00:00:00:00:01",
        vlan=0,
        trust=False,
        spoof_check=True,
        min_rate=0,
        max_rate=100,
    )
    host.privileged.run(action)
    words = "ip link set dev ens1f0 vf 3 mac 02:00:00:00:00:01 vlan 0"
    words += " min_tx_rate 0 max_tx_rate 100 spoofchk on trust off"
    assert host.commands == [tuple(words.split())]
    with pytest.raises(exception.HostError):
        host.privileged.run(SetVf(CARD, "lo", 3, trust=True))
    assert len(host.commands) == 1


def test_format_keeps_block_size_metadata_and_protection() -> None:
    identity = bytearray(4096)
    # Format 0x21 with metadata at the end of the block, protection type 2 in its first bytes.
    identity[26], identity[29] = 0b0101_0001, 0b1010
    command = nvme.format_namespace(1, bytes(identity), nvme.Erase.CRYPTO)
    assert command.cdw10 == 1 | 1 << 4 | 2 << 5 | 1 << 8 | 2 << 9 | 2 << 12
    assert (command.opcode, command.namespace) == (0x80, 1)


@pytest.mark.parametrize(("method", "cdw10"), [("block", 2), ("overwrite", 0x13), ("crypto", 4)])
def test_sanitize_command_has_method_and_one_pass(method: str, cdw10: int) -> None:
    command = nvme.sanitize(nvme.SanitizeMethod(method))
    assert (command.opcode, command.namespace, command.cdw10) == (0x84, 0, cdw10)


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (FormatNamespace(CARD, "nvme3", 1, "user-data"), "format /dev/nvme3n1 -s 1"),
        (FormatNamespace(CARD, "nvme3", 7, "crypto"), "format /dev/nvme3n2 -s 2"),
        (Sanitize(CARD, "nvme3", "block"), "sanitize /dev/nvme3 -a 2"),
    ],
    ids=str,
)
def test_disk_is_erased_unless_it_is_in_use(
    host: FakeHost, action: Action[None], words: str
) -> None:
    host.programs["nvme"] = lambda host, argv: Completed(0, json.dumps(NAMESPACE), "")
    host.privileged.run(action)
    assert [command for command in host.commands if command[1] != "id-ns"] == [
        ("nvme", *words.split())
    ]
    host.commands.clear()
    for disk in ("/dev/nvme3n1", "/dev/nvme3n2"):
        host.faults[disk] = errno.EBUSY
    with pytest.raises(exception.HostError) as caught:
        host.privileged.run(action)
    assert caught.value.fields["errno"] == errno.EBUSY
    assert [command[1] for command in host.commands] in ([], ["id-ns"])


@pytest.mark.parametrize(
    "action",
    [
        FormatNamespace(CARD, "nvme3", 2, "crypto"),
        FormatNamespace(CARD, "nvme0", 1, "crypto"),
        Sanitize(CARD, "nvme0", "crypto"),
        ReadSanitize(CARD, "nvme0"),
        ReadController(CARD, "nvme0"),
        SampleNamespaces(CARD, "nvme0"),
        ReadNamespaces(CARD, "nvme0"),
        ReadVirtualControllers(CARD, "nvme0"),
        ReleaseQueues(CARD, "nvme0"),
        StartVirtualControllers(CARD, "nvme0", 4),
    ],
    ids=str,
)
def test_controller_and_namespace_must_be_of_the_function(
    host: FakeHost, action: Action[Any]
) -> None:
    with pytest.raises(exception.HostError):
        host.privileged.run(action)
    assert host.commands == []


@pytest.mark.parametrize(
    ("log", "state", "fraction"),
    [
        (b"\xff\xff\x00\x00", "never", 1.0),
        (b"\xff\xff\x01\x01", "done", 1.0),
        (b"\x00\x40\x02\x00", "running", 0.25),
        (b"\xff\xff\x03\x00", "failed", 1.0),
        (b"\xff\xff\x04\x00", "done", 1.0),
    ],
)
def test_sanitize_log_tells_state_and_progress(log: bytes, state: str, fraction: float) -> None:
    progress = nvme.sanitize_progress(log.ljust(512, b"\0"))
    assert progress == (nvme.SanitizeState(state), fraction)
    assert ReadSanitize(CARD, "nvme3").answer((state, fraction)) == progress


def test_progress_of_a_simulated_disk_is_read_from_its_log(host: FakeHost) -> None:
    log = {"nvme3": {"sprog": 16384, "sstat": {"status": "(2) Sanitize in Progress."}}}
    host.programs["nvme"] = lambda host, argv: Completed(0, json.dumps(log), "")
    progress = host.privileged.run(ReadSanitize(CARD, "nvme3"))
    assert progress == (nvme.SanitizeState.RUNNING, 0.25)


@pytest.mark.parametrize(
    ("values", "facts"),
    [
        (
            {"oacs": 2, "fna": 4, "cmic": 0, "sanicap": 5},
            (True, True, False, True, ("crypto", "overwrite")),
        ),
        ({"oacs": 1, "fna": 2, "cmic": 2, "sanicap": 2}, (False, False, True, False, ("block",))),
        ({"oacs": 0, "fna": 1, "cmic": 4, "sanicap": 0}, (False, False, True, False, ())),
        (
            {"oacs": 2, "fna": 0, "cmic": 2, "sanicap": 0, "nmic": 1},
            (True, False, True, False, ()),
        ),
    ],
)
def test_controller_says_how_its_data_can_be_erased(
    host: FakeHost, values: dict[str, int], facts: tuple[Any, ...]
) -> None:
    host.programs["nvme"] = lambda host, argv: Completed(
        0, json.dumps({**NAMESPACE, **values, "ctrl_list": [{}, {}]}), ""
    )
    action = ReadController(CARD, "nvme3")
    assert host.privileged.run(action) == facts
    assert action.answer([*facts[:-1], list(facts[-1])]) == facts
    assert host.commands[0] == ("nvme", "id-ctrl", "/dev/nvme3", "-o", "json")


@pytest.mark.parametrize(("count", "shared"), [(1, False), (2, True), (0, True), (None, True)])
def test_list_of_controllers_tells_whether_a_disk_is_shared(
    host: FakeHost, count: int | None, shared: bool
) -> None:
    """A controller that may have others, and cannot list them, counts as one that has."""

    def answer(host: FakeHost, argv: tuple[str, ...]) -> Completed:
        if argv[1] == "id-ctrl":
            values: dict[str, Any] = {"oacs": 2, "fna": 4, "cmic": 2, "sanicap": 0}
        elif count is None and argv[1] == "list-ctrl":
            return Completed(1, "", "NVMe status: Invalid Field in Command(0x4002)\n")
        else:
            controllers = [{"ctrl_id": number} for number in range(count or 0)]
            values = {**NAMESPACE, "ctrl_list": controllers}
        return Completed(0, json.dumps(values), "")

    host.programs["nvme"] = answer
    assert host.privileged.run(ReadController(CARD, "nvme3")).shared is shared


def test_sample_has_digests_of_blocks_with_content_only(host: FakeHost) -> None:
    action = SampleNamespaces(CARD, "nvme3")
    block = 4096
    host.add_file("/dev/nvme3n1", bytes(block) + b"\xff" * block + b"canary".ljust(block))
    samples = host.privileged.run(action)
    first = dict(samples)
    assert first.keys() == {1, 7}
    assert first[7] == ()
    assert [bool(digest) for digest in first[1]] == [False, False, True, False]
    host.add_file("/dev/nvme3n1", bytes(2 * block) + b"another".ljust(block))
    samples = host.privileged.run(action)
    other = dict(samples)[1]
    assert other[2] != ""
    assert other[2] != first[1][2]
    assert action.answer([[1, list(other)]]) == ((1, other),)
    host.faults["/dev/nvme3n1"] = errno.EBUSY
    with pytest.raises(exception.HostError) as caught:
        host.privileged.run(action)
    assert caught.value.fields["errno"] == errno.EBUSY


def test_mig_layout_destroys_before_it_creates(host: FakeHost) -> None:
    # Status 6: there was no instance.
    host.programs[SMI] = lambda host, argv: Completed(6 if argv[-1] == "-dci" else 0, "", "")
    host.privileged.run(SetMigMode(CARD, True))
    host.privileged.run(SetMigLayout(CARD, (9, 19)))
    host.privileged.run(SetMigLayout(CARD, ()))
    card = ("mig", "-i", str(CARD))
    destroy = [(SMI, *card, "-dci"), (SMI, *card, "-dgi")]
    assert host.commands == [
        (SMI, "-i", str(CARD), "-mig", "1"),
        *destroy,
        (SMI, *card, "-cgi", "9,19", "-C"),
        *destroy,
    ]


def test_failed_program_is_an_error_with_its_last_line(host: FakeHost) -> None:
    host.programs[SMI] = lambda host, argv: Completed(3, "", "first\nNot Supported\n")
    with pytest.raises(exception.HostError, match="status 3: Not Supported"):
        host.privileged.run(SetMigMode(CARD, False))
    host.foreign.add(SMI)
    with pytest.raises(exception.HostError, match="others than root can change"):
        host.privileged.run(SetMigMode(CARD, False))
    assert len(host.commands) == 1


def test_open_device_files_have_their_process(host: FakeHost) -> None:
    host.add_file("/proc/12/comm", "qemu\n")
    host.add_link("/proc/12/fd/4", "/dev/vfio/71")
    host.add_link("/proc/12/fd/6", "/tmp/file")
    host.add_link("/proc/13/fd/6", "/dev/nvme0n1")
    host.add_file("/proc/uptime", "1")
    holders = {"/dev/vfio/71": "qemu (process 12)", "/dev/nvme0n1": "process 13"}
    assert host.privileged.run(ReadOpenFiles()) == OpenFiles(holders)
    host.faults["/proc/13/fd"] = errno.ESRCH
    assert host.privileged.run(ReadOpenFiles()).reason is None
    host.faults["/proc/13/fd"] = errno.EACCES
    files = host.privileged.run(ReadOpenFiles())
    assert "cyborg-privileged may not see" in str(files.reason)
    assert "Permission denied" in str(files.reason)
    assert "/dev/nvme0n1" not in files.holders


@pytest.mark.parametrize(
    ("action", "start", "words"),
    [
        (
            ProgramIntelFpga(CARD, IMAGE),
            b"XeonFPGA\xb7GBSv001",
            f"{FPGACONF} --bus 0x3b --device 0x00 --function 0x0 {IMAGE}",
        ),
        (
            ProgramXilinxFpga(CARD, IMAGE, "user"),
            b"xclbin2\0",
            f"{XBMGMT} program --device {CARD} --user {IMAGE}",
        ),
        (
            ProgramXilinxFpga(CARD, IMAGE, "base"),
            b"xclbin2\0",
            f"{XBMGMT} program --device {CARD} --base --image {IMAGE}",
        ),
    ],
    ids=str,
)
def test_image_of_an_fpga_is_loaded_by_the_tool_of_the_vendor(
    host: FakeHost, action: Action[None], start: bytes, words: str
) -> None:
    host.add_file(IMAGE, start + bytes(100_000))
    host.programs[words.split()[0]] = lambda host, argv: Completed(0, "", "")
    host.privileged.run(action)
    assert host.commands == [tuple(words.split())]
    host.programs[words.split()[0]] = lambda host, argv: Completed(1, "", "no such device\n")
    with pytest.raises(exception.HostError, match="no such device"):
        host.privileged.run(action)


def test_image_on_a_card_of_another_pci_domain_is_loaded_there(host: FakeHost) -> None:
    card = PciAddress.parse("0001:3b:00.0")
    path = f"/sys/devices/pci0001:3a/{card}"
    host.add_dir(path)
    host.add_link(f"/sys/bus/pci/devices/{card}", f"../../..{path.removeprefix('/sys')}")
    host.add_file(IMAGE, b"XeonFPGA\xb7GBSv001")
    host.programs[FPGACONF] = lambda host, argv: Completed(0, "", "")
    host.privileged.run(ProgramIntelFpga(card, IMAGE))
    assert host.commands[0][1:3] == ("--segment", "0x0001")


@pytest.mark.parametrize(
    "action", [ProgramIntelFpga(CARD, IMAGE), ProgramXilinxFpga(CARD, IMAGE, "user")], ids=str
)
def test_file_that_is_no_image_is_not_shown_to_a_tool(host: FakeHost, action: Action[None]) -> None:
    with pytest.raises(exception.HostError):
        host.privileged.run(action)
    host.add_file(IMAGE, "root:x:0:0:root:/root:/bin/bash\n")
    with pytest.raises(exception.HostError, match="not an image"):
        host.privileged.run(action)
    host.remove(IMAGE)
    host.add_file("/etc/image", b"XeonFPGA\xb7GBSv001")
    host.add_link(IMAGE, "/etc/image")
    with pytest.raises(exception.HostError, match="symbolic links"):
        host.privileged.run(action)
    assert host.commands == []


@pytest.mark.parametrize(
    "path", ["image", "/image", "/a/../b", "/a/./b", "/a//b", "/a/b/", "/a/b c", "/a/b;c", "/a/b\n"]
)
def test_path_of_an_image_must_be_absolute_and_plain(path: str) -> None:
    with pytest.raises(exception.Invalid):
        ProgramIntelFpga(CARD, path)


def test_claimed_disk_is_told_from_a_free_one(host: FakeHost) -> None:
    assert not host.privileged.run(ReadClaim("sda"))
    host.faults["/dev/sda"] = errno.EBUSY
    assert host.privileged.run(ReadClaim("sda"))
    host.faults["/dev/sda"] = errno.EACCES
    with pytest.raises(exception.HostError):
        host.privileged.run(ReadClaim("sda"))


@pytest.mark.parametrize(
    ("link", "target", "action"),
    [
        (f"/sys/bus/pci/devices/{CARD}", "../../../../etc", SetVfs(CARD, 1)),
        (f"/sys/bus/pci/devices/{CARD}", "/tmp/0000:3b:00.0", Reset(CARD)),
        (f"/sys/bus/pci/devices/{CARD}", f"../../../devices/pci/{OTHER}", Reset(CARD)),
        (f"/sys/bus/mdev/devices/{UUID}", f"../../../../tmp/{UUID}", RemoveMdev(UUID)),
        ("/sys/class/block/sda", "/tmp/sda", ReadClaim("sda")),
        (f"{PATH}/nvidia", "/tmp", SetVgpuType(CARD, 1)),
        (f"{PATH}/driver", "../../..", Unbind(CARD)),
    ],
    ids=str,
)
def test_link_that_leads_elsewhere_is_refused(
    host: FakeHost, link: str, target: str, action: Action[Any]
) -> None:
    for path in ("/tmp/current_vgpu_type", f"/tmp/{CARD}/reset", "/etc/sriov_numvfs"):
        host.add_file(path, "")
    host.remove(link)
    host.add_link(link, target)
    with pytest.raises(exception.HostError):
        host.privileged.run(action)
    assert host.writes == []


GOOD: list[Action[Any]] = [
    SetVfs(CARD, 4, True),
    SetDriverOverride(CARD, "vfio-pci"),
    Bind(CARD, "nvidia"),
    Unbind(CARD),
    Probe(CARD),
    Reset(CARD, "flr"),
    CreateMdev(CARD, "nvidia-63", UUID),
    RemoveMdev(UUID),
    SetVgpuType(CARD, 1),
    SetQatState(CARD, "up"),
    SetQatServices(CARD, ("dcc",)),
    SetVf(CARD, "ens1f0", 0, mac="02:00:00:00:00:01", vlan=7, min_rate=1, max_rate=2),
    FormatNamespace(CARD, "nvme3", 1, "user-data"),
    Sanitize(CARD, "nvme3", "block"),
    ReadSanitize(CARD, "nvme3"),
    ReadController(CARD, "nvme3"),
    SampleNamespaces(CARD, "nvme3"),
    ReadNamespaces(CARD, "nvme3"),
    ReadVirtualControllers(CARD, "nvme3"),
    ReleaseQueues(CARD, "nvme3"),
    StartVirtualControllers(CARD, "nvme3", 4),
    SetMigMode(CARD, True),
    SetMigLayout(CARD, (9, 19)),
    ReadOpenFiles(),
    ReadClaim("sda"),
    ReadControllerHealth(CARD, "nvme0"),
    ReadQatHeartbeat(CARD),
    ReadVpd(CARD),
    ReadDeviceErrors(7),
    ProgramIntelFpga(CARD, IMAGE),
    ProgramXilinxFpga(CARD, IMAGE, "user"),
]
#: Values that no field of any action may have.
BAD = (
    "../x",
    "a/b",
    "x y",
    "--help",
    "a\n",
    "\0",
    "",
    ".",
    "..",
    "é",
    -1,
    2**70,
    1.5,
    b"x",
    {"a": 1},
)


def test_good_samples_are_all_actions() -> None:
    assert {type(action).__name__ for action in GOOD} == set(ACTIONS)


@pytest.mark.parametrize("action", GOOD, ids=lambda action: type(action).__name__)
def test_action_is_the_same_after_the_way_to_another_process(action: Action[Any]) -> None:
    name = type(action).__name__
    assert load(action.context, name, action.plain()) == action
    assert str(action).startswith(f"{name}(")
    assert "\n" not in str(action)


@pytest.mark.parametrize("action", GOOD, ids=lambda action: type(action).__name__)
def test_bad_value_in_any_field_is_refused_at_construction(action: Action[Any]) -> None:
    name, good = type(action).__name__, action.plain()
    for field in dataclasses.fields(action):
        for bad in (*BAD, ["x"], ("x",) * 9):
            if bad == "" and field.name == "driver" and isinstance(action, SetDriverOverride):
                continue
            with pytest.raises(exception.Invalid):
                load(action.context, name, good | {field.name: bad})
        with pytest.raises(exception.Invalid):
            load(action.context, name, {key: good[key] for key in good if key != field.name})
    with pytest.raises(exception.Invalid):
        load(action.context, name, good | {"path": "/etc/shadow"})


@pytest.mark.parametrize(
    "name", ["Action", "run", "os.system", "", None, 7, ("SetVfs",), b"SetVfs"]
)
def test_unknown_action_is_refused(name: object) -> None:
    for context in Context:
        with pytest.raises(exception.Invalid):
            load(context, name, {})


def test_action_of_another_context_is_refused() -> None:
    for action in GOOD:
        for context in set(Context) - {action.context}:
            with pytest.raises(exception.Invalid):
                load(context, type(action).__name__, action.plain())


def test_address_must_be_an_address_also_in_the_agent() -> None:
    with pytest.raises(exception.Invalid):
        Reset("../../../etc")  # type: ignore[arg-type]


def test_host_without_privileged_process_refuses_every_action() -> None:
    with pytest.raises(exception.HostError, match="no privileged process"):
        LocalHost().privileged.run(Reset(CARD))


def test_agent_does_not_import_oslo_privsep_at_its_start() -> None:
    code = "import sys, cyborg.cmd.agent; sys.exit('oslo_privsep' in sys.modules)"
    command = [sys.executable, "-W", "ignore", "-c", code]
    root = str(Path(cyborg.__file__).parents[1])
    subprocess.run(command, env={**os.environ, "PYTHONPATH": root}, check=True)
