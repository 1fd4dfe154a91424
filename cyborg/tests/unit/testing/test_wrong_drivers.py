# SPDX-License-Identifier: Apache-2.0
"""The contract refuses each driver that breaks a rule, with the check for this rule alone."""

import threading
from collections.abc import Sequence
from typing import Any, Final

import pytest

from cyborg import exception
from cyborg.drivers.base import Driver
from cyborg.drivers.worker import Call, Worker
from cyborg.model.work import HandleTask
from cyborg.testing import situations
from cyborg.testing.driver_guests import NotJudgedWarning
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.driver_reading import ReadingContract
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures import choice
from cyborg.tests.fixtures.waiting import happened
from cyborg.tests.unit.testing import wrong_drivers
from cyborg.tests.unit.testing.wrong_drivers import CorrectDriver, ErasesMemory


class Contract(DriverContract):
    """The contract with one kind of driver."""

    rounds = 20

    def __init__(self, kind: type[CorrectDriver]) -> None:
        self._kind = kind

    def make_host(self) -> FakeHost:
        return wrong_drivers.host()

    def make_driver(self, host: FakeHost) -> Driver:
        return self._kind(host)

    def break_device(self, host: FakeHost, key: str) -> None:
        self._show(host, key, "too hot")

    def mend_device(self, host: FakeHost, key: str) -> None:
        self._show(host, key, "ok")

    def _show(self, host: FakeHost, key: str, text: str) -> None:
        host.add_file(host.realpath(f"/sys/bus/pci/devices/{key}/health"), text)

    def dirty_unit(self, host: FakeHost, task: HandleTask) -> bool:
        host.add_file(self._memory(host, task), "of a guest")
        return True

    def is_clean(self, host: FakeHost, task: HandleTask) -> bool:
        return host.content(self._memory(host, task)) == b""

    def _memory(self, host: FakeHost, task: HandleTask) -> str:
        return host.realpath(f"/sys/bus/pci/devices/{task.handle_key}/memory")


class DividedContract(Contract):
    """The contract with one kind of driver, on a host whose first card has virtual functions."""

    def make_host(self) -> FakeHost:
        return wrong_drivers.divided_host()


def failures_of(contract: ReadingContract, names: Sequence[str] = ()) -> dict[str, str]:
    """Return which of the named checks of a contract fail, by default of all, with the messages."""
    messages = {}
    for name in names or [name for name in sorted(dir(contract)) if name.startswith("test_")]:
        try:
            getattr(contract, name)()
        except (AssertionError, pytest.fail.Exception, exception.CyborgError) as error:
            messages[name] = str(error)
    return messages


@pytest.mark.parametrize("kind", [CorrectDriver, ErasesMemory])
def test_contract_accepts_a_correct_driver(kind: type[CorrectDriver]) -> None:
    assert failures_of(Contract(kind)) == {}


