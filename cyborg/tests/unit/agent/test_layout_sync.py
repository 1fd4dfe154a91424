# SPDX-License-Identifier: Apache-2.0
"""The agent divides a card as configured, and leaves it alone when somebody may use it."""

import logging
from dataclasses import replace
from typing import cast

import pytest

from cyborg import exception
from cyborg.agent.device_tasks import DeviceTasks
from cyborg.agent.layout_sync import LayoutSync
from cyborg.drivers.base import CardLayouts
from cyborg.model.device import Device
from cyborg.model.report import Acknowledged, CreatedDevice, DriverReport, DriverState, Report
from cyborg.tests.unit.agent.fake_peers import UNIT, FakeAgent, FakePeers, report_of

KEY = "0000:81:00.0"
CARD = CardLayouts(
    card=KEY,
    layouts=("vfs=0", "vfs=2", "vfs=4"),
    current="vfs=0",
    desired="vfs=4",
    deployables=frozenset({"card"}),
)
DIVIDE = f"partition {KEY} vfs=4"


@pytest.fixture
def peers() -> FakePeers:
    return FakePeers(cards=(CARD,))


def divided(peers: FakePeers) -> list[str]:
    return [call for call in peers.take_calls() if call.startswith("partition")]


def run(peers: FakePeers, agent: FakeAgent) -> list[str]:
    """Return the operations that the agent starts when the next scan is due."""
    peers.now += 60
    agent.run_once()
    return divided(peers)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record for record in caplog.records if record.name.endswith(".layout_sync")]
    return [line.message for line in lines if line.levelno == logging.WARNING]


