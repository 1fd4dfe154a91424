# SPDX-License-Identifier: Apache-2.0
"""The counter itself: what counts as a statement, and what does not."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.db import base, models
from cyborg.db.transaction import Transaction
from cyborg.tests.fixtures.cost_meter import Tally
from cyborg.tests.fixtures.counted_service import CountedService

Statements = Callable[[], AbstractContextManager[Tally]]
_HOST = sa.table("hosts", sa.column("name"), sa.column("updated_ms"))


def _rows(count: int) -> list[dict[str, object]]:
    return [{"name": f"counted-{uuid4().hex}", "updated_ms": 0} for _ in range(count)]


class Undone(Exception):
    """Takes a test's rows back."""


@pytest.fixture
def tx(counted_service: CountedService) -> Iterator[Transaction]:
    """A transaction that leaves nothing behind."""
    with suppress(Undone), counted_service.db.writer() as tx:
        yield tx
        raise Undone


def test_a_read_is_one_statement_and_no_commit(
    counted_service: CountedService, statements: Statements
):
    with statements() as tally, counted_service.db.reader() as tx:
        tx.execute(sa.select(models.Host.id))
    assert tally.costs == (1, 0, 0)


def test_a_transaction_is_one_commit_and_its_statements(
    counted_service: CountedService, statements: Statements
):
    with statements() as tally, counted_service.db.writer() as tx:
        tx.execute(sa.update(models.Host).where(models.Host.id == -1).values(updated_ms=1))
    assert tally.costs == (1, 1, 0)
    assert tally.writes_to("hosts")
    assert not tally.writes_to("devices")


@pytest.mark.parametrize(("rows", "counted"), [(1, 1), (1000, 1), (1001, 2), (2500, 3)])
def test_an_insert_counts_once_per_thousand_rows(
    tx: Transaction, statements: Statements, rows: int, counted: int
):
    with statements() as tally:
        base.insert(tx, models.Host, _rows(rows))
    assert tally.sql == counted


def test_an_update_of_many_sets_counts_each(tx: Transaction, statements: Statements):
    many = sa.update(_HOST).where(_HOST.c.name == sa.bindparam("who"))
    with statements() as tally:
        tx.execute(many.values(updated_ms=1), [{"who": str(one)} for one in range(7)])
    assert tally.sql == 7


def test_pings_and_begin_of_transaction_are_not_counted(
    counted_service: CountedService, statements: Statements
):
    with statements() as tally, counted_service.db.writer() as tx:
        tx.exec_driver_sql("SELECT 1")
    assert tally.costs == (0, 1, 0)


def test_closed_tallies_stop_counting(counted_service: CountedService, statements: Statements):
    with statements() as closed:
        pass
    with statements() as tally, counted_service.db.reader() as tx:
        tx.execute(sa.select(models.Host.id))
    assert (closed.sql, tally.sql) == (0, 1)
