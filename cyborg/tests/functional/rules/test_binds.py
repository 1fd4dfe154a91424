# SPDX-License-Identifier: Apache-2.0
"""Binds and their ways out: which unit is claimed, what is called off, who is told."""

import logging
from dataclasses import replace
from datetime import datetime
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.arqs import bind, claims, create
from cyborg.db import arqs, deployables, listing, work
from cyborg.db.models import Arq, AttachHandle, Deployable, Device, Instance, Work
from cyborg.db.models import Event as History
from cyborg.model.arq import Binding, Event, State
from cyborg.model.scope import EVERYWHERE, Scope
from cyborg.model.work import WorkKind
from cyborg.rpc.verbs import CreateArqs, PatchArqs
from cyborg.tests.fixtures.commits import FollowedCommits
from cyborg.tests.fixtures.contexts import BIND_TIMEOUT, changed
from cyborg.tests.fixtures.host_reports import provider_of
from cyborg.tests.fixtures.use_cases import NOVA, UseCases
from cyborg.tests.functional.races.arena import holds, sound
from cyborg.tests.functional.rules.conftest import PLAIN, PREPARING, UNITS
from cyborg.tests.functional.rules.rows import (
    handles_of,
    locked,
    set_arq,
    set_handle,
    work_kinds,
)


def bound(conductor: UseCases, host: str) -> tuple[str, str]:
    """One ARQ, bound to the host's device; uuids of ARQ and instance."""
    ((arq,),), instance = conductor.request(1), str(uuid4())
    conductor.bind([arq], provider_of(host, 0), instance)
    return arq, instance


@pytest.mark.parametrize(
    ("host", "text"),
    [(PLAIN, "ARQ %s bound to instance"), (PREPARING, "ARQ %s is being prepared for instance")],
)
def test_log_of_bind_names_instance_host_device_and_handle(
    conductor: UseCases, caplog: pytest.LogCaptureFixture, host: str, text: str
) -> None:
    with caplog.at_level(logging.INFO, "cyborg.conductor.arqs.bind"):
        arq, instance = bound(conductor, host)
    row = conductor.arq(arq)
    with conductor.db.reader() as tx:
        query = sa.select(Device.uuid).join(Deployable, Deployable.device_id == Device.id)
        device = tx.execute(query.where(Deployable.id == row.deployable_id)).scalar_one()
    place = f"{instance} on host compute (device {device}, handle {row.attach_handle_id})"
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert [message for message in messages if arq in message] == [f"{text % arq} {place}"]


def test_free_unit_is_claimed_before_a_releasing_unit(conductor: UseCases) -> None:
    """The bind would have to wait for the release of the former guest's unit."""
    (first, _), (second, _) = handles_of(conductor.db, PREPARING)
    set_handle(conductor.db, first, state="releasing")
    arq, _ = bound(conductor, PREPARING)
    assert conductor.arq(arq).attach_handle_id == second


def test_delete_of_arq_keeps_release_of_its_earlier_bind(conductor: UseCases) -> None:
    """Only its preparation is called off: else the unit stays ``releasing`` with no work."""
    arq, _ = bound(conductor, PREPARING)
    assert work_kinds(conductor.db) == ["prepare"]
    conductor.unbind([arq])
    assert work_kinds(conductor.db) == ["release"]
    conductor.bind([arq], provider_of(PREPARING, 0), str(uuid4()))
    assert work_kinds(conductor.db) == ["prepare", "release"]
    conductor.delete([arq])
    assert work_kinds(conductor.db) == ["release", "release"]
    sound(conductor.db)


def test_unbound_arq_has_no_fault(conductor: UseCases) -> None:
    arq, _ = bound(conductor, PREPARING)
    conductor.execute(sa.delete(Work))
    with conductor.db.writer() as tx:
        rows = locked(tx, arq)
        assert bind.resolve(tx, rows, Event.FAIL, fault="the card hangs")
    assert conductor.arq(arq).fault == "the card hangs"
    conductor.unbind([arq])
    row = conductor.arq(arq)
    assert (row.state, row.fault, row.prepared) == (State.UNBOUND, None, False)


