# SPDX-License-Identifier: Apache-2.0
"""The agent's rounds: what is sent when, and what happens while somebody is away."""

import pytest

from cyborg import exception
from cyborg.clients.placement import Node
from cyborg.model.provider import Verdict, provider_uuid
from cyborg.model.report import DriverReport, DriverState, Hello, Report, Welcome
from cyborg.tests.unit.agent.world import World


@pytest.fixture
def world() -> World:
    return World()


def test_the_first_rounds(world: World) -> None:
    loop = world.loop()
    loop.run_once()
    assert world.taken() == ["hello", "desired", "report", "desired", "publish"]
    loop.run_once()
    assert world.taken() == ["hello"]
    assert [one.epoch for one in world.hellos] == [None, 1]
    assert {one.provider_names for one in world.hellos} == {("compute",)}


def test_a_restart_checks_what_it_published_in_an_earlier_life(world: World) -> None:
    world.loop().run_once()
    world.taken()
    world.loop().run_once()
    assert world.taken() == ["hello", "desired", "check"]


def test_it_looks_at_the_hardware_when_that_is_due(world: World) -> None:
    loop = world.loop()
    for now, scans in ((0, 1), (59, 0), (60, 1), (61, 0), (120, 1)):
        world.now = now
        world.calls.clear()
        loop.run_once()
        assert world.calls.count("scan") == scans, now


def test_only_news_are_reported(world: World) -> None:
    loop = world.loop()
    loop.run_once()
    world.taken()
    world.now = 60
    loop.run_once()
    assert world.taken() == ["hello"]
    world.now, world.found = 120, Report((DriverReport("d", DriverState.READY),))
    loop.run_once()
    assert world.taken() == ["hello", "report", "desired", "publish"]
    world.digest = "of a database that was set back"
    loop.run_once()
    assert world.taken() == ["hello", "report", "desired", "publish"]


def test_what_operators_want_is_fetched_and_published(world: World) -> None:
    loop = world.loop()
    loop.run_once()
    world.taken()
    world.generation += 1
    loop.run_once()
    assert world.taken() == ["hello", "desired", "publish"]


def test_a_wish_that_is_as_before_means_that_placement_is_not(world: World) -> None:
    world.units = 1
    loop = world.loop()
    loop.run_once()
    world.taken()
    world.generation += 1
    loop.run_once()
    assert world.taken() == ["hello", "desired", "check"]


def test_all_of_placement_is_checked_when_that_is_due(world: World) -> None:
    loop = world.loop()
    loop.run_once()
    world.taken()
    world.now = 599
    loop.run_once()
    assert world.taken() == ["hello"]
    world.now = 600
    loop.run_once()
    assert world.taken() == ["hello", "check"]


def test_without_placement_it_reports(world: World) -> None:
    world.away = {"find_root"}
    loop = world.loop()
    with pytest.raises(exception.Unavailable):
        loop.run_once()
    assert world.taken() == ["hello", "desired", "report", "desired"]
    assert list(world.hellos[-1].provider_names) == ["fqdn", "host"]
    world.away = set()
    loop.run_once()
    assert world.taken() == ["hello", "check"]
    assert list(world.hellos[-1].provider_names) == ["compute"]


def test_placement_that_goes_away_is_published_to_when_it_is_back(world: World) -> None:
    loop = world.loop()
    loop.run_once()
    world.taken()
    world.away, world.generation = {"publish"}, world.generation + 1
    for _ in range(2):
        with pytest.raises(exception.Unavailable):
            loop.run_once()
    world.away = set()
    world.taken()
    loop.run_once()
    assert world.taken() == ["hello", "publish"]


def test_without_a_conductor_nothing_is_published(world: World) -> None:
    loop = world.loop()
    loop.run_once()
    world.taken()
    world.away, world.now = {"hello"}, 700
    with pytest.raises(exception.Unavailable):
        loop.run_once()
    assert world.taken() == ["hello"]
    world.away = set()
    loop.run_once()
    assert world.taken() == ["hello", "check"]


def test_a_report_that_got_lost_is_sent_again(world: World) -> None:
    world.away = {"report"}
    loop = world.loop()
    with pytest.raises(exception.Unavailable):
        loop.run_once()
    world.away = set()
    world.taken()
    loop.run_once()
    assert world.taken()[:2] == ["hello", "report"]


def test_what_placement_refuses_is_told_once(world: World) -> None:
    world.verdict(Verdict.REFUSED, "claimed by another")
    loop = world.loop()
    loop.run_once()
    loop.run_once()
    assert world.told == [{"unit": "claimed by another"}]
    world.verdicts.clear()
    world.generation += 1
    loop.run_once()
    assert world.told == [{"unit": "claimed by another"}, {}]


