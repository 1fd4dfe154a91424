# SPDX-License-Identifier: Apache-2.0
"""How a device looks that the host uses: what the ownership check of drivers can rely on."""

import errno
import os
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from cyborg.drivers.host import LocalHost
from cyborg.tests.kernel.functions import E1000E, Functions


def test_mounted_disk_is_in_mountinfo_and_refuses_exclusive_use(
    functions: Functions, host: LocalHost, mounted: Callable[[str], Path]
) -> None:
    """ownership compares the device number in mountinfo with the file ``dev`` of the disk."""
    disk = functions.disk(functions.nvme("PLAIN0001"))
    number = host.read_text(f"/sys/class/block/{disk}/dev").strip()
    mounted(disk)
    lines = host.read_text("/proc/self/mountinfo").splitlines()
    assert number in [line.split()[2] for line in lines]
    with pytest.raises(OSError) as raised:
        os.open(f"/dev/{disk}", os.O_RDONLY | os.O_EXCL)
    assert raised.value.errno == errno.EBUSY


def test_mount_of_another_mount_namespace_shows_only_in_the_file_system_and_the_claim(
    functions: Functions, host: LocalHost, command: Callable[..., str], tmp_path: Path
) -> None:
    """An agent in a container sees no such line in mountinfo."""
    disk = functions.disk(functions.nvme("PLAIN0001"))
    number = host.read_text(f"/sys/class/block/{disk}/dev").strip()
    command("mkfs.ext4", "-q", "-F", f"/dev/{disk}")
    shell = f"mount /dev/{disk} {tmp_path} && echo mounted && read line"
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", shell],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as container:
        assert container.stdout
        assert container.stdout.readline() == "mounted\n"
        lines = host.read_text("/proc/self/mountinfo").splitlines()
        assert number not in [line.split()[2] for line in lines]
        assert host.exists(f"/sys/fs/ext4/{disk}")
        with pytest.raises(OSError) as raised:
            os.open(f"/dev/{disk}", os.O_RDONLY | os.O_EXCL)
        assert raised.value.errno == errno.EBUSY


def test_disk_below_a_mapping_names_its_holder(
    functions: Functions, host: LocalHost, command: Callable[..., str], undo: ExitStack
) -> None:
    """ownership refuses a disk with an entry in ``holders``: LVM, RAID and multipath look so."""
    disk = functions.disk(functions.nvme("PLAIN0001"))
    command("dmsetup", "create", "kept", "--table", f"0 2048 linear /dev/{disk} 0")
    undo.callback(command, "dmsetup", "remove", "kept")
    [holder] = host.list_dir(f"/sys/class/block/{disk}/holders")
    assert host.read_text(f"/sys/class/block/{holder}/dm/name").strip() == "kept"


def test_disk_that_a_process_claims_has_no_holder_but_refuses_exclusive_use(
    functions: Functions, host: LocalHost, undo: ExitStack
) -> None:
    """ZFS, LIO and QEMU claim disks like this."""
    disk = functions.disk(functions.nvme("IDLE00001"))
    undo.callback(os.close, os.open(f"/dev/{disk}", os.O_RDONLY | os.O_EXCL))
    assert host.list_dir(f"/sys/class/block/{disk}/holders") == []
    with pytest.raises(OSError) as raised:
        os.open(f"/dev/{disk}", os.O_RDONLY | os.O_EXCL)
    assert raised.value.errno == errno.EBUSY


def test_interface_in_another_network_namespace_is_not_seen(
    functions: Functions,
    host: LocalHost,
    command: Callable[..., str],
    namespace: str,
    undo: ExitStack,
) -> None:
    """A bound NIC without an interface may be in use."""
    [card] = functions.matching(E1000E)
    name = functions.interface(card)
    command("ip", "link", "set", name, "netns", namespace)
    undo.callback(command, "ip", "-n", namespace, "link", "set", name, "netns", "1")
    assert functions.link(card, "driver") == "e1000e"
    assert functions.names(card, "net") == []
    assert name not in host.list_dir("/sys/class/net")
