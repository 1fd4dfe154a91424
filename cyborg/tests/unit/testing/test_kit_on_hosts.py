# SPDX-License-Identifier: Apache-2.0
"""The contract of drivers on the scenario hosts.

A driver is tested on hosts that name it and on hosts without a device for it. In a full run these
are all hosts that name it, and others if these are few; else one of each, which the commit decides.
The tests of a driver have its contract on hosts of their own, where its devices can be broken.
"""

import functools
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import Any, Final

import pytest

from cyborg.drivers.base import Driver
from cyborg.drivers.fake import FakeDriver
from cyborg.drivers.loader import NAMESPACE
from cyborg.drivers.nvidia_gpu import NvidiaGpuDriver
from cyborg.drivers.nvmf_spdk import NvmfSpdkDriver
from cyborg.testing import scenario_hosts, subject
from cyborg.testing.driver_absence import AbsenceContract
from cyborg.testing.driver_checks import look
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.driver_reading import ReadingContract
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.scenario_file import CyborgDriver
from cyborg.tests.fixtures import choice
from cyborg.tests.unit.drivers.simulated_spdk import SimulatedSpdk
from cyborg.tests.unit.drivers.test_nvidia_gpu import Nvml
from cyborg.tests.unit.drivers.test_nvmf_spdk import SOCKET

#: Some hosts have one unit; each driver that offers devices has another host, with several guests.
pytestmark: Final = pytest.mark.filterwarnings("ignore:.* has room for one guest")
#: The least number of hosts on which a full run tests each driver.
_LEAST: Final = 4
#: How often corruption and removal are tried on each host; in full, the longest contract takes 5 s.
_LIMITS: Final = {"rounds": 20, "moments": 25} if choice.FULL else {"rounds": 5, "moments": 5}
#: The nvidia_gpu_driver asks NVML, and reads which types each virtual function can have.
_NVIDIA: Final = {"commands_in_discover": True, "calls": 260}
#: Drivers that all hosts name → hosts of different kinds. The tests of these drivers have more.
_SOME: Final = {
    "pci_driver": {"dgx-h100", "mi300x", "e810", "mixed"},
    "generic_driver": {"gaudi3", "alveo-u250", "n6001", "qat-4xxx"},
}
#: Driver → hosts that have its cards, too, and do not name it.
_UNNAMED: Final = {
    "intel_nic_driver": {"gaudi3"},
    "mlx5_driver": {"nvme-24", "qat-4xxx"},
    "nvme_driver": set(scenario_hosts.names()),
}
_DRIVERS: Final = sorted(entry_points(group=NAMESPACE).names - {FakeDriver.name})
#: Driver → the hosts that name it, with what they say about it.
_NAMED: Final[dict[str, dict[str, CyborgDriver]]] = {driver: {} for driver in _DRIVERS}
for _host in scenario_hosts.names():
    for _entry in scenario_hosts.read(_host).drivers:
        _NAMED[_entry.name][_host] = _entry


class _Contract(DriverContract):
    """The contract without its test of health, which needs a device that the test can break."""

    test_health_follows_the_device = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Pair:
    """A driver and a host, which with ``absent`` has no device for the driver."""

    driver: str
    host: str
    absent: bool = False

    @functools.cached_property
    def subject(self) -> subject.Subject:
        """The driver on a host with NVML, or with an SPDK application, if it uses them."""
        if self.absent:
            entries = _NAMED[self.driver].values()
            with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
                file.write(next(iter(entries)).options if entries else "")
                file.flush()
                loaded = subject.load(self.driver, self.host, file.name)
        else:
            loaded = subject.load(self.driver, self.host, None)

        def make_host() -> FakeHost:
            host = loaded.make_host()
            if self.driver == NvidiaGpuDriver.name:
                host.programs[sys.executable] = Nvml()
            elif self.driver == NvmfSpdkDriver.name:
                host.add_socket(SOCKET, SimulatedSpdk().answer)
            return host

        return replace(loaded, make_host=make_host)

    def contract(self, *, corrupted: bool) -> type[ReadingContract]:
        """Return the contract; it is without its test of corruption unless ``corrupted``."""

        def make_host(_: ReadingContract) -> FakeHost:
            return self.subject.make_host()

        def make_driver(_: ReadingContract, host: FakeHost) -> Driver:
            return self.subject.make_driver(host)

        members: dict[str, Any] = {**_LIMITS, "make_host": make_host, "make_driver": make_driver}
        if self.driver == NvidiaGpuDriver.name:
            members |= _NVIDIA
        if not self.absent:
            members["selects_by_address"] = _NAMED[self.driver][self.host].selects_by_address
        if not corrupted:
            members["test_corrupted_hosts_do_no_harm"] = None
        words = f"{self.driver}_on_{self.host}".replace("-", "_").split("_")
        name = f"Test{''.join(word[:1].upper() + word[1:] for word in words)}"
        base = AbsenceContract if self.absent else _Contract
        return type(name, (base,), {**members, "__module__": __name__, "__doc__": base.__doc__})


def others_of(driver: str) -> list[str]:
    """Return the hosts without a device for a driver."""
    having = _NAMED[driver].keys() | _UNNAMED.get(driver, set())
    return [name for name in scenario_hosts.names() if name not in having]


def pairs_of(driver: str) -> list[Pair]:
    """Return a driver with each host on which this run tests it."""
    named = _NAMED[driver].keys() & _SOME.get(driver, _NAMED[driver].keys())
    others = others_of(driver)
    count = min(len(others), max(1, _LEAST - len(named)) if choice.FULL else 1)
    foreign = choice.generator(f"foreign hosts of {driver}").sample(others, count)
    own = choice.chosen(sorted(named), f"hosts of {driver}")
    return [Pair(driver, host) for host in own] + [Pair(driver, host, True) for host in foreign]


_PAIRS: Final[Mapping[str, list[Pair]]] = {driver: pairs_of(driver) for driver in _DRIVERS}
#: Corruption takes the most time by far.
_CORRUPTED: Final = choice.chosen(
    [pair for pairs in _PAIRS.values() for pair in pairs if choice.FULL or not pair.absent],
    "corruption",
)
for _pairs in _PAIRS.values():
    for _pair in _pairs:
        _kind = _pair.contract(corrupted=_pair in _CORRUPTED)
        globals()[_kind.__name__] = _kind
del _kind


def test_every_driver_is_tested_on_enough_hosts() -> None:
    assert _PAIRS.keys() == entry_points(group=NAMESPACE).names - {FakeDriver.name}
    for driver, pairs in _PAIRS.items():
        own = {pair.host for pair in pairs if not pair.absent}
        foreign = {pair.host for pair in pairs if pair.absent}
        assert own or not _NAMED[driver]
        if choice.FULL:
            assert len(own | foreign) >= _LEAST
            assert own == set(_SOME.get(driver, _NAMED[driver]))
        else:
            assert foreign or not others_of(driver)
    kinds = [value for name, value in globals().items() if name.startswith("Test")]
    assert len(kinds) == sum(map(len, _PAIRS.values()))
    corrupted = [kind for kind in kinds if kind.test_corrupted_hosts_do_no_harm is not None]
    assert len(corrupted) == (len(kinds) if choice.FULL else 1)


@pytest.mark.parametrize("driver", _DRIVERS)
def test_other_hosts_have_no_device(driver: str) -> None:
    """All of them in each run, so that no later commit draws the first one that has one."""
    found = {}
    for host in others_of(driver):
        made = Pair(driver, host, absent=True).subject
        devices = look(made.make_driver(made.make_host())).discover()
        found[host] = [device.key for device in devices]
    assert not any(found.values()), found
