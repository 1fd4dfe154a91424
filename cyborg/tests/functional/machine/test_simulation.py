# SPDX-License-Identifier: Apache-2.0
"""What the state machine has found, as ordinary tests; and that its acts do what they say."""

import pytest

from cyborg.model.arq import State
from cyborg.tests.fixtures.single_step_processes import DOWN_AFTER, LEASE
from cyborg.tests.functional.machine.clients import PROJECTS
from cyborg.tests.functional.machine.simulation import Interruption, Point, Simulation, Trouble


def providers(simulation: Simulation, *, prepare: bool) -> list[str]:
    """The providers of one kind of cards."""
    return [one.provider for one in simulation.model.cards.values() if one.prepare is prepare]


def test_bind_without_preparation_completes_at_once(simulation: Simulation) -> None:
    simulation.clients.create(prepare=False)
    ((uuid, request),) = simulation.model.requests.items()
    simulation.clients.bind([(uuid, providers(simulation, prepare=False)[0])])
    simulation.check()
    assert request.states == {State.BOUND}
    simulation.settle()


def test_bind_with_preparation_completes_in_a_worker_run(simulation: Simulation) -> None:
    simulation.clients.create(prepare=True)
    ((uuid, request),) = simulation.model.requests.items()
    simulation.clients.bind([(uuid, providers(simulation, prepare=True)[0])])
    simulation.check()
    assert request.states == {State.BIND_STARTED}
    simulation.run_worker(0)
    simulation.check()
    assert request.states == {State.BOUND}
    simulation.settle()


@pytest.mark.parametrize("point", [Point.ASKED, Point.NOVA])
def test_taken_over_work_is_done_once(simulation: Simulation, point: Point) -> None:
    provider = providers(simulation, prepare=True)[0]
    simulation.clients.create(prepare=True)
    ((uuid, request),) = simulation.model.requests.items()
    simulation.clients.bind([(uuid, provider)])
    simulation.plan(point, Interruption.TAKE_OVER, 1)
    # The second turn is for Nova.
    for _ in range(2):
        simulation.run_worker(0)
        simulation.check()
    assert simulation.plans == {}
    assert request.states == {State.BOUND}
    assert simulation.hardware.racks[provider].driver.calls == [("prepare", "0000:82:00.1")]
    simulation.settle()


@pytest.mark.parametrize(
    "interruption", [Interruption.DELETE, Interruption.UNBIND, Interruption.KILL_AGENTS]
)
def test_changes_during_preparation_leave_nothing_behind(
    simulation: Simulation, interruption: Interruption
) -> None:
    provider = providers(simulation, prepare=True)[0]
    simulation.clients.create(prepare=True)
    (uuid,) = simulation.model.requests
    simulation.clients.bind([(uuid, provider)])
    simulation.plan(Point.HOST, interruption, 0)
    simulation.run_worker(0)
    simulation.check()
    assert simulation.plans == {}
    simulation.settle()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("steps", range(5))
def test_second_conductor_completes_work_of_a_crashed_one(
    simulation: Simulation, steps: int, after: bool
) -> None:
    simulation.clients.create(prepare=True)
    ((uuid, request),) = simulation.model.requests.items()
    simulation.clients.bind([(uuid, providers(simulation, prepare=True)[1])])
    simulation.crash_conductor_after(0, steps, after=after)
    simulation.run_worker(0)
    simulation.check()
    assert simulation.conductors[0].fault_plan.dead
    simulation.site.clock.advance(LEASE + 1)
    simulation.run_worker(1)
    simulation.check()
    assert request.states == {State.BOUND}
    simulation.settle()


@pytest.mark.parametrize("there", [True, False])
def test_returned_agent_reads_placement_again(simulation: Simulation, there: bool) -> None:
    """Placement showed what the agent between had seen, until the next full check."""
    provider = providers(simulation, prepare=False)[0]
    simulation.trouble(Trouble.PULLED, provider, ends=there)
    simulation.run_agent(0)
    simulation.start_agent(0)
    simulation.trouble(Trouble.PULLED, provider, ends=not there)
    simulation.run_agent(0)
    # The newer one falls silent, and what was thought dead goes on where it stopped.
    simulation.site.clock.advance(DOWN_AFTER + 1)
    simulation.trouble(Trouble.PULLED, provider, ends=there)
    simulation.run_agent(0, newest=False)
    simulation.check()
    simulation.settle()


def test_lost_unit_is_not_bound_and_returns(simulation: Simulation) -> None:
    provider = providers(simulation, prepare=False)[0]
    simulation.clients.create(prepare=False, count=2)
    first, second = simulation.model.requests
    simulation.trouble(Trouble.SHRUNK, provider, ends=False)
    simulation.run_agent(0)
    simulation.check()
    assert (
        simulation.clients.bind([(first, provider), (second, provider)])
        not in simulation.model.instances
    )
    assert simulation.clients.bind([(first, provider)]) in simulation.model.instances
    simulation.check()
    simulation.trouble(Trouble.SHRUNK, provider, ends=True)
    simulation.run_agent(0)
    simulation.check()
    assert simulation.clients.bind([(second, provider)]) in simulation.model.instances
    simulation.settle()


def test_arq_of_another_project_is_not_found(simulation: Simulation) -> None:
    mine, other = PROJECTS
    simulation.clients.create(prepare=False, project=mine)
    (uuid,) = simulation.model.requests
    provider = providers(simulation, prepare=False)[0]
    assert (
        simulation.clients.bind([(uuid, provider)], project=other) not in simulation.model.instances
    )
    simulation.clients.delete([uuid], service=False, project=other)
    simulation.check()
    simulation.clients.bind([(uuid, provider)], project=mine)
    simulation.clients.unbind([uuid], project=other)
    simulation.check()
    assert simulation.model.requests[uuid].states == {State.BOUND}
    simulation.clients.read()
    simulation.settle()


def test_requested_image_is_loaded(simulation: Simulation) -> None:
    image = next(iter(simulation.site.images))
    for prepare in (True, False):
        provider = providers(simulation, prepare=prepare)[0]
        simulation.clients.program(provider, image)
        # Cards that need preparing cannot.
        assert (provider in simulation.model.orders) is not prepare
    simulation.run_worker(0)
    assert (
        simulation.hardware.image(simulation.model.cards[provider]) == simulation.site.images[image]
    )
    simulation.settle()


def test_last_requested_image_stays_loaded(simulation: Simulation) -> None:
    """Though the end of an earlier one is told later."""
    provider = providers(simulation, prepare=False)[0]
    earlier, later = simulation.site.images
    simulation.clients.program(provider, earlier)
    simulation.crash_conductor_after(0, 3, after=False)
    simulation.run_worker(0)
    assert simulation.conductors[0].fault_plan.dead
    assert (
        simulation.hardware.image(simulation.model.cards[provider])
        == simulation.site.images[earlier]
    )
    simulation.clients.program(provider, later)
    simulation.run_worker(1)
    simulation.settle()
