# SPDX-License-Identifier: Apache-2.0
"""The health of the devices of this host: from drivers and own findings, added to each report.

There is one poll of each driver at a time. The devices of a driver that hangs keep its last answer.
What the agent itself finds counts meanwhile.
"""

import functools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from cyborg import exception
from cyborg.agent.findings import Findings, Place
from cyborg.drivers.base import Driver
from cyborg.drivers.health_policy import HealthPolicy
from cyborg.drivers.scan import Scan
from cyborg.drivers.uevents import Uevent
from cyborg.drivers.worker import Call, Worker
from cyborg.model.device import Device
from cyborg.model.health import (
    DeviceHealth,
    Finding,
    Judgement,
    Recovery,
    Signal,
    legible,
    offered,
)
from cyborg.model.report import DriverReport, Report

LOG = logging.getLogger(__name__)

_NO_ANSWER: Final = "it has not answered yet"
#: The key of the polls of a driver, which does not wait for another one that it replaces.
_Key = tuple[str, str, int]
#: What a driver says about its devices, by key; None: it cannot tell.
_Answers = dict[str, Judgement | None]
#: A poll that ends within this many seconds is one change, so that a fault that all devices of a
#: driver share is reported at once.
_TOGETHER: Final = 0.3


class _Announcement:
    """Call ``on_change`` for the changes of one poll: at its end, or when it takes longer."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._lock = threading.Lock()
        self._changed = False
        self._timer: threading.Timer | None = None

    def note(self) -> None:
        """Note a change."""
        with self._lock:
            self._changed = True
            late = self._timer is not None and not self._timer.is_alive()
            if self._timer is None:
                self._timer = threading.Timer(_TOGETHER, self.send)
                self._timer.daemon = True
                self._timer.start()
        if late:
            self.send()

    def send(self) -> None:
        """Tell of the changes since the last time, if there are any."""
        with self._lock:
            changed, self._changed = self._changed, False
        if changed:
            self._on_change()

    def end(self) -> None:
        """Tell of the last changes."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
        self.send()


