# SPDX-License-Identifier: Apache-2.0
"""What a host has, with several devices, deployables and drivers."""

from dataclasses import replace

from cyborg.agent.discover import changes, discover
from cyborg.drivers.base import Driver
from cyborg.drivers.loader import LoadResult
from cyborg.drivers.scan import Scan
from cyborg.model.device import AttachHandle, AttachType, Deployable, Device, DeviceType
from cyborg.model.report import DriverReport, DriverState, Report
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.unit.drivers.configured import configured


def device(key: str, *units: int) -> Device:
    """Return a device whose deployables have these numbers of units."""
    deployables = tuple(
        Deployable(
            f"{key}-{number}",
            "FPGA",
            "d",
            tuple(
                AttachHandle(f"{number}.{unit}", AttachType.PCI, {"bus": "81"})
                for unit in range(count)
            ),
        )
        for number, count in enumerate(units)
    )
    return Device(key, DeviceType.FPGA, "vendor", "model", {"bus": "81"}, deployables)


class Offering(Driver):
    """A driver that offers these devices."""

    def __init__(self, name: str, *devices: Device) -> None:
        super().__init__(FakeHost(), configured())
        self.name = name  # type: ignore[misc]
        self._devices = list(devices)

    def discover(self, scan: Scan) -> list[Device]:
        return self._devices


def test_row_of_a_device_whose_key_begins_another_key_has_its_own_units() -> None:
    driver = Offering("a", device("card-1", 1, 2), device("card-10", 4))
    rows = discover([LoadResult("a", driver)], FakeHost(), timeout=PATIENCE).rows
    assert [(row.address, row.units, row.deployables) for row in rows] == [
        ("card-1", 3, ("card-1-0", "card-1-1")),
        ("card-10", 4, ("card-10-0",)),
    ]


def test_devices_of_two_drivers_with_one_key_have_a_row_each() -> None:
    """They are no functions of the bus, so the key means something else for each driver."""
    loaded = [LoadResult(name, Offering(name, device("card", 1))) for name in ("a", "b")]
    rows = discover(loaded, FakeHost(), timeout=PATIENCE).rows
    assert [(row.address, row.offered_by, row.units) for row in rows] == [
        ("card", "a", 1),
        ("card", "b", 1),
    ]


def test_only_the_named_driver_is_called_whatever_the_others_are() -> None:
    loaded = [
        LoadResult("a", Offering("a", device("card-1", 1))),
        LoadResult("b", Offering("b", device("card-2", 1))),
        LoadResult("c", Offering("c", device("card-3", 1)), enabled=False),
        LoadResult("d", error="it is broken"),
    ]
    discovery = discover(loaded, FakeHost(), timeout=PATIENCE, only={"b"})
    assert [driver.driver for driver in discovery.report.drivers] == ["b"]
    assert [row.address for row in discovery.rows] == ["card-2"]


def test_changes_of_a_driver_follow_those_of_one_that_failed() -> None:
    first, second = device("card-1", 1), device("card-2", 1)
    before = Report(
        tuple(DriverReport(name, DriverState.READY, (first,)) for name in ("a", "b", "c"))
    )
    failed, *others = before.drivers
    after = Report(
        (
            replace(failed, state=DriverState.FAILED, devices=(), error="no answer"),
            *(replace(driver, devices=(first, second)) for driver in others),
        )
    )
    assert [(one.driver, one.what, one.key, one.change) for one in changes(before, after)] == [
        ("a", "driver", "a", "changed"),
        ("b", "device", "card-2", "added"),
        ("c", "device", "card-2", "added"),
    ]
