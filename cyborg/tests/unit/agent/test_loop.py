# SPDX-License-Identifier: Apache-2.0
"""The runs of the agent's loop: the calls of each run, and what it does while a peer is away."""

import contextlib
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from cyborg import exception
from cyborg.clients.placement import Node
from cyborg.drivers.catalogue import Catalogue
from cyborg.drivers.scan import Scan
from cyborg.model.device import Device, DeviceType
from cyborg.model.health import Condition, DeviceHealth
from cyborg.model.provider import Verdict, provider_uuid
from cyborg.model.report import (
    AgentHeartbeat,
    Desired,
    DriverReport,
    DriverState,
    HeartbeatReply,
    Report,
)
from cyborg.model.work import DiscoveryTask
from cyborg.testing import servers
from cyborg.tests.fixtures.waiting import joined
from cyborg.tests.unit.agent.fake_peers import UNIT, FakePeers, report_of


@pytest.fixture
def peers() -> FakePeers:
    return FakePeers()


def test_the_first_run_reports_and_publishes_and_the_second_only_sends_a_heartbeat(
    peers: FakePeers,
) -> None:
    agent = peers.agent()
    agent.run_once()
    assert peers.take_calls() == ["heartbeat", "desired", "report", "desired", "publish"]
    agent.run_once()
    assert peers.take_calls() == ["heartbeat"]
    assert [heartbeat.epoch for heartbeat in peers.heartbeats] == [None, 1]
    assert {heartbeat.provider_names for heartbeat in peers.heartbeats} == {("compute",)}


@pytest.mark.parametrize(("units", "call"), [(None, "publish"), (1, "check")])
def test_a_new_desired_state_is_fetched_and_published(
    peers: FakePeers, units: int | None, call: str
) -> None:
    """With the same tree it leads to a check of Placement, which is also due every 600 seconds."""
    peers.units = units
    agent = peers.agent()
    agent.run_once()
    peers.take_calls()
    peers.generation += 1
    agent.run_once()
    assert peers.take_calls() == ["heartbeat", "desired", call]
    peers.now = 599
    agent.run_once()
    assert peers.take_calls() == ["heartbeat"]
    peers.now = 1200
    agent.run_once()
    assert peers.take_calls() == ["heartbeat", "check"]


def test_a_report_is_sent_only_when_the_conductor_does_not_have_it(peers: FakePeers) -> None:
    agent = peers.agent()
    agent.run_once()
    peers.take_calls()
    peers.now = 60
    agent.run_once()
    assert peers.take_calls() == ["heartbeat"]
    peers.now, peers.hardware = 120, Report((DriverReport("d", DriverState.READY),))
    agent.run_once()
    assert peers.take_calls() == ["heartbeat", "report", "desired", "publish"]
    peers.digest = "of a restored database"
    agent.run_once()
    assert peers.take_calls() == ["heartbeat", "report", "desired", "publish"]


def test_the_report_is_sent_while_placement_is_away(peers: FakePeers) -> None:
    peers.away = {"find_root"}
    agent = peers.agent()
    with pytest.raises(exception.Unavailable):
        agent.run_once()
    assert peers.take_calls() == ["heartbeat", "desired", "report", "desired"]
    assert list(peers.heartbeats[-1].provider_names) == ["fqdn", "host"]
    peers.away = set()
    agent.run_once()
    assert peers.take_calls() == ["heartbeat", "check"]
    assert list(peers.heartbeats[-1].provider_names) == ["compute"]


def test_a_restarted_agent_sends_the_end_of_a_refusal(peers: FakePeers) -> None:
    peers.set_verdict(Verdict.REFUSED, "claimed by another")
    peers.agent().run_once()
    peers.agent().run_once()
    assert peers.published_refusals == [{"unit": "claimed by another"}]
    peers.verdicts.clear()
    peers.agent().run_once()
    assert peers.published_refusals[1:] == [{}]


