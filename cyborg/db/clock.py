# SPDX-License-Identifier: Apache-2.0
"""Define the database's clock as one SQL expression.

Every decision uses this time: the database compares leases, deadlines and retry times, so
processes whose own clocks differ still agree.
"""

import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


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
