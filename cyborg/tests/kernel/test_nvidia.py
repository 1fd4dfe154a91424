# SPDX-License-Identifier: Apache-2.0
"""The ``nvidia_gpu_driver`` on the files of vGPUs: mediated devices, and vendor-specific VFIO.

The functions are those of the module simaccel, which has the files of both kinds. The tests put
their vendor and class in place of those of NVIDIA's GPUs.
"""

import json
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from cyborg import exception
from cyborg.drivers import nvidia_gpu, nvml
from cyborg.drivers.command import OUTPUT_CAP, Completed
from cyborg.drivers.host import LocalHost
from cyborg.drivers.nvidia_gpu import NvidiaGpuDriver
from cyborg.drivers.scan import Scan
from cyborg.model.work import HandleTask, Unit
from cyborg.tests.kernel.functions import CARD, NVME, Functions
from cyborg.tests.kernel.test_mdev import LARGE, SMALL, available
from cyborg.tests.kernel.test_reset import Root
from cyborg.tests.unit.drivers.configured import written

CONFIGURATION = """\
[gpu_devices]
enabled_vgpu_types = {kind}
[vgpu_{kind}]
device_addresses = {card}
"""


def disguise(monkeypatch: pytest.MonkeyPatch, functions: Functions, address: str) -> None:
    """Let the driver take functions of this kind for GPUs."""
    kind = int(functions.read(address, "class"), 16) >> 8
    monkeypatch.setattr(nvidia_gpu, "_NVIDIA", int(functions.read(address, "vendor"), 16))
    monkeypatch.setattr(nvidia_gpu, "_CONTROLLERS", {kind: "3D controller"})


