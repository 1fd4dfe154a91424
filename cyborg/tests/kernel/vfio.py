# SPDX-License-Identifier: Apache-2.0
"""Hold a PCI function through VFIO as a hypervisor does: include/uapi/linux/vfio.h."""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

_GET_STATUS = 0x3B67
_SET_CONTAINER = 0x3B68
_SET_IOMMU = 0x3B66
_GET_DEVICE = 0x3B6A
_VIABLE = 1
_TYPE1 = 1


def is_viable(group: str) -> bool:
    """Return whether no function of the IOMMU group has a driver of the host."""
    with _open(f"/dev/vfio/{group}") as file:
        _size, flags = struct.unpack("II", fcntl.ioctl(file, _GET_STATUS, struct.pack("II", 8, 0)))
    return bool(flags & _VIABLE)


@contextmanager
def held(group: str, address: str) -> Iterator[int]:
    """Keep the device open in the block, as a guest with this function does.

    Raises OSError when the kernel refuses it, for example because the group is not viable.
    """
    with _open("/dev/vfio/vfio") as container, _open(f"/dev/vfio/{group}") as file:
        fcntl.ioctl(file, _SET_CONTAINER, struct.pack("i", container))
        fcntl.ioctl(container, _SET_IOMMU, _TYPE1)
        # Only with a mutable buffer does this function return the result of the call.
        device = fcntl.ioctl(file, _GET_DEVICE, bytearray(f"{address}\0", "ascii"))
        try:
            yield device
        finally:
            os.close(device)


@contextmanager
def _open(path: str) -> Iterator[int]:
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        yield file
    finally:
        os.close(file)