CASES: Final[list[tuple[type[CorrectDriver], str, str]]] = [
    (
        wrong_drivers.LetsRequestsNamePrograms,
        "test_remote_options_leave_the_host_to_root",
        "remote_options of LetsRequestsNamePrograms must not have reset_command",
    ),
    (
        wrong_drivers.OffersMountedDisks,
        "test_what_is_in_use_is_not_offered",
        "discover() must not offer 0000:c1:00.0 when a disk behind it is mounted",
    ),
    (
        wrong_drivers.SharesWithoutPools,
        "test_devices_are_well_formed",
        "takes of memory, which is not a pool of the device",
    ),
    (
        wrong_drivers.InventsAStandardClass,
        "test_placement_takes_every_deployable",
        "resource class GPU must be one of the standard classes",
    ),
    (
        wrong_drivers.NamesCardsByAddress,
        "test_deployables_of_two_hosts_differ",
        "deployable 0000:c1:00.0: the name must contain that of the host, compute-1",
    ),
    (
        wrong_drivers.WithdrawsBoundCards,
        "test_what_a_guest_has_stays_offered",
        "discover() must return 0000:c1:00.0 unchanged while its guest has it",
    ),
    (
        wrong_drivers.Leaks,
        "test_release_restores_the_host",
        "0000:c1:00.0/owner changed from b'none' to ",
    ),
    (
        wrong_drivers.CleansHalf,
        "test_release_restores_the_host",
        "0000:c1:00.0/owner changed from b'none' to b'erased'",
    ),
    (
        wrong_drivers.CleansUnpreparedUnits,
        "test_clean_steps_are_valid_and_run",
        "must have prepare=True or clean, or they never run",
    ),
    (
        wrong_drivers.KnowsNoProgress,
        "test_progress_can_be_told",
        "release() must take the arguments of Driver.release: got an unexpected keyword",
    ),
    (
        wrong_drivers.CountsPercent,
        "test_progress_can_be_told",
        "prepare() must tell its progress as a number from 0 to 1, not 50",
    ),
    (
        wrong_drivers.ForgetsTheImage,
        "test_an_image_that_comes_with_prepare_is_loaded",
        "must load the image that comes with it",
    ),
    (
        wrong_drivers.AlwaysHealthy,
        "test_health_follows_the_device",
        "signals(0000:c1:00.0) must mean drain or dead when the device is broken",
    ),
    (
        wrong_drivers.HealthyForEver,
        "test_health_follows_the_device",
        "read the device in each call",
    ),
    (
        wrong_drivers.HalfPrepares,
        "test_interrupted_work_can_be_repeated",
        "prepare(0000:c1:00.0) was interrupted at its call 2; prepare() must then complete",
    ),
    (
        wrong_drivers.IgnoresFailures,
        "test_interrupted_work_can_be_repeated",
        "by an error of the host, and must do all its work or raise",
    ),
    (
        wrong_drivers.KeysByPosition,
        "test_moved_card_is_offered_at_its_new_address",
        "derive names and keys from the address, not from the position in a list",
    ),
    (
        wrong_drivers.RemembersCards,
        "test_swapped_cards_are_read_again",
        "discover() must answer as after a restart when 0000:c1:00.0 and 0000:c2:00.0 were",
    ),
    (
        wrong_drivers.RemembersOverRestarts,
        "test_swapped_cards_are_read_again",
        "discover() must return 0000:c1:00.0 with the facts of the card that is there now",
    ),
    (
        wrong_drivers.NumbersPlaces,
        "test_swapped_cards_are_read_again",
        "discover() must return 0000:c1:00.0 with the facts of the card that is there now",
    ),
    (
        wrong_drivers.WaitsForFiles,
        "test_hanging_files_cost_their_device_only",
        "signals() waited 200 s because /sys/devices/pci0000:c1/0000:c1:00.0/health hangs",
    ),
    (
        wrong_drivers.StopsAtFiles,
        "test_hanging_files_cost_their_device_only",
        "discover() must return the other devices unchanged when /sys/devices/pci0000:c1/",
    ),
    (
        wrong_drivers.StopsAtTools,
        "test_hanging_tools_cost_their_device_only",
        "signals() and stats() of the other devices must not change when a tool for 0000:c1",
    ),
    (
        wrong_drivers.RunsTools,
        "test_reading_stays_within_its_budget",
        "discover() must run no command, but runs ('/usr/bin/card-tool', '0000:c1:00.0')",
    ),
    (
        wrong_drivers.ScansAgain,
        "test_reading_stays_within_its_budget",
        "and 100 are allowed (40, and 20 for each device); use what scan has",
    ),
    (
        wrong_drivers.RunsToolsWithoutTimeout,
        "test_hanging_commands_hold_up_nothing",
        "every command needs a timeout of at most 3600 s",
    ),
    (
        wrong_drivers.WritesInDiscover,
        "test_looking_changes_nothing",
        "discover() must not write to the host, but to [('/var/lib/card/trace', 'seen')",
    ),
    (
        wrong_drivers.WritesInHealth,
        "test_looking_changes_nothing",
        "signals() must not write to the host",
    ),
    (
        wrong_drivers.DividesUsedCards,
        "test_cards_are_divided_and_made_whole_again",
        "must fail, and change nothing, when a disk behind it is mounted",
    ),
    (
        wrong_drivers.DividesAgain,
        "test_cards_are_divided_and_made_whole_again",
        "partition(0000:c1:00.0, halves) a second time must change nothing",
    ),
    (
        wrong_drivers.LeavesTraces,
        "test_cards_are_divided_and_made_whole_again",
        "partition(0000:c1:00.0, halves) and back to whole must restore the host",
    ),
    (
        wrong_drivers.DividesNothing,
        "test_cards_are_divided_and_made_whole_again",
        "after partition(0000:c1:00.0, halves) layouts() must return it as current",
    ),
    (
        wrong_drivers.ChangesItsAnswers,
        "test_discovers_the_same_twice",
        "hardware() must answer the same twice on an unchanged host",
    ),
    (
        wrong_drivers.ResetsOtherGuests,
        "test_guests_do_not_meet",
        "another guest, but it writes to /sys/devices/pci0000:c2/0000:c2:00.0/mode; work on the",
    ),
    (
        wrong_drivers.PreparesAnotherCard,
        "test_guests_do_not_meet",
        "another guest, but it writes to /sys/devices/pci0000:c3/0000:c3:00.0/owner; work on the",
    ),
    (
        wrong_drivers.PreparesWithATool,
        "test_guests_do_not_meet",
        "another guest, but it changes /sys/devices/pci0000:c1/0000:c1:00.0/times; work on the",
    ),
    (
        wrong_drivers.ForgetsAtRelease,
        "test_guests_do_not_meet",
        "prepared() must list 0000:c2:00.0 of compute-1_0000:c2:00.0 until it is released",
    ),
    (
        wrong_drivers.ErasesNothing,
        "test_full_cleaning_erases_the_data_of_its_guest_alone",
        "clean_steps(0000:c1:00.0): secure erase must erase the data of the guest, and is_clean()",
    ),
    (
        wrong_drivers.ErasesOtherCards,
        "test_full_cleaning_erases_the_data_of_its_guest_alone",
        "secure erase must not erase the data of another guest, which has 0000:c2:00.0",
    ),
    (
        wrong_drivers.PreparedForEver,
        "test_tells_what_is_prepared_or_that_it_cannot",
        "prepared() must not show 0000:c1:00.0 after release(); read on the host which units are",
    ),
    (
        wrong_drivers.OffersCardsTwice,
        "test_all_units_can_be_given_out",
        "0000:c1:00.0 and of compute-1_fast_0000:c1:00.0: two guests would get it",
    ),
    (
        wrong_drivers.OffersTooManyUnits,
        "test_all_units_can_be_given_out",
        "must succeed after 2 other guests of the device: discover() returns 3 groups of units",
    ),
    (
        wrong_drivers.CountsCards,
        "test_all_units_can_be_given_out",
        "hardware 0000:c1:00.0: num must be the number of units that discover() returns, 1, not 3",
    ),
    (
        wrong_drivers.NamesCardsItsOwnWay,
        "test_units_of_a_card_have_the_name_that_other_drivers_use",
        "deployable compute-1_card193: the name must be the host, an underscore and the address",
    ),
    (
        wrong_drivers.NamesGroups,
        "test_names_survive_a_reboot",
        "derive them from the address, not from a number of the kernel (nvme0, card1, an IOMMU",
    ),
]
#: The drivers that are given all checks; the others are given only the one that refuses them.
WHOLE: Final = choice.chosen([kind for kind, _, _ in CASES], "wrong drivers", 4)


