# SPDX-License-Identifier: Apache-2.0
"""Where workers meet: two conductors on one database, and hosts that are there from the start.

Nothing runs by itself. Each round begins with the same rows, put back by a few statements.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import sqlalchemy as sa

from cyborg import exception
from cyborg.db.engine import Database, Reader
from cyborg.db.models import Arq, Event, Work
from cyborg.model.arq import State
from cyborg.model.audit_findings import Ages
from cyborg.tests.fixtures.single_step import Conductor, Environment
from cyborg.tests.fixtures.unit_states import HANDLE_ID, UNIT
from cyborg.tests.fixtures.usage_ledger import check_usage_records
from cyborg.tests.fixtures.use_cases import UseCases
from cyborg.tests.fixtures.waiting import Meeting, result
from cyborg.tests.oracle import snapshot
from cyborg.tests.oracle.rows import AuditViews
from cyborg.tests.oracle.rules import check

WORKERS = 32
#: How a verb ended: None when it was carried out.
Outcome = type[exception.CyborgError] | None
Verb = Callable[[], object]
T = TypeVar("T")

_DAY = 86_400_000
#: What was said once, at the start, counts all the time.
_PATIENT = Ages(agent_silence=_DAY, conductor_silence=_DAY)


def at_once(verbs: Sequence[Callable[[], T]]) -> list[T]:
    """The answers of verbs that begin at the same moment, in their order; raises what one does."""
    start = Meeting(len(verbs))

    def run(verb: Callable[[], T]) -> T:
        start.meet()
        return verb()

    with ThreadPoolExecutor(len(verbs)) as pool:
        return [result(one) for one in [pool.submit(run, verb) for verb in verbs]]


def sound(database: Reader) -> None:
    """Every invariant that can be told from the rows alone holds."""
    found = [
        (one.kind, one.cause) for one in check(snapshot.take(database), AuditViews(), _PATIENT)
    ]
    assert not found, found
    check_usage_records(database)


@dataclass
class Arena:
    """Two conductors on one database; the first one knows the hosts."""

    environment: Environment
    conductors: tuple[Conductor, ...]

    @property
    def first(self) -> Conductor:
        """The conductor that looks, and puts things back."""
        return self.conductors[0]

    @property
    def db(self) -> Database:
        return self.first.db

    def take_turns(self, count: int) -> list[Conductor]:
        """So many workers' conductors, alternately."""
        return [self.conductors[one % len(self.conductors)] for one in range(count)]

    def outcomes(self, verbs: Sequence[Verb]) -> list[Outcome]:
        """How verbs that begin at the same moment end; no error but ours is an outcome."""
        return at_once([partial(_outcome, one) for one in verbs])

    def reset(self) -> None:
        """No ARQ, no work, no history; every device is there, in service and free."""
        self.first.reset()
        for one in self.conductors:
            one.lease.renew()


def holds(
    cases: UseCases, bound: Mapping[str, Collection[str]], *, state: State = State.BOUND
) -> None:
    """Just these ARQs (by instance) are bound, each with a handle; the others have nothing.

    Nova is to be told of each once, or the host to prepare it, and history knows of it.
    """
    sound(cases.db)
    with cases.db.reader() as tx:
        arqs = tx.execute(
            sa.select(Arq.uuid, Arq.state, Arq.instance_uuid, HANDLE_ID.label("handle_id"))
        ).all()
        held = tx.execute(sa.select(sa.func.count()).where(UNIT == "held")).scalar_one()
        work = tx.execute(sa.select(Work.arq_uuid).where(Work.kind != "release")).scalars()
        told = Counter(work)
        written = Counter(
            tx.execute(sa.select(Event.subject_uuid).where(Event.action == state)).scalars()
        )
    wanted = {arq: instance for instance, uuids in bound.items() for arq in uuids}
    having = {one.uuid: one.instance_uuid for one in arqs if one.state == state}
    assert having == wanted
    left = [one for one in arqs if one.uuid not in wanted]
    assert {(one.instance_uuid, one.handle_id) for one in left} <= {(None, None)}
    assert {one.state for one in left} <= {State.INITIAL, State.UNBOUND}
    assert held == len(wanted)
    assert {told[one] for one in wanted} | {written[one] for one in wanted} <= {1}


def _outcome(verb: Verb) -> Outcome:
    try:
        verb()
    except exception.CyborgError as error:
        return type(error)
    return None
