# SPDX-License-Identifier: Apache-2.0
"""Give the API the time of the database's clock, without one statement for each request."""

from collections.abc import Callable

import sqlalchemy as sa

from cyborg.db.clock import boot_seconds
from cyborg.db.engine import Reader

#: Age, in seconds, after which a cached reading is not used any more: either clock may have been
#: set since.
_MAX_AGE = 120.0


class CachedClock:
    """The database's time, never ahead of it, and behind by at most the last query's duration.

    Safe for several threads.
    """

    def __init__(self, db: Reader, *, seconds: Callable[[], float] = boot_seconds) -> None:
        self._db = db
        self._seconds = seconds
        self._reading: tuple[float, int] | None = None

    def now_ms(self) -> int:
        """Return a time, in milliseconds, that the database's clock has reached.

        Reads the database's clock when the last reading is older than two minutes; raises
        Unavailable.
        """
        read_at, ms = self._reading or self.set()
        passed = self._seconds() - read_at
        if not 0 <= passed <= _MAX_AGE:
            read_at, ms = self.set()
            passed = self._seconds() - read_at
        return ms + int(passed * 1000)

    def set(self) -> tuple[float, int]:
        """Read the database's clock now, in one statement; return the reading, in s and ms.

        Raises Unavailable.
        """
        with self._db.reader() as tx:
            now = int(tx.execute(sa.select(self._db.now)).scalar_one())
        # The age counts from the answer: the database read its clock before it answered.
        self._reading = reading = self._seconds(), now
        return reading
