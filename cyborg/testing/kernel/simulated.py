# SPDX-License-Identifier: Apache-2.0
"""The simulated kernel: a table of paths in sysfs, and what a write to each does.

The behaviour is that of Linux 6.12. ``cyborg/tests/kernel/scenario.py`` runs on a real kernel and
on this one, and the answers and errors are the same. Not compared, because the emulated machine
has no such hardware: QuickAssist, hot plug, and other profiles of mediated devices.
"""

import errno
import re
from collections.abc import Callable, Iterable, Mapping

from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.binding import Binding
from cyborg.testing.kernel.functions import Absent, Functions
from cyborg.testing.kernel.host_driver import HostDriver
from cyborg.testing.kernel.sysfs import ADDRESS, PCI, Sysfs, error
from cyborg.testing.kernel.vfio import IommuGroups

_PLACE = rf"/sys/devices/pci[^/]+/(?:[^/]+/)*{ADDRESS}"
_FUNCTION = rf"(?P<path>{_PLACE})"
_TYPE = r"mdev_supported_types/(?P<type>[^/]+)"
_DRIVER = rf"{PCI}/drivers/(?P<driver>[^/]+)"
_UUID = r"(?P<uuid>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
#: What each write does: the groups of the pattern and the text are the arguments. A ``rescan`` of a
#: function covers the bus on which the function is, so also the functions beside it.
_RULES: tuple[tuple[str, Callable[["SimulatedKernel"], Callable[..., None]]], ...] = (
    (rf"{_FUNCTION}/sriov_numvfs", lambda kernel: kernel.functions.set_vfs),
    (rf"{_FUNCTION}/sriov_drivers_autoprobe", lambda kernel: kernel.functions.set_autoprobe),
    (rf"{_FUNCTION}/driver_override", lambda kernel: kernel.binding.override),
    (rf"{_FUNCTION}/enable", lambda kernel: kernel.binding.enable),
    (rf"{_FUNCTION}/reset", lambda kernel: kernel.functions.reset),
    (rf"{_FUNCTION}/reset_method", lambda kernel: kernel.functions.set_reset_method),
    (rf"{_FUNCTION}/remove", lambda kernel: kernel.functions.remove),
    (rf"{_FUNCTION}/uevent", lambda kernel: kernel.functions.send_uevent),
    (rf"{_FUNCTION}/nvidia/current_vgpu_type", lambda kernel: kernel.binding.vgpus.assign),
    (rf"{_FUNCTION}/{_TYPE}/create", lambda kernel: kernel.binding.mdevs.create),
    (rf"{_PLACE}/{_UUID}/remove", lambda kernel: kernel.binding.mdevs.remove),
    (rf"{_FUNCTION}/qat/state", lambda kernel: kernel.binding.qats.set_state),
    (rf"{_FUNCTION}/qat/cfg_services", lambda kernel: kernel.binding.qats.set_services),
    (r"(?P<path>/sys/devices/pci.+)/pci_bus/[^/]+/rescan", lambda kernel: kernel.functions.rescan),
    (rf"(?P<path>/sys/devices/pci.+)/{ADDRESS}/rescan", lambda kernel: kernel.functions.rescan),
    (rf"{PCI}/rescan", lambda kernel: kernel.functions.rescan_all),
    (rf"{PCI}/drivers_probe", lambda kernel: kernel.binding.drivers_probe),
    (rf"{_DRIVER}/bind", lambda kernel: kernel.binding.bind),
    (rf"{_DRIVER}/unbind", lambda kernel: kernel.binding.unbind),
)
#: The kernel refuses to open these for writing and for reading, even for root.
_READ_ONLY = re.compile(
    rf"{_PLACE}/(?:ari_enabled|class|consistent_dma_mask_bits|current_link_\w+|device|"
    r"dma_mask_bits|irq|local_cpu\w+|max_link_\w+|modalias|power_state|resource|revision|"
    r"sriov_(?:totalvfs|offset|stride|vf_device|vf_total_msix)|subsystem_\w+|vendor|"
    r"nvidia/creatable_vgpu_types|"
    r"mdev_supported_types/[^/]+/(?:available_instances|description|device_api|name))"
)
_WRITE_ONLY = re.compile(
    rf"{_PLACE}/(?:remove|rescan|reset|sriov_vf_msix_count|{_UUID}/remove|{_TYPE}/create)"
    rf"|{PCI}/(?:drivers_probe|rescan)|{PCI}/drivers/[^/]+/(?:bind|unbind|new_id|remove_id)"
    r"|/sys/devices/.+/pci_bus/[^/]+/rescan"
)


class SimulatedKernel:
    """The kernel of a simulated host: writes to sysfs have the effects and errors of Linux.

    The tree of the host is completed first: files that every function has, IOMMU groups (unless
    ``iommu`` is false), the directories of ``drivers``. Writes to other paths store their text.
    An error of a rule is what a driver gets; the tree is then as the real kernel leaves it.
    """

    binding: Binding
    functions: Functions

    def __init__(
        self, host: FakeHost, drivers: Iterable[HostDriver], *, iommu: bool = True
    ) -> None:
        self._host = host
        self._drivers = tuple(drivers)
        self._iommu = iommu
        self._sysfs = sysfs = Sysfs(host)
        for path, text in {
            f"{PCI}/drivers_probe": "",
            f"{PCI}/drivers_autoprobe": "1",
            f"{PCI}/rescan": "",
            "/dev/vfio/vfio": "",
        }.items():
            if not sysfs.exists(path):
                sysfs.put(path, text)
        for path in ("/sys/bus/mdev/devices", "/sys/class/mdev_bus", "/sys/kernel/iommu_groups"):
            sysfs.add_dir(path)
        self.read_again()
        host.kernel = self

    def read_again(self) -> None:
        """See Kernel; absent functions and processes that hold devices are forgotten."""
        groups = IommuGroups(self._sysfs, self._iommu)
        self.binding = Binding(self._host, self._sysfs, groups, self._drivers)
        self.functions = Functions(self._host, self._sysfs, groups, self.binding)
        for path in self._sysfs.functions():
            self.functions.adopt(path)
            self.binding.adopt(path)
        self.binding.add_drivers()

    def boot(self) -> None:
        """Bind each function without a driver to the first driver that takes it."""
        for path in self._sysfs.functions():
            self.binding.probe(path)

    def hold(self, address: str) -> None:
        """Open a function through its VFIO group, as QEMU does; see VfioDevices.hold."""
        self.binding.vfio.hold(self._sysfs.function(address))

    def release(self, address: str) -> None:
        """Close a function that ``hold`` opened."""
        self.binding.vfio.release(self._sysfs.function(address))

    def unplug(self, address: str) -> Absent:
        """Pull a card out and return it; see Functions.unplug."""
        return self.functions.unplug(address)

    def plug(self, card: Absent, attributes: Mapping[str, str] | None = None) -> None:
        """Put a card into its slot; see Functions.plug."""
        self.functions.plug(card, attributes)

    def check_read(self, path: str) -> None:
        """See Kernel: a file that can only be written gives EACCES, even for root."""
        if _WRITE_ONLY.fullmatch(path):
            raise error(errno.EACCES)

    def write(self, path: str, text: str) -> bool:
        """See Kernel."""
        if not path.startswith("/sys/"):
            return False
        if _READ_ONLY.fullmatch(path):
            raise error(errno.EACCES)
        for pattern, rule in _RULES:
            if (match := re.fullmatch(pattern, path)) is not None:
                # The kernel does not call a file's handler for a write of no bytes.
                if text:
                    rule(self)(*match.groups(), text)
                return True
        return False
