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
import functools
import inspect
import json
import math
import re
import socket

import pytest
from os_resource_classes import STANDARDS

from cyborg import exception
from cyborg.drivers.base import Driver, ImageFile, no_progress
from cyborg.model import wire
from cyborg.model.cleaning import CleanLevel
from cyborg.model.device import Backend, Hardware
from cyborg.model.health import Signal, legible
from cyborg.model.provider import Provider, provider_uuid
from cyborg.model.report import DriverReport, DriverState, Report
from cyborg.model.work import ProgramTask
from cyborg.testing import interruption, situations
from cyborg.testing.driver_checks import (
    DRIVER_NAME,
    WIDE,
    apart,
    change,
    check_device,
    deployables_of,
    look,
    made_on,
    tasks_for,
    units_of,
    verbs,
)
from cyborg.testing.driver_guests import GuestContract
from cyborg.testing.driver_situations import SituationContract
from cyborg.testing.guests import guests_of, names_of

#: The most seconds that a step may take which erases a disk.
LONGEST_ERASURE = 86_400.0
#: Words in the names of options that only the configuration files of a host may set.
_LOCAL_WORD = re.compile(
    r"(?:^|_)(?:address(?:es)?|argv|commands?|devices|devname|dir(?:ectory)?|files?|force|library|"
    r"module|paths?|program|script|socket|spec|whitelist)(?:_|$)"
)


