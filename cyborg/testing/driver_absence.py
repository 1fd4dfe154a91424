# SPDX-License-Identifier: Apache-2.0
"""The contract of drivers on hosts that have no device for them.

A class of tests derives from it as from ``driver_kit.DriverContract``::

    class TestMyDriverWithoutMyCard(AbsenceContract):
        def make_host(self) -> FakeHost:
            return scenario_hosts.load("e810")
"""

import contextlib
import functools
from collections.abc import Callable, Iterator

import pytest

from cyborg import exception
from cyborg.drivers.base import Driver, ResetLevel
from cyborg.model.device import Device
from cyborg.model.work import HandleTask
from cyborg.testing import situations
from cyborg.testing.driver_checks import change, look, sample, units_of
from cyborg.testing.driver_reading import ReadingContract
from cyborg.testing.fake_host import FakeHost

_FUNCTIONS = "/sys/bus/pci/devices"


class AbsenceContract(ReadingContract):
    """What holds for a driver that must not offer anything on the host of ``make_host``."""

    def found(self, driver: Driver) -> list[Device]:
        """Return the devices that the driver offers, and assert that there are none."""
        devices = look(driver).discover()
        assert not devices, (
            f"discover() must return nothing on a host without a device of the driver, not "
            f"{', '.join(device.key for device in devices)}"
        )
        return devices

    def test_nothing_is_offered_prepared_or_divided(self) -> None:
        driver = self.driver(self.make_host())
        self.found(driver)
        units = units_of(driver)
        assert not units, f"prepared() must list nothing on a host without a device, not {units}"
        cards = [card.card for card in look(driver).layouts()]
        assert not cards, f"layouts() must list nothing on a host without a device, not {cards}"

    def test_other_devices_have_no_health_and_no_figures(self) -> None:
        host = self.make_host()
        driver = self.driver(host)
        for address in self._functions(host):
            with contextlib.suppress(exception.CyborgError):
                health = look(driver).health(address)
                pytest.fail(
                    f"signals({address}) must fail for other devices, not mean {health.condition}"
                )
            with contextlib.suppress(exception.CyborgError):
                stats = look(driver).stats(address)
                assert not stats, f"stats({address}) must be empty for other devices, not {stats}"

    def test_other_devices_are_left_alone(self) -> None:
        """Also when the card of a unit was replaced by another, and the unit is released then."""
        host = self.make_host()
        driver = self.driver(host)
        before = host.tree()
        for address in self._functions(host):
            for verb, call in self._work(driver, address):
                host.writes.clear()
                with contextlib.suppress(exception.CyborgError):
                    call()
                rule = f"{verb}() must not touch {address}, which is another device"
                assert not host.writes, f"{rule}: it writes to {host.writes[0][0]}"
                flaw = situations.differences(before, host.tree())
                assert not flaw, f"{rule}: {flaw}"

    def test_hardware_may_be_pulled_while_it_is_read(self) -> None:
        clean = self.make_host()
        clean.touches = 0
        self.found(self.driver(clean))
        for address in self._functions(clean)[-1:]:
            place = f"{_FUNCTIONS}/{address}"
            for moment in range(0, clean.touches, max(1, clean.touches // self.moments)):
                host = clean.copy()
                host.touches = 0
                host.vanish(host.realpath(place), after=moment)
                host.vanish(place, after=moment)
                self.found(self.driver(host))

    def _functions(self, host: FakeHost) -> list[str]:
        """Return the addresses of some functions of the host."""
        return sample(host.list_dir(_FUNCTIONS), 8) if host.exists(_FUNCTIONS) else []

    def _work(self, driver: Driver, address: str) -> Iterator[tuple[str, Callable[[], object]]]:
        """Yield each verb that changes a device or a unit, with a call of it."""
        task = HandleTask(
            request_key="operation",
            driver=driver.name,
            device_key=address,
            deployable=f"compute-1_{address}",
            handle_key=address,
            handle_uuid="6d2f7a7e-3c0e-4a0b-8f0e-0a6a1d7c5b11",
        )
        yield "install", functools.partial(driver.install, address, task.request_key)
        for verb in ("prepare", "release"):
            yield verb, functools.partial(change, driver, verb, task)
        yield "partition", functools.partial(driver.partition, address, "vfs=1")
        for level in ResetLevel:
            yield "reset", functools.partial(driver.reset, address, level)
