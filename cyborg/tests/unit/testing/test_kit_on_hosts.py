# SPDX-License-Identifier: Apache-2.0
"""The contract of drivers on the scenario hosts, for each driver for cards of one kind.

The tests of a driver have its contract on hosts of their own, where its devices can be broken.
"""

import sys
from dataclasses import replace
from typing import Final

from cyborg.drivers.nvidia_gpu import NvidiaGpuDriver
from cyborg.testing import scenario_hosts, subject
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.driver_suite import contracts
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.subject import Subject
from cyborg.tests.unit.drivers.test_nvidia_gpu import Nvml

#: They are tested with more options, and on more hosts, by tests of their own.
_OTHERS: Final = ("generic_driver", "pci_driver")
#: How often corruption and removal are tried on each host; the longest contract takes 5 s.
_LIMITS: Final = {"rounds": 20, "moments": 25}
#: The nvidia_gpu_driver asks NVML, and reads which types each virtual function can have.
_NVIDIA: Final = {"commands_in_discover": True, "calls": 260}


class _Contract(DriverContract):
    """The contract without its test of health, which needs a device that the test can break."""

    test_health_follows_the_device = None  # type: ignore[assignment]


def with_nvml(one: Subject) -> Subject:
    """Return the subject on the same host with NVML."""

    def make_host() -> FakeHost:
        host = one.make_host()
        host.programs[sys.executable] = Nvml()
        return host

    return replace(one, make_host=make_host)


def classes(driver: str) -> dict[str, type[DriverContract]]:
    """Return the contract of a driver on each host that names it, as classes by name."""
    subjects = subject.load_all(driver, [subject.SCENARIOS], None)
    limits: dict[str, float] = dict(_LIMITS)
    if driver == NvidiaGpuDriver.name:
        subjects, limits = [with_nvml(one) for one in subjects], {**limits, **_NVIDIA}
    words = "".join(part.capitalize() for part in driver.split("_"))
    found = {}
    for name, kind in contracts(subjects, _Contract, **limits).items():  # type: ignore[type-abstract]
        kind.__module__ = __name__
        # The only class of a driver has no name of its own.
        found[name.replace("TestContract", f"Test{words}")] = kind
    return found


_NAMED: Final = {
    driver.name for name in scenario_hosts.names() for driver in scenario_hosts.read(name).drivers
}
for _driver in sorted(_NAMED.difference(_OTHERS)):
    globals().update(classes(_driver))


def test_every_driver_of_the_hosts_is_tested() -> None:
    assert _NAMED.issuperset({*_OTHERS, NvidiaGpuDriver.name})
    assert sum(name.startswith("Test") for name in globals()) >= len(_NAMED) - len(_OTHERS)
