# SPDX-License-Identifier: Apache-2.0
"""Binds and their ways out: which unit is claimed, what is called off, who is told."""

import logging
from dataclasses import replace
from datetime import datetime
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.arqs import bind, claims
from cyborg.db import arqs, deployables, listing, work
from cyborg.db.models import Arq, Deployable, Device, Instance, Work
from cyborg.db.models import Event as History
from cyborg.model.arq import Binding, Event, State
from cyborg.model.scope import EVERYWHERE, Scope
from cyborg.model.work import WorkKind
from cyborg.tests.fixtures.host_reports import provider_of
from cyborg.tests.fixtures.manual_processes import BIND_TIMEOUT
from cyborg.tests.functional.races.arena import NOVA, Arena, Conductor, sound
from cyborg.tests.functional.rules.conftest import PLAIN, PREPARING, UNITS
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
    assert (row.state, row.fault, row.prepared) == (State.UNBOUND, None, False)


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


@pytest.mark.parametrize("hidden", [False, True])
def test_attach_looks_at_once_only_when_a_bind_of_its_own_ends(arena: Arena, hidden: bool) -> None:
    later = 2**42
    arq, instance = bound(arena, PREPARING)
    set_arq(arena.db, arq, hidden=hidden, prepared=False)
    attach = Work.kind == WorkKind.ATTACH
    with arena.db.writer() as tx:
        work.add(tx, [{"kind": WorkKind.ATTACH, "instance_uuid": instance}])
        tx.execute(sa.update(Work).where(attach).values(not_before_ms=later))
        bind.resolve(tx, locked(tx, arq), Event.FAIL, fault="the card hangs")
        due = tx.execute(sa.select(Work.not_before_ms).where(attach)).scalar_one()
    assert (due < later) is hidden


def test_hidden_arq_does_not_keep_an_instance_unresolved(arena: Arena) -> None:
    """Nova polls for its own ARQs; a hidden ARQ is not listed and is none of them."""
    arq, instance = bound(arena, PREPARING)
    with arena.db.reader() as tx:
        assert not arqs.all_resolved(tx, instance, EVERYWHERE)
    set_arq(arena.db, arq, hidden=True)
    with arena.db.reader() as tx:
        assert arqs.all_resolved(tx, instance, EVERYWHERE)


def test_instance_without_units_can_be_bound_again(arena: Arena, conductor: Conductor) -> None:
    arq, instance = bound(arena, PLAIN)
    conductor.delete_of(instance)
    ((again,),) = arena.request(1)
    conductor.bind([again], provider_of(PLAIN, 0), instance)
    arena.holds({instance: [again]})
    assert arq != again


def test_repeated_bind_changes_nothing(arena: Arena, conductor: Conductor) -> None:
    ((arq,),), instance, key = arena.request(1), str(uuid4()), str(uuid4())
    place = provider_of(PLAIN, 0)
    conductor.bind([arq], place, instance, request_key=key)
    before = arq_of(arena.db, arq)
    conductor.bind([arq], place, instance, request_key=key)
    # A concurrent attempt did not see the row of a new instance, but waited for the ARQ.
    execute(arena.db, sa.update(Instance).values(bound=False))
    conductor.bind([arq], place, instance, request_key=key)
    assert arq_of(arena.db, arq) == before
    assert work_kinds(arena.db) == ["notify"]


def test_late_repetition_of_a_bind_does_not_bind_again(arena: Arena, conductor: Conductor) -> None:
    ((arq,),), instance, key = arena.request(1), str(uuid4()), str(uuid4())
    conductor.bind([arq], provider_of(PLAIN, 0), instance, request_key=key)
    conductor.unbind([arq])
    conductor.bind([arq], provider_of(PLAIN, 0), instance, request_key=key)
    assert arq_of(arena.db, arq).state == State.UNBOUND
    conductor.bind([arq], provider_of(PLAIN, 0), instance)
    assert arq_of(arena.db, arq).state == State.BOUND


