# SPDX-License-Identifier: Apache-2.0
"""What is lost is given up when its time is over: inventory first, and never what is in use."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.clients.placement import Placement
from cyborg.conductor.hosts.lost_devices import LostDevices
from cyborg.conductor.jobs import RetentionJob
from cyborg.conductor.leases import ConductorLease
from cyborg.conductor.reports.apply import ReportApplier
from cyborg.conductor.reports.desired_state import DesiredStates
from cyborg.db.engine import Database
from cyborg.db.models import (
    Arq,
    AttachHandle,
    Attribute,
    ControlpathId,
    Deployable,
    Device,
    Driver,
    Event,
    Work,
)
from cyborg.db.services import Process
from cyborg.db.transaction import Transaction
from cyborg.model.audit_findings import Kind
from cyborg.model.process import CONDUCTOR
from cyborg.model.report import Desired, DriverState
from cyborg.tests.fixtures.host_reports import provider_of, report_of
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.functional.audit.cloud import DAY, DOWN_AFTER, RETENTION, SmallCloud, age_lost
from cyborg.tests.functional.life.cards import CARD, OTHER, Rack, Traits
from cyborg.tests.functional.life.steps import eventually, eventually_offered


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
        with self.db.reader() as tx:
            return {
                one.__tablename__: tx.execute(sa.select(sa.func.count(one.id))).scalar_one()
                for one in models
            }


@pytest.fixture
def pulled(keeping: Stack, quiet: Database, placement: PlacementService, tmp_path: Path) -> Pulled:
    compute = fresh_host("keeping")
    placement.make_compute(compute)
    traits = Traits(f"CUSTOM_CARD_{uuid4().hex[:12].upper()}")
    rack = Rack.build(compute, traits, {CARD: 2, OTHER: 2})
    keeping.start_agent(compute, machine=rack.machine, drivers=[rack.loaded], state_path=tmp_path)
    eventually_offered(placement, rack.provider(CARD), 2)
    eventually_offered(placement, rack.provider(OTHER), 2)
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


def test_device_plugged_in_after_removal_is_new(pulled: Pulled) -> None:
    age_lost(pulled.db)
    eventually(lambda: uuids(pulled.db, Device.uuid == pulled.uuid) == [])
    pulled.rack.plug(OTHER, 2)
    eventually_offered(pulled.placement, pulled.provider, 2)
    assert len(uuids(pulled.db)) == 2


def test_allocated_provider_is_kept_until_it_is_free(pulled: Pulled, keeping: Stack) -> None:
    consumer = str(uuid4())
    with pulled.db.reader() as tx:
        query = sa.select(Deployable.resource_class).where(Deployable.rp_uuid == pulled.provider)
        name = tx.execute(query).scalar_one()
    client = Placement(pulled.placement.adapter())
    generation, inventories = client.inventories(pulled.provider)
    opened = {name: {**inventories[name], "reserved": 0}}
    client.set_inventories(pulled.provider, generation, opened)
    body: dict[str, Any] = {
        "allocations": {pulled.provider: {"resources": {name: 1}}},
        "project_id": "demo",
        "user_id": "demo",
        "consumer_generation": None,
    }
    pulled.placement.call("PUT", f"/allocations/{consumer}", body)
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
    pulled.placement.call("DELETE", f"/allocations/{consumer}")
    eventually(lambda: uuids(pulled.db, Device.uuid == pulled.uuid) == [])
    assert not pulled.provider_is_there()


@dataclass
class Aged:
    """A host whose only card has been lost for too long; its agent does what it is told to."""

    cloud: SmallCloud
    name: str

    @property
    def retirement(self) -> LostDevices:
        return LostDevices(db=self.cloud.db, lost_retention=RETENTION, down_after=DOWN_AFTER)

    def desired(self, retention: int = RETENTION) -> Desired:
        wishes = DesiredStates(db=self.cloud.db, lost_retention=retention)
        return wishes.desired(self.name, self.cloud.epochs[self.name])

    def report(self, cards: int) -> None:
        report = report_of(self.name, cards, handles=4)
        ReportApplier(db=self.cloud.db, auto_enable=frozenset({"*"}), wake=lambda: None).report(
            self.name, self.cloud.epochs[self.name], report
        )

    def leaving(self) -> list[str]:
        return [one.name for one in self.desired().obsolete_providers]

    def answer(self, *names: str) -> None:
        self.retirement.confirm_removal(self.name, self.cloud.epochs[self.name], names)

    @property
    def card(self) -> str:
        """Its deployable's name."""
        return f"{self.name}_0"


