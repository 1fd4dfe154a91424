# SPDX-License-Identifier: Apache-2.0
"""The scan of the host: an error of one driver does not concern the other drivers."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.agent.driver_manager import DriverManager, load_nothing
from cyborg.agent.health import HealthChecks
from cyborg.agent.reporter import Reporter
from cyborg.drivers import catalogue, health_policy
from cyborg.drivers.base import CardLayouts, Driver
from cyborg.drivers.catalogue import Catalogue
from cyborg.drivers.loader import LoadResult
from cyborg.drivers.scan import Scan
from cyborg.drivers.worker import Worker
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
from cyborg.testing.servers import bare
from cyborg.tests.fixtures.waiting import PATIENCE, Gate


def reporter_of(
    *loaded: LoadResult,
    worker: Worker | None = None,
    topology_traits: bool = False,
    compat_traits: bool = False,
    read_catalogue: Callable[[], Catalogue] = catalogue.shipped,
) -> Reporter:
    worker = worker or Worker()
    checks = HealthChecks(
        drivers={},
        devices=tuple,
        last_scan=lambda: Scan(bare()),
        policy=health_policy.shipped(),
        last_report=None,
        on_change=lambda: None,
        worker=worker,
        enabled=False,
    )
    manager = DriverManager(loaded, load_nothing)
    return Reporter(
        manager,
        checks,
        worker,
        timeout=PATIENCE,
        topology_traits=topology_traits,
        compat_traits=compat_traits,
        read_catalogue=read_catalogue,
    )


UNIT = Deployable("unit", "FPGA", "d", (AttachHandle("k", AttachType.PCI, {"bus": "81"}),))
DEVICE = Device("key", DeviceType.FPGA, "vendor", "model", {"bus": "81"}, (UNIT,))


class Scripted(Driver):
    """A driver that returns the devices of a test."""

    name = "scripted"

    def __init__(self, answer: Callable[[Scan], Any]) -> None:
        super().__init__(FakeHost(), cfg.ConfigOpts())
        self._answer = answer

    def discover(self, scan: Scan) -> list[Device]:
        return cast(list[Device], self._answer(scan))


def raising(error: Exception) -> Callable[[Scan], Any]:
    def discover(_scan: Scan) -> Any:
        raise error

    return discover


def failing_later(_scan: Scan) -> Iterator[Device]:
    yield DEVICE
    raise RuntimeError("in the middle")


def good(_scan: Scan) -> list[Device]:
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
    answer: Callable[[Scan], Any], message: str
) -> None:
    drivers = {"first": Scripted(good), "bad": Scripted(answer), "second": Scripted(good)}
    report = reporter_of(*(LoadResult(*item) for item in drivers.items())).scan(Scan(bare()))
    by_name = {driver.driver: driver for driver in report.drivers}
    assert by_name["bad"].state is DriverState.FAILED
    assert by_name["bad"].devices == ()
    assert message in str(by_name["bad"].error)
    for name in ("first", "second"):
        assert (by_name[name].state, by_name[name].devices) == (DriverState.READY, (DEVICE,))
    assert report.digest()


@pytest.mark.parametrize("option", [True, False])
def test_devices_have_traits_of_their_place_if_the_option_is_on(option: bool) -> None:
    driver = LoadResult("driver", Scripted(lambda _scan: [replace(DEVICE, numa_node=1)]))
    (report,) = reporter_of(driver, topology_traits=option).scan(Scan(bare())).drivers
    (deployable,) = report.devices[0].deployables
    assert deployable.traits == (("CUSTOM_NUMA_NODE_1",) if option else ())


@pytest.mark.parametrize("option", [True, False])
def test_devices_have_traits_of_the_existing_service_if_the_option_is_on(option: bool) -> None:
    unit = replace(UNIT, traits=("CUSTOM_FPGA_INTEL", "CUSTOM_FPGA_PRODUCT_ID_0B2B"))
    driver = Scripted(lambda _scan: [replace(DEVICE, deployables=(unit,))])
    driver.name = "intel_fpga_driver"  # type: ignore[misc]
    reporter = reporter_of(LoadResult(driver.name, driver), compat_traits=option)
    (report,) = reporter.scan(Scan(bare())).drivers
    (deployable,) = report.devices[0].deployables
    more = ("CUSTOM_FPGA_INTEL_PAC_ARRIA10",) if option else ()
    assert deployable.traits == (*unit.traits, *more)


def test_a_driver_that_hangs_costs_its_own_devices_only() -> None:
    gate, calls = Gate(), []

    def hang(scan: Scan) -> list[Device]:
        calls.append(scan)
        gate.hold()
        return [DEVICE]

    hung = Scripted(hang)
    hung.name = "hung"  # type: ignore[misc]
    reporter = reporter_of(
        *(LoadResult("good", Scripted(good)), LoadResult("hung", hung)),
        worker=Worker(wait=gate.limit),
    )
    for _ in range(2):
        reports = {driver.driver: driver for driver in reporter.scan(Scan(bare())).drivers}
        assert (reports["good"].state, reports["good"].devices) == (DriverState.READY, (DEVICE,))
        assert (reports["hung"].state, reports["hung"].devices) == (DriverState.FAILED, ())
        assert "discover" in str(reports["hung"].error)
        assert f"has not answered within {PATIENCE:g} seconds" in str(reports["hung"].error)
        assert reporter.current_call == "discover of driver hung"
    # It is not called again before it has answered.
    assert len(calls) == 1
    gate.set()
    assert reporter.scan(Scan(bare())).drivers[1].state is DriverState.READY
    assert reporter.current_call == ""


def test_a_driver_that_exits_is_reported_as_failed() -> None:
    def leave(scan: Scan) -> list[Device]:
        sys.exit("no card, no work")

    reporter = reporter_of(LoadResult("good", Scripted(good)), LoadResult("rude", Scripted(leave)))
    for _ in range(2):
        reports = {driver.driver: driver for driver in reporter.scan(Scan(bare())).drivers}
        assert reports["good"].state is DriverState.READY
        assert reports["rude"].state is DriverState.FAILED
        assert "SystemExit: no card, no work" in str(reports["rude"].error)


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

    def hardware(self, scan: Scan) -> list[Hardware]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return list(self.answer)

    def backends(self, scan: Scan) -> list[Backend]:
        return [BACKEND]


def test_a_report_has_hardware_backends_and_the_description_of_the_driver() -> None:
    loaded = LoadResult("hardware", WithHardware(good), endpoint="vendor:Driver", version="1.2")
    reporter = reporter_of(loaded)
    (driver,) = reporter.scan(Scan(bare())).drivers
    assert driver.hardware == (Hardware.of(DEVICE), ENTRY)
    assert driver.backends == (BACKEND,)
    assert (driver.type, driver.endpoint, driver.version) == ("CRYPTO", "vendor:Driver", "1.2")


def test_an_idle_driver_is_scanned_once_and_offers_nothing() -> None:
    scans: list[Scan] = []

    def counted(scan: Scan) -> list[Device]:
        scans.append(scan)
        return [DEVICE]

    reporter = reporter_of(
        LoadResult("idle", Scripted(counted), enabled=False),
        LoadResult("broken", error="no library", enabled=False),
        LoadResult("missing", error="not installed"),
    )
    first, second = reporter.scan(Scan(bare())), reporter.scan(Scan(bare()))
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
    assert reporter.scan(Scan(bare())).digest() == first.digest()
    assert len(scans) == 2
    # Neither is one that is enabled scanned twice, for devices and hardware.
    scans.clear()
    (driver,) = reporter_of(LoadResult("driver", Scripted(counted))).scan(Scan(bare())).drivers
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
    (report,) = reporter_of(LoadResult("hardware", driver)).scan(Scan(bare())).drivers
    assert (report.state, report.devices) == (DriverState.READY, (DEVICE,))
    assert report.hardware is None
    assert error in str(report.error)


CARD = CardLayouts("card", ("whole", "half"), "whole", "half", frozenset({"unit"}))


class Divides(Scripted):
    """A driver of a card that it can divide."""

    name = "divides"

    def __init__(self, answer: Callable[[Scan], Any]) -> None:
        super().__init__(good)
        self._layouts = answer

    def layouts(self, scan: Scan) -> tuple[CardLayouts, ...]:
        return cast(tuple[CardLayouts, ...], self._layouts(scan))


def test_layouts_of_cards_are_kept_until_the_next_scan() -> None:
    cards = [CARD]
    reporter = reporter_of(LoadResult("d", Divides(lambda _: cards)))
    reporter.scan(Scan(bare()))
    assert reporter.layouts == {"d": (CARD,)}
    cards.clear()
    reporter.scan(Scan(bare()))
    assert reporter.layouts == {"d": ()}


@pytest.mark.parametrize(
    "answer",
    [
        raising(KeyError("vendor")),
        lambda _: [replace(CARD, deployables=frozenset({cast(str, 1)}))],
        lambda _: [replace(CARD, layouts=cast(tuple[str, ...], None))],
        lambda _: None,
    ],
)
def test_layouts_with_an_error_cost_neither_devices_nor_hardware(
    answer: Callable[[Scan], Any],
) -> None:
    drivers = {"bad": Divides(answer), "good": Divides(lambda _: [CARD])}
    reporter = reporter_of(*(LoadResult(*item) for item in drivers.items()))
    bad, _ = reporter.scan(Scan(bare())).drivers
    assert (bad.state, bad.devices) == (DriverState.READY, (DEVICE,))
    assert bad.hardware == (Hardware.of(DEVICE),)
    assert "layouts" in str(bad.error)
    assert reporter.layouts == {"bad": (), "good": (CARD,)}


def test_idle_driver_divides_no_card() -> None:
    reporter = reporter_of(LoadResult("d", Divides(lambda _: [CARD]), enabled=False))
    reporter.scan(Scan(bare()))
    assert reporter.layouts == {}
