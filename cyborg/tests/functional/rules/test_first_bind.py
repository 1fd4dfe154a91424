# SPDX-License-Identifier: Apache-2.0
"""A bind between two statements of a delete or an unbind."""

from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from cyborg.db.engine import Database
from cyborg.db.models import Arq
from cyborg.tests.fixtures.host_reports import provider_of
from cyborg.tests.fixtures.use_cases import UseCases
from cyborg.tests.functional.races.arena import holds
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
    conductor: UseCases, other_conductor: UseCases
) -> None:
    """There was no row to lock when the delete began, and its ARQs are gone when it ends."""
    ((arq,), (later,)), instance = conductor.request(2), str(uuid4())
    pause = Interruption(
        conductor.db,
        "UPDATE instances ",
        lambda: other_conductor.bind([arq], provider_of(PLAIN, 0), instance),
    )
    try:
        conductor.delete_of(instance)
    finally:
        pause.end(conductor.db)
    assert pause.count == 1
    assert conductor.count(Arq, Arq.instance_uuid == instance) == 0
    holds(conductor, {})
    conductor.bind([later], provider_of(PLAIN, 0), instance)
    holds(conductor, {instance: [later]})


def test_instance_of_an_arq_bound_during_its_unbind_is_locked_before_the_arq(
    conductor: UseCases, other_conductor: UseCases
) -> None:
    """Otherwise a delete of all ARQs of the instance could be in a deadlock with the unbind."""
    ((arq,),), instance = conductor.request(1), str(uuid4())
    begin = "SELECT extended_accelerator_requests.uuid, extended_accelerator_requests.instance_uuid"
    pause = Interruption(
        conductor.db, begin, lambda: other_conductor.bind([arq], provider_of(PLAIN, 0), instance)
    )
    try:
        conductor.unbind([arq])
    finally:
        pause.end(conductor.db)
    assert pause.count == 1
    first = next(statement for statement, values in pause.later if instance in values)
    assert first.startswith("SELECT instances.")
    holds(conductor, {})
