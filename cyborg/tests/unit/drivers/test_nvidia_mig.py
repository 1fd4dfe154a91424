# SPDX-License-Identifier: Apache-2.0
"""MIG layouts of the nvidia_gpu_driver, and vGPUs with MIG, on a simulated host."""

import sys
from pathlib import Path
from typing import Any

import pytest

from cyborg import exception
from cyborg.drivers.base import CardLayouts, Driver
from cyborg.drivers.command import Completed
from cyborg.drivers.nvidia_gpu import NvidiaGpuDriver
from cyborg.drivers.scan import Scan
from cyborg.testing import servers, situations
from cyborg.testing.driver_checks import look
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.unit.drivers.configured import written
from cyborg.tests.unit.drivers.test_nvidia_gpu import L40S, GpuContract, Nvml
from cyborg.tests.unit.drivers.test_nvidia_vfio import (
    FIRST,
    GIB,
    SECOND,
    THIRD,
    TYPES,
    host_with_l40s,
    listed,
    set_type,
    units,
)

#: The profiles of an H100, and a layout of three instances.
PROFILES = {"1g.12gb": 19, "3g.47gb": 9}
LAYOUT = "mig=1g.12gb/1g.12gb/3g.47gb"
SMALL, LARGE = "nvidia-1500", "nvidia-1501"
BACKED = [
    {"number": 1500, "name": "NVIDIA H100-1-12C", "memory": 12 * GIB, "profile": "1g.12gb"},
    {"number": 1501, "name": "NVIDIA H100-3-47C", "memory": 47 * GIB, "profile": "3g.47gb"},
]
CONF = (
    f"[gpu_devices]\nvendor_vfio = offer\nenabled_vgpu_types = {SMALL}, {LARGE}\n"
    f"mig_layouts = {L40S}=3g.47gb/1g.12gb/1g.12gb\n"
    f"[vgpu_{SMALL}]\ndevice_addresses = {FIRST}, {SECOND}\n"
    f"[vgpu_{LARGE}]\ndevice_addresses = {THIRD}\n"
)


class Tool:
    """nvidia-smi: it changes what NVML tells; ``stuck`` MIG modes need a reset of the GPU."""

    def __init__(self) -> None:
        self.stuck = False

    def __call__(self, host: FakeHost, argv: tuple[str, ...]) -> Completed:
        program = host.programs[sys.executable]
        assert isinstance(program, Nvml)
        facts = program.facts[L40S]
        match argv[1:]:
            case ("-i", address, "-mig", mode) if address == L40S:
                facts["mig"] = facts["mig"] if self.stuck else mode == "1"
            case ("mig", "-i", address, "-cgi", numbers, "-C") if address == L40S:
                names = {str(number): name for name, number in PROFILES.items()}
                facts["mig_instances"] = [names[number] for number in numbers.split(",")]
            case ("mig", "-i", address, "-dci" | "-dgi") if address == L40S:
                facts["mig_instances"] = []
            case _:
                return Completed(2, "", f"unknown arguments {argv}")
        return Completed(0, "", "")


def host_with_mig(**facts: Any) -> FakeHost:
    """Return a host whose GPU has no MIG mode, unless ``facts`` of NVML say something else."""
    host = host_with_l40s(
        vgpu_types=[*TYPES, *({**kind, "most": 1} for kind in BACKED)],
        made={1500: ("NVIDIA H100-1-12C", 12), 1501: ("NVIDIA H100-3-47C", 24)},
        **{"mig": False, "mig_instances": [], "mig_profiles": PROFILES, **facts},
    )
    host.add_file("/usr/bin/nvidia-smi", "")
    host.programs["/usr/bin/nvidia-smi"] = Tool()
    return host


def driver_on(host: FakeHost, tmp_path: Path, text: str = CONF) -> NvidiaGpuDriver:
    return NvidiaGpuDriver(host, written(tmp_path / "cyborg.conf", text))


def layouts(host: FakeHost, tmp_path: Path, text: str = CONF) -> CardLayouts:
    [card] = look(driver_on(host, tmp_path, text)).layouts()
    return card


def tools(host: FakeHost) -> list[tuple[str, ...]]:
    return [argv[1:] for argv in host.commands if argv[0] == "/usr/bin/nvidia-smi"]


@pytest.mark.proves("nvidia_gpu_driver", "partition", by="simulated")
class TestContract(GpuContract):
    """The driver contract on a GPU that has its layout."""

    def make_host(self) -> FakeHost:
        return host_with_mig(mig=True, mig_instances=["1g.12gb", "1g.12gb", "3g.47gb"])

    def make_driver(self, host: FakeHost) -> Driver:
        return driver_on(host, self.tmp_path)


def test_gpu_gets_its_layout_and_then_its_vgpus_are_offered(tmp_path: Path) -> None:
    host = host_with_mig()
    driver = driver_on(host, tmp_path)
    assert look(driver).discover() == []
    assert listed(host, tmp_path, CONF)[FIRST].reason == (
        f"its card {L40S} is not ready: it is to have the layout {LAYOUT}, and has mig=off"
    )
    before = layouts(host, tmp_path)
    assert (before.current, before.desired, before.refusal) == ("mig=off", LAYOUT, None)
    driver.partition(L40S, LAYOUT)
    assert tools(host) == [
        ("-i", L40S, "-mig", "1"),
        ("mig", "-i", L40S, "-dci"),
        ("mig", "-i", L40S, "-dgi"),
        ("mig", "-i", L40S, "-cgi", "19,19,9", "-C"),
    ]
    assert layouts(host, tmp_path).current == LAYOUT
    [device] = look(driver).discover()
    assert device.pools == {"MIG 1g.12gb": 2, SMALL: 2, "MIG 3g.47gb": 1, LARGE: 1}
    assert units(device)[FIRST] == {"MIG 1g.12gb": 1, SMALL: 1}
    driver.partition(L40S, LAYOUT)
    assert len(tools(host)) == 4


