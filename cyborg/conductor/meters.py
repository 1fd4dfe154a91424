# SPDX-License-Identifier: Apache-2.0
"""What use cases measure: the binds and cleanings of units, and the readings of agents."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from cyborg.model.arq import State
from cyborg.model.cleaning import CleanResult

#: Seconds after which readings that were not renewed are dropped.
_READINGS_TTL: Final = 3600.0


@dataclass(frozen=True)
class DeviceReading:
    """The figures of a device, and when they came in: ``at`` in seconds since 1970."""

    host: str
    uuid: str
    type: str
    driver: str
    figures: Mapping[str, float]
    at: float


#: The uuid, the type, the driver and the figures of a device.
DeviceFigures = tuple[str, str, str, Mapping[str, float]]


class Readings:
    """The last readings of each host that came to this conductor; ``clock`` as ``time.time``."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._hosts: dict[str, list[DeviceReading]] = {}

    def replace(self, host: str, readings: Iterable[DeviceFigures]) -> None:
        """Replace the readings of a host by new ones."""
        now = self._clock()
        stored = [DeviceReading(host, *reading, now) for reading in readings]
        with self._lock:
            self._hosts[host] = stored

    def latest(self) -> list[DeviceReading]:
        """Return the readings of all hosts that are at most an hour old."""
        oldest = self._clock() - _READINGS_TTL
        with self._lock:
            self._hosts = {
                host: readings
                for host, readings in self._hosts.items()
                if readings and readings[0].at >= oldest
            }
            return [reading for readings in self._hosts.values() for reading in readings]


@dataclass(frozen=True)
class Meters:
    """What the use cases of a conductor measure.

    ``record_bind`` is called at the end of each bind that a host has prepared, with the state of
    the ARQ and the seconds since its begin, ``record_cleaning`` at the end of each attempt to clean
    a unit.
    """

    record_bind: Callable[[State, float], object] = lambda _state, _seconds: None
    record_cleaning: Callable[[CleanResult], object] = lambda _result: None
    readings: Readings = field(default_factory=Readings)
