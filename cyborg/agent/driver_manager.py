# SPDX-License-Identifier: Apache-2.0
"""The drivers of this host: those of its configuration, and what operators have wanted since."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cyborg.drivers.base import Driver
from cyborg.drivers.loader import LoadResult
from cyborg.model.device import Device
from cyborg.model.report import DriverState, Made, RequestedDriver

LOG = logging.getLogger(__name__)

#: Loads an installed driver with an operator's options; what goes wrong is in the result.
Load = Callable[[str, Mapping[str, str]], LoadResult]


def none_else(name: str, options: Mapping[str, str]) -> LoadResult:
    """Loads nothing: for a host on which no driver is installed but those it is given."""
    return LoadResult(name, error="no driver of this name is installed")


class DriverManager:
    """Loads and drops drivers, one round after the other.

    ``drivers`` are those in force and ``failures`` the names that have none, with the reason;
    ``idle`` are drivers that are installed and not in force; ``hellos`` is what each of all these
    says of itself, ``accepts`` the options that operators may set of it. All are changed in place.
    ``refusals`` tells of what was wanted last and is not in force; a driver whose new options
    cannot be used goes on with its old ones.
    """

    def __init__(self, loaded: Sequence[LoadResult], load: Load) -> None:
        self._configured = {one.name: one for one in loaded if one.enabled}
        self._others = {one.name: one for one in loaded if not one.enabled}
        self._load = load
        self.drivers = _there(self._configured)
        self.idle = _there(self._others)
        self.failures = {one.name: one.error for one in loaded if one.error is not None}
        self.hellos = {one.name: one.hello for one in loaded}
        self.accepts = {one.name: one.accepts for one in loaded}
        self.refusals: dict[str, str] = {}
        self._made: dict[str, dict[str, Device]] = {}
        self._in_force: dict[str, Mapping[str, str]] = {name: {} for name in self.drivers}
        for name, reason in self.failures.items():
            level = logging.ERROR if name in self._configured else logging.INFO
            LOG.log(level, "Driver %s cannot be used: %s", name, reason)

    def apply(self, wishes: Sequence[RequestedDriver], made: Sequence[Made] = ()) -> bool:
        """Load and drop what is wanted; answers whether anything has changed.

        What is in force already costs nothing, what could not be loaded is tried again. Each driver
        is told what operators ``made`` on its backends.
        """
        before = dict(self.drivers), dict(self.failures)
        told = self._tell(made)
        wanted = {one.name: one for one in wishes}
        known = self._configured.keys() | self.drivers.keys() | self.refusals.keys()
        for name in sorted(known | wanted.keys()):
            wish = wanted.get(name, RequestedDriver(name))
            if wish.loaded(configured=name in self._configured):
                self._keep(name, wish.options)
            else:
                self._drop(name)
        for name, driver in self.drivers.items():
            driver.operator_created = self._made.get(name, {})
        return told or before != (self.drivers, self.failures)

    def _tell(self, made: Sequence[Made]) -> bool:
        """Note what operators made, by driver and key; answers whether that is news."""
        before, self._made = self._made, {}
        for one in made:
            self._made.setdefault(one.driver, {})[one.device.key] = one.device
        return before != self._made

    def _keep(self, name: str, options: Mapping[str, str]) -> None:
        """Have a driver in force with these options, or the reason why it is not."""
        if name in self.drivers and self._in_force.get(name) == options:
            self.refusals.pop(name, None)
            return
        loaded = self._loaded(name, options)
        if loaded.driver is not None:
            LOG.info("Driver %s is loaded", name)
            self.drivers[name] = loaded.driver
            self.hellos[name] = loaded.hello
            self.accepts[name] = loaded.accepts
            self._in_force[name] = dict(options)
            for known in (self.failures, self.refusals, self.idle):
                known.pop(name, None)
            return
        reason = loaded.error or "it cannot be loaded"
        if self.refusals.get(name, self.failures.get(name)) != reason:
            LOG.error("Driver %s cannot be used as wanted: %s", name, reason)
        self.refusals[name] = reason
        if name not in self.drivers:
            self.failures[name] = reason
            self.hellos[name] = loaded.hello
            self.idle.pop(name, None)

    def _loaded(self, name: str, options: Mapping[str, str]) -> LoadResult:
        at_start = self._configured.get(name)
        if not options and at_start is not None and at_start.driver is not None:
            return at_start
        return self._load(name, options)

    def _drop(self, name: str) -> None:
        """Offer nothing of a driver any more; what it knows of the host may still be told."""
        for known in (self.failures, self.refusals, self._in_force):
            known.pop(name, None)
        driver = self.drivers.pop(name, None)
        if driver is not None:
            LOG.info("Driver %s is not loaded any more", name)
            self.idle[name] = driver
            self.hellos[name] = replace(self.hellos[name], status=DriverState.STOPPED)
        elif name not in self.idle:
            self._leave(name)

    def _leave(self, name: str) -> None:
        """A driver that could not be loaded as wanted is what it was at the start, if anything."""
        other = self._others.get(name)
        if other is None:
            self.hellos.pop(name, None)
            return
        self.hellos[name] = other.hello
        if other.driver is not None:
            self.idle[name] = other.driver
        elif other.error is not None:
            self.failures[name] = other.error


def _there(loaded: Mapping[str, LoadResult]) -> dict[str, Driver]:
    return {name: one.driver for name, one in loaded.items() if one.driver is not None}
