# SPDX-License-Identifier: Apache-2.0
"""A small cloud whose processes do nothing by themselves: they are driven, step by step."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from uuid import uuid4

import sqlalchemy as sa
import webtest

from cyborg import exception
from cyborg.agent import app as agent_app
from cyborg.agent.endpoint import Endpoint as AgentEndpoint
from cyborg.clients.glance import Glance
from cyborg.clients.nova import Nova, Servers
from cyborg.clients.placement import Allocations, Placement
from cyborg.conductor import app as conductor_app
from cyborg.conductor.audit.auditor import Auditor
from cyborg.conductor.audit.repairs import AuditJob, Repairs
from cyborg.conductor.endpoint import Endpoint
from cyborg.conductor.leases import ConductorLease
from cyborg.db.engine import Database
from cyborg.db.models import METADATA
from cyborg.db.services import Process
from cyborg.drivers.loader import LoadResult
from cyborg.model.audit_findings import Ages
from cyborg.model.process import CONDUCTOR
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.transport import AGENT_TOPIC, CONDUCTOR_TOPIC
from cyborg.tests.fixtures.agent_runs import run_agent
from cyborg.tests.fixtures.barrier import wait_for_operations
from cyborg.tests.fixtures.direct_bus import Died, DirectBus, Exchange
from cyborg.tests.fixtures.glance import SimulatedGlance
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.functional.life.cards import CARD, OTHER
from cyborg.tests.functional.machine.crashable import (
    AtOnce,
    Clock,
    CrashableAdapter,
    CrashableDatabase,
    CrashPlan,
    ProcessDriver,
)
from cyborg.tests.functional.machine.hardware import Machine

#: How long a host has to prepare, and a silent conductor its work, in seconds.
BIND_TIMEOUT = 60.0
LEASE = 4.0
#: How long an agent may be silent before another process may have its host, in seconds.
DOWN_AFTER = 30.0
#: How often an agent looks at all of Placement, in seconds.
FULL_CHECK = 60.0


@dataclass(frozen=True)
class Site:
    """What outlives every example: the database, its clock and the services around ours."""

    database: Database
    clock: Clock
    placement: PlacementService
    nova: SimulatedNova
    glance: SimulatedGlance
    directory: Path
    #: The API, for reading only: no conductor is behind it.
    app: webtest.TestApp
    #: The images that Glance has, by uuid.
    images: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for data in (b"one", b"another"):
            self.images[self.glance.add(data)] = data

    @property
    def url(self) -> str:
        return self.database.engine.url.render_as_string(hide_password=False)

    def clear(self) -> None:
        """Empty the database."""
        with self.database.writer() as tx:
            for table in reversed(METADATA.sorted_tables):
                if table.name != "alembic_version":
                    tx.execute(sa.delete(table))


class Point(Enum):
    """Where something else may happen: while a conductor asks a host, while the host works, while
    Nova is told."""

    ASKED = "request "
    HOST = "host"
    NOVA = "nova"


@dataclass
class Cloud:
    """Conductors and agents of one example, and which of their peers are away."""

    site: Site
    exchange: Exchange = field(default_factory=Exchange)
    placement_away: bool = False
    nova_away: bool = False
    glance_away: bool = False
    #: What happens in the middle of somebody's work, once at each point.
    plans: dict[Point, Callable[[], None]] = field(default_factory=dict)
    #: Where agents keep what they remember.
    directory: Path = field(init=False)
    crash_plans: list[CrashPlan] = field(default_factory=list)
    databases: list[Database] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.directory = self.site.directory / uuid4().hex

    @property
    def clock(self) -> Clock:
        return self.site.clock

    def client(self) -> ConductorClient:
        """The conductors' verbs, as an API process has them."""
        return ConductorClient(DirectBus(self.exchange), timeout=10.0)

    def crash_plan(self) -> CrashPlan:
        """A new process's."""
        made = CrashPlan()
        self.crash_plans.append(made)
        return made

    def to_placement(self, crash_plan: CrashPlan) -> Placement:
        """A process's way to Placement."""
        return Placement(self._road_to_placement(crash_plan))

    def to_allocations(self, crash_plan: CrashPlan) -> Allocations:
        """The same for a conductor."""
        return Allocations(self._road_to_placement(crash_plan))

    def _road_to_placement(self, crash_plan: CrashPlan) -> CrashableAdapter:
        return CrashableAdapter(
            self.site.placement.adapter(), crash_plan=crash_plan, away=lambda: self.placement_away
        )

    def to_nova(self, crash_plan: CrashPlan) -> CrashableAdapter:
        """A process's way to Nova."""

        def away() -> bool:
            self.reach(Point.NOVA)
            return self.nova_away

        return CrashableAdapter(self.site.nova.adapter(), crash_plan=crash_plan, away=away)

    def to_glance(self, crash_plan: CrashPlan) -> Glance:
        """A process's way to Glance."""
        road = CrashableAdapter(
            self.site.glance.adapter(), crash_plan=crash_plan, away=lambda: self.glance_away
        )
        return Glance(road, retries=0)

    def auditor(self, crash_plan: CrashPlan | None = None, ages: Ages | None = None) -> Auditor:
        """One without memory; for an operator unless a process is given."""
        alive = crash_plan or CrashPlan()
        return Auditor(
            db=self.site.database,
            placement=self.to_placement(alive),
            servers=Servers(self.to_nova(alive)),
            ages=ages or Ages(),
        )

    def reach(self, point: Point) -> None:
        """Let happen what was to happen here."""
        planned = self.plans.pop(point, None)
        if planned is not None:
            planned()

    def close(self) -> None:
        """End every process, and close its connections."""
        for crash_plan in self.crash_plans:
            crash_plan.end()
        for database in self.databases:
            database.close()


