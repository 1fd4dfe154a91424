# SPDX-License-Identifier: Apache-2.0
"""Messages of the kernel about interfaces, addresses, routes and sockets.

``cyborg/tests/kernel/test_traffic.py`` has the same on a real kernel, with real devices.
"""

import struct
from ipaddress import ip_address
from socket import AF_INET, AF_INET6

import pytest

from cyborg.drivers import rtnetlink
from cyborg.drivers.rtnetlink import Traffic, Use

UNICAST, LOCAL, MAIN, OTHER = 1, 2, 254, 100


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def address(text: str, index: int) -> bytes:
    value = ip_address(text).packed
    family = AF_INET if len(value) == 4 else AF_INET6
    return struct.pack("=BBBBI", family, 64, 0, 0, index) + attribute(1, value)


def route(destination: str, *attributes: bytes, table: int = MAIN, kind: int = UNICAST) -> bytes:
    text, _, length = destination.partition("/")
    value = ip_address(text).packed
    family = AF_INET if len(value) == 4 else AF_INET6
    head = struct.pack("=BBBBBBBBI", family, int(length), 0, 0, table, 0, 0, kind, 0)
    return head + (attribute(1, value) if int(length) else b"") + b"".join(attributes)


def device(index: int) -> bytes:
    return attribute(4, struct.pack("=i", index))


def test_address_is_a_use_of_its_interface() -> None:
    for text in ("192.0.2.5", "169.254.7.7", "2001:db8::5", "fd00::5"):
        assert list(rtnetlink.read_address(address(text, 7))) == [(7, Traffic.ADDRESS)]
    assert list(rtnetlink.read_address(address("fe80::5", 7))) == []


@pytest.mark.parametrize("table", [MAIN, OTHER])
def test_route_is_a_use_in_every_table(table: int) -> None:
    for destination in ("192.0.2.0/24", "2001:db8::/64", "224.0.0.0/4"):
        body = route(destination, device(7), table=table)
        assert list(rtnetlink.read_route(body)) == [(7, Traffic.ROUTE)]
    for destination in ("0.0.0.0/0", "::/0"):
        body = route(destination, device(7), table=table)
        assert list(rtnetlink.read_route(body)) == [(7, Traffic.DEFAULT_ROUTE)]
    assert list(rtnetlink.read_route(route("::/0", device(7), kind=7))) == [(7, Traffic.ROUTE)]


def test_routes_that_the_kernel_adds_to_every_interface_are_no_use() -> None:
    for destination in ("fe80::/64", "ff00::/8", "fe80::1/128"):
        assert list(rtnetlink.read_route(route(destination, device(7)))) == []


def test_route_of_several_paths_is_a_use_of_each() -> None:
    hops = struct.pack("=HBBi", 16, 0, 0, 7) + device(99)[:8]
    hops += struct.pack("=HBBi", 8, 0, 0, 8)
    body = route("0.0.0.0/0", attribute(9, hops))
    assert list(rtnetlink.read_route(body)) == [
        (7, Traffic.DEFAULT_ROUTE),
        (8, Traffic.DEFAULT_ROUTE),
    ]
    assert list(rtnetlink.read_route(route("0.0.0.0/0"))) == []


def test_next_hop_is_a_use_of_its_interface() -> None:
    body = struct.pack("=BBBBI", AF_INET, 0, 0, 0, 0)
    assert list(rtnetlink.read_next_hop(body)) == []
    body += attribute(1, struct.pack("=I", 12)) + attribute(5, struct.pack("=I", 7))
    assert list(rtnetlink.read_next_hop(body)) == [(7, Traffic.ROUTE)]


def test_program_of_xdp_is_seen() -> None:
    head = bytes(4) + struct.pack("=iII", 7, 0, 0) + attribute(3, b"eno1\0")
    assert rtnetlink.read_link(head) == ("eno1", False)
    for attached in (0, 1, 4):
        program = attribute(43 | 0x8000, attribute(2, bytes([attached])))
        assert rtnetlink.read_link(head + program) == ("eno1", attached > 0)


def test_sockets_are_a_use_of_their_interface() -> None:
    head = struct.pack("=BBHIII", 44, 3, 0, 99, 0, 0)
    assert list(rtnetlink.read_xdp_socket(head)) == []
    body = head + attribute(1, struct.pack("=II", 7, 0))
    assert list(rtnetlink.read_xdp_socket(body)) == [(7, Traffic.XDP)]
    lines = [
        "sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n",
        "00000000e3b0c442 3      3    88cc   7     1 0      0      29134\n",
    ]
    assert list(rtnetlink.read_packet_sockets(lines)) == [(7, Traffic.PACKET_SOCKET)]


def test_cut_message_ends_the_attributes() -> None:
    body = address("192.0.2.5", 7)
    for length in range(8, len(body)):
        assert list(rtnetlink.read_address(body[:length])) == [(7, Traffic.ADDRESS)]
    assert list(rtnetlink.read_route(route("192.0.2.0/24", bytes(8)))) == []


def test_kernel_of_this_machine_is_understood() -> None:
    uses = rtnetlink.uses()
    assert Use("lo", Traffic.ADDRESS) in uses
    assert uses == sorted(set(uses))


def test_archive_has_a_line_for_each_use() -> None:
    text = "eno1 default-route\n\neno2 xdp\n"
    assert rtnetlink.parse(text) == [
        Use("eno1", Traffic.DEFAULT_ROUTE),
        Use("eno2", Traffic.XDP),
    ]
    with pytest.raises(ValueError, match="something"):
        rtnetlink.parse("eno1 something\n")
