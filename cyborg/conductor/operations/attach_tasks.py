# SPDX-License-Identifier: Apache-2.0
"""The workflows of attach and detach: the work of an instance, and its allocation in Placement.

The allocation is computed from the ARQs of the instance, so that a repetition changes nothing.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final

from cyborg import exception
from cyborg.clients.nova import Server
from cyborg.clients.placement import CONCURRENT_UPDATE
from cyborg.conductor.arqs import release
from cyborg.conductor.context import Conductor
from cyborg.conductor.tasks.queue import Handler
from cyborg.conductor.tasks.workflow import Run, Step, To, Waiting, Workflow, try_again
from cyborg.db import arqs as arqs_db
from cyborg.db import attachments, events, instances, operations, work
from cyborg.db.arqs import LockedArq
from cyborg.db.models import Arq
from cyborg.db.transaction import Transaction
from cyborg.db.work import ClaimedWork
from cyborg.model import wire
from cyborg.model.arq import Event as ArqEvent
from cyborg.model.arq import State
from cyborg.model.attachment import Plan
from cyborg.model.operation import HostResult, ResultState
from cyborg.model.work import Outcome, WorkKind

LOG = logging.getLogger(__name__)

#: How often an allocation is read again that another client has just changed.
_ATTEMPTS = 5
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
_SERVER_GONE = "the server is not there any more"
_GONE = "its accelerator requests were deleted together with those of the instance"


class AttachStep(StrEnum):
    """The steps of an attach. Each step may be repeated without harm."""

    PREPARE = "prepare"
    ALLOCATE = "allocate"
    REBOOT = "reboot_to_attach"
    WATCH = "watch_attach"


class DetachStep(StrEnum):
    """The steps of a detach, and of an attach that is rolled back.

    The rollback begins with RELEASE if no guest can have seen the accelerators.
    """

    REBOOT = "reboot_to_detach"
    WATCH = "watch_detach"
    RELEASE = "release"
    SHRINK = "shrink"


def grow(ctx: Conductor, instance: str, providers: Mapping[str, str]) -> None:
    """Allocate to an instance at least the units that its ARQs bind of these providers.

    ``providers`` maps their uuids to their resource classes. Raises exception.NotFound when the
    instance has no allocation, Conflict when a provider has no free units, Invalid when a
    provider is gone, and Unavailable.
    """
    if not _change(ctx, instance, providers, max):
        raise exception.NotFound(noun="Allocation of instance", key=instance)


def shrink(ctx: Conductor, instance: str, providers: Mapping[str, str]) -> None:
    """Allocate to an instance at most the units that its ARQs bind of these providers.

    An instance without an allocation is left alone. Raises Conflict when Placement refuses the
    change, and Unavailable.
    """
    _change(ctx, instance, providers, min)


def _change(
    ctx: Conductor, instance: str, providers: Mapping[str, str], choose: Callable[[int, int], int]
) -> bool:
    """Write the number that ``choose`` returns for the allocated and the bound units.

    Returns False when the instance has no allocation.
    """
    for _ in range(_ATTEMPTS):
        consumer = ctx.placement.consumer(instance)
        if consumer is None:
            return False
        with ctx.db.reader() as tx:
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
                ctx.placement.set_consumer(instance, changed)
            return True
        except exception.Conflict as error:
            if error.fields.get("code") != CONCURRENT_UPDATE:
                raise
    raise exception.Unavailable(peer="Placement", reason="the allocation keeps changing")


def _prepare(ctx: Conductor, run: Run[None]) -> Outcome | Waiting:
    """Wait until the host has prepared all units."""
    plan = _plan(run)
    with ctx.db.reader() as tx:
        states = arqs_db.states(tx, plan.arqs)
        waits = attachments.is_preparing(tx, plan.arqs)
    if len(states) < len(plan.arqs):
        return Outcome(run.row.uuid, fault=_GONE)
    if State.BIND_FAILED in states.values():
        return Outcome(run.row.uuid, fault="its host could not prepare the accelerators")
    return Waiting() if waits else Outcome(run.row.uuid)


def _allocate(ctx: Conductor, run: Run[None]) -> Outcome:
    """Extend the instance's allocation, and check the server again."""
    row, plan = run.row, _plan(run)
    try:
        grow(ctx, _instance_of(row), plan.providers)
        server = _server(ctx, run, plan)
    except exception.Unavailable as error:
        if row.age_ms < _WAIT_LIMIT_MS:
            raise
        return Outcome(row.uuid, fault=str(error))
    except (exception.NotFound, exception.Conflict, exception.Invalid) as error:
        return Outcome(row.uuid, fault=f"Placement refuses it: {error}")
    if server is None:
        return Outcome(row.uuid, fault=_SERVER_GONE)
    if server.status not in ("ACTIVE", _SHUT_OFF) or server.task is not None:
        task = f" ({server.task})" if server.task is not None else ""
        return Outcome(row.uuid, fault=f"the server has become {server.status}{task}")
    return Outcome(row.uuid)


