# SPDX-License-Identifier: Apache-2.0
"""Units are cleaned after their guests: which units, what Placement offers, what is recorded."""

import logging
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.audit.repairs import release_handle, set_units_aside
from cyborg.db.models import AttachHandle, Deployable, Device, DirtyUnit, Event, Work
from cyborg.model.arq import State
from cyborg.model.caller import Caller
from cyborg.model.cleaning import CleanedStep, CleanResult
from cyborg.model.work import WorkKind
from cyborg.rpc.verbs import DesiredChanged, Release
from cyborg.tests.fixtures.commands import update_device
from cyborg.tests.fixtures.host_reports import provider_of
from cyborg.tests.fixtures.unit_states import UNIT
from cyborg.tests.fixtures.use_cases import UseCases
from cyborg.tests.functional.races.arena import sound
from cyborg.tests.functional.rules.conftest import PLAIN, UNITS
from cyborg.tests.functional.rules.rows import handles_of, set_arq, work_kinds

OPERATOR = Caller("operators", "olga", "req-free", all_projects=True)
LATER = 1 << 53
STEP = CleanedStep("NVMe erase", 12_500)


FIRST = provider_of(PLAIN, 0)


@pytest.fixture(autouse=True)
def _cleaned(conductor: UseCases) -> Iterator[None]:
    """The units of the host need no preparation, and are cleaned by the host's default."""
    conductor.agents.answer = {"cleaned": (STEP,)}
    set_clean(conductor, "default")
    yield
    set_clean(conductor, None)


def set_clean(conductor: UseCases, word: str | None) -> None:
    conductor.change(Deployable, Deployable.rp_uuid == FIRST, clean=word)


def bind(conductor: UseCases, profile: str | None = None) -> tuple[str, int]:
    """Bind an ARQ whose profile has this level; return its uuid, and its handle's id."""
    ((arq,),) = conductor.request(1)
    if profile is not None:
        group = dict(conductor.arq(arq).group_spec)
        set_arq(conductor.db, arq, group_spec={**group, "accel:clean": profile})
    conductor.bind([arq], FIRST, str(uuid4()))
    return arq, conductor.handle(arq).id


def released(conductor: UseCases, profile: str | None = None) -> int:
    """Return the handle of an ARQ that was bound and is deleted."""
    arq, handle = bind(conductor, profile)
    row = conductor.arq(arq)
    assert row.state == State.BOUND
    conductor.delete_of(row.instance_uuid)
    return handle


def handle_of(conductor: UseCases, handle_id: int) -> Any:
    """Return the row of a handle, by column, and what its unit is, see ``UNIT``."""
    query = sa.select(AttachHandle.__table__, UNIT.label("unit"))
    with conductor.db.reader() as tx:
        return tx.execute(query.where(AttachHandle.id == handle_id)).one()


def reserved_of(conductor: UseCases) -> int:
    """Return how many units of the host's device Placement must not offer."""
    # Other tests leave other devices.
    providers = conductor.desired(PLAIN).tree.providers
    return next(one.reserved for one in providers if one.uuid == FIRST)


def history(conductor: UseCases) -> list[tuple[str, str | None]]:
    """Return the events of handles and devices."""
    events = conductor.rows(Event, Event.noun.in_(("handle", "device")))
    return [(event.action, event.reason) for event in events]


def device(conductor: UseCases) -> str:
    mine = conductor.row(Deployable, Deployable.rp_uuid == FIRST).device_id
    return str(conductor.row(Device, Device.id == mine).uuid)


def test_unit_that_was_not_prepared_is_cleaned_and_then_free(
    conductor: UseCases, caplog: pytest.LogCaptureFixture
) -> None:
    handle = released(conductor)
    assert handle_of(conductor, handle).state == "releasing"
    assert "release" in work_kinds(conductor.db)
    reserved: list[tuple[int, str]] = []

    def look() -> None:
        record = handle_of(conductor, handle).clean_record
        reserved.append((reserved_of(conductor), record["result"]))

    conductor.agents.meanwhile = look
    with caplog.at_level(logging.INFO, "cyborg.conductor.tasks.units"):
        conductor.do(WorkKind.RELEASE)
    # Placement is told before the agent begins.
    assert reserved == [(1, "cleaning")]
    assert [type(command) for command in conductor.agents.commands] == [
        *(DesiredChanged, Release, DesiredChanged),
    ]
    assert conductor.agents.commands[1].task.spec == {"clean": "full"}
    row = handle_of(conductor, handle)
    assert (row.unit, row.cleaning, reserved_of(conductor)) == ("free", False, 0)
    assert row.clean_record == {
        "result": "cleaned",
        "level": "full",
        "steps": [{"name": "NVMe erase", "seconds": 12.5}],
        "reason": None,
    }
    assert row.clean_ms is not None
    assert history(conductor) == [("unit cleaned", f"unit {row.handle_key}: NVMe erase (12.5 s)")]
    assert conductor.cleanings == [CleanResult.CLEANED]
    assert "cleaned: NVMe erase" in caplog.text
    sound(conductor.db)


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
    conductor: UseCases, host: str | None, profile: str, spec: dict[str, str]
) -> None:
    set_clean(conductor, host)
    released(conductor, profile)
    conductor.do(WorkKind.RELEASE)
    (release,) = (one for one in conductor.agents.commands if isinstance(one, Release))
    assert release.task.spec == spec


