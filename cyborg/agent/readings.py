# SPDX-License-Identifier: Apache-2.0
"""Utilisation, temperature and power draw of the accelerators: read, and sent out.

They go out as a notification on the bus, and to a conductor for its metrics; they are not stored.
"""

import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from cyborg import exception
from cyborg.drivers.base import Driver
from cyborg.drivers.scan import Scan
from cyborg.drivers.worker import Worker
from cyborg.model import notification
from cyborg.model.device import Device
from cyborg.model.report import Reading, valid_figures
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.notifications import Notifier
from cyborg.rpc.verbs import SendReadings

LOG = logging.getLogger(__name__)


class Readings:
    """Read and send once in each call of ``run_once``.

    ``devices`` returns the devices of the last scan with their drivers, ``last_scan`` that scan,
    ``providers`` the uuids of the host's providers by the name that the driver uses,
    ``epoch`` the epoch of this agent, which is None until the conductor has answered its first
    heartbeat. ``timeout``, in seconds, is that of all drivers together, and of the notification
    bus.
    """

    def __init__(
        self,
        *,
        host: str,
        drivers: Mapping[str, Driver],
        devices: Callable[[], Sequence[tuple[str, Device]]],
        last_scan: Callable[[], Scan],
        providers: Callable[[], Mapping[str, str]],
        epoch: Callable[[], int | None],
        conductor: ConductorClient,
        notifier: Notifier,
        worker: Worker,
        timeout: float = 10.0,
    ) -> None:
        self._host = host
        self._drivers = drivers
        self._devices = devices
        self._last_scan = last_scan
        self._providers = providers
        self._epoch = epoch
        self._conductor = conductor
        self._notifier = notifier
        self._worker = worker
        self._faults: dict[str, str] = {}
        self._timeout = timeout
        self._logged_disabled = False

    def run_once(self) -> None:
        """Read all devices and send the readings; raise the error of the conductor at the end.

        A driver that has not answered the previous poll is left out of this one. An agent that has
        been superseded sends nothing.
        """
        devices = self._devices()
        keys: dict[str, list[str]] = {}
        for name, device in devices:
            keys.setdefault(name, []).append(device.key)
        drivers, scan = dict(self._drivers), self._last_scan()
        calls, results = [], []
        for name in sorted(keys.keys() & drivers.keys()):
            into: list[Reading] = []
            driver = drivers[name]
            poll = functools.partial(self._poll, driver, scan, keys[name], into)
            call, busy = self._worker.begin(("stats", name, id(driver)), f"stats-{name}", poll)
            if busy:
                self._log_fault(f"driver {name}", "it has not answered the previous poll yet")
                continue
            self._faults.pop(f"driver {name}", None)
            calls.append(call)
            results.append(into)
        self._worker.wait(calls, self._timeout)
        # A poll that has not ended may add more, which nobody gets.
        readings = [reading for into in results for reading in tuple(into)]
        if not readings:
            return
        conductor_error: exception.CyborgError | None = None
        epoch = self._epoch()
        if epoch is not None:
            try:
                self._conductor.request(SendReadings(self._host, epoch, readings))
            except exception.StaleEpoch:
                raise
            except exception.CyborgError as error:
                conductor_error = error
        if self._notifier.enabled:
            usage = notification.usage(
                *(self._host, int(time.time() * 1000), readings, devices),
                providers=self._providers(),
            )
            self._notifier.send([usage], within=self._timeout)
        elif not self._logged_disabled:
            self._logged_disabled = True
            LOG.info(
                "Usage notifications are off: [oslo_messaging_notifications] driver is not set or "
                "is noop; conductors still get the usage for their metrics"
            )
        if conductor_error is not None:
            raise conductor_error

    def _poll(
        self, driver: Driver, scan: Scan, keys: Sequence[str], readings: list[Reading]
    ) -> None:
        """Read the devices of one driver; ``readings`` grows meanwhile."""
        name = driver.name

        def figures(key: str) -> dict[str, float]:
            return self._worker.call_driver(
                name, "stats", lambda: valid_figures(driver.stats(scan, key))
            )

        for key in keys:
            try:
                readings.append(Reading(name, key, figures(key)))
            except exception.DriverCannot:
                continue
            except exception.DriverFailed as error:
                self._log_fault(f"device {key} of driver {name}", str(error))

    def _log_fault(self, source: str, reason: str) -> None:
        """Log, once for each reason, why a driver or device has no reading."""
        if self._faults.get(source) != reason:
            self._faults[source] = reason
            LOG.warning("Usage of %s is not known: %s", source, reason)
