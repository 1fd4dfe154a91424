# SPDX-License-Identifier: Apache-2.0
"""The use of a unit that an agent is given: computed from the rows at each request."""

from uuid import uuid4

import pytest

from cyborg import exception
from cyborg.db.engine import Database
from cyborg.db.models import Arq, AttachHandle, Deployable, Device
from cyborg.model.arq import State
from cyborg.model.device import HandleState
from cyborg.model.work import Use
from cyborg.rpc.verbs import FetchUnitUses
from cyborg.tests.fixtures.host_reports import report_of
from cyborg.tests.fixtures.use_cases import UseCases

HOST = "compute"


@pytest.fixture
def unit(db: Database) -> UseCases:
    """A host with one unit, which is prepared for each bind."""
    made = UseCases(db)
    made.report(HOST, report_of(HOST, 1, handles=1, prepare=True))
    return made


def assign(unit: UseCases, state: State, *, prepared: bool) -> None:
    """Add an ARQ that has the unit."""
    (arq,) = unit.arqs_for()
    instance = str(uuid4())
    unit.change(Arq, Arq.uuid == arq, state=state, prepared=prepared, instance_uuid=instance)
    unit.change(AttachHandle, arq_id=unit.arq(arq).id)


def use_of(unit: UseCases) -> Use:
    (holding,) = unit.ask(FetchUnitUses(HOST, unit.epochs[HOST])).units
    return holding.use


@pytest.mark.parametrize(
    ("arq", "prepared", "handle", "use"),
    [
        (None, False, HandleState.READY, Use.FREE),
        (None, False, HandleState.RELEASING, Use.IN_TRANSITION),
        (None, False, HandleState.QUARANTINED, Use.IN_TRANSITION),
        (State.BOUND, True, HandleState.READY, Use.PREPARED),
        # Bound before its resource class needed preparation: nobody knows how to prepare it.
        (State.BOUND, False, HandleState.READY, Use.IN_TRANSITION),
        (State.BOUND, True, HandleState.RELEASING, Use.IN_TRANSITION),
        (State.BIND_STARTED, False, HandleState.READY, Use.IN_TRANSITION),
        (State.BIND_STARTED, True, HandleState.READY, Use.IN_TRANSITION),
        (State.BIND_STARTED, False, HandleState.RELEASING, Use.IN_TRANSITION),
    ],
)
def test_the_use_of_a_unit_follows_from_its_arq(
    unit: UseCases, arq: State | None, prepared: bool, handle: HandleState, use: Use
) -> None:
    assert use_of(unit) is Use.FREE
    unit.change(AttachHandle, state=handle.value)
    if arq is not None:
        assign(unit, arq, prepared=prepared)
    assert use_of(unit) is use
    # Whatever it was, a unit that is lost is left alone.
    for model in (Device, Deployable, AttachHandle):
        unit.change(model, lost_ms=1)
        assert use_of(unit) is Use.IN_TRANSITION
        unit.change(model, lost_ms=None)
    assert use_of(unit) is use


def test_a_superseded_or_unknown_agent_gets_no_answer(unit: UseCases) -> None:
    with pytest.raises(exception.StaleEpoch):
        unit.ask(FetchUnitUses(HOST, unit.epochs[HOST] - 1))
    with pytest.raises(exception.NotFound):
        unit.ask(FetchUnitUses("nowhere", 1))
