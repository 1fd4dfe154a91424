# SPDX-License-Identifier: Apache-2.0
"""Findings about several devices, and several findings about one."""

from pathlib import Path

import pytest

from cyborg.agent.findings import HOLD, Findings
from cyborg.agent.state_store import HealthBaselines, LastingFaults, StateStore
from cyborg.drivers import health_policy
from cyborg.drivers.uevents import Uevent
from cyborg.drivers.worker import Worker
from cyborg.model.device import Device, DeviceType, Topology
from cyborg.model.health import Condition, DeviceHealth, Judgement
from cyborg.model.report import DriverReport, DriverState, Report
from cyborg.testing.fake_host import FakeClock, FakeHost

PORT, SWITCH = "0000:00:01.0", "0000:80:00.0"
KEYS = ("0000:81:00.0", "0000:81:00.1")
DEVICES = [
    (
        "driver",
        Device(
            key,
            *(DeviceType.GPU, "10de", "A100", {}, ()),
            topology=Topology(switch=SWITCH, root_port=PORT),
        ),
    )
    for key in KEYS
]
FIRST, SECOND = (("driver", key) for key in KEYS)


class TwoCards:
    """A host with two functions whose error counters rise, and an agent's findings."""

    def __init__(self, state: Path) -> None:
        self.host = FakeHost()
        for key in KEYS:
            self.host.add_file(
                f"/sys/bus/pci/devices/{key}/config", b"\xde\x10\xb5\x20" + bytes(60)
            )
            self.count(key, DLP=0, TLP=0)
        self.clock = FakeClock()
        self._state = state
        self.start()
        self.findings.check(DEVICES)

    def start(self) -> None:
        """Start another agent process on the same host."""
        self.findings = Findings(
            machine=self.host,
            policy=health_policy.shipped(),
            baselines=HealthBaselines(StateStore(self._state, "host")),
            lasting=LastingFaults(StateStore(self._state, "host")),
            clock=self.clock.monotonic,
            failed_prepares=1,
            worker=Worker(),
        )

    def count(self, key: str, **errors: int) -> None:
        lines = [f"{name} {count}" for name, count in errors.items()]
        lines.append(f"TOTAL_ERR_FATAL {sum(errors.values())}")
        self.host.add_file(f"/sys/bus/pci/devices/{key}/aer_dev_fatal", "\n".join(lines) + "\n")

    def found(self) -> list[int]:
        """Return the number of findings about each device."""
        return [len(self.findings.of(place) or ()) for place in (FIRST, SECOND)]

    def report(self, *, without: str = "") -> None:
        """Have a report accepted that lacks the reasons with this text."""
        healths = []
        for place in (FIRST, SECOND):
            findings = tuple(
                finding
                for finding in self.findings.of(place) or ()
                if not without or without not in finding.evidence
            )
            judgement = Judgement.of(findings)
            healths.append(DeviceHealth(place[1], judgement.condition, judgement.reasons))
        devices = tuple(device for _, device in DEVICES)
        driver = DriverReport("driver", DriverState.READY, devices, health=tuple(healths))
        self.findings.acknowledge(Report((driver,)))


@pytest.fixture
def cards(tmp_path: Path) -> TwoCards:
    return TwoCards(tmp_path)


@pytest.mark.parametrize("index", [0, 1])
def test_error_of_one_device_is_a_change_although_another_has_none(
    cards: TwoCards, index: int
) -> None:
    cards.count(KEYS[index], DLP=1, TLP=0)
    assert cards.findings.check(DEVICES)
    assert cards.found() == [1 - index, index]
    assert not cards.findings.check(DEVICES)


@pytest.mark.parametrize("index", [0, 1])
def test_next_agent_knows_the_counters_of_every_device(cards: TwoCards, index: int) -> None:
    """Settled errors are not found again, and one that no agent has seen is."""
    cards.count(KEYS[0], DLP=7, TLP=0)
    cards.count(KEYS[1], DLP=7, TLP=0)
    cards.findings.check(DEVICES)
    cards.report()
    cards.clock.advance(HOLD)
    # Only one of them settles in the last check.
    cards.findings.check(DEVICES[1 - index :] if index else DEVICES[:1])
    cards.findings.check(DEVICES)
    cards.start()
    cards.count(KEYS[index], DLP=8, TLP=0)
    cards.findings.check(DEVICES)
    assert cards.found() == [1 - index, index]


def test_settled_error_of_one_device_is_stored_although_another_is_unchanged(
    cards: TwoCards,
) -> None:
    cards.count(KEYS[0], DLP=7, TLP=0)
    cards.findings.check(DEVICES)
    cards.report()
    cards.clock.advance(HOLD)
    cards.findings.check(DEVICES)
    cards.start()
    cards.findings.check(DEVICES)
    assert cards.found() == [0, 0]