@pytest.mark.parametrize(("hidden", "told"), [(False, ["notify"]), (True, [])])
def test_no_event_is_sent_for_an_arq_of_an_attach(
    conductor: UseCases, hidden: bool, told: list[str]
) -> None:
    """No server waits for it: the attach itself ends with all of its ARQs, or with none."""
    arq, _ = bound(conductor, PREPARING)
    conductor.execute(sa.delete(Work))
    set_arq(conductor.db, arq, hidden=hidden, prepared=False)
    with conductor.db.writer() as tx:
        bind.resolve(tx, locked(tx, arq), Event.FAIL, fault="the card hangs")
    assert work_kinds(conductor.db) == told


@pytest.mark.parametrize("hidden", [False, True])
def test_attach_looks_at_once_only_when_a_bind_of_its_own_ends(
    conductor: UseCases, hidden: bool
) -> None:
    later = 2**42
    arq, instance = bound(conductor, PREPARING)
    set_arq(conductor.db, arq, hidden=hidden, prepared=False)
    attach = Work.kind == WorkKind.ATTACH
    with conductor.db.writer() as tx:
        work.add(tx, [{"kind": WorkKind.ATTACH, "instance_uuid": instance}])
        tx.execute(sa.update(Work).where(attach).values(not_before_ms=later))
        bind.resolve(tx, locked(tx, arq), Event.FAIL, fault="the card hangs")
        due = tx.execute(sa.select(Work.not_before_ms).where(attach)).scalar_one()
    assert (due < later) is hidden


def test_hidden_arq_does_not_keep_an_instance_unresolved(conductor: UseCases) -> None:
    """Nova polls for its own ARQs; a hidden ARQ is not listed and is none of them."""
    arq, instance = bound(conductor, PREPARING)
    with conductor.db.reader() as tx:
        assert not arqs.all_resolved(tx, instance, EVERYWHERE)
    set_arq(conductor.db, arq, hidden=True)
    with conductor.db.reader() as tx:
        assert arqs.all_resolved(tx, instance, EVERYWHERE)


def test_instance_without_units_can_be_bound_again(conductor: UseCases) -> None:
    arq, instance = bound(conductor, PLAIN)
    conductor.delete_of(instance)
    ((again,),) = conductor.request(1)
    conductor.bind([again], provider_of(PLAIN, 0), instance)
    holds(conductor, {instance: [again]})
    assert arq != again


def test_repeated_bind_changes_nothing(conductor: UseCases) -> None:
    ((arq,),), instance, key = conductor.request(1), str(uuid4()), str(uuid4())
    place = provider_of(PLAIN, 0)
    conductor.bind([arq], place, instance, request_key=key)
    before = conductor.arq(arq)
    conductor.bind([arq], place, instance, request_key=key)
    # A concurrent attempt did not see the row of a new instance, but waited for the ARQ.
    conductor.execute(sa.delete(Instance))
    conductor.bind([arq], place, instance, request_key=key)
    assert conductor.arq(arq) == before
    assert work_kinds(conductor.db) == ["notify"]


def test_late_repetition_of_a_bind_does_not_bind_again(conductor: UseCases) -> None:
    ((arq,),), instance, key = conductor.request(1), str(uuid4()), str(uuid4())
    conductor.bind([arq], provider_of(PLAIN, 0), instance, request_key=key)
    conductor.unbind([arq])
    conductor.bind([arq], provider_of(PLAIN, 0), instance, request_key=key)
    assert conductor.arq(arq).state == State.UNBOUND
    conductor.bind([arq], provider_of(PLAIN, 0), instance)
    assert conductor.arq(arq).state == State.BOUND


