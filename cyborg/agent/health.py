# SPDX-License-Identifier: Apache-2.0
"""The health of the devices of this host: read from the drivers, and added to each report.

Each driver is polled in a thread of its own, one poll at a time. A driver that hangs blocks this
thread only; its devices keep their last health.
"""

import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from cyborg import exception
from cyborg.agent.driver_manager import UNCOUNTED, DriverCalls
from cyborg.drivers.base import Driver, Health
from cyborg.drivers.scan import Scan
from cyborg.model.device import Device
from cyborg.model.health import Condition, DeviceHealth, legible
from cyborg.model.report import DriverReport, Report

LOG = logging.getLogger(__name__)

_NO_ANSWER: Final = "it has not answered yet"


class _Poll:
    """Read the health of some devices of one driver in a thread of its own.

    ``answers`` and ``faults`` grow by device key; ``on_result`` is called after each of them.
    """

    def __init__(
        self,
        *,
        driver: Driver,
        scan: Scan,
        keys: Sequence[str],
        driver_calls: DriverCalls,
        on_result: Callable[[str], None],
    ) -> None:
        self.driver = driver
        self._scan = scan
        self.keys = keys
        self.answers: dict[str, DeviceHealth] = {}
        self.faults: dict[str, str] = {}
        self._driver_calls = driver_calls
        self._on_result = on_result
        self.thread = threading.Thread(target=self._run, name=f"health-{driver.name}", daemon=True)

    def _run(self) -> None:
        for key in self.keys:
            call = functools.partial(self._health, key)
            try:
                self.answers[key] = self._driver_calls(self.driver.name, "health", call)
            except exception.DriverCannot:
                self.answers[key] = DeviceHealth(key)
            except exception.DriverFailed as error:
                self.faults[key] = legible(str(error)) or ""
            self._on_result(key)

    def _health(self, key: str) -> DeviceHealth:
        answer = self.driver.health(self._scan, key)
        if not isinstance(answer, Health) or type(answer.healthy) is not bool:
            raise TypeError(f"{answer!r} is not a cyborg.drivers.base.Health")
        if answer.healthy:
            return DeviceHealth(key, Condition.OK)
        reason = None if answer.reason is None else legible(str(answer.reason))
        return DeviceHealth(key, Condition.DRAIN, reason or "Its driver gives no reason.")


