# SPDX-License-Identifier: Apache-2.0
"""Units that their host does not release: kept from guests, tried again, given back."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.db.engine import Database
from cyborg.db.models import Event, Work
from cyborg.model.audit_findings import Ages, Kind
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.life.cards import CARD, Traits
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import (
    Arqs,
    bind,
    create,
    delete_arqs,
    eventually,
    eventually_bound,
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
    """A compute with one card of two units, which are to be prepared for each guest."""
    return racked(Traits(resource_class, prepare=True), cards={CARD: 2})


@pytest.fixture
def arqs(nova: Client, profile: Callable[..., str], resource_class: str) -> Callable[[], Arqs]:
    """New ARQs, one at a time, for such a card."""
    name = profile({f"resources:{resource_class}": "1"})
    return lambda: create(nova, name)


@pytest.fixture
def stuck(
    host: RackedCompute, arqs: Callable[[], Arqs], nova: Client, database: Database
) -> RackedCompute:
    """The same, where the first unit has had a guest and is in quarantine after it."""
    instance = bind(nova, arqs(), host.provider())
    eventually_bound(nova, instance)
    host.driver.behaviour.stuck = RuntimeError("the card hangs")
    delete_arqs(nova, instance)
    eventually(lambda: quarantined(database))
    return host


def quarantined(database: Database) -> bool:
    hasten(database)
    return "quarantined" in handle_states(database).values()


def history(database: Database) -> list[Any]:
    """What happened to handles: action, host, reason."""
    with database.reader() as tx:
        query = sa.select(Event.action, Event.hostname, Event.reason).where(Event.noun == "handle")
        return list(tx.execute(query.order_by(Event.id)).all())


def recovered(database: Database) -> bool:
    hasten(database)
    return work_left(database) == []


def test_unit_is_quarantined_after_eight_failed_releases(
    stuck: RackedCompute, placement: PlacementService, database: Database
) -> None:
    eventually_offered(placement, stuck.provider(), 1)
    with database.reader() as tx:
        spec = tx.execute(sa.select(Work.spec)).scalar_one()
    assert spec["refusals"] >= 8
    (entry,) = history(database)
    assert (entry.action, entry.hostname) == ("quarantined", stuck.compute)
    assert "the card hangs" in entry.reason
    stuck.driver.behaviour.stuck = None
    eventually(lambda: recovered(database))
    assert set(handle_states(database).values()) == {"free"}
    eventually_offered(placement, stuck.provider(), 2)
    assert [one.action for one in history(database)] == ["quarantined", "out of quarantine"]


def refusals(database: Database) -> int:
    with database.reader() as tx:
        specs = tx.execute(sa.select(Work.spec)).scalars()
        return sum(one["refusals"] for one in specs if one)


def test_quarantined_unit_is_not_bound(
    stuck: RackedCompute, arqs: Callable[[], Arqs], nova: Client, database: Database
) -> None:
    second = bind(nova, arqs(), stuck.provider())
    eventually_bound(nova, second)
    bind(nova, arqs(), stuck.provider(), status=409)
    assert sorted(handle_states(database).values()) == ["held", "quarantined"]


def test_audit_reports_quarantined_unit(stuck: RackedCompute, stack: Stack) -> None:
    own = replace(stack, times=replace(stack.times, ages=Ages(settle=600_000)))
    (finding,) = [
        one
        for one in own.auditor().look(stuck.compute).findings
        if one.kind is Kind.QUARANTINED_HANDLE
    ]
    assert "the card hangs" in finding.cause
    assert stuck.compute in finding.remedy


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
    host = racked(Traits(resource_class, prepare=True), cards={CARD: 1})
    first = bind(nova, arqs(), host.provider())
    eventually_bound(nova, first)
    host.driver.behaviour.releasing.clear()
    host.driver.behaviour.stuck = RuntimeError("the card hangs")
    delete_arqs(nova, first)
    mine = arqs()
    instance = bind(nova, mine, host.provider(), instance=str(uuid4()))
    host.driver.behaviour.open()
    eventually(lambda: quarantined(database))
    assert states(nova, mine) == ["BindStarted"]
    uuid = mine[0]["uuid"]
    if healed:
        host.driver.behaviour.stuck = None
        eventually(lambda: recovered(database))
        assert states(nova, mine) == ["Bound"]
        assert nova_api.wait_for_events([uuid], timeout=5) == {uuid: "completed"}
        assert set(handle_states(database).values()) == {"held"}
        return
    meddle(database, sa.update(Work).where(Work.kind == "prepare").values(deadline_ms=1))
    assert nova_api.wait_for_events([uuid], timeout=5) == {uuid: "failed"}
    (failed,) = of_instance(nova, instance)
    assert failed["state"] == "BindFailed"
    assert set(handle_states(database).values()) == {"quarantined"}
    eventually(lambda: offered(placement, host.provider()) == 0)
