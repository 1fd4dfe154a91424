# SPDX-License-Identifier: Apache-2.0
"""The scan with several drivers, and with the second instance of one."""

from collections.abc import Callable

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.agent.driver_manager import DriverManager
from cyborg.agent.health import HealthChecks
from cyborg.agent.reporter import Reporter
from cyborg.drivers import health_policy
from cyborg.drivers.base import Driver
from cyborg.drivers.loader import LoadResult
from cyborg.drivers.scan import Scan
from cyborg.drivers.worker import Worker
from cyborg.model.device import Device, DeviceType
from cyborg.model.report import DriverState, RequestedDriver
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.servers import bare
from cyborg.tests.fixtures.waiting import PATIENCE, Gate, eventually

DEVICE = Device("key", DeviceType.FPGA, "vendor", "model", {}, ())


class Scripted(Driver):
    """A driver whose devices ``answer`` returns."""

    def __init__(self, name: str, answer: Callable[[], list[Device]] = lambda: [DEVICE]) -> None:
        super().__init__(FakeHost(), cfg.ConfigOpts())
        self.name = name  # type: ignore[misc]
        self._answer = answer

    def discover(self, scan: Scan) -> list[Device]:
        return self._answer()


def failing() -> list[Device]:
    raise exception.HostError(action="reading", reason="EIO")


def reporter_of(*drivers: Scripted, timeout: float = PATIENCE) -> Reporter:
    def load(name: str, options: object) -> LoadResult:
        return LoadResult(name, Scripted(name))

    manager = DriverManager([LoadResult(driver.name, driver) for driver in drivers], load)
    worker = Worker()
    checks = HealthChecks(
        drivers={},
        devices=tuple,
        last_scan=lambda: Scan(bare()),
        policy=health_policy.shipped(),
        last_report=None,
        on_change=lambda: None,
        worker=worker,
        enabled=False,
    )
    return Reporter(manager, checks, worker, timeout=timeout)


def test_second_instance_of_a_driver_that_hangs_is_scanned_at_once() -> None:
    gate = Gate()

    def hang() -> list[Device]:
        gate.hold()
        return []

    reporter = reporter_of(Scripted("stuck", hang), timeout=0.05)
    (report,) = reporter.scan(Scan(bare())).drivers
    assert report.state is DriverState.FAILED
    reporter.driver_manager.apply([RequestedDriver("stuck", options={"a": "b"})])

    def devices() -> tuple[Device, ...]:
        return reporter.scan(Scan(bare())).drivers[0].devices

    eventually(lambda: devices() == (DEVICE,), "the devices of the second instance")
    # What the first one says in the end does not count.
    gate.set()
    eventually(lambda: reporter.current_call == "", "the end of the first call")
    eventually(lambda: devices() == (DEVICE,), "the devices of the second instance")


@pytest.mark.parametrize("scanned", [False, True])
def test_host_works_while_one_of_its_drivers_works(scanned: bool) -> None:
    reporter = reporter_of(Scripted("a", failing), Scripted("b"), Scripted("c", failing))
    if scanned:
        reporter.scan(Scan(bare()))
    assert reporter.failure() == ""


def test_failure_of_a_host_names_the_reason_of_each_driver() -> None:
    reporter = reporter_of(Scripted("a", failing), Scripted("b", failing))
    reporter.scan(Scan(bare()))
    text = "Driver {} failed in discover: reading failed: EIO"
    assert reporter.failure() == (f"No driver works: a: {text.format('a')}; b: {text.format('b')}.")
