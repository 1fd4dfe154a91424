# SPDX-License-Identifier: Apache-2.0
"""The closed set of actions that need privileges; ``Host.privileged`` runs them.

An action is a value: a frozen dataclass whose constructor checks every field, and a method that
uses a ``Kernel``. So the agent, the privileged process and the simulated host have one definition.
The privileged process constructs the action again from plain values, and with that checks them
again: it does not trust the agent.

No field is a path, a text to write or a command, with one exception: the image of an FPGA is a file
of the agent. A tool gets a copy, which must begin as such an image does. Other paths come from the
names of ``/sys/bus/pci``, ``/sys/bus/mdev`` and ``/sys/class/block``: the target of such a link
must be below ``/sys/devices`` and end with the requested name. ``kernel`` says why no link can then
lead elsewhere. ``guard`` judges the functions on which an action works.

Each action has one context, which is a process with only these capabilities. The kernel's own
checks decide (read in the sources of Linux, ``fs`` and ``drivers``; all except those of ``vendor``
were tried on Linux 6.12):

=========== ==================== ================================================================
context     capabilities         reason
=========== ==================== ================================================================
``sysfs``   CAP_DAC_OVERRIDE     the files belong to root and only root may write them;
                                 sriov_numvfs, driver_override, bind, unbind, drivers_probe,
                                 reset, create and remove check nothing else
``network`` CAP_NET_ADMIN        rtnetlink, RTM_SETLINK
``nvme``    CAP_SYS_ADMIN,       the ioctl (nvme_cmd_allowed)
            CAP_DAC_READ_SEARCH  opening the node, for reading only
``vendor``  CAP_SYS_ADMIN,       the driver of the vendor decides
            CAP_DAC_OVERRIDE     device nodes and files that belong to root
``observe`` CAP_SYS_PTRACE,      the open files of other processes (proc_fd_access_allowed)
            CAP_DAC_READ_SEARCH  listing them (proc_fd_permission); opening a disk, for reading
            CAP_SYSLOG           opening the log of the kernel (check_syslog_permissions)
=========== ==================== ================================================================
"""

import dataclasses
import errno
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from cyborg import exception
from cyborg.drivers.command import summary
from cyborg.drivers.files import OpenFiles, ProcessFiles, ProcessId, find_open_files, is_missing
from cyborg.drivers.kernel_log import DeviceError
from cyborg.drivers.pci_function import addresses_in_path
from cyborg.drivers.privileged import disk_actions, fields, places
from cyborg.drivers.privileged.action import Action, Context, Reach, whole
from cyborg.drivers.privileged.kernel import Kernel
from cyborg.drivers.privileged.netlink import VfSettings
from cyborg.model.pci import PciAddress

_DEBUG: Final = "/sys/kernel/debug"
_PCI: Final = "/sys/bus/pci"
_NVIDIA_SMI: Final = "/usr/bin/nvidia-smi"
#: nvidia-smi's status for "an object was not found": there is nothing to destroy.
_NVIDIA_NOT_FOUND: Final = 6
_NVIDIA_TIMEOUT: Final = 120.0
#: Bytes; the VPD of most cards has less than 1 kB.
_VPD_LIMIT: Final = 4096
_FPGACONF: Final = "/usr/bin/fpgaconf"
_XBMGMT: Final = "/opt/xilinx/xrt/bin/xbmgmt"
#: Flash memory is slow. The agent waits for 600 seconds.
_FPGA_TIMEOUT: Final = 540.0

_NAME: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,63}")
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DISK: Final = re.compile(r"[a-z][0-9a-z_-]{0,31}")
_INTERFACE: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,14}")
_NAMESPACE: Final = re.compile(r"pid:\[[0-9]{1,20}\]")
_PROCESS: Final = re.compile(r"[0-9]{1,10}")
_MAC: Final = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}")
#: The names of reset methods in drivers/pci/pci.c.
_RESET_METHODS: Final = frozenset(
    {"acpi", "af_flr", "bus", "cxl_bus", "device_specific", "flr", "pm"}
)
_IMAGE: Final = re.compile(r"(?:/(?!\.\.?(?:/|$))[0-9A-Za-z_.-]+){2,}")
_QAT_STATES: Final = frozenset({"up", "down"})
_QAT_SERVICES: Final = frozenset({"asym", "dc", "dcc", "decomp", "sym"})


