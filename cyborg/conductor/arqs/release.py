# SPDX-License-Identifier: Apache-2.0
"""The ways out of a bind: unbind, delete by uuid, delete by instance.

None of them waits for an agent: what the database can free is free at once, what the host has to
clean up becomes ``releasing`` with a work row, in the same transaction.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.arqs import images
from cyborg.db import arqs, attach_handles, attaching, events, instances, work
from cyborg.db.base import Record
from cyborg.db.engine import Database, retried
from cyborg.db.models import Arq
from cyborg.model.arq import Event, State
from cyborg.model.caller import Caller
from cyborg.model.work import WorkKind

LOG = logging.getLogger(__name__)

_DELETED = "deleted"


def unbind(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    caller: Caller,
    uuids: Sequence[str],
    *,
    operation: str,
) -> None:
    """Take ARQs off their instances, inside the caller's transaction; raises NotFound, BadState.

    Those that this very operation has unbound before are left as they are now.
    """
    rows = _lock(tx, caller, uuids)
    done = events.done_by(tx, operation, State.UNBOUND.value, uuids)
    rows = [row for row in rows if row.uuid not in done]
    missing = sorted(set(uuids) - done - {row.uuid for row in rows})
    if missing:
        raise exception.NotFound(noun="Accelerator request", key=", ".join(missing))
    if not rows:
        return
    for row in rows:
        arqs.check(row, Event.UNBIND)
    free(tx, now, rows, operation=operation)
    arqs.unbind(tx, [row.id for row in rows])
    instances.release(tx, now, _instances(rows))
    entries = [_entry(row, State.UNBOUND.value) for row in rows]
    events.record(tx, now, entries, caller=caller, operation=operation)


def free(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    rows: Sequence[Record],
    *,
    operation: str | None,
) -> None:
    """Let go of the handles of locked ARQs, and call off what was begun for them."""
    started = [row.uuid for row in rows if row.state == State.BIND_STARTED]
    if started:
        work.cancel_prepare(tx, started)
    free_handles(tx, now, rows, operation=operation)


def free_handles(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    rows: Sequence[Record],
    *,
    operation: str | None,
) -> None:
    """Let go of handles; what the host may have prepared it shall release.

    A handle that an ARQ was only waiting for stays ``releasing``: its release goes on.
    ``operation`` is the one that the release belongs to, None when the service acts by itself.
    """
    held = [row for row in rows if row.attach_handle_id is not None]
    prepared = [row for row in held if row.prepared]
    attach_handles.release(
        tx,
        clean=[row.attach_handle_id for row in held if not row.prepared],
        used=[row.attach_handle_id for row in prepared],
    )
    work.add(tx, now, [release_work(row, operation) for row in prepared])


def release_work(row: Record, operation: str | None) -> dict[str, Any]:
    """The work that undoes on the host what was prepared for an ARQ."""
    return {
        "kind": WorkKind.RELEASE,
        "arq_uuid": row.uuid,
        "instance_uuid": row.instance_uuid,
        "deployable_id": row.deployable_id,
        "attach_handle_id": row.attach_handle_id,
        "operation_id": operation,
        "spec": {images.LOADING: True} if images.is_called_off(row) else None,
    }


class ArqReleaser:
    """Deletes ARQs; ``wake`` is called when work waits after a commit."""

    def __init__(self, *, db: Database, wake: Callable[[], None]) -> None:
        self._db = db
        self._wake = wake

    def by_uuid(self, caller: Caller, operation: str, uuids: Sequence[str]) -> None:
        """Delete what exists and may be deleted, then say what was not.

        Raises BoundArqs for bound ones without a service token, else NotFound naming those that
        were not there and that this very operation did not delete before.
        """
        bound, missing, waiting = self._by_uuid(caller, operation, list(dict.fromkeys(uuids)))
        if waiting:
            self._wake()
        if bound:
            raise exception.BoundArqs(uuids=", ".join(sorted(bound)))
        if missing:
            raise exception.NotFound(noun="Accelerator request", key=", ".join(sorted(missing)))

    def by_instance(self, caller: Caller, operation: str, instance_uuid: str) -> None:
        """Delete every ARQ of an instance that the caller reaches; none is fine.

        An operation that is repeated spares those bound since it was carried out.
        """
        if self._by_instance(caller, operation, instance_uuid):
            self._wake()

    @retried
    def _by_uuid(
        self, caller: Caller, operation: str, uuids: Sequence[str]
    ) -> tuple[set[str], set[str], bool]:
        with self._db.writer() as tx:
            rows = _lock(tx, caller, uuids)
            missing = set(uuids) - {row.uuid for row in rows}
            if missing:
                missing -= events.done_by(tx, operation, _DELETED, missing)
            kept = {row.uuid for row in rows if row.instance_uuid and not caller.service}
            going = [row for row in rows if row.uuid not in kept]
            waiting = self._delete(tx, caller, operation, going)
            instances.release(tx, self._db.now, _instances(going))
        return kept, missing, waiting

    @retried
    def _by_instance(self, caller: Caller, operation: str, instance_uuid: str) -> bool:
        with self._db.writer() as tx:
            scope = [*arqs.of_caller(caller), ~events.mark_of(operation)]
            # First of all: this also locks the instance against a bind.
            opened = instances.release(tx, self._db.now, [instance_uuid], removing=scope)
            rows = arqs.lock(tx, Arq.instance_uuid == instance_uuid, *scope)
            waiting = self._delete(tx, caller, operation, rows)
            events.record(tx, self._db.now, _told(instance_uuid, rows), caller=caller)
            if rows and not opened:
                # There was no row to lock: the first bind of the instance committed just after.
                instances.release(tx, self._db.now, [instance_uuid])
            if not rows and not events.operation_known(tx, operation):
                # Its mark: whoever repeats this late is to spare what was bound since.
                entry = events.Entry("instance", instance_uuid, _DELETED)
                events.record(tx, self._db.now, [entry], caller=caller, operation=operation)
            return waiting

    def _delete(
        self, tx: sa.Connection, caller: Caller, operation: str, rows: Sequence[Record]
    ) -> bool:
        """True when the host has work to do now."""
        if not rows:
            return False
        free(tx, self._db.now, rows, operation=operation)
        arqs.delete(tx, [row.id for row in rows])
        entries = [_entry(row, _DELETED) for row in rows]
        events.record(tx, self._db.now, entries, caller=caller, operation=operation)
        return any(row.prepared for row in rows)


def _told(instance_uuid: str, rows: Sequence[Record]) -> list[events.Entry]:
    """What an instance that goes on (evacuated, offloaded) will not find again."""
    gone = sum(1 for one in rows if one.origin == attaching.ATTACHED)
    if not gone:
        return []
    LOG.info("Instance %s has lost %d attached accelerator(s)", instance_uuid, gone)
    reason = (
        f"{gone} attached accelerator(s) were deleted with all of the instance's; Nova makes only "
        "its flavor's anew"
    )
    action = "attached ones deleted"
    return [events.Entry("instance", instance_uuid, action, instance_uuid, reason=reason)]


def _lock(tx: sa.Connection, caller: Caller, uuids: Sequence[str]) -> Sequence[Record]:
    """Lock ARQs after their instances, though the instances are known from the ARQs only.

    An ARQ that was bound between the two looks has an instance that is not locked: harmless, since
    its bind has committed before this lock was granted, and only a delete or unbind (which wait
    for the ARQ's lock as well) could take it away again.
    """
    seen = arqs.peek(tx, caller, uuids)
    instances.lock(tx, (row.instance_uuid for row in seen if row.instance_uuid))
    return arqs.lock(tx, Arq.uuid.in_(uuids), *arqs.of_caller(caller))


def _instances(rows: Sequence[Record]) -> set[str]:
    return {row.instance_uuid for row in rows if row.instance_uuid}


def _entry(row: Record, action: str) -> events.Entry:
    return events.Entry(
        "arq",
        row.uuid,
        action,
        instance_uuid=row.instance_uuid,
        hostname=row.hostname,
        device_uuid=row.device_uuid,
    )
