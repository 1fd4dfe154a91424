# SPDX-License-Identifier: Apache-2.0
"""An operator orders the removal of lost devices and parts before their time is over."""

import logging
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.hosts import lost_devices
from cyborg.db.models import (
    Arq,
    AttachHandle,
    ControlpathId,
    Deployable,
    Device,
    Driver,
    Event,
    Work,
)
from cyborg.model.attribute import Origin
from cyborg.rpc.verbs import DeleteDevice
from cyborg.tests.fixtures.commits import FollowedCommits
from cyborg.tests.fixtures.host_reports import report_of
from cyborg.tests.fixtures.use_cases import NOVA
from cyborg.tests.functional.audit.cloud import DAY, RETENTION, SmallCloud, age_lost
from cyborg.tests.functional.audit.division import (
    LosingHost,
    count,
    divided_host,
    retirements,
    whole_host,
)

ORDERED = "an operator ordered its removal"


def young(host: LosingHost) -> LosingHost:
    """The same, and what is lost has been lost for a day only."""
    age_lost(host.db, -RETENTION)
    return host


@pytest.fixture
def whole(cloud: SmallCloud) -> LosingHost:
    """Its only card is lost."""
    return young(whole_host(cloud))


def order(host: LosingHost, uuid: str | None = None, *, key: str | None = None) -> set[str]:
    """Order to delete a device, the host's first one unless one is named; the notified agents."""
    commits, key = FollowedCommits(host.db), key or str(uuid4())
    lost_devices.request_removal(host.ctx, DeleteDevice(NOVA, key, uuid or device_of(host).uuid))
    return set(commits.notified)


def device_of(host: LosingHost) -> Any:
    """The row of the host's first device."""
    query = sa.select(Device.__table__).join(Deployable, Deployable.device_id == Device.id)
    with host.db.reader() as tx:
        rows = tx.execute(query.where(Deployable.name.startswith(host.name)).order_by(Device.id))
        return rows.first()


def history(host: LosingHost, *actions: str) -> list[tuple[str, str | None, str | None]]:
    """(noun, host, device) of each event with one of these actions."""
    query = sa.select(Event.noun, Event.hostname, Event.device_uuid)
    with host.db.reader() as tx:
        rows = tx.execute(query.where(Event.action.in_(actions)).order_by(Event.id))
        return [(row.noun, row.hostname, row.device_uuid) for row in rows]


def test_lost_device_is_removed_on_an_order(
    whole: LosingHost, caplog: pytest.LogCaptureFixture
) -> None:
    """Its provider goes first, whatever the age, and so does nothing of any other host."""
    other = young(whole_host(whole.cloud))
    uuid, generation, before = device_of(whole).uuid, whole.generation, other.generation
    assert whole.leaving() == []
    assert order(whole) == {whole.name}
    assert whole.generation > generation
    assert whole.leaving() == [whole.lost]
    assert history(whole, "forgotten") == [("device", whole.name, uuid)]
    generation = whole.generation
    with caplog.at_level(logging.INFO):
        whole.answer(whole.lost)
    assert f"Device {uuid} on host {whole.name} removed: {ORDERED}" in caplog.messages
    assert retirements(whole.db) == [("device", ORDERED)]
    assert history(whole, "retired") == [("device", whole.name, uuid)]
    assert (device_of(whole), whole.generation) == (None, generation)
    assert (other.generation, other.leaving()) == (before, [])
    left = [count(whole.db, model) for model in (Device, Deployable, ControlpathId, AttachHandle)]
    assert left == [1, 1, 1, 4]


def test_repeated_order_changes_nothing(whole: LosingHost) -> None:
    order(whole, key="key")
    generation = whole.generation
    assert order(whole, key="key") == set()
    assert whole.generation == generation
    assert len(history(whole, "forgotten")) == 1


def test_device_that_does_not_exist_is_not_found(whole: LosingHost) -> None:
    with pytest.raises(exception.NotFound):
        order(whole, str(uuid4()))


def test_device_of_a_request_is_not_removed(whole: LosingHost) -> None:
    arq = whole.cloud.request()
    whole.change(Arq, deployable_id=sa.select(sa.func.max(Deployable.id)).scalar_subquery())
    with pytest.raises(exception.DeviceInUse, match=arq):
        order(whole)
    assert not device_of(whole).being_removed


