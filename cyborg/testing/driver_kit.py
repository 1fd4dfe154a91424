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
import functools
import json
import math
import random

import pytest

from cyborg import exception
from cyborg.drivers.base import Driver
from cyborg.drivers.scan import Scan
from cyborg.model import wire
from cyborg.model.device import SERVICE_UNKNOWN, Backend, Device, Hardware
from cyborg.model.provider import Provider, provider_uuid
from cyborg.model.report import DriverReport, DriverState, Report
from cyborg.model.work import HandleTask, ProgramTask
from cyborg.testing import interruption, situations
from cyborg.testing.corruption import corrupt
from cyborg.testing.driver_checks import (
    DRIVER_NAME,
    WIDE,
    check_device,
    deployables_of,
    facts_of,
    functions_of,
    look,
    made_on,
    readers,
    results_of,
    sample,
    tasks_for,
    units_of,
    verbs,
)
from cyborg.testing.fake_host import FakeHost


class DriverContract(abc.ABC):
    """What holds for every driver; ``rounds`` and ``seed`` steer the random corruption.

    ``longest_look`` is how long, in seconds, a verb that only looks may wait for commands and files
    that hang, all together; ``longest_command`` the most that any command may be given.
    ``calls`` and ``calls_per_device`` bound how often a verb that only looks calls the host beside
    what the scan reads. ``commands_in_discover`` says that ``discover`` runs commands.
    ``selects_by_address`` says that the options of the driver name addresses, so that a card in
    another slot is not offered.
    """

    rounds = 200
    seed = 2027
    longest_look = 60.0
    longest_command = 3600.0
    calls = 40
    calls_per_device = 20
    commands_in_discover = False
    selects_by_address = False

    @abc.abstractmethod
    def make_host(self) -> FakeHost:
        """Return a new host on which the driver offers at least one device."""

    @abc.abstractmethod
    def make_driver(self, host: FakeHost) -> Driver:
        """Return a new driver on this host, as after a restart of the agent."""

    def break_device(self, host: FakeHost, key: str) -> None:
        """Let the host show that a device is broken, as ``health`` would see it on a machine."""
        pytest.fail(
            f"health({key}) cannot be tested: derive a class from DriverContract that defines "
            "break_device(host, key) and mend_device(host, key), and name it with "
            "--cyborg-contract=module:Class"
        )

    def mend_device(self, host: FakeHost, key: str) -> None:
        """Take back what ``break_device`` did."""
        self.break_device(host, key)

    def found(self, driver: Driver) -> list[Device]:
        """Return the devices that the driver offers, at least one."""
        devices = look(driver).discover()
        assert devices, "discover() finds no device on the host of the test (see --cyborg-host)"
        return devices

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
            text = getattr(verb, "func", verb).__name__
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

    def test_what_is_in_use_is_not_offered(self) -> None:
        """The kit puts each function that a guest would get into use, in every way it knows."""
        clean = self.make_host()
        offered = functions_of(self.found(self.make_driver(clean)))
        present = [place for place in offered if situations.directory(clean, place)]
        for place in sample(present, 6):
            for use in situations.uses():
                if use.whole and not offered[place]:
                    continue
                host = clean.copy()
                use.arrange(host, place)
                scan = Scan(host, claims=use.claims(place))
                driver = self.make_driver(host)
                assert place not in functions_of(driver.discover(scan)), (
                    f"discover() must not offer {place} when {use.reason}; leave out each function "
                    "for which scan.refusal() returns a reason"
                )

    def test_what_a_guest_has_stays_offered(self) -> None:
        """A bound unit is held through VFIO; without its device the bind would be withdrawn."""
        clean = self.make_host()
        devices = self.found(self.make_driver(clean))
        for device in sample(devices, 4):
            held = functions_of([device])
            if list(held) != [device.key] or not situations.directory(clean, device.key):
                continue
            if not held[device.key]:
                continue
            host = clean.copy()
            situations.hold(host, device.key)
            scan = Scan(host, managed_deployables={part.name for part in device.deployables})
            assert device in self.make_driver(host).discover(scan), (
                f"discover() must return {device.key} unchanged while its guest has it; pass "
                "managed=scan.is_managed(name of the deployable) to scan.refusal()"
            )

    def test_release_restores_the_host(self) -> None:
        """Every file, link and directory is as before, whichever verb was repeated."""
        clean = self.make_host()
        devices = self.found(self.make_driver(clean))
        before = clean.tree()
        for task in sample(list(tasks_for(self.make_driver(clean).name, devices)), 4):
            for verbs_called in (
                ("prepare", "release"),
                ("prepare", "prepare", "release"),
                ("prepare", "release", "release"),
                ("release",),
            ):
                host = clean.copy()
                for verb in verbs_called:
                    getattr(self.make_driver(host), verb)(task)
                flaw = situations.differences(before, host.tree())
                assert not flaw, (
                    f"release({task.handle_key}) must restore the host as it was before prepare(), "
                    f"after {', '.join(verbs_called)}: {flaw}"
                )

    def test_interrupted_work_can_be_repeated(self) -> None:
        """The process ends, or the machine refuses, at each call of prepare and release."""
        clean = self.make_host()
        devices = self.found(self.make_driver(clean))
        names = {part.name for part in deployables_of(devices) if part.prepare}
        tasks = tasks_for(self.make_driver(clean).name, devices)
        for task in [task for task in tasks if task.deployable in names][:1]:
            prepared = self._after(clean, "prepare", task)
            released = self._after(prepared, "release", task)
            expected = {
                "prepare": [prepared.tree()],
                "release": [released.tree(), clean.tree()],
            }
            for verb, start in (("prepare", clean), ("release", prepared)):
                rehearsal = start.copy()
                work = functools.partial(getattr(self.make_driver(rehearsal), verb), task)
                for number in interruption.moments(rehearsal, work, 8):
                    for error in (interruption.Crash(), interruption.failure()):
                        host = start.copy()
                        work = functools.partial(getattr(self.make_driver(host), verb), task)
                        ended = interruption.interrupt(host, work, number, error)
                        text = f"{verb}({task.handle_key}) was interrupted at its call {number}"
                        if ended:
                            assert host.tree() in expected[verb], (
                                f"{text} by an error of the host, and must do all its work or raise"
                            )
                        for again in dict.fromkeys((verb, "release")):
                            tree = self._after(host, again, task).tree()
                            flaw = situations.differences(expected[again][0], tree)
                            assert tree in expected[again], (
                                f"{text}; {again}() must then complete or undo it: {flaw}"
                            )

    def _after(self, host: FakeHost, verb: str, task: HandleTask) -> FakeHost:
        """Return a copy of the host after a verb of a new driver."""
        after = host.copy()
        try:
            getattr(self.make_driver(after), verb)(task)
        except exception.CyborgError as error:
            pytest.fail(f"{verb}({task.handle_key}) must succeed, also when repeated: {error}")
        return after

    def test_health_follows_the_device(self) -> None:
        """The verdict changes when the device breaks, and back, and a removed card has none."""
        host = self.make_host()
        driver = self.make_driver(host)
        if type(driver).health is Driver.health:
            return
        devices = self.found(driver)
        for device in sample(devices, 3):
            key = device.key
            try:
                health = look(driver).health(key)
            except exception.DriverCannot:
                continue
            assert health.healthy, f"health({key}) must be healthy on the host of the test"
            others = [other for other in devices if other.key != key]
            before = results_of(driver, others)
            self.break_device(host, key)
            for kind in (driver, self.make_driver(host)):
                assert not look(kind).health(key).healthy, (
                    f"health({key}) must not be healthy when the device is broken; read the "
                    "device in each call"
                )
            assert results_of(driver, others) == before, (
                f"health() of the other devices must not change when {key} breaks"
            )
            self.mend_device(host, key)
            assert look(driver).health(key).healthy, (
                f"health({key}) must be healthy again when the device works again"
            )
            if situations.directory(host, key):
                gone = host.copy()
                situations.unplug(gone, key)
                with contextlib.suppress(exception.CyborgError):
                    health = look(self.make_driver(gone)).health(key)
                    assert not health.healthy, f"health({key}) must not be healthy without a card"

    def test_moved_card_is_offered_at_its_new_address(self) -> None:
        """Without a restart of the agent and after one; the other devices do not change."""
        clean = self.make_host()
        devices = self.found(self.make_driver(clean))
        present = [device for device in devices if situations.directory(clean, device.key)]
        if not present:
            return
        for device in (present[0], present[-1]):
            others = [other for other in devices if other.key != device.key]
            for place in situations.free_addresses(clean):
                host = clean.copy()
                driver = self.make_driver(host)
                look(driver).discover()
                situations.readdress(host, {device.key: place})
                for kind in (driver, self.make_driver(host)):
                    moved = {entry.key: entry for entry in look(kind).discover()}
                    assert device.key not in moved, (
                        f"discover() must not return {device.key} after its card moved to {place}; "
                        "read the host in each call"
                    )
                    card = moved.pop(place, None)
                    assert list(moved.values()) == others, (
                        f"discover() must return the other devices unchanged when {device.key} "
                        f"moves to {place}; derive names and keys from the address, not from the "
                        "position in a list"
                    )
                    assert self.selects_by_address or card is not None, (
                        f"discover() must return {place} after the card of {device.key} moved there"
                    )
                    if card is not None:
                        check_device(card)

    def test_swapped_cards_are_read_again(self) -> None:
        """Two cards change places, and the first has another NUMA node afterwards."""
        clean = self.make_host()
        devices = self.found(self.make_driver(clean))
        present = [device for device in devices if situations.directory(clean, device.key)]
        pairs = [
            (first, second)
            for number, first in enumerate(present)
            for second in present[number + 1 :]
        ]
        pairs.sort(key=lambda pair: facts_of(pair[0]) == facts_of(pair[1]))
        for first, second in pairs[:1]:
            host = clean.copy()
            driver = self.make_driver(host)
            look(driver).discover()
            situations.readdress(host, {first.key: second.key, second.key: first.key})
            for node in (None, 7):
                if node is not None and first.numa_node is not None:
                    host.add_file(f"{situations.directory(host, first.key)}/numa_node", f"{node}\n")
                fresh = look(self.make_driver(host)).discover()
                assert look(driver).discover() == fresh, (
                    f"discover() must answer as after a restart when {first.key} and {second.key} "
                    "were swapped; keep nothing by address from one call to the next"
                )
                swapped = {device.key: device for device in fresh}
                if self.selects_by_address or node is not None:
                    continue
                for here, there in ((first, second), (second, first)):
                    assert here.key in swapped, f"discover() must return {here.key} after the swap"
                    assert facts_of(swapped[here.key]) == facts_of(there), (
                        f"discover() must return {here.key} with the facts of the card that is "
                        f"there now, {facts_of(there)}, not {facts_of(swapped[here.key])}"
                    )
                assert swapped.keys() == {device.key for device in devices}, (
                    "discover() must return the same keys after two cards were swapped"
                )

    def test_hanging_files_cost_their_device_only(self) -> None:
        """Each file of one card hangs in turn; a few such calls use up the time of a verb."""
        clean = self.make_host()
        devices = self.found(self.make_driver(clean))
        present = [device for device in devices if situations.directory(clean, device.key)]
        for device in present[:1]:
            others = [other for other in devices if other.key != device.key]
            results = results_of(self.make_driver(clean), others)
            place = situations.directory(clean, device.key)
            watched = clean.copy()
            verbs_called = readers(self.make_driver(watched), [device])
            calls = [call for verb in verbs_called for call in interruption.watch(watched, verb)]
            own = sorted({call for call in calls if f"{call}/".startswith(f"{place}/")})
            for path in sample(own, 12):
                host = clean.copy()
                driver = self.make_driver(host)
                with interruption.hanging(host, path.__eq__, self.longest_look / 3):
                    self._check_waiting(host, driver, device, path)
                    self._check_others(driver, device, others, path)
                    assert results_of(driver, others) == results, (
                        f"health() and stats() of the other devices must not change when {path} "
                        "hangs"
                    )

    def test_hanging_tools_cost_their_device_only(self) -> None:
        """Each command that has the address of a device in its words hangs."""
        clean = self.make_host()
        devices = self.found(self.make_driver(clean))
        for device in devices[:1]:
            others = [other for other in devices if other.key != device.key]
            results = results_of(self.make_driver(clean), others)
            host = clean.copy()
            driver = self.make_driver(host)

            def concerns(call: str, key: str = device.key) -> bool:
                return not call.startswith("/sys/") and key in call.partition(" ")[2]

            with interruption.hanging(host, concerns):
                self._check_waiting(host, driver, device, f"a tool for {device.key}")
                self._check_others(driver, device, others, f"a tool for {device.key}")
                assert results_of(driver, others) == results, (
                    "health() and stats() of the other devices must not change when a tool for "
                    f"{device.key} hangs"
                )

    def test_reading_stays_within_its_budget(self) -> None:
        """The host has many functions, and the scan has been read for another driver."""
        host = self.make_host()
        situations.add_bridges(host, 100)
        scan = Scan(host, all_managed=True)
        first = self.make_driver(host)
        devices = first.discover(scan)
        first.hardware(scan)
        limit = self.calls + self.calls_per_device * len(devices)
        driver = self.make_driver(host)
        host.commands.clear()
        for verb, most in (
            (driver.discover, limit),
            (driver.hardware, limit),
            *(
                (functools.partial(kind, device_key=device.key), self.calls + self.calls_per_device)
                for kind in (driver.health, driver.stats)
                for device in sample(devices, 3)
            ),
        ):
            text = getattr(verb, "func", verb).__name__
            host.touches = 0
            with contextlib.suppress(exception.CyborgError):
                verb(scan)
            assert host.touches <= most, (
                f"{text}() makes {host.touches} calls beside the scan, and {most} are allowed "
                f"({self.calls}, and {self.calls_per_device} for each device); use what scan has"
            )
            assert text != "discover" or self.commands_in_discover or not host.commands, (
                f"discover() must run no command, but runs {host.commands[0]}; read files, or set "
                "commands_in_discover in the contract"
            )

    def _check_others(
        self, driver: Driver, device: Device, others: list[Device], cause: str
    ) -> None:
        """Assert that the devices other than this one are offered while something hangs."""
        rule = f"discover() must return the other devices unchanged when {cause} hangs"
        try:
            found = [entry for entry in look(driver).discover() if entry.key != device.key]
        except exception.CyborgError as error:
            pytest.fail(f"{rule}, but fails: {error}")
        assert found == others, rule

    def _check_waiting(self, host: FakeHost, driver: Driver, device: Device, cause: str) -> None:
        """Assert that the verbs that only look end in time while something hangs."""
        for verb in readers(driver, [device]):
            text, begun = getattr(verb, "func", verb).__name__, host.clock.monotonic()
            try:
                with contextlib.suppress(exception.CyborgError):
                    verb()
            except interruption.Crash as stuck:
                pytest.fail(f"{text}() must give up when {cause} hangs: {stuck}")
            waited = host.clock.monotonic() - begun
            assert waited <= self.longest_look, (
                f"{text}() waited {waited:g} s because {cause} hangs; at most "
                f"{self.longest_look:g} s are allowed: report the device as unreadable after the "
                "first call that does not answer"
            )
