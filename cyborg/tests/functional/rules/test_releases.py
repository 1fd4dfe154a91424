# SPDX-License-Identifier: Apache-2.0
"""Ends of binds: what is deleted for whom, and what is left of the instance."""

import logging
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.arqs import release
from cyborg.db import arqs as arqs_db
from cyborg.db import attachments, instances
from cyborg.db.models import Arq, AttachHandle, Deployable, Event, Instance, UsageRecord, Work
from cyborg.model.arq import State
from cyborg.model.work import WorkKind
from cyborg.rpc.verbs import DeleteArqs, DeleteInstanceArqs
from cyborg.tests.fixtures.host_reports import provider_of
from cyborg.tests.fixtures.use_cases import NOVA, UseCases
from cyborg.tests.functional.races.arena import sound
from cyborg.tests.functional.rules.conftest import PLAIN, PREPARING
from cyborg.tests.functional.rules.rows import handles_of, set_arq, work_kinds

#: A user of the project who is not Nova.
MEMBER = replace(NOVA, all_projects=False, service=False)
STRANGER = replace(NOVA, all_projects=False, project_id="another")


def bound(conductor: UseCases, host: str, count: int = 1) -> tuple[list[str], str]:
    """ARQs that are bound to one instance; their uuids, and that of the instance."""
    (arqs,), instance = conductor.request(1, count), str(uuid4())
    conductor.bind(arqs, provider_of(host, 0), instance)
    return arqs, instance


def left(conductor: UseCases) -> set[str]:
    with conductor.db.reader() as tx:
        return set(tx.execute(sa.select(Arq.uuid)).scalars())


def instance_of(conductor: UseCases, uuid: str) -> Any:
    """The row of an instance, by column, and whether an ARQ has it."""
    is_bound = sa.exists().where(Arq.instance_uuid == Instance.uuid).label("bound")
    with conductor.db.reader() as tx:
        query = sa.select(Instance.__table__, is_bound)
        return tx.execute(query.where(Instance.uuid == uuid)).one()


def actions(conductor: UseCases, noun: str) -> list[str]:
    with conductor.db.reader() as tx:
        query = sa.select(Event.action).where(Event.noun == noun).order_by(Event.id)
        return list(tx.execute(query).scalars())


def test_arqs_that_exist_are_deleted_and_the_others_named(conductor: UseCases) -> None:
    one, two, other = (uuid for (uuid,) in conductor.request(3))
    missing, key = str(uuid4()), str(uuid4())
    for _ in range(2):
        # The repetition names only what no attempt has deleted.
        with pytest.raises(exception.NotFound, match=missing) as caught:
            release.by_uuid(conductor.ctx, DeleteArqs(NOVA, key, [one, missing, two, one]))
        assert one not in str(caught.value)
    assert left(conductor) == {other}
    assert actions(conductor, "arq").count("deleted") == 2
    release.by_uuid(conductor.ctx, DeleteArqs(NOVA, key, [one, two]))
    with pytest.raises(exception.NotFound):
        release.by_uuid(conductor.ctx, DeleteArqs(NOVA, str(uuid4()), [one]))
    assert conductor.commits.wakes == 0


def test_user_deletes_only_arqs_that_are_not_bound(conductor: UseCases) -> None:
    (guest,), instance = bound(conductor, PLAIN)
    ((free,),) = conductor.request(1)
    with pytest.raises(exception.BoundArqs, match=guest):
        release.by_uuid(conductor.ctx, DeleteArqs(MEMBER, str(uuid4()), [guest, free]))
    assert left(conductor) == {guest}
    assert instance_of(conductor, instance).bound
    release.by_uuid(conductor.ctx, DeleteArqs(NOVA, str(uuid4()), [guest]))
    assert left(conductor) == set()
    assert not instance_of(conductor, instance).bound
    sound(conductor.db)


def test_arqs_of_another_project_are_not_deleted(conductor: UseCases) -> None:
    (arq,), instance = bound(conductor, PLAIN)
    with pytest.raises(exception.NotFound):
        release.by_uuid(conductor.ctx, DeleteArqs(STRANGER, str(uuid4()), [arq]))
    release.by_instance(conductor.ctx, DeleteInstanceArqs(STRANGER, str(uuid4()), instance))
    assert left(conductor) == {arq}
    assert instance_of(conductor, instance).bound


