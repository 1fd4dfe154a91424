# SPDX-License-Identifier: Apache-2.0
"""What accelerators measure of themselves, as agents told this conductor last; in memory only.

An agent tells one conductor, whichever takes its call. So each has some of the values and no two
the same; each value carries its moment, by which whoever collects metrics sees the last one.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cyborg.conductor.services import check_epoch
from cyborg.db import readings as rows
from cyborg.db.engine import Reader
from cyborg.model.reading import FIGURES, Reading, sound

#: Values that were not renewed for so many seconds are forgotten.
_KEPT: Final = 3600.0


@dataclass(frozen=True)
class Measured:
    """The figures of a device, and when this conductor was told, in seconds since 1970."""

    host: str
    uuid: str
    type: str
    driver: str
    figures: Mapping[str, float]
    at: float


class Readings:
    """The last values of each host that told this conductor; ``clock`` is the machine's."""

    def __init__(self, *, db: Reader, clock: Callable[[], float] = time.time) -> None:
        self._db = db
        self._clock = clock
        self._lock = threading.Lock()
        self._hosts: dict[str, list[Measured]] = {}

    def take(self, host: str, epoch: int, readings: Sequence[Reading]) -> None:
        """Keep what an agent tells of its devices; those that nobody has reported are left out.

        One statement. Raises StaleEpoch, NotFound (host).
        """
        with self._db.reader() as tx:
            found = rows.devices_of(tx, host)
        check_epoch(found[0] if found else None, host, epoch)
        known = {(row.driver, row.device_key): row for row in found}
        now = self._clock()
        told = [
            Measured(host, row.uuid, row.type, row.driver, _known(one.figures), now)
            for one in readings
            if (row := known.get((one.driver, one.key))) is not None
        ]
        with self._lock:
            self._hosts[host] = told

    def latest(self) -> list[Measured]:
        """What is known, of any age up to an hour."""
        oldest = self._clock() - _KEPT
        with self._lock:
            self._hosts = {
                host: told for host, told in self._hosts.items() if told and told[0].at >= oldest
            }
            return [one for told in self._hosts.values() for one in told]


def _known(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in sound(figures).items() if name in FIGURES}
