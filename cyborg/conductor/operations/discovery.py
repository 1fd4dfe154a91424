# SPDX-License-Identifier: Apache-2.0
"""Discovery on request: have hosts read their hardware now, and collect their answers.

The agents send the result as an ordinary report. The operation only holds the hosts and their
answers.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any
from uuid import UUID, uuid5

import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.operations.operations import Operations, Order, Task
from cyborg.conductor.tasks import set_up
from cyborg.conductor.tasks.queue import WorkQueue
from cyborg.db import devices, drivers, events, hosts, operations, work
from cyborg.db.base import Record
from cyborg.db.engine import Database, retried
from cyborg.db.models import Device
from cyborg.model.device import DeviceEvent, DeviceStatus
from cyborg.model.operation import HostResult, Operation, ResultState
from cyborg.model.report import DriverState
from cyborg.model.work import Discovered, DiscoveryTask, WorkKind
from cyborg.rpc.agent import AgentClient

LOG = logging.getLogger(__name__)

VERB = "discover"
#: Reverts in a transaction what an operation has begun.
Undo = Callable[[sa.Connection], None]
#: Precedes the error when an agent and this conductor do not understand each other's arguments.
_OTHER_RELEASE = "the agent is of another release. "
#: Milliseconds before an agent that is still looking is asked again.
_ANSWER_POLL_MS = 500
#: Milliseconds before it is checked again whether an agent that is down is back.
_AGENT_POLL_MS = 1000
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

        def plan(tx: sa.Connection) -> list[Task]:
            chosen = self._operations.hosts(tx, hosts, wait=order.wait)
            if driver is not None and not drivers.on_hosts(tx, driver, [row.id for row in chosen]):
                raise exception.NotFound(noun="Driver", key=driver)
            spec = {"driver": driver, "setup": setup}
            subject = {"driver": driver} if driver else {}
            return [Task(row, WorkKind.DISCOVER, spec, subject=subject) for row in chosen]

        return self._operations.begin(order, plan)


class AgentQuery:
    """Query agents on behalf of an operation; the handler of ``discover`` work.

    An agent is down when it has been silent for ``down_after`` milliseconds.
    """

    def __init__(
        self, *, db: Database, queue: WorkQueue, agents: AgentClient, down_after: int
    ) -> None:
        self._db = db
        self._queue = queue
        self._agents = agents
        self._down_after = down_after

    def discover(self, rows: Sequence[Record]) -> None:
        """Take the next step of one host's part of a discovery."""
        (row,) = rows
        answer = self.ask(row)
        if answer is not None:
            self._end_discovery(row, answer)

    @retried
    def _end_discovery(self, row: Record, answer: Discovered) -> None:
        """End a discovery; begin the set-up of enabled devices that need one again.

        With ``setup`` in its spec, devices that are inactive and need a set-up get one as well.
        """
        ready = [driver.name for driver in answer.drivers if driver.state is DriverState.READY]
        which = sa.and_(Device.host_id == row.host_id, Device.driver.in_(ready))
        result = host_result(row, answer)
        with self._queue.complete([row]) as tx:
            if devices.needing_set_up(tx, which):
                hosts.bump_desired_generation(tx, self._db.now, row.host_id)
                self._record_set_up(
                    tx, row, set_up.repeat(tx, self._db.now, which, row.operation_id)
                )
            inactive = (
                devices.needing_set_up(tx, which, status=DeviceStatus.INACTIVE)
                if row.spec.get("setup")
                else []
            )
            if inactive:
                hosts.bump_desired_generation(tx, self._db.now, row.host_id)
                devices.move_all(tx, [device.id for device in inactive], DeviceEvent.INSTALL)
                set_up.begin(tx, self._db.now, inactive, row.operation_id)
                self._record_set_up(tx, row, [device.uuid for device in inactive])
            installing = devices.in_set_up(tx, row.host_id, ready)
            result = replace(result, result={**(result.result or {}), "installing": installing})
            operations.end(tx, self._db.now, row.operation_id, result)
        _log(row, result)

    def _record_set_up(self, tx: sa.Connection, row: Record, uuids: Sequence[str]) -> None:
        status, hostname = DeviceStatus.INSTALLING.value, row.spec["host"]
        entries = [events.Entry("device", uuid, status, hostname=hostname) for uuid in uuids]
        work.record(tx, self._db.now, row, entries)

    def ask(self, row: Record, phase: str = VERB, undo: Undo | None = None) -> Discovered | None:
        """Return what the agent of a work row answers to a query.

        None means that there is no answer yet, or that there will be none; the row then says so.
        Each ``phase`` of the work is a query of its own. If the agent does not know such queries,
        ``undo`` is called in the transaction that ends the work.
        """
        if row.overdue:
            self.overdue(row)
            return None
        agent = self.agent(row)
        if agent is None:
            return None
        task = DiscoveryTask(
            str(uuid5(UUID(row.uuid), phase)), row.spec.get("driver"), agent_epoch=agent.epoch
        )
        try:
            answer = self._agents.discovery(agent.service_host, task)
        except (exception.UnknownVerb, exception.Invalid) as error:
            self.refused(row, error, undo)
            return None
        except exception.NoAnswer:
            self._unanswered(row, agent)
            return None
        except exception.Unavailable as error:
            self.pause(row, ResultState.WAITING, str(error))
            raise
        self._note_silence(row, 0)
        if not answer.done:
            self._queue.reschedule([row], None, pause_ms=_ANSWER_POLL_MS)
            return None
        return answer

    def _unanswered(self, row: Record, agent: Record) -> None:
        """Reschedule work whose agent is up and does not answer; end a discovery after the second.

        Such an agent gets requests about drivers with the desired state, after its heartbeat. So
        work on drivers continues, and so does a discovery that waits without a deadline.
        """
        silence = 1 + int(row.spec.get(_SILENCE, 0))
        reason = agent.bus_error or "it does not answer"
        error = f"its agent sends heartbeats but receives no requests: {reason}"
        if row.kind == WorkKind.DISCOVER and row.deadline_ms is not None:
            if agent.bus_error or silence >= _UNANSWERED:
                self.end(row, _failed(row, error))
                return
            self._note_silence(row, silence)
        self.pause(row, ResultState.WAITING, error)
        self._queue.reschedule([row], error)

    @retried
    def _note_silence(self, row: Record, silence: int) -> None:
        """Store how many queries in a row were not answered, if the number has changed."""
        if silence != int(row.spec.get(_SILENCE, 0)):
            with self._queue.checkpoint([row]) as tx:
                work.set_spec(tx, row, {**row.spec, _SILENCE: silence})

    def agent(self, row: Record) -> Record | None:
        """Return the agent of a work row if it is up.

        None means that it is down or removed; the result of the operation then says so.
        """
        with self._db.reader() as tx:
            agent = hosts.agent_of(tx, self._db.now, self._down_after, row.host_id)
        if agent is None:
            self.end(row, _failed(row, "the host was removed"))
            return None
        if not agent.up:
            self.pause(row, ResultState.WAITING, "its agent is down")
            self._queue.reschedule([row], "its agent is down", pause_ms=_AGENT_POLL_MS)
            return None
        self.pause(row, ResultState.RUNNING, None)
        return agent

    def refused(
        self,
        row: Record,
        error: exception.UnknownVerb | exception.Invalid,
        undo: Undo | None = None,
    ) -> None:
        """Fail one host's part of an operation whose request its agent does not understand."""
        prefix = _OTHER_RELEASE if isinstance(error, exception.Invalid) else ""
        self.end(row, _failed(row, f"{prefix}{error}"), undo)

    def overdue(self, row: Record) -> None:
        """Fail one host's part of an operation whose deadline has passed."""
        self.end(row, _failed(row, "it was not carried out in time"))

    @retried
    def end(self, row: Record, result: HostResult, undo: Undo | None = None) -> None:
        """End one host's part of an operation; ``undo`` is called in the same transaction."""
        with self._queue.complete([row]) as tx:
            if undo is not None:
                undo(tx)
            operations.end(tx, self._db.now, row.operation_id, result)
        _log(row, result)

    @retried
    def pause(self, row: Record, state: ResultState, error: str | None) -> None:
        """Store what one host's part of an operation waits for, if that has changed."""
        with self._db.reader() as tx:
            if operations.result_of(tx, row.operation_id, row.spec["host"]) == (state.value, error):
                return
        with self._queue.checkpoint([row]) as tx:
            operations.update_result(
                tx, row.operation_id, HostResult(row.spec["host"], state, error=error)
            )