class XilinxImage(StrEnum):
    """What an image is for: the part of a card that users program, or its flash memory."""

    USER = "user"
    BASE = "base"


@dataclass(frozen=True)
class SetVfs(Action[None]):
    """Set the number of virtual functions, 0 to remove all.

    ``autoprobe`` decides whether host drivers may take the new functions; None leaves it as it is.
    The kernel refuses a change from one number to another, except to 0, with EBUSY.
    """

    function: PciAddress
    count: int
    autoprobe: bool | None = None

    def check(self) -> None:
        fields.number("count", self.count, 0, 65535)
        fields.flag("autoprobe", self.autoprobe)

    def run(self, kernel: Kernel) -> None:
        path = places.function(kernel, self.function)
        if self.autoprobe is not None:
            kernel.write(f"{path}/sriov_drivers_autoprobe", str(int(self.autoprobe)))
        kernel.write(f"{path}/sriov_numvfs", str(self.count))


@dataclass(frozen=True)
class SetDriverOverride(Action[None]):
    """Name the only driver that may bind the function; an empty name allows all drivers again."""

    function: PciAddress
    driver: str

    def check(self) -> None:
        if self.driver != "":
            fields.text("driver", self.driver, _NAME, "the name of a driver, or empty")

    def run(self, kernel: Kernel) -> None:
        # A newline alone removes the override (driver_set_override).
        kernel.write(
            f"{places.function(kernel, self.function)}/driver_override", f"{self.driver}\n"
        )


@dataclass(frozen=True)
class Bind(Action[None]):
    """Bind a driver to the function."""

    function: PciAddress
    driver: str

    def check(self) -> None:
        fields.text("driver", self.driver, _NAME, "the name of a driver")

    def run(self, kernel: Kernel) -> None:
        places.function(kernel, self.function)
        kernel.write(f"{_PCI}/drivers/{self.driver}/bind", str(self.function))


@dataclass(frozen=True)
class Unbind(Action[None]):
    """Unbind the function from its driver; without a driver the action does nothing."""

    detaches = True

    function: PciAddress

    def run(self, kernel: Kernel) -> None:
        try:
            target = kernel.readlink(f"{places.function(kernel, self.function)}/driver")
        except exception.HostError as error:
            if is_missing(error):
                return
            raise
        driver = target.rpartition("/")[2]
        if _NAME.fullmatch(driver) is None:
            reason = f"the name of its driver, {driver!r}, is not valid"
            raise exception.HostError(action=f"unbinding {self.function}", reason=reason)
        kernel.write(f"{_PCI}/drivers/{driver}/unbind", str(self.function))


@dataclass(frozen=True)
class Probe(Action[None]):
    """Let the kernel choose a driver for the function, which must have none."""

    function: PciAddress

    def run(self, kernel: Kernel) -> None:
        places.function(kernel, self.function)
        kernel.write(f"{_PCI}/drivers_probe", str(self.function))


@dataclass(frozen=True)
class Reset(Action[None]):
    """Reset the function, with the given method or with the first one that the kernel has.

    After a reset with a method, the function has its former methods again.
    """

    detaches = True

    function: PciAddress
    method: str | None = None

    def check(self) -> None:
        if self.method is not None:
            fields.choice("method", self.method, _RESET_METHODS)

    def run(self, kernel: Kernel) -> None:
        path = places.function(kernel, self.function)
        if self.method is None:
            kernel.write(f"{path}/reset", "1")
            return
        former = kernel.read(f"{path}/reset_method")
        kernel.write(f"{path}/reset_method", self.method)
        try:
            kernel.write(f"{path}/reset", "1")
        finally:
            try:
                kernel.write(f"{path}/reset_method", former)
            except exception.HostError as error:
                if error.fields.get("errno") != errno.EINVAL:
                    raise
                # The kernel listed a method that it no longer has: the first function of a card
                # was alone on its bus when it was added. Let it list again what it has.
                kernel.write(f"{path}/reset_method", "default")


