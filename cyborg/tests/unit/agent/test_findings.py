# SPDX-License-Identifier: Apache-2.0
"""Findings about devices: what they are, how long they count, and what a restart keeps."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cyborg.agent.findings import HOLD, Findings
from cyborg.agent.state_store import HealthBaselines, LastingFaults, StateStore
from cyborg.drivers import health_policy
from cyborg.drivers.uevents import Uevent
from cyborg.drivers.worker import Worker
from cyborg.model.device import Device, DeviceType, Topology
from cyborg.model.health import Condition, DeviceHealth, Judgement, Recovery
from cyborg.model.report import DriverReport, DriverState, Report
from cyborg.testing import servers
from cyborg.testing.fake_host import FakeClock

DEVICE = Device(
    servers.GPU,
    *(DeviceType.GPU, "10de", "A100", {}, ()),
    topology=Topology(root_port=servers.ROOT_PORT),
)
PLACE = ("pci_driver", DEVICE.key)
DEVICES = [("pci_driver", DEVICE)]
FUNCTION = servers.place(servers.GPU, servers.ROOT_PORT)
CONFIG = b"\xde\x10\xb5\x20" + bytes(60)


class Situation:
    """A host with one GPU, and an agent's findings that can start again."""

    def __init__(self, state: Path) -> None:
        self.host = servers.server()
        self.host.add_file(f"{FUNCTION}/config", CONFIG)
        self.count_fatal(0)
        self.clock = FakeClock()
        self.store = StateStore(state, "host")
        self.findings = self.start()

    def start(self, **options: Any) -> Findings:
        """Return the findings of a new agent process on the same host."""
        self.findings = Findings(
            machine=self.host,
            policy=health_policy.shipped(),
            baselines=HealthBaselines(self.store),
            worker=Worker(),
            clock=self.clock.monotonic,
            **{"lasting": LastingFaults(self.store), "failed_prepares": 3, **options},
        )
        return self.findings

    def count_fatal(self, count: int) -> None:
        self.host.add_file(f"{FUNCTION}/aer_dev_fatal", f"DLP {count}\nTOTAL_ERR_FATAL {count}\n")

    def conditions(self) -> list[Condition]:
        self.findings.check(DEVICES)
        return [finding.condition for finding in self.findings.of(PLACE) or ()]

    def report(self) -> None:
        """Send the report of the host, and have it accepted."""
        judgement = Judgement.of(self.findings.of(PLACE) or ())
        health = DeviceHealth(DEVICE.key, judgement.condition, judgement.reasons)
        driver = DriverReport("pci_driver", DriverState.READY, (DEVICE,), health=(health,))
        self.findings.acknowledge(Report((driver,)))


@pytest.fixture
def situation(tmp_path: Path) -> Situation:
    return Situation(tmp_path)


def test_a_device_that_is_no_pci_function_is_not_checked(situation: Situation) -> None:
    for key in ("card-1", "0000:ff:00.0"):
        device = Device(key, *(DeviceType.GPU, "v", "m", {}, ()))
        assert not situation.findings.check([("pci_driver", device)])
        assert situation.findings.of(("pci_driver", key)) is None


def test_old_errors_are_the_baseline_and_new_ones_count(situation: Situation) -> None:
    situation.count_fatal(4)
    assert situation.conditions() == []
    situation.count_fatal(5)
    assert situation.conditions() == [Condition.DRAIN]


def test_errors_count_until_reported_and_for_some_time(situation: Situation) -> None:
    situation.conditions()
    situation.count_fatal(1)
    assert situation.conditions() == [Condition.DRAIN]
    situation.clock.advance(10 * HOLD)
    assert situation.conditions() == [Condition.DRAIN]
    situation.report()
    assert situation.conditions() == []


def test_reported_errors_count_for_the_whole_time(situation: Situation) -> None:
    situation.conditions()
    situation.count_fatal(1)
    situation.conditions()
    situation.report()
    situation.clock.advance(HOLD - 1)
    assert situation.conditions() == [Condition.DRAIN]
    situation.count_fatal(2)
    situation.conditions()
    situation.report()
    situation.clock.advance(HOLD - 1)
    assert situation.conditions() == [Condition.DRAIN]
    situation.clock.advance(1)
    assert situation.conditions() == []


@pytest.mark.parametrize("noticed", [False, True])
def test_an_agent_that_died_before_its_report_finds_the_error_again(
    situation: Situation, noticed: bool
) -> None:
    situation.conditions()
    situation.count_fatal(1)
    if noticed:
        situation.conditions()
    situation.start()
    assert situation.conditions() == [Condition.DRAIN]


