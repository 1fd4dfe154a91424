# SPDX-License-Identifier: Apache-2.0
"""Kernel events are parsed in the kernel's format, and iteration ends after close."""

import socket
import threading

from cyborg.drivers.host import LocalHost
from cyborg.drivers.uevents import KernelEvents, Uevent, parse
from cyborg.tests.fixtures.properties import given, st

ADD = (
    b"add@/devices/pci0000:00/0000:00:05.0\0ACTION=add\0SUBSYSTEM=pci\0"
    b"PCI_SLOT_NAME=0000:00:05.0\0MODALIAS=pci:v1=2\0SEQNUM=4242\0"
)


def test_parse_returns_action_path_and_fields() -> None:
    assert parse(ADD) == Uevent(
        "add",
        "/devices/pci0000:00/0000:00:05.0",
        {
            "ACTION": "add",
            "SUBSYSTEM": "pci",
            "PCI_SLOT_NAME": "0000:00:05.0",
            "MODALIAS": "pci:v1=2",
            "SEQNUM": "4242",
        },
    )


@given(st.binary() | st.just(b"libudev\0\xfe\xed\xca\xfe"))
def test_parse_returns_none_for_other_datagrams(datagram: bytes) -> None:
    event = parse(datagram)
    assert event is None or (event.action.isalpha() and b"@" in datagram)


def test_events_are_yielded_in_order_until_close() -> None:
    ours, kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    seen: list[str] = []
    came = threading.Semaphore(0)

    def listen(events: KernelEvents) -> None:
        for event in events:
            seen.append(event.action)
            came.release()

    with kernel, KernelEvents(ours) as events:
        listener = threading.Thread(target=listen, args=(events,))
        listener.start()
        kernel.send(ADD)
        kernel.send(b"rubbish")
        kernel.send(b"remove@/devices/x\0")
        assert came.acquire(timeout=30)
        assert came.acquire(timeout=30)
        events.close()
        listener.join(timeout=30)
        assert not listener.is_alive()
    assert seen == ["add", "remove"]
    assert ours.fileno() == -1


def test_iteration_ends_immediately_after_an_earlier_close() -> None:
    ours, kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with kernel:
        events = KernelEvents(ours)
        events.close()
        events.close()
        assert list(events) == []
    assert ours.fileno() == -1
    # This machine's kernel has events, too.
    events = LocalHost().events()
    events.close()
    assert list(events) == []
