# SPDX-License-Identifier: Apache-2.0
"""Units are cleaned after their guests: which units, what Placement offers, what is recorded."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.audit.repairs import release_handle
from cyborg.conductor.hosts.devices import DeviceAdmin
from cyborg.conductor.reports.desired_state import DesiredStates
from cyborg.conductor.tasks.queue import WorkQueue
from cyborg.conductor.tasks.units import UnitTasks
from cyborg.db import work
from cyborg.db.models import AttachHandle, Deployable, Device, Event, Host, Work
from cyborg.model.arq import State
from cyborg.model.caller import Caller
from cyborg.model.cleaning import CleanedStep, CleanResult
from cyborg.model.work import Outcome, WorkKind
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.verbs import DesiredChanged, Release
from cyborg.tests.fixtures.host_reports import provider_of
from cyborg.tests.functional.races.arena import Arena, Conductor, sound
from cyborg.tests.functional.rules.conftest import PLAIN, UNITS
from cyborg.tests.functional.rules.rows import arq_of, execute, handles_of, set_arq, work_kinds

OPERATOR = Caller("operators", "olga", "req-free", all_projects=True)
LATER = 1 << 53
STEP = CleanedStep("NVMe erase", 12_500)


@dataclass
class Agent:
    """Notes what it is asked, and gives the answer that a test has set."""

    commands: list[Any] = field(default_factory=list)
    answer: dict[str, Any] = field(default_factory=lambda: {"cleaned": (STEP,)})
    #: What happens before it answers.
    meanwhile: Callable[[], object] = lambda: None

    def request(self, host: str, command: Any, *, within: float | None = None) -> Outcome:
        self.commands.append(command)
        self.meanwhile()
        return Outcome(command.task.request_key, **self.answer)

    def cast(self, host: str, command: Any) -> None:
        self.commands.append(command)


@dataclass
class Site:
    """A host whose units need no preparation, and are cleaned as ``clean`` says."""

    arena: Arena
    conductor: Conductor
    agent: Agent = field(default_factory=Agent)
    results: list[CleanResult] = field(default_factory=list)

    def set_clean(self, word: str | None) -> None:
        which = sa.update(Deployable).where(Deployable.rp_uuid == provider_of(PLAIN, 0))
        execute(self.arena.db, which.values(clean=word))

    def bind(self, profile: str | None = None) -> tuple[str, int]:
        """Bind an ARQ whose profile has this level; return its uuid, and its handle's id."""
        ((arq,),) = self.arena.request(1)
        if profile is not None:
            group = dict(arq_of(self.arena.db, arq).group_spec)
            set_arq(self.arena.db, arq, group_spec={**group, "accel:clean": profile})
        self.conductor.bind([arq], provider_of(PLAIN, 0), str(uuid4()))
        row = arq_of(self.arena.db, arq)
        return arq, row.attach_handle_id

    def released(self, profile: str | None = None) -> int:
        """Return the handle of an ARQ that was bound and is deleted."""
        arq, handle = self.bind(profile)
        assert arq_of(self.arena.db, arq).state == State.BOUND
        self.conductor.delete_of(arq_of(self.arena.db, arq).instance_uuid)
        return handle

    def run(self) -> None:
        """Do the release work once."""
        owner = self.conductor.lease.owner
        assert owner is not None
        due = sa.case((Work.kind == WorkKind.RELEASE.value, 0), else_=LATER)
        execute(self.arena.db, sa.update(Work).values(not_before_ms=due))
        with self.arena.db.writer() as tx:
            rows = work.claim(tx, owner=owner, lease_ms=-60_000, limit=50)
        tasks = UnitTasks(
            queue=WorkQueue(db=self.arena.db),
            agents=cast(AgentClient, self.agent),
            wake=lambda: None,
            record_cleaning=self.results.append,
        )
        for row in rows:
            tasks.handlers()[WorkKind.RELEASE]([row])

    def handle(self, handle_id: int) -> Any:
        with self.arena.db.reader() as tx:
            query = sa.select(AttachHandle.__table__).where(AttachHandle.id == handle_id)
            return tx.execute(query).one()

    def reserved(self) -> int:
        """Return how many units of the host's device Placement must not offer."""
        epoch = self.arena.epochs[PLAIN]
        providers = DesiredStates(db=self.arena.db).desired(PLAIN, epoch).tree.providers
        # Other tests leave other devices.
        first = provider_of(PLAIN, 0)
        return next(one.reserved for one in providers if one.uuid == first)

    def generation(self) -> int:
        """Return the generation of what Placement must have of the host."""
        with self.arena.db.reader() as tx:
            query = sa.select(Host.desired_generation).where(Host.name == PLAIN)
            return int(tx.execute(query).scalar_one())

    def events(self) -> list[tuple[str, str | None]]:
        """Return the events of handles and devices."""
        with self.arena.db.reader() as tx:
            query = sa.select(Event.action, Event.reason).where(
                Event.noun.in_(("handle", "device"))
            )
            return [(action, reason) for action, reason in tx.execute(query.order_by(Event.id))]

    def admin(self) -> DeviceAdmin:
        return DeviceAdmin(
            db=self.arena.db,
            agents=cast(AgentClient, self.agent),
            lost_devices=cast(Any, None),
            wake=lambda: None,
        )

    def device(self) -> str:
        with self.arena.db.reader() as tx:
            query = sa.select(Device.uuid).join(Deployable, Deployable.device_id == Device.id)
            query = query.where(Deployable.rp_uuid == provider_of(PLAIN, 0))
            return str(tx.execute(query).scalar_one())


