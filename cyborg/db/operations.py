# SPDX-License-Identifier: Apache-2.0
"""Operations in SQL: begun and ended with what they change, found and read.

The row of an operation is locked before its results, and both before work rows.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from cyborg.db import listing, models
from cyborg.db.base import Record
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
from cyborg.model.work import WorkKind

_O = models.Operation.__table__.c
_R = models.OperationResult.__table__.c
_VISIBLE: sa.Select[*tuple[Any, ...]] = sa.select(
    _O.id,
    _O.uuid,
    _O.verb,
    _O.state,
    _O.project_id,
    _O.user_id,
    _O.request_id,
    _O.steps,
    _O.error,
    _O.created_ms,
    _O.finished_ms,
    _O.subject,
)
_OPEN = sorted(one.value for one in OPEN)
_OF_INSTANCES = [WorkKind.ATTACH.value, WorkKind.DETACH.value]
SORTABLE = listing.Sortable(
    id=_O.id,
    uuid=_O.uuid,
    columns={
        "uuid": _O.uuid,
        "verb": _O.verb,
        "state": _O.state,
        "created_at": _O.created_ms,
        "finished_at": _O.finished_ms,
    },
)


def show(tx: sa.Connection, uuid: str, project_id: str | None = None) -> Operation | None:
    """One operation, of this project alone if one is named."""
    query = _VISIBLE.where(_O.uuid == uuid)
    if project_id is not None:
        query = query.where(_O.project_id == project_id)
    found = _with_results(tx, tx.execute(query).all())
    return found[0] if found else None


def page(
    tx: sa.Connection, wanted: listing.Page, project_id: str | None, equal: Mapping[str, str]
) -> list[Operation]:
    """A page of the operations, of one project or of all (None), with these values."""
    visible = _VISIBLE if project_id is None else _VISIBLE.where(_O.project_id == project_id)
    query = listing.paged(tx, visible, SORTABLE, wanted)
    query = query.where(*(_O[name] == value for name, value in equal.items()))
    return _with_results(tx, tx.execute(query).all())


def begin(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    caller: Caller,
    *,
    uuid: str,
    verb: str,
    hosts: Collection[str],
    subject: Mapping[str, Any] | None = None,
) -> None:
    """Store a new operation that runs on these hosts; Conflict when the uuid is taken."""
    moment = int(tx.execute(sa.select(now)).scalar_one())
    made = tx.execute(
        sa.insert(models.Operation).values(
            uuid=uuid,
            verb=verb,
            state=OperationState.RUNNING.value,
            project_id=caller.project_id,
            user_id=caller.user_id,
            request_id=caller.request_id,
            steps=[{"name": "begun", "at_ms": moment}],
            subject=None if subject is None else dict(subject),
            created_ms=moment,
        )
    )
    id_ = (made.inserted_primary_key or (0,))[0]
    tx.execute(
        sa.insert(models.OperationResult),
        [
            {"operation_id": id_, "host": host, "state": ResultState.RUNNING.value}
            for host in sorted(hosts)
        ],
    )


def reach(tx: sa.Connection, now: sa.ColumnElement[int], uuid: str, step: str) -> None:
    """Note that an operation has come to a step; the second time changes nothing."""
    row = _lock(tx, uuid)
    if row is None or any(one["name"] == step for one in row.steps or ()):
        return
    moment = int(tx.execute(sa.select(now)).scalar_one())
    steps = [*(row.steps or ()), {"name": step, "at_ms": moment}]
    tx.execute(sa.update(models.Operation).where(_O.id == row.id).values(steps=steps))


def pause(tx: sa.Connection, uuid: str, standing: HostResult) -> None:
    """Note how an open result stands, and what it waits for."""
    row = _lock(tx, uuid)
    if row is not None:
        tx.execute(
            sa.update(models.OperationResult)
            .where(_R.operation_id == row.id, _R.host == standing.host, _R.state.in_(_OPEN))
            .values(state=standing.state.value, error=standing.error)
        )


def standing(tx: sa.Connection, uuid: str, host: str) -> tuple[str, str | None] | None:
    """The state of one host's result, and its error; None when there is none."""
    row = tx.execute(
        sa.select(_R.state, _R.error)
        .join(models.Operation, _O.id == _R.operation_id)
        .where(_O.uuid == uuid, _R.host == host)
    ).one_or_none()
    return None if row is None else (row.state, row.error)


def open_on(tx: sa.Connection, host: str) -> list[str]:
    """The operations that wait for a host and are no instance's, in the order of their rows.

    Those of instances go on without the host, by work that is not its own.
    """
    query = (
        sa.select(_O.uuid)
        .join(models.OperationResult, _R.operation_id == _O.id)
        .where(_R.host == host, _R.state.in_(_OPEN), _O.verb.not_in(_OF_INSTANCES))
    )
    return list(tx.execute(query.order_by(_O.id)).scalars())


def end(
    tx: sa.Connection, now: sa.ColumnElement[int], uuid: str, outcome: HostResult
) -> OperationState | None:
    """End the work of an operation on one host, and the operation with its last one.

    Answers how the operation stands; None when it is gone. A result that has ended stays.
    """
    row = _lock(tx, uuid)
    if row is None:
        return None
    tx.execute(
        sa.update(models.OperationResult)
        .where(_R.operation_id == row.id, _R.host == outcome.host, _R.state.in_(_OPEN))
        .values(state=outcome.state.value, result=outcome.result, error=outcome.error)
    )
    counts: dict[str, int] = {
        one.state: one.hosts
        for one in tx.execute(
            sa.select(_R.state, sa.func.count().label("hosts"))
            .where(_R.operation_id == row.id)
            .group_by(_R.state)
        )
    }
    state = verdict(counts)
    if state is OperationState.RUNNING or row.state != OperationState.RUNNING.value:
        return OperationState(row.state)
    failed = counts.get(ResultState.FAILED.value, 0)
    error = f"{failed} of {sum(counts.values())} host(s) failed" if failed else None
    moment = int(tx.execute(sa.select(now)).scalar_one())
    steps = [*(row.steps or ()), {"name": state.value, "at_ms": moment}]
    tx.execute(
        sa.update(models.Operation)
        .where(_O.id == row.id)
        .values(state=state.value, error=error, steps=steps, finished_ms=moment)
    )
    return state


def _lock(tx: sa.Connection, uuid: str) -> Record:
    return tx.execute(
        sa.select(_O.id, _O.state, _O.steps).where(_O.uuid == uuid).with_for_update()
    ).one_or_none()


def _with_results(tx: sa.Connection, rows: Sequence[Record]) -> list[Operation]:
    if not rows:
        return []
    results = defaultdict(list)
    for one in tx.execute(
        sa.select(_R.operation_id, _R.host, _R.state, _R.result, _R.error)
        .where(_R.operation_id.in_([row.id for row in rows]))
        .order_by(_R.operation_id, _R.host)
    ):
        results[one.operation_id].append(
            HostResult(one.host, ResultState(one.state), one.result, one.error)
        )
    return [
        Operation(
            uuid=row.uuid,
            verb=row.verb,
            state=OperationState(row.state),
            created_ms=row.created_ms,
            project_id=row.project_id,
            user_id=row.user_id,
            request_id=row.request_id,
            steps=tuple(Step(**one) for one in row.steps or ()),
            results=tuple(results[row.id]),
            error=row.error,
            finished_ms=row.finished_ms,
            subject=row.subject,
        )
        for row in rows
    ]
