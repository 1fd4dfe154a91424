# SPDX-License-Identifier: Apache-2.0
"""Conductors and agents without threads of their own, whose every boundary may be their last.

They are put together as the composition roots put them together, on the bus without a wire. What a
daemon does from time to time a test has done by ``turn`` and ``beat``; the database's clock and the
agents' stand still until the test moves them.
"""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import sqlalchemy as sa
from keystoneauth1.adapter import Adapter

from cyborg import service
from cyborg.agent import app as agent_app
from cyborg.agent.endpoint import Endpoint as AgentEndpoint
from cyborg.clients.allocations import Allocations
from cyborg.clients.glance import Glance
from cyborg.clients.nova import Nova
from cyborg.clients.placement import Placement
from cyborg.conductor import app as conductor_app
from cyborg.conductor.endpoint import Endpoint as ConductorEndpoint
from cyborg.conductor.services import Lease
from cyborg.db.connections import Settings
from cyborg.db.engine import Database
from cyborg.db.models import Work
from cyborg.db.services import Process
from cyborg.drivers.base import Driver
from cyborg.drivers.loader import LoadResult
from cyborg.model.names import CONDUCTOR
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.conductor import ReportClient
from cyborg.rpc.transport import AGENT_TOPIC, CONDUCTOR_TOPIC
from cyborg.testing.barrier import let_end
from cyborg.testing.crash import Fate, MortalAdapter, Wire, mortal
from cyborg.testing.direct import Died, DirectBus, Exchange

#: Seconds; what answers at all answers at once, as fast as the machine is.
_PATIENCE = 60.0
#: How long a silent conductor keeps its work, in seconds of the clock that a test moves.
LEASE = 5.0


