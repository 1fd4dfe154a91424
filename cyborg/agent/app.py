# SPDX-License-Identifier: Apache-2.0
"""The agent's composition root: construct its parts, and the daemon that runs them."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from cyborg.agent.discovery_requests import DiscoveryRequests
from cyborg.agent.driver_manager import (
    UNCOUNTED,
    DriverCalls,
    DriverManager,
    Load,
    load_nothing,
)
from cyborg.agent.endpoint import Endpoint
from cyborg.agent.health import HealthChecks
from cyborg.agent.loop import AgentLoop, Identity, Intervals
from cyborg.agent.operations import Operations
from cyborg.agent.prepared_sync import PreparedUnitsSync
from cyborg.agent.readings import Readings
from cyborg.agent.reporter import Reporter
from cyborg.agent.state_store import DesiredStateCache, OperationJournal, StateFiles
from cyborg.clients.glance import Glance
from cyborg.clients.placement import Placement
from cyborg.clients.placement_sync import Publisher
from cyborg.drivers.loader import LoadResult
from cyborg.metrics import catalogue
from cyborg.metrics.meters import BusListening, Meters
from cyborg.model.process import AGENT
from cyborg.model.report import DriverState
from cyborg.rpc.conductor import ReportClient
from cyborg.rpc.notifications import Notifier
from cyborg.rpc.transport import AGENT_TOPIC, Bus
from cyborg.service import Daemon, PeriodicTask

#: How long a call of the conductor waits for the end of an operation, in seconds.
_OPERATION_TIMEOUT = 10.0
#: A run of the loop calls every driver, Placement and the conductor, each with a timeout of its
#: own. A run that takes longer than this, in seconds, and some answers of the conductor, is stuck.
_MAX_RUN = 1800.0
#: The random part of the intervals, so that the agents of a cloud do not all run at once.
_JITTER = 0.05


@dataclass(frozen=True)
class Settings:
    """Plain values from the configuration; times in seconds."""

    host: str
    provider_names: tuple[str, ...]
    version: str
    heartbeat: float
    scan: float
    full_check: float
    rpc_timeout: float
    state_path: Path
    #: The interval between polls of device utilisation; 0: never.
    usage: float = 0.0
    #: The interval between polls of device health; 0: never.
    health: float = 0.0


@dataclass(frozen=True)
class Parts:
    """The parts of an agent that run periodically or at a request."""

    driver_manager: DriverManager
    loop: AgentLoop
    operations: Operations
    discoveries: DiscoveryRequests
    checks: HealthChecks


class AgentMetrics(Collector):
    """The states of the drivers and of the connection to a conductor, read for each scrape."""

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


def _do_not_wake() -> None:
    """Do nothing: the caller of the loop decides when it runs."""


def make_parts(
    *,
    settings: Settings,
    conductor: ReportClient,
    loaded: Sequence[LoadResult],
    placement: Placement,
    glance: Callable[[], Glance],
    load: Load = load_nothing,
    clock: Callable[[], float] = time.monotonic,
    driver_calls: DriverCalls = UNCOUNTED,
    bus_error: Callable[[], str] = str,
    wake: Callable[[], None] = _do_not_wake,
) -> Parts:
    """Return the parts; they read the files below ``state_path`` and connect to no peer yet.

    ``loaded`` are the drivers of the configuration; ``load`` loads a driver that an operator
    requests later. ``bus_error`` says why this agent receives no requests over the bus; it is empty
    while it does. ``wake`` is called when there is something to report before the next run of the
    loop is due.
    """
    files = StateFiles(settings.state_path)
    journal, cache = OperationJournal(files, settings.host), DesiredStateCache(files, settings.host)
    journal.log_interrupted()
    driver_manager = DriverManager(loaded, load)
    if cache.desired is not None:
        # The last known requests of operators, until the conductor answers.
        driver_manager.apply(cache.desired.drivers, cache.desired.operator_created)
    discoveries = DiscoveryRequests(timeout=_OPERATION_TIMEOUT)
    checks = HealthChecks(
        drivers=driver_manager.drivers,
        devices=lambda: loop.devices(),
        last_report=cache.report,
        on_change=wake,
        enabled=settings.health > 0,
        driver_calls=driver_calls,
    )
    operations = Operations(
        drivers=driver_manager.drivers,
        journal=journal,
        glance=glance,
        images=settings.state_path / "images",
        timeout=_OPERATION_TIMEOUT,
        request_scan=lambda: loop.request_scan(),
        driver_calls=driver_calls,
        health=checks.after_set_up,
    )
    prepared_sync = PreparedUnitsSync(
        drivers=driver_manager.drivers,
        operations=operations,
        journal=journal,
        conductor=conductor,
        driver_calls=driver_calls,
    )
    loop = AgentLoop(
        identity=Identity(
            settings.host, settings.provider_names, settings.version, _endpoint(settings.host)
        ),
        intervals=Intervals(settings.scan, settings.full_check),
        driver_manager=driver_manager,
        reporter=Reporter(driver_manager, driver_calls),
        checks=checks,
        prepared_sync=prepared_sync,
        discoveries=discoveries,
        cache=cache,
        conductor=conductor,
        placement=placement,
        publisher=Publisher(placement),
        clock=clock,
        bus_error=bus_error,
    )
    return Parts(driver_manager, loop, operations, discoveries, checks)


def assemble(
    *,
    settings: Settings,
    bus: Bus,
    loaded: Sequence[LoadResult],
    placement: Placement,
    glance: Callable[[], Glance],
    load: Load,
    notifier: Notifier,
    meters: Meters,
) -> Daemon:
    """Return the daemon of an agent; it connects to no peer before it is started."""
    failures = catalogue.DRIVER_FAILURES.counter(meters.registry)
    driver_calls = DriverCalls(lambda driver, verb: failures.labels(driver, verb).inc())
    conductor = ReportClient(bus, timeout=settings.rpc_timeout, sender=_endpoint(settings.host))
    daemon = Daemon(AGENT)
    parts = make_parts(
        settings=settings,
        conductor=conductor,
        loaded=loaded,
        placement=placement,
        glance=glance,
        load=load,
        driver_calls=driver_calls,
        bus_error=lambda: daemon.bus_error,
        wake=lambda: heartbeat.wake(),
    )
    heartbeat = PeriodicTask(
        "heartbeat",
        parts.loop.run_once,
        interval=settings.heartbeat,
        jitter=_JITTER,
        limit=_MAX_RUN + 4 * settings.rpc_timeout,
    )

    def reload(epoch: int) -> None:
        # A request that arrives late must not restart the agent that followed.
        if parts.loop.epoch == epoch:
            daemon.restart()

    endpoint = Endpoint(
        parts.operations,
        discoveries=parts.discoveries,
        on_desired_changed=heartbeat.wake,
        check=parts.loop.check,
        reload=reload,
    )
    daemon.at_end(bus.close)
    daemon.at_end(conductor.close)
    daemon.at_end(parts.operations.stop)
    server = bus.server(AGENT_TOPIC, settings.host, meters.endpoint(endpoint))
    daemon.add_server(server, trouble=lambda: server.trouble)
    daemon.add_task(heartbeat)
    if settings.health:
        daemon.add_task(
            PeriodicTask("health", parts.checks.run_once, interval=settings.health, jitter=_JITTER)
        )
    if settings.usage:
        daemon.at_end(notifier.close)
        readings = Readings(
            host=settings.host,
            drivers=parts.driver_manager.drivers,
            devices=parts.loop.devices,
            epoch=lambda: parts.loop.epoch,
            conductor=conductor,
            notifier=notifier,
            driver_calls=driver_calls,
        )
        daemon.add_task(
            PeriodicTask("usage", readings.run_once, interval=settings.usage, jitter=_JITTER)
        )
    if meters.enabled:
        metrics = AgentMetrics(drivers=parts.loop.drivers, connected=lambda: conductor.up)
        daemon.add_server(meters.listener(metrics, BusListening(lambda: daemon.bus_error)))
    return daemon


def _endpoint(host: str) -> str:
    return f"{AGENT_TOPIC}@{host}"
