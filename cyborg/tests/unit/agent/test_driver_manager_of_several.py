# SPDX-License-Identifier: Apache-2.0
"""Several drivers of one host: what operators request of one leaves the others as they are."""

from collections.abc import Mapping

import pytest
from oslo_config import cfg

from cyborg.agent.driver_manager import DriverManager
from cyborg.drivers.base import Driver
from cyborg.drivers.loader import LoadResult
from cyborg.drivers.scan import Scan
from cyborg.model.device import Device, DeviceType
from cyborg.model.report import CreatedDevice, RequestedDriver
from cyborg.testing.fake_host import FakeHost


class Plain(Driver):
    """A driver without devices."""

    name = "plain"

    def __init__(self) -> None:
        super().__init__(FakeHost(), cfg.ConfigOpts())

    def discover(self, scan: Scan) -> list[Device]:
        return []


class Loader:
    """Loads any driver that is not in ``broken``, and ignores the option ``path``."""

    def __init__(self) -> None:
        self.broken: set[str] = set()

    def load(self, name: str, options: Mapping[str, str]) -> LoadResult:
        if name in self.broken or "bad" in options:
            return LoadResult(name, error=f"{name} is broken")
        return LoadResult(name, Plain(), ignored=("path",) if "path" in options else ())


@pytest.fixture
def loader() -> Loader:
    return Loader()


@pytest.fixture
def manager(loader: Loader) -> DriverManager:
    return DriverManager([LoadResult("a", Plain()), LoadResult("b", Plain())], loader.load)


def created(driver: str, key: str) -> CreatedDevice:
    return CreatedDevice(driver, Device(key, DeviceType.FPGA, "v", "m", {}, ()))


def keys(manager: DriverManager) -> dict[str, list[str]]:
    return {name: sorted(driver.operator_created) for name, driver in manager.drivers.items()}


def test_each_driver_has_all_devices_that_operators_created_for_it(
    manager: DriverManager,
) -> None:
    first = [created("a", "1"), created("b", "2")]
    assert manager.apply([], first)
    assert keys(manager) == {"a": ["1"], "b": ["2"]}
    # Drivers that stay loaded get the later devices, too.
    assert manager.apply([], [*first, created("a", "3")])
    assert keys(manager) == {"a": ["1", "3"], "b": ["2"]}
    assert not manager.apply([], [*first, created("a", "3")])
    manager.reload()
    assert keys(manager) == {"a": ["1", "3"], "b": ["2"]}
    assert manager.apply([], [created("b", "2")])
    assert keys(manager) == {"a": [], "b": ["2"]}


def test_driver_that_cannot_be_reloaded_does_not_keep_the_next_one(
    manager: DriverManager, loader: Loader, caplog: pytest.LogCaptureFixture
) -> None:
    before = dict(manager.drivers)
    loader.broken = {"a"}
    assert manager.reload()
    assert manager.drivers["a"] is before["a"]
    assert manager.drivers["b"] is not before["b"]
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert errors == ["Drivers a keep their former files: a is broken"]


def test_driver_that_is_loaded_or_unloaded_leaves_the_refusals_of_others(
    manager: DriverManager,
) -> None:
    bad = RequestedDriver("a", options={"bad": ""})
    ignored = RequestedDriver("b", options={"path": "/x"})
    missing = RequestedDriver("c", requested=True, options={"bad": ""})
    manager.apply([bad, ignored, missing])
    refused = dict(manager.refusals)
    assert set(refused) == {"a", "b", "c"}
    # The same again, and another driver comes and goes.
    requested = [bad, ignored, missing, RequestedDriver("d", requested=True)]
    assert manager.apply(requested)
    assert manager.refusals == refused
    assert set(manager.failures) == {"c"}
    assert manager.apply([*requested[:3], RequestedDriver("d", requested=False)])
    assert manager.refusals == refused
    assert set(manager.failures) == {"c"}
    assert set(manager.drivers) == {"a", "b"}
    assert set(manager.idle) == {"d"}
    # Nothing is loaded again for that.
    drivers = dict(manager.drivers)
    manager.apply([*requested[:3], RequestedDriver("d", requested=False)])
    assert manager.drivers == drivers