@pytest.mark.proves("nvidia_gpu_driver", "discover", "bind", "cleaning", by="kernel")
def test_vgpu_is_created_at_the_bind_and_removed_by_cleaning(
    functions: Functions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, other = functions.matching(CARD)
    disguise(monkeypatch, functions, card)
    conf = written(tmp_path / "cyborg.conf", CONFIGURATION.format(kind=SMALL, card=card))
    root = Root()
    driver = NvidiaGpuDriver(LocalHost(privileged=root), conf)
    devices = {device.key: device for device in driver.discover(Scan(driver.host))}
    assert [part.resource_class for part in devices[other].deployables] == ["PGPU"]
    [part] = devices[card].deployables
    assert (part.resource_class, len(part.handles)) == ("VGPU", 4)
    key, handle = part.handles[-1].key, str(uuid.uuid4())
    task = HandleTask("r", driver.name, card, part.name, key, handle)
    driver.prepare(task)
    driver.prepare(task)
    assert functions.names(card, f"mdev_supported_types/{SMALL}/devices") == [handle]
    assert available(functions, card) == [3, 0]
    rows = {row.key: row for row in driver.hardware(Scan(driver.host, all_managed=True))}
    assert rows[card].num == 4
    assert rows[card].capability["vgpu_types"] == {
        SMALL: {"free": 3, "made": 1},
        LARGE: {"free": 0, "made": 0},
    }
    [step] = driver.clean_steps(task)
    assert callable(step.work)
    step.work(lambda done, text: None)
    assert available(functions, card) == [4, 1]
    assert [str(action).partition("(")[0] for action in root.actions] == [
        "CreateMdev",
        "RemoveMdev",
    ]


def test_virtual_functions_with_vendor_specific_vfio_are_listed_with_the_reason(
    functions: Functions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = functions.nvme("SRIOV0001")
    first, second = functions.create_vfs(parent, 2)
    for vf in (first, second):
        functions.bind(vf, "simaccel")
    functions.write(first, "nvidia/current_vgpu_type", 1429)
    disguise(monkeypatch, functions, parent)
    conf = written(tmp_path / "cyborg.conf", "[gpu_devices]\nfilter_sriov_vfs = false\n")
    driver = NvidiaGpuDriver(LocalHost(), conf)
    scan = Scan(driver.host)
    rows = {row.key: row for row in driver.hardware(scan)}
    remedy = "vGPUs of vendor-specific VFIO are offered with [gpu_devices] vendor_vfio = offer only"
    assert rows[first].reason == f"it has a vGPU of type 1429; {remedy}"
    assert rows[second].reason == f"it can have 2 types of vGPU; {remedy}"
    assert set(rows[second].capability["creatable_vgpu_types"]) == {"1429", "1428"}
    assert "it has 2 virtual functions, and 1 of them have vGPUs" in (rows[parent].reason or "")
    offered = {device.key for device in driver.discover(scan)}
    assert not offered & {parent, first, second}
    assert offered <= set(functions.matching(NVME))
    functions.write(first, "nvidia/current_vgpu_type", 0)


#: What the module makes of a card with room for four.
TYPES = [
    {"number": 1428 + exponent, "name": f"SIM A1-{size}C", "memory": size, "most": 4 // size}
    for exponent, size in enumerate((1, 2, 4))
]
VENDOR_VFIO = """\
[gpu_devices]
vendor_vfio = offer
enabled_vgpu_types = nvidia-1429, nvidia-1430
[vgpu_nvidia-1429]
device_addresses = {small}
[vgpu_nvidia-1430]
device_addresses = {large}
"""


class HostWithNvml(LocalHost):
    """This machine, on which NVML knows the types of vGPU of the module."""

    def run(
        self, argv: Sequence[str], *, timeout: float, stdin: bytes = b"", cap: int = OUTPUT_CAP
    ) -> Completed:
        if tuple(argv[: len(nvml.PROGRAM)]) != nvml.PROGRAM:
            return super().run(argv, timeout=timeout, stdin=stdin, cap=cap)
        facts = {"mig": False, "vgpu_types": TYPES, "vgpu_mixed": True}
        gpus = dict.fromkeys(argv[len(nvml.PROGRAM) :], facts)
        return Completed(0, json.dumps({"gpus": gpus}), "")


@pytest.mark.proves("nvidia_gpu_driver", "discover", "bind", "cleaning", by="kernel")
def test_type_of_a_virtual_function_is_set_at_the_bind_and_removed_by_release(
    functions: Functions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = functions.nvme("SRIOV0001")
    first, second = functions.create_vfs(parent, 2)
    for vf in (first, second):
        functions.bind(vf, "simaccel")
    disguise(monkeypatch, functions, parent)
    monkeypatch.setattr(nvidia_gpu, "_HOST_DRIVER", "nvme")
    text = VENDOR_VFIO.format(small=first, large=second)
    root = Root()
    driver = NvidiaGpuDriver(HostWithNvml(privileged=root), written(tmp_path / "cyborg.conf", text))
    devices = {device.key: device for device in driver.discover(Scan(driver.host))}
    assert devices[parent].pools == {"gpu": 4, "nvidia-1429": 2, "nvidia-1430": 1}
    small, large = devices[parent].deployables
    assert (small.cost, large.cost) == (
        {"gpu": 2, "nvidia-1429": 1},
        {"gpu": 4, "nvidia-1430": 1},
    )
    assert small.handles[0].info["managed"] == "false"
    tasks = [
        HandleTask("r", driver.name, parent, part.name, part.handles[0].key, str(uuid.uuid4()))
        for part in (small, large)
    ]
    driver.prepare(tasks[0])
    driver.prepare(tasks[0])
    assert functions.read(first, "nvidia/current_vgpu_type") == "1429"
    kept = Scan(driver.host, all_managed=True)
    assert driver.prepared(kept) == [Unit(small.name, first)]
    with pytest.raises(exception.DriverFailed, match="its card has no room for a vGPU of"):
        driver.prepare(tasks[1])
    # A new load of the driver leaves no type.
    functions.write(first, "driver/unbind", first)
    functions.bind(first, "simaccel")
    assert driver.prepared(Scan(driver.host, all_managed=True)) == []
    driver.prepare(tasks[0])
    [step] = driver.clean_steps(tasks[0])
    assert callable(step.work)
    step.work(lambda done, text: None)
    driver.release(tasks[0])
    assert functions.read(first, "nvidia/current_vgpu_type") == "0"
    assert [str(action) for action in root.actions] == [
        f"SetVgpuType(function={first}, vgpu_type={number})" for number in (1429, 1429, 0)
    ]
