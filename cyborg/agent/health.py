# SPDX-License-Identifier: Apache-2.0
"""The health of the devices of this host: from drivers and own findings, added to each report.

Each driver is polled in a thread of its own, one poll at a time. A driver that hangs blocks this
thread only; its devices keep its last answer. What the agent itself finds counts meanwhile.
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
from cyborg.agent.findings import Findings
from cyborg.drivers.base import Driver, Health
from cyborg.drivers.scan import Scan
from cyborg.drivers.uevents import Uevent
from cyborg.model.device import Device
from cyborg.model.health import Condition, DeviceHealth, legible, legible_all, merged
from cyborg.model.report import DriverReport, Report

LOG = logging.getLogger(__name__)

#: Waits until a thread has ended, at most so many seconds.
Join = Callable[[threading.Thread, float], None]

_NO_ANSWER: Final = "it has not answered yet"
#: A poll that ends within this many seconds is one change, so that a fault that all devices of a
#: driver share is reported at once.
_TOGETHER: Final = 0.3


class _Poll:
    """Read the health of some devices of one driver in a thread of its own.

    ``answers`` and ``faults`` grow by device key; ``on_result`` is called after each of them, and
    ``on_end`` at the end. ``unsent``: a result has changed, and nobody was told of it.
    """

    def __init__(
        self,
        *,
        driver: Driver,
        scan: Scan,
        keys: Sequence[str],
        driver_calls: DriverCalls,
        on_result: Callable[[str], None],
        on_end: Callable[[], None],
    ) -> None:
        self.driver = driver
        self._scan = scan
        self.keys = keys
        self.answers: dict[str, DeviceHealth] = {}
        self.faults: dict[str, str] = {}
        self._driver_calls = driver_calls
        self._on_result = on_result
        self._on_end = on_end
        self.unsent = False
        self.ended = False
        #: Tells of the results of a poll that has not ended by then.
        self.timer: threading.Timer | None = None
        self.thread = threading.Thread(target=self._run, name=f"health-{driver.name}", daemon=True)

    def _run(self) -> None:
        try:
            for key in self.keys:
                call = functools.partial(self._health, key)
                try:
                    self.answers[key] = self._driver_calls(self.driver.name, "health", call)
                except exception.DriverCannot:
                    self.answers[key] = DeviceHealth(key)
                except exception.DriverFailed as error:
                    self.faults[key] = legible(str(error)) or ""
                self._on_result(key)
        finally:
            self._on_end()

    def _health(self, key: str) -> DeviceHealth:
        answer = self.driver.health(self._scan, key)
        if not isinstance(answer, Health) or not (
            type(answer.verdict) is Condition and type(answer.evidence) is tuple
        ):
            raise TypeError(f"{answer!r} is not a cyborg.drivers.base.Health")
        if answer.verdict is Condition.OK:
            return DeviceHealth(key, Condition.OK)
        texts = (*answer.evidence, answer.action)
        reasons = legible_all(None if text is None else str(text) for text in texts)
        return DeviceHealth(key, answer.verdict, reasons or ("Its driver gives no reason.",))


class HealthChecks:
    """Poll the drivers and keep their last answers.

    ``devices`` returns the devices of the last scan with their drivers, ``last_scan`` that scan.
    ``last_report`` is the last
    report of this host before the agent started; its answers count until there are newer ones.
    ``on_change`` is called when an answer or fault has changed. Without ``enabled`` no driver is
    polled, and the health of every device is reported as not known. ``timeout``, in seconds, is
    that of the first poll of new devices, and of the poll after a set-up; ``join`` waits that long.
    Without ``findings`` the answers of the drivers are all that counts.
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
        join: Join = threading.Thread.join,
        findings: Findings | None = None,
    ) -> None:
        self._drivers = drivers
        self._devices = devices
        self._last_scan = last_scan
        self._on_change = on_change
        self._enabled = enabled
        self._driver_calls = driver_calls
        self._timeout = timeout
        self._join = join
        self._findings = findings if enabled else None
        self._lock = threading.Lock()
        self._polls: dict[str, _Poll] = {}
        #: By name of a driver: the devices to poll when its poll has ended.
        self._waiting: dict[str, set[str]] = {}
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

        A driver that has not answered the previous poll is not polled again. The PCI functions of
        the devices are read meanwhile.
        """
        keys: dict[str, list[str]] = {}
        for name, device in self._devices():
            keys.setdefault(name, []).append(device.key)
        for name in sorted(keys):
            if self._start_poll(name, keys[name], self._last_scan()) is None:
                self._note_no_answer(name)
        if self._findings is not None and self._findings.check(self._devices()):
            self._on_change()

    def note_events(self, events: Sequence[Uevent]) -> None:
        """Check the devices that kernel events are about now; return before drivers answer."""
        if self._findings is None:
            return
        # A scan follows every event, and finds out which devices have been removed on purpose.
        events = [event for event in events if event.action != "remove"]
        affected = self._findings.note_events(events, self._devices())
        if affected:
            self._findings.check(affected)
            self._on_change()
        for name in sorted({name for name, _ in affected}):
            self.check_now(name, [device.key for driver, device in affected if driver == name])

    def check_now(self, name: str, keys: Sequence[str]) -> None:
        """Poll devices of a driver now; return before it answers.

        While a poll of the driver runs, the devices are polled when it has ended.
        """
        if self._start_poll(name, keys) is None:
            with self._lock:
                poll = self._polls.get(name)
                if poll is not None and not poll.ended:
                    self._waiting.setdefault(name, set()).update(keys)
                    return
            # It has ended in the meantime, or the driver has no health check.
            self._start_poll(name, keys)

    def note_prepare(self, name: str, key: str, fault: str | None) -> None:
        """Note the result of a prepare of a unit; ``fault`` None: it succeeded."""
        if self._findings is not None and self._findings.note_prepare((name, key), fault):
            self._on_change()

    def acknowledge(self, report: Report) -> None:
        """Note that the conductor has this report."""
        if self._findings is not None:
            self._findings.acknowledge(report)

    def poll_new(self, report: Report, scan: Scan) -> None:
        """Poll the devices that were never polled; wait for the answers for a limited time.

        A device that is offered as soon as it is discovered is thus reported with its health.
        """
        deadline = time.monotonic() + self._timeout
        if self._findings is not None:
            self._findings.check(self._findings.unchecked(report))
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
            self._join(poll.thread, max(0.0, deadline - time.monotonic()))
            if poll.thread.is_alive():
                self._note_no_answer(name)

    def after_set_up(self, name: str, key: str) -> DeviceHealth | None:
        """Poll one device now; return None if there is no answer within a limited time."""
        deadline = time.monotonic() + self._timeout
        with self._lock:
            previous = self._polls.get(name)
        if previous is not None and previous.driver is self._drivers.get(name):
            self._join(previous.thread, max(0.0, deadline - time.monotonic()))
        poll = self._start_poll(name, [key])
        if poll is None:
            return None
        self._join(poll.thread, max(0.0, deadline - time.monotonic()))
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
            findings = None if self._findings is None else self._findings.of(place)
            counted = answer if can_poll else None
            whole = merged(device.key, counted, findings)
            if whole is not None:
                health.append(whole)
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
            if previous is not None and previous.driver is driver and not previous.ended:
                return None
            poll = _Poll(
                driver=driver,
                scan=scan or Scan(driver.host),
                keys=keys,
                driver_calls=self._driver_calls,
                on_result=lambda key: self._store(poll, key),
                on_end=lambda: self._end(poll),
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
            with self._lock:
                poll.unsent = True
                if poll.timer is None:
                    poll.timer = threading.Timer(_TOGETHER, self._tell, [poll])
                    poll.timer.daemon = True
                    poll.timer.start()
                    return
                waits = poll.timer.is_alive()
            if not waits:
                self._tell(poll)

    def _tell(self, poll: _Poll) -> None:
        """Call ``on_change`` if a result of a poll has changed since the last call."""
        with self._lock:
            unsent, poll.unsent = poll.unsent, False
        if unsent:
            self._on_change()

    def _end(self, poll: _Poll) -> None:
        """Tell of the results of a poll that has ended, and poll the devices that wait for that."""
        name = poll.driver.name
        with self._lock:
            poll.ended = True
            current = self._polls.get(name) is poll
            waiting = self._waiting.pop(name, None) if current else None
        if poll.timer is not None:
            poll.timer.cancel()
        self._tell(poll)
        if waiting:
            self._start_poll(name, sorted(waiting))

    def _note_no_answer(self, name: str) -> None:
        """Store a fault for each device whose poll is still running."""
        with self._lock:
            poll = self._polls.get(name)
            if poll is None or poll.ended:
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
