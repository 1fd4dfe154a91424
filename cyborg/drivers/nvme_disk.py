# SPDX-License-Identifier: Apache-2.0
"""Drivers for NVMe disks: the nvme_driver, and the inspur_nvme_ssd_driver of the existing service.

Guests get whole controllers, or the virtual functions of a disk that has some. A disk that the host
uses is never offered, and the data of a guest is erased before the next one gets its disk.

Sources: Documentation/ABI and drivers/nvme/host of Linux 6.12; NVM Express Base Specification 2.0.
"""

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Final

from oslo_config import cfg

from cyborg import exception
from cyborg.drivers import whitelist
from cyborg.drivers.base import Progress, no_progress
from cyborg.drivers.card_driver import PhysicalCardDriver, address_of, info_of
from cyborg.drivers.files import is_missing
from cyborg.drivers.function_cleaning import Erasure
from cyborg.drivers.host import Host
from cyborg.drivers.pci_function import PciFunction
from cyborg.drivers.pci_survey import Card
from cyborg.drivers.privileged import actions, disk_actions
from cyborg.drivers.privileged.nvme import SanitizeMethod
from cyborg.drivers.scan import Scan
from cyborg.model.cleaning import CleanLevel
from cyborg.model.device import Device, DeviceType
from cyborg.model.health import Signal
from cyborg.model.pci import PciAddress

#: The class of NVMe controllers, without the programming interface.
_CLASS = 0x0108
_INSPUR = 0x1BD4
_CONTROLLER = re.compile(r"nvme[0-9]{1,4}")
_OFFLINE = (
    "its NVMe controller is offline; set option [nvme] virtual_functions, or take it online with "
    "nvme virt-mgmt"
)
#: The values of ``clear_strategy``, which restrict the methods of sanitize and format.
_METHODS: Final[Mapping[str, SanitizeMethod | None]] = {
    "auto": None,
    "crypto": SanitizeMethod.CRYPTO,
    "block": SanitizeMethod.BLOCK,
}
#: What the bits of the critical warning say.
_WARNINGS: Final = (
    "its spare blocks run out",
    "its temperature is out of its limits",
    "its media or its controller has become unreliable",
    "it can only be read",
    "a power failure can lose data",
    "its persistent memory can only be read",
)


