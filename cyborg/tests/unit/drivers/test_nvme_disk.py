# SPDX-License-Identifier: Apache-2.0
"""The drivers of NVMe disks on simulated hosts: what is offered, health and cleaning."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cyborg import exception
from cyborg.drivers import loader
from cyborg.drivers.base import Driver
from cyborg.drivers.nvme_disk import InspurNvmeSsdDriver, NvmeDriver
from cyborg.model.cleaning import HostClean
from cyborg.model.device import Device, DeviceType
from cyborg.model.health import Judgement
from cyborg.testing import servers
from cyborg.testing.driver_checks import look
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.nvme_tool import NvmeTool
from cyborg.tests.unit.drivers.configured import written

DISK, OTHER, INSPUR = servers.NVME_FREE, "0000:87:00.0", "0000:88:00.0"
EVERY = '[nvme]\ndevice_spec = {"vendor_id": "*"}\n'


def host_with_disks() -> FakeHost:
    host = servers.server()
    for number, (address, ids) in enumerate(
        [(OTHER, "144d:a808:010802"), (INSPUR, "1bd4:1003:010802")], 2
    ):
        servers.add_function(host, address, ids, driver="nvme", node=1)
        servers.add_disk(
            host, address, f"nvme/nvme{number}/nvme{number}n1", number=f"259:{number + 3}"
        )
    for number, address in enumerate((DISK, OTHER, INSPUR), 1):
        place = host.realpath(f"/sys/bus/pci/devices/{address}")
        host.add_file(f"{place}/nvme/nvme{number}/state", "live\n")
        host.add_file(f"{place}/nvme/nvme{number}/dev", f"240:{number}\n")
        host.add_file(f"{place}/reset_method", "flr bus\n")
        host.add_file(f"{place}/reset", "")
        host.add_file(f"{place}/config", b"\x4d\x14\x08\xa8" + bytes(60))
        for name, text in (("nsid", "1\n"), ("size", "8\n")):
            host.add_file(f"{place}/nvme/nvme{number}/nvme{number}n1/{name}", text)
        host.add_file(f"/dev/nvme{number}n1", bytes(4096))
        host.add_file(f"/dev/nvme{number}", "")
    host.programs["nvme"] = NvmeTool()
    return host


def driver_on(host: FakeHost, tmp_path: Path, text: str = EVERY) -> NvmeDriver:
    return NvmeDriver(host, written(tmp_path / "cyborg.conf", text))


class Contract(DriverContract):
    """The driver contract; a dead controller is the fault."""

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path

    def make_host(self) -> FakeHost:
        return host_with_disks()

    def break_device(self, host: FakeHost, key: str) -> None:
        self._set_state(host, key, "dead\n")

    def mend_device(self, host: FakeHost, key: str) -> None:
        self._set_state(host, key, "live\n")

    def _set_state(self, host: FakeHost, key: str, state: str) -> None:
        directory = host.realpath(f"/sys/bus/pci/devices/{key}/nvme")
        for name in host.list_dir(directory):
            host.add_file(f"{directory}/{name}/state", state)


@pytest.mark.proves("nvme_driver", "discover", "health", by="simulated")
class TestNvme(Contract):
    def make_driver(self, host: FakeHost) -> Driver:
        return driver_on(host, self.tmp_path)


@pytest.mark.proves("inspur_nvme_ssd_driver", "discover", "health", by="simulated")
@pytest.mark.filterwarnings("ignore:.* has room for one guest")
class TestInspur(Contract):
    def make_driver(self, host: FakeHost) -> Driver:
        return InspurNvmeSsdDriver(host, written(self.tmp_path / "cyborg.conf", ""))


def found(driver: Driver) -> dict[str, Device]:
    return {device.key: device for device in look(driver).discover()}


def test_disks_that_the_option_names_are_offered_unless_the_host_uses_them(tmp_path: Path) -> None:
    driver = driver_on(host_with_disks(), tmp_path)
    assert set(found(driver)) == {DISK, OTHER, INSPUR}
    reasons = {item.key: item.reason for item in look(driver).hardware()}
    assert reasons[servers.NVME_MOUNTED] == "its disk nvme0n1p1 is mounted at /"
    assert found(driver_on(host_with_disks(), tmp_path, "")) == {}
    named = f'[nvme]\ndevice_spec = {{"address": "{OTHER}"}}\n'
    assert set(found(driver_on(host_with_disks(), tmp_path, named))) == {OTHER}


def test_a_disk_has_its_class_traits_and_cleaning(tmp_path: Path) -> None:
    device = found(driver_on(host_with_disks(), tmp_path))[DISK]
    (deployable,) = device.deployables
    assert (device.type, device.vendor) == (DeviceType.NVME, "144d")
    assert deployable.name == f"compute-1_{DISK}"
    assert (deployable.resource_class, deployable.clean) == ("CUSTOM_NVME", HostClean.DEFAULT)
    assert deployable.traits == ("STORAGE_DISK_SSD", "CUSTOM_NVME_144D_A808", "OWNER_CYBORG")
    (item,) = (i for i in look(driver_on(host_with_disks(), tmp_path)).hardware() if i.key == DISK)
    assert item.capability["clean"] == ["function reset", "NVMe erase"]


def test_existing_rows_of_inspur_keep_their_names_and_values(tmp_path: Path) -> None:
    driver = InspurNvmeSsdDriver(host_with_disks(), written(tmp_path / "cyborg.conf", ""))
    (device,) = found(driver).values()
    (deployable,) = device.deployables
    assert (device.key, device.type, device.vendor) == (INSPUR, DeviceType.SSD, "1bd4")
    assert device.std_board_info == {"product_id": "1003", "controller": None}
    assert device.vendor_board_info == '{"vendor_info": "ssd_vb_info"}'
    assert deployable.name == f"compute-1_{INSPUR}"
    assert (deployable.resource_class, deployable.driver_name) == ("CUSTOM_SSD", "INSPUR")
    assert deployable.traits[:2] == ("CUSTOM_SSD_INSPUR", "CUSTOM_SSD_PRODUCT_ID_1003")


def health(tmp_path: Path, change: Callable[[FakeHost, NvmeTool], object]) -> Judgement:
    host, tool = host_with_disks(), NvmeTool()
    host.programs["nvme"] = tool
    change(host, tool)
    return look(driver_on(host, tmp_path)).health(DISK)


def test_a_disk_whose_log_cannot_be_read_has_the_health_of_its_state(tmp_path: Path) -> None:
    assert health(tmp_path, lambda host, _: host.programs.pop("nvme")) == Judgement()


def test_a_disk_in_a_guest_has_no_health(tmp_path: Path) -> None:
    with pytest.raises(exception.DriverCannot):
        health(
            tmp_path,
            lambda host, _: host.remove(f"{host.realpath(f'/sys/bus/pci/devices/{DISK}')}/nvme"),
        )


def test_a_value_that_is_no_disk_names_its_option(tmp_path: Path) -> None:
    with pytest.raises(exception.ConfigError, match=r"Option \[nvme\] device_spec cannot be"):
        driver_on(servers.bare(), tmp_path, "[nvme]\ndevice_spec = {\n")


@pytest.mark.parametrize(
    ("keys", "clean", "words"),
    [
        ({"clear_action": "nonsense"}, "", "'nonsense' is neither 'auto' nor 'sanitize'"),
        ({"clear_action": ["auto"]}, "", "is neither 'auto' nor 'sanitize'"),
        ({"clear_action": "zero"}, "", "write 'sanitize' or 'auto'"),
        ({"clear_strategy": "nonsense"}, "", "'nonsense' is none of auto, crypto, block"),
        ({"clear_strategy": {}}, "", "is none of auto, crypto, block"),
        ({"clear_action": "auto"}, "none", "clean is 'none'; remove these keys, or set clean"),
        ({"clear_strategy": "block"}, "reset", "clean is 'reset'; remove these keys"),
    ],
)
def test_cleaning_of_an_entry_that_cannot_be_obeyed_is_refused_at_start(
    tmp_path: Path, keys: dict[str, object], clean: str, words: str
) -> None:
    entry = json.dumps({"vendor_id": "144d", **keys})
    text = f"[nvme]\ndevice_spec = {entry}\n" + (f"clean = {clean}\n" if clean else "")
    conf = written(tmp_path / "cyborg.conf", text)
    with pytest.raises(exception.ConfigError) as caught:
        loader.load(["nvme_driver"], host_with_disks(), conf)
    assert str(caught.value).startswith("Option [nvme] device_spec cannot be")
    assert words in str(caught.value)
