# SPDX-License-Identifier: Apache-2.0
"""Ask the kernel which network interfaces of this network namespace carry traffic.

The answers of rtnetlink have all addresses, routes and next hops, of all families and in all
tables; ``/proc/net/route`` has the main table of IPv4 only. No privileges are necessary. The
numbers are those of linux/rtnetlink.h, linux/if_link.h, linux/nexthop.h and linux/xdp_diag.h.
"""

import contextlib
import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Final, NamedTuple


class Traffic(StrEnum):
    """What shows that an interface carries traffic; the most telling first."""

    DEFAULT_ROUTE = "default-route"
    ADDRESS = "address"
    ROUTE = "route"
    XDP = "xdp"
    PACKET_SOCKET = "packet-socket"


class Use(NamedTuple):
    """A use of an interface."""

    interface: str
    traffic: Traffic


#: The file of archives with the uses; see ``parse``.
NETWORK: Final = "/.cyborg-network"
_REQUEST_DUMP: Final = 0x301
#: NLM_F_DUMP_INTR, and how often a list is read that changes meanwhile.
_CHANGED: Final = 0x10
_ATTEMPTS: Final = 5
_HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_GETLINK, _GETADDR, _GETROUTE, _GETNEXTHOP = 18, 22, 26, 106
#: ``sock_diag``: the protocol, the request, and the family of AF_XDP.
_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _AF_XDP = 4, 20, 44
_IFLA_IFNAME, _IFLA_EXT_MASK, _IFLA_XDP, _IFLA_XDP_ATTACHED = 3, 29, 43, 2
#: RTEXT_FILTER_SKIP_STATS: the counters are half of an answer.
_SKIP_STATS: Final = 1 << 3
_IFA_ADDRESS: Final = 1
_RTA_DST, _RTA_OIF, _RTA_MULTIPATH = 1, 4, 9
_RTN_UNICAST: Final = 1
_NHA_OIF: Final = 5
_XDP_DIAG_INFO: Final = 1
#: Bytes; a message has at most 32 KiB (NLMSG_GOODSIZE).
_BUFFER: Final = 1 << 16
#: Seconds, and bytes of one list: a million routes have 60 MiB.
_TIMEOUT: Final = 10.0
_LIMIT: Final = 256 << 20
#: The errors of a kernel that does not have the kind of object.
_UNKNOWN: Final = frozenset({errno.EOPNOTSUPP, errno.ENOENT, errno.EPROTONOSUPPORT})
_PACKET_SOCKETS: Final = "/proc/net/packet"


def uses() -> list[Use]:
    """Return the uses of the interfaces of this network namespace; raises OSError."""
    names: dict[int, str] = {}
    indices: set[tuple[int, Traffic]] = set()
    link = struct.pack("=BxHiIIHHI", 0, 0, 0, 0, 0, 8, _IFLA_EXT_MASK, _SKIP_STATS)
    for body in _dump(socket.NETLINK_ROUTE, _GETLINK, link):
        (index,) = struct.unpack_from("=i", body, 4)
        name, has_program = read_link(body)
        names[index] = name
        if has_program:
            indices.add((index, Traffic.XDP))
    for kind, size, read in (
        (_GETADDR, 8, read_address),
        (_GETROUTE, 12, read_route),
        (_GETNEXTHOP, 8, read_next_hop),
    ):
        for body in _dump(socket.NETLINK_ROUTE, kind, bytes(size)):
            indices.update(read(body))
    request = struct.pack("=BBHIIII", _AF_XDP, 0, 0, 0, 1, 0xFFFFFFFF, 0xFFFFFFFF)
    for body in _dump(_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, request):
        indices.update(read_xdp_socket(body))
    # A kernel without sockets of this kind has no such file.
    with contextlib.suppress(FileNotFoundError), open(_PACKET_SOCKETS, encoding="utf-8") as file:
        indices.update(read_packet_sockets(file))
    return sorted(Use(names[index], traffic) for index, traffic in indices if index in names)


def read_link(body: bytes) -> tuple[str, bool]:
    """Return the name of an interface, and whether a program of XDP is attached to it."""
    name, has_program = "", False
    for kind, value in _attributes(body, 16):
        if kind == _IFLA_IFNAME:
            name = value.rstrip(b"\0").decode(errors="replace")
        elif kind == _IFLA_XDP:
            inner = dict(_attributes(value, 0))
            has_program = inner.get(_IFLA_XDP_ATTACHED, b"\0") != b"\0"
    return name, has_program


def read_address(body: bytes) -> Iterator[tuple[int, Traffic]]:
    """Yield the interface of an address.

    The link-local addresses that the kernel gives to every IPv6 interface that is up are not a sign
    of use.
    """
    (index,) = struct.unpack_from("=I", body, 4)
    if not _is_automatic(body[0], dict(_attributes(body, 8)).get(_IFA_ADDRESS, b"")):
        yield index, Traffic.ADDRESS