class _DiskDriver(PhysicalCardDriver):
    """What both drivers have in common."""

    group: ClassVar[str] = "nvme"
    resource_class: ClassVar[str]
    #: The traits that all disks of the driver have, beside OWNER_CYBORG and those of the product.
    kind_traits: ClassVar[Sequence[str]] = ()
    #: Their controllers do not answer before they are started.
    autoprobe: ClassVar[bool | None] = False

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        super().__init__(host, conf)
        self._vfs_wanted: int | None = conf.nvme.virtual_functions
        timeout: int | None = conf.nvme.cleanup_timeout
        self._erasure = Erasure() if timeout is None else Erasure(limit=timeout)
        #: The last scan, with what ``_stopped`` has found for its disks.
        self._states: (
            tuple[Scan, dict[PciAddress, tuple[Mapping[PciAddress, str], bool]]] | None
        ) = None

    def product_traits(self, function: PciFunction) -> Sequence[str]:
        """Return the traits that name the product of a disk."""
        raise NotImplementedError

    def erasure(self, function: PciFunction) -> Erasure:
        """See CardDriver."""
        return self._erasure

    def device(self, scan: Scan, card: Card) -> Device:
        function, names = card.function, self.names(scan)
        product = self.product_traits(function)
        traits = (*self.kind_traits, *product, "OWNER_CYBORG")
        inspur = function.vendor == _INSPUR
        return Device(
            key=card.key,
            type=self.type,
            vendor=f"{function.vendor:04x}",
            model=self.model(function, names),
            control_path=info_of(function.address),
            deployables=tuple(
                self.deployable(
                    guest,
                    resource_class=self.resource_class,
                    driver_name="INSPUR" if inspur else f"{function.vendor:04X}",
                    traits=traits,
                    product=product,
                )
                for guest in card.guests
            ),
            std_board_info={"product_id": f"{function.product:04x}", "controller": None},
            vendor_board_info='{"vendor_info": "ssd_vb_info"}' if inspur else None,
        )

    def desired_vfs(self, function: PciFunction) -> int | None:
        """See CardDriver; only disks with SR-IOV are divided."""
        if self._vfs_wanted is None:
            return None
        place = f"/sys/bus/pci/devices/{function.address}/sriov_totalvfs"
        try:
            capable = self.host.exists(place)
        except exception.HostError:
            # The numbers cannot be read either, and the card says so.
            capable = True
        return self._vfs_wanted if capable else None

    def refusal(self, scan: Scan, function: PciFunction) -> str | None:
        """See CardDriver; the controller of a virtual function must be online.

        If that cannot be read, a function that the conductor keeps stays as it is.
        """
        if function.parent is None or function.parent not in scan.functions:
            return None
        reasons, certain = self._stopped(scan, scan.functions[function.parent])
        if not certain and scan.is_managed(self.name_of(function.address)):
            return None
        return reasons.get(function.address)

    def stopped(self, scan: Scan, function: PciFunction) -> bool:
        reasons, certain = self._stopped(scan, function)
        return certain and bool(reasons)

    def _stopped(self, scan: Scan, disk: PciFunction) -> tuple[Mapping[PciAddress, str], bool]:
        """Return why virtual functions of a disk do not work, and whether that is known."""
        memory = self._states
        if memory is None or memory[0] is not scan:
            memory = self._states = scan, {}
        states = memory[1]
        if disk.address not in states:
            vfs = [vf.address for vf in scan.virtual_functions(disk.address)]
            try:
                online = self._online(disk)
                reasons = {vf: _OFFLINE for vf in vfs if vf not in online}
                states[disk.address] = reasons, True
            except exception.HostError as error:
                reason = f"it is not known whether its NVMe controller is online: {error}"
                states[disk.address] = dict.fromkeys(vfs, reason), False
        return states[disk.address]

    def _online(self, disk: PciFunction) -> Collection[PciAddress]:
        """Return the virtual functions of a disk whose controllers are online."""
        if not disk.vfs:
            return ()
        links = f"/sys/bus/pci/devices/{disk.address}/virtfn"
        controllers = self.host.privileged.run(
            disk_actions.ReadVirtualControllers(disk.address, self._live(disk))
        )
        numbers = [part.vf for part in controllers if part.online and 1 <= part.vf <= disk.vfs]
        targets = [self.host.readlink(f"{links}{number - 1}") for number in numbers]
        return {address_of(posixpath.basename(target)) for target in targets}

    def partition(self, card_key: str, layout: str, *, progress: Progress = no_progress) -> None:
        """See Driver; virtual functions get queues, interrupts, and a controller that is online.

        The disk gives them all that it need not have itself, and is reset once for that.
        """
        super().partition(card_key, layout, progress=progress)
        scan = Scan(self.host)
        disk = self.card(card_key, "partition", scan).function
        if not self._stopped(scan, disk)[0]:
            return
        controller = self._live(disk)
        run = self.host.privileged.run
        if run(disk_actions.ReleaseQueues(disk.address, controller)):
            progress(0.7, "resetting the disk, which releases queues")
            # SR-IOV requires this method (PCI Express Base Specification, section 9.2.2.2).
            run(actions.Reset(disk.address, "flr"))
            controller = self._live(disk)
        progress(0.8, f"starting {disk.vfs} controllers")
        run(disk_actions.StartVirtualControllers(disk.address, controller, disk.vfs))

    def _live(self, disk: PciFunction) -> str:
        """Return the name of a disk's controller; raises exception.HostError unless it works."""
        name = self._controller(disk)
        place = f"{_directory(disk)}/{name}/state"
        state = None if name is None else self.host.read_text(place).strip()
        if name is None or state != "live":
            raise exception.HostError(
                action=f"asking the controller of {disk.address}",
                reason=f"it is {state}" if name else "the driver nvme does not have it",
            )
        return name

    def signals(self, scan: Scan, device_key: str) -> Iterator[Signal]:
        """See Driver; the state of the controller, and its own log."""
        function = self.card(device_key, "health", scan).function
        controller = self._controller(function)
        if controller is None:
            self._cannot(f"check the health of {device_key}")
        state = self.host.read_text(f"{_directory(function)}/{controller}/state").strip()
        yield Signal("nvme", "state", state, f"its controller is {state}")
        try:
            log = self.host.privileged.run(
                disk_actions.ReadControllerHealth(function.address, controller)
            )
        except exception.HostError:
            # Without the privileged process the state alone counts.
            return
        for bit in log.warnings:
            text = _WARNINGS[bit] if bit < len(_WARNINGS) else f"critical warning {bit}"
            yield Signal("nvme", "critical_warning", bit, text)
        if log.spare < log.threshold:
            text = f"{log.spare} % of its spare blocks are left"
            yield Signal("nvme", "smart", "spare_below_threshold", text)
        if log.used > 100:
            text = f"{log.used} % of its life have passed"
            yield Signal("nvme", "smart", "percent_used_over_100", text)
        if log.media_errors:
            text = f"{log.media_errors} error{'s' if log.media_errors > 1 else ''} of its media"
            yield Signal("nvme", "smart", "media_errors", text)

    def stats(self, scan: Scan, device_key: str) -> Mapping[str, float]:
        """See Driver; the temperature, and the part of the life that has passed."""
        function = self.card(device_key, "stats", scan).function
        controller = self._controller(function)
        if controller is None:
            self._cannot(f"measure {device_key}")
        log = self.host.privileged.run(
            disk_actions.ReadControllerHealth(function.address, controller)
        )
        return {"temperature_celsius": log.celsius, "life_used_ratio": log.used / 100}

    def _controller(self, function: PciFunction) -> str | None:
        """Return the name of the controller; None while a guest or another driver has the disk."""
        try:
            names = [
                name
                for name in self.host.list_dir(_directory(function))
                if _CONTROLLER.fullmatch(name)
            ]
        except exception.HostError as error:
            if not is_missing(error):
                raise
            return None
        return names[0] if len(names) == 1 else None


