# SPDX-License-Identifier: Apache-2.0
"""Units that their host prepares and releases: binds, reboots and crashes, and quarantine."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.db.engine import Database
from cyborg.db.models import Arq, Event, Work
from cyborg.model.arq import Binding
from cyborg.model.audit_findings import Ages, Kind
from cyborg.model.caller import Caller
from cyborg.rpc.verbs import PatchArqs
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.stack import Stack, fresh_exchange
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.life.cards import CARD, OTHER, Traits
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client, unbind_body
from cyborg.tests.functional.life.steps import (
    ARQS,
    Arqs,
    bind,
    create,
    delete_arqs,
    eventually_bound,
    eventually_idle,
    eventually_offered,
    handle_states,
    hasten,
    meddle,
    of_instance,
    states,
    work_left,
)


@pytest.fixture
def host(racked: Callable[..., RackedCompute], resource_class: str) -> RackedCompute:
    """A compute with one card of one unit, which is to be prepared for each guest."""
    return racked(Traits(resource_class, prepare=True), cards={CARD: 1})


@pytest.fixture
def arqs(nova: Client, profile: Callable[..., str], resource_class: str) -> Callable[[], Arqs]:
    """New ARQs, one at a time, for such a card."""
    name = profile({f"resources:{resource_class}": "1", "accel:bitstream": "some"})
    return lambda: create(nova, name)


def settled(database: Database, host: RackedCompute) -> None:
    """Wait until nobody is at anything; then nothing may be held or prepared any more."""
    eventually_idle(database)
    assert set(handle_states(database).values()) == {"free"}
    assert host.driver.ready == set()


def test_arq_is_bind_started_until_prepared(
    host: RackedCompute,
    arqs: Callable[[], Arqs],
    nova: Client,
    nova_api: SimulatedNova,
    database: Database,
) -> None:
    host.driver.behaviour.preparing.clear()
    mine = arqs()
    instance = bind(nova, mine, host.provider())
    (started,) = of_instance(nova, instance)
    assert started["state"] == "BindStarted"
    assert (started["attach_handle_type"], started["attach_handle_info"]) == ("", {})
    assert [one for one in nova_api.events if one.server_uuid == instance] == []
    host.driver.behaviour.open()
    uuid = mine[0]["uuid"]
    assert nova_api.wait_for_events([uuid]) == {uuid: "completed"}
    (bound,) = of_instance(nova, instance)
    assert (bound["state"], bound["attach_handle_type"]) == ("Bound", "PCI")
    assert len(host.driver.ready) == 1
    delete_arqs(nova, instance)
    settled(database, host)
    assert [verb for verb, _ in host.driver.calls] == ["prepare", "release"]


def test_bind_fails_when_preparation_fails(
    host: RackedCompute,
    arqs: Callable[[], Arqs],
    nova: Client,
    nova_api: SimulatedNova,
    database: Database,
) -> None:
    host.driver.behaviour.fault = RuntimeError("no such bitstream")
    mine = arqs()
    instance = bind(nova, mine, host.provider())
    uuid = mine[0]["uuid"]
    assert nova_api.wait_for_events([uuid]) == {uuid: "failed"}
    (failed,) = of_instance(nova, instance)
    assert (failed["state"], failed["attach_handle_uuid"]) == ("BindFailed", None)
    with database.reader() as tx:
        fault = tx.execute(sa.select(Arq.fault).where(Arq.uuid == uuid)).scalar_one()
    assert "no such bitstream" in str(fault)
    settled(database, host)
    host.driver.behaviour.fault = None
    nova.patch(ARQS, unbind_body(mine))
    assert states(nova, mine) == ["Unbound"]
    bind(nova, mine, host.provider(), instance=instance)
    eventually_bound(nova, instance)


def test_bind_fails_at_deadline_when_agent_is_down(
    stack: Stack,
    host: RackedCompute,
    arqs: Callable[[], Arqs],
    nova: Client,
    *,
    nova_api: SimulatedNova,
    database: Database,
) -> None:
    host.stop()
    mine, instance = arqs(), str(uuid4())
    uuid = mine[0]["uuid"]
    caller = Caller(nova.project, "user", "req-1", service=True)
    binding = Binding(uuid, host.compute, host.provider(), instance)
    # Another conductor, on a bus of its own, finds no agent.
    with stack.beside(exchange=fresh_exchange(), agent=0.1) as other:
        other.start_conductor("other")
        other.conductor_client().write(PatchArqs(caller, str(uuid4()), [binding], []))
        assert of_instance(nova, instance)[0]["state"] == "BindStarted"
        meddle(database, sa.update(Work).where(Work.kind == "prepare").values(deadline_ms=1))
        assert nova_api.wait_for_events([uuid]) == {uuid: "failed"}
    assert of_instance(nova, instance)[0]["state"] == "BindFailed"
    with database.reader() as tx:
        assert "in time" in str(tx.execute(sa.select(Arq.fault)).scalar_one())
    # What the host may have begun is undone when its agent is back.
    host.start()
    settled(database, host)


def test_bind_waits_for_release_of_the_unit(
    host: RackedCompute,
    arqs: Callable[[], Arqs],
    nova: Client,
    nova_api: SimulatedNova,
    database: Database,
) -> None:
    first = bind(nova, arqs(), host.provider())
    eventually_bound(nova, first)
    host.driver.behaviour.releasing.clear()
    delete_arqs(nova, first)
    mine = arqs()
    second = bind(nova, mine, host.provider())
    assert of_instance(nova, second)[0]["state"] == "BindStarted"
    bind(nova, arqs(), host.provider(), status=409)
    host.driver.behaviour.open()
    uuid = mine[0]["uuid"]
    assert nova_api.wait_for_events([uuid]) == {uuid: "completed"}
    assert [verb for verb, _ in host.driver.calls] == ["prepare", "release", "prepare"]
    assert set(handle_states(database).values()) == {"held"}
    # One that waits can be deleted; while no agent runs, the release waits.
    host.stop()
    delete_arqs(nova, second)
    delete_arqs(nova, bind(nova, arqs(), host.provider()))
    assert set(handle_states(database).values()) == {"releasing"}
    third = bind(nova, arqs(), host.provider())
    host.start()
    eventually_bound(nova, third)
    delete_arqs(nova, third)
    settled(database, host)


class Died(BaseException):
    """The process has ended here: nothing of it goes on."""


@pytest.fixture
def tended(
    racked: Callable[..., RackedCompute], resource_class: str, beside: Callable[..., Stack]
) -> RackedCompute:
    """A compute whose agent prepares units for guests, and looks at everything all the time."""
    hurried = beside(agent_heartbeat=0.2, scan=0.2, full_check=0.2)
    return racked(Traits(resource_class, prepare=True), cards={CARD: 2, OTHER: 1}, on=hurried)


def bound(nova: Client, arqs: Callable[[], Arqs], tended: RackedCompute, card: str = CARD) -> str:
    """A server with one unit of a card; the instance's uuid."""
    instance = bind(nova, arqs(), tended.provider(card))
    eventually_bound(nova, instance)
    return instance


