# SPDX-License-Identifier: Apache-2.0
"""Which PCI functions belong to the machine itself, whatever an operator selects.

The board management controller (BMC), its display and the serial console are how operators reach
the machine, and some network cards of NVIDIA's GPU boards manage the NVLink fabric of all guests.
"""

import errno
from collections.abc import Iterable
from typing import Final

from cyborg import exception
from cyborg.drivers.files import is_missing
from cyborg.drivers.host import Host
from cyborg.drivers.pci_function import PciFunction
from cyborg.drivers.privileged.actions import ReadVpd

#: Classes of the PCI Code and ID Assignment Specification without their programming interface:
#: serial port, and USB host controller. A console may be on each of them, and the keyboard and the
#: virtual media of a BMC are behind the second.
_CLASSES: Final = {
    0x0700: "it is a serial port, which may be the console of the host",
    0x0C03: "it is a USB controller, with which the host and its BMC are operated",
}
#: The vendor ASPEED makes BMCs only; the ids of others are from pci.ids: display of Matrox (G200e
#: and later), HPE iLO and Huawei iBMC.
_BMC_VENDOR: Final = 0x1A03
_BMC: Final = frozenset(
    {
        *((0x102B, product) for product in (0x0522, 0x0524, 0x0530, 0x0532, 0x0533, 0x0534)),
        *((0x102B, product) for product in (0x0536, 0x0538)),
        *((0x103C, product) for product in (0x3300, 0x3306, 0x3307)),
        (0x19E5, 0x1711),
    }
)
_NVIDIA, _MELLANOX, _CONNECTX_7 = 0x10DE, 0x15B3, 0x1021
_GPU, _NVSWITCH = 0x0302, 0x0680
#: The field of the Vital Product Data of a ConnectX-7 that manages NVSwitches, and how much of the
#: data is read, in bytes. Source: NVIDIA Fabric Manager User Guide, HGX B200 and B300.
_MANAGER: Final = b"SMDL=SW_MNG"
_VPD_LIMIT: Final = 4096


def reason(function: PciFunction) -> str | None:
    """Return a clause that says why a function belongs to the machine, None if it does not."""
    if function.vendor == _BMC_VENDOR or (function.vendor, function.product) in _BMC:
        return "it is a part of the BMC, with which the host is operated"
    return _CLASSES.get(function.class_code >> 8)


def may_manage_nvlink(function: PciFunction) -> bool:
    """Return whether a function is of the kind that manages NVSwitches on some boards."""
    return (function.vendor, function.product) == (_MELLANOX, _CONNECTX_7)


def manager_reason(
    host: Host, function: PciFunction, functions: Iterable[PciFunction]
) -> str | None:
    """Return a clause that says why a ConnectX-7 may manage the NVLink fabric, None if it does not.

    The boards HGX B200 and B300 have four such cards in place of the NVSwitches of earlier boards:
    a guest with one of them manages the links between the GPUs of all guests. ``functions`` are
    those of the host. The VPD is read with privileges where the agent may not read it.
    """
    try:
        vpd = _vpd(host, function)
    except exception.HostError as error:
        classes = {other.class_code >> 8 for other in functions if other.vendor == _NVIDIA}
        if _GPU in classes and _NVSWITCH not in classes:
            return f"it may manage the NVLink fabric of the host: {error}"
        return None
    if _MANAGER in vpd:
        return "it manages the NVLink fabric of all GPUs of the host (SMDL=SW_MNG in its VPD)"
    return None


def _vpd(host: Host, function: PciFunction) -> bytes:
    """Return the Vital Product Data of a function, empty if it has none."""
    try:
        return host.read_start(f"/sys/bus/pci/devices/{function.address}/vpd", _VPD_LIMIT)[0]
    except exception.HostError as error:
        if is_missing(error):
            return b""
        if error.fields.get("errno") not in (errno.EACCES, errno.EPERM):
            raise
    return bytes.fromhex(host.privileged.run(ReadVpd(function.address)))
