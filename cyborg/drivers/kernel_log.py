# SPDX-License-Identifier: Apache-2.0
"""The errors of devices that drivers of the host write into the log of the kernel.

Only these errors leave the process that reads the log, which has addresses of the kernel and lines
of other programs. What a process wrote into the log is no error: the kernel lets nobody write with
its own facility.

Source: Documentation/ABI/testing/dev-kmsg of Linux, and XID Errors of NVIDIA,
https://docs.nvidia.com/deploy/xid-errors/.
"""

import re
from typing import Final, NamedTuple

#: The file of the log.
PATH: Final = "/dev/kmsg"
#: The drivers of the host that write such errors.
DRIVERS: Final = ("nvidia",)
#: A record: priority, sequence number, microseconds and flags; then the text. Lines with more facts
#: of the record begin with a space. A priority above 7 has a facility: a process wrote the record.
_RECORD: Final = re.compile(r"[0-7],([0-9]+),[0-9]+,[^;]*;(.*)")
#: The driver names the GPU without its function, and adds the MIG instance where there is one.
_XID: Final = re.compile(
    r"NVRM: Xid \(PCI:([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})(?:\.[0-7])?(?: [^)]*)?\): ([0-9]+)\b",
    re.IGNORECASE,
)


class DeviceError(NamedTuple):
    """An error as the health policy names it; ``slot`` is a PCI address without the function.

    ``sequence`` is the number of its record, which rises as long as the kernel runs. It alone
    orders errors and recoveries: printk takes the time of a record from local_clock(), which no
    other clock follows, and an event of the kernel has no time (Linux: vprintk_store in
    kernel/printk/printk.c).
    """

    sequence: int
    slot: str
    kind: str
    signal: str
    code: str


def find_errors(text: str) -> list[DeviceError]:
    """Return the errors in records of the log."""
    errors = []
    for line in text.splitlines():
        record = _RECORD.match(line)
        if record is not None and (xid := _XID.match(record[2])) is not None:
            sequence, slot = int(record[1]), xid[1].lower()
            errors.append(DeviceError(sequence, slot, "nvidia", "xid", xid[2]))
    return errors
