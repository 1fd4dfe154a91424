# SPDX-License-Identifier: Apache-2.0
"""The part of the contract of drivers that holds on every host, with devices for them or without.

It is about the methods that only read.
"""

import contextlib
import functools
import random
from collections.abc import Iterable

from cyborg import exception
from cyborg.drivers.scan import Scan
from cyborg.model.device import SERVICE_UNKNOWN
from cyborg.model.report import DriverState
from cyborg.testing import situations
from cyborg.testing.corruption import corrupt
from cyborg.testing.driver_checks import check_device, look, name_of, readers, sample, verbs
from cyborg.testing.driver_setup import DriverSetup


class ReadingContract(DriverSetup):
    """What holds for every driver on every host; ``found`` says how many devices there are."""

    def test_discovers_the_same_twice(self) -> None:
        """Also with a new driver on the same host, in the order of the keys."""
        host = self.make_host()
        driver = self.driver(host)
        first = self.found(driver)
        again, restarted = look(driver).discover(), look(self.driver(host)).discover()
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
        cards = look(driver).layouts()
        assert cards == look(self.driver(host)).layouts(), (
            "layouts() must answer the same twice on an unchanged host"
        )
        assert [card.card for card in cards] == sorted({card.card for card in cards}), (
            "layouts() must return each card once, in the order of the keys"
        )

    def test_looking_changes_nothing(self) -> None:
        """Also when health and statistics are read, and when units are listed."""
        host = self.make_host()
        before = host.tree()
        driver = self.driver(host)
        for verb in readers(driver, self.found(driver)):
            with contextlib.suppress(exception.CyborgError):
                verb()
            text = name_of(verb)
            assert host.writes == [], f"{text}() must not write to the host, but to {host.writes}"
            flaw = situations.differences(before, host.tree())
            assert not flaw, f"{text}() must not change the host: {flaw}"

    def test_hardware_tells_of_every_device(self) -> None:
        driver = self.driver(self.make_host())
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
        found = list(look(self.driver(host)).backends())
        restarted = list(look(self.driver(host)).backends())
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

    def test_hanging_commands_hold_up_nothing(self) -> None:
        """Each command has a timeout, and verbs that only read the host answer soon."""
        host = self.make_host()
        driver = self.driver(host)
        before = look(driver).discover()
        host.hanging = True
        for number, verb in enumerate(verbs(driver, before)):
            begun = host.clock.monotonic()
            with contextlib.suppress(exception.CyborgError):
                verb()
            if number < 5:
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
        rng = random.Random(self.seed)  # noqa: S311 - repeatable
        clean = self.make_host()
        known = {one.key for one in look(self.driver(clean)).hardware()}
        offered = self.found(self.driver(clean))
        for number in range(self.rounds):
            host = clean.copy()
            broken = [corrupt(host, rng) for _ in range(rng.randint(1, 5))]
            message = f"round {number} of seed {self.seed}: {', '.join(broken)}"
            driver = self.driver(host)
            for verb in verbs(driver, offered[number % max(1, len(offered)) :][:1]):
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

    def test_reading_stays_within_its_budget(self) -> None:
        """The host has many functions, and the scan has been read for another driver."""
        host = self.make_host()
        situations.add_bridges(host, 100)
        scan = Scan(host, all_managed=True)
        first = self.driver(host)
        devices = first.discover(scan)
        first.hardware(scan)
        limit = self.calls + self.calls_per_device * len(devices)
        driver = self.driver(host)
        host.commands.clear()
        for verb, most in (
            (driver.discover, limit),
            (driver.hardware, limit),
            (driver.layouts, limit),
            *(
                (functools.partial(kind, device_key=device.key), self.calls + self.calls_per_device)
                for kind in (driver.signals, driver.stats)
                for device in sample(devices, 3)
            ),
        ):
            text = name_of(verb)
            host.touches = 0
            with contextlib.suppress(exception.CyborgError):
                # signals() may be a generator, which does nothing before its first value.
                answer = verb(scan)
                list(answer if isinstance(answer, Iterable) else ())
            assert host.touches <= most, (
                f"{text}() makes {host.touches} calls beside the scan, and {most} are allowed "
                f"({self.calls}, and {self.calls_per_device} for each device); use what scan has"
            )
            assert text != "discover" or self.commands_in_discover or not host.commands, (
                f"discover() must run no command, but runs {host.commands[0]}; read files, or set "
                "commands_in_discover in the contract"
            )
