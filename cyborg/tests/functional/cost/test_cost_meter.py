# SPDX-License-Identifier: Apache-2.0
"""The counter itself: what counts as a statement, and what does not."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import sqlalchemy as sa

from cyborg.db import models
from cyborg.tests.fixtures.cost_meter import Tally
from cyborg.tests.fixtures.counted_service import CountedService


def test_statements_and_commits_are_counted_but_no_pings(
    counted_service: CountedService, statements: Callable[[], AbstractContextManager[Tally]]
):
    db = counted_service.db
    hosts = sa.update(models.Host).where(models.Host.name == sa.bindparam("who"))
    with statements() as read, db.reader() as tx:
        tx.execute(sa.select(models.Host.id))
    with statements() as written, db.writer() as tx:
        tx.exec_driver_sql("SELECT 1")
        tx.execute(sa.update(models.Host).where(models.Host.id == -1).values(updated_ms=1))
    with statements() as many, db.writer() as tx:
        several = [{"who": f"nobody-{number}"} for number in range(7)]
        tx.connection.execute(hosts.values(updated_ms=1), several)
    # Those that are closed count no more.
    assert [tally.costs for tally in (read, written, many)] == [(1, 0, 0), (1, 1, 0), (7, 1, 0)]
    assert written.writes_to("hosts")
    assert not written.writes_to("devices")
