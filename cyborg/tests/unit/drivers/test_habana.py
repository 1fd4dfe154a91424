# SPDX-License-Identifier: Apache-2.0
"""The habana_driver on simulated hosts with Gaudi cards.

The status is that of Documentation/ABI/testing/sysfs-driver-habanalabs of Linux. The lines of
hl-smi have the form of its documentation and of published outputs, "0, HL-225, 0000:3b:00.0, ...,
98304 MiB"; the names of the fields about errors are not confirmed.
"""

from pathlib import Path

import pytest

from cyborg import exception
from cyborg.drivers.base import Driver
from cyborg.drivers.command import Completed
from cyborg.drivers.habana import HabanaDriver
from cyborg.model.device import Device, DeviceType
from cyborg.model.health import Condition, Judgement
from cyborg.testing import servers
from cyborg.testing.driver_checks import look
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.unit.drivers.configured import written

GAUDI3, GAUDI2 = "0000:19:00.0", "0000:b3:00.0"
TOOL = "/usr/bin/hl-smi"
VALUES = {
    "utilization.aip": "25",
    "memory.used": "768",
    "memory.total": "131072",
    "temperature.aip": "41",
    "power.draw": "224",
}


def gaudis() -> FakeHost:
    host = servers.bare()
    for number, (address, product) in enumerate({GAUDI3: "1060", GAUDI2: "1020"}.items()):
        place = servers.add_function(
            host, address, f"1da3:{product}:120000", driver="habanalabs", node=number
        )
        host.add_file(f"{place}/accel/accel{number}/status", "Operational\n")
    answering(host, {})
    return host


def answering(host: FakeHost, errors: dict[str, str], noise: str = "") -> None:
    """Let hl-smi tell these uncorrectable errors by address, and ``VALUES`` for all cards."""

    def run(_: FakeHost, argv: tuple[str, ...]) -> Completed:
        address = argv[argv.index("-i") + 1]
        values = {"bus_id": address, **VALUES}
        values["ecc.errors.uncorrected.volatile.total"] = errors.get(address, "0")
        fields = argv[argv.index("-Q") + 1].split(",")
        return Completed(0, noise + ", ".join(values[field] for field in fields) + "\n", "")

    host.add_file(TOOL, "")
    host.programs[TOOL] = run


def set_status(host: FakeHost, key: str, text: str) -> None:
    place = host.realpath(f"/sys/bus/pci/devices/{key}")
    (node,) = host.list_dir(f"{place}/accel")
    host.add_file(f"{place}/accel/{node}/status", f"{text}\n")


def driver_on(host: FakeHost, tmp_path: Path) -> HabanaDriver:
    return HabanaDriver(host, written(tmp_path / "cyborg.conf", ""))


@pytest.mark.proves("habana_driver", "discover", "health", by="simulated")
class TestContract(DriverContract):
    """The driver contract; a card that needs a reset is the fault."""

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path

    def make_host(self) -> FakeHost:
        return gaudis()

    def make_driver(self, host: FakeHost) -> Driver:
        return driver_on(host, self.tmp_path)

    def break_device(self, host: FakeHost, key: str) -> None:
        set_status(host, key, "Needs Reset")

    def mend_device(self, host: FakeHost, key: str) -> None:
        set_status(host, key, "Operational")


def found(driver: Driver) -> dict[str, Device]:
    return {device.key: device for device in look(driver).discover()}


def test_cards_are_units_of_custom_gaudi_with_their_generation(tmp_path: Path) -> None:
    devices = found(driver_on(gaudis(), tmp_path))
    assert {key: device.model for key, device in devices.items()} == {
        GAUDI3: "Gaudi 3",
        GAUDI2: "Gaudi 2",
    }
    device = devices[GAUDI3]
    assert (device.type, device.vendor) == (DeviceType.AICHIP, "1da3")
    (unit,) = device.deployables
    assert (unit.name, unit.driver_name) == (f"compute-1_{GAUDI3}", "habana")
    assert unit.resource_class == "CUSTOM_GAUDI"
    assert unit.traits == ("OWNER_CYBORG", "CUSTOM_HABANA_1060", "CUSTOM_GAUDI3")


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        ("Operational", Condition.OK),
        ("operational", Condition.OK),
        ("in reset after device release", Condition.DEGRADED),
        ("In reset", Condition.DRAIN),
        ("in device creation", Condition.DRAIN),
        ("needs reset", Condition.DRAIN),
        ("disabled", Condition.DEAD),
        ("Malfunction", Condition.DEAD),
    ],
)
@pytest.mark.proves("habana_driver", "health", by="simulated")
def test_health_is_that_of_the_status(tmp_path: Path, status: str, verdict: Condition) -> None:
    host = gaudis()
    set_status(host, GAUDI3, status)
    health = look(driver_on(host, tmp_path)).health(GAUDI3)
    assert health.condition is verdict
    assert health.evidence == (
        () if verdict is Condition.OK else (f"its status is {status.lower()}",)
    )