@dataclass(frozen=True)
class CreateMdev(Action[None]):
    """Create a mediated device of a function."""

    function: PciAddress
    mdev_type: str
    uuid: str

    def check(self) -> None:
        fields.text("mdev_type", self.mdev_type, _NAME, "the name of a type")
        fields.text("uuid", self.uuid, _UUID, "a UUID in lower case")

    def reach(self, kernel: Kernel) -> Reach:
        """See Action; guests may have other mediated devices of the function."""
        return Reach(self.function, (self.function,))

    def run(self, kernel: Kernel) -> None:
        path = places.function(kernel, self.function)
        kernel.write(f"{path}/mdev_supported_types/{self.mdev_type}/create", self.uuid)


@dataclass(frozen=True)
class RemoveMdev(Action[None]):
    """Remove a mediated device of a PCI function.

    The kernel asks its user to give it back, and waits: the guard refuses one that is in use.
    """

    uuid: str

    def check(self) -> None:
        fields.text("uuid", self.uuid, _UUID, "a UUID in lower case")

    def reach(self, kernel: Kernel) -> Reach:
        """See Action; guests may have other mediated devices of the function."""
        path = places.mediated_device(kernel, self.uuid)
        functions = addresses_in_path(path)
        if not functions:
            raise exception.HostError(action=str(self), reason=f"{path} is of no PCI function")
        return Reach(functions[-1], mediated=(path,))

    def run(self, kernel: Kernel) -> None:
        kernel.write(f"{places.mediated_device(kernel, self.uuid)}/remove", "1")


@dataclass(frozen=True)
class SetVgpuType(Action[None]):
    """Set the vGPU type of a virtual function of an NVIDIA card; 0 destroys the vGPU."""

    function: PciAddress
    vgpu_type: int

    def check(self) -> None:
        fields.number("vgpu_type", self.vgpu_type, 0, 2**32 - 1)

    def run(self, kernel: Kernel) -> None:
        path = places.function(kernel, self.function)
        kernel.write(f"{path}/nvidia/current_vgpu_type", str(self.vgpu_type))


@dataclass(frozen=True)
class SetQatState(Action[None]):
    """Start (``up``) or stop (``down``) a QAT device."""

    function: PciAddress
    state: str

    def check(self) -> None:
        fields.choice("state", self.state, _QAT_STATES)

    def run(self, kernel: Kernel) -> None:
        kernel.write(f"{places.function(kernel, self.function)}/qat/state", self.state)


@dataclass(frozen=True)
class SetQatServices(Action[None]):
    """Set the services of a QAT device that is ``down``; the kernel checks their combination."""

    function: PciAddress
    services: tuple[str, ...]

    def check(self) -> None:
        if not isinstance(self.services, tuple) or not 1 <= len(self.services) <= 3:
            raise fields.invalid("services", self.services, "one to three services")
        for service in self.services:
            fields.choice("services", service, _QAT_SERVICES)

    def run(self, kernel: Kernel) -> None:
        path = places.function(kernel, self.function)
        kernel.write(f"{path}/qat/cfg_services", ";".join(self.services))


