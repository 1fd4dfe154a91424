# SPDX-License-Identifier: Apache-2.0
"""Only on PostgreSQL, which refuses what cannot be put in any order."""

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.db.engine import Database, retried
from cyborg.db.models import Host


def test_standby_is_unavailable_for_writes(current: Database) -> None:
    def write() -> None:
        with current.writer() as tx:
            tx.exec_driver_sql("SET TRANSACTION READ ONLY")
            tx.execute(sa.insert(Host).values(name="a", updated_ms=1))

    with pytest.raises(exception.DatabaseUnavailable, match="read-only transaction"):
        write()


def test_serialisation_failure_is_retried(current: Database) -> None:
    with current.writer() as tx:
        tx.execute(sa.insert(Host).values(name="a", updated_ms=1))
    rival = Database(current.engine.url.render_as_string(hide_password=False))
    seen: list[int | None] = []

    @retried
    def count() -> None:
        with current.writer() as tx:
            tx.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
            seen.append(tx.scalar(sa.select(Host.generation)))
            if len(seen) == 1:
                with rival.writer() as other:
                    other.execute(sa.update(Host).values(generation=7))
            tx.execute(sa.update(Host).values(generation=Host.generation + 1))

    count()
    assert seen == [0, 7]
    with current.reader() as tx:
        assert tx.scalar(sa.select(Host.generation)) == 8
    rival.close()