@pytest.mark.parametrize(
    ("away", "again"),
    [
        ("report", ["heartbeat", "report", "desired", "publish"]),
        ("publish", ["heartbeat", "publish"]),
        ("published", ["heartbeat", "publish", "published"]),
        ("retire first", ["heartbeat", "publish", "retire first", "providers_removed"]),
        ("providers_removed", ["heartbeat", "publish", "retire first", "providers_removed"]),
    ],
)
def test_what_was_not_answered_is_sent_again(peers: FakePeers, away: str, again: list[str]) -> None:
    peers.away = {away}
    if "retire" in away or "removed" in away:
        peers.retiring = ("first",)
    elif away == "published":
        peers.set_verdict(Verdict.REFUSED, "claimed by another")
    agent = peers.agent()
    with pytest.raises(exception.Unavailable):
        agent.run_once()
    if away == "publish":
        # Also when it was away for several runs.
        peers.away = set()
        agent.run_once()
        peers.away, peers.generation = {"publish"}, peers.generation + 1
        for _ in range(2):
            with pytest.raises(exception.Unavailable):
                agent.run_once()
    peers.away = set()
    peers.take_calls()
    agent.run_once()
    assert peers.take_calls() == again
    assert not peers.retiring
    assert peers.refused == ({UNIT: "claimed by another"} if away == "published" else {})


def test_nothing_is_published_while_the_conductor_is_away(peers: FakePeers) -> None:
    agent = peers.agent()
    agent.run_once()
    peers.take_calls()
    peers.away, peers.now = {"heartbeat"}, 700
    with pytest.raises(exception.Unavailable):
        agent.run_once()
    assert peers.take_calls() == ["heartbeat"]
    peers.away = set()
    agent.run_once()
    assert peers.take_calls() == ["heartbeat", "check"]


def test_a_refusal_and_its_end_are_sent_to_the_conductor_once(peers: FakePeers) -> None:
    peers.set_verdict(Verdict.REFUSED, "claimed by another")
    agent = peers.agent()
    agent.run_once()
    agent.run_once()
    assert peers.published_refusals == [{"unit": "claimed by another"}]
    # What failed for now is published in each run, and no refusal.
    peers.set_verdict(Verdict.FAILED, "for now")
    peers.generation += 1
    for _ in range(2):
        peers.take_calls()
        agent.run_once()
        assert "publish" in peers.take_calls()
    assert peers.published_refusals[1:] == [{}]


def test_a_superseded_agent_publishes_nothing(peers: FakePeers) -> None:
    agent = peers.agent()
    agent.run_once()
    peers.generation += 1
    agent.heartbeats.run_once()

    def scan(scan: Scan) -> list[Device]:
        peers.supersede()
        with pytest.raises(exception.StaleEpoch):
            agent.heartbeats.run_once()
        return []

    object.__setattr__(peers, "discover", scan)
    peers.now = 60
    peers.take_calls()
    agent.loop.run_once()
    assert "publish" not in peers.take_calls()
    agent.loop.run_once()
    with pytest.raises(exception.StaleEpoch):
        agent.run_once()
    assert peers.take_calls() == []


def test_drivers_get_the_claims_of_nova_and_the_desired_providers(
    peers: FakePeers, caplog: pytest.LogCaptureFixture
) -> None:
    ours = "compute_0000:82:00.0"
    peers.tree_nodes = {
        node.uuid: node
        for node in (
            Node("n1", "compute", 1, None, "n1"),
            Node("n2", "compute_0000:81:00.0", 1, "n1", "n1"),
            Node(provider_uuid(ours), ours, 1, "n1", "n1"),
            Node("n4", "compute_nothing", 1, "n1", "n1"),
            Node("n5", "other_0000:83:00.0", 1, "n1", "n1"),
        )
    }
    peers.rejected = {"unit": "it is another host's"}
    peers.agent().run_once()
    assert "Deployable unit of host host refused by the conductor: it is another" in caplog.text
    assert peers.scan is not None
    assert list(peers.scan.claims) == ["0000:81:00.0"]
    assert "Nova" in peers.scan.claims["0000:81:00.0"]
    assert peers.scan.managed_deployables == {"unit"}


def test_facts_of_a_function_are_kept_for_later_scans(peers: FakePeers) -> None:
    peers.machine = servers.bare()
    path = servers.add_function(peers.machine, "0000:18:00.0", "8086:1572:020000")
    peers.machine.add_file(f"{path}/config", bytes.fromhex("8680"))
    calls: list[str] = []
    peers.machine.on_call = calls.append
    agent = peers.agent()
    for _ in range(2):
        agent.run_once()
        assert peers.scan is not None
        [function] = peers.scan.functions.values()
        peers.scan.with_facts(Device("k", DeviceType.NIC, "v", "m", {}, ()), function)
        peers.now += 60
    assert calls.count(f"{path}/config") == 1
    assert calls.count(f"{path}/numa_node") == 2


