# SPDX-License-Identifier: Apache-2.0
"""Looking at the host: every driver is asked by itself, and one that fails stops no other."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from cyborg import exception
from cyborg.agent.driver_calls import DriverCalls, guarded
from cyborg.agent.driver_manager import DriverManager
from cyborg.drivers.base import Driver, DriverContext
from cyborg.model import wire
from cyborg.model.device import Backend, Device, Hardware
from cyborg.model.report import DriverReport, DriverState, Report

T = TypeVar("T", Device, Hardware, Backend)


class Reporter:
    """Asks the drivers of this host.

    Those that are installed and not in force are asked once, and again when somebody wants to know,
    for the hardware that they know; what they find is offered to nobody.
    """

    def __init__(self, driver_manager: DriverManager, driver_calls: DriverCalls = guarded) -> None:
        self._driver_manager = driver_manager
        self._driver_calls = driver_calls
        self._stopped: dict[str, DriverReport] = {}

    def scan(self, context: DriverContext) -> Report:
        """What the host has now, as its drivers see it."""
        driver_manager = self._driver_manager
        found = [
            self._ask(name, driver, context) for name, driver in driver_manager.drivers.items()
        ]
        failed = [
            DriverReport(name, self._without_driver(name), error=reason)
            for name, reason in driver_manager.failures.items()
        ]
        self._stopped = {
            name: self._stopped.get(name) or _idle(self._ask(name, driver, context))
            for name, driver in driver_manager.idle.items()
        }
        return Report(tuple(map(self._introduced, (*found, *failed, *self._stopped.values()))))

    def forget_idle(self) -> None:
        """Ask those that are not in force again with the next scan."""
        self._stopped = {}

    def _ask(self, name: str, driver: Driver, context: DriverContext) -> DriverReport:
        try:
            devices = self._taken(name, "discover", lambda: driver.discover(context), Device)
        except (exception.DriverFailed, exception.DriverCannot) as error:
            return DriverReport(name, DriverState.FAILED, error=str(error))
        report = DriverReport(name, DriverState.READY, devices)
        try:
            return replace(
                report,
                hardware=self._hardware(name, driver, context, devices),
                backends=self._taken(name, "backends", driver.backends, Backend),
            )
        except (exception.DriverFailed, exception.DriverCannot) as error:
            # The devices stand: guests may have them.
            return replace(report, error=str(error))

    def _without_driver(self, name: str) -> DriverState:
        """The state of a name that could not be loaded: only what is enabled can fail."""
        hello = self._driver_manager.hellos.get(name)
        return DriverState.FAILED if hello is None else hello.status

    def _introduced(self, report: DriverReport) -> DriverReport:
        """The report with what the driver said of itself."""
        hello = self._driver_manager.hellos.get(report.driver)
        if hello is None:
            return report
        return replace(
            report,
            endpoint=hello.endpoint,
            type=hello.type,
            version=hello.version,
            accepts=self._driver_manager.accepts.get(report.driver, ()),
        )

    def _hardware(
        self, name: str, driver: Driver, context: DriverContext, devices: Iterable[Device]
    ) -> tuple[Hardware, ...]:
        """All hardware that the driver knows; nothing is read again where devices are all."""
        if getattr(driver.hardware, "__func__", None) is Driver.hardware:
            return tuple(Hardware.of(one) for one in devices)
        return self._taken(name, "hardware", lambda: driver.hardware(context), Hardware)

    def _taken(
        self, name: str, verb: str, call: Callable[[], Iterable[T]], kind: type[T]
    ) -> tuple[T, ...]:
        """What a driver found, in the form in which the conductor will read it.

        One driver's odd values must not keep the conductor from reading the others' devices.
        """
        return self._driver_calls(
            name, verb, lambda: tuple(wire.load(kind, wire.dump(one)) for one in call())
        )


def _idle(report: DriverReport) -> DriverReport:
    """What a driver that is not enabled tells: hardware, none of which is offered."""
    known = report.hardware
    if known is not None:
        why = f"{report.driver} is not enabled"
        known = tuple(
            replace(one, offered=False, reason=why) if one.offered else one for one in known
        )
    return replace(report, state=DriverState.STOPPED, devices=(), hardware=known)
