# SPDX-License-Identifier: Apache-2.0
"""Which parts of a card that is there are given up, with an agent that does what it is told."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.clients.placement import Placement
from cyborg.clients.placement_sync import Publisher
from cyborg.conductor.hosts.lost_devices import LostDevices
from cyborg.conductor.reports.apply import ReportApplier
from cyborg.conductor.reports.desired_state import DesiredStates
from cyborg.db.engine import Database
from cyborg.db.models import (
    Arq,
    AttachHandle,
    Attribute,
    Deployable,
    Device,
    Driver,
    Event,
    Service,
    Work,
)
from cyborg.model.provider import provider_uuid
from cyborg.model.report import Desired, DriverReport, DriverState, Report
from cyborg.tests.fixtures.host_reports import RESOURCE_CLASS, report_of
from cyborg.tests.fixtures.placement import fresh_host
from cyborg.tests.functional.audit.cloud import DAY, DOWN_AFTER, RETENTION, SmallCloud, age_lost
from cyborg.tests.functional.audit.division import count, divided, retirements


@dataclass
class Divided:
    """A host whose card once had four units, in four deployables or in one."""

    cloud: SmallCloud
    name: str
    parts: bool

    @property
    def lost_devices(self) -> LostDevices:
        return LostDevices(db=self.cloud.db, lost_retention=RETENTION, down_after=DOWN_AFTER)

    @property
    def db(self) -> Database:
        return self.cloud.db

    def report(self, units: int) -> None:
        """The agent's report of a card of so many units."""
        report = report_of(self.name, 1, handles=4)
        (device,) = report.drivers[0].devices
        (whole,) = device.deployables
        device = replace(device, deployables=(replace(whole, handles=whole.handles[:units]),))
        device = divided(device) if self.parts else device
        seen = Report((DriverReport(report.drivers[0].driver, DriverState.READY, (device,)),))
        ReportApplier(db=self.db, auto_enable=frozenset({"*"}), wake=lambda: None).report(
            self.name, self.cloud.epochs[self.name], seen
        )

    def desired(self) -> Desired:
        wishes = DesiredStates(db=self.db, lost_retention=RETENTION)
        return wishes.desired(self.name, self.cloud.epochs[self.name])

    def leaving(self) -> list[str]:
        return [one.name for one in self.desired().obsolete_providers]

    def answer(self, *names: str) -> None:
        self.lost_devices.confirm_removal(self.name, self.cloud.epochs[self.name], names)

    def part(self, index: int) -> str:
        return f"{self.name}_0_{index}"

    def change(self, model: Any, **values: Any) -> None:
        with self.db.writer() as tx:
            tx.execute(sa.update(model).values(**values))

    def work(self, **values: Any) -> None:
        """Work that is about its lost part."""
        deployable = sa.select(sa.func.max(Deployable.id)).scalar_subquery()
        with self.db.writer() as tx:
            tx.execute(
                sa.insert(Work).values(
                    uuid=str(uuid4()),
                    deployable_id=deployable,
                    not_before_ms=0,
                    created_ms=0,
                    **values,
                )
            )


def made(cloud: SmallCloud, *, parts: bool) -> Divided:
    name = fresh_host("divided")
    cloud.placement.make_compute(name)
    cloud.heartbeat(name)
    cloud.publishers[name] = Publisher(Placement(cloud.placement.adapter()))
    host = Divided(cloud, name, parts)
    host.report(4)
    host.report(3)
    age_lost(cloud.db)
    return host


@pytest.fixture
def parted(cloud: SmallCloud) -> Divided:
    """One of its four deployables has been lost for too long."""
    return made(cloud, parts=True)


@pytest.fixture
def sliced(cloud: SmallCloud) -> Divided:
    """One of the four units of its only deployable has been lost for too long."""
    return made(cloud, parts=False)


def test_lost_deployable_moves_from_desired_tree_to_removals(parted: Divided) -> None:
    desired = parted.desired()
    assert [one.name for one in desired.tree.providers] == [parted.part(one) for one in range(3)]
    assert parted.leaving() == [parted.part(3)]
    parted.answer(parted.part(3))
    assert parted.leaving() == []
    assert (count(parted.db, Deployable), count(parted.db, Device)) == (3, 1)


def test_only_confirmed_deployables_are_removed(parted: Divided) -> None:
    generation = parted.cloud.generation(parted.name)
    parted.answer(parted.part(2), parted.part(3))
    assert count(parted.db, Deployable) == 3
    # Of the other Placement must be told again.
    assert parted.cloud.generation(parted.name) == generation + 1


def test_each_run_publishes_the_host_of_a_lost_deployable(parted: Divided) -> None:
    generation = parted.cloud.generation(parted.name)
    parted.lost_devices.expire()
    assert parted.cloud.generation(parted.name) == generation + 1
    assert count(parted.db, Deployable) == 4


def test_deployable_reported_again_is_kept(parted: Divided) -> None:
    assert parted.leaving() == [parted.part(3)]
    parted.report(4)
    parted.answer(parted.part(3))
    assert count(parted.db, Deployable) == 4
    assert len(parted.desired().tree.providers) == 4


def test_lost_deployable_of_a_lost_device_waits_for_the_device(parted: Divided) -> None:
    """Whose own time is not over yet."""
    parted.change(Device, lost_ms=sa.select(sa.func.max(Event.at_ms)).scalar_subquery())
    generation = parted.cloud.generation(parted.name)
    parted.lost_devices.expire()
    assert parted.cloud.generation(parted.name) == generation
    assert parted.leaving() == []