@pytest.fixture
def aged(cloud: SmallCloud) -> Aged:
    host = Aged(cloud, cloud.host())
    host.report(0)
    age_lost(cloud.db)
    return host


def test_expired_device_moves_from_desired_tree_to_removals(aged: Aged) -> None:
    desired = aged.desired()
    assert desired.tree.providers == ()
    assert [(one.uuid, one.name) for one in desired.obsolete_providers] == [
        (provider_of(aged.name, 0), aged.card)
    ]


def test_device_is_kept_without_a_retention(aged: Aged) -> None:
    desired = aged.desired(retention=0)
    assert (len(desired.tree.providers), desired.obsolete_providers) == (1, ())
    generation = aged.cloud.generation(aged.name)
    LostDevices(db=aged.cloud.db, lost_retention=0, down_after=DOWN_AFTER).expire()
    assert aged.cloud.generation(aged.name) == generation


def test_device_is_kept_before_its_retention_ends(aged: Aged) -> None:
    age_lost(aged.cloud.db, -2 * DAY)
    assert aged.leaving() == []
    aged.answer(aged.card)
    assert len(uuids(aged.cloud.db)) == 1


def test_each_run_publishes_the_host_of_an_expired_device(aged: Aged) -> None:
    other = aged.cloud.host()
    before = [aged.cloud.generation(one) for one in (aged.name, other)]
    aged.retirement.expire()
    after = [aged.cloud.generation(one) for one in (aged.name, other)]
    assert after == [before[0] + 1, before[1]]
    aged.desired()
    aged.cloud.heartbeat(aged.name)
    assert aged.cloud.generation(aged.name) == after[0]


def test_agent_that_confirms_no_removal_changes_nothing(aged: Aged) -> None:
    aged.retirement.expire()
    aged.cloud.publish(aged.name)
    assert aged.cloud.found() == {(Kind.LOST_DEVICE, uuids(aged.cloud.db)[0])}


def test_device_reported_again_is_kept_and_published(aged: Aged) -> None:
    assert aged.leaving() == [aged.card]
    aged.cloud.publishers[aged.name].retire(provider_of(aged.name, 0))
    aged.report(1)
    generation = aged.cloud.generation(aged.name)
    aged.answer(aged.card)
    assert len(uuids(aged.cloud.db)) == 1
    assert aged.cloud.generation(aged.name) == generation + 1
    assert aged.leaving() == []
    aged.cloud.publish(aged.name)
    assert aged.cloud.found() == set()


def _arq(aged: Aged, tx: Transaction) -> None:
    """An ARQ has a unit of it."""
    handle = sa.select(sa.func.min(AttachHandle.id)).scalar_subquery()
    tx.execute(sa.update(Arq).values(attach_handle_id=handle))


def _release(aged: Aged, tx: Transaction) -> None:
    tx.execute(sa.update(AttachHandle).values(state="releasing"))


def _held(aged: Aged, tx: Transaction) -> None:
    tx.execute(sa.update(AttachHandle).values(state="held"))


def _programming(aged: Aged, tx: Transaction) -> None:
    tx.execute(_work(tx, kind="program"))


def _made_by_an_operator(aged: Aged, tx: Transaction) -> None:
    tx.execute(sa.update(Device).values(origin="operator"))


def _blind(aged: Aged, tx: Transaction) -> None:
    tx.execute(sa.update(Driver).values(state=DriverState.FAILED.value))


def _work(tx: Transaction, **values: Any) -> sa.Insert:
    deployable = tx.execute(sa.select(Deployable.id)).scalar_one()
    return sa.insert(Work).values(
        uuid=str(uuid4()), deployable_id=deployable, not_before_ms=0, created_ms=0, **values
    )