def test_another_bind_of_a_bound_instance_or_arq_is_refused(
    arena: Arena, conductor: Conductor
) -> None:
    (arq,), (other,) = arena.request(2)
    instance, place = str(uuid4()), provider_of(PLAIN, 0)
    conductor.bind([arq], place, instance)
    with pytest.raises(exception.InstanceAlreadyBound):
        conductor.bind([other], place, instance)
    with pytest.raises(exception.BadState):
        conductor.bind([arq, other], place, str(uuid4()))
    arena.holds({instance: [arq]})


def test_bind_of_a_missing_arq_names_it_and_binds_none(arena: Arena, conductor: Conductor) -> None:
    ((arq,),), missing = arena.request(1), str(uuid4())
    with pytest.raises(exception.NotFound, match=missing) as caught:
        conductor.bind([arq, missing], provider_of(PLAIN, 0), str(uuid4()))
    assert arq not in str(caught.value)
    assert arq_of(arena.db, arq).state == State.INITIAL


def test_arqs_of_another_project_are_not_found(arena: Arena, conductor: Conductor) -> None:
    ((arq,),) = arena.request(1)
    stranger = replace(NOVA, project_id="another", all_projects=False)
    binding = Binding(arq, "compute", provider_of(PLAIN, 0), str(uuid4()))
    with pytest.raises(exception.NotFound):
        conductor.cases.arq_binder.patch(stranger, str(uuid4()), [binding], [])
    with pytest.raises(exception.NotFound):
        conductor.cases.arq_binder.patch(stranger, str(uuid4()), [], [arq])
    owner = replace(stranger, project_id=NOVA.project_id)
    conductor.cases.arq_binder.patch(owner, str(uuid4()), [binding], [])
    assert arq_of(arena.db, arq).state == State.BOUND


def test_more_arqs_than_units_are_refused_together(arena: Arena, conductor: Conductor) -> None:
    (arqs,) = arena.request(1, UNITS + 1)
    with pytest.raises(exception.NoFreeHandle):
        conductor.bind(arqs, provider_of(PLAIN, 0), str(uuid4()))
    arena.holds({})
    instance = str(uuid4())
    conductor.bind(arqs[:UNITS], provider_of(PLAIN, 0), instance)
    arena.holds({instance: arqs[:UNITS]})


def test_claim_that_skips_locked_units_cannot_tell_that_none_is_free(arena: Arena) -> None:
    place, instance = provider_of(PLAIN, 0), str(uuid4())
    with arena.db.writer() as tx:
        deployable = deployables.by_provider(tx, [place])[place]
        wanted = [
            claims.Claim(str(uuid4()), {}, deployable, instance, "compute", "project")
            for _ in range(UNITS + 1)
        ]
        with pytest.raises(claims.TooFewHandles):
            claims.lock(tx, wanted, wait=False)
        with pytest.raises(exception.NoFreeHandle):
            claims.lock(tx, wanted, wait=True)
        assert len(claims.lock(tx, wanted[:UNITS], wait=False)) == UNITS


def test_each_commit_of_the_binder_wakes_the_worker(arena: Arena, conductor: Conductor) -> None:
    wakes: list[None] = []
    binder = replace(conductor.cases.arq_binder, wake=lambda: wakes.append(None))
    ((arq,),) = arena.request(1)
    binding = Binding(arq, "compute", provider_of(PLAIN, 0), str(uuid4()))
    binder.patch(NOVA, str(uuid4()), [binding], [])
    assert len(wakes) == 1
    binder.patch(NOVA, str(uuid4()), [], [arq])
    assert len(wakes) == 2


def test_bind_on_another_host_than_that_of_the_device_is_logged(
    arena: Arena, caplog: pytest.LogCaptureFixture
) -> None:
    """Nova names the compute, the device the host of its agent."""
    with caplog.at_level(logging.DEBUG, "cyborg.conductor.arqs.bind"):
        arq, _ = bound(arena, PLAIN)
        assert f"ARQ {arq} is bound on host compute to a device of host {PLAIN}" in caplog.text
        caplog.clear()
        ((arq,),) = arena.request(1)
        binding = Binding(arq, PLAIN, provider_of(PLAIN, 0), str(uuid4()))
        arena.conductors[0].cases.arq_binder.patch(NOVA, str(uuid4()), [binding], [])
        assert "to a device of host" not in caplog.text


