# SPDX-License-Identifier: Apache-2.0
"""The conductor's composition root: what it is made of, and what runs in it."""

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

from cyborg.clients.allocations import Allocations
from cyborg.clients.nova import Nova
from cyborg.clients.reconcile import Publisher
from cyborg.conductor.allotting import Allotment
from cyborg.conductor.arqs import Maker
from cyborg.conductor.attaching import Attacher
from cyborg.conductor.attachwork import AttachWork
from cyborg.conductor.attributes import Attributes
from cyborg.conductor.audit import Auditor
from cyborg.conductor.binding import Binder
from cyborg.conductor.creating import CreationWork, Creator
from cyborg.conductor.desired import Wishes
from cyborg.conductor.devices import Operator
from cyborg.conductor.discovering import Asker, Explorer
from cyborg.conductor.discovery import Discovery
from cyborg.conductor.drivers import Drivers
from cyborg.conductor.driverwork import DriverWork
from cyborg.conductor.endpoint import Endpoint, UseCases
from cyborg.conductor.forgetting import Forgetter, Processes
from cyborg.conductor.holdings import Custodian
from cyborg.conductor.hostwork import HostWork, nobody
from cyborg.conductor.installing import Installer
from cyborg.conductor.jobs import audit, keep_house, look_for_agents, look_instances_up
from cyborg.conductor.metrics import Binds, Cloud
from cyborg.conductor.notifications import Herald
from cyborg.conductor.operations import Operations
from cyborg.conductor.outbox import Outbox
from cyborg.conductor.profiles import Profiles
from cyborg.conductor.readings import Readings
from cyborg.conductor.releasing import Deleter
from cyborg.conductor.repairs import Repairs
from cyborg.conductor.retirement import Retirement
from cyborg.conductor.services import Greeter, Lease
from cyborg.conductor.settings import Settings as Settings
from cyborg.conductor.work import DATABASE_LIMIT, Ledger, Worker
from cyborg.db.engine import Database
from cyborg.db.services import Process
from cyborg.metrics.meters import BusListening, Meters
from cyborg.model.arq import State
from cyborg.model.names import CONDUCTOR
from cyborg.model.work import WorkKind
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.notifications import Notifier
from cyborg.rpc.transport import CONDUCTOR_TOPIC, Bus
from cyborg.service import Daemon, PeriodicTask

#: How long one question to an agent may take, in seconds; a task may take many questions.
_AGENT_PATIENCE = 15.0


@dataclass(frozen=True)
class Peers:
    """The services that a conductor itself asks and tells."""

    nova: Nova
    placement: Allocations


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
    """A conductor, ready to be started; it connects to nothing before.

    ``auditor`` is called when it is this conductor's turn to audit, ``publisher`` when it is to
    take back in Placement what a dead agent offered.
    """
    agents = AgentClient(bus, timeout=_AGENT_PATIENCE)
    lease = Lease(db=db, process=_process(settings))
    bound = Binds(meters.registry)
    worker = make_worker(
        settings=settings, db=db, agents=agents, peers=peers, lease=lease, bound=bound
    )
    forgetter = Forgetter(
        db=db,
        ledger=Ledger(db=db),
        publisher=publisher,
        down_after=settings.down_after,
    )
    worker.handle(WorkKind.FORGET, forgetter.forget)
    cases = use_cases(settings=settings, db=db, agents=agents, peers=peers, wake=worker.wake)
    daemon = Daemon(CONDUCTOR)
    daemon.at_end(db.close)
    daemon.at_end(bus.close)
    # After the worker has ended: work is a conductor's for as long as it has a row.
    daemon.at_end(lease.end)
    daemon.at_end(worker.stop)
    _tell(daemon, worker, _herald(settings, db, notifier), listened=notifier.enabled)
    # First: work that waits for a host's answer is given back, not waited for.
    daemon.at_end(agents.close)
    server = bus.server(CONDUCTOR_TOPIC, settings.host, meters.endpoint(Endpoint(cases)))
    daemon.add_server(server, trouble=lambda: server.trouble)
    if meters.enabled:
        cloud = Cloud(db=db, readings=cases.readings, down_after=settings.down_after)
        daemon.add_server(meters.listener(cloud, BusListening(lambda: daemon.bus_error)))
    daemon.add_task(renewal(settings, lease, lambda: daemon.bus_error))
    daemon.add_task(worker.turns(settings.heartbeat))
    daemon.add_task(audit(settings, lease, auditor, Repairs(db=db, wake=worker.wake)))
    daemon.add_task(keep_house(settings, db, lease, cases.retirement))
    if settings.instance_refresh:
        daemon.add_task(look_instances_up(settings, db, lease, peers.nova))
    if settings.agent_grace:
        daemon.add_task(look_for_agents(settings, db, lease, publisher))
    return daemon