@dataclass(frozen=True)
class SetVf(Action[None]):
    """Change settings of one virtual function of a network card; None leaves a setting as it is.

    ``function`` is the physical function and ``interface`` one of its interfaces. ``vlan`` 0 is
    none. ``min_rate`` and ``max_rate`` are in Mbit/s, 0 for no limit, and are set together. With
    ``auto_link`` the link of the function follows that of the port.
    """

    context = Context.NETWORK

    function: PciAddress
    interface: str
    vf: int
    mac: str | None = None
    vlan: int | None = None
    trust: bool | None = None
    spoof_check: bool | None = None
    min_rate: int | None = None
    max_rate: int | None = None
    auto_link: bool | None = None

    def check(self) -> None:
        fields.text("interface", self.interface, _INTERFACE, "the name of an interface")
        fields.number("vf", self.vf, 0, 65535)
        if self.mac is not None:
            fields.text("mac", self.mac, _MAC, "a MAC address in lower case")
        if self.vlan is not None:
            fields.number("vlan", self.vlan, 0, 4094)
        fields.flag("trust", self.trust)
        fields.flag("spoof_check", self.spoof_check)
        if self.auto_link is not None and self.auto_link is not True:
            raise fields.invalid("auto_link", self.auto_link, "true or nothing")
        if (self.min_rate is None) is not (self.max_rate is None):
            raise fields.invalid("max_rate", self.max_rate, "set together with min_rate")
        for name, rate in (("min_rate", self.min_rate), ("max_rate", self.max_rate)):
            if rate is not None:
                fields.number(name, rate, 0, 2**32 - 1)

    def reach(self, kernel: Kernel) -> Reach:
        """See Action; the host may use the port itself, and others its other functions."""
        function = places.virtual_functions(kernel, self.function).get(self.vf)
        if function is None:
            reason = f"it has no virtual function {self.vf}"
            raise exception.HostError(action=str(self), reason=reason, errno=errno.ENODEV)
        return Reach(function, (function,))

    def run(self, kernel: Kernel) -> None:
        # The interface is below the function, so it is that function's, and in this namespace.
        path = f"{places.function(kernel, self.function)}/net/{self.interface}/ifindex"
        index = kernel.read(path).strip()
        if not index.isdecimal():
            reason = f"its index {index!r} is not a number"
            raise exception.HostError(action=f"reading {path}", reason=reason)
        rates = None
        if self.min_rate is not None and self.max_rate is not None:
            rates = self.min_rate, self.max_rate
        settings = VfSettings(
            self.vf,
            mac=self.mac,
            vlan=self.vlan,
            trust=self.trust,
            spoof_check=self.spoof_check,
            rate=rates,
            auto_link=self.auto_link,
        )
        kernel.set_vf(self.interface, int(index), settings)


@dataclass(frozen=True)
class SetMigMode(Action[None]):
    """Turn the MIG mode of an NVIDIA card on or off; some cards need a reset afterwards."""

    context = Context.VENDOR

    function: PciAddress
    enabled: bool

    def check(self) -> None:
        if not isinstance(self.enabled, bool):
            raise fields.invalid("enabled", self.enabled, "true or false")

    def run(self, kernel: Kernel) -> None:
        _nvidia_smi(kernel, "-i", str(self.function), "-mig", str(int(self.enabled)))


@dataclass(frozen=True)
class SetMigLayout(Action[None]):
    """Destroy all instances of an NVIDIA card in MIG mode, and create one per profile id.

    Each GPU instance gets its default compute instance. Without profiles the card is empty.
    """

    context = Context.VENDOR

    function: PciAddress
    profiles: tuple[int, ...]

    def check(self) -> None:
        if not isinstance(self.profiles, tuple) or len(self.profiles) > 8:
            raise fields.invalid("profiles", self.profiles, "up to eight profile ids")
        for profile in self.profiles:
            fields.number("profiles", profile, 0, 255)

    def run(self, kernel: Kernel) -> None:
        card = ("mig", "-i", str(self.function))
        for destroy in ("-dci", "-dgi"):
            _nvidia_smi(kernel, *card, destroy, allowed=_NVIDIA_NOT_FOUND)
        if self.profiles:
            _nvidia_smi(kernel, *card, "-cgi", ",".join(map(str, self.profiles)), "-C")


