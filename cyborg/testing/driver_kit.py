# SPDX-License-Identifier: Apache-2.0
"""The contract that every driver keeps, as tests that its authors run.

``pytest --cyborg-driver my_driver`` runs it for an installed driver. Who tests several hosts or
configurations derives a class whose name starts with ``Test``, says how the host and the driver
are made, and pytest does the rest::

    class TestMyDriver(DriverContract):
        def make_host(self) -> FakeHost:
            return a_server_with_my_card()

        def make_driver(self, host: FakeHost) -> Driver:
            return MyDriver(host, conf)
"""

import abc
import contextlib
import json
import math
import random

import pytest

from cyborg import exception
from cyborg.drivers.base import Driver
from cyborg.model import wire
from cyborg.model.device import Backend, Device, Hardware
from cyborg.model.provider import Provider, provider_uuid
from cyborg.model.report import DriverReport, DriverState, Report
from cyborg.model.work import ProgramTask
from cyborg.testing.corruption import corrupt
from cyborg.testing.driver_checks import (
    DRIVER_NAME,
    WIDE,
    check_device,
    deployables_of,
    everything,
    made_on,
    tasks_for,
    units_of,
    verbs,
)
from cyborg.testing.fake_host import FakeHost


class DriverContract(abc.ABC):
    """What holds for every driver; ``rounds`` and ``seed`` steer the random corruption.

    ``longest_look`` is how long, in seconds, a verb that only looks may wait for commands that
    hang, all together; ``longest_command`` the most that any command may be given.
    """

    rounds = 200
    seed = 2027
    longest_look = 60.0
    longest_command = 3600.0

    @abc.abstractmethod
    def make_host(self) -> FakeHost:
        """A fresh host on which the driver offers at least one device."""

    @abc.abstractmethod
    def make_driver(self, host: FakeHost) -> Driver:
        """A fresh driver on this host, as after a restart of the agent."""

    def found(self, driver: Driver) -> list[Device]:
        """What the driver offers, which must be something."""
        devices = driver.discover()
        assert devices, "there is no device for the driver on its host (see --cyborg-host)"
        return devices

    def test_discovers_the_same_twice(self) -> None:
        """Also with a new driver on the same host, in the order of the keys."""
        host = self.make_host()
        driver = self.make_driver(host)
        first = self.found(driver)
        assert driver.discover() == first
        assert self.make_driver(host).discover() == first
        assert [one.key for one in first] == sorted(one.key for one in first)

    def test_looking_changes_nothing(self) -> None:
        host = self.make_host()
        before = everything(host)
        driver = self.make_driver(host)
        driver.discover()
        driver.hardware()
        assert host.writes == []
        assert everything(host) == before

    def test_facts_cross_the_bus(self) -> None:
        driver = self.make_driver(self.make_host())
        report = Report((DriverReport(driver.name, DriverState.READY, tuple(driver.discover())),))
        again = wire.load(Report, json.loads(json.dumps(wire.dump(report))))
        assert again == report
        assert again.digest() == report.digest()
        for entry in driver.hardware():
            assert wire.load(Hardware, json.loads(json.dumps(wire.dump(entry)))) == entry
        for backend in driver.backends():
            assert wire.load(Backend, json.loads(json.dumps(wire.dump(backend)))) == backend

    def test_names_and_keys_are_unique(self) -> None:
        driver = self.make_driver(self.make_host())
        devices = driver.discover()
        assert 0 < len(driver.name) <= DRIVER_NAME
        for names in (
            [one.key for one in devices],
            [one.name for one in deployables_of(devices)],
            *([handle.key for handle in one.handles] for one in deployables_of(devices)),
        ):
            assert len(set(names)) == len(names)
            assert all(0 < len(name) <= WIDE for name in names)

    def test_devices_are_well_formed(self) -> None:
        for device in self.make_driver(self.make_host()).discover():
            check_device(device)

    def test_placement_takes_every_deployable(self) -> None:
        for one in deployables_of(self.make_driver(self.make_host()).discover()):
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
        for one in found:
            assert one.flaw() is None
            ready = one.offered and not one.setup_required and not one.reboot_required
            assert bool(one.reason) is not ready, f"{one.key}: {one.reason}"

    def test_backends_are_told_alike(self) -> None:
        """Each once, in words that the service knows, and the same after a restart."""
        host = self.make_host()
        found = list(self.make_driver(host).backends())
        assert list(self.make_driver(host).backends()) == found
        assert len({one.name for one in found}) == len(found)
        words = {one.value for one in DriverState}
        for backend in found:
            assert {backend.state, *(one.state for one in backend.services)} <= words
            assert backend.flaw() is None

    def test_shows_what_operators_made(self) -> None:
        """On backends that allow it, or tells why the host cannot have it; and nothing unasked."""
        host = self.make_host()
        before = self.make_driver(host).discover()
        for backend in self.make_driver(host).backends():
            if backend.creates is None:
                continue
            driver = self.make_driver(host)
            device = made_on(backend)
            driver.made = {device.key: device}
            shown = {one.key: one for one in driver.discover()}
            (entry,) = [one for one in driver.hardware() if one.key == device.key]
            assert entry.offered is (device.key in shown)
            if entry.offered:
                found = shown.pop(device.key)
                check_device(found)
                assert (found.made, found.model, found.backend) == (True, "made", backend.name)
                assert found.deployables[0].handles == device.deployables[0].handles
            assert list(shown.values()) == before
            driver.made = {}
            assert driver.discover() == before

    def test_what_is_not_set_up_can_be(self) -> None:
        """Installed twice is as installed once; then nothing but a reboot is still to be done."""
        host = self.make_host()
        driver = self.make_driver(host)
        offered = {one.key for one in driver.discover()}
        for entry in driver.hardware():
            before = everything(host)
            try:
                driver.install(entry.key, f"operation-{entry.key}")
            except exception.CyborgError:
                # By hand, or of no use here; but then nothing was touched.
                assert everything(host) == before
                continue
            after_one = everything(host)
            driver.install(entry.key, f"operation-{entry.key}")
            assert everything(host) == after_one
            assert entry.setup_required or after_one == before
            (now,) = [one for one in driver.hardware() if one.key == entry.key]
            assert not now.setup_required or now.reboot_required
        assert offered <= {one.key for one in self.make_driver(host).discover()}

    def test_prepare_and_release_may_be_repeated(self) -> None:
        """A second call with the operation that is done already changes nothing more."""
        host = self.make_host()
        driver = self.make_driver(host)
        before = driver.discover()
        for task in tasks_for(driver.name, before):
            for verb in (driver.prepare, driver.release):
                verb(task)
                after_one = everything(host)
                verb(task)
                assert everything(host) == after_one
        assert driver.discover() == before

    def test_tells_what_is_prepared_or_that_it_cannot(self) -> None:
        """From prepare until release, whatever has become of the process meanwhile."""
        host = self.make_host()
        driver = self.make_driver(host)
        before = units_of(driver)
        if before is None:
            return
        for task in tasks_for(driver.name, driver.discover()):
            driver.prepare(task)
            assert set(driver.prepared()) == {*before, task.unit}
            assert set(self.make_driver(host).prepared()) == {*before, task.unit}
            driver.release(task)
            assert set(self.make_driver(host).prepared()) == before

    def test_what_it_cannot_do_it_says(self) -> None:
        driver = self.make_driver(self.make_host())
        device = self.found(driver)[0]
        deployable = device.deployables[0]
        assert driver.can_program or not deployable.programmable
        if not driver.can_program:
            task = ProgramTask("operation", driver.name, device.key, deployable.name, "image")
            with pytest.raises(exception.DriverCannot) as caught:
                driver.program(task, "/no/image")
            assert caught.value.fields["driver"] == driver.name

    def test_health_and_figures_or_that_it_cannot(self) -> None:
        driver = self.make_driver(self.make_host())
        for device in driver.discover():
            with contextlib.suppress(exception.DriverCannot):
                health = driver.health(device.key)
                assert bool(health.reason) is not health.healthy
            with contextlib.suppress(exception.DriverCannot):
                stats = driver.stats(device.key)
                assert all(name and math.isfinite(value) for name, value in stats.items())

    def test_hanging_commands_hold_up_nothing(self) -> None:
        """Every command has a time-out; what only looks at the host has answered soon."""
        host = self.make_host()
        driver = self.make_driver(host)
        before = driver.discover()
        host.hanging = True
        for number, verb in enumerate(verbs(driver, before)):
            begun = host.clock.monotonic()
            with contextlib.suppress(exception.CyborgError):
                verb()
            if number < 4:
                assert host.clock.monotonic() - begun <= self.longest_look
        assert all(0 < timeout <= self.longest_command for timeout in host.patience)
        host.hanging = False
        assert driver.discover() == before

    def test_corrupted_hosts_do_no_harm(self) -> None:
        """Whatever the files say, there is an answer or an error of ours, and no odd device."""
        rng = random.Random(self.seed)
        clean = self.make_host()
        known = {one.key for one in self.make_driver(clean).hardware()}
        offered = self.found(self.make_driver(clean))
        for number in range(self.rounds):
            host = clean.copy()
            broken = [corrupt(host, rng) for _ in range(rng.randint(1, 5))]
            message = f"round {number} of seed {self.seed}: {', '.join(broken)}"
            driver = self.make_driver(host)
            for verb in verbs(driver, offered[number % len(offered) :][:1]):
                with contextlib.suppress(exception.CyborgError):
                    verb()
            try:
                devices = driver.discover()
            except exception.CyborgError:
                continue
            for device in devices:
                assert device.key in known, message
                check_device(device)

    def test_hardware_may_be_pulled_while_it_is_read(self) -> None:
        """The others are found as before, whenever it happens; the pulled one is whole or gone."""
        clean = self.make_host()
        devices = self.found(self.make_driver(clean))
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

    def test_hardware_may_be_pulled_before_it_is_worked_on(self) -> None:
        """Whatever is asked about it then ends with an answer or an error of ours."""
        host = self.make_host()
        driver = self.make_driver(host)
        devices = driver.discover()
        for device in devices:
            place = f"/sys/bus/pci/devices/{device.key}"
            if host.exists(place):
                host.remove(host.realpath(place))
                host.remove(place)
        for verb in verbs(driver, devices):
            with contextlib.suppress(exception.CyborgError):
                verb()
