# SPDX-License-Identifier: Apache-2.0
"""The health of the devices of this host: asked of the drivers, and added to each report.

Each driver is asked in a thread of its own, one question at a time. A driver that hangs costs that
thread; its devices keep the health that they had.
"""

import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from cyborg import exception
from cyborg.agent.driver_calls import DriverCalls, guarded
from cyborg.drivers.base import Driver, Health
from cyborg.model.device import Device
from cyborg.model.health import Condition, DeviceHealth, legible
from cyborg.model.report import DriverReport, Report

LOG = logging.getLogger(__name__)

#: How long the first answers about devices, and the answer after a set-up, are waited for (s).
_PATIENCE: Final = 10.0
_NO_ANSWER: Final = "it has not answered yet"


class _Question:
    """One driver, asked about some of its devices in a thread of its own.

    ``answers`` and ``faults`` grow by device key; ``told`` is called after each of them.
    """

    def __init__(
        self,
        driver: Driver,
        keys: Sequence[str],
        driver_calls: DriverCalls,
        told: Callable[[str], None],
    ) -> None:
        self.driver, self.keys = driver, keys
        self.answers: dict[str, DeviceHealth] = {}
        self.faults: dict[str, str] = {}
        self._driver_calls, self._told = driver_calls, told
        self.thread = threading.Thread(target=self._ask, name=f"health-{driver.name}", daemon=True)

    def _ask(self) -> None:
        for key in self.keys:
            call = functools.partial(self._answer, key)
            try:
                self.answers[key] = self._driver_calls(self.driver.name, "health", call)
            except exception.DriverCannot:
                self.answers[key] = DeviceHealth(key)
            except exception.DriverFailed as error:
                self.faults[key] = legible(str(error)) or ""
            self._told(key)

    def _answer(self, key: str) -> DeviceHealth:
        answer = self.driver.health(key)
        if not isinstance(answer, Health) or type(answer.healthy) is not bool:
            raise TypeError(f"{answer!r} is not a cyborg.drivers.base.Health")
        if answer.healthy:
            return DeviceHealth(key, Condition.OK)
        reason = None if answer.reason is None else legible(str(answer.reason))
        return DeviceHealth(key, Condition.DRAIN, reason or "Its driver gives no reason.")


