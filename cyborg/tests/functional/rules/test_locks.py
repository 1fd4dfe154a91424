# SPDX-License-Identifier: Apache-2.0
"""Which rows the database functions lock: SELECT … FOR UPDATE, seen on each database.

On a server a second transaction asks for the rows without waiting, and must not get them. SQLite
knows no lock of a row, so that there the statement tells what it would be on a server.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql

from cyborg import exception
from cyborg.conductor.audit import repairs
from cyborg.db import (
    arqs,
    attach_handles,
    device_profiles,
    devices,
    hosts,
    instances,
    lost_devices,
    operations,
    services,
    work,
)
from cyborg.db.engine import Database
from cyborg.db.models import (
    Arq,
    AttachHandle,
    Deployable,
    Device,
    DeviceProfile,
    Host,
    Instance,
    Operation,
    Service,
    Work,
)
from cyborg.db.services import Process
from cyborg.db.transaction import Transaction
from cyborg.model.operation import OperationState
from cyborg.model.process import CONDUCTOR
from cyborg.model.work import WorkKind
from cyborg.tests.fixtures.host_reports import provider_of
from cyborg.tests.fixtures.use_cases import NOVA, UseCases
from cyborg.tests.functional.rules.conftest import PREPARING

DIALECTS: list[sa.Dialect] = [mysql.dialect(), postgresql.dialect()]


@dataclass
class Site:
    """One bound ARQ and all that hangs on it, by id."""

    db: Database
    arq: Any
    instance: str
    work: Any
    profile: str
    host_id: int
    device_id: int
    deployable_id: int
    request_key: str

    @property
    def handle_uuid(self) -> str:
        with self.db.reader() as tx:
            query = sa.select(AttachHandle.uuid).where(AttachHandle.id == self.arq.attach_handle_id)
            return str(tx.execute(query).scalar_one())


@pytest.fixture
def site(conductor: UseCases) -> Site:
    ((arq,),), instance = conductor.request(1), str(uuid4())
    conductor.bind([arq], provider_of(PREPARING, 0), instance)
    owner = conductor.lease.owner
    assert owner is not None
    request_key = str(uuid4())
    conductor.execute(sa.delete(Operation))
    conductor.execute(
        sa.insert(Operation).values(
            uuid=request_key, verb="discover", state=OperationState.RUNNING.value, created_ms=1
        ),
    )
    with conductor.db.writer() as tx:
        (taken,) = work.claim(tx, owner=owner, lease_ms=60_000, limit=1)
        row = tx.execute(
            sa.select(Deployable.id, Deployable.device_id, Device.host_id)
            .join(Device, Device.id == Deployable.device_id)
            .where(Deployable.rp_uuid == provider_of(PREPARING, 0))
        ).one()
        task = {"kind": WorkKind.PROGRAM, "deployable_id": row.id, "operation_id": request_key}
        work.add(tx, [task])
    return Site(
        db=conductor.db,
        arq=conductor.arq(arq),
        instance=instance,
        work=taken,
        profile=conductor.profile_of(1),
        host_id=row.host_id,
        device_id=row.device_id,
        deployable_id=row.id,
        request_key=request_key,
    )


@dataclass(frozen=True)
class Locker:
    """What locks rows, and which rows those are."""

    call: Callable[[Transaction, Site], object]
    model: Any
    which: Callable[[Site], sa.ColumnElement[bool]]


def _handle(site: Site) -> sa.ColumnElement[bool]:
    mine: sa.ColumnElement[bool] = AttachHandle.id == site.arq.attach_handle_id
    return mine


def _free(site: Site) -> sa.ColumnElement[bool]:
    mine = AttachHandle.deployable_id == site.deployable_id
    return sa.and_(mine, AttachHandle.state == "ready", AttachHandle.arq_id.is_(None))


def _host(site: Site) -> sa.ColumnElement[bool]:
    return Host.id == site.host_id


def _work(site: Site) -> sa.ColumnElement[bool]:
    mine: sa.ColumnElement[bool] = Work.id == site.work.id
    return mine


LOCKERS = {
    "instances.lock": Locker(
        lambda tx, site: instances.lock(tx, [site.instance]),
        Instance,
        lambda site: Instance.uuid == site.instance,
    ),
    "arqs.lock": Locker(
        lambda tx, site: arqs.lock(tx, Arq.uuid == site.arq.uuid),
        Arq,
        lambda site: Arq.id == site.arq.id,
    ),
    "attach_handles.lock": Locker(
        lambda tx, site: attach_handles.lock(tx, _handle(site)), AttachHandle, _handle
    ),
    "attach_handles.claim, skipping": Locker(
        lambda tx, site: attach_handles.claim(tx, site.deployable_id, 1, wait=False),
        AttachHandle,
        _free,
    ),
    "attach_handles.claim, waiting": Locker(
        lambda tx, site: attach_handles.claim(tx, site.deployable_id, 1, wait=True),
        AttachHandle,
        _free,
    ),
    "attach_handles.lock_ready": Locker(
        lambda tx, site: attach_handles.lock_ready(tx, [site.arq.attach_handle_id]),
        AttachHandle,
        _handle,
    ),
    "repairs.release_handle": Locker(
        lambda tx, site: repairs._lock_handle(tx, site.handle_uuid), AttachHandle, _handle
    ),
    "hosts.lock": Locker(lambda tx, site: hosts.lock(tx, site.host_id), Host, _host),
    "hosts.lock_for_agent": Locker(
        lambda tx, _site: hosts.lock_for_agent(tx, PREPARING), Host, _host
    ),
    "hosts.lock_for_report": Locker(
        lambda tx, _site: hosts.lock_for_report(tx, PREPARING), Host, _host
    ),
    "hosts.lock_with_handles": Locker(
        lambda tx, site: hosts.lock_with_handles(tx, site.host_id), Host, _host
    ),
    "hosts.lock_handles": Locker(
        lambda tx, site: hosts.lock_handles(tx, site.host_id), AttachHandle, _handle
    ),
    "lost_devices.lock_handles_of_device": Locker(
        lambda tx, site: lost_devices.lock_handles_of_device(tx, site.device_id),
        AttachHandle,
        _handle,
    ),
    "devices.lock_labels": Locker(
        lambda tx, site: devices.lock_labels(tx, site.device_id),
        Device,
        lambda site: Device.id == site.device_id,
    ),
    "device_profiles.lock": Locker(
        lambda tx, site: device_profiles.lock(tx, [site.profile], NOVA),
        DeviceProfile,
        lambda site: DeviceProfile.name == site.profile,
    ),
    "operations._lock": Locker(
        lambda tx, site: operations._lock(tx, site.request_key),
        Operation,
        lambda site: Operation.uuid == site.request_key,
    ),
    "services.register": Locker(
        lambda tx, site: services.register(
            tx, Process("control", CONDUCTOR, "0", "", "1"), "READY"
        ),
        Service,
        lambda _site: sa.and_(Service.host == "control", Service.binary == CONDUCTOR),
    ),
    "work.claim": Locker(
        lambda tx, site: work.claim(tx, owner=(1, 1), lease_ms=-60_000, limit=1),
        Work,
        _work,
    ),
    "work.lock_owned": Locker(lambda tx, site: work.lock_owned(tx, [site.work]), Work, _work),
    "work.supersede_program": Locker(
        lambda tx, site: work.supersede_program(tx, site.deployable_id, str(uuid4())),
        Work,
        lambda _site: Work.kind == WorkKind.PROGRAM.value,
    ),
}


@contextmanager
def statements(tx: Transaction) -> Iterator[list[Any]]:
    """What is executed in the block."""
    seen: list[Any] = []

    def note(_tx: Any, statement: Any, *_rest: Any) -> None:
        seen.append(statement)

    sa.event.listen(tx.connection, "before_execute", note)
    try:
        yield seen
    finally:
        sa.event.remove(tx.connection, "before_execute", note)


def locks(statement: Any, model: Any) -> bool:
    """Whether a statement locks rows of this table, on each server."""
    if not isinstance(statement, sa.Select):
        return False
    if model.__table__ not in statement.columns_clause_froms:
        return False
    return all("FOR UPDATE" in str(statement.compile(dialect=one)) for one in DIALECTS)


@pytest.mark.parametrize(
    ("name", "skips"),
    [
        ("attach_handles.claim, skipping", True),
        ("attach_handles.claim, waiting", False),
        ("work.claim", True),
    ],
)
def test_claim_waits_for_locked_rows_only_if_it_says_so(site: Site, name: str, skips: bool) -> None:
    locker = LOCKERS[name]
    with site.db.writer() as tx, statements(tx) as seen:
        locker.call(tx, site)
    (claim,) = [one for one in seen if locks(one, locker.model)]
    texts = [str(claim.compile(dialect=dialect)) for dialect in DIALECTS]
    assert ["SKIP LOCKED" in text for text in texts] == [skips] * len(texts)


@pytest.mark.parametrize("name", LOCKERS)
def test_statement_locks_its_rows(site: Site, name: str) -> None:
    locker = LOCKERS[name]
    with site.db.writer() as tx, statements(tx) as seen:
        locker.call(tx, site)
    assert any(locks(one, locker.model) for one in seen)


@pytest.mark.parametrize("name", LOCKERS)
def test_locked_rows_refuse_a_second_transaction(site: Site, name: str) -> None:
    """A second transaction is refused; where SQLite has one writer at a time, nobody asks."""
    locker = LOCKERS[name]
    rows = sa.select(*locker.model.__table__.primary_key).where(locker.which(site))
    other = Database(site.db.engine.url.render_as_string(hide_password=False))
    try:
        with site.db.writer() as tx:
            locker.call(tx, site)
            if tx.dialect.name == "sqlite":
                return
            with pytest.raises(exception.CyborgError), other.writer() as second:
                second.execute(rows.with_for_update(nowait=True)).all()
        with other.writer() as second:
            second.execute(rows.with_for_update(nowait=True)).all()
    finally:
        other.close()


def test_profile_in_use_waits_with_its_change_and_not_with_its_use(site: Site) -> None:
    """An ARQ is made while the profile cannot become private; many can be made at once."""
    rows = sa.select(DeviceProfile.id).where(DeviceProfile.name == site.profile)
    other = Database(site.db.engine.url.render_as_string(hide_password=False))
    try:
        with site.db.writer() as tx:
            id_ = tx.execute(rows).scalar_one()
            with statements(tx) as seen:
                assert device_profiles.is_usable(tx, id_, "project")
            (share,) = seen
            texts = [str(share.compile(dialect=dialect)) for dialect in DIALECTS]
            assert "LOCK IN SHARE MODE" in texts[0]
            assert "FOR SHARE" in texts[1]
            if tx.dialect.name == "sqlite":
                return
            with other.writer() as second:
                assert device_profiles.is_usable(second, id_, "project")
            with pytest.raises(exception.CyborgError), other.writer() as second:
                second.execute(rows.with_for_update(nowait=True)).all()
    finally:
        other.close()
