# SPDX-License-Identifier: Apache-2.0
"""Divided cards beside each other: each has its own virtual functions and its own users."""

from cyborg.drivers import vf_layout
from cyborg.drivers.scan import Scan
from cyborg.model.pci import PciAddress
from cyborg.testing import servers, situations
from cyborg.testing.fake_host import FakeHost

FIRST, SECOND = "0000:18:00.0", "0000:19:00.0"
VFS = {card: tuple(f"{card[:-4]}01.{number}" for number in range(2)) for card in (FIRST, SECOND)}


def two_cards() -> FakeHost:
    host = servers.bare()
    for card, vfs in VFS.items():
        servers.add_function(host, card, "8086:37c8:0b4000", driver="c6xx")
        servers.add_vfs(host, card, vfs, "8086:37c9:0b4000")
    return host


def division(host: FakeHost, card: str, desired: int = 0) -> vf_layout.Division:
    scan = Scan(host)
    return vf_layout.read(scan, scan.functions[PciAddress.parse(card)], desired)


def test_each_card_has_its_own_virtual_functions() -> None:
    host = two_cards()
    for card, vfs in VFS.items():
        read = division(host, card)
        assert (read.current, read.refusal) == (2, None)
        assert [str(function.address) for function in read.virtual] == list(vfs)
        assert read.deployables("node") == {f"node_{address}" for address in (card, *vfs)}


def test_guest_of_one_card_does_not_keep_another_card() -> None:
    """Of its own card, any function keeps it."""
    for vf in VFS[FIRST]:
        host = two_cards()
        situations.hold(host, vf)
        assert division(host, SECOND).refusal is None
        refusal = str(division(host, FIRST).refusal)
        assert refusal.startswith(f"its virtual function {vf}: held through VFIO")
