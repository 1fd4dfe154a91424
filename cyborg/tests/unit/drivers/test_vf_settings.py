# SPDX-License-Identifier: Apache-2.0
"""What a network card keeps for a virtual function is reset after a guest."""

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cyborg import exception
from cyborg.drivers import vf_settings
from cyborg.drivers.base import no_progress
from cyborg.drivers.command import Completed
from cyborg.drivers.nic import IntelNicDriver
from cyborg.drivers.privileged.actions import SetVf
from cyborg.drivers.scan import Scan
from cyborg.drivers.vf_settings import VfSettings
from cyborg.model.pci import PciAddress
from cyborg.model.work import HandleTask
from cyborg.testing import scenario_hosts
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.unit.drivers.configured import written

PORT, VF, NUMBER, INTERFACE = "0000:17:00.0", "0000:17:01.2", 2, "ens1f0"
IP = "/usr/sbin/ip"
NEW = {"address": "00:00:00:00:00:00", "spoofchk": True, "trust": False, "link_state": "auto"}


@pytest.fixture
def host() -> FakeHost:
    """Return a host whose function was given to a guest with all settings."""
    host = scenario_hosts.load("e810")
    given = "mac 02:00:00:00:00:01 vlan 7 spoofchk off trust on max_tx_rate 100 state disable"
    words = [IP, "link", "set", "dev", INTERFACE, "vf", str(NUMBER), *given.split()]
    assert host.run(words, timeout=1).status == 0
    return host


def shown(host: FakeHost, number: int = NUMBER) -> dict[str, Any]:
    result = host.run([IP, "-j", "link", "show", "dev", INTERFACE], timeout=1)
    [link] = json.loads(result.stdout)
    return dict(link["vfinfo_list"][number])


def settings(host: FakeHost, vendor: int | None = None) -> VfSettings:
    functions = Scan(host).functions
    parent = functions[PciAddress.parse(PORT)]
    if vendor is not None:
        parent = replace(parent, vendor=vendor)
    return VfSettings(host, functions[PciAddress.parse(VF)], parent, INTERFACE)


def test_function_has_the_settings_of_a_new_one_after_its_guest(
    host: FakeHost, tmp_path: Path
) -> None:
    driver = IntelNicDriver(host, written(tmp_path / "cyborg.conf", ""))
    task = HandleTask("r", driver.name, PORT, f"x_{VF}", VF, "handle")
    steps = driver.clean_steps(task)
    assert [step.name for step in steps] == ["VF settings", "function reset"]
    # A reset gives the function its new settings.
    assert steps[0].priority > steps[1].priority
    told: list[tuple[float, str]] = []
    assert callable(steps[0].work)
    steps[0].work(lambda *progress: told.append(progress))
    names = ["MAC address", "VLAN", "rates", "trust", "spoof check", "link state"]
    assert [name for _, name in told] == names
    assert shown(host) == {**shown(host, 0), "vf": NUMBER}
    assert NEW.items() <= shown(host).items()
    # Nothing is changed that need not be.
    host.commands.clear()
    steps[0].work(no_progress)
    assert [words[1:3] for words in host.commands] == 2 * [("-j", "link")]


def test_card_that_does_not_check_addresses_of_new_functions_does_not_do_so(
    host: FakeHost,
) -> None:
    """A guest of such a card that has no port of Neutron would have no network."""
    settings(host, 0x15B3).reset(no_progress)
    assert shown(host)["spoofchk"] is False


def test_setting_that_the_card_does_not_have_is_left_out(host: FakeHost) -> None:
    """What it does not have, it does not show as changed either."""
    ip: Any = host.programs[IP]

    def without_rates(host: FakeHost, argv: tuple[str, ...]) -> Completed:
        result = ip(host, argv)
        if "show" in argv:
            links = json.loads(result.stdout)
            for entry in links[0]["vfinfo_list"]:
                del entry["rate"], entry["trust"], entry["link_state"]
            return Completed(0, json.dumps(links), "")
        return Completed(0, "", "") if "mac" in argv else result

    host.programs[IP] = without_rates
    settings(host).reset(no_progress)
    assert shown(host)["spoofchk"] is True


@pytest.mark.parametrize(
    ("numbers", "pauses"), [([], 0), ([errno.EAGAIN, errno.EAGAIN], 2), ([errno.EOPNOTSUPP], 0)]
)
def test_change_is_repeated_while_the_function_is_being_reset(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, numbers: list[int], pauses: int
) -> None:
    run, answers = SetVf.run, list(numbers)

    def refusing(self: SetVf, kernel: Any) -> None:
        if self.mac is not None and answers:
            raise exception.HostError(action="x", reason="refused", errno=answers.pop(0))
        run(self, kernel)

    monkeypatch.setattr(SetVf, "run", refusing)
    began = host.clock.monotonic()
    settings(host).reset(no_progress)
    assert host.clock.monotonic() - began == pauses
    assert shown(host)["trust"] is False


def test_setting_that_stays_is_an_error(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    run = SetVf.run
    monkeypatch.setattr(
        SetVf, "run", lambda self, kernel: None if self.trust is not None else run(self, kernel)
    )
    with pytest.raises(exception.HostError, match=f"{INTERFACE} keeps trust"):
        settings(host).reset(no_progress)


def test_other_errors_of_the_card_are_errors(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: SetVf, kernel: Any) -> None:
        raise exception.HostError(action="x", reason="refused", errno=errno.EIO)

    monkeypatch.setattr(SetVf, "run", broken)
    with pytest.raises(exception.HostError, match="refused"):
        settings(host).reset(no_progress)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "[{}]", '[{"vfinfo_list": [{"vf": 2, "rate": []}]}]', "[" * 100_000]
)
def test_output_that_cannot_be_understood_is_an_error(host: FakeHost, text: str) -> None:
    host.programs[IP] = lambda host, argv: Completed(0, text, "")
    with pytest.raises(exception.HostError, match="printed no virtual function 2"):
        settings(host).reset(no_progress)
    host.programs[IP] = lambda host, argv: Completed(1, "", "Cannot find device\n")
    with pytest.raises(exception.HostError, match="Cannot find device"):
        settings(host).reset(no_progress)


def test_interface_is_that_of_the_port_and_not_of_a_representor(host: FakeHost) -> None:
    function = Scan(host).functions[PciAddress.parse(VF)]
    assert vf_settings.port_interface(host, Scan(host), function) == INTERFACE
    host.remove(IP)
    assert vf_settings.port_interface(host, Scan(host), function) is None
    host.add_file(IP, "")
    place = host.realpath(f"/sys/bus/pci/devices/{PORT}")
    for name, port_name in {INTERFACE: "p0", "ens1f0_0": "pf0vf0", "ens1f0_1": "pf0vf1"}.items():
        host.add_file(f"{place}/net/{name}/phys_port_name", f"{port_name}\n")
        host.add_link(f"/sys/class/net/{name}", f"{place}/net/{name}")
    assert vf_settings.port_interface(host, Scan(host), function) == INTERFACE
    host.remove(f"/sys/class/net/{INTERFACE}")
    host.remove("/sys/class/net/ens1f0_0")
    host.remove("/sys/class/net/ens1f0_1")
    assert vf_settings.port_interface(host, Scan(host), function) is None
    port = Scan(host).functions[PciAddress.parse(PORT)]
    assert vf_settings.port_interface(host, Scan(host), port) is None
