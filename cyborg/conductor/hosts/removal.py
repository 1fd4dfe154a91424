# SPDX-License-Identifier: Apache-2.0
"""What operators do to processes: take a host out of service, and forget what is gone for good.

A host is forgotten like a lost device: its providers leave Placement, which refuses while something
is allocated there, and only then its rows go. Its agent is dead, so the conductor does it. Any
process is forgotten by an operation, so that there is one way to ask for it and to see its end.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import sqlalchemy as sa

from cyborg import exception
from cyborg.clients.placement_sync import Publisher
from cyborg.conductor.operations.operations import Operations, Order, Place, Task
from cyborg.conductor.reports.desired_state import children_first
from cyborg.conductor.tasks.queue import WorkQueue
from cyborg.db import events, hosts, lost_devices, operations, services
from cyborg.db.base import Record
from cyborg.db.engine import Database, retried
from cyborg.model.caller import Caller
from cyborg.model.names import AGENT
from cyborg.model.operation import HostResult, Operation, ResultState
from cyborg.model.work import WorkKind
from cyborg.rpc.agent import AgentClient

LOG = logging.getLogger(__name__)

VERB: Final = "forget"
#: The step of an operation when Placement shows nothing of the host any more.
_UNPUBLISHED: Final = "unpublished"
_LEAVING: Final = "It is being forgotten."
_ENABLED: Final = "enabled"
_DISABLED: Final = "disabled"


class Processes:
    """Changes the rows of processes.

    ``down_after`` tells after how many milliseconds of silence a process of a binary is down.
    """

    def __init__(
        self,
        *,
        db: Database,
        agents: AgentClient,
        operations: Operations,
        down_after: Mapping[str, int],
    ) -> None:
        self._db = db
        self._agents = agents
        self._operations = operations
        self._down_after = down_after

    def set_status(
        self, caller: Caller, operation: str, uuid: str, reason: str | None, *, disabled: bool
    ) -> None:
        """Take an agent's host out of service, or put it back; it holds until the next such order.

        No unit of the host is bound from the commit on; Placement follows when the agent has heard
        of it. What guests have they keep. Raises NotFound, Conflict (no agent).
        """
        agent = self._set_status(caller, operation, uuid, reason, disabled=disabled)
        self._agents.poke(agent)

    def forget(self, caller: Caller, operation: str, uuid: str) -> Operation:
        """Begin to remove a process that is down and, of an agent, its host with all its devices.

        Raises NotFound, Conflict (it is up, ARQs have units, or somebody has begun it already).
        """

        def plan(tx: sa.Connection) -> list[Task]:
            row = self._process(tx, uuid)
            if row.silent_ms <= self._down_after[row.binary]:
                raise exception.Conflict(
                    reason=f"{row.binary} on {row.host} is up; it was seen "
                    f"{row.silent_ms // 1000} s ago. Stop it first."
                )
            place = Place(row.host) if row.host_id is None else self._leave(tx, row)
            self._record(tx, row, "forgotten", None, caller=caller, operation=operation)
            about = {"service": str(row.binary)}
            return [Task(place, WorkKind.FORGET, {"service": uuid}, patient=True, about=about)]

        return self._operations.begin(Order(caller, operation, VERB), plan)

    def _leave(self, tx: sa.Connection, agent: Record) -> Place:
        """Take the host of an agent out of service for good, unless somebody needs it."""
        name = services.lock_host(tx, agent.host_id)
        _refuse_used(tx, agent.host_id, agent.host)
        begun = services.removal_operation(tx, agent.host_id)
        if begun is not None:
            raise exception.Conflict(
                reason=f"{agent.host} is being forgotten already: see operation {begun}."
            )
        services.disable(tx, agent.id, disabled=True, reason=_LEAVING)
        return Place(name, agent.host_id)

    @retried
    def _set_status(
        self, caller: Caller, operation: str, uuid: str, reason: str | None, *, disabled: bool
    ) -> str:
        with self._db.writer() as tx:
            row = self._process(tx, uuid)
            if row.binary != AGENT:
                raise exception.Conflict(
                    reason=f"Only {AGENT} can be taken out of service; {row.binary} on {row.host} "
                    "gives no units out."
                )
            word = _DISABLED if disabled else _ENABLED
            if not events.done_by(tx, operation, word, [uuid]):
                if row.host_id is not None:
                    hosts.bump_desired_generation(tx, self._db.now, row.host_id)
                services.disable(tx, row.id, disabled=disabled, reason=reason)
                self._record(tx, row, word, reason, caller=caller, operation=operation)
        LOG.info("%s on %s is %s now", row.binary, row.host, word)
        return str(row.host)

    def _process(self, tx: sa.Connection, uuid: str) -> Record:
        row = services.process(tx, self._db.now, uuid)
        if row is None:
            raise exception.NotFound(noun="Process", key=uuid)
        return row

    def _record(
        self,
        tx: sa.Connection,
        row: Record,
        word: str,
        reason: str | None,
        *,
        caller: Caller,
        operation: str,
    ) -> None:
        entry = events.Entry("service", row.uuid, word, hostname=row.host, reason=reason)
        events.record(tx, self._db.now, [entry], caller=caller, operation=operation)


class HostRemover:
    """The handler of ``forget`` work; ``publisher`` is made when it is needed.

    ``down_after`` as for Processes.
    """

    def __init__(
        self,
        *,
        db: Database,
        queue: WorkQueue,
        publisher: Callable[[], Publisher],
        down_after: Mapping[str, int],
    ) -> None:
        self._db = db
        self._queue = queue
        self._publisher = publisher
        self._down_after = down_after

    def forget(self, rows: Sequence[Record]) -> None:
        """Take a host's providers out of Placement, then its rows out of the database.

        Calls it off when the process has come back. Raises Conflict while something is allocated,
        Unavailable; it is tried again then, and the operation tells why.
        """
        (row,) = rows
        if row.host_id is None:
            self._finish_process(row)
            return
        with self._db.reader() as tx:
            agent = services.process(tx, self._db.now, row.spec["service"])
            found = services.providers(tx, row.host_id)
            name = hosts.name_of(tx, row.host_id)
        try:
            if not self._is_back(agent):
                self._unpublish(name, found)
            self._finish(row)
        except exception.CyborgError as fault:
            self._tell(row, str(fault))
            raise

    def _unpublish(self, name: str, found: Sequence[Record]) -> None:
        publisher = self._publisher()
        root = _root(publisher, name)
        for one in children_first(found):
            publisher.retire(one.rp_uuid, root=root)

    @retried
    def _tell(self, row: Record, why: str) -> None:
        """Note what keeps the host; reads only when that is known."""
        standing = HostResult(row.spec["host"], ResultState.RUNNING, error=why)
        with self._db.reader() as tx:
            known = operations.standing(tx, row.operation_id, standing.host)
        if known != (standing.state.value, why):
            with self._queue.checkpoint([row]) as tx:
                operations.pause(tx, row.operation_id, standing)

    @retried
    def _finish_process(self, row: Record) -> None:
        """Remove a process that has no host of its own."""
        with self._queue.complete([row]) as tx:
            found = services.process(tx, self._db.now, row.spec["service"])
            back = self._is_back(found)
            if found is not None and not back:
                services.remove(tx, found.id)
            self._end(tx, row, f"{found.binary} is up again" if found and back else None)

    @retried
    def _finish(self, row: Record) -> None:
        with self._queue.complete([row]) as tx:
            name = services.lock_host(tx, row.host_id)
            agent = services.process(tx, self._db.now, row.spec["service"])
            if self._is_back(agent):
                self._call_off(tx, agent)
                self._end(tx, row, "its agent has come back, and the host stays")
                return
            _refuse_used(tx, row.host_id, name)
            going = services.devices(tx, row.host_id)
            operations.reach(tx, self._db.now, row.operation_id, _UNPUBLISHED)
            for uuid in operations.open_on(tx, name):
                if uuid != row.operation_id:
                    operations.end(tx, self._db.now, uuid, _forgotten(name))
            services.cancel_work(tx, row.host_id, kept=row.id)
            lost_devices.remove(tx, [one.id for one in going])
            services.remove_host(tx, row.host_id)
            if agent is not None:
                services.remove(tx, agent.id)
            why = "its host was forgotten"
            entries = [
                events.Entry("device", one.uuid, "retired", hostname=name, reason=why)
                for one in going
            ]
            events.record(tx, self._db.now, entries)
            self._end(tx, row, None, devices=len(going))
        LOG.info("Host %s is forgotten, with %d device(s)", name, len(going))

    def _end(self, tx: sa.Connection, row: Record, fault: str | None, *, devices: int = 0) -> None:
        state = ResultState.SUCCEEDED if fault is None else ResultState.FAILED
        told = {"devices": devices} if fault is None else None
        ended = HostResult(row.spec["host"], state, told, fault)
        operations.end(tx, self._db.now, row.operation_id, ended)

    def _is_back(self, process: Record | None) -> bool:
        return process is not None and process.silent_ms <= self._down_after[process.binary]

    def _call_off(self, tx: sa.Connection, agent: Record) -> None:
        """Its agent has come back: the host stays, and Placement is put right by it."""
        services.disable(tx, agent.id, disabled=False, reason=None)
        hosts.bump_desired_generation(tx, self._db.now, agent.host_id)
        LOG.warning("%s is not forgotten: its agent has come back", agent.host)


def _refuse_used(tx: sa.Connection, host_id: int, host: str) -> None:
    """Raise Conflict naming the ARQs that have units of a host."""
    found = services.arqs(tx, host_id)
    if found:
        raise exception.Conflict(
            reason=f"Accelerator requests have units of {host}: {', '.join(found)}. Delete their "
            "instances first, or evacuate them."
        )


def _forgotten(host: str) -> HostResult:
    """How operations end for a host that is gone."""
    return HostResult(host, ResultState.FAILED, error="the host was forgotten")


def _root(publisher: Publisher, name: str) -> str | None:
    """The compute's own provider; None when that is gone already."""
    try:
        return publisher.find_root([name])[0]
    except exception.NotFound:
        return None
