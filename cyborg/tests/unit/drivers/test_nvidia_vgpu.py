# SPDX-License-Identifier: Apache-2.0
"""vGPUs of the nvidia_gpu_driver on a simulated kernel with mediated devices."""

import errno
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cyborg import exception
from cyborg.db.migrations.initial_facts import driver_of, handle_key
from cyborg.drivers.base import Driver, ResetLevel, clean_calls, no_progress
from cyborg.drivers.nvidia_gpu import NvidiaGpuDriver
from cyborg.drivers.scan import Scan
from cyborg.model.cleaning import HostClean
from cyborg.model.device import AttachType, Device, DeviceType
from cyborg.model.work import HandleTask, Unit
from cyborg.testing import servers
from cyborg.testing.driver_checks import look, tasks_for
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.host_driver import HostDriver, MdevProfile, MdevType
from cyborg.testing.kernel.simulated import SimulatedKernel
from cyborg.tests.unit.drivers.configured import written
from cyborg.tests.unit.drivers.test_nvidia_gpu import L40S, VFS, GpuContract, Nvml, add_l40s

#: A T4 with vGPUs, and one that stays whole.
T4, WHOLE = "0000:3b:00.0", "0000:86:00.0"
KIND, LARGE = "nvidia-2", "nvidia-4"
DRIVER = "nvidia_gpu_driver"
UUID = "0e6a3b6c-95f2-4d6b-8f3c-1c2d3e4f5a6b"
CONF = f"[gpu_devices]\nenabled_vgpu_types = {KIND}\n[vgpu_{KIND}]\ndevice_addresses = {T4}\n"


def host_with_t4s() -> FakeHost:
    host = servers.bare()
    for address in (T4, WHOLE):
        servers.add_function(host, address, "10de:1eb8:030200", driver="nvidia", node=0)
    # The host driver registers the types when it is bound.
    host.remove(f"{servers.place(T4)}/driver")
    types = {"2": MdevType(1, "GRID T4-2B"), "4": MdevType(2, "GRID T4-4Q")}
    gpu = HostDriver(
        "nvidia", ids=frozenset({"10de:1eb8"}), mdev=MdevProfile(4, types, homogeneous=True)
    )
    SimulatedKernel(host, [gpu]).boot()
    # The directories that the first mediated device brings stay after it.
    for path in ("/sys/class/vfio", "/sys/class/vfio-dev", "/sys/devices/virtual/vfio"):
        host.add_dir(path)
    host.programs[sys.executable] = Nvml()
    return host


def driver_on(host: FakeHost, tmp_path: Path, text: str = CONF) -> NvidiaGpuDriver:
    return NvidiaGpuDriver(host, written(tmp_path / "cyborg.conf", text))


def found(host: FakeHost, tmp_path: Path, text: str = CONF, **claims: Any) -> dict[str, Device]:
    driver = driver_on(host, tmp_path, text)
    return {device.key: device for device in driver.discover(Scan(host, **claims))}


def reason(host: FakeHost, tmp_path: Path, text: str = CONF, key: str = T4) -> str:
    items = {item.key: item for item in look(driver_on(host, tmp_path, text)).hardware()}
    return str(items[key].reason)


def task_of(host: FakeHost, tmp_path: Path) -> HandleTask:
    driver = driver_on(host, tmp_path)
    tasks = {task.device_key: task for task in tasks_for(driver.name, look(driver).discover())}
    return tasks[T4]


@pytest.mark.proves("nvidia_gpu_driver", "discover", "health", by="simulated")
class TestVgpus(GpuContract):
    """The driver contract on a host with vGPUs and with a whole card."""

    def make_host(self) -> FakeHost:
        return host_with_t4s()

    def make_driver(self, host: FakeHost) -> Driver:
        return driver_on(host, self.tmp_path)


def test_existing_rows_keep_their_names_and_values(tmp_path: Path) -> None:
    devices = found(host_with_t4s(), tmp_path)
    device = devices[T4]
    assert device.type is DeviceType.GPU
    (deployable,) = device.deployables
    assert deployable.name == f"compute-1_{T4}"
    assert (deployable.resource_class, deployable.driver_name) == ("VGPU", "NVIDIA")
    assert deployable.traits == ("OWNER_CYBORG", "CUSTOM_NVIDIA_1EB8_T4_2B")
    attributes = [(attribute.key, attribute.value) for attribute in deployable.attributes]
    assert attributes[:2] == [("rc", "VGPU"), ("trait0", "OWNER_CYBORG")]
    assert [handle.key for handle in deployable.handles] == [f"{T4}/{KIND}_{i}" for i in range(4)]
    handle = deployable.handles[1]
    assert handle.type is AttachType.MDEV
    assert handle.info == {
        "domain": "0000",
        "bus": "3b",
        "device": "00",
        "function": "0",
        "asked_type": KIND,
        "vgpu_mark": f"{KIND}_1",
    }
    assert devices[WHOLE].deployables[0].resource_class == "PGPU"


