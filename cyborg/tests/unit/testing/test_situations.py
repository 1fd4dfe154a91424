# SPDX-License-Identifier: Apache-2.0
"""A simulated host after a reboot: the kernel numbers the same devices in another order."""

from cyborg.testing import scenario_hosts, situations
from cyborg.testing.fake_host import FakeHost

_FUNCTIONS = "/sys/bus/pci/devices"


def controllers(host: FakeHost) -> dict[str, str]:
    """Return the address of the function of each NVMe controller."""
    names = host.list_dir("/sys/class/nvme")
    return {name: host.realpath(f"/sys/class/nvme/{name}").split("/")[-3] for name in names}


def groups(host: FakeHost) -> dict[str, str]:
    """Return the IOMMU group of each function."""
    addresses = host.list_dir(_FUNCTIONS)
    return {each: host.readlink(f"{_FUNCTIONS}/{each}/iommu_group") for each in addresses}


def test_reboot_gives_every_device_another_number() -> None:
    host = scenario_hosts.load("nvme-24")
    before, count = controllers(host), len(host.tree())
    former = groups(host)
    situations.reboot(host)
    after = controllers(host)
    assert sorted(after.values()) == sorted(before.values())
    assert all(before.get(name) != address for name, address in after.items())
    for name, address in after.items():
        # Everything of the controller has the new name: its directory, its disks, their nodes.
        disks = host.list_dir(f"{_FUNCTIONS}/{address}/nvme/{name}")
        assert all(each.startswith(name) for each in disks if each.startswith("nvme"))
        assert host.exists(f"/dev/{name}")
    assert len(host.tree()) == count
    now = groups(host)
    assert now.keys() == former.keys()
    assert all(now[address] != former[address] for address in now)


def test_reboot_keeps_addresses_and_names_of_interfaces() -> None:
    host = scenario_hosts.load("mixed")
    names = {place: host.list_dir(place) for place in (_FUNCTIONS, "/sys/class/net")}
    situations.reboot(host)
    assert {place: host.list_dir(place) for place in names} == names
