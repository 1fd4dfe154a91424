# SPDX-License-Identifier: Apache-2.0
"""The composition root of the conductor: build its parts and what runs in it."""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Final

from cyborg.clients.limits import ProjectLimits
from cyborg.clients.nova import Nova
from cyborg.clients.placement import Allocations
from cyborg.clients.placement_sync import Publisher
from cyborg.conductor.audit.auditor import Auditor
from cyborg.conductor.context import Conductor
from cyborg.conductor.context import Settings as Settings
from cyborg.conductor.endpoint import endpoints
from cyborg.conductor.hosts import heartbeats, removal
from cyborg.conductor.hosts.heartbeats import ClockErrors
from cyborg.conductor.jobs import periodic_jobs
from cyborg.conductor.leases import ConductorLease
from cyborg.conductor.meters import Meters as WorkMeters
from cyborg.conductor.metrics import CloudCollector, bind_meter, cleaning_meter
from cyborg.conductor.notifications import NotificationPublisher
from cyborg.conductor.operations import attach_tasks, created_accelerators, discovery, drivers
from cyborg.conductor.standby import Standby
from cyborg.conductor.tasks import nova_events, set_up, units
from cyborg.conductor.tasks.queue import DATABASE_LIMIT, Handler, WorkRunner
from cyborg.db.engine import Database
from cyborg.db.services import Process
from cyborg.db.transaction import AfterCommit
from cyborg.metrics.meters import BusListening, Meters
from cyborg.model.process import CONDUCTOR
from cyborg.model.work import WorkKind
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.notifications import Notifier
from cyborg.rpc.transport import CONDUCTOR_TOPIC, Bus
from cyborg.rpc.verbs import DesiredChanged
from cyborg.service import Daemon, PeriodicTask

#: The handler of each kind of work.
WORK: Final[Mapping[WorkKind, Handler]] = {
    **nova_events.WORK,
    **units.WORK,
    **set_up.WORK,
    **attach_tasks.WORK,
    **discovery.WORK,
    **drivers.WORK,
    **created_accelerators.WORK,
    **removal.WORK,
}


def assemble(
    *,
    settings: Settings,
    db: Database,
    bus: Bus,
    nova: Nova,
    placement: Allocations,
    limits: ProjectLimits | None = None,
    auditor: Callable[[], Auditor],
    publisher: Callable[[], Publisher],
    notifier: Notifier,
    meters: Meters,
) -> Daemon:
    """Return a conductor that is ready to start; it connects to nothing before the start.

    ``auditor`` is called when it is this conductor's turn to audit, ``publisher`` when it has to
    reserve the units of an agent that is down in Placement.
    """
    db.outbox = notifier.enabled
    address = f"{CONDUCTOR_TOPIC}@{settings.host}"
    agents = AgentClient(bus, timeout=settings.agent_timeout, sender=address)
    process = Process(settings.host, CONDUCTOR, settings.version, address, settings.process)
    lease = ConductorLease(db=db, process=process)
    ctx = Conductor(
        db=db,
        settings=settings,
        agents=agents,
        nova=nova,
        placement=placement,
        publisher=publisher,
        limits=limits,
        meters=WorkMeters(bind_meter(meters.registry), cleaning_meter(meters.registry)),
    )
    runner = make_runner(ctx, lease)
    daemon = Daemon(CONDUCTOR)
    daemon.at_end(db.close)
    daemon.at_end(bus.close)
    # After the runner has ended: the row of the conductor keeps its work from other conductors.
    daemon.at_end(lease.end)
    daemon.at_end(runner.stop)
    # First: work that waits for the answer of a host is rescheduled instead.
    daemon.at_end(agents.close)
    serve = partial(bus.server, note_clock=partial(heartbeats.wrong_clock, ctx, ClockErrors()))
    standby = Standby(bus.precedence)
    served = endpoints(ctx, database_failed=standby.failed)
    for topic, endpoint in served.items():
        server = serve(topic, settings.host, meters.endpoint(endpoint))
        daemon.add_server(server, trouble=partial(getattr, server, "trouble"))
    if meters.enabled:
        cloud = CloudCollector(db=db, readings=ctx.meters.readings, down_after=settings.down_after)
        daemon.add_server(meters.listener(cloud, BusListening(lambda: daemon.bus_error)))
    renew = partial(standby.heartbeat, lambda: lease.renew(daemon.bus_error))
    renewal = PeriodicTask(
        "lease", renew, interval=settings.conductor.heartbeat, limit=DATABASE_LIMIT
    )
    jobs = periodic_jobs(ctx, lease=lease, auditor=auditor)
    notifications = NotificationPublisher(
        db=db,
        lease=lease,
        notifier=notifier,
        down_after=settings.down_after,
        lease_ms=settings.lease_ms,
    )
    for task in (
        renewal,
        runner.periodic(settings.conductor.heartbeat),
        notifications.periodic(),
        *jobs,
    ):
        daemon.add_task(task)
    return daemon


def make_runner(
    ctx: Conductor,
    lease: ConductorLease,
    *,
    pool: Callable[..., Executor] = ThreadPoolExecutor,
) -> WorkRunner:
    """Return the runner of a conductor; ``pool`` makes the executor for the handlers of one kind.

    From then on the transactions of the context wake it, and notify the agents of hosts that they
    publish.
    """
    runner = WorkRunner(ctx, lease=lease, handlers=WORK, pool=pool)
    ctx.db.after_commit = AfterCommit(
        notify_agent=lambda agent: ctx.agents.cast(agent, DesiredChanged()),
        wake_runner=runner.wake,
    )
    return runner
