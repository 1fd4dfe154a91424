# SPDX-License-Identifier: Apache-2.0
"""The port of privileged actions on real files: no link is ever followed, also not a late one."""

import errno
import os
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from cyborg import exception
from cyborg.drivers.command import Completed
from cyborg.drivers.privileged.action import Action
from cyborg.drivers.privileged.actions import (
    ProgramIntelFpga,
    ProgramXilinxFpga,
    Reset,
    SetVfs,
    Unbind,
)
from cyborg.drivers.privileged.kernel import LinuxKernel, Node
from cyborg.drivers.privileged.netlink import VfSettings, check_answer, vf_request
from cyborg.drivers.privileged.nvme import ADMIN_IOCTL, AdminCommand, sanitize_log
from cyborg.model.pci import PciAddress
from cyborg.tests.fixtures.waiting import eventually, joined

CARD = PciAddress.parse("0000:3b:00.0")
PATH = f"/sys/devices/pci0000:3a/{CARD}"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a directory with a card, and a file outside that no action may write."""
    root = tmp_path / "root"
    card = root / PATH[1:]
    (root / "sys/bus/pci/devices").mkdir(parents=True)
    (root / "sys/bus/pci/devices" / str(CARD)).symlink_to(f"../../..{PATH.removeprefix('/sys')}")
    card.mkdir(parents=True)
    (card / "sriov_numvfs").write_text("16\n")
    (card / "reset").write_text("")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "sriov_numvfs").write_text("untouched")
    return root


@pytest.fixture
def outside(tree: Path) -> Path:
    """Return the file that no action may write."""
    return tree.parent / "outside" / "sriov_numvfs"


def test_action_writes_the_whole_text_of_a_file(tree: Path) -> None:
    SetVfs(CARD, 4).run(LinuxKernel(str(tree)))
    assert (tree / PATH[1:] / "sriov_numvfs").read_text() == "4"


def test_file_is_never_created(tree: Path) -> None:
    (tree / PATH[1:] / "reset").unlink()
    with pytest.raises(exception.HostError) as caught:
        Reset(CARD).run(LinuxKernel(str(tree)))
    assert caught.value.fields["errno"] == errno.ENOENT
    assert not (tree / PATH[1:] / "reset").exists()


def test_link_in_place_of_a_file_is_refused(tree: Path, outside: Path) -> None:
    file = tree / PATH[1:] / "sriov_numvfs"
    file.unlink()
    file.symlink_to(outside)
    with pytest.raises(exception.HostError) as caught:
        SetVfs(CARD, 4).run(LinuxKernel(str(tree)))
    assert caught.value.fields["errno"] == errno.ELOOP
    assert outside.read_text() == "untouched"


class Swapped(LinuxKernel):
    """A kernel on which another process swaps the image for a link before a tool reads it."""

    def __init__(self, tree: Path, image: Path, secret: Path) -> None:
        copies = tree / "copies"
        copies.mkdir(0o700)
        super().__init__(str(tree), str(copies))
        self.copies = copies
        self._image = image
        self._secret = secret
        #: What the tool read, and whether its path led through a link.
        self.contents: list[bytes] = []
        self.images: list[str] = []

    def run(self, argv: Sequence[str], *, timeout: float) -> Completed:
        self._image.unlink()
        self._image.symlink_to(self._secret)
        path = Path(argv[-1])
        # OPAE refuses a path in which a part is a link.
        assert path.resolve() == path
        self.images.append(path.name)
        self.contents.append(path.read_bytes())
        return Completed(0, "", "")


@pytest.mark.parametrize(
    ("action", "start", "name"),
    [
        (ProgramIntelFpga(CARD, "/var/lib/image"), b"XeonFPGA", "image.gbs"),
        (ProgramXilinxFpga(CARD, "/var/lib/image", "user"), b"xclbin2\0", "image.xclbin"),
        (ProgramXilinxFpga(CARD, "/var/lib/image", "base"), b"xclbin2\0", "image.xsabin"),
    ],
    ids=str,
)
def test_tool_reads_the_image_that_was_checked_although_its_name_leads_elsewhere(
    tree: Path, outside: Path, action: Action[None], start: bytes, name: str
) -> None:
    image = tree / "var/lib/image"
    image.parent.mkdir(parents=True)
    content = start + bytes(3_000_000) + b"end"
    image.write_bytes(content)
    kernel = Swapped(tree, image, outside)
    action.run(kernel)
    assert kernel.contents == [content]
    assert kernel.images == [name]
    # The image is a link now: its target is neither read nor copied.
    with pytest.raises(exception.HostError) as caught:
        action.run(kernel)
    assert caught.value.fields["errno"] == errno.ELOOP
    image.unlink()
    image.write_bytes(b"root:x:0:0")
    with pytest.raises(exception.HostError, match="not an image"):
        action.run(kernel)
    assert len(kernel.contents) == 1
    assert not any(kernel.copies.iterdir())


@pytest.mark.parametrize("depth", [0, 1])
def test_link_in_place_of_a_directory_is_refused(tree: Path, outside: Path, depth: int) -> None:
    directory = tree / PATH[1:]
    for _ in range(depth):
        directory = directory.parent
    directory.rename(tree / "aside")
    directory.symlink_to(outside.parent if depth == 0 else tree / "aside")
    with pytest.raises(exception.HostError) as caught:
        SetVfs(CARD, 4).run(LinuxKernel(str(tree)))
    assert caught.value.fields["errno"] == errno.ENOTDIR
    assert outside.read_text() == "untouched"


def test_link_that_is_swapped_during_writes_never_leads_outside(tree: Path, outside: Path) -> None:
    """One thread exchanges the directory with a link all the time, another one writes."""
    directory, aside, link = tree / PATH[1:], tree / "aside", tree / "link"
    link.symlink_to(outside.parent)
    stopped = threading.Event()

    def swap() -> None:
        while not stopped.is_set():
            directory.rename(aside)
            link.rename(directory)
            directory.rename(link)
            aside.rename(directory)

    thread = threading.Thread(target=swap)
    thread.start()
    results = {"written": 0, "refused": 0}

    def both_often() -> bool:
        try:
            SetVfs(CARD, 4).run(LinuxKernel(str(tree)))
            results["written"] += 1
        except exception.HostError:
            results["refused"] += 1
        return min(results.values()) >= 20

    try:
        eventually(both_often, lambda: results, step=0)
    finally:
        stopped.set()
        joined(thread)
    assert outside.read_text() == "untouched"


@pytest.mark.parametrize(
    "call",
    [
        lambda kernel: kernel.write("/sys/../etc/passwd", "x"),
        lambda kernel: kernel.write("/sys//bus", "x"),
        lambda kernel: kernel.write("/sys/bus/./pci", "x"),
        lambda kernel: kernel.write(f"{PATH}", "x"),
        lambda kernel: kernel.write(f"{PATH}/reset\0", "x"),
        lambda kernel: kernel.read(f"/sys/bus/pci/devices/{CARD}/reset"),
        lambda kernel: kernel.names(f"/sys/bus/pci/devices/{CARD}"),
        lambda kernel: kernel.links(f"/sys/bus/pci/devices/{CARD}"),
        lambda kernel: kernel.readlink(f"/sys/bus/pci/devices/{CARD}/driver"),
        lambda kernel: kernel.claimed(Node("sda", "8:0")),
        lambda kernel: kernel.nvme_admin(Node("nvme0", "240:0"), sanitize_log()),
    ],
)
def test_other_paths_and_nodes_are_refused(
    tree: Path, call: Callable[[LinuxKernel], object]
) -> None:
    # In place of the nodes of devices: a file, and a device with another number.
    (tree / "dev").mkdir()
    (tree / "dev/sda").write_text("")
    (tree / "dev/nvme0").symlink_to("/dev/null")
    with pytest.raises(exception.HostError):
        call(LinuxKernel(str(tree)))


def test_pipe_in_place_of_a_file_does_not_block(tree: Path) -> None:
    file = tree / PATH[1:] / "reset"
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(exception.HostError):
        Reset(CARD).run(LinuxKernel(str(tree)))


def test_names_and_links_of_a_directory(tree: Path) -> None:
    kernel = LinuxKernel(str(tree))
    assert kernel.names(PATH) == ["reset", "sriov_numvfs"]
    assert kernel.read(f"{PATH}/sriov_numvfs") == "16\n"
    (tree / PATH[1:] / "driver").symlink_to("../x")
    assert kernel.readlink(f"{PATH}/driver") == "../x"
    pci = kernel.links("/sys/bus/pci/devices")
    assert pci == {str(CARD): f"../../..{PATH.removeprefix('/sys')}"}
    # The directory of the driver is below /sys/bus/pci/drivers, wherever the link leads.
    with pytest.raises(exception.HostError, match="/sys/bus/pci/drivers/x/unbind"):
        Unbind(CARD).run(kernel)


def test_program_that_others_can_change_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o777)
    with pytest.raises(exception.HostError, match="others than root can change"):
        LinuxKernel().run([str(program)], timeout=5)


def test_vf_request_has_the_layout_of_the_kernel() -> None:
    settings = VfSettings(3, mac="02:00:00:00:00:01", vlan=5, trust=True, rate=(1, 2))
    request = vf_request(7, settings)
    length, kind, flags, _, _ = struct.unpack_from("=IHHII", request)
    assert (length, kind, flags) == (len(request), 19, 5)
    family, index = struct.unpack_from("=B3xi", request, 16)
    assert (family, index) == (socket.AF_UNSPEC, 7)
    (outer,) = attributes(request[32:])
    (inner,) = attributes(outer[1])
    assert (outer[0] & 0x3FFF, inner[0] & 0x3FFF) == (22, 1)
    values = dict(attributes(inner[1]))
    assert values == {
        1: struct.pack("=I", 3) + bytes.fromhex("020000000001").ljust(32, b"\0"),
        2: struct.pack("=III", 3, 5, 0),
        6: struct.pack("=III", 3, 1, 2),
        9: struct.pack("=II", 3, 1),
    }


def attributes(data: bytes) -> list[tuple[int, bytes]]:
    """Return the attributes in a message as (type, value)."""
    values = []
    while data:
        length, kind = struct.unpack_from("=HH", data)
        values.append((kind, data[4:length]))
        data = data[length + -length % 4 :]
    return values


def test_kernel_refuses_the_request_for_an_interface_that_is_absent() -> None:
    """The real kernel understands the request; without the capability it refuses it before."""
    with pytest.raises(exception.HostError) as caught:
        LinuxKernel().set_vf("absent", 2**31 - 1, VfSettings(0, trust=True))
    assert caught.value.fields["errno"] in {errno.ENODEV, errno.EPERM}


def test_acknowledgement_without_error_is_accepted() -> None:
    check_answer(struct.pack("=IHHIIi", 20, 2, 0, 1, 0, 0))
    with pytest.raises(OSError, match="busy") as caught:
        check_answer(struct.pack("=IHHIIi", 20, 2, 0, 1, 0, -errno.EBUSY))
    assert caught.value.errno == errno.EBUSY
    with pytest.raises(OSError, match="message 16"):
        check_answer(struct.pack("=IHHIIi", 20, 16, 0, 1, 0, 0))


def test_nvme_command_has_the_layout_of_the_ioctl() -> None:
    command = AdminCommand(0x80, 1, 0x1234, data_length=512, timeout=3).encode(0xABCDEF)
    assert len(command) == ADMIN_IOCTL >> 16 & 0x3FFF == 72
    assert command[0] == 0x80
    assert struct.unpack_from("=I", command, 4) == (1,)
    assert struct.unpack_from("=Q", command, 24) == (0xABCDEF,)
    assert struct.unpack_from("=I", command, 36) == (512,)
    assert struct.unpack_from("=I", command, 40) == (0x1234,)
    assert struct.unpack_from("=I", command, 64) == (3000,)
