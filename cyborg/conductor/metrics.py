# SPDX-License-Identifier: Apache-2.0
"""Metrics of a conductor: counts from the database, and the readings of agents.

While the database is away or slow the counts are left out, and a metric says so.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from typing import Final, Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from cyborg import exception
from cyborg.conductor.context import Conductor, handles
from cyborg.conductor.leases import check_epoch
from cyborg.conductor.meters import Readings
from cyborg.db import device_profiles, providers, readings
from cyborg.db import metrics as metrics_db
from cyborg.db.engine import Reader, retried
from cyborg.db.metrics import Counts
from cyborg.db.readings import Figures
from cyborg.db.transaction import Transaction
from cyborg.metrics import catalogue
from cyborg.metrics.catalogue import Metric
from cyborg.model.arq import State
from cyborg.model.availability import UnitWord
from cyborg.model.capacity import Fleet
from cyborg.model.cleaning import CleanResult
from cyborg.model.device import LOST, HandleState
from cyborg.model.operation import OperationState
from cyborg.model.report import FIGURES, valid_figures
from cyborg.model.scope import EVERYWHERE
from cyborg.model.work import WorkKind
from cyborg.rpc.threads import in_thread
from cyborg.rpc.verbs import SendReadings

T = TypeVar("T")

#: Seconds that the database may take to answer, twice; Prometheus waits for ten.
_TIMEOUT: Final = 4.5
#: States that are shown with 0 when the database has no such row.
_ARQS: Final[Counts] = {(state.value,): 0 for state in State}
_HANDLES: Final[Counts] = {(str(state),): 0 for state in (*HandleState, LOST)}
_OPERATIONS: Final[Counts] = {(state.value,): 0 for state in OperationState}
_WORK: Final = [(kind.value,) for kind in WorkKind]


def bind_meter(registry: CollectorRegistry) -> Callable[[State, float], None]:
    """Return what counts and times the binds that a host prepares, see ``Meters``."""
    seconds = catalogue.BIND_SECONDS.histogram(registry)
    for outcome in (State.BOUND, State.BIND_FAILED):
        seconds.labels(outcome.value)
    return lambda outcome, duration: seconds.labels(outcome.value).observe(duration)


def cleaning_meter(registry: CollectorRegistry) -> Callable[[CleanResult], None]:
    """Return what counts the attempts to clean units, see ``Meters``."""
    attempts = catalogue.CLEANINGS.counter(registry)
    for result in (CleanResult.CLEANED, CleanResult.FAILED):
        attempts.labels(result.value)
    return lambda result: attempts.labels(result.value).inc()


class CloudCollector(Collector):
    """Read the metrics for each scrape.

    ``down_after`` maps a binary to the milliseconds of silence after which a process of it is down.
    The database has ``timeout`` seconds for the counts, and for the capacities.
    """

    def __init__(
        self,
        *,
        db: Reader,
        readings: Readings,
        down_after: Mapping[str, int],
        timeout: float = _TIMEOUT,
    ) -> None:
        self._readings = readings
        self._down_after = down_after
        self._totals = _Query(_reading(db, metrics_db.totals), timeout)
        self._capacities = _Query(_reading(db, _capacities), timeout)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metric families; see Collector."""
        totals = self._totals.result()
        yield _filled(catalogue.DATABASE_UP, {(): 0 if totals is None else 1})
        if totals is not None:
            units = dict(totals.units)
            for host, resource_class, _ in totals.units:
                for usual in (UnitWord.FREE.value, UnitWord.USED.value):
                    units.setdefault((host, resource_class, usual), 0)
            services: dict[tuple[str, ...], int] = {
                (binary, state): 0 for binary in self._down_after for state in ("up", "down")
            }
            for (binary, *_), ms in totals.silence.items():
                if binary in self._down_after:
                    services[binary, "up" if ms <= self._down_after[binary] else "down"] += 1
            yield _filled(catalogue.ARQS, {**_ARQS, **totals.arqs})
            yield _filled(catalogue.HANDLES, {**_HANDLES, **totals.handles})
            yield _filled(catalogue.UNITS, units)
            yield _filled(catalogue.PROJECT_UNITS, totals.in_use)
            yield _filled(catalogue.INSTANCES_UNATTACHED, {(): totals.unattached})
            yield _filled(catalogue.DEVICES, totals.devices)
            yield _filled(catalogue.DEVICE_HEALTHY, totals.healthy)
            yield _filled(catalogue.DRIVERS, totals.drivers)
            yield _filled(catalogue.WORK, _waiting(totals.work))
            yield _filled(catalogue.WORK_OLDEST, _waiting(totals.ages), scale=1000)
            yield _filled(catalogue.WORK_FAILING, _waiting(totals.failing))
            yield _filled(catalogue.OPERATIONS, {**_OPERATIONS, **totals.operations})
            yield _filled(catalogue.NOTIFICATION_LAG, {(): totals.notification_lag}, scale=1000)
            yield _filled(catalogue.SERVICES, services)
            yield _filled(catalogue.HEARTBEAT_AGE, totals.silence, scale=1000)
            # It takes the longest in a large cloud; without it the other metrics are complete.
            capacities = self._capacities.result()
            if capacities is not None:
                yield _filled(catalogue.PROFILE_CAPACITY, capacities)
        families = {name: metric.family() for name, metric in catalogue.DEVICE_STATS.items()}
        for reading in self._readings.latest():
            for name, value in reading.figures.items():
                labels = (reading.host, reading.driver, reading.type, reading.uuid)
                families[name].add_metric(labels, value, timestamp=reading.at)
        yield from families.values()


