# SPDX-License-Identifier: Apache-2.0
"""What moves an attach handle from which state, and which states are left alone."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from oslo_db.exception import DBError

from cyborg import exception
from cyborg.db import attach_handles, units
from cyborg.db.models import Arq, AttachHandle, Host
from cyborg.db.transaction import Transaction
from cyborg.model.arq import State
from cyborg.model.device import HandleState
from cyborg.tests.fixtures.use_cases import UseCases
from cyborg.tests.functional.rules.conftest import PLAIN
from cyborg.tests.functional.rules.rows import arq_of, execute, handles_of, set_arq, set_handle

#: What is done to one handle, and to its ARQ.
MOVES: dict[str, Callable[[Transaction, int, int], Any]] = {
    "let go, clean": lambda tx, handle, arq: attach_handles.release(tx, {handle: arq}, used=[]),
    "let go, used": lambda tx, handle, arq: attach_handles.release(tx, {handle: arq}, [handle]),
    "quarantine": lambda tx, handle, arq: attach_handles.quarantine(tx, handle),
    "end of release": lambda tx, handle, arq: attach_handles.finish_release(tx, handle),
}
#: Where each of them leads; from any other state nowhere.
TARGETS = {
    ("let go, used", "ready"): "releasing",
    ("quarantine", "releasing"): "quarantined",
    ("end of release", "releasing"): "ready",
    ("end of release", "quarantined"): "ready",
}


@pytest.mark.parametrize("state", list(HandleState))
@pytest.mark.parametrize("move", MOVES)
def test_handle_moves_only_from_allowed_states(conductor: UseCases, move: str, state: str) -> None:
    (mine, _), (other, _) = handles_of(conductor.db, PLAIN)
    holders = {mine: _arq(conductor), other: _arq(conductor)}
    for handle, arq in holders.items():
        set_handle(conductor.db, handle, state=state, arq_id=arq)
    with conductor.db.writer() as tx:
        MOVES[move](tx, mine, holders[mine])
    target = TARGETS.get((move, state), state)
    kept = None if move.startswith("let go") else holders[mine]
    assert _stored(conductor, mine) == (target, kept)
    assert _stored(conductor, other) == (state, holders[other])


def test_handle_of_another_arq_is_not_released(conductor: UseCases) -> None:
    (mine, _), _ = handles_of(conductor.db, PLAIN)
    holder, other = _arq(conductor), _arq(conductor)
    set_handle(conductor.db, mine, arq_id=holder)
    with pytest.raises(exception.Conflict), conductor.db.writer() as tx:
        attach_handles.release(tx, {mine: other}, used=[mine])
    assert _stored(conductor, mine) == ("ready", holder)


def test_arq_without_a_handle_is_checked(conductor: UseCases) -> None:
    (mine, _), _ = handles_of(conductor.db, PLAIN)
    holder, other = _arq(conductor), _arq(conductor)
    set_handle(conductor.db, mine, arq_id=holder)
    with conductor.db.writer() as tx:
        attach_handles.check_none(tx, [other])
        with pytest.raises(exception.Conflict):
            attach_handles.check_none(tx, [other, holder])


def test_arq_is_given_each_claimed_handle(conductor: UseCases) -> None:
    (first, _), (second, _) = handles_of(conductor.db, PLAIN)
    (one,), (two,) = conductor.request(2)
    with conductor.db.writer() as tx:
        assert units.hold(tx, {first: two, second: one})
    ids = {uuid: arq_of(conductor.db, uuid).attach_handle_id for uuid in (one, two)}
    assert ids == {one: second, two: first}


def test_unit_of_a_deleted_arq_is_free(conductor: UseCases) -> None:
    (mine, _), _ = handles_of(conductor.db, PLAIN)
    arq = _arq(conductor)
    set_handle(conductor.db, mine, arq_id=arq)
    execute(conductor.db, sa.delete(Arq).where(Arq.id == arq))
    assert _stored(conductor, mine) == ("ready", None)


def test_unit_has_one_arq(conductor: UseCases) -> None:
    (first, _), (second, _) = handles_of(conductor.db, PLAIN)
    arq = _arq(conductor)
    set_handle(conductor.db, first, arq_id=arq)
    with pytest.raises(exception.Conflict):
        set_handle(conductor.db, second, arq_id=arq)


@pytest.mark.parametrize("state", [State.BOUND, State.BIND_STARTED])
def test_bound_arq_has_an_instance(conductor: UseCases, state: State) -> None:
    ((arq,),) = conductor.request(1)
    with pytest.raises((DBError, sa.exc.DBAPIError), match="bound_to_instance"):
        set_arq(conductor.db, arq, state=state.value)
    set_arq(conductor.db, arq, state=state.value, instance_uuid=str(uuid4()))


def _arq(conductor: UseCases) -> int:
    """The id of a new ARQ."""
    ((arq,),) = conductor.request(1)
    return int(arq_of(conductor.db, arq).id)


def _stored(conductor: UseCases, handle: int) -> tuple[str, int | None]:
    with conductor.db.reader() as tx:
        columns = sa.select(AttachHandle.state, AttachHandle.arq_id)
        state, arq = tx.execute(columns.where(AttachHandle.id == handle)).one()
    return state, arq


@pytest.mark.parametrize("state", list(HandleState))
def test_only_quarantined_handle_is_quarantined(conductor: UseCases, state: str) -> None:
    (mine, _), _ = handles_of(conductor.db, PLAIN)
    set_handle(conductor.db, mine, state=state)
    with conductor.db.writer() as tx:
        uuid = tx.execute(sa.select(AttachHandle.uuid).where(AttachHandle.id == mine)).scalar_one()
        host = attach_handles.host_of_release(tx, uuid)
        own = tx.execute(sa.select(Host.id).where(Host.name == PLAIN)).scalar_one()
        said = attach_handles.quarantine(tx, mine)
    assert host == (own if state == HandleState.QUARANTINED else None)
    assert said is (state == HandleState.RELEASING)