class HealthChecks:
    """Poll the drivers and keep their last answers.

    ``devices`` returns the devices of the last scan with their drivers, ``last_scan`` that scan.
    ``last_report`` is the last report of this host before the agent started; its answers count
    until there are newer ones. ``policy`` says what the signals of drivers mean. ``on_change`` is
    called when an answer or fault has changed. Without ``enabled`` no driver is polled, and the
    health of every device is reported as not known. ``timeout``, in seconds, is that of the first
    poll of new devices, and of the poll after a set-up. Without ``findings`` the answers of the
    drivers are all that counts.
    """

    def __init__(
        self,
        *,
        drivers: Mapping[str, Driver],
        devices: Callable[[], Sequence[tuple[str, Device]]],
        last_scan: Callable[[], Scan],
        last_report: Report | None,
        policy: HealthPolicy,
        on_change: Callable[[], None],
        worker: Worker,
        enabled: bool = True,
        timeout: float = 10.0,
        findings: Findings | None = None,
    ) -> None:
        self._drivers = drivers
        self._devices = devices
        self._last_scan = last_scan
        self._policy = policy
        self._on_change = on_change
        self._enabled = enabled
        self._worker = worker
        self._timeout = timeout
        self._findings = findings if enabled else None
        self._lock = threading.Lock()
        #: By name of a driver: the devices that its poll has not come to.
        self._pending: dict[str, set[str]] = {}
        #: The devices to poll when the poll of their driver has ended.
        self._waiting: dict[_Key, set[str]] = {}
        self._answers = {
            (report.driver, health.key): _judgement(health)
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
            if self._begin_poll(name, keys[name], self._last_scan()) is None:
                self._note_no_answer(name)
        if self._findings is not None and self._findings.check(self._devices()):
            self._on_change()

    def note_events(self, events: Sequence[Uevent]) -> None:
        """Check the devices that kernel events are about now; return before drivers answer."""
        if self._findings is None:
            return
        # A scan follows every event, and finds out which devices have been removed on purpose.
        events = [event for event in events if event.action != "remove"]
        self._check_affected(self._findings.note_events(events, self._devices()))

    def read_log(self) -> None:
        """Check the devices of which the kernel has logged an error since the last call."""
        if self._findings is not None:
            self._check_affected(self._findings.read_log(self._devices()))

    def _check_affected(self, affected: Sequence[tuple[str, Device]]) -> None:
        if self._findings is not None and affected and self._findings.check(affected):
            self._on_change()
        for name in sorted({name for name, _ in affected}):
            self.check_now(name, [device.key for driver, device in affected if driver == name])

    def check_now(self, name: str, keys: Sequence[str]) -> None:
        """Poll devices of a driver now; return before it answers.

        While a poll of the driver runs, the devices are polled when it has ended.
        """
        if (driver := self._driver_to_poll(name)) is None:
            return
        poll = _key(name, driver)
        with self._lock:
            begun = poll in self._waiting
            self._waiting.setdefault(poll, set()).update(keys)
        if not begun:

            def poll_waiting() -> None:
                with self._lock:
                    waiting = self._waiting.pop(poll)
                self._poll(name, driver, sorted(waiting), Scan(driver.host))

            self._worker.submit(poll, f"health-{name}", poll_waiting)

    def note_prepare(self, name: str, key: str, fault: str | None) -> None:
        """Note the result of a prepare of a unit; ``fault`` None: it succeeded."""
        if self._findings is not None and self._findings.note_prepare((name, key), fault):
            self._on_change()

    def note_reset(self, name: str, key: str) -> None:
        """Note that the agent has reset a device: errors that the kernel logged before are over."""
        self.read_log()
        if self._findings is not None and self._findings.note_recovery((name, key), Recovery.RESET):
            self._on_change()

    def acknowledge(self, report: Report) -> None:
        """Note that the conductor has this report."""
        if self._findings is not None:
            self._findings.acknowledge(report)

    def poll_new(self, report: Report, scan: Scan) -> None:
        """Poll the devices that were never polled; wait for the answers for a limited time.

        A device that is offered as soon as it is discovered is thus reported with its health, and
        with the errors that the kernel has logged about it.
        """
        if self._findings is not None:
            devices = [(item.driver, device) for item in report.drivers for device in item.devices]
            self._check_affected(self._findings.read_log(devices))
            self._findings.check(self._findings.unchecked(report))
        polls = {}
        for driver in report.drivers:
            name = driver.driver
            polled_driver, polled = self._polled.get(name, (None, set[str]()))
            if polled_driver is not self._drivers.get(name):
                polled = set()
            keys = [device.key for device in driver.devices if device.key not in polled]
            poll = self._begin_poll(name, keys, scan) if keys else None
            if poll is not None:
                polls[name] = poll
        self._worker.wait(polls.values(), self._timeout)
        for name, poll in polls.items():
            if not poll.done():
                self._note_no_answer(name)

    def after_set_up(self, name: str, key: str) -> DeviceHealth | None:
        """Poll one device, after a poll that runs; return None without an answer in time."""
        if (driver := self._driver_to_poll(name)) is None:
            return None
        poll = functools.partial(self._poll, name, driver, [key], Scan(driver.host))
        call = self._worker.submit(_key(name, driver), f"health-{name}", poll)
        self._worker.wait([call], self._timeout)
        answers = {} if call.cancel() or not call.done() else call.result()
        return _health(key, answers[key]) if key in answers else None

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
            parts = [answer.findings] if answer is not None and can_poll else []
            parts += [findings] if findings is not None else []
            if parts:
                judgement = Judgement.of(finding for part in parts for finding in part)
                health.append(_health(device.key, judgement))
            elif place in self._answers or (has_checks and not self._enabled):
                # The driver cannot tell, or there will be no newer answer: the last one must not
                # stay valid for ever.
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
        # A wrapper around a driver does not inherit Driver.signals, and counts as one with checks.
        return (
            driver is not None and getattr(driver.signals, "__func__", None) is not Driver.signals
        )

    def _driver_to_poll(self, name: str) -> Driver | None:
        return self._drivers.get(name) if self._enabled and self._has_checks(name) else None

    def _begin_poll(self, name: str, keys: Sequence[str], scan: Scan) -> Call[_Answers] | None:
        """Begin a poll; return None if the previous one runs, or there is no check."""
        if (driver := self._driver_to_poll(name)) is None:
            return None
        poll = functools.partial(self._poll, name, driver, keys, scan)
        call, busy = self._worker.begin(_key(name, driver), f"health-{name}", poll)
        return None if busy else call

    def _poll(self, name: str, driver: Driver, keys: Sequence[str], scan: Scan) -> _Answers:
        """Read the health of devices of one driver; return and store the answers by key.

        An answer is None if the driver cannot tell the health. A fault of the driver is stored and
        not returned. A device that must not be offered, by what the driver has told before its
        fault, is answered for all the same.
        """
        with self._lock:
            if self._drivers.get(name) is not driver:
                return {}
            polled_driver, polled = self._polled.get(name, (None, set[str]()))
            if polled_driver is not driver:
                polled = set()
            self._polled[name] = driver, polled.union(keys)
            self._pending[name] = set(keys)
        # A driver whose entries are not valid has no health; the others have theirs.
        policy = functools.cache(lambda: self._policy.with_entries(driver.health_entries))

        def read(signals: Callable[[], Iterable[Signal]], findings: list[Finding]) -> Judgement:
            # A generator raises its errors where it is judged.
            for finding in policy().findings(signals()):
                findings.append(finding)  # noqa: PERF402 - those before an error count, too
            return Judgement.of(findings)

        announcement = _Announcement(self._on_change)
        answers: _Answers = {}
        try:
            for key in keys:
                fault, findings = None, list[Finding]()
                try:
                    signals = functools.partial(driver.signals, scan, key)
                    answers[key] = self._worker.call_driver(
                        name, "health", functools.partial(read, signals, findings)
                    )
                except exception.DriverCannot:
                    answers[key] = None
                except exception.DriverFailed as error:
                    fault = legible(str(error)) or ""
                judgement = Judgement.of(findings)
                if not offered(judgement.condition):
                    answers[key] = judgement
                if self._store((name, key), driver, answers.get(key), fault):
                    announcement.note()
        finally:
            announcement.end()
        return answers

    def _store(
        self, place: Place, driver: Driver, answer: Judgement | None, fault: str | None
    ) -> bool:
        """Store an answer, a fault, or both; return whether that is news.

        The answer of a driver that was replaced is dropped.
        """
        name, key = place
        with self._lock:
            if self._drivers.get(name) is not driver:
                return False
            self._pending[name].discard(key)
            before = self._answers.get(place), self._faults.pop(place, None)
            if fault is None or answer is not None:
                self._answers[place] = answer
            if fault is not None:
                self._faults[place] = fault
            changed = before != (self._answers.get(place), fault)
        if answer is not None and self._findings is not None:
            self._findings.note_judgement(place, answer)
        if changed and fault is not None:
            LOG.warning("Health of device %s of driver %s is not known: %s", key, name, fault)
        return changed

    def _note_no_answer(self, name: str) -> None:
        """Store a fault for each device whose poll is still running."""
        with self._lock:
            changed = [
                key
                for key in sorted(self._pending.get(name, ()))
                if self._faults.get((name, key)) != _NO_ANSWER
            ]
            for key in changed:
                self._faults[name, key] = _NO_ANSWER
        if changed:
            LOG.warning(
                "Health of device %s of driver %s is not known: %s", changed[0], name, _NO_ANSWER
            )
            self._on_change()


def _key(name: str, driver: Driver) -> _Key:
    return "health", name, id(driver)


def _health(key: str, judgement: Judgement | None) -> DeviceHealth:
    """Return what the report says about a device; None: its health is not known."""
    if judgement is None:
        return DeviceHealth(key)
    return DeviceHealth(key, judgement.condition, judgement.reasons)


def _judgement(health: DeviceHealth) -> Judgement | None:
    """Return what an earlier process has reported about a device."""
    condition = health.condition
    if condition is None:
        return None
    return Judgement(tuple(Finding(condition, reason) for reason in health.reasons))
