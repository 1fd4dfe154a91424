# SPDX-License-Identifier: Apache-2.0
"""The agent's composition root: what it is made of, and what runs in it."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cyborg.agent.endpoint import Endpoint
from cyborg.agent.heart import Heart, Identity, Intervals
from cyborg.agent.operations import Operations
from cyborg.agent.reporter import Reporter
from cyborg.clients.glance import Glance
from cyborg.clients.placement import Placement
from cyborg.clients.reconcile import Publisher
from cyborg.drivers.loader import Loaded
from cyborg.model.names import AGENT
from cyborg.rpc.conductor import ReportClient
from cyborg.rpc.transport import AGENT_TOPIC, Bus
from cyborg.service import Daemon, Periodic

LOG = logging.getLogger(__name__)

#: How long one question of the conductor waits for the end of an operation, in seconds.
_OPERATION_PATIENCE = 10.0


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


def assemble(
    *,
    settings: Settings,
    bus: Bus,
    loaded: Sequence[Loaded],
    placement: Placement,
    glance: Callable[[], Glance],
) -> Daemon:
    """An agent, ready to be started; it connects to nothing before."""
    drivers = {one.name: one.driver for one in loaded if one.driver is not None}
    failures = {one.name: one.error for one in loaded if one.error is not None}
    for name, reason in failures.items():
        LOG.error("Driver %s cannot be used: %s", name, reason)
    conductor = ReportClient(bus, timeout=settings.rpc_timeout)
    operations = Operations(
        drivers=drivers,
        glance=glance,
        images=settings.state_path,
        patience=_OPERATION_PATIENCE,
    )
    identity = Identity(
        settings.host, settings.provider_names, settings.version, f"{AGENT_TOPIC}@{settings.host}"
    )
    heart = Heart(
        identity=identity,
        intervals=Intervals(settings.scan, settings.full_check),
        reporter=Reporter(drivers=drivers, failures=failures),
        conductor=conductor,
        placement=placement,
        publisher=Publisher(placement),
        clock=time.monotonic,
    )
    beats = Periodic("heartbeat", heart.beat, interval=settings.heartbeat, jitter=0.05)
    daemon = Daemon(AGENT)
    daemon.at_end(bus.close)
    daemon.at_end(conductor.close)
    daemon.at_end(operations.stop)
    daemon.serve(bus.server(AGENT_TOPIC, settings.host, Endpoint(operations, on_poke=beats.wake)))
    daemon.every(beats)
    return daemon
