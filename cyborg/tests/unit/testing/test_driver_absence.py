# SPDX-License-Identifier: Apache-2.0
"""The contract for hosts without a device refuses drivers that touch the devices of others."""

from collections.abc import Sequence

import pytest

from cyborg.drivers.base import Driver, Progress, no_progress
from cyborg.drivers.pci_function import PciFunction
from cyborg.drivers.scan import Scan
from cyborg.model.health import Signal
from cyborg.model.work import HandleTask
from cyborg.testing import servers
from cyborg.testing.driver_absence import AbsenceContract
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.unit.testing.test_wrong_drivers import failures_of
from cyborg.tests.unit.testing.wrong_drivers import CorrectDriver


class Contract(AbsenceContract):
    """The contract with one kind of driver, on a server with cards of others."""

    rounds = 20

    def __init__(self, kind: type[CorrectDriver]) -> None:
        self._kind = kind

    def make_host(self) -> FakeHost:
        return servers.server()

    def make_driver(self, host: FakeHost) -> Driver:
        return self._kind(host)


class TakesAll(CorrectDriver):
    """Takes the cards of another vendor for its own."""

    def cards(self, scan: Scan) -> list[PciFunction]:
        return [card for card in scan.functions.values() if str(card.address) == servers.FPGA]

    def serial(self, key: str) -> str:
        return "1"


class Optimistic(CorrectDriver):
    """Reports each device as healthy without a look at it."""

    def signals(self, scan: Scan, device_key: str) -> Sequence[Signal]:
        return ()


class Eager(CorrectDriver):
    """Disables whatever function is named."""

    def release(self, task: HandleTask, *, progress: Progress = no_progress) -> None:
        self.write(task, "enable", "0")


def test_contract_accepts_a_correct_driver() -> None:
    assert failures_of(Contract(CorrectDriver)) == {}


@pytest.mark.parametrize(
    ("kind", "test", "message"),
    [
        (TakesAll, "test_nothing_is_offered_prepared_or_divided", f"not {servers.FPGA}"),
        (Optimistic, "test_other_devices_have_no_health_and_no_figures", "must fail for other"),
        (Eager, "test_other_devices_are_left_alone", "which is another device: it writes to"),
    ],
)
def test_contract_fails_for_a_wrong_driver(
    kind: type[CorrectDriver], test: str, message: str
) -> None:
    assert message in failures_of(Contract(kind))[test]
