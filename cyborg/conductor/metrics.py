# SPDX-License-Identifier: Apache-2.0
"""Metrics of a conductor: what the database holds now, and the readings of agents.

What the database cannot answer, because it is away or slow, is left out, and a metric says so.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from cyborg import exception
from cyborg.conductor.leases import check_epoch
from cyborg.db import metrics as rows
from cyborg.db.engine import Reader
from cyborg.db.metrics import Counts, Totals
from cyborg.metrics import catalogue
from cyborg.metrics.catalogue import Metric
from cyborg.model.arq import State
from cyborg.model.device import HandleState
from cyborg.model.device_life import LOST
from cyborg.model.operation import OperationState
from cyborg.model.reading import FIGURES, Reading, sound
from cyborg.model.work import WorkKind
from cyborg.rpc.transport import in_thread

#: How long the database may take, in seconds: Prometheus waits for ten.
_PATIENCE: Final = 5.0
#: Values that are shown as 0 when there are none.
_ARQS: Final = [(one.value,) for one in State]
_HANDLES: Final = [*((one.value,) for one in HandleState), (LOST,)]
_OPERATIONS: Final = [(one.value,) for one in OperationState]
#: What never ends is no work that waits.
_WORK: Final = [(one.value,) for one in WorkKind if one is not WorkKind.PUBLISH_NOTIFICATIONS]


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


class Binds:
    """Times binds; goes into a ``HostWork``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = catalogue.BIND_SECONDS.histogram(registry)
        for outcome in (State.BOUND, State.BIND_FAILED):
            self._seconds.labels(outcome.value)

    def __call__(self, outcome: State, seconds: float) -> None:
        """One more, ``seconds`` after it was begun."""
        self._seconds.labels(outcome.value).observe(seconds)


class Cloud(Collector):
    """Read anew for each scrape; ``down_after`` is in milliseconds, by binary."""

    def __init__(
        self,
        *,
        db: Reader,
        readings: Readings,
        down_after: Mapping[str, int],
        patience: float = _PATIENCE,
    ) -> None:
        self._db = db
        self._readings = readings
        self._down_after = down_after
        self._patience = patience
        self._lock = threading.Lock()
        self._asking: Future[Totals] | None = None

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """See Collector."""
        found = self._totals()
        yield _filled(catalogue.DATABASE_UP, {(): 0 if found is None else 1})
        if found is not None:
            yield _filled(catalogue.ARQS, _with_zeros(found.arqs, _ARQS))
            yield _filled(catalogue.HANDLES, _with_zeros(_by_state(found.units), _HANDLES))
            yield _filled(catalogue.UNITS, _with_zeros(found.units, _offered(found.units)))
            yield _filled(catalogue.UNITS_LEAKED, {(): found.leaked})
            yield _filled(catalogue.DEVICES, found.devices)
            yield _filled(catalogue.DEVICE_HEALTHY, found.healthy)
            yield _filled(catalogue.DRIVERS, found.drivers)
            yield _filled(catalogue.WORK, _waiting(found.work))
            yield _filled(catalogue.WORK_OLDEST, _seconds(_waiting(found.ages)))
            yield _filled(catalogue.WORK_FAILING, _waiting(found.failing))
            yield _filled(catalogue.OPERATIONS, _with_zeros(found.operations, _OPERATIONS))
            yield _filled(catalogue.NOTIFICATION_LAG, {(): found.untold / 1000})
            yield _filled(catalogue.SERVICES, self._services(found.silence))
            yield _filled(catalogue.HEARTBEAT_AGE, _seconds(found.silence))
        yield from self._measured()

    def _totals(self) -> Totals | None:
        """What the database says, None when it does not; one question at a time waits for it."""
        with self._lock:
            if self._asking is None or self._asking.done():
                self._asking = in_thread(self._read, name="metrics")
            asking = self._asking
        wait((asking,), self._patience)
        if not asking.done():
            return None
        try:
            return asking.result()
        except exception.CyborgError:
            return None

    def _read(self) -> Totals:
        with self._db.reader() as tx:
            return rows.totals(tx, self._db.now)

    def _services(self, silence: Counts) -> Counts:
        found: dict[tuple[str, ...], int] = {
            (binary, state): 0 for binary in self._down_after for state in ("up", "down")
        }
        for (binary, *_), ms in silence.items():
            if binary in self._down_after:
                found[binary, "up" if ms <= self._down_after[binary] else "down"] += 1
        return found

    def _measured(self) -> Iterable[GaugeMetricFamily]:
        families = {name: metric.family() for name, metric in catalogue.DEVICE_STATS.items()}
        for one in self._readings.latest():
            for name, value in one.figures.items():
                labels = (one.host, one.driver, one.type, one.uuid)
                families[name].add_metric(labels, value, timestamp=one.at)
        return families.values()


def _filled(metric: Metric, values: Mapping[tuple[str, ...], float]) -> GaugeMetricFamily:
    family = metric.family()
    for labels, value in sorted(values.items()):
        family.add_metric(labels, value)
    return family


def _with_zeros(counts: Counts, known: Iterable[tuple[str, ...]]) -> Counts:
    return {**dict.fromkeys(known, 0), **counts}


def _by_state(units: Counts) -> Counts:
    """The same for all hosts and resource classes together."""
    found: Counter[tuple[str, ...]] = Counter()
    for (_, _, state), count in units.items():
        found[state,] += count
    return found


def _offered(units: Counts) -> Iterable[tuple[str, ...]]:
    """What is shown as 0: a host of which all units are taken has none that are free."""
    states = (HandleState.FREE.value, HandleState.HELD.value)
    return [(host, kind, state) for host, kind, _ in units for state in states]


def _waiting(counts: Counts) -> Counts:
    return {kind: counts.get(kind, 0) for kind in _WORK}


def _seconds(counts: Counts) -> Mapping[tuple[str, ...], float]:
    return {labels: ms / 1000 for labels, ms in counts.items()}
