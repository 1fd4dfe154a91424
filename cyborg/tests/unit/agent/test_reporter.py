# SPDX-License-Identifier: Apache-2.0
"""The scan of the host: an error of one driver does not concern the other drivers."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.agent.driver_manager import DriverManager, load_nothing
from cyborg.agent.reporter import Reporter
from cyborg.drivers.base import ALONE, Driver, Surroundings
from cyborg.drivers.loader import Loaded
from cyborg.model.device import (
    AttachHandle,
    AttachType,
    Backend,
    BackendService,
    Deployable,
    Device,
    DeviceType,
    Hardware,
)
from cyborg.model.report import DriverState
from cyborg.testing.fake_host import FakeHost


def reporter_of(*loaded: Loaded) -> Reporter:
    return Reporter(DriverManager(loaded, load_nothing))


UNIT = Deployable("unit", "FPGA", "d", (AttachHandle("k", AttachType.PCI, {"bus": "81"}),))
DEVICE = Device("key", DeviceType.FPGA, "vendor", "model", {"bus": "81"}, (UNIT,))


class Scripted(Driver):
    """A driver that returns the devices of a test."""

    name = "scripted"

    def __init__(self, answer: Callable[[Surroundings], Any]) -> None:
        super().__init__(FakeHost(), cfg.ConfigOpts())
        self._answer = answer

    def discover(self, surroundings: Surroundings = ALONE) -> list[Device]:
        return cast(list[Device], self._answer(surroundings))


def raising(error: Exception) -> Callable[[Surroundings], Any]:
    def discover(_surroundings: Surroundings) -> Any:
        raise error

    return discover


def failing_later(_surroundings: Surroundings) -> Iterator[Device]:
    yield DEVICE
    raise RuntimeError("in the middle")


def good(_surroundings: Surroundings) -> list[Device]:
    return [DEVICE]


BAD_INFO = {"bus": cast(str, 81)}
BAD_UNIT = Deployable("unit", "FPGA", "d", (AttachHandle("k", AttachType.PCI, BAD_INFO),))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (raising(KeyError("vendor")), "KeyError: 'vendor'"),
        (raising(exception.HostError(action="reading", reason="EIO")), "reading failed: EIO"),
        (raising(exception.DriverCannot(driver="bad", verb="see")), "bad cannot see"),
        (raising(NotImplementedError()), "NotImplementedError"),
        (failing_later, "in the middle"),
        (lambda _: None, "TypeError"),
        (lambda _: [None], "Device is needed"),
        (lambda _: ["device"], "Device is needed"),
        (
            lambda _: [Device("k", DeviceType.FPGA, "v", "m", {}, (BAD_UNIT,))],
            "info.bus: str is needed",
        ),
        (lambda _: [Device("k", cast(DeviceType, "TOASTER"), "v", "m", {}, (UNIT,))], "TOASTER"),
        (lambda _: [Device("k", DeviceType.FPGA, cast(str, None), "m", {}, (UNIT,))], "vendor"),
    ],
)
def test_a_driver_with_an_error_is_reported_as_failed(
    answer: Callable[[Surroundings], Any], message: str
) -> None:
    drivers = {"first": Scripted(good), "bad": Scripted(answer), "second": Scripted(good)}
    report = reporter_of(*(Loaded(*item) for item in drivers.items())).scan(ALONE)
    by_name = {driver.driver: driver for driver in report.drivers}
    assert by_name["bad"].state is DriverState.FAILED
    assert by_name["bad"].devices == ()
    assert message in str(by_name["bad"].error)
    for name in ("first", "second"):
        assert (by_name[name].state, by_name[name].devices) == (DriverState.READY, (DEVICE,))
    assert report.digest()


def test_a_driver_that_failed_to_load_is_reported_as_failed() -> None:
    reporter = reporter_of(Loaded("good", Scripted(good)), Loaded("none", error="not installed"))
    (loaded, missing) = reporter.scan(ALONE).drivers
    assert (loaded.driver, loaded.state) == ("good", DriverState.READY)
    assert (missing.driver, missing.state, missing.error) == (
        "none",
        DriverState.FAILED,
        "not installed",
    )


def test_drivers_get_the_surroundings() -> None:
    received: list[Surroundings] = []
    surroundings = Surroundings(claims={"a": "b"}, kept=frozenset({"c"}))

    def discover(argument: Surroundings) -> list[Device]:
        received.append(argument)
        return []

    reporter_of(Loaded("driver", Scripted(discover))).scan(surroundings)
    assert received == [surroundings]


ENTRY = Hardware("other", "CRYPTO", "v", "m", offered=False, reason="no firmware", num=3)
BACKEND = Backend(
    "engine-0",
    "READY",
    (BackendService("ipsec", "STOPPED"),),
    {"num": 2, "ipsec": {"aes": {"3des": 50, "num": 1}}},
)


class WithHardware(Scripted):
    """A driver that lists hardware without devices, or raises ``error``."""

    name = "hardware"
    device_type = "CRYPTO"
    error: Exception | None = None

    def hardware(self, surroundings: Surroundings = ALONE) -> list[Hardware]:
        if self.error is not None:
            raise self.error
        return [Hardware.of(DEVICE), ENTRY]

    def backends(self) -> list[Backend]:
        return [BACKEND]


def test_a_report_has_hardware_backends_and_the_description_of_the_driver() -> None:
    loaded = Loaded("hardware", WithHardware(good), endpoint="vendor:Driver", version="1.2")
    reporter = reporter_of(loaded)
    (driver,) = reporter.scan(ALONE).drivers
    assert driver.hardware == (Hardware.of(DEVICE), ENTRY)
    assert driver.backends == (BACKEND,)
    assert (driver.type, driver.endpoint, driver.version) == ("CRYPTO", "vendor:Driver", "1.2")


def test_a_driver_without_a_list_of_hardware_is_scanned_once() -> None:
    scans: list[Surroundings] = []

    def counted(surroundings: Surroundings) -> list[Device]:
        scans.append(surroundings)
        return [DEVICE]

    (driver,) = reporter_of(Loaded("driver", Scripted(counted))).scan(ALONE).drivers
    assert driver.hardware == (Hardware.of(DEVICE),)
    assert driver.backends == ()
    assert len(scans) == 1


def test_devices_stay_in_the_report_when_the_hardware_cannot_be_listed() -> None:
    driver = WithHardware(good)
    driver.error = RuntimeError("no bus")
    (report,) = reporter_of(Loaded("hardware", driver)).scan(ALONE).drivers
    assert (report.state, report.devices) == (DriverState.READY, (DEVICE,))
    assert report.hardware is None
    assert "no bus" in str(report.error)


def test_an_idle_driver_is_scanned_once_and_offers_nothing() -> None:
    scans: list[Surroundings] = []

    def counted(surroundings: Surroundings) -> list[Device]:
        scans.append(surroundings)
        return [DEVICE]

    reporter = reporter_of(
        Loaded("idle", Scripted(counted), enabled=False),
        Loaded("broken", error="no library", enabled=False),
    )
    first, second = reporter.scan(ALONE), reporter.scan(ALONE)
    by_name = {driver.driver: driver for driver in first.drivers}
    idle = by_name["idle"]
    assert (idle.state, idle.devices) == (DriverState.STOPPED, ())
    assert idle.hardware is not None
    (entry,) = idle.hardware
    assert (entry.key, entry.offered, entry.reason) == ("key", False, "idle is not enabled")
    assert (by_name["broken"].state, by_name["broken"].error) == (
        DriverState.STOPPED,
        "no library",
    )
    assert first.digest() == second.digest()
    assert len(scans) == 1
    reporter.forget_idle()
    assert reporter.scan(ALONE).digest() == first.digest()
    assert len(scans) == 2


def test_a_capability_that_is_not_json_is_an_error_of_its_driver() -> None:
    class Odd(WithHardware):
        def hardware(self, surroundings: Surroundings = ALONE) -> list[Hardware]:
            return [replace(ENTRY, capability={"speed": {1, 2}})]

    (report,) = reporter_of(Loaded("odd", Odd(good))).scan(ALONE).drivers
    assert report.hardware is None
    assert "capability.speed" in str(report.error)
