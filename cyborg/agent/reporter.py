# SPDX-License-Identifier: Apache-2.0
"""Scan the host: call every driver by itself, so that a driver that fails stops no other driver."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from cyborg import exception
from cyborg.agent.driver_manager import UNCOUNTED, DriverCalls, DriverManager
from cyborg.drivers.base import Driver, DriverContext
from cyborg.model import wire
from cyborg.model.device import Backend, Device, Hardware
from cyborg.model.report import DriverReport, DriverState, Report

T = TypeVar("T", Device, Hardware, Backend)


class Reporter:
    """Call the drivers of this host.

    Idle drivers (installed, not enabled) are called once for the hardware that they support, and
    again after ``forget_idle``; none of that hardware is offered.
    """

    def __init__(
        self, driver_manager: DriverManager, driver_calls: DriverCalls = UNCOUNTED
    ) -> None:
        self._driver_manager = driver_manager
        self._driver_calls = driver_calls
        self._idle: dict[str, DriverReport] = {}

    def scan(self, context: DriverContext) -> Report:
        """Return the current hardware of the host, as its drivers report it."""
        manager = self._driver_manager
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
        return Report(tuple(map(self._with_hello, reports)))

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
        installed = self._driver_manager.installed_drivers.get(report.driver)
        if installed is None:
            return report
        return replace(
            report,
            endpoint=installed.endpoint,
            type=installed.type,
            version=installed.version,
            accepts=self._driver_manager.accepts.get(report.driver, ()),
        )

    def _call(
        self, name: str, verb: str, call: Callable[[], Iterable[T]], kind: type[T]
    ) -> tuple[T, ...]:
        """Return the values of a driver, dumped and loaded as on the way to the conductor.

        Invalid values of one driver must not keep the conductor from reading the other drivers'
        devices.
        """
        return self._driver_calls(
            name, verb, lambda: tuple(wire.load(kind, wire.dump(value)) for value in call())
        )


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
