# SPDX-License-Identifier: Apache-2.0
"""The driver manager loads and unloads drivers as operators request it, and only then."""

from collections.abc import Mapping

import pytest
from oslo_config import cfg

from cyborg.agent.driver_manager import DriverManager
from cyborg.drivers.base import Driver
from cyborg.drivers.loader import LoadResult
from cyborg.drivers.scan import Scan
from cyborg.model.device import Device, DeviceType
from cyborg.model.report import CreatedDevice, DriverState, RequestedDriver
from cyborg.testing.fake_host import FakeHost


class Plain(Driver):
    """A driver without devices."""

    name = "plain"

    def __init__(self) -> None:
        super().__init__(FakeHost(), cfg.ConfigOpts())

    def discover(self, scan: Scan) -> list[Device]:
        return []


class FakeLoader:
    """Loads any driver, except those in ``errors``, with the reason."""

    def __init__(self) -> None:
        self.errors: dict[str, str] = {}
        self.loads: list[tuple[str, Mapping[str, str]]] = []

    def load(self, name: str, options: Mapping[str, str]) -> LoadResult:
        self.loads.append((name, options))
        if name in self.errors or "bad" in options:
            return LoadResult(name, error=self.errors.get(name, "bad option"))
        return LoadResult(name, Plain())


@pytest.fixture
def loader() -> FakeLoader:
    return FakeLoader()


@pytest.fixture
def driver_manager(loader: FakeLoader) -> DriverManager:
    """The configuration has one driver that works, and one that does not."""
    return DriverManager(
        [LoadResult("mine", Plain()), LoadResult("broken", error="no firmware")], loader.load
    )


@pytest.mark.parametrize(
    "requested", [RequestedDriver("mine", requested=False), RequestedDriver("mine", enabled=False)]
)
def test_a_configured_driver_is_unloaded_when_it_is_not_requested(
    driver_manager: DriverManager, requested: RequestedDriver
) -> None:
    mine = driver_manager.drivers["mine"]
    assert driver_manager.apply([requested])
    assert "mine" not in driver_manager.drivers
    assert driver_manager.apply([])
    assert driver_manager.drivers["mine"] is mine


def test_a_loaded_driver_is_not_loaded_again(
    driver_manager: DriverManager, loader: FakeLoader
) -> None:
    requested = [RequestedDriver("new", requested=True, options={"k": "v"})]
    assert driver_manager.apply(requested)
    new = driver_manager.drivers["new"]
    assert not driver_manager.apply(requested)
    assert driver_manager.drivers["new"] is new
    assert [load for load in loader.loads if load[0] == "new"] == [("new", {"k": "v"})]
    assert driver_manager.apply([])
    assert "new" not in driver_manager.drivers


def test_an_installed_driver_is_idle_until_it_is_requested(loader: FakeLoader) -> None:
    other = LoadResult("other", Plain(), enabled=False)
    driver_manager = DriverManager([other], loader.load)
    assert (driver_manager.drivers, set(driver_manager.idle)) == ({}, {"other"})
    assert driver_manager.installed_drivers["other"].status == "STOPPED"
    driver_manager.apply([RequestedDriver("other", requested=True)])
    assert (set(driver_manager.drivers), driver_manager.idle) == ({"other"}, {})
    assert driver_manager.installed_drivers["other"].status == "READY"
    driver_manager.apply([RequestedDriver("other", requested=False)])
    assert (driver_manager.drivers, set(driver_manager.idle)) == ({}, {"other"})
    assert driver_manager.installed_drivers["other"].status == "STOPPED"


def test_an_idle_driver_that_refused_options_is_idle_again(loader: FakeLoader) -> None:
    broken = LoadResult("broken", error="no firmware", enabled=False)
    driver_manager = DriverManager(
        [LoadResult("other", Plain(), enabled=False), broken], loader.load
    )
    bad = {"bad": ""}
    driver_manager.apply(
        [RequestedDriver(name, requested=True, options=bad) for name in ("other", "broken")]
    )
    assert (set(driver_manager.refusals), driver_manager.idle) == ({"other", "broken"}, {})
    driver_manager.apply([])
    assert (driver_manager.refusals, set(driver_manager.idle)) == ({}, {"other"})
    assert driver_manager.failures == {"broken": "no firmware"}
    assert driver_manager.installed_drivers["broken"].status is DriverState.STOPPED


def test_a_driver_that_failed_to_load_is_tried_again(
    driver_manager: DriverManager, loader: FakeLoader
) -> None:
    loader.errors["broken"] = "no firmware"
    mine = driver_manager.drivers["mine"]
    assert not driver_manager.apply([])
    assert driver_manager.drivers == {"mine": mine}
    assert driver_manager.failures == {"broken": "no firmware"}
    loader.errors.clear()
    assert driver_manager.apply([])
    assert set(driver_manager.drivers) == {"mine", "broken"}
    assert (driver_manager.failures, driver_manager.refusals) == ({}, {})


