# SPDX-License-Identifier: Apache-2.0
"""One run of a scenario: the process that crashes, the recovery, and the required result."""

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from cyborg import exception
from cyborg.db.models import Arq, AttachHandle, Deployable, Work
from cyborg.model.arq import State
from cyborg.model.audit_findings import Severity
from cyborg.model.process import AGENT, CONDUCTOR
from cyborg.rpc.verbs import DeleteInstanceArqs, Write
from cyborg.tests.fixtures.crash import Boundary, CrashPoint, FaultPlan
from cyborg.tests.fixtures.direct_bus import Died
from cyborg.tests.fixtures.single_step import Agent, Conductor
from cyborg.tests.fixtures.usage_ledger import check_usage_records
from cyborg.tests.functional.crash.cloud import NOVA, SimulatedCloud

LOG = logging.getLogger(__name__)

#: Makes a request of a client from the operation id that it is repeated with.
Request = Callable[[str], Write[Any]]
_ROUNDS = 60
#: Less than a lease, so that running processes keep it.
_ROUND_MS = 4000
_SETTLED = frozenset({State.INITIAL, State.BOUND, State.BIND_FAILED, State.UNBOUND})


@dataclass(frozen=True)
class Plan:
    """The process that crashes, and where; unless ``alone`` all others crash with it.

    Nova that ``gives_up`` deletes what it does not know the outcome of, and the allocation, instead
    of asking again.
    """

    victim: str
    alone: bool = True
    crash_point: CrashPoint | None = None
    gives_up: bool = False
    kinds: frozenset[Boundary] = frozenset(Boundary)

    def at(self, crash_point: CrashPoint) -> "Plan":
        """Return the plan with a crash point."""
        return replace(self, crash_point=crash_point)


