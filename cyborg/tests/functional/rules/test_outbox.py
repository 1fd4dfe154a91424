# SPDX-License-Identifier: Apache-2.0
"""Which ARQs Nova is told of, and for which of them that is given up."""

from collections.abc import Sequence
from typing import cast
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.clients.nova import BindEvent, EventVerdict, Nova
from cyborg.conductor.tasks.nova_events import NovaEvents
from cyborg.conductor.tasks.queue import WorkQueue
from cyborg.db import work
from cyborg.db.models import Event, Work
from cyborg.db.work import ClaimedWork
from cyborg.model.arq import State
from cyborg.model.work import WorkKind
from cyborg.tests.functional.races.arena import Arena
from cyborg.tests.functional.rules.rows import execute, set_arq

#: How long Nova waits for the events of a server, in milliseconds.
NOVA_WAITS = 300_000


class ListeningNova:
    """Notes the events that are sent, and takes them unless it is ``away``."""

    def __init__(self, *, away: bool = False) -> None:
        self.events: list[BindEvent] = []
        self._away = away

    def send_events(self, events: Sequence[BindEvent]) -> list[EventVerdict]:
        if self._away:
            raise exception.Unavailable(peer="Nova", reason="it is away")
        self.events += events
        return [EventVerdict.DELIVERED] * len(events)


def claimed(arena: Arena, instance: str, arqs: Sequence[str]) -> Sequence[ClaimedWork]:
    """Notifications for these ARQs, in the hands of this conductor."""
    (conductor,) = arena.conductors
    owner = conductor.lease.owner
    assert owner is not None
    tasks = [{"kind": WorkKind.NOTIFY, "instance_uuid": instance, "arq_uuid": one} for one in arqs]
    with arena.db.writer() as tx:
        work.add(tx, tasks)
    # The last one came up just now, the others when Nova had just begun to wait.
    first = sa.select(sa.func.max(Work.id)).scalar_subquery()
    with arena.db.writer() as tx:
        last = tx.execute(sa.select(first)).scalar_one()
        aged = sa.update(Work).where(Work.id != last)
        tx.execute(aged.values(created_ms=Work.created_ms - NOVA_WAITS))
        return work.claim(tx, owner=owner, lease_ms=60_000, limit=10)


def told(arena: Arena, nova: ListeningNova, rows: Sequence[ClaimedWork]) -> None:
    outbox = NovaEvents(db=arena.db, queue=WorkQueue(db=arena.db), nova=cast(Nova, nova))
    outbox.notify(rows)


def test_events_are_sent_for_resolved_arqs_only(arena: Arena) -> None:
    """Nova takes every event as the end of a bind."""
    instance = str(uuid4())
    states = list(State)
    ((*arqs,),) = arena.request(1, len(states))
    for arq, state in zip(arqs, states, strict=True):
        set_arq(arena.db, arq, state=state.value)
    nova = ListeningNova()
    told(arena, nova, claimed(arena, instance, arqs))
    by_uuid = dict(zip(arqs, states, strict=True))
    assert {by_uuid[one.arq_uuid]: one.succeeded for one in nova.events} == {
        State.BOUND: True,
        State.BIND_FAILED: False,
        State.DELETING: False,
    }
    assert arena.count(Work) == 0


def test_only_expired_events_are_given_up(arena: Arena) -> None:
    ((*arqs,),) = arena.request(1, 2)
    for arq in arqs:
        set_arq(arena.db, arq, state=State.BOUND.value)
    rows = claimed(arena, str(uuid4()), arqs)
    with pytest.raises(exception.Unavailable):
        told(arena, ListeningNova(away=True), rows)
    with arena.db.reader() as tx:
        given_up = sa.select(Event.subject_uuid).where(Event.action == "nova not told")
        assert list(tx.execute(given_up).scalars()) == arqs[:1]
        assert list(tx.execute(sa.select(Work.arq_uuid)).scalars()) == arqs[1:]
    execute(arena.db, sa.update(Work).values(created_ms=0))
    with arena.db.writer() as tx:
        owner = arena.conductors[0].lease.owner
        assert owner is not None
        rows = work.claim(tx, owner=owner, lease_ms=-1, limit=10)
    told(arena, ListeningNova(away=True), rows)
    assert arena.count(Work) == 0
