# SPDX-License-Identifier: Apache-2.0
"""One request over rtnetlink: the settings of a virtual function of a network card.

``ip link set dev IF vf N …`` sends the same request. A program of its own would lose the
capabilities of this process. The numbers are those of linux/rtnetlink.h and linux/if_link.h.
"""

import errno
import os
import struct
from dataclasses import dataclass
from typing import Final

_RTM_SETLINK: Final = 19
_NLMSG_ERROR: Final = 2
_NLM_F_REQUEST: Final = 0x1
_NLM_F_ACK: Final = 0x4
_NESTED: Final = 0x8000
_IFLA_VFINFO_LIST: Final = 22
_IFLA_VF_INFO: Final = 1
_IFLA_VF_MAC: Final = 1
_IFLA_VF_VLAN: Final = 2
_IFLA_VF_SPOOFCHK: Final = 4
_IFLA_VF_LINK_STATE: Final = 5
#: IFLA_VF_LINK_STATE_AUTO: that of the port.
_LINK_AUTO: Final = 0
_IFLA_VF_RATE: Final = 6
_IFLA_VF_TRUST: Final = 9
#: struct nlmsghdr: length, type, flags, sequence number, port.
_HEADER: Final = struct.Struct("=IHHII")
#: struct ifinfomsg: family, padding, type, index, flags, mask of changed flags.
_LINK: Final = struct.Struct("=BxHiII")
#: MAX_ADDR_LEN, the size of an address in struct ifla_vf_mac.
_ADDRESS_LENGTH: Final = 32


@dataclass(frozen=True)
class VfSettings:
    """The settings of virtual function ``vf``; None leaves a setting as it is.

    ``mac`` is ``aa:bb:cc:dd:ee:ff``, ``vlan`` 0 is none, and ``rate`` has the minimum and the
    maximum in Mbit/s, 0 for no limit.
    """

    vf: int
    mac: str | None = None
    vlan: int | None = None
    trust: bool | None = None
    spoof_check: bool | None = None
    rate: tuple[int, int] | None = None
    auto_link: bool | None = None


def vf_request(index: int, settings: VfSettings) -> bytes:
    """Return the request for the interface with this index, with an acknowledgement."""
    vf, attributes = settings.vf, b""
    if settings.mac is not None:
        address = bytes.fromhex(settings.mac.replace(":", ""))
        attributes += _attribute(_IFLA_VF_MAC, struct.pack(f"=I{_ADDRESS_LENGTH}s", vf, address))
    if settings.vlan is not None:
        attributes += _attribute(_IFLA_VF_VLAN, struct.pack("=III", vf, settings.vlan, 0))
    if settings.rate is not None:
        attributes += _attribute(_IFLA_VF_RATE, struct.pack("=III", vf, *settings.rate))
    if settings.spoof_check is not None:
        attributes += _attribute(_IFLA_VF_SPOOFCHK, struct.pack("=II", vf, settings.spoof_check))
    if settings.trust is not None:
        attributes += _attribute(_IFLA_VF_TRUST, struct.pack("=II", vf, settings.trust))
    if settings.auto_link is not None:
        attributes += _attribute(_IFLA_VF_LINK_STATE, struct.pack("=II", vf, _LINK_AUTO))
    function = _attribute(_IFLA_VF_INFO | _NESTED, attributes)
    body = _LINK.pack(0, 0, index, 0, 0) + _attribute(_IFLA_VFINFO_LIST | _NESTED, function)
    flags = _NLM_F_REQUEST | _NLM_F_ACK
    return _HEADER.pack(_HEADER.size + len(body), _RTM_SETLINK, flags, 1, 0) + body


def check_answer(answer: bytes) -> None:
    """Raise OSError with the error of an acknowledgement; return if it has none."""
    _, kind, _, _, _ = _HEADER.unpack_from(answer)
    if kind != _NLMSG_ERROR:
        raise OSError(errno.EPROTO, f"the kernel answered with message {kind}")
    (number,) = struct.unpack_from("=i", answer, _HEADER.size)
    if number:
        raise OSError(-number, os.strerror(-number))


def _attribute(kind: int, value: bytes) -> bytes:
    """Return an attribute, padded to four bytes (struct nlattr)."""
    length = 4 + len(value)
    return struct.pack("=HH", length, kind) + value + bytes(-length % 4)
