# SPDX-License-Identifier: Apache-2.0
"""Work on units: what an agent is asked, and what each of its answers does to ARQ and handle."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.tasks.queue import Fenced, WorkQueue
from cyborg.conductor.tasks.units import UnitTasks
from cyborg.db import work
from cyborg.db.models import Deployable, Event, Host, Work
from cyborg.db.work import ClaimedWork
from cyborg.model.arq import State
from cyborg.model.work import Outcome, WorkKind
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.verbs import Prepare, Program, Release
from cyborg.tests.fixtures.host_reports import provider_of
from cyborg.tests.fixtures.manual_processes import BIND_TIMEOUT
from cyborg.tests.functional.races.arena import Arena, Conductor, sound
from cyborg.tests.functional.rules.conftest import PREPARING
from cyborg.tests.functional.rules.rows import (
    arq_of,
    execute,
    handles_of,
    set_arq,
    set_handle,
    work_kinds,
)

IMAGE = "5b0c9f3e-71d2-4f0c-9c0e-2f1a6f3f7c01"
OTHER_IMAGE = "5b0c9f3e-71d2-4f0c-9c0e-2f1a6f3f7c02"
LATER = 1 << 53
DEPLOYABLE = Deployable.rp_uuid == provider_of(PREPARING, 0)


@dataclass
class Agent:
    """Notes what it is asked, and answers that it is done unless it has another answer."""

    commands: list[Any] = field(default_factory=list)
    #: The host that was asked last, and for how many seconds its answer was waited.
    host: str | None = None
    patience: float | None = None
    answer: dict[str, Any] | exception.CyborgError = field(default_factory=dict)
    #: What happens before it answers.
    meanwhile: Callable[[], object] = lambda: None

    def request(self, host: str, command: Any, *, within: float | None = None) -> Outcome:
        self.commands.append(command)
        self.host, self.patience = host, within
        self.meanwhile()
        if isinstance(self.answer, exception.CyborgError):
            raise self.answer
        return Outcome(command.task.request_key, **self.answer)

    def cast(self, host: str, command: Any) -> None:
        self.commands.append(command)


@dataclass
class Site:
    """The host that prepares, its agent, and the handlers of the work on its units."""

    arena: Arena
    conductor: Conductor
    agent: Agent = field(default_factory=Agent)
    wakes: list[None] = field(default_factory=list)
    #: Each ended bind: its result and its seconds.
    binds: list[tuple[State, float]] = field(default_factory=list)

    def tasks(self, *, recorded: bool = True) -> UnitTasks:
        return UnitTasks(
            queue=WorkQueue(db=self.arena.db),
            agents=cast(AgentClient, self.agent),
            wake=lambda: self.wakes.append(None),
            record_bind=(lambda *bind: self.binds.append(bind)) if recorded else None,
        )

    def claim(self, kind: WorkKind) -> Sequence[ClaimedWork]:
        """The work of a kind, taken from whoever has it."""
        owner = self.conductor.lease.owner
        assert owner is not None
        due = sa.case((Work.kind == kind.value, 0), else_=LATER)
        execute(self.arena.db, sa.update(Work).values(not_before_ms=due))
        with self.arena.db.writer() as tx:
            return work.claim(tx, owner=owner, lease_ms=-60_000, limit=50)

    def run(self, kind: WorkKind, *, recorded: bool = True) -> None:
        """Do the work of a kind once."""
        rows = self.claim(kind)
        assert rows
        for row in rows:
            self.tasks(recorded=recorded).handlers()[kind]([row])

    def bind(self, *, spec: dict[str, str] | None = None) -> tuple[str, str]:
        """Bind an ARQ (with these ``accel:`` requirements); its uuid and that of the instance."""
        ((arq,),), instance = self.arena.request(1), str(uuid4())
        if spec is not None:
            group = dict(arq_of(self.arena.db, arq).group_spec)
            more = {f"accel:{name}": value for name, value in spec.items()}
            set_arq(self.arena.db, arq, group_spec={**group, **more})
        self.conductor.bind([arq], provider_of(PREPARING, 0), instance)
        return arq, instance

    def set_deployable(self, **values: Any) -> None:
        execute(self.arena.db, sa.update(Deployable).where(DEPLOYABLE).values(**values))

    def deployable(self) -> Any:
        with self.arena.db.reader() as tx:
            return tx.execute(sa.select(Deployable.__table__).where(DEPLOYABLE)).one()

    def state_of(self, arq: str) -> str:
        return str(arq_of(self.arena.db, arq).state)

    def handle_state_of(self, handle_id: int) -> str:
        return dict(handles_of(self.arena.db, PREPARING))[handle_id]

    def errors(self) -> list[str | None]:
        with self.arena.db.reader() as tx:
            return list(tx.execute(sa.select(Work.error)).scalars())

    def actions(self) -> list[str]:
        """The history, but for the ARQs."""
        with self.arena.db.reader() as tx:
            query = sa.select(Event.action).where(Event.noun.in_(("handle", "deployable")))
            return list(tx.execute(query.order_by(Event.id)).scalars())

    def generation(self) -> int:
        with self.arena.db.reader() as tx:
            query = sa.select(Host.desired_generation).where(Host.service_host == PREPARING)
            return int(tx.execute(query).scalar_one())


@pytest.fixture
def site(arena: Arena, conductor: Conductor) -> Iterator[Site]:
    made = Site(arena, conductor)
    yield made
    made.set_deployable(prepare=True, programmable=False, bitstream_id=None)


def test_prepared_unit_is_bound(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    arq, instance = site.bind(spec={"mode": "fast"})
    execute(site.arena.db, sa.update(Work).values(created_ms=Work.created_ms - 50_000))
    with caplog.at_level(logging.INFO, "cyborg.conductor.tasks.units"):
        site.run(WorkKind.PREPARE)
    row = arq_of(site.arena.db, arq)
    assert (row.state, row.fault) == (State.BOUND, None)
    assert row.prepared
    assert work_kinds(site.arena.db) == ["notify"]
    (command,) = site.agent.commands
    assert isinstance(command, Prepare)
    assert command.image is None
    assert command.task.spec == {"mode": "fast"}
    assert site.agent.host == PREPARING
    assert site.agent.patience is not None
    assert 0 < site.agent.patience <= BIND_TIMEOUT
    assert command.task.agent_epoch == site.arena.epochs[PREPARING]
    assert site.wakes == [None]
    ((state, seconds),) = site.binds
    assert state is State.BOUND
    assert 50 <= seconds < 3600
    assert f"ARQ {arq} bound to instance {instance}" in caplog.text
    with site.arena.db.reader() as tx:
        query = sa.select(Event.action).where(Event.subject_uuid == arq).order_by(Event.id)
        history = list(tx.execute(query).scalars())
    assert history[-2:] == [State.BIND_STARTED, State.BOUND]
    sound(site.arena.db)


def test_bind_ends_without_a_meter(site: Site) -> None:
    arq, _ = site.bind()
    site.run(WorkKind.PREPARE, recorded=False)
    assert site.state_of(arq) == State.BOUND


def test_failed_preparation_fails_the_bind_and_releases_the_unit(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    arq, instance = site.bind()
    handle = arq_of(site.arena.db, arq).attach_handle_id
    site.agent.answer = {"fault": "the card hangs"}
    site.run(WorkKind.PREPARE)
    row = arq_of(site.arena.db, arq)
    assert (row.state, row.fault, row.attach_handle_id) == (
        State.BIND_FAILED,
        "the card hangs",
        None,
    )
    assert not row.prepared
    assert site.handle_state_of(handle) == "releasing"
    assert work_kinds(site.arena.db) == ["notify", "release"]
    assert [state for state, _ in site.binds] == [State.BIND_FAILED]
    assert f"Bind of ARQ {arq} to instance {instance} failed: the card hangs" in caplog.text
    assert "bound to" not in caplog.text


def test_unfinished_preparation_is_asked_for_again(site: Site) -> None:
    arq, _ = site.bind()
    site.agent.answer = {"done": False}
    site.run(WorkKind.PREPARE)
    assert site.state_of(arq) == State.BIND_STARTED
    site.agent.answer = {}
    site.run(WorkKind.PREPARE)
    assert site.state_of(arq) == State.BOUND
    first, second = site.agent.commands
    assert first == second


def test_unit_that_needs_no_preparation_any_more_is_bound_at_once(site: Site) -> None:
    """The release then has nothing to undo."""
    arq, _ = site.bind()
    site.set_deployable(prepare=False)
    site.run(WorkKind.PREPARE)
    row = arq_of(site.arena.db, arq)
    assert (row.state, row.prepared) == (State.BOUND, False)
    assert site.agent.commands == []


@pytest.mark.parametrize("state", ["releasing", "quarantined"])
def test_preparation_waits_for_the_release_of_the_last_instance(site: Site, state: str) -> None:
    arq, _ = site.bind()
    set_handle(site.arena.db, arq_of(site.arena.db, arq).attach_handle_id, state=state)
    site.run(WorkKind.PREPARE)
    assert site.state_of(arq) == State.BIND_STARTED
    assert site.errors() == ["the release of its attach handle after the last instance is going on"]
    assert site.agent.commands == []


def test_preparation_without_a_held_unit_fails(site: Site) -> None:
    arq, _ = site.bind()
    set_handle(site.arena.db, arq_of(site.arena.db, arq).attach_handle_id, state="free")
    site.run(WorkKind.PREPARE)
    assert arq_of(site.arena.db, arq).fault == "its attach handle is gone"
    assert site.agent.commands == []


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (None, "the host did not finish the preparation in time"),
        ("it is away", "the host did not finish the preparation in time: it is away"),
    ],
)
def test_overdue_preparation_fails(site: Site, error: str | None, fault: str) -> None:
    arq, _ = site.bind()
    execute(site.arena.db, sa.update(Work).values(deadline_ms=1, error=error))
    site.run(WorkKind.PREPARE)
    assert arq_of(site.arena.db, arq).fault == fault
    assert site.agent.commands == []


def test_preparation_that_is_cancelled_meanwhile_changes_nothing(site: Site) -> None:
    arq, _ = site.bind()
    site.agent.meanwhile = lambda: site.conductor.unbind([arq])
    with pytest.raises(Fenced):
        site.run(WorkKind.PREPARE)
    assert site.state_of(arq) == State.UNBOUND
    assert work_kinds(site.arena.db) == ["release"]
    assert site.binds == []


def test_hidden_arq_is_prepared_and_left_to_its_attach(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    arq, instance = site.bind()
    set_arq(site.arena.db, arq, hidden=True)
    with site.arena.db.writer() as tx:
        work.add(tx, [{"kind": WorkKind.ATTACH, "instance_uuid": instance}])
    with caplog.at_level(logging.INFO, "cyborg.conductor.tasks.units"):
        site.run(WorkKind.PREPARE)
    assert site.state_of(arq) == State.BIND_STARTED
    with site.arena.db.reader() as tx:
        (left,) = tx.execute(sa.select(Work.kind, Work.not_before_ms))
    assert left.kind == WorkKind.ATTACH
    assert left.not_before_ms < LATER
    assert f"ARQ {arq} prepared for instance {instance}" in caplog.text


def test_host_without_an_agent_is_waited_for(site: Site) -> None:
    arq, _ = site.bind()
    own = sa.update(Host).where(Host.name == PREPARING)
    execute(site.arena.db, own.values(service_host=None))
    try:
        with pytest.raises(exception.Unavailable, match="none yet"):
            site.run(WorkKind.PREPARE)
    finally:
        execute(site.arena.db, own.values(service_host=PREPARING))
    assert site.state_of(arq) == State.BIND_STARTED


def test_image_is_loaded_for_a_bind(site: Site) -> None:
    site.set_deployable(programmable=True)
    arq, _ = site.bind(spec={"bitstream_id": IMAGE})
    site.agent.answer = {"image": IMAGE}
    site.run(WorkKind.PREPARE)
    (command,) = site.agent.commands
    assert (command.image.bitstream_id, command.image.exclusive) == (IMAGE, True)
    assert site.state_of(arq) == State.BOUND
    assert site.deployable().bitstream_id == IMAGE


def test_image_alone_needs_no_release(site: Site) -> None:
    site.set_deployable(programmable=True, prepare=False)
    arq, _ = site.bind(spec={"bitstream_id": IMAGE})
    site.agent.answer = {"image": IMAGE}
    site.run(WorkKind.PREPARE)
    row = arq_of(site.arena.db, arq)
    assert (row.state, row.prepared) == (State.BOUND, False)


def test_release_after_a_failed_load_has_something_to_undo(site: Site) -> None:
    site.set_deployable(programmable=True, prepare=False)
    site.bind(spec={"bitstream_id": IMAGE})
    site.agent.answer = {"fault": "the card hangs", "image": IMAGE}
    site.run(WorkKind.PREPARE)
    assert work_kinds(site.arena.db) == ["notify", "release"]
    assert site.deployable().bitstream_id is None


def test_image_for_a_driver_that_cannot_load_one_any_more_fails_the_bind(site: Site) -> None:
    site.set_deployable(programmable=True)
    arq, _ = site.bind(spec={"bitstream_id": IMAGE})
    site.set_deployable(programmable=False)
    site.run(WorkKind.PREPARE)
    assert "cannot load images any more" in arq_of(site.arena.db, arq).fault
    assert site.agent.commands == []


@pytest.mark.parametrize("image", [None, IMAGE])
def test_agent_of_an_older_release_fails_only_the_binds_with_an_image(
    site: Site, image: str | None
) -> None:
    site.set_deployable(programmable=True)
    arq, _ = site.bind(spec={} if image is None else {"bitstream_id": image})
    site.agent.answer = exception.UnknownVerb(peer="agent", verb="prepare")
    if image is None:
        with pytest.raises(exception.UnknownVerb):
            site.run(WorkKind.PREPARE)
        assert site.state_of(arq) == State.BIND_STARTED
    else:
        site.run(WorkKind.PREPARE)
        assert "no image can be loaded for a bind yet" in arq_of(site.arena.db, arq).fault


def test_preparation_waits_while_an_image_is_loaded(site: Site) -> None:
    site.set_deployable(programmable=True)
    with site.arena.db.writer() as tx:
        work.add(tx, [{"kind": WorkKind.PROGRAM, "deployable_id": site.deployable().id}])
    arq, _ = site.bind()
    set_arq(site.arena.db, arq, prepared=False)
    site.run(WorkKind.PREPARE)
    row = arq_of(site.arena.db, arq)
    assert (row.state, row.prepared) == (State.BIND_STARTED, False)
    assert f"other work on {site.deployable().name} may be loading an image" in site.errors()
    assert site.agent.commands == []


def released(site: Site) -> int:
    """A unit that is being released after its guest; its handle."""
    arq, _ = site.bind()
    site.run(WorkKind.PREPARE)
    handle = int(arq_of(site.arena.db, arq).attach_handle_id)
    site.conductor.unbind([arq])
    execute(site.arena.db, sa.delete(Work).where(Work.kind == "notify"))
    site.agent.commands.clear()
    site.wakes.clear()
    return handle


def test_released_unit_is_free(site: Site) -> None:
    handle, before = released(site), site.generation()
    site.run(WorkKind.RELEASE)
    assert site.handle_state_of(handle) == "free"
    assert [type(command) for command in site.agent.commands] == [Release]
    assert work_kinds(site.arena.db) == []
    assert site.wakes == [None]
    assert (site.actions(), site.generation()) == ([], before)


def test_released_unit_goes_to_the_arq_that_waits_for_it(site: Site) -> None:
    handles = [released(site) for _ in range(2)]
    arq, _ = site.bind()
    site.run(WorkKind.RELEASE)
    with site.arena.db.reader() as tx:
        (due,) = tx.execute(sa.select(Work.not_before_ms).where(Work.kind == "prepare")).scalars()
    assert due < LATER
    assert sorted(map(site.handle_state_of, handles)) == ["free", "held"]
    site.run(WorkKind.PREPARE)
    assert site.state_of(arq) == State.BOUND


@pytest.mark.parametrize("used", [False, True])
def test_image_is_unknown_after_the_last_release(site: Site, used: bool) -> None:
    """The clean-up after an instance may have removed it."""
    if used:
        site.bind()
    released(site)
    site.set_deployable(bitstream_id=IMAGE)
    site.run(WorkKind.RELEASE)
    assert site.deployable().bitstream_id == (IMAGE if used else None)


def test_release_of_a_unit_that_was_removed_ends(site: Site) -> None:
    released(site)
    execute(site.arena.db, sa.update(Work).values(attach_handle_id=None))
    site.run(WorkKind.RELEASE)
    assert site.agent.commands == []
    assert work_kinds(site.arena.db) == []


def test_release_of_a_unit_that_is_free_asks_nobody(site: Site) -> None:
    handle = released(site)
    set_handle(site.arena.db, handle, state="free")
    site.run(WorkKind.RELEASE)
    assert site.agent.commands == []
    assert work_kinds(site.arena.db) == []


def test_unit_whose_release_is_refused_goes_into_quarantine_until_it_is_released(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    handle, before = released(site), site.generation()
    # As after many attempts that found no agent: they are no refusals.
    execute(site.arena.db, sa.update(Work).values(attempts=100))
    site.agent.answer = {"fault": "the card is busy"}
    for refusals in range(1, 10):
        with pytest.raises(exception.DriverFailed, match="the card is busy"):
            site.run(WorkKind.RELEASE)
        assert site.handle_state_of(handle) == ("releasing" if refusals < 8 else "quarantined")
    assert site.actions() == ["quarantined"]
    assert site.generation() == before + 1
    assert caplog.text.count(f"on host {PREPARING} is in quarantine: the host refused 8 times") == 1
    site.agent.answer = {}
    with caplog.at_level(logging.INFO, "cyborg.conductor.tasks.units"):
        site.run(WorkKind.RELEASE)
    assert site.handle_state_of(handle) == "free"
    assert site.actions() == ["quarantined", "out of quarantine"]
    assert site.generation() == before + 2
    assert "it has left quarantine" in caplog.text


def program(site: Site, deployable: str | None = None) -> None:
    """An operator's order to load an image."""
    row = site.deployable()
    spec = {"deployable": deployable or row.uuid, "image_uuid": IMAGE}
    task = {"kind": WorkKind.PROGRAM, "deployable_id": row.id, "spec": spec}
    with site.arena.db.writer() as tx:
        work.add(tx, [task])
    site.run(WorkKind.PROGRAM)


