# SPDX-License-Identifier: Apache-2.0
"""The periodic jobs of a conductor, and the settings of the jobs and the use cases."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cyborg.clients.nova import Nova
from cyborg.clients.placement_sync import Publisher
from cyborg.conductor.audit.auditor import Auditor
from cyborg.conductor.audit.repairs import AuditJob, Repairs
from cyborg.conductor.hosts.agent_failover import AgentFailover
from cyborg.conductor.hosts.lost_devices import LostDevices
from cyborg.conductor.instance_info import InstanceInfoSync
from cyborg.conductor.leases import ConductorLease
from cyborg.db import history
from cyborg.db.engine import Database
from cyborg.db.history import Purge
from cyborg.model.process import AGENT, API, CONDUCTOR
from cyborg.service import PeriodicTask

LOG = logging.getLogger(__name__)

#: A pass deletes at most ten thousand rows of a kind, which is more than a busy cloud adds between
#: two passes.
_PASS = Purge(batch=500, batches=20)
#: Seconds between checks for agents that have been silent for too long.
_AGENTS_INTERVAL: Final = 60.0


@dataclass(frozen=True)
class Settings:
    """Values from the configuration; times in seconds. A retention of 0 has no end."""

    host: str
    process: str
    version: str
    heartbeat: float
    lease: float
    bind_timeout: float
    agent_down_after: float
    threads: int
    audit_interval: float = 600.0
    audit_changes: int = 50
    housekeeping_interval: float = 600.0
    lost_retention: float = 0.0
    history_retention: float = 0.0
    #: 0: units of agents that are down are never reserved.
    agent_grace: float = 3600.0
    #: Drivers whose new devices are enabled at once; ``*`` stands for every driver.
    auto_enable: frozenset[str] = frozenset()
    #: 0: names and states of instances are not read from Nova.
    instance_refresh: float = 0.0
    instance_turn: float = 10.0

    @property
    def down_after(self) -> dict[str, int]:
        """Binary → milliseconds of silence after which a process of it is down."""
        return {
            AGENT: self.agent_down_ms,
            API: self.agent_down_ms,
            CONDUCTOR: int(self.lease * 1000),
        }

    @property
    def lost_ms(self) -> int:
        """Milliseconds after which lost devices are removed; 0 is never."""
        return int(self.lost_retention * 1000)

    @property
    def agent_down_ms(self) -> int:
        """Milliseconds of silence after which an agent is down."""
        return int(self.agent_down_after * 1000)


class RetentionJob:
    """Remove lost devices and history past their retention.

    Every conductor has the job, and the one that has been up for the longest time does it.
    ``lease_ms`` is the time in milliseconds after which a silent conductor is down.
    ``history_retention`` is in milliseconds; 0 keeps the history for ever.
    """

    def __init__(
        self,
        *,
        db: Database,
        lease: ConductorLease,
        lost_devices: LostDevices,
        lease_ms: int,
        history_retention: int,
    ) -> None:
        self._db = db
        self._lease = lease
        self._lost_devices = lost_devices
        self._lease_ms = lease_ms
        self._history_retention = history_retention

    def run_once(self) -> None:
        """Do one pass; raises exception.Unavailable."""
        if not self._lease.comes_first(self._lease_ms):
            return
        self._lost_devices.expire()
        if self._history_retention:
            before = history.cutoff(self._db, self._history_retention)
            deleted = history.purge(self._db, before, _PASS)
            counts = [f"{count} {kept.value}" for kept, count in deleted.items() if count]
            if counts:
                LOG.info("Deleted history past its retention: %s", ", ".join(counts))


def audit(
    settings: Settings, lease: ConductorLease, auditor: Callable[[], Auditor], repairs: Repairs
) -> PeriodicTask:
    """Return the job that compares the database, Placement and Nova, and repairs differences."""
    job = AuditJob(
        lease=lease,
        auditor=auditor,
        repairs=repairs,
        lease_ms=int(settings.lease * 1000),
        limit=settings.audit_changes,
    )
    return PeriodicTask("audit", job.run_once, interval=settings.audit_interval)


def housekeeping(
    settings: Settings, db: Database, lease: ConductorLease, lost_devices: LostDevices
) -> PeriodicTask:
    """Return the job that removes lost devices and history past their retention."""
    job = RetentionJob(
        db=db,
        lease=lease,
        lost_devices=lost_devices,
        lease_ms=int(settings.lease * 1000),
        history_retention=int(settings.history_retention * 1000),
    )
    return PeriodicTask("housekeeping", job.run_once, interval=settings.housekeeping_interval)


def agent_failover(
    settings: Settings, db: Database, lease: ConductorLease, publisher: Callable[[], Publisher]
) -> PeriodicTask:
    """Return the job that reserves the units of agents that are down in Placement."""
    job = AgentFailover(
        db=db,
        lease=lease,
        publisher=publisher,
        grace=int(settings.agent_grace * 1000),
        lease_ms=int(settings.lease * 1000),
    )
    interval = min(_AGENTS_INTERVAL, settings.agent_grace)
    return PeriodicTask("agents", job.run_once, interval=interval)


def instance_info(
    settings: Settings, db: Database, lease: ConductorLease, nova: Nova
) -> PeriodicTask:
    """Return the job that reads the names and states of instances from Nova."""
    job = InstanceInfoSync(
        db=db,
        lease=lease,
        nova=nova,
        refresh=int(settings.instance_refresh * 1000),
        lease_ms=int(settings.lease * 1000),
        patience=settings.instance_turn,
    )
    return PeriodicTask("instances", job.run_once, interval=settings.instance_turn)
