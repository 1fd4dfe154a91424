# SPDX-License-Identifier: Apache-2.0
"""Which conductor may claim work; a former owner can no longer change it."""

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.conductor.leases import ConductorLease
from cyborg.conductor.tasks.queue import Fenced, checkpoint, complete
from cyborg.db import work
from cyborg.db.engine import Database
from cyborg.db.models import Service, Work
from cyborg.db.services import Process
from cyborg.model.process import CONDUCTOR
from cyborg.model.work import WorkKind
from cyborg.tests.fixtures.contexts import context


def add(db: Database, kind: WorkKind, *instances: str) -> None:
    with db.writer() as tx:
        work.add(tx, [{"kind": kind, "instance_uuid": uuid} for uuid in instances])


def claimed(db: Database, owner: tuple[int, int], lease_ms: int = 60_000) -> Sequence[Any]:
    with db.writer() as tx:
        return work.claim(tx, owner=owner, lease_ms=lease_ms, limit=10)


def owner_of(lease: ConductorLease) -> tuple[int, int]:
    lease.renew()
    assert lease.owner is not None
    return lease.owner


@pytest.fixture
def other_lease(db: Database) -> ConductorLease:
    """The lease of another conductor."""
    return ConductorLease(db=db, process=Process("other-control", CONDUCTOR, "0", "there", "1"))


def test_work_of_a_living_conductor_is_not_claimed(
    db: Database, lease: ConductorLease, other_lease: ConductorLease
) -> None:
    add(db, WorkKind.NOTIFY, str(uuid4()))
    assert len(claimed(db, owner_of(lease))) == 1
    assert claimed(db, owner_of(other_lease)) == []
    with db.writer() as tx:
        tx.execute(sa.update(Service).where(Service.host == "control").values(last_seen_ms=1))
    assert len(claimed(db, owner_of(other_lease))) == 1


def test_work_of_an_earlier_epoch_is_taken_over(
    db: Database, lease: ConductorLease, other_lease: ConductorLease
) -> None:
    """The conductor is alive, but was restarted and no longer knows of the work."""
    add(db, WorkKind.NOTIFY, str(uuid4()))
    before = owner_of(lease)
    assert len(claimed(db, before)) == 1
    again = ConductorLease(db=db, process=Process("control", CONDUCTOR, "0", "here", "1"))
    assert owner_of(again) == (before[0], before[1] + 1)
    assert len(claimed(db, owner_of(other_lease))) == 1


def test_each_takeover_raises_the_fence(
    db: Database, lease: ConductorLease, other_lease: ConductorLease
) -> None:
    """The former owner can change nothing of work that was taken over."""
    add(db, WorkKind.NOTIFY, str(uuid4()))
    (mine,) = claimed(db, owner_of(lease))
    (taken,) = claimed(db, owner_of(other_lease), lease_ms=0)
    assert taken.fence > mine.fence
    with db.writer() as tx:
        assert not work.lock_owned(tx, [mine])
        assert not work.finish(tx, [mine])
        work.set_spec(tx, mine, {"late": True})
        work.postpone(tx, [mine], delay_ms=60_000, error="late")
    with db.reader() as tx:
        row = tx.execute(sa.select(Work.owner_id, Work.spec, Work.error)).one()
    assert (row.owner_id, row.spec, row.error) == (
        other_lease.owner and other_lease.owner[0],
        None,
        None,
    )
    with db.writer() as tx:
        assert work.lock_owned(tx, [taken])
        assert work.finish(tx, [taken])


def test_rows_are_completed_together_or_not_at_all(
    db: Database, lease: ConductorLease, other_lease: ConductorLease
) -> None:
    """When one row was taken over, the transaction of the former owner changes nothing."""
    add(db, WorkKind.NOTIFY, str(uuid4()), str(uuid4()))
    mine = claimed(db, owner_of(lease))
    with db.writer() as tx:
        tx.execute(sa.update(Work).where(Work.id == mine[0].id).values(fence=Work.fence + 1))
    for transaction in (checkpoint, complete):
        with pytest.raises(Fenced), transaction(context(db), mine):
            pass
    with db.reader() as tx:
        assert tx.execute(sa.select(sa.func.count(Work.id))).scalar_one() == 2


def test_claimed_work_is_overdue_after_its_deadline(db: Database, lease: ConductorLease) -> None:
    with db.writer() as tx:
        for seconds in (-5, 60):
            values = {"kind": WorkKind.PREPARE, "deadline_in": seconds * 1000}
            work.add(tx, [values])
        work.add(tx, [{"kind": WorkKind.NOTIFY}])
    rows = claimed(db, owner_of(lease))
    assert [bool(row.overdue) for row in sorted(rows, key=lambda row: row.id)] == [
        True,
        False,
        False,
    ]