@dataclass(frozen=True)
class ProgramIntelFpga(Action[None]):
    """Load an image (GBS) into the reconfigurable region of an Intel FPGA card."""

    context = Context.VENDOR
    detaches = True

    function: PciAddress
    image: str

    def check(self) -> None:
        fields.text("image", self.image, _IMAGE, "the absolute path of an image")

    def reach(self, kernel: Kernel) -> Reach:
        """See Action; an image changes the whole card."""
        return whole(kernel, self.function, places.on_card(kernel, self.function))

    def run(self, kernel: Kernel) -> None:
        places.function(kernel, self.function)
        words = [_FPGACONF]
        if self.function.domain:
            words += ["--segment", f"0x{self.function.domain:04x}"]
        words += [
            "--bus",
            f"0x{self.function.bus:02x}",
            "--device",
            f"0x{self.function.device:02x}",
        ]
        words += ["--function", f"0x{self.function.function:x}"]
        with kernel.copied(self.image, b"XeonFPGA", "image.gbs") as image:
            _run_fpga_tool(kernel, *words, image)


@dataclass(frozen=True)
class ProgramXilinxFpga(Action[None]):
    """Load an image (xclbin) into an AMD (Xilinx) card; ``function`` is the one for management.

    ``kind`` is ``user`` or ``base``; see XilinxImage. A base image works after a cold boot.
    """

    context = Context.VENDOR
    detaches = True

    function: PciAddress
    image: str
    kind: str

    def check(self) -> None:
        fields.text("image", self.image, _IMAGE, "the absolute path of an image")
        fields.choice("kind", self.kind, frozenset(XilinxImage))

    def reach(self, kernel: Kernel) -> Reach:
        """See Action; an image changes the whole card."""
        return whole(kernel, self.function, places.on_card(kernel, self.function))

    def run(self, kernel: Kernel) -> None:
        places.function(kernel, self.function)
        # The tool expects these ends of names (SubCmdProgram.cpp of XRT).
        name, *load = {
            XilinxImage.USER: ("image.xclbin", "--user"),
            XilinxImage.BASE: ("image.xsabin", "--base", "--image"),
        }[XilinxImage(self.kind)]
        words = _XBMGMT, "program", "--device", str(self.function), *load
        with kernel.copied(self.image, b"xclbin2\0", name) as image:
            _run_fpga_tool(kernel, *words, image)


@dataclass(frozen=True)
class ReadOpenFiles(Action[OpenFiles]):
    """Find out which processes have which device files open.

    The process ``number`` of ``namespace``, if they are given, and those that it has started do not
    count; see ``ProcessId``.
    """

    context = Context.OBSERVE
    changes = False

    namespace: str | None = None
    number: str | None = None

    def check(self) -> None:
        if self.namespace is not None:
            fields.text("namespace", self.namespace, _NAMESPACE, "a namespace of processes")
        if self.number is not None:
            fields.text("number", self.number, _PROCESS, "the number of a process")

    def run(self, kernel: Kernel) -> OpenFiles:
        return find_open_files(
            "cyborg-privileged",
            ProcessFiles(kernel.names, kernel.links, kernel.readlink, kernel.read, kernel.device),
            whole=kernel.has_all_processes(),
            own=ProcessId(self.namespace or "", self.number or ""),
        )

    def answer(self, value: Any) -> OpenFiles:
        return OpenFiles(*value)


@dataclass(frozen=True)
class ReadClaim(Action[bool]):
    """Find out whether a block device is claimed exclusively, for example by ZFS or by a guest.

    The action opens the device exclusively for a moment. A mount at this moment fails with EBUSY.
    """

    context = Context.OBSERVE
    changes = False

    disk: str

    def check(self) -> None:
        fields.text("disk", self.disk, _DISK, "the name of a block device")

    def run(self, kernel: Kernel) -> bool:
        return kernel.claimed(places.disk(kernel, self.disk))


