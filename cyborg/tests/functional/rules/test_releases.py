# SPDX-License-Identifier: Apache-2.0
"""Ends of binds: what is deleted for whom, and what is left of the instance."""

import logging
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.arqs.release import ArqReleaser
from cyborg.db import attachments, instances
from cyborg.db.models import Arq, Deployable, Event, Instance, Work
from cyborg.model.arq import State
from cyborg.tests.fixtures.host_reports import provider_of
from cyborg.tests.functional.races.arena import NOVA, Arena, Conductor, sound
from cyborg.tests.functional.rules.conftest import PLAIN, PREPARING
from cyborg.tests.functional.rules.rows import arq_of, execute, handles_of, set_arq, work_kinds

#: A user of the project who is not Nova.
MEMBER = replace(NOVA, all_projects=False, service=False)
STRANGER = replace(NOVA, all_projects=False, project_id="another")


@dataclass
class Releases:
    """Deletes ARQs, and counts how often the worker is woken."""

    releaser: ArqReleaser
    wakes: list[None] = field(default_factory=list)


@pytest.fixture
def releases(conductor: Conductor) -> Releases:
    wakes: list[None] = []
    releaser = replace(conductor.cases.arq_releaser, wake=lambda: wakes.append(None))
    return Releases(releaser, wakes)


def bound(arena: Arena, host: str, count: int = 1) -> tuple[list[str], str]:
    """ARQs that are bound to one instance; their uuids, and that of the instance."""
    (arqs,), instance = arena.request(1, count), str(uuid4())
    arena.conductors[0].bind(arqs, provider_of(host, 0), instance)
    return arqs, instance


def left(arena: Arena) -> set[str]:
    with arena.db.reader() as tx:
        return set(tx.execute(sa.select(Arq.uuid)).scalars())


def instance_of(arena: Arena, uuid: str) -> Any:
    with arena.db.reader() as tx:
        return tx.execute(sa.select(Instance.__table__).where(Instance.uuid == uuid)).one()


def actions(arena: Arena, noun: str) -> list[str]:
    with arena.db.reader() as tx:
        query = sa.select(Event.action).where(Event.noun == noun).order_by(Event.id)
        return list(tx.execute(query).scalars())


def test_arqs_that_exist_are_deleted_and_the_others_named(arena: Arena, releases: Releases) -> None:
    one, two, other = (uuid for (uuid,) in arena.request(3))
    missing, key = str(uuid4()), str(uuid4())
    for _ in range(2):
        # The repetition names only what no attempt has deleted.
        with pytest.raises(exception.NotFound, match=missing) as caught:
            releases.releaser.by_uuid(NOVA, key, [one, missing, two, one])
        assert one not in str(caught.value)
    assert left(arena) == {other}
    assert actions(arena, "arq").count("deleted") == 2
    releases.releaser.by_uuid(NOVA, key, [one, two])
    with pytest.raises(exception.NotFound):
        releases.releaser.by_uuid(NOVA, str(uuid4()), [one])
    assert releases.wakes == []


def test_user_deletes_only_arqs_that_are_not_bound(arena: Arena, releases: Releases) -> None:
    (guest,), instance = bound(arena, PLAIN)
    ((free,),) = arena.request(1)
    with pytest.raises(exception.BoundArqs, match=guest):
        releases.releaser.by_uuid(MEMBER, str(uuid4()), [guest, free])
    assert left(arena) == {guest}
    assert instance_of(arena, instance).bound
    releases.releaser.by_uuid(NOVA, str(uuid4()), [guest])
    assert left(arena) == set()
    assert not instance_of(arena, instance).bound
    sound(arena.db)


def test_arqs_of_another_project_are_not_deleted(arena: Arena, releases: Releases) -> None:
    (arq,), instance = bound(arena, PLAIN)
    with pytest.raises(exception.NotFound):
        releases.releaser.by_uuid(STRANGER, str(uuid4()), [arq])
    releases.releaser.by_instance(STRANGER, str(uuid4()), instance)
    assert left(arena) == {arq}
    assert instance_of(arena, instance).bound


def test_instance_keeps_an_arq_that_has_no_project(arena: Arena, releases: Releases) -> None:
    """It is from before the upgrade."""
    (arq,), instance = bound(arena, PLAIN)
    set_arq(arena.db, arq, project_id=None)
    releases.releaser.by_instance(MEMBER, str(uuid4()), instance)
    assert left(arena) == {arq}
    assert instance_of(arena, instance).bound