def host_result(row: Record, answer: Discovered) -> HostResult:
    """Return the result of one host from its agent's answer.

    The host has failed if any driver failed or reports what another driver has. A driver that the
    request names must be ready as well.
    """
    errors = [
        f"{driver.name}: {driver.error}"
        for driver in answer.drivers
        if not driver.accepted
        or driver.state is DriverState.FAILED
        or (driver.failed and driver.error)
        or (driver.name == row.spec.get("driver") and driver.state is not DriverState.READY)
    ]
    state = ResultState.FAILED if errors else ResultState.SUCCEEDED
    result = {"drivers": [_counted(asdict(driver)) for driver in answer.drivers]}
    return HostResult(row.spec["host"], state, result, "; ".join(errors) or None)


def _counted(findings: dict[str, Any]) -> dict[str, Any]:
    """Return findings as the API shows them: ``found`` is how many devices were discovered."""
    counted = {"found" if name == "discovered" else name: findings[name] for name in findings}
    if "backends" in counted:
        counted["backends"] = [_counted(backend) for backend in counted["backends"]]
    return counted


def _failed(row: Record, reason: str) -> HostResult:
    return HostResult(row.spec["host"], ResultState.FAILED, error=reason)


def _log(row: Record, result: HostResult) -> None:
    LOG.info(
        "Operation %s on %s: %s%s",
        row.operation_id,
        result.host,
        result.state.value,
        f", {result.error}" if result.error else "",
    )
