# SPDX-License-Identifier: Apache-2.0
"""After a crash of any process at any boundary nothing is lost, leaked or stuck."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import pytest

from cyborg.model.process import AGENT, CONDUCTOR
from cyborg.tests.fixtures.choice import FULL, chosen
from cyborg.tests.fixtures.crash import CALLS, Boundary, CrashPoint
from cyborg.tests.functional.crash.cloud import SimulatedCloud
from cyborg.tests.functional.crash.runs import Plan, Run, new_run
from cyborg.tests.functional.crash.scenarios import SCENARIOS, Scenario
from cyborg.tests.functional.schema.databases import SERVER

#: A full run crashes at every statement. Else only what others can see counts as a boundary, for
#: a transaction that is cut off leaves the same rows at whatever statement it ends. So does a
#: conductor that dies after one such boundary or before the next (agents write files in between).
#: On a server one process dies alone; on SQLite all others with it, but not in scenarios that are
#: long by themselves.
#: The commit chooses one of so many boundaries, unless all cases are tried.
_EVERY: Final = 5
_SHOWN: Final = 5


def _plans() -> Iterator[object]:
    played = [one for one in SCENARIOS if FULL or SERVER or not one.long]
    for scenario in played:
        for victim in scenario.victims:
            for alone in (True, False) if FULL else (bool(SERVER),):
                who = f"{victim.removeprefix('cyborg-')}-{'alone' if alone else 'and-all-others'}"
                plan = Plan(victim, alone=alone, kinds=frozenset(Boundary) if FULL else CALLS)
                yield pytest.param(scenario, plan, id=f"{scenario.name}-{who}".replace(" ", "-"))


@pytest.mark.parametrize(("scenario", "plan"), list(_plans()))
def test_process_recovers_from_a_crash_at_every_boundary(
    scenario: Scenario, plan: Plan, clouds: Callable[[str], SimulatedCloud]
) -> None:
    cloud = clouds(scenario.cloud)
    passed = replay(cloud, scenario, plan).fault_plan.passed
    assert passed, "the victim takes no part"
    both = FULL or plan.victim == AGENT
    crash_points = [
        CrashPoint(number, after=after)
        for number in range(1, len(passed) + 1)
        for after in ((False, True) if both or number == 1 else (True,))
    ]
    failures = []
    share = math.ceil(len(crash_points) / _EVERY)
    for crash_point in chosen(crash_points, f"crashes of {scenario.name} {plan.victim}", share):
        flaw = outcome(cloud, scenario, plan.at(crash_point))
        if flaw:
            side, number = "after" if crash_point.after else "before", crash_point.number
            failures.append(f"{side} {number} of {len(passed)} ({passed[number - 1]}): {flaw}")
    told = "\n".join(failures[:_SHOWN])
    assert not failures, f"{len(failures)} crashes were not survived, the first:\n{told}"


def outcome(cloud: SimulatedCloud, scenario: Scenario, plan: Plan) -> str:
    """Return what was wrong after a crash; empty if nothing was."""
    try:
        run = replay(cloud, scenario, plan)
        if not run.fault_plan.dead:
            return "it did not come so far"
        if scenario.given_up is not None and run.was_unknown and not plan.gives_up:
            return outcome(cloud, scenario, replace(plan, gives_up=True))
    except Exception as error:  # noqa: BLE001 - whatever it is, the report must say where
        return f"{type(error).__name__}: {error}"
    return ""


def replay(cloud: SimulatedCloud, scenario: Scenario, plan: Plan) -> Run:
    """Run a scenario and check its result."""
    cloud.restore(publish=scenario.reshapes)
    run = new_run(cloud, plan, agent=AGENT in scenario.victims, agent_runs=scenario.reshapes)
    try:
        scenario.warm(run)
        run.begin()
        scenario.play(run)
        run.settle()
        run.verify()
        given_up = scenario.given_up if plan.gives_up and run.was_unknown else None
        (given_up or scenario.check)(run)
    finally:
        run.cleanup()
    return run


def test_scenarios_crash_every_process_that_takes_part() -> None:
    """Without this the file would not test what it says."""
    assert all(CONDUCTOR in one.victims for one in SCENARIOS)
    without = [one.name for one in SCENARIOS if AGENT not in one.victims]
    assert without == ["bind", "attach taken back"]
