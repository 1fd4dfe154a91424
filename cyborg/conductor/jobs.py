# SPDX-License-Identifier: Apache-2.0
"""The periodic jobs of a conductor, and the settings that they and the use cases run with."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cyborg.clients.nova import Nova
from cyborg.clients.placement_sync import Publisher
from cyborg.conductor.audit.auditor import Auditor
from cyborg.conductor.audit.job import AuditJob
from cyborg.conductor.audit.repairs import Repairs
from cyborg.conductor.hosts.agent_failover import AgentFailover
from cyborg.conductor.hosts.lost_devices import LostDevices
from cyborg.conductor.instance_info import InstanceInfoSync
from cyborg.conductor.leases import ConductorLease
from cyborg.db import history
from cyborg.db.engine import Database
from cyborg.db.history import Kept, Purge
from cyborg.model.names import AGENT, API, CONDUCTOR
from cyborg.service import PeriodicTask


@dataclass(frozen=True)
class Settings:
    """Plain values from the configuration; times in seconds.

    A retention of 0 is one without end.
    """

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
    #: 0: dead agents' devices stay on offer.
    agent_grace: float = 3600.0
    #: Drivers whose new devices need no operator's word; ``*`` is every one.
    auto_enable: frozenset[str] = frozenset()
    #: 0: Nova is not asked what instances are called.
    instance_refresh: float = 0.0
    instance_turn: float = 10.0

    @property
    def down_after(self) -> dict[str, int]:
        """After how many milliseconds of silence a process of a binary is down."""
        return {
            AGENT: self.agent_down_ms,
            API: self.agent_down_ms,
            CONDUCTOR: int(self.lease * 1000),
        }

    @property
    def lost_ms(self) -> int:
        """After how many milliseconds what is lost is given up; 0 is never."""
        return int(self.lost_retention * 1000)

    @property
    def agent_down_ms(self) -> int:
        """How many milliseconds an agent may be silent and count as up."""
        return int(self.agent_down_after * 1000)


LOG = logging.getLogger(__name__)

#: One pass deletes ten thousand rows of a kind at most, which is more than a busy cloud makes
#: between two passes.
_PASS = Purge(batch=500, batches=20)


class Housekeeper:
    """A periodic job of every conductor; only the longest-known living one does it.

    ``lease_ms`` is how long a silent conductor counts as living, ``history_retention`` how long
    history is kept, in milliseconds; 0 means for ever.
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
        """One pass; raises exception.Unavailable."""
        if not self._lease.comes_first(self._lease_ms):
            return
        self._lost_devices.expire()
        if self._history_retention:
            before = history.cutoff(self._db, self._history_retention)
            _tell(history.purge(self._db, before, _PASS))


def _tell(gone: dict[Kept, int]) -> None:
    parts = [f"{count} {kept.value}" for kept, count in gone.items() if count]
    if parts:
        LOG.info("Deleted history past its retention: %s", ", ".join(parts))


#: How often the conductor looks for agents that are silent for too long, in seconds.
_AGENTS_INTERVAL: Final = 60.0


def audit(
    settings: Settings, lease: ConductorLease, auditor: Callable[[], Auditor], repairs: Repairs
) -> PeriodicTask:
    """The job that compares everything with everything."""
    job = AuditJob(
        lease=lease,
        auditor=auditor,
        repairs=repairs,
        lease_ms=int(settings.lease * 1000),
        limit=settings.audit_changes,
    )
    return PeriodicTask("audit", job.run_once, interval=settings.audit_interval)


def keep_house(
    settings: Settings, db: Database, lease: ConductorLease, lost_devices: LostDevices
) -> PeriodicTask:
    """The job that gives up what is past its time."""
    housekeeper = Housekeeper(
        db=db,
        lease=lease,
        lost_devices=lost_devices,
        lease_ms=int(settings.lease * 1000),
        history_retention=int(settings.history_retention * 1000),
    )
    return PeriodicTask(
        "housekeeping", housekeeper.run_once, interval=settings.housekeeping_interval
    )


def look_for_agents(
    settings: Settings, db: Database, lease: ConductorLease, publisher: Callable[[], Publisher]
) -> PeriodicTask:
    """The job that takes back what dead agents offered."""
    failover = AgentFailover(
        db=db,
        lease=lease,
        publisher=publisher,
        grace=int(settings.agent_grace * 1000),
        lease_ms=int(settings.lease * 1000),
    )
    interval = min(_AGENTS_INTERVAL, settings.agent_grace)
    return PeriodicTask("agents", failover.run_once, interval=interval)


def look_instances_up(
    settings: Settings, db: Database, lease: ConductorLease, nova: Nova
) -> PeriodicTask:
    """The job that keeps what instances are called and how they are."""
    inquirer = InstanceInfoSync(
        db=db,
        lease=lease,
        nova=nova,
        refresh=int(settings.instance_refresh * 1000),
        lease_ms=int(settings.lease * 1000),
        patience=settings.instance_turn,
    )
    return PeriodicTask("instances", inquirer.run_once, interval=settings.instance_turn)