@pytest.mark.parametrize("use", [_arq, _release, _held, _programming, _made_by_an_operator, _blind])
def test_device_in_use_is_kept(aged: Aged, use: Callable[[Aged, Transaction], None]) -> None:
    aged.cloud.request()
    with aged.cloud.db.writer() as tx:
        use(aged, tx)
    generation = aged.cloud.generation(aged.name)
    aged.retirement.expire()
    assert aged.cloud.generation(aged.name) == generation
    desired = aged.desired()
    assert (len(desired.tree.providers), desired.obsolete_providers) == (1, ())
    aged.answer(aged.card)
    assert len(uuids(aged.cloud.db)) == 1


def test_device_with_quarantined_unit_is_removed(aged: Aged) -> None:
    with aged.cloud.db.writer() as tx:
        first = tx.execute(sa.select(sa.func.min(AttachHandle.id))).scalar_one()
        tx.execute(
            sa.update(AttachHandle).where(AttachHandle.id == first).values(state="quarantined")
        )
        tx.execute(_work(tx, kind="release", attach_handle_id=first))
    assert aged.leaving() == [aged.card]
    aged.answer(aged.card)
    assert uuids(aged.cloud.db) == []
    with aged.cloud.db.reader() as tx:
        assert tx.execute(sa.select(sa.func.count(Work.id))).scalar_one() == 0


def test_device_is_removed_after_all_its_providers(aged: Aged) -> None:
    below = f"{aged.card}_below"
    with aged.cloud.db.writer() as tx:
        parent = tx.execute(sa.select(Deployable)).one()
        columns = {**parent._mapping, "uuid": str(uuid4()), "name": below, "rp_uuid": str(uuid4())}
        columns |= {"parent_id": parent.id, "root_id": parent.id}
        del columns["id"]
        tx.execute(sa.insert(Deployable).values(**columns))
    assert aged.leaving() == [below, aged.card]
    aged.answer(below)
    assert len(uuids(aged.cloud.db)) == 1
    aged.answer(below, aged.card)
    assert uuids(aged.cloud.db) == []


def test_device_without_providers_is_removed(aged: Aged) -> None:
    with aged.cloud.db.writer() as tx:
        for model in (Attribute, AttachHandle, Deployable):
            tx.execute(sa.delete(model))
    aged.retirement.expire()
    assert uuids(aged.cloud.db) == []


def test_superseded_agent_confirms_no_removal(aged: Aged) -> None:
    with pytest.raises(exception.StaleEpoch):
        aged.retirement.confirm_removal(aged.name, aged.cloud.epochs[aged.name] - 1, [aged.card])
    assert len(uuids(aged.cloud.db)) == 1


def retention_job(aged: Aged, lease: ConductorLease) -> RetentionJob:
    return RetentionJob(
        db=aged.cloud.db,
        lease=lease,
        lost_devices=aged.retirement,
        lease_ms=60_000,
        history_retention=90 * DAY,
    )


def test_only_the_first_conductor_removes_expired_rows(aged: Aged) -> None:
    second = ConductorLease(db=aged.cloud.db, process=Process("control", CONDUCTOR, "0", "", "2"))
    unborn = ConductorLease(db=aged.cloud.db, process=Process("control", CONDUCTOR, "0", "", "3"))
    second.renew()
    generation = aged.cloud.generation(aged.name)
    for lease, more in ((unborn, 0), (second, 0), (aged.cloud.lease, 1)):
        retention_job(aged, lease).run_once()
        assert aged.cloud.generation(aged.name) == generation + more


def test_expired_history_is_removed(aged: Aged) -> None:
    with aged.cloud.db.writer() as tx:
        tx.execute(sa.update(Event).values(at_ms=Event.at_ms - 91 * DAY))
    aged.report(1)
    retention_job(aged, aged.cloud.lease).run_once()
    with aged.cloud.db.reader() as tx:
        assert list(tx.execute(sa.select(Event.action)).scalars()) == ["found again"]
