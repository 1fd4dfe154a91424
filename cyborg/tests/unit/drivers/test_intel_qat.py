# SPDX-License-Identifier: Apache-2.0
"""The intel_qat_driver on simulated cards of an old generation and of generation 4.

What its files say about its health is in ``readings.d``.
"""

import json
import socket
from pathlib import Path

import pytest

from cyborg import exception
from cyborg.drivers.base import CardLayouts, Driver
from cyborg.drivers.intel_qat import IntelQatDriver
from cyborg.drivers.scan import Scan
from cyborg.model.device import AttachType, DeviceType
from cyborg.testing import servers
from cyborg.testing.driver_checks import look
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.host_driver import HostDriver
from cyborg.testing.kernel.simulated import SimulatedKernel
from cyborg.tests.unit.drivers.configured import written

GEN4 = "0000:6b:00.0"
DEBUG = f"/sys/kernel/debug/qat_4xxx_{GEN4}/heartbeat/status"
ERRORS = ("errors_correctable", "errors_nonfatal", "errors_fatal")


def host_with_gen4() -> FakeHost:
    host = servers.server()
    place = servers.add_function(host, GEN4, "8086:4940:0b4000", driver="4xxx", node=1)
    host.add_file(f"{place}/sriov_totalvfs", "16\n")
    host.add_file(f"{place}/sriov_numvfs", "0\n")
    host.add_file(f"{place}/qat/state", "up\n")
    host.add_file(f"{place}/qat/cfg_services", "sym;asym\n")
    for name in ERRORS:
        host.add_file(f"{place}/qat_ras/{name}", "0\n")
    host.add_file(DEBUG, "0\n")
    return host


def driver_on(host: FakeHost, tmp_path: Path, **options: object) -> IntelQatDriver:
    lines = "".join(f"{name} = {value}\n" for name, value in options.items())
    return IntelQatDriver(host, written(tmp_path / "cyborg.conf", f"[intel_qat]\n{lines}"))


@pytest.mark.proves("intel_qat_driver", "discover", "health", by="simulated")
class TestContract(DriverContract):
    """The driver contract; a firmware that does not respond is the fault."""

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path

    def make_host(self) -> FakeHost:
        return host_with_gen4()

    def make_driver(self, host: FakeHost) -> Driver:
        return driver_on(host, self.tmp_path)

    def break_device(self, host: FakeHost, key: str) -> None:
        host.add_file(f"/sys/kernel/debug/qat_any_{key}/heartbeat/status", "-1\n")
        if key == GEN4:
            host.add_file(DEBUG, "-1\n")

    def mend_device(self, host: FakeHost, key: str) -> None:
        host.add_file(f"/sys/kernel/debug/qat_any_{key}/heartbeat/status", "0\n")
        if key == GEN4:
            host.add_file(DEBUG, "0\n")


def test_existing_rows_keep_their_names_and_values(tmp_path: Path) -> None:
    devices = {
        device.key: device for device in look(driver_on(servers.server(), tmp_path)).discover()
    }
    device = devices[servers.QAT_PF]
    assert device.type is DeviceType.QAT
    assert device.vendor == "0x8086"
    assert json.dumps(device.std_board_info) == '{"product_id": "0x37c8"}'
    assert device.vendor_board_info == "miss_vb_info"
    names = [deployable.name for deployable in device.deployables]
    assert names == [f"{socket.gethostname()}_{vf}" for vf in servers.QAT_VFS]
    (handle,) = device.deployables[0].handles
    assert (handle.key, handle.type) == (servers.QAT_VFS[0], AttachType.PCI)
    assert device.deployables[0].resource_class == "CUSTOM_QAT"
    assert device.deployables[0].driver_name == "intel"
    assert device.deployables[0].traits == ("OWNER_CYBORG", "CUSTOM_QAT_37C8")


def test_a_card_that_can_be_configured_has_its_services_as_traits(tmp_path: Path) -> None:
    devices = {
        device.key: device for device in look(driver_on(host_with_gen4(), tmp_path)).discover()
    }
    (deployable,) = devices[GEN4].deployables
    assert deployable.traits == (
        "OWNER_CYBORG",
        "CUSTOM_QAT_4940",
        "CUSTOM_QAT_SVC_SYM",
        "CUSTOM_QAT_SVC_ASYM",
    )


def layouts(driver: Driver, host: FakeHost) -> dict[str, CardLayouts]:
    return {layout.card: layout for layout in driver.layouts(Scan(host))}


def test_without_options_no_card_has_a_layout(tmp_path: Path) -> None:
    host = host_with_gen4()
    assert layouts(driver_on(host, tmp_path), host) == {}


@pytest.mark.proves("intel_qat_driver", "partition", by="simulated")
def test_services_and_virtual_functions_are_set_while_the_device_is_down(tmp_path: Path) -> None:
    host = host_with_gen4()
    driver_of_host = HostDriver("4xxx", frozenset({"8086:4940"}), sriov=True, qat_services=2)
    SimulatedKernel(host, [driver_of_host], iommu=False)
    driver = driver_on(host, tmp_path, services="dc; sym", virtual_functions=4)
    card = layouts(driver, host)[GEN4]
    assert (card.current, card.desired) == ("vfs=0,services=sym;asym", "vfs=4,services=sym;dc")
    assert card.desired in card.layouts
    assert card.refusal is None
    driver.partition(GEN4, card.desired)
    assert layouts(driver, host)[GEN4].current == card.desired
    place = host.realpath(f"/sys/bus/pci/devices/{GEN4}")
    assert host.read_text(f"{place}/qat/state").strip() == "up"
    written_before = list(host.writes)
    driver.partition(GEN4, card.desired)
    assert host.writes == written_before


def test_a_card_whose_part_is_in_use_keeps_its_services(tmp_path: Path) -> None:
    host = host_with_gen4()
    driver = driver_on(host, tmp_path, services="dc")
    (card,) = driver.layouts(Scan(host, claims={GEN4: "Nova has claimed it"}))
    assert card.refusal == "Nova has claimed it"


def test_a_group_with_another_function_of_the_host_does_not_keep_the_services(
    tmp_path: Path,
) -> None:
    """A change of the services takes nothing from that function; only guests need the group."""
    host = host_with_gen4()
    host.remove(f"{servers.place(GEN4)}/iommu_group")
    group = host.readlink(f"/sys/bus/pci/devices/{servers.NIC_IDLE}/iommu_group")
    host.add_link(f"{servers.place(GEN4)}/iommu_group", f"/sys/kernel/{group.split('kernel/')[1]}")
    driver = driver_on(host, tmp_path, services="dc")
    assert layouts(driver, host)[GEN4].refusal is None
    (entry,) = (entry for entry in look(driver).hardware() if entry.key == GEN4)
    assert f"has {servers.NIC_IDLE}, too" in str(entry.reason)


def test_more_services_than_a_card_can_run_are_refused(tmp_path: Path) -> None:
    host = host_with_gen4()
    card = layouts(driver_on(host, tmp_path, services="sym;asym;dc"), host)[GEN4]
    assert card.refusal == "it can run 2 services at once; shorten [intel_qat] services"


@pytest.mark.parametrize("text", ["sym;crypto", "sym;sym", ";"])
def test_services_that_do_not_exist_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(exception.ConfigError, match="services cannot be"):
        driver_on(servers.server(), tmp_path, services=text)