@pytest.mark.parametrize(("host", "state"), [(PLAIN, State.BOUND), (PREPARING, State.BIND_STARTED)])
def test_identical_bind_by_another_request_changes_nothing(
    conductor: UseCases, host: str, state: State
) -> None:
    arq, instance = bound(conductor, host)
    before, work_before = conductor.arq(arq), work_kinds(conductor.db)
    conductor.bind([arq], provider_of(host, 0), instance)
    # A concurrent identical bind of a new instance waits for the ARQ, not for the instance.
    conductor.execute(sa.delete(Instance))
    conductor.bind([arq], provider_of(host, 0), instance)
    assert before.state == state
    assert conductor.arq(arq) == before
    assert work_kinds(conductor.db) == work_before


@pytest.mark.parametrize(
    "change",
    [
        {"hostname": "another"},
        {"device_rp_uuid": provider_of(PREPARING, 0)},
        {"project_id": "another"},
    ],
)
def test_bind_that_differs_from_the_bind_of_its_instance_is_refused(
    conductor: UseCases, change: dict[str, str]
) -> None:
    arq, instance = bound(conductor, PLAIN)
    same = Binding(arq, "compute", provider_of(PLAIN, 0), instance)
    before = conductor.arq(arq)
    bind.patch(
        conductor.ctx,
        PatchArqs(NOVA, str(uuid4()), [replace(same, project_id=before.project_id)], []),
    )
    with pytest.raises(exception.InstanceAlreadyBound):
        bind.patch(conductor.ctx, PatchArqs(NOVA, str(uuid4()), [replace(same, **change)], []))
    stranger = replace(NOVA, project_id="another", all_projects=False)
    with pytest.raises(exception.InstanceAlreadyBound):
        bind.patch(conductor.ctx, PatchArqs(stranger, str(uuid4()), [same], []))
    assert conductor.arq(arq) == before


@pytest.mark.parametrize("state", [State.BIND_FAILED, State.UNBOUND])
def test_identical_bind_of_an_arq_that_is_not_bound_is_refused(
    conductor: UseCases, state: State
) -> None:
    arq, instance = bound(conductor, PLAIN)
    set_arq(conductor.db, arq, state=state)
    with pytest.raises(exception.InstanceAlreadyBound):
        conductor.bind([arq], provider_of(PLAIN, 0), instance)


def test_another_bind_of_a_bound_instance_or_arq_is_refused(conductor: UseCases) -> None:
    (arq,), (other,) = conductor.request(2)
    instance, place = str(uuid4()), provider_of(PLAIN, 0)
    conductor.bind([arq], place, instance)
    for arqs_ in ([other], [arq, other]):
        with pytest.raises(exception.InstanceAlreadyBound):
            conductor.bind(arqs_, place, instance)
    with pytest.raises(exception.BadState):
        conductor.bind([arq, other], place, str(uuid4()))
    holds(conductor, {instance: [arq]})


def test_arq_that_has_a_handle_in_a_state_without_one_is_not_bound(conductor: UseCases) -> None:
    """The existing service left such rows; the audit takes the handle away."""
    ((arq,),), place = conductor.request(1), provider_of(PLAIN, 0)
    first = conductor.rows(AttachHandle)[0]
    conductor.change(AttachHandle, AttachHandle.id == first.id, arq_id=conductor.arq(arq).id)
    with pytest.raises(exception.Conflict, match="has an attach handle already"):
        conductor.bind([arq], place, str(uuid4()))
    conductor.change(AttachHandle, AttachHandle.id == first.id, arq_id=None)
    conductor.boot(place)


def test_bind_of_a_missing_arq_names_it_and_binds_none(conductor: UseCases) -> None:
    ((arq,),), missing = conductor.request(1), str(uuid4())
    with pytest.raises(exception.NotFound, match=missing) as caught:
        conductor.bind([arq, missing], provider_of(PLAIN, 0), str(uuid4()))
    assert arq not in str(caught.value)
    assert conductor.arq(arq).state == State.INITIAL


