# SPDX-License-Identifier: Apache-2.0
"""The contract of drivers on the scenario hosts, for each driver for cards of one kind.

A driver is tested on the hosts that name it and, if these are few, on hosts without a device for
it. The tests of a driver have its contract on hosts of their own, where its devices can be broken.
"""

import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Final

from cyborg.drivers.fake import FakeDriver
from cyborg.drivers.loader import NAMESPACE
from cyborg.drivers.nvidia_gpu import NvidiaGpuDriver
from cyborg.drivers.nvmf_spdk import NvmfSpdkDriver
from cyborg.testing import scenario_hosts, subject
from cyborg.testing.driver_checks import look
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.driver_reading import ReadingContract
from cyborg.testing.driver_suite import contracts
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.scenario_file import Function
from cyborg.testing.subject import Subject
from cyborg.tests.unit.drivers.simulated_spdk import SimulatedSpdk
from cyborg.tests.unit.drivers.test_nvidia_gpu import Nvml
from cyborg.tests.unit.drivers.test_nvmf_spdk import SOCKET
from cyborg.tests.unit.testing.test_scenario_contract import HOSTS

#: The least number of hosts on which each driver is tested.
_LEAST: Final = 4
#: How often corruption and removal are tried on each host; the longest contract takes 5 s.
_LIMITS: Final = {"rounds": 20, "moments": 25}
#: The nvidia_gpu_driver asks NVML, and reads which types each virtual function can have.
_NVIDIA: Final = {"commands_in_discover": True, "calls": 260}
_SCENARIOS: Final = {name: scenario_hosts.read(name) for name in scenario_hosts.names()}


class _Contract(DriverContract):
    """The contract without its test of health, which needs a device that the test can break."""

    test_health_follows_the_device = None  # type: ignore[assignment]


def with_vendor_software(one: Subject) -> Subject:
    """Return the subject on the same host with NVML, or with an SPDK application."""

    def make_host() -> FakeHost:
        host = one.make_host()
        if one.name == NvidiaGpuDriver.name:
            host.programs[sys.executable] = Nvml()
        elif one.name == NvmfSpdkDriver.name:
            host.add_socket(SOCKET, SimulatedSpdk().answer)
        return host

    return replace(one, make_host=make_host)


def subjects(driver: str) -> list[Subject]:
    """Return a driver on each host that names it, and on others so that it has enough hosts."""
    entries = {
        name: entry
        for name, scenario in _SCENARIOS.items()
        for entry in scenario.drivers
        if entry.name == driver
    }
    named = [subject.load(driver, name, None) for name in entries]
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write(next(iter(entries.values())).options if entries else "")
        file.flush()
        count = max(0, _LEAST - len(named))
        others = [
            replace(subject.load(driver, name, file.name), absent=True)
            for name in (others_of(named)[:count] if count else ())
        ]
    return [with_vendor_software(one) for one in (*named, *others)]


def others_of(named: Sequence[Subject]) -> list[str]:
    """Return the hosts without devices of a driver, first those with the most similar cards."""
    similar: set[str] = set()
    for one in named:
        keys = {device.key for device in look(one.make_driver(one.make_host())).discover()}
        functions = _SCENARIOS[one.host].functions
        similar |= words_of(function for function in functions if function.address in keys)
    rest = _SCENARIOS.keys() - {one.host for one in named}
    return sorted(
        rest, key=lambda name: (-len(words_of(_SCENARIOS[name].functions) & similar), name)
    )


def words_of(functions: Iterable[Function]) -> set[str]:
    """Return the vendors and class codes, without interface, of functions other than bridges."""
    return {
        word
        for function in functions
        if not function.class_.startswith("06")
        for word in (function.ids.partition(":")[0], f"class {function.class_[:4]}")
    }


def classes(driver: str) -> dict[str, type[ReadingContract]]:
    """Return the contract of a driver on each of its hosts, as classes by name."""
    limits: dict[str, float] = dict(_LIMITS)
    if driver == NvidiaGpuDriver.name:
        limits |= _NVIDIA
    kinds = contracts(_SUBJECTS[driver], _Contract, **limits)  # type: ignore[type-abstract]
    for kind in kinds.values():
        kind.__module__ = __name__
    return kinds


#: The pci_driver and the generic_driver are tested with more options by tests of their own.
_SUBJECTS: Final[Mapping[str, Sequence[Subject]]] = {
    driver: subjects(driver)
    for driver in sorted(entry_points(group=NAMESPACE).names - {*HOSTS, FakeDriver.name})
}
for _driver in _SUBJECTS:
    globals().update(classes(_driver))


def test_every_driver_is_tested_on_enough_hosts() -> None:
    hosts = {driver: [one.host for one in listed] for driver, listed in _SUBJECTS.items()} | HOSTS
    assert hosts.keys() == entry_points(group=NAMESPACE).names - {FakeDriver.name}
    few = {driver: names for driver, names in hosts.items() if len({*names}) < _LEAST}
    assert not few
    collected = sum(name.startswith("Test") for name in globals())
    assert collected == sum(map(len, _SUBJECTS.values()))
