# SPDX-License-Identifier: Apache-2.0
"""The contract kit, run for a driver whose prepare leaves something behind on the host."""

from dataclasses import replace

import pytest

from cyborg.drivers.base import Driver, ImageFile, Progress, no_progress
from cyborg.drivers.command import Completed
from cyborg.drivers.fake import FakeDriver
from cyborg.drivers.scan import Scan
from cyborg.model.device import Device, Hardware
from cyborg.model.work import HandleTask
from cyborg.testing.driver_checks import look
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.functional.life.cards import CARD, OTHER, CardDriver, Rack, Traits
from cyborg.tests.unit.drivers.configured import configured


class Forgetful(CardDriver):
    """Knows what it prepared until its process ends."""

    def __init__(self, host: FakeHost, compute: str, traits: Traits) -> None:
        super().__init__(host, compute, traits)
        self._mine: set[str] = set()

    def prepare(
        self, task: HandleTask, image: ImageFile | None = None, *, progress: Progress = no_progress
    ) -> None:
        self._mine.add(task.handle_key)
        super().prepare(task)

    @property
    def ready(self) -> set[str]:
        return self._mine & super().ready


class Careless(CardDriver):
    """Never takes anything back."""

    def release(self, task: HandleTask, *, progress: Progress = no_progress) -> None:
        pass


class Contract(DriverContract):
    """For any class of cards."""

    kind: type[CardDriver] = CardDriver

    def make_host(self) -> FakeHost:
        return Rack.build("host", Traits("FPGA", prepare=True), {CARD: 2, OTHER: 1}).machine

    def make_driver(self, host: FakeHost) -> Driver:
        return self.kind(host, "host", Traits("FPGA", prepare=True))


class SetUp(Driver):
    """Counts how often its one card was set up, in a file of the host."""

    name = "set_up_driver"
    again = False
    patience = 60.0

    def __init__(self, host: FakeHost) -> None:
        super().__init__(host, configured())
        self._machine = host

    def discover(self, scan: Scan) -> list[Device]:
        return look(FakeDriver(self._machine, configured())).discover()

    def hardware(self, scan: Scan) -> list[Hardware]:
        self.host.run(["/usr/bin/look"], timeout=self.patience)
        ready = bool(self._count())
        reason = None if ready else "not set up"
        return [
            replace(one, setup_required=not ready, reason=reason) for one in super().hardware(scan)
        ]

    def install(
        self, device_key: str, request_key: str, *, progress: Progress = no_progress
    ) -> None:
        if self.again or not self._count():
            self._machine.add_file("/set-up", "x" * (self._count() + 1))

    def _count(self) -> int:
        return len(self._machine.content("/set-up") or b"")


class Restless(SetUp):
    """Sets up what is set up."""

    again = True


class Patient(SetUp):
    """Waits for its command longer than anybody else would."""

    patience = 61.0


class Idle(SetUp):
    """Says that it has set up what it has not."""

    def install(
        self, device_key: str, request_key: str, *, progress: Progress = no_progress
    ) -> None:
        pass


class SetUpContract(DriverContract):
    """For any driver that sets up."""

    kind: type[SetUp] = SetUp

    def make_host(self) -> FakeHost:
        host = FakeHost()
        host.answers["/usr/bin/look",] = Completed(0, "", "")
        return host

    def make_driver(self, host: FakeHost) -> Driver:
        return self.kind(host)


def test_contract_accepts_a_correct_driver() -> None:
    Contract().test_tells_what_is_prepared_or_that_it_cannot()
    Contract().test_prepare_and_release_may_be_repeated()
    SetUpContract().test_what_is_not_set_up_can_be()
    SetUpContract().test_hardware_tells_of_every_device()
    SetUpContract().test_hanging_commands_hold_up_nothing()


@pytest.mark.parametrize(
    ("contract", "kind", "test"),
    [
        (Contract, Forgetful, "test_tells_what_is_prepared_or_that_it_cannot"),
        (Contract, Careless, "test_tells_what_is_prepared_or_that_it_cannot"),
        (SetUpContract, Restless, "test_what_is_not_set_up_can_be"),
        (SetUpContract, Idle, "test_what_is_not_set_up_can_be"),
        (SetUpContract, Patient, "test_hanging_commands_hold_up_nothing"),
    ],
)
def test_contract_fails_for_broken_drivers(
    contract: type[DriverContract], kind: type[Driver], test: str
) -> None:
    broken = type("Broken", (contract,), {"kind": kind})()
    with pytest.raises(AssertionError):
        getattr(broken, test)()
