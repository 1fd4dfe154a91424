# SPDX-License-Identifier: Apache-2.0
"""One replay of a scenario: who dies where, what those who are left do, and what must hold then."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import uuid4

import sqlalchemy as sa

from cyborg import exception
from cyborg.db.models import Arq, AttachHandle, Deployable, Work
from cyborg.model.arq import State
from cyborg.model.audit_findings import Severity
from cyborg.model.names import AGENT, CONDUCTOR
from cyborg.rpc.conductor import ConductorClient
from cyborg.tests.fixtures.crash import Death, Fate, Kind
from cyborg.tests.fixtures.direct import Died, DirectBus
from cyborg.tests.fixtures.single_step_processes import MortalAgent, MortalConductor
from cyborg.tests.functional.crash.stage import NOVA, Stage

LOG = logging.getLogger(__name__)

#: A request of a client, with the operation id that it is repeated with.
Request = Callable[[ConductorClient, str], object]
_ROUNDS = 60
#: Less than a lease, so that who lives keeps it.
_ROUND_MS = 4000
_SETTLED = frozenset({State.INITIAL, State.BOUND, State.BIND_FAILED, State.UNBOUND})


@dataclass(frozen=True)
class Plan:
    """Who dies and where; not ``alone``: everything else goes down in the same moment.

    Nova that ``gives_up`` deletes what it does not know the outcome of, instead of asking again.
    """

    victim: str
    alone: bool = True
    death: Death | None = None
    gives_up: bool = False
    kinds: frozenset[Kind] = frozenset(Kind)

    def at(self, death: Death) -> "Plan":
        """The same with a death."""
        return replace(self, death=death)


class Life:
    """The processes of one replay; who dies is replaced at once.

    ``beats``: the agent has its rounds, beside answering.
    """

    def __init__(self, stage: Stage, plan: Plan, *, agent: bool, beats: bool) -> None:
        self.stage = stage
        self._beats = beats
        self.plan = plan
        self.fate = Fate(plan.death, plan.kinds)
        self.unknown: list[tuple[Request, str]] = []
        self.was_unknown = False
        self._told = len(stage.nova.calls)
        fates = {CONDUCTOR: Fate(), AGENT: Fate(), plan.victim: self.fate}
        self._number = 0
        self._conductor = self._new_conductor(fates[CONDUCTOR])
        self._standby: MortalConductor | None = None
        self._agent = self._new_agent(fates[AGENT]) if agent else None
        self._conductor.renew()
        self._conductor.serve()
        if plan.victim == CONDUCTOR and plan.alone:
            self._standby = self._new_conductor(Fate())
            self.fate.endings.append(self._standby.serve)
        if not plan.alone:
            self.fate.endings.append(self._power_off)

    def begin(self) -> None:
        """Boundaries count from here on, until ``settle``."""
        self.fate.begin()

    def ask(self, request: Request) -> None:
        """Have a client ask; one that does not hear the outcome asks again when it can."""
        self._ask_again()
        self._send(request, str(uuid4()))
        self._tend()

    def work(self) -> None:
        """The conductor's turn."""
        self._go_on(self._conductor.turn)

    def beat(self) -> bool:
        """The agent's round; answers whether it came to its end."""
        return self._agent is not None and self._go_on(self._agent.beat)

    def settle(self) -> None:
        """Let time pass until nothing is due any more; AssertionError when that never comes."""
        self.fate.rest()
        self._ask_again()
        quiet = 0
        for _ in range(_ROUNDS):
            self.work()
            done = self.beat() if self._beats else True
            quiet = quiet + 1 if done and not self.work_left() else 0
            if quiet == 2 and not self.unknown:
                return
            self.stage.ground.clock.ms += _ROUND_MS
        raise AssertionError(f"never settled: {self.work_left()}")

    def work_left(self) -> list[str]:
        """What waits or is being done, with its last error."""
        with self.stage.ground.watch.reader() as tx:
            rows = tx.execute(sa.select(Work.kind, Work.error, Work.owner_id)).all()
        return [f"{row.kind} of {row.owner_id}: {row.error}" for row in rows]

    def arqs(self) -> dict[str, str]:
        """The state of each ARQ that is left."""
        with self.stage.ground.watch.reader() as tx:
            return {row.uuid: row.state for row in tx.execute(sa.select(Arq.uuid, Arq.state))}

    def told(self) -> dict[str, str]:
        """What Nova was told in this life, by ARQ; the last word counts."""
        calls = self.stage.nova.calls[self._told :]
        return {event.tag: event.status for call in calls for event in call.events}

    def verify(self) -> None:
        """What must hold at the end of every life."""
        assert set(self.arqs().values()) <= _SETTLED, self.arqs()
        verdict = self.stage.auditor.look()
        assert verdict.unasked == ()
        bad = [
            f"{one.kind} {one.cause}" for one in verdict.findings if one.severity > Severity.INFO
        ]
        assert bad == []
        assert self.stage.rack.driver.ready == self._bound_handles()

    def bury(self) -> None:
        """End every process."""
        for one in (self._conductor, self._standby, self._agent):
            if one is not None:
                one.bury()

    def _bound_handles(self) -> set[str]:
        """The handles that must be prepared."""
        query = (
            sa.select(AttachHandle.handle_key)
            .join(Arq, Arq.attach_handle_id == AttachHandle.id)
            .join(Deployable, Deployable.id == AttachHandle.deployable_id)
            .where(Arq.state == State.BOUND.value, Deployable.prepare)
        )
        with self.stage.ground.watch.reader() as tx:
            return set(tx.execute(query).scalars())

    def _go_on(self, turn: Callable[[], object]) -> bool:
        ended = False
        try:
            turn()
            ended = True
        except Died:
            LOG.debug("%s died in its own turn", self.plan.victim)
        except exception.CyborgError as error:
            LOG.debug("A turn ended early: %s", error)
        self._tend()
        return ended

    def _send(self, request: Request, request_key: str) -> None:
        client = ConductorClient(DirectBus(self.stage.ground.exchange), timeout=10.0)
        try:
            request(client, request_key)
        except exception.Unavailable:
            self.unknown.append((request, request_key))
            self.was_unknown = True
        finally:
            client.close()

    def _ask_again(self) -> None:
        waiting, self.unknown = self.unknown, []
        for request, request_key in waiting:
            if self.plan.gives_up:
                self._send(self._undo, str(uuid4()))
            else:
                self._send(request, request_key)

    def _undo(self, client: ConductorClient, request_key: str) -> None:
        client.delete_instance_arqs(NOVA, request_key, self.stage.instance)

    def _power_off(self) -> None:
        """Whoever was not to die dies with the victim."""
        for one in (self._conductor, self._agent):
            if one is not None and one.fate is not self.fate:
                try:
                    one.fate.die()
                except Died:
                    continue

    def _tend(self) -> None:
        """Put a new process where one died."""
        if self._conductor.fate.dead:
            self._conductor.bury()
            self._conductor = self._standby or self._new_conductor(Fate())
            self._standby = None
            self._conductor.serve()
        if self._agent is not None and self._agent.fate.dead:
            self._agent.bury()
            self._agent = self._new_agent(Fate())

    def _new_conductor(self, fate: Fate) -> MortalConductor:
        self._number += 1
        return MortalConductor(self.stage.ground, fate, f"control-{self._number}")

    def _new_agent(self, fate: Fate) -> MortalAgent:
        rack = self.stage.rack
        made = MortalAgent(self.stage.ground, fate, rack.compute, rack.driver)
        made.serve()
        return made
