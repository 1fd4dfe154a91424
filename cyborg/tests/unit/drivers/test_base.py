# SPDX-License-Identifier: Apache-2.0
"""A driver that brings nothing but discover answers every verb honestly."""

from collections.abc import Callable

import pytest

from cyborg import exception
from cyborg.drivers.base import EMPTY_CONTEXT, Driver, DriverContext
from cyborg.model.device import Device, DeviceType, Hardware
from cyborg.model.work import HandleTask, ProgramTask
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
    """The least that a driver can be."""

    name = "least_driver"

    def discover(self, context: DriverContext = EMPTY_CONTEXT) -> list[Device]:
        return [] if context.claims else [DEVICE]


@pytest.fixture
def driver() -> Driver:
    return Least(bare(), configured())


def test_a_driver_must_discover() -> None:
    with pytest.raises(TypeError, match="discover"):
        Driver(bare(), configured())  # type: ignore[abstract]


def test_its_hardware_is_what_it_offers(driver: Driver) -> None:
    units = sum(len(one.handles) for one in DEVICE.deployables)
    assert driver.hardware() == [
        Hardware(
            key="0000:01:00.0", kind="QAT", vendor="8086", model="37c8", offered=True, num=units
        )
    ]


def test_it_has_no_backends_unless_it_says_so(driver: Driver) -> None:
    assert list(driver.backends()) == []


def test_its_hardware_follows_what_the_agent_knows(driver: Driver) -> None:
    assert driver.hardware(DriverContext(claims={DEVICE.key: "claimed"})) == []


@pytest.mark.parametrize(
    ("call", "verb"),
    [
        (lambda one: one.install(DEVICE.key, "operation"), "install 0000:01:00.0"),
        (lambda one: one.health(DEVICE.key), "check the health of 0000:01:00.0"),
        (lambda one: one.stats(DEVICE.key), "measure 0000:01:00.0"),
        (lambda one: one.prepared(), "list the prepared units"),
        (
            lambda one: one.program(
                ProgramTask("operation", one.name, DEVICE.key, "unit", "image"), "/image"
            ),
            "program unit",
        ),
    ],
)
def test_what_it_cannot_do_it_says(
    driver: Driver, call: Callable[[Driver], object], verb: str
) -> None:
    with pytest.raises(exception.DriverCannot) as caught:
        call(driver)
    assert str(caught.value) == f"Driver least_driver cannot {verb}."


def test_there_is_nothing_to_prepare_release_or_clean(driver: Driver) -> None:
    task = HandleTask("operation", driver.name, DEVICE.key, "unit", DEVICE.key, "uuid")
    driver.prepare(task)
    driver.release(task)
    assert list(driver.clean_steps(DEVICE.key)) == []
    assert not driver.can_program
    assert driver.discover() == [DEVICE]