@pytest.fixture
def site(arena: Arena, conductor: Conductor) -> Iterator[Site]:
    made = Site(arena, conductor)
    made.set_clean("default")
    yield made
    made.set_clean(None)


def test_unit_that_was_not_prepared_is_cleaned_and_then_free(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    handle = site.released()
    assert site.handle(handle).state == "releasing"
    assert "release" in work_kinds(site.arena.db)
    reserved: list[int] = []
    site.agent.meanwhile = lambda: reserved.append(site.reserved())
    with caplog.at_level(logging.INFO, "cyborg.conductor.tasks.units"):
        site.run()
    # Placement is told before the agent begins.
    assert reserved == [1]
    assert [type(command) for command in site.agent.commands] == [
        *(DesiredChanged, Release, DesiredChanged),
    ]
    assert site.agent.commands[1].task.spec == {"clean": "full"}
    row = site.handle(handle)
    assert (row.state, row.cleaning, site.reserved()) == ("free", False, 0)
    assert row.clean_record == {
        "result": "cleaned",
        "level": "full",
        "steps": [{"name": "NVMe erase", "seconds": 12.5}],
        "reason": None,
    }
    assert row.clean_ms is not None
    assert site.events() == [("unit cleaned", f"unit {row.handle_key}: NVMe erase (12.5 s)")]
    assert site.results == [CleanResult.CLEANED]
    assert "cleaned: NVMe erase" in caplog.text
    sound(site.arena.db)


@pytest.mark.parametrize(
    ("host", "profile", "spec"),
    [
        ("default", "reset", {"clean": "reset"}),
        ("reset", "full", {"clean": "full"}),
        ("full", "none", {"clean": "full"}),
        (None, "full", {"clean": "full"}),
    ],
)
def test_level_of_host_and_profile_reaches_the_agent(
    site: Site, host: str | None, profile: str, spec: dict[str, str]
) -> None:
    site.set_clean(host)
    site.released(profile)
    site.run()
    (release,) = (one for one in site.agent.commands if isinstance(one, Release))
    assert release.task.spec == spec


@pytest.mark.parametrize(
    ("host", "profile"),
    [("default", "none"), ("none", None), (None, None), (None, "reset"), (None, "thoroughly")],
)
def test_unit_that_is_not_to_be_cleaned_is_free_at_once(
    site: Site, host: str | None, profile: str | None
) -> None:
    site.set_clean(host)
    handle = site.released(profile)
    assert site.handle(handle).state == "free"
    assert "release" not in work_kinds(site.arena.db)


def test_progress_is_stored_while_the_agent_cleans(site: Site) -> None:
    handle = site.released()
    site.agent.answer = {"done": False, "progress": "NVMe erase, 40%: sanitize"}
    generation = site.generation()
    site.run()
    # An agent that misses the message learns it at its next report.
    assert site.generation() == generation + 1
    row = site.handle(handle)
    assert (row.state, row.cleaning) == ("releasing", True)
    assert (row.clean_record["result"], row.clean_record["reason"]) == (
        "cleaning",
        "NVMe erase, 40%: sanitize",
    )
    before = row.clean_ms
    site.run()
    assert site.handle(handle).clean_ms == before
    assert site.reserved() == 1
    # It is cleaned once, so Placement is told once.
    assert sum(isinstance(one, DesiredChanged) for one in site.agent.commands) == 1
    sound(site.arena.db)


def test_bind_waits_for_a_unit_that_is_cleaned(site: Site) -> None:
    first = site.released()
    site.agent.answer = {"done": False}
    site.run()
    # Placement allocated the unit before it was reserved.
    for _ in range(UNITS - 1):
        site.bind()
    arq, handle = site.bind()
    assert handle == first
    assert arq_of(site.arena.db, arq).state == State.BIND_STARTED
    site.agent.answer = {"cleaned": (STEP,)}
    site.run()
    row = site.handle(handle)
    assert (row.state, row.cleaning) == ("held", False)
    # A guest that never had it leaves nothing; but that is not known once it is held.
    site.conductor.delete([arq])
    assert site.handle(handle).state == "releasing"


def test_bind_that_only_waited_leaves_the_cleaning_alone(site: Site) -> None:
    first = site.released()
    for _ in range(UNITS - 1):
        site.bind()
    arq, handle = site.bind()
    site.conductor.delete([arq])
    assert handle == first
    assert site.handle(handle).state == "releasing"
    with site.arena.db.reader() as tx:
        kinds = list(tx.execute(sa.select(Work.kind).where(Work.kind == "release")).scalars())
    assert kinds == ["release"]


def fail(site: Site, times: int) -> None:
    site.agent.answer = {"fault": "its sanitize has failed; replace the disk"}
    for _ in range(times):
        with pytest.raises(exception.DriverFailed, match="replace the disk"):
            site.run()


def test_unit_that_cannot_be_cleaned_goes_into_quarantine(site: Site) -> None:
    handle = site.released()
    fail(site, 8)
    row = site.handle(handle)
    assert (row.state, row.clean_record["result"]) == ("quarantined", "failed")
    assert row.clean_record["reason"] == "its sanitize has failed; replace the disk"
    assert [action for action, _ in site.events()] == ["quarantined", "unit not cleaned"]
    assert site.reserved() == 1
    assert site.results == [CleanResult.FAILED] * 8
    site.agent.answer = {"cleaned": (STEP,)}
    site.run()
    assert site.handle(handle).state == "free"
    assert site.reserved() == 0
    actions = [action for action, _ in site.events()]
    assert actions[2:] == ["out of quarantine", "unit cleaned"]


def test_operator_frees_a_unit_in_quarantine(site: Site) -> None:
    handle = site.released()
    admin, key = site.admin(), site.handle(handle).handle_key
    with pytest.raises(exception.Conflict, match=r"no unit .* in quarantine"):
        admin.update(OPERATOR, str(uuid4()), site.device(), free_unit=key)
    fail(site, 8)
    request_key = str(uuid4())
    site.agent.commands.clear()
    admin.update(OPERATOR, request_key, site.device(), free_unit=key)
    row = site.handle(handle)
    assert (row.state, row.cleaning, site.reserved()) == ("free", False, 0)
    assert row.clean_record["result"] == "overridden"
    assert "release" not in work_kinds(site.arena.db)
    assert site.events()[-1] == ("unit freed", f"unit {key}")
    assert site.agent.commands == [DesiredChanged()]
    # A repeated request changes nothing.
    admin.update(OPERATOR, request_key, site.device(), free_unit=key)
    sound(site.arena.db)


def test_only_operators_free_units(site: Site) -> None:
    arq, handle = site.bind()
    set_arq(site.arena.db, arq, project_id="mine")
    with pytest.raises(exception.Forbidden, match="Only operators change the units"):
        site.admin().update(
            OPERATOR,
            str(uuid4()),
            site.device(),
            project="mine",
            free_unit=site.handle(handle).handle_key,
        )


@pytest.mark.parametrize("state", ["held", "releasing", "quarantined"])
def test_repair_of_a_unit_without_work_has_it_cleaned(site: Site, state: str) -> None:
    (handle, _), *_ = handles_of(site.arena.db, PLAIN)
    which = sa.update(AttachHandle).where(AttachHandle.id == handle)
    execute(site.arena.db, which.values(state=state))
    assert release_handle(site.arena.db, site.handle(handle).uuid)
    assert site.handle(handle).state == ("quarantined" if state == "quarantined" else "releasing")
    site.run()
    assert site.handle(handle).state == "free"
    (release,) = (one for one in site.agent.commands if isinstance(one, Release))
    assert release.task.spec == {"clean": "full"}


def test_release_without_steps_is_recorded_as_skipped(site: Site) -> None:
    handle = site.released("reset")
    site.agent.answer = {}
    site.run()
    assert site.handle(handle).clean_record["result"] == "skipped"
    assert site.events() == []