def test_units_of_guests_are_prepared_after_a_reboot(
    tended: RackedCompute, arqs: Callable[[], Arqs], nova: Client
) -> None:
    for card in (CARD, OTHER):
        bound(nova, arqs, tended, card)
    before = tended.driver.ready
    assert len(before) == 2
    tended.stop()
    tended.boot()
    assert tended.driver.ready == set()
    tended.driver.specs.clear()
    tended.start()
    eventually(lambda: tended.driver.ready == before)
    # As the guest's profile wants it, as at the first time.
    assert tended.driver.specs == [{"bitstream": "some"}] * 2


def test_unplugged_card_is_prepared_when_it_returns(
    racked: Callable[..., RackedCompute],
    resource_class: str,
    arqs: Callable[[], Arqs],
    nova: Client,
) -> None:
    # A full check is far away: the card itself is the news.
    tended = racked(Traits(resource_class, prepare=True), cards={CARD: 1})
    bound(nova, arqs, tended)
    before, looks = tended.driver.ready, tended.driver.looks
    tended.pull(CARD)
    tended.boot()
    eventually(lambda: tended.driver.looks > looks)
    assert tended.driver.ready == set()
    tended.plug(CARD, 1)
    eventually(lambda: tended.driver.ready == before)


def test_prepared_units_without_arq_are_released(
    tended: RackedCompute, arqs: Callable[[], Arqs], nova: Client, database: Database
) -> None:
    bound(nova, arqs, tended)
    held = tended.driver.ready
    states = handle_states(database)
    for key in sorted(states.keys() - held):
        tended.leak(key, OTHER if key.startswith("0000:82") else CARD)
    eventually(lambda: tended.driver.ready == held)
    assert handle_states(database) == states
    assert work_left(database) == []


