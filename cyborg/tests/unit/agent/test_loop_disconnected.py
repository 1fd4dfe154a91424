# SPDX-License-Identifier: Apache-2.0
"""An agent without a conductor scans, reserves missing providers, and offers nothing new."""

from pathlib import Path

import pytest

from cyborg import exception
from cyborg.agent.state_store import StateStore
from cyborg.model.provider import provider_uuid
from cyborg.model.report import AgentHeartbeat, DriverReport, DriverState, HeartbeatReply, Report
from cyborg.tests.unit.agent.fake_peers import UNIT, FakeAgent, FakePeers, report_of

FAILED = Report((DriverReport("d", DriverState.FAILED, error="broken"),))


@pytest.fixture
def peers(tmp_path: Path) -> FakePeers:
    return FakePeers(store=StateStore(tmp_path, "host"))


def run_disconnected(agent: FakeAgent) -> None:
    with pytest.raises(exception.Unavailable):
        agent.run_once()


def test_providers_that_the_host_has_are_not_reserved(peers: FakePeers) -> None:
    agent = peers.agent()
    agent.run_once()
    peers.away, peers.now = {"heartbeat"}, 60
    peers.calls.clear()
    run_disconnected(agent)
    assert peers.calls == ["heartbeat", "scan"]


@pytest.mark.parametrize("hardware", [Report(()), FAILED, report_of("another")], ids=str)
def test_a_missing_provider_is_reserved_once(peers: FakePeers, hardware: Report) -> None:
    agent = peers.agent()
    agent.run_once()
    peers.away, peers.hardware = {"heartbeat"}, hardware
    for now in (60, 120, 180):
        peers.now = now
        run_disconnected(agent)
    assert peers.reserved == [provider_uuid(UNIT)]
    assert "publish" not in peers.take_calls()[5:]


def test_a_provider_that_returns_stays_reserved_until_it_is_reported(peers: FakePeers) -> None:
    agent = peers.agent()
    agent.run_once()
    peers.away, peers.hardware, peers.now = {"heartbeat"}, report_of(), 60
    run_disconnected(agent)
    peers.hardware, peers.now = report_of(UNIT), 120
    peers.take_calls()
    run_disconnected(agent)
    assert peers.take_calls() == ["heartbeat"]
    peers.away = set()
    peers.calls.clear()
    agent.run_once()
    # The reconnect makes all steps due.
    assert peers.calls == ["heartbeat", "tree", "scan", "sync", "check"]


def test_the_last_state_is_reported_after_a_reconnect(peers: FakePeers) -> None:
    agent = peers.agent()
    agent.run_once()
    peers.away, peers.now = {"heartbeat"}, 1
    run_disconnected(agent)
    peers.away, peers.hardware = set(), report_of(UNIT, "news")
    peers.take_calls()
    agent.run_once()
    assert peers.take_calls() == ["heartbeat", "report", "desired", "check"]


def test_a_refused_provider_is_not_reserved(peers: FakePeers) -> None:
    peers.refused = {UNIT: "claimed by another"}
    agent = peers.agent()
    agent.run_once()
    peers.away, peers.hardware, peers.now = {"heartbeat"}, report_of(), 60
    run_disconnected(agent)
    assert peers.reserved == []


def test_the_reservation_is_repeated_until_placement_answers(peers: FakePeers) -> None:
    agent = peers.agent()
    agent.run_once()
    peers.away, peers.hardware, peers.now = {"heartbeat", "reserve"}, report_of(), 60
    run_disconnected(agent)
    assert peers.reserved == []
    peers.away = {"heartbeat"}
    run_disconnected(agent)
    assert peers.reserved == [provider_uuid(UNIT)]


def test_a_restarted_agent_finds_missing_providers_with_its_cache(
    peers: FakePeers, caplog: pytest.LogCaptureFixture
) -> None:
    peers.agent().run_once()
    peers.away = {"heartbeat"}
    run_disconnected(peers.agent())
    assert peers.context is not None
    assert peers.context.managed_deployables == {UNIT}
    peers.hardware = report_of()
    run_disconnected(peers.agent())
    assert peers.reserved == [provider_uuid(UNIT)]
    assert f"Deployable {UNIT} of the last report is missing on host host" in caplog.text


def test_the_cache_is_not_used_when_the_conductor_answers(peers: FakePeers) -> None:
    peers.agent().run_once()
    peers.take_calls()
    peers.agent().run_once()
    assert peers.take_calls() == ["heartbeat", "desired", "check"]


def test_a_new_agent_without_a_cache_does_not_scan(peers: FakePeers) -> None:
    peers.away = {"heartbeat"}
    run_disconnected(peers.agent())
    assert peers.context is None


def test_a_superseded_agent_reserves_nothing(peers: FakePeers) -> None:
    agent = peers.agent()
    agent.run_once()

    def refuse(heartbeat: AgentHeartbeat) -> HeartbeatReply:
        raise exception.StaleEpoch(epoch=1, binary="cyborg-agent", host="host", current=2)

    object.__setattr__(peers, "heartbeat", refuse)
    peers.hardware, peers.now = report_of(), 60
    with pytest.raises(exception.StaleEpoch):
        agent.run_once()
    assert peers.reserved == []


def test_prepared_units_are_compared_after_a_report_and_when_it_is_due(peers: FakePeers) -> None:
    agent = peers.agent()
    for now, hardware, times in (
        (0, report_of(UNIT), 1),
        (60, report_of(UNIT), 0),
        (120, report_of(UNIT, "news"), 1),
        (719, report_of(UNIT, "news"), 0),
        (720, report_of(UNIT, "news"), 1),
    ):
        peers.now, peers.hardware = now, hardware
        peers.calls.clear()
        agent.run_once()
        assert peers.calls.count("sync") == times, now


def test_a_failed_comparison_of_units_is_repeated_and_stops_no_other_step(peers: FakePeers) -> None:
    peers.away = {"sync"}
    agent = peers.agent()
    run_disconnected(agent)
    assert peers.take_calls() == ["heartbeat", "desired", "report", "desired", "publish"]
    peers.calls.clear()
    run_disconnected(agent)
    assert peers.calls == ["heartbeat", "sync"]
    peers.away = set()
    peers.calls.clear()
    agent.run_once()
    agent.run_once()
    assert peers.calls == ["heartbeat", "sync", "heartbeat"]
