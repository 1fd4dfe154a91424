# SPDX-License-Identifier: Apache-2.0
"""What an agent shows: its drivers, how often they failed, and whether a conductor answers."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from cyborg.metrics import catalogue
from cyborg.model.report import DriverState


class Health(Collector):
    """Read anew for each scrape."""

    def __init__(
        self, *, drivers: Callable[[], Mapping[str, DriverState]], connected: Callable[[], bool]
    ) -> None:
        self._drivers = drivers
        self._connected = connected

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """See Collector."""
        up = catalogue.CONDUCTOR_UP.family()
        up.add_metric((), int(self._connected()))
        yield up
        drivers = catalogue.DRIVERS.family()
        for name, state in sorted(self._drivers().items()):
            drivers.add_metric((name, state.value), 1)
        yield drivers


class Failures:
    """Counts drivers' failures; goes into a ``Guard``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counter = catalogue.DRIVER_FAILURES.counter(registry)

    def __call__(self, driver: str, verb: str) -> None:
        """One more."""
        self._counter.labels(driver, verb).inc()
