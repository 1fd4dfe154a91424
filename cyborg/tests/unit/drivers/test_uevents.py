# SPDX-License-Identifier: Apache-2.0
"""Kernel events are received until close, and lost ones are told."""

import errno
import os
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest
import pyudev

from cyborg.drivers.host import LocalHost
from cyborg.drivers.uevents import OVERFLOW, KernelEvents, Uevent
from cyborg.tests.fixtures.waiting import joined

ADD = Uevent(
    "add", "/devices/virtual/vfio/7", {"SUBSYSTEM": "vfio", "DEVNAME": "vfio/7", "SEQNUM": "42"}
)


class Monitor:
    """Events that a test sends, in place of the kernel."""

    def __init__(self) -> None:
        self._socket, self._sender = socket.socketpair()
        self._events: list[Uevent | OSError] = []

    def send(self, event: Uevent | OSError) -> None:
        self._events.append(event)
        self._sender.send(b"x")

    def fileno(self) -> int:
        return self._socket.fileno()

    def poll(self, timeout: float) -> SimpleNamespace | None:
        assert timeout == 0
        self._socket.recv(1)
        event = self._events.pop(0)
        if isinstance(event, OSError):
            raise event
        # As libudev, which completes the name of the device.
        fields = {
            name: f"/dev/{value}" if name == "DEVNAME" else value
            for name, value in event.fields.items()
        }
        return SimpleNamespace(action=event.action, device_path=event.devpath, properties=fields)

    def close(self) -> None:
        self._socket.close()
        self._sender.close()


@pytest.fixture
def kernel() -> Iterator[Monitor]:
    made = Monitor()
    yield made
    made.close()


@pytest.fixture
def events(kernel: Monitor) -> Iterator[KernelEvents]:
    with KernelEvents(cast(pyudev.Monitor, kernel)) as made:
        yield made


def test_events_come_in_order_and_lost_ones_are_an_overflow(
    kernel: Monitor, events: KernelEvents
) -> None:
    kernel.send(ADD)
    kernel.send(OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS)))
    assert events.poll() == ADD
    assert events.poll() == Uevent(OVERFLOW)
    assert events.poll(0.0) is None
    kernel.send(OSError(errno.EIO, os.strerror(errno.EIO)))
    with pytest.raises(OSError, match="Input/output"):
        events.poll()


def test_close_ends_a_poll_in_another_thread(events: KernelEvents) -> None:
    answers: list[Uevent | None] = []
    listener = threading.Thread(target=lambda: answers.append(events.poll()))
    listener.start()
    events.close()
    events.close()
    joined(listener)
    assert (answers, events.closed) == ([None], True)
    assert events.poll() is None


def test_events_of_this_machine_can_be_received() -> None:
    with LocalHost().events() as events:
        assert events.poll(0.0) is None or not events.closed
