# SPDX-License-Identifier: Apache-2.0
"""Agents that nobody answers: they look on, reserve what is gone, and offer nothing."""

from pathlib import Path

import pytest

from cyborg import exception
from cyborg.agent.loop import AgentLoop
from cyborg.agent.state_store import StateFiles
from cyborg.model.provider import provider_uuid
from cyborg.model.report import DriverReport, DriverState, Hello, Report, Welcome
from cyborg.tests.unit.agent.world import UNIT, World, seen

FAILED = Report((DriverReport("d", DriverState.FAILED, error="broken"),))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(files=StateFiles(tmp_path))


def beat_alone(loop: AgentLoop) -> None:
    with pytest.raises(exception.Unavailable):
        loop.run_once()


def test_what_is_there_is_left_alone(world: World) -> None:
    loop = world.loop()
    loop.run_once()
    world.away, world.now = {"hello"}, 60
    world.calls.clear()
    beat_alone(loop)
    assert world.calls == ["hello", "scan"]


@pytest.mark.parametrize("found", [Report(()), FAILED, seen("another")], ids=str)
def test_what_is_gone_is_reserved_once(world: World, found: Report) -> None:
    loop = world.loop()
    loop.run_once()
    world.away, world.found = {"hello"}, found
    for now in (60, 120, 180):
        world.now = now
        beat_alone(loop)
    assert world.withheld == [provider_uuid(UNIT)]
    assert "publish" not in world.taken()[5:]


def test_what_comes_back_stays_reserved_until_it_is_reported(world: World) -> None:
    loop = world.loop()
    loop.run_once()
    world.away, world.found, world.now = {"hello"}, seen(), 60
    beat_alone(loop)
    world.found, world.now = seen(UNIT), 120
    world.taken()
    beat_alone(loop)
    assert world.taken() == ["hello"]
    world.away = set()
    world.calls.clear()
    loop.run_once()
    # Looked at anew, though nothing is due, and compared with all that Placement shows.
    assert world.calls == ["hello", "scan", "tend", "check"]


def test_the_final_state_is_reported(world: World) -> None:
    loop = world.loop()
    loop.run_once()
    world.away, world.now = {"hello"}, 1
    beat_alone(loop)
    world.away, world.found = set(), seen(UNIT, "news")
    world.taken()
    loop.run_once()
    assert world.taken() == ["hello", "report", "desired", "check"]


def test_a_provider_that_placement_refuses_is_another_s(world: World) -> None:
    world.believed = {UNIT: "claimed by another"}
    loop = world.loop()
    loop.run_once()
    world.away, world.found, world.now = {"hello"}, seen(), 60
    beat_alone(loop)
    assert world.withheld == []


def test_it_is_tried_again_while_placement_is_away_too(world: World) -> None:
    loop = world.loop()
    loop.run_once()
    world.away, world.found, world.now = {"hello", "withhold"}, seen(), 60
    beat_alone(loop)
    assert world.withheld == []
    world.away = {"hello"}
    beat_alone(loop)
    assert world.withheld == [provider_uuid(UNIT)]


def test_after_a_restart_the_cache_tells_what_is_kept_and_what_is_gone(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.loop().run_once()
    world.away = {"hello"}
    beat_alone(world.loop())
    assert world.context is not None
    assert world.context.managed_deployables == {UNIT}
    world.found = seen()
    beat_alone(world.loop())
    assert world.withheld == [provider_uuid(UNIT)]
    assert f"{UNIT} was there when this host was last reported" in caplog.text


def test_the_cache_is_not_believed_once_the_conductor_answers(world: World) -> None:
    world.loop().run_once()
    world.taken()
    world.loop().run_once()
    assert world.taken() == ["hello", "desired", "check"]


def test_who_knows_nothing_yet_does_not_look(world: World) -> None:
    world.away = {"hello"}
    beat_alone(world.loop())
    assert world.context is None


def test_a_host_that_is_another_agent_s_is_left_alone(world: World) -> None:
    loop = world.loop()
    loop.run_once()

    def refuse(hello: Hello) -> Welcome:
        raise exception.StaleEpoch(epoch=1, binary="cyborg-agent", host="host", current=2)

    object.__setattr__(world, "hello", refuse)
    world.found, world.now = seen(), 60
    with pytest.raises(exception.StaleEpoch):
        loop.run_once()
    assert world.withheld == []


def test_what_is_prepared_is_compared_when_that_is_due(world: World) -> None:
    loop = world.loop()
    for now, found, times in (
        (0, seen(UNIT), 1),
        (60, seen(UNIT), 0),
        (120, seen(UNIT, "news"), 1),
        (719, seen(UNIT, "news"), 0),
        (720, seen(UNIT, "news"), 1),
    ):
        world.now, world.found = now, found
        world.calls.clear()
        loop.run_once()
        assert world.calls.count("tend") == times, now


def test_holdings_that_cannot_be_had_stop_nothing_else(world: World) -> None:
    world.away = {"tend"}
    loop = world.loop()
    beat_alone(loop)
    assert world.taken() == ["hello", "desired", "report", "desired", "publish"]
    world.calls.clear()
    beat_alone(loop)
    assert world.calls == ["hello", "tend"]
    world.away = set()
    world.calls.clear()
    loop.run_once()
    loop.run_once()
    assert world.calls == ["hello", "tend", "hello"]
