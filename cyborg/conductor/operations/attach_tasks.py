# SPDX-License-Identifier: Apache-2.0
"""Carry attach and detach out: the work of an instance, and its allocation in Placement.

The allocation is computed from the ARQs of the instance, so that a repetition changes nothing.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import sqlalchemy as sa

from cyborg import exception
from cyborg.clients.nova import Nova
from cyborg.clients.placement import CONCURRENT_UPDATE, Allocations, Consumer
from cyborg.conductor.arqs import release
from cyborg.conductor.tasks.queue import WorkQueue
from cyborg.db import arqs as arqs_db
from cyborg.db import attachments, events, instances, operations, work
from cyborg.db.base import Record
from cyborg.db.engine import Database, retried
from cyborg.db.models import Arq
from cyborg.model import wire
from cyborg.model.arq import Event, State
from cyborg.model.attachment import Plan, Step
from cyborg.model.operation import HostResult, ResultState
from cyborg.model.work import WorkKind

LOG = logging.getLogger(__name__)

#: How often an allocation is read again that another client has just changed.
_ATTEMPTS = 5
#: Milliseconds before the host or Nova, at work, is checked again.
_POLL_MS = 1000
#: Milliseconds for which an attach waits for Nova or Placement to answer, for another task of Nova,
#: or for a reboot; then it is rolled back.
_WAIT_LIMIT_MS = 600_000
#: How often a server is rebooted for an attach, and for a detach. Then it is its operator's turn.
_REBOOTS = 2
#: A server in this state takes on or loses accelerators without a reboot.
_SHUT_OFF = "SHUTOFF"
_ERROR = "ERROR"
_REBOOTABLE = frozenset({"ACTIVE", _ERROR})
_FAILED = "the reboot failed"
_GONE = "its accelerator requests were deleted together with those of the instance"

#: Provider uuid → resource class → number of units.
_Units = dict[str, dict[str, int]]


class InstanceAllocation:
    """Write allocations of instances, always with the generation that was read."""

    def __init__(self, *, db: Database, placement: Allocations) -> None:
        self._db = db
        self._placement = placement

    def grow(self, instance: str, providers: Mapping[str, str]) -> None:
        """Allocate to an instance at least the units that its ARQs bind of these providers.

        ``providers`` maps their uuids to their resource classes. Raises exception.NotFound when the
        instance has no allocation, Conflict when a provider has no free units, Invalid when a
        provider is gone, and Unavailable.
        """
        for _ in range(_ATTEMPTS):
            consumer = self._placement.consumer(instance)
            if consumer is None:
                raise exception.NotFound(noun="Allocation of instance", key=instance)
            with self._db.reader() as tx:
                bound = attachments.units(tx, instance)
            units = {uuid: dict(classes) for uuid, classes in consumer.allocations.items()}
            for uuid, resource_class in providers.items():
                classes = units.setdefault(uuid, {})
                classes[resource_class] = max(classes.get(resource_class, 0), bound.get(uuid, 0))
            if self._write(instance, consumer, units):
                return
        raise exception.Unavailable(peer="Placement", reason="the allocation keeps changing")

    def shrink(self, instance: str, providers: Mapping[str, str]) -> None:
        """Allocate to an instance at most the units that its ARQs bind of these providers.

        An instance without an allocation is left alone. Raises Conflict when Placement refuses the
        change, and Unavailable.
        """
        for _ in range(_ATTEMPTS):
            consumer = self._placement.consumer(instance)
            if consumer is None:
                return
            with self._db.reader() as tx:
                bound = attachments.units(tx, instance)
            units = {uuid: dict(classes) for uuid, classes in consumer.allocations.items()}
            for uuid, resource_class in providers.items():
                classes = units.get(uuid, {})
                if resource_class in classes:
                    classes[resource_class] = min(classes[resource_class], bound.get(uuid, 0))
            if self._write(instance, consumer, units):
                return
        raise exception.Unavailable(peer="Placement", reason="the allocation keeps changing")

    def _write(self, instance: str, consumer: Consumer, units: _Units) -> bool:
        """Write an allocation if it differs; return False when another client was faster."""
        # Placement refuses zeros.
        counted = {
            uuid: {name: count for name, count in classes.items() if count}
            for uuid, classes in units.items()
        }
        allocations = {uuid: classes for uuid, classes in counted.items() if classes}
        if allocations == consumer.allocations:
            return True
        try:
            self._placement.set_consumer(instance, replace(consumer, allocations=allocations))
        except exception.Conflict as error:
            if error.fields.get("code") == CONCURRENT_UPDATE:
                return False
            raise
        return True


class AttachWork:
    """The handler of ``attach`` and ``detach`` work; ``wake`` is called when other work waits."""

    def __init__(
        self,
        *,
        db: Database,
        queue: WorkQueue,
        nova: Nova,
        allocation: InstanceAllocation,
        wake: Callable[[], None],
    ) -> None:
        self._db = db
        self._queue = queue
        self._nova = nova
        self._allocation = allocation
        self._wake = wake
        self._steps: dict[Step, Callable[[Record, Plan], Plan | None]] = {
            Step.PREPARE: self._prepare,
            Step.ALLOCATE: self._allocate,
            Step.REBOOT: self._reboot,
            Step.WATCH: self._watch,
            Step.RELEASE: self._release,
            Step.SHRINK: self._shrink,
        }

    def run(self, rows: Sequence[Record]) -> None:
        """Take all steps that are possible now; raises Unavailable to be called again later."""
        (row,) = rows
        plan: Plan | None = wire.load(Plan, row.spec)
        while plan is not None:
            plan = self._steps[plan.step](row, plan)

    def _prepare(self, row: Record, plan: Plan) -> Plan | None:
        """Wait until the host has prepared all units."""
        with self._db.reader() as tx:
            states = arqs_db.states(tx, plan.arqs)
            waits = attachments.is_preparing(tx, plan.arqs)
        if len(states) < len(plan.arqs):
            return self._roll_back(row, plan, _GONE)
        if State.BIND_FAILED in states.values():
            return self._roll_back(row, plan, "its host could not prepare the accelerators")
        if waits:
            self._queue.reschedule([row], None, pause_ms=_POLL_MS)
            return None
        return self._continue(row, replace(plan, step=Step.ALLOCATE))

    def _allocate(self, row: Record, plan: Plan) -> Plan | None:
        """Extend the instance's allocation, check the server again, and list the ARQs."""
        try:
            self._allocation.grow(row.instance_uuid, plan.providers)
            server = self._nova.server(row.instance_uuid)
        except exception.Unavailable as error:
            if row.age_ms < _WAIT_LIMIT_MS:
                raise
            return self._roll_back(row, plan, str(error))
        except (exception.NotFound, exception.Conflict, exception.Invalid) as error:
            return self._roll_back(row, plan, f"Placement refuses it: {error}")
        if server is None or server.node != plan.node:
            return self._roll_back(row, plan, "the server is not there any more")
        if server.status not in ("ACTIVE", _SHUT_OFF) or server.task is not None:
            task = f" ({server.task})" if server.task is not None else ""
            return self._roll_back(row, plan, f"the server has become {server.status}{task}")
        return self._list(row, plan)

    @retried
    def _list(self, row: Record, plan: Plan) -> Plan | None:
        """Mark all ARQs bound and list them; from now on Nova hands them to the guest."""
        next_plan = replace(plan, step=Step.REBOOT)
        with self._queue.checkpoint([row]) as tx:
            arqs = self._lock(tx, row, plan)
            complete = len(arqs) == len(plan.arqs)
            if complete:
                ids = [arq.id for arq in arqs]
                arqs_db.move(tx, Event.FINISH, ids)
                arqs_db.hide(tx, ids, hidden=False)
                entries = [_entry(row, arq, State.BOUND.value) for arq in arqs]
                work.record(tx, self._db.now, row, entries)
                self._store(tx, row, next_plan)
        return next_plan if complete else self._roll_back(row, plan, _GONE)

    def _reboot(self, row: Record, plan: Plan) -> Plan | None:
        """Reboot the server so that its guest gets the listed and loses the hidden accelerators."""
        server = self._nova.server(row.instance_uuid)
        if server is None or server.node != plan.node:
            return self._server_gone(row, plan)
        with self._db.reader() as tx:
            existing = arqs_db.states(tx, plan.arqs)
        if not existing:
            return self._guest_updated(row, plan)
        if server.task is not None:
            return self._wait(row, plan, f"Nova is busy with the server ({server.task})")
        if server.status == _SHUT_OFF:
            return self._guest_updated(row, plan)
        if server.status == _ERROR and not plan.being_removed:
            # A conductor may have rebooted it and ended before it stored that.
            return self._roll_back(row, plan, _FAILED)
        if server.status not in _REBOOTABLE:
            return self._wait(row, plan, f"the server is {server.status}")
        if not self._nova.reboot(row.instance_uuid):
            return self._wait(row, plan, "Nova does not reboot the server")
        watching = replace(
            plan, step=Step.WATCH, reboots=plan.reboots + 1, rebooted_at=int(row.age_ms)
        )
        return self._continue(row, watching)

    def _watch(self, row: Record, plan: Plan) -> Plan | None:
        """Wait for the end of the reboot."""
        server = self._nova.server(row.instance_uuid)
        if server is None or server.node != plan.node:
            return self._server_gone(row, plan)
        if server.task is not None:
            return self._wait(row, plan, f"the reboot does not end ({server.task})")
        if server.status != _ERROR:
            return self._guest_updated(row, plan)
        if not plan.being_removed:
            return self._roll_back(row, plan, _FAILED)
        if plan.reboots < _REBOOTS:
            return self._continue(row, replace(plan, step=Step.REBOOT))
        fault = "the server could not be rebooted; its accelerators are held until it is rebooted"
        plan = self._end_early(row, plan, "; ".join(filter(None, (plan.fault, fault))))
        self._queue.reschedule([row], plan.fault)
        return None

    @retried
    def _release(self, row: Record, plan: Plan) -> Plan | None:
        """Delete the ARQs; their handles are free, or the host cleans them up first."""
        next_plan = replace(plan, step=Step.SHRINK)
        with self._queue.checkpoint([row]) as tx:
            arqs = self._lock(tx, row, plan)
            release.cancel_and_release(tx, self._db.now, arqs, request_key=row.operation_id)
            arqs_db.remove(tx, [arq.id for arq in arqs])
            instances.release(tx, self._db.now, [row.instance_uuid])
            entries = [_entry(row, arq, "detached") for arq in arqs]
            work.record(tx, self._db.now, row, entries)
            self._store(tx, row, next_plan)
        self._wake()
        return next_plan

    def _shrink(self, row: Record, plan: Plan) -> None:
        """Reduce the allocation of a server that is still there."""
        server = self._nova.server(row.instance_uuid)
        if server is not None and server.node == plan.node:
            # Otherwise Nova has removed it, and a new allocation is for later binds.
            self._allocation.shrink(row.instance_uuid, plan.providers)
        self._complete(row, plan)

    def _guest_updated(self, row: Record, plan: Plan) -> Plan | None:
        """Continue after the guest has got or lost the accelerators."""
        if plan.being_removed:
            return self._continue(row, replace(plan, step=Step.RELEASE))
        with self._db.reader() as tx:
            existing = arqs_db.states(tx, plan.arqs)
        if not existing:
            return self._roll_back(row, plan, _GONE)
        self._complete(row, plan)
        return None

    def _server_gone(self, row: Record, plan: Plan) -> Plan | None:
        """Continue without the server: it is deleted, or on another host."""
        if plan.being_removed:
            return self._continue(row, replace(plan, step=Step.RELEASE))
        return self._roll_back(row, plan, "the server is not there any more")

    def _wait(self, row: Record, plan: Plan, reason: str) -> Plan | None:
        """Check again later; roll an attach back that has waited for too long."""
        if not plan.being_removed and row.age_ms - plan.rebooted_at > _WAIT_LIMIT_MS:
            return self._roll_back(row, plan, reason)
        self._queue.reschedule([row], reason, pause_ms=_POLL_MS)
        return None

    @retried
    def _roll_back(self, row: Record, plan: Plan, fault: str) -> Plan:
        """Roll an attach back; a guest that may have got accelerators is rebooted first."""
        LOG.warning("Attach to instance %s is rolled back: %s", row.instance_uuid, fault)
        with self._queue.checkpoint([row]) as tx:
            arqs = self._lock(tx, row, plan)
            listed = [arq.id for arq in arqs if not arq.hidden]
            faults = [arq.fault for arq in arqs if arq.fault is not None]
            arqs_db.hide(tx, listed, hidden=True)
            plan = replace(
                plan,
                step=Step.REBOOT if listed else Step.RELEASE,
                being_removed=True,
                fault=": ".join([fault, *faults]),
                reboots=_REBOOTS - 1,
            )
            self._store(tx, row, plan)
        return plan

    @retried
    def _continue(self, row: Record, plan: Plan) -> Plan:
        with self._queue.checkpoint([row]) as tx:
            self._store(tx, row, plan)
        return plan

    def _store(self, tx: sa.Connection, row: Record, plan: Plan) -> None:
        operations.add_step(tx, self._db.now, row.operation_id, plan.step.value)
        work.set_spec(tx, row, wire.dump(plan))

    def _lock(self, tx: sa.Connection, row: Record, plan: Plan) -> Sequence[Record]:
        """Return the ARQs that the instance still has, locked after the instance."""
        instances.lock(tx, [row.instance_uuid])
        return arqs_db.lock(tx, Arq.uuid.in_(plan.arqs), Arq.instance_uuid == row.instance_uuid)

    @retried
    def _end_early(self, row: Record, plan: Plan, fault: str) -> Plan:
        """End the operation with a failure; the rest of the work may take long."""
        if plan.reported:
            return plan
        ended = replace(plan, fault=fault, reported=True)
        with self._queue.checkpoint([row]) as tx:
            self._end_operation(tx, row, ended)
            work.set_spec(tx, row, wire.dump(ended))
        return ended

    @retried
    def _complete(self, row: Record, plan: Plan) -> None:
        with self._queue.complete([row]) as tx:
            if not plan.reported:
                self._end_operation(tx, row, plan)

    def _end_operation(self, tx: sa.Connection, row: Record, plan: Plan) -> None:
        action = "attached" if row.kind == WorkKind.ATTACH else "detached"
        entry = events.Entry(
            "instance",
            row.instance_uuid,
            action if plan.fault is None else f"not {action}",
            instance_uuid=row.instance_uuid,
            hostname=plan.node,
            reason=plan.fault,
        )
        work.record(tx, self._db.now, row, [entry])
        state = ResultState.SUCCEEDED if plan.fault is None else ResultState.FAILED
        result = HostResult(plan.node, state, {"arqs": list(plan.arqs)}, plan.fault)
        operations.end(tx, self._db.now, row.operation_id, result)


def _entry(row: Record, arq: Record, action: str) -> events.Entry:
    return events.Entry(
        "arq",
        arq.uuid,
        action,
        instance_uuid=row.instance_uuid,
        hostname=arq.hostname,
        device_uuid=arq.device_uuid,
    )