class Control:
    """A conductor process."""

    def __init__(self, cloud: Cloud, host: str) -> None:
        self.crash_plan = cloud.crash_plan()
        self._db = CrashableDatabase(cloud.site.url, clock=cloud.clock, crash_plan=self.crash_plan)
        cloud.databases.append(self._db)
        self._cloud = cloud
        bus = DirectBus(cloud.exchange, crossing=self._cross)
        self.crash_plan.at_end(bus.close)
        settings = conductor_app.Settings(
            host=host,
            process=uuid4().hex[:8],
            version="0",
            heartbeat=1.0,
            lease=LEASE,
            bind_timeout=BIND_TIMEOUT,
            agent_down_after=DOWN_AFTER,
            threads=1,
            auto_enable=frozenset({"*"}),
        )
        process = Process(host, CONDUCTOR, "0", f"{CONDUCTOR_TOPIC}@{host}", settings.process)
        self._lease = ConductorLease(db=self._db, process=process)
        agents = AgentClient(bus, timeout=10.0)
        peers = conductor_app.Peers(
            Nova(cloud.to_nova(self.crash_plan)), cloud.to_allocations(self.crash_plan)
        )
        self._worker = conductor_app.make_worker(
            settings=settings,
            db=self._db,
            agents=agents,
            peers=peers,
            lease=self._lease,
            pool=AtOnce,
        )
        cases = conductor_app.use_cases(
            settings=settings, db=self._db, agents=agents, peers=peers, wake=self._worker.wake
        )
        self._reconciler = AuditJob(
            lease=self._lease,
            auditor=lambda: cloud.auditor(self.crash_plan),
            repairs=Repairs(db=self._db, wake=self._worker.wake),
            lease_ms=int(LEASE * 1000),
            limit=50,
        )
        bus.server(CONDUCTOR_TOPIC, host, Endpoint(cases)).start()

    def renew(self) -> None:
        """Its heartbeat."""
        self._living(self._lease.renew)

    def run_worker(self) -> None:
        """Its worker's turn; all that was due is done or given back when this returns."""
        self._living(self._worker.run_once)

    def audit(self) -> None:
        """Its reconciler's pass."""
        self._living(self._reconciler.run_once)

    @contextmanager
    def _cross(self, message: str) -> Iterator[None]:
        with self.crash_plan.step():
            if message.startswith(Point.ASKED.value):
                self._cloud.reach(Point.ASKED)
            yield

    def _living(self, job: Callable[[], object]) -> None:
        try:
            job()
        except Died:
            # It was to: what it leaves behind is what the others have to live with.
            assert self.crash_plan.over
        except exception.Unavailable:
            # Its periodic jobs come again.
            pass


class Keeper:
    """An agent process of one machine; ``run_agent`` is its round."""

    def __init__(self, cloud: Cloud, machine: Machine) -> None:
        self.crash_plan = cloud.crash_plan()
        bus = DirectBus(cloud.exchange, crossing=self.crash_plan.step)
        drivers: Mapping[str, ProcessDriver] = {
            rack.driver.name: ProcessDriver(
                rack, crash_plan=self.crash_plan, meanwhile=partial(cloud.reach, Point.HOST)
            )
            for rack in machine.racks
        }
        conductor = ConductorClient(bus, timeout=10.0, sender=f"{AGENT_TOPIC}@{machine.name}")
        glance = cloud.to_glance(self.crash_plan)
        self._parts = agent_app.make_parts(
            settings=agent_app.Settings(
                host=machine.name,
                provider_names=(machine.name,),
                version="0",
                heartbeat=1.0,
                scan=0.0,
                full_check=FULL_CHECK,
                rpc_timeout=10.0,
                state_path=cloud.directory,
            ),
            conductor=conductor,
            loaded=[LoadResult(name, driver) for name, driver in drivers.items()],
            placement=cloud.to_placement(self.crash_plan),
            glance=lambda: glance,
            clock=cloud.clock.seconds,
        )
        self._devices = [
            (one.driver.name, address) for one in machine.racks for address in (CARD, OTHER)
        ]
        for ending in (bus.close, conductor.close):
            self.crash_plan.at_end(ending)
        endpoint = AgentEndpoint(
            self._parts.operations,
            discoveries=self._parts.discoveries,
            on_desired_changed=_deaf,
            check=self._parts.heartbeats.check,
        )
        bus.server(AGENT_TOPIC, machine.name, endpoint).start()

    def run_agent(self) -> exception.CyborgError | None:
        """One round; answers what kept it from its end. A dead one does nothing more."""
        try:
            run_agent(self._parts.heartbeats, self._parts.loop)
            wait_for_operations(self._parts.operations, self._devices)
        except exception.CyborgError as error:
            return error
        except Died:
            assert self.crash_plan.over
        return None


def _deaf() -> None:
    """A poke costs a heartbeat at most: here it always does."""
