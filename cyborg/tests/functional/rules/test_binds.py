# SPDX-License-Identifier: Apache-2.0
"""Binds and their ways out: which unit is claimed, what is called off, who is told."""

import logging
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg.conductor.arqs import bind
from cyborg.db import arqs
from cyborg.db.models import Deployable, Device, Work
from cyborg.model.arq import Event, State
from cyborg.tests.fixtures.host_reports import provider_of
from cyborg.tests.functional.races.arena import Arena, Conductor, sound
from cyborg.tests.functional.rules.conftest import PLAIN, PREPARING
from cyborg.tests.functional.rules.rows import (
    arq_of,
    execute,
    handles_of,
    locked,
    set_arq,
    set_handle,
    work_kinds,
)


def bound(arena: Arena, host: str) -> tuple[str, str]:
    """One ARQ, bound to the host's device; uuids of ARQ and instance."""
    ((arq,),), instance = arena.request(1), str(uuid4())
    arena.conductors[0].bind([arq], provider_of(host, 0), instance)
    return arq, instance


@pytest.mark.parametrize(
    ("host", "text"),
    [(PLAIN, "ARQ %s bound to instance"), (PREPARING, "ARQ %s is being prepared for instance")],
)
def test_log_of_bind_names_instance_host_device_and_handle(
    arena: Arena, caplog: pytest.LogCaptureFixture, host: str, text: str
) -> None:
    with caplog.at_level(logging.INFO, "cyborg.conductor.arqs.bind"):
        arq, instance = bound(arena, host)
    row = arq_of(arena.db, arq)
    with arena.db.reader() as tx:
        query = sa.select(Device.uuid).join(Deployable, Deployable.device_id == Device.id)
        device = tx.execute(query.where(Deployable.id == row.deployable_id)).scalar_one()
    place = f"{instance} on host compute (device {device}, handle {row.attach_handle_id})"
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert [message for message in messages if arq in message] == [f"{text % arq} {place}"]


def test_free_unit_is_claimed_before_a_releasing_unit(arena: Arena) -> None:
    """The bind would have to wait for the release of the former guest's unit."""
    (first, _), (second, _) = handles_of(arena.db, PREPARING)
    set_handle(arena.db, first, state="releasing")
    arq, _ = bound(arena, PREPARING)
    assert arq_of(arena.db, arq).attach_handle_id == second


def test_delete_of_arq_keeps_release_of_its_earlier_bind(
    arena: Arena, conductor: Conductor
) -> None:
    """Only its preparation is called off: else the unit stays ``releasing`` with no work."""
    arq, _ = bound(arena, PREPARING)
    assert work_kinds(arena.db) == ["prepare"]
    conductor.unbind([arq])
    assert work_kinds(arena.db) == ["release"]
    conductor.bind([arq], provider_of(PREPARING, 0), str(uuid4()))
    assert work_kinds(arena.db) == ["prepare", "release"]
    conductor.delete([arq])
    assert work_kinds(arena.db) == ["release", "release"]
    sound(arena.db)


def test_unbound_arq_has_no_fault(arena: Arena, conductor: Conductor) -> None:
    arq, _ = bound(arena, PREPARING)
    execute(arena.db, sa.delete(Work))
    with arena.db.writer() as tx:
        rows = locked(tx, arq)
        assert bind.resolve(tx, rows, Event.FAIL, fault="the card hangs")
    assert arq_of(arena.db, arq).fault == "the card hangs"
    conductor.unbind([arq])
    row = arq_of(arena.db, arq)
    assert (row.state, row.fault) == (State.UNBOUND, None)


@pytest.mark.parametrize(("hidden", "told"), [(False, ["notify"]), (True, [])])
def test_no_event_is_sent_for_an_arq_of_an_attach(
    arena: Arena, hidden: bool, told: list[str]
) -> None:
    """No server waits for it: the attach itself ends with all of its ARQs, or with none."""
    arq, _ = bound(arena, PREPARING)
    execute(arena.db, sa.delete(Work))
    set_arq(arena.db, arq, hidden=hidden, prepared=False)
    with arena.db.writer() as tx:
        bind.resolve(tx, locked(tx, arq), Event.FAIL, fault="the card hangs")
    assert work_kinds(arena.db) == told


def test_hidden_arq_does_not_keep_an_instance_unresolved(arena: Arena) -> None:
    """Nova polls for its own ARQs; a hidden ARQ is not listed and is none of them."""
    arq, instance = bound(arena, PREPARING)
    with arena.db.reader() as tx:
        assert not arqs.all_resolved(tx, instance, None)
    set_arq(arena.db, arq, hidden=True)
    with arena.db.reader() as tx:
        assert arqs.all_resolved(tx, instance, None)


def test_instance_without_units_can_be_bound_again(arena: Arena, conductor: Conductor) -> None:
    arq, instance = bound(arena, PLAIN)
    conductor.delete_of(instance)
    ((again,),) = arena.request(1)
    conductor.bind([again], provider_of(PLAIN, 0), instance)
    arena.holds({instance: [again]})
    assert arq != again