class NvmeDriver(_DiskDriver):
    """Disks of any vendor that ``[nvme] device_spec`` names."""

    name = "nvme_driver"
    type = DeviceType.NVME
    resource_class: ClassVar[str] = "CUSTOM_NVME"
    kind_traits: ClassVar[Sequence[str]] = ("STORAGE_DISK_SSD",)

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        super().__init__(host, conf)
        option = "[nvme] device_spec"
        self._entries = whitelist.parse(conf.nvme.device_spec, option, self._check)

    def selects(self, function: PciFunction) -> bool:
        return function.class_code >> 8 == _CLASS and self._entry(function) is not None

    def _entry(self, function: PciFunction) -> whitelist.Entry | None:
        """Return the first entry that names a disk."""
        matching = (entry for entry in self._entries if entry.matches(function, {}, managed=False))
        return next(matching, None)

    def erasure(self, function: PciFunction) -> Erasure:
        """See CardDriver; the first entry that names the disk decides."""
        entry = self._entry(function)
        keys = {} if entry is None else entry.others
        return replace(
            self._erasure,
            sanitize=keys.get("clear_action") == "sanitize",
            method=_METHODS[keys.get("clear_strategy", "auto")],
        )

    def _check(self, entry: whitelist.Entry) -> None:
        """Raise ValueError unless the driver can obey the cleaning that an entry asks for."""
        action = entry.others.get("clear_action", "auto")
        strategy = entry.others.get("clear_strategy", "auto")
        if action == "zero":
            raise ValueError(
                "clear_action 'zero' is not supported, because zeros that the host writes do not "
                "reach the spare blocks of a disk; write 'sanitize' or 'auto'"
            )
        if action not in ("auto", "sanitize"):
            raise ValueError(f"clear_action {action!r} is neither 'auto' nor 'sanitize'")
        if strategy not in list(_METHODS):
            raise ValueError(f"clear_strategy {strategy!r} is none of {', '.join(_METHODS)}")
        if not {"clear_action", "clear_strategy"} & entry.others.keys():
            return
        if self._clean in (CleanLevel.NONE, CleanLevel.RESET):
            raise ValueError(
                "clear_action and clear_strategy require an erasure, and [nvme] clean is "
                f"'{self._clean}'; remove these keys, or set clean to full"
            )

    def product_traits(self, function: PciFunction) -> Sequence[str]:
        return (f"CUSTOM_NVME_{function.vendor:04X}_{function.product:04X}",)


class InspurNvmeSsdDriver(_DiskDriver):
    """Disks of Inspur that nothing uses, as the existing service offers them."""

    name = "inspur_nvme_ssd_driver"
    type = DeviceType.SSD
    resource_class: ClassVar[str] = "CUSTOM_SSD"

    def selects(self, function: PciFunction) -> bool:
        return function.class_code >> 8 == _CLASS and function.vendor == _INSPUR

    def product_traits(self, function: PciFunction) -> Sequence[str]:
        return ("CUSTOM_SSD_INSPUR", f"CUSTOM_SSD_PRODUCT_ID_{function.product:04X}")


def _directory(function: PciFunction) -> str:
    """Return the directory with the controllers of a function."""
    return f"/sys/bus/pci/devices/{function.address}/nvme"