class Run:
    """The processes of one run; a crashed process is replaced at once.

    ``agent_runs``: the agent has its rounds, beside answering.
    """

    def __init__(
        self,
        cloud: SimulatedCloud,
        plan: Plan,
        conductor: Conductor,
        agent: Agent | None,
        *,
        agent_runs: bool,
    ) -> None:
        self.cloud = cloud
        self._agent_runs = agent_runs
        self.plan = plan
        self._conductor, self._agent = conductor, agent
        victim = conductor if plan.victim == CONDUCTOR else agent
        assert victim is not None
        self.fault_plan = victim.fault_plan
        self.unknown: list[Write[Any]] = []
        self.was_unknown = False
        self._told = len(cloud.nova.calls)
        self._number = 1
        self._standby: Conductor | None = None
        if agent is not None:
            agent.serve()
        conductor.renew()
        conductor.serve()
        if plan.victim == CONDUCTOR and plan.alone:
            self._standby = self._another_conductor()
            self.fault_plan.endings.append(self._standby.serve)
        if not plan.alone:
            self.fault_plan.endings.append(self._power_off)

    def begin(self) -> None:
        """Boundaries count from here on, until ``settle``."""
        self.fault_plan.begin()

    def ask(self, request: Request) -> Any:
        """Have a client ask; one that does not hear the outcome asks again when it can.

        Returns the answer, None without one.
        """
        self._ask_again()
        answer = self._send(request(str(uuid4())))
        self._tend()
        return answer

    def work(self) -> None:
        """The conductor's turn."""
        self._go_on(self._conductor.run_worker)

    def run_once(self) -> bool:
        """The agent's round; answers whether it came to its end."""
        return self._agent is not None and self._go_on(self._agent.run_once)

    def settle(self) -> None:
        """Let time pass until nothing is due any more; AssertionError when that never comes."""
        self.fault_plan.rest()
        self._ask_again()
        quiet = 0
        for _ in range(_ROUNDS):
            self.work()
            done = self.run_once() if self._agent_runs else True
            quiet = quiet + 1 if done and not self.work_left() else 0
            if quiet == 2 and not self.unknown:
                return
            self.cloud.environment.clock.ms += _ROUND_MS
        raise AssertionError(f"never settled: {self.work_left()}")

    def work_left(self) -> list[str]:
        """What waits or is being done, with its last error."""
        rows = self.cloud.environment.rows(sa.select(Work.kind, Work.error, Work.owner_id))
        return [f"{row.kind} of {row.owner_id}: {row.error}" for row in rows]

    def arqs(self) -> dict[str, str]:
        """The state of each ARQ that is left."""
        rows = self.cloud.environment.rows(sa.select(Arq.uuid, Arq.state))
        return {row.uuid: row.state for row in rows}

    def told(self) -> dict[str, str]:
        """Return the last event of each ARQ that Nova received in this run."""
        calls = self.cloud.nova.calls[self._told :]
        return {event.tag: event.status for call in calls for event in call.events}

    def verify(self) -> None:
        """Check what must hold at the end of every run."""
        assert set(self.arqs().values()) <= _SETTLED, self.arqs()
        findings = self.cloud.findings()
        bad = [f"{one.kind} {one.cause}" for one in findings if one.severity > Severity.INFO]
        assert bad == []
        assert self.cloud.ready == self._bound_handles()
        check_usage_records(self.cloud.environment.watch)

    def cleanup(self) -> None:
        """End every process."""
        for one in (self._conductor, self._standby, self._agent):
            if one is not None:
                one.stop()

    def _bound_handles(self) -> set[str]:
        """The handles that must be prepared."""
        query = (
            sa.select(AttachHandle.handle_key)
            .join(Arq, Arq.id == AttachHandle.arq_id)
            .join(Deployable, Deployable.id == AttachHandle.deployable_id)
            .where(Arq.state == State.BOUND.value, Deployable.prepare)
        )
        return set(self.cloud.environment.values(query))

    def _go_on(self, run_worker: Callable[[], object]) -> bool:
        ended = False
        try:
            run_worker()
            ended = True
        except Died:
            LOG.debug("%s died in its own turn", self.plan.victim)
        except exception.CyborgError as error:
            LOG.debug("A turn ended early: %s", error)
        self._tend()
        return ended

    def _send(self, request: Write[Any]) -> Any:
        with closing(self.cloud.environment.client()) as client:
            try:
                return client.write(request)
            except exception.Unavailable:
                self.unknown.append(request)
                self.was_unknown = True
        return None

    def _ask_again(self) -> None:
        waiting, self.unknown = self.unknown, []
        for request in waiting:
            undo = DeleteInstanceArqs(NOVA, str(uuid4()), self.cloud.instance)
            self._send(undo if self.plan.gives_up else request)
            if self.plan.gives_up:
                self.cloud.free()

    def _power_off(self) -> None:
        """Crash the other processes with the victim."""
        for one in (self._conductor, self._agent):
            if one is not None:
                one.fault_plan.end()

    def _tend(self) -> None:
        """Replace crashed processes."""
        if self._conductor.fault_plan.dead:
            self._conductor.stop()
            self._conductor = self._standby or self._another_conductor()
            self._standby = None
            self._conductor.serve()
        if self._agent is not None and self._agent.fault_plan.dead:
            self._agent.stop()
            self._agent = self._agent.again()
            self._agent.serve()

    def _another_conductor(self) -> Conductor:
        self._number += 1
        return self._conductor.again(f"control-{self._number}")


def new_run(cloud: SimulatedCloud, plan: Plan, *, agent: bool, agent_runs: bool) -> Run:
    """Return a run with a conductor, and an ``agent`` if there is to be one."""
    faults = {plan.victim: FaultPlan(plan.crash_point, plan.kinds)}
    environment = cloud.environment
    conductor = environment.conductor("control-1", faults=faults.get(CONDUCTOR, FaultPlan()))
    mine = faults.get(AGENT, FaultPlan())
    looks = environment.agent(cloud.rack.compute, cloud.driver, faults=mine) if agent else None
    return Run(cloud, plan, conductor, looks, agent_runs=agent_runs)
