# SPDX-License-Identifier: Apache-2.0
"""Work that becomes due early, and work that other work supersedes."""

import sqlalchemy as sa

from cyborg.db import events, work
from cyborg.db.models import AttachHandle, Event, Work
from cyborg.model.caller import Caller
from cyborg.model.work import WorkKind
from cyborg.tests.fixtures.use_cases import UseCases
from cyborg.tests.functional.rules.conftest import PLAIN, PREPARING
from cyborg.tests.functional.rules.rows import handles_of

LATER = 1 << 53


def deployable_of(conductor: UseCases, host: str) -> int:
    handle, _ = handles_of(conductor.db, host)[0]
    with conductor.db.reader() as tx:
        query = sa.select(AttachHandle.deployable_id).where(AttachHandle.id == handle)
        return int(tx.execute(query).scalar_one())


def test_only_preparation_that_waits_for_the_unit_becomes_due(conductor: UseCases) -> None:
    (first, _), (second, _) = handles_of(conductor.db, PREPARING)
    owner = conductor.lease.owner
    assert owner is not None
    rows = [
        {"kind": WorkKind.PREPARE, "arq_uuid": "waiting", "attach_handle_id": first},
        {"kind": WorkKind.PREPARE, "arq_uuid": "of another unit", "attach_handle_id": second},
        {"kind": WorkKind.RELEASE, "arq_uuid": "release", "attach_handle_id": first},
        {"kind": WorkKind.PREPARE, "arq_uuid": "running", "attach_handle_id": first},
    ]
    with conductor.db.writer() as tx:
        work.add(tx, rows)
    running = sa.update(Work).where(Work.arq_uuid == "running")
    conductor.execute(
        sa.update(Work).values(not_before_ms=LATER),
        running.values(owner_id=owner[0], owner_epoch=owner[1]),
    )
    with conductor.db.writer() as tx:
        work.make_due(tx, first)
    with conductor.db.reader() as tx:
        due = tx.execute(sa.select(Work.arq_uuid).where(Work.not_before_ms < LATER)).scalars()
        assert list(due) == ["waiting"]


def test_newer_program_operation_supersedes_those_of_its_deployable(conductor: UseCases) -> None:
    here, there = (deployable_of(conductor, host) for host in (PLAIN, PREPARING))
    kept = {
        "new": {"kind": WorkKind.PROGRAM, "deployable_id": here},
        "of another deployable": {"kind": WorkKind.PROGRAM, "deployable_id": there},
        "set-up": {"kind": WorkKind.SET_UP_DEVICE, "deployable_id": here},
    }
    old = {name: {"kind": WorkKind.PROGRAM, "deployable_id": here} for name in ("old", "older")}
    with conductor.db.writer() as tx:
        work.add(tx, [{**row, "operation_id": name} for name, row in {**old, **kept}.items()])
        assert work.supersede_program(tx, here, "new") == list(old)
        assert work.supersede_program(tx, here, "new") == []
    with conductor.db.reader() as tx:
        assert set(tx.execute(sa.select(Work.operation_id)).scalars()) == set(kept)


def test_history_of_work_names_its_operation_and_the_request_that_ordered_it(
    conductor: UseCases,
) -> None:
    caller = Caller("project", "user", "req-1")
    with conductor.db.writer(caller, "ordered") as tx:
        work.add(tx, [{"kind": WorkKind.PROGRAM, "operation_id": "ordered"}])
        ordered = events.Entry("deployable", "subject", "program requested")
        events.record(tx, [ordered])
    owner = conductor.lease.owner
    assert owner is not None
    with conductor.db.writer() as tx:
        (row,) = work.claim(tx, owner=owner, lease_ms=60_000, limit=1)
        work.record(tx, row, [events.Entry("deployable", "subject", "programmed")])
    with conductor.db.reader() as tx:
        query = sa.select(Event.operation_id, Event.request_id).where(Event.action == "programmed")
        assert tx.execute(query).one() == ("ordered", "req-1")
