# SPDX-License-Identifier: Apache-2.0
"""The agent's loop with several drivers, deployables and agents of one host."""

from pathlib import Path

import pytest

from cyborg import exception
from cyborg.agent.state_store import StateStore
from cyborg.drivers.base import CardLayouts
from cyborg.model.report import Desired, RequestedDriver
from cyborg.model.work import DiscoveryTask
from cyborg.tests.unit.agent.fake_peers import UNIT, FakePeers, report_of


class TwoDrivers(FakePeers):
    """Peers that request a second driver, which reports the same hardware."""

    requested = False

    def desired(self, host: str, epoch: int) -> Desired:
        desired = super().desired(host, epoch)
        drivers = (RequestedDriver("e", requested=True),) if self.requested else ()
        return Desired(desired.generation, desired.tree, drivers=drivers)


def test_discovery_counts_what_is_new_of_the_driver_that_was_loaded_only() -> None:
    peers = TwoDrivers()
    agent = peers.agent()
    agent.run_once()
    peers.requested, peers.generation = True, peers.generation + 1
    agent.run_once()
    # The units that are found then are reported, and are nothing new for the discovery.
    peers.hardware = report_of("news")
    peers.now += 60
    agent.run_once()
    request = DiscoveryTask("o1", driver=None, agent_epoch=1)
    peers.discoveries.request(request, wake=lambda: None)
    agent.run_once()
    answer = peers.discoveries.request(request, wake=lambda: None)
    counts = {found.name: (found.added, found.changed) for found in answer.drivers}
    assert counts == {"d": (0, 0), "e": (1, 0)}


def test_placement_is_checked_after_another_agent_had_the_host() -> None:
    peers = FakePeers()
    agent = peers.agent()
    for epoch, checks in ((1, 0), (1, 0), (2, 1), (2, 0), (3, 1)):
        peers.epoch = epoch
        peers.calls.clear()
        agent.run_once()
        assert peers.calls.count("check") == checks, epoch


def test_every_deployable_that_is_missing_after_a_restart_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    peers = FakePeers(store=StateStore(tmp_path, "host"), hardware=report_of(UNIT, "b", "c"))
    peers.agent().run_once()
    peers.hardware = report_of("b")
    peers.agent().run_once()
    missing = [text.split()[1] for text in caplog.messages if "of the last report is" in text]
    assert missing == ["c", UNIT]


@pytest.mark.parametrize("staying", ["first", "second"])
def test_card_is_divided_only_when_all_of_its_providers_are_gone(staying: str) -> None:
    parts = frozenset({"first", "second"})
    peers = FakePeers(
        cards=(CardLayouts("0000:81:00.0", ("vfs=0", "vfs=2"), "vfs=0", "vfs=2", parts),),
        retiring=("other", *sorted(parts)),
        removal_errors={staying: exception.Conflict(reason="it is allocated")},
    )
    agent = peers.agent()
    agent.run_once()
    # The conductor knows now which of them are gone.
    peers.generation += 1
    for now in (60, 120):
        peers.now = now
        agent.run_once()
    assert peers.partitions == []
    peers.removal_errors = {}
    peers.generation += 1
    for now in (180, 240):
        peers.now = now
        agent.run_once()
    assert len(peers.partitions) == 1
