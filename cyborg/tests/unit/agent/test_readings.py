# SPDX-License-Identifier: Apache-2.0
"""Readings of several devices and drivers: one that fails or hangs costs its own only."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.agent.readings import Readings
from cyborg.drivers.base import Driver
from cyborg.drivers.scan import Scan
from cyborg.drivers.worker import Worker
from cyborg.model.device import Device, DeviceType
from cyborg.model.report import Reading
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.notifications import Notifier
from cyborg.rpc.verbs import SendReadings
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.servers import bare
from cyborg.tests.fixtures.waiting import PATIENCE, Gate, eventually

KEYS = ("1", "2")
WATTS = {"power_watts": 70.0}


class Measured(Driver):
    """A driver that answers ``stats``; it fails for the keys in ``faults``, and waits at gates."""

    def __init__(self, name: str) -> None:
        super().__init__(FakeHost(), cfg.ConfigOpts())
        self.name = name  # type: ignore[misc]
        self.faults: dict[str, Exception] = {}
        self.gates: dict[str, Gate] = {}
        self.measured: list[str] = []

    def discover(self, scan: Scan) -> list[Device]:
        return []

    def stats(self, scan: Scan, device_key: str) -> Mapping[str, float]:
        self.measured.append(device_key)
        if device_key in self.gates:
            self.gates[device_key].hold()
        if device_key in self.faults:
            raise self.faults[device_key]
        return WATTS


class Agent:
    """Readings of two drivers with two devices each, and the peers that get them."""

    enabled = False

    def __init__(self) -> None:
        self.drivers: dict[str, Measured] = {name: Measured(name) for name in ("a", "b")}
        self.sent: list[SendReadings] = []
        self.epoch: int | None = 1
        self.error: exception.CyborgError | None = None

    def request(self, command: SendReadings) -> None:
        """Answer as the conductor."""
        self.sent.append(command)
        if self.error is not None:
            raise self.error

    def readings(self, *, timeout: float = PATIENCE) -> Readings:
        return Readings(
            host="host",
            drivers=cast(Mapping[str, Driver], self.drivers),
            devices=lambda: [
                (name, Device(key, DeviceType.FPGA, "v", "m", {}, ()))
                for name in self.drivers
                for key in KEYS
            ],
            last_scan=lambda: Scan(bare()),
            providers=dict,
            epoch=lambda: self.epoch,
            conductor=cast(ConductorClient, self),
            notifier=cast(Notifier, self),
            worker=Worker(),
            timeout=timeout,
        )

    def taken(self) -> list[tuple[str, str]]:
        """Return driver and key of each reading that was sent since the last call."""
        sent, self.sent = self.sent, []
        readings: list[Any] = [reading for command in sent for reading in command.readings]
        assert all(reading == Reading(reading.driver, reading.key, WATTS) for reading in readings)
        return [(reading.driver, reading.key) for reading in readings]


@pytest.fixture
def agent() -> Iterator[Agent]:
    agent = Agent()
    yield agent
    for driver in agent.drivers.values():
        for gate in driver.gates.values():
            gate.set()


ALL = [("a", "1"), ("a", "2"), ("b", "1"), ("b", "2")]


def test_every_device_of_every_driver_is_sent_in_one_request(agent: Agent) -> None:
    agent.readings().run_once()
    assert len(agent.sent) == 1
    assert agent.taken() == ALL


def test_device_that_fails_or_cannot_be_measured_costs_its_own_reading_only(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    readings = agent.readings()
    agent.drivers["a"].faults = {"1": RuntimeError("no bus"), "2": RuntimeError("no bus")}
    agent.drivers["b"].faults = {"1": exception.DriverCannot(driver="b", verb="measure")}
    for _ in range(2):
        readings.run_once()
        assert agent.taken() == [("b", "2")]
    logged = [text for text in caplog.messages if text.startswith("Usage of ")]
    # Each of them once; one that cannot be measured is no fault.
    assert [text.split(" is not known")[0] for text in logged] == [
        "Usage of device 1 of driver a",
        "Usage of device 2 of driver a",
    ]


def test_driver_that_hangs_costs_its_own_readings_and_is_not_called_again(agent: Agent) -> None:
    gate = agent.drivers["a"].gates["2"] = Gate()
    readings = agent.readings(timeout=0.05)

    def sent() -> list[tuple[str, str]]:
        readings.run_once()
        return agent.taken()

    def of(driver: str) -> list[tuple[str, str]]:
        return [place for place in ALL if place[0] == driver]

    # What it answered before it hung counts once.
    first = sent()
    assert ("a", "2") not in first
    eventually(lambda: sent() == of("b"), "the readings of the other driver")
    eventually(lambda: agent.drivers["a"].measured == ["1", "2"], "the call that hangs")
    assert ("a", "1") not in sent()
    assert agent.drivers["a"].measured == ["1", "2"]
    gate.set()
    eventually(lambda: sent() == ALL, "the readings of all")


def test_agent_without_an_epoch_sends_nothing(agent: Agent) -> None:
    agent.epoch = None
    agent.readings().run_once()
    assert agent.sent == []
    agent.epoch, agent.error = 1, exception.Unavailable(peer="conductor", reason="away")
    with pytest.raises(exception.Unavailable):
        agent.readings().run_once()