def test_a_type_of_vgpus_can_have_a_class_of_its_own(tmp_path: Path) -> None:
    section = f"[vgpu_{KIND}]\n"
    assert section in CONF
    own = CONF.replace(section, f"{section}resource_class = CUSTOM_T4_2B\n")
    devices = found(host_with_t4s(), tmp_path, own)
    (deployable,) = devices[T4].deployables
    assert deployable.resource_class == "CUSTOM_T4_2B"
    assert deployable.attributes[0].value == "CUSTOM_T4_2B"
    assert devices[WHOLE].deployables[0].resource_class == "PGPU"
    wrong = CONF.replace(section, f"{section}resource_class = t4\n")
    with pytest.raises(exception.ConfigError) as caught:
        found(host_with_t4s(), tmp_path, wrong)
    assert str(caught.value).startswith(f"Option [vgpu_{KIND}] resource_class: ")


def test_migrated_handles_have_the_keys_of_the_driver(tmp_path: Path) -> None:
    """An ARQ that the existing service bound keeps its unit: the keys of its rows are these."""
    handles = [
        handle
        for device in found(host_with_t4s(), tmp_path).values()
        for handle in device.deployables[0].handles
    ]
    assert len(handles) == 5
    for handle in handles:
        assert handle_key(handle.type.value, json.dumps(handle.info), UUID) == handle.key
    assert driver_of("VGPU", "nvidia", "GPU") == driver_of("PGPU", "nvidia", "GPU") == DRIVER


@pytest.mark.proves("nvidia_gpu_driver", "bind", by="simulated")
def test_a_vgpu_is_created_with_the_uuid_of_its_handle(tmp_path: Path) -> None:
    host = host_with_t4s()
    driver, task = driver_on(host, tmp_path), task_of(host, tmp_path)
    driver.prepare(task)
    driver.prepare(task)
    assert host.list_dir("/sys/bus/mdev/devices") == [task.handle_uuid]
    kind = f"/sys/bus/pci/devices/{T4}/mdev_supported_types/{KIND}"
    assert host.list_dir(f"{kind}/devices") == [task.handle_uuid]
    driver.release(task)
    driver.release(task)
    assert host.list_dir("/sys/bus/mdev/devices") == []


def test_mediated_devices_are_prepared_units_once_vendor_specific_vfio_is_offered(
    tmp_path: Path,
) -> None:
    host, text = (
        host_with_t4s(),
        CONF.replace("[gpu_devices]", "[gpu_devices]\nvendor_vfio = offer"),
    )
    driver, task = driver_on(host, tmp_path, text), task_of(host, tmp_path)
    assert look(driver).prepared() == []
    driver.prepare(task)
    assert look(driver).prepared() == [Unit(task.deployable, task.handle_uuid)]
    with pytest.raises(exception.DriverCannot):
        look(driver_on(host, tmp_path)).prepared()


@pytest.mark.proves("nvidia_gpu_driver", "cleaning", by="simulated")
def test_cleaning_removes_a_vgpu_that_nova_created_again(tmp_path: Path) -> None:
    host = host_with_t4s()
    driver, task = driver_on(host, tmp_path), task_of(host, tmp_path)
    create = f"/sys/bus/pci/devices/{T4}/mdev_supported_types/{KIND}/create"
    host.write_text(create, task.handle_uuid)
    (step,) = driver.clean_steps(task)
    assert step.name == "vGPU removal"
    for _, call in clean_calls(driver, task):
        call(no_progress)
    assert host.list_dir("/sys/bus/mdev/devices") == []
    devices = found(host, tmp_path)
    assert devices[T4].deployables[0].clean is HostClean.DEFAULT
    # The kernel does not tell a way to reset the other card.
    assert devices[WHOLE].deployables[0].clean is None


def test_a_whole_gpu_is_reset_if_the_kernel_can_do_it(tmp_path: Path) -> None:
    host = host_with_t4s()
    host.add_file(f"{servers.place(WHOLE)}/reset_method", "flr bus\n")
    assert found(host, tmp_path)[WHOLE].deployables[0].clean is HostClean.DEFAULT
    conf = CONF.replace("[gpu_devices]", "[gpu_devices]\nclean = none")
    assert found(host, tmp_path, conf)[WHOLE].deployables[0].clean is HostClean.NONE


def test_units_that_are_given_out_still_count(tmp_path: Path) -> None:
    host = host_with_t4s()
    driver_on(host, tmp_path).prepare(task_of(host, tmp_path))
    managed = found(host, tmp_path, managed_deployables={f"compute-1_{T4}"})
    assert len(managed[T4].deployables[0].handles) == 4


def test_vgpus_that_others_made_do_not_count(tmp_path: Path) -> None:
    host = host_with_t4s()
    create = f"/sys/bus/pci/devices/{T4}/mdev_supported_types/{KIND}/create"
    host.write_text(create, UUID)
    assert len(found(host, tmp_path)[T4].deployables[0].handles) == 3


def test_a_card_whose_capacity_another_type_has_is_refused(tmp_path: Path) -> None:
    host = host_with_t4s()
    create = f"/sys/bus/pci/devices/{T4}/mdev_supported_types/{LARGE}/create"
    host.write_text(create, UUID)
    expected = f"it has no free vGPU of type {KIND}; another type may have its capacity"
    assert reason(host, tmp_path) == expected