def test_error_that_the_conductor_was_not_told_stays_although_another_was(
    cards: TwoCards,
) -> None:
    cards.count(KEYS[0], DLP=1, TLP=1)
    cards.findings.check(DEVICES)
    cards.report(without="TLP")
    cards.clock.advance(HOLD)
    cards.findings.check(DEVICES)
    assert cards.found() == [2, 0]
    cards.report()
    cards.findings.check(DEVICES)
    assert cards.found() == [0, 0]


def test_new_error_counts_although_another_counter_stays(cards: TwoCards) -> None:
    cards.count(KEYS[0], DLP=0, TLP=3)
    cards.findings.check(DEVICES)
    cards.report()
    cards.clock.advance(HOLD - 1)
    cards.count(KEYS[0], DLP=1, TLP=3)
    cards.findings.check(DEVICES)
    cards.report()
    cards.clock.advance(1)
    cards.findings.check(DEVICES)
    # Both kinds of errors are shown until none is new any more.
    assert cards.found() == [2, 0]


def test_one_counter_that_starts_again_is_a_boot_for_all_counters(cards: TwoCards) -> None:
    """The other one had no error before and has none after the boot."""
    cards.count(KEYS[0], DLP=4, TLP=0)
    cards.findings.check(DEVICES)
    cards.report()
    cards.clock.advance(HOLD)
    cards.findings.check(DEVICES)
    cards.count(KEYS[0], DLP=1, TLP=0)
    cards.start()
    cards.findings.check(DEVICES)
    assert cards.found() == [0, 0]
    cards.count(KEYS[0], DLP=2, TLP=0)
    cards.findings.check(DEVICES)
    assert cards.found() == [1, 0]


def test_finding_that_the_conductor_was_not_told_stays_although_another_was(
    cards: TwoCards,
) -> None:
    _event(cards, KEYS[0], ERROR_EVENT="BEGIN_RECOVERY")
    _event(cards, KEYS[0], WEDGED="none")
    assert cards.found() == [2, 0]
    cards.report(without="WEDGED")
    cards.clock.advance(HOLD)
    cards.findings.check(DEVICES)
    (finding,) = cards.findings.of(FIRST) or ()
    assert "WEDGED" in finding.evidence
    # What was reported once stays reported, whatever a later report lacks.
    cards.report()
    cards.report(without="WEDGED")
    cards.findings.check(DEVICES)
    assert cards.found() == [0, 0]


def test_state_of_the_function_and_an_incident_are_both_found(cards: TwoCards) -> None:
    cards.count(KEYS[0], DLP=1, TLP=0)
    cards.findings.check(DEVICES)
    cards.findings.note_prepare(FIRST, "no power")
    assert cards.found() == [2, 0]
    # One that the report lacks keeps the other from being settled.
    cards.report(without="prepares failed")
    cards.clock.advance(HOLD)
    cards.findings.check(DEVICES)
    assert cards.found() == [1, 0]


@pytest.mark.parametrize("bridge", [PORT, SWITCH])
def test_event_about_a_bridge_is_about_every_device_below_it(cards: TwoCards, bridge: str) -> None:
    event = Uevent("change", f"/devices/pci0000:00/{bridge}", {"ERROR_EVENT": "FAILED_RECOVERY"})
    assert cards.findings.note_events([event], DEVICES) == DEVICES
    assert cards.found() == [1, 1]


def test_event_about_a_function_is_not_about_the_next_one_or_its_bridge(cards: TwoCards) -> None:
    assert _event(cards, KEYS[1], ERROR_EVENT="FAILED_RECOVERY") == DEVICES[1:]
    assert cards.found() == [0, 1]


def test_device_that_two_drivers_list_has_the_event_of_both(cards: TwoCards) -> None:
    both = [*DEVICES, ("other", DEVICES[0][1])]
    event = Uevent(
        "change", f"/devices/pci0000:00/{PORT}/{KEYS[0]}", {"ERROR_EVENT": "FAILED_RECOVERY"}
    )
    assert cards.findings.note_events([event], both) == [both[0], both[2]]
    for place in (FIRST, ("other", KEYS[0])):
        (finding,) = cards.findings.of(place) or ()
        assert finding.condition is Condition.DRAIN


def _event(cards: TwoCards, key: str, **fields: str) -> list[tuple[str, Device]]:
    event = Uevent("change", f"/devices/pci0000:00/{PORT}/{SWITCH}/{key}", fields)
    return cards.findings.note_events([event], DEVICES)
