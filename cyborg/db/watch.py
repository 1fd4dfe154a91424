# SPDX-License-Identifier: Apache-2.0
"""The database's clock as a process knows it that does not ask each time."""

import time
from collections.abc import Callable

import sqlalchemy as sa

from cyborg.db.engine import Reader

#: After so many seconds it is not trusted any more: either clock may have been set meanwhile.
_TRUSTED = 120.0


def _seconds() -> float:
    """This machine's time since it was booted; time in which it was suspended counts."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Watch:
    """Shows the database's time, a little ahead by as long as it took to ask; never behind."""

    def __init__(self, db: Reader, *, seconds: Callable[[], float] = _seconds) -> None:
        self._db = db
        self._seconds = seconds
        self._seen: tuple[float, int] | None = None

    def set(self) -> None:
        """Ask the database what time it is: one statement; raises Unavailable."""
        # Counted from the question: the answer is from some moment after it.
        asked = self._seconds()
        with self._db.reader() as tx:
            now = int(tx.execute(sa.select(self._db.now)).scalar_one())
        self._seen = asked, now

    def now_ms(self) -> int | None:
        """A moment that the database's clock does not show yet; None when that is not known."""
        if self._seen is None:
            return None
        asked, then = self._seen
        passed = self._seconds() - asked
        return then + int(passed * 1000) + 1 if 0 <= passed <= _TRUSTED else None