def test_arqs_of_another_project_are_not_found(conductor: UseCases) -> None:
    ((arq,),) = conductor.request(1)
    stranger = replace(NOVA, project_id="another", all_projects=False)
    binding = Binding(arq, "compute", provider_of(PLAIN, 0), str(uuid4()))
    with pytest.raises(exception.NotFound):
        bind.patch(conductor.ctx, PatchArqs(stranger, str(uuid4()), [binding], []))
    with pytest.raises(exception.NotFound):
        bind.patch(conductor.ctx, PatchArqs(stranger, str(uuid4()), [], [arq]))
    owner = replace(stranger, project_id=NOVA.project_id)
    bind.patch(conductor.ctx, PatchArqs(owner, str(uuid4()), [binding], []))
    assert conductor.arq(arq).state == State.BOUND


def test_more_arqs_than_units_are_refused_together(conductor: UseCases) -> None:
    (arqs,) = conductor.request(1, UNITS + 1)
    with pytest.raises(exception.NoFreeHandle):
        conductor.bind(arqs, provider_of(PLAIN, 0), str(uuid4()))
    holds(conductor, {})
    instance = str(uuid4())
    conductor.bind(arqs[:UNITS], provider_of(PLAIN, 0), instance)
    holds(conductor, {instance: arqs[:UNITS]})


def test_claim_that_skips_locked_units_cannot_tell_that_none_is_free(conductor: UseCases) -> None:
    place, instance = provider_of(PLAIN, 0), str(uuid4())
    with conductor.db.writer() as tx:
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


def test_bind_wakes_the_work_runner_and_unbind_does_if_the_host_has_work(
    conductor: UseCases,
) -> None:
    commits = FollowedCommits(conductor.db)
    ((arq,),) = conductor.request(1)
    binding = Binding(arq, "compute", provider_of(PLAIN, 0), str(uuid4()))
    bind.patch(conductor.ctx, PatchArqs(NOVA, str(uuid4()), [binding], []))
    assert commits.wakes == 1
    bind.patch(conductor.ctx, PatchArqs(NOVA, str(uuid4()), [], [arq]))
    assert commits.wakes == 1
    ((arq,),) = conductor.request(1)
    binding = Binding(arq, "compute", provider_of(PREPARING, 0), str(uuid4()))
    bind.patch(conductor.ctx, PatchArqs(NOVA, str(uuid4()), [binding], []))
    bind.patch(conductor.ctx, PatchArqs(NOVA, str(uuid4()), [], [arq]))
    assert commits.wakes == 3


def test_bind_on_another_host_than_that_of_the_device_is_logged(
    conductor: UseCases, caplog: pytest.LogCaptureFixture
) -> None:
    """Nova names the compute, the device the host of its agent."""
    with caplog.at_level(logging.DEBUG, "cyborg.conductor.arqs.bind"):
        arq, _ = bound(conductor, PLAIN)
        assert f"ARQ {arq} is bound on host compute to a device of host {PLAIN}" in caplog.text
        caplog.clear()
        ((arq,),) = conductor.request(1)
        binding = Binding(arq, PLAIN, provider_of(PLAIN, 0), str(uuid4()))
        bind.patch(conductor.ctx, PatchArqs(NOVA, str(uuid4()), [binding], []))
        assert "to a device of host" not in caplog.text


def test_history_of_a_bind_names_instance_host_and_device(conductor: UseCases) -> None:
    arq, instance = bound(conductor, PLAIN)
    with conductor.db.reader() as tx:
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


def test_bind_that_waits_for_a_release_has_prepared_nothing(conductor: UseCases) -> None:
    """So its unbind leaves the release to the work that is going on."""
    arqs, instance = conductor.request(1, UNITS)[0], str(uuid4())
    conductor.bind(arqs, provider_of(PREPARING, 0), instance)
    assert all(conductor.arq(arq).prepared for arq in arqs)
    conductor.unbind(arqs)
    conductor.bind(arqs[:1], provider_of(PREPARING, 0), instance)
    row = conductor.arq(arqs[0])
    assert (row.state, row.prepared) == (State.BIND_STARTED, False)
    assert dict(handles_of(conductor.db, PREPARING))[row.attach_handle_id] == "releasing"
    assert work_kinds(conductor.db) == ["prepare", *["release"] * UNITS]