def test_instance_keeps_an_arq_that_has_no_project(conductor: UseCases) -> None:
    """It is from before the upgrade."""
    (arq,), instance = bound(conductor, PLAIN)
    set_arq(conductor.db, arq, project_id=None)
    before = instance_of(conductor, instance)
    release.by_instance(conductor.ctx, DeleteInstanceArqs(MEMBER, str(uuid4()), instance))
    assert left(conductor) == {arq}
    assert instance_of(conductor, instance) == before
    assert (before.bound, before.look_ms) == (True, 0)


@pytest.mark.parametrize(("host", "wakes", "work"), [(PLAIN, 0, []), (PREPARING, 2, ["release"])])
def test_work_runner_is_woken_when_a_host_has_something_to_undo(
    conductor: UseCases, host: str, wakes: int, work: list[str]
) -> None:
    (first,), _ = bound(conductor, host)
    _, second = bound(conductor, host)
    conductor.execute(sa.delete(Work))
    conductor.commits.wakes = 0
    release.by_uuid(conductor.ctx, DeleteArqs(NOVA, str(uuid4()), [first]))
    release.by_instance(conductor.ctx, DeleteInstanceArqs(NOVA, str(uuid4()), second))
    assert conductor.commits.wakes == wakes
    assert work_kinds(conductor.db) == work * 2


def test_repeated_delete_of_an_instance_keeps_what_was_bound_since(conductor: UseCases) -> None:
    _, instance = bound(conductor, PLAIN)
    key = str(uuid4())
    release.by_instance(conductor.ctx, DeleteInstanceArqs(NOVA, key, instance))
    assert left(conductor) == set()
    assert not instance_of(conductor, instance).bound
    assert actions(conductor, "instance") == []
    ((again,),) = conductor.request(1)
    conductor.bind([again], provider_of(PLAIN, 0), instance)
    release.by_instance(conductor.ctx, DeleteInstanceArqs(NOVA, key, instance))
    assert left(conductor) == {again}
    assert instance_of(conductor, instance).bound


def test_delete_of_an_instance_without_arqs_is_done_once(conductor: UseCases) -> None:
    instance, key = str(uuid4()), str(uuid4())
    release.by_instance(conductor.ctx, DeleteInstanceArqs(NOVA, key, instance))
    assert actions(conductor, "instance") == ["deleted"]
    ((arq,),) = conductor.request(1)
    conductor.bind([arq], provider_of(PLAIN, 0), instance)
    release.by_instance(conductor.ctx, DeleteInstanceArqs(NOVA, key, instance))
    assert left(conductor) == {arq}
    assert actions(conductor, "instance") == ["deleted"]


def test_delete_of_an_instance_tells_of_attached_accelerators(
    conductor: UseCases, caplog: pytest.LogCaptureFixture
) -> None:
    """Nova creates only those of the flavor again."""
    arqs, instance = bound(conductor, PLAIN, 2)
    set_arq(conductor.db, arqs[0], origin=attachments.ATTACHED)
    with caplog.at_level(logging.INFO, "cyborg.conductor.arqs.release"):
        release.by_instance(conductor.ctx, DeleteInstanceArqs(NOVA, str(uuid4()), instance))
    assert f"Instance {instance} has lost 1 attached accelerator(s)" in caplog.text
    assert actions(conductor, "instance") == ["attached ones deleted"]
    with conductor.db.reader() as tx:
        query = sa.select(Event.reason, Event.instance_uuid).where(Event.noun == "instance")
        reason, subject = tx.execute(query).one()
    assert str(reason).startswith("1 attached accelerator(s) were deleted")
    assert subject == instance


def test_repeated_unbind_changes_nothing(conductor: UseCases) -> None:
    arqs, instance = bound(conductor, PLAIN, 2)
    key = str(uuid4())
    conductor.unbind(arqs, request_key=key)
    conductor.bind(arqs[:1], provider_of(PLAIN, 0), instance)
    conductor.unbind(arqs, request_key=key)
    assert [conductor.arq(arq).state for arq in arqs] == [State.BOUND, State.UNBOUND]
    assert actions(conductor, "arq").count(State.UNBOUND.value) == 2


