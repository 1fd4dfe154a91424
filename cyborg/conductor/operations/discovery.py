# SPDX-License-Identifier: Apache-2.0
"""Discovery now: hosts are asked to look at their hardware, and tell what that changed.

What they find goes the way of every report; here is only who was asked, and what was answered.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from uuid import UUID, uuid5

import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.operations.operations import Operations, Order, Task
from cyborg.conductor.tasks import set_up
from cyborg.conductor.tasks.queue import WorkQueue
from cyborg.db import devices as device_moves
from cyborg.db import drivers, events, hosts, operations, work
from cyborg.db.base import Record
from cyborg.db.engine import Database, retried
from cyborg.db.models import Device
from cyborg.model.device import DeviceStatus
from cyborg.model.device_life import DeviceEvent
from cyborg.model.operation import HostResult, Operation, ResultState
from cyborg.model.report import DriverState
from cyborg.model.work import Discovered, DiscoveryTask, WorkKind
from cyborg.rpc.agent import AgentClient

LOG = logging.getLogger(__name__)

#: Before what is wrong with what an agent says, or with what it was told.
_STRANGE = "the agent is of another release. "
VERB = "discover"
#: Takes back in a transaction what has begun.
Undo = Callable[[sa.Connection], None]
#: How soon an agent that is still at it is asked again, in milliseconds.
_ASK_AGAIN_MS = 500
#: How soon it is looked again whether an agent that is down is back, in milliseconds.
_LOOK_AGAIN_MS = 1000
#: How many questions in a row an agent may leave unanswered before a discovery fails.
_UNANSWERED = 2
#: Where work keeps how many there were.
_SILENCE = "unanswered"


class DiscoveryAPI:
    """Begins discoveries on hosts."""

    def __init__(self, *, operations: Operations) -> None:
        self._operations = operations

    def discover(
        self, order: Order, *, hosts: Sequence[str] | None, driver: str | None, setup: bool = False
    ) -> Operation:
        """Have hosts (None: all that are up) look now, through one driver or all.

        With ``setup`` the hosts set up the devices of the driver that are inactive and need it.
        Raises NotFound (host, driver), Unavailable (an agent is down), Conflict.
        """

        def plan(tx: sa.Connection) -> list[Task]:
            chosen = self._operations.hosts(tx, hosts, wait=order.wait)
            if driver is not None and not drivers.on_hosts(tx, driver, [one.id for one in chosen]):
                raise exception.NotFound(noun="Driver", key=driver)
            spec = {"driver": driver, "setup": setup}
            about = {"driver": driver} if driver else {}
            return [Task(one, WorkKind.DISCOVER, spec, about=about) for one in chosen]

        return self._operations.begin(order, plan)


class AgentQuery:
    """Asks agents on behalf of an operation; ``down_after`` as for Operations."""

    def __init__(
        self, *, db: Database, queue: WorkQueue, agents: AgentClient, down_after: int
    ) -> None:
        self._db = db
        self._queue = queue
        self._agents = agents
        self._down_after = down_after

    def discover(self, rows: Sequence[Record]) -> None:
        """The handler of ``discover`` work: one host's part of an operation, to its end."""
        (row,) = rows
        answer = self.ask(row)
        if answer is not None:
            self._found(row, answer)

    @retried
    def _found(self, row: Record, answer: Discovered) -> None:
        """End a discovery; what is in service and has to be set up again is set up."""
        sure = [one.name for one in answer.drivers if one.state is DriverState.READY]
        which = sa.and_(Device.host_id == row.host_id, Device.driver.in_(sure))
        told = outcome(row, answer)
        with self._queue.complete([row]) as tx:
            if device_moves.unready(tx, which):
                hosts.bump_desired_generation(tx, self._db.now, row.host_id)
                again = set_up.repeat(tx, self._db.now, which, row.operation_id)
                status = DeviceStatus.INSTALLING.value
                name = row.spec["host"]
                entries = [events.Entry("device", one, status, hostname=name) for one in again]
                events.record(
                    tx,
                    self._db.now,
                    entries,
                    operation=row.operation_id,
                    ordered_by=work.origin(row),
                )
            if row.spec.get("setup"):
                self._set_up(tx, row, which)
            busy = device_moves.being_set_up(tx, row.host_id, sure)
            told = replace(told, result={**(told.result or {}), "installing": busy})
            operations.end(tx, self._db.now, row.operation_id, told)
        _tell(row, told)

    def _set_up(self, tx: sa.Connection, row: Record, which: sa.ColumnElement[bool]) -> None:
        """Begin to set up the devices that nobody has put into service and that need it."""
        devices = device_moves.unready(tx, which, status=DeviceStatus.INACTIVE)
        if devices:
            hosts.bump_desired_generation(tx, self._db.now, row.host_id)
            device_moves.move_all(tx, [one.id for one in devices], DeviceEvent.INSTALL)
            set_up.begin(tx, self._db.now, devices, row.operation_id)
            entries = [
                events.Entry(
                    "device", one.uuid, DeviceStatus.INSTALLING.value, hostname=row.spec["host"]
                )
                for one in devices
            ]
            events.record(
                tx,
                self._db.now,
                entries,
                operation=row.operation_id,
                ordered_by=work.origin(row),
            )

    def ask(self, row: Record, phase: str = VERB, undo: Undo | None = None) -> Discovered | None:
        """What the agent of a work row answers; None: not yet, or never, and that is noted.

        Each ``phase`` of the work is a question of its own. ``undo`` takes back what had begun, in
        the transaction that ends the work, if the agent does not know such questions.
        """
        if row.overdue:
            self.overdue(row)
            return None
        agent = self.agent(row)
        if agent is None:
            return None
        question = str(uuid5(UUID(row.uuid), phase))
        task = DiscoveryTask(question, row.spec.get("driver"), agent_epoch=agent.epoch)
        try:
            answer = self._agents.discovery(agent.service_host, task)
        except (exception.UnknownVerb, exception.Invalid) as fault:
            self.refused(row, fault, undo)
            return None
        except exception.NoAnswer:
            self._unanswered(row, agent)
            return None
        except exception.Unavailable as fault:
            self.pause(row, ResultState.WAITING, str(fault))
            raise
        self._note_silence(row, 0)
        if not answer.done:
            self._queue.reschedule([row], None, pause_ms=_ASK_AGAIN_MS)
            return None
        return answer

    def _unanswered(self, row: Record, agent: Record) -> None:
        """Ask later an agent that lives and does not answer; a discovery ends after the second.

        What operators want of drivers reaches such an agent with its heartbeat, so that work on
        drivers goes on, and so does what was asked to wait.
        """
        silence = 1 + int(row.spec.get(_SILENCE, 0))
        reason = agent.bus_error or "it does not answer"
        fault = f"its agent sends heartbeats but receives no requests: {reason}"
        if row.kind == WorkKind.DISCOVER and row.deadline_ms is not None:
            if agent.bus_error or silence >= _UNANSWERED:
                self.end(row, _failed(row, fault))
                return
            self._note_silence(row, silence)
        self.pause(row, ResultState.WAITING, fault)
        self._queue.reschedule([row], fault)

    @retried
    def _note_silence(self, row: Record, silence: int) -> None:
        """Keep how many questions in a row were not answered; writes only what is new."""
        if silence != int(row.spec.get(_SILENCE, 0)):
            with self._queue.checkpoint([row]) as tx:
                work.note(tx, row, {**row.spec, _SILENCE: silence})

    def agent(self, row: Record) -> Record | None:
        """The agent of a work row, when it is up; None: not now, or never, and that is noted."""
        with self._db.reader() as tx:
            agent = hosts.agent_of(tx, self._db.now, self._down_after, row.host_id)
        if agent is None:
            self.end(row, _failed(row, "the host is gone"))
            return None
        if not agent.up:
            self.pause(row, ResultState.WAITING, "its agent is down")
            self._queue.reschedule([row], "its agent is down", pause_ms=_LOOK_AGAIN_MS)
            return None
        self.pause(row, ResultState.RUNNING, None)
        return agent

    def refused(
        self,
        row: Record,
        fault: exception.UnknownVerb | exception.Invalid,
        undo: Undo | None = None,
    ) -> None:
        """End one host's part of an operation for which its agent and we have no common words."""
        other = isinstance(fault, exception.Invalid)
        self.end(row, _failed(row, f"{_STRANGE if other else ''}{fault}"), undo)

    def overdue(self, row: Record) -> None:
        """End one host's part of an operation for which the time is over."""
        self.end(row, _failed(row, "it was not carried out in time"))

    @retried
    def end(self, row: Record, result: HostResult, undo: Undo | None = None) -> None:
        """End one host's part of an operation; ``undo`` is called in the same transaction."""
        with self._queue.complete([row]) as tx:
            if undo is not None:
                undo(tx)
            operations.end(tx, self._db.now, row.operation_id, result)
        _tell(row, result)

    @retried
    def pause(self, row: Record, state: ResultState, error: str | None) -> None:
        """Note what one host's part of an operation waits for; reads only when that is known."""
        with self._db.reader() as tx:
            if operations.standing(tx, row.operation_id, row.spec["host"]) == (state.value, error):
                return
        with self._queue.checkpoint([row]) as tx:
            operations.pause(tx, row.operation_id, HostResult(row.spec["host"], state, error=error))


def outcome(row: Record, answer: Discovered) -> HostResult:
    """What an agent's answer means for its host.

    It failed with any driver that did, or that shows what another one has; one that was asked for
    by name must be there as well.
    """
    faults = [
        f"{one.name}: {one.error}"
        for one in answer.drivers
        if not one.accepted
        or one.state is DriverState.FAILED
        or (one.failed and one.error)
        or (one.name == row.spec.get("driver") and one.state is not DriverState.READY)
    ]
    state = ResultState.FAILED if faults else ResultState.SUCCEEDED
    found = {"drivers": [asdict(one) for one in answer.drivers]}
    return HostResult(row.spec["host"], state, found, "; ".join(faults) or None)


def _failed(row: Record, reason: str) -> HostResult:
    return HostResult(row.spec["host"], ResultState.FAILED, error=reason)


def _tell(row: Record, result: HostResult) -> None:
    LOG.info(
        "Operation %s on %s: %s%s",
        row.operation_id,
        result.host,
        result.state.value,
        f", {result.error}" if result.error else "",
    )