class DriverContract(SituationContract, GuestContract):
    """What holds for every driver; hooks and limits are those of ``DriverSetup``."""

    def test_remote_options_leave_the_host_to_root(self) -> None:
        """The names of ``remote_options`` select no devices and name nothing that is run or read.

        A request over the API would otherwise reach devices and files that belong to the host.
        """
        kind = type(self.driver(self.make_host()))
        names = kind.remote_options
        assert isinstance(names, frozenset), (
            f"remote_options of {kind.__name__} must be a frozenset of names of options"
        )
        wrong = sorted(name for name in names if _LOCAL_WORD.search(name))
        assert not wrong, (
            f"remote_options of {kind.__name__} must not have {', '.join(wrong)}: only the "
            "configuration files of the host may name devices, commands, paths and libraries"
        )

    def test_facts_cross_the_bus(self) -> None:
        driver = self.driver(self.make_host())
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
        driver = self.driver(self.make_host())
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
        for device in look(self.driver(self.make_host())).discover():
            check_device(device)
            flaw = device.validate()
            assert flaw is None, f"device {device.key} cannot be stored: {flaw}"

    def test_placement_takes_every_deployable(self) -> None:
        for one in deployables_of(look(self.driver(self.make_host())).discover()):
            provider = Provider(
                uuid=provider_uuid(one.name),
                name=one.name,
                resource_class=one.resource_class,
                total=len(one.handles),
                reserved=0,
                traits=frozenset(one.traits),
                group_size=one.group_size,
            )
            flaw = provider.validate()
            assert flaw is None, f"Placement refuses deployable {one.name}: {flaw}"
            assert one.resource_class in STANDARDS or one.resource_class.startswith("CUSTOM_"), (
                f"deployable {one.name}: resource class {one.resource_class} must be one of the "
                "standard classes (os_resource_classes.STANDARDS), or begin with CUSTOM_"
            )

    def test_deployables_of_two_hosts_differ(self) -> None:
        """The name identifies the resource provider in the whole cloud.

        Drivers of the existing service use the name of the machine; allocations refer to it.
        """
        for one in deployables_of(look(self.driver(self.make_host())).discover()):
            assert self.host_name in one.name or socket.gethostname() in one.name, (
                f"deployable {one.name}: the name must contain that of the host, {self.host_name} "
                "(option [DEFAULT] host), or two hosts share one resource provider"
            )

    def test_shows_what_operators_made(self) -> None:
        """On backends that allow it, or tells why the host cannot have it; and nothing unasked."""
        host = self.make_host()
        before = look(self.driver(host)).discover()
        for backend in look(self.driver(host)).backends():
            if backend.creates is None:
                continue
            driver = self.driver(host)
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
        driver = self.driver(host)
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
        left = {device.key for device in look(self.driver(host)).discover()}
        assert offered <= left, f"install() must keep devices offered; missing: {offered - left}"

    def test_prepare_and_release_may_be_repeated(self) -> None:
        """A second call with the same request key changes nothing more."""
        host = self.make_host()
        driver = self.driver(host)
        before = look(driver).discover()
        for task in tasks_for(driver.name, before):
            for verb in ("prepare", "release"):
                change(driver, verb, task)
                after_one = host.tree()
                change(driver, verb, task)
                assert host.tree() == after_one, (
                    f"{verb}({task.handle_key}) a second time must change nothing"
                )
        assert look(driver).discover() == before, (
            "release() must leave the devices as before prepare()"
        )

    def test_tells_what_is_prepared_or_that_it_cannot(self) -> None:
        """From prepare until release, whatever has become of the process meanwhile.

        The other units that its guest takes with a unit (``group_size``) may be shown with it.
        """
        host = self.make_host()
        driver = self.driver(host)
        before = units_of(driver)
        if before is None:
            return
        for guest in guests_of(driver.name, look(driver).discover()):
            for task in guest.tasks:
                driver.prepare(task)
                names = names_of(task)
                together = set().union(*(names_of(other) for other in guest.tasks)) - names
                expected = [{*before - names, name} for name in names]
                assert set(look(driver).prepared()) - together in expected, (
                    f"prepared() must show {task.handle_key} after prepare()"
                )
                assert set(look(self.driver(host)).prepared()) - together in expected, (
                    f"prepared() must show {task.handle_key} after a restart of the agent"
                )
                change(driver, "release", task)
                assert set(look(self.driver(host)).prepared()) == before - names, (
                    f"prepared() must not show {task.handle_key} after release(); read on the "
                    "host which units are prepared"
                )
                before -= names

    def test_clean_steps_are_valid_and_run(self) -> None:
        """They are listed without a change, and only for units that are prepared or cleaned."""
        host = self.make_host()
        driver = self.driver(host)
        devices = look(driver).discover()
        parts = deployables_of(devices)
        cleaned = {part.name for part in parts if part.prepare or part.clean is not None}
        before = host.tree()
        for task in tasks_for(driver.name, devices):
            steps = driver.clean_steps(task)
            assert host.tree() == before, "clean_steps() must change nothing"
            text = f"clean_steps({task.handle_key})"
            assert not steps or task.deployable in cleaned, (
                f"{text}: deployable {task.deployable} must have prepare=True or clean, or they "
                "never run"
            )
            names = [step.name for step in steps]
            assert len(set(names)) == len(names), f"{text}: names must be unique: {names}"
            for step in steps:
                readable = step.name.isprintable() and 0 < len(step.name) <= WIDE
                assert readable, (
                    f"{text}: the name {step.name!r} must have 1 to {WIDE} printable characters"
                )
                erases = step.level is CleanLevel.FULL
                longest = LONGEST_ERASURE if erases else self.longest_command
                assert 0 < step.timeout <= longest, (
                    f"{text}: step {step.name} needs a timeout of at most {longest:g}"
                )

    def test_progress_can_be_told(self) -> None:
        """Each method that changes the host takes a progress, and tells it in parts of one."""
        driver = self.driver(self.make_host())
        for verb in ("install", "prepare", "release", "reset", "program", "partition"):
            arguments = inspect.signature(getattr(Driver, verb)).parameters.values()
            given = [each for each in arguments if each.kind is each.POSITIONAL_OR_KEYWORD][1:]
            try:
                inspect.signature(getattr(driver, verb)).bind(*given, progress=no_progress)
            except TypeError as error:
                pytest.fail(f"{verb}() must take the arguments of Driver.{verb}: {error}")
        told: list[tuple[float, str]] = []
        for task in tasks_for(driver.name, look(driver).discover()):
            for verb in ("prepare", "release"):
                change(driver, verb, task, progress=lambda *progress: told.append(progress))
                for done, step in told:
                    assert 0 <= done <= 1, (
                        f"{verb}() must tell its progress as a number from 0 to 1, not {done}"
                    )
                    assert step.isprintable(), (
                        f"{verb}() must tell what it does as printable text, not {step!r}"
                    )

    def test_an_image_that_comes_with_prepare_is_loaded(self) -> None:
        host = self.make_host()
        driver = self.driver(host)
        devices = look(driver).discover()
        programmable = {part.name for part in deployables_of(devices) if part.programmable}
        for task in tasks_for(driver.name, devices):
            if task.deployable not in programmable:
                continue
            image = ImageFile("cb9f4a5e-8d3c-4b53-9f8b-0d2c7b1f3a11", "/var/lib/images/image")
            host.add_file(image.path, "data")
            prepare = functools.partial(driver.prepare, task, image)
            assert any(image.path in call for call in interruption.watch(host, prepare)), (
                f"prepare({task.handle_key}) must load the image that comes with it; call "
                "super().prepare() first"
            )

    def test_what_it_cannot_do_it_says(self) -> None:
        driver = self.driver(self.make_host())
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
        driver = self.driver(self.make_host())
        for device in look(driver).discover():
            with contextlib.suppress(exception.DriverCannot):
                for signal in look(driver).signals(device.key):
                    where = f"signals({device.key})"
                    assert isinstance(signal, Signal), (
                        f"{where} must yield cyborg.drivers.base.Signal, not {signal!r}"
                    )
                    assert legible(signal.evidence) == signal.evidence, (
                        f"{where}: the evidence must be one printable line, not {signal.evidence!r}"
                    )
            with contextlib.suppress(exception.DriverCannot):
                stats = look(driver).stats(device.key)
                assert all(name and math.isfinite(value) for name, value in stats.items()), (
                    f"stats({device.key}) must return names with finite numbers, not {stats}"
                )

    def test_hardware_may_be_pulled_while_it_is_read(self) -> None:
        """The other devices are found as before; the removed one is complete or missing."""
        clean = self.make_host()
        devices = self.found(self.driver(clean))
        clean.touches = 0
        look(self.driver(clean)).discover()
        place = f"/sys/bus/pci/devices/{devices[0].key}"
        if not clean.exists(place):
            return
        for moment in range(0, clean.touches, max(1, clean.touches // self.moments)):
            host = clean.copy()
            host.touches = 0
            host.vanish(host.realpath(place), after=moment)
            host.vanish(place, after=moment)
            left = look(self.driver(host)).discover()
            others = [device for device in left if device.key != devices[0].key]
            assert apart(others) == apart(devices[1:]), (
                f"discover() must return the other devices when {devices[0].key} vanishes"
            )
            known = apart(devices)
            assert all(device in known for device in apart(left)), (
                f"discover() must return {devices[0].key} whole or not at all when it vanishes"
            )

    def test_hardware_may_be_pulled_before_it_is_worked_on(self) -> None:
        """Whatever is asked about it then ends with an answer or an error of ours."""
        host = self.make_host()
        driver = self.driver(host)
        devices = look(driver).discover()
        for device in devices:
            situations.unplug(host, device.key)
        for verb in verbs(driver, devices):
            with contextlib.suppress(exception.CyborgError):
                verb()
