# SPDX-License-Identifier: Apache-2.0
"""The scan of the host: an error of one driver does not concern the other drivers."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.agent.driver_manager import DriverManager, load_nothing
from cyborg.agent.health import HealthChecks
from cyborg.agent.reporter import Reporter
from cyborg.drivers.base import EMPTY_CONTEXT, Driver, DriverContext
from cyborg.drivers.loader import LoadResult
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


def reporter_of(*loaded: LoadResult) -> Reporter:
    checks = HealthChecks(
        drivers={}, devices=tuple, last_report=None, on_change=lambda: None, enabled=False
    )
    return Reporter(DriverManager(loaded, load_nothing), checks)


UNIT = Deployable("unit", "FPGA", "d", (AttachHandle("k", AttachType.PCI, {"bus": "81"}),))
DEVICE = Device("key", DeviceType.FPGA, "vendor", "model", {"bus": "81"}, (UNIT,))


class Scripted(Driver):
    """A driver that returns the devices of a test."""

    name = "scripted"

    def __init__(self, answer: Callable[[DriverContext], Any]) -> None:
        super().__init__(FakeHost(), cfg.ConfigOpts())
        self._answer = answer

    def discover(self, context: DriverContext = EMPTY_CONTEXT) -> list[Device]:
        return cast(list[Device], self._answer(context))


def raising(error: Exception) -> Callable[[DriverContext], Any]:
    def discover(_context: DriverContext) -> Any:
        raise error

    return discover


def failing_later(_context: DriverContext) -> Iterator[Device]:
    yield DEVICE
    raise RuntimeError("in the middle")


def good(_context: DriverContext) -> list[Device]:
    return [DEVICE]


BAD_INFO = {"bus": cast(str, 81)}
BAD_UNIT = Deployable("unit", "FPGA", "d", (AttachHandle("k", AttachType.PCI, BAD_INFO),))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (raising(KeyError("vendor")), "KeyError: 'vendor'"),
        (raising(exception.HostError(action="reading", reason="EIO")), "reading failed: EIO"),
        (raising(exception.DriverCannot(driver="bad", verb="see")), "bad does not support see"),
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
    answer: Callable[[DriverContext], Any], message: str
) -> None:
    drivers = {"first": Scripted(good), "bad": Scripted(answer), "second": Scripted(good)}
    report = reporter_of(*(LoadResult(*item) for item in drivers.items())).scan(EMPTY_CONTEXT)
    by_name = {driver.driver: driver for driver in report.drivers}
    assert by_name["bad"].state is DriverState.FAILED
    assert by_name["bad"].devices == ()
    assert message in str(by_name["bad"].error)
    for name in ("first", "second"):
        assert (by_name[name].state, by_name[name].devices) == (DriverState.READY, (DEVICE,))
    assert report.digest()


def test_a_driver_that_failed_to_load_is_reported_as_failed() -> None:
    reporter = reporter_of(
        LoadResult("good", Scripted(good)), LoadResult("none", error="not installed")
    )
    (loaded, missing) = reporter.scan(EMPTY_CONTEXT).drivers
    assert (loaded.driver, loaded.state) == ("good", DriverState.READY)
    assert (missing.driver, missing.state, missing.error) == (
        "none",
        DriverState.FAILED,
        "not installed",
    )


def test_drivers_get_the_surroundings() -> None:
    received: list[DriverContext] = []
    context = DriverContext(claims={"a": "b"}, managed_deployables=frozenset({"c"}))

    def discover(argument: DriverContext) -> list[Device]:
        received.append(argument)
        return []

    reporter_of(LoadResult("driver", Scripted(discover))).scan(context)
    assert received == [context]


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

    def hardware(self, context: DriverContext = EMPTY_CONTEXT) -> list[Hardware]:
        if self.error is not None:
            raise self.error
        return [Hardware.of(DEVICE), ENTRY]

    def backends(self) -> list[Backend]:
        return [BACKEND]


def test_a_report_has_hardware_backends_and_the_description_of_the_driver() -> None:
    loaded = LoadResult("hardware", WithHardware(good), endpoint="vendor:Driver", version="1.2")
    reporter = reporter_of(loaded)
    (driver,) = reporter.scan(EMPTY_CONTEXT).drivers
    assert driver.hardware == (Hardware.of(DEVICE), ENTRY)
    assert driver.backends == (BACKEND,)
    assert (driver.type, driver.endpoint, driver.version) == ("CRYPTO", "vendor:Driver", "1.2")


def test_a_driver_without_a_list_of_hardware_is_scanned_once() -> None:
    scans: list[DriverContext] = []

    def counted(context: DriverContext) -> list[Device]:
        scans.append(context)
        return [DEVICE]

    (driver,) = reporter_of(LoadResult("driver", Scripted(counted))).scan(EMPTY_CONTEXT).drivers
    assert driver.hardware == (Hardware.of(DEVICE),)
    assert driver.backends == ()
    assert len(scans) == 1


def test_devices_stay_in_the_report_when_the_hardware_cannot_be_listed() -> None:
    driver = WithHardware(good)
    driver.error = RuntimeError("no bus")
    (report,) = reporter_of(LoadResult("hardware", driver)).scan(EMPTY_CONTEXT).drivers
    assert (report.state, report.devices) == (DriverState.READY, (DEVICE,))
    assert report.hardware is None
    assert "no bus" in str(report.error)


def test_an_idle_driver_is_scanned_once_and_offers_nothing() -> None:
    scans: list[DriverContext] = []

    def counted(context: DriverContext) -> list[Device]:
        scans.append(context)
        return [DEVICE]

    reporter = reporter_of(
        LoadResult("idle", Scripted(counted), enabled=False),
        LoadResult("broken", error="no library", enabled=False),
    )
    first, second = reporter.scan(EMPTY_CONTEXT), reporter.scan(EMPTY_CONTEXT)
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
    assert reporter.scan(EMPTY_CONTEXT).digest() == first.digest()
    assert len(scans) == 2


def test_a_capability_that_is_not_json_is_an_error_of_its_driver() -> None:
    class Odd(WithHardware):
        def hardware(self, context: DriverContext = EMPTY_CONTEXT) -> list[Hardware]:
            return [replace(ENTRY, capability={"speed": {1, 2}})]

    (report,) = reporter_of(LoadResult("odd", Odd(good))).scan(EMPTY_CONTEXT).drivers
    assert report.hardware is None
    assert "capability.speed" in str(report.error)