@pytest.mark.parametrize("parts", [False, True], ids=["units", "deployables"])
def test_present_device_without_lost_parts_is_not_removed(
    cloud: SmallCloud, *, parts: bool
) -> None:
    """Parts that another host lost are none of its own."""
    young(divided_host(cloud, parts=parts))
    host = divided_host(cloud, parts=parts)
    host.report(4)
    generation = host.generation
    with pytest.raises(exception.Conflict):
        order(host)
    assert host.generation == generation
    assert history(host, "forgotten", "lost parts forgotten") == []


@pytest.fixture
def parted(cloud: SmallCloud) -> LosingHost:
    """One of the four deployables of its card is lost."""
    return young(divided_host(cloud, parts=True))


@pytest.fixture
def sliced(cloud: SmallCloud) -> LosingHost:
    """One of the four units of its only deployable is lost."""
    return young(divided_host(cloud, parts=False))


def test_lost_units_are_removed_at_once(
    sliced: LosingHost, caplog: pytest.LogCaptureFixture
) -> None:
    """They have no provider of their own."""
    other = young(divided_host(sliced.cloud, parts=False))
    uuid = device_of(sliced).uuid
    with caplog.at_level(logging.INFO):
        assert order(sliced) == {sliced.name}
    assert any(
        text.startswith("Handle ") and text.endswith(f"on host {sliced.name} removed: {ORDERED}")
        for text in caplog.messages
    )
    assert retirements(sliced.db) == [("handle", ORDERED)]
    assert history(sliced, "lost parts forgotten", "retired") == [
        ("device", sliced.name, uuid),
        ("handle", sliced.name, uuid),
    ]
    assert (count(sliced.db, AttachHandle), count(sliced.db, Deployable)) == (7, 2)
    assert (other.leaving(), device_of(other).being_removed) == ([], False)


def test_lost_deployables_are_removed_after_their_providers(parted: LosingHost) -> None:
    other = young(divided_host(parted.cloud, parts=True))
    uuid = device_of(parted).uuid
    order(parted)
    assert (parted.leaving(), other.leaving()) == ([parted.lost], [])
    assert count(parted.db, Deployable) == 8
    generation = parted.generation
    parted.answer(parted.lost)
    assert parted.generation == generation
    assert retirements(parted.db) == [("deployable", ORDERED)]
    assert history(parted, "retired") == [("deployable", parted.name, uuid)]
    assert (count(parted.db, Deployable), count(parted.db, AttachHandle)) == (7, 7)
    lost_devices.expire(other.ctx)
    assert count(parted.db, Deployable) == 7


def test_answer_for_part_of_what_is_lost_leaves_the_rest(cloud: SmallCloud) -> None:
    """Of two lost cards, that one stays whose provider still exists."""
    name = cloud.compute("removals")
    first, second = f"{name}_0", f"{name}_1"
    host = LosingHost(cloud, name, first, lambda cards: report_of(name, cards, handles=1))
    host.report(2)
    host.report(0)
    age_lost(cloud.cases.db)
    assert sorted(host.leaving()) == [first, second]
    generation = host.generation
    host.answer(second)
    assert host.leaving() == [first]
    assert retirements(host.db) == [("device", "it had been lost for 31 days")]
    assert host.generation == generation


def test_device_of_an_uninstalled_driver_is_removed(whole: LosingHost) -> None:
    whole.change(Driver, requested=False)
    assert whole.leaving() == [whole.lost]
    whole.answer(whole.lost)
    assert retirements(whole.db) == [("device", "its driver was uninstalled")]


def test_removed_device_of_an_operator_leaves_the_desired_state(whole: LosingHost) -> None:
    """Its driver learns that it must not create the device again."""
    whole.report(1)
    whole.change(Device, origin=Origin.OPERATOR.value)
    order(whole)
    assert whole.leaving() == [whole.lost]
    generation = whole.generation
    whole.answer(whole.lost)
    assert retirements(whole.db) == [("device", ORDERED)]
    assert whole.generation == generation + 1


def test_removed_device_takes_its_work_with_it(whole: LosingHost) -> None:
    other = whole_host(whole.cloud)
    other.work(kind="set_up_device")
    age_lost(whole.db, DAY)
    order(whole)
    whole.answer(whole.lost)
    assert count(whole.db, Work) == 1
    assert other.leaving() == []


def test_answer_for_a_device_that_is_not_due_publishes_it_again(whole: LosingHost) -> None:
    generation = whole.generation
    whole.answer(whole.lost)
    assert (count(whole.db, Device), whole.generation) == (1, generation + 1)