def test_a_type_that_the_card_does_not_have_is_refused(tmp_path: Path) -> None:
    text = CONF.replace(KIND, "nvidia-9")
    assert reason(host_with_t4s(), tmp_path, text) == (
        f"it has no vGPU type nvidia-9, but {KIND}, {LARGE}"
    )


def test_a_uuid_on_another_card_is_an_error(tmp_path: Path) -> None:
    host = host_with_t4s()
    task = task_of(host, tmp_path)
    place = f"{servers.place(WHOLE)}/{task.handle_uuid}"
    host.add_dir(place)
    host.add_link(f"/sys/bus/mdev/devices/{task.handle_uuid}", place)
    with pytest.raises(exception.DriverFailed, match="exists on another GPU"):
        driver_on(host, tmp_path).prepare(task)


def test_a_card_that_is_full_refuses_another_vgpu(tmp_path: Path) -> None:
    host = host_with_t4s()
    task = task_of(host, tmp_path)
    create = f"/sys/bus/pci/devices/{T4}/mdev_supported_types/{LARGE}/create"
    host.write_text(create, UUID)
    with pytest.raises(exception.HostError) as raised:
        driver_on(host, tmp_path).prepare(task)
    assert raised.value.fields["errno"] == errno.ENOSPC


def test_a_card_with_vgpus_is_not_reset(tmp_path: Path) -> None:
    host = host_with_t4s()
    with pytest.raises(exception.DriverCannot):
        driver_on(host, tmp_path).reset(T4, ResetLevel.FUNCTION)
    assert host.writes == []


def test_hardware_shows_the_types(tmp_path: Path) -> None:
    items = {item.key: item for item in look(driver_on(host_with_t4s(), tmp_path)).hardware()}
    assert items[T4].num == 4
    assert items[T4].capability["vgpu_types"] == {
        KIND: {"free": 4, "made": 0},
        LARGE: {"free": 2, "made": 0},
    }


def test_a_virtual_function_with_vendor_specific_vfio_needs_the_option(tmp_path: Path) -> None:
    host = host_with_t4s()
    add_l40s(host)
    text = CONF.replace(T4, VFS[0])
    assert reason(host, tmp_path, text, VFS[0]) == (
        "it has no mediated devices, but vendor-specific VFIO; vGPUs of vendor-specific VFIO are "
        "offered with [gpu_devices] vendor_vfio = offer only"
    )
    items = {item.key: item for item in look(driver_on(host, tmp_path)).hardware()}
    assert items[VFS[1]].capability["creatable_vgpu_types"] == {
        "1150": "NVIDIA L40S-8Q",
        "1155": "NVIDIA L40S-48Q",
    }
    assert items[VFS[1]].capability["current_vgpu_type"] == "0"


def test_a_virtual_function_with_mediated_devices_is_offered(tmp_path: Path) -> None:
    host = host_with_t4s()
    add_l40s(host)
    kind = f"{servers.place(VFS[0])}/mdev_supported_types/nvidia-558"
    host.remove(f"{servers.place(VFS[0])}/nvidia")
    host.add_file(f"{kind}/available_instances", "1\n")
    host.add_file(f"{kind}/name", "NVIDIA A40-48Q\n")
    text = (
        "[gpu_devices]\nenabled_vgpu_types = nvidia-558\n"
        f"[vgpu_nvidia-558]\ndevice_addresses = {VFS[0]}\n"
    )
    device = found(host, tmp_path, text)[VFS[0]]
    assert device.deployables[0].traits[1] == "CUSTOM_NVIDIA_26B9_A40_48Q"
    assert len(device.deployables[0].handles) == 1
    assert look(driver_on(host, tmp_path, text)).health(VFS[0]).evidence == ()
    assert host.commands[-1][3:] == (L40S,)


@pytest.mark.parametrize(
    ("text", "flaw"),
    [
        ("", f"Option [vgpu_{KIND}] device_addresses must be set, because"),
        (f"[vgpu_{KIND}]\ndevice_addresses = 3b:00.0\n", "'3b:00.0' is not a PCI address"),
        (
            f"[vgpu_{KIND}]\ndevice_addresses = {T4}, {T4}\n",
            f"{T4} is in [vgpu_{KIND}] already",
        ),
        (
            f"[vgpu_{KIND}]\ndevice_addresses = {T4}\n[vgpu_{LARGE}]\ndevice_addresses = {T4}\n",
            f"{T4} is in [vgpu_{KIND}] already",
        ),
    ],
)
def test_addresses_that_cannot_be_used_are_refused(tmp_path: Path, text: str, flaw: str) -> None:
    types = f"{KIND}, {LARGE}" if LARGE in text else KIND
    with pytest.raises(exception.ConfigError) as raised:
        driver_on(servers.bare(), tmp_path, f"[gpu_devices]\nenabled_vgpu_types = {types}\n{text}")
    assert flaw in str(raised.value)


def test_a_type_that_is_no_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(exception.ConfigError, match="is not a type"):
        driver_on(servers.bare(), tmp_path, "[gpu_devices]\nenabled_vgpu_types = ../x\n")
