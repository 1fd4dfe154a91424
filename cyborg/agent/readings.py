# SPDX-License-Identifier: Apache-2.0
"""Utilisation, temperature and power draw of the accelerators: read, and sent out.

They go out as a notification on the bus, and to a conductor for its metrics; they are not stored.
"""

import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from cyborg import exception
from cyborg.agent.driver_manager import UNCOUNTED, DriverCalls
from cyborg.drivers.base import Driver
from cyborg.drivers.scan import Scan
from cyborg.model import notification
from cyborg.model.device import Device
from cyborg.model.report import Reading, valid_figures
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.notifications import Notifier
from cyborg.rpc.verbs import SendReadings

LOG = logging.getLogger(__name__)


class _Poll:
    """Read the devices of one driver in a thread of its own; ``readings`` grows meanwhile.

    The thread is a daemon thread: a driver that hangs does not keep the agent from stopping.
    """

    def __init__(
        self,
        *,
        driver: Driver,
        scan: Scan,
        keys: Sequence[str],
        driver_calls: DriverCalls,
        on_fault: Callable[[str, str], None],
    ) -> None:
        self.readings: list[Reading] = []
        self._driver = driver
        self._scan = scan
        self._keys = keys
        self._driver_calls = driver_calls
        self._on_fault = on_fault
        self.thread = threading.Thread(target=self._run, name=f"stats-{driver.name}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        name = self._driver.name
        for key in self._keys:
            try:
                figures = self._driver_calls(name, "stats", functools.partial(self._figures, key))
            except exception.DriverCannot:
                continue
            except exception.DriverFailed as error:
                self._on_fault(f"device {key} of driver {name}", str(error))
                continue
            self.readings.append(Reading(name, key, figures))

    def _figures(self, key: str) -> dict[str, float]:
        return valid_figures(self._driver.stats(self._scan, key))


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
        driver_calls: DriverCalls = UNCOUNTED,
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
        self._driver_calls = driver_calls
        self._polls: dict[str, _Poll] = {}
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
        polls = {}
        for name in sorted(keys.keys() & drivers.keys()):
            previous = self._polls.get(name)
            if previous is not None and previous.thread.is_alive():
                self._log_fault(f"driver {name}", "it has not answered the previous poll yet")
                continue
            self._faults.pop(f"driver {name}", None)
            polls[name] = _Poll(
                driver=drivers[name],
                scan=scan,
                keys=keys[name],
                driver_calls=self._driver_calls,
                on_fault=self._log_fault,
            )
        self._polls |= polls
        deadline = time.monotonic() + self._timeout
        readings = []
        for poll in polls.values():
            poll.thread.join(max(0.0, deadline - time.monotonic()))
            readings += list(poll.readings)
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

    def _log_fault(self, source: str, reason: str) -> None:
        """Log, once for each reason, why a driver or device has no reading."""
        if self._faults.get(source) != reason:
            self._faults[source] = reason
            LOG.warning("Usage of %s is not known: %s", source, reason)
