# SPDX-License-Identifier: Apache-2.0
"""Work on units: what an agent is asked, and what each of its answers does to ARQ and handle."""

import logging
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.tasks.queue import Fenced
from cyborg.db import work
from cyborg.db.models import Deployable, DirtyUnit, Event, Host, Work
from cyborg.model.arq import State
from cyborg.model.work import WorkKind
from cyborg.rpc.verbs import Prepare, Program, Release
from cyborg.tests.fixtures.contexts import BIND_TIMEOUT
from cyborg.tests.fixtures.host_reports import provider_of
from cyborg.tests.fixtures.use_cases import UseCases
from cyborg.tests.functional.races.arena import sound
from cyborg.tests.functional.rules.conftest import PREPARING
from cyborg.tests.functional.rules.rows import (
    handles_of,
    set_arq,
    set_handle,
    work_kinds,
)

IMAGE = "5b0c9f3e-71d2-4f0c-9c0e-2f1a6f3f7c01"
OTHER_IMAGE = "5b0c9f3e-71d2-4f0c-9c0e-2f1a6f3f7c02"
LATER = 1 << 53
DEPLOYABLE = Deployable.rp_uuid == provider_of(PREPARING, 0)


@pytest.fixture(autouse=True)
def _deployable_as_before(conductor: UseCases) -> Iterator[None]:
    yield
    conductor.change(
        Deployable, DEPLOYABLE, prepare=True, programmable=False, bitstream_id=None, clean=None
    )


def bind(conductor: UseCases, *, spec: dict[str, str] | None = None) -> tuple[str, str]:
    """Bind an ARQ (with these ``accel:`` requirements); its uuid and that of the instance."""
    ((arq,),), instance = conductor.request(1), str(uuid4())
    if spec is not None:
        more = {f"accel:{name}": value for name, value in spec.items()}
        set_arq(conductor.db, arq, group_spec={**conductor.arq(arq).group_spec, **more})
    conductor.bind([arq], provider_of(PREPARING, 0), instance)
    return arq, instance


def state_of(conductor: UseCases, arq: str) -> str:
    return str(conductor.arq(arq).state)


def handle_state_of(conductor: UseCases, handle_id: int) -> str:
    return dict(handles_of(conductor.db, PREPARING))[handle_id]


def errors(conductor: UseCases) -> list[str | None]:
    return [row.error for row in conductor.rows(Work)]


def deployable_row(conductor: UseCases) -> Any:
    return conductor.row(Deployable, DEPLOYABLE)


def set_deployable(conductor: UseCases, **values: Any) -> None:
    conductor.change(Deployable, DEPLOYABLE, **values)


def test_prepared_unit_is_bound(conductor: UseCases, caplog: pytest.LogCaptureFixture) -> None:
    began = time.monotonic()
    arq, instance = bind(conductor, spec={"mode": "fast"})
    conductor.commits.wakes = 0
    conductor.execute(sa.update(Work).values(created_ms=Work.created_ms - 50_000))
    with caplog.at_level(logging.INFO, "cyborg.conductor.tasks.units"):
        conductor.do(WorkKind.PREPARE)
    row = conductor.arq(arq)
    assert (row.state, row.fault) == (State.BOUND, None)
    assert row.prepared
    assert work_kinds(conductor.db) == ["notify"]
    (command,) = conductor.agents.commands
    assert isinstance(command, Prepare)
    assert command.image is None
    assert command.task.spec == {"mode": "fast"}
    assert conductor.agents.asked[0][0] == PREPARING
    assert conductor.agents.within is not None
    assert 0 < conductor.agents.within <= BIND_TIMEOUT
    assert command.task.agent_epoch == conductor.epochs[PREPARING]
    assert conductor.commits.wakes == 1
    ((state, seconds),) = conductor.binds
    assert state is State.BOUND
    # The database's clock has milliseconds.
    assert 50 <= seconds <= 50.002 + time.monotonic() - began
    assert f"ARQ {arq} bound to instance {instance}" in caplog.text
    with conductor.db.reader() as tx:
        query = sa.select(Event.action).where(Event.subject_uuid == arq).order_by(Event.id)
        history = list(tx.execute(query).scalars())
    assert history[-2:] == [State.BIND_STARTED, State.BOUND]
    sound(conductor.db)


