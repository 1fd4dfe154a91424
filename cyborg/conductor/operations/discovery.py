# SPDX-License-Identifier: Apache-2.0
"""Discovery on request: have hosts read their hardware now, and collect their answers.

The agents send the result as an ordinary report. The operation only holds the hosts and their
answers.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID, uuid5

import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.operations.operations import Operations, Order, Task, show_progress
from cyborg.conductor.tasks import set_up
from cyborg.conductor.tasks.agent_task import AGENT_POLL_MS, AgentTask, Answer, Ask, End, Waiting
from cyborg.conductor.tasks.queue import Handler, WorkQueue
from cyborg.db import devices, drivers, events, hosts, operations, work
from cyborg.db.engine import retried
from cyborg.db.hosts import HostAgent
from cyborg.db.models import Device
from cyborg.db.transaction import Transaction
from cyborg.db.work import ClaimedWork
from cyborg.model.device import DeviceStatus
from cyborg.model.operation import HostResult, Operation, ResultState
from cyborg.model.report import DriverState
from cyborg.model.work import Discovered, DiscoveryTask, Outcome, WorkKind
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.verbs import Discover

LOG = logging.getLogger(__name__)

VERB = "discover"
#: Reverts in a transaction what the operation of a work row has begun on the host with this id.
Undo = Callable[[Transaction, ClaimedWork, int], None]
#: Precedes the error when an agent and this conductor do not understand each other's arguments.
_OTHER_RELEASE = "the agent is of another release. "
#: Milliseconds before an agent that is still looking is asked again.
_ANSWER_POLL_MS = 500
#: The fault of work on a host that does not exist any more.
HOST_REMOVED = "the host was removed"
#: The fault of work whose deadline has passed.
OVERDUE = "it was not carried out in time"
#: A discovery fails when an agent has left so many queries in a row unanswered.
_UNANSWERED = 2
#: The key in the spec of work for the number of queries in a row without an answer.
_SILENCE = "unanswered"


class DiscoveryAPI:
    """Begin discoveries on hosts."""

    def __init__(self, *, operations: Operations) -> None:
        self._operations = operations

    def discover(
        self, order: Order, *, hosts: Sequence[str] | None, driver: str | None, setup: bool = False
    ) -> Operation:
        """Have hosts (None: all that are up) read their hardware, through one driver or all.

        With ``setup`` the hosts set up the devices of the driver that are inactive and need it.
        Raises NotFound (host, driver), Unavailable (an agent is down), Conflict.
        """

        def plan(tx: Transaction) -> list[Task]:
            chosen = self._operations.hosts(tx, hosts, wait=order.wait)
            if driver is not None and not drivers.on_hosts(tx, driver, [row.id for row in chosen]):
                raise exception.NotFound(noun="Driver", key=driver)
            spec = {"driver": driver, "setup": setup}
            subject = {"driver": driver} if driver else {}
            return [Task(row, WorkKind.DISCOVER, spec, subject=subject) for row in chosen]

        return self._operations.begin(order, plan)


@dataclass(frozen=True, kw_only=True)
class AgentQuery:
    """Query agents on behalf of operations; the handler of ``discover`` work.

    An agent is down when it has been silent for ``down_after`` milliseconds.
    """

    queue: WorkQueue
    agents: AgentClient
    down_after: int

    def handlers(self) -> dict[WorkKind, Handler]:
        """Return the handler by its kind of work."""
        return {WorkKind.DISCOVER: self.discovery(VERB, self._end_discovery).run}

    def discovery(
        self, phase: str, end: End[HostAgent], undo: Undo | None = None
    ) -> AgentTask[Any]:
        """Return the task of having an agent follow its desired state and read its hardware.

        Each ``phase`` of a work row is a query of its own.
        """
        return self.task(partial(self._ask, phase), end, undo)

    def task(
        self, ask: Ask[HostAgent], end: End[HostAgent], undo: Undo | None = None
    ) -> AgentTask[Any]:
        """Return the task of asking the agent of a host, as soon as it is up.

        A fault ends the host's part of the operation. If the agent does not know such requests,
        ``undo`` is called in the transaction of that.
        """

        def ask_if_up(row: ClaimedWork, agent: HostAgent | None) -> Answer | Waiting:
            if agent is None:
                return Outcome(row.uuid, fault=HOST_REMOVED)
            if not agent.up:
                return self.wait(row, ResultState.WAITING, "its agent is down")
            show_progress(self.queue, row, ResultState.RUNNING, None)
            return ask(row, agent)

        return AgentTask(
            queue=self.queue,
            read=self.agent,
            ask=ask_if_up,
            end=end,
            fail=self.fail,
            refuse=lambda row, agent, outcome: self.fail(row, agent, outcome, undo),
            overdue=OVERDUE,
            poll_ms=_ANSWER_POLL_MS,
            refusals={exception.UnknownVerb: "", exception.Invalid: _OTHER_RELEASE},
        )

    def agent(self, tx: Transaction, row: ClaimedWork) -> HostAgent | None:
        """Return the agent of the host of a work row, and whether it is ``up``."""
        return None if row.host_id is None else hosts.agent_of(tx, self.down_after, row.host_id)

    def _ask(
        self, phase: str, row: ClaimedWork, agent: HostAgent
    ) -> Discovered | Outcome | Waiting:
        """Query an agent that is up.

        An agent that is up and does not answer gets requests about drivers with the desired state,
        after its heartbeat. So work on drivers waits for it, and so does a discovery without a
        deadline; another discovery fails after the second query without an answer.
        """
        spec = row.spec or {}
        task = DiscoveryTask(
            str(uuid5(UUID(row.uuid), phase)), spec.get("driver"), agent_epoch=agent.epoch
        )
        silence = 1 + int(spec.get(_SILENCE, 0))
        try:
            answer = self.agents.request(agent.service_host, Discover(task))
        except exception.NoAnswer:
            reason = agent.bus_error or "it does not answer"
            error = f"its agent sends heartbeats but receives no requests: {reason}"
            if row.kind == WorkKind.DISCOVER and row.left_ms is not None:
                if agent.bus_error or silence >= _UNANSWERED:
                    return Outcome(row.uuid, fault=error)
                self._note_silence(row, silence)
            return self.wait(row, ResultState.WAITING, error, pause_ms=0)
        except exception.UnknownVerb:
            raise
        except exception.Unavailable as error:
            show_progress(self.queue, row, ResultState.WAITING, str(error))
            raise
        self._note_silence(row, 0)
        return answer

    @retried
    def _end_discovery(self, row: ClaimedWork, agent: HostAgent, answer: Discovered) -> None:
        """End a discovery; begin the set-up of enabled devices that need one again.

        With ``setup`` in its spec, devices that are inactive and need a set-up get one as well.
        """
        ready = [driver.name for driver in answer.drivers if driver.state is DriverState.READY]
        which = sa.and_(Device.host_id == agent.id, Device.driver.in_(ready))
        result = host_result(row, answer)
        statuses = [DeviceStatus.ENABLED]
        if (row.spec or {}).get("setup"):
            statuses.append(DeviceStatus.INACTIVE)
        with self.queue.complete([row]) as tx:
            for status in statuses:
                if devices.needing_set_up(tx, which, status=status):
                    hosts.bump_desired_generation(tx, agent.id)
                    uuids = set_up.begin_needed(tx, which, row.operation_id, status=status)
                    state, host = DeviceStatus.INSTALLING.value, result.host
                    entries = [events.Entry("device", uuid, state, hostname=host) for uuid in uuids]
                    work.record(tx, row, entries)
            installing = devices.in_set_up(tx, agent.id, ready)
            result = replace(result, result={**(result.result or {}), "installing": installing})
            operations.end(tx, row.operation_id, result)
        _log(row, result)

    @retried
    def _note_silence(self, row: ClaimedWork, silence: int) -> None:
        """Store how many queries in a row were not answered, if the number has changed."""
        spec = row.spec or {}
        if silence != int(spec.get(_SILENCE, 0)):
            with self.queue.checkpoint([row]) as tx:
                work.set_spec(tx, row, {**spec, _SILENCE: silence})

    def fail(
        self, row: ClaimedWork, agent: HostAgent | None, outcome: Outcome, undo: Undo | None = None
    ) -> None:
        """End one host's part of an operation with a fault."""
        failed = HostResult((row.spec or {})["host"], ResultState.FAILED, error=outcome.fault)
        self.end(row, failed, undo)

    @retried
    def end(self, row: ClaimedWork, result: HostResult, undo: Undo | None = None) -> None:
        """End one host's part of an operation; ``undo`` is called in the same transaction."""
        with self.queue.complete([row]) as tx:
            if undo is not None and row.host_id is not None:
                undo(tx, row, row.host_id)
            operations.end(tx, row.operation_id, result)
        _log(row, result)

    def wait(
        self, row: ClaimedWork, state: ResultState, reason: str, *, pause_ms: int = AGENT_POLL_MS
    ) -> Waiting:
        """Return that one host's part of an operation waits, and store for what.

        WAITING, for an agent that does not answer, is an error of the work as well.
        """
        show_progress(self.queue, row, state, reason)
        return Waiting(reason if state is ResultState.WAITING else None, pause_ms)


