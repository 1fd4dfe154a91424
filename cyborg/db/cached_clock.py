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


class CachedClock:
    """Shows the database's time, behind by at most as long as the last question took; never ahead.

    Safe for several threads.
    """

    def __init__(self, db: Reader, *, seconds: Callable[[], float] = _seconds) -> None:
        self._db = db
        self._seconds = seconds
        self._seen: tuple[float, int] | None = None

    def set(self) -> None:
        """Ask the database what time it is: one statement; raises Unavailable."""
        self._ask()

    def now_ms(self) -> int:
        """Return a moment that the database's clock has reached.

        Asks the database when its last answer is older than two minutes; raises Unavailable.
        """
        answered, then = self._seen or self._ask()
        passed = self._seconds() - answered
        if not 0 <= passed <= _TRUSTED:
            answered, then = self._ask()
            passed = self._seconds() - answered
        return then + int(passed * 1000)

    def _ask(self) -> tuple[float, int]:
        with self._db.reader() as tx:
            now = int(tx.execute(sa.select(self._db.now)).scalar_one())
        # Counted from the answer: the database read its clock before it.
        self._seen = seen = self._seconds(), now
        return seen
