# SPDX-License-Identifier: Apache-2.0
"""The columns of an event that tell which request it belongs to."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from cyborg.context import GLOBAL_ID, REQUEST_ID, working_for
from cyborg.db import events, work
from cyborg.db.engine import Database, Reader
from cyborg.db.models import METADATA, Event
from cyborg.db.work import ClaimedWork
from cyborg.model.caller import Caller
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
