# SPDX-License-Identifier: Apache-2.0
"""Checks of health: one question at a time, answers in the report, faults beside them."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from oslo_config import cfg

from cyborg.agent.health import HealthChecks
from cyborg.drivers.base import EMPTY_CONTEXT, Driver, DriverContext, Health
from cyborg.model.device import AttachHandle, AttachType, Deployable, Device, DeviceType
from cyborg.model.health import Condition, DeviceHealth
from cyborg.model.report import DriverReport, DriverState, Report
from cyborg.testing.fake_host import FakeHost

UNIT = Deployable("unit", "FPGA", "d", (AttachHandle("k", AttachType.PCI, {"bus": "81"}),))
DEVICE = Device("a", DeviceType.FPGA, "vendor", "model", {"bus": "81"}, (UNIT,))
DEVICES = (DEVICE, replace(DEVICE, key="b"))
OK = (DeviceHealth("a", Condition.OK), DeviceHealth("b", Condition.OK))


class Silent(Driver):
    """A driver that has no health checks."""

    name = "silent"

    def __init__(self) -> None:
        super().__init__(FakeHost(), cfg.ConfigOpts())

    def discover(self, context: DriverContext = EMPTY_CONTEXT) -> list[Device]:
        """See Driver."""
        return list(DEVICES)


class Checked(Silent):
    """``answers`` by key; the check of a key in ``shut`` does not end before its gate opens."""

    name = "checked"

    def __init__(self, **answers: Any) -> None:
        super().__init__()
        self.answers = answers
        self.shut: dict[str, threading.Event] = {}
        self.asked: list[str] = []

    def health(self, device_key: str) -> Health:
        """See Driver."""
        self.asked.append(device_key)
        if device_key in self.shut:
            assert self.shut[device_key].wait(60), "a test forgot"
        if device_key not in self.answers:
            self._cannot(f"tell the health of {device_key}")
        answer = self.answers[device_key]
        if isinstance(answer, Exception):
            raise answer
        found: Health = answer
        return found


def healthy() -> Checked:
    return Checked(a=Health(healthy=True), b=Health(healthy=True))


def report_of(driver: Driver) -> Report:
    return Report((DriverReport(driver.name, DriverState.READY, DEVICES),))


@pytest.fixture
def changes() -> list[str]:
    """One entry for each time that there is something to report."""
    return []


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    made = threading.Event()
    yield made
    made.set()


Make = Callable[..., HealthChecks]


@pytest.fixture
def make(changes: list[str]) -> Make:
    def made(
        *drivers: Driver, before: Report | None = None, asks: bool = True, patience: float = 30.0
    ) -> HealthChecks:
        return HealthChecks(
            drivers={one.name: one for one in drivers},
            devices=lambda: [(one.name, device) for one in drivers for device in DEVICES],
            before=before,
            changed=lambda: changes.append("changed"),
            asks=asks,
            patience=patience,
        )

    return made


def applied(checks: HealthChecks, driver: Driver) -> DriverReport:
    """The report of a driver with what is known of its devices."""
    (one,) = checks.applied(report_of(driver)).drivers
    return one


def test_devices_are_asked_before_their_first_report_and_only_once(make: Make) -> None:
    driver = healthy()
    checks = make(driver)
    assert applied(checks, driver).health == ()
    checks.ask_first(report_of(driver))
    checks.ask_first(report_of(driver))
    assert applied(checks, driver).health == OK
    assert driver.asked == ["a", "b"]


def test_a_driver_without_checks_is_not_asked_and_adds_nothing(
    make: Make, changes: list[str]
) -> None:
    driver = Silent()
    checks = make(driver)
    checks.ask_first(report_of(driver))
    checks.run_once()
    assert checks.after_set_up(driver.name, "a") is None
    assert checks.applied(report_of(driver)) == report_of(driver)
    assert changes == []


def test_a_device_whose_health_cannot_be_told_has_none(make: Make) -> None:
    driver = Checked(a=Health(healthy=True))
    checks = make(driver)
    checks.ask_first(report_of(driver))
    told = applied(checks, driver)
    assert (told.health, told.error) == ((OK[0], DeviceHealth("b")), None)


def test_a_fault_without_a_reason_gets_one(make: Make) -> None:
    driver = Checked(a=Health(healthy=False), b=Health(healthy=False, reason="two\nlines"))
    checks = make(driver)
    checks.ask_first(report_of(driver))
    assert applied(checks, driver).health == (
        DeviceHealth("a", Condition.DRAIN, "Its driver gives no reason."),
        DeviceHealth("b", Condition.DRAIN, "two lines"),
    )


@pytest.mark.parametrize("odd", [RuntimeError("broken"), "fine", None, Health("yes")])  # type: ignore[arg-type]
def test_a_check_that_fails_keeps_the_last_answer_and_shows_its_error(
    make: Make, odd: Any, changes: list[str]
) -> None:
    driver = healthy()
    checks = make(driver)
    checks.ask_first(report_of(driver))
    driver.answers["b"] = odd
    assert checks.after_set_up(driver.name, "b") is None
    told = applied(checks, driver)
    assert told.health == OK
    assert told.error is not None
    assert told.error.startswith("The health of a device is not known: b: ")
    before = len(changes)
    # The same fault again is nothing new.
    checks.after_set_up(driver.name, "b")
    assert len(changes) == before
    driver.answers["b"] = Health(healthy=True)
    assert checks.after_set_up(driver.name, "b") == OK[1]
    assert applied(checks, driver).error is None
    assert len(changes) == before + 1


def test_the_error_of_a_driver_that_has_another_one_stands(make: Make) -> None:
    driver = Checked(a=RuntimeError("broken"), b=RuntimeError("broken"))
    checks = make(driver)
    checks.ask_first(report_of(driver))
    (one,) = report_of(driver).drivers
    (told,) = checks.applied(Report((replace(one, error="no backends"),))).drivers
    assert told.error == "no backends"
    assert str(applied(checks, driver).error).endswith("(and 1 more)")


def test_a_driver_that_hangs_is_asked_once_and_holds_up_nobody(
    make: Make, gate: threading.Event
) -> None:
    stuck, other = healthy(), healthy()
    other.name = "other"  # type: ignore[misc]
    stuck.shut = {"a": gate}
    checks = make(stuck, other, patience=0.01)
    both = Report((*report_of(stuck).drivers, *report_of(other).drivers))
    checks.ask_first(both)
    checks.ask_first(both)
    checks.run_once()
    assert checks.after_set_up(stuck.name, "b") is None
    assert stuck.asked == ["a"]
    told = applied(checks, stuck)
    assert told.health == ()
    assert told.error == (
        "The health of a device is not known: a: it has not answered yet (and 1 more)"
    )


def test_a_driver_that_is_loaded_again_does_not_wait_for_the_one_before(
    make: Make, gate: threading.Event, changes: list[str]
) -> None:
    stuck, again = healthy(), healthy()
    stuck.shut = {"a": gate}
    drivers: dict[str, Driver] = {stuck.name: stuck}
    checks = HealthChecks(
        drivers=drivers,
        devices=list,
        before=None,
        changed=lambda: changes.append("changed"),
        patience=0.01,
    )
    checks.ask_first(report_of(stuck))
    again.answers["a"] = Health(healthy=False, reason="hot")
    drivers[again.name] = again
    told = None
    while told is None:
        told = checks.after_set_up(again.name, "a")
    assert told == DeviceHealth("a", Condition.DRAIN, "hot")
    # What the driver before says at last is not believed.
    gate.set()
    for one in threading.enumerate():
        if one.name == "health-checked":
            one.join()
    assert applied(checks, again).health[0] == told


def test_the_answers_of_the_last_report_count_until_there_are_others(make: Make) -> None:
    driver = healthy()
    faults = (DeviceHealth("a", Condition.DRAIN, "hot"), DeviceHealth("b", Condition.DEAD, "gone"))
    (one,) = report_of(driver).drivers
    before = Report((replace(one, health=faults),))
    checks = make(driver, before=before)
    assert applied(checks, driver).health == faults
    checks.ask_first(report_of(driver))
    assert applied(checks, driver).health == OK


def test_an_agent_that_asks_nobody_claims_no_health(make: Make) -> None:
    driver = healthy()
    checks = make(driver, asks=False)
    checks.ask_first(report_of(driver))
    checks.run_once()
    assert checks.after_set_up(driver.name, "a") is None
    assert driver.asked == []
    assert applied(checks, driver).health == (DeviceHealth("a"), DeviceHealth("b"))


def test_a_driver_that_lost_its_checks_claims_no_health_any_more(make: Make) -> None:
    driver = Silent()
    (one,) = report_of(driver).drivers
    checks = make(driver, before=Report((replace(one, health=OK[:1]),)))
    assert applied(checks, driver).health == (DeviceHealth("a"),)
