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


ENTRY = Hardware("other", "CRYPTO", "v", "m", offered=False, reason="no firmware", num=3)
BACKEND = Backend(
    "engine-0",
    "READY",
    (BackendService("ipsec", "STOPPED"),),
    {"num": 2, "ipsec": {"aes": {"3des": 50, "num": 1}}},
)


class WithHardware(Scripted):
    """A driver that lists hardware without devices: ``answer``, or raises it."""

    name = "hardware"
    device_type = "CRYPTO"
    answer: Any = (Hardware.of(DEVICE), ENTRY)

    def hardware(self, context: DriverContext = EMPTY_CONTEXT) -> list[Hardware]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return list(self.answer)

    def backends(self) -> list[Backend]:
        return [BACKEND]


def test_a_report_has_hardware_backends_and_the_description_of_the_driver() -> None:
    loaded = LoadResult("hardware", WithHardware(good), endpoint="vendor:Driver", version="1.2")
    reporter = reporter_of(loaded)
    (driver,) = reporter.scan(EMPTY_CONTEXT).drivers
    assert driver.hardware == (Hardware.of(DEVICE), ENTRY)
    assert driver.backends == (BACKEND,)
    assert (driver.type, driver.endpoint, driver.version) == ("CRYPTO", "vendor:Driver", "1.2")


def test_an_idle_driver_is_scanned_once_and_offers_nothing() -> None:
    scans: list[DriverContext] = []

    def counted(context: DriverContext) -> list[Device]:
        scans.append(context)
        return [DEVICE]

    reporter = reporter_of(
        LoadResult("idle", Scripted(counted), enabled=False),
        LoadResult("broken", error="no library", enabled=False),
        LoadResult("missing", error="not installed"),
    )
    first, second = reporter.scan(EMPTY_CONTEXT), reporter.scan(EMPTY_CONTEXT)
    by_name = {driver.driver: driver for driver in first.drivers}
    idle = by_name["idle"]
    assert (idle.state, idle.devices) == (DriverState.STOPPED, ())
    assert idle.hardware is not None
    (entry,) = idle.hardware
    assert (entry.key, entry.offered, entry.reason) == ("key", False, "idle is not enabled")
    errors = {name: (one.state, one.error) for name, one in by_name.items() if name != "idle"}
    assert errors == {
        "broken": (DriverState.STOPPED, "no library"),
        "missing": (DriverState.FAILED, "not installed"),
    }
    assert first.digest() == second.digest()
    assert len(scans) == 1
    reporter.forget_idle()
    assert reporter.scan(EMPTY_CONTEXT).digest() == first.digest()
    assert len(scans) == 2
    # Neither is one that is enabled scanned twice, for devices and hardware.
    scans.clear()
    (driver,) = reporter_of(LoadResult("driver", Scripted(counted))).scan(EMPTY_CONTEXT).drivers
    assert (driver.hardware, driver.backends) == ((Hardware.of(DEVICE),), ())
    assert len(scans) == 1


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (RuntimeError("no bus"), "no bus"),
        ([replace(ENTRY, capability={"speed": {1, 2}})], "capability.speed"),
    ],
    ids=["error", "no JSON"],
)
def test_devices_stay_in_the_report_when_the_hardware_cannot_be_listed(
    answer: Any, error: str
) -> None:
    driver = WithHardware(good)
    driver.answer = answer
    (report,) = reporter_of(LoadResult("hardware", driver)).scan(EMPTY_CONTEXT).drivers
    assert (report.state, report.devices) == (DriverState.READY, (DEVICE,))
    assert report.hardware is None
    assert error in str(report.error)