def test_unit_half_prepared_for_a_deleted_arq_is_released(
    tended: RackedCompute, arqs: Callable[[], Arqs], nova: Client, database: Database
) -> None:
    instance = bound(nova, arqs, tended)
    tended.driver.behaviour.fault = Died()
    tended.driver.behaviour.half_done = True
    tended.boot()
    eventually(lambda: tended.driver.ready != set())
    tended.stop()
    delete_arqs(nova, instance)
    tended.driver.behaviour.fault = None
    tended.start()
    eventually(lambda: tended.driver.ready == set() and work_left(database) == [])
    assert set(handle_states(database).values()) == {"free"}


@pytest.fixture
def pair(racked: Callable[..., RackedCompute], resource_class: str) -> RackedCompute:
    """A compute with one card of two units, which are to be prepared for each guest."""
    return racked(Traits(resource_class, prepare=True), cards={CARD: 2})


@pytest.fixture
def stuck(
    pair: RackedCompute, arqs: Callable[[], Arqs], nova: Client, database: Database
) -> RackedCompute:
    """The same, where the first unit has had a guest and is in quarantine after it."""
    instance = bind(nova, arqs(), pair.provider())
    eventually_bound(nova, instance)
    pair.driver.behaviour.stuck = RuntimeError("the card hangs")
    delete_arqs(nova, instance)
    eventually(lambda: quarantined(database))
    return pair


def quarantined(database: Database) -> bool:
    hasten(database)
    return "quarantined" in handle_states(database).values()


def history(database: Database) -> list[Any]:
    """What happened to handles: action, pair, reason."""
    with database.reader() as tx:
        query = sa.select(Event.action, Event.hostname, Event.reason).where(Event.noun == "handle")
        return list(tx.execute(query.order_by(Event.id)).all())


def recovered(database: Database) -> bool:
    hasten(database)
    return work_left(database) == []


def test_unit_is_quarantined_until_it_is_released(
    stuck: RackedCompute,
    placement: PlacementService,
    database: Database,
    stack: Stack,
    nova: Client,
    arqs: Callable[[], Arqs],
) -> None:
    eventually_offered(placement, stuck.provider(), 1)
    own = replace(stack, times=replace(stack.times, ages=Ages(settle=600_000)))
    (finding,) = [
        one
        for one in own.auditor().look(stuck.compute).findings
        if one.kind is Kind.QUARANTINED_HANDLE
    ]
    assert "the card hangs" in finding.cause
    assert stuck.compute in finding.remedy
    second = bind(nova, arqs(), stuck.provider())
    eventually_bound(nova, second)
    bind(nova, arqs(), stuck.provider(), status=409)
    assert sorted(handle_states(database).values()) == ["held", "quarantined"]
    delete_arqs(nova, second)
    (entry,) = history(database)
    assert (entry.action, entry.hostname) == ("quarantined", stuck.compute)
    assert "the card hangs" in entry.reason
    stuck.driver.behaviour.stuck = None
    eventually(lambda: recovered(database))
    assert set(handle_states(database).values()) == {"free"}
    eventually_offered(placement, stuck.provider(), 2)
    assert [one.action for one in history(database)] == ["quarantined", "out of quarantine"]


@pytest.mark.parametrize("healed", [True, False], ids=["released in time", "not released"])
def test_bind_waits_for_a_quarantined_unit_until_its_deadline(
    racked: Callable[..., RackedCompute],
    resource_class: str,
    arqs: Callable[[], Arqs],
    nova: Client,
    *,
    nova_api: SimulatedNova,
    database: Database,
    placement: PlacementService,
    healed: bool,
) -> None:
    pair = racked(Traits(resource_class, prepare=True), cards={CARD: 1})
    first = bind(nova, arqs(), pair.provider())
    eventually_bound(nova, first)
    pair.driver.behaviour.releasing.clear()
    pair.driver.behaviour.stuck = RuntimeError("the card hangs")
    delete_arqs(nova, first)
    mine = arqs()
    instance = bind(nova, mine, pair.provider(), instance=str(uuid4()))
    pair.driver.behaviour.open()
    eventually(lambda: quarantined(database))
    assert states(nova, mine) == ["BindStarted"]
    uuid = mine[0]["uuid"]
    if healed:
        pair.driver.behaviour.stuck = None
        eventually(lambda: recovered(database))
        assert states(nova, mine) == ["Bound"]
        assert nova_api.wait_for_events([uuid]) == {uuid: "completed"}
        assert set(handle_states(database).values()) == {"held"}
        return
    meddle(database, sa.update(Work).where(Work.kind == "prepare").values(deadline_ms=1))
    assert nova_api.wait_for_events([uuid]) == {uuid: "failed"}
    (failed,) = of_instance(nova, instance)
    assert failed["state"] == "BindFailed"
    assert set(handle_states(database).values()) == {"quarantined"}
    eventually(lambda: offered(placement, pair.provider()) == 0)
