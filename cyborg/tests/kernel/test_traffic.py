# SPDX-License-Identifier: Apache-2.0
"""A network card with any traffic is refused, and one that a process has open."""

import mmap
import os
import socket
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from cyborg.drivers.host import LocalHost
from cyborg.drivers.scan import Scan
from cyborg.model.pci import PciAddress
from cyborg.tests.kernel.another import another_process
from cyborg.tests.kernel.functions import BUS, E1000E, IGB, Functions

_WAIT = "until grep -q 1 /sys/class/net/NAME/carrier; do sleep 1; done"
#: What is done to the interface NAME, how it is undone, and a part of the reason.
USES = {
    "VLAN without an address": (
        "ip link add link NAME name NAME.7 type vlan id 7",
        "ip link delete NAME.7",
        "is below NAME.7",
    ),
    "macvtap": (
        "ip link add link NAME name tap7 type macvtap",
        "ip link delete tap7",
        "is below tap7",
    ),
    "bridge": (
        "ip link add bridge7 type bridge && ip link set NAME master bridge7",
        "ip link delete bridge7",
        "is a port of bridge7",
    ),
    "address": (
        "ip address add 198.51.100.7/32 dev NAME noprefixroute",
        "ip address flush dev NAME",
        "has an address",
    ),
    "IPVLAN": (
        "ip link add link NAME name vlan7 type ipvlan mode l2",
        "ip link delete vlan7",
        "is below vlan7",
    ),
    "route of another table": (
        "ip link set NAME up && ip route add 198.51.100.0/24 dev NAME table 77",
        "ip route flush table 77; ip link set NAME down",
        "carries a route",
    ),
    "next hop": (
        f"ip link set NAME up && {_WAIT} && ip nexthop add id 77 dev NAME",
        "ip nexthop delete id 77; ip link set NAME down",
        "carries a route",
    ),
}


def refusal(address: str) -> str:
    """Return why a function is not offered; empty if it is."""
    scan = Scan(LocalHost())
    function = scan.functions[PciAddress.parse(address)]
    return scan.refusal(function, managed=False) or ""


@pytest.fixture
def port(functions: Functions) -> str:
    """Return the address of an idle network card."""
    [address] = functions.matching(E1000E)
    # The network of QEMU has a router, which would give the interface an address.
    Path(f"/proc/sys/net/ipv6/conf/{functions.interface(address)}/accept_ra").write_text("0")
    assert refusal(address) == ""
    return address


@pytest.mark.parametrize("use", USES)
def test_port_with_traffic_is_refused(
    functions: Functions, port: str, undo: ExitStack, use: str
) -> None:
    name = functions.interface(port)
    make, end, reason = (text.replace("NAME", name) for text in USES[use])
    undo.callback(subprocess.run, ["sh", "-c", end], check=False)
    subprocess.run(["sh", "-c", make], check=True)
    assert f"its interface {name} {reason}" in refusal(port)
    undo.close()
    assert refusal(port) == ""


def test_port_that_is_only_up_is_offered(
    functions: Functions, port: str, command: Callable[..., str], undo: ExitStack
) -> None:
    """The kernel gives it a link-local address, and routes to this."""
    name = functions.interface(port)
    undo.callback(command, "ip", "link", "set", name, "down")
    command("ip", "link", "set", name, "up")
    assert refusal(port) == ""


def test_port_with_a_packet_socket_is_refused(functions: Functions, port: str) -> None:
    name = functions.interface(port)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as listener:
        # A socket of all interfaces is no use of one.
        assert refusal(port) == ""
        listener.bind((name, 3))
        assert f"its interface {name} has a packet socket" in refusal(port)
    assert refusal(port) == ""


def test_virtual_functions_of_a_port_in_use_are_offered(
    functions: Functions, command: Callable[..., str], undo: ExitStack
) -> None:
    [card] = functions.matching(IGB)
    virtual, _ = functions.create_vfs(card, 2)
    name = functions.interface(card)
    command("ip", "link", "add", "link", name, "name", f"{name}.7", "type", "vlan", "id", "7")
    undo.callback(command, "ip", "link", "delete", f"{name}.7")
    assert f"is below {name}.7" in refusal(card)
    assert refusal(virtual) == ""


@pytest.mark.parametrize("mapped", [False, True])
def test_card_whose_memory_a_process_has_is_refused(
    functions: Functions, port: str, mapped: bool
) -> None:
    path = os.path.realpath(functions.path(port, "resource0"))
    code = "file = os.open(path, os.O_RDWR)"
    if mapped:
        # The mapping of Python keeps a copy of the descriptor.
        code += f"; memory = mmap.mmap(file, {mmap.PAGESIZE}); os.closerange(3, 256)"
    with another_process(code, path) as process:
        reason = refusal(port)
        assert f"its device file {path} is open in python" in reason
        assert f"(process {process})" in reason
    assert refusal(port) == ""


def test_controller_whose_generic_node_a_process_has_open_is_refused(
    functions: Functions,
) -> None:
    address = functions.nvme("IDLE00001")
    disk = functions.disk(address)
    node = Path("/dev", disk.replace("nvme", "ng"))
    assert node.exists()
    with another_process("file = os.open(path, os.O_RDONLY)", str(node)) as process:
        assert refusal(address).startswith(f"its device file {node} is open in python")
        assert f"(process {process})" in refusal(address)
    assert refusal(address) == ""
    # This process and those that it has started do not count.
    file = os.open(node, os.O_RDONLY)
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[file])
    try:
        assert refusal(address) == ""
    finally:
        os.close(file)
        child.communicate()


def test_uio_node_that_a_process_has_open_is_known_as_that_of_its_card(
    functions: Functions, port: str, host: LocalHost
) -> None:
    """A network card with this driver is refused in any case: it has no interface."""
    functions.bind(port, "uio_pci_generic")
    [name] = os.listdir(f"{BUS}/devices/{port}/uio")
    assert "the agent does not see its interface" in refusal(port)
    with another_process("file = os.open(path, os.O_RDWR)", f"/dev/{name}"):
        assert host.open_files().devices[f"/dev/{name}"].endswith(f"{port}/uio/{name}")