@pytest.mark.parametrize(
    ("fault", "loaded", "action"),
    [(None, IMAGE, "programmed"), ("the card hangs", None, "program failed")],
)
def test_loaded_image_is_stored_and_unknown_after_a_fault(
    site: Site, fault: str | None, loaded: str | None, action: str
) -> None:
    site.set_deployable(programmable=True, bitstream_id=OTHER_IMAGE)
    site.agent.answer = {"fault": fault}
    program(site)
    (command,) = site.agent.commands
    assert isinstance(command, Program)
    assert command.task.agent_epoch == site.arena.epochs[PREPARING]
    assert site.deployable().bitstream_id == loaded
    assert site.actions() == [action]
    with site.arena.db.reader() as tx:
        query = sa.select(Event.device_uuid, Event.hostname, Event.reason)
        event = tx.execute(query.where(Event.action == action)).one()
    assert event.device_uuid is not None
    assert (event.hostname, event.reason) == (PREPARING, fault)


def test_image_is_unknown_while_it_is_loaded(site: Site) -> None:
    site.set_deployable(programmable=True, bitstream_id=OTHER_IMAGE)
    site.agent.answer = {"done": False}
    program(site)
    assert site.deployable().bitstream_id is None


def test_overdue_program_fails_with_its_last_error(site: Site) -> None:
    row = site.deployable()
    spec = {"deployable": row.uuid, "image_uuid": IMAGE}
    task = {"kind": WorkKind.PROGRAM, "deployable_id": row.id, "spec": spec}
    with site.arena.db.writer() as tx:
        work.add(tx, [task])
        tx.execute(sa.update(Work).values(deadline_ms=1, error="it is away"))
    site.run(WorkKind.PROGRAM)
    assert site.agent.commands == []
    with site.arena.db.reader() as tx:
        query = sa.select(Event.reason).where(Event.action == "program failed")
        reason = tx.execute(query).scalar_one()
    assert reason == "image or host could not be reached in time: it is away"


def test_program_of_a_deployable_that_is_gone_fails(site: Site) -> None:
    program(site, str(uuid4()))
    assert site.actions() == ["program failed"]
    assert site.agent.commands == []
