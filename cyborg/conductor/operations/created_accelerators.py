# SPDX-License-Identifier: Apache-2.0
"""Accelerators that operators create: ordered here, made by the report that shows them.

The order is work of the host, and part of what is desired of it. Whether the host can have it, its
driver alone can tell: it shows the new device like any other, and the report makes the rows. So
nothing of one that is refused was ever in the database, nor in Placement.
"""

from collections.abc import Sequence
from uuid import UUID, uuid5

import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.operations.discovery import AgentQuery
from cyborg.conductor.operations.operations import Operations, Order, Task
from cyborg.conductor.tasks.queue import WorkQueue
from cyborg.db import created_accelerators, devices, events, host_inventory, hosts, operations
from cyborg.db.base import Record
from cyborg.db.created_accelerators import Ordered
from cyborg.db.engine import Database, retried
from cyborg.model import creation
from cyborg.model.creation import Creation
from cyborg.model.device import AttachType
from cyborg.model.operation import HostResult, Operation, ResultState
from cyborg.model.report import DriverState
from cyborg.model.work import Discovered, WorkKind
from cyborg.rpc.agent import AgentClient

CREATE = "create_device"
#: States of a driver that shows nothing.
_MUTE = (DriverState.FAILED, DriverState.STOPPED)


class AcceleratorCreator:
    """Begins to create accelerators."""

    def __init__(self, *, db: Database, operations: Operations) -> None:
        self._db = db
        self._operations = operations

    def create(self, order: Order, wanted: Creation) -> Operation:
        """Have an accelerator created on a backend of a host.

        Raises NotFound (host, driver, backend), Unavailable (its agent is down), Invalid (the
        backend has no such handles), and Conflict when the driver creates none or the place is
        taken.
        """

        def plan(tx: sa.Connection) -> list[Task]:
            host = self._operations.hosts(tx, [wanted.host], wait=order.wait)[0]
            # Under the host's lock: of two that want one place, the second sees the first.
            hosts.bump_desired_generation(tx, self._db.now, host.id)
            attach_type = _attach_type(
                created_accelerators.backends(tx, host.id, wanted.driver), wanted
            )
            new = self._new(tx, host, order, wanted, attach_type=attach_type)
            entry = events.Entry("device", new.uuid, "ordered", hostname=host.name)
            events.record(tx, self._db.now, [entry], caller=order.caller, operation=order.operation)
            about = {"device": new.uuid, "driver": wanted.driver, "backend": wanted.backend}
            return [Task(host, WorkKind.CREATE, new.spec(), about=about)]

        return self._operations.begin(order, plan)

    def _new(
        self,
        tx: sa.Connection,
        host: Record,
        order: Order,
        wanted: Creation,
        *,
        attach_type: AttachType,
    ) -> Ordered:
        pending = [one.facts for one in created_accelerators.ordered(tx, host.id)]
        keys = {*created_accelerators.keys(tx, host.id), *(one.key for one in pending)}
        facts = creation.device(
            wanted, creation.handles(wanted, attach_type, keys), host.service_host
        )
        names = {one.name for one in facts.deployables}
        reserved = {one.name for device in pending for one in device.deployables}
        if facts.key in keys or names & (reserved | host_inventory.taken_names(tx, names).keys()):
            raise exception.Conflict(
                reason=f"There is an accelerator {facts.key} on {host.name} already, or there will "
                "be one soon."
            )
        uuid = str(uuid5(UUID(order.operation), "device"))
        return Ordered(uuid, wanted.driver, facts, wanted.labels)


class CreationWork:
    """The handler of ``create`` work."""

    def __init__(
        self, *, db: Database, queue: WorkQueue, asker: AgentQuery, agents: AgentClient
    ) -> None:
        self._db = db
        self._queue = queue
        self._asker = asker
        self._agents = agents

    def create(self, rows: Sequence[Record]) -> None:
        """Have the host look, which makes the device; end the operation by what came of that."""
        (row,) = rows
        answer = self._asker.ask(row)
        if answer is not None:
            self._end(row, answer)

    @retried
    def _end(self, row: Record, answer: Discovered) -> None:
        new = Ordered.of(row.spec)
        result = HostResult(row.spec["host"], ResultState.SUCCEEDED, {"device": new.uuid})
        with self._queue.complete([row]) as tx:
            # No report makes it while this is being decided, and none after that.
            hosts.lock(tx, row.host_id)
            if devices.of_operator(tx, new.uuid) is None:
                why = _refusal(tx, row, new, answer)
                result = HostResult(row.spec["host"], ResultState.FAILED, error=why)
                hosts.bump_desired_generation(tx, self._db.now, row.host_id)
            operations.end(tx, self._db.now, row.operation_id, result)
            agent = hosts.agent_of(tx, self._db.now, 0, row.host_id)
        if result.error is not None and agent is not None:
            self._agents.poke(agent.service_host)


def _attach_type(backends: Sequence[Record], wanted: Creation) -> AttachType:
    """How guests get what is created on the backend that is wanted; raises what is wrong."""
    if not backends:
        raise exception.NotFound(noun="Driver", key=wanted.driver)
    if backends[0].state in _MUTE:
        why = backends[0].error or "it is not loaded"
        raise exception.Conflict(
            reason=f"Driver {wanted.driver} is {backends[0].state} on {wanted.host}: {why}"
        )
    if all(one.creates is None for one in backends):
        raise exception.Conflict(
            reason=f"Driver {wanted.driver} has no backend on {wanted.host} on which accelerators "
            "can be created. The field creates of the backends (backend-list on the command line) "
            "tells where that is possible."
        )
    for one in backends:
        if one.backend == wanted.backend:
            if one.creates is None:
                raise exception.Conflict(
                    reason=f"Accelerators cannot be created on backend {wanted.backend} of driver "
                    f"{wanted.driver}. The field creates of the backends (backend-list on the "
                    "command line) tells where that is possible."
                )
            return AttachType(one.creates)
    raise exception.NotFound(noun="Backend", key=wanted.backend)


def _refusal(tx: sa.Connection, row: Record, new: Ordered, answer: Discovered) -> str:
    """Why a host has not shown what was ordered, in a sentence for the operator."""
    for found in answer.drivers:
        if found.name == new.driver and found.error is not None:
            return f"{new.driver}: {found.error}"
    holders = host_inventory.taken_names(tx, [one.name for one in new.facts.deployables])
    if holders:
        (name, *_) = holders
        holder = holders[name]
        return f"{name} is already a deployable of driver {holder.driver} on {holder.hostname}"
    said = created_accelerators.reason(tx, row.host_id, new.driver, new.facts.key)
    return said or f"{new.driver} does not show it on its backend {new.facts.backend}"
