# SPDX-License-Identifier: Apache-2.0
"""Workflows: what follows each outcome of a step, and the tables of all kinds of work."""

import ast
from collections.abc import Iterator
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import cyborg.conductor
from cyborg import exception
from cyborg.conductor.app import WORK
from cyborg.conductor.tasks.queue import Fenced
from cyborg.conductor.tasks.workflow import (
    POLL_MS,
    STEP,
    Answer,
    Run,
    Step,
    To,
    Waiting,
    Workflow,
    try_again,
)
from cyborg.db import work
from cyborg.db.engine import Database
from cyborg.db.models import Work
from cyborg.db.transaction import Transaction
from cyborg.db.work import ClaimedWork
from cyborg.model.work import Discovered, Outcome, WorkKind
from cyborg.tests.fixtures.contexts import context
from cyborg.tests.fixtures.stored import stored

KEY = "5b0f6e1e-3d6c-4a86-9d0c-6f1f5f6f0b11"
#: The first pause of work whose pause grows is a random part of this, and at least half of it.
_LONGEST_FIRST_PAUSE_MS = 500
UNKNOWN = exception.UnknownVerb(peer="agent", verb="install")


class Frozen(Database):
    """The database of ``db`` whose clock stands still at 0."""

    def __init__(self, db: Database) -> None:
        url = db.engine.url.render_as_string(hide_password=False)
        super().__init__(url, now=sa.literal_column("0"))


def stored_work(db: Database, **columns: Any) -> ClaimedWork:
    """Store work that is due, and return it as claimed."""
    with db.writer() as tx:
        work.add(tx, [{"kind": WorkKind.NOTIFY, "spec": columns.get("spec")}])
        newest = sa.select(Work.id).order_by(Work.id.desc()).limit(1).scalar_subquery()
        id_ = tx.scalar(sa.select(newest))
        tx.execute(sa.update(Work).where(Work.id == id_).values(not_before_ms=-1))
    more = {"id": id_, "fence": 0, "attempts": 1, "error": "the last error", "operation_id": None}
    return stored(ClaimedWork, **{"uuid": KEY, "overdue": False, "spec": None, **more, **columns})


def outcome_of(db: Database, result: Any, *, is_overdue: bool = False, **more: Any) -> list[Any]:
    """Take a step whose ``ask`` returns or raises ``result``; return what followed."""
    log: list[Any] = []
    frozen = Frozen(db)
    row = stored_work(frozen, overdue=is_overdue)

    def ask(_ctx: Any, run: Run[Any]) -> Answer | Waiting | To:
        log.append(("ask", run.subject))
        if isinstance(result, Exception):
            raise result
        return result  # type: ignore[no-any-return]

    def end(name: str) -> Any:
        return lambda _ctx, run, _tx, answer: log.append(
            (name, run.subject, getattr(answer, "fault", 0))
        )

    more = {"fail": end("fail"), "read": lambda _ctx, _run, _tx: "device", **more}
    Workflow({"only": Step(ask=ask, end=end("end"), **more)})(context(frozen), [row])
    with frozen.reader() as tx:
        columns = sa.select(Work.not_before_ms, Work.error).where(Work.id == row.id)
        due = tx.execute(columns).one_or_none()
    if due is not None:
        growing = _LONGEST_FIRST_PAUSE_MS // 2 <= due.not_before_ms <= _LONGEST_FIRST_PAUSE_MS
        log.append(("later", due.error, "growing" if growing else due.not_before_ms))
    frozen.close()
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
        (Waiting("another is at it"), ("later", "another is at it", POLL_MS)),
        (Waiting("it is silent", 0), ("later", "it is silent", "growing")),
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
        refuse=lambda _ctx, _run, _tx, outcome: refused.append(outcome.fault),
    )
    assert refused == [str(UNKNOWN)]


def test_error_that_is_no_refusal_is_raised(db: Database) -> None:
    with pytest.raises(exception.UnknownVerb):
        outcome_of(db, UNKNOWN)


@pytest.mark.parametrize(
    ("names_error", "fault"), [(False, "too late"), (True, "too late: the last error")]
)
def test_overdue_work_fails_without_asking(db: Database, names_error: bool, fault: str) -> None:
    log = outcome_of(
        db, Outcome(KEY), is_overdue=True, overdue="too late", overdue_error=names_error
    )
    assert log == [("fail", "device", fault)]


def test_overdue_work_that_checks_its_deadline_is_asked(db: Database) -> None:
    assert outcome_of(db, Outcome(KEY), is_overdue=True)[0] == ASKED


def test_step_without_another_way_is_repeated_until_it_succeeds(db: Database) -> None:
    log = outcome_of(db, Outcome(KEY, fault="it is broken"), fail=try_again)
    assert log == [ASKED, ("later", "it is broken", "growing")]


def test_progress_is_shown_only_where_the_work_shows_it(db: Database) -> None:
    unfinished = Outcome(KEY, done=False, progress="formatted 3 of 8")
    shown: list[Any] = []

    def show(run: Run[Any], tx: Transaction, progress: str) -> None:
        shown.append((run.subject, progress))

    later = ("later", None, POLL_MS)
    assert outcome_of(db, unfinished, show=show) == [ASKED, later]
    assert shown == [("device", unfinished.progress)]
    assert outcome_of(db, unfinished) == [ASKED, later]
    assert outcome_of(db, Outcome(KEY, done=False), show=show) == [ASKED, later]
    assert len(shown) == 1


