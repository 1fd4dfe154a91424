# SPDX-License-Identifier: Apache-2.0
"""The agent's rounds: what is sent when, and what happens while somebody is away."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from cyborg import exception
from cyborg.agent.heart import Heart, Identity, Intervals
from cyborg.agent.reporter import Reporter
from cyborg.clients.placement import Node, Placement
from cyborg.clients.reconcile import Publisher
from cyborg.drivers.base import Surroundings
from cyborg.model.provider import (
    Provider,
    ProviderOutcome,
    ProviderTree,
    PublishResult,
    Verdict,
    provider_uuid,
)
from cyborg.model.report import (
    Acknowledged,
    Desired,
    DriverReport,
    DriverState,
    Hello,
    Report,
    Welcome,
)
from cyborg.rpc.conductor import ReportClient

AWAY = exception.Unavailable(peer="somebody", reason="away")


@dataclass
class World:
    """Conductor, Placement, drivers and clock in one; ``calls`` are in the order they came."""

    calls: list[str] = field(default_factory=list)
    now: float = 0.0
    #: What is away: hello, report, desired, find_root, tree, publish.
    away: set[str] = field(default_factory=set)
    epoch: int = 1
    digest: str | None = None
    generation: int = 1
    #: How many units are desired; None: other ones in each generation.
    units: int | None = None
    believed: dict[str, str] = field(default_factory=dict)
    verdicts: dict[str, ProviderOutcome] = field(default_factory=dict)
    found: Report = field(default_factory=lambda: Report(()))
    tree_nodes: dict[str, Node] = field(default_factory=dict)
    surroundings: Surroundings | None = None
    hellos: list[Hello] = field(default_factory=list)
    told: list[dict[str, str]] = field(default_factory=list)
    refused_by_conductor: dict[str, str] = field(default_factory=dict)

    def note(self, call: str) -> None:
        self.calls.append(call)
        if call in self.away:
            raise AWAY

    def taken(self) -> list[str]:
        """The calls since the last look, those that only read Placement left out."""
        calls, self.calls = self.calls, []
        return [one for one in calls if one not in ("find_root", "tree", "scan")]

    # The conductor.

    def hello(self, hello: Hello) -> Welcome:
        self.hellos.append(hello)
        self.note("hello")
        return Welcome(self.epoch, self.digest, self.generation)

    def report(self, host: str, epoch: int, report: Report) -> Acknowledged:
        assert (host, epoch) == ("host", self.epoch)
        self.note("report")
        self.digest = report.digest()
        self.generation += 1
        return Acknowledged(self.generation, self.refused_by_conductor)

    def desired(self, host: str, epoch: int) -> Desired:
        assert (host, epoch) == ("host", self.epoch)
        self.note("desired")
        total = self.generation if self.units is None else self.units
        unit = Provider(provider_uuid("unit"), "unit", "FPGA", total, 0, frozenset())
        return Desired(self.generation, ProviderTree("compute", (unit,)), self.believed)

    def published(self, host: str, epoch: int, refused: dict[str, str]) -> None:
        self.note("published")
        self.told.append(refused)
        self.believed = refused

    # Placement.

    def find_root(self, names: Any) -> tuple[str, str]:
        self.note("find_root")
        return "root", "compute"

    def tree(self, root: str) -> dict[str, Node]:
        self.note("tree")
        return self.tree_nodes

    def publish(self, tree: ProviderTree) -> PublishResult:
        self.note("publish")
        return self._result(tree)

    def check(self, tree: ProviderTree, listing: Mapping[str, Node] | None = None) -> PublishResult:
        self.note("check")
        return self._result(tree)

    def _result(self, tree: ProviderTree) -> PublishResult:
        good = (ProviderOutcome(one.uuid, one.name, Verdict.PUBLISHED) for one in tree.providers)
        return PublishResult("root", tuple(self.verdicts.get(one.name, one) for one in good))

    # The drivers.

    def scan(self, surroundings: Surroundings) -> Report:
        self.calls.append("scan")
        self.surroundings = surroundings
        return self.found

    def heart(self) -> Heart:
        """A new agent in this world."""
        return Heart(
            identity=Identity("host", ("fqdn", "host"), "1", "topic@host"),
            intervals=Intervals(scan=60, full_check=600),
            reporter=cast(Reporter, self),
            conductor=cast(ReportClient, self),
            placement=cast(Placement, self),
            publisher=cast(Publisher, self),
            clock=lambda: self.now,
        )

    def verdict(self, verdict: Verdict, reason: str) -> None:
        """What Placement says of the unit from now on."""
        self.verdicts["unit"] = ProviderOutcome("u", "unit", verdict, reason)


@pytest.fixture
def world() -> World:
    return World()


def test_the_first_rounds(world: World) -> None:
    heart = world.heart()
    heart.beat()
    assert world.taken() == ["hello", "desired", "report", "desired", "publish"]
    heart.beat()
    assert world.taken() == ["hello"]
    assert [one.epoch for one in world.hellos] == [None, 1]
    assert {one.provider_names for one in world.hellos} == {("compute",)}


def test_a_restart_checks_what_it_published_in_an_earlier_life(world: World) -> None:
    world.heart().beat()
    world.taken()
    world.heart().beat()
    assert world.taken() == ["hello", "desired", "check"]


def test_it_looks_at_the_hardware_when_that_is_due(world: World) -> None:
    heart = world.heart()
    for now, scans in ((0, 1), (59, 0), (60, 1), (61, 0), (120, 1)):
        world.now = now
        world.calls.clear()
        heart.beat()
        assert world.calls.count("scan") == scans, now


def test_only_news_are_reported(world: World) -> None:
    heart = world.heart()
    heart.beat()
    world.taken()
    world.now = 60
    heart.beat()
    assert world.taken() == ["hello"]
    world.now, world.found = 120, Report((DriverReport("d", DriverState.READY),))
    heart.beat()
    assert world.taken() == ["hello", "report", "desired", "publish"]
    world.digest = "of a database that was set back"
    heart.beat()
    assert world.taken() == ["hello", "report", "desired", "publish"]


def test_what_operators_want_is_fetched_and_published(world: World) -> None:
    heart = world.heart()
    heart.beat()
    world.taken()
    world.generation += 1
    heart.beat()
    assert world.taken() == ["hello", "desired", "publish"]


def test_a_wish_that_is_as_before_means_that_placement_is_not(world: World) -> None:
    world.units = 1
    heart = world.heart()
    heart.beat()
    world.taken()
    world.generation += 1
    heart.beat()
    assert world.taken() == ["hello", "desired", "check"]


def test_all_of_placement_is_checked_when_that_is_due(world: World) -> None:
    heart = world.heart()
    heart.beat()
    world.taken()
    world.now = 599
    heart.beat()
    assert world.taken() == ["hello"]
    world.now = 600
    heart.beat()
    assert world.taken() == ["hello", "check"]


def test_without_placement_it_reports(world: World) -> None:
    world.away = {"find_root"}
    heart = world.heart()
    with pytest.raises(exception.Unavailable):
        heart.beat()
    assert world.taken() == ["hello", "desired", "report", "desired"]
    assert list(world.hellos[-1].provider_names) == ["fqdn", "host"]
    world.away = set()
    heart.beat()
    assert world.taken() == ["hello", "check"]
    assert list(world.hellos[-1].provider_names) == ["compute"]


def test_placement_that_goes_away_is_published_to_when_it_is_back(world: World) -> None:
    heart = world.heart()
    heart.beat()
    world.taken()
    world.away, world.generation = {"publish"}, world.generation + 1
    for _ in range(2):
        with pytest.raises(exception.Unavailable):
            heart.beat()
    world.away = set()
    world.taken()
    heart.beat()
    assert world.taken() == ["hello", "publish"]


def test_without_a_conductor_nothing_is_published(world: World) -> None:
    heart = world.heart()
    heart.beat()
    world.taken()
    world.away, world.now = {"hello"}, 700
    with pytest.raises(exception.Unavailable):
        heart.beat()
    assert world.taken() == ["hello"]
    world.away = set()
    heart.beat()
    assert world.taken() == ["hello", "check"]


def test_a_report_that_got_lost_is_sent_again(world: World) -> None:
    world.away = {"report"}
    heart = world.heart()
    with pytest.raises(exception.Unavailable):
        heart.beat()
    world.away = set()
    world.taken()
    heart.beat()
    assert world.taken()[:2] == ["hello", "report"]


def test_what_placement_refuses_is_told_once(world: World) -> None:
    world.verdict(Verdict.REFUSED, "claimed by another")
    heart = world.heart()
    heart.beat()
    heart.beat()
    assert world.told == [{"unit": "claimed by another"}]
    world.verdicts.clear()
    world.generation += 1
    heart.beat()
    assert world.told == [{"unit": "claimed by another"}, {}]


def test_what_was_refused_in_an_earlier_life_is_told_when_it_is_over(world: World) -> None:
    world.verdict(Verdict.REFUSED, "claimed by another")
    world.heart().beat()
    world.heart().beat()
    assert world.told == [{"unit": "claimed by another"}]
    world.verdicts.clear()
    world.heart().beat()
    assert world.told[1:] == [{}]


def test_what_placement_could_not_do_is_tried_each_time(world: World) -> None:
    world.verdict(Verdict.FAILED, "for now")
    heart = world.heart()
    heart.beat()
    world.taken()
    heart.beat()
    assert world.taken() == ["hello", "publish"]
    assert world.told == []


def test_an_epoch_that_is_over_is_not_published_for(world: World) -> None:
    heart = world.heart()
    heart.beat()
    world.taken()
    world.generation += 1
    stale = exception.StaleEpoch(epoch=1, binary="cyborg-agent", host="host", current=2)

    def refuse(hello: Hello) -> Welcome:
        raise stale

    object.__setattr__(world, "hello", refuse)
    with pytest.raises(exception.StaleEpoch):
        heart.beat()
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
    world.heart().beat()
    assert world.surroundings is not None
    assert list(world.surroundings.claims) == ["0000:81:00.0"]
    assert "Nova" in world.surroundings.claims["0000:81:00.0"]
    assert world.surroundings.kept == {"unit"}


def test_what_the_conductor_does_not_keep_is_said(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.refused_by_conductor = {"unit": "it is another host's"}
    world.heart().beat()
    assert "unit: it is another host's" in caplog.text