@pytest.mark.parametrize(("kind", "test", "message"), CASES)
def test_contract_refuses_a_wrong_driver(
    kind: type[CorrectDriver], test: str, message: str
) -> None:
    contract = Contract(kind)
    messages = failures_of(contract) if kind in WHOLE else failures_of(contract, [test])
    assert messages.keys() == {test}, messages
    assert message in messages[test]


def test_contract_refuses_a_reset_that_privileges_allow() -> None:
    name = "test_guests_do_not_meet"
    assert failures_of(DividedContract(CorrectDriver), [name]) == {}
    messages = failures_of(DividedContract(wrong_drivers.ResetsTheParent), [name])
    assert "but it asks for Reset(" in messages[name]
    assert f"which affects {', '.join(wrong_drivers.PARTS[1:])}; work on" in messages[name]


def test_contract_says_which_steps_it_cannot_judge() -> None:
    class Unjudged(Contract):
        def dirty_unit(self, host: FakeHost, task: HandleTask) -> bool:
            return False

    contract = Unjudged(wrong_drivers.ErasesNothing)
    with pytest.warns(NotJudgedWarning) as said:
        contract.test_full_cleaning_erases_the_data_of_its_guest_alone()
    (message,) = [str(each.message) for each in said]
    assert message.startswith("card_driver: clean_steps(0000:c1:00.0): secure erase: whether ")
    assert "data is erased is not judged; derive a class from DriverContract that " in message
    assert "defines dirty_unit(host, task) and is_clean(host, task)" in message


def test_contract_says_that_a_host_is_too_small_for_two_guests() -> None:
    class Small(Contract):
        def make_host(self) -> FakeHost:
            machine = wrong_drivers.host()
            for key in wrong_drivers.CARDS[1:]:
                situations.unplug(machine, key)
            return machine

    with pytest.warns(
        NotJudgedWarning, match="has room for one guest, with 0000:c1:00.0 of .* two"
    ):
        Small(CorrectDriver).test_guests_do_not_meet()


def test_contract_refuses_hooks_that_leave_no_data() -> None:
    class Cleanly(Contract):
        def dirty_unit(self, host: FakeHost, task: HandleTask) -> bool:
            return True

    name = "test_full_cleaning_erases_the_data_of_its_guest_alone"
    messages = failures_of(Cleanly(ErasesMemory), [name])
    assert messages[name].startswith("is_clean(0000:c1:00.0) must be False after dirty_unit()")


@pytest.mark.parametrize(
    ("kind", "test", "method"),
    [
        (wrong_drivers.BlocksInDiscover, "test_devices_are_well_formed", "discover"),
        (wrong_drivers.BlocksInHealth, "test_health_follows_the_device", "signals"),
    ],
)
def test_contract_gives_up_a_call_that_blocks(
    kind: type[wrong_drivers.BlocksInDiscover], test: str, method: str
) -> None:
    """A call gets as long as the limit says; here it is over as soon as the call blocks."""
    blocked, ended = threading.Event(), threading.Event()

    def wait(call: Call[Any], seconds: float) -> None:
        call.add_done_callback(lambda _: blocked.set())
        happened(blocked, "the end of a call, or that it blocks")
        if call.done():
            blocked.clear()

    class Limited(Contract):
        longest_call = 7.0
        worker = Worker(wait=wait)

        def make_driver(self, host: FakeHost) -> Driver:
            driver = kind(host)
            driver.blocked, driver.ended = blocked, ended
            return driver

    messages = failures_of(Limited(kind), [test])
    ended.set()
    assert messages[test].startswith(
        f"{method}() did not end within 7 s (longest_call), and nothing on a simulated host takes "
        "time: wait with self.host.pause()"
    )
