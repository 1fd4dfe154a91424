# SPDX-License-Identifier: Apache-2.0
"""A bind between two statements of a delete or an unbind."""

from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from cyborg.db.engine import Database
from cyborg.db.models import Instance
from cyborg.tests.fixtures.direct_bus import DirectBus, Exchange
from cyborg.tests.fixtures.host_reports import provider_of
from cyborg.tests.functional.races.arena import Arena, Conductor
from cyborg.tests.functional.rules.conftest import PLAIN


class Interruption:
    """Calls ``verb`` once, right after the first statement that begins like this.

    The statement has been carried out then, and its transaction goes on after the call.
    """

    def __init__(self, db: Database, begin: str, verb: Any) -> None:
        self._verb = verb
        self._begin = begin
        self.count = 0
        #: The statements after that, with their parameters.
        self.later: list[tuple[str, str]] = []
        sa.event.listen(db.engine, "after_cursor_execute", self._executed)

    def _executed(
        self, _tx: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any
    ) -> None:
        if self.count:
            self.later.append((statement, str(parameters)))
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
    other = Conductor("other", url=url, bus=DirectBus(Exchange()))
    ((arq,), (later,)), instance = arena.request(2), str(uuid4())
    pause = Interruption(
        arena.db, "UPDATE instances ", lambda: other.bind([arq], provider_of(PLAIN, 0), instance)
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


def test_instance_of_an_arq_bound_during_its_unbind_is_locked_before_the_arq(
    arena: Arena, conductor: Conductor
) -> None:
    """Otherwise a delete of all ARQs of the instance could be in a deadlock with the unbind."""
    url = arena.db.engine.url.render_as_string(hide_password=False)
    other = Conductor("other", url=url, bus=DirectBus(Exchange()))
    ((arq,),), instance = arena.request(1), str(uuid4())
    begin = "SELECT extended_accelerator_requests.uuid, extended_accelerator_requests.instance_uuid"
    pause = Interruption(
        arena.db, begin, lambda: other.bind([arq], provider_of(PLAIN, 0), instance)
    )
    try:
        conductor.unbind([arq])
    finally:
        pause.end(arena.db)
        other.stop()
    assert pause.count == 1
    first = next(statement for statement, values in pause.later if instance in values)
    assert first.startswith("SELECT instances.")
    arena.holds({})