def renewal(settings: Settings, lease: Lease, bus_error: Callable[[], str]) -> PeriodicTask:
    """The heartbeat of this conductor; ``bus_error`` says why it receives no requests."""
    return PeriodicTask(
        "lease",
        lambda: lease.renew(bus_error()),
        interval=settings.heartbeat,
        limit=DATABASE_LIMIT,
    )


def _process(settings: Settings) -> Process:
    endpoint = f"{CONDUCTOR_TOPIC}@{settings.host}"
    return Process(settings.host, CONDUCTOR, settings.version, endpoint, settings.process)


def _herald(settings: Settings, db: Database, notifier: Notifier) -> Herald:
    """What tells the bus of what has been committed."""
    return Herald(db=db, ledger=Ledger(db=db), notifier=notifier, down_after=settings.down_after)


def _tell(daemon: Daemon, worker: Worker, herald: Herald, *, listened: bool) -> None:
    """Have notifications follow the history; where nobody listens, have that end."""
    worker.handle(WorkKind.ANNOUNCE, herald.follow)
    # Before the worker, which waits for it.
    daemon.at_end(herald.stop)
    if listened:
        daemon.add_task(herald.beginnings())


def use_cases(
    *,
    settings: Settings,
    db: Database,
    agents: AgentClient,
    peers: Peers,
    wake: Callable[[], None],
) -> UseCases:
    """What a conductor answers with; ``wake`` is called when work waits after a commit."""
    operations = Operations(db=db, wake=wake, down_after=settings.agent_down_ms)
    retirement = Retirement(
        db=db, lost_retention=settings.lost_ms, down_after=settings.agent_down_ms
    )
    return UseCases(
        maker=Maker(db=db),
        binder=Binder(db=db, wake=wake, bind_timeout=int(settings.bind_timeout * 1000)),
        deleter=Deleter(db=db, wake=wake),
        attacher=Attacher(
            db=db,
            nova=peers.nova,
            placement=peers.placement,
            operations=operations,
            bind_timeout=int(settings.bind_timeout * 1000),
            down_after=settings.agent_down_ms,
        ),
        profiles=Profiles(db=db),
        operator=Operator(db=db, agents=agents, retirement=retirement, wake=wake),
        attributes=Attributes(db=db),
        greeter=Greeter(db=db, down_after=settings.agent_down_ms),
        discovery=Discovery(db=db, auto_enable=settings.auto_enable, wake=wake),
        wishes=Wishes(db=db, lost_retention=settings.lost_ms),
        retirement=retirement,
        custodian=Custodian(db=db),
        explorer=Explorer(operations=operations),
        drivers=Drivers(db=db, operations=operations),
        creator=Creator(db=db, operations=operations),
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
    lease: Lease,
    pool: Callable[..., Executor] = ThreadPoolExecutor,
    bound: Callable[[State, float], None] = nobody,
) -> Worker:
    """What a conductor does after its commits, with a handler for every kind of work.

    ``pool`` makes what runs the handlers of one kind; ``bound`` is told of each bind that a host
    had to prepare how it ended, and after how many seconds.
    """
    ledger = Ledger(db=db)
    worker = Worker(
        db=db,
        lease=lease,
        ledger=ledger,
        lease_ms=int(settings.lease * 1000),
        threads=settings.threads,
        pool=pool,
    )
    outbox = Outbox(db=db, ledger=ledger, nova=peers.nova)
    hostwork = HostWork(db=db, ledger=ledger, agents=agents, wake=worker.wake, bound=bound)
    worker.handle(WorkKind.NOTIFY, outbox.notify)
    worker.handle(WorkKind.PREPARE, hostwork.prepare)
    worker.handle(WorkKind.RELEASE, hostwork.release)
    worker.handle(WorkKind.PROGRAM, hostwork.program)
    attachwork = AttachWork(
        db=db,
        ledger=ledger,
        nova=peers.nova,
        allotment=Allotment(db=db, placement=peers.placement),
        wake=worker.wake,
    )
    worker.handle(WorkKind.ATTACH, attachwork.go_on)
    worker.handle(WorkKind.DETACH, attachwork.go_on)
    asker = Asker(db=db, ledger=ledger, agents=agents, down_after=settings.agent_down_ms)
    fitter = DriverWork(db=db, ledger=ledger, asker=asker, agents=agents, wake=worker.wake)
    worker.handle(WorkKind.DISCOVER, asker.discover)
    worker.handle(WorkKind.DRIVER, fitter.configure)
    worker.handle(WorkKind.UNINSTALL, fitter.uninstall)
    making = CreationWork(db=db, ledger=ledger, asker=asker, agents=agents)
    worker.handle(WorkKind.CREATE, making.create)
    worker.handle(WorkKind.INSTALL, Installer(db=db, ledger=ledger, agents=agents).install)
    return worker
