# SPDX-License-Identifier: Apache-2.0
"""``cyborg-agent --clean``: what it cleans, what it refuses, and what it prints."""

import io
import sys
from pathlib import Path

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.cmd import agent, clean
from cyborg.conf import opts
from cyborg.drivers.fake import FakeDriver
from cyborg.drivers.loader import LoadResult
from cyborg.drivers.nvmf_spdk import NvmfSpdkDriver
from cyborg.testing.driver_checks import look
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.unit.drivers.configured import written
from cyborg.tests.unit.drivers.simulated_spdk import SimulatedDisk, SimulatedSpdk

DISK = "0000:5e:00.0"
REFUSAL = (
    f"Driver nvmf_spdk_driver failed in reset: {DISK} cannot be cleaned now: its block device "
    "Nvme0n1 is claimed (exclusive_write)"
)


@pytest.fixture
def spdk() -> SimulatedSpdk:
    return SimulatedSpdk()


@pytest.fixture
def driver(spdk: SimulatedSpdk, tmp_path: Path) -> NvmfSpdkDriver:
    host = FakeHost()
    host.add_socket("/var/tmp/spdk.sock", spdk.answer)
    return NvmfSpdkDriver(host, written(tmp_path / "cyborg.conf", ""))


def configured(directory: Path, device: str) -> cfg.ConfigOpts:
    file = directory / "cyborg.conf"
    file.write_text("[DEFAULT]\nhost = compute-1\n")
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    conf.register_cli_opts(clean.OPTIONS)
    words = ["--clean", device]
    conf(words, project="cyborg", default_config_files=[str(file)], default_config_dirs=[])
    return conf


def test_steps_are_run_and_printed(spdk: SimulatedSpdk, driver: NvmfSpdkDriver) -> None:
    out = io.StringIO()
    clean.clean(driver, DISK, out)
    assert out.getvalue().splitlines() == [
        "controller reset",
        "0%: controller reset",
        "NVMe erase",
        "0%: format of namespace 1 (crypto)",
        "100%: verification",
    ]
    assert spdk.disks["Nvme0"].namespaces[1][0] == bytes(512)


def test_failed_step_ends_the_work(spdk: SimulatedSpdk, driver: NvmfSpdkDriver) -> None:
    spdk.disks["Nvme0"].resets = False
    with pytest.raises(exception.DriverFailed, match="SPDK could not reset"):
        clean.clean(driver, DISK, io.StringIO())
    assert spdk.called("bdev_nvme_send_cmd") == 0


def test_device_without_clean_steps_is_refused(spdk: SimulatedSpdk, driver: NvmfSpdkDriver) -> None:
    spdk.disks["Far"] = SimulatedDisk(address="192.0.2.7", transport="TCP")
    with pytest.raises(exception.DriverFailed, match="it has no way to clean Far"):
        clean.clean(driver, "Far", io.StringIO())


@pytest.mark.parametrize(
    ("key", "reason"), [("Malloc0", "it has no way to clean Malloc0"), ("x", "it does not list x")]
)
def test_device_that_is_no_disk_is_refused(
    spdk: SimulatedSpdk, driver: NvmfSpdkDriver, key: str, reason: str
) -> None:
    spdk.others = [{"name": "Malloc0", "claimed": False, "block_size": 512, "num_blocks": 8}]
    with pytest.raises(exception.DriverFailed, match=reason):
        clean.clean(driver, key, io.StringIO())


def test_device_that_is_offered_is_refused(tmp_path: Path) -> None:
    driver = FakeDriver(FakeHost(), written(tmp_path / "cyborg.conf", ""))
    (device,) = look(driver).discover()
    with pytest.raises(exception.DriverFailed, match="the agent cleans it after each guest"):
        clean.clean(driver, device.key, io.StringIO())


@pytest.mark.parametrize("device", ["nvmf_spdk_driver", "/0000:5e:00.0", "nvmf_spdk_driver/", ""])
def test_option_must_name_driver_and_device(tmp_path: Path, device: str) -> None:
    with pytest.raises(exception.ConfigError, match="is not DRIVER/DEVICE"):
        clean.run(configured(tmp_path, device), FakeHost(), io.StringIO())


def test_driver_must_be_installed(tmp_path: Path) -> None:
    with pytest.raises(exception.ConfigError, match="Option --clean: driver 'no_driver'"):
        clean.run(configured(tmp_path, "no_driver/x"), FakeHost(), io.StringIO())


@pytest.mark.parametrize("name", ["fake_driver", "pci_driver", "nvme_driver"])
def test_driver_whose_devices_guests_get_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(exception.ConfigError, match=f"cleans the devices of {name} itself"):
        clean.run(configured(tmp_path, f"{name}/0000:81:00.0"), FakeHost(), io.StringIO())


@pytest.mark.parametrize(
    ("claimed", "status", "line"),
    [
        (False, 0, f"{DISK} is clean."),
        (True, 1, f"{DISK} is not clean: {REFUSAL}"),
    ],
)
def test_result_is_the_last_line_and_the_exit_status(
    spdk: SimulatedSpdk,
    driver: NvmfSpdkDriver,
    tmp_path: Path,
    claimed: bool,
    status: int,
    line: str,
) -> None:
    spdk.claimed = {"Nvme0n1"} if claimed else set()
    result = LoadResult(driver.name, driver)
    out = io.StringIO()
    conf = configured(tmp_path, f"{driver.name}/{DISK}")
    assert clean.run(conf, driver.host, out, load=lambda names, host, conf: [result]) == status
    assert out.getvalue().splitlines()[-1] == line


def test_agent_takes_the_option_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cfg, "CONF", cfg.ConfigOpts())
    file = tmp_path / "cyborg.conf"
    file.write_text("[DEFAULT]\nhost = compute-1\n")
    words = ["cyborg-agent", "--config-file", str(file), "--clean", "fake_driver/x"]
    monkeypatch.setattr(sys, "argv", words)
    assert agent.main() == 1
    assert "the agent cleans the devices of fake_driver itself" in capsys.readouterr().err
