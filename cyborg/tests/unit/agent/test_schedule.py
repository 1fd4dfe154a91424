# SPDX-License-Identifier: Apache-2.0
"""When a step is due: after its interval, after an event, and after its failure."""

import pytest

from cyborg.agent.schedule import Event, Schedule, Step
from cyborg.testing.fake_host import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def schedule(clock: FakeClock) -> Schedule:
    """A schedule whose steps have all run."""
    schedule = Schedule(scan=60, full_check=600, clock=clock.monotonic)
    for step in Step:
        with schedule.run(step):
            pass
    return schedule


def due(schedule: Schedule) -> set[Step]:
    return {step for step in Step if schedule.is_due(step)}


def test_each_step_has_its_own_interval_and_end(schedule: Schedule, clock: FakeClock) -> None:
    assert due(schedule) == set()
    clock.advance(60)
    assert due(schedule) == {Step.SCAN}
    with schedule.run(Step.SCAN):
        pass
    assert due(schedule) == set()
    clock.advance(540)
    assert due(schedule) == set(Step)
    with schedule.run(Step.SCAN):
        pass
    assert due(schedule) == set(Step) - {Step.SCAN}


def test_run_of_one_step_leaves_the_others_due(schedule: Schedule) -> None:
    schedule.rerun(Event.RECONNECTED)
    with schedule.run(Step.SCAN):
        pass
    assert due(schedule) == set(Step) - {Step.SCAN}


def test_step_stays_due_after_an_event_that_comes_while_it_runs(schedule: Schedule) -> None:
    """It may have read what the event is about before the event."""
    with schedule.run(Step.SCAN):
        schedule.rescan()
    assert due(schedule) == {Step.SCAN}


def test_step_that_fails_stays_due(schedule: Schedule) -> None:
    with pytest.raises(RuntimeError), schedule.run(Step.SYNC_UNITS):
        raise RuntimeError
    assert due(schedule) == {Step.SYNC_UNITS}
