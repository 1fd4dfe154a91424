# SPDX-License-Identifier: Apache-2.0
"""The use of a unit that an agent is given: computed from the rows at each request."""

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
from cyborg.model.report import AgentHeartbeat
from cyborg.model.work import Use
from cyborg.tests.fixtures.host_reports import report_of

HOST = "compute"


@dataclass
class Unit:
    """The only unit of a host; it is prepared for each bind."""

    db: Database
    epoch: int
    prepared_units: PreparedUnits

    def change(self, model: Any, **values: Any) -> None:
        with self.db.writer() as tx:
            tx.execute(sa.update(model).values(**values))

    def assign(self, state: State, *, prepared: bool) -> None:
        """Add an ARQ that has the unit."""
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
        (holding,) = self.prepared_units.unit_uses(HOST, self.epoch).units
        return holding.use


@pytest.fixture
def unit(db: Database) -> Unit:
    epoch = (
        Heartbeats(db=db, down_after=30_000)
        .heartbeat(AgentHeartbeat(HOST, (HOST,), "0", f"agent@{HOST}", None))
        .epoch
    )
    ReportApplier(db=db, auto_enable=frozenset({"*"}), wake=lambda: None).report(
        HOST, epoch, report_of(HOST, 1, handles=1, prepare=True)
    )
    return Unit(db, epoch, PreparedUnits(db=db))


@pytest.mark.parametrize(
    ("arq", "prepared", "handle", "use"),
    [
        (None, False, HandleState.FREE, Use.FREE),
        (None, False, HandleState.HELD, Use.IN_TRANSITION),
        (None, False, HandleState.RELEASING, Use.IN_TRANSITION),
        (None, False, HandleState.QUARANTINED, Use.IN_TRANSITION),
        (State.BOUND, True, HandleState.HELD, Use.PREPARED),
        # Bound before its resource class needed preparation: nobody knows how to prepare it.
        (State.BOUND, False, HandleState.HELD, Use.IN_TRANSITION),
        (State.BOUND, True, HandleState.RELEASING, Use.IN_TRANSITION),
        (State.BIND_STARTED, False, HandleState.HELD, Use.IN_TRANSITION),
        (State.BIND_STARTED, True, HandleState.HELD, Use.IN_TRANSITION),
        (State.BIND_STARTED, False, HandleState.RELEASING, Use.IN_TRANSITION),
        (State.BIND_STARTED, False, HandleState.FREE, Use.IN_TRANSITION),
    ],
)
def test_the_use_of_a_unit_follows_from_its_arq(
    unit: Unit, arq: State | None, prepared: bool, handle: HandleState, use: Use
) -> None:
    assert unit.use() is Use.FREE
    unit.change(AttachHandle, state=handle.value)
    if arq is not None:
        unit.assign(arq, prepared=prepared)
    assert unit.use() is use
    # Whatever it was, a unit that is lost is left alone.
    for model in (Device, Deployable, AttachHandle):
        unit.change(model, lost_ms=1)
        assert unit.use() is Use.IN_TRANSITION
        unit.change(model, lost_ms=None)
    assert unit.use() is use


def test_a_superseded_or_unknown_agent_gets_no_answer(unit: Unit) -> None:
    with pytest.raises(exception.StaleEpoch):
        unit.prepared_units.unit_uses(HOST, unit.epoch - 1)
    with pytest.raises(exception.NotFound):
        unit.prepared_units.unit_uses("nowhere", unit.epoch)
