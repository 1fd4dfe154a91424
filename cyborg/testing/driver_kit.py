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

import contextlib
import json
import math
import random

import pytest

from cyborg import exception
from cyborg.drivers.scan import Scan
from cyborg.model import wire
from cyborg.model.device import SERVICE_UNKNOWN, Backend, Hardware
from cyborg.model.provider import Provider, provider_uuid
from cyborg.model.report import DriverReport, DriverState, Report
from cyborg.model.work import ProgramTask
from cyborg.testing import situations
from cyborg.testing.corruption import corrupt
from cyborg.testing.driver_checks import (
    DRIVER_NAME,
    WIDE,
    check_device,
    deployables_of,
    look,
    made_on,
    name_of,
    readers,
    tasks_for,
    units_of,
    verbs,
)
from cyborg.testing.driver_situations import SituationContract


class DriverContract(SituationContract):
    """What holds for every driver; hooks and limits are those of ``DriverSetup``."""

    def test_discovers_the_same_twice(self) -> None:
        """Also with a new driver on the same host, in the order of the keys."""
        host = self.make_host()
        driver = self.make_driver(host)
        first = self.found(driver)
        again, restarted = look(driver).discover(), look(self.make_driver(host)).discover()
        assert again == first, "discover() must answer the same twice on an unchanged host"
        assert restarted == first, "discover() must answer the same after a restart of the agent"
        keys = [device.key for device in first]
        assert keys == sorted(keys), "discover() must return the devices in the order of their keys"
        scan = Scan(host)
        assert driver.discover(scan) == driver.discover(scan) == first, (
            "discover() must answer the same twice for one scan"
        )
        assert look(driver).hardware() == look(driver).hardware(), (
            "hardware() must answer the same twice on an unchanged host"
        )

    def test_looking_changes_nothing(self) -> None:
        """Also when health and statistics are read, and when units are listed."""
        host = self.make_host()
        before = host.tree()
        driver = self.make_driver(host)
        for verb in readers(driver, self.found(driver)):
            with contextlib.suppress(exception.CyborgError):
                verb()
            text = name_of(verb)
            assert host.writes == [], f"{text}() must not write to the host, but to {host.writes}"
            flaw = situations.differences(before, host.tree())
            assert not flaw, f"{text}() must not change the host: {flaw}"

    def test_facts_cross_the_bus(self) -> None:
        driver = self.make_driver(self.make_host())
        report = Report(
            (DriverReport(driver.name, DriverState.READY, tuple(look(driver).discover())),)
        )
        again = wire.load(Report, json.loads(json.dumps(wire.dump(report))))
        assert again == report, "every value of a device must be plain JSON of the declared type"
        assert again.digest() == report.digest(), "a device's values must survive JSON unchanged"
        for entry in look(driver).hardware():
            copy = wire.load(Hardware, json.loads(json.dumps(wire.dump(entry))))
            assert copy == entry, f"hardware {entry.key}: every value must be plain JSON"
        for backend in look(driver).backends():
            sent = wire.load(Backend, json.loads(json.dumps(wire.dump(backend))))
            assert sent == backend, f"backend {backend.name}: every value must be plain JSON"

    def test_names_and_keys_are_unique(self) -> None:
        driver = self.make_driver(self.make_host())
        devices = look(driver).discover()
        assert 0 < len(driver.name) <= DRIVER_NAME, f"name must have 1 to {DRIVER_NAME} characters"
        for what, names in (
            ("keys of devices", [device.key for device in devices]),
            ("names of deployables", [part.name for part in deployables_of(devices)]),
            *(
                (f"keys of the handles of {part.name}", [handle.key for handle in part.handles])
                for part in deployables_of(devices)
            ),
        ):
            assert len(set(names)) == len(names), f"{what} must be unique: {names}"
            fit = all(0 < len(name) <= WIDE for name in names)
            assert fit, f"{what} must have 1 to {WIDE} characters: {names}"

    def test_devices_are_well_formed(self) -> None:
        for device in look(self.make_driver(self.make_host())).discover():
            check_device(device)

    def test_placement_takes_every_deployable(self) -> None:
        for one in deployables_of(look(self.make_driver(self.make_host())).discover()):
            provider = Provider(
                uuid=provider_uuid(one.name),
                name=one.name,
                resource_class=one.resource_class,
                total=len(one.handles),
                reserved=0,
                traits=frozenset(one.traits),
            )
            flaw = provider.validate()
            assert flaw is None, f"Placement refuses deployable {one.name}: {flaw}"

    def test_hardware_tells_of_every_device(self) -> None:
        driver = self.make_driver(self.make_host())
        found = look(driver).hardware()
        offered = {one.key for one in found if one.offered}
        discovered = {device.key for device in look(driver).discover()}
        assert discovered == offered, "hardware() must mark as offered what discover() returns"
        keys = [entry.key for entry in found]
        assert len(set(keys)) == len(keys), f"hardware() must return each key once: {keys}"
        for entry in found:
            flaw = entry.validate()
            assert flaw is None, f"hardware {entry.key} cannot be stored: {flaw}"
            ready = entry.offered and not entry.setup_required and not entry.reboot_required
            assert bool(entry.reason) is not ready, (
                f"hardware {entry.key}: reason must say why it cannot be used now, and must be "
                f"None when it can; it is {entry.reason!r}"
            )

    def test_backends_are_told_alike(self) -> None:
        """Each backend is listed once, in valid terms, and equally after a restart."""
        host = self.make_host()
        found = list(look(self.make_driver(host)).backends())
        restarted = list(look(self.make_driver(host)).backends())
        assert restarted == found, "backends() must answer the same after a restart of the agent"
        names = [backend.name for backend in found]
        assert len(set(names)) == len(names), f"backends() must return each name once: {names}"
        words = {one.value for one in DriverState}
        for backend in found:
            states = {service.state for service in backend.services}
            assert {backend.state} <= words, (
                f"backend {backend.name}: state must be one of {', '.join(sorted(words))}"
            )
            assert states <= words | {SERVICE_UNKNOWN}, (
                f"backend {backend.name}: the states of services must be among "
                f"{', '.join(sorted(words | {SERVICE_UNKNOWN}))}; they are {sorted(states)}"
            )
            flaw = backend.validate()
            assert flaw is None, f"backend {backend.name} cannot be stored: {flaw}"

    def test_shows_what_operators_made(self) -> None:
        """On backends that allow it, or tells why the host cannot have it; and nothing unasked."""
        host = self.make_host()
        before = look(self.make_driver(host)).discover()
        for backend in look(self.make_driver(host)).backends():
            if backend.creates is None:
                continue
            driver = self.make_driver(host)
            device = made_on(backend)
            driver.operator_created = {device.key: device}
            shown = {one.key: one for one in look(driver).discover()}
            entries = [entry for entry in look(driver).hardware() if entry.key == device.key]
            assert len(entries) == 1, "hardware() must show each created device once"
            (entry,) = entries
            assert entry.offered is (device.key in shown), (
                "hardware() and discover() must agree whether a created device is offered"
            )
            if entry.offered:
                found = shown.pop(device.key)
                check_device(found)
                facts = (found.operator_created, found.model, found.backend)
                assert facts == (True, "made", backend.name), (
                    f"discover() must return a created device with its own facts, not {facts}"
                )
                assert found.deployables[0].handles == device.deployables[0].handles, (
                    "discover() must return a created device with the handles that were given"
                )
            assert list(shown.values()) == before, "a created device must not change the others"
            driver.operator_created = {}
            assert look(driver).discover() == before, "a removed device must not be discovered"

    def test_what_is_not_set_up_can_be(self) -> None:
        """Installed twice is as installed once; then nothing but a reboot is still to be done."""
        host = self.make_host()
        driver = self.make_driver(host)
        offered = {one.key for one in look(driver).discover()}
        for entry in look(driver).hardware():
            before = host.tree()
            try:
                driver.install(entry.key, f"operation-{entry.key}")
            except exception.CyborgError:
                # By hand, or of no use here; but then nothing was touched.
                assert host.tree() == before, (
                    f"install({entry.key}) failed and must then leave the host unchanged"
                )
                continue
            after_one = host.tree()
            driver.install(entry.key, f"operation-{entry.key}")
            assert host.tree() == after_one, (
                f"install({entry.key}) a second time must change nothing"
            )
            assert entry.setup_required or after_one == before, (
                f"install({entry.key}) must change nothing on hardware that needs no set-up"
            )
            (now,) = [other for other in look(driver).hardware() if other.key == entry.key]
            assert not now.setup_required or now.reboot_required, (
                f"after install({entry.key}) hardware() must not say setup_required"
            )
        left = {device.key for device in look(self.make_driver(host)).discover()}
        assert offered <= left, f"install() must keep devices offered; missing: {offered - left}"

    def test_prepare_and_release_may_be_repeated(self) -> None:
        """A second call with the same request key changes nothing more."""
        host = self.make_host()
        driver = self.make_driver(host)
        before = look(driver).discover()
        for task in tasks_for(driver.name, before):
            for verb in (driver.prepare, driver.release):
                verb(task)
                after_one = host.tree()
                verb(task)
                assert host.tree() == after_one, (
                    f"{verb.__name__}({task.handle_key}) a second time must change nothing"
                )
        assert look(driver).discover() == before, (
            "release() must leave the devices as before prepare()"
        )

    def test_tells_what_is_prepared_or_that_it_cannot(self) -> None:
        """From prepare until release, whatever has become of the process meanwhile."""
        host = self.make_host()
        driver = self.make_driver(host)
        before = units_of(driver)
        if before is None:
            return
        for task in tasks_for(driver.name, look(driver).discover()):
            driver.prepare(task)
            expected = {*before, task.unit}
            assert set(look(driver).prepared()) == expected, (
                f"prepared() must show {task.handle_key} after prepare()"
            )
            assert set(look(self.make_driver(host)).prepared()) == expected, (
                f"prepared() must show {task.handle_key} after a restart of the agent"
            )
            driver.release(task)
            assert set(look(self.make_driver(host)).prepared()) == before, (
                f"prepared() must not show {task.handle_key} after release()"
            )

    def test_what_it_cannot_do_it_says(self) -> None:
        driver = self.make_driver(self.make_host())
        device = self.found(driver)[0]
        deployable = device.deployables[0]
        assert driver.can_program or not deployable.programmable, (
            "a driver without can_program must not report programmable deployables"
        )
        if not driver.can_program:
            task = ProgramTask("operation", driver.name, device.key, deployable.name, "image")
            with pytest.raises(exception.DriverCannot) as caught:
                driver.program(task, "/no/image")
            assert caught.value.fields["driver"] == driver.name, (
                "DriverCannot must name the driver; call self._cannot()"
            )

    def test_health_and_figures_or_that_it_cannot(self) -> None:
        driver = self.make_driver(self.make_host())
        for device in look(driver).discover():
            with contextlib.suppress(exception.DriverCannot):
                health = look(driver).health(device.key)
                assert bool(health.reason) is not health.healthy, (
                    f"health({device.key}): reason must be given exactly when it is not healthy"
                )
            with contextlib.suppress(exception.DriverCannot):
                stats = look(driver).stats(device.key)
                assert all(name and math.isfinite(value) for name, value in stats.items()), (
                    f"stats({device.key}) must return names with finite numbers, not {stats}"
                )

    def test_hanging_commands_hold_up_nothing(self) -> None:
        """Each command has a timeout, and verbs that only read the host answer soon."""
        host = self.make_host()
        driver = self.make_driver(host)
        before = look(driver).discover()
        host.hanging = True
        for number, verb in enumerate(verbs(driver, before)):
            begun = host.clock.monotonic()
            with contextlib.suppress(exception.CyborgError):
                verb()
            if number < 4:
                waited = host.clock.monotonic() - begun
                assert waited <= self.longest_look, (
                    f"a verb that only looks waited {waited:g} s for commands that hang; at most "
                    f"{self.longest_look:g} s are allowed"
                )
        assert all(0 < timeout <= self.longest_command for timeout in host.patience), (
            f"every command needs a timeout of at most {self.longest_command:g} s"
        )
        host.hanging = False
        assert look(driver).discover() == before, (
            "after commands hung, discover() must answer as before"
        )

    def test_corrupted_hosts_do_no_harm(self) -> None:
        """Whatever the files say, there is an answer or an error of ours, and no odd device."""
        rng = random.Random(self.seed)
        clean = self.make_host()
        known = {one.key for one in look(self.make_driver(clean)).hardware()}
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
                devices = look(driver).discover()
            except exception.CyborgError:
                continue
            for device in devices:
                assert device.key in known, (
                    f"discover() returned {device.key}, which hardware() of the intact host does "
                    f"not have; {message}"
                )
                check_device(device)

    def test_hardware_may_be_pulled_while_it_is_read(self) -> None:
        """The other devices are found as before; the removed one is complete or missing."""
        clean = self.make_host()
        devices = self.found(self.make_driver(clean))
        clean.touches = 0
        look(self.make_driver(clean)).discover()
        place = f"/sys/bus/pci/devices/{devices[0].key}"
        if not clean.exists(place):
            return
        for moment in range(0, clean.touches, max(1, clean.touches // 100)):
            host = clean.copy()
            host.touches = 0
            host.vanish(host.realpath(place), after=moment)
            host.vanish(place, after=moment)
            left = look(self.make_driver(host)).discover()
            others = [device for device in left if device.key != devices[0].key]
            assert others == devices[1:], (
                f"discover() must return the other devices when {devices[0].key} vanishes"
            )
            assert all(device in devices for device in left), (
                f"discover() must return {devices[0].key} whole or not at all when it vanishes"
            )

    def test_hardware_may_be_pulled_before_it_is_worked_on(self) -> None:
        """Whatever is asked about it then ends with an answer or an error of ours."""
        host = self.make_host()
        driver = self.make_driver(host)
        devices = look(driver).discover()
        for device in devices:
            situations.unplug(host, device.key)
        for verb in verbs(driver, devices):
            with contextlib.suppress(exception.CyborgError):
                verb()
