# SPDX-License-Identifier: Apache-2.0
"""Several providers of one host: what becomes of one does not keep another."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import pytest

from cyborg import exception
from cyborg.agent.providers import Providers
from cyborg.agent.schedule import Schedule, Step
from cyborg.clients.placement import Node, Placement
from cyborg.clients.placement_sync import Publisher
from cyborg.model.provider import (
    Provider,
    ProviderOutcome,
    ProviderTree,
    PublishResult,
    Verdict,
    provider_uuid,
)
from cyborg.model.report import Desired, ObsoleteProvider
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.verbs import SendProvidersRemoved, SendPublished

NAMES = ("a", "b", "c")
TREE = ProviderTree(
    "node-1",
    tuple(Provider(provider_uuid(name), name, "FPGA", 1, 0, frozenset()) for name in NAMES),
)
AWAY = exception.Unavailable(peer="Placement", reason="away", http=503)


class Host:
    """The providers of a host, and its peers: a conductor, and Placement with a publisher."""

    def __init__(self) -> None:
        self.verdicts: dict[str, Verdict] = {}
        #: The errors of reservations and removals, by name.
        self.errors: dict[str, exception.CyborgError] = {}
        self.nodes: dict[str, Node] = {}
        self.calls: list[str] = []
        self.told: list[SendPublished] = []
        self.removed: list[Sequence[str]] = []
        schedule = Schedule(scan=60, full_check=600, clock=lambda: 0.0)
        self.providers = Providers(
            host="host",
            names=("node-1",),
            schedule=schedule,
            conductor=cast(ConductorClient, self),
            placement=cast(Placement, self),
            publisher=cast(Publisher, self),
        )
        assert self.providers.find_root() is None
        self.providers.read_claims()
        with schedule.run(Step.CHECK_PLACEMENT):
            pass

    def publish_now(self, generation: int = 1, *obsolete: str) -> Desired:
        providers = tuple(ObsoleteProvider(provider_uuid(name), name) for name in obsolete)
        desired = Desired(generation, TREE, obsolete_providers=providers)
        return self.providers.publish(desired, 1, known_before=True)

    def taken(self) -> list[str]:
        calls, self.calls = self.calls, []
        return calls

    # The conductor.

    @property
    def refusals(self) -> list[Mapping[str, str]]:
        return [command.refused for command in self.told]

    def request(self, command: SendPublished | SendProvidersRemoved) -> None:
        if isinstance(command, SendPublished):
            self.told.append(command)
        else:
            self.removed.append(command.names)

    # Placement.

    def account_roles(self) -> tuple[str, ...]:
        return ()

    def tree(self, root: str) -> dict[str, Node]:
        return self.nodes

    def find_root(self, names: Sequence[str]) -> tuple[str, str]:
        return "root", names[0]

    def publish(self, tree: ProviderTree) -> PublishResult:
        self.calls.append("publish")
        if "tree" in self.errors:
            raise self.errors["tree"]
        outcomes = (
            ProviderOutcome(one.uuid, one.name, verdict, "" if verdict == "published" else "why")
            for one in tree.providers
            for verdict in [self.verdicts.get(one.name, Verdict.PUBLISHED)]
        )
        return PublishResult("root", tuple(outcomes))

    def recall(self, tree: ProviderTree) -> None:
        pass

    def reserve(self, uuids: Iterable[str]) -> list[str]:
        reserved = []
        for uuid in uuids:
            self._change("reserve", uuid)
            reserved.append(uuid)
        return reserved

    def retire(self, uuid: str, *, root: str) -> None:
        self._change("retire", uuid)

    def _change(self, verb: str, uuid: str) -> None:
        (name,) = (name for name in (*NAMES, "x", "y") if provider_uuid(name) == uuid)
        self.calls.append(f"{verb} {name}")
        if name in self.errors:
            raise self.errors[name]


@pytest.fixture
def host() -> Host:
    return Host()


def test_each_missing_provider_is_reserved_once_although_one_attempt_broke_half_way(
    host: Host,
) -> None:
    desired = Desired(1, TREE)
    order = sorted(NAMES, key=provider_uuid)
    host.errors = {order[1]: AWAY}
    host.providers.reserve_missing(desired, {"other"})
    # The first one was reserved, and it is not known whether the second one was.
    assert host.taken() == [f"reserve {name}" for name in order[:2]]
    host.errors = {}
    host.providers.reserve_missing(desired, {"other"})
    assert host.taken() == [f"reserve {name}" for name in order]
    host.providers.reserve_missing(desired, {"other"})
    assert host.taken() == []


def test_provider_that_is_lost_later_is_reserved_as_well(host: Host) -> None:
    desired = Desired(1, TREE)
    host.providers.reserve_missing(desired, {"a", "b"})
    assert host.taken() == ["reserve c"]
    host.providers.reserve_missing(desired, {"a"})
    assert host.taken() == ["reserve b"]


def test_providers_that_either_side_knows_as_refused_are_not_reserved(host: Host) -> None:
    """The conductor may not have been told of the last refusal."""
    host.verdicts = {"b": Verdict.REFUSED}
    host.publish_now()
    host.providers.reserve_missing(Desired(1, TREE, refused={"a": "why"}), set())
    assert host.taken() == ["publish", "reserve c"]


def test_tree_is_published_again_while_one_of_its_providers_has_failed(host: Host) -> None:
    host.verdicts = {"c": Verdict.FAILED}
    for _ in range(2):
        host.publish_now()
        assert host.taken() == ["publish"]
    host.verdicts = {}
    for published in (["publish"], []):
        host.publish_now()
        assert host.taken() == published
    assert host.refusals == [{}, {}]


def test_every_refused_provider_is_told_to_the_conductor(host: Host) -> None:
    host.verdicts = {"b": Verdict.REFUSED, "c": Verdict.REFUSED}
    host.errors = {"x": exception.Conflict(reason="it is allocated")}
    host.publish_now(1, "x")
    reason = "it cannot be removed: it is allocated"
    assert [list(told) for told in host.refusals] == [["b", "c", "x"]]
    assert host.refusals[0]["x"] == reason
    host.verdicts = {"c": Verdict.REFUSED}
    host.publish_now(2, "x")
    assert host.refusals[1:] == [{"c": "why", "x": reason}]


def test_conductor_is_told_what_placement_has_when_that_changes(host: Host) -> None:
    host.verdicts = {"b": Verdict.REFUSED, "c": Verdict.FAILED}
    host.publish_now()
    host.verdicts = {}
    for _ in range(2):
        host.publish_now(2)
    # What was published is still there when a later attempt fails.
    host.verdicts = {"a": Verdict.FAILED}
    host.publish_now(3)
    assert [command.published for command in host.told] == [
        {"a": [1, 0]},
        {"a": [1, 0], "b": [1, 0], "c": [1, 0]},
    ]


def test_agent_that_conductor_knows_tells_nothing_after_a_restart(host: Host) -> None:
    published = {name: [1, 0] for name in NAMES}
    host.providers.load(Desired(1, TREE, published=published))
    host.publish_now()
    assert host.told == []
    # The conductor has reserved the units while the agent was away.
    host.providers.load(Desired(2, TREE, published=published | {"b": [1, 1]}))
    host.publish_now(2)
    assert [command.published for command in host.told] == [published]


def test_error_of_placement_lasts_until_all_is_published(host: Host) -> None:
    assert host.providers.error == ""
    host.errors = {"tree": AWAY}
    with pytest.raises(exception.Unavailable):
        host.publish_now()
    assert host.providers.error == "Placement is not available: away"
    host.errors = {}
    host.verdicts = {"b": Verdict.FAILED, "c": Verdict.REFUSED}
    host.publish_now()
    assert host.providers.error == "b: why"
    host.errors = {"x": AWAY}
    host.verdicts = {}
    with pytest.raises(exception.Unavailable):
        host.publish_now(1, "x")
    assert host.providers.error == str(AWAY)
    host.errors = {}
    host.publish_now(1, "x")
    assert host.providers.error == ""


def test_providers_are_removed_in_the_order_of_the_conductor(host: Host) -> None:
    """A provider with children cannot be removed before them."""
    assert host.publish_now(1, "y", "x").obsolete_providers == ()
    assert host.taken() == ["publish", "retire y", "retire x"]
    assert host.removed == [["y", "x"]]


def test_provider_that_stays_keeps_no_other_one_and_is_tried_again(host: Host) -> None:
    host.errors = {"y": exception.Conflict(reason="it is allocated")}
    desired = host.publish_now(1, "y", "x")
    assert [provider.name for provider in desired.obsolete_providers] == ["y", "x"]
    assert host.removed == [["x"]]
    host.errors = {}
    assert host.publish_now(2, "y").obsolete_providers == ()
    assert host.removed[1:] == [["y"]]


def test_removal_that_broke_half_way_is_told_when_it_is_complete(host: Host) -> None:
    host.errors = {"x": AWAY}
    with pytest.raises(exception.Unavailable):
        host.publish_now(1, "y", "x")
    host.errors = {}
    host.publish_now(1, "y", "x")
    assert host.taken() == ["publish", "retire y", "retire x"] * 2
    assert host.removed == [["y", "x"]]


def test_claims_of_the_compute_whose_name_begins_another_name_are_its_own() -> None:
    host = Host()
    names = ("node-1", "node-1_0000:81:00.0", "node-10_0000:82:00.0", "node-1_0000:83:00.0")
    ours = "node-1_0000:80:00.0"
    nodes: list[Any] = [Node(provider_uuid(ours), ours, 1, "root", "root")]
    nodes += [Node(f"n{index}", name, 1, "root", "root") for index, name in enumerate(names)]
    providers = Providers(
        host="host",
        names=("node-1",),
        schedule=Schedule(scan=60, full_check=600, clock=lambda: 0.0),
        conductor=cast(ConductorClient, host),
        placement=cast(Placement, host),
        publisher=cast(Publisher, host),
    )
    host.nodes = {node.uuid: node for node in nodes}
    providers.find_root()
    providers.read_claims()
    assert list(providers.claims) == ["0000:81:00.0", "0000:83:00.0"]
