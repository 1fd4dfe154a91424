# SPDX-License-Identifier: Apache-2.0
"""Which ARQs Nova is told of, and for which of them that is given up."""

from collections.abc import Sequence
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.clients.nova import BindEvent, EventVerdict
from cyborg.conductor.tasks.nova_events import notify
from cyborg.db import work
from cyborg.db.models import Event, Work
from cyborg.db.work import ClaimedWork
from cyborg.model.arq import State
from cyborg.model.work import WorkKind
from cyborg.tests.fixtures.contexts import context
from cyborg.tests.fixtures.use_cases import UseCases
from cyborg.tests.functional.rules.rows import set_arq

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


def claimed(conductor: UseCases, instance: str, arqs: Sequence[str]) -> Sequence[ClaimedWork]:
    """Notifications for these ARQs, in the hands of this conductor."""
    owner = conductor.lease.owner
    assert owner is not None
    tasks = [{"kind": WorkKind.NOTIFY, "instance_uuid": instance, "arq_uuid": one} for one in arqs]
    with conductor.db.writer() as tx:
        work.add(tx, tasks)
    # The last one came up just now, the others when Nova had just begun to wait.
    first = sa.select(sa.func.max(Work.id)).scalar_subquery()
    with conductor.db.writer() as tx:
        last = tx.execute(sa.select(first)).scalar_one()
        aged = sa.update(Work).where(Work.id != last)
        tx.execute(aged.values(created_ms=Work.created_ms - NOVA_WAITS))
        return work.claim(tx, owner=owner, lease_ms=60_000, limit=10)


def told(conductor: UseCases, nova: ListeningNova, rows: Sequence[ClaimedWork]) -> None:
    notify(context(conductor.db, nova=nova), rows)


def test_events_are_sent_for_resolved_arqs_only(conductor: UseCases) -> None:
    """Nova takes every event as the end of a bind."""
    instance = str(uuid4())
    states = list(State)
    ((*arqs,),) = conductor.request(1, len(states))
    for arq, state in zip(arqs, states, strict=True):
        set_arq(conductor.db, arq, state=state.value, instance_uuid=instance)
    nova = ListeningNova()
    told(conductor, nova, claimed(conductor, instance, arqs))
    by_uuid = dict(zip(arqs, states, strict=True))
    assert {by_uuid[one.arq_uuid]: one.succeeded for one in nova.events} == {
        State.BOUND: True,
        State.BIND_FAILED: False,
        State.DELETING: False,
    }
    assert conductor.count(Work) == 0


def test_only_expired_events_are_given_up(conductor: UseCases) -> None:
    ((*arqs,),), instance = conductor.request(1, 2), str(uuid4())
    for arq in arqs:
        set_arq(conductor.db, arq, state=State.BOUND.value, instance_uuid=instance)
    rows = claimed(conductor, instance, arqs)
    with pytest.raises(exception.Unavailable):
        told(conductor, ListeningNova(away=True), rows)
    with conductor.db.reader() as tx:
        given_up = sa.select(Event.subject_uuid).where(Event.action == "nova not told")
        assert list(tx.execute(given_up).scalars()) == arqs[:1]
        assert list(tx.execute(sa.select(Work.arq_uuid)).scalars()) == arqs[1:]
    conductor.execute(sa.update(Work).values(created_ms=0))
    with conductor.db.writer() as tx:
        owner = conductor.lease.owner
        assert owner is not None
        rows = work.claim(tx, owner=owner, lease_ms=-1, limit=10)
    told(conductor, ListeningNova(away=True), rows)
    assert conductor.count(Work) == 0
