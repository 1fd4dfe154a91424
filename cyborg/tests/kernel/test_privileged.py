# SPDX-License-Identifier: Apache-2.0
"""``cyborg-privileged`` with the capabilities of its container, and an agent without any.

Root starts the process as ``containers/cyborg-privileged.container`` does; its children take the
user *nobody*, who sends the actions.
"""

import errno
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cyborg import exception
from cyborg.drivers.privileged import channel, contexts
from cyborg.drivers.privileged.action import Action
from cyborg.drivers.privileged.actions import (
    ReadClaim,
    ReadDeviceErrors,
    ReadOpenFiles,
    SetVf,
    SetVfs,
)
from cyborg.drivers.privileged.client import Client
from cyborg.drivers.privileged.disk_actions import FormatNamespace
from cyborg.model.pci import PciAddress
from cyborg.tests.kernel import vfio
from cyborg.tests.kernel.functions import E1000E, IGB, Functions, eventually
from cyborg.tests.kernel.nobody import as_nobody

CONTAINER = Path(__file__).parents[3] / "containers" / "cyborg-privileged.container"
#: What a child without the right to import must have before.
IMPORTED = (channel, contexts)
CANARY = b"data of the former guest"
#: Root lists every function of the guest.
CONFIGURATION = """
[agent]
enabled_drivers = pci_driver
[pci]
passthrough_whitelist = {}
"""
MAC = "02:00:00:00:00:07"

#: Sends an action and returns its result as text, or the name of the error number.
Act = Callable[[Action[Any]], str]


def capabilities() -> str:
    """Return the capabilities of the container as an argument of setpriv(1)."""
    lines = re.findall(r"^AddCapability=(.*)$", CONTAINER.read_text(), re.MULTILINE)
    names = [name.removeprefix("CAP_").lower() for line in lines for name in line.split()]
    return ",".join(["-all", *(f"+{name}" for name in names)])


@pytest.fixture
def act(undo: ExitStack) -> Act:
    """Return a function that sends an action to a new process as the user *nobody*."""
    path = Path("/run/test-privileged.sock")
    # Every user may write to /run in a guest.
    configuration = Path("/etc/test-privileged.conf")
    configuration.write_text(CONFIGURATION)
    functions = configuration.with_suffix(".functions")
    listing: list[str | Path] = ["--config-file", configuration, "--list-functions", functions]
    subprocess.run([Path(sys.executable).with_name("cyborg-agent"), *listing], check=True)
    limits = ("--no-new-privs", "--inh-caps=-all", f"--bounding-set={capabilities()}")
    program = Path(sys.executable).with_name("cyborg-privileged")
    options: list[str | Path] = ["--socket", path, "--functions", functions, "--user", "nobody"]
    process = subprocess.Popen(["setpriv", *limits, program, *options])
    undo.callback(path.unlink, missing_ok=True)
    undo.callback(process.wait)
    undo.callback(process.terminate)
    eventually(lambda: accepts(path))

    def act(action: Action[Any]) -> str:
        client = Client(
            socket_path=str(path), exports=lambda: contexts.EXPORTS, journal=lambda _line: None
        )

        def send() -> str:
            try:
                return str(client.run(action))
            except exception.HostError as error:
                number = error.fields.get("errno")
                return errno.errorcode[number] if isinstance(number, int) else str(error)

        return as_nobody(send)

    return act


def accepts(path: Path) -> bool:
    """Return whether a process accepts connections there; the file is there before that."""
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(path)) == 0


def log_as_kernel(line: str, undo: ExitStack) -> None:
    """Have the kernel itself write a line into its log, as a part of a dump of its trace.

    Source: Documentation/trace/ftrace.rst of Linux: trace_marker, printk-msg-only.
    """
    trace, options = Path("/sys/kernel/tracing"), Path("/sys/kernel/tracing/trace_options")
    if not options.exists():
        subprocess.run(["mount", "-t", "tracefs", "tracefs", trace], check=True)
        undo.callback(lambda: subprocess.run(["umount", trace], check=True))
    options.write_text("printk-msg-only\n")
    undo.callback(options.write_text, "noprintk-msg-only\n")
    (trace / "tracing_on").write_text("1\n")
    (trace / "trace_marker").write_text(line)
    Path("/proc/sysrq-trigger").write_text("z")


def test_each_kind_of_action_has_the_capabilities_that_it_needs(
    functions: Functions, command: Callable[..., str], act: Act, undo: ExitStack
) -> None:
    [card], [held] = functions.matching(IGB), functions.matching(E1000E)
    undo.callback(functions.write, card, "sriov_numvfs", 0)
    undo.callback(functions.write, card, "sriov_drivers_autoprobe", 1)
    assert act(SetVfs(PciAddress.parse(card), 2, autoprobe=False)) == "None"
    assert functions.read(card, "sriov_numvfs") == "2"
    interface = functions.interface(card)
    assert act(SetVf(PciAddress.parse(card), interface, 1, mac=MAC)) == "None"
    assert MAC in command("ip", "link", "show", interface)
    assert act(ReadClaim(functions.disk(functions.nvme("IDLE00001")))) == "False"
    functions.bind(held, "vfio-pci")
    group = functions.link(held, "iommu_group") or ""
    with vfio.held(group, held):
        assert f"/dev/vfio/{group}" in act(ReadOpenFiles())
    # Without the capability nobody but root may read the log.
    Path("/proc/sys/kernel/dmesg_restrict").write_text("1\n")
    slot = card.rpartition(".")[0]
    xid = f"NVRM: Xid (PCI:{slot}): %d, pid=1, x\n"
    log_as_kernel(xid % 79, undo)
    Path("/dev/kmsg").write_text(xid % 48)
    errors = act(ReadDeviceErrors())
    assert f"slot='{slot}', kind='nvidia', signal='xid', code='79'" in errors
    # A process wrote the other one.
    assert errors.count("DeviceError(") == 1


def test_format_erases_a_namespace_and_refuses_one_in_use(
    functions: Functions, mounted: Callable[[str], Path], act: Act
) -> None:
    address = functions.nvme("PLAIN0001")
    [controller] = functions.names(address, "nvme")
    disk = functions.disk(address)
    node = Path("/dev", disk)
    [number] = re.findall(r"n(\d+)$", disk)
    action = FormatNamespace(PciAddress.parse(address), controller, int(number), "user-data")

    def first_bytes() -> bytes:
        """Return what is in the disk itself."""
        command = ["dd", f"if={node}", "iflag=direct", "bs=4096", "count=1", "status=none"]
        return subprocess.run(command, capture_output=True, check=True).stdout[: len(CANARY)]

    with node.open("r+b") as file:
        file.write(CANARY)
    assert first_bytes() == CANARY
    # As a guest, ZFS or LIO claims it.
    with ExitStack() as stack:
        claim = os.open(node, os.O_RDONLY | os.O_EXCL)
        stack.callback(os.close, claim)
        assert act(action) == "EBUSY"
    assert first_bytes() == CANARY
    assert act(action) == "None"
    assert first_bytes() == bytes(len(CANARY))
    absent = FormatNamespace(PciAddress.parse(address), controller, 9, "user-data")
    assert "has no namespace 9" in act(absent)
    kept = mounted(disk) / "kept"
    kept.write_bytes(CANARY)
    assert act(action) == "EBUSY"
    subprocess.run(["umount", kept.parent], check=True)
    subprocess.run(["mount", node, kept.parent], check=True)
    assert kept.read_bytes() == CANARY
