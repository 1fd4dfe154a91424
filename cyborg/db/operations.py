# SPDX-License-Identifier: Apache-2.0
"""Read, begin, change and end operations in SQL.

Lock the row of an operation before its results, and both before work rows.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from cyborg.db import listing, models
from cyborg.db.rows import Row, Shown, column, select, shown
from cyborg.db.transaction import Transaction
from cyborg.model.caller import Caller
from cyborg.model.operation import (
    OPEN,
    HostResult,
    Operation,
    OperationState,
    ResultState,
    Step,
    verdict,
)
from cyborg.model.scope import Scope
from cyborg.model.work import WorkKind

_O = models.Operation
_R = models.OperationResult
_OPEN = sorted(state.value for state in OPEN)
_OF_INSTANCES = [WorkKind.ATTACH.value, WorkKind.DETACH.value]
SORTABLE = listing.sortable(
    _O, "uuid", "verb", "state", created_at=_O.created_ms, finished_at=_O.finished_ms
)


class StoredOperation(_O, Shown):
    """An operation without its results."""

    __abstract__ = True


class LockedOperation(Row):
    """A locked operation."""

    id = column(_O.id)
    state = column(_O.state)
    steps = column(_O.steps)


_VISIBLE = shown(StoredOperation, lambda project_id: _O.project_id == project_id)


def show(tx: Transaction, uuid: str, scope: Scope) -> Operation | None:
    """Return the operation with this uuid if the scope reaches it."""
    operations = _with_results(tx, tx.all(_VISIBLE.where(_O.uuid == uuid).within(scope)))
    return operations[0] if operations else None


def page(
    tx: Transaction, page: listing.Page, scope: Scope, equal: Mapping[str, str]
) -> list[Operation]:
    """Return a page of the operations in the scope with these column values."""
    query = listing.paged(tx, _VISIBLE.within(scope), SORTABLE, page)
    query = query.where(*(SORTABLE.columns[name] == value for name, value in equal.items()))
    return _with_results(tx, tx.all(query))


def begin(
    tx: Transaction,
    caller: Caller,
    *,
    uuid: str,
    verb: str,
    hosts: Collection[str],
    subject: Mapping[str, Any] | None = None,
) -> None:
    """Store a new operation that runs on these hosts; raises Conflict when the uuid exists."""
    result = tx.execute(
        sa.insert(_O).values(
            uuid=uuid,
            verb=verb,
            state=OperationState.RUNNING.value,
            project_id=caller.project_id,
            user_id=caller.user_id,
            request_id=caller.request_id,
            steps=[{"name": "begun", "at_ms": tx.now_ms}],
            subject=None if subject is None else dict(subject),
            created_ms=tx.now_ms,
        )
    )
    id_ = (result.inserted_primary_key or (0,))[0]
    tx.execute(
        sa.insert(_R),
        [
            {"operation_id": id_, "host": host, "state": ResultState.RUNNING.value}
            for host in sorted(hosts)
        ],
    )


def add_step(tx: Transaction, uuid: str | None, step: str) -> None:
    """Store that an operation has reached a step, unless it is stored already."""
    row = _lock(tx, uuid)
    if row is None or any(entry["name"] == step for entry in row.steps or ()):
        return
    steps = [*(row.steps or ()), {"name": step, "at_ms": tx.now_ms}]
    tx.execute(sa.update(_O).where(_O.id == row.id).values(steps=steps))


def update_result(tx: Transaction, uuid: str | None, result: HostResult) -> None:
    """Store the state of a result that has not ended, and what it waits for (``error``)."""
    row = _lock(tx, uuid)
    if row is not None:
        tx.execute(
            sa.update(_R)
            .where(_R.operation_id == row.id, _R.host == result.host, _R.state.in_(_OPEN))
            .values(state=result.state.value, error=result.error)
        )


def result_of(tx: Transaction, uuid: str | None, host: str) -> tuple[str, str | None] | None:
    """Return the state and the error of one host's result; None when there is none."""
    return tx.execute(
        sa.select(_R.state, _R.error)
        .join(_O, _O.id == _R.operation_id)
        .where(_O.uuid == uuid, _R.host == host)
    ).one_or_none()


def open_for_host(tx: Transaction, host: str) -> list[str]:
    """Return the operations that wait for a host, oldest first, without attach and detach.

    Attach and detach continue without the host: their work belongs to an instance.
    """
    query = (
        sa.select(_O.uuid)
        .join(_R, _R.operation_id == _O.id)
        .where(_R.host == host, _R.state.in_(_OPEN), _O.verb.not_in(_OF_INSTANCES))
    )
    return list(tx.execute(query.order_by(_O.id)).scalars())


def end(tx: Transaction, uuid: str | None, outcome: HostResult) -> OperationState | None:
    """Store the final result of a host, and end the operation with its last result.

    Returns the state of the operation; None when it does not exist. A final result does not change.
    """
    row = _lock(tx, uuid)
    if row is None:
        return None
    tx.execute(
        sa.update(_R)
        .where(_R.operation_id == row.id, _R.host == outcome.host, _R.state.in_(_OPEN))
        .values(state=outcome.state.value, result=outcome.result, error=outcome.error)
    )
    counting = sa.select(_R.state, sa.func.count()).where(_R.operation_id == row.id)
    counts = dict(tx.execute(counting.group_by(_R.state)).all())
    state = verdict(counts)
    if state is OperationState.RUNNING or row.state != OperationState.RUNNING.value:
        return OperationState(row.state)
    failed = counts.get(ResultState.FAILED.value, 0)
    error = f"{failed} of {sum(counts.values())} host(s) failed" if failed else None
    steps = [*(row.steps or ()), {"name": state.value, "at_ms": tx.now_ms}]
    tx.execute(
        sa.update(_O)
        .where(_O.id == row.id)
        .values(state=state.value, error=error, steps=steps, finished_ms=tx.now_ms)
    )
    return state


def _lock(tx: Transaction, uuid: str | None) -> LockedOperation | None:
    return tx.first(select(LockedOperation).where(_O.uuid == uuid).with_for_update())


def _with_results(tx: Transaction, rows: Sequence[StoredOperation]) -> list[Operation]:
    if not rows:
        return []
    results: dict[int, list[HostResult]] = defaultdict(list)
    for operation_id, host, state, result, error in tx.execute(
        sa.select(_R.operation_id, _R.host, _R.state, _R.result, _R.error)
        .where(_R.operation_id.in_([row.id for row in rows]))
        .order_by(_R.operation_id, _R.host)
    ):
        results[operation_id].append(HostResult(host, ResultState(state), result, error))
    return [
        Operation(
            uuid=row.uuid,
            verb=row.verb,
            state=OperationState(row.state),
            created_ms=row.created_ms,
            project_id=row.project_id,
            user_id=row.user_id,
            request_id=row.request_id,
            steps=tuple(Step(**step) for step in row.steps or ()),
            results=tuple(results[row.id]),
            error=row.error,
            finished_ms=row.finished_ms,
            subject=row.subject,
        )
        for row in rows
    ]
