# SPDX-License-Identifier: Apache-2.0
"""The inspur_fpga_driver on a simulated host with an F10A board and an SSD of the same vendor."""

import json
from pathlib import Path

import pytest

from cyborg import exception
from cyborg.drivers.base import Driver
from cyborg.drivers.inspur_fpga import InspurFpgaDriver
from cyborg.drivers.scan import Scan
from cyborg.model.device import AttachType, DeviceType
from cyborg.testing import servers
from cyborg.testing.driver_checks import look
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.unit.drivers.configured import written

BOARD, SECOND, SSD = "0000:3b:00.0", "0000:af:00.0", "0000:5e:00.0"


def boards() -> FakeHost:
    host = servers.bare()
    servers.add_function(host, BOARD, "1bd4:0911:120000", node=0)
    servers.add_function(host, SECOND, "1bd4:0911:120000", node=1)
    servers.add_function(host, SSD, "1bd4:1001:010802", driver="nvme", node=0)
    return host


def driver_on(host: FakeHost, tmp_path: Path) -> InspurFpgaDriver:
    return InspurFpgaDriver(host, written(tmp_path / "cyborg.conf", ""))


@pytest.mark.proves("inspur_fpga_driver", "discover", by="simulated")
class TestContract(DriverContract):
    """The driver contract; the driver has no health."""

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path

    def make_host(self) -> FakeHost:
        return boards()

    def make_driver(self, host: FakeHost) -> Driver:
        return driver_on(host, self.tmp_path)


@pytest.mark.proves("inspur_fpga_driver", "discover", by="simulated")
def test_existing_rows_keep_their_names_and_values(tmp_path: Path) -> None:
    devices = look(driver_on(boards(), tmp_path)).discover()
    assert [device.key for device in devices] == [BOARD, SECOND]
    device = devices[0]
    assert (device.type, device.vendor, device.model) == (
        DeviceType.FPGA,
        "1bd4",
        "F10A Arria 10",
    )
    assert json.dumps(device.std_board_info) == (
        '{"product_id": "0911", "controller": "Processing accelerators"}'
    )
    assert device.vendor_board_info == '{"vendor_info": "fpga_vb_info"}'
    (unit,) = device.deployables
    assert (unit.name, unit.resource_class) == (f"compute-1_{BOARD}", "FPGA")
    assert unit.driver_name == "INSPUR"
    assert [(attribute.key, attribute.value) for attribute in unit.attributes] == [
        ("rc", "FPGA"),
        ("trait0", "CUSTOM_FPGA_INSPUR"),
        ("trait1", "CUSTOM_FPGA_PRODUCT_ID_0911"),
        ("trait2", "OWNER_CYBORG"),
    ]
    assert [(handle.key, handle.type) for handle in unit.handles] == [(BOARD, AttachType.PCI)]


def test_boards_cannot_be_divided_or_asked_for_their_health(tmp_path: Path) -> None:
    host = boards()
    driver = driver_on(host, tmp_path)
    assert driver.layouts(Scan(host)) == []
    with pytest.raises(exception.DriverCannot):
        look(driver).health(BOARD)