def host_result(row: ClaimedWork, answer: Discovered) -> HostResult:
    """Return the result of one host from its agent's answer.

    The host has failed if any driver failed or reports what another driver has. A driver that the
    request names must be ready as well.
    """
    spec = row.spec or {}
    errors = [
        f"{driver.name}: {driver.error}"
        for driver in answer.drivers
        if not driver.accepted
        or driver.state is DriverState.FAILED
        or (driver.failed and driver.error)
        or (driver.name == spec.get("driver") and driver.state is not DriverState.READY)
    ]
    state = ResultState.FAILED if errors else ResultState.SUCCEEDED
    result = {"drivers": [_counted(asdict(driver)) for driver in answer.drivers]}
    return HostResult(spec["host"], state, result, "; ".join(errors) or None)


def _counted(findings: dict[str, Any]) -> dict[str, Any]:
    """Return findings as the API shows them: ``found`` is how many devices were discovered."""
    counted = {"found" if name == "discovered" else name: findings[name] for name in findings}
    if "backends" in counted:
        counted["backends"] = [_counted(backend) for backend in counted["backends"]]
    return counted


def _log(row: ClaimedWork, result: HostResult) -> None:
    LOG.info(
        "Operation %s on %s: %s%s",
        row.operation_id,
        result.host,
        result.state.value,
        f", {result.error}" if result.error else "",
    )
