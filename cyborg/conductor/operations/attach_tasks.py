# SPDX-License-Identifier: Apache-2.0
"""Carry attach and detach out: the work of an instance, and its allocation in Placement.

The allocation is computed from the ARQs of the instance, so that a repetition changes nothing.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from cyborg import exception
from cyborg.clients.nova import Nova, Server
from cyborg.clients.placement import CONCURRENT_UPDATE, Allocations
from cyborg.conductor.arqs import release
from cyborg.conductor.tasks.queue import WorkQueue
from cyborg.db import arqs as arqs_db
from cyborg.db import attachments, events, instances, operations, work
from cyborg.db.arqs import LockedArq
from cyborg.db.engine import Database, retried
from cyborg.db.models import Arq
from cyborg.db.transaction import Transaction
from cyborg.db.work import ClaimedWork
from cyborg.model import wire
from cyborg.model.arq import Event as ArqEvent
from cyborg.model.arq import State
from cyborg.model.attachment import NEXT, REMOVAL, Event, Plan, Step
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


@dataclass(frozen=True, kw_only=True)
class InstanceAllocation:
    """Write allocations of instances, always with the generation that was read."""

    db: Database
    placement: Allocations

    def grow(self, instance: str, providers: Mapping[str, str]) -> None:
        """Allocate to an instance at least the units that its ARQs bind of these providers.

        ``providers`` maps their uuids to their resource classes. Raises exception.NotFound when the
        instance has no allocation, Conflict when a provider has no free units, Invalid when a
        provider is gone, and Unavailable.
        """
        if not self._change(instance, providers, max):
            raise exception.NotFound(noun="Allocation of instance", key=instance)

    def shrink(self, instance: str, providers: Mapping[str, str]) -> None:
        """Allocate to an instance at most the units that its ARQs bind of these providers.

        An instance without an allocation is left alone. Raises Conflict when Placement refuses the
        change, and Unavailable.
        """
        self._change(instance, providers, min)

    def _change(
        self, instance: str, providers: Mapping[str, str], choose: Callable[[int, int], int]
    ) -> bool:
        """Write the number that ``choose`` returns for the allocated and the bound units.

        Returns False when the instance has no allocation.
        """
        for _ in range(_ATTEMPTS):
            consumer = self.placement.consumer(instance)
            if consumer is None:
                return False
            with self.db.reader() as tx:
                bound = attachments.units(tx, instance)
            units = {uuid: dict(classes) for uuid, classes in consumer.allocations.items()}
            for uuid, resource_class in providers.items():
                classes = units.setdefault(uuid, {})
                allocated = classes.get(resource_class, 0)
                classes[resource_class] = choose(allocated, bound.get(uuid, 0))
            # Placement refuses zeros.
            counted = {
                uuid: {name: count for name, count in classes.items() if count}
                for uuid, classes in units.items()
            }
            allocations = {uuid: classes for uuid, classes in counted.items() if classes}
            try:
                if allocations != consumer.allocations:
                    changed = replace(consumer, allocations=allocations)
                    self.placement.set_consumer(instance, changed)
                return True
            except exception.Conflict as error:
                if error.fields.get("code") != CONCURRENT_UPDATE:
                    raise
        raise exception.Unavailable(peer="Placement", reason="the allocation keeps changing")


class Result(NamedTuple):
    """The outcome of a step and its reason; a step that waits is taken again after the pause."""

    event: Event
    reason: str | None = None
    pause_ms: int = _POLL_MS


_SERVER_GONE = Result(Event.SERVER_GONE, "the server is not there any more")


def _instance_of(row: ClaimedWork) -> str:
    """Return the instance of work to attach or detach, which always has one."""
    assert row.instance_uuid is not None  # noqa: S101 - for mypy
    return row.instance_uuid


@dataclass(frozen=True, kw_only=True)
class AttachWork:
    """The handler of ``attach`` and ``detach`` work; ``wake`` is called when other work waits."""

    queue: WorkQueue
    nova: Nova
    allocation: InstanceAllocation
    wake: Callable[[], None]

    def run(self, rows: Sequence[ClaimedWork]) -> None:
        """Take all steps that are possible now; raises Unavailable to be called again later."""
        (row,) = rows
        steps: dict[Step, Callable[[ClaimedWork, Plan], Result]] = {
            Step.PREPARE: self._prepare,
            Step.ALLOCATE: self._allocate,
            Step.REBOOT: self._reboot,
            Step.WATCH: self._watch,
            Step.RELEASE: lambda row, plan: Result(Event.DONE),
            Step.SHRINK: self._shrink,
        }
        plan: Plan | None = wire.load(Plan, row.spec)
        while plan is not None:
            plan = self._follow(row, plan, steps[plan.step](row, plan))

    def _follow(self, row: ClaimedWork, plan: Plan, result: Result) -> Plan | None:
        """Do what follows the result of a step; return None when nothing more can be done now."""
        late = not plan.being_removed and row.age_ms - plan.rebooted_at > _WAIT_LIMIT_MS
        # Without a reason it is a preparation, which has its own deadline.
        if result.event is Event.WAITS and not (late and result.reason):
            self.queue.reschedule([row], result.reason, pause_ms=result.pause_ms)
            return None
        if result.event is Event.DONE:
            step = NEXT[plan.step]
        elif plan.being_removed:
            step = REMOVAL[result.event]
        elif result.event is not Event.GUEST_UPDATED or not self._states(plan):
            return self._roll_back(row, plan, result.reason or _GONE)
        else:
            step = None
        if step is not None:
            return self._enter(row, plan, step)
        self._complete(row, plan)
        return None

    def _prepare(self, row: ClaimedWork, plan: Plan) -> Result:
        """Wait until the host has prepared all units."""
        with self.queue.db.reader() as tx:
            states = arqs_db.states(tx, plan.arqs)
            waits = attachments.is_preparing(tx, plan.arqs)
        if len(states) < len(plan.arqs):
            return Result(Event.FAILED, _GONE)
        if State.BIND_FAILED in states.values():
            return Result(Event.FAILED, "its host could not prepare the accelerators")
        return Result(Event.WAITS if waits else Event.DONE)

    def _allocate(self, row: ClaimedWork, plan: Plan) -> Result:
        """Extend the instance's allocation, and check the server again."""
        try:
            self.allocation.grow(_instance_of(row), plan.providers)
            server = self._server(row, plan)
        except exception.Unavailable as error:
            if row.age_ms < _WAIT_LIMIT_MS:
                raise
            return Result(Event.FAILED, str(error))
        except (exception.NotFound, exception.Conflict, exception.Invalid) as error:
            return Result(Event.FAILED, f"Placement refuses it: {error}")
        if server is None:
            return _SERVER_GONE
        if server.status not in ("ACTIVE", _SHUT_OFF) or server.task is not None:
            task = f" ({server.task})" if server.task is not None else ""
            return Result(Event.FAILED, f"the server has become {server.status}{task}")
        return Result(Event.DONE)

    def _list(self, tx: Transaction, row: ClaimedWork, plan: Plan) -> str | None:
        """Mark all ARQs bound and list them; from now on Nova hands them to the guest."""
        arqs = self._lock(tx, row, plan)
        if len(arqs) < len(plan.arqs):
            return _GONE
        ids = [arq.id for arq in arqs]
        arqs_db.move(tx, ArqEvent.FINISH, ids)
        arqs_db.hide(tx, ids, hidden=False)
        work.record(tx, row, [release.arq_entry(arq, State.BOUND.value) for arq in arqs])
        return None

    def _reboot(self, row: ClaimedWork, plan: Plan) -> Result:
        """Reboot the server so that its guest gets the listed and loses the hidden accelerators."""
        server = self._server(row, plan)
        if server is None:
            return _SERVER_GONE
        if not self._states(plan):
            return Result(Event.GUEST_UPDATED)
        if server.task is not None:
            return Result(Event.WAITS, f"Nova is busy with the server ({server.task})")
        if server.status == _SHUT_OFF:
            return Result(Event.GUEST_UPDATED)
        if server.status == _ERROR and not plan.being_removed:
            # A conductor may have rebooted it and ended before it stored that.
            return Result(Event.FAILED, _FAILED)
        if server.status not in _REBOOTABLE:
            return Result(Event.WAITS, f"the server is {server.status}")
        if not self.nova.reboot(_instance_of(row)):
            return Result(Event.WAITS, "Nova does not reboot the server")
        return Result(Event.DONE)

    def _watch(self, row: ClaimedWork, plan: Plan) -> Result:
        """Wait for the end of the reboot."""
        server = self._server(row, plan)
        if server is None:
            return _SERVER_GONE
        if server.task is not None:
            return Result(Event.WAITS, f"the reboot does not end ({server.task})")
        if server.status != _ERROR:
            return Result(Event.GUEST_UPDATED)
        if not plan.being_removed or plan.reboots < _REBOOTS:
            return Result(Event.FAILED, _FAILED)
        fault = "the server could not be rebooted; its accelerators are held until it is rebooted"
        plan = self._end_early(row, plan, "; ".join(filter(None, (plan.fault, fault))))
        return Result(Event.WAITS, plan.fault, pause_ms=0)

    def _release(self, tx: Transaction, row: ClaimedWork, plan: Plan) -> None:
        """Delete the ARQs; their handles are free, or the host cleans them up first."""
        arqs = self._lock(tx, row, plan)
        release.cancel_and_release(tx, arqs, request_key=row.operation_id)
        arqs_db.remove(tx, [arq.id for arq in arqs])
        instances.release(tx, [_instance_of(row)])
        work.record(tx, row, [release.arq_entry(arq, "detached") for arq in arqs])

    def _shrink(self, row: ClaimedWork, plan: Plan) -> Result:
        """Reduce the allocation of a server that is still there."""
        if self._server(row, plan) is not None:
            # Otherwise Nova has removed it, and a new allocation is for later binds.
            self.allocation.shrink(_instance_of(row), plan.providers)
        return Result(Event.DONE)

    def _server(self, row: ClaimedWork, plan: Plan) -> Server | None:
        """Return the server of the instance; None when it is deleted, or on another host."""
        server = self.nova.server(_instance_of(row))
        return server if server is not None and server.node == plan.node else None

    def _states(self, plan: Plan) -> dict[str, str]:
        with self.queue.db.reader() as tx:
            return arqs_db.states(tx, plan.arqs)

    @retried
    def _roll_back(self, row: ClaimedWork, plan: Plan, fault: str) -> Plan:
        """Roll an attach back; a guest that may have got accelerators is rebooted first."""
        LOG.warning("Attach to instance %s is rolled back: %s", _instance_of(row), fault)
        with self.queue.checkpoint([row]) as tx:
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
    def _enter(self, row: ClaimedWork, plan: Plan, step: Step) -> Plan:
        """Store the next step, with the changes of the current one."""
        entered = replace(plan, step=step)
        if step is Step.WATCH:
            entered = replace(entered, reboots=plan.reboots + 1, rebooted_at=int(row.age_ms))
        fault = None
        with self.queue.checkpoint([row]) as tx:
            if plan.step is Step.ALLOCATE:
                fault = self._list(tx, row, plan)
            elif plan.step is Step.RELEASE:
                self._release(tx, row, plan)
            if fault is None:
                self._store(tx, row, entered)
        if fault is not None:
            return self._roll_back(row, plan, fault)
        if plan.step is Step.RELEASE:
            self.wake()
        return entered

    def _store(self, tx: Transaction, row: ClaimedWork, plan: Plan) -> None:
        operations.add_step(tx, row.operation_id, plan.step.value)
        work.set_spec(tx, row, wire.dump(plan))

    def _lock(self, tx: Transaction, row: ClaimedWork, plan: Plan) -> Sequence[LockedArq]:
        """Return the ARQs that the instance still has, locked after the instance."""
        instances.lock(tx, [_instance_of(row)])
        return arqs_db.lock(tx, Arq.uuid.in_(plan.arqs), Arq.instance_uuid == _instance_of(row))

    @retried
    def _end_early(self, row: ClaimedWork, plan: Plan, fault: str) -> Plan:
        """End the operation with a failure; the rest of the work may take long."""
        if plan.reported:
            return plan
        ended = replace(plan, fault=fault, reported=True)
        with self.queue.checkpoint([row]) as tx:
            self._end_operation(tx, row, ended)
            work.set_spec(tx, row, wire.dump(ended))
        return ended

    @retried
    def _complete(self, row: ClaimedWork, plan: Plan) -> None:
        with self.queue.complete([row]) as tx:
            if not plan.reported:
                self._end_operation(tx, row, plan)

    def _end_operation(self, tx: Transaction, row: ClaimedWork, plan: Plan) -> None:
        action = "attached" if row.kind == WorkKind.ATTACH else "detached"
        entry = events.Entry(
            "instance",
            _instance_of(row),
            action if plan.fault is None else f"not {action}",
            instance_uuid=_instance_of(row),
            hostname=plan.node,
            reason=plan.fault,
        )
        work.record(tx, row, [entry])
        state = ResultState.SUCCEEDED if plan.fault is None else ResultState.FAILED
        result = HostResult(plan.node, state, {"arqs": list(plan.arqs)}, plan.fault)
        operations.end(tx, row.operation_id, result)