@pytest.mark.parametrize(("host", "wakes", "work"), [(PLAIN, 0, []), (PREPARING, 2, ["release"])])
def test_worker_is_woken_when_a_host_has_something_to_undo(
    arena: Arena, releases: Releases, host: str, wakes: int, work: list[str]
) -> None:
    (first,), _ = bound(arena, host)
    _, second = bound(arena, host)
    execute(arena.db, sa.delete(Work))
    releases.releaser.by_uuid(NOVA, str(uuid4()), [first])
    releases.releaser.by_instance(NOVA, str(uuid4()), second)
    assert len(releases.wakes) == wakes
    assert work_kinds(arena.db) == work * 2


def test_repeated_delete_of_an_instance_keeps_what_was_bound_since(
    arena: Arena, conductor: Conductor, releases: Releases
) -> None:
    _, instance = bound(arena, PLAIN)
    key = str(uuid4())
    releases.releaser.by_instance(NOVA, key, instance)
    assert left(arena) == set()
    assert not instance_of(arena, instance).bound
    assert actions(arena, "instance") == []
    ((again,),) = arena.request(1)
    conductor.bind([again], provider_of(PLAIN, 0), instance)
    releases.releaser.by_instance(NOVA, key, instance)
    assert left(arena) == {again}
    assert instance_of(arena, instance).bound


def test_delete_of_an_instance_without_arqs_is_done_once(
    arena: Arena, conductor: Conductor, releases: Releases
) -> None:
    instance, key = str(uuid4()), str(uuid4())
    releases.releaser.by_instance(NOVA, key, instance)
    assert actions(arena, "instance") == ["deleted"]
    ((arq,),) = arena.request(1)
    conductor.bind([arq], provider_of(PLAIN, 0), instance)
    releases.releaser.by_instance(NOVA, key, instance)
    assert left(arena) == {arq}
    assert actions(arena, "instance") == ["deleted"]


def test_delete_of_an_instance_tells_of_attached_accelerators(
    arena: Arena, releases: Releases, caplog: pytest.LogCaptureFixture
) -> None:
    """Nova creates only those of the flavor again."""
    arqs, instance = bound(arena, PLAIN, 2)
    set_arq(arena.db, arqs[0], origin=attachments.ATTACHED)
    with caplog.at_level(logging.INFO, "cyborg.conductor.arqs.release"):
        releases.releaser.by_instance(NOVA, str(uuid4()), instance)
    assert f"Instance {instance} has lost 1 attached accelerator(s)" in caplog.text
    assert actions(arena, "instance") == ["attached ones deleted"]
    with arena.db.reader() as tx:
        query = sa.select(Event.reason, Event.instance_uuid).where(Event.noun == "instance")
        reason, subject = tx.execute(query).one()
    assert str(reason).startswith("1 attached accelerator(s) were deleted")
    assert subject == instance


def test_repeated_unbind_changes_nothing(arena: Arena, conductor: Conductor) -> None:
    arqs, instance = bound(arena, PLAIN, 2)
    key = str(uuid4())
    conductor.unbind(arqs, request_key=key)
    conductor.bind(arqs[:1], provider_of(PLAIN, 0), instance)
    conductor.unbind(arqs, request_key=key)
    assert [arq_of(arena.db, arq).state for arq in arqs] == [State.BOUND, State.UNBOUND]
    assert actions(arena, "arq").count(State.UNBOUND.value) == 2


def test_unbind_of_a_missing_arq_or_one_that_is_deleted_is_refused(
    arena: Arena, conductor: Conductor
) -> None:
    (arq,), _ = bound(arena, PLAIN)
    ((deleting,),), missing = arena.request(1), str(uuid4())
    set_arq(arena.db, deleting, state=State.DELETING.value)
    with pytest.raises(exception.NotFound, match=missing) as caught:
        conductor.unbind([arq, missing])
    assert arq not in str(caught.value)
    with pytest.raises(exception.BadState, match=deleting):
        conductor.unbind([arq, deleting])
    assert arq_of(arena.db, arq).state == State.BOUND


def test_unbind_keeps_an_instance_that_has_other_arqs(arena: Arena, conductor: Conductor) -> None:
    (one, two), instance = bound(arena, PLAIN, 2)
    conductor.unbind([one])
    assert instance_of(arena, instance).bound
    conductor.unbind([two])
    row = instance_of(arena, instance)
    assert (row.bound, row.operation_id) == (False, None)
    assert row.project_id == NOVA.project_id


