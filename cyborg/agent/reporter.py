# SPDX-License-Identifier: Apache-2.0
"""Scan the host: call every driver by itself, so that a driver that fails stops no other driver."""

import contextlib
import functools
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

from cyborg import exception
from cyborg.agent.driver_manager import DriverManager
from cyborg.agent.health import HealthChecks
from cyborg.agent.lasting_settings import LastingSettings
from cyborg.agent.topology_traits import with_topology_traits
from cyborg.agent.trait_rules import TraitRules
from cyborg.drivers import catalogue
from cyborg.drivers.base import CardLayouts, Driver
from cyborg.drivers.catalogue import Catalogue
from cyborg.drivers.scan import Scan
from cyborg.drivers.worker import Worker
from cyborg.model import wire
from cyborg.model.device import Backend, Device, Hardware
from cyborg.model.report import DriverReport, DriverState, Report

LOG = logging.getLogger(__name__)
T = TypeVar("T", Device, Hardware, Backend, CardLayouts)


class _Scanned(NamedTuple):
    """What one driver has returned in a scan."""

    report: DriverReport
    layouts: tuple[CardLayouts, ...] = ()


class Reporter:
    """Call the drivers of this host: one thread scans, any thread may read the result.

    Idle drivers (installed, not enabled) are called once for the hardware that they support, and
    again after ``forget_idle``; none of that hardware is offered. A driver that has not answered
    after ``timeout`` seconds counts as failed, until it has answered. ``settings`` notes what
    guests can change for good. With ``topology_traits`` the devices have traits that tell where
    they are. They also have the traits that the rules of the device catalogue give them, with
    ``compat_traits`` by all rules. The constructor raises exception.ConfigError if the catalogue
    cannot be read.
    """

    def __init__(
        self,
        driver_manager: DriverManager,
        checks: HealthChecks,
        worker: Worker,
        *,
        timeout: float = 60.0,
        topology_traits: bool = False,
        compat_traits: bool = False,
        read_catalogue: Callable[[], Catalogue] = catalogue.shipped,
        settings: LastingSettings | None = None,
    ) -> None:
        self.driver_manager = driver_manager
        self._topology_traits = topology_traits
        self._compat_traits = compat_traits
        self._read_catalogue = read_catalogue
        self._rules = self._read_rules()
        self.settings = settings
        self._checks = checks
        self._worker = worker
        self._timeout = timeout
        self._idle: dict[str, DriverReport] = {}
        #: The verb that each driver is called for now.
        self._verbs: dict[str, str] = {}
        #: The result of the last scan, without the health of the devices; None before the first.
        self.last: Report | None = None
        #: The cards of the last scan that the loaded drivers can divide, by driver.
        self.layouts: dict[str, tuple[CardLayouts, ...]] = {}

    @property
    def current_call(self) -> str:
        """Return the verbs and the drivers that a scan is calling; empty between the calls."""
        return ", ".join(f"{verb} of driver {name}" for name, verb in sorted(self._verbs.items()))

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

    def acknowledge(self, report: Report) -> None:
        """Note that the conductor has this report."""
        self._checks.acknowledge(report)

    def scan(self, scan: Scan) -> Report:
        """Return the current hardware of the host, as its drivers report it.

        The health of devices that were not polled before is polled first.
        """
        manager = self.driver_manager
        idle = {name: driver for name, driver in manager.idle.items() if name not in self._idle}
        scanned = self._scan_drivers({**idle, **manager.drivers}, scan)
        failed = []
        for name, reason in manager.failures.items():
            # Only a driver that is enabled can fail; any other is installed as STOPPED.
            installed = manager.installed_drivers.get(name)
            state = DriverState.FAILED if installed is None else installed.status
            failed.append(DriverReport(name, state, error=reason))
        self._idle = {
            name: self._idle.get(name) or _without_devices(scanned[name].report)
            for name in manager.idle
        }
        loaded = (scanned[name].report for name in manager.drivers)
        report = Report(tuple(map(self._with_hello, (*loaded, *failed, *self._idle.values()))))
        self._checks.poll_new(report, scan)
        self.last = report
        self.layouts = {name: scanned[name].layouts for name in manager.drivers}
        return report

    def _scan_drivers(self, drivers: Mapping[str, Driver], scan: Scan) -> dict[str, _Scanned]:
        """Call all drivers at the same time; return by name what they return.

        A driver that still answers an earlier scan is not called again before it has.
        """
        calls = {}
        for name, driver in drivers.items():
            scan_driver = functools.partial(self._scan_driver, name, driver, scan)
            # A driver that was constructed again does not wait for the one that it replaces.
            key = "scan", name, id(driver)
            calls[name], _ = self._worker.begin(key, f"scan-{name}", scan_driver)
        self._worker.wait(calls.values(), self._timeout)
        scanned = {}
        for name, call in calls.items():
            reason = f"it has not answered within {self._timeout:g} seconds"
            if call.done():
                end = call.exception()
                if end is None:
                    scanned[name] = call.result()
                    continue
                # Vendors' code may even end its thread.
                reason = f"{type(end).__name__}: {end}"
            verb = self._verbs.get(name, "discover")
            error = str(exception.DriverFailed(driver=name, verb=verb, reason=reason))
            scanned[name] = _Scanned(DriverReport(name, DriverState.FAILED, error=error))
        return scanned

    def forget_idle(self) -> None:
        """Call the idle drivers again in the next scan."""
        self._idle = {}

    def reload_rules(self) -> bool:
        """Read the rules for traits again; return whether they can be used.

        The former rules stay otherwise, and the log has one ERROR line.
        """
        try:
            self._rules = self._read_rules()
        except exception.ConfigError as error:
            LOG.error("The rules for traits stay as they were: %s", error)
            return False
        return True

    def _read_rules(self) -> TraitRules:
        return TraitRules(self._read_catalogue(), compat=self._compat_traits)

    def _scan_driver(self, name: str, driver: Driver, scan: Scan) -> _Scanned:
        try:
            devices = self._call_driver(name, "discover", lambda: driver.discover(scan), Device)
        except (exception.DriverFailed, exception.DriverCannot) as error:
            return _Scanned(DriverReport(name, DriverState.FAILED, error=str(error)))
        if self.settings is not None:
            self.settings.note(driver, devices, scan)
        devices = self._with_traits(name, driver, devices, scan)
        report = DriverReport(name, DriverState.READY, devices)
        try:
            if getattr(driver.hardware, "__func__", None) is Driver.hardware:
                # The driver has no list of its own: its devices are all its hardware.
                hardware = tuple(map(Hardware.of, devices))
            else:
                hardware = self._call_driver(
                    name, "hardware", lambda: driver.hardware(scan), Hardware
                )
            backends = self._call_driver(name, "backends", lambda: driver.backends(scan), Backend)
            report = replace(report, hardware=hardware, backends=backends)
            layouts = self._call_driver(name, "layouts", lambda: driver.layouts(scan), CardLayouts)
            return _Scanned(report, layouts)
        except (exception.DriverFailed, exception.DriverCannot) as error:
            # The devices stay in the report: guests may use them.
            return _Scanned(replace(report, error=str(error)))

    def _with_traits(
        self, name: str, driver: Driver, devices: tuple[Device, ...], scan: Scan
    ) -> tuple[Device, ...]:
        """Return devices with the traits of their places and of the rules."""
        rules, islands = self._rules, list[Collection[str]]()
        if self._topology_traits or rules.need("island_size"):
            islands = self._islands(name, driver, scan)
        result = []
        for device in devices:
            switch = None if device.topology is None else device.topology.switch
            nics = frozenset[str]()
            if switch is not None and (self._topology_traits or rules.need("switch_nics")):
                # A driver of another package may know a switch of a bus that cannot be listed.
                with contextlib.suppress(exception.HostError):
                    nics = scan.nics_behind(switch)
            located = device
            if self._topology_traits:
                located = with_topology_traits(device, nics, islands)
            result.append(rules.applied(name, located, scan, nics=nics, islands=islands))
        return tuple(result)

    def _islands(self, name: str, driver: Driver, scan: Scan) -> list[Collection[str]]:
        """Return the islands of a driver, none if they are not known."""
        try:
            return self._worker.call_driver(name, "islands", lambda: list(driver.islands(scan)))
        except (exception.DriverFailed, exception.DriverCannot) as error:
            LOG.debug("The islands of driver %s are not known: %s", name, error)
            return []

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
            accepts=self.driver_manager.accepts.get(report.driver),
        )

    def _call_driver(
        self, name: str, verb: str, call: Callable[[], Iterable[T]], kind: type[T]
    ) -> tuple[T, ...]:
        """Return the values of a driver, dumped and loaded as on the way to the conductor.

        Invalid values of one driver must not keep the conductor from reading the other drivers'
        devices.
        """
        self._verbs[name] = verb
        try:
            return self._worker.call_driver(
                name, verb, lambda: tuple(wire.load(kind, wire.dump(value)) for value in call())
            )
        finally:
            self._verbs.pop(name, None)


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
