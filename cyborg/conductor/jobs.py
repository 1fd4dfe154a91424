# SPDX-License-Identifier: Apache-2.0
"""The periodic jobs of a conductor, and the settings of the jobs and the use cases."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from cyborg import exception
from cyborg.clients.nova import Nova, ServerInfo
from cyborg.clients.placement_sync import Publisher
from cyborg.conductor import device_health
from cyborg.conductor.arqs import release
from cyborg.conductor.audit.auditor import Auditor
from cyborg.conductor.audit.repairs import AuditJob, Repairs
from cyborg.conductor.audit.unattached import Repair, UnattachedJob
from cyborg.conductor.hosts.agent_failover import AgentFailover
from cyborg.conductor.hosts.lost_devices import LostDevices
from cyborg.conductor.leases import ConductorLease
from cyborg.db import history, instances
from cyborg.db.engine import Database, retried
from cyborg.db.history import Purge
from cyborg.db.instances import DueInstance
from cyborg.model.audit_findings import Ages
from cyborg.model.probation import AT_ONCE, Rules
from cyborg.model.process import AGENT, API, CONDUCTOR
from cyborg.model.provider import ANY_NAMES, HostNames
from cyborg.service import PeriodicTask

LOG = logging.getLogger(__name__)

#: A pass deletes at most ten thousand rows of a kind, which is more than a busy cloud adds between
#: two passes.
_PURGE = Purge(batch=500, batches=20)
#: A pass deletes all that members of projects can cause between two passes.
_PURGE_BRIEF = Purge(batch=1000, batches=5000)
#: The ARQs that a transaction deletes because they are not bound, and the transactions of a pass.
_UNBOUND_BATCH: Final = 1000
_UNBOUND_BATCHES: Final = 100
#: Seconds between checks for agents that have been silent for too long.
_AGENTS_INTERVAL: Final = 60.0
#: Maximum number of instances that a pass reads.
_INSTANCES = 20
#: Milliseconds until an instance that is changing, or could not be read, is read again.
_INSTANCE_RETRY_MS = 30_000


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
    #: What is done about servers without their accelerators, and how old binds must be for that.
    repair_unattached: Repair = Repair.NOTIFY
    unattached_interval: float = 10.0
    ages: Ages = field(default_factory=Ages)
    housekeeping_interval: float = 600.0
    lost_retention: float = 0.0
    history_retention: float = 0.0
    #: 0: units of agents that are down are never reserved.
    agent_grace: float = 3600.0
    #: Drivers whose new devices are enabled at once; ``*`` stands for every driver.
    auto_enable: frozenset[str] = frozenset()
    clean_existing_units: bool = False
    #: 0: names and states of instances are not read from Nova.
    instance_refresh: float = 0.0
    instance_interval: float = 10.0
    #: Of one request; and of one project, without an instance.
    max_arqs_per_request: int = 256
    max_unbound_arqs: int = 2000
    #: The age at which ARQs without an instance are deleted.
    unbound_age: float = 24 * 3600.0
    #: Of a request to an agent; a task may take many requests.
    agent_timeout: float = 15.0
    #: Whether agents may use the topic of the API, as those of earlier releases do.
    one_topic: bool = True
    #: The names in Placement that the agents of hosts may use.
    host_names: HostNames = ANY_NAMES
    #: How devices return after a fault; their probation ends up to ``health_interval`` later.
    health_rules: Rules = AT_ONCE
    health_interval: float = 10.0

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


@dataclass(frozen=True, kw_only=True)
class RetentionJob:
    """Remove lost devices, ARQs that are not bound, and history, past their retention.

    ``unbound_age`` and ``history_retention`` are in milliseconds; 0 keeps the history for ever.
    """

    db: Database
    lease: ConductorLease
    lost_devices: LostDevices
    lease_ms: int
    unbound_age: int
    history_retention: int

    def run_once(self) -> None:
        """Do one pass; raises exception.Unavailable."""
        if not self.lease.is_oldest(self.lease_ms):
            return
        self.lost_devices.expire()
        self._expire_unbound()
        brief = history.purge_brief(self.db, _PURGE_BRIEF)
        if brief:
            LOG.info("Deleted %d events of requests that were never bound", brief)
        if self.history_retention:
            before = history.cutoff(self.db, self.history_retention)
            deleted = history.purge(self.db, before, _PURGE)
            counts = [f"{count} {kept.value}" for kept, count in deleted.items() if count]
            if counts:
                LOG.info("Deleted history past its retention: %s", ", ".join(counts))

    def _expire_unbound(self) -> None:
        cutoff = history.cutoff(self.db, self.unbound_age) / 1000
        before = datetime.fromtimestamp(cutoff, UTC).replace(tzinfo=None, microsecond=0)
        total = 0
        for _ in range(_UNBOUND_BATCHES):
            count = release.expire(self.db, before, _UNBOUND_BATCH)
            total += count
            if count < _UNBOUND_BATCH:
                break
        if total:
            LOG.info(
                "Deleted %d accelerator request(s) that were not bound since %s", total, before
            )


@dataclass(frozen=True, kw_only=True)
class HealthJob:
    """End the probations, and the ignoring of faults, that are due.

    ``desired_changed`` is called with each agent that has to publish its devices again.
    """

    expiry: device_health.HealthExpiry
    lease: ConductorLease
    lease_ms: int
    desired_changed: Callable[[str], None]

    def run_once(self) -> None:
        """Do one pass; raises exception.Unavailable."""
        if self.lease.is_oldest(self.lease_ms):
            for agent in self.expiry.run_once():
                self.desired_changed(agent)


@dataclass(frozen=True, kw_only=True)
class InstanceInfoSync:
    """Store what Nova says about instances.

    Two conductors may run it at the same time: an answer is only stored while the row is unchanged
    since it was read. ``refresh`` is the age of an answer, in milliseconds, at which it is read
    again. A pass sends no further request after ``time_limit`` seconds.
    """

    db: Database
    lease: ConductorLease
    nova: Nova
    refresh: int
    lease_ms: int
    time_limit: float
    clock: Callable[[], float] = time.monotonic

    def run_once(self) -> None:
        """Do one pass: read the instances that are due.

        Raises exception.Unavailable as soon as Nova does not answer. The next pass begins with
        another instance then, because Nova may fail for this instance only.
        """
        if not self.lease.is_oldest(self.lease_ms):
            return
        soon = min(self.refresh, _INSTANCE_RETRY_MS)
        end = self.clock() + self.time_limit
        with self.db.reader() as tx:
            due = instances.due(tx, _INSTANCES)
        for row in due:
            if self.clock() > end:
                break
            try:
                info = self.nova.server_info(row.uuid)
            except exception.Unavailable:
                self._store(row, None, soon)
                raise
            try:
                self._store(row, info, soon if info and info.moving else self.refresh)
            except exception.Invalid:
                LOG.warning("Name of instance %s not stored: the database cannot hold it", row.uuid)
                self._store(row, None, self.refresh)

    @retried
    def _store(self, row: DueInstance, info: ServerInfo | None, after_ms: int) -> None:
        """Store the info, if any, and read the instance again after ``after_ms``."""
        values = None if info is None else {"name": info.name, "status": info.status}
        with self.db.writer() as tx:
            instances.set_server_info(tx, row, after_ms=after_ms, answer=values)


def periodic_jobs(
    settings: Settings,
    *,
    db: Database,
    lease: ConductorLease,
    nova: Nova,
    auditor: Callable[[], Auditor],
    publisher: Callable[[], Publisher],
    repairs: Repairs,
    lost_devices: LostDevices,
    desired_changed: Callable[[str], None],
) -> list[PeriodicTask]:
    """Return the jobs that only the oldest conductor of a cloud runs, although all have them.

    The ``lease_ms`` of a job is the time in milliseconds after which a silent conductor is down.
    """
    lease_ms = int(settings.lease * 1000)
    audit = AuditJob(
        lease=lease,
        auditor=auditor,
        repairs=repairs,
        lease_ms=lease_ms,
        limit=settings.audit_changes,
    )
    unattached = UnattachedJob(
        db=db,
        nova=nova,
        lease=lease,
        lease_ms=lease_ms,
        ages=settings.ages,
        repair=settings.repair_unattached,
    )
    retention = RetentionJob(
        db=db,
        lease=lease,
        lost_devices=lost_devices,
        lease_ms=lease_ms,
        unbound_age=int(settings.unbound_age * 1000),
        history_retention=int(settings.history_retention * 1000),
    )
    health = HealthJob(
        expiry=device_health.HealthExpiry(db=db, rules=settings.health_rules),
        lease=lease,
        lease_ms=lease_ms,
        desired_changed=desired_changed,
    )
    jobs = [
        PeriodicTask("health", health.run_once, interval=settings.health_interval),
        PeriodicTask("audit", audit.run_once, interval=settings.audit_interval),
        PeriodicTask("unattached", unattached.run_once, interval=settings.unattached_interval),
        PeriodicTask("housekeeping", retention.run_once, interval=settings.housekeeping_interval),
    ]
    if settings.instance_refresh:
        sync = InstanceInfoSync(
            db=db,
            lease=lease,
            nova=nova,
            refresh=int(settings.instance_refresh * 1000),
            lease_ms=lease_ms,
            time_limit=settings.instance_interval,
        )
        jobs.append(PeriodicTask("instances", sync.run_once, interval=settings.instance_interval))
    if settings.agent_grace:
        failover = AgentFailover(
            db=db,
            lease=lease,
            publisher=publisher,
            grace=int(settings.agent_grace * 1000),
            lease_ms=lease_ms,
        )
        interval = min(_AGENTS_INTERVAL, settings.agent_grace)
        jobs.append(PeriodicTask("agents", failover.run_once, interval=interval))
    return jobs
