# SPDX-License-Identifier: Apache-2.0
"""The composition root of the conductor: build its parts and what runs in it."""

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from cyborg.clients.limits import ProjectLimits
from cyborg.clients.nova import Nova
from cyborg.clients.placement import Allocations
from cyborg.clients.placement_sync import Publisher
from cyborg.conductor.arqs.attributes import Attributes
from cyborg.conductor.arqs.bind import ArqBinder
from cyborg.conductor.arqs.create import ArqCreator
from cyborg.conductor.arqs.device_profiles import Profiles
from cyborg.conductor.arqs.quotas import Quotas
from cyborg.conductor.arqs.release import ArqReleaser
from cyborg.conductor.audit.auditor import Auditor
from cyborg.conductor.audit.repairs import Repairs
from cyborg.conductor.endpoint import UseCases, endpoints
from cyborg.conductor.hosts.devices import DeviceAdmin
from cyborg.conductor.hosts.guests import HostGuestStore
from cyborg.conductor.hosts.heartbeats import Heartbeats
from cyborg.conductor.hosts.lost_devices import LostDevices
from cyborg.conductor.hosts.removal import HostRemover, Processes
from cyborg.conductor.jobs import Settings as Settings
from cyborg.conductor.jobs import periodic_jobs
from cyborg.conductor.leases import ConductorLease
from cyborg.conductor.metrics import BindTimes, Cleanings, CloudCollector, Readings
from cyborg.conductor.notifications import NotificationPublisher
from cyborg.conductor.operations.attach import Attacher
from cyborg.conductor.operations.attach_tasks import AttachWork, InstanceAllocation
from cyborg.conductor.operations.created_accelerators import AcceleratorCreator, CreationWork
from cyborg.conductor.operations.discovery import AgentQuery, DiscoveryAPI
from cyborg.conductor.operations.drivers import Drivers, DriverWork
from cyborg.conductor.operations.operations import Operations
from cyborg.conductor.reports.apply import ReportApplier
from cyborg.conductor.reports.desired_state import DesiredStates, PreparedUnits
from cyborg.conductor.tasks.nova_events import NovaEvents
from cyborg.conductor.tasks.queue import DATABASE_LIMIT, Handler, Worker, WorkQueue
from cyborg.conductor.tasks.set_up import DeviceSetUp
from cyborg.conductor.tasks.units import UnitTasks
from cyborg.db.engine import Database
from cyborg.db.services import Process
from cyborg.metrics.meters import BusListening, Meters
from cyborg.model.arq import State
from cyborg.model.cleaning import CleanResult
from cyborg.model.process import CONDUCTOR
from cyborg.model.work import WorkKind
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.notifications import Notifier
from cyborg.rpc.transport import CONDUCTOR_TOPIC, Bus
from cyborg.rpc.verbs import DesiredChanged
from cyborg.service import Daemon, PeriodicTask


@dataclass(frozen=True)
class Peers:
    """The services that a conductor calls."""

    nova: Nova
    placement: Allocations
    #: None: projects have no quotas.
    limits: ProjectLimits | None = None


