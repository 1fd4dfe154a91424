# SPDX-License-Identifier: Apache-2.0
"""The nvidia_gpu_driver on a recorded machine: a virtual machine that has a whole H100.

``metal-h100.tar.gz`` is the archive of ``tools/metal --archive``, and ``metal-h100.json`` what
``tools/metal --json`` printed there: the answers of NVML, which no archive has, and the results.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cyborg.drivers.nvidia_gpu import NvidiaGpuDriver
from cyborg.drivers.ownership import NO_IOMMU
from cyborg.model.health import Judgement
from cyborg.testing.driver_checks import look
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.unit.drivers.configured import written
from cyborg.tests.unit.drivers.test_nvidia_gpu import Nvml

RECORDS = Path(__file__).parents[2] / "fixtures" / "hosts"
GPU = "0000:00:06.0"


@pytest.fixture
def report() -> dict[str, Any]:
    value: dict[str, Any] = json.loads((RECORDS / "metal-h100.json").read_text())
    return value


@pytest.fixture
def host(report: dict[str, Any]) -> FakeHost:
    host = FakeHost.recorded(RECORDS / "metal-h100.tar.gz")
    program = Nvml()
    program.facts[GPU] = report["gpus"][GPU]["nvml"]
    host.programs[sys.executable] = program
    return host


def driver_on(host: FakeHost, tmp_path: Path) -> NvidiaGpuDriver:
    return NvidiaGpuDriver(host, written(tmp_path / "cyborg.conf", ""))


def test_recorded_gpu_is_listed_with_the_reason_why_it_is_not_offered(
    host: FakeHost, report: dict[str, Any], tmp_path: Path
) -> None:
    driver = driver_on(host, tmp_path)
    (item,) = look(driver).hardware()
    assert (item.key, item.offered, item.reason) == (GPU, False, NO_IOMMU)
    assert item.model == report["gpus"][GPU]["model"] == "H100 SXM"
    assert item.capability["clean"] == ["function reset"]
    assert item.capability["mig"] == {"enabled": False, "pending": False, "instances": []}
    assert look(driver).discover() == []


def test_recorded_gpu_would_be_offered_with_an_iommu_if_nobody_had_it_open(
    host: FakeHost, tmp_path: Path
) -> None:
    place = host.realpath(f"/sys/bus/pci/devices/{GPU}")
    host.add_link(f"{place}/iommu_group", "../../../kernel/iommu_groups/6")
    host.add_link(f"/sys/kernel/iommu_groups/6/devices/{GPU}", f"../../../..{place}")
    driver = driver_on(host, tmp_path)
    # Not even root could read the open files of process 1 there.
    (item,) = look(driver).hardware()
    assert not item.offered
    assert "Permission denied" in str(item.reason)
    host.remove("/proc/1")
    (device,) = look(driver).discover()
    (deployable,) = device.deployables
    assert deployable.resource_class == "PGPU"
    assert deployable.traits == ("OWNER_CYBORG", "CUSTOM_NVIDIA_2330")
    assert [handle.key for handle in deployable.handles] == [GPU]


@pytest.mark.proves("nvidia_gpu_driver", "health", "stats", by="recorded")
def test_recorded_answers_of_nvml_give_the_recorded_health_and_figures(
    host: FakeHost, report: dict[str, Any], tmp_path: Path
) -> None:
    driver = driver_on(host, tmp_path)
    recorded = report["gpus"][GPU]
    assert look(driver).health(GPU) == Judgement()
    assert recorded["health"] == ["ok"]
    figures = dict(look(driver).stats(GPU))
    # Temperature and power were measured again a moment later.
    for name in ("utilization_ratio", "memory_used_bytes", "memory_total_bytes"):
        assert figures[name] == recorded["figures"][name]
    assert figures["power_watts"] == pytest.approx(recorded["nvml"]["power"] / 1000)
    assert figures["temperature_celsius"] == recorded["nvml"]["temperature"]


def test_all_checks_held_on_the_recorded_machine(report: dict[str, Any]) -> None:
    assert report["holds"] is True
    assert report["machine"] == {"kernel": "6.18.44", "driver": "580.159.04"}
    assert len(report["checks"]) == 8


def test_record_names_the_gpu_by_a_hash_only(host: FakeHost, report: dict[str, Any]) -> None:
    assert not {"uuid", "serial"} & report["gpus"][GPU]["nvml"].keys()
    text = host.read_text(f"/proc/driver/nvidia/gpus/{GPU}/information")
    uuid = text.partition("GPU UUID:")[2].split()[0]
    assert uuid in host.run(["nvidia-smi", "-L"], timeout=1.0).stdout
