# SPDX-License-Identifier: Apache-2.0
"""The contract refuses each driver that breaks a rule, with the check for this rule alone."""

from collections.abc import Sequence
from typing import Final

import pytest

from cyborg import exception
from cyborg.drivers.base import Driver
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.driver_reading import ReadingContract
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures import choice
from cyborg.tests.unit.testing import wrong_drivers
from cyborg.tests.unit.testing.wrong_drivers import CorrectDriver


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


def failures_of(contract: ReadingContract, names: Sequence[str] = ()) -> dict[str, str]:
    """Return which of the named checks of a contract fail, by default of all, with the messages."""
    messages = {}
    for name in names or [name for name in sorted(dir(contract)) if name.startswith("test_")]:
        try:
            getattr(contract, name)()
        except (AssertionError, pytest.fail.Exception, exception.CyborgError) as error:
            messages[name] = str(error)
    return messages


def test_contract_accepts_a_correct_driver() -> None:
    assert failures_of(Contract(CorrectDriver)) == {}


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
