# SPDX-License-Identifier: Apache-2.0
"""An agent without a conductor scans, reserves missing providers, and offers nothing new."""

from pathlib import Path

import pytest

from cyborg import exception
from cyborg.agent.state_store import StateStore
from cyborg.model.provider import provider_uuid
from cyborg.model.report import DriverReport, DriverState, Report
from cyborg.tests.unit.agent.fake_peers import UNIT, FakeAgent, FakePeers, report_of

FAILED = Report((DriverReport("d", DriverState.FAILED, error="broken"),))


@pytest.fixture
def peers(tmp_path: Path) -> FakePeers:
    return FakePeers(store=StateStore(tmp_path, "host"))


def run_disconnected(agent: FakeAgent) -> None:
    with pytest.raises(exception.Unavailable):
        agent.run_once()


@pytest.mark.parametrize("hardware", [Report(()), FAILED, report_of("another")], ids=str)
def test_a_missing_provider_is_reserved_once(peers: FakePeers, hardware: Report) -> None:
    agent = peers.agent()
    agent.run_once()
    peers.away, peers.hardware, peers.now = {"heartbeat", "reserve"}, hardware, 30
    run_disconnected(agent)
    assert peers.reserved == []
    peers.away = {"heartbeat"}
    for now in (60, 120, 180):
        peers.now = now
        run_disconnected(agent)
    assert peers.reserved == [provider_uuid(UNIT)]
    assert "publish" not in peers.take_calls()[5:]


@pytest.mark.parametrize("refused", [False, True])
def test_a_provider_that_is_there_or_refused_is_not_reserved(
    peers: FakePeers, refused: bool
) -> None:
    peers.refused = {UNIT: "claimed by another"} if refused else {}
    agent = peers.agent()
    agent.run_once()
    peers.away, peers.now = {"heartbeat"}, 60
    peers.hardware = report_of() if refused else peers.hardware
    peers.calls.clear()
    run_disconnected(agent)
    assert peers.calls == ["heartbeat", "scan"]
    # What has changed is reported after a reconnect, and after a takeover nothing is done.
    peers.away, peers.hardware, peers.refused = set(), report_of(UNIT, "news"), {}
    peers.take_calls()
    agent.run_once()
    assert peers.take_calls() == ["heartbeat", "report", "desired", "check"]
    peers.supersede()
    peers.hardware, peers.now = report_of(), 120
    with pytest.raises(exception.StaleEpoch):
        agent.run_once()
    assert peers.reserved == []


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


def test_a_restarted_agent_finds_missing_providers_with_its_cache(
    peers: FakePeers, caplog: pytest.LogCaptureFixture
) -> None:
    peers.away = {"heartbeat"}
    run_disconnected(peers.agent())
    # Without a cache it does not scan.
    assert "scan" not in peers.calls
    peers.away = set()
    peers.agent().run_once()
    peers.take_calls()
    # The cache is not used when the conductor answers.
    peers.agent().run_once()
    assert peers.take_calls() == ["heartbeat", "desired", "check"]
    peers.away = {"heartbeat"}
    peers.calls.clear()
    run_disconnected(peers.agent())
    assert "scan" in peers.calls
    assert peers.scan is not None
    assert peers.scan.managed_deployables == {UNIT}
    peers.hardware = report_of()
    run_disconnected(peers.agent())
    assert peers.reserved == [provider_uuid(UNIT)]
    assert f"Deployable {UNIT} of the last report is missing on host host" in caplog.text


def test_prepared_units_are_compared_after_a_report_and_when_it_is_due(peers: FakePeers) -> None:
    agent = peers.agent()
    for now, hardware, times in (
        (0, report_of(UNIT), 1),
        (59, report_of(UNIT), 0),
        (60, report_of(UNIT), 0),
        (120, report_of(UNIT, "news"), 1),
        (719, report_of(UNIT, "news"), 0),
        (720, report_of(UNIT, "news"), 1),
    ):
        peers.now, peers.hardware = now, hardware
        peers.calls.clear()
        agent.run_once()
        assert peers.calls.count("sync") == times, now
        assert peers.calls.count("scan") == (now not in (59, 720)), now


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
