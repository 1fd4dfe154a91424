# SPDX-License-Identifier: Apache-2.0
"""What an agent is told of the use of a unit: from the rows as they are when it asks."""

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.hosts.heartbeats import Heartbeats
from cyborg.conductor.reports.apply import ReportApplier
from cyborg.conductor.reports.desired_state import PreparedUnits
from cyborg.db.engine import Database
from cyborg.db.models import Arq, AttachHandle, Deployable, Device, DeviceProfile
from cyborg.model.arq import State
from cyborg.model.device import HandleState
from cyborg.model.report import Hello
from cyborg.model.work import Use
from cyborg.tests.fixtures.machines import report_of

HOST = "compute"


@dataclass
class Unit:
    """The only unit of a host, which binds prepare."""

    db: Database
    epoch: int
    custodian: PreparedUnits

    def change(self, model: Any, **values: Any) -> None:
        with self.db.writer() as tx:
            tx.execute(sa.update(model).values(**values))

    def give(self, state: State, *, prepared: bool) -> None:
        """Let an ARQ have it."""
        with self.db.writer() as tx:
            profile = tx.execute(
                sa.insert(DeviceProfile).values(
                    uuid=str(uuid4()), name="profile", profile_json='{"groups": []}'
                )
            ).inserted_primary_key
            handle = tx.execute(sa.select(AttachHandle.id)).scalar_one()
            tx.execute(
                sa.insert(Arq).values(
                    uuid=str(uuid4()),
                    state=state.value,
                    device_profile_id=profile[0] if profile else None,
                    device_profile_group_id=0,
                    attach_handle_id=handle,
                    prepared=prepared,
                )
            )

    def use(self) -> Use:
        (one,) = self.custodian.holdings(HOST, self.epoch).units
        return one.use


@pytest.fixture
def unit(db: Database) -> Unit:
    epoch = (
        Heartbeats(db=db, down_after=30_000)
        .hello(Hello(HOST, (HOST,), "0", f"agent@{HOST}", None))
        .epoch
    )
    ReportApplier(db=db, auto_enable=frozenset({"*"}), wake=lambda: None).report(
        HOST, epoch, report_of(HOST, 1, handles=1, prepare=True)
    )
    return Unit(db, epoch, PreparedUnits(db=db))


def test_what_nobody_has_is_idle(unit: Unit) -> None:
    assert unit.use() is Use.FREE


@pytest.mark.parametrize("state", [HandleState.RELEASING, HandleState.QUARANTINED])
def test_what_is_being_released_is_left_to_that(unit: Unit, state: HandleState) -> None:
    unit.change(AttachHandle, state=state.value)
    assert unit.use() is Use.IN_TRANSITION


def test_what_is_held_by_nobody_is_left_to_the_audit(unit: Unit) -> None:
    unit.change(AttachHandle, state=HandleState.HELD.value)
    assert unit.use() is Use.IN_TRANSITION


@pytest.mark.parametrize(
    ("arq", "prepared", "handle", "use"),
    [
        (State.BOUND, True, HandleState.HELD, Use.PREPARED),
        # Bound before its resource class needed preparing: nobody knows how.
        (State.BOUND, False, HandleState.HELD, Use.IN_TRANSITION),
        (State.BOUND, True, HandleState.RELEASING, Use.IN_TRANSITION),
        (State.BIND_STARTED, False, HandleState.HELD, Use.IN_TRANSITION),
        (State.BIND_STARTED, True, HandleState.HELD, Use.IN_TRANSITION),
        (State.BIND_STARTED, False, HandleState.RELEASING, Use.IN_TRANSITION),
        (State.BIND_STARTED, False, HandleState.FREE, Use.IN_TRANSITION),
    ],
)
def test_what_an_arq_has(
    unit: Unit, arq: State, prepared: bool, handle: HandleState, use: Use
) -> None:
    unit.change(AttachHandle, state=handle.value)
    unit.give(arq, prepared=prepared)
    assert unit.use() is use


@pytest.mark.parametrize("model", [Device, Deployable, AttachHandle])
@pytest.mark.parametrize("held", [True, False])
def test_what_is_lost_is_touched_by_nobody(unit: Unit, model: Any, held: bool) -> None:
    if held:
        unit.change(AttachHandle, state=HandleState.HELD.value)
        unit.give(State.BOUND, prepared=True)
    unit.change(model, lost_ms=1)
    assert unit.use() is Use.IN_TRANSITION


def test_each_answer_is_of_the_rows_as_they_are_then(unit: Unit) -> None:
    assert unit.use() is Use.FREE
    unit.change(AttachHandle, state=HandleState.HELD.value)
    unit.give(State.BIND_STARTED, prepared=True)
    assert unit.use() is Use.IN_TRANSITION
    unit.change(Arq, state=State.BOUND.value)
    assert unit.use() is Use.PREPARED
    with unit.db.writer() as tx:
        tx.execute(sa.delete(Arq))
        tx.execute(sa.update(AttachHandle).values(state=HandleState.FREE.value))
    assert unit.use() is Use.FREE


def test_a_superseded_agent_is_told_nothing(unit: Unit) -> None:
    with pytest.raises(exception.StaleEpoch):
        unit.custodian.holdings(HOST, unit.epoch - 1)
    with pytest.raises(exception.NotFound):
        unit.custodian.holdings("nowhere", unit.epoch)
