# SPDX-License-Identifier: Apache-2.0
"""Health checks: one poll of a driver at a time; answers and faults are in the report."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from oslo_config import cfg

from cyborg.agent.health import HealthChecks
from cyborg.drivers.base import Driver, Health
from cyborg.drivers.scan import Scan
from cyborg.model.device import AttachHandle, AttachType, Deployable, Device, DeviceType
from cyborg.model.health import Condition, DeviceHealth
from cyborg.model.report import DriverReport, DriverState, Report
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.servers import bare

UNIT = Deployable("unit", "FPGA", "d", (AttachHandle("k", AttachType.PCI, {"bus": "81"}),))
DEVICE = Device("a", DeviceType.FPGA, "vendor", "model", {"bus": "81"}, (UNIT,))
DEVICES = (DEVICE, replace(DEVICE, key="b"))
OK = (DeviceHealth("a", Condition.OK), DeviceHealth("b", Condition.OK))


class Unchecked(Driver):
    """A driver without health checks."""

    name = "unchecked"

    def __init__(self) -> None:
        super().__init__(FakeHost(), cfg.ConfigOpts())

    def discover(self, scan: Scan) -> list[Device]:
        """See Driver."""
        return list(DEVICES)


class Checked(Unchecked):
    """A driver with ``answers`` by key; a check waits for the event of its key in ``gates``."""

    name = "checked"

    def __init__(self, **answers: Any) -> None:
        super().__init__()
        self.answers = answers
        self.gates: dict[str, threading.Event] = {}
        self.polled: list[str] = []

    def health(self, scan: Scan, device_key: str) -> Health:
        """See Driver."""
        self.polled.append(device_key)
        if device_key in self.gates:
            assert self.gates[device_key].wait(60), "a test did not set the event"
        if device_key not in self.answers:
            self._cannot(f"tell the health of {device_key}")
        answer = self.answers[device_key]
        if isinstance(answer, Exception):
            raise answer
        health: Health = answer
        return health


def healthy() -> Checked:
    return Checked(a=Health(healthy=True), b=Health(healthy=True))


def report_of(driver: Driver) -> Report:
    return Report((DriverReport(driver.name, DriverState.READY, DEVICES),))


@pytest.fixture
def changes() -> list[str]:
    """One entry for each call of ``on_change``."""
    return []


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


Make = Callable[..., HealthChecks]


@pytest.fixture
def make(changes: list[str]) -> Make:
    def make_checks(
        *drivers: Driver,
        last_report: Report | None = None,
        enabled: bool = True,
        timeout: float = 30.0,
    ) -> HealthChecks:
        return HealthChecks(
            drivers={driver.name: driver for driver in drivers},
            devices=lambda: [(driver.name, device) for driver in drivers for device in DEVICES],
            last_scan=lambda: Scan(bare()),
            last_report=last_report,
            on_change=lambda: changes.append("changed"),
            enabled=enabled,
            timeout=timeout,
        )

    return make_checks


def with_health(checks: HealthChecks, driver: Driver) -> DriverReport:
    """Return the report of a driver with the health of its devices."""
    (report,) = checks.add_health(report_of(driver)).drivers
    return report


def test_devices_are_polled_once_before_their_first_report(make: Make) -> None:
    driver = healthy()
    checks = make(driver)
    assert with_health(checks, driver).health == ()
    checks.poll_new(report_of(driver), Scan(bare()))
    checks.poll_new(report_of(driver), Scan(bare()))
    assert with_health(checks, driver).health == OK
    assert driver.polled == ["a", "b"]


def test_a_driver_without_checks_adds_no_health(make: Make, changes: list[str]) -> None:
    driver = Unchecked()
    checks = make(driver)
    checks.poll_new(report_of(driver), Scan(bare()))
    checks.run_once()
    assert checks.after_set_up(driver.name, "a") is None
    assert checks.add_health(report_of(driver)) == report_of(driver)
    assert changes == []


def test_a_device_that_the_driver_cannot_check_has_no_health(make: Make) -> None:
    driver = Checked(a=Health(healthy=True))
    checks = make(driver)
    checks.poll_new(report_of(driver), Scan(bare()))
    report = with_health(checks, driver)
    assert (report.health, report.error) == ((OK[0], DeviceHealth("b")), None)


def test_a_bad_health_without_a_reason_gets_a_default_reason(make: Make) -> None:
    driver = Checked(a=Health(healthy=False), b=Health(healthy=False, reason="two\nlines"))
    checks = make(driver)
    checks.poll_new(report_of(driver), Scan(bare()))
    assert with_health(checks, driver).health == (
        DeviceHealth("a", Condition.DRAIN, "Its driver gives no reason."),
        DeviceHealth("b", Condition.DRAIN, "two lines"),
    )


@pytest.mark.parametrize("odd", [RuntimeError("broken"), "fine", None, Health("yes")])  # type: ignore[arg-type]
def test_a_check_that_fails_keeps_the_last_answer_and_reports_the_error(
    make: Make, odd: Any, changes: list[str]
) -> None:
    driver = healthy()
    checks = make(driver)
    checks.poll_new(report_of(driver), Scan(bare()))
    driver.answers["b"] = odd
    assert checks.after_set_up(driver.name, "b") is None
    report = with_health(checks, driver)
    assert report.health == OK
    assert report.error is not None
    assert report.error.startswith("The health of a device is not known: b: ")
    before = len(changes)
    # The same fault again is not a change.
    checks.after_set_up(driver.name, "b")
    assert len(changes) == before
    driver.answers["b"] = Health(healthy=True)
    assert checks.after_set_up(driver.name, "b") == OK[1]
    assert with_health(checks, driver).error is None
    assert len(changes) == before + 1


def test_a_fault_of_a_check_does_not_replace_another_error(make: Make) -> None:
    driver = Checked(a=RuntimeError("broken"), b=RuntimeError("broken"))
    checks = make(driver)
    checks.poll_new(report_of(driver), Scan(bare()))
    (plain,) = report_of(driver).drivers
    (report,) = checks.add_health(Report((replace(plain, error="no backends"),))).drivers
    assert report.error == "no backends"
    assert str(with_health(checks, driver).error).endswith("(and 1 more)")


def test_a_driver_that_hangs_is_polled_once_and_blocks_no_other(
    make: Make, gate: threading.Event
) -> None:
    stuck, other = healthy(), healthy()
    other.name = "other"  # type: ignore[misc]
    stuck.gates = {"a": gate}
    checks = make(stuck, other, timeout=0.01)
    both = Report((*report_of(stuck).drivers, *report_of(other).drivers))
    checks.poll_new(both, Scan(bare()))
    checks.poll_new(both, Scan(bare()))
    checks.run_once()
    assert checks.after_set_up(stuck.name, "b") is None
    assert stuck.polled == ["a"]
    report = with_health(checks, stuck)
    assert report.health == ()
    assert report.error == (
        "The health of a device is not known: a: it has not answered yet (and 1 more)"
    )


def test_a_driver_that_is_loaded_again_does_not_wait_for_its_previous_instance(
    make: Make, gate: threading.Event, changes: list[str]
) -> None:
    stuck, reloaded = healthy(), healthy()
    stuck.gates = {"a": gate}
    drivers: dict[str, Driver] = {stuck.name: stuck}
    checks = HealthChecks(
        drivers=drivers,
        devices=list,
        last_scan=lambda: Scan(bare()),
        last_report=None,
        on_change=lambda: changes.append("changed"),
        timeout=0.01,
    )
    checks.poll_new(report_of(stuck), Scan(bare()))
    reloaded.answers["a"] = Health(healthy=False, reason="hot")
    drivers[reloaded.name] = reloaded
    health = None
    while health is None:
        health = checks.after_set_up(reloaded.name, "a")
    assert health == DeviceHealth("a", Condition.DRAIN, "hot")
    # The late answer of the previous instance is dropped.
    gate.set()
    for thread in threading.enumerate():
        if thread.name == "health-checked":
            thread.join()
    assert with_health(checks, reloaded).health[0] == health


def test_the_answers_of_the_last_report_count_until_there_are_newer_ones(make: Make) -> None:
    driver = healthy()
    faults = (DeviceHealth("a", Condition.DRAIN, "hot"), DeviceHealth("b", Condition.DEAD, "gone"))
    (plain,) = report_of(driver).drivers
    checks = make(driver, last_report=Report((replace(plain, health=faults),)))
    assert with_health(checks, driver).health == faults
    checks.poll_new(report_of(driver), Scan(bare()))
    assert with_health(checks, driver).health == OK


def test_an_agent_with_checks_disabled_reports_no_health(make: Make) -> None:
    driver = healthy()
    checks = make(driver, enabled=False)
    checks.poll_new(report_of(driver), Scan(bare()))
    checks.run_once()
    assert checks.after_set_up(driver.name, "a") is None
    assert driver.polled == []
    assert with_health(checks, driver).health == (DeviceHealth("a"), DeviceHealth("b"))


def test_a_driver_that_lost_its_checks_reports_no_health(make: Make) -> None:
    driver = Unchecked()
    (plain,) = report_of(driver).drivers
    checks = make(driver, last_report=Report((replace(plain, health=OK[:1]),)))
    assert with_health(checks, driver).health == (DeviceHealth("a"),)
