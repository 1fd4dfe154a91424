# SPDX-License-Identifier: Apache-2.0
"""Scan the host: call every driver by itself, so that a driver that fails stops no other driver."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from cyborg import exception
from cyborg.agent.driver_manager import UNCOUNTED, DriverCalls, DriverManager
from cyborg.agent.health import HealthChecks
from cyborg.drivers.base import Driver, DriverContext
from cyborg.model import wire
from cyborg.model.device import Backend, Device, Hardware
from cyborg.model.report import DriverReport, DriverState, Report

T = TypeVar("T", Device, Hardware, Backend)


class Reporter:
    """Call the drivers of this host: one thread scans, any thread may read the result.

    Idle drivers (installed, not enabled) are called once for the hardware that they support, and
    again after ``forget_idle``; none of that hardware is offered.
    """

    def __init__(
        self,
        driver_manager: DriverManager,
        checks: HealthChecks,
        driver_calls: DriverCalls = UNCOUNTED,
    ) -> None:
        self.driver_manager = driver_manager
        self._checks = checks
        self._driver_calls = driver_calls
        self._idle: dict[str, DriverReport] = {}
        #: The result of the last scan, without the health of the devices; None before the first.
        self.last: Report | None = None
        #: The verb and the driver that a scan is calling; empty between the calls.
        self.current_call = ""

    def devices(self) -> list[tuple[str, Device]]:
        """Return the devices of the last scan with their drivers."""
        drivers = self.last.drivers if self.last is not None else ()
        return [(driver.driver, device) for driver in drivers for device in driver.devices]

    def states(self) -> dict[str, DriverState]:
        """Return the drivers and their states in the last scan."""
        drivers = self.last.drivers if self.last is not None else ()
        return {driver.driver: driver.state for driver in drivers}

    def failure(self) -> str:
        """Return why no enabled driver works; empty if a driver works, or none is enabled.

        Before the first scan a driver works if it is loaded.
        """
        if self.last is not None:
            drivers = [(driver.driver, driver.state, driver.error) for driver in self.last.drivers]
        else:
            failures = dict(self.driver_manager.failures)
            drivers = [
                (installed.driver, installed.status, failures.get(installed.driver))
                for installed in tuple(self.driver_manager.installed_drivers.values())
            ]
        enabled = [driver for driver in drivers if driver[1] is not DriverState.STOPPED]
        if not enabled or any(state is not DriverState.FAILED for _, state, _ in enabled):
            return ""
        reasons = "; ".join(
            f"{name}: {(error or 'no reason is known').rstrip('.')}" for name, _, error in enabled
        )
        return f"No driver works: {reasons}."

    def current(self, report: Report) -> Report:
        """Return a report with the current health of its devices."""
        return self._checks.add_health(report)

    def scan(self, context: DriverContext) -> Report:
        """Return the current hardware of the host, as its drivers report it.

        The health of devices that were not polled before is polled first.
        """
        manager = self.driver_manager
        loaded = [
            self._scan_driver(name, driver, context) for name, driver in manager.drivers.items()
        ]
        failed = []
        for name, reason in manager.failures.items():
            # Only a driver that is enabled can fail; any other is installed as STOPPED.
            installed = manager.installed_drivers.get(name)
            state = DriverState.FAILED if installed is None else installed.status
            failed.append(DriverReport(name, state, error=reason))
        self._idle = {
            name: self._idle.get(name) or _without_devices(self._scan_driver(name, driver, context))
            for name, driver in manager.idle.items()
        }
        reports = (*loaded, *failed, *self._idle.values())
        report = Report(tuple(map(self._with_hello, reports)))
        self._checks.poll_new(report)
        self.last = report
        return report

    def forget_idle(self) -> None:
        """Call the idle drivers again in the next scan."""
        self._idle = {}

    def _scan_driver(self, name: str, driver: Driver, context: DriverContext) -> DriverReport:
        try:
            devices = self._call(name, "discover", lambda: driver.discover(context), Device)
        except (exception.DriverFailed, exception.DriverCannot) as error:
            return DriverReport(name, DriverState.FAILED, error=str(error))
        report = DriverReport(name, DriverState.READY, devices)
        try:
            if getattr(driver.hardware, "__func__", None) is Driver.hardware:
                # The driver has no list of its own: its devices are all its hardware.
                hardware = tuple(map(Hardware.of, devices))
            else:
                hardware = self._call(name, "hardware", lambda: driver.hardware(context), Hardware)
            backends = self._call(name, "backends", driver.backends, Backend)
            return replace(report, hardware=hardware, backends=backends)
        except (exception.DriverFailed, exception.DriverCannot) as error:
            # The devices stay in the report: guests may use them.
            return replace(report, error=str(error))

    def _with_hello(self, report: DriverReport) -> DriverReport:
        """Return the report with the type, version and options of its driver."""
        installed = self.driver_manager.installed_drivers.get(report.driver)
        if installed is None:
            return report
        return replace(
            report,
            endpoint=installed.endpoint,
            type=installed.type,
            version=installed.version,
            accepts=self.driver_manager.accepts.get(report.driver, ()),
        )

    def _call(
        self, name: str, verb: str, call: Callable[[], Iterable[T]], kind: type[T]
    ) -> tuple[T, ...]:
        """Return the values of a driver, dumped and loaded as on the way to the conductor.

        Invalid values of one driver must not keep the conductor from reading the other drivers'
        devices.
        """
        self.current_call = f"{verb} of driver {name}"
        try:
            return self._driver_calls(
                name, verb, lambda: tuple(wire.load(kind, wire.dump(value)) for value in call())
            )
        finally:
            self.current_call = ""


def _without_devices(report: DriverReport) -> DriverReport:
    """Return the report of an idle driver: its hardware, none of which is offered."""
    hardware = report.hardware
    if hardware is not None:
        reason = f"{report.driver} is not enabled"
        hardware = tuple(
            replace(entry, offered=False, reason=reason) if entry.offered else entry
            for entry in hardware
        )
    return replace(report, state=DriverState.STOPPED, devices=(), hardware=hardware)