def test_new_claims_of_nova_are_obeyed_before_anything_is_published(peers: FakePeers) -> None:
    agent = peers.agent()
    agent.run_once()
    peers.now = 599
    agent.run_once()
    # Now the check of Placement is due, the scan is not.
    peers.now = 601
    claim = Node("n2", "compute_0000:81:00.0", 1, "n1", "n1")
    peers.tree_nodes = {"n1": Node("n1", "compute", 1, None, "n1"), "n2": claim}
    peers.calls.clear()
    agent.run_once()
    assert peers.calls.index("scan") < peers.calls.index("check")
    assert peers.scan is not None
    assert list(peers.scan.claims) == ["0000:81:00.0"]
    # The same claims lead to no further scan.
    peers.now = 1202
    agent.run_once()
    peers.calls.clear()
    agent.run_once()
    assert "scan" not in peers.calls


@pytest.mark.parametrize(
    "reason",
    [
        exception.Conflict(reason="it is allocated"),
        exception.Unavailable(peer="Placement", reason="a fault", http=500),
    ],
    ids=["allocated", "fault"],
)
def test_a_provider_that_cannot_be_removed_does_not_keep_the_others(
    peers: FakePeers, reason: Exception
) -> None:
    agent = peers.agent()
    peers.retiring, peers.removal_errors = ("first", "second"), {"first": reason}
    agent.run_once()
    assert peers.take_calls()[-4:] == [
        "retire first",
        "retire second",
        "providers_removed",
        "published",
    ]
    assert peers.published_refusals == [{"first": f"it cannot be removed: {reason}"}]
    agent.run_once()
    assert peers.take_calls() == ["heartbeat"]
    peers.now, peers.removal_errors, peers.retiring = 600, {}, ("first", "second")
    agent.run_once()
    assert "providers_removed" in peers.take_calls()
    assert peers.published_refusals[1:] == [{}]


def test_steps_run_without_a_new_heartbeat(peers: FakePeers) -> None:
    agent = peers.agent()
    agent.run_once()
    peers.take_calls()
    peers.hardware, peers.now = report_of(UNIT, "news"), 60
    agent.loop.run_once()
    assert peers.take_calls() == ["report", "desired", "publish"]
    agent.loop.run_once()
    assert peers.take_calls() == []


def test_a_reload_leads_to_a_scan_without_a_new_heartbeat(peers: FakePeers) -> None:
    agent = peers.agent()
    agent.run_once()
    peers.take_calls()
    peers.hardware = report_of(UNIT, "news")
    agent.loop.run_once()
    assert peers.take_calls() == []
    agent.loop.reload()
    agent.loop.run_once()
    assert peers.take_calls() == ["report", "desired", "publish"]
    agent.loop.run_once()
    assert peers.take_calls() == []


def test_a_reload_reports_the_traits_of_new_rules(peers: FakePeers, tmp_path: Path) -> None:
    peers.read_catalogue = lambda: Catalogue.load([tmp_path])
    agent = peers.agent()
    agent.run_once()
    peers.take_calls()
    rules = tmp_path / "rules.yaml"
    for text in ("- {trait: CUSTOM_A, when: {driver: d}}\n", ""):
        rules.write_text(text)
        agent.loop.run_once()
        assert peers.take_calls() == []
        agent.loop.reload()
        agent.loop.run_once()
        assert peers.take_calls() == ["report", "desired", "publish"]


def test_a_heartbeat_during_a_report_does_not_repeat_the_report(peers: FakePeers) -> None:
    agent = peers.agent()
    agent.run_once()
    peers.hardware, peers.now = report_of(UNIT, "news"), 60
    before = HeartbeatReply(peers.epoch, peers.digest, peers.generation)

    def reply_late(heartbeat: AgentHeartbeat) -> HeartbeatReply:
        agent.loop.run_once()
        return before

    object.__setattr__(peers, "heartbeat", reply_late)
    peers.take_calls()
    agent.heartbeats.run_once()
    assert peers.take_calls() == ["report", "desired", "publish"]
    agent.loop.run_once()
    assert peers.take_calls() == []