def test_gpu_without_instances_gets_them_while_the_conductor_keeps_its_units(
    tmp_path: Path,
) -> None:
    """The instances are gone after a boot; the units of guests wait for them."""
    for mode in (True, False):
        assert layouts(host_with_mig(mig=mode), tmp_path).deployables == {
            f"compute-1_{address}" for address in (L40S, "0000:d8:00.7")
        }
    divided = layouts(host_with_mig(mig=True, mig_instances=["3g.47gb"]), tmp_path)
    assert f"compute-1_{FIRST}" in divided.deployables


def test_unit_that_the_conductor_keeps_stays_while_its_gpu_has_another_layout(
    tmp_path: Path,
) -> None:
    host = host_with_mig(mig=True, mig_instances=["1g.12gb"])
    scan = Scan(host, managed_deployables={f"compute-1_{FIRST}"})
    [device] = driver_on(host, tmp_path).discover(scan)
    assert units(device).keys() == {FIRST}


def test_gpu_with_a_vgpu_keeps_its_layout(tmp_path: Path) -> None:
    host = host_with_mig(mig=True, mig_instances=["1g.12gb"])
    set_type(host, FIRST, 1500)
    reason = f"its virtual function {FIRST}: its nvidia/current_vgpu_type reads '1500'; write 0"
    assert str(layouts(host, tmp_path).refusal).startswith(reason)
    with pytest.raises(exception.DriverFailed, match="current_vgpu_type reads '1500'"):
        driver_on(host, tmp_path).partition(L40S, LAYOUT)
    assert tools(host) == []


def test_gpu_in_use_keeps_its_layout(tmp_path: Path) -> None:
    host = host_with_mig()
    situations.hold(host, FIRST)
    assert "held through VFIO" in str(layouts(host, tmp_path).refusal)


def test_mode_that_needs_a_reset_is_an_error(tmp_path: Path) -> None:
    host = host_with_mig()
    tool = host.programs["/usr/bin/nvidia-smi"]
    assert isinstance(tool, Tool)
    tool.stuck = True
    with pytest.raises(exception.DriverFailed) as caught:
        driver_on(host, tmp_path).partition(L40S, LAYOUT)
    assert caught.value.fields["reason"] == (
        f"{L40S}: its MIG mode changes with a reset only: run nvidia-smi -i {L40S} --gpu-reset"
    )
    assert tools(host) == [("-i", L40S, "-mig", "1")]


def test_mode_is_turned_off_after_the_instances_are_gone(tmp_path: Path) -> None:
    text = CONF.replace("3g.47gb/1g.12gb/1g.12gb", "off")
    host = host_with_mig(mig=True, mig_instances=["1g.12gb"])
    assert layouts(host, tmp_path, text).layouts == ("mig=off", "mig=1g.12gb")
    driver_on(host, tmp_path, text).partition(L40S, "mig=off")
    assert tools(host) == [
        ("mig", "-i", L40S, "-dci"),
        ("mig", "-i", L40S, "-dgi"),
        ("-i", L40S, "-mig", "0"),
    ]
    assert layouts(host, tmp_path, text).current == "mig=off"


def test_whole_gpu_waits_for_its_layout(tmp_path: Path) -> None:
    host = servers.server()
    program = Nvml()
    program.facts[servers.GPU] = {"mig": False, "mig_profiles": PROFILES}
    host.programs[sys.executable] = program
    text = f"[gpu_devices]\nmig_layouts = {servers.GPU}=none\n"
    driver = driver_on(host, tmp_path, text)
    assert servers.GPU not in {device.key for device in look(driver).discover()}
    [row] = [item for item in look(driver).hardware() if item.key == servers.GPU]
    assert row.reason == "it is to have the layout mig=none, and has mig=off"


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"mig": None}, "NVML does not tell its MIG mode; install the extra nvidia"),
        (
            {"mig_profiles": {"1g.12gb": 19}},
            "its GPU has no profile 3g.47gb, but 1g.12gb",
        ),
    ],
)
def test_layout_that_the_gpu_cannot_have_is_refused(
    tmp_path: Path, facts: dict[str, Any], reason: str
) -> None:
    host = host_with_mig(**facts)
    assert layouts(host, tmp_path).refusal == reason
    with pytest.raises(exception.DriverFailed, match=r"NVML|profile"):
        driver_on(host, tmp_path).partition(L40S, LAYOUT)
    assert tools(host) == []


@pytest.mark.parametrize(
    ("entries", "flaw"),
    [
        ("3b:00.0=1g.10gb", "'3b:00.0' is not a PCI address with domain, bus, device and function"),
        (f"{L40S}=none,{L40S}=off", f"it has {L40S} twice"),
        (f"{L40S}=1g", f"'{L40S}=1g': it is neither off, nor none, nor 1 to 8 profiles such as"),
        (L40S, f"{L40S!r}: it is neither off, nor none"),
        (f"{L40S}={'/'.join(['1g.10gb'] * 9)}", "nor 1 to 8 profiles"),
    ],
)
def test_entries_that_cannot_be_used_are_refused(tmp_path: Path, entries: str, flaw: str) -> None:
    with pytest.raises(exception.ConfigError) as caught:
        driver_on(servers.bare(), tmp_path, f"[gpu_devices]\nmig_layouts = {entries}\n")
    assert str(caught.value).startswith("Option [gpu_devices] mig_layouts: ")
    assert flaw in str(caught.value)