def test_failed_preparation_fails_the_bind_and_releases_the_unit(
    conductor: UseCases, caplog: pytest.LogCaptureFixture
) -> None:
    arq, instance = bind(conductor)
    handle = conductor.arq(arq).attach_handle_id
    conductor.agents.answer = {"fault": "the card hangs"}
    conductor.do(WorkKind.PREPARE)
    row = conductor.arq(arq)
    assert (row.state, row.fault, row.attach_handle_id) == (
        State.BIND_FAILED,
        "the card hangs",
        None,
    )
    assert not row.prepared
    assert handle_state_of(conductor, handle) == "releasing"
    assert work_kinds(conductor.db) == ["notify", "release"]
    assert [state for state, _ in conductor.binds] == [State.BIND_FAILED]
    assert f"Bind of ARQ {arq} to instance {instance} failed: the card hangs" in caplog.text
    assert "bound to" not in caplog.text


def test_unfinished_preparation_is_asked_for_again(conductor: UseCases) -> None:
    arq, _ = bind(conductor)
    conductor.agents.answer = {"done": False}
    conductor.do(WorkKind.PREPARE)
    assert state_of(conductor, arq) == State.BIND_STARTED
    conductor.agents.answer = {}
    conductor.do(WorkKind.PREPARE)
    assert state_of(conductor, arq) == State.BOUND
    first, second = conductor.agents.commands
    assert first == second


def test_unit_that_needs_no_preparation_any_more_is_bound_at_once(conductor: UseCases) -> None:
    """The release then has nothing to undo."""
    arq, _ = bind(conductor)
    set_deployable(conductor, prepare=False)
    conductor.do(WorkKind.PREPARE)
    row = conductor.arq(arq)
    assert (row.state, row.prepared) == (State.BOUND, False)
    assert conductor.agents.commands == []


@pytest.mark.parametrize("state", ["releasing", "quarantined"])
def test_preparation_waits_for_the_release_of_the_last_instance(
    conductor: UseCases, state: str
) -> None:
    arq, _ = bind(conductor)
    set_handle(conductor.db, conductor.arq(arq).attach_handle_id, state=state)
    conductor.do(WorkKind.PREPARE)
    assert state_of(conductor, arq) == State.BIND_STARTED
    assert errors(conductor) == [
        "the release of its attach handle after the last instance is going on"
    ]
    assert conductor.agents.commands == []


def test_preparation_without_a_held_unit_fails(conductor: UseCases) -> None:
    arq, _ = bind(conductor)
    set_handle(conductor.db, conductor.handle(arq).id, arq_id=None)
    conductor.do(WorkKind.PREPARE)
    assert conductor.arq(arq).fault == "its attach handle is gone"
    assert conductor.agents.commands == []


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (None, "the host did not finish the preparation in time"),
        ("it is away", "the host did not finish the preparation in time: it is away"),
    ],
)
def test_overdue_preparation_fails(conductor: UseCases, error: str | None, fault: str) -> None:
    arq, _ = bind(conductor)
    conductor.execute(sa.update(Work).values(deadline_ms=1, error=error))
    conductor.do(WorkKind.PREPARE)
    assert conductor.arq(arq).fault == fault
    assert conductor.agents.commands == []


def test_preparation_that_is_cancelled_meanwhile_changes_nothing(conductor: UseCases) -> None:
    arq, _ = bind(conductor)
    conductor.agents.meanwhile = lambda: conductor.unbind([arq])
    with pytest.raises(Fenced):
        conductor.do(WorkKind.PREPARE)
    assert state_of(conductor, arq) == State.UNBOUND
    assert work_kinds(conductor.db) == ["release"]
    assert conductor.binds == []


