# SPDX-License-Identifier: Apache-2.0
"""The state of PCI Express functions, and what it means compared with a baseline."""

from dataclasses import replace

import pytest

from cyborg.drivers import health_policy, pcie_health
from cyborg.drivers.pcie_health import Baseline, PcieState
from cyborg.model.health import Condition
from cyborg.testing import servers
from cyborg.testing.fake_host import FakeHost

CONFIG = b"\xde\x10\xb5\x20" + bytes(60)
STATE = PcieState(
    None,
    {("aer_fatal", "DLP"): 1, ("aer_correctable", "BadTLP"): 7},
    *(16, 16.0, 16, 16.0),
    card="0x10de",
)
BASE = Baseline.of(STATE)


@pytest.fixture
def host() -> FakeHost:
    host = servers.server()
    path = servers.place(servers.GPU, servers.ROOT_PORT)
    for name, text in {
        "aer_dev_fatal": "Undefined 0\nDLP 1\nTOTAL_ERR_FATAL 1\n",
        "aer_dev_correctable": "RxErr 0\nBadTLP 7\nTOTAL_ERR_COR 7\n",
        "current_link_width": "8\n",
        "max_link_width": "16\n",
        "current_link_speed": "2.5 GT/s PCIe\n",
        "max_link_speed": "32.0 GT/s PCIe\n",
        "subsystem_device": "0x1533\n",
    }.items():
        host.add_file(f"{path}/{name}", text)
    host.add_file(f"{path}/config", CONFIG)
    port = servers.place(servers.ROOT_PORT)
    host.add_file(f"{port}/aer_dev_fatal", "DLP 2\nTOTAL_ERR_FATAL 2\n")
    host.add_file(f"{port}/max_link_width", "8\n")
    host.add_file(f"{port}/max_link_speed", "16.0 GT/s PCIe\n")
    return host


def words(before: Baseline, state: PcieState) -> list[tuple[Condition, str]]:
    health = health_policy.shipped().judge(pcie_health.signals(before, state))
    return [(finding.condition, finding.evidence) for finding in health.findings]


def test_state_has_the_counters_of_both_ends_and_what_both_support(host: FakeHost) -> None:
    state = pcie_health.read(host, servers.GPU)
    assert state.access is None
    assert state.idling
    assert {key: count for key, count in state.counters.items() if count} == {
        ("aer_fatal", "DLP"): 3,
        ("aer_correctable", "BadTLP"): 7,
    }
    assert (state.width, state.best_width) == (8, 8)
    assert (state.speed, state.best_speed) == (2.5, 16.0)
    assert state.card.split() == ["0x10de", "0x20b5", "0x1533"]


def test_function_that_reads_as_ones_is_unreachable(host: FakeHost) -> None:
    path = servers.place(servers.GPU, servers.ROOT_PORT)
    host.add_file(f"{path}/config", b"\xff" * 64)
    assert pcie_health.read(host, servers.GPU).access == "unreachable"
    host.add_file(f"{path}/power/runtime_status", "suspended\n")
    assert pcie_health.read(host, servers.GPU).access is None


def test_virtual_function_answers_although_its_ids_are_ones(host: FakeHost) -> None:
    path = servers.place(servers.GPU, servers.ROOT_PORT)
    host.add_file(f"{path}/config", b"\xff\xff\xff\xff\x00\x00\x10\x00" + bytes(56))
    assert pcie_health.read(host, servers.GPU).access is None


def test_function_that_left_the_bus_is_gone(host: FakeHost) -> None:
    assert pcie_health.read(host, "0000:ff:00.0").access == "gone"


def test_function_without_the_files_has_no_values(host: FakeHost) -> None:
    assert pcie_health.read(host, servers.FPGA) == PcieState(idling=True, card="0x10ee 0x5001  ")


@pytest.mark.parametrize(
    ("text", "width"), [("0", None), ("255", None), ("Unknown", None), ("", None), ("4", 4)]
)
def test_link_of_a_virtual_function_is_unknown(
    host: FakeHost, text: str, width: int | None
) -> None:
    path = servers.place(servers.GPU, servers.ROOT_PORT)
    host.add_file(f"{path}/current_link_width", text)
    host.add_file(f"{path}/current_link_speed", "Unknown\n")
    state = pcie_health.read(host, servers.GPU)
    assert (state.width, state.speed) == (width, None)


def test_a_healthy_function_has_no_findings() -> None:
    assert words(BASE, STATE) == []


@pytest.mark.parametrize(
    ("state", "condition", "evidence"),
    [
        (
            replace(STATE, counters={**STATE.counters, ("aer_fatal", "DLP"): 3}),
            Condition.DRAIN,
            "new fatal PCIe errors: 2 DLP",
        ),
        (
            replace(STATE, counters={**STATE.counters, ("aer_nonfatal", "CmpltTO"): 1}),
            Condition.DEGRADED,
            "new non-fatal PCIe errors: 1 CmpltTO",
        ),
        (
            replace(STATE, counters={**STATE.counters, ("aer_correctable", "BadTLP"): 8}),
            Condition.DEGRADED,
            "new correctable PCIe errors: 1 BadTLP",
        ),
        (PcieState("unreachable"), Condition.DEAD, "the PCI function does not answer"),
        (PcieState("gone"), Condition.DEAD, "the PCI function has left the bus"),
        (
            replace(STATE, width=4),
            Condition.DEGRADED,
            "link width is x4, it was x16",
        ),
        (
            replace(STATE, speed=2.5),
            Condition.DEGRADED,
            "link speed is 2.5 GT/s, it was 16 GT/s",
        ),
    ],
)
def test_each_signal_is_a_finding(state: PcieState, condition: Condition, evidence: str) -> None:
    assert words(BASE, state) == [(condition, evidence)]


def test_link_below_what_both_ends_support_is_a_finding() -> None:
    narrow = replace(STATE, width=8)
    assert words(Baseline.of(narrow), narrow) == [
        (Condition.DEGRADED, "link width is x8, both ends support x16")
    ]


def test_graphics_card_may_lower_the_speed_of_its_link() -> None:
    assert words(BASE, replace(STATE, speed=2.5, idling=True)) == []


def test_advisory_errors_are_ignored() -> None:
    state = replace(STATE, counters={**STATE.counters, ("aer_correctable", "NonFatalErr"): 5})
    assert words(BASE, state) == []


def test_baseline_follows_a_boot_another_card_and_a_better_link() -> None:
    rebooted = replace(STATE, counters={("aer_fatal", "DLP"): 0})
    assert BASE.after(rebooted).counters == rebooted.counters
    other = replace(STATE, card="0x8086", width=4)
    assert BASE.after(other) == Baseline.of(other)
    assert BASE.after(replace(STATE, width=32)).width == 32
    assert BASE.after(replace(STATE, width=4)) == BASE
    assert BASE.after(PcieState("gone")) is BASE


def test_baseline_survives_as_plain_data() -> None:
    assert Baseline.load(BASE.dump()) == BASE
