# SPDX-License-Identifier: Apache-2.0
"""The origin of events in transactions that have several, or none: caller, request and change."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.conductor.arqs import bind
from cyborg.conductor.audit import repairs
from cyborg.db import attachments
from cyborg.db.engine import Database
from cyborg.db.models import Arq, Deployable, Device, Event, Hardware, Work
from cyborg.model import arq as model
from cyborg.model.device import DeviceStatus
from cyborg.tests.fixtures.host_reports import provider_of
from cyborg.tests.functional.races.arena import NOVA, Arena, Conductor
from cyborg.tests.functional.rules.conftest import PLAIN, PREPARING
from cyborg.tests.functional.rules.rows import execute, locked, set_arq

CALLER = (NOVA.project_id, NOVA.user_id, NOVA.request_id)
NOBODY = (None, None, None)
KEY, OLDER, NEWER = (str(uuid4()) for _ in range(3))


def history(db: Database) -> list[tuple[object, ...]]:
    """(action, project, user, request, operation) of each event, the oldest first."""
    columns = (Event.action, Event.project_id, Event.user_id, Event.request_id, Event.operation_id)
    with db.reader() as tx:
        return [tuple(row) for row in tx.execute(sa.select(*columns).order_by(Event.id))]


def operations_of_work(db: Database) -> list[tuple[str, str | None]]:
    with db.reader() as tx:
        rows = tx.execute(sa.select(Work.kind, Work.operation_id).order_by(Work.id))
        return [(row.kind, row.operation_id) for row in rows]


def bound(arena: Arena, host: str) -> tuple[str, str]:
    """One ARQ that KEY binds to the host's device; uuids of ARQ and instance."""
    ((arq,),), instance = arena.request(1), str(uuid4())
    execute(arena.db, sa.delete(Event))
    arena.conductors[0].bind([arq], provider_of(host, 0), instance, request_key=KEY)
    return arq, instance


@pytest.fixture
def deployable(arena: Arena) -> Iterator[str]:
    """One that can be programmed, in this test only."""
    which = sa.update(Deployable).where(Deployable.rp_uuid == provider_of(PLAIN, 0))
    execute(arena.db, which.values(programmable=True))
    with arena.db.reader() as tx:
        query = sa.select(Deployable.uuid).where(Deployable.rp_uuid == provider_of(PLAIN, 0))
        yield tx.execute(query).scalar_one()
    execute(arena.db, which.values(programmable=False))


@pytest.fixture
def unready(arena: Arena) -> Iterator[str]:
    """A device out of service that must be set up before use, in this test only."""
    with arena.db.reader() as tx:
        query = sa.select(Device.uuid, Device.device_key).order_by(Device.id).limit(1)
        uuid, key = tx.execute(query).one()
    maintaining = sa.update(Device).values(status=DeviceStatus.MAINTAINING.value)
    which = sa.update(Hardware).where(Hardware.hardware_key == key)
    execute(arena.db, maintaining.where(Device.uuid == uuid), which.values(setup_required=True))
    yield str(uuid)
    execute(arena.db, which.values(setup_required=False))


@pytest.mark.parametrize("way", ["unbind", "delete", "delete_of"])
def test_work_on_units_belongs_to_the_request(arena: Arena, conductor: Conductor, way: str) -> None:
    arq, instance = bound(arena, PREPARING)
    assert operations_of_work(arena.db) == [("prepare", KEY)]
    set_arq(arena.db, arq, prepared=True)
    getattr(conductor, way)(instance if way == "delete_of" else [arq], request_key=NEWER)
    assert operations_of_work(arena.db) == [("release", NEWER)]


def test_deletes_of_an_instance_belong_to_the_request(arena: Arena, conductor: Conductor) -> None:
    arq, instance = bound(arena, PLAIN)
    set_arq(arena.db, arq, origin=attachments.ATTACHED)
    conductor.delete_of(instance, request_key=NEWER)
    conductor.delete_of(str(uuid4()), request_key=OLDER)
    assert history(arena.db)[1:] == [
        ("deleted", *CALLER, NEWER),
        ("attached ones deleted", *CALLER, NEWER),
        ("deleted", *CALLER, OLDER),
    ]


def test_superseded_program_belongs_to_its_own_operation(
    arena: Arena, conductor: Conductor, deployable: str
) -> None:
    for key in (OLDER, NEWER):
        conductor.cases.device_admin.program(NOVA, key, deployable, str(uuid4()))
    assert history(arena.db) == [
        ("program", *CALLER, OLDER),
        ("program", *CALLER, NEWER),
        ("program failed", *NOBODY, OLDER),
    ]
    assert operations_of_work(arena.db) == [("program", NEWER)]


def test_set_up_belongs_to_the_request(arena: Arena, conductor: Conductor, unready: str) -> None:
    conductor.cases.device_admin.update(NOVA, KEY, unready, status=DeviceStatus.ENABLED)
    assert history(arena.db) == [("installing", *CALLER, KEY)]
    assert operations_of_work(arena.db) == [("set_up_device", KEY)]


@pytest.mark.parametrize(("event", "action"), [("FINISH", "Bound"), ("FAIL", "BindFailed")])
def test_end_of_a_bind_belongs_to_the_operation_and_the_request_that_began_it(
    arena: Arena, event: str, action: str
) -> None:
    arq, _ = bound(arena, PREPARING)
    execute(arena.db, sa.delete(Work))
    set_arq(arena.db, arq, prepared=True)
    with arena.db.writer() as tx:
        bind.resolve(
            tx,
            locked(tx, arq),
            model.Event[event],
            request_key=KEY,
            ordered_by={"request_id": "req-begun"},
        )
    assert history(arena.db)[1:] == [(action, None, None, "req-begun", KEY)]
    releases = [("release", KEY)] if event == "FAIL" else []
    assert operations_of_work(arena.db) == [*releases, ("notify", KEY)]


def test_repairs_belong_to_no_request(arena: Arena) -> None:
    arq, instance = bound(arena, PREPARING)
    set_arq(arena.db, arq, prepared=True)
    execute(arena.db, sa.delete(Work))
    assert repairs.fail_bind(arena.db, arq)
    execute(arena.db, sa.delete(Arq))
    assert repairs.open_instance(arena.db, instance)
    assert history(arena.db)[1:] == [
        ("BindFailed", *NOBODY, None),
        ("opened by audit", *NOBODY, None),
    ]
    assert operations_of_work(arena.db) == [("release", None), ("notify", None)]