class HealthChecks:
    """Poll the drivers and keep their last answers.

    ``devices`` returns the devices of the last scan with their drivers, ``last_scan`` that scan.
    ``last_report`` is the last
    report of this host before the agent started; its answers count until there are newer ones.
    ``on_change`` is called when an answer or fault has changed. Without ``enabled`` no driver is
    polled, and the health of every device is reported as not known. ``timeout``, in seconds, is
    that of the first poll of new devices, and of the poll after a set-up.
    """

    def __init__(
        self,
        *,
        drivers: Mapping[str, Driver],
        devices: Callable[[], Sequence[tuple[str, Device]]],
        last_scan: Callable[[], Scan],
        last_report: Report | None,
        on_change: Callable[[], None],
        enabled: bool = True,
        driver_calls: DriverCalls = UNCOUNTED,
        timeout: float = 10.0,
    ) -> None:
        self._drivers = drivers
        self._devices = devices
        self._last_scan = last_scan
        self._on_change = on_change
        self._enabled = enabled
        self._driver_calls = driver_calls
        self._timeout = timeout
        self._lock = threading.Lock()
        self._polls: dict[str, _Poll] = {}
        self._answers = {
            (report.driver, health.key): health
            for report in (last_report.drivers if last_report else ())
            for health in report.health
        }
        self._faults: dict[tuple[str, str], str] = {}
        #: By name: the driver that is loaded, and the keys of devices for which it was polled.
        self._polled: dict[str, tuple[Driver, set[str]]] = {}

    def run_once(self) -> None:
        """Start a poll of all devices of every driver; do not wait for the answers.

        A driver that has not answered the previous poll is not polled again.
        """
        keys: dict[str, list[str]] = {}
        for name, device in self._devices():
            keys.setdefault(name, []).append(device.key)
        for name in sorted(keys):
            if self._start_poll(name, keys[name], self._last_scan()) is None:
                self._note_no_answer(name)

    def poll_new(self, report: Report, scan: Scan) -> None:
        """Poll the devices that were never polled; wait for the answers for a limited time.

        A device that is offered as soon as it is discovered is thus reported with its health.
        """
        deadline = time.monotonic() + self._timeout
        polls = []
        for driver in report.drivers:
            name = driver.driver
            polled_driver, polled = self._polled.get(name, (None, set[str]()))
            if polled_driver is not self._drivers.get(name):
                polled = set()
            keys = [device.key for device in driver.devices if device.key not in polled]
            poll = self._start_poll(name, keys, scan) if keys else None
            if poll is not None:
                polls.append((name, poll))
        for name, poll in polls:
            poll.thread.join(max(0.0, deadline - time.monotonic()))
            if poll.thread.is_alive():
                self._note_no_answer(name)

    def after_set_up(self, name: str, key: str) -> DeviceHealth | None:
        """Poll one device now; return None if there is no answer within a limited time."""
        deadline = time.monotonic() + self._timeout
        with self._lock:
            previous = self._polls.get(name)
        if previous is not None and previous.driver is self._drivers.get(name):
            previous.thread.join(max(0.0, deadline - time.monotonic()))
        poll = self._start_poll(name, [key])
        if poll is None:
            return None
        poll.thread.join(max(0.0, deadline - time.monotonic()))
        return poll.answers.get(key)

    def add_health(self, report: Report) -> Report:
        """Return the report with the last answers, and with the faults of drivers."""
        with self._lock:
            return Report(tuple(map(self._add_health, report.drivers)))

    def _add_health(self, report: DriverReport) -> DriverReport:
        has_checks = self._has_checks(report.driver)
        can_poll = has_checks and self._enabled
        health, faults = [], []
        for device in report.devices:
            place = report.driver, device.key
            answer = self._answers.get(place)
            if can_poll and answer is not None:
                health.append(answer)
            elif answer is not None or (has_checks and not self._enabled):
                # There will be no newer answer: the last one must not stay valid for ever.
                health.append(DeviceHealth(device.key))
            if can_poll and place in self._faults:
                faults.append(f"{device.key}: {self._faults[place]}")
        error = report.error
        if faults and error is None:
            more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
            error = f"The health of a device is not known: {faults[0]}{more}"
        return replace(report, health=tuple(health), error=error)

    def _has_checks(self, name: str) -> bool:
        """Return whether the driver of this name has a health check of its own."""
        driver = self._drivers.get(name)
        # A wrapper around a driver does not inherit Driver.health, and counts as one with checks.
        return driver is not None and getattr(driver.health, "__func__", None) is not Driver.health

    def _start_poll(self, name: str, keys: Sequence[str], scan: Scan | None = None) -> _Poll | None:
        """Start a poll; return None if the previous one is running or there is no check.

        Without ``scan`` the driver reads its device again.
        """
        with self._lock:
            driver, previous = self._drivers.get(name), self._polls.get(name)
            if driver is None or not self._enabled or not self._has_checks(name):
                return None
            # A driver with new options does not wait for the one that it replaces.
            if previous is not None and previous.thread.is_alive() and previous.driver is driver:
                return None
            poll = _Poll(
                driver=driver,
                scan=scan or Scan(driver.host),
                keys=keys,
                driver_calls=self._driver_calls,
                on_result=lambda key: self._store(poll, key),
            )
            self._polls[name] = poll
            polled = self._polled.get(name)
            if polled is None or polled[0] is not driver:
                polled = self._polled[name] = driver, set()
            polled[1].update(keys)
            poll.thread.start()
        return poll

    def _store(self, poll: _Poll, key: str) -> None:
        """Store an answer or a fault; the answer of a driver that was replaced is dropped."""
        name = poll.driver.name
        place = name, key
        with self._lock:
            if self._polls.get(name) is not poll:
                return
            before = self._answers.get(place), self._faults.pop(place, None)
            if key in poll.answers:
                self._answers[place] = poll.answers[key]
            if key in poll.faults:
                self._faults[place] = poll.faults[key]
            answer, fault = self._answers.get(place), self._faults.get(place)
        if before != (answer, fault):
            if fault is not None:
                LOG.warning("Health of device %s of driver %s is not known: %s", key, name, fault)
            self._on_change()

    def _note_no_answer(self, name: str) -> None:
        """Store a fault for each device whose poll is still running."""
        with self._lock:
            poll = self._polls.get(name)
            if poll is None or not poll.thread.is_alive():
                return
            changed = [
                key
                for key in poll.keys
                if key not in poll.answers
                and key not in poll.faults
                and self._faults.get((name, key)) != _NO_ANSWER
            ]
            for key in changed:
                self._faults[name, key] = _NO_ANSWER
        if changed:
            LOG.warning(
                "Health of device %s of driver %s is not known: %s", changed[0], name, _NO_ANSWER
            )
            self._on_change()