def test_unbind_of_a_missing_arq_or_one_that_is_deleted_is_refused(conductor: UseCases) -> None:
    (arq,), _ = bound(conductor, PLAIN)
    ((deleting,),), missing = conductor.request(1), str(uuid4())
    set_arq(conductor.db, deleting, state=State.DELETING.value)
    with pytest.raises(exception.NotFound, match=missing) as caught:
        conductor.unbind([arq, missing])
    assert arq not in str(caught.value)
    with pytest.raises(exception.BadState, match=deleting):
        conductor.unbind([arq, deleting])
    assert conductor.arq(arq).state == State.BOUND


def test_unbind_keeps_an_instance_that_has_other_arqs(conductor: UseCases) -> None:
    (one, two), instance = bound(conductor, PLAIN, 2)
    before = instance_of(conductor, instance)
    conductor.unbind([one])
    # A late repetition of the bind is still known, and Nova is still asked about the server.
    assert instance_of(conductor, instance) == before
    assert (before.bound, before.look_ms) == (True, 0)
    conductor.unbind([two])
    row = instance_of(conductor, instance)
    assert (row.bound, row.operation_id) == (False, None)
    assert row.project_id == NOVA.project_id


@pytest.mark.parametrize("image", [None, "5b0c9f3e-71d2-4f0c-9c0e-2f1a6f3f7c01"])
def test_release_knows_that_an_image_may_still_be_loading(
    conductor: UseCases, image: str | None
) -> None:
    own = sa.update(Deployable).where(Deployable.rp_uuid == provider_of(PREPARING, 0))
    ((arq,),) = conductor.request(1)
    if image is not None:
        group = conductor.arq(arq).group_spec
        set_arq(conductor.db, arq, group_spec={**group, "accel:bitstream_id": image})
    conductor.execute(own.values(programmable=True))
    try:
        conductor.bind([arq], provider_of(PREPARING, 0), str(uuid4()))
    finally:
        conductor.execute(own.values(programmable=False))
    conductor.unbind([arq])
    with conductor.db.reader() as tx:
        (row,) = tx.execute(sa.select(Work.__table__))
    assert (row.kind, row.spec) == ("release", None if image is None else {"loading": True})
    assert row.arq_uuid == arq


def test_only_units_that_were_prepared_are_released_by_the_host(conductor: UseCases) -> None:
    arqs, _ = bound(conductor, PREPARING, 2)
    set_arq(conductor.db, arqs[0], prepared=False)
    conductor.unbind(arqs)
    assert sorted(state for _, state in handles_of(conductor.db, PREPARING)) == [
        "free",
        "releasing",
    ]
    assert work_kinds(conductor.db) == ["release"]


def looks(conductor: UseCases, limit: int = 10) -> list[Any]:
    """The instances that Nova is to be asked about now."""
    with conductor.db.reader() as tx:
        return list(instances.due(tx, limit))


def test_only_history_of_requests_that_were_never_bound_is_kept_briefly(
    conductor: UseCases,
) -> None:
    (used,), _ = bound(conductor, PLAIN)
    (unused,), (other,) = conductor.request(2)
    conductor.unbind([used])
    conductor.delete([used, unused])
    events = conductor.rows(Event, Event.noun == "arq")
    brief = {(event.subject_uuid, event.expires_ms is not None) for event in events}
    assert brief == {(used, False), (unused, True), (other, False)}


def test_release_that_has_read_no_handle_of_a_bound_arq_begins_again(conductor: UseCases) -> None:
    """As after a wait for the lock of an ARQ that another transaction was binding."""
    (arq,), _ = bound(conductor, PLAIN)
    before = conductor.handle(arq)
    handle = sa.update(AttachHandle).where(AttachHandle.id == before.id)

    def release_late() -> None:
        with conductor.db.writer() as tx:
            tx.execute(handle.values(arq_id=None))
            rows = arqs_db.lock(tx, Arq.uuid == arq)
            tx.execute(handle.values(arq_id=before.arq_id))
            release.release_units(tx, rows, request_key=None)

    with pytest.raises(exception.Conflict, match="another request has bound"):
        release_late()
    assert conductor.handle(arq).arq_id == before.arq_id


