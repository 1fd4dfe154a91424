# SPDX-License-Identifier: Apache-2.0
"""What of a lost card, or of one that is there, is given up, and that nothing in use is."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.clients.placement import Placement
from cyborg.conductor.hosts import lost_devices
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
from cyborg.model.report import DriverState
from cyborg.tests.fixtures.host_reports import RESOURCE_CLASS, report_of
from cyborg.tests.functional.audit.cloud import DAY, DOWN_AFTER, SmallCloud, age_lost
from cyborg.tests.functional.audit.division import (
    LosingHost,
    count,
    divided_host,
    retirements,
    whole_host,
)


@pytest.fixture
def whole(cloud: SmallCloud) -> LosingHost:
    """Its only card has been lost for too long."""
    return whole_host(cloud)


@pytest.fixture
def parted(cloud: SmallCloud) -> LosingHost:
    """One of its four deployables has been lost for too long."""
    return divided_host(cloud, parts=True)


@pytest.fixture
def sliced(cloud: SmallCloud) -> LosingHost:
    """One of the four units of its only deployable has been lost for too long."""
    return divided_host(cloud, parts=False)


def test_lost_deployable_moves_from_desired_tree_to_removals(parted: LosingHost) -> None:
    desired = parted.desired()
    assert [one.name for one in desired.tree.providers] == [
        f"{parted.name}_0_{index}" for index in range(3)
    ]
    assert parted.leaving() == [parted.lost]
    parted.answer(parted.lost)
    assert parted.leaving() == []
    assert (count(parted.db, Deployable), count(parted.db, Device)) == (3, 1)
    assert retirements(parted.db) == [("deployable", "it had been lost for 31 days")]


def test_only_confirmed_deployables_are_removed(parted: LosingHost) -> None:
    generation = parted.generation
    parted.answer(f"{parted.name}_0_2", parted.lost)
    assert count(parted.db, Deployable) == 3
    # Of the other Placement must be told again.
    assert parted.generation == generation + 1


@pytest.mark.parametrize("what", ["whole", "parted"])
def test_each_run_publishes_the_host(request: pytest.FixtureRequest, what: str) -> None:
    host: LosingHost = request.getfixturevalue(what)
    other, generation = host.cloud.host(), host.generation
    before = host.cloud.cases.generation(other), count(host.db, Deployable)
    lost_devices.expire(host.ctx)
    assert host.generation == generation + 1
    assert (host.cloud.cases.generation(other), count(host.db, Deployable)) == before
    host.desired()
    host.cloud.cases.heartbeat(host.name)
    assert host.generation == generation + 1


def test_deployable_reported_again_is_kept(parted: LosingHost) -> None:
    assert parted.leaving() == [parted.lost]
    parted.report(4)
    parted.answer(parted.lost)
    assert count(parted.db, Deployable) == 4
    assert len(parted.desired().tree.providers) == 4


def test_lost_deployable_of_a_lost_device_waits_for_the_device(parted: LosingHost) -> None:
    """Whose own time is not over yet."""
    parted.change(Device, lost_ms=sa.select(sa.func.max(Event.at_ms)).scalar_subquery())
    generation = parted.generation
    lost_devices.expire(parted.ctx)
    assert parted.generation == generation
    assert parted.leaving() == []


def test_parent_deployable_is_removed_after_its_children(parted: LosingHost) -> None:
    with parted.db.writer() as tx:
        top = tx.execute(
            sa.select(Deployable.id).where(Deployable.name == parted.lost)
        ).scalar_one()
        below = sa.update(Deployable).where(Deployable.name == f"{parted.name}_0_2")
        tx.execute(below.values(parent_id=top, root_id=top))
    assert parted.leaving() == []
    parted.report(2)
    age_lost(parted.db)
    assert parted.leaving() == [f"{parted.name}_0_2"]
    parted.answer(f"{parted.name}_0_2")
    assert parted.leaving() == [parted.lost]


@pytest.mark.parametrize("column", ["parent_id", "root_id"])
def test_only_its_own_children_keep_a_lost_deployable(parted: LosingHost, column: str) -> None:
    """Whether they are directly below it or further down."""
    ids = sa.select(Deployable.id).where(Deployable.name.in_([parted.lost, f"{parted.name}_0_1"]))
    with parted.db.reader() as tx:
        other, lost = tx.execute(ids.order_by(Deployable.name)).scalars()
    below = Deployable.name == f"{parted.name}_0_2"
    parted.change(Deployable, below, **{column: other})
    assert parted.leaving() == [parted.lost]
    parted.change(Deployable, below, **{column: lost})
    assert parted.leaving() == []


def test_expired_unit_leaves_the_inventory(sliced: LosingHost) -> None:
    """It was reserved before: nothing changes in how many units Placement gives out."""
    (before,) = sliced.desired().tree.providers
    lost_devices.expire(sliced.ctx)
    (after,) = sliced.desired().tree.providers
    assert (before.total, before.reserved) == (4, 1)
    assert (after.total, after.reserved) == (3, 0)
    assert retirements(sliced.db) == [("handle", "it had been lost for 31 days")]
    sliced.cloud.publish(sliced.name)
    assert sliced.cloud.found() == set()


def test_time_is_over_after_its_last_millisecond(sliced: LosingHost) -> None:
    """That of what is lost, and that in which a silent agent counts as up."""
    age_lost(sliced.db, -DAY)
    lost_devices.expire(sliced.ctx)
    assert count(sliced.db, AttachHandle) == 4
    age_lost(sliced.db, 1)
    sliced.change(Service, last_seen_ms=sliced.db.now - DOWN_AFTER)
    lost_devices.expire(sliced.ctx)
    assert count(sliced.db, AttachHandle) == 4
    sliced.change(Service, last_seen_ms=sliced.db.now - DOWN_AFTER + 1)
    lost_devices.expire(sliced.ctx)
    assert count(sliced.db, AttachHandle) == 3


def test_expired_quarantined_unit_is_removed_with_its_work(sliced: LosingHost) -> None:
    lost = AttachHandle.lost_ms.is_not(None)
    with sliced.db.reader() as tx:
        handle = tx.execute(sa.select(AttachHandle.id).where(lost)).scalar_one()
    sliced.change(AttachHandle, lost, state="quarantined")
    sliced.work(kind="release", attach_handle_id=handle)
    lost_devices.expire(sliced.ctx)
    assert (count(sliced.db, AttachHandle), count(sliced.db, Work)) == (3, 0)


def test_units_of_a_host_without_agent_are_kept(sliced: LosingHost) -> None:
    sliced.change(Service, last_seen_ms=Service.last_seen_ms - 2 * DOWN_AFTER)
    generation = sliced.generation
    lost_devices.expire(sliced.ctx)
    assert count(sliced.db, AttachHandle) == 4
    assert sliced.generation == generation
    sliced.cloud.cases.heartbeat(sliced.name)
    lost_devices.expire(sliced.ctx)
    assert count(sliced.db, AttachHandle) == 3


def _arq(host: LosingHost) -> None:
    """An ARQ has the lost unit."""
    host.cloud.request()
    with host.db.reader() as tx:
        newest = tx.execute(sa.select(sa.func.max(AttachHandle.id))).scalar_one()
    arq = sa.select(sa.func.max(Arq.id)).scalar_subquery()
    host.change(AttachHandle, AttachHandle.id == newest, arq_id=arq)


def _orders_image(host: LosingHost) -> None:
    """An ARQ of the lost deployable waits for its image."""
    host.cloud.request()
    host.change(Arq, deployable_id=sa.select(sa.func.max(Deployable.id)).scalar_subquery())


USES: dict[str, Callable[[LosingHost], None]] = {
    "arq": _arq,
    "releasing": lambda host: host.change(AttachHandle, state="releasing"),
    "made by an operator": lambda host: host.change(Device, origin="created"),
    "blind": lambda host: host.change(Driver, state=DriverState.FAILED.value),
    "not yet": lambda host: age_lost(host.db, -2 * DAY),
    "programming": lambda host: host.work(kind="program"),
    "image ordered": _orders_image,
}


@pytest.mark.parametrize(
    ("what", "use"),
    [
        *product(("whole", "parted"), [one for one in USES if one != "image ordered"]),
        ("parted", "image ordered"),
        *product(("sliced",), [one for one in USES if one not in ("programming", "image ordered")]),
    ],
)
def test_what_is_in_use_is_kept(request: pytest.FixtureRequest, what: str, use: str) -> None:
    """Neither a pass nor an agent's answer takes anything away."""
    host: LosingHost = request.getfixturevalue(what)
    USES[use](host)
    models = (Device, Deployable, AttachHandle, Attribute)
    before = [count(host.db, one) for one in models]
    generation = host.generation
    lost_devices.expire(host.ctx)
    assert host.generation == generation
    assert host.leaving() == []
    assert len(host.desired().tree.providers) == count(host.db, Deployable)
    host.answer(host.lost)
    assert [count(host.db, one) for one in models] == before
    assert retirements(host.db) == []


def test_units_are_removed_with_their_lost_device(sliced: LosingHost) -> None:
    replace(sliced, report_of=lambda cards: report_of(sliced.name, cards)).report(0)
    lost_devices.expire(sliced.ctx)
    assert count(sliced.db, AttachHandle) == 4
    age_lost(sliced.db)
    sliced.answer(f"{sliced.name}_0")
    assert count(sliced.db, AttachHandle) == count(sliced.db, Device) == 0


def test_allocations_above_the_inventory_do_not_block_publishing(
    sliced: LosingHost,
) -> None:
    """Placement takes fewer units than are allocated; no more are given out then."""
    sliced.report(4)
    sliced.cloud.publish(sliced.name)
    consumers = [str(uuid4()) for _ in range(4)]
    for one in consumers:
        sliced.cloud.allocate(sliced.name, one)
    sliced.report(1)
    age_lost(sliced.db)
    lost_devices.expire(sliced.ctx)
    sliced.cloud.publish(sliced.name)
    uuid = provider_uuid(f"{sliced.name}_0")
    client = Placement(sliced.cloud.placement.adapter())
    assert client.inventories(uuid)[1][RESOURCE_CLASS]["total"] == 1