def test_what_was_refused_in_an_earlier_life_is_told_when_it_is_over(world: World) -> None:
    world.verdict(Verdict.REFUSED, "claimed by another")
    world.loop().run_once()
    world.loop().run_once()
    assert world.told == [{"unit": "claimed by another"}]
    world.verdicts.clear()
    world.loop().run_once()
    assert world.told[1:] == [{}]


def test_what_placement_could_not_do_is_tried_each_time(world: World) -> None:
    world.verdict(Verdict.FAILED, "for now")
    loop = world.loop()
    loop.run_once()
    world.taken()
    loop.run_once()
    assert world.taken() == ["hello", "publish"]
    assert world.told == []


def test_an_epoch_that_is_over_is_not_published_for(world: World) -> None:
    loop = world.loop()
    loop.run_once()
    world.taken()
    world.generation += 1
    stale = exception.StaleEpoch(epoch=1, binary="cyborg-agent", host="host", current=2)

    def refuse(hello: Hello) -> Welcome:
        raise stale

    object.__setattr__(world, "hello", refuse)
    with pytest.raises(exception.StaleEpoch):
        loop.run_once()
    assert world.taken() == []


def test_drivers_hear_what_nova_claims_and_what_is_kept(world: World) -> None:
    ours = "compute_0000:82:00.0"
    world.tree_nodes = {
        one.uuid: one
        for one in (
            Node("n1", "compute", 1, None, "n1"),
            Node("n2", "compute_0000:81:00.0", 1, "n1", "n1"),
            Node(provider_uuid(ours), ours, 1, "n1", "n1"),
            Node("n4", "compute_nothing", 1, "n1", "n1"),
            Node("n5", "other_0000:83:00.0", 1, "n1", "n1"),
        )
    }
    world.loop().run_once()
    assert world.context is not None
    assert list(world.context.claims) == ["0000:81:00.0"]
    assert "Nova" in world.context.claims["0000:81:00.0"]
    assert world.context.managed_deployables == {"unit"}


def test_what_the_conductor_does_not_keep_is_said(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.refused_by_conductor = {"unit": "it is another host's"}
    world.loop().run_once()
    assert "unit: it is another host's" in caplog.text


def test_what_is_given_up_leaves_placement_and_is_told(world: World) -> None:
    loop = world.loop()
    world.retiring = "child", "parent"
    loop.run_once()
    assert world.taken()[-4:] == ["publish", "retire child", "retire parent", "retired"]
    world.now = 600
    loop.run_once()
    assert world.taken() == ["hello", "check"]


@pytest.mark.parametrize(
    "reason",
    [
        exception.Conflict(reason="it is allocated"),
        exception.Unavailable(peer="Placement", reason="a fault", http=500),
    ],
    ids=["allocated", "fault"],
)
def test_what_cannot_leave_keeps_nothing_else(world: World, reason: Exception) -> None:
    loop = world.loop()
    world.retiring, world.stays = ("one", "two"), {"one": reason}
    loop.run_once()
    assert world.taken()[-4:] == ["retire one", "retire two", "retired", "published"]
    assert world.told == [{"one": f"it cannot be removed: {reason}"}]
    loop.run_once()
    assert world.taken() == ["hello"]
    world.now, world.stays, world.retiring = 600, {}, ("one", "two")
    loop.run_once()
    assert "retired" in world.taken()
    assert world.told[1:] == [{}]


def test_what_was_not_heard_is_told_again(world: World) -> None:
    loop = world.loop()
    world.retiring, world.away = ("one",), {"retired"}
    with pytest.raises(exception.Unavailable):
        loop.run_once()
    world.away = set()
    world.taken()
    loop.run_once()
    assert world.taken() == ["hello", "publish", "retire one", "retired"]
    assert not world.retiring


def test_a_refusal_that_was_not_heard_is_told_again(world: World) -> None:
    world.verdict(Verdict.REFUSED, "claimed by another")
    world.away = {"published"}
    loop = world.loop()
    with pytest.raises(exception.Unavailable):
        loop.run_once()
    world.away = set()
    loop.run_once()
    assert world.told == [{"unit": "claimed by another"}]


def test_a_placement_that_goes_away_keeps_what_is_given_up(world: World) -> None:
    loop = world.loop()
    away = exception.Unavailable(peer="Placement", reason="away", http=503)
    world.retiring, world.stays = ("one",), {"one": away}
    with pytest.raises(exception.Unavailable):
        loop.run_once()
    world.stays = {}
    loop.run_once()
    assert not world.retiring