def test_refused_requests_change_nothing(driver_manager: DriverManager, loader: FakeLoader) -> None:
    mine = driver_manager.drivers["mine"]
    loader.errors["new"] = "not installed"
    driver_manager.apply(
        [RequestedDriver("mine", options={"bad": ""}), RequestedDriver("new", requested=True)]
    )
    assert driver_manager.drivers["mine"] is mine
    assert driver_manager.refusals == {"mine": "bad option", "new": "not installed"}
    assert "mine" not in driver_manager.failures
    assert driver_manager.failures["new"] == "not installed"
    driver_manager.apply([])
    assert (driver_manager.drivers["mine"], driver_manager.refusals) == (mine, {})
    assert "new" not in driver_manager.failures


def test_a_reload_constructs_loaded_and_idle_drivers_again(loader: FakeLoader) -> None:
    driver_manager = DriverManager(
        [LoadResult("mine", Plain()), LoadResult("other", Plain(), enabled=False)], loader.load
    )
    driver_manager.apply([RequestedDriver("new", requested=True, options={"k": "v"})])
    before, idle = dict(driver_manager.drivers), dict(driver_manager.idle)
    loader.loads.clear()
    assert driver_manager.reload()
    assert loader.loads == [("mine", {}), ("new", {"k": "v"}), ("other", {})]
    assert (set(driver_manager.drivers), set(driver_manager.idle)) == ({"mine", "new"}, {"other"})
    assert all(driver_manager.drivers[name] is not driver for name, driver in before.items())
    assert driver_manager.idle["other"] is not idle["other"]
    states = {name: item.status for name, item in driver_manager.installed_drivers.items()}
    ready, stopped = DriverState.READY, DriverState.STOPPED
    assert states == {"mine": ready, "new": ready, "other": stopped}


def test_a_driver_that_is_enabled_after_a_reload_has_the_new_files(
    driver_manager: DriverManager,
) -> None:
    first = driver_manager.drivers["mine"]
    driver_manager.reload()
    driver_manager.apply([RequestedDriver("mine", enabled=False)])
    driver_manager.apply([])
    assert driver_manager.drivers["mine"] is not first


def test_drivers_that_cannot_be_reloaded_stay_and_the_reason_is_logged_once(
    loader: FakeLoader, caplog: pytest.LogCaptureFixture
) -> None:
    driver_manager = DriverManager(
        [LoadResult("mine", Plain()), LoadResult("yours", Plain())], loader.load
    )
    before = dict(driver_manager.drivers)
    loader.errors = dict.fromkeys(("mine", "yours"), "a.yaml:7: traits cannot be 'x'")
    assert not driver_manager.reload()
    assert driver_manager.drivers == before
    assert driver_manager.failures == {}
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    reason = "a.yaml:7: traits cannot be 'x'"
    assert errors == [f"Drivers mine, yours keep their former files: {reason}"]
    loader.errors.clear()
    assert driver_manager.reload()
    assert driver_manager.drivers["mine"] is not before["mine"]


def test_a_reloaded_driver_has_the_accelerators_that_operators_created(
    driver_manager: DriverManager,
) -> None:
    device = Device("0000:0a:00.0", DeviceType.FPGA, "v", "m", {}, ())
    driver_manager.apply([], [CreatedDevice("mine", device)])
    driver_manager.reload()
    assert driver_manager.drivers["mine"].operator_created == {device.key: device}


def test_ignored_options_are_logged_once_and_refuse_the_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The driver is loaded without them, so that its devices stay."""
    manager = DriverManager(
        [LoadResult("mine", Plain())],
        lambda name, options: LoadResult(name, Plain(), ignored=tuple(options)),
    )
    requested = [RequestedDriver("mine", options={"a.path": "/x"})]
    assert manager.apply(requested)
    assert not manager.apply(requested)
    assert set(manager.drivers) == {"mine"}
    reason = "only the configuration files of the host can set a.path"
    assert manager.refusals == {"mine": reason}
    assert [record.levelname for record in caplog.records if "a.path" in record.message] == [
        "WARNING"
    ]
    manager.apply([])
    assert manager.refusals == {}


def test_start_without_a_driver_says_how_to_enable_one(
    loader: FakeLoader, caplog: pytest.LogCaptureFixture
) -> None:
    DriverManager([LoadResult("other", Plain(), enabled=False)], loader.load)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.message == (
        "No driver is enabled, so this host offers no device. Name drivers in [agent] "
        "enabled_drivers, or load one with 'cyborg install-driver'. Installed drivers: other"
    )
    caplog.clear()
    DriverManager([LoadResult("mine", Plain())], loader.load)
    DriverManager([LoadResult("broken", error="no firmware", enabled=True)], loader.load)
    assert not [record for record in caplog.records if "No driver" in record.message]
