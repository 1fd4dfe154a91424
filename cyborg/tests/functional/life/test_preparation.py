# SPDX-License-Identifier: Apache-2.0
"""Binds that need the host's work: started, finished, failed, overtaken; and programming."""

from collections.abc import Callable
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.db.engine import Database
from cyborg.db.models import Arq, Service
from cyborg.model.arq import Binding
from cyborg.model.caller import Caller
from cyborg.rpc.verbs import PatchArqs
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.stack import Stack, fresh_exchange
from cyborg.tests.functional.life.cards import CARD, Traits
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client, unbind_body
from cyborg.tests.functional.life.steps import (
    ARQS,
    Arqs,
    bind,
    create,
    delete_arqs,
    eventually,
    eventually_bound,
    eventually_idle,
    handle_states,
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


def test_work_names_the_epoch_of_the_agent(
    host: RackedCompute, arqs: Callable[[], Arqs], nova: Client, database: Database
) -> None:
    """Two agents of one host share its queue: the one that has been superseded must refuse."""

    def live() -> None:
        instance = bind(nova, arqs(), host.provider())
        eventually(lambda: host.driver.ready != set())
        delete_arqs(nova, instance)
        settled(database, host)

    def epoch() -> int | None:
        with database.reader() as tx:
            return tx.scalar(sa.select(Service.epoch).where(Service.host == host.compute))

    live()
    host.restart()
    eventually(lambda: epoch() == 2)
    live()
    assert [one.agent_epoch for one in host.driver.tasks] == [1, 1, 2, 2]


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
    assert nova_api.wait_for_events([uuid], timeout=5) == {uuid: "completed"}
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
    assert nova_api.wait_for_events([uuid], timeout=5) == {uuid: "failed"}
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
    # Another conductor gives hosts one second; on a bus of its own, it finds no agent.
    with stack.beside(exchange=fresh_exchange(), bind_timeout=1.0) as hasty:
        hasty.start_conductor("hasty")
        hasty.conductor_client().write(PatchArqs(caller, str(uuid4()), [binding], []))
        assert of_instance(nova, instance)[0]["state"] == "BindStarted"
        assert nova_api.wait_for_events([uuid], timeout=8) == {uuid: "failed"}
    assert of_instance(nova, instance)[0]["state"] == "BindFailed"
    with database.reader() as tx:
        assert "in time" in str(tx.execute(sa.select(Arq.fault)).scalar_one())
    # What the host may have begun is undone when its agent is back.
    host.start()
    settled(database, host)


@pytest.mark.parametrize("way", ["unbind", "delete"])
def test_unit_unbound_during_preparation_is_released(
    host: RackedCompute, arqs: Callable[[], Arqs], nova: Client, database: Database, way: str
) -> None:
    host.driver.behaviour.preparing.clear()
    mine = arqs()
    instance = bind(nova, mine, host.provider())
    if way == "unbind":
        nova.patch(ARQS, unbind_body(mine))
        assert states(nova, mine) == ["Unbound"]
    else:
        delete_arqs(nova, instance)
    assert set(handle_states(database).values()) == {"releasing"}
    assert work_left(database) == ["release"]
    host.driver.behaviour.open()
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
    assert nova_api.wait_for_events([uuid], timeout=5) == {uuid: "completed"}
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