class Clock:
    """A time that stands still until it is moved; for databases and for agents."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000
        self.now: sa.ColumnElement[int] = sa.bindparam(
            "clock", callable_=lambda: self.ms, type_=sa.BigInteger(), unique=True
        )

    def monotonic(self) -> float:
        """The same in seconds."""
        return self.ms / 1000


@dataclass
class Ground:
    """What all processes of one cloud stand on.

    ``lend`` makes as many databases as are needed; ``watch`` is that of the test itself.
    """

    database_url: str
    state_path: Path
    placement: Adapter
    nova: Adapter
    glance: Adapter
    clock: Clock = field(default_factory=Clock)
    exchange: Exchange = field(default_factory=Exchange)
    watch: Database = field(init=False)
    _lent: list[tuple[Database, Wire]] = field(default_factory=list)
    _idle: list[tuple[Database, Wire]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watch = self._database()

    def lend(self, fate: Fate) -> Database:
        """A database for one process; engines are used again, for what they have compiled."""
        if not self._idle:
            made = self._database()
            self._idle.append((made, Wire(made.engine)))
        one = self._idle.pop()
        one[1].fate = fate
        self._lent.append(one)
        return one[0]

    def take_back(self, db: Database) -> None:
        """The process is gone: what it had open is closed."""
        db.close()
        (one,) = (each for each in self._lent if each[0] is db)
        self._lent.remove(one)
        self._idle.append(one)

    def turns(self, at_most: int) -> Iterator[None]:
        """Once for each time that work is due, at that time, until nothing is left.

        AssertionError when there is more to do after ``at_most`` of them.
        """
        due = sa.select(sa.func.min(Work.not_before_ms))
        for _ in range(at_most):
            with self.watch.reader() as tx:
                next_ms: int | None = tx.execute(due).scalar_one()
            if next_ms is None:
                return
            self.clock.ms = max(self.clock.ms, next_ms)
            yield
        raise AssertionError("there is always something left to do")

    def close(self) -> None:
        """Close every connection."""
        self.watch.close()
        for db, _ in self._lent + self._idle:
            db.close()

    def _database(self) -> Database:
        settings = Settings(sqlite_synchronous=False, sqlite_busy_timeout=2.0)
        return Database(self.database_url, settings=settings, now=self.clock.now)


class MortalConductor:
    """A conductor of one thread; it answers calls from ``serve`` on."""

    def __init__(
        self,
        ground: Ground,
        fate: Fate,
        host: str,
        *,
        auto_enable: frozenset[str] = frozenset({"*"}),
    ) -> None:
        self.fate = fate
        self._ground = ground
        self._db = ground.lend(fate)
        self._bus = DirectBus(ground.exchange, crossing=fate.message)
        self._agents = AgentClient(self._bus, timeout=_PATIENCE)
        settings = conductor_app.Settings(
            host=host,
            process=uuid4().hex[:8],
            version="0",
            heartbeat=1.0,
            lease=LEASE,
            bind_timeout=60.0,
            agent_down_after=30.0,
            threads=1,
            auto_enable=auto_enable,
        )
        self._lease = Lease(
            db=self._db, process=Process(host, CONDUCTOR, "0", "", settings.process)
        )
        # One after the other, whatever their kind: boundaries have the same numbers each time.
        self._thread = ThreadPoolExecutor(max_workers=1)
        peers = conductor_app.Peers(
            Nova(MortalAdapter(ground.nova, fate, "Nova")),
            Allocations(MortalAdapter(ground.placement, fate, "Placement")),
        )
        self._worker = conductor_app.make_worker(
            settings=settings,
            db=self._db,
            agents=self._agents,
            peers=peers,
            lease=self._lease,
            pool=lambda **_how: self._thread,
        )
        cases = conductor_app.use_cases(
            settings=settings, db=self._db, agents=self._agents, peers=peers, wake=lambda: None
        )
        self._server = self._bus.server(CONDUCTOR_TOPIC, host, ConductorEndpoint(cases))
        fate.endings.append(self._bus.close)

    def serve(self) -> None:
        """Answer calls from now on."""
        self._server.start()

    def renew(self) -> None:
        """The heartbeat; raises Died."""
        self._lease.renew()

    def turn(self) -> None:
        """One heartbeat and one look for work, until what was found is done or the end has come.

        Raises Died when it came in this very thread.
        """
        self.renew()
        self.work()

    def work(self) -> None:
        """The same without the heartbeat."""
        if self._worker.run_once():
            done = service.wait_until(self._idle, timeout=_PATIENCE, step=0.002)
            assert done, "work does not end"

    def bury(self) -> None:
        """Leave nothing of it but its rows."""
        self._bus.close()
        self._agents.close()
        with contextlib.suppress(Died):
            self._worker.stop()
        self._ground.take_back(self._db)

    def _idle(self) -> bool:
        """Nothing that is claimed has an owner, or nobody is left to end it."""
        if self.fate.dead or self._lease.owner is None:
            return True
        mine, epoch = self._lease.owner
        owned = sa.select(Work.id).where(Work.owner_id == mine, Work.owner_epoch == epoch)
        with self._ground.watch.reader() as tx:
            return tx.execute(owned.limit(1)).one_or_none() is None


class MortalAgent:
    """The agent of one compute, with one driver; it answers calls from ``serve`` on.

    A ``prompt`` one has a round at once when it is asked to look, in the thread that asks.
    """

    def __init__(
        self, ground: Ground, fate: Fate, host: str, driver: Driver, *, prompt: bool = False
    ) -> None:
        self.fate = fate
        self._bus = DirectBus(ground.exchange, crossing=fate.message)
        self._conductor = ReportClient(self._bus, timeout=_PATIENCE, sender=f"{AGENT_TOPIC}@{host}")
        placement = Placement(MortalAdapter(ground.placement, fate, "Placement"))
        glance = Glance(MortalAdapter(ground.glance, fate, "Glance"), retries=0)
        self._parts = agent_app.make_parts(
            settings=agent_app.Settings(
                host=host,
                provider_names=(host,),
                version="0",
                heartbeat=1.0,
                scan=0.0,
                full_check=600.0,
                rpc_timeout=_PATIENCE,
                state_path=ground.state_path,
            ),
            conductor=self._conductor,
            loaded=[LoadResult(driver.name, mortal(driver, fate))],
            placement=placement,
            glance=lambda: glance,
            clock=ground.clock.monotonic,
        )
        self._devices = [(driver.name, one.key) for one in driver.discover()]
        check = self._parts.heart.check
        endpoint = AgentEndpoint(
            self._parts.operations,
            discoveries=self._parts.discoveries,
            on_poke=self._parts.heart.beat if prompt else lambda: None,
            check=check,
        )
        self._server = self._bus.server(AGENT_TOPIC, host, endpoint)
        fate.endings.append(self._bus.close)

    def serve(self) -> None:
        """Answer calls from now on."""
        self._server.start()

    def beat(self) -> None:
        """One round; raises Died, and what keeps a living agent from the end of its round."""
        self._parts.heart.beat()
        let_end(self._parts.operations, self._devices)

    def bury(self) -> None:
        """Leave nothing of it but what it did to the machine."""
        self._bus.close()
        self._conductor.close()
        self._parts.operations.stop()