@dataclass(frozen=True)
class ReadVpd(Action[str]):
    """Read the begin of the Vital Product Data of a PCI function, in hexadecimal digits.

    Only root may read the file, because some cards answer slowly.
    """

    context = Context.OBSERVE
    changes = False

    function: PciAddress

    def run(self, kernel: Kernel) -> str:
        path = f"{places.function(kernel, self.function)}/vpd"
        return kernel.read_start(path, _VPD_LIMIT).hex()


@dataclass(frozen=True)
class ReadDeviceErrors(Action[list[DeviceError]]):
    """Read the errors of devices in the log of the kernel, from the record ``begin`` on.

    Of more than 1,000 errors the last ones are returned.
    """

    context = Context.OBSERVE
    changes = False

    begin: int = 0

    def check(self) -> None:
        fields.number("begin", self.begin, 0, 2**63 - 1)

    def run(self, kernel: Kernel) -> list[DeviceError]:
        return [error for error in kernel.device_errors() if error.sequence >= self.begin]

    def answer(self, value: Any) -> list[DeviceError]:
        return [DeviceError(*error) for error in value]


@dataclass(frozen=True)
class ReadQatHeartbeat(Action[str]):
    """Ask the firmware of a QAT device whether it runs: ``0`` it does, ``-1`` it does not.

    Source: Documentation/ABI/testing/debugfs-driver-qat of Linux 6.12.
    """

    context = Context.OBSERVE
    changes = False

    function: PciAddress

    def run(self, kernel: Kernel) -> str:
        end = f"_{self.function}"
        for name in kernel.names(_DEBUG):
            if name.startswith("qat_") and name.endswith(end):
                return kernel.read(f"{_DEBUG}/{name}/heartbeat/status").strip()
        raise exception.HostError(
            action=f"reading the heartbeat of {self.function}",
            reason=f"{_DEBUG} has no directory of a QAT device with this address",
        )


#: All actions by name: what the privileged process can be asked for.
ACTIONS: Final[Mapping[str, type[Action[Any]]]] = {
    action.__name__: action
    for action in (
        *(SetVfs, SetDriverOverride, Bind, Unbind, Probe, Reset, CreateMdev, RemoveMdev),
        *(SetVgpuType, SetQatState, SetQatServices, SetVf, SetMigMode, SetMigLayout),
        *(ProgramIntelFpga, ProgramXilinxFpga, ReadOpenFiles, ReadClaim, ReadVpd, ReadQatHeartbeat),
        ReadDeviceErrors,
        *disk_actions.ACTIONS,
    )
}


def load(context: Context, name: object, values: object) -> Action[Any]:
    """Return an action from plain values that another process sent.

    Raises exception.Invalid for an action that this context does not have, and for its fields.
    """
    kind = ACTIONS.get(name) if isinstance(name, str) else None
    if kind is None or kind.context is not context:
        raise fields.invalid("action", name, f"an action of the context {context}")
    names = {field.name for field in dataclasses.fields(kind)}
    if not isinstance(values, Mapping) or set(values) != names:
        raise fields.invalid("values", values, f"the fields {', '.join(sorted(names))}")
    arguments = dict(values)
    if "function" in arguments:
        arguments["function"] = fields.address(arguments["function"])
    return kind(**arguments)


def _nvidia_smi(kernel: Kernel, *arguments: str, allowed: int = 0) -> None:
    result = kernel.run([_NVIDIA_SMI, *arguments], timeout=_NVIDIA_TIMEOUT)
    if result.status not in {0, allowed}:
        action = f"running {' '.join((_NVIDIA_SMI, *arguments))}"
        raise exception.HostError(action=action, reason=summary(result))


def _run_fpga_tool(kernel: Kernel, *argv: str) -> None:
    result = kernel.run(argv, timeout=_FPGA_TIMEOUT)
    if result.status != 0:
        raise exception.HostError(action=f"running {argv[0]}", reason=summary(result))
