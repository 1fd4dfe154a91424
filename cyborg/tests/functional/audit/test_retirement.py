# SPDX-License-Identifier: Apache-2.0
"""What is lost is given up when its time is over: inventory first, and never what is in use."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.clients.placement import Placement
from cyborg.conductor.hosts import lost_devices
from cyborg.conductor.jobs import remove_expired
from cyborg.conductor.leases import ConductorLease, oldest_only
from cyborg.db.engine import Database
from cyborg.db.models import (
    Arq,
    AttachHandle,
    Attribute,
    ControlpathId,
    Deployable,
    Device,
    Event,
    Work,
)
from cyborg.db.services import Process
from cyborg.model.audit_findings import Kind
from cyborg.model.process import CONDUCTOR
from cyborg.rpc.verbs import SendProvidersRemoved
from cyborg.tests.fixtures.contexts import changed
from cyborg.tests.fixtures.host_reports import provider_of
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.unrelated_rows import add_unbound
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.audit.cloud import DAY, SmallCloud, age_lost
from cyborg.tests.functional.audit.division import LosingHost, count, whole_host
from cyborg.tests.functional.life.cards import CARD, OTHER, Rack
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.steps import eventually_offered


def uuids(db: Database, *terms: sa.ColumnElement[bool]) -> list[str]:
    with db.reader() as tx:
        return list(tx.execute(sa.select(Device.uuid).where(*terms)).scalars())


@dataclass(frozen=True)
class Pulled:
    """A running service; of its compute's two cards one is pulled and known to be lost."""

    rack: Rack
    db: Database
    uuid: str
    placement: PlacementService

    def provider_is_there(self) -> bool:
        return Placement(self.placement.adapter()).find_by_uuid(self.provider) is not None

    @property
    def provider(self) -> str:
        return self.rack.provider(OTHER)

    def rows(self) -> dict[str, int]:
        """How many rows there are of everything that belongs to devices."""
        models = (Device, Deployable, AttachHandle, ControlpathId, Attribute)
        return {one.__tablename__: count(self.db, one) for one in models}


@pytest.fixture
def pulled(
    keeping: Stack,
    racked: Callable[..., RackedCompute],
    quiet: Database,
    placement: PlacementService,
) -> Pulled:
    rack = racked(cards={CARD: 2, OTHER: 2}, on=keeping)
    rack.pull(OTHER)
    eventually(lambda: uuids(quiet, Device.lost_ms.is_not(None)) != [])
    (uuid,) = uuids(quiet, Device.lost_ms.is_not(None))
    eventually_offered(placement, rack.provider(OTHER), 0)
    return Pulled(rack, quiet, uuid, placement)


