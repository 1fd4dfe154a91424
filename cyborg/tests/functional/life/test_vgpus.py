# SPDX-License-Identifier: Apache-2.0
"""vGPUs through vendor-specific VFIO: the functions of a card share it, and get types at a bind."""

import sys
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from cyborg.db.engine import Database
from cyborg.drivers.loader import LoadResult
from cyborg.drivers.nvidia_gpu import NvidiaGpuDriver
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.compute_host import ComputeHost, compute_host
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.life.http import Client, bind_body
from cyborg.tests.functional.life.steps import (
    ARQS,
    bind,
    create,
    delete_arqs,
    eventually_bound,
    eventually_idle,
    eventually_offered,
    of_instance,
)
from cyborg.tests.unit.drivers import test_nvidia_mig as mig
from cyborg.tests.unit.drivers.configured import written
from cyborg.tests.unit.drivers.test_nvidia_gpu import L40S, Nvml
from cyborg.tests.unit.drivers.test_nvidia_vfio import (
    CONF,
    FIRST,
    SECOND,
    THIRD,
    VFS,
    host_with_l40s,
    type_at,
)


@pytest.fixture
def started(
    beside: Callable[..., Stack], resource_class: str, tmp_path: Path
) -> Callable[[FakeHost, str], ComputeHost]:
    """Start the agent of a compute; every type of its options has the resource class."""
    own = beside(agent_heartbeat=0.2, scan=0.2, full_check=0.5)

    def start(machine: FakeHost, text: str) -> ComputeHost:
        host = compute_host(own, tmp_path / "state", machine)
        options = "".join(
            line + (f"resource_class = {resource_class}\n" if line.startswith("device_a") else "")
            for line in text.splitlines(keepends=True)
            if not line.startswith("resource_class")
        )
        conf = written(tmp_path / "cyborg.conf", options, host=host.compute)
        host.start(LoadResult(NvidiaGpuDriver.name, NvidiaGpuDriver(machine, conf)))
        return host

    return start


@pytest.fixture
def compute(started: Callable[[FakeHost, str], ComputeHost]) -> ComputeHost:
    """A compute with one card, whose small vGPUs take a half of it, and whose large one all."""
    return started(host_with_l40s(), CONF)


def types(compute: ComputeHost) -> list[str]:
    return [type_at(compute.machine, address) for address in VFS]


@pytest.mark.proves("nvidia_gpu_driver", "bind", "cleaning", by="simulated")
def test_bind_takes_room_from_the_other_types_until_its_release(
    compute: ComputeHost,
    profile: Callable[..., str],
    resource_class: str,
    nova: Client,
    operator: Client,
    placement: PlacementService,
    *,
    database: Database,
) -> None:
    providers = {address: compute.provider(address) for address in VFS}
    for address in (FIRST, SECOND, THIRD):
        eventually_offered(placement, providers[address], 1)
    name = profile({f"resources:{resource_class}": "1"})
    instance = bind(nova, create(nova, name), providers[FIRST], host=compute.compute)
    # The bind and the booking are one transaction: there is no moment at which both fit.
    [device] = operator.get("/devices", hostname=compute.compute)["devices"]
    assert device["pools"]["gpu"] == {"total": 6, "used": 3}
    body = bind_body(create(nova, name), compute.compute, providers[THIRD], str(uuid4()))
    answer = nova.patch(ARQS, body, status=409)
    assert "gpu (3 of 6 used, 6 needed for each unit)" in str(answer)
    eventually_bound(nova, instance)
    assert types(compute) == ["1150", "0", "0", "0"]
    [arq] = of_instance(nova, instance)
    info = arq["attach_handle_info"]
    assert (arq["attach_handle_type"], info["function"], info["managed"]) == ("PCI", "4", "false")
    # Placement counts the bound unit itself.
    for address, units in ((FIRST, 1), (SECOND, 1), (THIRD, 0)):
        eventually_offered(placement, providers[address], units)
    delete_arqs(nova, instance)
    eventually_idle(database)
    assert types(compute) == ["0"] * len(VFS)
    eventually_offered(placement, providers[THIRD], 1)


@pytest.mark.proves("nvidia_gpu_driver", "bind", by="simulated")
def test_bound_unit_gets_its_type_again_and_a_free_one_loses_it(
    compute: ComputeHost,
    profile: Callable[..., str],
    resource_class: str,
    nova: Client,
    placement: PlacementService,
) -> None:
    provider = compute.provider(FIRST)
    eventually_offered(placement, provider, 1)
    name = profile({f"resources:{resource_class}": "1"})
    instance = bind(nova, create(nova, name), provider, host=compute.compute)
    eventually_bound(nova, instance)
    machine, driver = compute.machine, "/sys/bus/pci/drivers/nvidia"
    # The driver of the host is loaded again while the agent runs.
    for address in VFS:
        machine.write_text(f"{driver}/unbind", address)
        machine.write_text(f"{driver}/bind", address)
    eventually(lambda: types(compute) == ["1150", "0", "0", "0"])
    # The host boots: it shows its functions some time after the agent has started.
    compute.stop()
    for address in VFS:
        machine.write_text(f"{driver}/unbind", address)
    compute.start()
    for address in VFS:
        machine.write_text(f"{driver}/bind", address)
    eventually(lambda: types(compute) == ["1150", "0", "0", "0"])
    # A free unit must not keep what a guest had.
    machine.write_text(f"/sys/bus/pci/devices/{SECOND}/nvidia/current_vgpu_type", "1150")
    eventually(lambda: types(compute) == ["1150", "0", "0", "0"])
    [arq] = of_instance(nova, instance)
    assert (arq["state"], arq["attach_handle_info"]["function"]) == ("Bound", "4")


@pytest.mark.proves("nvidia_gpu_driver", "partition", "bind", by="simulated")
def test_mig_instances_come_back_after_a_boot_and_then_the_types_of_bound_units(
    started: Callable[[FakeHost, str], ComputeHost],
    profile: Callable[..., str],
    resource_class: str,
    nova: Client,
    placement: PlacementService,
) -> None:
    compute = started(mig.host_with_mig(), mig.CONF)
    provider = compute.provider(FIRST)
    eventually_offered(placement, provider, 1)
    name = profile({f"resources:{resource_class}": "1"})
    instance = bind(nova, create(nova, name), provider, host=compute.compute)
    eventually_bound(nova, instance)
    assert types(compute) == ["1500", "0", "0", "0"]
    program = compute.machine.programs[sys.executable]
    assert isinstance(program, Nvml)
    compute.stop()
    # Neither the mode nor the instances nor the types survive.
    program.facts[L40S] |= {"mig": False, "mig_instances": []}
    for file in ("unbind", "bind"):
        compute.machine.write_text(f"/sys/bus/pci/drivers/nvidia/{file}", FIRST)
    assert types(compute) == ["0"] * len(VFS)
    compute.start()
    eventually(lambda: types(compute) == ["1500", "0", "0", "0"])
    assert sorted(program.facts[L40S]["mig_instances"]) == ["1g.12gb", "1g.12gb", "3g.47gb"]
    [arq] = of_instance(nova, instance)
    assert (arq["state"], arq["attach_handle_info"]["function"]) == ("Bound", "4")
