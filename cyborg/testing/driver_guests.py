# SPDX-License-Identifier: Apache-2.0
"""The part of the contract of drivers that is about several guests on one host."""

import contextlib
import warnings
from collections.abc import Sequence

import pytest

from cyborg import exception
from cyborg.drivers.base import Driver
from cyborg.model.cleaning import CleanLevel
from cyborg.model.device import AttachType
from cyborg.testing import situations
from cyborg.testing.driver_checks import (
    change,
    deployables_of,
    look,
    readers,
    sample,
    units_of,
)
from cyborg.testing.driver_reading import ReadingContract
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.guests import Guest, fitting, guests_of, own_changes, pairs, trespass

#: How many guests the kit puts on one device at most.
_MANY = 64
#: How to have clean steps judged.
_HOOKS = (
    "derive a class from DriverContract that defines dirty_unit(host, task) and is_clean(host, "
    "task), and name it with --cyborg-contract=module:Class"
)


class NotJudgedWarning(UserWarning):
    """The contract cannot tell whether the driver keeps a rule; the text says what would help."""


class GuestContract(ReadingContract):
    """What holds for every driver when several guests have units of its devices."""

    def test_guests_do_not_meet(self) -> None:
        """Two drivers are at work, as before and after a restart of the agent."""
        clean = self.make_host()
        guests = self._guests(clean)
        together = pairs(guests)
        if not together:
            self._say_not_judged(
                self.driver(clean),
                f"the host has room for one guest, with {guests[0].text}",
                "what the work for one guest does to others",
                "name a host with two units",
            )
        for first, second in together:
            alone = clean.copy()
            self._serve(alone, self.driver(alone), "prepare", second, guests=guests)
            host = clean.copy()
            one, two = self.driver(host), self.driver(host)
            self._serve(host, one, "prepare", first, guests=guests)
            before = host.tree()
            mine = situations.changed(clean.tree(), before)
            self._serve(host, two, "prepare", second, guests=guests)
            both = host.tree()
            yours = own_changes(before, both) - mine
            # What both change, such as the number of free parts of a card, belongs to neither.
            mine -= situations.changed(clean.tree(), alone.tree())
            flaw = situations.differences(before, both, mine)
            assert not flaw, (
                f"prepare() for a guest with {second.text} must change nothing of the unit of "
                f"another guest, which has {first.text}: {flaw}"
            )
            self._check_prepared([one, two], [first, second])
            self._serve(host, one, "release", first, guests=guests)
            flaw = situations.differences(both, host.tree(), yours)
            assert not flaw, (
                f"release() of {first.text} must change nothing of the unit of another guest, "
                f"which has {second.text}: {flaw}"
            )
            self._check_prepared([one, two, self.driver(host)], [second])

    def test_all_units_can_be_given_out(self) -> None:
        """No function is a unit twice, and the host has room for all that the pools allow."""
        clean = self.make_host()
        devices = self.found(self.driver(clean))
        numbers = {entry.key: entry.num for entry in look(self.driver(clean)).hardware()}
        names: dict[str, str] = {}
        for part in deployables_of(devices):
            for handle in part.handles:
                if handle.type is AttachType.PCI and not part.cost:
                    former = names.setdefault(handle.key, part.name)
                    assert former == part.name, (
                        f"{handle.key} must be a unit of one deployable, not of {former} and of "
                        f"{part.name}: two guests would get it; give the device pools and each "
                        "deployable a cost if its units exclude each other"
                    )
        for device in sample(devices, 2):
            units = sum(len(part.handles) for part in device.deployables)
            assert device.pools or numbers[device.key] == units, (
                f"hardware {device.key}: num must be the number of units that discover() returns, "
                f"{units}, not {numbers[device.key]}"
            )
            own = guests_of(self.driver(clean).name, [device])
            for order in (own, own[::-1]):
                self._fill(clean, fitting(order)[:_MANY])

    def _fill(self, clean: FakeHost, guests: Sequence[Guest]) -> None:
        """Prepare the units of one device for these guests."""
        host = clean.copy()
        driver = self.driver(host)
        for number, guest in enumerate(guests):
            try:
                self._serve(host, driver, "prepare", guest, guests=guests)
            except exception.CyborgError as error:
                pytest.fail(
                    f"prepare() of {guest.text} must succeed after {number} other guests of the "
                    f"device: discover() returns {len(guests)} groups of units that fit together; "
                    f"return fewer units, or say with pools and cost which fit: {error}"
                )
        self._check_prepared([driver], guests)

    def test_units_of_a_card_have_the_name_that_other_drivers_use(self) -> None:
        """By it the service refuses a card that two drivers report, which two guests would get."""
        devices = self.found(self.driver(self.make_host()))
        for key, part in ((one.key, part) for one in devices for part in one.deployables):
            handle, *others = part.handles
            if others or handle.type is not AttachType.PCI or part.cost:
                continue
            # A card with several functions has the name of the function that stands for it.
            assert part.name.endswith((handle.key, key)), (
                f"deployable {part.name}: the name must be the host, an underscore and the address "
                f"of the function, {handle.key}, as that of pci_driver: only by the name does the "
                "service notice that two drivers offer one card"
            )

    def test_full_cleaning_erases_the_data_of_its_guest_alone(self) -> None:
        """``dirty_unit`` and ``is_clean`` of the contract judge the steps of level FULL."""
        clean = self.make_host()
        guests = self._guests(clean)
        for guest in sample(guests, 4):
            host = clean.copy()
            driver = self.driver(host)
            task = guest.tasks[0]
            steps = [
                step.name for step in driver.clean_steps(task) if step.level is CleanLevel.FULL
            ]
            if not steps:
                continue
            text = f"clean_steps({task.handle_key}): {', '.join(steps)}"
            others = [other for other in guests if other.device != guest.device][:1]
            for one in (guest, *others):
                self._work(driver, "prepare", one)
            if not self.dirty_unit(host, task):
                self._say_not_judged(driver, text, "whether data is erased", _HOOKS)
                return
            others = [other for other in others if self.dirty_unit(host, other.tasks[0])]
            assert not self.is_clean(host, task), (
                f"is_clean({task.handle_key}) must be False after dirty_unit()"
            )
            self._work(driver, "release", guest)
            assert self.is_clean(host, task), (
                f"{text} must erase the data of the guest, and is_clean() says that it is still "
                "there; a step that cannot erase must raise an error, so that the unit is not "
                "given out"
            )
            for other in others:
                assert not self.is_clean(host, other.tasks[0]), (
                    f"{text} must not erase the data of another guest, which has {other.text}"
                )

    def _say_not_judged(self, driver: Driver, text: str, what: str, remedy: str) -> None:
        warnings.warn(
            f"{driver.name}: {text}: {what} is not judged; {remedy}",
            NotJudgedWarning,
            stacklevel=2,
        )

    def _guests(self, host: FakeHost) -> list[Guest]:
        driver = self.driver(host)
        return guests_of(driver.name, self.found(driver))

    def _serve(
        self, host: FakeHost, driver: Driver, verb: str, guest: Guest, *, guests: Sequence[Guest]
    ) -> None:
        """Prepare or release the units of a guest, and assert that no other unit was reached."""
        before = host.copy()
        for log in (host.writes, host.commands, host.actions):
            log.clear()
        self._work(driver, verb, guest)
        others = [other for other in guests if other != guest]
        flaw = trespass(before, host, guest, others, looks=self._commands_of_looking)
        assert not flaw, (
            f"{verb}() of {guest.text} must not reach for the unit of another guest, but {flaw}; "
            "work on the device and the handle of the task only"
        )

    def _commands_of_looking(self, host: FakeHost) -> set[tuple[str, ...]]:
        """Return the commands that a driver runs when it only looks; they may name all devices."""
        watched = host.copy()
        watched.commands.clear()
        for verb in readers(self.driver(watched), []):
            with contextlib.suppress(exception.CyborgError):
                verb()
        return set(watched.commands)

    def _work(self, driver: Driver, verb: str, guest: Guest) -> None:
        for task in guest.tasks:
            change(driver, verb, task)

    def _check_prepared(self, drivers: Sequence[Driver], guests: Sequence[Guest]) -> None:
        """Assert that each of the drivers lists the units of all guests."""
        for driver in drivers:
            units = units_of(driver)
            for guest in guests:
                assert units is None or not guest.deployable.prepare or guest.is_among(units), (
                    f"prepared() must list {guest.text} until it is released, whatever is done for "
                    "other guests"
                )
