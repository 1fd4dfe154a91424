# SPDX-License-Identifier: Apache-2.0
"""What the state machine has found, as ordinary tests; and that its acts do what they say."""

import pytest

from cyborg.model.arq import State
from cyborg.tests.functional.machine.clients import PROJECTS
from cyborg.tests.functional.machine.cloud import DOWN_AFTER, LEASE, Point
from cyborg.tests.functional.machine.play import Deed, Play, Trouble


def providers(play: Play, *, prepare: bool) -> list[str]:
    """The providers of one kind of cards."""
    return [one.provider for one in play.model.cards.values() if one.prepare is prepare]


def test_bind_without_preparation_completes_at_once(play: Play) -> None:
    play.clients.create(prepare=False)
    ((uuid, request),) = play.model.requests.items()
    play.clients.bind([(uuid, providers(play, prepare=False)[0])])
    play.check()
    assert request.states == {State.BOUND}
    play.settle()


def test_bind_with_preparation_completes_in_a_worker_run(play: Play) -> None:
    play.clients.create(prepare=True)
    ((uuid, request),) = play.model.requests.items()
    play.clients.bind([(uuid, providers(play, prepare=True)[0])])
    play.check()
    assert request.states == {State.BIND_STARTED}
    play.turn(0)
    play.check()
    assert request.states == {State.BOUND}
    play.settle()


@pytest.mark.parametrize("point", [Point.ASKED, Point.NOVA])
def test_taken_over_work_is_done_once(play: Play, point: Point) -> None:
    provider = providers(play, prepare=True)[0]
    play.clients.create(prepare=True)
    ((uuid, request),) = play.model.requests.items()
    play.clients.bind([(uuid, provider)])
    play.plan(point, Deed.TAKE_OVER, 1)
    # The second turn is for Nova.
    for _ in range(2):
        play.turn(0)
        play.check()
    assert play.cloud.plans == {}
    assert request.states == {State.BOUND}
    assert play.hardware.racks[provider].driver.calls == [("prepare", "0000:82:00.1")]
    play.settle()


@pytest.mark.parametrize("deed", [Deed.DELETE, Deed.UNBIND, Deed.KILL_AGENTS])
def test_changes_during_preparation_leave_nothing_behind(play: Play, deed: Deed) -> None:
    provider = providers(play, prepare=True)[0]
    play.clients.create(prepare=True)
    (uuid,) = play.model.requests
    play.clients.bind([(uuid, provider)])
    play.plan(Point.HOST, deed, 0)
    play.turn(0)
    play.check()
    assert play.cloud.plans == {}
    play.settle()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("steps", range(5))
def test_second_conductor_completes_work_of_a_crashed_one(
    play: Play, steps: int, after: bool
) -> None:
    play.clients.create(prepare=True)
    ((uuid, request),) = play.model.requests.items()
    play.clients.bind([(uuid, providers(play, prepare=True)[1])])
    play.doom_conductor(0, steps, after=after)
    play.turn(0)
    play.check()
    assert play.conductors[0].life.over
    play.cloud.clock.advance(LEASE + 1)
    play.turn(1)
    play.check()
    assert request.states == {State.BOUND}
    play.settle()


@pytest.mark.parametrize("there", [True, False])
def test_returned_agent_reads_placement_again(play: Play, there: bool) -> None:
    """Placement showed what the agent between had seen, until the next full check."""
    provider = providers(play, prepare=False)[0]
    play.trouble(Trouble.PULLED, provider, ends=there)
    play.beat(0)
    play.start_agent(0)
    play.trouble(Trouble.PULLED, provider, ends=not there)
    play.beat(0)
    # The newer one falls silent, and what was thought dead goes on where it stopped.
    play.cloud.clock.advance(DOWN_AFTER + 1)
    play.trouble(Trouble.PULLED, provider, ends=there)
    play.beat(0, newest=False)
    play.check()
    play.settle()


def test_lost_unit_is_not_bound_and_returns(play: Play) -> None:
    provider = providers(play, prepare=False)[0]
    play.clients.create(prepare=False, count=2)
    first, second = play.model.requests
    play.trouble(Trouble.SHRUNK, provider, ends=False)
    play.beat(0)
    play.check()
    assert play.clients.bind([(first, provider), (second, provider)]) not in play.model.instances
    assert play.clients.bind([(first, provider)]) in play.model.instances
    play.check()
    play.trouble(Trouble.SHRUNK, provider, ends=True)
    play.beat(0)
    play.check()
    assert play.clients.bind([(second, provider)]) in play.model.instances
    play.settle()


def test_arq_of_another_project_is_not_found(play: Play) -> None:
    mine, other = PROJECTS
    play.clients.create(prepare=False, project=mine)
    (uuid,) = play.model.requests
    provider = providers(play, prepare=False)[0]
    assert play.clients.bind([(uuid, provider)], project=other) not in play.model.instances
    play.clients.delete([uuid], service=False, project=other)
    play.check()
    play.clients.bind([(uuid, provider)], project=mine)
    play.clients.unbind([uuid], project=other)
    play.check()
    assert play.model.requests[uuid].states == {State.BOUND}
    play.clients.read()
    play.settle()


def test_requested_image_is_loaded(play: Play) -> None:
    image = next(iter(play.site.images))
    for prepare in (True, False):
        provider = providers(play, prepare=prepare)[0]
        play.clients.program(provider, image)
        # Cards that need preparing cannot.
        assert (provider in play.model.orders) is not prepare
    play.turn(0)
    assert play.hardware.image(play.model.cards[provider]) == play.site.images[image]
    play.settle()


def test_last_requested_image_stays_loaded(play: Play) -> None:
    """Though the end of an earlier one is told later."""
    provider = providers(play, prepare=False)[0]
    earlier, later = play.site.images
    play.clients.program(provider, earlier)
    play.doom_conductor(0, 3, after=False)
    play.turn(0)
    assert play.conductors[0].life.over
    assert play.hardware.image(play.model.cards[provider]) == play.site.images[earlier]
    play.clients.program(provider, later)
    play.turn(1)
    play.settle()
