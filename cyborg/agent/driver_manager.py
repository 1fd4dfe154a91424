# SPDX-License-Identifier: Apache-2.0
"""Load the drivers of this host, as configured or requested by operators later."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cyborg.drivers.base import Driver
from cyborg.drivers.loader import LoadResult
from cyborg.model.device import Device
from cyborg.model.report import CreatedDevice, Desired, DriverState, RequestedDriver

LOG = logging.getLogger(__name__)

#: Loads an installed driver with an operator's options; the result says what went wrong. The agent
#: uses ``cyborg.drivers.loader.load_with_options``.
Load = Callable[[str, Mapping[str, str]], LoadResult]


def load_nothing(name: str, options: Mapping[str, str]) -> LoadResult:
    """Load no driver: for a host that has the drivers of its configuration only."""
    return LoadResult(name, error="no driver of this name is installed")


class DriverManager:
    """Load and unload drivers as operators request it.

    ``drivers`` are the loaded drivers; ``failures`` are the names of drivers that could not be
    loaded, with the reason; ``idle`` are drivers that are installed and not loaded.
    ``installed_drivers`` is what each of all these drivers says about itself, ``accepts`` the
    options that operators may set of it. All are changed in place. ``refusals`` are the drivers
    whose last requested state could not be reached, with the reason; a driver whose new options are
    not valid keeps its old ones.
    """

    def __init__(
        self,
        loaded: Sequence[LoadResult],
        load: Load,
        last_desired: Desired | None = None,
    ) -> None:
        self._configured = {result.name: result for result in loaded if result.enabled}
        self._others = {result.name: result for result in loaded if not result.enabled}
        self._load = load
        self.drivers = _usable(self._configured)
        self.idle = _usable(self._others)
        self.failures = {result.name: result.error for result in loaded if result.error is not None}
        self.installed_drivers = {result.name: result.installed for result in loaded}
        self.accepts = {result.name: result.accepts for result in loaded}
        self.refusals: dict[str, str] = {}
        self._created: dict[str, dict[str, Device]] = {}
        self._options: dict[str, Mapping[str, str]] = {name: {} for name in self.drivers}
        #: Why some of the requested options of loaded drivers have no effect.
        self._ignored: dict[str, str] = {}
        for name, reason in self.failures.items():
            level = logging.ERROR if name in self._configured else logging.INFO
            LOG.log(level, "Driver %s failed to load: %s", name, reason)
        if last_desired is not None:
            # What operators last requested, until the conductor answers.
            self.apply(last_desired.drivers, last_desired.operator_created)
        if not self._configured and not self.drivers:
            LOG.warning(
                "No driver is enabled, so this host offers no device. Name drivers in [agent] "
                "enabled_drivers, or load one with 'cyborg install-driver'. Installed drivers: %s",
                ", ".join(sorted(self._others)) or "none",
            )

    def apply(
        self, requested: Sequence[RequestedDriver], created: Sequence[CreatedDevice] = ()
    ) -> bool:
        """Load and unload drivers as requested; return whether anything has changed.

        A driver that is loaded as requested is left alone. A driver that could not be loaded is
        tried again. Each driver gets the devices that operators ``created`` on its backends.
        """
        drivers_before, failures_before = dict(self.drivers), dict(self.failures)
        created_before, self._created = self._created, {}
        for creation in created:
            self._created.setdefault(creation.driver, {})[creation.device.key] = creation.device
        requests = {request.name: request for request in requested}
        names = self._configured.keys() | self.drivers.keys() | self.refusals.keys()
        for name in sorted(names | requests.keys()):
            request = requests.get(name, RequestedDriver(name))
            if request.loaded(configured=name in self._configured):
                self._ensure_loaded(name, request.options)
            else:
                self._unload(name)
        for name, driver in self.drivers.items():
            driver.operator_created = self._created.get(name, {})
        return (created_before, drivers_before, failures_before) != (
            self._created,
            self.drivers,
            self.failures,
        )

    def reload(self) -> bool:
        """Construct the loaded and the idle drivers again, so that they read their files again.

        Return whether a driver was replaced. A driver that cannot be constructed now stays as it
        is, and the log has one ERROR line for each reason.
        """
        errors: dict[str, list[str]] = {}
        reloaded = []
        for name in sorted(self.drivers.keys() | self.idle.keys()):
            result = self._load(name, self._options.get(name, {}))
            if result.driver is None:
                errors.setdefault(result.error or "it cannot be loaded", []).append(name)
                continue
            reloaded.append(name)
            result.driver.operator_created = self._created.get(name, {})
            loaded = name in self.drivers
            (self.drivers if loaded else self.idle)[name] = result.driver
            self.installed_drivers[name] = replace(result, enabled=loaded).installed
            self.accepts[name] = result.accepts
            # The drivers that were constructed at the start have the former files.
            if name in self._configured:
                self._configured[name] = replace(self._configured[name], driver=None)
            if name in self._others:
                self._others[name] = replace(result, enabled=False)
        for reason, names in errors.items():
            LOG.error("Drivers %s keep their former files: %s", ", ".join(names), reason)
        if reloaded:
            LOG.info("Drivers %s have read their files again", ", ".join(reloaded))
        return bool(reloaded)

    def _ensure_loaded(self, name: str, options: Mapping[str, str]) -> None:
        """Load a driver with these options unless it is loaded so, or note why it is not."""
        if name in self.drivers and self._options.get(name) == options:
            self.refusals.pop(name, None)
            if name in self._ignored:
                self.refusals[name] = self._ignored[name]
            return
        result = self._configured.get(name)
        if options or result is None or result.driver is None:
            result = self._load(name, options)
        if result.driver is not None:
            LOG.info("Driver %s loaded", name)
            self.drivers[name] = result.driver
            self.installed_drivers[name] = result.installed
            self.accepts[name] = result.accepts
            self._options[name] = dict(options)
            for outdated in (self.failures, self.refusals, self.idle, self._ignored):
                outdated.pop(name, None)
            if result.ignored:
                self._ignored[name] = self.refusals[name] = (
                    f"only the configuration files of the host can set {', '.join(result.ignored)}"
                )
                LOG.warning(
                    "Driver %s ignores options that were set through the API: %s. Set them in the "
                    "configuration files of the hosts that need them, and remove them with 'cyborg "
                    "update-driver %s%s'",
                    name,
                    ", ".join(result.ignored),
                    name,
                    "".join(f" --unset-option {key}" for key in result.ignored),
                )
            return
        reason = result.error or "it cannot be loaded"
        if self.refusals.get(name, self.failures.get(name)) != reason:
            LOG.error("Driver %s failed to load with the requested options: %s", name, reason)
        self.refusals[name] = reason
        if name not in self.drivers:
            self.failures[name] = reason
            self.installed_drivers[name] = result.installed
            self.idle.pop(name, None)

    def _unload(self, name: str) -> None:
        """Offer no device of a driver any more; it stays idle, so that its hardware is reported.

        A driver that could not be loaded as requested returns to its state at the start, if it
        had any.
        """
        for outdated in (self.failures, self.refusals, self._options, self._ignored):
            outdated.pop(name, None)
        driver = self.drivers.pop(name, None)
        if driver is not None:
            LOG.info("Driver %s unloaded", name)
            self.idle[name] = driver
            self.installed_drivers[name] = replace(
                self.installed_drivers[name], status=DriverState.STOPPED
            )
            return
        if name in self.idle:
            return
        initial = self._others.get(name)
        if initial is None:
            self.installed_drivers.pop(name, None)
            return
        self.installed_drivers[name] = initial.installed
        if initial.driver is not None:
            self.idle[name] = initial.driver
        elif initial.error is not None:
            self.failures[name] = initial.error


def _usable(loaded: Mapping[str, LoadResult]) -> dict[str, Driver]:
    return {name: result.driver for name, result in loaded.items() if result.driver is not None}
