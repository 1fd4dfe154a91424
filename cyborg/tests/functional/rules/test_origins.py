# SPDX-License-Identifier: Apache-2.0
"""The origin of events in transactions that have several, or none: caller, request and change."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.conductor.arqs import bind
from cyborg.conductor.audit import repairs
from cyborg.conductor.hosts import devices
from cyborg.db import attachments
from cyborg.db.engine import Database
from cyborg.db.models import Deployable, Device, Event, Hardware, Work
from cyborg.model import arq as model
from cyborg.model.device import DeviceStatus
from cyborg.rpc.verbs import ProgramDeployable, SetDeviceStatus
from cyborg.tests.fixtures.host_reports import provider_of
from cyborg.tests.fixtures.use_cases import NOVA, UseCases
from cyborg.tests.functional.rules.conftest import PLAIN, PREPARING
from cyborg.tests.functional.rules.rows import locked, set_arq

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


def bound(conductor: UseCases, host: str) -> tuple[str, str]:
    """One ARQ that KEY binds to the host's device; uuids of ARQ and instance."""
    ((arq,),), instance = conductor.request(1), str(uuid4())
    conductor.execute(sa.delete(Event))
    conductor.bind([arq], provider_of(host, 0), instance, request_key=KEY)
    return arq, instance


@pytest.fixture
def deployable(conductor: UseCases) -> Iterator[str]:
    """One that can be programmed, in this test only."""
    which = sa.update(Deployable).where(Deployable.rp_uuid == provider_of(PLAIN, 0))
    conductor.execute(which.values(programmable=True))
    with conductor.db.reader() as tx:
        query = sa.select(Deployable.uuid).where(Deployable.rp_uuid == provider_of(PLAIN, 0))
        yield tx.execute(query).scalar_one()
    conductor.execute(which.values(programmable=False))


@pytest.fixture
def unready(conductor: UseCases) -> Iterator[str]:
    """A device out of service that must be set up before use, in this test only."""
    with conductor.db.reader() as tx:
        query = sa.select(Device.uuid, Device.device_key).order_by(Device.id).limit(1)
        uuid, key = tx.execute(query).one()
    maintaining = sa.update(Device).values(status=DeviceStatus.MAINTAINING.value)
    which = sa.update(Hardware).where(Hardware.hardware_key == key)
    conductor.execute(maintaining.where(Device.uuid == uuid), which.values(setup_required=True))
    yield str(uuid)
    conductor.execute(which.values(setup_required=False))


@pytest.mark.parametrize("way", ["unbind", "delete", "delete_of"])
def test_work_on_units_belongs_to_the_request(conductor: UseCases, way: str) -> None:
    arq, instance = bound(conductor, PREPARING)
    assert operations_of_work(conductor.db) == [("prepare", KEY)]
    set_arq(conductor.db, arq, prepared=True)
    getattr(conductor, way)(instance if way == "delete_of" else [arq], request_key=NEWER)
    assert operations_of_work(conductor.db) == [("release", NEWER)]


def test_deletes_of_an_instance_belong_to_the_request(conductor: UseCases) -> None:
    arq, instance = bound(conductor, PLAIN)
    set_arq(conductor.db, arq, origin=attachments.ATTACHED)
    conductor.delete_of(instance, request_key=NEWER)
    conductor.delete_of(str(uuid4()), request_key=OLDER)
    assert history(conductor.db)[1:] == [
        ("deleted", *CALLER, NEWER),
        ("attached ones deleted", *CALLER, NEWER),
        ("deleted", *CALLER, OLDER),
    ]


def test_superseded_program_belongs_to_its_own_operation(
    conductor: UseCases, deployable: str
) -> None:
    for key in (OLDER, NEWER):
        devices.program(conductor.ctx, ProgramDeployable(NOVA, key, deployable, str(uuid4())))
    assert history(conductor.db) == [
        ("program", *CALLER, OLDER),
        ("program", *CALLER, NEWER),
        ("program failed", *NOBODY, OLDER),
    ]
    assert operations_of_work(conductor.db) == [("program", NEWER)]


def test_set_up_belongs_to_the_request(conductor: UseCases, unready: str) -> None:
    devices.set_status(conductor.ctx, SetDeviceStatus(NOVA, KEY, unready, DeviceStatus.ENABLED))
    assert history(conductor.db) == [("installing", *CALLER, KEY)]
    assert operations_of_work(conductor.db) == [("set_up_device", KEY)]


@pytest.mark.parametrize(("event", "action"), [("FINISH", "Bound"), ("FAIL", "BindFailed")])
def test_end_of_a_bind_belongs_to_the_operation_and_the_request_that_began_it(
    conductor: UseCases, event: str, action: str
) -> None:
    arq, _ = bound(conductor, PREPARING)
    conductor.execute(sa.delete(Work))
    set_arq(conductor.db, arq, prepared=True)
    with conductor.db.writer() as tx:
        bind.resolve(
            tx,
            locked(tx, arq),
            model.Event[event],
            request_key=KEY,
            ordered_by={"request_id": "req-begun"},
        )
    assert history(conductor.db)[1:] == [(action, None, None, "req-begun", KEY)]
    releases = [("release", KEY)] if event == "FAIL" else []
    assert operations_of_work(conductor.db) == [*releases, ("notify", KEY)]


def test_repairs_belong_to_no_request(conductor: UseCases) -> None:
    arq, _ = bound(conductor, PREPARING)
    set_arq(conductor.db, arq, prepared=True)
    conductor.execute(sa.delete(Work))
    assert repairs.fail_bind(conductor.db, arq)
    assert history(conductor.db)[1:] == [("BindFailed", *NOBODY, None)]
    assert operations_of_work(conductor.db) == [("release", None), ("notify", None)]
