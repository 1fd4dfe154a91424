# SPDX-License-Identifier: Apache-2.0
"""Read the database's clock without a statement for each reading."""

import time
from collections.abc import Callable

import sqlalchemy as sa

from cyborg.db.engine import Reader

#: Age, in seconds, after which the last answer is not used any more: either clock may have been
#: set since.
_TRUSTED = 120.0


def _seconds() -> float:
    """Return the seconds since this machine booted, time of suspension included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class CachedClock:
    """The database's time, never ahead of it, and behind by at most the last query's duration.

    Safe for several threads.
    """

    def __init__(self, db: Reader, *, seconds: Callable[[], float] = _seconds) -> None:
        self._db = db
        self._seconds = seconds
        self._reading: tuple[float, int] | None = None

    def set(self) -> None:
        """Read the database's clock now, in one statement; raises Unavailable."""
        self._read()

    def now_ms(self) -> int:
        """Return a time, in milliseconds, that the database's clock has reached.

        Reads the database's clock when the last reading is older than two minutes; raises
        Unavailable.
        """
        read_at, ms = self._reading or self._read()
        passed = self._seconds() - read_at
        if not 0 <= passed <= _TRUSTED:
            read_at, ms = self._read()
            passed = self._seconds() - read_at
        return ms + int(passed * 1000)

    def _read(self) -> tuple[float, int]:
        with self._db.reader() as tx:
            now = int(tx.execute(sa.select(self._db.now)).scalar_one())
        # The age counts from the answer: the database read its clock before it answered.
        self._reading = reading = self._seconds(), now
        return reading