@pytest.mark.parametrize("place", ["habanalabs/hl0/status", "status"])
def test_older_drivers_show_the_status_elsewhere(tmp_path: Path, place: str) -> None:
    host = servers.bare()
    card = servers.add_function(host, GAUDI2, "1da3:1020:120000", driver="habanalabs")
    host.add_file(f"{card}/{place}", "In reset\n")
    assert look(driver_on(host, tmp_path)).health(GAUDI2).condition is Condition.DRAIN


@pytest.mark.parametrize(
    ("errors", "evidence"),
    [("0", ()), ("N/A", ()), ("1", ("1 uncorrectable memory error",))],
)
def test_uncorrectable_errors_drain_the_card(
    tmp_path: Path, errors: str, evidence: tuple[str, ...]
) -> None:
    host = gaudis()
    answering(host, {GAUDI3: errors}, noise="WARNING: an old driver\n\n")
    health = look(driver_on(host, tmp_path)).health(GAUDI3)
    assert health.evidence == evidence
    assert health.condition is (Condition.DRAIN if evidence else Condition.OK)


def test_errors_are_added_to_the_status(tmp_path: Path) -> None:
    host = gaudis()
    set_status(host, GAUDI3, "disabled")
    answering(host, {GAUDI3: "3"})
    health = look(driver_on(host, tmp_path)).health(GAUDI3)
    assert health.condition is Condition.DEAD
    assert health.evidence == ("its status is disabled", "3 uncorrectable memory errors")


def test_card_with_a_status_that_nobody_knows_is_not_offered(tmp_path: Path) -> None:
    host = gaudis()
    set_status(host, GAUDI3, "?" * 100)
    health = look(driver_on(host, tmp_path)).health(GAUDI3)
    assert (health.condition, health.evidence) == (Condition.DRAIN, (f"its status is {'?' * 40}",))


@pytest.mark.parametrize("output", ["", "garbage", f"{GAUDI3}\n", f"{GAUDI2}, 0\n"])
def test_an_output_without_the_card_is_an_error(tmp_path: Path, output: str) -> None:
    host = gaudis()
    host.programs[TOOL] = lambda *_: Completed(0, output, "")
    driver = driver_on(host, tmp_path)
    for question in (look(driver).health, look(driver).stats):
        with pytest.raises(exception.HostError, match=f"no line about {GAUDI3}"):
            question(GAUDI3)


def test_without_the_tool_the_status_decides(tmp_path: Path) -> None:
    host = gaudis()
    host.remove(TOOL)
    place = host.realpath(f"/sys/bus/pci/devices/{GAUDI3}")
    host.add_file(f"{place}/hwmon/hwmon0/temp1_input", "52000\n")
    driver = driver_on(host, tmp_path)
    assert look(driver).health(GAUDI3) == Judgement()
    assert look(driver).stats(GAUDI3) == {"temperature_celsius": 52.0}
    host.remove(f"{place}/accel")
    with pytest.raises(exception.DriverCannot):
        look(driver).health(GAUDI3)


def test_a_card_in_a_guest_is_not_asked(tmp_path: Path) -> None:
    host = servers.bare()
    servers.add_function(host, GAUDI3, "1da3:1060:120000", driver="vfio-pci")
    answering(host, {})
    driver = driver_on(host, tmp_path)
    for question in (look(driver).health, look(driver).stats):
        with pytest.raises(exception.DriverCannot):
            question(GAUDI3)
    assert host.commands == []


@pytest.mark.proves("habana_driver", "stats", by="simulated")
def test_statistics_are_those_of_hl_smi(tmp_path: Path) -> None:
    assert look(driver_on(gaudis(), tmp_path)).stats(GAUDI3) == {
        "memory_total_bytes": 131072.0 * 1024 * 1024,
        "memory_used_bytes": 768.0 * 1024 * 1024,
        "power_watts": 224.0,
        "temperature_celsius": 41.0,
        "utilization_ratio": 0.25,
    }
