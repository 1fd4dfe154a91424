# SPDX-License-Identifier: Apache-2.0
"""The request that an event belongs to, and which events each reader of the history gets."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.context import GLOBAL_ID, REQUEST_ID, working_for
from cyborg.db import events, listing, work
from cyborg.db.engine import Database, Reader
from cyborg.db.models import METADATA, Event, Host
from cyborg.db.work import ClaimedWork
from cyborg.model.caller import Caller
from cyborg.model.scope import EVERYWHERE, Scope
from cyborg.tests.fixtures.stored import stored

CALLER = Caller("project", "user", "req-1")
ENTRIES = [
    events.Entry("arq", "one", "Bound", state="Bound"),
    events.Entry("arq", "two", "deleted"),
]
ORIGIN = {GLOBAL_ID: "req-global"}
NOBODY = (None, None, None, None)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path}/events.sqlite")
    METADATA.create_all(database.engine)
    with working_for({REQUEST_ID: "req-1", **ORIGIN}):
        yield database
    database.close()


def origins(db: Reader) -> list[tuple[object, ...]]:
    """Project, user, request and operation of each event, and its detail."""
    columns = (Event.project_id, Event.user_id, Event.request_id, Event.operation_id, Event.detail)
    with db.reader() as tx:
        return [tuple(row) for row in tx.execute(sa.select(*columns).order_by(Event.id))]


def test_events_of_a_request_have_its_caller_key_and_ids(db: Database) -> None:
    with db.writer(CALLER, "key") as tx:
        events.record(tx, ENTRIES)
    request = ("project", "user", "req-1", "key")
    assert origins(db) == [
        (*request, {"state": "Bound", "origin": ORIGIN}),
        (*request, {"origin": ORIGIN}),
    ]


def test_events_of_the_service_itself_have_no_origin(db: Database) -> None:
    with db.writer() as tx:
        events.record(tx, ENTRIES)
    assert origins(db) == [(*NOBODY, {"state": "Bound"}), (*NOBODY, None)]


def test_events_of_work_have_its_operation_and_the_ids_of_its_request(db: Database) -> None:
    detail = {"state": "BindStarted", "origin": {GLOBAL_ID: "req-older"}}
    row = stored(ClaimedWork, operation_id="operation", request_id="req-2", detail=detail)
    unknown = stored(ClaimedWork, operation_id="operation", request_id=None, detail=None)
    with db.writer(CALLER, "key") as tx:
        work.record(tx, row, ENTRIES[1:])
        work.record(tx, unknown, ENTRIES[1:])
    assert origins(db) == [
        (None, None, "req-2", "operation", {"origin": {GLOBAL_ID: "req-older"}}),
        (None, None, None, "operation", None),
    ]


def test_origin_of_an_event_has_its_request_id() -> None:
    assert events.origin("req-1", None) == {REQUEST_ID: "req-1"}
    assert events.origin("req-1", {"state": "Bound", "origin": ORIGIN}) == {
        REQUEST_ID: "req-1",
        **ORIGIN,
    }


@pytest.mark.parametrize("returning", [True, False])
def test_expired_request_records_nothing(db: Database, returning: bool) -> None:
    # MySQL has no INSERT ... RETURNING.
    db.engine.dialect.insert_executemany_returning = returning
    expired, valid = (Caller("project", "user", "req-1", expires_ms=ms) for ms in (1, 2**41))
    with pytest.raises(exception.Unavailable), db.writer(expired, "key") as tx:
        events.record(tx, ENTRIES)
    assert origins(db) == []
    with db.writer(valid, "key") as tx:
        events.record(tx, ENTRIES)
    assert len(origins(db)) == len(ENTRIES)


def test_expiry_of_a_request_is_checked_only_with_its_events(db: Database) -> None:
    with db.writer(Caller("project", "user", "req-1", expires_ms=1), "key") as tx:
        events.record(tx, [])


def test_events_of_an_operation_are_found_by_action_and_subject(db: Database) -> None:
    for key in ("key", "other"):
        with db.writer(CALLER, key) as tx:
            entries = [events.Entry("arq", one, "deleted") for one in (f"{key} 1", f"{key} 2")]
            events.record(tx, [*entries, events.Entry("arq", f"{key} 3", "Bound")])
    with db.reader() as tx:
        asked = ["key 1", "key 3", "other 2", "nobody"]
        assert events.subjects_of(tx, "key", "deleted", asked) == {"key 1"}
        assert events.subjects_of(tx, "other", "deleted", asked) == {"other 2"}
        assert events.subject_of(tx, "key", "Bound") == "key 3"
        assert events.subject_of(tx, "other", "Bound") == "other 3"
        assert events.subject_of(tx, "key", "deleted") in ("key 1", "key 2")
        assert events.subject_of(tx, "key", "Unbound") is None
        assert [events.is_repeated(tx, key) for key in ("key", "other", "third")] == [
            True,
            True,
            False,
        ]


#: The subject of each event in the order of their times, a millisecond apart.
WRITTEN = [
    events.Entry("device", "card", "enabled", hostname="compute"),
    events.Entry("deployable", "part", "retired", hostname="compute", device_uuid="card"),
    events.Entry("arq", "card", "Bound", hostname="agent", instance_uuid="server"),
    events.Entry("instance", "server", "rebooted"),
    events.Entry("device", "second", "enabled", hostname="elsewhere"),
]


@pytest.fixture
def written(db: Database) -> Database:
    """A host with two names, and some events."""
    with db.writer() as tx:
        host = sa.insert(Host).values(name="compute", service_host="agent", updated_ms=0)
        tx.execute(host)
        for at_ms, entry in enumerate(WRITTEN):
            events.record(tx, [entry])
            newest = sa.select(sa.func.max(Event.id)).scalar_subquery()
            tx.execute(sa.update(Event).where(Event.id == newest).values(at_ms=at_ms))
    return db


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"device": "card"}, [0, 1]),
        ({"instance": "server"}, [2, 3]),
        ({"arq": "card"}, [2]),
        ({"since": 3}, [3, 4]),
        ({"host": "compute"}, [0, 1, 2]),
        ({"host": "agent"}, [0, 1, 2]),
        ({"host": "elsewhere"}, [4]),
        ({"host": "compute", "device": "card", "since": 1}, [1]),
    ],
)
def test_page_has_the_events_that_match_all_filters(
    written: Database, filters: dict[str, Any], found: list[int]
) -> None:
    with written.reader() as tx:
        rows = events.page(tx, listing.Page(), EVERYWHERE, filters)
        assert sorted(row.at_ms for row in rows) == found


def test_newest_events_of_a_subject_or_device_come_first(written: Database) -> None:
    with written.reader() as tx:
        assert [row.at_ms for row in events.of_device(tx, "card", EVERYWHERE, 10)] == [1, 0]
        assert [row.at_ms for row in events.of_device(tx, "card", EVERYWHERE, 1)] == [1]
        assert [row.action for row in events.of_subject(tx, "arq", "card", EVERYWHERE)] == ["Bound"]
        assert [row.action for row in events.of_subject(tx, "device", "card", EVERYWHERE)] == [
            "enabled"
        ]


def test_project_sees_the_events_that_it_has_caused_only(db: Database) -> None:
    """And those about its own ARQs, of which there are none here."""
    for project in ("project", "other"):
        with db.writer(Caller(project, "user", "req-1"), project) as tx:
            events.record(tx, [events.Entry("device", project, "enabled")])
    with db.reader() as tx:
        rows = events.page(tx, listing.Page(), Scope.of_project("project"), {})
    assert [row.subject_uuid for row in rows] == ["project"]
