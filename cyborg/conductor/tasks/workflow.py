# SPDX-License-Identifier: Apache-2.0
"""Carry out work step by step, by tables of steps: the one engine of all work that asks an agent.

The row of the work stores in which step it is. So any conductor repeats a step until it has ended,
and takes the next one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from cyborg import exception
from cyborg.conductor.context import Conductor
from cyborg.conductor.tasks import queue
from cyborg.conductor.tasks.queue import Fenced
from cyborg.db import operations, work
from cyborg.db.engine import retried
from cyborg.db.transaction import Transaction
from cyborg.db.work import ClaimedWork
from cyborg.model.work import Discovered, Outcome

#: Milliseconds until an agent that has not finished its part of some work is called again.
POLL_MS: Final = 1000
#: The key in the ``spec`` of work for the name of its step. Without it, the first step is next.
STEP: Final = "step"
#: The answer of an agent, or the Outcome of a step that asks something else: done, or a fault.
Answer = Discovered | Outcome


@dataclass(frozen=True)
class Waiting:
    """The step cannot end yet; ``reason`` is stored as the error of the work.

    With ``pause_ms`` 0 the pause grows with the attempts. ``spec`` is what the spec of the work
    gets for the next attempt.
    """

    reason: str | None = None
    pause_ms: int = POLL_MS
    spec: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class To:
    """Another step follows than the table says.

    ``spec`` is what the spec of the work gets for it. With ``deadline_in`` (milliseconds) the work
    gets a new deadline.
    """

    step: StrEnum
    spec: Mapping[str, Any] = field(default_factory=dict)
    deadline_in: int | None = None


#: What the work is about.
S = TypeVar("S")


@dataclass(frozen=True)
class Run(Generic[S]):
    """One run of a step. ``spec`` is that of the work, with what the steps before have added."""

    row: ClaimedWork
    step: str
    spec: Mapping[str, Any]
    subject: S


Ask = Callable[[Conductor, Run[S]], Answer | Waiting | To]
End = Callable[[Conductor, Run[S], Transaction, Any], To | Waiting | Outcome | None]
Fail = Callable[[Conductor, Run[S], Transaction, Outcome], To | Waiting | None]


def try_again(_ctx: Conductor, _run: Run[Any], _tx: Transaction, outcome: Outcome) -> Waiting:
    """Repeat the step until it succeeds: the ``fail`` of a step without another way."""
    return Waiting(outcome.fault, pause_ms=0)


@dataclass(frozen=True, kw_only=True)
class Step(Generic[S]):
    """One row of a workflow: what is asked, what the answers mean, and which step follows.

    ``ask`` is called outside of transactions. It follows again after an answer that is not done (a
    repeated call to the agent with the same request key joins the operation that is running there),
    after Waiting, and after any error but ``refusals``, with which an agent says that it does not
    know the request. ``ask`` commits what the database must know before it calls the agent.

    ``end`` and ``fail`` make their changes in the transaction that stores the next step, or that
    ends the work. They may also return another step, or Waiting, and ``end`` an Outcome with a
    fault, which ``fail`` gets. The transaction is repeated after a deadlock. After the deadline of
    the work ``fail`` follows, with the fault ``overdue``.
    """

    #: None: there is nothing to ask, and ``end`` follows at once.
    ask: Ask[S] | None = None
    #: Gets answers without a fault. None: the next step needs no change.
    end: End[S] | None = None
    #: Gets faults. The work ends after it, unless it returns another step.
    fail: Fail[S]
    #: The step after ``end``. None: the work has ended.
    next: StrEnum | None = None
    #: The step that the operation of the work has reached when the work gets to this one.
    reached: str | None = None
    #: Gets refusals; the default is ``fail``.
    refuse: Fail[S] | None = None
    #: Gets the progress of an answer that is not done, if the agent tells it.
    show: Callable[[Run[S], Transaction, str], None] | None = None
    #: Reads what the work is about from the database: its handle, device or agent. None: nothing.
    read: Callable[[Conductor, Run[None], Transaction], S] | None = None
    #: None: the work has no deadline, or the step checks it.
    overdue: str | None = None
    #: Whether the fault of overdue work ends with its last error, which says more.
    overdue_error: bool = False
    poll_ms: int = POLL_MS
    #: Each with the beginning of its fault.
    refusals: Mapping[type[exception.CyborgError], str] = field(default_factory=dict)


@dataclass(frozen=True)
class Workflow:
    """The steps of a kind of work by name, the first one first; this is the handler of the work."""

    steps: Mapping[str, Step[Any]]

    def __call__(self, ctx: Conductor, rows: Sequence[ClaimedWork]) -> None:
        """Take all steps that are possible now."""
        (row,) = rows
        spec: Mapping[str, Any] | None = row.spec or {}
        while spec is not None:
            first, *others = self.steps
            # The spec of work with one step may have any key: it is from a device profile.
            name = str(spec.get(STEP, first)) if others else first
            spec = self._take(ctx, Run(row, name, spec, None))

    def _take(self, ctx: Conductor, run: Run[Any]) -> Mapping[str, Any] | None:
        """Take one step; return the spec for the next one, None if none is possible now."""
        row, step = run.row, self.steps[run.step]
        if step.read is not None:
            with ctx.db.reader() as tx:
                run = replace(run, subject=step.read(ctx, run, tx))
        if row.overdue and step.overdue is not None:
            more = f": {row.error}" if step.overdue_error and row.error else ""
            overdue = Outcome(row.uuid, fault=f"{step.overdue}{more}")
            return self._store(ctx, run, lambda tx: step.fail(ctx, run, tx, overdue))
        try:
            answer = Outcome(row.uuid) if step.ask is None else step.ask(ctx, run)
        except tuple(step.refusals) as error:
            prefix = next(text for kind, text in step.refusals.items() if isinstance(error, kind))
            refusal = Outcome(row.uuid, fault=f"{prefix}{error}")
            return self._store(
                ctx, run, lambda tx: (step.refuse or step.fail)(ctx, run, tx, refusal)
            )
        if isinstance(answer, Waiting):
            _wait(ctx, run, answer)
            return None
        if isinstance(answer, To):
            return self._store(ctx, run, lambda _tx: answer)
        if not answer.done:
            waiting = Waiting(pause_ms=step.poll_ms)
            progress = answer.progress if isinstance(answer, Outcome) else None
            if not progress or (show := step.show) is None:
                _wait(ctx, run, waiting)
                return None
            return self._store(ctx, run, lambda tx: show(run, tx, progress) or waiting)
        if isinstance(answer, Outcome) and answer.fault is not None:
            return self._store(ctx, run, lambda tx: step.fail(ctx, run, tx, answer))

        def end(tx: Transaction) -> To | Waiting | None:
            follows = None if step.end is None else step.end(ctx, run, tx, answer)
            if isinstance(follows, Outcome):
                return step.fail(ctx, run, tx, follows)
            return To(step.next) if follows is None and step.next is not None else follows

        return self._store(ctx, run, end)

    @retried
    def _store(
        self, ctx: Conductor, run: Run[Any], change: Callable[[Transaction], To | Waiting | None]
    ) -> Mapping[str, Any] | None:
        """Make the changes of a step, and store what follows it, in one transaction.

        Raises Fenced when the work belongs to another conductor.
        """
        row = run.row
        with ctx.db.writer() as tx:
            follows = change(tx)
            if follows is None:
                if not work.finish(tx, [row]):
                    raise Fenced
                return None
            if isinstance(follows, Waiting):
                _postpone(tx, run, follows)
                spec = None
            else:
                reached = self.steps[follows.step].reached
                if reached is not None:
                    operations.add_step(tx, row.operation_id, reached)
                spec = {**run.spec, **follows.spec, STEP: follows.step.value}
                work.set_spec(tx, row, spec, deadline_in=follows.deadline_in)
            if not work.lock_owned(tx, [row]):
                raise Fenced
            return spec


@retried
def _wait(ctx: Conductor, run: Run[Any], waiting: Waiting) -> None:
    with ctx.db.writer() as tx:
        _postpone(tx, run, waiting)


def _postpone(tx: Transaction, run: Run[Any], waiting: Waiting) -> None:
    spec = {**run.spec, **waiting.spec}
    if spec != run.spec:
        work.set_spec(tx, run.row, spec)
    queue.postpone(tx, [run.row], waiting.reason, pause_ms=waiting.pause_ms)