@pytest.mark.parametrize("image", [None, "5b0c9f3e-71d2-4f0c-9c0e-2f1a6f3f7c01"])
def test_release_knows_that_an_image_may_still_be_loading(
    arena: Arena, conductor: Conductor, image: str | None
) -> None:
    own = sa.update(Deployable).where(Deployable.rp_uuid == provider_of(PREPARING, 0))
    ((arq,),) = arena.request(1)
    if image is not None:
        group = arq_of(arena.db, arq).group_spec
        set_arq(arena.db, arq, group_spec={**group, "accel:bitstream_id": image})
    execute(arena.db, own.values(programmable=True))
    try:
        conductor.bind([arq], provider_of(PREPARING, 0), str(uuid4()))
    finally:
        execute(arena.db, own.values(programmable=False))
    conductor.unbind([arq])
    with arena.db.reader() as tx:
        (row,) = tx.execute(sa.select(Work.__table__))
    assert (row.kind, row.spec) == ("release", None if image is None else {"loading": True})
    assert row.arq_uuid == arq


def test_only_units_that_were_prepared_are_released_by_the_host(
    arena: Arena, conductor: Conductor
) -> None:
    arqs, _ = bound(arena, PREPARING, 2)
    set_arq(arena.db, arqs[0], prepared=False)
    conductor.unbind(arqs)
    assert sorted(state for _, state in handles_of(arena.db, PREPARING)) == ["free", "releasing"]
    assert work_kinds(arena.db) == ["release"]


def looks(arena: Arena, limit: int = 10) -> list[Any]:
    """The instances that Nova is to be asked about now."""
    with arena.db.reader() as tx:
        return list(instances.due(tx, limit))


def test_bound_instances_are_looked_up_in_the_order_of_their_time(
    arena: Arena, conductor: Conductor
) -> None:
    (arqs, first), (_, second), (_, third) = (
        bound(arena, host) for host in (PLAIN, PLAIN, PREPARING)
    )
    for uuid, look_ms in ((first, 2), (second, 1), (third, 1 << 53)):
        execute(arena.db, sa.update(Instance).where(Instance.uuid == uuid).values(look_ms=look_ms))
    assert [row.uuid for row in looks(arena)] == [second, first]
    assert [row.uuid for row in looks(arena, limit=1)] == [second]
    conductor.unbind(arqs)
    assert [row.uuid for row in looks(arena)] == [second]


def answered(arena: Arena, row: Any, answer: dict[str, str] | None) -> None:
    with arena.db.writer() as tx:
        instances.set_server_info(tx, row, after_ms=60_000, answer=answer)


def test_answer_of_nova_is_stored_until_the_instance_is_released(
    arena: Arena, conductor: Conductor
) -> None:
    arqs, instance = bound(arena, PLAIN)
    _, other = bound(arena, PLAIN)
    (row,) = (one for one in looks(arena) if one.uuid == instance)
    answered(arena, row, {"name": "web", "status": "ACTIVE"})
    stored = instance_of(arena, instance)
    assert (stored.name, stored.status) == ("web", "ACTIVE")
    assert stored.look_ms - stored.seen_ms == 60_000
    assert instance_of(arena, other).name is None
    assert [one.uuid for one in looks(arena)] == [other]
    # Another conductor has looked it up in the meantime.
    answered(arena, row, {"name": "late", "status": "ERROR"})
    assert instance_of(arena, instance).name == "web"
    execute(arena.db, sa.update(Instance).values(look_ms=0))
    answered(arena, next(one for one in looks(arena) if one.uuid == instance), None)
    assert instance_of(arena, instance).name == "web"
    conductor.unbind(arqs)
    released = instance_of(arena, instance)
    assert (released.name, released.status, released.seen_ms) == (None, None, None)


@pytest.mark.parametrize(
    "change", [{"bound": False}, {"updated_ms": Instance.updated_ms + 1}, {"look_ms": 1}]
)
def test_answer_about_an_instance_that_has_changed_is_discarded(
    arena: Arena, change: dict[str, Any]
) -> None:
    _, instance = bound(arena, PLAIN)
    (row,) = looks(arena)
    execute(arena.db, sa.update(Instance).values(**change))
    answered(arena, row, {"name": "late", "status": "ERROR"})
    assert instance_of(arena, instance).name is None


def test_instance_that_is_bound_again_has_its_new_host_and_owner(
    arena: Arena, conductor: Conductor
) -> None:
    arqs, instance = bound(arena, PLAIN)
    _, other = bound(arena, PLAIN)
    conductor.unbind(arqs)
    values = {"hostname": "former", "project_id": None, "look_ms": 1 << 53}
    execute(arena.db, sa.update(Instance).values(**values))
    conductor.bind(arqs, provider_of(PLAIN, 0), instance)
    row = instance_of(arena, instance)
    assert (row.bound, row.hostname, row.project_id) == (True, "compute", NOVA.project_id)
    assert [one.uuid for one in looks(arena)] == [instance]
    assert instance_of(arena, other).hostname == "former"
