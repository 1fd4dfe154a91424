# SPDX-License-Identifier: Apache-2.0
"""Ask the agent of a host and wait for its answer: the one way of all work that needs an agent."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from cyborg import exception
from cyborg.conductor.tasks.queue import WorkQueue
from cyborg.db.transaction import Transaction
from cyborg.db.work import ClaimedWork
from cyborg.model.work import Discovered, Outcome

#: Milliseconds until an agent that has not finished its part of some work is called again.
AGENT_POLL_MS = 1000
#: The answer of an agent, or the Outcome of work that needs no answer: done, or a fault.
Answer = Discovered | Outcome


@dataclass(frozen=True)
class Waiting:
    """The work cannot continue yet; ``reason`` is stored as its error.

    With ``pause_ms`` 0 the pause grows with the attempts.
    """

    reason: str | None = None
    pause_ms: int = AGENT_POLL_MS


#: What the work is about.
S = TypeVar("S")
Ask = Callable[[ClaimedWork, S], Answer | Waiting]
End = Callable[[ClaimedWork, S, Any], None]


@dataclass(frozen=True, kw_only=True)
class AgentTask(Generic[S]):
    """One kind of work, or one step of it: what an agent is asked, and what each outcome does.

    ``ask`` follows again after an answer that is not done (a repeated call to the agent with the
    same request key joins the operation that is running there), after Waiting, and after any error
    but ``refusals``, with which an agent says that it does not know the request.

    After the deadline of the work ``fail`` follows, with the fault ``overdue``. Each function gets
    the row of the work and what ``read`` has returned for it. ``ask`` commits what the database
    must know before it calls the agent. The others end the work, or store its next step, in one
    transaction of the queue.
    """

    queue: WorkQueue
    ask: Ask[S]
    end: End[S]
    #: Gets faults; the default is ``end``.
    fail: End[S] | None = None
    #: Gets refusals; the default is ``fail``.
    refuse: End[S] | None = None
    #: Gets the progress of an answer that is not done, if the agent tells it.
    show: Callable[[ClaimedWork, S, str], None] | None = None
    #: Reads what the work is about from the database: its handle, device or agent. None: nothing.
    read: Callable[[Transaction, ClaimedWork], S] | None = None
    #: None: the work has no deadline, or ``ask`` checks it.
    overdue: str | None = None
    #: Whether the fault of overdue work ends with its last error, which says more.
    overdue_error: bool = False
    poll_ms: int = AGENT_POLL_MS
    #: Each with the beginning of its fault.
    refusals: Mapping[type[exception.CyborgError], str] = field(default_factory=dict)

    def run(self, rows: Sequence[ClaimedWork]) -> None:
        """Ask once, and do what follows; this is the handler of the work."""
        (row,) = rows
        subject = cast("S", None)
        if self.read is not None:
            with self.queue.db.reader() as tx:
                subject = self.read(tx, row)
        fail = self.fail or self.end
        if row.overdue and self.overdue is not None:
            more = f": {row.error}" if self.overdue_error and row.error else ""
            fail(row, subject, Outcome(row.uuid, fault=f"{self.overdue}{more}"))
            return
        try:
            answer = self.ask(row, subject)
        except tuple(self.refusals) as error:
            prefix = next(text for kind, text in self.refusals.items() if isinstance(error, kind))
            (self.refuse or fail)(row, subject, Outcome(row.uuid, fault=f"{prefix}{error}"))
            return
        if isinstance(answer, Waiting):
            self.queue.reschedule(rows, answer.reason, pause_ms=answer.pause_ms)
        elif not answer.done:
            if self.show is not None and isinstance(answer, Outcome) and answer.progress:
                self.show(row, subject, answer.progress)
            self.queue.reschedule(rows, None, pause_ms=self.poll_ms)
        elif isinstance(answer, Outcome) and answer.fault is not None:
            fail(row, subject, answer)
        else:
            self.end(row, subject, answer)
