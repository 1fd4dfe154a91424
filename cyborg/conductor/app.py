# SPDX-License-Identifier: Apache-2.0
"""The conductor's composition root: what it is made of, and what runs in it."""

from collections.abc import Callable
from dataclasses import dataclass

from cyborg.clients.nova import Nova
from cyborg.conductor.arqs import Maker
from cyborg.conductor.attributes import Attributes
from cyborg.conductor.audit import Auditor
from cyborg.conductor.binding import Binder
from cyborg.conductor.desired import Wishes
from cyborg.conductor.devices import Operator
from cyborg.conductor.discovery import Discovery
from cyborg.conductor.endpoint import Endpoint, UseCases
from cyborg.conductor.hostwork import HostWork
from cyborg.conductor.outbox import Outbox
from cyborg.conductor.profiles import Profiles
from cyborg.conductor.reconciler import Reconciler
from cyborg.conductor.releasing import Deleter
from cyborg.conductor.repairs import Repairs
from cyborg.conductor.services import Greeter, Lease
from cyborg.conductor.work import Ledger, Worker
from cyborg.db.engine import Database
from cyborg.db.services import Process
from cyborg.model.names import CONDUCTOR
from cyborg.model.work import WorkKind
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.transport import CONDUCTOR_TOPIC, Bus
from cyborg.service import Daemon, Periodic

#: How long one question to an agent may take, in seconds; a task may take many questions.
_AGENT_PATIENCE = 15.0


@dataclass(frozen=True)
class Settings:
    """Plain values from the configuration; times in seconds."""

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


def assemble(
    *, settings: Settings, db: Database, bus: Bus, nova: Nova, auditor: Callable[[], Auditor]
) -> Daemon:
    """A conductor, ready to be started; it connects to nothing before.

    ``auditor`` is called when it is this conductor's turn to audit.
    """
    process = Process(
        settings.host,
        CONDUCTOR,
        settings.version,
        f"{CONDUCTOR_TOPIC}@{settings.host}",
        settings.process,
    )
    agents = AgentClient(bus, timeout=_AGENT_PATIENCE)
    lease = Lease(db=db, process=process)
    worker = make_worker(settings=settings, db=db, agents=agents, nova=nova, lease=lease)
    cases = use_cases(settings=settings, db=db, agents=agents, wake=worker.wake)
    daemon = Daemon(CONDUCTOR)
    daemon.at_end(db.close)
    daemon.at_end(bus.close)
    daemon.at_end(worker.stop)
    # First: work that waits for a host's answer is given back, not waited for.
    daemon.at_end(agents.close)
    daemon.serve(bus.server(CONDUCTOR_TOPIC, settings.host, Endpoint(cases)))
    daemon.every(Periodic("lease", lease.renew, interval=settings.heartbeat))
    daemon.every(worker.turns(settings.heartbeat))
    reconciler = Reconciler(
        db=db,
        lease=lease,
        auditor=auditor,
        repairs=Repairs(db=db, wake=worker.wake),
        lease_ms=int(settings.lease * 1000),
        limit=settings.audit_changes,
    )
    daemon.every(Periodic("audit", reconciler.run_once, interval=settings.audit_interval))
    return daemon


def use_cases(
    *, settings: Settings, db: Database, agents: AgentClient, wake: Callable[[], None]
) -> UseCases:
    """What a conductor answers with; ``wake`` is called when work waits after a commit."""
    return UseCases(
        maker=Maker(db=db),
        binder=Binder(db=db, wake=wake, bind_timeout=int(settings.bind_timeout * 1000)),
        deleter=Deleter(db=db, wake=wake),
        profiles=Profiles(db=db),
        operator=Operator(db=db, agents=agents, wake=wake),
        attributes=Attributes(db=db),
        greeter=Greeter(db=db, down_after=int(settings.agent_down_after * 1000)),
        discovery=Discovery(db=db),
        wishes=Wishes(db=db),
    )


def make_worker(
    *, settings: Settings, db: Database, agents: AgentClient, nova: Nova, lease: Lease
) -> Worker:
    """What a conductor does after its commits, with a handler for every kind of work."""
    ledger = Ledger(db=db)
    worker = Worker(
        db=db,
        lease=lease,
        ledger=ledger,
        lease_ms=int(settings.lease * 1000),
        threads=settings.threads,
    )
    outbox = Outbox(db=db, ledger=ledger, nova=nova)
    hostwork = HostWork(db=db, ledger=ledger, agents=agents, wake=worker.wake)
    worker.handle(WorkKind.NOTIFY, outbox.notify)
    worker.handle(WorkKind.PREPARE, hostwork.prepare)
    worker.handle(WorkKind.RELEASE, hostwork.release)
    worker.handle(WorkKind.PROGRAM, hostwork.program)
    return worker