@pytest.mark.parametrize(
    ("host", "profile"),
    [("default", "none"), ("none", None), (None, None), (None, "reset"), (None, "thoroughly")],
)
def test_unit_that_is_not_to_be_cleaned_is_free_at_once(
    conductor: UseCases, host: str | None, profile: str | None
) -> None:
    set_clean(conductor, host)
    handle = released(conductor, profile)
    assert handle_of(conductor, handle).unit == "free"
    assert "release" not in work_kinds(conductor.db)


def test_progress_is_stored_while_the_agent_cleans(conductor: UseCases) -> None:
    handle = released(conductor)
    conductor.agents.answer = {"done": False, "progress": "NVMe erase, 40%: sanitize"}
    generation = conductor.generation(PLAIN)
    conductor.do(WorkKind.RELEASE)
    # An agent that misses the message learns it at its next report.
    assert conductor.generation(PLAIN) == generation + 1
    row = handle_of(conductor, handle)
    assert (row.state, row.cleaning) == ("releasing", True)
    assert (row.clean_record["result"], row.clean_record["reason"]) == (
        "cleaning",
        "NVMe erase, 40%: sanitize",
    )
    before = row.clean_ms
    conductor.do(WorkKind.RELEASE)
    assert handle_of(conductor, handle).clean_ms == before
    assert reserved_of(conductor) == 1
    # It is cleaned once, so Placement is told once.
    assert sum(isinstance(one, DesiredChanged) for one in conductor.agents.commands) == 1
    sound(conductor.db)


def test_bind_waits_for_a_unit_that_is_cleaned(conductor: UseCases) -> None:
    first = released(conductor)
    conductor.agents.answer = {"done": False}
    conductor.do(WorkKind.RELEASE)
    # Placement allocated the unit before it was reserved.
    for _ in range(UNITS - 1):
        bind(conductor)
    arq, handle = bind(conductor)
    assert handle == first
    assert conductor.arq(arq).state == State.BIND_STARTED
    conductor.agents.answer = {"cleaned": (STEP,)}
    conductor.do(WorkKind.RELEASE)
    row = handle_of(conductor, handle)
    assert (row.unit, row.cleaning) == ("held", False)
    # A guest that never had it leaves nothing; but that is not known once it is held.
    conductor.delete([arq])
    assert handle_of(conductor, handle).state == "releasing"


def test_bind_that_only_waited_leaves_the_cleaning_alone(conductor: UseCases) -> None:
    first = released(conductor)
    for _ in range(UNITS - 1):
        bind(conductor)
    arq, handle = bind(conductor)
    conductor.delete([arq])
    assert handle == first
    assert handle_of(conductor, handle).state == "releasing"
    with conductor.db.reader() as tx:
        kinds = list(tx.execute(sa.select(Work.kind).where(Work.kind == "release")).scalars())
    assert kinds == ["release"]


def fail(conductor: UseCases, times: int) -> None:
    conductor.agents.answer = {"fault": "its sanitize has failed; replace the disk"}
    for _ in range(times):
        conductor.do(WorkKind.RELEASE)


def test_unit_that_cannot_be_cleaned_goes_into_quarantine(conductor: UseCases) -> None:
    handle = released(conductor)
    fail(conductor, 8)
    row = handle_of(conductor, handle)
    assert (row.state, row.clean_record["result"]) == ("quarantined", "failed")
    assert row.clean_record["reason"] == "its sanitize has failed; replace the disk"
    assert [dirty.fault for dirty in conductor.rows(DirtyUnit)] == [row.clean_record["reason"]]
    assert [action for action, _ in history(conductor)] == ["quarantined", "unit not cleaned"]
    assert reserved_of(conductor) == 1
    assert conductor.cleanings == [CleanResult.FAILED] * 8
    conductor.agents.answer = {"cleaned": (STEP,)}
    conductor.do(WorkKind.RELEASE)
    assert handle_of(conductor, handle).unit == "free"
    assert reserved_of(conductor) == 0
    actions = [action for action, _ in history(conductor)]
    assert actions[2:] == ["out of quarantine", "unit cleaned"]