class _Query(Generic[T]):
    """A read of the database that scrapes at the same time share."""

    def __init__(self, read: Callable[[], T], timeout: float) -> None:
        self._read = read
        self._timeout = timeout
        self._lock = threading.Lock()
        self._query: Future[T] | None = None

    def result(self) -> T | None:
        """Return what was read, None while the database does not answer."""
        with self._lock:
            if self._query is None or self._query.done():
                self._query = in_thread(self._read, name="metrics")
            query = self._query
        wait((query,), self._timeout)
        if not query.done():
            return None
        try:
            return query.result()
        except exception.CyborgError:
            return None


def _reading(db: Reader, read: Callable[[Transaction], T]) -> Callable[[], T]:
    """Return a function that reads in a transaction of its own."""

    def perform() -> T:
        with db.reader() as tx:
            return read(tx)

    return perform


def _capacities(tx: Transaction) -> Counts:
    """Return how many further instances of each profile fit; in three statements."""
    profiles = device_profiles.every(tx, EVERYWHERE)
    groups = [group for profile in profiles for group in profile.groups]
    fleet = Fleet(providers.stocks_for(tx, groups))
    return {
        (profile.name,): capacity.further
        for profile in profiles
        for capacity in fleet.capacities(profile.groups)
    }


def _filled(
    metric: Metric, values: Mapping[tuple[str, ...], float], *, scale: int = 1
) -> GaugeMetricFamily:
    """Return a metric with these values, divided by ``scale``."""
    family = metric.family()
    for labels, value in sorted(values.items()):
        family.add_metric(labels, value / scale)
    return family


def _waiting(counts: Counts) -> Counts:
    return {kind: counts.get(kind, 0) for kind in _WORK}


@handles(SendReadings)
def store_readings(ctx: Conductor, c: SendReadings) -> None:
    """Replace the readings of a host; devices that are not in the database are left out.

    Two statements. Raises StaleEpoch, NotFound (host).
    """
    with ctx.db.reader() as tx:
        rows = metrics_db.devices_of(tx, c.host)
    host = check_epoch(rows[0] if rows else None, c.host, c.epoch)
    by_key = {(row.driver, row.device_key): row for row in rows}
    stored = []
    for reading in c.readings:
        row = by_key.get((reading.driver, reading.key))
        if row is not None and row.uuid is not None and row.type is not None:
            figures = {
                name: value
                for name, value in valid_figures(reading.figures).items()
                if name in FIGURES
            }
            stored.append((row.uuid, row.type, reading.driver, figures))
    ctx.meters.readings.replace(c.host, stored)
    _store(ctx, host.host_id, {uuid: figures for uuid, _, _, figures in stored})


@retried
def _store(ctx: Conductor, host_id: int, figures: Figures) -> None:
    """Store the readings for the API, which may be asked through another process."""
    with ctx.db.writer() as tx:
        readings.store(tx, host_id, figures)