def test_parent_deployable_is_removed_after_its_children(parted: Divided) -> None:
    with parted.db.writer() as tx:
        top = tx.execute(
            sa.select(Deployable.id).where(Deployable.name == parted.part(3))
        ).scalar_one()
        below = sa.update(Deployable).where(Deployable.name == parted.part(2))
        tx.execute(below.values(parent_id=top, root_id=top))
    assert parted.leaving() == []
    parted.report(2)
    age_lost(parted.db)
    assert parted.leaving() == [parted.part(2)]
    parted.answer(parted.part(2))
    assert parted.leaving() == [parted.part(3)]


def test_expired_unit_leaves_the_inventory(sliced: Divided) -> None:
    """It was reserved before: nothing changes in how many units Placement gives out."""
    (before,) = sliced.desired().tree.providers
    sliced.lost_devices.expire()
    (after,) = sliced.desired().tree.providers
    assert (before.total, before.reserved) == (4, 1)
    assert (after.total, after.reserved) == (3, 0)
    assert retirements(sliced.db) == [("handle", "it had been lost for 31 days")]
    sliced.cloud.publish(sliced.name)
    assert sliced.cloud.found() == set()


def test_expired_quarantined_unit_is_removed_with_its_work(sliced: Divided) -> None:
    lost = AttachHandle.lost_ms.is_not(None)
    with sliced.db.writer() as tx:
        handle = tx.execute(sa.select(AttachHandle.id).where(lost)).scalar_one()
        tx.execute(sa.update(AttachHandle).where(lost).values(state="quarantined"))
    sliced.work(kind="release", attach_handle_id=handle)
    sliced.lost_devices.expire()
    assert (count(sliced.db, AttachHandle), count(sliced.db, Work)) == (3, 0)


def test_units_of_a_host_without_agent_are_kept(sliced: Divided) -> None:
    sliced.change(Service, last_seen_ms=Service.last_seen_ms - 2 * DOWN_AFTER)
    generation = sliced.cloud.generation(sliced.name)
    sliced.lost_devices.expire()
    assert count(sliced.db, AttachHandle) == 4
    assert sliced.cloud.generation(sliced.name) == generation
    sliced.cloud.heartbeat(sliced.name)
    sliced.lost_devices.expire()
    assert count(sliced.db, AttachHandle) == 3


def _arq(host: Divided) -> None:
    """An ARQ has the lost unit."""
    host.cloud.request()
    lost = sa.select(sa.func.max(AttachHandle.id)).scalar_subquery()
    host.change(Arq, attach_handle_id=lost)


def _releasing(host: Divided) -> None:
    host.change(AttachHandle, state="releasing")


def _held(host: Divided) -> None:
    host.change(AttachHandle, state="held")


def _made_by_an_operator(host: Divided) -> None:
    host.change(Device, origin="created")


def _blind(host: Divided) -> None:
    host.change(Driver, state=DriverState.FAILED.value)


def _not_yet(host: Divided) -> None:
    age_lost(host.db, -2 * DAY)


Use = Callable[[Divided], None]
USES = [_arq, _releasing, _held, _made_by_an_operator, _blind, _not_yet]


def stays(host: Divided, *names: str) -> None:
    """Neither a pass nor an agent's answer takes anything away."""
    models = (Deployable, AttachHandle, Attribute)
    before = [count(host.db, one) for one in models]
    generation = host.cloud.generation(host.name)
    host.lost_devices.expire()
    assert host.cloud.generation(host.name) == generation
    assert host.leaving() == []
    host.answer(*names)
    assert [count(host.db, one) for one in models] == before
    assert retirements(host.db) == []


@pytest.mark.parametrize("use", USES)
def test_deployable_in_use_is_kept(parted: Divided, use: Use) -> None:
    use(parted)
    stays(parted, parted.part(3))


@pytest.mark.parametrize("use", USES)
def test_unit_in_use_is_kept(sliced: Divided, use: Use) -> None:
    use(sliced)
    stays(sliced, f"{sliced.name}_0")


def test_deployable_with_work_or_arqs_is_kept(parted: Divided) -> None:
    parted.work(kind="program")
    stays(parted, parted.part(3))
    with parted.db.writer() as tx:
        tx.execute(sa.delete(Work))
    parted.cloud.request()
    parted.change(Arq, deployable_id=sa.select(sa.func.max(Deployable.id)).scalar_subquery())
    stays(parted, parted.part(3))


def test_units_are_removed_with_their_lost_device(sliced: Divided) -> None:
    report = Report((DriverReport(report_of("x", 0).drivers[0].driver, DriverState.READY),))
    ReportApplier(db=sliced.db, auto_enable=frozenset({"*"}), wake=lambda: None).report(
        sliced.name, sliced.cloud.epochs[sliced.name], report
    )
    sliced.lost_devices.expire()
    assert count(sliced.db, AttachHandle) == 4
    age_lost(sliced.db)
    sliced.answer(f"{sliced.name}_0")
    assert count(sliced.db, AttachHandle) == count(sliced.db, Device) == 0


def test_allocations_above_the_inventory_do_not_block_publishing(
    sliced: Divided,
) -> None:
    """Placement takes fewer units than are allocated; no more are given out then."""
    sliced.report(4)
    sliced.cloud.publish(sliced.name)
    consumers = [str(uuid4()) for _ in range(4)]
    for one in consumers:
        sliced.cloud.allocate(sliced.name, one)
    sliced.report(1)
    age_lost(sliced.db)
    sliced.lost_devices.expire()
    sliced.cloud.publish(sliced.name)
    uuid = provider_uuid(f"{sliced.name}_0")
    client = Placement(sliced.cloud.placement.adapter())
    assert client.inventories(uuid)[1][RESOURCE_CLASS]["total"] == 1
