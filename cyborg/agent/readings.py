# SPDX-License-Identifier: Apache-2.0
"""How busy, hot and hungry the accelerators are: asked of the drivers, and told.

To whoever listens on the bus, and to a conductor, for its metrics; nobody stores it.
"""

import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cyborg import exception
from cyborg.agent.driver_calls import DriverCalls, guarded
from cyborg.drivers.base import Driver
from cyborg.model import notification
from cyborg.model.device import Device
from cyborg.model.reading import Reading, sound
from cyborg.rpc.conductor import ReportClient
from cyborg.rpc.notifications import Notifier

LOG = logging.getLogger(__name__)

#: How long all drivers together, and the bus of notifications, are waited for, in seconds.
_PATIENCE: Final = 10.0


class _Question:
    """One driver, asked for all its devices in a thread of its own.

    ``readings`` grows meanwhile. The thread is nobody's who waits: a driver may hang for ever.
    """

    def __init__(
        self,
        driver: Driver,
        keys: Sequence[str],
        driver_calls: DriverCalls,
        fault: Callable[[str, str], None],
    ) -> None:
        self.readings: list[Reading] = []
        self._driver, self._keys, self._driver_calls, self._fault = (
            driver,
            keys,
            driver_calls,
            fault,
        )
        self.thread = threading.Thread(target=self._ask, name=f"stats-{driver.name}", daemon=True)
        self.thread.start()

    def _ask(self) -> None:
        name = self._driver.name
        for key in self._keys:
            try:
                figures = self._driver_calls(name, "stats", functools.partial(self._measure, key))
            except exception.DriverCannot:
                continue
            except exception.DriverFailed as error:
                self._fault(f"{name} {key}", str(error))
                continue
            self.readings.append(Reading(name, key, figures))

    def _measure(self, key: str) -> dict[str, float]:
        return sound(self._driver.stats(key))


class Readings:
    """Asks and tells once per call of ``run_once``.

    ``devices`` are those found last, by driver; ``epoch`` is that of this agent, None before the
    conductor has greeted it.
    """

    def __init__(
        self,
        *,
        host: str,
        drivers: Mapping[str, Driver],
        devices: Callable[[], Sequence[tuple[str, Device]]],
        epoch: Callable[[], int | None],
        conductor: ReportClient,
        notifier: Notifier,
        driver_calls: DriverCalls = guarded,
        patience: float = _PATIENCE,
    ) -> None:
        self._host = host
        self._drivers = drivers
        self._devices = devices
        self._epoch = epoch
        self._conductor = conductor
        self._notifier = notifier
        self._driver_calls = driver_calls
        self._patience = patience
        self._questions: dict[str, _Question] = {}
        self._complaints: dict[str, str] = {}
        self._told_nowhere = False

    def run_once(self) -> None:
        """Ask and tell; raises what kept it from being told, after telling whom it could.

        A driver whose last answer has not come yet is not asked again, and the others are. An agent
        that has been superseded tells nobody.
        """
        devices = self._devices()
        readings = self._ask(devices)
        if not readings:
            return
        trouble: exception.CyborgError | None = None
        epoch = self._epoch()
        if epoch is not None:
            try:
                self._conductor.readings(self._host, epoch, readings)
            except exception.StaleEpoch:
                raise
            except exception.CyborgError as error:
                trouble = error
        self._broadcast(readings, devices)
        if trouble is not None:
            raise trouble

    def _broadcast(
        self, readings: Sequence[Reading], devices: Sequence[tuple[str, Device]]
    ) -> None:
        if not self._notifier.enabled:
            if not self._told_nowhere:
                self._told_nowhere = True
                LOG.info(
                    "The usage of accelerators is broadcast to nobody, for [oslo_messaging_"
                    "notifications] driver names none but noop; conductors have it for metrics"
                )
            return
        told = notification.usage(self._host, int(time.time() * 1000), readings, devices)
        self._notifier.send([told], within=self._patience)

    def _ask(self, devices: Sequence[tuple[str, Device]]) -> list[Reading]:
        keys: dict[str, list[str]] = {}
        for name, device in devices:
            keys.setdefault(name, []).append(device.key)
        drivers = dict(self._drivers)
        asked = {}
        for name in sorted(keys.keys() & drivers.keys()):
            before = self._questions.get(name)
            if before is not None and before.thread.is_alive():
                self._fault(name, "it has not answered yet what it was asked before")
                continue
            self._complaints.pop(name, None)
            asked[name] = _Question(drivers[name], keys[name], self._driver_calls, self._fault)
        self._questions |= asked
        deadline = time.monotonic() + self._patience
        found = []
        for question in asked.values():
            question.thread.join(max(0.0, deadline - time.monotonic()))
            found += list(question.readings)
        return found

    def _fault(self, what: str, reason: str) -> None:
        """Say why something cannot be measured, once."""
        if self._complaints.get(what) != reason:
            self._complaints[what] = reason
            LOG.warning("The usage of %s is not known: %s", what, reason)
