# SPDX-License-Identifier: Apache-2.0
"""Real functions go from one instance to the next through the whole service.

As libvirt does, the tests open a function through VFIO while its instance has it.
"""

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from cyborg.drivers.host import LocalHost
from cyborg.drivers.nic import IntelNicDriver
from cyborg.drivers.nvme_disk import NvmeDriver
from cyborg.drivers.privileged.actions import Reset
from cyborg.drivers.privileged.disk_actions import FormatNamespace
from cyborg.model.pci import PciAddress
from cyborg.tests.kernel import vfio
from cyborg.tests.kernel.functions import IGB, Functions, catalogued
from cyborg.tests.kernel.test_cleaning import CANARY, PLACES, read, write
from cyborg.tests.kernel.test_reset import Root

DISK = {"resources:CUSTOM_NVME": "1", "trait:CUSTOM_NVME_1B36_0010": "required"}
#: What libvirt and Neutron set for a guest.
GIVEN = ("mac 52:54:00:11:22:33", "vlan 7", "spoofchk off", "trust on")
PORT = {"resources:CUSTOM_NIC": "1", "trait:CUSTOM_PHYSNET1": "required"}


def use(functions: Functions, address: str) -> None:
    """Give a function to a guest, and take it back."""
    with ExitStack() as stack:
        Functions(LocalHost(), stack).bind(address, "vfio-pci")
        with vfio.held(functions.link(address, "iommu_group") or "", address):
            pass


@pytest.mark.proves("nvme_driver", "discover", "bind", "cleaning", by="kernel")
def test_next_instance_finds_no_data_of_the_first_on_its_disk(
    functions: Functions, tmp_path: Path, undo: ExitStack
) -> None:
    # Only these tests pay for this import.
    from cyborg.tests.kernel.deployment import Deployment

    address = functions.nvme("PLAIN0001")
    node = Path("/dev", functions.disk(address))
    file = tmp_path / "cyborg.conf"
    file.write_text(f'[nvme]\ndevice_spec = {{"address": "{address}"}}\n')
    root = Root()
    deployment = Deployment(
        NvmeDriver.name, tmp_path, undo, machine=LocalHost(privileged=root), files=[file]
    )
    provider, first, second = deployment.provider(address), str(uuid4()), str(uuid4())
    deployment.wait_for_providers(DISK, {provider})
    bound = ("Bound", PciAddress.parse(address).info())
    assert deployment.bind(DISK, provider, first) == bound
    use(functions, address)
    write(node)
    assert read(node) == [CANARY] * len(PLACES)
    deployment.delete(first)
    cleaned, steps = deployment.wait_for_cleaning(address)
    assert steps == ["function reset", "NVMe erase"]
    deployment.wait_for_providers(DISK, {provider})
    assert deployment.bind(DISK, provider, second) == bound
    assert read(node) == [bytes(len(CANARY))] * len(PLACES)
    deployment.delete(second)
    deployment.wait_for_cleaning(address, cleaned)
    changes = [type(action) for action in root.actions if action.changes]
    assert changes == 2 * [Reset, FormatNamespace]


def shown(command: Callable[..., str], interface: str, number: int) -> dict[str, Any]:
    """Return what the card keeps for a virtual function."""
    [link] = json.loads(command("ip", "-j", "link", "show", "dev", interface))
    return dict(link["vfinfo_list"][number])


@pytest.mark.proves("intel_nic_driver", "discover", "bind", "cleaning", by="kernel")
def test_virtual_functions_of_a_port_go_to_instances_with_their_network(
    functions: Functions,
    tmp_path: Path,
    undo: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
    command: Callable[..., str],
) -> None:
    """The driver has no such card in its catalogue; the configuration adds it."""
    from cyborg.tests.kernel.deployment import Deployment

    [card] = functions.matching(IGB)
    interface = functions.interface(card)
    virtual, other = functions.create_vfs(card, 2)
    monkeypatch.setattr("socket.gethostname", lambda: Deployment.compute)
    file = tmp_path / "cyborg.conf"
    file.write_text(
        catalogued(tmp_path / "devices.d", IGB, IntelNicDriver.name, "NIC")
        + "[nic_devices]\nenabled_nic_types = igb\n"
        f"[igb]\ndevice_addresses = {virtual},{other}\n"
        f"physical_device_mappings = physnet1:{interface}\n"
    )
    root = Root()
    deployment = Deployment(
        IntelNicDriver.name, tmp_path, undo, machine=LocalHost(privileged=root), files=[file]
    )
    provider, instance = deployment.provider(virtual), str(uuid4())
    deployment.wait_for_providers(PORT, {provider, deployment.provider(other)})
    state, info = deployment.bind(PORT, provider, instance)
    assert state == "Bound"
    assert info == {**PciAddress.parse(virtual).info(), "physical_network": "physnet1"}
    new = shown(command, interface, 0)
    for setting in GIVEN:
        command("ip", "link", "set", "dev", interface, "vf", "0", *setting.split())
    given = shown(command, interface, 0)
    assert {name: given[name] for name in ("address", "spoofchk", "trust")} == {
        "address": "52:54:00:11:22:33",
        "spoofchk": False,
        "trust": True,
    }
    use(functions, virtual)
    deployment.delete(instance)
    _, steps = deployment.wait_for_cleaning(virtual)
    assert steps == ["VF settings", "function reset"]
    assert shown(command, interface, 0) == new
    resets = [str(action) for action in root.actions if isinstance(action, Reset)]
    assert len(resets) == 1
    assert virtual in resets[0]