def test_preparation_has_the_requirements_and_the_time_that_are_left(conductor: UseCases) -> None:
    ((arq,),), instance = conductor.request(1), str(uuid4())
    group = {**conductor.arq(arq).group_spec, "accel:mode": "fast"}
    set_arq(conductor.db, arq, group_spec=group)
    conductor.bind([arq], provider_of(PREPARING, 0), instance)
    with conductor.db.reader() as tx:
        (row,) = tx.execute(sa.select(Work.__table__))
    assert row.spec == {"mode": "fast"}
    assert row.deadline_ms - row.created_ms == 1000 * BIND_TIMEOUT
    assert row.attach_handle_id == conductor.arq(arq).attach_handle_id


def test_image_is_loaded_before_the_arqs_without_one(conductor: UseCases) -> None:
    image, (plain, programmed) = str(uuid4()), conductor.request(1, 2)[0]
    own = sa.update(Deployable).where(Deployable.rp_uuid == provider_of(PREPARING, 0))
    group = conductor.arq(programmed).group_spec
    set_arq(conductor.db, programmed, group_spec={**group, "accel:bitstream_id": image})
    conductor.execute(own.values(programmable=True))
    try:
        conductor.bind([plain, programmed], provider_of(PREPARING, 0), str(uuid4()))
    finally:
        conductor.execute(own.values(programmable=False))
    with conductor.db.reader() as tx:
        order = list(tx.execute(sa.select(Work.arq_uuid).order_by(Work.id)).scalars())
    assert order == [programmed, plain]


def test_repeated_create_returns_the_same_arqs(conductor: UseCases) -> None:
    profile, key = conductor.profile_of(2), str(uuid4())
    first = create.create(conductor.ctx, CreateArqs(NOVA, key, profile))
    assert create.create(conductor.ctx, CreateArqs(NOVA, key, profile)) == first
    assert conductor.count(Arq) == len(first) == 2
    created = sa.update(Arq).values(created_at=datetime(2020, 1, 1))
    conductor.execute(created)
    (again, _) = create.create(conductor.ctx, CreateArqs(NOVA, key, profile))
    assert again.created_at == datetime(2020, 1, 1)
    conductor.delete([first[0].uuid])
    assert [one.uuid for one in create.create(conductor.ctx, CreateArqs(NOVA, key, profile))] == [
        one.uuid for one in first
    ]
    assert conductor.count(Arq) == 1


def test_repeated_create_of_one_arq_returns_it(conductor: UseCases) -> None:
    key = str(uuid4())
    first, second = (
        create.create(conductor.ctx, CreateArqs(NOVA, key, conductor.profile_of(1)))
        for _ in range(2)
    )
    assert first == second


def test_concurrent_create_of_the_same_request_ends_with_its_arqs(conductor: UseCases) -> None:
    """The attempts did not see each other: one of them meets the rows of the other."""
    profile, key = conductor.profile_of(2), str(uuid4())
    first = create.create(conductor.ctx, CreateArqs(NOVA, key, profile))
    conductor.execute(sa.delete(History))
    assert create.create(conductor.ctx, CreateArqs(NOVA, key, profile)) == first
    conductor.execute(sa.delete(History), sa.delete(Arq).where(Arq.uuid == first[0].uuid))
    with pytest.raises(exception.Conflict):
        create.create(conductor.ctx, CreateArqs(NOVA, key, profile))


