# SPDX-License-Identifier: Apache-2.0
"""A play on a small cloud: every act is done there and in the model, and both must agree.

What the machine of ``test_machine`` finds is kept as an ordinary test made of the same acts.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any, TypeVar

import sqlalchemy as sa
from keystoneauth1 import exceptions as ks_exceptions

from cyborg import exception
from cyborg.db.models import Deployable, Event, Service
from cyborg.model.audit_findings import Ages, Kind, Severity
from cyborg.model.process import AGENT
from cyborg.tests.fixtures.crash import CALLS, Boundary, FaultPlan
from cyborg.tests.fixtures.direct_bus import Died
from cyborg.tests.fixtures.single_step import (
    BIND_TIMEOUT,
    LEASE,
    Agent,
    Conductor,
)
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.life.cards import CARD, OTHER
from cyborg.tests.functional.machine.clients import Clients, ordered
from cyborg.tests.functional.machine.cloud import Site
from cyborg.tests.functional.machine.hardware import Hardware, Machine
from cyborg.tests.functional.machine.model import ENDED, Model
from cyborg.tests.oracle import snapshot
from cyborg.tests.oracle.rows import AuditViews, Snapshot
from cyborg.tests.oracle.rules import check

#: What is on its way in mid-play, and nobody's fault.
_GOING_ON = frozenset({Kind.NO_CONDUCTOR})
#: Nova's own waiting time, in milliseconds.
_NOVA_WAITS = 300_000
#: After so many rounds a cloud in which everybody is back has come to rest.
_ROUNDS = 12
_ROUND = 31.0
#: How often an agent looks at all of Placement, in seconds.
_FULL_CHECK = 60.0


class Point(Enum):
    """Where something else may happen: while a conductor asks a host, while the host works, while
    Nova is told."""

    ASKED = "asked"
    HOST = "host"
    NOVA = "Nova"


class Interruption(Enum):
    """What may happen in the middle of somebody's work."""

    DELETE = "the instance of an ARQ is deleted"
    UNBIND = "an ARQ is unbound"
    TAKE_OVER = "another conductor takes over what seems to be a dead one's"
    KILL_AGENTS = "the agents of a host die"
    RESTART_AGENT = "a host gets a new agent"
    TIME = "the deadline passes"


class Trouble(Enum):
    """What may be wrong around our processes; a peer that is named is away."""

    PULLED = "a card is not there"
    SHRUNK = "a card has lost its last unit"
    BLIND = "a driver cannot look"
    FAULTY = "a card cannot be prepared"
    PLACEMENT = "Placement"
    NOVA = "Nova"
    GLANCE = "Glance"


_Process = TypeVar("_Process", Conductor, Agent)