def _list(ctx: Conductor, run: Run[None], tx: Transaction, outcome: Outcome) -> Outcome | None:
    """Mark all ARQs bound and list them; from now on Nova hands them to the guest."""
    plan = _plan(run)
    arqs = _lock(tx, run.row, plan)
    if len(arqs) < len(plan.arqs):
        return replace(outcome, fault=_GONE)
    ids = [arq.id for arq in arqs]
    arqs_db.move(tx, ArqEvent.FINISH, ids)
    arqs_db.hide(tx, ids, hidden=False)
    work.record(tx, run.row, [release.arq_entry(arq, State.BOUND.value) for arq in arqs])
    return None


def _reboot_to_attach(ctx: Conductor, run: Run[None]) -> Outcome | Waiting | To:
    """Have the guest get the listed accelerators; the rollback follows after too long a time."""
    row, plan = run.row, _plan(run)
    server = _server(ctx, run, plan)
    if server is None:
        return Outcome(row.uuid, fault=_SERVER_GONE)
    if not _states(ctx, plan):
        return Outcome(row.uuid, fault=_GONE)
    if server.task is None and server.status == _ERROR:
        # A conductor may have rebooted it and ended before it stored that.
        return Outcome(row.uuid, fault=_FAILED)
    return _in_time(run, plan, _reboot(ctx, run, server, AttachStep.WATCH))


def _watch_attach(ctx: Conductor, run: Run[None]) -> Outcome | Waiting | To:
    """Wait for the end of the reboot; the rollback follows after too long a time."""
    plan = _plan(run)
    server = _server(ctx, run, plan)
    if server is None:
        return Outcome(run.row.uuid, fault=_SERVER_GONE)
    return _in_time(run, plan, _watch(run, server))


def _end_attach(
    ctx: Conductor, run: Run[None], tx: Transaction, outcome: Outcome
) -> Outcome | None:
    """End the operation, unless its ARQs were deleted in the meantime."""
    plan = _plan(run)
    if not arqs_db.states(tx, plan.arqs):
        return replace(outcome, fault=_GONE)
    _end_operation(tx, run.row, plan)
    return None


def _roll_back(ctx: Conductor, run: Run[None], tx: Transaction, outcome: Outcome) -> To:
    """Roll an attach back; a guest that may have got accelerators is rebooted first."""
    row, plan = run.row, _plan(run)
    arqs = _lock(tx, row, plan)
    listed = [arq.id for arq in arqs if not arq.hidden]
    faults = [arq.fault for arq in arqs if arq.fault is not None]
    arqs_db.hide(tx, listed, hidden=True)
    tx.then(
        LOG.warning,
        "Attach to instance %s is rolled back: %s",
        *(_instance_of(row), outcome.fault),
    )
    plan = replace(plan, fault=": ".join([outcome.fault or "", *faults]), reboots=_REBOOTS - 1)
    return To(DetachStep.REBOOT if listed else DetachStep.RELEASE, wire.dump(plan))


def _reboot_to_detach(ctx: Conductor, run: Run[None]) -> Outcome | Waiting | To:
    """Have the guest lose the hidden accelerators, unless it is gone."""
    plan = _plan(run)
    server = _server(ctx, run, plan)
    if server is None or not _states(ctx, plan):
        return Outcome(run.row.uuid)
    return _reboot(ctx, run, server, DetachStep.WATCH)


def _watch_detach(ctx: Conductor, run: Run[None]) -> Outcome | Waiting:
    """Wait for the end of the reboot, or of the server."""
    server = _server(ctx, run, _plan(run))
    return Outcome(run.row.uuid) if server is None else _watch(run, server)


def _reboot_again(
    ctx: Conductor, run: Run[None], tx: Transaction, _outcome: Outcome
) -> To | Waiting:
    """Repeat a failed reboot. After the last one the operation fails, and an operator acts."""
    plan = _plan(run)
    if plan.reboots < _REBOOTS:
        return To(DetachStep.REBOOT)
    if not plan.reported:
        fault = "the server could not be rebooted; its accelerators are held until it is rebooted"
        plan = replace(plan, fault="; ".join(filter(None, (plan.fault, fault))))
        _end_operation(tx, run.row, plan)
        plan = replace(plan, reported=True)
    return Waiting(plan.fault, 0, wire.dump(plan))


def _release(ctx: Conductor, run: Run[None], tx: Transaction, _outcome: Outcome) -> None:
    """Delete the ARQs; their handles are free, or the host cleans them up first."""
    row = run.row
    arqs = _lock(tx, row, _plan(run))
    release.cancel_and_release(tx, arqs, request_key=row.operation_id)
    # Before they are removed, because the uses of their units end with these events.
    work.record(tx, row, [release.arq_entry(arq, "detached") for arq in arqs])
    arqs_db.remove(tx, [arq.id for arq in arqs])
    instances.release(tx, [_instance_of(row)])


