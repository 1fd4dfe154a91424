# SPDX-License-Identifier: Apache-2.0
"""Health checks: one poll of a driver at a time; answers and faults are in the report."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.agent.findings import Findings
from cyborg.agent.health import HealthChecks
from cyborg.agent.state_store import HealthBaselines, LastingFaults, StateStore
from cyborg.drivers.base import Driver
from cyborg.drivers.scan import Scan
from cyborg.drivers.uevents import Uevent
from cyborg.drivers.worker import Wait, Worker
from cyborg.model.device import AttachHandle, AttachType, Deployable, Device, DeviceType
from cyborg.model.health import Condition, DeviceHealth, Signal
from cyborg.model.report import DriverReport, DriverState, Report
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.servers import FPGA, bare, place, server
from cyborg.tests.fixtures import faults
from cyborg.tests.fixtures.waiting import PATIENCE, Gate, eventually

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
    """A driver with ``answers`` by key; a check hangs at the gate of its key in ``gates``."""

    name = "checked"

    def __init__(self, **answers: Any) -> None:
        super().__init__()
        self.answers = answers
        self.gates: dict[str, Gate] = {}
        self.polled: list[str] = []

    def signals(self, scan: Scan, device_key: str) -> list[Signal]:
        """See Driver."""
        self.polled.append(device_key)
        if device_key in self.gates:
            self.gates[device_key].hold()
        if device_key not in self.answers:
            self._cannot(f"tell the health of {device_key}")
        answer = self.answers[device_key]
        if isinstance(answer, BaseException):
            raise answer
        signals: list[Signal] = answer
        return signals


def healthy() -> Checked:
    return Checked(a=[], b=[])


def report_of(driver: Driver) -> Report:
    return Report((DriverReport(driver.name, DriverState.READY, DEVICES),))


@pytest.fixture
def changes() -> list[str]:
    """One entry for each call of ``on_change``."""
    return []


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.set()


Make = Callable[..., HealthChecks]


@pytest.fixture
def make(changes: list[str]) -> Make:
    def make_checks(
        *drivers: Driver,
        last_report: Report | None = None,
        enabled: bool = True,
        wait: Wait | None = None,
    ) -> HealthChecks:
        return HealthChecks(
            drivers={driver.name: driver for driver in drivers},
            devices=lambda: [(driver.name, device) for driver in drivers for device in DEVICES],
            last_scan=lambda: Scan(bare()),
            last_report=last_report,
            policy=faults.POLICY,
            on_change=lambda: changes.append("changed"),
            enabled=enabled,
            worker=Worker(wait=wait) if wait is not None else Worker(),
            timeout=PATIENCE,
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
    driver = Checked(a=[])
    checks = make(driver)
    checks.poll_new(report_of(driver), Scan(bare()))
    report = with_health(checks, driver)
    assert (report.health, report.error) == ((OK[0], DeviceHealth("b")), None)


def test_the_reasons_are_the_evidence_and_what_to_do_the_worst_first(make: Make) -> None:
    driver = Checked(
        a=[
            *faults.signals(Condition.OK, "fine"),
            Signal("nobody", "knows", 7, "slow link"),
            Signal("pci", "access", "gone", "it is gone."),
        ],
        b=[],
    )
    checks = make(driver)
    checks.poll_new(report_of(driver), Scan(bare()))
    first, _ = with_health(checks, driver).health
    action = "Power-cycle the host, and replace or reseat the card if the device stays away."
    assert (first.condition, first.reasons) == ("dead", ("it is gone.", action, "slow link"))


def test_a_signal_without_evidence_is_named(make: Make) -> None:
    driver = Checked(
        a=faults.signals(Condition.DRAIN, ""), b=faults.signals(Condition.DRAIN, "two\nlines")
    )
    checks = make(driver)
    checks.poll_new(report_of(driver), Scan(bare()))
    assert with_health(checks, driver).health == (
        DeviceHealth("a", Condition.DRAIN, ("test fault drain",)),
        DeviceHealth("b", Condition.DRAIN, ("two lines",)),
    )


@pytest.mark.parametrize(
    "odd",
    [
        RuntimeError("broken"),
        "fine",
        None,
        [("test", "fault", "drain", "hot")],
    ],
)
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
    driver.answers["b"] = []
    assert checks.after_set_up(driver.name, "b") == OK[1]
    assert with_health(checks, driver).error is None
    assert len(changes) == before + 1


class Interrupted(Checked):
    """A driver whose check ends with an error, if ``error`` is one, after its signals."""

    error: Exception | None = None

    def signals(self, scan: Scan, device_key: str) -> Iterator[Signal]:  # type: ignore[override]
        """See Driver."""
        yield from super().signals(scan, device_key)
        if device_key == "a" and self.error is not None:
            raise self.error


CANNOT = exception.DriverCannot(driver="checked", verb="read more")


@pytest.mark.parametrize("error", [OSError("I/O error"), CANNOT], ids=["error", "cannot"])
def test_fault_that_a_driver_has_told_before_an_error_counts(make: Make, error: Exception) -> None:
    driver = Interrupted(a=[], b=[])
    checks = make(driver)
    checks.poll_new(report_of(driver), Scan(bare()))
    driver.answers["a"] = [
        *faults.signals(Condition.DEGRADED, "warm"),
        *faults.signals(Condition.DRAIN, "broken"),
    ]
    driver.error = error
    checks.check_now(driver.name, ["a"])
    eventually(lambda: with_health(checks, driver).health[0].condition is Condition.DRAIN)
    report = with_health(checks, driver)
    assert report.health[0].reasons[0] == "broken"
    assert report.health[1] == OK[1]
    assert ("I/O error" in (report.error or "")) is (error is not CANNOT)
    driver.error = None
    driver.answers["a"] = []
    checks.check_now(driver.name, ["a"])
    eventually(lambda: with_health(checks, driver).health == OK)
    assert with_health(checks, driver).error is None


def test_small_fault_before_an_error_leaves_the_last_answer(make: Make) -> None:
    """The rest, which nobody has read, may be worse than it was, or better."""
    driver = Interrupted(a=faults.signals(Condition.DRAIN, "broken"), b=[])
    checks = make(driver)
    checks.poll_new(report_of(driver), Scan(bare()))
    driver.answers["a"] = faults.signals(Condition.DEGRADED, "warm")
    driver.error = OSError("I/O error")
    checks.check_now(driver.name, ["a"])
    eventually(lambda: "I/O error" in (with_health(checks, driver).error or ""))
    assert with_health(checks, driver).health[0].reasons[0] == "broken"


def test_a_fault_of_a_check_does_not_replace_another_error(make: Make) -> None:
    driver = Checked(a=RuntimeError("broken"), b=RuntimeError("broken"))
    checks = make(driver)
    checks.poll_new(report_of(driver), Scan(bare()))
    (plain,) = report_of(driver).drivers
    (report,) = checks.add_health(Report((replace(plain, error="no backends"),))).drivers
    assert report.error == "no backends"
    assert str(with_health(checks, driver).error).endswith("(and 1 more)")


def test_a_driver_that_hangs_is_polled_once_and_blocks_no_other(make: Make, gate: Gate) -> None:
    stuck, other = healthy(), healthy()
    other.name = "other"  # type: ignore[misc]
    stuck.gates = {"a": gate}
    checks = make(stuck, other, wait=gate.limit)
    both = Report((*report_of(stuck).drivers, *report_of(other).drivers))
    checks.poll_new(both, Scan(bare()))
    checks.poll_new(both, Scan(bare()))
    checks.run_once()
    assert checks.after_set_up(stuck.name, "b") is None
    assert stuck.polled == ["a"]
    assert with_health(checks, other).health == OK
    report = with_health(checks, stuck)
    assert report.health == ()
    assert report.error == (
        "The health of a device is not known: a: it has not answered yet (and 1 more)"
    )


def test_a_driver_that_is_loaded_again_does_not_wait_for_its_previous_instance(
    gate: Gate, changes: list[str]
) -> None:
    stuck, reloaded = healthy(), healthy()
    stuck.gates = {"a": gate}
    drivers: dict[str, Driver] = {stuck.name: stuck}
    checks = HealthChecks(
        drivers=drivers,
        devices=list,
        last_scan=lambda: Scan(bare()),
        last_report=None,
        policy=faults.POLICY,
        on_change=lambda: changes.append("changed"),
        worker=Worker(wait=gate.limit),
        timeout=PATIENCE,
    )
    checks.poll_new(report_of(stuck), Scan(bare()))
    reloaded.answers["a"] = faults.signals(Condition.DRAIN, "hot")
    drivers[reloaded.name] = reloaded
    health = checks.after_set_up(reloaded.name, "a")
    assert health == DeviceHealth("a", Condition.DRAIN, ("hot",))
    # The late answer of the previous instance is dropped.
    gate.set()
    end_polls()
    assert with_health(checks, reloaded).health[0] == health


def test_the_answers_of_the_last_report_count_until_there_are_newer_ones(make: Make) -> None:
    driver = healthy()
    faults = (
        DeviceHealth("a", Condition.DRAIN, ("hot",)),
        DeviceHealth("b", Condition.DEAD, ("gone",)),
    )
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


def test_a_driver_that_exits_leaves_its_other_devices_checked(make: Make) -> None:
    driver = Checked(a=SystemExit("no licence"), b=[])
    checks = make(driver)
    checks.poll_new(report_of(driver), Scan(bare()))
    report = with_health(checks, driver)
    assert report.health == (DeviceHealth("b", Condition.OK),)
    assert "no licence" in str(report.error)


class OneFunction(Checked):
    """A driver whose one device is the FPGA of ``servers.server``."""

    def signals(self, scan: Scan, device_key: str) -> list[Signal]:
        """See Driver."""
        self.polled.append(device_key)
        if "fpga" in self.gates:
            self.gates["fpga"].hold()
        signals: list[Signal] = self.answers["fpga"]
        return signals


CARD = replace(DEVICE, key=FPGA)
RESET = ("kernel event ERROR_EVENT=FAILED_RECOVERY", "Reset the device or power-cycle the host.")


@pytest.fixture
def found(changes: list[str], tmp_path: Path) -> tuple[OneFunction, HealthChecks]:
    """Return a driver, and checks that also have findings of their own."""
    driver = OneFunction(fpga=faults.signals(Condition.DEGRADED, "warm"))
    host = server()
    host.add_file(f"{place(FPGA)}/config", bytes(64))
    checks = HealthChecks(
        drivers={driver.name: driver},
        devices=lambda: [(driver.name, CARD)],
        last_scan=lambda: Scan(host),
        last_report=None,
        policy=faults.POLICY,
        on_change=lambda: changes.append("changed"),
        worker=Worker(),
        timeout=PATIENCE,
        findings=Findings(
            machine=host,
            policy=faults.POLICY,
            baselines=HealthBaselines(StateStore(tmp_path, "host")),
            lasting=LastingFaults(StateStore(tmp_path, "host")),
            failed_prepares=1,
            worker=Worker(),
        ),
    )
    checks.poll_new(report_of(driver), Scan(host))
    driver.polled.clear()
    return driver, checks


def reported(driver: Driver, checks: HealthChecks) -> DeviceHealth:
    report = Report((DriverReport(driver.name, DriverState.READY, (CARD,)),))
    (health,) = checks.add_health(report).drivers[0].health
    return health


def end_polls() -> None:
    def running() -> bool:
        return "health-checked" in {thread.name for thread in threading.enumerate()}

    eventually(lambda: not running(), "the end of the polls")


def test_findings_and_the_answer_of_the_driver_are_merged(
    found: tuple[OneFunction, HealthChecks], changes: list[str]
) -> None:
    driver, checks = found
    event = Uevent("change", place(FPGA).removeprefix("/sys"), {"ERROR_EVENT": "FAILED_RECOVERY"})
    changes.clear()
    checks.note_events([event])
    end_polls()
    assert changes[0] == "changed"
    assert driver.polled == [FPGA]
    assert reported(driver, checks) == DeviceHealth(FPGA, Condition.DRAIN, (*RESET, "warm"))


def test_a_removal_is_left_to_the_scan(
    found: tuple[OneFunction, HealthChecks], changes: list[str]
) -> None:
    driver, checks = found
    changes.clear()
    checks.note_events([Uevent("remove", place(FPGA).removeprefix("/sys"), {})])
    end_polls()
    assert (driver.polled, changes) == ([], [])


def test_a_failed_prepare_counts_at_once(
    found: tuple[OneFunction, HealthChecks], changes: list[str]
) -> None:
    driver, checks = found
    changes.clear()
    checks.note_prepare(driver.name, FPGA, "no answer")
    assert changes == ["changed"]
    assert reported(driver, checks).condition is Condition.DRAIN


def test_fault_of_a_driver_that_lasts_stays_until_the_device_is_reset(
    found: tuple[OneFunction, HealthChecks],
) -> None:
    driver, checks = found
    driver.answers["fpga"] = [Signal("drm", "wedged", "rebind", "it is wedged")]
    assert checks.after_set_up(driver.name, FPGA) is not None
    driver.answers["fpga"] = []
    assert checks.after_set_up(driver.name, FPGA) is not None
    assert reported(driver, checks).condition is Condition.DRAIN
    checks.note_reset(driver.name, FPGA)
    assert reported(driver, checks).condition is Condition.OK


def test_a_check_starts_a_poll_after_the_running_one(
    found: tuple[OneFunction, HealthChecks], gate: Gate
) -> None:
    driver, checks = found
    driver.gates["fpga"] = gate
    checks.check_now(driver.name, [FPGA])
    gate.reached()
    checks.check_now(driver.name, [FPGA])
    driver.answers["fpga"] = faults.signals(Condition.DEAD, "hot")
    gate.set()
    eventually(lambda: len(driver.polled) == 2)
    end_polls()
    assert driver.polled == [FPGA, FPGA]
    assert reported(driver, checks) == DeviceHealth(FPGA, Condition.DEAD, ("hot",))


def test_a_device_without_answers_of_its_driver_has_the_health_of_its_function(
    found: tuple[OneFunction, HealthChecks],
) -> None:
    _, checks = found
    report = Report((DriverReport("other", DriverState.READY, (CARD,)),))
    checks.poll_new(report, Scan(bare()))
    (health,) = checks.add_health(report).drivers[0].health
    assert health == DeviceHealth(FPGA, Condition.OK)