def test_an_agent_does_not_find_settled_errors_again(situation: Situation) -> None:
    situation.conditions()
    situation.count_fatal(1)
    situation.conditions()
    situation.report()
    situation.clock.advance(HOLD)
    assert situation.conditions() == []
    situation.start()
    assert situation.conditions() == []


def test_a_boot_starts_the_counters_again(situation: Situation) -> None:
    situation.count_fatal(9)
    situation.conditions()
    situation.count_fatal(1)
    situation.start()
    assert situation.conditions() == []


def test_damaged_baselines_do_not_stop_the_agent(
    situation: Situation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    situation.conditions()
    StateStore(tmp_path, "host").run(lambda file: file.execute("UPDATE cache SET value = '[[1]]'"))
    situation.start()
    assert "error counters" in caplog.text
    assert situation.conditions() == []


def test_a_function_that_does_not_answer_is_dead_until_it_does(situation: Situation) -> None:
    situation.conditions()
    situation.host.add_file(f"{FUNCTION}/config", b"\xff" * 64)
    assert situation.conditions() == [Condition.DEAD]
    situation.host.add_file(f"{FUNCTION}/config", CONFIG)
    assert situation.conditions() == []


def test_a_function_that_was_seen_and_left_the_bus_is_dead(situation: Situation) -> None:
    situation.conditions()
    situation.host.remove(FUNCTION)
    situation.host.remove(f"/sys/bus/pci/devices/{servers.GPU}")
    assert situation.conditions() == [Condition.DEAD]


def test_a_function_that_cannot_be_read_keeps_its_findings(
    situation: Situation,
) -> None:
    situation.conditions()
    situation.host.add_file(f"{FUNCTION}/config", b"\xff" * 64)
    situation.conditions()
    situation.host.add_file(f"{FUNCTION}/config", bytes(1_000_000))
    assert situation.conditions() == [Condition.DEAD]


@pytest.mark.parametrize(
    ("devpath", "fields", "condition"),
    [
        (FUNCTION, {"ERROR_EVENT": "FAILED_RECOVERY"}, Condition.DRAIN),
        (FUNCTION, {"ERROR_EVENT": "BEGIN_RECOVERY"}, Condition.DEGRADED),
        (f"{FUNCTION}/drm/card1", {"WEDGED": "rebind,bus-reset"}, Condition.DRAIN),
        (servers.place(servers.ROOT_PORT), {"ERROR_EVENT": "FAILED_RECOVERY"}, Condition.DRAIN),
    ],
)
def test_an_event_about_a_fault_counts_at_once(
    situation: Situation, devpath: str, fields: dict[str, str], condition: Condition
) -> None:
    event = Uevent("change", devpath.removeprefix("/sys"), fields)
    assert situation.findings.note_events([event], DEVICES) == DEVICES
    assert situation.conditions() == [condition]
    situation.report()
    situation.clock.advance(HOLD)
    lasts = condition is Condition.DRAIN
    assert situation.conditions() == ([condition] if lasts else [])


@pytest.fixture(params=["FAILED_RECOVERY", "WEDGED"])
def lasting(situation: Situation, request: pytest.FixtureRequest) -> Situation:
    """Return a situation whose GPU has a fault that lasts, which the conductor was told."""
    field, path = "ERROR_EVENT", FUNCTION
    value = request.param
    if value == "WEDGED":
        field, value, path = "WEDGED", "rebind", f"{FUNCTION}/drm/card1"
    event = Uevent("change", path.removeprefix("/sys"), {field: value})
    situation.findings.note_events([event], DEVICES)
    situation.report()
    return situation


def tell(
    situation: Situation,
    action: str,
    path: str = FUNCTION,
    subsystem: str = "pci",
    *,
    devices: Sequence[tuple[str, Device]] = DEVICES,
) -> None:
    event = Uevent(action, path.removeprefix("/sys"), {"SUBSYSTEM": subsystem})
    situation.findings.note_events([event], devices)


def test_fault_that_lasts_outlives_time_and_the_process(lasting: Situation) -> None:
    lasting.clock.advance(100 * HOLD)
    assert lasting.conditions() == [Condition.DRAIN]
    lasting.start()
    assert lasting.conditions() == [Condition.DRAIN]
    lasting.report()
    lasting.clock.advance(100 * HOLD)
    assert lasting.conditions() == [Condition.DRAIN]


@pytest.mark.parametrize(
    "end",
    [
        lambda situation: tell(situation, "bind"),
        lambda situation: tell(situation, "add"),
        lambda situation: tell(situation, "add", devices=[]),
        lambda situation: situation.findings.note_recovery(PLACE, Recovery.RESET),
    ],
    ids=["bind", "replug", "replug-after-a-scan", "reset"],
)
def test_recovery_ends_a_fault_that_lasts(
    lasting: Situation, end: Callable[[Situation], object]
) -> None:
    end(lasting)
    assert lasting.conditions() == []
    lasting.start()
    assert lasting.conditions() == []


def test_events_of_others_are_no_recovery(lasting: Situation) -> None:
    tell(lasting, "bind", subsystem="drm")
    tell(lasting, "bind", servers.place(servers.ROOT_PORT))
    tell(lasting, "change")
    tell(lasting, "unbind")
    assert lasting.conditions() == [Condition.DRAIN]


@pytest.mark.parametrize("action", ["add", "bind"])
def test_event_that_a_program_requested_is_no_recovery(lasting: Situation, action: str) -> None:
    """As ``udevadm trigger --action=add`` does for each device."""
    fields = {"SUBSYSTEM": "pci", "SYNTH_UUID": "0"}
    event = Uevent(action, FUNCTION.removeprefix("/sys"), fields)
    assert lasting.findings.note_events([event], DEVICES) == DEVICES
    assert lasting.conditions() == [Condition.DRAIN]


def test_later_event_does_not_replace_a_fault_that_lasts(situation: Situation) -> None:
    for value in ("FAILED_RECOVERY", "BEGIN_RECOVERY"):
        event = Uevent("change", FUNCTION.removeprefix("/sys"), {"ERROR_EVENT": value})
        situation.findings.note_events([event], DEVICES)
    situation.report()
    situation.clock.advance(HOLD)
    assert situation.conditions() == [Condition.DRAIN]


class ReadFaults(LastingFaults):
    """The file of a process that ends before its first write."""

    def store(self, boot: str, unread: int, faults: object) -> bool:
        raise AssertionError("a start has nothing to write")


def test_start_rewrites_no_fault_so_that_its_end_loses_none(lasting: Situation) -> None:
    lasting.start(lasting=ReadFaults(lasting.store))
    assert lasting.conditions() == [Condition.DRAIN]


def test_boot_of_the_host_ends_a_fault_that_lasts(lasting: Situation) -> None:
    lasting.host.add_file("/proc/sys/kernel/random/boot_id", "another boot\n")
    lasting.start()
    assert lasting.conditions() == []


def test_operator_ends_the_faults_of_one_device(lasting: Situation) -> None:
    store = LastingFaults(lasting.store)
    assert store.mark_recovered(("pci_driver", "0000:ff:00.0"))
    assert lasting.conditions() == [Condition.DRAIN]
    assert store.mark_recovered(PLACE)
    assert lasting.conditions() == []
    # The word is about the faults until now only.
    event = Uevent("change", FUNCTION.removeprefix("/sys"), {"WEDGED": "rebind"})
    lasting.findings.note_events([event], DEVICES)
    assert lasting.conditions() == [Condition.DRAIN]


def test_other_events_are_about_their_device_and_no_fault(situation: Situation) -> None:
    bind = Uevent("bind", FUNCTION.removeprefix("/sys"), {"SUBSYSTEM": "pci"})
    other = Uevent("change", "/devices/virtual/tty/tty1", {"ERROR_EVENT": "FAILED_RECOVERY"})
    assert situation.findings.note_events([bind, other], DEVICES) == DEVICES
    assert situation.conditions() == []


def test_prepares_that_fail_in_a_row_drain_the_device(situation: Situation) -> None:
    situation.conditions()
    findings = situation.findings
    assert not findings.note_prepare(PLACE, "hot")
    assert not findings.note_prepare(PLACE, None)
    assert [findings.note_prepare(PLACE, "hot") for _ in range(4)] == [False, False, True, False]
    (finding,) = findings.of(PLACE) or ()
    assert finding.condition is Condition.DRAIN
    assert finding.evidence == "3 or more prepares failed in a row: hot"
    situation.report()
    situation.clock.advance(HOLD)
    assert situation.conditions() == []


def test_failed_prepares_can_be_ignored(situation: Situation) -> None:
    findings = situation.start(failed_prepares=0)
    assert not any(findings.note_prepare(PLACE, "hot") for _ in range(9))
    assert findings.of(PLACE) is None


def test_devices_without_a_check_since_the_start_are_known(situation: Situation) -> None:
    report = Report((DriverReport("pci_driver", DriverState.READY, (DEVICE,)),))
    assert situation.findings.unchecked(report) == DEVICES
    situation.conditions()
    assert situation.findings.unchecked(report) == []
