# SPDX-License-Identifier: Apache-2.0
"""The periodic jobs of a conductor."""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Final

from cyborg import exception
from cyborg.clients.nova import ServerInfo
from cyborg.conductor import device_health
from cyborg.conductor.arqs import release
from cyborg.conductor.audit import unattached
from cyborg.conductor.audit.auditor import Auditor
from cyborg.conductor.audit.repairs import AuditMemory, audit
from cyborg.conductor.context import Conductor
from cyborg.conductor.hosts import lost_devices
from cyborg.conductor.hosts.agent_failover import Absences, reserve_absent
from cyborg.conductor.leases import ConductorLease, oldest_only
from cyborg.db import history, instances, usage
from cyborg.db.engine import retried
from cyborg.db.history import Purge
from cyborg.db.instances import DueInstance
from cyborg.service import PeriodicTask

LOG = logging.getLogger(__name__)

#: A pass deletes at most ten thousand rows of a kind, which is more than a busy cloud adds between
#: two passes.
_PURGE_BATCHES: Final = 20
_PURGE = Purge(batch=500, batches=_PURGE_BATCHES)
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


def remove_expired(ctx: Conductor) -> None:
    """Remove lost devices, ARQs that are not bound, history and usage, past their retention.

    Raises exception.Unavailable.
    """
    lost_devices.expire(ctx)
    _expire_unbound(ctx)
    brief = history.purge_brief(ctx.db, _PURGE_BRIEF)
    if brief:
        LOG.info("Deleted %d events of requests that were never bound", brief)
    if ctx.settings.history_ms:
        before = history.cutoff(ctx.db, ctx.settings.history_ms)
        deleted = history.purge(ctx.db, before, _PURGE)
        counts = [f"{count} {kept.value}" for kept, count in deleted.items() if count]
        if counts:
            LOG.info("Deleted history past its retention: %s", ", ".join(counts))
    if ctx.settings.usage_ms:
        before = history.cutoff(ctx.db, ctx.settings.usage_ms)
        count = usage.purge(ctx.db, before, batch=_PURGE.batch, batches=_PURGE_BATCHES)
        if count:
            LOG.info("Deleted %d records of use past their retention", count)


def _expire_unbound(ctx: Conductor) -> None:
    cutoff = history.cutoff(ctx.db, ctx.settings.audit.unbound_age * 1000) / 1000
    before = datetime.fromtimestamp(cutoff, UTC).replace(tzinfo=None, microsecond=0)
    total = 0
    for _ in range(_UNBOUND_BATCHES):
        count = release.expire(ctx.db, before, _UNBOUND_BATCH)
        total += count
        if count < _UNBOUND_BATCH:
            break
    if total:
        LOG.info("Deleted %d accelerator request(s) that were not bound since %s", total, before)


def read_instances(ctx: Conductor, clock: Callable[[], float] = time.monotonic) -> None:
    """Store what Nova says about the instances that are due; ``clock`` as ``time.monotonic``.

    Two conductors may do it at the same time: an answer is only stored while the row is unchanged
    since it was read. No further request is sent after the interval of these passes.

    Raises exception.Unavailable as soon as Nova does not answer. The next pass begins with
    another instance then, because Nova may fail for this instance only.
    """
    refresh = int(ctx.settings.conductor.instance_refresh * 1000)
    soon = min(refresh, _INSTANCE_RETRY_MS)
    end = clock() + ctx.settings.instance_interval
    with ctx.db.reader() as tx:
        due = instances.due(tx, _INSTANCES)
    for row in due:
        if clock() > end:
            break
        try:
            info = ctx.nova.server_info(row.uuid)
        except exception.Unavailable:
            _store_info(ctx, row, None, soon)
            raise
        try:
            _store_info(ctx, row, info, soon if info and info.moving else refresh)
        except exception.Invalid:
            LOG.warning("Name of instance %s not stored: the database cannot hold it", row.uuid)
            _store_info(ctx, row, None, refresh)


@retried
def _store_info(ctx: Conductor, row: DueInstance, info: ServerInfo | None, after_ms: int) -> None:
    """Store the info, if any, and read the instance again after ``after_ms``."""
    values = None if info is None else {"name": info.name, "status": info.status}
    with ctx.db.writer() as tx:
        instances.set_server_info(tx, row, after_ms=after_ms, answer=values)


def periodic_jobs(
    ctx: Conductor, *, lease: ConductorLease, auditor: Callable[[], Auditor]
) -> list[PeriodicTask]:
    """Return the jobs that only the oldest conductor of a cloud runs, although all have them.

    ``auditor`` is called when it is the turn of this conductor to audit.
    """
    settings = ctx.settings
    absences, memory = Absences(), AuditMemory()
    repair = partial(audit, ctx.db, memory, auditor, settings.audit.max_changes)

    def expire_health() -> None:
        device_health.expire(ctx.db, settings.health_rules)

    def job(
        name: str,
        run: Callable[[], object],
        interval: float,
        otherwise: Callable[[], object] = lambda: None,
    ) -> PeriodicTask:
        run_once = oldest_only(lease, settings.lease_ms, run, otherwise)
        return PeriodicTask(name, run_once, interval=interval)

    jobs = [
        job("health", expire_health, settings.probation_interval),
        job("audit", repair, settings.audit.interval, memory.forget),
        job("unattached", partial(unattached.report, ctx), settings.unattached_interval),
        job("housekeeping", partial(remove_expired, ctx), settings.housekeeping_interval),
    ]
    if settings.conductor.instance_refresh:
        jobs.append(job("instances", partial(read_instances, ctx), settings.instance_interval))
    if settings.conductor.agent_grace:
        reserve, interval = partial(reserve_absent, ctx, absences), settings.conductor.agent_grace
        jobs.append(job("agents", reserve, min(_AGENTS_INTERVAL, interval), absences.forget))
    return jobs
