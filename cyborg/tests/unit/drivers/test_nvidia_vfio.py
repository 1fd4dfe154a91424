# SPDX-License-Identifier: Apache-2.0
"""vGPUs of the nvidia_gpu_driver through vendor-specific VFIO, on a simulated kernel."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cyborg import exception
from cyborg.drivers.base import Driver, ResetLevel, clean_calls, no_progress
from cyborg.drivers.nvidia_gpu import NvidiaGpuDriver
from cyborg.drivers.scan import Scan
from cyborg.model.cleaning import HostClean
from cyborg.model.device import AttachType, Device, Hardware
from cyborg.model.work import HandleTask, Unit
from cyborg.testing import scenario_hosts, servers, situations
from cyborg.testing.driver_checks import change, look
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.host_driver import HostDriver, VgpuProfile
from cyborg.testing.kernel.simulated import SimulatedKernel
from cyborg.tests.unit.drivers.configured import written
from cyborg.tests.unit.drivers.test_nvidia_gpu import L40S, UUID, GpuContract, Nvml

#: A card with four virtual functions; the sections give a type to the first three.
FIRST, SECOND, THIRD, OTHER = VFS = tuple(f"0000:d8:00.{number}" for number in range(4, 8))
SMALL, LARGE = "nvidia-1150", "nvidia-1155"
GIB = 2**30
OPTION = "[gpu_devices]\nvendor_vfio = offer\n"
CONF = (
    f"{OPTION}enabled_vgpu_types = {SMALL}, {LARGE}\n"
    f"[vgpu_{SMALL}]\ndevice_addresses = {FIRST}, {SECOND}\n"
    f"[vgpu_{LARGE}]\ndevice_addresses = {THIRD}\nresource_class = CUSTOM_LARGE\n"
)
TYPES = [
    {"number": 1150, "name": "NVIDIA L40S-24Q", "memory": 24 * GIB, "most": 2, "profile": None},
    {"number": 1152, "name": "NVIDIA L40S-16Q", "memory": 16 * GIB, "most": 3, "profile": None},
    {"number": 1155, "name": "NVIDIA L40S-48Q", "memory": 48 * GIB, "most": 1, "profile": None},
]
_PROCESS = 4190


#: What the simulated driver of the host makes of one card: number → name and memory in GiB.
MADE = {
    1150: ("NVIDIA L40S-24Q", 24),
    1152: ("NVIDIA L40S-16Q", 16),
    1155: ("NVIDIA L40S-48Q", 48),
}


def host_with_l40s(*, made: Mapping[int, tuple[str, int]] = MADE, **facts: Any) -> FakeHost:
    """Return a host with one card whose vGPUs share its memory; NVML tells ``facts`` about it."""
    host = servers.bare()
    servers.add_function(host, L40S, "10de:26b9:030200", driver="nvidia", node=1)
    servers.add_vfs(host, L40S, VFS, "10de:26b9:030200")
    driver = HostDriver("nvidia", frozenset({"10de:26b9"}), vgpu=VgpuProfile(48, made))
    SimulatedKernel(host, [driver]).boot()
    program = Nvml()
    program.facts[L40S] = {"uuid": UUID, "vgpu_types": TYPES, "vgpu_mixed": True, **facts}
    host.programs[sys.executable] = program
    return host


def driver_on(host: FakeHost, tmp_path: Path, text: str = CONF) -> NvidiaGpuDriver:
    return NvidiaGpuDriver(host, written(tmp_path / "cyborg.conf", text))


def found(
    host: FakeHost, tmp_path: Path, text: str = CONF, *, managed: tuple[str, ...] = ()
) -> dict[str, Device]:
    names = {f"compute-1_{address}" for address in managed}
    driver = driver_on(host, tmp_path, text)
    return {device.key: device for device in driver.discover(Scan(host, managed_deployables=names))}


def listed(host: FakeHost, tmp_path: Path, text: str = CONF) -> dict[str, Hardware]:
    return {item.key: item for item in look(driver_on(host, tmp_path, text)).hardware()}


def units(device: Device) -> dict[str, Mapping[str, int]]:
    """Return the units of a card with their costs."""
    return {part.handles[0].key: part.cost for part in device.deployables}


def task_of(address: str) -> HandleTask:
    name = f"compute-1_{address}"
    return HandleTask("request", NvidiaGpuDriver.name, L40S, name, address, UUID[4:])


def type_at(host: FakeHost, address: str) -> str:
    return host.read_text(f"/sys/bus/pci/devices/{address}/nvidia/current_vgpu_type").strip()


def set_type(host: FakeHost, address: str, number: int) -> None:
    """Set a type as an operator does."""
    host.write_text(f"/sys/bus/pci/devices/{address}/nvidia/current_vgpu_type", str(number))


@pytest.mark.proves("nvidia_gpu_driver", "discover", "bind", "cleaning", by="simulated")
class TestContract(GpuContract):
    """The driver contract; each call of prepare and release is interrupted."""

    def make_host(self) -> FakeHost:
        return host_with_l40s()

    def make_driver(self, host: FakeHost) -> Driver:
        return driver_on(host, self.tmp_path)


def test_virtual_functions_are_units_that_share_their_card(tmp_path: Path) -> None:
    device = found(host_with_l40s(), tmp_path)[L40S]
    assert device.pools == {"gpu": 6, SMALL: 2, LARGE: 1}
    assert units(device) == {
        FIRST: {"gpu": 3, SMALL: 1},
        SECOND: {"gpu": 3, SMALL: 1},
        THIRD: {"gpu": 6, LARGE: 1},
    }
    first, _, third = device.deployables
    assert (first.name, first.resource_class) == (f"compute-1_{FIRST}", "VGPU")
    assert first.traits == ("OWNER_CYBORG", "CUSTOM_NVIDIA_26B9_L40S_24Q")
    assert (third.resource_class, third.traits[1]) == (
        "CUSTOM_LARGE",
        "CUSTOM_NVIDIA_26B9_L40S_48Q",
    )
    assert (first.prepare, first.clean) == (True, HostClean.DEFAULT)
    [handle] = first.handles
    assert (handle.key, handle.type) == (FIRST, AttachType.PCI)
    assert handle.info == {
        "domain": "0000",
        "bus": "d8",
        "device": "00",
        "function": "4",
        "managed": "false",
    }


def test_nothing_is_offered_without_the_option(tmp_path: Path) -> None:
    host = host_with_l40s()
    text = CONF.replace("vendor_vfio = offer\n", "")
    assert found(host, tmp_path, text) == {}
    with pytest.raises(exception.DriverCannot):
        look(driver_on(host, tmp_path, text)).prepared()
    reason = "vGPUs of vendor-specific VFIO are offered with [gpu_devices] vendor_vfio = offer only"
    assert listed(host, tmp_path, text)[FIRST].reason == (
        f"it has no mediated devices, but vendor-specific VFIO; {reason}"
    )
    assert listed(host, tmp_path, text)[OTHER].reason == f"it can have 3 types of vGPU; {reason}"


def test_function_without_a_section_is_listed_with_the_reason(tmp_path: Path) -> None:
    host = host_with_l40s()
    rows = listed(host, tmp_path)
    assert (rows[L40S].offered, rows[L40S].num) == (True, 3)
    assert rows[OTHER].reason == "it can have 3 types of vGPU; no section [vgpu_<type>] names it"


def test_ignored_virtual_functions_are_no_units(tmp_path: Path) -> None:
    text = CONF.replace(OPTION, f"{OPTION}filter_sriov_vfs = true\n")
    host = host_with_l40s()
    assert found(host, tmp_path, text) == {}
    assert look(driver_on(host, tmp_path, text)).prepared() == []


def test_type_is_set_at_the_bind_and_removed_by_release(tmp_path: Path) -> None:
    host = host_with_l40s()
    driver = driver_on(host, tmp_path)
    driver.prepare(task_of(FIRST))
    driver.prepare(task_of(FIRST))
    assert [type_at(host, address) for address in VFS] == ["1150", "0", "0", "0"]
    assert look(driver).prepared() == [Unit(f"compute-1_{FIRST}", FIRST)]
    driver.release(task_of(FIRST))
    driver.release(task_of(FIRST))
    assert [type_at(host, address) for address in VFS] == ["0", "0", "0", "0"]
    assert look(driver).prepared() == []
    assert [step.name for step, _ in clean_calls(driver, task_of(FIRST))] == ["vGPU removal"]


def test_report_does_not_change_while_the_card_fills(tmp_path: Path) -> None:
    """The conductor books what its units take; the host agrees, so nothing is reported."""
    host = host_with_l40s()
    managed = (FIRST, SECOND, THIRD)
    empty = found(host, tmp_path, managed=managed)
    for address in (FIRST, SECOND):
        driver_on(host, tmp_path).prepare(task_of(address))
        assert found(host, tmp_path, managed=managed) == empty


def test_bind_without_room_fails_and_changes_nothing(tmp_path: Path) -> None:
    host = host_with_l40s()
    driver = driver_on(host, tmp_path)
    driver.prepare(task_of(FIRST))
    before = host.tree()
    with pytest.raises(exception.DriverFailed) as caught:
        driver.prepare(task_of(THIRD))
    assert caught.value.fields["reason"] == (
        f"{THIRD}: its card has no room for a vGPU of {LARGE} now; it has room for nvidia-1150, "
        "nvidia-1152"
    )
    assert host.tree() == before


def test_vgpu_of_others_is_in_use_and_takes_its_part(tmp_path: Path) -> None:
    host = host_with_l40s()
    set_type(host, SECOND, 1152)
    device = found(host, tmp_path)[L40S]
    assert device.pools == {"gpu": 4, SMALL: 2, LARGE: 1}
    assert units(device).keys() == {FIRST, THIRD}
    assert listed(host, tmp_path)[SECOND].reason == (
        "its nvidia/current_vgpu_type reads '1152'; write 0 to it"
    )


def test_function_of_a_section_with_the_type_that_others_set_is_in_use(tmp_path: Path) -> None:
    """Only a unit that the conductor keeps may have its type."""
    host = host_with_l40s()
    set_type(host, FIRST, 1150)
    device = found(host, tmp_path)[L40S]
    assert (device.pools["gpu"], set(units(device))) == (3, {SECOND, THIRD})
    kept = found(host, tmp_path, managed=(FIRST,))[L40S]
    assert (kept.pools["gpu"], set(units(kept))) == (6, {FIRST, SECOND, THIRD})


def test_kept_unit_with_another_type_is_refused(tmp_path: Path) -> None:
    host = host_with_l40s()
    set_type(host, FIRST, 1152)
    kept = found(host, tmp_path, managed=(FIRST,))[L40S]
    assert units(kept).keys() == {SECOND, THIRD}
    driver = driver_on(host, tmp_path)
    with pytest.raises(exception.DriverFailed, match="it has a vGPU of type nvidia-1152, not of"):
        driver.prepare(task_of(FIRST))
    assert look(driver).prepared() == []


def test_type_that_the_host_does_not_make_has_no_free_units(tmp_path: Path) -> None:
    """NVIDIA's placement of vGPUs can leave less room than their sizes say."""
    host = host_with_l40s()
    set_type(host, FIRST, 1152)
    set_type(host, OTHER, 1152)
    conf = CONF.replace(SMALL, "nvidia-1152")
    device = found(host, tmp_path, conf, managed=(FIRST, SECOND, THIRD))[L40S]
    assert device.pools == {"gpu": 4, "nvidia-1152": 3, LARGE: 1}
    path = f"{servers.place(SECOND)}/nvidia/creatable_vgpu_types"
    host.add_file(path, "ID    : vGPU Name\n")
    device = found(host, tmp_path, conf, managed=(FIRST, SECOND, THIRD))[L40S]
    assert device.pools == {"gpu": 4, "nvidia-1152": 1, LARGE: 1}