def test_card_without_its_layout_is_divided_once(
    peers: FakePeers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    agent = peers.agent()
    agent.run_once()
    assert divided(peers) == [DIVIDE]
    assert run(peers, agent) == [], "the operation is still running"
    peers.partitions[0].set_result(None)
    assert f"Card {KEY} of driver d has layout vfs=4 now" in caplog.messages
    assert run(peers, agent) == []
    peers.cards = (replace(CARD, current="vfs=4"),)
    assert run(peers, agent) == []
    assert warnings(caplog) == []


def test_card_that_loses_its_layout_again_is_divided_again(peers: FakePeers) -> None:
    agent = peers.agent()
    agent.run_once()
    peers.partitions[0].set_result(None)
    peers.cards = (replace(CARD, current="vfs=4"),)
    run(peers, agent)
    peers.cards = (CARD,)
    assert run(peers, agent) == [DIVIDE]


def test_parts_that_the_conductor_keeps_and_the_host_has_lost_come_back(peers: FakePeers) -> None:
    """After a reboot of the host; the guests of the parts lose nothing by that."""
    peers.hardware = Report((DriverReport("d", DriverState.READY),))
    agent = peers.agent()
    agent.run_once()
    assert divided(peers) == [DIVIDE]


@pytest.mark.parametrize(
    ("card", "reason"),
    [
        (
            {"deployables": frozenset({"card", UNIT})},
            f"the conductor keeps, or a driver offers, {UNIT}",
        ),
        ({"refusal": "its interface eno1 is busy"}, "its interface eno1 is busy"),
        ({"current": None}, "its layout cannot be read"),
        ({"desired": "vfs=9"}, "the card can only have vfs=0, vfs=2, vfs=4"),
        ({"deployables": frozenset()}, "its driver does not name its deployables"),
    ],
)
def test_card_stays_as_it_is_in_doubt_and_the_reason_is_logged_once(
    peers: FakePeers,
    caplog: pytest.LogCaptureFixture,
    card: dict[str, object],
    reason: str,
) -> None:
    peers.cards = (replace(CARD, **card),)  # type: ignore[arg-type]
    agent = peers.agent()
    for _ in range(3):
        assert run(peers, agent) == []
    assert peers.partitions == []
    [line] = warnings(caplog)
    assert f"Card {KEY} of driver d keeps layout" in line
    assert reason in line


@pytest.mark.parametrize("desired", [None, "vfs=0"])
def test_card_without_a_request_or_with_its_layout_is_left_alone(
    peers: FakePeers, desired: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    peers.cards = (replace(CARD, desired=desired, refusal="it is busy"),)
    peers.agent().run_once()
    assert divided(peers) == []
    assert warnings(caplog) == []


def test_deployable_that_a_driver_offers_keeps_its_card_whole(peers: FakePeers) -> None:
    """The conductor may give it out at any time from now on."""
    peers.hardware = report_of("card")
    agent = peers.agent()
    agent.run_once()
    assert run(peers, agent) == []


def test_provider_that_is_still_allocated_keeps_its_card_as_it_is(peers: FakePeers) -> None:
    peers.retiring = ("card",)
    peers.removal_errors = {"card": exception.Conflict(reason="it is allocated")}
    agent = peers.agent()
    agent.run_once()
    assert run(peers, agent) == []
    peers.retiring, peers.generation = (), peers.generation + 1
    assert run(peers, agent) == [DIVIDE]


def test_device_that_an_operator_creates_keeps_its_card_as_it_is(peers: FakePeers) -> None:
    [[device]] = [driver.devices for driver in report_of("card").drivers]
    peers.created = (CreatedDevice("d", device),)
    agent = peers.agent()
    agent.run_once()
    assert divided(peers) == []


@pytest.mark.parametrize("away", ["heartbeat", "desired", "tree", "find_root"])
def test_nothing_is_divided_before_all_users_are_known(peers: FakePeers, away: str) -> None:
    """The conductor, or Placement with Nova's claims, does not answer."""
    agent = peers.agent()
    peers.away = {away}
    for _ in range(2):
        try:
            assert run(peers, agent) == []
        except exception.Unavailable:
            assert divided(peers) == []
    peers.away = set()
    peers.now += 600
    assert run(peers, agent) == [DIVIDE]


def test_superseded_agent_divides_nothing(peers: FakePeers) -> None:
    agent = peers.agent()
    agent.heartbeats.run_once()
    discover = peers.discover

    def supersede(scan: object) -> list[Device]:
        peers.supersede()
        with pytest.raises(exception.StaleEpoch):
            agent.heartbeats.run_once()
        return discover(scan)  # type: ignore[arg-type]

    object.__setattr__(peers, "discover", supersede)
    agent.loop.run_once()
    assert divided(peers) == []


def test_failed_division_is_repeated_when_the_card_changes_or_after_the_full_check(
    peers: FakePeers, caplog: pytest.LogCaptureFixture
) -> None:
    agent = peers.agent()
    agent.run_once()
    assert divided(peers) == [DIVIDE]
    peers.partitions[-1].set_exception(exception.HostError(action="writing", reason="EIO"))
    for _ in range(3):
        assert run(peers, agent) == []
    peers.cards = (replace(CARD, current="vfs=2"),)
    assert run(peers, agent) == [DIVIDE]
    peers.partitions[-1].set_exception(exception.HostError(action="writing", reason="EIO"))
    peers.now = 660
    assert run(peers, agent) == [DIVIDE]
    peers.partitions[-1].set_exception(exception.HostError(action="writing", reason="EIO"))
    [line] = warnings(caplog)
    assert "writing failed: EIO" in line


def test_card_that_two_drivers_are_to_divide_stays_as_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sync = LayoutSync(cast(DeviceTasks, None))
    other = replace(CARD, desired="vfs=2")
    sync.sync({"a": (CARD,), "b": (other,)}, frozenset(), retry=True)
    lines = warnings(caplog)
    assert len(lines) == 2
    assert all("several drivers are configured to divide it" in line for line in lines)


def test_nothing_is_divided_by_a_scan_of_drivers_that_have_changed_since(peers: FakePeers) -> None:
    """The answer to the report has another device of the driver, so the host is scanned again."""
    [[device]] = [driver.devices for driver in report_of("other").drivers]
    acknowledge = peers.report

    def change(host: str, epoch: int, report: Report) -> Acknowledged:
        peers.created = (CreatedDevice("d", device),)
        return acknowledge(host, epoch, report)

    object.__setattr__(peers, "report", change)
    agent = peers.agent()
    agent.run_once()
    assert divided(peers) == []
    agent.run_once()
    assert divided(peers) == [DIVIDE]
