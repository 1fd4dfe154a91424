# SPDX-License-Identifier: Apache-2.0
"""The fake accelerator has the values that clients and existing databases expect."""

import json

import pytest

from cyborg.drivers.base import Driver
from cyborg.drivers.fake import FakeDriver
from cyborg.model.device import AttachType, Device, DeviceType
from cyborg.model.health import Condition, Judgement
from cyborg.testing.driver_checks import look
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.servers import bare
from cyborg.tests.unit.drivers.configured import configured

DEVICE = "0000:0c:00.0"


@pytest.mark.proves("fake_driver", "discover", "health", by="simulated")
class TestContract(DriverContract):
    """The driver contract; this driver reads no file of the host."""

    def make_host(self) -> FakeHost:
        return bare()

    def make_driver(self, host: FakeHost) -> Driver:
        return FakeDriver(host, configured())

    def test_health_follows_the_device(self) -> None:
        """The option decides about the health of this device, not the host."""
        conf = configured()
        assert look(FakeDriver(bare(), conf)).health(DEVICE) == Judgement()
        conf.set_override("fault", "overheated", "fake_driver")
        health = look(FakeDriver(bare(), conf)).health(DEVICE)
        assert (health.condition, health.evidence) == (Condition.DRAIN, ("overheated",))


def discovered(host: str = "compute-1") -> Device:
    (device,) = look(FakeDriver(bare(), configured(host=host))).discover()
    return device


def test_discover_returns_the_device_that_clients_expect() -> None:
    device = discovered()
    assert device.key == DEVICE
    assert device.type is DeviceType.FPGA
    assert device.vendor == "0xABCD"
    assert device.model == "miss model info"
    assert json.dumps(device.std_board_info) == '{"device_id": "0xabcd", "class": "Fake class"}'
    assert device.vendor_board_info == "fake_vendor_info"
    assert list(device.control_path.items()) == [
        ("domain", "0000"),
        ("bus", "0c"),
        ("device", "00"),
        ("function", "0"),
    ]
    (deployable,) = device.deployables
    assert deployable.name == "compute-1_FakeDevice"
    assert deployable.driver_name == "fake"
    assert deployable.resource_class == "FPGA"
    assert deployable.traits == ("CUSTOM_FAKE_DEVICE",)
    assert [(attribute.key, attribute.value) for attribute in deployable.attributes] == [
        ("traits1", "CUSTOM_FAKE_DEVICE"),
        ("rc", "FPGA"),
    ]
    assert not deployable.prepare
    assert not deployable.programmable
    # A name has only portable characters.
    (deployable,) = discovered(host="rack:4.node-1").deployables
    assert deployable.name == "rack_4_node-1_FakeDevice"


def test_handles_equal_rows_of_existing_deployments() -> None:
    """Compare four rows of a real database: first, last of slot 0, first of slot 1, last."""
    handles = discovered().deployables[0].handles
    rows = [json.dumps(handle.info) for handle in handles]
    assert len(rows) == 16
    assert {handle.type for handle in handles} == {AttachType.TEST_PCI}
    assert rows[0] == '{"domain": "0000", "bus": "0c", "device": "0", "function": "1"}'
    assert rows[6] == '{"domain": "0000", "bus": "0c", "device": "0", "function": "7"}'
    assert rows[7] == '{"domain": "0000", "bus": "0c", "device": "1", "function": "0"}'
    assert rows[15] == '{"domain": "0000", "bus": "0c", "device": "2", "function": "0"}'
    assert handles[0].key == "0000:0c:00.1"
    assert handles[15].key == "0000:0c:02.0"


def test_backend_and_hardware_have_the_capabilities() -> None:
    driver = FakeDriver(bare(), configured())
    (backend,) = look(driver).backends()
    assert (backend.name, backend.state) == ("fake", "READY")
    assert [(service.name, service.state) for service in backend.services] == [
        ("fake_engine", "READY")
    ]
    (hardware,) = look(driver).hardware()
    assert hardware.capability == backend.capabilities == {"fake": {"num": 16}}
    assert hardware.remote == 0