def test_types_of_several_sizes_need_the_mode_for_them(tmp_path: Path) -> None:
    host = host_with_l40s(vgpu_mixed=False)
    assert found(host, tmp_path) == {}
    assert str(listed(host, tmp_path)[FIRST].reason) == (
        "the sections name types of several sizes for its GPU, whose vGPUs must have one size; "
        "name types of one size, or set the mode for several with nvidia-smi vgpu -shm 1"
    )
    # The first type that is set fixes the mode.
    with pytest.raises(exception.DriverFailed, match="types of several sizes"):
        driver_on(host, tmp_path).prepare(task_of(FIRST))
    assert type_at(host, FIRST) == "0"
    text = f"{OPTION}enabled_vgpu_types = {SMALL}\n[vgpu_{SMALL}]\ndevice_addresses = {FIRST}\n"
    device = found(host, tmp_path, text)[L40S]
    assert (device.pools, units(device)) == ({"gpu": 6, SMALL: 2}, {FIRST: {"gpu": 3, SMALL: 1}})


@pytest.mark.parametrize(
    ("facts", "kind", "reason"),
    [
        ({"vgpu_types": []}, SMALL, "NVML does not tell the types of vGPU of its GPU; install"),
        (
            {},
            "nvidia-9",
            f"its GPU has no vGPU type nvidia-9, but {SMALL} (NVIDIA L40S-24Q), nvidia-1152",
        ),
        ({}, "L40S-24Q", f"its GPU has no vGPU type L40S-24Q, but {SMALL} (NVIDIA L40S-24Q)"),
        (
            {"mig": True},
            SMALL,
            f"{SMALL} (NVIDIA L40S-24Q) needs MIG mode off, unlike that of its GPU",
        ),
    ],
)
def test_type_that_the_gpu_cannot_have_is_refused(
    tmp_path: Path, facts: dict[str, Any], kind: str, reason: str
) -> None:
    text = f"{OPTION}enabled_vgpu_types = {kind}\n[vgpu_{kind}]\ndevice_addresses = {FIRST}\n"
    host = host_with_l40s(**facts)
    assert found(host, tmp_path, text) == {}
    assert str(listed(host, tmp_path, text)[FIRST].reason).startswith(reason)


