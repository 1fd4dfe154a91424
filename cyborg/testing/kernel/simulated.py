# SPDX-License-Identifier: Apache-2.0
"""The simulated kernel: a table of paths in sysfs, and what a write to each does.

The behaviour is that of Linux 6.12. ``cyborg/tests/kernel/scenario.py`` runs on a real kernel and
on this one, and the answers and errors are the same. Not compared, because the emulated machine
has no such hardware: hot plug by hand, and profiles of mediated devices other than the one there.
"""

import errno
import operator
import re
from collections.abc import Iterable

from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.binding import Binding
from cyborg.testing.kernel.functions import Functions
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
_RULES = [
    (re.compile(pattern), operator.attrgetter(rule))
    for pattern, rule in (
        (rf"{_FUNCTION}/sriov_numvfs", "functions.set_vfs"),
        (rf"{_FUNCTION}/sriov_drivers_autoprobe", "functions.set_autoprobe"),
        (rf"{_FUNCTION}/driver_override", "binding.override"),
        (rf"{_FUNCTION}/enable", "binding.enable"),
        (rf"{_FUNCTION}/reset", "functions.reset"),
        (rf"{_FUNCTION}/reset_method", "functions.set_reset_method"),
        (rf"{_FUNCTION}/remove", "functions.remove"),
        (rf"{_FUNCTION}/uevent", "functions.send_uevent"),
        (rf"{_FUNCTION}/nvidia/current_vgpu_type", "binding.vgpus.assign"),
        (rf"{_FUNCTION}/{_TYPE}/create", "binding.mdevs.create"),
        (rf"{_PLACE}/{_UUID}/remove", "binding.mdevs.remove"),
        (r"(?P<path>/sys/devices/pci.+)/pci_bus/[^/]+/rescan", "functions.rescan"),
        (rf"(?P<path>/sys/devices/pci.+)/{ADDRESS}/rescan", "functions.rescan"),
        (rf"{PCI}/rescan", "functions.rescan_all"),
        (rf"{PCI}/drivers_probe", "binding.drivers_probe"),
        (rf"{_DRIVER}/bind", "binding.bind"),
        (rf"{_DRIVER}/unbind", "binding.unbind"),
    )
]
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

    def __init__(
        self, host: FakeHost, drivers: Iterable[HostDriver], *, iommu: bool = True
    ) -> None:
        self._sysfs = sysfs = Sysfs(host)
        groups = IommuGroups(sysfs, iommu)
        self.binding = Binding(host, sysfs, groups, drivers)
        self.functions = Functions(host, sysfs, groups, self.binding)
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
        for path in sysfs.functions():
            self.functions.adopt(path)
            self.binding.adopt(path)
        self.binding.add_drivers()
        host.kernel = self

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
            if (match := pattern.fullmatch(path)) is not None:
                # The kernel does not call a file's handler for a write of no bytes.
                if text:
                    rule(self)(*match.groups(), text)
                return True
        return False
