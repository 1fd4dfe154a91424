# SPDX-License-Identifier: Apache-2.0
"""The agent's composition root: construct its parts, and the daemon that runs them."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import TIMEOUT_MAX

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from cyborg.agent.device_events import DeviceEvents
from cyborg.agent.device_tasks import DeviceTasks
from cyborg.agent.discovery_requests import DiscoveryRequests
from cyborg.agent.driver_manager import DriverManager, Load, load_nothing
from cyborg.agent.endpoint import Endpoint
from cyborg.agent.findings import Findings
from cyborg.agent.guests import GuestReports
from cyborg.agent.health import HealthChecks
from cyborg.agent.heartbeats import Heartbeats
from cyborg.agent.lasting_settings import LastingSettings
from cyborg.agent.layout_sync import LayoutSync
from cyborg.agent.loop import AgentLoop
from cyborg.agent.prepared_sync import PreparedUnitsSync
from cyborg.agent.providers import Providers
from cyborg.agent.readings import Readings
from cyborg.agent.reporter import Reporter
from cyborg.agent.schedule import Schedule
from cyborg.agent.state_store import (
    DesiredStateCache,
    HealthBaselines,
    LastingFaults,
    StateStore,
    TaskJournal,
)
from cyborg.clients.glance import Glance
from cyborg.clients.placement import Placement
from cyborg.clients.placement_sync import Publisher
from cyborg.conf.agent import AgentOptions
from cyborg.conf.default import DefaultOptions
from cyborg.drivers import catalogue as device_catalogue
from cyborg.drivers import health_policy
from cyborg.drivers.catalogue import Catalogue
from cyborg.drivers.health_policy import HealthPolicy
from cyborg.drivers.host import Host, LocalHost
from cyborg.drivers.loader import LoadResult
from cyborg.drivers.worker import Worker
from cyborg.metrics import catalogue
from cyborg.metrics.meters import BusListening, Meters
from cyborg.model.process import AGENT
from cyborg.model.report import DriverState
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.notifications import Notifier
from cyborg.rpc.transport import AGENT_TOPIC, Bus
from cyborg.service import Daemon, PeriodicTask

#: How long a call of the conductor waits for the end of a task, in seconds.
_TASK_TIMEOUT = 10.0
#: A run of the loop calls every driver, Placement and the conductor, each with a timeout of its
#: own. A run that takes longer than this, in seconds, and some answers of the conductor, is stuck.
_MAX_RUN = 1800.0
#: The heartbeat reports a run that takes longer than this, in seconds, as a failure of the agent.
_LONG_RUN = 300.0
#: The random part of the intervals, so that the agents of a cloud do not all run at once.
_JITTER = 0.05
#: Seconds between two looks into the log of the kernel.
_LOG_INTERVAL = 1.0


@dataclass(frozen=True)
class Settings:
    """The options of an agent, and what is made of them; times in seconds.

    ``read_catalogue`` reads the device catalogue with its rules for traits, at the start and when
    the agent reads its files again. It may raise exception.ConfigError.
    """

    default: DefaultOptions
    agent: AgentOptions
    #: How long a call of the conductor waits for its answer.
    rpc_timeout: float
    version: str
    health_policy: HealthPolicy = field(default_factory=health_policy.shipped)
    read_catalogue: Callable[[], Catalogue] = device_catalogue.shipped
    #: The timeout of a poll: of all drivers together, and of each notification.
    poll_timeout: float = 10.0

    @property
    def host(self) -> str:
        """Return the name of the host."""
        return self.default.host

    @property
    def state_path(self) -> Path:
        """Return the directory of the state file and of the images."""
        return Path(self.default.state_path)

    @property
    def provider_names(self) -> tuple[str, ...]:
        """Return the names that the provider of the host may have in Placement."""
        return tuple(dict.fromkeys((self.agent.resource_provider_name, self.host)))


@dataclass(frozen=True)
class Parts:
    """The parts of an agent that run periodically or at a request."""

    reporter: Reporter
    heartbeats: Heartbeats
    loop: AgentLoop
    tasks: DeviceTasks
    checks: HealthChecks
    schedule: Schedule


class AgentMetrics(Collector):
    """The states of drivers, of the connection to a conductor and of Placement, for each scrape."""

    def __init__(
        self,
        *,
        drivers: Callable[[], Mapping[str, DriverState]],
        connected: Callable[[], bool],
        publish_error: Callable[[], str],
    ) -> None:
        self._drivers = drivers
        self._connected = connected
        self._publish_error = publish_error

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """See Collector."""
        up = catalogue.CONDUCTOR_UP.family()
        up.add_metric((), int(self._connected()))
        yield up
        publishing = catalogue.PUBLISHING.family()
        publishing.add_metric((), 0 if self._publish_error() else 1)
        yield publishing
        drivers = catalogue.DRIVERS.family()
        for name, state in sorted(self._drivers().items()):
            drivers.add_metric((name, state.value), 1)
        yield drivers


def make_parts(
    *,
    settings: Settings,
    conductor: ConductorClient,
    loaded: Sequence[LoadResult],
    placement: Placement,
    glance: Callable[[], Glance],
    load: Load = load_nothing,
    clock: Callable[[], float] = time.monotonic,
    worker: Worker | None = None,
    bus_error: Callable[[], str] = str,
    overdue: Callable[[], str] = str,
    wake: Callable[[], None] = lambda: None,
    machine: Host | None = None,
) -> Parts:
    """Return the parts, which connect to no peer yet; ``wake`` starts the loop."""
    options, host = settings.agent, settings.host
    store = StateStore(settings.state_path, host)
    journal, cache = TaskJournal(store), DesiredStateCache(store)
    driver_manager = DriverManager(loaded, load, cache.desired)
    machine, worker = machine or LocalHost(), worker or Worker()
    checks = HealthChecks(
        drivers=driver_manager.drivers,
        devices=lambda: reporter.devices(),
        last_scan=lambda: loop.last_scan,
        last_report=cache.report,
        policy=settings.health_policy,
        on_change=wake,
        enabled=options.health_interval > 0,
        worker=worker,
        timeout=settings.poll_timeout,
        findings=_findings(settings, machine, store, clock=clock, worker=worker),
    )
    reporter = _reporter(settings, driver_manager, checks, store=store, worker=worker)
    schedule = _schedule(settings, clock=clock, wake=wake)
    tasks = DeviceTasks(
        drivers=driver_manager.drivers,
        journal=journal,
        glance=glance,
        images=settings.state_path / "images",
        timeout=_TASK_TIMEOUT,
        request_scan=schedule.rescan,
        worker=worker,
        health=checks.after_set_up,
        on_prepare=checks.note_prepare,
        on_reset=checks.note_reset,
        settings=reporter.settings,
    )
    providers = _providers(settings, schedule, conductor, placement)
    heartbeats = Heartbeats(
        version=settings.version,
        endpoint=_endpoint(host),
        conductor=conductor,
        cache=cache,
        providers=providers,
        reporter=reporter,
        discoveries=DiscoveryRequests(timeout=_TASK_TIMEOUT),
        bus_error=bus_error,
        overdue=overdue,
        wake=wake,
    )
    loop = AgentLoop(
        heartbeats=heartbeats,
        reporter=reporter,
        providers=providers,
        prepared_sync=PreparedUnitsSync(
            drivers=driver_manager.drivers,
            tasks=tasks,
            journal=journal,
            conductor=conductor,
            worker=worker,
            timeout=options.scan_timeout,
        ),
        layout_sync=LayoutSync(tasks),
        guests=GuestReports(host=host, machine=machine, conductor=conductor, worker=worker),
        schedule=schedule,
        machine=machine,
        worker=worker,
    )
    return Parts(reporter, heartbeats, loop, tasks, checks, schedule)


def _findings(
    settings: Settings,
    machine: Host,
    store: StateStore,
    *,
    clock: Callable[[], float],
    worker: Worker,
) -> Findings:
    return Findings(
        machine=machine,
        policy=settings.health_policy,
        baselines=HealthBaselines(store),
        lasting=LastingFaults(store),
        failed_prepares=settings.agent.failed_prepares,
        worker=worker,
        clock=clock,
    )


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
    machine: Host,
) -> Daemon:
    """Return the daemon of an agent; it connects to no peer before it is started."""
    failures = catalogue.DRIVER_FAILURES.counter(meters.registry)
    worker = Worker(lambda driver, verb: failures.labels(driver, verb).inc())
    conductor = ConductorClient(bus, timeout=settings.rpc_timeout, sender=_endpoint(settings.host))
    daemon, options = Daemon(AGENT), settings.agent
    parts = make_parts(
        settings=settings,
        conductor=conductor,
        loaded=loaded,
        placement=placement,
        glance=glance,
        load=load,
        worker=worker,
        bus_error=lambda: daemon.bus_error,
        overdue=lambda: inventory.overdue(_LONG_RUN),
        wake=lambda: inventory.wake(),
        machine=machine,
    )
    heartbeats, limit = parts.heartbeats, _MAX_RUN + 4 * settings.rpc_timeout
    interval = options.heartbeat_interval
    heartbeat = PeriodicTask(
        "heartbeat", heartbeats.run_once, interval=interval, jitter=_JITTER, limit=limit
    )
    # Nothing but the heartbeat, new health, changed hardware and a reload starts a run.
    inventory = PeriodicTask("inventory", parts.loop.run_once, interval=TIMEOUT_MAX, limit=limit)

    def reload(epoch: int) -> None:
        # A request that arrives late must not restart the agent that followed.
        if heartbeats.epoch == epoch:
            daemon.restart()

    endpoint = Endpoint(
        parts.tasks,
        discoveries=heartbeats.discoveries,
        on_desired_changed=heartbeat.wake,
        check=heartbeats.check,
        reload=reload,
    )
    daemon.at_reload(parts.loop.reload, inventory.wake)
    daemon.at_end(bus.close, conductor.close, parts.tasks.stop)
    server = bus.server(AGENT_TOPIC, settings.host, meters.endpoint(endpoint))
    daemon.add_server(server, trouble=lambda: server.trouble)
    daemon.add_server(DeviceEvents(machine, parts.schedule.rescan, parts.checks.note_events))
    daemon.add_task(inventory)
    daemon.add_task(heartbeat)  # It starts later and stops later, because it reports the other.
    if interval := options.health_interval:
        listen = parts.checks.read_log
        daemon.add_task(PeriodicTask("kernel-log", listen, interval=_LOG_INTERVAL, jitter=0.0))
        checks = parts.checks.run_once
        daemon.add_task(PeriodicTask("health", checks, interval=interval, jitter=_JITTER))
    if interval := options.usage_interval:
        daemon.at_end(notifier.close)
        readings = _readings(settings, parts, conductor, notifier, worker=worker)
        daemon.add_task(PeriodicTask("usage", readings.run_once, interval=interval, jitter=_JITTER))
    if meters.enabled:
        metrics = AgentMetrics(
            drivers=parts.reporter.states,
            connected=lambda: conductor.up,
            publish_error=lambda: heartbeats.publish_error,
        )
        daemon.add_server(meters.listener(metrics, BusListening(lambda: daemon.bus_error)))
    return daemon


def _readings(
    settings: Settings,
    parts: Parts,
    conductor: ConductorClient,
    notifier: Notifier,
    *,
    worker: Worker,
) -> Readings:
    return Readings(
        host=settings.host,
        drivers=parts.reporter.driver_manager.drivers,
        devices=parts.reporter.devices,
        last_scan=lambda: parts.loop.last_scan,
        providers=lambda: parts.loop.provider_uuids,
        epoch=lambda: parts.heartbeats.epoch,
        conductor=conductor,
        notifier=notifier,
        worker=worker,
        timeout=settings.poll_timeout,
    )


def _schedule(
    settings: Settings, *, clock: Callable[[], float], wake: Callable[[], None]
) -> Schedule:
    scan, full_check = settings.default.periodic_interval, settings.agent.full_check_interval
    return Schedule(scan=scan, full_check=full_check, clock=clock, wake=wake)


def _reporter(
    settings: Settings,
    driver_manager: DriverManager,
    checks: HealthChecks,
    *,
    store: StateStore,
    worker: Worker,
) -> Reporter:
    return Reporter(
        driver_manager,
        checks,
        worker,
        timeout=settings.agent.scan_timeout,
        topology_traits=settings.agent.topology_traits,
        compat_traits=settings.agent.compat_traits,
        read_catalogue=settings.read_catalogue,
        settings=LastingSettings(store, worker),
    )


def _providers(
    settings: Settings, schedule: Schedule, conductor: ConductorClient, placement: Placement
) -> Providers:
    return Providers(
        host=settings.host,
        names=settings.provider_names,
        schedule=schedule,
        conductor=conductor,
        placement=placement,
        publisher=Publisher(placement),
    )


def _endpoint(host: str) -> str:
    return f"{AGENT_TOPIC}@{host}"