def test_history_of_a_bind_names_instance_host_and_device(arena: Arena) -> None:
    arq, instance = bound(arena, PLAIN)
    with arena.db.reader() as tx:
        device = tx.execute(
            sa.select(Device.uuid)
            .join(Deployable, Deployable.device_id == Device.id)
            .where(Deployable.rp_uuid == provider_of(PLAIN, 0))
        ).scalar_one()
        event = tx.execute(
            sa.select(History.instance_uuid, History.hostname, History.device_uuid).where(
                History.subject_uuid == arq, History.action == State.BOUND.value
            )
        ).one()
    assert event == (instance, "compute", device)


def test_bind_that_waits_for_a_release_has_prepared_nothing(
    arena: Arena, conductor: Conductor
) -> None:
    """So its unbind leaves the release to the work that is going on."""
    arqs, instance = arena.request(1, UNITS)[0], str(uuid4())
    conductor.bind(arqs, provider_of(PREPARING, 0), instance)
    assert all(arq_of(arena.db, arq).prepared for arq in arqs)
    conductor.unbind(arqs)
    conductor.bind(arqs[:1], provider_of(PREPARING, 0), instance)
    row = arq_of(arena.db, arqs[0])
    assert (row.state, row.prepared) == (State.BIND_STARTED, False)
    assert dict(handles_of(arena.db, PREPARING))[row.attach_handle_id] == "releasing"
    assert work_kinds(arena.db) == ["prepare", *["release"] * UNITS]


def test_preparation_has_the_requirements_and_the_time_that_are_left(arena: Arena) -> None:
    ((arq,),), instance = arena.request(1), str(uuid4())
    group = {**arq_of(arena.db, arq).group_spec, "accel:mode": "fast"}
    set_arq(arena.db, arq, group_spec=group)
    arena.conductors[0].bind([arq], provider_of(PREPARING, 0), instance)
    with arena.db.reader() as tx:
        (row,) = tx.execute(sa.select(Work.__table__))
    assert row.spec == {"mode": "fast"}
    assert row.deadline_ms - row.created_ms == 1000 * BIND_TIMEOUT
    assert row.attach_handle_id == arq_of(arena.db, arq).attach_handle_id


def test_image_is_loaded_before_the_arqs_without_one(arena: Arena, conductor: Conductor) -> None:
    image, (plain, programmed) = str(uuid4()), arena.request(1, 2)[0]
    own = sa.update(Deployable).where(Deployable.rp_uuid == provider_of(PREPARING, 0))
    group = arq_of(arena.db, programmed).group_spec
    set_arq(arena.db, programmed, group_spec={**group, "accel:bitstream_id": image})
    execute(arena.db, own.values(programmable=True))
    try:
        conductor.bind([plain, programmed], provider_of(PREPARING, 0), str(uuid4()))
    finally:
        execute(arena.db, own.values(programmable=False))
    with arena.db.reader() as tx:
        order = list(tx.execute(sa.select(Work.arq_uuid).order_by(Work.id)).scalars())
    assert order == [programmed, plain]


def test_repeated_create_returns_the_same_arqs(arena: Arena, conductor: Conductor) -> None:
    profile, key = arena.profile(2), str(uuid4())
    creator = conductor.cases.arq_creator
    first = creator.create(NOVA, key, profile)
    assert creator.create(NOVA, key, profile) == first
    assert arena.count(Arq) == len(first) == 2
    created = sa.update(Arq).values(created_at=datetime(2020, 1, 1))
    execute(arena.db, created)
    (again, _) = creator.create(NOVA, key, profile)
    assert again.created_at == datetime(2020, 1, 1)
    conductor.delete([first[0].uuid])
    assert [one.uuid for one in creator.create(NOVA, key, profile)] == [one.uuid for one in first]
    assert arena.count(Arq) == 1


