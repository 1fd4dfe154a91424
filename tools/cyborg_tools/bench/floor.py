# SPDX-License-Identifier: Apache-2.0
"""The floor under each request: what its SQL takes in the bare driver, and its JSON.

Reads are repeated as they are, through the driver alone, and the answer's document is dumped.
What writes cannot be repeated as it is, since ids differ: the time that the driver itself took is
measured while it happens, nothing else running, and each commit is that of a bare transaction.
"""

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self
from uuid import uuid4

import sqlalchemy as sa

from cyborg.db.engine import Database
from cyborg.db.models import Arq
from cyborg.tests.fixtures.cost_meter import Statement, Tally
from cyborg.tests.fixtures.costs import Scenarios
from cyborg.tests.fixtures.counted_service import CountedService
from cyborg.tests.fixtures.host_reports import report_of

_LEAST = 3
_COMMITS = 20


@dataclass(frozen=True)
class Reading:
    """What one GET comes down to: its statements and the document of its answer."""

    statements: Sequence[Statement]
    document: Any

    @classmethod
    def of(cls, counted_service: CountedService, path: str) -> Self:
        """Watch a GET of ``path`` (below ``/v2``)."""
        tally, document = counted_service.counted("GET", path)
        return cls(tally.statements, document)

    @property
    def rows(self) -> int:
        lists = [value for value in self.document.values() if isinstance(value, list)]
        return len(lists[0]) if len(self.document) == 1 and lists else 1

    def ms(self, db: Database, seconds: float) -> float:
        """Milliseconds of the same SQL through the bare driver, and of its JSON."""
        raw = db.engine.raw_connection()
        try:
            cursor = raw.cursor()

            def once() -> float:
                started = time.perf_counter()
                for one in self.statements:
                    cursor.execute(one.text, one.values)
                    cursor.fetchall()
                json.dumps(self.document)
                return (time.perf_counter() - started) * 1000

            return statistics.median(_repeated(once, seconds))
        finally:
            raw.rollback()
            raw.close()


def lifecycle_ms(counted_service: CountedService, scenarios: Scenarios, seconds: float) -> float:
    """Return the milliseconds of SQL and JSON of one life cycle: create, bind, read, delete."""
    profile = scenarios.profile(1)
    commit = commit_ms(counted_service.db)

    def once() -> float:
        with counted_service.meter.tally() as tally:
            wanted = scenarios.bindable_of(profile)
            scenarios.bind(wanted)
            answer = counted_service.send(
                "GET", f"/accelerator_requests?instance={wanted.instance}"
            )
            scenarios.delete(wanted.instance)
        started = time.perf_counter()
        for _ in range(2):
            json.dumps(answer)
        return _driver_ms(tally, commit) + (time.perf_counter() - started) * 1000

    found = _repeated(once, seconds)
    counted_service.forget_work()
    return statistics.median(found)


def reports_ms(
    counted_service: CountedService, scenarios: Scenarios, devices: int, seconds: float
) -> tuple[float, float]:
    """Milliseconds of the SQL of a first and of an unchanged report."""
    commit = commit_ms(counted_service.db)
    unchanged: list[float] = []

    def once() -> float:
        host = f"floor-{uuid4().hex[:12]}"
        report = report_of(host, devices)
        first = _driver_ms(scenarios.first_report(report, host), commit)
        unchanged.append(_driver_ms(scenarios.unchanged_report(report, host), commit))
        return first

    return statistics.median(_repeated(once, seconds)), statistics.median(unchanged)


def commit_ms(db: Database) -> float:
    """Milliseconds of the COMMIT of a transaction that wrote one row."""
    raw = db.engine.raw_connection()
    try:
        cursor = raw.cursor()
        times = []
        for _ in range(_COMMITS):
            if db.engine.dialect.name == "sqlite":
                cursor.execute("BEGIN IMMEDIATE")
            cursor.execute("INSERT INTO hosts (name, updated_ms) VALUES ('bench-commit', 0)")
            cursor.execute("DELETE FROM hosts WHERE name = 'bench-commit'")
            started = time.perf_counter()
            raw.commit()
            times.append((time.perf_counter() - started) * 1000)
        return statistics.median(times)
    finally:
        raw.close()


def _driver_ms(tally: Tally, commit: float) -> float:
    return tally.seconds * 1000 + tally.commits * commit


def _repeated(once: Callable[[], float], seconds: float) -> list[float]:
    once()
    found: list[float] = []
    end = time.perf_counter() + seconds
    while len(found) < _LEAST or time.perf_counter() < end:
        found.append(once())
    return found


def read_paths(counted_service: CountedService, db: Database, others: int) -> dict[str, str]:
    """What is read, by the name of its figure."""
    arq = counted_service.send("GET", "/accelerator_requests?limit=1")["arqs"][0]["uuid"]
    return {
        "show an ARQ": f"/v2/accelerator_requests/{arq}",
        "list ARQs of an instance": f"/v2/accelerator_requests?instance={_instance_of(db)}",
        "list device profiles": f"/v2/device_profiles?limit={others}",
        "list ARQs": f"/v2/accelerator_requests?limit={others}",
        "list devices": f"/v2/devices?limit={others}",
        "list deployables": f"/v2/deployables?limit={others}",
        "list attributes": f"/v2/attributes?limit={others}",
    }


def _instance_of(db: Database) -> str:
    with db.reader() as tx:
        found = tx.execute(sa.select(sa.func.min(Arq.instance_uuid)))
        return str(found.scalar_one())