def test_hidden_arq_is_prepared_and_left_to_its_attach(
    conductor: UseCases, caplog: pytest.LogCaptureFixture
) -> None:
    arq, instance = bind(conductor)
    set_arq(conductor.db, arq, hidden=True)
    with conductor.db.writer() as tx:
        work.add(tx, [{"kind": WorkKind.ATTACH, "instance_uuid": instance}])
    with caplog.at_level(logging.INFO, "cyborg.conductor.tasks.units"):
        conductor.do(WorkKind.PREPARE)
    assert state_of(conductor, arq) == State.BIND_STARTED
    with conductor.db.reader() as tx:
        (left,) = tx.execute(sa.select(Work.kind, Work.not_before_ms))
    assert left.kind == WorkKind.ATTACH
    assert left.not_before_ms < LATER
    assert f"ARQ {arq} prepared for instance {instance}" in caplog.text


def test_host_without_an_agent_is_waited_for(conductor: UseCases) -> None:
    arq, _ = bind(conductor)
    own = sa.update(Host).where(Host.name == PREPARING)
    conductor.execute(own.values(service_host=None))
    try:
        with pytest.raises(exception.Unavailable, match="none yet"):
            conductor.do(WorkKind.PREPARE)
    finally:
        conductor.execute(own.values(service_host=PREPARING))
    assert state_of(conductor, arq) == State.BIND_STARTED


def test_image_is_loaded_for_a_bind(conductor: UseCases) -> None:
    set_deployable(conductor, programmable=True)
    arq, _ = bind(conductor, spec={"bitstream_id": IMAGE})
    conductor.agents.answer = {"image": IMAGE}
    conductor.do(WorkKind.PREPARE)
    (command,) = conductor.agents.commands
    assert (command.image.bitstream_id, command.image.exclusive) == (IMAGE, True)
    assert state_of(conductor, arq) == State.BOUND
    assert deployable_row(conductor).bitstream_id == IMAGE


def test_image_alone_needs_no_release(conductor: UseCases) -> None:
    set_deployable(conductor, programmable=True, prepare=False)
    arq, _ = bind(conductor, spec={"bitstream_id": IMAGE})
    conductor.agents.answer = {"image": IMAGE}
    conductor.do(WorkKind.PREPARE)
    row = conductor.arq(arq)
    assert (row.state, row.prepared) == (State.BOUND, False)


def test_release_after_a_failed_load_has_something_to_undo(conductor: UseCases) -> None:
    set_deployable(conductor, programmable=True, prepare=False)
    bind(conductor, spec={"bitstream_id": IMAGE})
    conductor.agents.answer = {"fault": "the card hangs", "image": IMAGE}
    conductor.do(WorkKind.PREPARE)
    assert work_kinds(conductor.db) == ["notify", "release"]
    assert deployable_row(conductor).bitstream_id is None


def test_image_for_a_driver_that_cannot_load_one_any_more_fails_the_bind(
    conductor: UseCases,
) -> None:
    set_deployable(conductor, programmable=True)
    arq, _ = bind(conductor, spec={"bitstream_id": IMAGE})
    set_deployable(conductor, programmable=False)
    conductor.do(WorkKind.PREPARE)
    assert "cannot load images any more" in conductor.arq(arq).fault
    assert conductor.agents.commands == []


@pytest.mark.parametrize("image", [None, IMAGE])
def test_agent_of_an_older_release_fails_only_the_binds_with_an_image(
    conductor: UseCases, image: str | None
) -> None:
    set_deployable(conductor, programmable=True)
    arq, _ = bind(conductor, spec={} if image is None else {"bitstream_id": image})
    conductor.agents.answer = exception.UnknownVerb(peer="agent", verb="prepare")
    if image is None:
        with pytest.raises(exception.UnknownVerb):
            conductor.do(WorkKind.PREPARE)
        assert state_of(conductor, arq) == State.BIND_STARTED
    else:
        conductor.do(WorkKind.PREPARE)
        assert "no image can be loaded for a bind yet" in conductor.arq(arq).fault


