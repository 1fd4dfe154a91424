# SPDX-License-Identifier: Apache-2.0
"""Uses of functions with several disks, and with several nodes of VFIO."""

import pytest

from cyborg.drivers.scan import Scan
from cyborg.model.pci import PciAddress
from cyborg.testing import servers
from cyborg.testing.fake_host import FakeHost

ADDRESS = "0000:18:00.0"


def refusal(host: FakeHost) -> str | None:
    scan = Scan(host)
    return scan.refusal(scan.functions[PciAddress.parse(ADDRESS)], managed=False)


@pytest.mark.parametrize("name", ["nvme9n1", "nvme9n2"])
def test_any_disk_of_a_controller_that_is_claimed_keeps_it(name: str) -> None:
    host = servers.bare()
    servers.add_function(host, ADDRESS, "144d:a80a:010802", driver="nvme")
    for number, disk in enumerate(("nvme9n1", "nvme9n2")):
        servers.add_disk(host, ADDRESS, f"nvme/nvme9/{disk}", number=f"259:{number}")
    assert refusal(host) is None
    host.claimed.add(f"/dev/{name}")
    assert str(refusal(host)).startswith(f"its disk {name} is claimed exclusively")


@pytest.mark.parametrize("node", ["devices/vfio3", "7", "noiommu-7"])
def test_holder_of_any_node_of_a_function_has_it(node: str) -> None:
    host = servers.bare()
    path = servers.add_function(host, ADDRESS, "8086:37c8:0b4000", driver="vfio-pci")
    host.add_link(f"{path}/iommu_group", "/sys/kernel/iommu_groups/7")
    host.add_dir(f"{path}/vfio-dev/vfio3")
    assert refusal(host) is None
    servers.open_vfio(host, node, 4321, "qemu")
    assert refusal(host) == "held through VFIO by qemu (process 4321)"
