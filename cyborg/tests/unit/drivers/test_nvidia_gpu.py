# SPDX-License-Identifier: Apache-2.0
"""The nvidia_gpu_driver on simulated cards that are whole, divided, or in use."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cyborg import exception
from cyborg.drivers.base import Driver
from cyborg.drivers.command import Completed
from cyborg.drivers.nvidia_gpu import NvidiaGpuDriver
from cyborg.drivers.nvml import Gpu
from cyborg.drivers.scan import Scan
from cyborg.model.device import (
    AttachType,
    Confidence,
    Device,
    DeviceType,
    Hardware,
    Identity,
    IdentityKind,
)
from cyborg.model.health import Condition, Judgement
from cyborg.testing import servers
from cyborg.testing.driver_checks import look
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.host_driver import HostDriver
from cyborg.testing.kernel.simulated import SimulatedKernel
from cyborg.tests.unit.drivers.configured import written

#: A card with an audio function, a switch of NVLink, and a card with two virtual functions.
T4, AUDIO, SWITCH = "0000:af:00.0", "0000:af:00.1", "0000:c0:00.0"
L40S, VFS = "0000:d8:00.0", ("0000:d8:00.4", "0000:d8:00.5")
UUID = "GPU-5a1f0c9e-7a6f-4b52-8d0e-0c2f3d4e5f60"
_CREATABLE = "ID    : vGPU Name\n1150  : NVIDIA L40S-8Q\n1155  : NVIDIA L40S-48Q\n"


def host_with_cards() -> FakeHost:
    host = servers.server()
    host.remove(servers.place(servers.FPGA))
    host.remove(f"/sys/bus/pci/devices/{servers.FPGA}")
    servers.add_function(host, T4, "10de:1eb8:030000", driver="nvidia", node=1)
    servers.add_function(host, AUDIO, "10de:10f8:040300", driver="snd_hda_intel", node=1)
    servers.add_function(host, SWITCH, "10de:22a3:068000")
    return host


def add_l40s(host: FakeHost) -> None:
    """Plug a card in that has virtual functions with vendor-specific VFIO."""
    servers.add_function(host, L40S, "10de:26b9:030200", driver="nvidia")
    servers.add_vfs(host, L40S, VFS, "10de:26b9:030200")
    for vf in VFS:
        host.add_file(f"{servers.place(vf)}/nvidia/creatable_vgpu_types", _CREATABLE)
        host.add_file(f"{servers.place(vf)}/nvidia/current_vgpu_type", "0\n")


class Nvml:
    """The program that asks NVML, on a simulated host: facts by address, or an ``error``.

    A GPU without facts is healthy, and its uuid tells the product.
    """

    def __init__(self) -> None:
        self.facts: dict[str, dict[str, Any]] = {}
        self.error: str | None = None
        self.status = 0
        self.stderr = ""

    def __call__(self, host: FakeHost, argv: tuple[str, ...]) -> Completed:
        gpus = {address: self._facts_of(host, address) for address in argv[3:]}
        answer = {"gpus": gpus, "driver": "550.90.07", "error": self.error}
        return Completed(self.status, f"{json.dumps(answer)}\n", self.stderr)

    def _facts_of(self, host: FakeHost, address: str) -> dict[str, Any]:
        uuid = f"GPU-{host.read_text(f'/sys/bus/pci/devices/{address}/device').strip()}"
        return {"uuid": uuid, "recovery": 0, **self.facts.get(address, {})}


class GpuContract(DriverContract):
    """The driver contract on a host whose ``sys.executable`` is ``Nvml``.

    A row of memory that could not be remapped is the fault.
    """

    commands_in_discover = True
    selects_by_address = True

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path

    def break_device(self, host: FakeHost, key: str) -> None:
        _facts(host, key)["remap_failure"] = True

    def mend_device(self, host: FakeHost, key: str) -> None:
        del _facts(host, key)["remap_failure"]


def _facts(host: FakeHost, key: str) -> dict[str, Any]:
    program = host.programs[sys.executable]
    assert isinstance(program, Nvml)
    return program.facts.setdefault(key, {})


def with_nvml(host: FakeHost, **facts: Any) -> FakeHost:
    """Give a host NVML, whose answer about the A100 has these facts."""
    program = Nvml()
    program.facts[servers.GPU] = {"uuid": UUID, **facts}
    host.programs[sys.executable] = program
    return host


def driver_on(host: FakeHost, tmp_path: Path, text: str = "") -> NvidiaGpuDriver:
    return NvidiaGpuDriver(host, written(tmp_path / "cyborg.conf", text))


def found(host: FakeHost, tmp_path: Path, text: str = "") -> dict[str, Device]:
    return {device.key: device for device in look(driver_on(host, tmp_path, text)).discover()}


def listed(host: FakeHost, tmp_path: Path, text: str = "") -> dict[str, Hardware]:
    return {item.key: item for item in look(driver_on(host, tmp_path, text)).hardware()}


@pytest.mark.proves("nvidia_gpu_driver", "discover", "health", by="simulated")
class TestWholeCards(DriverContract):
    """The driver contract on cards without vGPUs; a GPU that NVML calls lost is the fault."""

    commands_in_discover = True

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path

    def make_host(self) -> FakeHost:
        host = host_with_cards()
        host.programs[sys.executable] = Nvml()
        # The kernel can reset one of the cards.
        for file, text in {
            "reset": "",
            "reset_method": "flr\n",
            "config": "\xde\x10\0\0\0\0\0\0",
        }.items():
            host.add_file(f"{servers.place(T4)}/{file}", text)
        # The driver of the host does not expect a reset, so it is unbound meanwhile.
        SimulatedKernel(host, [HostDriver("nvidia", frozenset({"10de:1eb8"}))])
        host.add_link(f"{servers.place(T4)}/driver", "../../../bus/pci/drivers/nvidia")
        return host

    def make_driver(self, host: FakeHost) -> Driver:
        return driver_on(host, self.tmp_path)

    def break_device(self, host: FakeHost, key: str) -> None:
        self.answer(host, key, {"error": "GPU_IS_LOST"})

    def mend_device(self, host: FakeHost, key: str) -> None:
        self.answer(host, key, {})

    def answer(self, host: FakeHost, key: str, facts: dict[str, Any]) -> None:
        program = host.programs[sys.executable]
        assert isinstance(program, Nvml)
        program.facts[key] = facts


def test_existing_rows_keep_their_names_and_values(tmp_path: Path) -> None:
    device = found(host_with_cards(), tmp_path)[servers.GPU]
    assert (device.type, device.vendor) == (DeviceType.GPU, "10de")
    assert device.model == "GA100 [A100 PCIe 80GB]"
    board = '{"product_id": "20b5", "controller": "3D controller"}'
    assert json.dumps(device.std_board_info) == board
    assert device.vendor_board_info == '{"vendor_info": "gpu_vb_info"}'
    (deployable,) = device.deployables
    assert deployable.name == f"compute-1_{servers.GPU}"
    assert (deployable.resource_class, deployable.driver_name) == ("PGPU", "NVIDIA")
    assert deployable.traits == ("OWNER_CYBORG", "CUSTOM_NVIDIA_20B5")
    (handle,) = deployable.handles
    assert handle.type is AttachType.PCI
    assert handle.info == {"domain": "0000", "bus": "3b", "device": "00", "function": "0"}


def test_only_gpus_are_offered_and_listed(tmp_path: Path) -> None:
    gpus = [servers.GPU, servers.GPU_ON_VFIO, T4]
    assert list(found(host_with_cards(), tmp_path)) == gpus
    assert list(listed(host_with_cards(), tmp_path)) == gpus
    devices = found(host_with_cards(), tmp_path)
    assert devices[T4].std_board_info["controller"] == "VGA compatible controller"


def test_a_gpu_is_refused_while_a_companion_is_not_free(tmp_path: Path) -> None:
    host = host_with_cards()
    audio = servers.place(AUDIO)
    host.add_link(f"{audio}/driver", "/sys/bus/pci/drivers/vfio-pci")
    host.add_file(f"{audio}/enable", "1\n")
    group = host.readlink(f"{audio}/iommu_group").rpartition("/")[2]
    servers.open_vfio(host, group, 4711, "qemu-kvm")
    assert T4 not in found(host, tmp_path)
    assert str(listed(host, tmp_path)[T4].reason).startswith(f"its audio function {AUDIO}")


def test_a_divided_card_is_offered_neither_whole_nor_in_parts(tmp_path: Path) -> None:
    host = host_with_cards()
    add_l40s(host)
    assert not found(host, tmp_path).keys() & {L40S, *VFS}
    items = listed(host, tmp_path)
    assert items[L40S].reason == (
        f"it has 2 virtual functions; remove them with sriov-manage -d {L40S} to offer it whole"
    )
    reason = (
        "it can have 2 types of vGPU; vGPUs of vendor-specific VFIO are offered with [gpu_devices] "
        "vendor_vfio = offer only"
    )
    assert [items[vf].reason for vf in VFS] == [reason, reason]
    host.add_file(f"{servers.place(VFS[1])}/nvidia/current_vgpu_type", "1150\n")
    items = listed(host, tmp_path)
    assert "virtual functions, and 1 of them have vGPUs; remove" in str(items[L40S].reason)
    assert str(items[VFS[1]].reason).startswith(
        "it has a vGPU of type 1150; vGPUs of vendor-specific"
    )


def test_a_virtual_function_without_vgpus_is_no_whole_gpu(tmp_path: Path) -> None:
    host = host_with_cards()
    add_l40s(host)
    for vf in VFS:
        host.remove(f"{servers.place(vf)}/nvidia")
    reason = listed(host, tmp_path)[VFS[0]].reason
    assert reason == f"it is a virtual function of {L40S}, and no whole GPU"


def test_virtual_functions_are_left_out_if_the_option_says_so(tmp_path: Path) -> None:
    host = host_with_cards()
    add_l40s(host)
    items = listed(host, tmp_path, "[gpu_devices]\nfilter_sriov_vfs = true\n")
    assert not items.keys() & set(VFS)
    assert L40S in items


@pytest.mark.parametrize(
    ("path", "target", "reason"),
    [
        (
            "/sys/bus/mdev/devices/4ac7d3c0-0c1e-4f1e-8d2b-111111111111",
            f"{servers.place(T4)}/4ac7d3c0-0c1e-4f1e-8d2b-111111111111",
            "it has 1 mediated device(s)",
        ),
        ("/proc/driver/nvidia/capabilities/gpu0/mig/gi1", None, "it has MIG instances"),
    ],
)
def test_a_carved_card_is_refused(
    tmp_path: Path, path: str, target: str | None, reason: str
) -> None:
    host = host_with_cards()
    host.add_file(f"/proc/driver/nvidia/gpus/{T4}/information", "Device Minor: \t 0\n")
    if target is None:
        host.add_dir(path)
    else:
        host.add_dir(target)
        host.add_link(path, target)
    assert T4 not in found(host, tmp_path)
    assert str(listed(host, tmp_path)[T4].reason).startswith(reason)


def health(host: FakeHost, tmp_path: Path, key: str = servers.GPU) -> Judgement:
    return look(driver_on(host, tmp_path)).health(key)


@pytest.mark.parametrize(
    ("facts", "verdict", "evidence"),
    [
        ({"error": "GPU_IS_LOST"}, Condition.DEAD, "NVML answers GPU_IS_LOST"),
        ({"error": "RESET_REQUIRED"}, Condition.DRAIN, "NVML answers RESET_REQUIRED"),
        ({"error": "UNKNOWN"}, Condition.DEGRADED, "NVML answers UNKNOWN"),
        ({"ecc_uncorrected": 3}, Condition.DEGRADED, "3 uncorrectable memory errors"),
        (
            {"remap_pending": True},
            Condition.DEGRADED,
            "a row of its memory is remapped at the next reset",
        ),
        ({"remap_failure": True}, Condition.DRAIN, "a row of its memory could not be remapped"),
        (
            {"recovery": 1},
            Condition.DRAIN,
            "its driver recommends the recovery action GPU_RESET",
        ),
        ({"recovery": 99}, Condition.DEGRADED, "its driver recommends the recovery action 99"),
    ],
)
@pytest.mark.proves("nvidia_gpu_driver", "health", by="simulated")
def test_health_is_what_nvml_says(
    tmp_path: Path, facts: dict[str, Any], verdict: Condition, evidence: str
) -> None:
    found = health(with_nvml(host_with_cards(), **facts), tmp_path)
    assert (found.condition, found.evidence) == (verdict, (evidence,))
    assert found.findings[0].action or verdict is Condition.DEGRADED


def test_worst_fault_decides(tmp_path: Path) -> None:
    host = with_nvml(host_with_cards(), remap_failure=True, remap_pending=True, recovery=0)
    found = health(host, tmp_path)
    assert found.condition is Condition.DRAIN
    assert found.evidence == (
        "a row of its memory could not be remapped",
        "a row of its memory is remapped at the next reset",
    )
    assert health(with_nvml(host_with_cards(), recovery=0), tmp_path) == Judgement()


def test_health_of_one_gpu_asks_about_no_other(tmp_path: Path) -> None:
    host = with_nvml(host_with_cards())
    scan = Scan(host)
    driver = driver_on(host, tmp_path)
    (signal,) = driver.signals(scan, servers.GPU)
    assert (signal.name, signal.code) == ("recovery_action", "NONE")
    assert [command[3:] for command in host.commands] == [(servers.GPU,)]


@pytest.mark.parametrize(
    ("error", "stderr", "status"),
    [
        (None, "ModuleNotFoundError: No module named 'pynvml'\n", 1),
        ("LIBRARY_NOT_FOUND", "", 0),
    ],
)
def test_without_the_library_the_bus_alone_decides(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    error: str | None,
    stderr: str,
    status: int,
) -> None:
    host = with_nvml(host_with_cards())
    program = host.programs[sys.executable]
    assert isinstance(program, Nvml)
    program.error, program.stderr, program.status = error, stderr, status
    driver = driver_on(host, tmp_path)
    for _ in range(2):
        assert [device.key for device in driver.discover(Scan(host))] == [
            servers.GPU,
            servers.GPU_ON_VFIO,
            T4,
        ]
    assert caplog.text.count("goes on with what the PCI bus shows") == 1
    for verb in (look(driver).health, look(driver).stats):
        with pytest.raises(exception.DriverCannot):
            verb(servers.GPU)


def test_a_gpu_that_a_guest_has_is_not_asked(tmp_path: Path) -> None:
    host = with_nvml(host_with_cards())
    with pytest.raises(exception.DriverCannot):
        health(host, tmp_path, servers.GPU_ON_VFIO)
    assert host.commands == []


@pytest.mark.parametrize("text", ["", "[]", "no JSON", '{"gpus": {"0000:3b:00.0": 7}}'])
def test_an_answer_that_cannot_be_read_is_no_verdict(tmp_path: Path, text: str) -> None:
    host = host_with_cards()
    host.programs[sys.executable] = lambda *_: Completed(0, text, "")
    with pytest.raises(exception.DriverFailed):
        health(host, tmp_path)


def test_facts_of_a_wrong_type_are_left_out() -> None:
    facts = {
        "uuid": 7,
        "power": "many",
        "mig": 1,
        "recovery": True,
        "utilization": 2**70,
        "mig_instances": "1g.10gb",
    }
    assert Gpu.of(facts) == Gpu()


def test_the_uuid_of_nvml_identifies_a_gpu(tmp_path: Path) -> None:
    device = found(with_nvml(host_with_cards()), tmp_path)[servers.GPU]
    assert device.identity[0] == Identity(IdentityKind.VENDOR, UUID, Confidence.UNIQUE)


@pytest.mark.proves("nvidia_gpu_driver", "stats", by="simulated")
def test_figures_have_the_units_of_the_metrics(tmp_path: Path) -> None:
    host = with_nvml(
        host_with_cards(),
        utilization=37,
        memory_used=1024,
        memory_total=85899345920,
        temperature=41,
        power=63500,
    )
    assert look(driver_on(host, tmp_path)).stats(servers.GPU) == {
        "utilization_ratio": pytest.approx(0.37),
        "memory_used_bytes": 1024,
        "memory_total_bytes": 85899345920,
        "temperature_celsius": 41,
        "power_watts": pytest.approx(63.5),
    }


def test_a_card_in_mig_mode_is_listed_with_its_instances(tmp_path: Path) -> None:
    instances = ["1g.10gb", "3g.40gb"]
    host = with_nvml(host_with_cards(), mig=True, mig_pending=True, mig_instances=instances)
    assert servers.GPU not in found(host, tmp_path)
    item = listed(host, tmp_path)[servers.GPU]
    assert item.reason == (
        f"its MIG mode is on; turn it off with nvidia-smi -i {servers.GPU} -mig 0"
    )
    assert item.capability["mig"] == {"enabled": True, "pending": True, "instances": instances}


def test_one_gpu_that_hangs_the_library_does_not_hide_what_the_others_say(tmp_path: Path) -> None:
    host = with_nvml(host_with_cards())
    answer = host.programs[sys.executable]

    def run(host: FakeHost, argv: tuple[str, ...]) -> Completed:
        if T4 in argv:
            raise exception.HostError(action="running", reason="it did not end in time")
        return answer(host, argv)

    host.programs[sys.executable] = run
    devices = found(host, tmp_path)
    assert devices[servers.GPU].identity[0].value == UUID
    assert IdentityKind.VENDOR not in {item.kind for item in devices[T4].identity}