def assemble(
    *,
    settings: Settings,
    db: Database,
    bus: Bus,
    peers: Peers,
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
    worker = make_worker(
        settings=settings,
        db=db,
        agents=agents,
        peers=peers,
        lease=lease,
        record_bind=BindTimes(meters.registry),
        record_cleaning=Cleanings(meters.registry),
    )
    host_remover = HostRemover(
        db=db,
        queue=WorkQueue(db=db),
        publisher=publisher,
        down_after=settings.down_after,
    )
    worker.handle(WorkKind.REMOVE_SERVICE, host_remover.remove)
    cases = use_cases(settings=settings, db=db, agents=agents, peers=peers, wake=worker.wake)
    daemon = Daemon(CONDUCTOR)
    daemon.at_end(db.close)
    daemon.at_end(bus.close)
    # After the worker has ended: the row of the conductor keeps its work from other conductors.
    daemon.at_end(lease.end)
    daemon.at_end(worker.stop)
    # First: work that waits for the answer of a host is rescheduled instead.
    daemon.at_end(agents.close)
    serve = partial(bus.server, note_clock=cases.heartbeats.wrong_clock)
    for topic, endpoint in endpoints(cases, one_topic=settings.one_topic).items():
        server = serve(topic, settings.host, meters.endpoint(endpoint))
        daemon.add_server(server, trouble=partial(getattr, server, "trouble"))
    if meters.enabled:
        cloud = CloudCollector(db=db, readings=cases.readings, down_after=settings.down_after)
        daemon.add_server(meters.listener(cloud, BusListening(lambda: daemon.bus_error)))
    renewal = PeriodicTask(
        "lease",
        lambda: lease.renew(daemon.bus_error),
        interval=settings.heartbeat,
        limit=DATABASE_LIMIT,
    )
    jobs = periodic_jobs(
        settings,
        db=db,
        lease=lease,
        nova=peers.nova,
        auditor=auditor,
        publisher=publisher,
        repairs=Repairs(db=db, wake=worker.wake),
        lost_devices=cases.lost_devices,
        desired_changed=lambda host: agents.cast(host, DesiredChanged()),
    )
    notifications = NotificationPublisher(
        db=db,
        lease=lease,
        notifier=notifier,
        down_after=settings.down_after,
        lease_ms=int(settings.lease * 1000),
    )
    for task in (renewal, worker.periodic(settings.heartbeat), notifications.periodic(), *jobs):
        daemon.add_task(task)
    return daemon


def use_cases(
    *,
    settings: Settings,
    db: Database,
    agents: AgentClient,
    peers: Peers,
    wake: Callable[[], None],
) -> UseCases:
    """Return the use cases of a conductor; ``wake`` is called when work waits after a commit."""
    operations = Operations(db=db, wake=wake, down_after=settings.agent_down_ms)
    quotas = Quotas(peers.limits)
    lost_devices = LostDevices(
        db=db, lost_retention=settings.lost_ms, down_after=settings.agent_down_ms
    )
    return UseCases(
        arq_creator=ArqCreator(
            db=db,
            max_per_request=settings.max_arqs_per_request,
            max_unbound=settings.max_unbound_arqs,
            quotas=quotas,
        ),
        arq_binder=ArqBinder(
            db=db,
            agents=agents,
            wake=wake,
            bind_timeout=int(settings.bind_timeout * 1000),
            quotas=quotas,
        ),
        arq_releaser=ArqReleaser(db=db, wake=wake),
        attacher=Attacher(
            db=db,
            nova=peers.nova,
            placement=peers.placement,
            operations=operations,
            agents=agents,
            bind_timeout=int(settings.bind_timeout * 1000),
            down_after=settings.agent_down_ms,
            quotas=quotas,
        ),
        profiles=Profiles(db=db),
        device_admin=DeviceAdmin(
            db=db,
            agents=agents,
            lost_devices=lost_devices,
            wake=wake,
            health_rules=settings.health_rules,
        ),
        attributes=Attributes(db=db),
        heartbeats=Heartbeats(db=db, down_after=settings.agent_down_ms, names=settings.host_names),
        report_applier=ReportApplier(
            db=db,
            auto_enable=settings.auto_enable,
            wake=wake,
            health_rules=settings.health_rules,
            names=settings.host_names,
            clean_existing_units=settings.clean_existing_units,
        ),
        desired_states=DesiredStates(db=db, lost_retention=settings.lost_ms),
        lost_devices=lost_devices,
        prepared_units=PreparedUnits(db=db),
        discovery_api=DiscoveryAPI(operations=operations),
        drivers=Drivers(operations=operations),
        accelerator_creator=AcceleratorCreator(operations=operations),
        host_guests=HostGuestStore(db=db),
        readings=Readings(db=db),
        processes=Processes(
            db=db, agents=agents, operations=operations, down_after=settings.down_after
        ),
    )


def make_worker(
    *,
    settings: Settings,
    db: Database,
    agents: AgentClient,
    peers: Peers,
    lease: ConductorLease,
    pool: Callable[..., Executor] = ThreadPoolExecutor,
    record_bind: Callable[[State, float], None] | None = None,
    record_cleaning: Callable[[CleanResult], None] | None = None,
) -> Worker:
    """Return the worker of a conductor, with a handler for every kind of work.

    ``pool`` makes the executor for the handlers of one kind. ``record_bind`` is called at the end
    of each bind that a host has prepared, with the state of the ARQ and the seconds since its
    begin, ``record_cleaning`` at the end of each attempt to clean a unit.
    """
    queue = WorkQueue(db=db)
    worker = Worker(
        db=db,
        lease=lease,
        queue=queue,
        lease_ms=int(settings.lease * 1000),
        threads=settings.threads,
        pool=pool,
    )
    query = AgentQuery(queue=queue, agents=agents, down_after=settings.agent_down_ms)
    wake = worker.wake
    attach_work = AttachWork(
        queue=queue,
        nova=peers.nova,
        allocation=InstanceAllocation(db=db, placement=peers.placement),
        wake=wake,
    )
    handlers: dict[WorkKind, Handler] = {
        WorkKind.NOTIFY: NovaEvents(db=db, queue=queue, nova=peers.nova).notify,
        **UnitTasks(
            queue=queue,
            agents=agents,
            wake=wake,
            record_bind=record_bind,
            record_cleaning=record_cleaning,
        ).handlers(),
        **DeviceSetUp(queue=queue, agents=agents, health_rules=settings.health_rules).handlers(),
        WorkKind.ATTACH: attach_work.run,
        WorkKind.DETACH: attach_work.run,
        **query.handlers(),
        **DriverWork(queue=queue, query=query, agents=agents, wake=wake).handlers(),
        **CreationWork(queue=queue, query=query, agents=agents).handlers(),
        WorkKind.PUBLISH_NOTIFICATIONS: queue.drop,
    }
    for kind, handler in handlers.items():
        worker.handle(kind, handler)
    return worker
