# SPDX-License-Identifier: Apache-2.0
"""The habana_driver on simulated hosts with Gaudi cards.

What hl-smi prints, and what that says, is in ``readings.d``.
"""

from pathlib import Path

import pytest

from cyborg import exception
from cyborg.drivers.base import Driver
from cyborg.drivers.command import Completed
from cyborg.drivers.habana import HabanaDriver
from cyborg.model.device import Device, DeviceType
from cyborg.model.health import Judgement
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


def answering(host: FakeHost, errors: dict[str, str]) -> None:
    """Let hl-smi tell these uncorrectable errors by address, and ``VALUES`` for all cards."""

    def run(_: FakeHost, argv: tuple[str, ...]) -> Completed:
        address = argv[argv.index("-i") + 1]
        values = {"bus_id": address, **VALUES}
        values["ecc.errors.uncorrected.volatile.total"] = errors.get(address, "0")
        fields = argv[argv.index("-Q") + 1].split(",")
        return Completed(0, ", ".join(values[field] for field in fields) + "\n", "")

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