def read_route(body: bytes) -> Iterator[tuple[int, Traffic]]:
    """Yield the interfaces of a route, apart from those that link-local addresses need."""
    attributes = dict(_attributes(body, 12))
    if _is_automatic(body[0], attributes.get(_RTA_DST, b"")):
        return
    is_default = body[1] == 0 and body[7] == _RTN_UNICAST
    traffic = Traffic.DEFAULT_ROUTE if is_default else Traffic.ROUTE
    if len(value := attributes.get(_RTA_OIF, b"")) == 4:
        yield struct.unpack("=I", value)[0], traffic
    # struct rtnexthop: length, flags, hops, interface
    paths, offset = attributes.get(_RTA_MULTIPATH, b""), 0
    while offset + 8 <= len(paths):
        length, _, _, index = struct.unpack_from("=HBBi", paths, offset)
        yield index, traffic
        offset += max(8, (length + 3) & ~3)


def read_next_hop(body: bytes) -> Iterator[tuple[int, Traffic]]:
    """Yield the interface of a next hop, which routes share."""
    if len(value := dict(_attributes(body, 8)).get(_NHA_OIF, b"")) == 4:
        yield struct.unpack("=I", value)[0], Traffic.ROUTE


def read_xdp_socket(body: bytes) -> Iterator[tuple[int, Traffic]]:
    """Yield the interface to which a socket of AF_XDP is bound."""
    if len(value := dict(_attributes(body, 16)).get(_XDP_DIAG_INFO, b"")) >= 4:
        yield struct.unpack_from("=I", value)[0], Traffic.XDP


def read_packet_sockets(lines: Iterable[str]) -> Iterator[tuple[int, Traffic]]:
    """Yield the interfaces to which packet sockets are bound, from ``/proc/net/packet``.

    A socket of all interfaces has number 0.
    """
    for line in lines:
        # The address of the socket, references, type, protocol, interface …
        fields = line.split()
        if len(fields) > 4 and fields[4].isdecimal():
            yield int(fields[4]), Traffic.PACKET_SOCKET


def parse(text: str) -> list[Use]:
    """Return the uses in the form of archives: an interface and what shows its use in each line.

    Raises ValueError for a line of another form.
    """
    lines = (line.split() for line in text.splitlines() if line.strip())
    return [Use(name, Traffic(traffic)) for name, traffic in lines]


def _is_automatic(family: int, address: bytes) -> bool:
    """Return whether the kernel adds such an IPv6 address or route to an interface that is up."""
    if family != socket.AF_INET6 or len(address) != 16:
        return False
    value = ipaddress.IPv6Address(address)
    return value.is_link_local or value.is_multicast


def _attributes(body: bytes, offset: int) -> Iterator[tuple[int, bytes]]:
    """Yield the attributes from an offset on: type without its flags, and value."""
    while offset + 4 <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, offset)
        if length < 4:
            return
        yield kind & 0x3FFF, body[offset + 4 : offset + length]
        offset += (length + 3) & ~3


def _dump(protocol: int, kind: int, request: bytes) -> list[bytes]:
    """Return the bodies of all objects of a kind; none if the kernel does not have the kind."""
    for _ in range(_ATTEMPTS):
        try:
            bodies = list(_dump_once(protocol, kind, request))
        except OSError as error:
            if error.errno in _UNKNOWN:
                return []
            raise
        if None not in bodies:
            return [body for body in bodies if body is not None]
    raise OSError(errno.EAGAIN, "the list changes while it is read")


def _dump_once(protocol: int, kind: int, request: bytes) -> Iterator[bytes | None]:
    """Yield the bodies of all objects of a kind, and None where the list changed meanwhile."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol) as link:
        link.settimeout(_TIMEOUT)
        size = _HEADER.size
        link.sendto(_HEADER.pack(size + len(request), kind, _REQUEST_DUMP, 1, 0) + request, (0, 0))
        total = 0
        while True:
            answer = link.recv(_BUFFER)
            total += len(answer)
            if total > _LIMIT:
                raise OSError(errno.EFBIG, f"more than {_LIMIT} bytes")
            offset = 0
            while offset + size <= len(answer):
                length, answered, flags, _, _ = _HEADER.unpack_from(answer, offset)
                if flags & _CHANGED:
                    yield None
                if answered in (_NLMSG_DONE, _NLMSG_ERROR):
                    number = -struct.unpack_from("=i", answer, offset + size)[0]
                    if number:
                        raise OSError(number, os.strerror(number))
                    return
                yield answer[offset + size : offset + length]
                offset += max(size, (length + 3) & ~3)