def test_preparation_waits_while_an_image_is_loaded(conductor: UseCases) -> None:
    set_deployable(conductor, programmable=True)
    with conductor.db.writer() as tx:
        work.add(tx, [{"kind": WorkKind.PROGRAM, "deployable_id": deployable_row(conductor).id}])
    arq, _ = bind(conductor)
    set_arq(conductor.db, arq, prepared=False)
    conductor.do(WorkKind.PREPARE)
    row = conductor.arq(arq)
    assert (row.state, row.prepared) == (State.BIND_STARTED, False)
    assert f"other work on {deployable_row(conductor).name} may be loading an image" in errors(
        conductor
    )
    assert conductor.agents.commands == []


def released(conductor: UseCases) -> int:
    """A unit that is being released after its guest; its handle."""
    arq, _ = bind(conductor)
    conductor.do(WorkKind.PREPARE)
    handle = int(conductor.arq(arq).attach_handle_id)
    conductor.unbind([arq])
    conductor.execute(sa.delete(Work).where(Work.kind == "notify"))
    conductor.agents.received.clear()
    conductor.commits.wakes = 0
    return handle


def test_released_unit_is_free(conductor: UseCases) -> None:
    handle, before = released(conductor), conductor.generation(PREPARING)
    conductor.do(WorkKind.RELEASE)
    assert handle_state_of(conductor, handle) == "free"
    assert [type(command) for command in conductor.agents.commands] == [Release]
    assert work_kinds(conductor.db) == []
    assert conductor.commits.wakes == 1
    assert (conductor.actions("handle", "deployable"), conductor.generation(PREPARING)) == (
        [],
        before,
    )


def test_released_unit_goes_to_the_arq_that_waits_for_it(conductor: UseCases) -> None:
    handles = [released(conductor) for _ in range(2)]
    arq, _ = bind(conductor)
    conductor.do(WorkKind.RELEASE)
    with conductor.db.reader() as tx:
        (due,) = tx.execute(sa.select(Work.not_before_ms).where(Work.kind == "prepare")).scalars()
    assert due < LATER
    assert sorted(handle_state_of(conductor, handle) for handle in handles) == ["free", "held"]
    conductor.do(WorkKind.PREPARE)
    assert state_of(conductor, arq) == State.BOUND


@pytest.mark.parametrize("used", [False, True])
def test_image_is_unknown_after_the_last_release(conductor: UseCases, used: bool) -> None:
    """The clean-up after an instance may have removed it."""
    if used:
        bind(conductor)
    released(conductor)
    set_deployable(conductor, bitstream_id=IMAGE)
    conductor.do(WorkKind.RELEASE)
    assert deployable_row(conductor).bitstream_id == (IMAGE if used else None)


def test_release_of_a_unit_that_was_removed_ends(conductor: UseCases) -> None:
    released(conductor)
    conductor.execute(sa.update(Work).values(attach_handle_id=None))
    conductor.do(WorkKind.RELEASE)
    assert conductor.agents.commands == []
    assert work_kinds(conductor.db) == []


def test_release_of_a_unit_that_is_free_asks_nobody(conductor: UseCases) -> None:
    handle = released(conductor)
    set_handle(conductor.db, handle, state="ready")
    conductor.do(WorkKind.RELEASE)
    assert conductor.agents.commands == []
    assert work_kinds(conductor.db) == []


def test_unit_whose_release_is_refused_goes_into_quarantine_until_it_is_released(
    conductor: UseCases, caplog: pytest.LogCaptureFixture
) -> None:
    handle, before = released(conductor), conductor.generation(PREPARING)
    # As after many attempts that found no agent: they are no refusals.
    conductor.execute(sa.update(Work).values(attempts=100))
    conductor.agents.answer = {"fault": "the card is busy"}
    for refusals in range(1, 10):
        conductor.do(WorkKind.RELEASE)
        (error,) = errors(conductor)
        assert str(error).endswith("the card is busy")
        assert handle_state_of(conductor, handle) == (
            "releasing" if refusals < 8 else "quarantined"
        )
    assert conductor.actions("handle", "deployable") == ["quarantined"]
    assert conductor.generation(PREPARING) == before + 1
    assert caplog.text.count(f"on host {PREPARING} is in quarantine: the host refused 8 times") == 1
    conductor.agents.answer = {}
    with caplog.at_level(logging.INFO, "cyborg.conductor.tasks.units"):
        conductor.do(WorkKind.RELEASE)
    assert handle_state_of(conductor, handle) == "free"
    assert conductor.actions("handle", "deployable") == ["quarantined", "out of quarantine"]
    assert conductor.generation(PREPARING) == before + 2
    assert "it has left quarantine" in caplog.text


