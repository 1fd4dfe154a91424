# SPDX-License-Identifier: Apache-2.0
"""What guests of whole functions can change for good, as drivers of the host show it."""

import json

import pytest

from cyborg import exception
from cyborg.drivers.command import Completed
from cyborg.drivers.lasting_settings import changes
from cyborg.drivers.nvidia_health import settings as settings_of_gpu
from cyborg.drivers.nvml import Gpu
from cyborg.drivers.pci import PciDriver
from cyborg.drivers.scan import Scan
from cyborg.testing import servers
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.unit.drivers.configured import configured

DEVLINK = "/usr/sbin/devlink"
CARD = servers.NVME_FREE


def settings(host: FakeHost, key: str) -> dict[str, str]:
    """Return the settings that a driver without knowledge of its own shows."""
    driver = PciDriver(host, configured('{"address": "*:*:*.*"}'))
    return dict(driver.settings(Scan(host), key, key))


def test_disk_has_the_version_of_its_firmware() -> None:
    host = servers.server()
    host.add_file(f"{servers.place(CARD)}/nvme/nvme1/firmware_rev", "GDC7302Q\n")
    assert settings(host, CARD) == {"firmware": "GDC7302Q", "SR-IOV functions": "none"}


def test_card_has_the_number_of_functions_that_it_can_have() -> None:
    host = servers.server()
    assert settings(host, servers.QAT_PF) == {"SR-IOV functions": "16"}


def test_gpu_of_amd_has_the_version_of_its_video_bios() -> None:
    host = servers.bare()
    place = servers.add_function(host, CARD, "1002:740f:120000", driver="amdgpu")
    host.add_file(f"{place}/vbios_version", "113-D67301-063\n")
    assert settings(host, CARD)["firmware"] == "113-D67301-063"


def test_network_card_has_its_running_and_its_stored_versions() -> None:
    host = servers.server()
    handle = f"pci/{servers.NIC_IDLE}"
    versions = {"running": {"fw": "8.40", "fw.bundle": "0x8000"}, "stored": {"fw": "8.50"}}
    answer = json.dumps({"info": {handle: {"driver": "i40e", "versions": versions}}})
    host.add_file(DEVLINK, "")
    host.programs[DEVLINK] = lambda _, argv: Completed(0, answer, "")
    assert settings(host, servers.NIC_IDLE) == {
        "firmware": "fw 8.40, fw.bundle 0x8000",
        "stored firmware": "fw 8.50",
        "SR-IOV functions": "none",
    }
    host.programs[DEVLINK] = lambda _, argv: Completed(1, "", "not supported")
    assert settings(host, servers.NIC_IDLE) == {"SR-IOV functions": "none"}
    host.programs[DEVLINK] = lambda _, argv: Completed(0, "[]", "")
    with pytest.raises(exception.HostError, match="devlink printed no versions"):
        settings(host, servers.NIC_IDLE)


@pytest.mark.parametrize("key", [servers.GPU_ON_VFIO, servers.QAT_VFS[0], servers.FPGA, "unit-1"])
def test_nothing_is_known_without_a_driver_of_the_host_or_of_a_part(key: str) -> None:
    assert settings(servers.server(), key) == {}


def test_gpu_of_nvidia_has_its_modes_and_its_video_bios() -> None:
    gpu = Gpu(vbios="96.00.61.00.01", ecc=True, ecc_pending=False, mig=False, mig_pending=True)
    assert settings_of_gpu(gpu) == {
        "firmware": "96.00.61.00.01",
        "ECC mode": "on",
        "ECC mode after a reset": "off",
        "MIG mode": "off",
        "MIG mode after a reset": "on",
    }
    assert settings_of_gpu(Gpu()) == {}


def test_changes_have_both_values_and_leave_out_what_is_not_known() -> None:
    before = {"firmware": "1", "ECC mode": "on", "MIG mode": "off"}
    now = {"firmware": "2", "ECC mode": "on", "new": "x"}
    assert list(changes(before, now)) == ["its firmware was 1 before the guest and is 2 now"]
