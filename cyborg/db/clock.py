# SPDX-License-Identifier: Apache-2.0
"""Define the database's clock as one SQL expression, and a cached reading of it.

Every decision uses this time: the database compares leases, deadlines and retry times, so
processes whose own clocks differ still agree.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

if TYPE_CHECKING:
    # At run time the import would be circular: readers use this clock.
    from cyborg.db.engine import Reader

#: Age, in seconds, after which a cached reading is not used any more: either clock may have been
#: set since.
_MAX_AGE = 120.0


class db_now_ms(FunctionElement[int]):
    """Milliseconds since 1970-01-01 UTC when the statement began, as BIGINT.

    Usable in select lists, WHERE and VALUES. It is constant within one statement on every
    database, so that an index on the compared column is used.
    """

    type = sa.BigInteger()
    inherit_cache = True
    name = "db_now_ms"


@compiles(db_now_ms, "mysql", "mariadb")
def _mysql(element: db_now_ms, compiler: SQLCompiler, **kw: Any) -> str:
    # Counted from UTC_TIMESTAMP: UNIX_TIMESTAMP(NOW()) is ambiguous for one hour a year in a
    # session whose time zone has daylight saving.
    return "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)"


@compiles(db_now_ms, "postgresql")
def _postgresql(element: db_now_ms, compiler: SQLCompiler, **kw: Any) -> str:
    # Not clock_timestamp(): it is volatile, which keeps the planner from using an index; nor
    # now(), which is constant during the whole transaction.
    return "CAST(FLOOR(EXTRACT(EPOCH FROM statement_timestamp()) * 1000) AS BIGINT)"


@compiles(db_now_ms, "sqlite")
def _sqlite(element: db_now_ms, compiler: SQLCompiler, **kw: Any) -> str:
    # unixepoch('subsec') needs SQLite 3.42; a Julian day as a double is good to 0.05 ms.
    return "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"


def boot_seconds() -> float:
    """Return the seconds since this machine booted, time of suspension included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class CachedClock:
    """The database's time, never ahead of it, and behind by at most the last query's duration.

    Safe for several threads.
    """

    def __init__(self, db: "Reader", *, seconds: Callable[[], float] = boot_seconds) -> None:
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
