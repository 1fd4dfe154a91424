# SPDX-License-Identifier: Apache-2.0
"""Looking at the host: every driver is asked by itself, and one that fails stops no other."""

from collections.abc import Mapping

from cyborg import exception
from cyborg.agent.guard import guarded
from cyborg.drivers.base import Driver, Surroundings
from cyborg.model import wire
from cyborg.model.device import Device
from cyborg.model.report import DriverReport, DriverState, Report


class Reporter:
    """Asks the drivers of this host.

    ``drivers`` are those that are loaded, by name; ``failures`` the enabled names that could not
    be, with the reason.
    """

    def __init__(self, *, drivers: Mapping[str, Driver], failures: Mapping[str, str]) -> None:
        self._drivers = drivers
        self._failures = failures

    def scan(self, surroundings: Surroundings) -> Report:
        """What the host has now, as its drivers see it."""
        found = [self._ask(name, driver, surroundings) for name, driver in self._drivers.items()]
        failed = [
            DriverReport(name, DriverState.FAILED, error=reason)
            for name, reason in self._failures.items()
        ]
        return Report(tuple(found + failed))

    def _ask(self, name: str, driver: Driver, surroundings: Surroundings) -> DriverReport:
        try:
            devices = guarded(name, "discover", lambda: _devices(driver, surroundings))
        except (exception.DriverFailed, exception.DriverCannot) as error:
            return DriverReport(name, DriverState.FAILED, error=str(error))
        return DriverReport(name, DriverState.READY, devices)


def _devices(driver: Driver, surroundings: Surroundings) -> tuple[Device, ...]:
    """What a driver found, in the form in which the conductor will read it.

    One driver's odd values must not keep the conductor from reading the others' devices.
    """
    return tuple(wire.load(Device, wire.dump(one)) for one in driver.discover(surroundings))
