# SPDX-License-Identifier: Apache-2.0
"""The work of attach and detach, and the instance's allocation in Placement.

The allocation follows from the ARQs of the instance, so that a repetition changes nothing.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import sqlalchemy as sa

from cyborg import exception
from cyborg.clients.allocations import Allocations, Consumer
from cyborg.clients.nova import Nova, Server
from cyborg.clients.placement import CONCURRENT_UPDATE
from cyborg.conductor.arqs import release
from cyborg.conductor.tasks.queue import WorkQueue
from cyborg.db import arqs as arq_moves
from cyborg.db import attaching, events, instances, operations, work
from cyborg.db.base import Record
from cyborg.db.engine import Database, retried
from cyborg.db.models import Arq
from cyborg.model import wire
from cyborg.model.arq import Event, State
from cyborg.model.attaching import Plan, Step
from cyborg.model.operation import HostResult, ResultState
from cyborg.model.work import WorkKind

#: How often an allocation that somebody else has just changed is read again.
_LOOKS = 5

_Units = dict[str, dict[str, int]]


class InstanceAllocation:
    """Writes allocations of instances, always with the generation that was read."""

    def __init__(self, *, db: Database, placement: Allocations) -> None:
        self._db = db
        self._placement = placement

    def grow(self, instance: str, providers: Mapping[str, str]) -> None:
        """Have an instance hold at least the units that its ARQs bind of these providers.

        ``providers`` maps them to their resource classes. Raises exception.NotFound when it has
        no allocation at all, Conflict when there is no room, Invalid when a provider is gone, and
        Unavailable.
        """
        for _ in range(_LOOKS):
            found = self._placement.consumer(instance)
            if found is None:
                raise exception.NotFound(noun="Allocation of instance", key=instance)
            if self._write(instance, found, self._grown(instance, found, providers)):
                return
        raise exception.Unavailable(peer="Placement", reason="the allocation never keeps still")

    def shrink(self, instance: str, providers: Mapping[str, str]) -> None:
        """Have it hold no more of these providers than its ARQs bind; none at all is fine.

        Raises Conflict when Placement refuses, and Unavailable.
        """
        for _ in range(_LOOKS):
            found = self._placement.consumer(instance)
            if found is None:
                return
            if self._write(instance, found, self._shrunk(instance, found, providers)):
                return
        raise exception.Unavailable(peer="Placement", reason="the allocation never keeps still")

    def _grown(self, instance: str, found: Consumer, providers: Mapping[str, str]) -> _Units:
        wanted = self._units(instance)
        units: _Units = {rp: dict(one) for rp, one in found.allocations.items()}
        for rp, resource_class in providers.items():
            held = units.setdefault(rp, {})
            held[resource_class] = max(held.get(resource_class, 0), wanted.get(rp, 0))
        return _some(units)

    def _shrunk(self, instance: str, found: Consumer, providers: Mapping[str, str]) -> _Units:
        wanted = self._units(instance)
        units: _Units = {rp: dict(one) for rp, one in found.allocations.items()}
        for rp, resource_class in providers.items():
            if resource_class in units.get(rp, {}):
                units[rp][resource_class] = min(units[rp][resource_class], wanted.get(rp, 0))
        return _some(units)

    def _units(self, instance: str) -> Mapping[str, int]:
        with self._db.reader() as tx:
            return attaching.units(tx, instance)

    def _write(self, instance: str, found: Consumer, units: _Units) -> bool:
        """False when somebody else was faster."""
        if units == found.allocations:
            return True
        try:
            self._placement.set_consumer(instance, replace(found, allocations=units))
        except exception.Conflict as error:
            if error.fields.get("code") == CONCURRENT_UPDATE:
                return False
            raise
        return True


def _some(units: _Units) -> _Units:
    """Without what is zero, which Placement would refuse."""
    cleaned = {rp: {name: n for name, n in one.items() if n} for rp, one in units.items()}
    return {rp: one for rp, one in cleaned.items() if one}


LOG = logging.getLogger(__name__)

#: How soon the host or Nova, at work, is looked at again, in milliseconds.
_LOOK_AGAIN_MS = 1000
#: How long an attach waits for a Nova or Placement that does not answer, or for another task of
#: Nova's, before it is taken back; and how long a reboot may take.
_PATIENCE_MS = 600_000
#: How often a server is rebooted on the way in and out; after that it is its operator's.
_REBOOTS = 2
#: A server in these needs no reboot to take on or give back what is listed.
_AT_REST = "SHUTOFF"
_BROKEN = "ERROR"
_REBOOTABLE = frozenset({"ACTIVE", _BROKEN})
_FAILED = "the reboot failed"
_GONE = "its accelerators were deleted together with those of the instance"


class AttachWork:
    """The handler of ``attach`` and ``detach`` work; ``wake`` is called when other work waits."""

    def __init__(
        self,
        *,
        db: Database,
        queue: WorkQueue,
        nova: Nova,
        allotment: InstanceAllocation,
        wake: Callable[[], None],
    ) -> None:
        self._db = db
        self._queue = queue
        self._nova = nova
        self._allotment = allotment
        self._wake = wake
        self._steps: dict[Step, Callable[[Record, Plan], Plan | None]] = {
            Step.PREPARE: self._prepare,
            Step.ALLOCATE: self._allocate,
            Step.REBOOT: self._reboot,
            Step.WATCH: self._watch,
            Step.RELEASE: self._release,
            Step.SHRINK: self._shrink,
        }

    def go_on(self, rows: Sequence[Record]) -> None:
        """Go as far as it goes now; raises Unavailable to be called again later."""
        (row,) = rows
        plan: Plan | None = wire.load(Plan, row.spec)
        while plan is not None:
            plan = self._steps[plan.step](row, plan)

    def _prepare(self, row: Record, plan: Plan) -> Plan | None:
        """Wait until the host is done with all of them."""
        with self._db.reader() as tx:
            states = arq_moves.states(tx, plan.arqs)
            waits = attaching.being_prepared(tx, plan.arqs)
        if len(states) < len(plan.arqs):
            return self._turn_back(row, plan, _GONE)
        if State.BIND_FAILED in states.values():
            return self._turn_back(row, plan, "its host could not prepare it")
        if waits:
            self._queue.reschedule([row], None, pause_ms=_LOOK_AGAIN_MS)
            return None
        return self._note(row, replace(plan, step=Step.ALLOCATE))

    def _allocate(self, row: Record, plan: Plan) -> Plan | None:
        """Extend the instance's allocation, look at the server again, and list the ARQs."""
        try:
            self._allotment.grow(row.instance_uuid, plan.providers)
            server = self._nova.server(row.instance_uuid)
        except exception.Unavailable as error:
            if row.age_ms < _PATIENCE_MS:
                raise
            return self._turn_back(row, plan, str(error))
        except (exception.NotFound, exception.Conflict, exception.Invalid) as error:
            return self._turn_back(row, plan, f"Placement refuses it: {error}")
        if server is None or server.node != plan.node:
            return self._turn_back(row, plan, "the server is not there any more")
        if server.status not in ("ACTIVE", _AT_REST) or server.task is not None:
            return self._turn_back(row, plan, f"the server has become {_words(server)}")
        return self._list(row, plan)

    @retried
    def _list(self, row: Record, plan: Plan) -> Plan | None:
        """One transaction lists all of them, bound; from now on Nova hands them to the guest."""
        going_on = replace(plan, step=Step.REBOOT)
        with self._queue.checkpoint([row]) as tx:
            arqs = self._lock(tx, row, plan)
            complete = len(arqs) == len(plan.arqs)
            if complete:
                ids = [one.id for one in arqs]
                arq_moves.move(tx, Event.FINISH, ids)
                arq_moves.hide(tx, ids, hidden=False)
                entries = [_entry(row, one, State.BOUND.value) for one in arqs]
                self._record(tx, row, entries)
                self._reach(tx, row, going_on)
        return going_on if complete else self._turn_back(row, plan, _GONE)

    def _reboot(self, row: Record, plan: Plan) -> Plan | None:
        """Have the guest take on, or give back, what has been listed or hidden."""
        server = self._nova.server(row.instance_uuid)
        if server is None or server.node != plan.node:
            return self._without_guest(row, plan)
        if not self._is_wanted(plan):
            return self._next(row, plan)
        if server.task is not None:
            return self._wait(row, plan, f"Nova is busy with the server ({server.task})")
        if server.status == _AT_REST:
            return self._next(row, plan)
        if server.status == _BROKEN and not plan.leaving:
            # Maybe by a reboot that a conductor asked for which did not live to write that down.
            return self._turn_back(row, plan, _FAILED)
        if server.status not in _REBOOTABLE:
            return self._wait(row, plan, f"the server is {server.status}")
        if not self._nova.reboot(row.instance_uuid):
            return self._wait(row, plan, "Nova does not reboot the server")
        watching = replace(
            plan, step=Step.WATCH, reboots=plan.reboots + 1, rebooted_at=int(row.age_ms)
        )
        return self._note(row, watching)

    def _watch(self, row: Record, plan: Plan) -> Plan | None:
        """See the reboot finished."""
        server = self._nova.server(row.instance_uuid)
        if server is None or server.node != plan.node:
            return self._without_guest(row, plan)
        if server.task is not None:
            return self._wait(row, plan, f"the reboot does not end ({server.task})")
        if server.status != _BROKEN:
            return self._next(row, plan)
        if not plan.leaving:
            return self._turn_back(row, plan, _FAILED)
        if plan.reboots < _REBOOTS:
            return self._note(row, replace(plan, step=Step.REBOOT))
        fault = "the server could not be rebooted; its accelerators are held until it was"
        plan = self._tell(row, plan, "; ".join(filter(None, (plan.fault, fault))))
        self._queue.reschedule([row], plan.fault)
        return None

    @retried
    def _release(self, row: Record, plan: Plan) -> Plan | None:
        """Delete the ARQs; their handles are free, or the host's to clean up."""
        going_on = replace(plan, step=Step.SHRINK)
        with self._queue.checkpoint([row]) as tx:
            arqs = self._lock(tx, row, plan)
            release.cancel_and_release(tx, self._db.now, arqs, request_key=row.operation_id)
            arq_moves.delete(tx, [one.id for one in arqs])
            instances.release(tx, self._db.now, [row.instance_uuid])
            entries = [_entry(row, one, "detached") for one in arqs]
            self._record(tx, row, entries)
            self._reach(tx, row, going_on)
        self._wake()
        return going_on

    def _shrink(self, row: Record, plan: Plan) -> None:
        """Give back in Placement what a server that is still there had of them."""
        server = self._nova.server(row.instance_uuid)
        if server is not None and server.node == plan.node:
            # Else Nova has cleaned up, and what is there by now is for binds to come.
            self._allotment.shrink(row.instance_uuid, plan.providers)
        self._end(row, plan)

    def _next(self, row: Record, plan: Plan) -> Plan | None:
        """The guest is as it should be."""
        if plan.leaving:
            return self._note(row, replace(plan, step=Step.RELEASE))
        if not self._is_wanted(plan):
            return self._turn_back(row, plan, _GONE)
        self._end(row, plan)
        return None

    def _without_guest(self, row: Record, plan: Plan) -> Plan | None:
        """The server is gone or elsewhere, or its ARQs are: no guest here has them."""
        if plan.leaving:
            return self._note(row, replace(plan, step=Step.RELEASE))
        return self._turn_back(row, plan, "the server is not there any more")

    def _wait(self, row: Record, plan: Plan, reason: str) -> Plan | None:
        """Look again later; what is not there yet is not waited for without end."""
        if not plan.leaving and row.age_ms - plan.rebooted_at > _PATIENCE_MS:
            return self._turn_back(row, plan, reason)
        self._queue.reschedule([row], reason, pause_ms=_LOOK_AGAIN_MS)
        return None

    @retried
    def _turn_back(self, row: Record, plan: Plan, fault: str) -> Plan:
        """Take an attach back; what a guest may have got is rebooted away first."""
        LOG.warning("Attaching to instance %s is taken back: %s", row.instance_uuid, fault)
        with self._queue.checkpoint([row]) as tx:
            arqs = self._lock(tx, row, plan)
            listed = [one.id for one in arqs if not one.hidden]
            said = [one.fault for one in arqs if one.fault is not None]
            arq_moves.hide(tx, listed, hidden=True)
            back = replace(
                plan,
                step=Step.REBOOT if listed else Step.RELEASE,
                leaving=True,
                fault=": ".join([fault, *said]),
                reboots=_REBOOTS - 1,
            )
            self._reach(tx, row, back)
        return back

    def _is_wanted(self, plan: Plan) -> bool:
        """Whether any of its ARQs are left."""
        with self._db.reader() as tx:
            return bool(arq_moves.states(tx, plan.arqs))

    @retried
    def _note(self, row: Record, plan: Plan) -> Plan:
        with self._queue.checkpoint([row]) as tx:
            self._reach(tx, row, plan)
        return plan

    def _reach(self, tx: sa.Connection, row: Record, plan: Plan) -> None:
        operations.reach(tx, self._db.now, row.operation_id, plan.step.value)
        work.note(tx, row, wire.dump(plan))

    def _lock(self, tx: sa.Connection, row: Record, plan: Plan) -> Sequence[Record]:
        """The ARQs that are still the instance's, locked after it."""
        instances.lock(tx, [row.instance_uuid])
        return arq_moves.lock(tx, Arq.uuid.in_(plan.arqs), Arq.instance_uuid == row.instance_uuid)

    @retried
    def _tell(self, row: Record, plan: Plan, fault: str) -> Plan:
        """Report the failure now, for what is left may take long."""
        if plan.told:
            return plan
        told = replace(plan, fault=fault, told=True)
        with self._queue.checkpoint([row]) as tx:
            self._conclude(tx, row, told)
            work.note(tx, row, wire.dump(told))
        return told

    @retried
    def _end(self, row: Record, plan: Plan) -> None:
        with self._queue.complete([row]) as tx:
            if not plan.told:
                self._conclude(tx, row, plan)

    def _record(self, tx: sa.Connection, row: Record, entries: Sequence[events.Entry]) -> None:
        """Append events with the operation and the ids of the request that ordered it."""
        events.record(
            tx,
            self._db.now,
            entries,
            operation=row.operation_id,
            ordered_by=work.origin(row),
        )

    def _conclude(self, tx: sa.Connection, row: Record, plan: Plan) -> None:
        """Write down how it ended."""
        done = "attached" if row.kind == WorkKind.ATTACH else "detached"
        entry = events.Entry(
            "instance",
            row.instance_uuid,
            done if plan.fault is None else f"not {done}",
            instance_uuid=row.instance_uuid,
            hostname=plan.node,
            reason=plan.fault,
        )
        self._record(tx, row, [entry])
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


def _words(server: Server) -> str:
    return server.status if server.task is None else f"{server.status} ({server.task})"
