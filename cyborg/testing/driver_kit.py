# SPDX-License-Identifier: Apache-2.0
"""The contract that every driver keeps, as tests that its authors run.

Derive a class whose name starts with ``Test`` from ``DriverContract``, say how the host and the
driver are made, and pytest does the rest::

    class TestMyDriver(DriverContract):
        def make_host(self) -> FakeHost:
            return a_server_with_my_card()

        def make_driver(self, host: FakeHost) -> Driver:
            return MyDriver(host, conf)
"""

import abc
import json
import random
from collections.abc import Iterator

import pytest

from cyborg import exception
from cyborg.drivers.base import Driver
from cyborg.model import wire
from cyborg.model.device import AttachHandle, AttachType, Deployable, Device
from cyborg.model.pci import PciAddress
from cyborg.model.provider import Provider, provider_uuid
from cyborg.model.report import DriverReport, DriverState, Report
from cyborg.model.work import HandleTask, ProgramTask
from cyborg.testing.corruption import corrupt
from cyborg.testing.fake_host import FakeHost

#: Widths of the columns that keep what a driver says.
_WIDE = 255
_DRIVER_NAME = 100


class DriverContract(abc.ABC):
    """What holds for every driver; ``rounds`` and ``seed`` steer the random corruption."""

    rounds = 200
    seed = 2027

    @abc.abstractmethod
    def make_host(self) -> FakeHost:
        """A fresh host on which the driver offers at least one device."""

    @abc.abstractmethod
    def make_driver(self, host: FakeHost) -> Driver:
        """A fresh driver on this host, as after a restart of the agent."""

    def test_discovers_the_same_twice(self) -> None:
        """Also with a new driver on the same host, in the order of the keys."""
        host = self.make_host()
        driver = self.make_driver(host)
        first = driver.discover()
        assert first, "the host of this test must have a device for the driver"
        assert driver.discover() == first
        assert self.make_driver(host).discover() == first
        assert [one.key for one in first] == sorted(one.key for one in first)

    def test_looking_changes_nothing(self) -> None:
        host = self.make_host()
        before = {path: host.content(path) for path in host.paths()}
        driver = self.make_driver(host)
        driver.discover()
        driver.hardware()
        assert host.writes == []
        assert {path: host.content(path) for path in host.paths()} == before

    def test_facts_cross_the_bus(self) -> None:
        driver = self.make_driver(self.make_host())
        report = Report((DriverReport(driver.name, DriverState.READY, tuple(driver.discover())),))
        again = wire.load(Report, json.loads(json.dumps(wire.dump(report))))
        assert again == report
        assert again.digest() == report.digest()

    def test_names_and_keys_are_unique(self) -> None:
        driver = self.make_driver(self.make_host())
        devices = driver.discover()
        assert 0 < len(driver.name) <= _DRIVER_NAME
        for names in (
            [one.key for one in devices],
            [one.name for one in _deployables(devices)],
            *([handle.key for handle in one.handles] for one in _deployables(devices)),
        ):
            assert len(set(names)) == len(names)
            assert all(0 < len(name) <= _WIDE for name in names)

    def test_devices_are_well_formed(self) -> None:
        for device in self.make_driver(self.make_host()).discover():
            check_device(device)

    def test_placement_takes_every_deployable(self) -> None:
        for one in _deployables(self.make_driver(self.make_host()).discover()):
            provider = Provider(
                uuid=provider_uuid(one.name),
                name=one.name,
                resource_class=one.resource_class,
                total=len(one.handles),
                reserved=0,
                traits=frozenset(one.traits),
            )
            assert provider.flaw() is None

    def test_hardware_tells_of_every_device(self) -> None:
        driver = self.make_driver(self.make_host())
        found = driver.hardware()
        offered = {one.key for one in found if one.offered}
        assert {one.key for one in driver.discover()} == offered
        assert len({one.key for one in found}) == len(found)
        assert all(bool(one.reason) is not one.offered for one in found)

    def test_prepare_and_release_may_be_repeated(self) -> None:
        """A second call with the operation that is done already changes nothing more."""
        host = self.make_host()
        driver = self.make_driver(host)
        before = driver.discover()
        for task in _tasks(driver.name, before):
            for verb in (driver.prepare, driver.release):
                verb(task)
                after_one = {path: host.content(path) for path in host.paths()}
                verb(task)
                assert {path: host.content(path) for path in host.paths()} == after_one
        assert driver.discover() == before

    def test_what_it_cannot_do_it_says(self) -> None:
        driver = self.make_driver(self.make_host())
        device = driver.discover()[0]
        deployable = device.deployables[0]
        assert driver.can_program or not deployable.programmable
        if not driver.can_program:
            task = ProgramTask("operation", driver.name, device.key, deployable.name, "image")
            with pytest.raises(exception.DriverCannot) as caught:
                driver.program(task, "/no/image")
            assert caught.value.fields["driver"] == driver.name

    def test_corrupted_hosts_do_no_harm(self) -> None:
        """Whatever the files say, there is an answer or an error of ours, and no odd device."""
        rng = random.Random(self.seed)
        clean = self.make_host()
        known = {one.key for one in self.make_driver(clean).hardware()}
        for number in range(self.rounds):
            host = clean.copy()
            broken = [corrupt(host, rng) for _ in range(rng.randint(1, 5))]
            message = f"round {number} of seed {self.seed}: {', '.join(broken)}"
            try:
                devices = self.make_driver(host).discover()
                self.make_driver(host).hardware()
            except exception.CyborgError:
                continue
            for device in devices:
                assert device.key in known, message
                check_device(device)

    def test_hardware_may_be_pulled_while_it_is_read(self) -> None:
        """The others are found as before, whenever it happens; the pulled one is whole or gone."""
        clean = self.make_host()
        devices = self.make_driver(clean).discover()
        clean.touches = 0
        self.make_driver(clean).discover()
        place = f"/sys/bus/pci/devices/{devices[0].key}"
        if not clean.exists(place):
            return
        for moment in range(0, clean.touches, max(1, clean.touches // 100)):
            host = clean.copy()
            host.touches = 0
            host.vanish(host.realpath(place), after=moment)
            host.vanish(place, after=moment)
            left = self.make_driver(host).discover()
            assert [one for one in left if one.key != devices[0].key] == devices[1:]
            assert all(one in devices for one in left)


def check_device(device: Device) -> None:
    """Assert that one device can be kept, published and handed to Nova."""
    assert device.deployables
    assert set(device.control_path) == {"domain", "bus", "device", "function"}
    assert str(PciAddress.from_info(device.control_path)) == device.key
    assert 0 < len(device.vendor) <= _WIDE
    assert 0 < len(device.model) <= _WIDE
    assert device.numa_node is None or device.numa_node >= 0
    for deployable in device.deployables:
        assert deployable.handles
        assert 0 < len(deployable.driver_name) <= _DRIVER_NAME
        facts = [(one.key, one.value) for one in deployable.attributes]
        assert len(dict(facts)) == len(facts)
        assert dict(facts).get("rc") == deployable.resource_class
        traits = [value for key, value in facts if key.startswith("trait")]
        assert traits == list(deployable.traits)
        for handle in deployable.handles:
            check_handle(handle)


def check_handle(handle: AttachHandle) -> None:
    """Assert that Nova can paste the handle into a guest, and that the key says which it is."""
    for key, value in handle.info.items():
        assert isinstance(key, str)
        assert isinstance(value, str)
    address = str(PciAddress.from_info(handle.info))
    if handle.type is AttachType.MDEV:
        assert handle.key.startswith(f"{address}/")
    else:
        assert handle.key == address


def _deployables(devices: list[Device]) -> list[Deployable]:
    return [one for device in devices for one in device.deployables]


def _tasks(driver: str, devices: list[Device]) -> Iterator[HandleTask]:
    for device in devices:
        for deployable in device.deployables:
            yield HandleTask(
                operation=f"operation-{deployable.name}",
                driver=driver,
                device_key=device.key,
                deployable=deployable.name,
                handle_key=deployable.handles[0].key,
                handle_uuid="6d2f7a7e-3c0e-4a0b-8f0e-0a6a1d7c5b11",
            )
