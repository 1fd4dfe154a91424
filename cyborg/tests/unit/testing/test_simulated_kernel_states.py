# SPDX-License-Identifier: Apache-2.0
"""Whatever is written in whatever order, the tree of the simulated kernel stays consistent."""

import contextlib

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cyborg import exception
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.guest import DRIVERS, guest
from cyborg.testing.kernel.simulated import SimulatedKernel

DEVICES = "/sys/bus/pci/devices"
TYPES = {"simaccel-1": 1, "simaccel-4": 4}
PF = "0000:01:00.0"
CARD = "0000:45:00.0"
ADDRESSES = st.sampled_from([PF, "0000:01:00.1", "0000:01:00.2", CARD, "0000:43:01.0"])
UUIDS = st.sampled_from([f"83b8f4f2-509f-382f-3c1e-e6bfe0fa100{number}" for number in range(5)])


class KernelStates(RuleBasedStateMachine):
    """Random writes; the kernel may refuse each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.host: FakeHost = guest()
        self.kernel = SimulatedKernel(self.host, DRIVERS)

    def write(self, path: str, text: str) -> None:
        """Write, whether or not the kernel accepts it."""
        with contextlib.suppress(exception.HostError):
            self.host.write_text(path, text)

    @rule(number=st.integers(0, 5))
    def set_vfs(self, number: int) -> None:
        self.write(f"{DEVICES}/{PF}/sriov_numvfs", str(number))

    @rule(address=ADDRESSES, driver=st.sampled_from(["vfio-pci", "simaccel", "nvme", "\n"]))
    def set_driver(self, address: str, driver: str) -> None:
        self.write(f"{DEVICES}/{address}/driver_override", driver)
        self.write(f"{DEVICES}/{address}/driver/unbind", address)
        self.write("/sys/bus/pci/drivers_probe", address)

    @rule(address=ADDRESSES.filter(lambda address: address != PF))
    def remove(self, address: str) -> None:
        self.write(f"{DEVICES}/{address}/remove", "1")

    @rule()
    def rescan(self) -> None:
        self.write("/sys/bus/pci/rescan", "1")

    @rule(uuid=UUIDS, kind=st.sampled_from(sorted(TYPES)))
    def create_mdev(self, uuid: str, kind: str) -> None:
        self.write(f"{DEVICES}/{CARD}/mdev_supported_types/{kind}/create", uuid)

    @rule(uuid=UUIDS)
    def remove_mdev(self, uuid: str) -> None:
        self.write(f"/sys/bus/mdev/devices/{uuid}/remove", "1")

    @rule(address=ADDRESSES, text=st.sampled_from(["1428", "1429", "1430", "0"]))
    def set_vgpu(self, address: str, text: str) -> None:
        self.write(f"{DEVICES}/{address}/nvidia/current_vgpu_type", text)

    @rule(address=ADDRESSES, opened=st.booleans())
    def open_or_close(self, address: str, opened: bool) -> None:
        with contextlib.suppress(OSError):
            (self.kernel.hold if opened else self.kernel.release)(address)

    @invariant()
    def vfs_are_as_many_as_the_number_says(self) -> None:
        number = int(self.host.read_text(f"{DEVICES}/{PF}/sriov_numvfs"))
        links = [name for name in self.host.list_dir(f"{DEVICES}/{PF}") if "virtfn" in name]
        vfs = [name for name in self.host.list_dir(DEVICES) if name.startswith(PF[:-1])]
        assert len(links) == number == len(vfs) - 1

    @invariant()
    def links_of_functions_have_links_back(self) -> None:
        for name in self.host.list_dir(DEVICES):
            path = self.host.realpath(f"{DEVICES}/{name}")
            assert self.host.realpath(f"{path}/iommu_group/devices/{name}") == path
            if self.host.exists(f"{path}/driver"):
                assert self.host.realpath(f"{path}/driver/{name}") == path
            else:
                assert not self.host.exists(f"{path}/vfio-dev")
            assert int(self.host.read_text(f"{path}/enable")) >= 0

    @invariant()
    def instances_and_what_is_available_make_the_capacity(self) -> None:
        place = f"{DEVICES}/{CARD}/mdev_supported_types"
        existing = self.host.list_dir("/sys/bus/mdev/devices")
        if not self.host.exists(place):
            assert existing == []
            return
        used = sum(
            slices * len(self.host.list_dir(f"{place}/{kind}/devices"))
            for kind, slices in TYPES.items()
        )
        for kind, slices in TYPES.items():
            left = int(self.host.read_text(f"{place}/{kind}/available_instances"))
            assert left == (4 - used) // slices

    @invariant()
    def groups_have_members_and_nodes_have_devices(self) -> None:
        groups = "/sys/kernel/iommu_groups"
        for group in self.host.list_dir(groups):
            members = self.host.list_dir(f"{groups}/{group}/devices")
            assert members
            held = [
                member
                for member in members
                if self.host.exists(f"{groups}/{group}/devices/{member}/vfio-dev")
            ]
            assert self.host.exists(f"/dev/vfio/{group}") == bool(held)


TestKernelStates = KernelStates.TestCase
TestKernelStates.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
