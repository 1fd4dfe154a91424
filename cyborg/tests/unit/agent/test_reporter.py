# SPDX-License-Identifier: Apache-2.0
"""Looking at the host: one driver's trouble, of whatever kind, is no other's."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.agent.reporter import Reporter
from cyborg.drivers.base import ALONE, Driver, Surroundings
from cyborg.model.device import AttachHandle, AttachType, Deployable, Device, DeviceType
from cyborg.model.report import DriverState
from cyborg.testing.fake_host import FakeHost

UNIT = Deployable("unit", "FPGA", "d", (AttachHandle("k", AttachType.PCI, {"bus": "81"}),))
DEVICE = Device("key", DeviceType.FPGA, "vendor", "model", {"bus": "81"}, (UNIT,))


class Scripted(Driver):
    """A driver that answers as a test says."""

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


def breaking_off(_surroundings: Surroundings) -> Iterator[Device]:
    yield DEVICE
    raise RuntimeError("in the middle")


def good(_surroundings: Surroundings) -> list[Device]:
    return [DEVICE]


BAD_INFO = {"bus": cast(str, 81)}
BAD_UNIT = Deployable("unit", "FPGA", "d", (AttachHandle("k", AttachType.PCI, BAD_INFO),))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (raising(KeyError("vendor")), "KeyError: 'vendor'"),
        (raising(exception.HostError(action="reading", reason="EIO")), "reading failed: EIO"),
        (raising(exception.DriverCannot(driver="bad", verb="see")), "bad cannot see"),
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
    answer: Callable[[Surroundings], Any], says: str
) -> None:
    drivers = {"one": Scripted(good), "bad": Scripted(answer), "two": Scripted(good)}
    report = Reporter(drivers=drivers, failures={}).scan(ALONE)
    by_name = {one.driver: one for one in report.drivers}
    assert by_name["bad"].state is DriverState.FAILED
    assert by_name["bad"].devices == ()
    assert says in str(by_name["bad"].error)
    for name in ("one", "two"):
        assert (by_name[name].state, by_name[name].devices) == (DriverState.READY, (DEVICE,))
    assert report.digest()


def test_names_that_could_not_be_loaded_show_as_failed() -> None:
    reporter = Reporter(drivers={"one": Scripted(good)}, failures={"none": "not installed"})
    (one, none) = reporter.scan(ALONE).drivers
    assert (one.driver, one.state) == ("one", DriverState.READY)
    assert (none.driver, none.state, none.error) == ("none", DriverState.FAILED, "not installed")


def test_drivers_hear_of_the_surroundings() -> None:
    heard: list[Surroundings] = []
    around = Surroundings(claims={"a": "b"}, kept=frozenset({"c"}))

    def listening(surroundings: Surroundings) -> list[Device]:
        heard.append(surroundings)
        return []

    Reporter(drivers={"one": Scripted(listening)}, failures={}).scan(around)
    assert heard == [around]