def test_request_for_more_arqs_than_its_limit_creates_none(conductor: UseCases) -> None:
    profile, key = conductor.profile_of(3), str(uuid4())
    with pytest.raises(exception.OverLimit, match=f"requests fewer than {profile} does") as caught:
        create.create(
            changed(conductor.ctx, max_arqs_per_request=2), CreateArqs(NOVA, key, profile)
        )
    assert (caught.value.fields["requested"], caught.value.fields["limit"]) == (3, 2)
    assert conductor.count(Arq) == 0
    made = create.create(
        changed(conductor.ctx, max_arqs_per_request=3), CreateArqs(NOVA, key, profile)
    )
    # A repetition gets its ARQs, whatever the limit is now.
    lower = changed(conductor.ctx, max_arqs_per_request=2)
    assert create.create(lower, CreateArqs(NOVA, key, profile)) == made
    assert conductor.count(Arq) == len(made) == 3


def test_arqs_of_an_unknown_profile_are_not_created(conductor: UseCases) -> None:
    with pytest.raises(exception.NotFound):
        conductor.create("unknown")


def test_only_named_arqs_are_hidden_and_shown(conductor: UseCases) -> None:
    (one, two) = conductor.request(1, 2)[0]
    with conductor.db.writer() as tx:
        arqs.hide(tx, [], hidden=True)
        arqs.hide(tx, [conductor.arq(one).id], hidden=True)
    assert [conductor.arq(arq).hidden for arq in (one, two)] == [True, False]
    with conductor.db.writer() as tx:
        arqs.hide(tx, [conductor.arq(one).id], hidden=False)
    assert not conductor.arq(one).hidden


def test_arq_whose_state_has_changed_is_not_moved(conductor: UseCases) -> None:
    arq, _ = bound(conductor, PREPARING)
    id_ = conductor.arq(arq).id
    with conductor.db.writer() as tx:
        arqs.move(tx, Event.FINISH, [id_])
        with pytest.raises(exception.BadState):
            arqs.move(tx, Event.FINISH, [id_])
    assert conductor.arq(arq).state == State.BOUND


def test_hidden_arq_is_finished_by_its_attach(conductor: UseCases) -> None:
    arq, _ = bound(conductor, PREPARING)
    set_arq(conductor.db, arq, hidden=True)
    with conductor.db.writer() as tx:
        assert not bind.resolve(tx, locked(tx, arq), Event.FINISH)
    assert conductor.arq(arq).state == State.BIND_STARTED


def test_arq_that_is_bound_already_is_not_resolved(conductor: UseCases) -> None:
    arq, _ = bound(conductor, PLAIN)
    with conductor.db.writer() as tx:
        assert not bind.resolve(tx, locked(tx, arq), Event.FAIL, fault="late")
    row = conductor.arq(arq)
    assert (row.state, row.fault) == (State.BOUND, None)


@pytest.mark.parametrize(
    ("scope", "resolved"),
    [(EVERYWHERE, False), (Scope.of_project("project"), False), (Scope.of_project("x"), True)],
)
def test_instance_is_unresolved_for_the_owner_of_its_arqs(
    conductor: UseCases, scope: Scope, resolved: bool
) -> None:
    _, instance = bound(conductor, PREPARING)
    with conductor.db.reader() as tx:
        assert arqs.all_resolved(tx, instance, scope) is resolved
        assert arqs.all_resolved(tx, str(uuid4()), scope)


def test_hidden_arq_is_not_listed_for_its_instance(conductor: UseCases) -> None:
    """Nova attaches each ARQ that is listed."""
    hidden, instance = bound(conductor, PLAIN)
    shown, _ = bound(conductor, PLAIN)
    set_arq(conductor.db, hidden, hidden=True)
    set_arq(conductor.db, shown, instance_uuid=instance)
    with conductor.db.reader() as tx:
        of_instance = arqs.page(tx, listing.Page(), EVERYWHERE, {"instance": instance})
        everything = arqs.page(tx, listing.Page(), EVERYWHERE, {})
    assert [row.uuid for row in of_instance] == [shown]
    assert [row.uuid for row in everything] == [hidden, shown]