def test_a_desired_state_that_a_heartbeat_overtakes_is_fetched_again(peers: FakePeers) -> None:
    """A discovery request that came with the heartbeat needs the newer state."""
    agent = peers.agent()
    agent.run_once()
    fetch = peers.desired

    def answer_late(host: str, epoch: int) -> Desired:
        answer = fetch(host, epoch)
        del peers.__dict__["desired"]
        peers.generation += 1
        agent.heartbeats.run_once()
        return answer

    object.__setattr__(peers, "desired", answer_late)
    peers.generation += 1
    agent.run_once()
    peers.take_calls()
    agent.loop.run_once()
    assert peers.take_calls() == ["desired", "publish"]


def test_a_takeover_counts_while_the_answer_to_a_report_is_noted(peers: FakePeers) -> None:
    agent, threads = peers.agent(), list[threading.Thread]()

    def send_heartbeat() -> None:
        with contextlib.suppress(exception.StaleEpoch):
            agent.heartbeats.run_once()

    @dataclass(frozen=True)
    class Reply(HeartbeatReply):
        def __post_init__(self) -> None:
            if self.digest is not None and not threads:
                peers.supersede()
                threads.append(threading.Thread(target=send_heartbeat))
                threads[0].start()
                threads[0].join(0.2)

    reply = Reply(1, None, peers.generation)
    object.__setattr__(peers, "heartbeat", lambda heartbeat: reply)
    agent.run_once()
    joined(threads[0])
    assert agent.heartbeats.last is None


def test_an_outage_during_a_scan_leads_to_a_complete_comparison(peers: FakePeers) -> None:
    agent = peers.agent()
    agent.run_once()

    def scan(scan: Scan) -> list[Device]:
        peers.away = {"heartbeat"}
        with pytest.raises(exception.Unavailable):
            agent.heartbeats.run_once()
        peers.away = set()
        agent.heartbeats.run_once()
        return []

    object.__setattr__(peers, "discover", scan)
    peers.now = 60
    agent.loop.run_once()
    del peers.__dict__["discover"]
    peers.calls.clear()
    agent.loop.run_once()
    assert peers.calls == ["tree", "scan", "report", "desired", "sync", "check"]


def test_a_discovery_is_answered_after_the_next_heartbeat(peers: FakePeers) -> None:
    agent = peers.agent()
    agent.run_once()
    request = DiscoveryTask("o1", driver=None, agent_epoch=1)
    assert not peers.discoveries.request(request, wake=agent.loop.run_once).done
    agent.run_once()
    assert peers.discoveries.request(request, wake=agent.loop.run_once).done


def test_a_scan_that_does_not_return_is_reported_in_the_heartbeat(peers: FakePeers) -> None:
    agent = peers.agent()
    agent.run_once()

    def scan(scan: Scan) -> list[Device]:
        peers.overdue = "inventory has been in one run for more than 300 seconds"
        agent.heartbeats.run_once()
        peers.overdue = ""
        return []

    object.__setattr__(peers, "discover", scan)
    peers.now = 60
    agent.loop.run_once()
    assert peers.heartbeats[-1].status is DriverState.FAILED
    assert peers.heartbeats[-1].failure == (
        "The hardware is not scanned any more: inventory has been in one run for more than 300 "
        "seconds; discover of driver d has not returned."
    )
    agent.heartbeats.run_once()
    assert (peers.heartbeats[-1].status, peers.heartbeats[-1].failure) == (DriverState.READY, "")


def test_a_fault_is_published_before_a_scan(peers: FakePeers) -> None:
    """A scan waits for the slowest driver, and units of a faulty device must not."""
    agent = peers.agent()
    agent.run_once()
    peers.calls.clear()
    peers.health = (DeviceHealth("0000:00:00.0", Condition.DEAD, ("no answer",)),)
    peers.now = 60
    agent.run_once()
    calls = [call for call in peers.calls if call not in ("find_root", "tree")]
    assert calls == ["heartbeat", "report", "desired", "publish", "scan", "sync"]


def test_health_without_a_scan_is_reported_once(peers: FakePeers) -> None:
    agent = peers.agent()
    agent.run_once()
    peers.calls.clear()
    peers.health = (DeviceHealth("0000:00:00.0", Condition.DEAD, ("no answer",)),)
    agent.loop.run_once()
    agent.loop.run_once()
    assert peers.take_calls() == ["report", "desired", "publish"]
