# SPDX-License-Identifier: Apache-2.0
"""online_data_migrations beside others, and when it is killed: what is done stays done."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.db import backfill, schema
from cyborg.db.engine import Database
from cyborg.db.models import Arq, Device, Instance
from cyborg.tests.fixtures.waiting import result

#: More than two batches.
DEVICES = 250


class _Killed(BaseException):
    """No Exception: like a signal, it is not to be caught on its way."""


@pytest.fixture
def stateless(existing: Database) -> Database:
    """An upgraded database with many devices that have no state; three of them are in use."""
    schema.upgrade(existing)
    with existing.writer() as tx:
        one = tx.execute(sa.select(Device.__table__).limit(1)).mappings().one()
        rows = [
            {**one, "id": None, "uuid": str(uuid4()), "device_key": str(number)}
            for number in range(DEVICES - 3)
        ]
        for row in rows:
            del row["id"]
        tx.execute(sa.insert(Device), rows)
        tx.execute(sa.update(Device).values(device_state=None))
    return existing


def _states(db: Database) -> dict[str | None, int]:
    with db.reader() as tx:
        rows = tx.execute(sa.select(Device.device_state, sa.func.count()).group_by("device_state"))
        return {row[0]: row[1] for row in rows}


def test_device_state_backfill_resumes_after_kill(stateless: Database) -> None:
    updates = 0

    def kill(*args: Any) -> None:
        nonlocal updates
        updates += args[2].startswith("UPDATE devices")
        if updates == 2:
            raise _Killed("by the test")

    sa.event.listen(stateless.engine, "after_cursor_execute", kill)
    with pytest.raises(_Killed):
        backfill.device_states(stateless)
    sa.event.remove(stateless.engine, "after_cursor_execute", kill)
    assert _states(stateless)[None] == DEVICES - 100
    assert backfill.device_states(stateless) == (DEVICES - 100, DEVICES - 100)
    assert _states(stateless) == {"available": DEVICES - 3, "allocated": 3}
    assert backfill.device_states(stateless) == (0, 0)


def test_concurrent_device_state_backfills(stateless: Database) -> None:
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(backfill.device_states, stateless) for _ in range(2)]
        filled = [result(one)[0] for one in runs]
    assert sum(filled) == DEVICES
    assert _states(stateless) == {"available": DEVICES - 3, "allocated": 3}


def test_backfill_keeps_state_written_meanwhile(stateless: Database) -> None:
    with stateless.writer() as tx:
        tx.execute(sa.update(Device).where(Device.device_key == "7").values(device_state="error"))
    assert backfill.device_states(stateless) == (DEVICES - 1, DEVICES - 1)
    assert _states(stateless)["error"] == 1


def test_owner_backfill_resumes_after_kill(existing: Database) -> None:
    schema.upgrade(existing)
    with existing.writer() as tx:
        tx.execute(sa.update(Arq).values(project_id=None))
        tx.execute(sa.update(Instance).values(project_id=None))
    asked: list[str] = []

    def project_of(instance: str) -> str:
        asked.append(instance)
        if len(asked) == 3:
            raise _Killed("by the test")
        return "blue"

    with pytest.raises(_Killed):
        backfill.project_ids(existing, project_of)
    assert backfill.project_ids(existing, project_of) == 3
    # Whose owner was known by then was not asked for again.
    assert len(set(asked)) == 5
    assert len(asked) == 6
    with existing.reader() as tx:
        assert set(tx.scalars(sa.select(Instance.project_id))) == {"blue"}