def test_operator_frees_a_unit_in_quarantine(conductor: UseCases) -> None:
    handle = released(conductor)
    key = handle_of(conductor, handle).handle_key
    with pytest.raises(exception.Conflict, match=r"no unit .* in quarantine"):
        conductor.ask(update_device(OPERATOR, str(uuid4()), device(conductor), free_unit=key))
    fail(conductor, 8)
    request_key = str(uuid4())
    conductor.agents.received.clear()
    conductor.ask(update_device(OPERATOR, request_key, device(conductor), free_unit=key))
    row = handle_of(conductor, handle)
    assert (row.unit, row.cleaning, reserved_of(conductor)) == ("free", False, 0)
    assert row.clean_record["result"] == "overridden"
    assert "release" not in work_kinds(conductor.db)
    assert history(conductor)[-1] == ("unit freed", f"unit {key}")
    assert conductor.agents.commands == [DesiredChanged()]
    # A repeated request changes nothing.
    conductor.ask(update_device(OPERATOR, request_key, device(conductor), free_unit=key))
    sound(conductor.db)


def test_only_operators_free_units(conductor: UseCases) -> None:
    arq, handle = bind(conductor)
    set_arq(conductor.db, arq, project_id="mine")
    with pytest.raises(exception.Forbidden, match="Only operators change the units"):
        conductor.ask(
            update_device(
                OPERATOR,
                str(uuid4()),
                device(conductor),
                project="mine",
                free_unit=handle_of(conductor, handle).handle_key,
            )
        )


@pytest.mark.parametrize("state", ["releasing", "quarantined"])
def test_repair_of_a_unit_without_work_has_it_cleaned(conductor: UseCases, state: str) -> None:
    (handle, _), *_ = handles_of(conductor.db, PLAIN)
    which = sa.update(AttachHandle).where(AttachHandle.id == handle)
    conductor.execute(which.values(state=state))
    assert release_handle(conductor.db, handle_of(conductor, handle).uuid)
    assert handle_of(conductor, handle).state == (
        "quarantined" if state == "quarantined" else "releasing"
    )
    conductor.do(WorkKind.RELEASE)
    assert handle_of(conductor, handle).unit == "free"
    (release,) = (one for one in conductor.agents.commands if isinstance(one, Release))
    assert release.task.spec == {"clean": "full"}


def test_units_that_no_arq_has_are_set_aside(conductor: UseCases) -> None:
    """A server that the database does not know may have any of them."""
    _, held = bind(conductor)
    (other,) = {id_ for id_, _ in handles_of(conductor.db, PLAIN)} - {held}
    cause = "server lost-1 has allocated a unit of it"
    assert set_units_aside(conductor.db, FIRST, cause)
    assert [handle_of(conductor, handle).unit for handle in (held, other)] == [
        *("held", "quarantined"),
    ]
    assert reserved_of(conductor) == 1
    assert history(conductor) == [("quarantined", cause)]
    # The next audit finds nothing to set aside.
    assert not set_units_aside(conductor.db, FIRST, cause)
    assert "release" not in work_kinds(conductor.db)


def test_repair_releases_no_unit_that_was_set_aside(conductor: UseCases) -> None:
    """A repair may begin after another audit has found a server that may have the unit."""
    (handle, _), *_ = handles_of(conductor.db, PLAIN)
    conductor.execute(
        sa.update(AttachHandle).where(AttachHandle.id == handle).values(state="releasing")
    )
    assert set_units_aside(conductor.db, FIRST, "server lost-1 has allocated a unit of it")
    assert not release_handle(conductor.db, handle_of(conductor, handle).uuid)
    assert handle_of(conductor, handle).unit == "quarantined"
    assert "release" not in work_kinds(conductor.db)


def test_release_without_steps_is_recorded_as_skipped(conductor: UseCases) -> None:
    handle = released(conductor, "reset")
    conductor.agents.answer = {}
    conductor.do(WorkKind.RELEASE)
    assert handle_of(conductor, handle).clean_record["result"] == "skipped"
    assert history(conductor) == []
