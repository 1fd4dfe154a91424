# SPDX-License-Identifier: Apache-2.0
"""Errors of devices in the log of the kernel."""

import os
from pathlib import Path

import pytest

from cyborg.drivers.kernel_log import DeviceError, find_errors
from cyborg.drivers.privileged.actions import ReadDeviceErrors
from cyborg.drivers.privileged.kernel import LinuxKernel


@pytest.mark.parametrize(
    ("text", "slot", "code"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus.", "0000:3b:00", 79),
        ("NVRM: Xid (PCI:000A:3B:00.0): 48, pid=1, name=x, An uncorrectable", "000a:3b:00", 48),
        ("NVRM: Xid (PCI:00012345:01:00 GPU-I:05): 13, Graphics SM", "00012345:01:00", 13),
    ],
)
def test_xid_is_read_with_its_gpu(text: str, slot: str, code: int) -> None:
    record = f"4,1207,5140900,-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n"
    assert find_errors(record) == [DeviceError(1207, slot, "nvidia", "xid", str(code))]


@pytest.mark.parametrize(
    "record",
    [
        "",
        "4,7,5140900,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
        # Another program quotes the driver.
        "13,7,5140900,-;systemd[1]: NVRM: Xid (PCI:0000:3b:00): 79, fallen off",
        " NVRM: Xid (PCI:0000:3b:00): 79, fallen off",
        # A process wrote it: the facility is 1.
        "12,7,5140900,-;NVRM: Xid (PCI:0000:3b:00): 79, fallen off",
        "4,7,5140900,-;NVRM: Xid (PCI:3b:00): 79, fallen off",
        "NVRM: Xid (PCI:0000:3b:00): 79, fallen off",
    ],
)
def test_other_lines_are_no_errors(record: str) -> None:
    assert find_errors(record) == []


def test_errors_are_returned_from_a_record_on_and_read_once(tmp_path: Path) -> None:
    kernel, log = LinuxKernel(str(tmp_path)), tmp_path / "dev" / "kmsg"
    log.parent.mkdir()
    xid = "4,{0},1,-;NVRM: Xid (PCI:0000:3b:00): {0}, x\n"
    log.write_text(xid.format(31) + "6,32,1,-;usb\n" + xid.format(79))
    assert [error.code for error in ReadDeviceErrors().run(kernel)] == ["31", "79"]
    # An answer may get lost: the errors are kept, and the file is not read again.
    os.truncate(log, 0)
    assert [error.code for error in ReadDeviceErrors(32).run(kernel)] == ["79"]
    assert ReadDeviceErrors(80).run(kernel) == []