class HealthChecks:
    """Asks the drivers, and keeps their last answers.

    ``devices`` returns the devices that were found last, by driver. ``before`` is the last report
    of this host; its answers count until there are newer ones. ``changed`` is called when there is
    something new to report. Without ``asks`` no driver is asked, and no health is claimed.
    """

    def __init__(
        self,
        *,
        drivers: Mapping[str, Driver],
        devices: Callable[[], Sequence[tuple[str, Device]]],
        before: Report | None,
        changed: Callable[[], None],
        asks: bool = True,
        driver_calls: DriverCalls = guarded,
        patience: float = _PATIENCE,
    ) -> None:
        self._drivers = drivers
        self._devices = devices
        self._changed = changed
        self._asks = asks
        self._driver_calls = driver_calls
        self._patience = patience
        self._lock = threading.Lock()
        self._questions: dict[str, _Question] = {}
        self._answers = {
            (driver.driver, one.key): one
            for driver in (before.drivers if before else ())
            for one in driver.health
        }
        self._faults: dict[tuple[str, str], str] = {}
        #: The devices about which the driver that is in force now was asked.
        self._asked: dict[str, tuple[Driver, set[str]]] = {}

    def run_once(self) -> None:
        """Ask every driver about all its devices; waits for no answer.

        A driver that has not answered the last question yet is not asked again.
        """
        keys: dict[str, list[str]] = {}
        for name, device in self._devices():
            keys.setdefault(name, []).append(device.key)
        for name in sorted(keys):
            if self._ask(name, keys[name]) is None:
                self._mark_silent(name)

    def ask_first(self, report: Report) -> None:
        """Ask about devices that were never asked about, and wait a limited time for the answers.

        An accelerator that is put into service as soon as it is found is reported with its health.
        """
        deadline = time.monotonic() + self._patience
        waiting = []
        for one in report.drivers:
            keys = [device.key for device in one.devices if not self._was_asked(one.driver, device)]
            if keys:
                question = self._ask(one.driver, keys)
                waiting += [(one.driver, question)] if question is not None else []
        for name, question in waiting:
            question.thread.join(max(0.0, deadline - time.monotonic()))
            if question.thread.is_alive():
                self._mark_silent(name)

    def after_set_up(self, name: str, key: str) -> DeviceHealth | None:
        """Ask about one device now; None when there is no answer within a limited time."""
        deadline = time.monotonic() + self._patience
        with self._lock:
            before = self._questions.get(name)
        if before is not None and before.driver is self._drivers.get(name):
            before.thread.join(max(0.0, deadline - time.monotonic()))
        question = self._ask(name, [key])
        if question is None:
            return None
        question.thread.join(max(0.0, deadline - time.monotonic()))
        return question.answers.get(key)

    def applied(self, report: Report) -> Report:
        """The report with the last answers, and with the faults of drivers that gave none."""
        with self._lock:
            return Report(tuple(map(self._applied, report.drivers)))

    def _applied(self, report: DriverReport) -> DriverReport:
        asks = self._can_ask(report.driver)
        health, faults = [], []
        for device in report.devices:
            place = report.driver, device.key
            answer = self._answers.get(place)
            if asks and answer is not None:
                health.append(answer)
            elif answer is not None or (self._tells(report.driver) and not self._asks):
                # Nobody will ask: what was said before must not stand for ever.
                health.append(DeviceHealth(device.key))
            if asks and place in self._faults:
                faults.append(f"{device.key}: {self._faults[place]}")
        error = report.error
        if faults and error is None:
            more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
            error = f"The health of a device is not known: {faults[0]}{more}"
        return replace(report, health=tuple(health), error=error)

    def _tells(self, name: str) -> bool:
        """Whether the driver of this name has a health check of its own."""
        driver = self._drivers.get(name)
        # A wrapper around a driver has no method of its own class, and is asked.
        return driver is not None and getattr(driver.health, "__func__", None) is not Driver.health

    def _can_ask(self, name: str) -> bool:
        return self._asks and self._tells(name)

    def _was_asked(self, name: str, device: Device) -> bool:
        """Whether the driver in force was asked about a device; True where nobody can be asked."""
        if not self._can_ask(name):
            return True
        driver, keys = self._asked.get(name, (None, set[str]()))
        return driver is self._drivers.get(name) and device.key in keys

    def _ask(self, name: str, keys: Sequence[str]) -> _Question | None:
        """Begin a question; None while the last one is not answered, and where none can be."""
        with self._lock:
            driver, before = self._drivers.get(name), self._questions.get(name)
            if driver is None or not self._can_ask(name):
                return None
            busy = before is not None and before.thread.is_alive()
            # A driver with new options does not wait for the one that it replaces.
            if busy and before is not None and before.driver is driver:
                return None
            question = _Question(
                driver, keys, self._driver_calls, lambda key: self._take(question, key)
            )
            self._questions[name] = question
            asked = self._asked.get(name)
            if asked is None or asked[0] is not driver:
                asked = self._asked[name] = driver, set()
            asked[1].update(keys)
            question.thread.start()
        return question

    def _take(self, question: _Question, key: str) -> None:
        """Keep an answer or a fault; an answer of a driver that was replaced is dropped."""
        place = question.driver.name, key
        with self._lock:
            if self._questions.get(question.driver.name) is not question:
                return
            before = self._answers.get(place), self._faults.pop(place, None)
            if key in question.answers:
                self._answers[place] = question.answers[key]
            if key in question.faults:
                self._faults[place] = question.faults[key]
            now = self._answers.get(place), self._faults.get(place)
        if before != now:
            if now[1] is not None:
                LOG.warning("Health of device %s of %s is not known: %s", key, place[0], now[1])
            self._changed()

    def _mark_silent(self, name: str) -> None:
        """Note for which devices a driver owes an answer."""
        with self._lock:
            question = self._questions.get(name)
            if question is None or not question.thread.is_alive():
                return
            waiting = [
                key
                for key in question.keys
                if key not in question.answers and key not in question.faults
            ]
            news = [key for key in waiting if self._faults.get((name, key)) != _NO_ANSWER]
            for key in news:
                self._faults[name, key] = _NO_ANSWER
        if news:
            LOG.warning("Health of device %s of %s is not known: %s", news[0], name, _NO_ANSWER)
            self._changed()