def test_expired_device_leaves_placement_before_the_database(pulled: Pulled) -> None:
    before = pulled.rows()
    assert pulled.provider_is_there()
    age_lost(pulled.db)
    eventually(lambda: uuids(pulled.db, Device.uuid == pulled.uuid) == [])
    assert not pulled.provider_is_there()
    assert pulled.rows() == {name: count // 2 for name, count in before.items()}
    eventually_offered(pulled.placement, pulled.rack.provider(CARD), 2)
    with pulled.db.reader() as tx:
        query = sa.select(Event).where(Event.subject_uuid == pulled.uuid).order_by(Event.id)
        *_, last = tx.execute(query).all()
    assert (last.action, last.hostname) == ("retired", pulled.rack.compute)
    assert last.reason == "it had been lost for 31 days"
    # Plugged in again it is a new one.
    pulled.rack.plug(OTHER, 2)
    eventually_offered(pulled.placement, pulled.provider, 2)
    assert len(uuids(pulled.db)) == 2


def test_allocated_provider_is_kept_until_it_is_free(pulled: Pulled, keeping: Stack) -> None:
    consumer = str(uuid4())
    with pulled.db.reader() as tx:
        query = sa.select(Deployable.resource_class).where(Deployable.rp_uuid == pulled.provider)
        name = tx.execute(query).scalar_one()
    client = Placement(pulled.placement.adapter())

    def claimed() -> bool:
        """Claim a unit, before the agent reserves it again."""
        generation, inventories = client.inventories(pulled.provider)
        opened = {name: {**inventories[name], "reserved": 0}}
        try:
            client.set_inventories(pulled.provider, generation, opened)
        except exception.Conflict:
            return False
        return pulled.placement.claim(consumer, {pulled.provider: {name: 1}})

    eventually(claimed)
    age_lost(pulled.db)

    def refused() -> bool:
        findings = keeping.auditor().look().findings
        return any(
            one.kind is Kind.REFUSED_PROVIDER and "cannot be removed" in one.cause
            for one in findings
        )

    eventually(refused)
    assert uuids(pulled.db, Device.uuid == pulled.uuid) == [pulled.uuid]
    assert client.inventories(pulled.provider)[1] != {}
    pulled.placement.free(consumer)
    eventually(lambda: uuids(pulled.db, Device.uuid == pulled.uuid) == [])
    assert not pulled.provider_is_there()


@pytest.fixture
def aged(cloud: SmallCloud) -> LosingHost:
    """Its only card has been lost for too long."""
    return whole_host(cloud)


def test_expired_device_moves_from_desired_tree_to_removals(aged: LosingHost) -> None:
    desired = aged.desired()
    assert desired.tree.providers == ()
    assert [(one.uuid, one.name) for one in desired.obsolete_providers] == [
        (provider_of(aged.name, 0), aged.lost)
    ]


def test_device_is_kept_without_a_retention(aged: LosingHost) -> None:
    desired = aged.desired(retention=0)
    assert (len(desired.tree.providers), desired.obsolete_providers) == (1, ())
    generation = aged.generation
    lost_devices.expire(aged.cloud.cases.ctx)
    assert aged.generation == generation


def test_agent_that_confirms_no_removal_changes_nothing(aged: LosingHost) -> None:
    lost_devices.expire(aged.ctx)
    aged.cloud.publish(aged.name)
    assert aged.cloud.found() == {(Kind.LOST_DEVICE, uuids(aged.db)[0])}


def test_device_reported_again_is_kept_and_published(aged: LosingHost) -> None:
    assert aged.leaving() == [aged.lost]
    aged.cloud.publishers[aged.name].retire(provider_of(aged.name, 0))
    aged.report(1)
    generation = aged.generation
    aged.answer(aged.lost)
    assert len(uuids(aged.db)) == 1
    assert aged.generation == generation + 1
    assert aged.leaving() == []
    aged.cloud.publish(aged.name)
    assert aged.cloud.found() == set()


def test_device_with_quarantined_unit_is_removed(aged: LosingHost) -> None:
    with aged.db.reader() as tx:
        first = tx.execute(sa.select(sa.func.min(AttachHandle.id))).scalar_one()
    aged.change(AttachHandle, AttachHandle.id == first, state="quarantined")
    aged.work(kind="release", attach_handle_id=first)
    assert aged.leaving() == [aged.lost]
    aged.answer(aged.lost)
    assert uuids(aged.db) == []
    assert count(aged.db, Work) == 0


def test_device_is_removed_after_all_its_providers(aged: LosingHost) -> None:
    below = f"{aged.lost}_below"
    with aged.db.writer() as tx:
        parent = tx.execute(sa.select(Deployable)).one()
        columns = {**parent._mapping, "uuid": str(uuid4()), "name": below, "rp_uuid": str(uuid4())}
        columns |= {"parent_id": parent.id, "root_id": parent.id}
        del columns["id"]
        tx.execute(sa.insert(Deployable).values(**columns))
    assert aged.leaving() == [below, aged.lost]
    aged.answer(below)
    assert len(uuids(aged.db)) == 1
    aged.answer(below, aged.lost)
    assert uuids(aged.db) == []


def test_device_without_providers_is_removed(aged: LosingHost) -> None:
    with aged.db.writer() as tx:
        for model in (Attribute, AttachHandle, Deployable):
            tx.execute(sa.delete(model))
    lost_devices.expire(aged.ctx)
    assert uuids(aged.db) == []


def test_superseded_agent_confirms_no_removal(aged: LosingHost) -> None:
    with pytest.raises(exception.StaleEpoch):
        lost_devices.confirm_removal(
            aged.ctx,
            SendProvidersRemoved(aged.name, aged.cloud.cases.epochs[aged.name] - 1, [aged.lost]),
        )
    assert len(uuids(aged.db)) == 1


def retention_job(aged: LosingHost, lease: ConductorLease) -> Callable[[], None]:
    ctx = changed(aged.ctx, unbound_age=DAY // 1000, history_retention=90)
    return oldest_only(lease, 60_000, partial(remove_expired, ctx))


def test_only_the_first_conductor_removes_expired_rows(aged: LosingHost) -> None:
    second = ConductorLease(db=aged.db, process=Process("control", CONDUCTOR, "0", "", "2"))
    unborn = ConductorLease(db=aged.db, process=Process("control", CONDUCTOR, "0", "", "3"))
    second.renew()
    generation = aged.generation
    for lease, more in ((unborn, 0), (second, 0), (aged.cloud.cases.lease, 1)):
        retention_job(aged, lease)()
        assert aged.generation == generation + more


def test_arqs_that_nobody_binds_expire_by_thousands(aged: LosingHost) -> None:
    old, bound, fresh = aged.cloud.request(), aged.cloud.request(), aged.cloud.request()
    aged.cloud.cases.execute(
        sa.update(Arq)
        .where(Arq.uuid.in_([old, bound]))
        .values(created_at=datetime(2026, 1, 1), updated_at=None),
        sa.update(Arq).where(Arq.uuid == bound).values(instance_uuid=str(uuid4()), state="Bound"),
    )
    add_unbound(aged.db, old, 2100)
    retention_job(aged, aged.cloud.cases.lease)()
    with aged.db.reader() as tx:
        assert set(tx.execute(sa.select(Arq.uuid)).scalars()) == {bound, fresh}
        deleted = sa.select(Event.reason).where(Event.action == "deleted", Event.noun == "arq")
        reasons = list(tx.execute(deleted).scalars())
    assert len(reasons) == 2101
    assert all("was not bound" in str(reason) for reason in reasons)


def test_expired_history_is_removed(aged: LosingHost) -> None:
    aged.change(Event, at_ms=Event.at_ms - 91 * DAY)
    aged.report(1)
    retention_job(aged, aged.cloud.cases.lease)()
    with aged.db.reader() as tx:
        assert list(tx.execute(sa.select(Event.action)).scalars()) == ["found again"]
