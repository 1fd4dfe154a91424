# SPDX-License-Identifier: Apache-2.0
"""The history of requests that were never bound, which members can write without a limit."""

from collections.abc import Callable

import pytest
import sqlalchemy as sa
import webtest

from cyborg.db import events, history
from cyborg.db.engine import Database
from cyborg.db.models import Event
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import create, meddle


@pytest.fixture
def app(own_database: Database, beside: Callable[..., Stack]) -> webtest.TestApp:
    stack = beside(own_database, housekeeping=0.1)
    stack.start_conductor()
    return webtest.TestApp(stack.make_open_api())


def test_history_of_deleted_requests_that_were_never_bound_is_kept_for_an_hour(
    app: webtest.TestApp, own_database: Database
) -> None:
    admin, member = Client(app, role="admin"), Client(app)
    profile = admin.make_profile({"resources:FPGA": "1"})
    kept = create(member, profile)
    deleted = [arq["uuid"] for _ in range(3) for arq in create(member, profile)]
    for uuid in deleted:
        member.delete(f"/accelerator_requests?arqs={uuid}")

    def rows(*terms: sa.ColumnElement[bool]) -> list[tuple[str, str, bool]]:
        columns = Event.subject_uuid, Event.action, Event.expires_ms.is_not(None)
        with own_database.reader() as tx:
            found = tx.execute(sa.select(*columns).where(*terms).order_by(Event.id)).all()
        return [(uuid, action, bool(brief)) for uuid, action, brief in found]

    of_deleted = Event.subject_uuid.in_(deleted)
    assert sorted(rows(of_deleted)) == sorted(
        (uuid, action, True) for uuid in deleted for action in ("Initial", "deleted")
    )
    # A repeated request finds them meanwhile, at every pass of the housekeeping.
    assert history.purge_brief(own_database) == 0
    others = rows(~of_deleted)
    assert (kept[0]["uuid"], "Initial", False) in others
    due = sa.update(Event).values(expires_ms=Event.expires_ms - events.BRIEF_MS)
    meddle(own_database, due.where(Event.expires_ms.is_not(None)))
    eventually(lambda: not rows(of_deleted))
    assert rows(~of_deleted) == others


def test_history_of_requests_that_were_never_bound_has_a_bound_for_each_project(
    app: webtest.TestApp, own_database: Database
) -> None:
    admin, member, other = Client(app, role="admin"), Client(app), Client(app, project="another")
    profile = admin.make_profile({"resources:FPGA": "1"})

    def deleted(client: Client) -> list[str]:
        uuids = [arq["uuid"] for _ in range(4) for arq in create(client, profile)]
        for uuid in uuids:
            client.delete(f"/accelerator_requests?arqs={uuid}")
        return uuids

    def events_of(uuids: list[str]) -> list[str]:
        query = sa.select(Event.subject_uuid).where(Event.subject_uuid.in_(uuids))
        with own_database.reader() as tx:
            return list(tx.execute(query.order_by(Event.id)).scalars())

    first, others = deleted(member), deleted(other)
    due = sa.update(Event).values(expires_ms=Event.expires_ms - 120_000)
    meddle(own_database, due.where(Event.expires_ms.is_not(None)))
    last = deleted(member)
    assert history.purge_brief(own_database, most=12) == 4
    assert [len(events_of(uuids)) for uuids in (first, last, others)] == [4, 8, 8]
    # Those of the last minute stay in any case.
    assert history.purge_brief(own_database, most=3) == 4 + 5
    assert [len(events_of(uuids)) for uuids in (first, last, others)] == [0, 8, 3]
