# SPDX-License-Identifier: Apache-2.0
"""The first bind of an instance, between two statements of the delete of all its ARQs."""

from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from cyborg.clients.nova import Nova
from cyborg.db.engine import Database
from cyborg.db.models import Instance
from cyborg.tests.fixtures.direct_bus import DirectBus, Exchange
from cyborg.tests.fixtures.host_reports import provider_of
from cyborg.tests.fixtures.unreachable import unreachable
from cyborg.tests.functional.races.arena import Arena, Conductor
from cyborg.tests.functional.rules.conftest import PLAIN


class Interruption:
    """Calls ``verb`` once, right after the first statement that changes a table.

    The statement has been carried out then, and its transaction goes on after the call.
    """

    def __init__(self, db: Database, table: str, verb: Any) -> None:
        self._verb = verb
        self._begin = f"UPDATE {table} "
        self.count = 0
        sa.event.listen(db.engine, "after_cursor_execute", self._executed)

    def _executed(self, _tx: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if statement.startswith(self._begin) and not self.count:
            self.count += 1
            self._verb()

    def end(self, db: Database) -> None:
        sa.event.remove(db.engine, "after_cursor_execute", self._executed)


def test_instance_bound_during_its_delete_can_be_bound_again(
    arena: Arena, conductor: Conductor
) -> None:
    """There was no row to lock when the delete began, and its ARQs are gone when it ends."""
    url = arena.db.engine.url.render_as_string(hide_password=False)
    other = Conductor.build("other", url=url, bus=DirectBus(Exchange()), nova=Nova(unreachable()))
    ((arq,), (later,)), instance = arena.request(2), str(uuid4())
    pause = Interruption(
        arena.db, "instances", lambda: other.bind([arq], provider_of(PLAIN, 0), instance)
    )
    try:
        conductor.delete_of(instance)
    finally:
        pause.end(arena.db)
        other.stop()
    assert pause.count == 1
    assert arena.count(Instance, Instance.uuid == instance, Instance.bound.is_(True)) == 0
    arena.holds({})
    conductor.bind([later], provider_of(PLAIN, 0), instance)
    arena.holds({instance: [later]})
