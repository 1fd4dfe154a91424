# SPDX-License-Identifier: Apache-2.0
"""The verdict after a fault: the findings of the audit, and checks against the clients."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from cyborg import exception, service
from cyborg.db import services
from cyborg.db.models import Arq, AttachHandle, Service, Work
from cyborg.model.arq import State
from cyborg.model.audit_findings import Severity
from cyborg.model.device import HandleState
from cyborg.model.process import AGENT
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg_tools.chaos.load import Load
from cyborg_tools.chaos.world import World

#: Age of a heartbeat, in milliseconds, up to which an agent is back.
_HEARD_MS = 10_000
_ENDED = frozenset({State.BOUND.value, State.BIND_FAILED.value})


class Judge:
    """Check the service while the clients pause."""

    def __init__(self, world: World, load: Load) -> None:
        self._world = world
        self._load = load

    def judge(self) -> Iterator[str]:
        """Sentences for all that does not hold."""
        yield from self._work()
        # Who does not come back is the checker's finding.
        service.wait_until(self._agents_are_back, timeout=PATIENCE, step=0.2)
        yield from self._checker()
        yield from self._shared_units()
        yield from self._machine()

    def judge_end(self, may_be_left: int) -> Iterator[str]:
        """The same once all guests have ended: nothing may be left of them.

        ``may_be_left`` is how many ARQs may be there that no client knows of.
        """
        yield from self.judge()
        arqs = self._rows(sa.select(Arq.uuid, Arq.state))
        busy = sa.select(AttachHandle.uuid, AttachHandle.state).where(
            sa.or_(AttachHandle.arq_id.is_not(None), AttachHandle.state != HandleState.READY.value)
        )
        for row in self._rows(busy):
            yield f"handle {row.uuid} is {row.state} although no instance is left"
        for row in arqs:
            if row.state != State.INITIAL:
                yield f"ARQ {row.uuid} is {row.state} although no instance is left"
        if len(arqs) > may_be_left:
            yield f"{len(arqs)} ARQs are left; only {may_be_left} requests had no answer"
        # The operator's own command says the same.
        ran = self._world.audit()
        if ran.returncode:
            yield f"cyborg-audit ended with {ran.returncode}: {ran.stderr.strip()}"
        if ran.stdout:
            for one in json.loads(ran.stdout)["findings"]:
                if one["severity"] != "info":
                    yield f"cyborg-audit: {one['invariant']} {one['kind']} {one['key']}"

    def _work(self) -> Iterator[str]:
        """Everything that was begun comes to its end."""
        if service.wait_until(lambda: not self._waiting(), timeout=PATIENCE, step=0.2):
            return
        for row in self._waiting():
            yield f"{row.kind} work for ARQ {row.arq_uuid} is still there: {row.error}"

    def _waiting(self) -> Sequence[Any]:
        return self._rows(sa.select(Work.kind, Work.arq_uuid, Work.error))

    def _rows(self, query: sa.Executable) -> Sequence[Any]:
        with self._world.reader.reader() as tx:
            return tx.execute(query).all()

    def _agents_are_back(self) -> bool:
        with self._world.reader.reader() as tx:
            seen = services.statuses(tx, {AGENT: _HEARD_MS})
            deaf = tx.scalars(sa.select(Service.bus_error).where(Service.binary == AGENT))
            return all(one.up for one in seen) and not any(deaf)

    def _checker(self) -> Iterator[str]:
        """The invariants, by the checker that the conductors and ``cyborg-audit`` use too."""
        try:
            verdict = self._world.auditor.look()
        except exception.CyborgError as error:
            yield f"the checker could not look: {error}"
            return
        yield from verdict.unasked
        for one in verdict.findings:
            if one.severity is not Severity.INFO:
                yield f"{one.invariant} {one.kind.value} {one.noun} {one.key}: {one.cause}"

    def _shared_units(self) -> Iterator[str]:
        """What clients were told is what stands there, and Nova knows it."""
        instances = self._load.instances
        wanted = {arq: instance.uuid for instance in instances for arq in instance.arqs}
        query = sa.select(Arq.uuid, Arq.state, Arq.instance_uuid).where(Arq.uuid.in_(wanted))
        rows = self._rows(query)
        for gone in sorted(wanted.keys() - {row.uuid for row in rows}):
            yield f"ARQ {gone} of instance {wanted[gone]} is gone"
        told = {one.tag for one in self._world.nova.events if one.code == 200}
        for row in rows:
            if row.state not in _ENDED:
                yield f"I2 ARQ {row.uuid} of instance {row.instance_uuid} is {row.state}"
            elif row.uuid not in told:
                yield f"I3 Nova was never told that ARQ {row.uuid} is {row.state}"

    def _machine(self) -> Iterator[str]:
        """What is prepared on the host is what guests have, no more and no less."""
        query = (
            sa.select(AttachHandle.handle_key)
            .join(Arq, Arq.id == AttachHandle.arq_id)
            .where(Arq.state == State.BOUND.value)
        )
        held = {row.handle_key for row in self._rows(query)}
        prepared = self._world.machine.prepared
        for card, unit in sorted(prepared):
            if unit not in held:
                yield f"I4 unit {unit} of {card} is prepared, but no ARQ holds it"
        known = self._world.machine.units
        for unit in sorted(held & known.keys()):
            if (known[unit], unit) not in prepared:
                yield f"I4 unit {unit} of {known[unit]} is bound, but not prepared"
