# SPDX-License-Identifier: Apache-2.0
"""What the state machine has found, as ordinary tests; and that its acts do what they say."""

import pytest

from cyborg.model.arq import State
from cyborg.tests.fixtures.single_step import DOWN_AFTER, LEASE
from cyborg.tests.functional.machine.clients import PROJECTS
from cyborg.tests.functional.machine.model import Request
from cyborg.tests.functional.machine.simulation import Interruption, Point, Simulation, Trouble


def providers(simulation: Simulation, *, prepare: bool) -> list[str]:
    """The providers of one kind of cards."""
    return [one.provider for one in simulation.model.cards.values() if one.prepare is prepare]


@pytest.mark.parametrize("there", [True, False])
def test_returned_agent_reads_placement_again(simulation: Simulation, there: bool) -> None:
    """Placement showed what the agent between had seen, until the next full check."""
    provider = providers(simulation, prepare=False)[0]
    simulation.trouble(Trouble.PULLED, provider, ends=there)
    simulation.run_agent(0)
    simulation.replace_agent(0)
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


def bind(simulation: Simulation, *, prepare: bool) -> tuple[str, Request]:
    """Bind a new ARQ; the provider, and the ARQ in the model."""
    known = set(simulation.model.requests)
    simulation.clients.create(prepare=prepare)
    (uuid,) = simulation.model.requests.keys() - known
    provider = providers(simulation, prepare=prepare)[0]
    simulation.clients.bind([(uuid, provider)])
    simulation.check()
    return provider, simulation.model.requests[uuid]


def test_bind_is_complete_at_once_or_after_a_worker_run(simulation: Simulation) -> None:
    _, plain = bind(simulation, prepare=False)
    assert plain.states == {State.BOUND}
    _, prepared = bind(simulation, prepare=True)
    assert prepared.states == {State.BIND_STARTED}
    simulation.run_worker(0)
    simulation.check()
    assert prepared.states == {State.BOUND}
    mine, other = PROJECTS
    (uuid, _) = simulation.model.requests
    simulation.clients.delete([uuid], service=False, project=other)
    simulation.clients.unbind([uuid], project=other)
    simulation.check()
    assert plain.states == {State.BOUND}
    simulation.clients.unbind([uuid], project=mine)
    provider = providers(simulation, prepare=False)[0]
    instance = simulation.clients.bind([(uuid, provider)], project=other)
    assert instance not in simulation.model.instances
    simulation.clients.read()
    simulation.settle()


@pytest.mark.parametrize("point", [Point.ASKED, Point.NOVA])
def test_taken_over_work_is_done_once(simulation: Simulation, point: Point) -> None:
    simulation.plan(point, Interruption.TAKE_OVER, 1)
    provider, request = bind(simulation, prepare=True)
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
    bind(simulation, prepare=True)
    simulation.plan(Point.HOST, interruption, 0)
    simulation.run_worker(0)
    simulation.check()
    assert simulation.plans == {}
    simulation.settle()


def test_second_conductor_completes_work_of_a_crashed_one(simulation: Simulation) -> None:
    """Here at one boundary; functional/crash has them all."""
    _, request = bind(simulation, prepare=True)
    simulation.crash_conductor_after(0, 2, after=True)
    simulation.run_worker(0)
    simulation.check()
    assert simulation.conductors[0].fault_plan.dead
    simulation.site.clock.advance(LEASE + 1)
    simulation.run_worker(1)
    simulation.check()
    assert request.states == {State.BOUND}
    simulation.settle()


def test_last_requested_image_stays_loaded(simulation: Simulation) -> None:
    """Though the end of an earlier one is told later."""
    provider = providers(simulation, prepare=False)[0]
    card, images = simulation.model.cards[provider], simulation.site.images
    earlier, later = images
    # Cards that need preparing cannot.
    simulation.clients.program(providers(simulation, prepare=True)[0], earlier)
    simulation.clients.program(provider, earlier)
    assert list(simulation.model.orders) == [provider]
    simulation.crash_conductor_after(0, 3, after=False)
    simulation.run_worker(0)
    assert simulation.conductors[0].fault_plan.dead
    assert simulation.hardware.image(card) == images[earlier]
    simulation.clients.program(provider, later)
    simulation.run_worker(1)
    simulation.settle()
