# SPDX-License-Identifier: Apache-2.0
"""Drivers come and go as operators want them; what is in force is not touched without need."""

from collections.abc import Mapping

import pytest
from oslo_config import cfg

from cyborg.agent.fleet import Fleet
from cyborg.drivers.base import EMPTY_CONTEXT, Driver, DriverContext
from cyborg.drivers.loader import LoadResult
from cyborg.model.device import Device
from cyborg.model.report import DriverState, DriverWish
from cyborg.testing.fake_host import FakeHost


class Plain(Driver):
    """Finds nothing."""

    name = "plain"

    def __init__(self) -> None:
        super().__init__(FakeHost(), cfg.ConfigOpts())

    def discover(self, context: DriverContext = EMPTY_CONTEXT) -> list[Device]:
        return []


class Shop:
    """Where drivers are loaded from; those that are ``out`` cannot be, with the reason."""

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
def fleet(shop: Shop) -> Fleet:
    """One driver of the configuration that works, and one that does not."""
    return Fleet(
        [LoadResult("mine", Plain()), LoadResult("broken", error="no firmware")], shop.load
    )


def test_without_a_wish_it_is_as_configured(fleet: Fleet, shop: Shop) -> None:
    shop.out["broken"] = "no firmware"
    mine = fleet.drivers["mine"]
    assert not fleet.follow([])
    assert fleet.drivers == {"mine": mine}
    assert fleet.failures == {"broken": "no firmware"}


def test_what_could_not_be_loaded_is_tried_again(fleet: Fleet, shop: Shop) -> None:
    assert fleet.follow([])
    assert set(fleet.drivers) == {"mine", "broken"}
    assert (fleet.failures, fleet.refusals) == ({}, {})


@pytest.mark.parametrize(
    "wish", [DriverWish("mine", wanted=False), DriverWish("mine", enabled=False)]
)
def test_a_configured_driver_that_is_not_wanted_goes(fleet: Fleet, wish: DriverWish) -> None:
    mine = fleet.drivers["mine"]
    assert fleet.follow([wish])
    assert "mine" not in fleet.drivers
    assert fleet.follow([])
    assert fleet.drivers["mine"] is mine


def test_what_is_in_force_is_not_loaded_again(fleet: Fleet, shop: Shop) -> None:
    wish = DriverWish("new", wanted=True, options={"k": "v"})
    assert fleet.follow([wish])
    new = fleet.drivers["new"]
    assert not fleet.follow([wish])
    assert fleet.drivers["new"] is new
    assert [one for one in shop.loads if one[0] == "new"] == [("new", {"k": "v"})]
    assert fleet.follow([])
    assert "new" not in fleet.drivers


def test_refused_options_leave_the_driver_that_is_there(fleet: Fleet) -> None:
    mine = fleet.drivers["mine"]
    wish = DriverWish("mine", options={"bad": ""})
    fleet.follow([wish])
    assert fleet.drivers["mine"] is mine
    assert (fleet.refusals, fleet.failures) == ({"mine": "bad option"}, {})
    fleet.follow([])
    assert (fleet.drivers["mine"], fleet.refusals) == (mine, {})


def test_a_wanted_driver_that_cannot_be_loaded_has_failed(fleet: Fleet, shop: Shop) -> None:
    shop.out["new"] = "not installed"
    fleet.follow([DriverWish("new", wanted=True)])
    assert fleet.failures["new"] == fleet.refusals["new"] == "not installed"
    fleet.follow([])
    assert "new" not in fleet.failures
    assert "new" not in fleet.refusals


def test_what_is_installed_and_not_in_force_still_knows_its_hardware(shop: Shop) -> None:
    other = LoadResult("other", Plain(), enabled=False)
    fleet = Fleet([other], shop.load)
    assert (fleet.drivers, set(fleet.idle)) == ({}, {"other"})
    assert fleet.hellos["other"].status == "STOPPED"
    fleet.follow([DriverWish("other", wanted=True)])
    assert (set(fleet.drivers), fleet.idle) == ({"other"}, {})
    assert fleet.hellos["other"].status == "READY"
    fleet.follow([DriverWish("other", wanted=False)])
    assert (fleet.drivers, set(fleet.idle)) == ({}, {"other"})
    assert fleet.hellos["other"].status == "STOPPED"


def test_a_driver_that_cannot_be_had_as_wanted_is_idle_again(shop: Shop) -> None:
    broken = LoadResult("broken", error="no firmware", enabled=False)
    fleet = Fleet([LoadResult("other", Plain(), enabled=False), broken], shop.load)
    bad = {"bad": ""}
    fleet.follow([DriverWish(name, wanted=True, options=bad) for name in ("other", "broken")])
    assert (set(fleet.refusals), fleet.idle) == ({"other", "broken"}, {})
    fleet.follow([])
    assert (fleet.refusals, set(fleet.idle)) == ({}, {"other"})
    assert fleet.failures == {"broken": "no firmware"}
    assert fleet.hellos["broken"].status is DriverState.STOPPED
