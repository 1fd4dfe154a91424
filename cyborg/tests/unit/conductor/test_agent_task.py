# SPDX-License-Identifier: Apache-2.0
"""Work that asks an agent: what follows each outcome."""

from typing import Any

import pytest

from cyborg import exception
from cyborg.conductor.tasks.agent_task import AGENT_POLL_MS, AgentTask, Answer, Waiting
from cyborg.conductor.tasks.queue import WorkQueue
from cyborg.db.engine import Database
from cyborg.db.work import ClaimedWork
from cyborg.model.work import Discovered, Outcome
from cyborg.tests.fixtures.stored import stored

KEY = "5b0f6e1e-3d6c-4a86-9d0c-6f1f5f6f0b11"
UNKNOWN = exception.UnknownVerb(peer="agent", verb="install")


ROW = stored(ClaimedWork, uuid=KEY, overdue=False, error="the last error")
OVERDUE = stored(ClaimedWork, uuid=KEY, overdue=True, error="the last error")


class Recorder(WorkQueue):
    """A queue that tells what was rescheduled."""

    def __init__(self, db: Database, log: list[Any]) -> None:
        super().__init__(db=db)
        object.__setattr__(self, "log", log)

    def reschedule(self, rows: Any, error: str | None, *, pause_ms: int = 0) -> None:
        self.log.append(("later", error, pause_ms))  # type: ignore[attr-defined]


def outcome_of(db: Database, result: Any, row: ClaimedWork = ROW, **more: Any) -> list[Any]:
    """Run a task whose ``ask`` returns or raises ``result``; return what followed."""
    log: list[Any] = []

    def ask(row: Any, subject: Any) -> Answer | Waiting:
        log.append(("ask", subject))
        if isinstance(result, Exception):
            raise result
        return result  # type: ignore[no-any-return]

    def end(name: str) -> Any:
        return lambda row, subject, answer: log.append((name, subject, getattr(answer, "fault", 0)))

    more = {"fail": end("fail"), "read": lambda tx, row: "device", **more}
    AgentTask(queue=Recorder(db, log), ask=ask, end=end("end"), **more).run([row])
    return log


ASKED = ("ask", "device")


@pytest.mark.parametrize(
    ("result", "follows"),
    [
        (Outcome(KEY), ("end", "device", None)),
        (Discovered(KEY), ("end", "device", 0)),
        (Outcome(KEY, fault="it is broken"), ("fail", "device", "it is broken")),
        (Outcome(KEY, done=False), ("later", None, 70)),
        (Discovered(KEY, done=False), ("later", None, 70)),
        (Waiting("another is at it"), ("later", "another is at it", AGENT_POLL_MS)),
        (Waiting("it is silent", 0), ("later", "it is silent", 0)),
        (UNKNOWN, ("fail", "device", f"refused: {UNKNOWN}")),
    ],
)
def test_each_outcome_is_followed_by_one_step(db: Database, result: Any, follows: Any) -> None:
    refusals = {exception.UnknownVerb: "refused: "}
    assert outcome_of(db, result, poll_ms=70, refusals=refusals) == [ASKED, follows]


def test_refusal_has_an_end_of_its_own(db: Database) -> None:
    refused: list[Any] = []
    outcome_of(
        db,
        UNKNOWN,
        refusals={exception.UnknownVerb: ""},
        refuse=lambda row, subject, outcome: refused.append(outcome.fault),
    )
    assert refused == [str(UNKNOWN)]


def test_error_that_is_no_refusal_is_raised(db: Database) -> None:
    with pytest.raises(exception.UnknownVerb):
        outcome_of(db, UNKNOWN)


@pytest.mark.parametrize(
    ("names_error", "fault"), [(False, "too late"), (True, "too late: the last error")]
)
def test_overdue_work_fails_without_asking(db: Database, names_error: bool, fault: str) -> None:
    log = outcome_of(db, Outcome(KEY), OVERDUE, overdue="too late", overdue_error=names_error)
    assert log == [("fail", "device", fault)]


def test_overdue_work_that_checks_its_deadline_is_asked(db: Database) -> None:
    assert outcome_of(db, Outcome(KEY), OVERDUE)[0] == ASKED


def test_faults_go_to_the_end_without_another_function(db: Database) -> None:
    log = outcome_of(db, Outcome(KEY, fault="it is broken"), fail=None)
    assert log == [ASKED, ("end", "device", "it is broken")]


def test_progress_is_shown_only_where_the_work_shows_it(db: Database) -> None:
    unfinished = Outcome(KEY, done=False, progress="formatted 3 of 8")
    shown: list[Any] = []

    def show(row: Any, subject: Any, progress: Any) -> None:
        shown.append((subject, progress))

    later = ("later", None, AGENT_POLL_MS)
    assert outcome_of(db, unfinished, show=show) == [ASKED, later]
    assert shown == [("device", unfinished.progress)]
    assert outcome_of(db, unfinished) == [ASKED, later]
    assert outcome_of(db, Outcome(KEY, done=False), show=show) == [ASKED, later]
    assert len(shown) == 1
