# SPDX-License-Identifier: Apache-2.0
"""Tests of the simulated command ``ip``."""

import json

import pytest

from cyborg.drivers.command import Completed
from cyborg.drivers.privileged.actions import SetVf
from cyborg.model.pci import PciAddress
from cyborg.testing import scenario_hosts
from cyborg.testing.fake_host import FakeHost


@pytest.fixture
def host() -> FakeHost:
    return scenario_hosts.load("e810")


def ip(host: FakeHost, *words: str) -> Completed:
    return host.run(["ip", *words], timeout=1)


def test_settings_of_a_function_are_kept_and_shown(host: FakeHost) -> None:
    words = ("mac", "02:00:00:00:00:01", "vlan", "7", "trust", "on", "max_tx_rate", "100")
    assert ip(host, "link", "set", "dev", "ens1f0", "vf", "3", *words).status == 0
    (shown,) = json.loads(ip(host, "-j", "link", "show", "dev", "ens1f0").stdout)
    first, third = shown["vfinfo_list"][0], shown["vfinfo_list"][3]
    assert first == {
        "vf": 0,
        "address": "00:00:00:00:00:00",
        "spoofchk": True,
        "trust": False,
        "link_state": "auto",
        "rate": {"min_tx": 0, "max_tx": 0},
        "vlan_list": [{}],
    }
    assert (third["address"], third["trust"]) == ("02:00:00:00:00:01", True)
    assert (third["vlan_list"], third["rate"]["max_tx"]) == ([{"vlan": 7}], 100)
    assert len(shown["vfinfo_list"]) == 8


def test_action_of_the_agent_changes_settings(host: FakeHost) -> None:
    pf = PciAddress.parse("0000:17:00.0")
    given = SetVf(pf, "ens1f0", 2, mac="02:00:00:00:00:02", vlan=9, trust=True, spoof_check=False)
    reset = SetVf(
        pf,
        "ens1f0",
        2,
        mac="00:00:00:00:00:00",
        vlan=0,
        trust=False,
        spoof_check=True,
        min_rate=0,
        max_rate=0,
    )
    shown = []
    for action in (given, reset):
        host.privileged.run(action)
        (link,) = json.loads(ip(host, "-j", "link", "show", "dev", "ens1f0").stdout)
        shown.append({**link["vfinfo_list"][2], "vf": 0})
        initial = link["vfinfo_list"][0]
    assert (shown[0]["address"], shown[0]["vlan_list"]) == ("02:00:00:00:00:02", [{"vlan": 9}])
    assert shown[1] == initial


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (("link", "set", "dev", "ens1f0", "vf", "8", "trust", "on"), 2, "Invalid argument"),
        (("link", "set", "dev", "ens1f0", "vf", "0", "colour", "red"), 2, "Invalid argument"),
        (("link", "set", "dev", "eth9", "vf", "0", "trust", "on"), 1, 'Cannot find device "eth9"'),
        (("addr", "show"), 255, "ip addr show is not simulated"),
    ],
)
def test_what_cannot_be_set_is_refused(
    host: FakeHost, words: tuple[str, ...], status: int, text: str
) -> None:
    answer = ip(host, *words)
    assert (answer.status, text in answer.stderr) == (status, True)
