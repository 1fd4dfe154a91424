# SPDX-License-Identifier: Apache-2.0
"""Kernel events start a scan soon, once for each burst."""

import errno
import logging
import os
import threading
from collections.abc import Iterator, Sequence

import pytest

from cyborg import exception
from cyborg.agent.device_events import DeviceEvents
from cyborg.drivers.host import Events
from cyborg.drivers.uevents import OVERFLOW, Uevent
from cyborg.testing.fake_host import FakeEvents, FakeHost
from cyborg.tests.fixtures.waiting import acquired

PCI = Uevent("add", "/devices/pci0000:00/0000:00:05.0", {"SUBSYSTEM": "pci"})
TTY = Uevent("change", "/devices/virtual/tty/tty1", {"SUBSYSTEM": "tty"})


class Machine(FakeHost):
    """A host with one stream of events, or an error."""

    def __init__(self) -> None:
        super().__init__()
        self.stream: FakeEvents = FakeEvents()
        self.error: exception.HostError | None = None

    def events(self) -> FakeEvents:
        if self.error is not None:
            raise self.error
        return self.stream


class BrokenEvents(FakeEvents):
    """A stream that the kernel ends."""

    def poll(self, timeout: float | None = None) -> Uevent | None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


class Storm(FakeEvents):
    """A stream with an event every 0.01 seconds, for 10 seconds of a clock of its own."""

    seconds = 0.0

    def poll(self, timeout: float | None = None) -> Uevent | None:
        self.seconds += 0.01
        return None if self.closed or self.seconds > 10 else PCI


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def rounds() -> threading.Semaphore:
    return threading.Semaphore(0)


@pytest.fixture
def told() -> list[Uevent]:
    """The events that the checks of the health were told."""
    return []


@pytest.fixture
def listening(
    machine: Machine, rounds: threading.Semaphore, told: list[Uevent], burst: Sequence[Uevent]
) -> Iterator[Events]:
    # The longest time of a burst never ends.
    events = DeviceEvents(machine, rounds.release, told.extend, clock=lambda: 0.0)
    # A burst that has begun before the agent listens.
    for event in burst:
        machine.stream.emit(event)
    events.start()
    yield machine.stream
    events.stop()
    events.wait()


@pytest.mark.parametrize("burst", [[PCI] * 50, [Uevent(OVERFLOW)] * 50], ids=["pci", "overflow"])
def test_a_burst_of_events_starts_one_scan(
    listening: Events, machine: Machine, rounds: threading.Semaphore, burst: Sequence[Uevent]
) -> None:
    acquired(rounds)
    assert not rounds.acquire(blocking=False)
    machine.stream.emit(burst[0])
    acquired(rounds)


@pytest.mark.parametrize("burst", [[TTY, PCI, TTY, PCI]])
@pytest.mark.usefixtures("listening")
def test_the_health_is_told_each_event_before_the_scan(
    rounds: threading.Semaphore, told: list[Uevent]
) -> None:
    acquired(rounds)
    assert told == [PCI, PCI]


def test_events_that_never_stop_do_not_delay_the_scan_for_ever(machine: Machine) -> None:
    storm = machine.stream = Storm()
    events = DeviceEvents(machine, storm.close, clock=lambda: storm.seconds)
    events.start()
    events.wait()
    assert storm.seconds < 1


def test_events_of_other_devices_start_no_scan(
    machine: Machine, rounds: threading.Semaphore
) -> None:
    events = DeviceEvents(machine, rounds.release)
    machine.stream.emit(TTY)
    machine.stream.emit(PCI)
    events.start()
    acquired(rounds)
    events.stop()
    events.wait()
    assert not rounds.acquire(blocking=False)


def test_a_machine_without_events_is_logged_and_stops(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.error = exception.HostError(action="listening", reason="no libudev")
    events = DeviceEvents(machine, lambda: None)
    events.start()
    events.stop()
    events.wait()
    machine.error, machine.stream = None, BrokenEvents()
    events.start()
    events.wait()
    events.stop()
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "no libudev" in caplog.text
    assert "Input/output error" in caplog.text
