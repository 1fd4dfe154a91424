# SPDX-License-Identifier: Apache-2.0
"""Who may claim work, and what a former owner can still do to it: nothing."""

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.conductor.leases import ConductorLease
from cyborg.conductor.tasks.queue import Fenced, WorkQueue
from cyborg.db import work
from cyborg.db.engine import Database
from cyborg.db.models import Service, Work
from cyborg.db.services import Process
from cyborg.model.names import CONDUCTOR
from cyborg.model.work import WorkKind


def add(db: Database, kind: WorkKind, *instances: str) -> None:
    with db.writer() as tx:
        work.add(tx, db.now, [{"kind": kind, "instance_uuid": one} for one in instances])


def claimed(db: Database, owner: tuple[int, int], lease_ms: int = 60_000) -> Sequence[Any]:
    with db.writer() as tx:
        return work.claim(tx, db.now, owner=owner, lease_ms=lease_ms, limit=10)


def owner_of(lease: ConductorLease) -> tuple[int, int]:
    lease.renew()
    assert lease.owner is not None
    return lease.owner


@pytest.fixture
def heir(db: Database) -> ConductorLease:
    """Another conductor."""
    return ConductorLease(db=db, process=Process("other-control", CONDUCTOR, "0", "there", "1"))


def test_what_a_living_conductor_has_in_hand_is_not_taken(
    db: Database, lease: ConductorLease, heir: ConductorLease
) -> None:
    add(db, WorkKind.NOTIFY, str(uuid4()))
    assert len(claimed(db, owner_of(lease))) == 1
    assert claimed(db, owner_of(heir)) == []
    with db.writer() as tx:
        tx.execute(sa.update(Service).where(Service.host == "control").values(last_seen_ms=1))
    assert len(claimed(db, owner_of(heir))) == 1


def test_what_a_conductor_had_in_an_earlier_epoch_is_taken_over(
    db: Database, lease: ConductorLease, heir: ConductorLease
) -> None:
    """It lives, but has been started anew, and knows nothing of it."""
    add(db, WorkKind.NOTIFY, str(uuid4()))
    before = owner_of(lease)
    assert len(claimed(db, before)) == 1
    again = ConductorLease(db=db, process=Process("control", CONDUCTOR, "0", "here", "1"))
    assert owner_of(again) == (before[0], before[1] + 1)
    assert len(claimed(db, owner_of(heir))) == 1


def test_each_taking_over_raises_the_fence(
    db: Database, lease: ConductorLease, heir: ConductorLease
) -> None:
    """What was taken over, and is still there, is no longer the former owner's in any way."""
    add(db, WorkKind.NOTIFY, str(uuid4()))
    (mine,) = claimed(db, owner_of(lease))
    (taken,) = claimed(db, owner_of(heir), lease_ms=0)
    assert taken.fence > mine.fence
    with db.writer() as tx:
        assert not work.still_ours(tx, [mine])
        assert not work.finish(tx, [mine])
        work.note(tx, mine, {"late": True})
        work.postpone(tx, db.now, [mine], delay_ms=60_000, error="late")
    with db.reader() as tx:
        row = tx.execute(sa.select(Work.owner_id, Work.spec, Work.error)).one()
    assert (row.owner_id, row.spec, row.error) == (heir.owner and heir.owner[0], None, None)
    with db.writer() as tx:
        assert work.still_ours(tx, [taken])
        assert work.finish(tx, [taken])


def test_several_rows_are_ended_together_or_not_at_all(
    db: Database, lease: ConductorLease, heir: ConductorLease
) -> None:
    """One of them was taken over: the transaction of the former owner changes nothing."""
    add(db, WorkKind.NOTIFY, str(uuid4()), str(uuid4()))
    mine = claimed(db, owner_of(lease))
    with db.writer() as tx:
        tx.execute(sa.update(Work).where(Work.id == mine[0].id).values(fence=Work.fence + 1))
    queue = WorkQueue(db=db)
    for context in (queue.checkpoint, queue.complete):
        with pytest.raises(Fenced), context(mine):
            pass
    with db.reader() as tx:
        assert tx.execute(sa.select(sa.func.count(Work.id))).scalar_one() == 2


def test_what_is_overdue_says_so(db: Database, lease: ConductorLease) -> None:
    with db.writer() as tx:
        for seconds in (-5, 60):
            wanted = {"kind": WorkKind.PREPARE, "deadline_in": seconds * 1000}
            work.add(tx, db.now, [wanted])
        work.add(tx, db.now, [{"kind": WorkKind.NOTIFY}])
    found = claimed(db, owner_of(lease))
    assert [bool(one.overdue) for one in sorted(found, key=lambda one: one.id)] == [
        True,
        False,
        False,
    ]