class Names(StrEnum):
    """The steps of a workflow."""

    FIRST = "first"
    SECOND = "second"
    BACK = "back"


def steps(log: list[Any], **first: Any) -> Workflow:
    """Return a workflow that logs which step ends with which spec."""

    def end(_ctx: Any, run: Run[Any], tx: Transaction, outcome: Outcome) -> None:
        log.append((run.step, dict(run.spec), outcome.fault))

    return Workflow(
        {
            Names.FIRST: Step(**{"end": end, "fail": end, "next": Names.SECOND, **first}),
            Names.SECOND: Step(end=end, fail=end),
            Names.BACK: Step(end=end, fail=end),
        }
    )


def test_steps_follow_each_other_and_the_last_one_ends_the_work(db: Database) -> None:
    log: list[Any] = []
    steps(log)(context(db), [stored_work(db, spec={"host": "a"})])
    assert log == [
        (Names.FIRST, {"host": "a"}, None),
        (Names.SECOND, {"host": "a", STEP: Names.SECOND}, None),
    ]
    with db.reader() as tx:
        assert not tx.execute(sa.select(Work.id)).all()


def test_work_continues_with_the_step_that_it_has_stored(db: Database) -> None:
    log: list[Any] = []
    steps(log)(context(db), [stored_work(db, spec={STEP: Names.SECOND.value})])
    assert [step for step, *_ in log] == [Names.SECOND]


@pytest.mark.parametrize("name", ["ask", "end"])
def test_another_step_follows_with_what_is_added_to_the_spec(db: Database, name: str) -> None:
    log: list[Any] = []
    steps(log, **{name: lambda *_: To(Names.BACK, {"fault": "why"})})(
        context(db), [stored_work(db, spec={"host": "a"})]
    )
    assert log == [(Names.BACK, {"host": "a", "fault": "why", STEP: Names.BACK}, None)]


def test_fault_that_an_end_returns_is_a_failure(db: Database) -> None:
    log: list[Any] = []
    steps(log, end=lambda *_: Outcome(KEY, fault="it is gone"))(
        context(db), [stored_work(db, spec={})]
    )
    assert log == [(Names.FIRST, {}, "it is gone")]


def test_end_that_waits_keeps_its_step_and_what_it_stores(db: Database) -> None:
    row = stored_work(db, spec={"refusals": 1, "host": "a"})
    steps([], end=lambda *_: Waiting("busy", 70, {"refusals": 2}))(context(db), [row])
    with db.reader() as tx:
        assert tx.execute(sa.select(Work.spec, Work.error)).one() == (
            {"refusals": 2, "host": "a"},
            "busy",
        )


@pytest.mark.parametrize("follows", [None, To(Names.BACK), Waiting("busy")])
def test_changes_are_rolled_back_if_another_conductor_has_the_work(
    db: Database, follows: Any
) -> None:
    row = stored_work(db, fence=7)
    logged: list[str] = []

    def end(_ctx: Any, run: Run[Any], tx: Transaction, answer: Any) -> Any:
        work.add(tx, [{"kind": WorkKind.NOTIFY}])
        tx.then(logged.append, "committed")
        return follows

    with pytest.raises(Fenced):
        steps([], end=end, next=None)(context(db), [row])
    with db.reader() as tx:
        assert list(tx.execute(sa.select(Work.id)).scalars()) == [row.id]
    assert not logged


#: The workflow of each kind of work that has one.
WORKFLOWS = {kind: flow for kind, flow in WORK.items() if isinstance(flow, Workflow)}


@pytest.mark.parametrize("kind", WORKFLOWS)
def test_each_step_has_an_end_and_the_next_one_exists(kind: WorkKind) -> None:
    table = WORKFLOWS[kind].steps
    for step in table.values():
        assert step.end is not None or step.next is not None
        assert step.next is None or step.next in table
    # Other steps follow by name: all names of an enumeration are rows of the table.
    for names in {type(name) for name in table if isinstance(name, StrEnum)}:
        assert {str(name) for name in names} <= set(table)


def _asks(function: Any) -> Iterator[str]:
    """Yield the function that asks, and the functions that it is given."""
    if function is None:
        return
    if isinstance(function, partial):
        for part in (function.func, *function.args):
            yield from _asks(part)
    else:
        yield function.__qualname__


def test_only_steps_of_workflows_ask_agents() -> None:
    """A function that calls an agent is the ``ask`` of a step."""
    asking = {
        node.name
        for path in Path(cyborg.conductor.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        if any(
            isinstance(call, ast.Call) and ast.unparse(call.func).endswith("agents.request")
            for call in ast.walk(node)
        )
    }
    assert asking
    tables = [flow.steps.values() for flow in WORKFLOWS.values()]
    assert asking <= {name for table in tables for step in table for name in _asks(step.ask)}
