# SPDX-License-Identifier: Apache-2.0
"""The part of the contract of drivers that is about hosts in situations of their own.

Cards are in use, move, break or hang, and the work on them is interrupted.
"""

import contextlib
import functools
from dataclasses import replace

import pytest

from cyborg import exception
from cyborg.drivers.base import Driver
from cyborg.drivers.scan import Scan
from cyborg.model.device import Device, merge_identity
from cyborg.model.health import OFFERED, Condition, Judgement
from cyborg.model.work import HandleTask
from cyborg.testing import interruption, situations
from cyborg.testing.driver_checks import (
    apart,
    change,
    check_device,
    deployables_of,
    facts_of,
    functions_of,
    handles_of,
    look,
    mates_of,
    moves,
    name_of,
    readers,
    results_of,
    sample,
    tasks_for,
)
from cyborg.testing.driver_reading import ReadingContract
from cyborg.testing.fake_host import FakeHost

#: A guest has a part of a card.
_IN_GUEST = situations.Situation("a guest has it", situations.hold)


class SituationContract(ReadingContract):
    """What holds for every driver whatever the situation of its host is."""

    def test_what_is_in_use_is_not_offered(self) -> None:
        """The kit puts each function that a guest would get into use, in every way it knows."""
        clean = self.make_host()
        devices = self.found(self.driver(clean))
        offered = functions_of(devices)
        present = [place for place in offered if situations.directory(clean, place)]
        for place in sample(present, 6):
            for use in situations.uses():
                if use.whole and not offered[place]:
                    continue
                host = clean.copy()
                use.arrange(host, place)
                scan = Scan(host, claims=use.claims(place))
                found = functions_of(self.driver(host).discover(scan))
                assert place not in found, (
                    f"discover() must not offer {place} when {use.reason}; leave out each function "
                    "for which scan.refusal() returns a reason"
                )
                mates = mates_of(devices, place)
                assert found.keys().isdisjoint(mates), (
                    f"discover() must not offer any of {', '.join(mates)} when {place} must not be "
                    "offered, because guests get them together (group_size)"
                )

    def test_what_a_guest_has_stays_offered(self) -> None:
        """A bound unit is held through VFIO; without its device the bind would be withdrawn."""
        clean = self.make_host()
        devices = self.found(self.driver(clean))
        for device in sample(devices, 4):
            held = functions_of([device])
            if list(held) != mates_of([device], device.key) or not all(held.values()):
                continue
            if not all(situations.directory(clean, place) for place in held):
                continue
            host = clean.copy()
            for place in held:
                situations.hold(host, place)
            scan = Scan(host, managed_deployables={part.name for part in device.deployables})
            # The host driver, which may know numbers of the device, is not bound.
            found = [
                replace(entry, identity=merge_identity(device.identity, entry.identity))
                for entry in self.driver(host).discover(scan)
            ]
            assert device in found, (
                f"discover() must return {device.key} unchanged while its guest has it; pass "
                "managed=scan.is_managed(name of the deployable) to scan.refusal()"
            )

    def test_release_restores_the_host(self) -> None:
        """Every file, link and directory is as before, whichever verb was repeated."""
        clean = self.make_host()
        devices = self.found(self.driver(clean))
        before = clean.tree()
        for task in sample(list(tasks_for(self.driver(clean).name, devices)), 4):
            for verbs_called in (
                ("prepare", "release"),
                ("prepare", "prepare", "release"),
                ("prepare", "release", "release"),
                ("release",),
            ):
                host = clean.copy()
                for verb in verbs_called:
                    change(self.driver(host), verb, task)
                flaw = situations.differences(before, host.tree())
                assert not flaw, (
                    f"release({task.handle_key}) must restore the host as it was before prepare(), "
                    f"after {', '.join(verbs_called)}: {flaw}"
                )

    def test_interrupted_work_can_be_repeated(self) -> None:
        """The process ends, or the machine refuses, at each call of prepare and release."""
        clean = self.make_host()
        devices = self.found(self.driver(clean))
        names = {part.name for part in deployables_of(devices) if part.prepare}
        tasks = tasks_for(self.driver(clean).name, devices)
        for task in [task for task in tasks if task.deployable in names][:1]:
            prepared = self._after(clean, "prepare", task)
            released = self._after(prepared, "release", task)
            expected = {
                "prepare": [prepared.tree()],
                "release": [released.tree(), clean.tree()],
            }
            for verb, start in (("prepare", clean), ("release", prepared)):
                rehearsal = start.copy()
                work = functools.partial(change, self.driver(rehearsal), verb, task)
                for number in interruption.moments(rehearsal, work, 4):
                    for error in (interruption.Crash(), interruption.failure()):
                        host = start.copy()
                        work = functools.partial(change, self.driver(host), verb, task)
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
            change(self.driver(after), verb, task)
        except exception.CyborgError as error:
            pytest.fail(f"{verb}({task.handle_key}) must succeed, also when repeated: {error}")
        return after

    def test_cards_are_divided_and_made_whole_again(self) -> None:
        """To each layout and back, which leaves the host as it was; and not while one is in use."""
        clean = self.make_host()
        before = functions_of(look(self.driver(clean)).discover())
        for card in sample(look(self.driver(clean)).layouts(), 2):
            key, former = card.card, card.current
            assert former in card.layouts, f"{key}: layouts must contain the current {former}"
            assert card.deployables, f"{key}: deployables must name the card and its parts"
            for name in (other for other in sample(card.layouts, 4) if other != former):
                host = clean.copy()
                text = f"partition({key}, {name})"
                self._divide(host, key, name)
                changed = host.tree()
                self._divide(host, key, name)
                flaw = situations.differences(changed, host.tree())
                assert not flaw, f"{text} a second time must change nothing: {flaw}"
                devices = look(self.driver(host)).discover()
                for part in sample(sorted(functions_of(devices).keys() - before), 2):
                    self._check_undivided(host, key, former, use=_IN_GUEST, place=part)
                self._divide(host, key, former)
                flaw = situations.differences(clean.tree(), host.tree())
                assert not flaw, f"{text} and back to {former} must restore the host: {flaw}"
                for use in situations.uses():
                    if situations.directory(clean, key) and not (use.whole or use.claimed):
                        self._check_undivided(clean, key, name, use=use, place=key)

    def _divide(self, host: FakeHost, key: str, layout: str) -> None:
        """Divide a card with a new driver, and assert that the host shows it."""
        self.driver(host).partition(key, layout)
        current = {card.card: card.current for card in look(self.driver(host)).layouts()}
        assert current.get(key) == layout, (
            f"after partition({key}, {layout}) layouts() must return it as current"
        )

    def _check_undivided(
        self, clean: FakeHost, key: str, layout: str, *, use: situations.Situation, place: str
    ) -> None:
        """Assert that a card keeps its layout while a function of it is used."""
        host = clean.copy()
        use.arrange(host, place)
        before = host.tree()
        text = f"partition({key}, {layout}) must fail, and change nothing, when {use.reason}"
        with contextlib.suppress(exception.CyborgError):
            self.driver(host).partition(key, layout)
            pytest.fail(f"{text} ({place}); call scan.refusal() for the card and its parts")
        flaw = situations.differences(before, host.tree())
        assert not flaw, f"{text}: {flaw}"

    def test_health_follows_the_device(self) -> None:
        """The verdict changes when the device breaks, and back, and a removed card has none."""
        host = self.make_host()
        driver = self.driver(host)
        if type(driver).signals is Driver.signals:
            return
        devices = self.found(driver)
        for device in sample(devices, 3):
            key = device.key
            try:
                health = look(driver).health(key)
            except exception.DriverCannot:
                continue
            assert health.condition is Condition.OK, (
                f"signals({key}) must mean ok on the host of the test"
            )
            others = [other for other in devices if other.key != key]
            before = results_of(driver, sample(others, 4))
            self.break_device(host, key)
            for kind in (driver, self.driver(host)):
                verdict = results_of(kind, [device])[f"signals({key})"]
                assert isinstance(verdict, Judgement), (
                    f"signals({key}) must yield a fault when the device is broken, and raises "
                    f"{verdict}"
                )
                assert verdict.condition not in OFFERED, (
                    f"signals({key}) must mean drain or dead when the device is broken; read the "
                    "device in each call, and have an entry for each signal in health_entries"
                )
            assert results_of(driver, sample(others, 4)) == before, (
                f"signals() of the other devices must not change when {key} breaks"
            )
            self.mend_device(host, key)
            assert look(driver).health(key).condition is Condition.OK, (
                f"signals({key}) must mean ok again when the device works again"
            )
            if situations.directory(host, key):
                gone = host.copy()
                situations.unplug(gone, key)
                with contextlib.suppress(exception.CyborgError):
                    health = look(self.driver(gone)).health(key)
                    assert health.condition not in OFFERED, (
                        f"signals({key}) must mean drain or dead without a card"
                    )

    def test_moved_card_is_offered_at_its_new_address(self) -> None:
        """Without a restart of the agent and after one; the other devices do not change."""
        clean = self.make_host()
        devices = self.found(self.driver(clean))
        present = [
            device
            for device in devices
            if situations.directory(clean, device.key)
            # The functions of a card move together.
            and not (device.topology and device.topology.siblings)
        ]
        if not present:
            return
        for device in (present[0], present[-1]):
            others = [other for other in devices if other.key != device.key]
            for place in situations.free_addresses(clean):
                host = clean.copy()
                driver = self.driver(host)
                look(driver).discover()
                places = moves(devices, {device.key: place})
                situations.readdress(host, places)
                for kind in (driver, self.driver(host)):
                    moved = {entry.key: entry for entry in look(kind).discover()}
                    assert device.key not in moved, (
                        f"discover() must not return {device.key} after its card moved to {place}; "
                        "read the host in each call"
                    )
                    # A unit of several cards can have the name of another card now.
                    new = places[device.key]
                    keys = [key for key in moved if new in {key, *functions_of([moved[key]])}]
                    card = moved.pop(keys[0]) if keys else None
                    assert apart(moved.values()) == apart(others), (
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
        devices = self.found(self.driver(clean))
        present = [device for device in devices if situations.directory(clean, device.key)]
        pairs = [
            (first, second)
            for number, first in enumerate(present)
            for second in present[number + 1 :]
            # A card has its functions in one order.
            if first.key[-1] == second.key[-1]
        ]
        pairs.sort(key=lambda pair: facts_of(pair[0]) == facts_of(pair[1]))
        for first, second in pairs[:1]:
            host = clean.copy()
            driver = self.driver(host)
            look(driver).discover()
            places = moves(devices, {first.key: second.key, second.key: first.key})
            situations.readdress(host, places)
            for node in (None, 7):
                if node is not None and first.numa_node is not None:
                    host.add_file(f"{situations.directory(host, first.key)}/numa_node", f"{node}\n")
                fresh = look(self.driver(host)).discover()
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

    def test_names_survive_a_reboot(self) -> None:
        """The kernel numbers devices and IOMMU groups in another order; no card has moved."""
        clean = self.make_host()
        devices = self.found(self.driver(clean))
        host = clean.copy()
        situations.reboot(host)
        found = look(self.driver(host)).discover()
        assert handles_of(found) == handles_of(devices), (
            "discover() must return the same keys of devices and handles and names of deployables "
            "after a reboot, because allocations refer to them; derive them from the address, not "
            "from a number of the kernel (nvme0, card1, an IOMMU group)"
        )

    def test_hanging_files_cost_their_device_only(self) -> None:
        """Each file of one card hangs in turn; a few such calls use up the time of a verb."""
        clean = self.make_host()
        devices = self.found(self.driver(clean))
        present = [device for device in devices if situations.directory(clean, device.key)]
        for device in present[:1]:
            others = [other for other in devices if other.key != device.key]
            results = results_of(self.driver(clean), sample(others, 4))
            place = situations.directory(clean, device.key)
            watched = clean.copy()
            verbs_called = readers(self.driver(watched), [device])
            calls = [call for verb in verbs_called for call in interruption.watch(watched, verb)]
            own = sorted({call for call in calls if f"{call}/".startswith(f"{place}/")})
            for path in sample(own, 12):
                host = clean.copy()
                driver = self.driver(host)
                with interruption.hanging(host, path.__eq__, self.longest_look / 3):
                    self._check_waiting(host, driver, device, path)
                    self._check_others(driver, device, others, path)
                    assert results_of(driver, sample(others, 4)) == results, (
                        f"signals() and stats() of the other devices must not change when {path} "
                        "hangs"
                    )

    def test_hanging_tools_cost_their_device_only(self) -> None:
        """Each command that has the address of a device in its words hangs."""
        clean = self.make_host()
        devices = self.found(self.driver(clean))
        for device in devices[:1]:
            others = [other for other in devices if other.key != device.key]
            results = results_of(self.driver(clean), sample(others, 4))
            host = clean.copy()
            driver = self.driver(host)

            def concerns(call: str, key: str = device.key) -> bool:
                return not call.startswith("/sys/") and key in call.partition(" ")[2]

            with interruption.hanging(host, concerns):
                self._check_waiting(host, driver, device, f"a tool for {device.key}")
                self._check_others(driver, device, others, f"a tool for {device.key}")
                assert results_of(driver, sample(others, 4)) == results, (
                    "signals() and stats() of the other devices must not change when a tool for "
                    f"{device.key} hangs"
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
        assert apart(found) == apart(others), rule

    def _check_waiting(self, host: FakeHost, driver: Driver, device: Device, cause: str) -> None:
        """Assert that the verbs that only look end in time while something hangs."""
        for verb in readers(driver, [device]):
            text, begun = name_of(verb), host.clock.monotonic()
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