@pytest.mark.parametrize("fails", [False, True], ids=["at once", "after its bind has failed"])
def test_arq_whose_handle_is_gone_can_be_deleted(conductor: UseCases, fails: bool) -> None:
    """The audit advises it (finding empty-bind), and Nova does it with the server."""
    (arq,), instance = bound(conductor, PREPARING)
    conductor.execute(sa.update(AttachHandle).values(arq_id=None))
    if fails:
        conductor.do(WorkKind.PREPARE)
        row = conductor.arq(arq)
        assert (row.state, row.fault) == (State.BIND_FAILED, "its attach handle is gone")
        assert not conductor.rows(UsageRecord, UsageRecord.arq_id.is_not(None))
    conductor.delete_of(instance)
    assert left(conductor) == set()
    assert not conductor.rows(UsageRecord, UsageRecord.ended_ms.is_(None))


def test_row_of_an_arq_that_has_a_unit_cannot_be_deleted(conductor: UseCases) -> None:
    """The foreign key of handles would make its unit ready, with the data of its guest on it."""
    (arq,), _ = bound(conductor, PREPARING)
    with pytest.raises(exception.Conflict):
        conductor.execute(sa.delete(Arq).where(Arq.uuid == arq))
    assert conductor.handle(arq).arq_id is not None


def test_bound_instances_are_looked_up_in_the_order_of_their_time(conductor: UseCases) -> None:
    (arqs, first), (_, second), (_, third) = (
        bound(conductor, host) for host in (PLAIN, PLAIN, PREPARING)
    )
    for uuid, look_ms in ((first, 2), (second, 1), (third, 1 << 53)):
        conductor.execute(sa.update(Instance).where(Instance.uuid == uuid).values(look_ms=look_ms))
    assert [row.uuid for row in looks(conductor)] == [second, first]
    assert [row.uuid for row in looks(conductor, limit=1)] == [second]
    conductor.unbind(arqs)
    assert [row.uuid for row in looks(conductor)] == [second]


def answered(conductor: UseCases, row: Any, answer: dict[str, str] | None) -> None:
    with conductor.db.writer() as tx:
        instances.set_server_info(tx, row, after_ms=60_000, answer=answer)


def test_answer_of_nova_is_stored_until_the_instance_is_released(conductor: UseCases) -> None:
    arqs, instance = bound(conductor, PLAIN)
    _, other = bound(conductor, PLAIN)
    (row,) = (one for one in looks(conductor) if one.uuid == instance)
    answered(conductor, row, {"name": "web", "status": "ACTIVE"})
    stored = instance_of(conductor, instance)
    assert (stored.name, stored.status) == ("web", "ACTIVE")
    assert stored.look_ms - stored.seen_ms == 60_000
    assert instance_of(conductor, other).name is None
    assert [one.uuid for one in looks(conductor)] == [other]
    # Another conductor has looked it up in the meantime.
    answered(conductor, row, {"name": "late", "status": "ERROR"})
    assert instance_of(conductor, instance).name == "web"
    conductor.execute(sa.update(Instance).values(look_ms=0))
    answered(conductor, next(one for one in looks(conductor) if one.uuid == instance), None)
    assert instance_of(conductor, instance).name == "web"
    conductor.unbind(arqs)
    released = instance_of(conductor, instance)
    assert (released.name, released.status, released.seen_ms) == (None, None, None)


@pytest.mark.parametrize(
    "change", [{"look_ms": None}, {"updated_ms": Instance.updated_ms + 1}, {"look_ms": 1}]
)
def test_answer_about_an_instance_that_has_changed_is_discarded(
    conductor: UseCases, change: dict[str, Any]
) -> None:
    _, instance = bound(conductor, PLAIN)
    (row,) = looks(conductor)
    conductor.execute(sa.update(Instance).values(**change))
    answered(conductor, row, {"name": "late", "status": "ERROR"})
    assert instance_of(conductor, instance).name is None


def test_instance_that_is_bound_again_has_its_new_host_and_owner(conductor: UseCases) -> None:
    arqs, instance = bound(conductor, PLAIN)
    _, other = bound(conductor, PLAIN)
    conductor.unbind(arqs)
    values = {"hostname": "former", "project_id": None, "look_ms": 1 << 53}
    conductor.execute(sa.update(Instance).values(**values))
    conductor.bind(arqs, provider_of(PLAIN, 0), instance)
    row = instance_of(conductor, instance)
    assert (row.bound, row.hostname, row.project_id) == (True, "compute", NOVA.project_id)
    assert [one.uuid for one in looks(conductor)] == [instance]
    assert instance_of(conductor, other).hostname == "former"