def program(conductor: UseCases, deployable: str | None = None) -> None:
    """An operator's order to load an image."""
    row = deployable_row(conductor)
    spec = {"deployable": deployable or row.uuid, "image_uuid": IMAGE}
    task = {"kind": WorkKind.PROGRAM, "deployable_id": row.id, "spec": spec}
    with conductor.db.writer() as tx:
        work.add(tx, [task])
    conductor.do(WorkKind.PROGRAM)


@pytest.mark.parametrize(
    ("fault", "loaded", "action"),
    [(None, IMAGE, "programmed"), ("the card hangs", None, "program failed")],
)
def test_loaded_image_is_stored_and_unknown_after_a_fault(
    conductor: UseCases, fault: str | None, loaded: str | None, action: str
) -> None:
    set_deployable(conductor, programmable=True, bitstream_id=OTHER_IMAGE)
    conductor.agents.answer = {"fault": fault}
    program(conductor)
    (command,) = conductor.agents.commands
    assert isinstance(command, Program)
    assert command.task.agent_epoch == conductor.epochs[PREPARING]
    assert deployable_row(conductor).bitstream_id == loaded
    assert conductor.actions("handle", "deployable") == [action]
    with conductor.db.reader() as tx:
        query = sa.select(Event.device_uuid, Event.hostname, Event.reason)
        event = tx.execute(query.where(Event.action == action)).one()
    assert event.device_uuid is not None
    assert (event.hostname, event.reason) == (PREPARING, fault)


@pytest.mark.parametrize(("level", "dirty"), [("none", []), ("full", ["full"])])
def test_unit_is_dirty_only_if_it_must_be_cleaned_after_its_guest(
    conductor: UseCases, level: str, dirty: list[str]
) -> None:
    arq, instance = bind(conductor)
    conductor.do(WorkKind.PREPARE)
    assert conductor.rows(DirtyUnit) == []
    # The host tells its level when the unit has its guest already.
    set_deployable(conductor, clean=level)
    conductor.delete_of(instance)
    assert [(row.level, row.arq_uuid) for row in conductor.rows(DirtyUnit)] == [
        (word, arq) for word in dirty
    ]
    conductor.agents.answer = {}
    conductor.do(WorkKind.RELEASE)
    assert conductor.rows(DirtyUnit) == []


def test_image_is_unknown_while_it_is_loaded(conductor: UseCases) -> None:
    set_deployable(conductor, programmable=True, bitstream_id=OTHER_IMAGE)
    conductor.agents.answer = {"done": False}
    program(conductor)
    assert deployable_row(conductor).bitstream_id is None


def test_overdue_program_fails_with_its_last_error(conductor: UseCases) -> None:
    row = deployable_row(conductor)
    spec = {"deployable": row.uuid, "image_uuid": IMAGE}
    task = {"kind": WorkKind.PROGRAM, "deployable_id": row.id, "spec": spec}
    with conductor.db.writer() as tx:
        work.add(tx, [task])
        tx.execute(sa.update(Work).values(deadline_ms=1, error="it is away"))
    conductor.do(WorkKind.PROGRAM)
    assert conductor.agents.commands == []
    with conductor.db.reader() as tx:
        query = sa.select(Event.reason).where(Event.action == "program failed")
        reason = tx.execute(query).scalar_one()
    assert reason == "image or host could not be reached in time: it is away"


def test_program_of_a_deployable_that_is_gone_fails(conductor: UseCases) -> None:
    program(conductor, str(uuid4()))
    assert conductor.actions("handle", "deployable") == ["program failed"]
    assert conductor.agents.commands == []