def _shrink(ctx: Conductor, run: Run[None]) -> Outcome:
    """Reduce the allocation of a server that is still there."""
    plan = _plan(run)
    if _server(ctx, run, plan) is not None:
        # Otherwise Nova has removed it, and a new allocation is for later binds.
        shrink(ctx, _instance_of(run.row), plan.providers)
    return Outcome(run.row.uuid)


def _end_detach(ctx: Conductor, run: Run[None], tx: Transaction, _outcome: Outcome) -> None:
    _end_operation(tx, run.row, _plan(run))


def _plan(run: Run[None]) -> Plan:
    return wire.load(Plan, run.spec)


def _instance_of(row: ClaimedWork) -> str:
    """Return the instance of work to attach or detach, which always has one."""
    assert row.instance_uuid is not None  # noqa: S101 - for mypy
    return row.instance_uuid


def _server(ctx: Conductor, run: Run[None], plan: Plan) -> Server | None:
    """Return the server of the instance; None when it is deleted, or on another host."""
    server = ctx.nova.server(_instance_of(run.row))
    return server if server is not None and server.node == plan.node else None


def _states(ctx: Conductor, plan: Plan) -> dict[str, str]:
    with ctx.db.reader() as tx:
        return arqs_db.states(tx, plan.arqs)


def _reboot(
    ctx: Conductor, run: Run[None], server: Server, watch: StrEnum
) -> Outcome | Waiting | To:
    """Reboot a server, and then go to the step that waits for the end; done if it is off."""
    if server.task is not None:
        return Waiting(f"Nova is busy with the server ({server.task})")
    if server.status == _SHUT_OFF:
        return Outcome(run.row.uuid)
    if server.status not in _REBOOTABLE:
        return Waiting(f"the server is {server.status}")
    if not ctx.nova.reboot(_instance_of(run.row)):
        return Waiting("Nova does not reboot the server")
    plan = _plan(run)
    rebooted = replace(plan, reboots=plan.reboots + 1, rebooted_at=int(run.row.age_ms))
    return To(watch, wire.dump(rebooted))


def _watch(run: Run[None], server: Server) -> Outcome | Waiting:
    """Wait for the end of the reboot of a server."""
    if server.task is not None:
        return Waiting(f"the reboot does not end ({server.task})")
    return Outcome(run.row.uuid, fault=_FAILED if server.status == _ERROR else None)


def _in_time(run: Run[None], plan: Plan, answer: Outcome | Waiting | To) -> Outcome | Waiting | To:
    """Return the answer, or a fault when an attach has waited for too long."""
    late = run.row.age_ms - plan.rebooted_at > _WAIT_LIMIT_MS
    if late and isinstance(answer, Waiting):
        return Outcome(run.row.uuid, fault=answer.reason)
    return answer


def _lock(tx: Transaction, row: ClaimedWork, plan: Plan) -> Sequence[LockedArq]:
    """Return the ARQs that the instance still has, locked after the instance."""
    instances.lock(tx, [_instance_of(row)])
    return arqs_db.lock(tx, Arq.uuid.in_(plan.arqs), Arq.instance_uuid == _instance_of(row))


def _end_operation(tx: Transaction, row: ClaimedWork, plan: Plan) -> None:
    """Store the outcome of the operation, if that is not done."""
    if plan.reported:
        return
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


_DETACH: Final[Mapping[str, Step[Any]]] = {
    DetachStep.REBOOT: Step(
        ask=_reboot_to_detach, next=DetachStep.RELEASE, fail=try_again, reached="reboot"
    ),
    DetachStep.WATCH: Step(
        ask=_watch_detach, next=DetachStep.RELEASE, fail=_reboot_again, reached="watch"
    ),
    DetachStep.RELEASE: Step(
        end=_release, next=DetachStep.SHRINK, fail=try_again, reached="release"
    ),
    DetachStep.SHRINK: Step(ask=_shrink, end=_end_detach, fail=try_again, reached="shrink"),
}
_ATTACH: Final[Mapping[str, Step[Any]]] = {
    AttachStep.PREPARE: Step(ask=_prepare, next=AttachStep.ALLOCATE, fail=_roll_back),
    AttachStep.ALLOCATE: Step(
        ask=_allocate, end=_list, next=AttachStep.REBOOT, fail=_roll_back, reached="allocate"
    ),
    AttachStep.REBOOT: Step(
        ask=_reboot_to_attach, end=_end_attach, fail=_roll_back, reached="reboot"
    ),
    AttachStep.WATCH: Step(ask=_watch_attach, end=_end_attach, fail=_roll_back, reached="watch"),
}
#: The workflows of ``attach`` and ``detach`` work.
WORK: Final[Mapping[WorkKind, Handler]] = {
    WorkKind.ATTACH: Workflow({**_ATTACH, **_DETACH}),
    WorkKind.DETACH: Workflow(_DETACH),
}
