# SPDX-License-Identifier: Apache-2.0
"""Begin long-running operations: check, store and queue each of them in one transaction, once.

The key of the request is the uuid of the operation.

A work row holds the part of each host, or of an instance, so that any running conductor can
continue it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cyborg import exception
from cyborg.conductor.context import Conductor
from cyborg.conductor.tasks import queue
from cyborg.db import events, hosts, operations, work
from cyborg.db.engine import retried
from cyborg.db.hosts import HostAgent
from cyborg.db.transaction import Transaction
from cyborg.db.work import ClaimedWork
from cyborg.model.operation import HostResult, Operation, ResultState
from cyborg.model.scope import EVERYWHERE
from cyborg.model.work import WorkKind
from cyborg.rpc.verbs import Write

#: Time in milliseconds after which the part of a host counts as failed. There is no limit for an
#: order that waits for hosts whose agent is down.
_DEADLINE_MS = 60 * 60 * 1000


@dataclass(frozen=True)
class HostRef:
    """A host by the name that results carry; ``id`` is None where it is no compute host."""

    name: str
    id: int | None = None


@dataclass(frozen=True)
class Task:
    """The work of an operation on one host: its kind, and the ``spec`` for its handler."""

    host: HostAgent | HostRef
    kind: WorkKind
    spec: Mapping[str, Any] = field(default_factory=dict)
    #: The task has no deadline.
    unlimited: bool = False
    #: The instance, where the work concerns an instance rather than the host.
    instance: str | None = None
    #: What the operation is about besides the host: driver, device and so on.
    subject: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Done:
    """A part of an operation that has nothing left to do, and its result."""

    host: HostRef
    result: Mapping[str, Any]
    subject: Mapping[str, str] = field(default_factory=dict)


#: Checks a request, makes its first changes, and returns the parts of the operation.
Plan = Callable[[Transaction], Sequence[Task | Done]]


def begin(
    ctx: Conductor, c: Write[Operation], verb: str, plan: Plan, *, wait: bool = False
) -> Operation:
    """Begin an operation; return the existing operation when its id has begun one already.

    With ``wait`` hosts whose agent is down do their part when the agent is back. Raises Conflict
    when the id belongs to another verb or project, and whatever ``plan``
    raises; then nothing has changed.
    """
    try:
        return _begin(ctx, c, verb, plan, wait=wait)
    except exception.Conflict:
        # The same request may have arrived twice at the same time.
        with ctx.db.reader() as tx:
            existing = begun_before(tx, c, verb)
        if existing is None:
            raise
        return existing


@retried
def _begin(ctx: Conductor, c: Write[Operation], verb: str, plan: Plan, *, wait: bool) -> Operation:
    with ctx.db.writer(*c.origin) as tx:
        existing = begun_before(tx, c, verb)
        if existing is not None:
            return existing
        parts = plan(tx)
        subject: dict[str, Any] = {}
        for part in parts:
            subject.update(part.subject)
        names = sorted({part.host.name for part in parts} - {""})
        if names:
            subject["hosts"] = names
        operations.begin(
            tx,
            c.caller,
            uuid=c.request_key,
            verb=verb,
            hosts=[part.host.name for part in parts],
            subject=subject,
        )
        rows = [
            {
                "kind": part.kind,
                "host_id": part.host.id,
                "instance_uuid": part.instance,
                "spec": {**part.spec, "host": part.host.name},
                "operation_id": c.request_key,
                "deadline_in": None if wait or part.unlimited else _DEADLINE_MS,
            }
            for part in parts
            if isinstance(part, Task)
        ]
        work.add(tx, rows)
        for part in parts:
            if isinstance(part, Done):
                result = HostResult(part.host.name, ResultState.SUCCEEDED, dict(part.result))
                operations.end(tx, c.request_key, result)
        entry = events.Entry("operation", c.request_key, verb)
        events.record(tx, [entry])
        operation = operations.show(tx, c.request_key, EVERYWHERE)
    assert operation is not None  # noqa: S101 - for mypy
    return operation


def choose_hosts(
    ctx: Conductor, tx: Transaction, names: Sequence[str] | None, *, wait: bool
) -> list[HostAgent]:
    """Return the hosts with these names; None means all hosts whose agent is up.

    With ``wait``, hosts whose agent is down are included. Raises NotFound for a name that no
    agent ever had, Unavailable naming the hosts whose agent is down (unless ``wait``), and
    Conflict when there is no such host at all.
    """
    rows = list(hosts.with_agents(tx, ctx.settings.agent_down_ms, names))
    if names is None:
        chosen = [row for row in rows if row.up or wait]
        if not chosen:
            raise exception.Conflict(reason="There is no host whose agent is up.")
        return chosen
    existing = {row.name for row in rows} | {row.service_host for row in rows}
    for name in names:
        if name not in existing:
            raise exception.NotFound(noun="Host", key=name)
    check_agents(rows, wait=wait)
    return rows


def check_agents(rows: Sequence[HostAgent], *, wait: bool) -> None:
    """Raise Unavailable naming the hosts whose agent is down, unless ``wait``."""
    down = [row.name for row in rows if not row.up]
    if down and not wait:
        raise exception.Unavailable(
            peer=f"The agent of {', '.join(down)}",
            reason="it is down; nothing was changed. Repeat it when the agent is back, or ask "
            "with wait=true (--no-wait on the command line) to have it done then.",
        )


def begun_before(tx: Transaction, c: Write[Operation], verb: str) -> Operation | None:
    """Return the operation that this id has begun before, if any.

    Raises OperationTaken when the id belongs to another verb or project.
    """
    existing = operations.show(tx, c.request_key, EVERYWHERE)
    if existing is None:
        return None
    foreign = not c.caller.all_projects and existing.project_id != c.caller.project_id
    if foreign or existing.verb != verb:
        raise exception.OperationTaken(uuid=c.request_key)
    return existing


@retried
def show_progress(ctx: Conductor, row: ClaimedWork, state: ResultState, error: str | None) -> None:
    """Store what one host's part of an operation waits for, if that has changed."""
    result = HostResult((row.spec or {})["host"], state, error=error)
    with ctx.db.reader() as tx:
        if operations.result_of(tx, row.operation_id, result.host) == (state.value, error):
            return
    with queue.checkpoint(ctx, [row]) as tx:
        operations.update_result(tx, row.operation_id, result)
