# SPDX-License-Identifier: Apache-2.0
"""Looking at the host: one driver's trouble, of whatever kind, is no other's."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.agent.driver_manager import DriverManager, none_else
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


def asking(*loaded: LoadResult) -> Reporter:
    return Reporter(DriverManager(loaded, none_else))


UNIT = Deployable("unit", "FPGA", "d", (AttachHandle("k", AttachType.PCI, {"bus": "81"}),))
DEVICE = Device("key", DeviceType.FPGA, "vendor", "model", {"bus": "81"}, (UNIT,))


class Scripted(Driver):
    """A driver that answers as a test says."""

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


def breaking_off(_context: DriverContext) -> Iterator[Device]:
    yield DEVICE
    raise RuntimeError("in the middle")


def good(_context: DriverContext) -> list[Device]:
    return [DEVICE]


BAD_INFO = {"bus": cast(str, 81)}
BAD_UNIT = Deployable("unit", "FPGA", "d", (AttachHandle("k", AttachType.PCI, BAD_INFO),))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (raising(KeyError("vendor")), "KeyError: 'vendor'"),
        (raising(exception.HostError(action="reading", reason="EIO")), "reading failed: EIO"),
        (raising(exception.DriverCannot(driver="bad", verb="see")), "bad does not support see"),
        (raising(NotImplementedError()), "NotImplementedError"),
        (breaking_off, "in the middle"),
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
def test_a_driver_in_trouble_shows_as_failed(
    answer: Callable[[DriverContext], Any], says: str
) -> None:
    drivers = {"one": Scripted(good), "bad": Scripted(answer), "two": Scripted(good)}
    report = asking(*(LoadResult(*one) for one in drivers.items())).scan(EMPTY_CONTEXT)
    by_name = {one.driver: one for one in report.drivers}
    assert by_name["bad"].state is DriverState.FAILED
    assert by_name["bad"].devices == ()
    assert says in str(by_name["bad"].error)
    for name in ("one", "two"):
        assert (by_name[name].state, by_name[name].devices) == (DriverState.READY, (DEVICE,))
    assert report.digest()


def test_names_that_could_not_be_loaded_show_as_failed() -> None:
    reporter = asking(LoadResult("one", Scripted(good)), LoadResult("none", error="not installed"))
    (one, none) = reporter.scan(EMPTY_CONTEXT).drivers
    assert (one.driver, one.state) == ("one", DriverState.READY)
    assert (none.driver, none.state, none.error) == ("none", DriverState.FAILED, "not installed")


def test_drivers_hear_of_the_surroundings() -> None:
    heard: list[DriverContext] = []
    around = DriverContext(claims={"a": "b"}, managed_deployables=frozenset({"c"}))

    def listening(context: DriverContext) -> list[Device]:
        heard.append(context)
        return []

    asking(LoadResult("one", Scripted(listening))).scan(around)
    assert heard == [around]


ENTRY = Hardware("other", "CRYPTO", "v", "m", offered=False, reason="no firmware", num=3)
BACKEND = Backend(
    "engine-0",
    "READY",
    (BackendService("ipsec", "STOPPED"),),
    {"num": 2, "ipsec": {"aes": {"3des": 50, "num": 1}}},
)


class Knowing(Scripted):
    """A driver that knows more than it offers; ``trouble`` is what listing that throws."""

    name = "knowing"
    device_type = "CRYPTO"
    trouble: Exception | None = None

    def hardware(self, context: DriverContext = EMPTY_CONTEXT) -> list[Hardware]:
        if self.trouble is not None:
            raise self.trouble
        return [Hardware.of(DEVICE), ENTRY]

    def backends(self) -> list[Backend]:
        return [BACKEND]


def test_a_report_tells_hardware_and_backends_and_what_the_driver_is() -> None:
    loaded = LoadResult("knowing", Knowing(good), endpoint="vendor:Knowing", version="1.2")
    reporter = asking(loaded)
    (one,) = reporter.scan(EMPTY_CONTEXT).drivers
    assert one.hardware == (Hardware.of(DEVICE), ENTRY)
    assert one.backends == (BACKEND,)
    assert (one.type, one.endpoint, one.version) == ("CRYPTO", "vendor:Knowing", "1.2")


def test_a_driver_without_a_list_of_hardware_is_looked_at_once() -> None:
    looks: list[DriverContext] = []

    def counted(context: DriverContext) -> list[Device]:
        looks.append(context)
        return [DEVICE]

    (one,) = asking(LoadResult("one", Scripted(counted))).scan(EMPTY_CONTEXT).drivers
    assert one.hardware == (Hardware.of(DEVICE),)
    assert one.backends == ()
    assert len(looks) == 1


def test_hardware_that_cannot_be_listed_takes_no_device_away() -> None:
    driver = Knowing(good)
    driver.trouble = RuntimeError("no bus")
    (one,) = asking(LoadResult("knowing", driver)).scan(EMPTY_CONTEXT).drivers
    assert (one.state, one.devices) == (DriverState.READY, (DEVICE,))
    assert one.hardware is None
    assert "no bus" in str(one.error)


def test_what_is_not_enabled_tells_its_hardware_once_and_offers_nothing() -> None:
    looks: list[DriverContext] = []

    def counted(context: DriverContext) -> list[Device]:
        looks.append(context)
        return [DEVICE]

    reporter = asking(
        LoadResult("idle", Scripted(counted), enabled=False),
        LoadResult("broken", error="no library", enabled=False),
    )
    first, second = reporter.scan(EMPTY_CONTEXT), reporter.scan(EMPTY_CONTEXT)
    by_name = {one.driver: one for one in first.drivers}
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
    assert len(looks) == 1
    reporter.forget_idle()
    assert reporter.scan(EMPTY_CONTEXT).digest() == first.digest()
    assert len(looks) == 2


def test_a_capability_that_is_no_json_is_the_drivers_trouble() -> None:
    class Odd(Knowing):
        def hardware(self, context: DriverContext = EMPTY_CONTEXT) -> list[Hardware]:
            return [replace(ENTRY, capability={"speed": {1, 2}})]

    (one,) = asking(LoadResult("odd", Odd(good))).scan(EMPTY_CONTEXT).drivers
    assert one.hardware is None
    assert "capability.speed" in str(one.error)
