# SPDX-License-Identifier: Apache-2.0
"""The defaults of a driver that implements only discover."""

from collections.abc import Callable

import pytest

from cyborg import exception
from cyborg.drivers.base import Driver
from cyborg.drivers.scan import Scan
from cyborg.model.device import Device, DeviceType, Hardware
from cyborg.model.work import HandleTask, ProgramTask
from cyborg.testing.driver_checks import look
from cyborg.testing.servers import bare
from cyborg.tests.unit.drivers.configured import configured

DEVICE = Device(
    key="0000:01:00.0",
    type=DeviceType.QAT,
    vendor="8086",
    model="37c8",
    control_path={},
    deployables=(),
)


class Least(Driver):
    """A driver with the mandatory method only."""

    name = "least_driver"

    def discover(self, scan: Scan) -> list[Device]:
        return [] if scan.claims else [DEVICE]


@pytest.fixture
def driver() -> Driver:
    return Least(bare(), configured())


@pytest.mark.parametrize(
    ("call", "verb"),
    [
        (lambda driver: driver.install(DEVICE.key, "operation"), "install 0000:01:00.0"),
        (lambda driver: look(driver).health(DEVICE.key), "check the health of 0000:01:00.0"),
        (lambda driver: look(driver).stats(DEVICE.key), "measure 0000:01:00.0"),
        (lambda driver: look(driver).prepared(), "list the prepared units"),
        (
            lambda driver: driver.program(
                ProgramTask("operation", driver.name, DEVICE.key, "unit", "image"), "/image"
            ),
            "program unit",
        ),
    ],
)
def test_methods_that_are_not_overridden_raise_driver_cannot(
    driver: Driver, call: Callable[[Driver], object], verb: str
) -> None:
    with pytest.raises(exception.DriverCannot) as caught:
        call(driver)
    assert str(caught.value) == f"Driver least_driver does not support {verb}."


def test_other_methods_have_defaults(driver: Driver) -> None:
    assert look(driver).hardware() == [Hardware.of(DEVICE)]
    assert driver.hardware(Scan(bare(), claims={DEVICE.key: "claimed"})) == []
    assert list(look(driver).backends()) == []
    task = HandleTask("operation", driver.name, DEVICE.key, "unit", DEVICE.key, "uuid")
    driver.prepare(task)
    driver.release(task)
    assert not driver.can_program