class Simulation:
    """One cloud from its beginning; two conductors, two hosts with an agent each."""

    def __init__(self, site: Site) -> None:
        self.site = site
        #: The peers that do not answer.
        self.away: set[str] = set()
        #: What happens in the middle of somebody's work, once at each point.
        self.plans: dict[Point, Callable[[], None]] = {}
        self._processes: list[Conductor | Agent] = []
        self.conductors: list[Conductor] = []
        #: Those of each host, the newest at the end.
        self.agents: list[list[Agent]] = []
        self.hardware = Hardware()
        self.machines = self.hardware.machines
        self.model = Model(self.hardware.cards)
        self.clients = Clients(site, self.model)
        #: Providers that somebody has changed by hand since their last full check.
        self.edited: set[str] = set()
        #: How many images had been ordered for a card when an agent of its host last started.
        self.orders_at_start: dict[str, int] = {}
        #: What was wrong in the middle of somebody's work.
        self.faults: list[AssertionError] = []

    def begin(self, conductors: Iterable[Conductor], agents: Iterable[Agent]) -> None:
        """Let the processes answer, and each host report its cards."""
        self.conductors = [self._begun(conductor) for conductor in conductors]
        self.agents = [[self._begun(agent)] for agent in agents]
        self.clients.make_profiles()
        for index, machine in enumerate(self.machines):
            self.site.placement.make_compute(machine.name)
            self.run_agent(index)

    def conductor_plan(self) -> FaultPlan:
        """Return the fault plan of a new conductor."""
        return FaultPlan(kinds=CALLS, meanwhile=self._while_conducting)

    def agent_plan(self) -> FaultPlan:
        """Return the fault plan of a new agent."""
        return FaultPlan(kinds=CALLS, meanwhile=self._while_keeping)

    # What processes do, when it is their turn.

    def run_worker(self, index: int, *, renew: bool = True) -> None:
        """A conductor's heartbeat and its runner's turn."""
        one = self.conductors[index]
        if renew:
            self._run(one, one.renew)
        self.model.let_work()
        if Trouble.NOVA.value in self.away:
            self.model.stop_waiting(self.site.clock.ms, _NOVA_WAITS)
        self._run(one, one.work)

    def audit(self, index: int) -> None:
        """A conductor's pass of the reconciler: nothing of what is in order may change."""
        one = self.conductors[index]
        self._run(one, one.audit)

    def replace_conductor(self, index: int) -> None:
        """Kill a conductor, and start another where it was."""
        before = self.conductors[index]
        before.fault_plan.end()
        self.conductors[index] = self._begun(before.again(faults=self.conductor_plan()))

    def replace_agent(self, index: int) -> None:
        """Start an agent on a host, whether or not the last one has ended."""
        mine = self.agents[index]
        mine.append(self._begun(mine[-1].again(faults=self.agent_plan())))
        for old in mine[:-2]:
            old.fault_plan.end()
        del mine[:-2]

    def run_agent(self, index: int, *, newest: bool = True) -> None:
        """An agent's round; what it did not complain about must be so."""
        living = [one for one in self.agents[index] if not one.fault_plan.dead]
        if not living:
            return
        one = living[-1 if newest else 0]
        epoch = self._epoch(self.machines[index])
        error = self._run(one, one.run_once)
        if self._epoch(self.machines[index]) != epoch:
            # The first heartbeat of an agent marks the images of unused cards as unknown.
            for card in self.model.cards.values():
                if card.host == self.machines[index].name:
                    orders = self.model.orders.get(card.provider, ())
                    self.orders_at_start[card.provider] = len(orders)
        if error is None and not one.fault_plan.dead:
            self._published(self.machines[index])
        elif isinstance(error, exception.StaleEpoch) and not one.fault_plan.dead:
            assert len(self.agents[index]) > 1

    def edit(self, provider: str, *, reserved: int) -> None:
        """Somebody changes an inventory in Placement by hand."""
        path = f"/resource_providers/{provider}/inventories"
        shown = self.site.placement.call("GET", path)
        for one in shown["inventories"].values():
            one["reserved"] = min(reserved, one["total"])
        self.site.placement.call("PUT", path, shown, accept=(409,))
        self.edited.add(provider)

    def crash_conductor_after(self, index: int, steps: int, *, after: bool) -> None:
        """Let a conductor die at one of its next steps, if the other is going to live."""
        mine, other = self.conductors[index], self.conductors[1 - index]
        if not (other.fault_plan.dead or other.fault_plan.will_crash):
            mine.fault_plan.crash_after(steps, after=after)

    def doom_agent(self, index: int, steps: int, *, after: bool) -> None:
        """Let the newest agent of a host die at one of its next steps."""
        self.agents[index][-1].fault_plan.crash_after(steps, after=after)

    def trouble(self, trouble: Trouble, provider: str, *, ends: bool) -> None:
        """Let something go wrong, or come right again."""
        card, rack = self.model.cards[provider], self.hardware.racks[provider]
        match trouble:
            case Trouble.PULLED | Trouble.SHRUNK if ends:
                rack.plug(card.address, card.units)
            case Trouble.SHRUNK:
                rack.plug(card.address, card.units - 1)
            case Trouble.PULLED:
                rack.pull(card.address)
            case Trouble.BLIND:
                fault = exception.HostError(action="looking", reason="it smokes")
                rack.driver.behaviour.broken = None if ends else fault
            case Trouble.FAULTY:
                refusal = exception.DriverFailed(driver="card", verb="prepare", reason="it smokes")
                rack.driver.behaviour.fault = None if ends else refusal
            case Trouble.PLACEMENT | Trouble.NOVA | Trouble.GLANCE:
                (self.away.discard if ends else self.away.add)(trouble.value)

    def plan(self, point: Point, interruption: Interruption, which: int) -> None:
        """Have something happen when somebody's work comes to a point."""
        if not (point is Point.HOST and interruption is Interruption.TAKE_OVER):
            # That would wait for the host, which waits for its end.
            self.plans[point] = lambda: self._interrupt(interruption, which)

    # The end.

    def settle(self) -> None:
        """Let everybody come back; after a few rounds nothing is left to do, and all is well."""
        self.away.clear()
        self.plans.clear()
        self.hardware.repair()
        for index, one in enumerate(self.conductors):
            one.fault_plan.rest()
            if one.fault_plan.dead:
                self.replace_conductor(index)
        for mine in self.agents:
            for agent in mine[:-1]:
                agent.fault_plan.end()
        for index in range(len(self.machines)):
            if self.agents[index][-1].fault_plan.dead:
                self.replace_agent(index)
            self.agents[index][-1].fault_plan.rest()
        for _ in range(_ROUNDS):
            self._round()
            if not self._snapshot().work:
                break
        self._round()
        self.check()
        self._at_rest()

    def check(self) -> None:
        """Compare with the model, and have the invariants that hold at every moment checked."""
        assert self.faults == []
        cloud = self._snapshot()
        self.model.compare(cloud)
        prepared = {one.name: one.prepared for one in self.machines}
        found = [
            one
            for one in check(cloud, AuditViews(prepared=prepared), Ages())
            if (one.severity > Severity.WARNING and one.kind not in _GOING_ON)
            or one.kind is Kind.LEFTOVER
        ]
        assert found == []

    def close(self) -> None:
        """End everything."""
        for one in self._processes:
            one.fault_plan.end()
        for one in self._processes:
            one.stop()
        self.clients.close()

    def _begun(self, process: _Process) -> _Process:
        self._processes.append(process)
        process.serve()
        if isinstance(process, Conductor):
            process.renew()
        return process

    def _run(
        self, process: Conductor | Agent, job: Callable[[], None]
    ) -> exception.CyborgError | None:
        """A process's turn; answers what kept it from its end. A dead one does nothing more."""
        try:
            job()
        except Died:
            # It was to: what it leaves behind is what the others have to live with.
            assert process.fault_plan.dead
        except exception.Unavailable as error:
            # Its periodic jobs come again.
            return error
        except exception.StaleEpoch as error:
            assert isinstance(process, Agent)
            return error
        return None

    def _while_conducting(self, boundary: Boundary, text: str) -> None:
        """A conductor asks a peer or a host."""
        whom = text.partition(" ")[0]
        if (boundary, whom) == (Boundary.RPC, "request"):
            self._reach(Point.ASKED)
        elif whom == Trouble.NOVA.value:
            self._reach(Point.NOVA)
        self._connect(whom)

    def _while_keeping(self, boundary: Boundary, text: str) -> None:
        """An agent asks a peer, or works on hardware."""
        if boundary is Boundary.HOST:
            self._reach(Point.HOST)
        self._connect(text.partition(" ")[0])

    def _reach(self, point: Point) -> None:
        """Let happen what was to happen here."""
        planned = self.plans.pop(point, None)
        if planned is not None:
            planned()

    def _connect(self, whom: str) -> None:
        if whom in self.away:
            raise ks_exceptions.ConnectFailure("nobody is there")

    def _interrupt(self, interruption: Interruption, which: int) -> None:
        """What is wrong in here is not to be taken for the fault of whom it interrupts."""
        try:
            self._do(interruption, which)
        except AssertionError as fault:
            self.faults.append(fault)
        self.model.let_work()

    def _do(self, interruption: Interruption, which: int) -> None:
        match interruption:
            case Interruption.DELETE | Interruption.UNBIND:
                arqs = [uuid for uuid, one in self.model.requests.items() if one.instance]
                if arqs and interruption is Interruption.UNBIND:
                    self.clients.unbind([arqs[which % len(arqs)]])
                elif arqs:
                    chosen = self.model.requests[arqs[which % len(arqs)]]
                    self.clients.delete_instance(chosen.instance or "")
            case Interruption.TAKE_OVER:
                self.site.clock.advance(LEASE + 1)
                self.run_worker(which % 2)
            case Interruption.KILL_AGENTS:
                for agent in self.agents[which % 2]:
                    agent.fault_plan.end()
            case Interruption.RESTART_AGENT:
                self.replace_agent(which % 2)
            case Interruption.TIME:
                self.site.clock.advance(BIND_TIMEOUT + 1)

    def _round(self) -> None:
        self.site.clock.advance(_ROUND)
        for index in range(len(self.conductors)):
            self.run_worker(index)
        for index in range(len(self.machines)):
            self.run_agent(index)

    def _at_rest(self) -> None:
        cloud = self._snapshot()
        assert cloud.work == ()
        verdict = self.site.environment.auditor(Ages(settle=-1)).look()
        assert verdict.unasked == ()
        assert [one for one in verdict.findings if one.severity > Severity.INFO] == []
        bound = {
            (deployable.name, handle.key)
            for one in cloud.arqs
            if (handle := cloud.handle_by_id.get(one.handle_id or 0)) is not None
            if (deployable := cloud.deployable_by_id[handle.deployable_id]).prepare
        }
        assert {unit for one in self.machines for unit in one.prepared} == bound
        self._programmed()
        events = self.site.nova.events
        for uuid, request in self.model.requests.items():
            if request.instance is None or request.given_up:
                continue
            assert request.states <= ENDED
            told = [
                one.status
                for one in events[request.told :]
                if (one.server_uuid, one.tag) == (request.instance, uuid)
            ]
            expected = "failed" if request.provider is None else "completed"
            assert told, (uuid, request)
            assert told[-1] == expected

    def _programmed(self) -> None:
        """Each order has come to one end, and a card has the image that was last ordered for it."""
        self.model.compare_orders(ordered(self.site.database))
        ends = self._ends()
        assert Counter(one.operation_id for one in ends) == Counter(
            one.request_key for orders in self.model.orders.values() for one in orders
        )
        loaded = {one.operation_id for one in ends if one.action == "programmed"}
        for provider, orders in self.model.orders.items():
            if orders[-1].request_key in loaded:
                image = self.site.images[orders[-1].image]
                assert self.hardware.image(self.model.cards[provider]) == image
                started = self.orders_at_start.get(provider, 0) >= len(orders)
                assert self._noted(provider) in (orders[-1].image, *([None] if started else ()))

    def _ends(self) -> Sequence[Any]:
        """How the loading of images came to its ends."""
        actions = ("programmed", "program failed")
        query = sa.select(Event.operation_id, Event.action).where(Event.action.in_(actions))
        with self.site.database.reader() as tx:
            return tx.execute(query).all()

    def _noted(self, provider: str) -> str | None:
        """The image that a card has by the database."""
        query = sa.select(Deployable.bitstream_id).where(Deployable.rp_uuid == provider)
        with self.site.database.reader() as tx:
            found: str | None = tx.execute(query).scalar_one()
        return found

    def _epoch(self, machine: Machine) -> int | None:
        """Return the epoch of the newest agent of a host; None before its first heartbeat."""
        query = sa.select(Service.epoch).where(
            Service.host == machine.name, Service.binary == AGENT
        )
        with self.site.database.reader() as tx:
            epoch: int | None = tx.execute(query).scalar()
        return epoch

    def _published(self, machine: Machine) -> None:
        """Placement offers what is plugged in, works and is enabled; nothing else."""
        for card in self.model.cards.values():
            if card.host != machine.name or card.provider in self.edited:
                continue
            usable = card.provider not in self.model.disabled
            expected = self.hardware.shown(card) if usable else 0
            assert offered(self.site.placement, card.provider) == expected, card

    def _snapshot(self) -> Snapshot:
        return snapshot.take(self.site.database)


def new_simulation(site: Site) -> Simulation:
    """Return one whose processes run, on an empty database."""
    site.environment.clear()
    made = Simulation(site)
    made.begin(
        [
            site.environment.conductor(f"control-{index}", faults=made.conductor_plan())
            for index in range(2)
        ],
        [
            site.environment.agent(
                machine.name,
                *(rack.driver for rack in machine.racks),
                faults=made.agent_plan(),
                full_check_interval=_FULL_CHECK,
                devices=(CARD, OTHER),
            )
            for machine in made.machines
        ],
    )
    return made
