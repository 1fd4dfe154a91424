# SPDX-License-Identifier: Apache-2.0
"""Drivers come and go as operators want them; what is in force is not touched without need."""

from collections.abc import Mapping

import pytest
from oslo_config import cfg

from cyborg.agent.driver_manager import DriverManager
from cyborg.drivers.base import EMPTY_CONTEXT, Driver, DriverContext
from cyborg.drivers.loader import LoadResult
from cyborg.model.device import Device
from cyborg.model.report import DriverState, RequestedDriver
from cyborg.testing.fake_host import FakeHost


class Plain(Driver):
    """Finds nothing."""

    name = "plain"

    def __init__(self) -> None:
        super().__init__(FakeHost(), cfg.ConfigOpts())

    def discover(self, context: DriverContext = EMPTY_CONTEXT) -> list[Device]:
        return []


class Shop:
    """Where driver_manager are loaded from; those that are ``out`` cannot be, with the reason."""

    def __init__(self) -> None:
        self.out: dict[str, str] = {}
        self.loads: list[tuple[str, Mapping[str, str]]] = []

    def load(self, name: str, options: Mapping[str, str]) -> LoadResult:
        self.loads.append((name, options))
        if name in self.out or "bad" in options:
            return LoadResult(name, error=self.out.get(name, "bad option"))
        return LoadResult(name, Plain())


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def driver_manager(shop: Shop) -> DriverManager:
    """One driver of the configuration that works, and one that does not."""
    return DriverManager(
        [LoadResult("mine", Plain()), LoadResult("broken", error="no firmware")], shop.load
    )


def test_without_a_wish_it_is_as_configured(driver_manager: DriverManager, shop: Shop) -> None:
    shop.out["broken"] = "no firmware"
    mine = driver_manager.drivers["mine"]
    assert not driver_manager.apply([])
    assert driver_manager.drivers == {"mine": mine}
    assert driver_manager.failures == {"broken": "no firmware"}


def test_what_could_not_be_loaded_is_tried_again(driver_manager: DriverManager, shop: Shop) -> None:
    assert driver_manager.apply([])
    assert set(driver_manager.drivers) == {"mine", "broken"}
    assert (driver_manager.failures, driver_manager.refusals) == ({}, {})


@pytest.mark.parametrize(
    "wish", [RequestedDriver("mine", wanted=False), RequestedDriver("mine", enabled=False)]
)
def test_a_configured_driver_that_is_not_wanted_goes(
    driver_manager: DriverManager, wish: RequestedDriver
) -> None:
    mine = driver_manager.drivers["mine"]
    assert driver_manager.apply([wish])
    assert "mine" not in driver_manager.drivers
    assert driver_manager.apply([])
    assert driver_manager.drivers["mine"] is mine


def test_what_is_in_force_is_not_loaded_again(driver_manager: DriverManager, shop: Shop) -> None:
    wish = RequestedDriver("new", wanted=True, options={"k": "v"})
    assert driver_manager.apply([wish])
    new = driver_manager.drivers["new"]
    assert not driver_manager.apply([wish])
    assert driver_manager.drivers["new"] is new
    assert [one for one in shop.loads if one[0] == "new"] == [("new", {"k": "v"})]
    assert driver_manager.apply([])
    assert "new" not in driver_manager.drivers


def test_refused_options_leave_the_driver_that_is_there(driver_manager: DriverManager) -> None:
    mine = driver_manager.drivers["mine"]
    wish = RequestedDriver("mine", options={"bad": ""})
    driver_manager.apply([wish])
    assert driver_manager.drivers["mine"] is mine
    assert (driver_manager.refusals, driver_manager.failures) == ({"mine": "bad option"}, {})
    driver_manager.apply([])
    assert (driver_manager.drivers["mine"], driver_manager.refusals) == (mine, {})


def test_a_wanted_driver_that_cannot_be_loaded_has_failed(
    driver_manager: DriverManager, shop: Shop
) -> None:
    shop.out["new"] = "not installed"
    driver_manager.apply([RequestedDriver("new", wanted=True)])
    assert driver_manager.failures["new"] == driver_manager.refusals["new"] == "not installed"
    driver_manager.apply([])
    assert "new" not in driver_manager.failures
    assert "new" not in driver_manager.refusals


def test_what_is_installed_and_not_in_force_still_knows_its_hardware(shop: Shop) -> None:
    other = LoadResult("other", Plain(), enabled=False)
    driver_manager = DriverManager([other], shop.load)
    assert (driver_manager.drivers, set(driver_manager.idle)) == ({}, {"other"})
    assert driver_manager.hellos["other"].status == "STOPPED"
    driver_manager.apply([RequestedDriver("other", wanted=True)])
    assert (set(driver_manager.drivers), driver_manager.idle) == ({"other"}, {})
    assert driver_manager.hellos["other"].status == "READY"
    driver_manager.apply([RequestedDriver("other", wanted=False)])
    assert (driver_manager.drivers, set(driver_manager.idle)) == ({}, {"other"})
    assert driver_manager.hellos["other"].status == "STOPPED"


def test_a_driver_that_cannot_be_had_as_wanted_is_idle_again(shop: Shop) -> None:
    broken = LoadResult("broken", error="no firmware", enabled=False)
    driver_manager = DriverManager([LoadResult("other", Plain(), enabled=False), broken], shop.load)
    bad = {"bad": ""}
    driver_manager.apply(
        [RequestedDriver(name, wanted=True, options=bad) for name in ("other", "broken")]
    )
    assert (set(driver_manager.refusals), driver_manager.idle) == ({"other", "broken"}, {})
    driver_manager.apply([])
    assert (driver_manager.refusals, set(driver_manager.idle)) == ({}, {"other"})
    assert driver_manager.failures == {"broken": "no firmware"}
    assert driver_manager.hellos["broken"].status is DriverState.STOPPED
