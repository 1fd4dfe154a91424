# SPDX-License-Identifier: Apache-2.0
"""Binds that need the host's work: started, finished, failed, overtaken; and programming."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.db.engine import Database
from cyborg.db.models import Arq, Deployable, Event, Service
from cyborg.model.arq import Binding
from cyborg.model.caller import Caller
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.verbs import PatchArqs
from cyborg.tests.fixtures.glance import SimulatedGlance
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.stack import Stack, reach
from cyborg.tests.functional.life.cards import CARD, Traits
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client, bind_body, unbind_body
from cyborg.tests.functional.life.steps import (
    ARQS,
    Arqs,
    bind,
    create,
    eventually,
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
    eventually(lambda: work_left(database) == [])
    assert set(handle_states(database).values()) == {"free"}
    assert host.driver.ready == set()


def test_work_names_the_epoch_of_the_agent(
    host: RackedCompute, arqs: Callable[[], Arqs], nova: Client, database: Database
) -> None:
    """Two agents of one host share its queue: the one that has been superseded must refuse."""

    def live() -> None:
        instance = bind(nova, arqs(), host.provider())
        eventually(lambda: host.driver.ready != set())
        nova.delete(f"{ARQS}?instance={instance}")
        settled(database, host)

    def epoch() -> int | None:
        with database.reader() as tx:
            return tx.scalar(sa.select(Service.epoch).where(Service.host == host.compute))

    live()
    host.agent.stop()
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
    nova.delete(f"{ARQS}?instance={instance}")
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
    nova.delete(f"{ARQS}?instance={instance}")
    again = bind(nova, arqs(), host.provider(), instance=instance)
    eventually(lambda: of_instance(nova, again)[0]["state"] == "Bound")


def test_failed_arq_can_be_unbound_and_bound_again(
    host: RackedCompute, arqs: Callable[[], Arqs], nova: Client
) -> None:
    host.driver.behaviour.fault = RuntimeError("once")
    mine = arqs()
    bind(nova, mine, host.provider())
    eventually(lambda: states(nova, mine) == ["BindFailed"])
    host.driver.behaviour.fault = None
    nova.patch(ARQS, unbind_body(mine))
    assert states(nova, mine) == ["Unbound"]
    eventually(
        lambda: (
            nova.answer("PATCH", ARQS, bind_body(mine, "c", host.provider(), str(uuid4()))) == 202
        )
    )
    eventually(lambda: states(nova, mine) == ["Bound"])


@contextmanager
def hasty(stack: Stack) -> Iterator[ConductorClient]:
    """Another conductor, which gives hosts one second for their preparations.

    It is on a bus of its own, and so finds no agent.
    """
    own = Stack(
        stack.conf,
        stack.database_url,
        stack.transport_url,
        stack.peers,
        replace(stack.times, bind_timeout=1.0),
    )
    own.start_conductor("hasty")
    client = reach(ConductorClient(own.bus(), timeout=10))
    yield client
    client.close()
    own.stop()


def test_bind_fails_at_deadline_when_agent_is_down(
    stack: Stack,
    host: RackedCompute,
    arqs: Callable[[], Arqs],
    nova: Client,
    *,
    nova_api: SimulatedNova,
    database: Database,
) -> None:
    host.agent.stop()
    mine, instance = arqs(), str(uuid4())
    uuid = mine[0]["uuid"]
    caller = Caller(nova.project, "user", "req-1", service=True)
    binding = Binding(uuid, host.compute, host.provider(), instance)
    with hasty(stack) as conductor:
        conductor.write(PatchArqs(caller, str(uuid4()), [binding], []))
        assert of_instance(nova, instance)[0]["state"] == "BindStarted"
        assert nova_api.wait_for_events([uuid], timeout=8) == {uuid: "failed"}
    assert of_instance(nova, instance)[0]["state"] == "BindFailed"
    with database.reader() as tx:
        assert "in time" in str(tx.execute(sa.select(Arq.fault)).scalar_one())
    # What the host may have begun is undone when its agent is back.
    host.restart()
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
        nova.delete(f"{ARQS}?instance={instance}")
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
    eventually(lambda: of_instance(nova, first)[0]["state"] == "Bound")
    host.driver.behaviour.releasing.clear()
    nova.delete(f"{ARQS}?instance={first}")
    mine = arqs()
    second = bind(nova, mine, host.provider())
    assert of_instance(nova, second)[0]["state"] == "BindStarted"
    bind(nova, arqs(), host.provider(), status=409)
    host.driver.behaviour.open()
    uuid = mine[0]["uuid"]
    assert nova_api.wait_for_events([uuid], timeout=5) == {uuid: "completed"}
    assert [verb for verb, _ in host.driver.calls] == ["prepare", "release", "prepare"]
    assert set(handle_states(database).values()) == {"held"}
    nova.delete(f"{ARQS}?instance={second}")
    settled(database, host)


def test_arq_that_waits_for_release_can_be_deleted(
    host: RackedCompute, arqs: Callable[[], Arqs], nova: Client, database: Database
) -> None:
    first = bind(nova, arqs(), host.provider())
    eventually(lambda: of_instance(nova, first)[0]["state"] == "Bound")
    host.driver.behaviour.releasing.clear()
    nova.delete(f"{ARQS}?instance={first}")
    second = bind(nova, arqs(), host.provider())
    nova.delete(f"{ARQS}?instance={second}")
    third = bind(nova, arqs(), host.provider())
    host.driver.behaviour.open()
    eventually(lambda: of_instance(nova, third)[0]["state"] == "Bound")
    nova.delete(f"{ARQS}?instance={third}")
    settled(database, host)


def test_release_is_retried_after_agent_restarts(
    host: RackedCompute, arqs: Callable[[], Arqs], nova: Client, database: Database
) -> None:
    instance = bind(nova, arqs(), host.provider())
    eventually(lambda: of_instance(nova, instance)[0]["state"] == "Bound")
    host.agent.stop()
    nova.delete(f"{ARQS}?instance={instance}")
    assert set(handle_states(database).values()) == {"releasing"}
    host.restart()
    settled(database, host)


@pytest.fixture
def glance() -> Iterator[SimulatedGlance]:
    with SimulatedGlance() as service:
        yield service


@pytest.fixture
def programmable(
    stack: Stack,
    glance: SimulatedGlance,
    racked: Callable[..., RackedCompute],
    resource_class: str,
) -> Iterator[RackedCompute]:
    """A compute with a card that takes images, whose agent knows a Glance."""
    own = replace(stack, peers=replace(stack.peers, glance=glance.adapter), _endings=[])
    yield racked(Traits(resource_class, programmable=True), on=own)
    own.stop()


def program(client: Client, image: str, status: int = 200) -> Any:
    """Ask for an image in the only deployable that there is."""
    (deployable,) = client.get("/deployables")["deployables"]
    body = [{"path": "/program", "op": "replace", "value": [{"image_uuid": image}]}]
    return client.patch(f"/deployables/{deployable['uuid']}/program", body, status=status)


def loaded_image(database: Database) -> str | None:
    with database.reader() as tx:
        found: str | None = tx.execute(sa.select(Deployable.bitstream_id)).scalar_one()
    return found


def test_operator_programs_a_deployable(
    programmable: RackedCompute, glance: SimulatedGlance, admin: Client, database: Database
) -> None:
    image = glance.add(b"bitstream")
    answer = program(admin, image)
    assert answer["uuid"]
    eventually(lambda: loaded_image(database) == image)
    assert list(programmable.driver.loaded.values()) == [b"bitstream"]
    assert list(programmable.state_path.glob("*.image*")) == []


def test_failed_program_is_recorded_and_changes_no_image(
    programmable: RackedCompute, glance: SimulatedGlance, admin: Client, database: Database
) -> None:
    program(admin, str(uuid4()))
    eventually(lambda: work_left(database) == [])
    assert loaded_image(database) is None
    with database.reader() as tx:
        actions = tx.execute(
            sa.select(Event.action, Event.reason)
            .where(Event.noun == "deployable")
            .order_by(Event.id)
        ).all()
    assert [row.action for row in actions] == ["program", "program failed"]
    assert "could not be found" in actions[1].reason


def test_program_is_refused_without_driver_support(
    compute: Callable[..., Any], admin: Client
) -> None:
    compute()
    assert "fake_driver" in str(program(admin, str(uuid4()), status=409))
