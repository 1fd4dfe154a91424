# SPDX-License-Identifier: Apache-2.0
"""Health of several devices and drivers, and of the second instance of a driver."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from oslo_config import cfg

from cyborg.agent.findings import Findings
from cyborg.agent.health import HealthChecks
from cyborg.agent.state_store import HealthBaselines, LastingFaults, StateStore
from cyborg.drivers.base import Driver
from cyborg.drivers.scan import Scan
from cyborg.drivers.uevents import Uevent
from cyborg.drivers.worker import Worker
from cyborg.model.device import Device, DeviceType, Topology
from cyborg.model.health import Condition, DeviceHealth, Signal
from cyborg.model.report import DriverReport, DriverState, Report
from cyborg.testing import servers
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures import faults
from cyborg.tests.fixtures.waiting import PATIENCE, Gate, eventually

#: Two cards below one root port.
CARDS = tuple(
    Device(
        key, *(DeviceType.GPU, "10de", "A100", {}, ()), topology=Topology(root_port="0000:00:01.0")
    )
    for key in ("0000:81:00.0", "0000:81:00.1")
)
FIRST, SECOND = (card.key for card in CARDS)
HOT = tuple(faults.signals(Condition.DRAIN, "hot"))


class Checked(Driver):
    """A driver that answers ``signals`` and records for which devices; it waits at ``gate``."""

    def __init__(self, name: str = "checked", signals: Sequence[Signal] = ()) -> None:
        super().__init__(FakeHost(), cfg.ConfigOpts())
        self.name = name  # type: ignore[misc]
        self.answer = signals
        self.polled: list[str] = []
        self.gate = Gate()
        self.gate.set()

    def discover(self, scan: Scan) -> list[Device]:
        return []

    def has_polled(self, keys: list[str]) -> bool:
        return self.polled == keys

    def signals(self, scan: Scan, device_key: str) -> Sequence[Signal]:
        self.polled.append(device_key)
        self.gate.hold()
        return self.answer


class Checks:
    """Checks of some drivers, each of which offers ``cards``."""

    def __init__(self, state: Path, *drivers: Checked, worker: Worker | None = None) -> None:
        self.drivers: dict[str, Driver] = {driver.name: driver for driver in drivers}
        self.cards = list(CARDS)
        self.changes: list[str] = []
        self.host = servers.bare()
        self.checks = HealthChecks(
            drivers=self.drivers,
            devices=lambda: [(name, card) for name in self.drivers for card in self.cards],
            last_scan=lambda: Scan(self.host),
            last_report=None,
            policy=faults.POLICY,
            on_change=lambda: self.changes.append("changed"),
            worker=worker or Worker(),
            timeout=PATIENCE,
            findings=Findings(
                machine=self.host,
                policy=faults.POLICY,
                baselines=HealthBaselines(StateStore(state, "host")),
                lasting=LastingFaults(StateStore(state, "host")),
                failed_prepares=2,
                worker=Worker(),
            ),
        )

    @property
    def report(self) -> Report:
        return Report(
            tuple(DriverReport(name, DriverState.READY, tuple(self.cards)) for name in self.drivers)
        )

    def poll_new(self) -> None:
        self.checks.poll_new(self.report, Scan(self.host))

    def health(self, name: str = "checked") -> tuple[DeviceHealth, ...]:
        (report,) = (
            report
            for report in self.checks.add_health(self.report).drivers
            if report.driver == name
        )
        return report.health

    def end_polls(self) -> None:
        """Wait until no poll runs, and none that was requested during one."""
        for name in self.drivers:
            self.end_poll(name)

    def end_poll(self, name: str) -> None:
        """Wait until no poll of a driver runs."""

        def running() -> bool:
            return f"health-{name}" in {thread.name for thread in threading.enumerate()}

        eventually(lambda: not running(), f"the end of the poll of {name}")


@pytest.fixture
def gates() -> Iterator[list[Gate]]:
    """Gates that the end of the test opens."""
    gates: list[Gate] = []
    yield gates
    for gate in gates:
        gate.set()


def test_second_instance_of_a_driver_is_polled_before_its_devices_are_reported(
    tmp_path: Path,
) -> None:
    checks = Checks(tmp_path, Checked())
    checks.poll_new()
    second = Checked(signals=HOT)
    checks.drivers["checked"] = second
    checks.poll_new()
    assert second.polled == [FIRST, SECOND]
    assert [health.condition for health in checks.health()] == [Condition.DRAIN] * 2


def test_device_that_is_found_later_is_polled_before_its_first_report(tmp_path: Path) -> None:
    driver = Checked()
    checks = Checks(tmp_path, driver)
    checks.cards = [CARDS[0]]
    checks.poll_new()
    driver.answer = HOT
    checks.cards = list(CARDS)
    checks.poll_new()
    assert driver.polled == [FIRST, SECOND]
    assert checks.health()[1] == DeviceHealth(SECOND, Condition.DRAIN, ("hot",))


def test_all_devices_that_change_during_a_poll_are_polled_after_it(
    tmp_path: Path, gates: list[Gate]
) -> None:
    driver = Checked()
    checks = Checks(tmp_path, driver)
    driver.gate = Gate()
    gates.append(driver.gate)
    checks.checks.check_now("checked", [FIRST])
    eventually(lambda: driver.polled, "the first poll")
    # Two messages of the driver, each about one card.
    checks.checks.check_now("checked", [SECOND])
    checks.checks.check_now("checked", [FIRST])
    driver.gate.set()
    checks.end_polls()
    assert driver.polled == [FIRST, FIRST, SECOND]


def test_event_about_a_bridge_has_each_driver_poll_all_of_its_devices_below(
    tmp_path: Path,
) -> None:
    checks = Checks(tmp_path, Checked("a"), Checked("b"))
    other = replace(CARDS[0], key="0000:c1:00.0", topology=Topology(root_port="0000:00:02.0"))
    checks.cards.append(other)
    fields = {"ERROR_EVENT": "FAILED_RECOVERY"}
    checks.checks.note_events([Uevent("change", "/devices/pci0000:00/0000:00:01.0", fields)])
    checks.end_polls()
    for name, driver in checks.drivers.items():
        assert isinstance(driver, Checked)
        assert driver.polled == [FIRST, SECOND]
        conditions = [health.condition for health in checks.health(name)]
        assert conditions[:2] == [Condition.DRAIN] * 2


def test_every_device_of_every_driver_is_polled_although_one_driver_hangs(
    tmp_path: Path, gates: list[Gate]
) -> None:
    stuck, other = Checked("a"), Checked("b")
    checks = Checks(tmp_path, stuck, other)
    stuck.gate = Gate()
    gates.append(stuck.gate)
    for count in (1, 2):
        checks.checks.run_once()
        expected = [FIRST, SECOND] * count
        eventually(partial(other.has_polled, expected), "a poll of b")
        checks.end_poll("b")
        # Only a poll that has begun is known to have no answer.
        stuck.gate.reached()
    assert stuck.polled == [FIRST]
    # The second round has found the first one still running, for both of its devices.
    (report, _) = checks.checks.add_health(checks.report).drivers
    assert str(report.error).endswith("it has not answered yet (and 1 more)")


def test_card_that_was_set_up_is_checked_by_the_second_instance_of_a_driver_that_hangs(
    tmp_path: Path, gates: list[Gate]
) -> None:
    """The second instance does not wait for the first one."""
    stuck = Checked()
    checks = Checks(tmp_path, stuck)
    stuck.gate = Gate()
    gates.append(stuck.gate)
    checks.checks.check_now("checked", [FIRST])
    checks.drivers["checked"] = Checked(signals=HOT)
    health = checks.checks.after_set_up("checked", FIRST)
    assert health == DeviceHealth(FIRST, Condition.DRAIN, ("hot",))


def test_answer_of_an_instance_that_was_replaced_is_no_fault_that_lasts(
    tmp_path: Path, gates: list[Gate]
) -> None:
    replaced = Checked(signals=[Signal("drm", "wedged", "rebind", "it is wedged")])
    checks = Checks(tmp_path, replaced)
    replaced.gate = Gate()
    gates.append(replaced.gate)
    checks.checks.check_now("checked", [FIRST])
    replaced.gate.reached()
    checks.drivers["checked"] = Checked()
    replaced.gate.set()
    checks.end_polls()
    checks.poll_new()
    assert [health.condition for health in checks.health()] == [Condition.OK] * 2


def test_check_that_hangs_after_a_set_up_does_not_keep_its_operation(
    tmp_path: Path, gates: list[Gate]
) -> None:
    driver = Checked()
    driver.gate = Gate()
    gates.append(driver.gate)
    # The limit ends the check where it hangs: one that has not begun would be cancelled.
    checks = Checks(tmp_path, driver, worker=Worker(wait=driver.gate.limit))
    assert checks.checks.after_set_up("checked", FIRST) is None
    assert driver.polled == [FIRST]
    # Nor does one that waits for the check that hangs.
    assert checks.checks.after_set_up("checked", SECOND) is None
    driver.gate.set()
    checks.end_polls()
    assert driver.polled == [FIRST]


def test_every_function_is_checked_before_its_first_report(tmp_path: Path) -> None:
    checks = Checks(tmp_path, Checked())
    for key in (FIRST, SECOND):
        checks.host.add_file(f"/sys/bus/pci/devices/{key}/config", b"\xff" * 64)
    checks.poll_new()
    assert [health.condition for health in checks.health()] == [Condition.DEAD] * 2


def test_prepares_that_fail_on_two_devices_are_counted_apart(tmp_path: Path) -> None:
    checks = Checks(tmp_path, Checked())
    checks.checks.note_prepare("checked", FIRST, "no power")
    checks.checks.note_prepare("checked", SECOND, "no power")
    assert [health.condition for health in checks.health()] == []
    checks.checks.note_prepare("checked", SECOND, "no power")
    assert checks.health() == (
        DeviceHealth(
            SECOND,
            Condition.DRAIN,
            checks.health()[0].reasons,
        ),
    )
    # A prepare of the other card that succeeds says nothing about this one.
    checks.checks.note_prepare("checked", FIRST, None)
    assert [health.key for health in checks.health()] == [SECOND]