def test_vgpu_that_a_guest_has_open_is_not_destroyed(tmp_path: Path) -> None:
    host = host_with_l40s()
    driver = driver_on(host, tmp_path)
    driver.prepare(task_of(FIRST))
    host.add_dir(f"{servers.place(FIRST)}/vfio-dev/vfio3")
    servers.open_vfio(host, "devices/vfio3", _PROCESS, "qemu-system-x86")
    with pytest.raises(exception.DriverFailed, match="held through VFIO by qemu-system-x86"):
        driver.release(task_of(FIRST))
    assert type_at(host, FIRST) == "1150"
    device = found(host, tmp_path, managed=(FIRST, SECOND, THIRD))[L40S]
    assert units(device).keys() == {FIRST, SECOND, THIRD}


def test_function_that_libvirt_has_bound_is_lost_with_the_reason(tmp_path: Path) -> None:
    """A Nova that does not read the handle takes the function from the driver of the host."""
    host = host_with_l40s()
    driver_on(host, tmp_path).prepare(task_of(FIRST))
    situations.hold(host, FIRST)
    host.remove(f"{servers.place(FIRST)}/nvidia")
    managed = (FIRST, SECOND, THIRD)
    assert units(found(host, tmp_path, managed=managed)[L40S]).keys() == {SECOND, THIRD}
    names = {f"compute-1_{address}" for address in managed}
    scan = Scan(host, managed_deployables=names)
    rows = {item.key: item for item in driver_on(host, tmp_path).hardware(scan)}
    assert rows[FIRST].reason == (
        "vfio-pci has it, so it has no vGPU; Nova lets libvirt bind it, unless it reads "
        '"managed" of the attach handle'
    )