def test_repeated_create_of_one_arq_returns_it(arena: Arena, conductor: Conductor) -> None:
    key = str(uuid4())
    first, second = (
        conductor.cases.arq_creator.create(NOVA, key, arena.profile(1)) for _ in range(2)
    )
    assert first == second


def test_concurrent_create_of_the_same_request_ends_with_its_arqs(
    arena: Arena, conductor: Conductor
) -> None:
    """The attempts did not see each other: one of them meets the rows of the other."""
    profile, key = arena.profile(2), str(uuid4())
    first = conductor.cases.arq_creator.create(NOVA, key, profile)
    execute(arena.db, sa.delete(History))
    assert conductor.cases.arq_creator.create(NOVA, key, profile) == first
    execute(arena.db, sa.delete(History), sa.delete(Arq).where(Arq.uuid == first[0].uuid))
    with pytest.raises(exception.Conflict):
        conductor.cases.arq_creator.create(NOVA, key, profile)


def test_arqs_of_an_unknown_profile_are_not_created(conductor: Conductor) -> None:
    with pytest.raises(exception.NotFound):
        conductor.create("unknown")


def test_only_named_arqs_are_hidden_and_shown(arena: Arena) -> None:
    (one, two) = arena.request(1, 2)[0]
    with arena.db.writer() as tx:
        arqs.hide(tx, [], hidden=True)
        arqs.hide(tx, [arq_of(arena.db, one).id], hidden=True)
    assert [arq_of(arena.db, arq).hidden for arq in (one, two)] == [True, False]
    with arena.db.writer() as tx:
        arqs.hide(tx, [arq_of(arena.db, one).id], hidden=False)
    assert not arq_of(arena.db, one).hidden


def test_arq_whose_state_has_changed_is_not_moved(arena: Arena) -> None:
    arq, _ = bound(arena, PREPARING)
    id_ = arq_of(arena.db, arq).id
    with arena.db.writer() as tx:
        arqs.move(tx, Event.FINISH, [id_])
        with pytest.raises(exception.BadState):
            arqs.move(tx, Event.FINISH, [id_])
    assert arq_of(arena.db, arq).state == State.BOUND


def test_hidden_arq_is_finished_by_its_attach(arena: Arena) -> None:
    arq, _ = bound(arena, PREPARING)
    set_arq(arena.db, arq, hidden=True)
    with arena.db.writer() as tx:
        assert not bind.resolve(tx, locked(tx, arq), Event.FINISH)
    assert arq_of(arena.db, arq).state == State.BIND_STARTED


def test_arq_that_is_bound_already_is_not_resolved(arena: Arena) -> None:
    arq, _ = bound(arena, PLAIN)
    with arena.db.writer() as tx:
        assert not bind.resolve(tx, locked(tx, arq), Event.FAIL, fault="late")
    row = arq_of(arena.db, arq)
    assert (row.state, row.fault) == (State.BOUND, None)


@pytest.mark.parametrize(
    ("scope", "resolved"),
    [(EVERYWHERE, False), (Scope.of_project("project"), False), (Scope.of_project("x"), True)],
)
def test_instance_is_unresolved_for_the_owner_of_its_arqs(
    arena: Arena, scope: Scope, resolved: bool
) -> None:
    _, instance = bound(arena, PREPARING)
    with arena.db.reader() as tx:
        assert arqs.all_resolved(tx, instance, scope) is resolved
        assert arqs.all_resolved(tx, str(uuid4()), scope)


def test_hidden_arq_is_not_listed_for_its_instance(arena: Arena) -> None:
    """Nova attaches each ARQ that is listed."""
    hidden, instance = bound(arena, PLAIN)
    shown, _ = bound(arena, PLAIN)
    set_arq(arena.db, hidden, hidden=True)
    set_arq(arena.db, shown, instance_uuid=instance)
    with arena.db.reader() as tx:
        of_instance = arqs.page(tx, listing.Page(), EVERYWHERE, {"instance": instance})
        everything = arqs.page(tx, listing.Page(), EVERYWHERE, {})
    assert [row.uuid for row in of_instance] == [shown]
    assert [row.uuid for row in everything] == [hidden, shown]
