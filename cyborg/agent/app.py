# SPDX-License-Identifier: Apache-2.0
"""The agent's composition root: what it is made of, and what runs in it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cyborg.agent.discovery_requests import DiscoveryRequests
from cyborg.agent.driver_calls import DriverCalls, guarded
from cyborg.agent.driver_manager import DriverManager, Load, none_else
from cyborg.agent.endpoint import Endpoint
from cyborg.agent.health import HealthChecks
from cyborg.agent.loop import AgentLoop, Identity, Intervals
from cyborg.agent.metrics import Failures, Health
from cyborg.agent.operations import Operations
from cyborg.agent.prepared_sync import PreparedUnitsSync
from cyborg.agent.readings import Readings
from cyborg.agent.reporter import Reporter
from cyborg.agent.state_store import DesiredStateCache, OperationJournal, StateFiles
from cyborg.clients.glance import Glance
from cyborg.clients.placement import Placement
from cyborg.clients.placement_sync import Publisher
from cyborg.drivers.loader import LoadResult
from cyborg.metrics.meters import BusListening, Meters
from cyborg.model.names import AGENT
from cyborg.rpc.conductor import ReportClient
from cyborg.rpc.notifications import Notifier
from cyborg.rpc.transport import AGENT_TOPIC, Bus
from cyborg.service import Daemon, PeriodicTask

#: How long one question of the conductor waits for the end of an operation, in seconds.
_OPERATION_PATIENCE = 10.0
#: A round asks every driver, Placement and the conductor, each with a time-out of its own: one
#: that takes longer than this, in seconds, and some answers of the conductor, never ends.
_ROUND = 1800.0


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
    #: How often devices are measured; 0: never.
    usage: float = 0.0
    #: How often drivers are asked for the health of devices; 0: never.
    health: float = 0.0


@dataclass(frozen=True)
class Parts:
    """What does an agent's work: by itself, and when it is asked."""

    driver_manager: DriverManager
    loop: AgentLoop
    operations: Operations
    discoveries: DiscoveryRequests
    checks: HealthChecks


def _nobody() -> None:
    """Wake nobody: whoever calls the loop's rounds decides when."""


def make_parts(
    *,
    settings: Settings,
    conductor: ReportClient,
    loaded: Sequence[LoadResult],
    placement: Placement,
    glance: Callable[[], Glance],
    load: Load = none_else,
    clock: Callable[[], float] = time.monotonic,
    driver_calls: DriverCalls = guarded,
    bus_error: Callable[[], str] = str,
    wake: Callable[[], None] = _nobody,
) -> Parts:
    """The parts, which connect to nothing before they are used; reads what is under state_path.

    ``loaded`` are the drivers of the configuration, ``load`` is how others come in later.
    ``bus_error`` says why this agent receives no requests over the bus; empty while it does.
    ``wake`` is called when there is something to report before the next round is due.
    """
    files = StateFiles(settings.state_path)
    journal, cache = OperationJournal(files, settings.host), DesiredStateCache(files, settings.host)
    journal.tell()
    driver_manager = _drivers(loaded, load, cache)
    discoveries = DiscoveryRequests(patience=_OPERATION_PATIENCE)
    checks = HealthChecks(
        drivers=driver_manager.drivers,
        devices=lambda: loop.devices(),
        before=cache.report,
        changed=wake,
        asks=settings.health > 0,
        driver_calls=driver_calls,
    )
    operations = Operations(
        drivers=driver_manager.drivers,
        journal=journal,
        glance=glance,
        images=settings.state_path / "images",
        patience=_OPERATION_PATIENCE,
        look_again=lambda: loop.look_again(),
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
        identity=_identity(settings),
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


def _drivers(loaded: Sequence[LoadResult], load: Load, cache: DesiredStateCache) -> DriverManager:
    """The drivers, as they were wanted when this host last heard of it."""
    driver_manager = DriverManager(loaded, load)
    if cache.desired is not None:
        driver_manager.apply(cache.desired.drivers, cache.desired.made)
    return driver_manager


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
    """An agent, ready to be started; it connects to nothing before."""
    driver_calls = DriverCalls(Failures(meters.registry))
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
        wake=lambda: beats.wake(),
    )
    beats = _heartbeat(settings, parts.loop)

    def reload(epoch: int) -> None:
        # A question that comes late must not end the agent that came after.
        if parts.loop.lives_as(epoch):
            daemon.restart()

    endpoint = Endpoint(
        parts.operations,
        discoveries=parts.discoveries,
        on_poke=beats.wake,
        check=parts.loop.check,
        reload=reload,
    )
    daemon.at_end(bus.close)
    daemon.at_end(conductor.close)
    daemon.at_end(parts.operations.stop)
    server = bus.server(AGENT_TOPIC, settings.host, meters.endpoint(endpoint))
    daemon.add_server(server, trouble=lambda: server.trouble)
    daemon.add_task(beats)
    if settings.health:
        job = parts.checks.run_once
        daemon.add_task(PeriodicTask("health", job, interval=settings.health, jitter=0.05))
    if settings.usage:
        daemon.at_end(notifier.close)
        daemon.add_task(
            _measure(settings, parts, driver_calls, conductor=conductor, notifier=notifier)
        )
    if meters.enabled:
        health = Health(drivers=parts.loop.drivers, connected=lambda: conductor.up)
        daemon.add_server(meters.listener(health, BusListening(lambda: daemon.bus_error)))
    return daemon


def _heartbeat(settings: Settings, loop: AgentLoop) -> PeriodicTask:
    """The job without which the agent is of no use."""
    limit = _ROUND + 4 * settings.rpc_timeout
    return PeriodicTask(
        "heartbeat", loop.run_once, interval=settings.heartbeat, jitter=0.05, limit=limit
    )


def _measure(
    settings: Settings,
    parts: Parts,
    driver_calls: DriverCalls,
    *,
    conductor: ReportClient,
    notifier: Notifier,
) -> PeriodicTask:
    """The job that tells how busy the devices are."""
    readings = Readings(
        host=settings.host,
        drivers=parts.driver_manager.drivers,
        devices=parts.loop.devices,
        epoch=lambda: parts.loop.epoch,
        conductor=conductor,
        notifier=notifier,
        driver_calls=driver_calls,
    )
    return PeriodicTask("usage", readings.run_once, interval=settings.usage, jitter=0.05)


def _identity(settings: Settings) -> Identity:
    return Identity(
        settings.host, settings.provider_names, settings.version, _endpoint(settings.host)
    )


def _endpoint(host: str) -> str:
    return f"{AGENT_TOPIC}@{host}"