def test_types_are_set_again_after_the_driver_of_the_host_was_loaded_again(tmp_path: Path) -> None:
    host = host_with_l40s()
    driver = driver_on(host, tmp_path)
    driver.prepare(task_of(FIRST))
    for file in ("unbind", "bind"):
        host.write_text(f"/sys/bus/pci/drivers/nvidia/{file}", FIRST)
    assert type_at(host, FIRST) == "0"
    assert look(driver).prepared() == []
    driver.prepare(task_of(FIRST))
    assert type_at(host, FIRST) == "1150"


def test_unit_whose_function_has_gone_needs_no_release(tmp_path: Path) -> None:
    host = host_with_l40s()
    driver = driver_on(host, tmp_path)
    driver.prepare(task_of(FIRST))
    host.write_text("/sys/bus/pci/drivers/nvidia/unbind", FIRST)
    driver.release(task_of(FIRST))
    with pytest.raises(exception.DriverFailed, match="the driver of the host shows no nvidia/"):
        driver.prepare(task_of(FIRST))
    host.remove(servers.place(FIRST))
    host.remove(f"/sys/bus/pci/devices/{FIRST}")
    driver.release(task_of(FIRST))
    with pytest.raises(exception.DriverFailed, match="is not on the bus"):
        driver.prepare(task_of(FIRST))
    assert look(driver).prepared() == []


class _Deaf(SimulatedKernel):
    """A kernel that takes each write and does nothing."""

    def write(self, path: str, text: str) -> bool:
        return True


def test_type_that_the_host_does_not_take_is_an_error(tmp_path: Path) -> None:
    host = host_with_l40s()
    driver = driver_on(host, tmp_path)
    kernel = host.kernel
    _Deaf(host, [])
    with pytest.raises(exception.DriverFailed, match="its type reads 0 after 1150 was written"):
        driver.prepare(task_of(FIRST))
    host.kernel = kernel
    driver.prepare(task_of(FIRST))
    _Deaf(host, [])
    with pytest.raises(exception.DriverFailed, match="its type reads 1150 after 0 was written"):
        driver.release(task_of(FIRST))


def test_bind_without_nvml_fails(tmp_path: Path) -> None:
    host = host_with_l40s()
    program = host.programs[sys.executable]
    assert isinstance(program, Nvml)
    program.error = "LIBRARY_NOT_FOUND"
    with pytest.raises(exception.DriverFailed):
        driver_on(host, tmp_path).prepare(task_of(FIRST))
    assert type_at(host, FIRST) == "0"


