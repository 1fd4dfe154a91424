# SPDX-License-Identifier: Apache-2.0
"""End binds: unbind ARQs, delete ARQs by uuid, delete the ARQs of an instance; end releases.

No request waits for an agent. A handle that needs no clean-up is free after the commit. A handle
that the agent must clean up becomes ``releasing``, and its work row is added in the same
transaction.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from cyborg import exception
from cyborg.conductor.arqs import images
from cyborg.conductor.arqs.claims import repeated
from cyborg.conductor.context import Conductor, handles
from cyborg.db import (
    arqs,
    attach_handles,
    attachments,
    dirty_units,
    events,
    instances,
    pools,
    work,
)
from cyborg.db.arqs import LockedArq
from cyborg.db.deployables import AgentHandle
from cyborg.db.engine import Database, retried
from cyborg.db.models import Arq
from cyborg.db.transaction import Transaction
from cyborg.model.arq import BINDING, Event, State
from cyborg.model.caller import Caller
from cyborg.model.cleaning import (
    CLEAN,
    CLEANING,
    CleanLevel,
    level,
    profile_level,
    stricter,
)
from cyborg.model.device_profile import accel_requirements
from cyborg.model.work import WorkKind
from cyborg.rpc.verbs import DeleteArqs, DeleteInstanceArqs

LOG = logging.getLogger(__name__)

_DELETED = "deleted"


@retried
def expire(db: Database, before: datetime, limit: int) -> int:
    """Delete at most ``limit`` ARQs that have had no instance since ``before``, and count them.

    The number of statements does not depend on their number.
    """
    with db.writer() as tx:
        uuids = arqs.remove_unbound(tx, before, limit)
        reason = f"it was not bound after {before.isoformat()}"
        events.record(tx, [events.Entry("arq", uuid, _DELETED, reason=reason) for uuid in uuids])
    return len(uuids)


@handles(DeleteArqs)
def by_uuid(ctx: Conductor, c: DeleteArqs) -> None:
    """See ``delete``."""
    delete(ctx.db, c)


@handles(DeleteInstanceArqs)
def by_instance(ctx: Conductor, c: DeleteInstanceArqs) -> None:
    """See ``delete_of_instance``."""
    delete_of_instance(ctx.db, c)


@repeated
@retried
def delete(db: Database, c: DeleteArqs) -> None:
    """Delete the ARQs that exist and may be deleted, then raise for the others.

    Raises BoundArqs for bound ARQs without a service token, else NotFound naming those that
    do not exist and that an earlier attempt of this request did not delete.
    """
    uuids = list(dict.fromkeys(c.uuids))
    with db.writer(*c.origin) as tx:
        rows = _lock(tx, c.caller, uuids)
        missing = set(uuids) - {row.uuid for row in rows}
        if missing:
            missing -= events.subjects_of(tx, c.request_key, _DELETED, missing)
        bound = {row.uuid for row in rows if row.instance_uuid and not c.caller.service}
        deletable = [row for row in rows if row.uuid not in bound]
        _delete(tx, deletable)
        instance_uuids = {row.instance_uuid for row in deletable if row.instance_uuid}
        instances.release(tx, instance_uuids)
    if bound:
        raise exception.BoundArqs(uuids=", ".join(sorted(bound)))
    if missing:
        raise exception.NotFound(noun="Accelerator request", key=", ".join(sorted(missing)))


@repeated
@retried
def delete_of_instance(db: Database, c: DeleteInstanceArqs) -> None:
    """Delete all ARQs of an instance that are in the caller's scope, if there are any.

    A repeated request does not delete ARQs that were bound after its first attempt.
    """
    instance_uuid = c.instance_uuid
    with db.writer(*c.origin) as tx:
        scope = [*arqs.of_caller(c.caller), ~events.has_operation(c.request_key)]
        # This comes first because it also locks the instance against a bind.
        opened = instances.release(tx, [instance_uuid], removing=scope)
        rows = arqs.lock(tx, Arq.instance_uuid == instance_uuid, *scope)
        _delete(tx, rows)
        attached = sum(1 for row in rows if row.origin == attachments.ATTACHED)
        if attached:
            # The instance may go on (evacuated, offloaded), without these accelerators.
            LOG.info("Instance %s has lost %d attached accelerator(s)", instance_uuid, attached)
            reason = (
                f"{attached} attached accelerator(s) were deleted with all others of the "
                "instance; Nova creates only those of its flavor again"
            )
            action = "attached ones deleted"
            entry = events.Entry("instance", instance_uuid, action, reason=reason)
            events.record(tx, [entry])
        if rows and not opened:
            # There was no row to lock: the first bind of the instance committed afterwards.
            instances.release(tx, [instance_uuid])
        if not rows and not events.is_repeated(tx, c.request_key):
            # This entry marks the request as done, so that a late repetition does not delete
            # what was bound since.
            entry = events.Entry("instance", instance_uuid, _DELETED)
            events.record(tx, [entry])


def _delete(tx: Transaction, rows: Sequence[LockedArq]) -> None:
    """Delete locked ARQs."""
    if not rows:
        return
    cancel_and_release(tx, rows, request_key=tx.request_key)
    # Every member can create and delete requests without a limit.
    never_bound = {row.uuid for row in rows if row.state == State.INITIAL}
    events.expire_soon(tx, "arq", sorted(never_bound))
    entries = [arq_entry(row, _DELETED, brief=row.uuid in never_bound) for row in rows]
    # Before they are removed, because the uses of their units end with these events.
    events.record(tx, entries)
    arqs.remove(tx, [row.id for row in rows])


def unbind(
    tx: Transaction,
    caller: Caller,
    uuids: Sequence[str],
    *,
    request_key: str,
) -> None:
    """Unbind ARQs inside the caller's transaction; raises NotFound, BadState.

    ARQs that an earlier attempt of this request has unbound are not changed.
    """
    rows = _lock(tx, caller, uuids)
    done = events.subjects_of(tx, request_key, State.UNBOUND.value, uuids)
    rows = [row for row in rows if row.uuid not in done]
    missing = sorted(set(uuids) - done - {row.uuid for row in rows})
    if missing:
        raise exception.NotFound(noun="Accelerator request", key=", ".join(missing))
    if not rows:
        return
    for row in rows:
        arqs.check(row, Event.UNBIND)
    cancel_and_release(tx, rows, request_key=request_key)
    arqs.unbind(tx, [row.id for row in rows])
    instances.release(tx, {row.instance_uuid for row in rows if row.instance_uuid})
    entries = [arq_entry(row, State.UNBOUND.value) for row in rows]
    events.record(tx, entries)


def cancel_and_release(
    tx: Transaction,
    rows: Sequence[LockedArq],
    *,
    request_key: str | None,
) -> None:
    """Cancel the preparation of locked ARQs, and release their handles."""
    started = [row.uuid for row in rows if row.state == State.BIND_STARTED]
    if started:
        work.cancel_prepare(tx, started)
    release_units(tx, rows, request_key=request_key)


@dataclass(frozen=True)
class _HeldUnit:
    """A unit that an ARQ has."""

    arq: LockedArq
    handle_id: int
    #: Whether the agent may have prepared the device.
    prepared: bool
    #: How the agent cleans it, see ``cyborg.model.cleaning.level``.
    level: CleanLevel | None

    @property
    def cleans(self) -> bool:
        """Return whether the agent must remove the data of the guest."""
        return self.level in CLEANING


def release_work(
    handle_id: int,
    deployable_id: int | None,
    level: CleanLevel | None,
    *,
    arq: LockedArq | None = None,
    request_key: str | None = None,
) -> dict[str, Any]:
    """Return the work in which an agent cleans a unit up; ``arq`` had it, None: not known."""
    spec: dict[str, Any] = {}
    if arq is not None and images.may_be_loading(arq):
        spec[images.LOADING] = True
    if level is not None:
        spec[CLEAN] = level.value
    return {
        "kind": WorkKind.RELEASE,
        "arq_uuid": arq and arq.uuid,
        "instance_uuid": arq and arq.instance_uuid,
        "deployable_id": deployable_id,
        "attach_handle_id": handle_id,
        "operation_id": request_key,
        "spec": spec or None,
    }


def _level(row: LockedArq) -> CleanLevel | None:
    """Return how the unit of an ARQ is cleaned: as the host says now, or said at the bind."""
    now = level(row.host_clean, profile_level(accel_requirements(row.group_spec or {})))
    return stricter(now, None if row.dirty_level is None else CleanLevel(row.dirty_level))


def release_units(tx: Transaction, rows: Iterable[LockedArq], *, request_key: str | None) -> None:
    """Release the units of ARQs; add work where an agent may have prepared one, or must clean it.

    A handle that an ARQ was only waiting for stays ``releasing``, and its release goes on.
    ``request_key`` is None when no request is the reason, as in a repair. Raises a plain Conflict,
    see ``claims.repeated``, when a handle was released or bound while the caller waited for the
    locks of the ARQs.
    """
    rows = list(rows)
    units = [
        _HeldUnit(row, row.attach_handle_id, row.prepared, _level(row))
        for row in rows
        if row.attach_handle_id is not None
    ]
    binding = [row.id for row in rows if row.state in BINDING and row.attach_handle_id is None]
    attach_handles.check_none(tx, binding)
    rest = [
        unit.handle_id for unit in units if (unit.arq.pooled or unit.cleans) and not unit.prepared
    ]
    if rest:
        # Only the end of a release returns shared capacity, and a guest may have had a unit that
        # is ready, even if nothing was prepared. A unit that its last guest has left by now is
        # ready, so that its agent releases it once more.
        ready = attach_handles.lock_ready(tx, rest)
        units = [
            replace(unit, prepared=True) if unit.handle_id in ready else unit for unit in units
        ]
    used = [unit for unit in units if unit.prepared]
    attach_handles.release(
        tx,
        {unit.handle_id: unit.arq.id for unit in units},
        used=[unit.handle_id for unit in used],
    )
    dirty_units.mark(
        tx,
        [
            dirty_units.Use(unit.handle_id, unit.level, unit.arq.uuid, unit.arq.instance_uuid)
            for unit in used
            # Bound before its host could clean it.
            if unit.level in CLEANING and unit.arq.dirty_level != unit.level
        ],
    )
    work.add(
        tx,
        [
            release_work(
                *(unit.handle_id, unit.arq.deployable_id, unit.level),
                arq=unit.arq,
                request_key=request_key,
            )
            for unit in used
        ],
    )


def finish(tx: Transaction, handle: AgentHandle, *, clean: bool) -> None:
    """End the release of a unit: its handle is ready, for the ARQ that waits for it if any.

    Nothing else makes a handle ready that is being released or in quarantine, neither for the host
    nor for an operator or an audit. ``clean``: the data of its last guest is removed. If the unit
    is in quarantine, being cleaned, or shares capacity, the caller has published the host.
    """
    images.clear_after_release(tx, handle)
    attach_handles.finish_release(tx, handle.id)
    if clean:
        dirty_units.end(tx, handle.id, handle.uuid)
    if handle.pooled:
        pools.book(tx, [handle.device_uuid])
    work.make_due(tx, handle.id)


def _lock(tx: Transaction, caller: Caller, uuids: Sequence[str]) -> Sequence[LockedArq]:
    """Lock the instances of ARQs, then the ARQs, and return the ARQs.

    The instances are read from the ARQs without a lock. Raises a plain Conflict, see
    ``claims.repeated``, when an ARQ was bound to another instance before its lock was granted:
    to lock that instance now could end in a deadlock.
    """
    unlocked = {instance for _, instance in arqs.instances_of(tx, caller, uuids)}
    instances.lock(tx, (uuid for uuid in unlocked if uuid))
    rows = arqs.lock(tx, Arq.uuid.in_(uuids), *arqs.of_caller(caller))
    if any(row.instance_uuid and row.instance_uuid not in unlocked for row in rows):
        raise exception.Conflict(reason="Another request has bound an accelerator request.")
    return rows


def arq_entry(
    row: LockedArq, action: str, *, reason: str | None = None, brief: bool = False
) -> events.Entry:
    """Return the history entry of an ARQ; ``row`` holds its instance, host, device and unit.

    After any other action than a bind it has no unit, and its use of one has ended. That includes a
    bound ARQ whose handle is gone: the ARQ cannot be removed before.
    """
    had_unit = row.attach_handle_id is not None or row.state in BINDING
    return events.Entry(
        "arq",
        row.uuid,
        action,
        instance_uuid=row.instance_uuid,
        hostname=row.hostname,
        reason=reason,
        device_uuid=row.device_uuid,
        brief=brief,
        left_by=row.id if had_unit and action not in BINDING else None,
    )