def test_bind_without_the_option_fails_but_release_works(tmp_path: Path) -> None:
    host = host_with_l40s()
    driver_on(host, tmp_path).prepare(task_of(FIRST))
    driver = driver_on(host, tmp_path, "")
    with pytest.raises(exception.DriverFailed, match="the configuration does not offer its vGPU"):
        driver.prepare(task_of(SECOND))
    change(driver, "release", task_of(FIRST))
    for _, call in clean_calls(driver, task_of(FIRST)):
        call(no_progress)
    assert type_at(host, FIRST) == "0"


def test_card_with_virtual_functions_is_not_reset(tmp_path: Path) -> None:
    host = host_with_l40s()
    with pytest.raises(exception.DriverCannot):
        driver_on(host, tmp_path).reset(L40S, ResetLevel.FUNCTION)
    assert host.writes == []


MIG = [
    {"number": 1500, "name": "NVIDIA H100-1-12C", "memory": 12 * GIB, "profile": "1g.12gb"},
    {"number": 1501, "name": "NVIDIA H100-3-47C", "memory": 47 * GIB, "profile": "3g.47gb"},
]


def test_vgpus_with_mig_take_an_instance_of_their_profile(tmp_path: Path) -> None:
    text = CONF.replace(SMALL, "nvidia-1500").replace(LARGE, "nvidia-1501")
    host = host_with_l40s(
        vgpu_types=[*TYPES, *({**kind, "most": 1} for kind in MIG)],
        mig=True,
        mig_instances=["1g.12gb", "3g.47gb", "1g.12gb"],
        made={1500: ("NVIDIA H100-1-12C", 12), 1501: ("NVIDIA H100-3-47C", 24)},
    )
    device = found(host, tmp_path, text)[L40S]
    assert device.pools == {
        "MIG 1g.12gb": 2,
        "nvidia-1500": 2,
        "MIG 3g.47gb": 1,
        "nvidia-1501": 1,
    }
    assert units(device)[THIRD] == {"MIG 3g.47gb": 1, "nvidia-1501": 1}


def test_server_with_two_divided_cards(tmp_path: Path) -> None:
    """On one of them another program has set a type before the driver came."""
    host = scenario_hosts.load("l40s-vgpu")
    cards = ("0000:3d:00.0", "0000:5e:00.0")
    program = Nvml()
    sizes = (2, 4, 6, 8, 12, 16, 24, 48)
    types = [
        {
            "number": 1148 + position,
            "name": f"NVIDIA L40S-{size}Q",
            "memory": size * GIB,
            "most": 48 // size,
        }
        for position, size in enumerate(sizes)
    ]
    program.facts = {card: {"vgpu_types": types, "vgpu_mixed": True} for card in cards}
    host.programs[sys.executable] = program
    small = [f"{card[:-1]}{number}" for card in cards for number in range(4, 8)]
    large = [f"0000:{bus}:01.0" for bus in ("3d", "5e")]
    text = (
        f"{OPTION}enabled_vgpu_types = nvidia-1151, nvidia-1155\n"
        f"[vgpu_nvidia-1151]\ndevice_addresses = {','.join(small)}\n"
        f"[vgpu_nvidia-1155]\ndevice_addresses = {','.join(large)}\n"
    )
    driver = driver_on(host, tmp_path, text)
    devices = {device.key: device for device in look(driver).discover()}
    assert devices.keys() == {*cards, "0000:ab:00.0", "0000:d9:00.0"}
    # The pool has 24 parts, of which one 8Q takes 4.
    assert [devices[card].pools["gpu"] for card in cards] == [20, 24]
    assert [len(devices[card].deployables) for card in cards] == [4, 5]
    assert units(devices[cards[1]])["0000:5e:01.0"] == {"gpu": 24, "nvidia-1155": 1}
    rows = listed(host, tmp_path, text)
    assert rows["0000:3d:00.4"].reason == "its nvidia/current_vgpu_type reads '1151'; write 0 to it"
    task = HandleTask(
        "r", driver.name, cards[1], "compute-1_0000:5e:01.0", "0000:5e:01.0", UUID[4:]
    )
    driver.prepare(task)
    assert type_at(host, "0000:5e:01.0") == "1155"
    assert look(driver).prepared() == [
        Unit("compute-1_0000:3d:00.4", "0000:3d:00.4"),
        Unit("compute-1_0000:5e:01.0", "0000:5e:01.0"),
    ]
