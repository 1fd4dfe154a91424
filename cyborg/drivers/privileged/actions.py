# SPDX-License-Identifier: Apache-2.0
"""The closed set of actions that need privileges; ``Host.privileged`` runs them.

An action is a value: a frozen dataclass whose constructor checks every field, and a method that
uses a ``Kernel``. So the agent, the privileged process and the simulated host have one definition.
The privileged process constructs the action again from plain values, and with that checks them
again: it does not trust the agent.

No field is a path, a text to write or a command. Paths come from the names of ``/sys/bus/pci``,
``/sys/bus/mdev``, ``/sys/class/mdev_bus`` and ``/sys/class/block``: the target of such a link must
be below ``/sys/devices`` and end with the requested name. ``kernel`` says why no link can then lead
elsewhere.

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
=========== ==================== ================================================================
"""

import dataclasses
import errno
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from cyborg import exception
from cyborg.drivers.host import OpenFiles, is_missing
from cyborg.drivers.local_command import summary
from cyborg.drivers.privileged import nvme
from cyborg.drivers.privileged.kernel import Kernel, Node
from cyborg.drivers.privileged.netlink import VfSettings
from cyborg.model.pci import PciAddress

T = TypeVar("T")

_DEVICES: Final = "/sys/devices"
_PCI: Final = "/sys/bus/pci"
_NVIDIA_SMI: Final = "/usr/bin/nvidia-smi"
#: nvidia-smi's status for "an object was not found": there is nothing to destroy.
_NVIDIA_NOT_FOUND: Final = 6
_NVIDIA_TIMEOUT: Final = 120.0
#: Error numbers for a process that has ended, which holds nothing.
_ENDED: Final = frozenset({errno.ENOENT, errno.ESRCH})

_NAME: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,63}")
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DISK: Final = re.compile(r"[a-z][0-9a-z_-]{0,31}")
_INTERFACE: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,14}")
_CONTROLLER: Final = re.compile(r"nvme[0-9]{1,4}")
_NAMESPACE: Final = re.compile(r"(nvme[0-9]+)(?:c[0-9]+)?(n[0-9]+)")
_MAC: Final = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}")
#: The names of reset methods in drivers/pci/pci.c.
_RESET_METHODS: Final = frozenset(
    {"acpi", "af_flr", "bus", "cxl_bus", "device_specific", "flr", "pm"}
)
_QAT_STATES: Final = frozenset({"up", "down"})
_QAT_SERVICES: Final = frozenset({"asym", "dc", "dcc", "decomp", "sym"})


class Context(StrEnum):
    """A kind of action, which has a process and capabilities of its own."""

    SYSFS = "sysfs"
    NETWORK = "network"
    NVME = "nvme"
    VENDOR = "vendor"
    OBSERVE = "observe"


@dataclass(frozen=True)
class Action(Generic[T]):
    """One action. The constructor raises exception.Invalid for a field that is not allowed."""

    context: ClassVar[Context] = Context.SYSFS
    #: Whether the action changes the host; an action that only reads is not journalled.
    changes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the types that the fields of several actions share, then ``check`` the others."""
        for field in dataclasses.fields(self):
            if field.name == "function" and not isinstance(self.__dict__["function"], PciAddress):
                raise _invalid("function", self.__dict__["function"], "a PCI address")
        self.check()

    def check(self) -> None:
        """Check the fields; raises exception.Invalid."""

    def run(self, kernel: Kernel) -> T:
        """Carry the action out; raises exception.HostError with the ``errno`` of the kernel."""
        raise NotImplementedError

    def answer(self, value: Any) -> T:
        """Return the result, which lost its class on the way between two processes."""
        result: T = value
        return result

    def __str__(self) -> str:
        """Return the action as one line for the journal."""
        values = (f"{name}={value}" for name, value in self.plain().items() if value is not None)
        return f"{type(self).__name__}({', '.join(values)})"

    def plain(self) -> dict[str, Any]:
        """Return the fields as plain values, for ``load``."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            name: str(value) if isinstance(value, PciAddress | StrEnum) else value
            for name, value in values.items()
        }


class Privileged(Protocol):
    """What can run actions: the agent's client, and the simulated host."""

    def run(self, action: Action[T]) -> T:
        """Carry the action out and return its result.

        Raises exception.HostError when the host refuses it, with ``errno`` if the kernel did.
        """
        ...


class NoPrivileges:
    """The actions of a host without a privileged process: all fail."""

    def run(self, action: Action[T]) -> T:
        """Raise exception.HostError."""
        raise exception.HostError(
            action=str(action), reason="this program has no privileged process"
        )


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
        _number("count", self.count, 0, 65535)
        _flag("autoprobe", self.autoprobe)

    def run(self, kernel: Kernel) -> None:
        path = _function(kernel, self.function)
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
            _text("driver", self.driver, _NAME, "the name of a driver, or empty")

    def run(self, kernel: Kernel) -> None:
        # A newline alone removes the override (driver_set_override).
        kernel.write(f"{_function(kernel, self.function)}/driver_override", f"{self.driver}\n")


@dataclass(frozen=True)
class Bind(Action[None]):
    """Bind a driver to the function."""

    function: PciAddress
    driver: str

    def check(self) -> None:
        _text("driver", self.driver, _NAME, "the name of a driver")

    def run(self, kernel: Kernel) -> None:
        _function(kernel, self.function)
        kernel.write(f"{_PCI}/drivers/{self.driver}/bind", str(self.function))


@dataclass(frozen=True)
class Unbind(Action[None]):
    """Unbind the function from its driver; without a driver the action does nothing."""

    function: PciAddress

    def run(self, kernel: Kernel) -> None:
        try:
            target = kernel.readlink(f"{_function(kernel, self.function)}/driver")
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
        _function(kernel, self.function)
        kernel.write(f"{_PCI}/drivers_probe", str(self.function))


@dataclass(frozen=True)
class Reset(Action[None]):
    """Reset the function, with the given method or with the first one that the kernel has.

    After a reset with a method, the function has its former methods again.
    """

    function: PciAddress
    method: str | None = None

    def check(self) -> None:
        if self.method is not None:
            _choice("method", self.method, _RESET_METHODS)

    def run(self, kernel: Kernel) -> None:
        path = _function(kernel, self.function)
        if self.method is None:
            kernel.write(f"{path}/reset", "1")
            return
        former = kernel.read(f"{path}/reset_method")
        kernel.write(f"{path}/reset_method", self.method)
        try:
            kernel.write(f"{path}/reset", "1")
        finally:
            kernel.write(f"{path}/reset_method", former)


@dataclass(frozen=True)
class CreateMdev(Action[None]):
    """Create a mediated device.

    ``parent`` is a PCI address, or the name of another parent in ``/sys/class/mdev_bus``.
    """

    parent: str
    mdev_type: str
    uuid: str

    def check(self) -> None:
        if _address(self.parent) is None:
            _text("parent", self.parent, _NAME, "a PCI address or the name of a device")
        _text("mdev_type", self.mdev_type, _NAME, "the name of a type")
        _text("uuid", self.uuid, _UUID, "a UUID in lower case")

    def run(self, kernel: Kernel) -> None:
        address = _address(self.parent)
        if address is not None:
            path = _function(kernel, address)
        else:
            path = _device(kernel, f"/sys/class/mdev_bus/{self.parent}")
        kernel.write(f"{path}/mdev_supported_types/{self.mdev_type}/create", self.uuid)


@dataclass(frozen=True)
class RemoveMdev(Action[None]):
    """Remove a mediated device; the kernel refuses one that a guest uses with EBUSY."""

    uuid: str

    def check(self) -> None:
        _text("uuid", self.uuid, _UUID, "a UUID in lower case")

    def run(self, kernel: Kernel) -> None:
        path = _device(kernel, f"/sys/bus/mdev/devices/{self.uuid}")
        kernel.write(f"{path}/remove", "1")


@dataclass(frozen=True)
class SetVgpuType(Action[None]):
    """Set the vGPU type of a virtual function of an NVIDIA card; 0 destroys the vGPU."""

    function: PciAddress
    vgpu_type: int

    def check(self) -> None:
        _number("vgpu_type", self.vgpu_type, 0, 2**32 - 1)

    def run(self, kernel: Kernel) -> None:
        path = _function(kernel, self.function)
        kernel.write(f"{path}/nvidia/current_vgpu_type", str(self.vgpu_type))


@dataclass(frozen=True)
class SetQatState(Action[None]):
    """Start (``up``) or stop (``down``) a QAT device."""

    function: PciAddress
    state: str

    def check(self) -> None:
        _choice("state", self.state, _QAT_STATES)

    def run(self, kernel: Kernel) -> None:
        kernel.write(f"{_function(kernel, self.function)}/qat/state", self.state)


@dataclass(frozen=True)
class SetQatServices(Action[None]):
    """Set the services of a QAT device that is ``down``; the kernel checks their combination."""

    function: PciAddress
    services: tuple[str, ...]

    def check(self) -> None:
        if not isinstance(self.services, tuple) or not 1 <= len(self.services) <= 3:
            raise _invalid("services", self.services, "one to three services")
        for service in self.services:
            _choice("services", service, _QAT_SERVICES)

    def run(self, kernel: Kernel) -> None:
        path = _function(kernel, self.function)
        kernel.write(f"{path}/qat/cfg_services", ";".join(self.services))


@dataclass(frozen=True)
class SetVf(Action[None]):
    """Change settings of one virtual function of a network card; None leaves a setting as it is.

    ``function`` is the physical function and ``interface`` one of its interfaces. ``vlan`` 0 is
    none. ``min_rate`` and ``max_rate`` are in Mbit/s, 0 for no limit, and are set together.
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

    def check(self) -> None:
        _text("interface", self.interface, _INTERFACE, "the name of an interface")
        _number("vf", self.vf, 0, 65535)
        if self.mac is not None:
            _text("mac", self.mac, _MAC, "a MAC address in lower case")
        if self.vlan is not None:
            _number("vlan", self.vlan, 0, 4094)
        _flag("trust", self.trust)
        _flag("spoof_check", self.spoof_check)
        if (self.min_rate is None) is not (self.max_rate is None):
            raise _invalid("max_rate", self.max_rate, "set together with min_rate")
        for name, rate in (("min_rate", self.min_rate), ("max_rate", self.max_rate)):
            if rate is not None:
                _number(name, rate, 0, 2**32 - 1)

    def run(self, kernel: Kernel) -> None:
        # The interface is below the function, so it is that function's, and in this namespace.
        path = f"{_function(kernel, self.function)}/net/{self.interface}/ifindex"
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
        )
        kernel.set_vf(self.interface, int(index), settings)


@dataclass(frozen=True)
class FormatNamespace(Action[None]):
    """Erase one namespace of an NVMe disk by a format that keeps block size and protection.

    A namespace that is in use is refused with EBUSY; the controller would not ask. ``erase`` is
    ``user-data`` or ``crypto``. The action returns when the controller has finished.
    """

    context = Context.NVME

    function: PciAddress
    controller: str
    namespace: int
    erase: str

    def check(self) -> None:
        _text("controller", self.controller, _CONTROLLER, "the name of an NVMe controller")
        _number("namespace", self.namespace, 1, 2**32 - 2)
        _choice("erase", self.erase, frozenset(nvme.Erase))

    def run(self, kernel: Kernel) -> None:
        path, node = _controller(kernel, self.function, self.controller)
        disk = _namespaces(kernel, path).get(self.namespace)
        if disk is None:
            reason = f"{self.controller} has no namespace {self.namespace}"
            raise exception.HostError(action=str(self), reason=reason)
        identity = kernel.nvme_admin(node, nvme.identify_namespace(self.namespace))
        command = nvme.format_namespace(self.namespace, identity, nvme.Erase(self.erase))
        kernel.nvme_admin(node, command, exclusive=(disk,))


@dataclass(frozen=True)
class Sanitize(Action[None]):
    """Begin to erase all data of an NVMe disk; ``ReadSanitize`` tells how far it is.

    A disk with a namespace in use is refused with EBUSY. Other controllers of the same NVMe
    subsystem are not checked.
    ``method`` is ``block``, ``overwrite`` or ``crypto``.
    """

    context = Context.NVME

    function: PciAddress
    controller: str
    method: str

    def check(self) -> None:
        _text("controller", self.controller, _CONTROLLER, "the name of an NVMe controller")
        _choice("method", self.method, frozenset(nvme.SanitizeMethod))

    def run(self, kernel: Kernel) -> None:
        path, node = _controller(kernel, self.function, self.controller)
        disks = tuple(_namespaces(kernel, path).values())
        command = nvme.sanitize(nvme.SanitizeMethod(self.method))
        kernel.nvme_admin(node, command, exclusive=disks)


@dataclass(frozen=True)
class ReadSanitize(Action[nvme.SanitizeProgress]):
    """Read the progress of the last sanitize operation."""

    context = Context.NVME
    changes = False

    function: PciAddress
    controller: str

    def check(self) -> None:
        _text("controller", self.controller, _CONTROLLER, "the name of an NVMe controller")

    def run(self, kernel: Kernel) -> nvme.SanitizeProgress:
        _, node = _controller(kernel, self.function, self.controller)
        return nvme.sanitize_progress(kernel.nvme_admin(node, nvme.sanitize_log()))

    def answer(self, value: Any) -> nvme.SanitizeProgress:
        state, fraction = value
        return nvme.SanitizeProgress(nvme.SanitizeState(state), fraction)


@dataclass(frozen=True)
class SetMigMode(Action[None]):
    """Turn the MIG mode of an NVIDIA card on or off; some cards need a reset afterwards."""

    context = Context.VENDOR

    function: PciAddress
    enabled: bool

    def check(self) -> None:
        if not isinstance(self.enabled, bool):
            raise _invalid("enabled", self.enabled, "true or false")

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
            raise _invalid("profiles", self.profiles, "up to eight profile ids")
        for profile in self.profiles:
            _number("profiles", profile, 0, 255)

    def run(self, kernel: Kernel) -> None:
        card = ("mig", "-i", str(self.function))
        for destroy in ("-dci", "-dgi"):
            _nvidia_smi(kernel, *card, destroy, allowed=_NVIDIA_NOT_FOUND)
        if self.profiles:
            _nvidia_smi(kernel, *card, "-cgi", ",".join(map(str, self.profiles)), "-C")


@dataclass(frozen=True)
class ReadOpenFiles(Action[OpenFiles]):
    """Find out which processes have which device files open."""

    context = Context.OBSERVE
    changes = False

    def run(self, kernel: Kernel) -> OpenFiles:
        holders: dict[str, str] = {}
        reason = None
        if not kernel.has_all_processes():
            reason = "cyborg-privileged sees only the processes of its own container"
        for process in kernel.names("/proc"):
            if not process.isdecimal():
                continue
            try:
                targets = kernel.links(f"/proc/{process}/fd").values()
            except exception.HostError as error:
                if error.fields.get("errno") not in _ENDED:
                    reason = str(error)
                continue
            for target in targets:
                if target.startswith("/dev/") and target not in holders:
                    holders[target] = _command(kernel, process)
        return OpenFiles(holders, reason)

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
        _text("disk", self.disk, _DISK, "the name of a block device")

    def run(self, kernel: Kernel) -> bool:
        return kernel.claimed(_disk(kernel, self.disk))


#: All actions by name: what the privileged process can be asked for.
ACTIONS: Final[Mapping[str, type[Action[Any]]]] = {
    action.__name__: action
    for action in (
        *(SetVfs, SetDriverOverride, Bind, Unbind, Probe, Reset, CreateMdev, RemoveMdev),
        *(SetVgpuType, SetQatState, SetQatServices, SetVf, FormatNamespace, Sanitize),
        *(ReadSanitize, SetMigMode, SetMigLayout, ReadOpenFiles, ReadClaim),
    )
}


def load(context: Context, name: object, values: object) -> Action[Any]:
    """Return an action from plain values that another process sent.

    Raises exception.Invalid for an action that this context does not have, and for its fields.
    """
    kind = ACTIONS.get(name) if isinstance(name, str) else None
    if kind is None or kind.context is not context:
        raise _invalid("action", name, f"an action of the context {context}")
    names = {field.name for field in dataclasses.fields(kind)}
    if not isinstance(values, Mapping) or set(values) != names:
        raise _invalid("values", values, f"the fields {', '.join(sorted(names))}")
    fields = dict(values)
    if "function" in fields:
        fields["function"] = _address(fields["function"])
    return kind(**fields)


def _device(kernel: Kernel, link: str) -> str:
    """Return the directory of a device below /sys/devices that a link in /sys names."""
    directory, _, name = link.rpartition("/")
    path = posixpath.normpath(posixpath.join(directory, kernel.readlink(link)))
    if not path.startswith(f"{_DEVICES}/") or not path.endswith(f"/{name}"):
        reason = f"it leads to {path}, which is not a device with this name below {_DEVICES}"
        raise exception.HostError(action=f"following {link}", reason=reason)
    return path


def _function(kernel: Kernel, address: PciAddress) -> str:
    return _device(kernel, f"{_PCI}/devices/{address}")


def _disk(kernel: Kernel, name: str) -> Node:
    path = _device(kernel, f"/sys/class/block/{name}")
    return Node(name, kernel.read(f"{path}/dev").strip())


def _controller(kernel: Kernel, function: PciAddress, name: str) -> tuple[str, Node]:
    """Return the directory and the node of an NVMe controller of this PCI function."""
    path = f"{_function(kernel, function)}/nvme/{name}"
    return path, Node(name, kernel.read(f"{path}/dev").strip())


def _namespaces(kernel: Kernel, path: str) -> dict[int, Node]:
    """Return the disks of an NVMe controller by the number of the namespace.

    With multipath, the directory has ``nvme0c1n2`` for the disk ``nvme0n2``.
    """
    disks = {}
    for name in kernel.names(path):
        match = _NAMESPACE.fullmatch(name)
        if match is not None:
            number = kernel.read(f"{path}/{name}/nsid").strip()
            disks[int(number)] = _disk(kernel, f"{match[1]}{match[2]}")
    return disks


def _command(kernel: Kernel, process: str) -> str:
    try:
        return f"{kernel.read(f'/proc/{process}/comm').strip()} (process {process})"
    except exception.HostError:
        return f"process {process}"


def _nvidia_smi(kernel: Kernel, *arguments: str, allowed: int = 0) -> None:
    result = kernel.run([_NVIDIA_SMI, *arguments], timeout=_NVIDIA_TIMEOUT)
    if result.status not in {0, allowed}:
        action = f"running {' '.join((_NVIDIA_SMI, *arguments))}"
        raise exception.HostError(action=action, reason=summary(result))


def _address(value: object) -> PciAddress | None:
    try:
        return PciAddress.parse(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _text(field: str, value: object, pattern: re.Pattern[str], meaning: str) -> None:
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise _invalid(field, value, meaning)


def _number(field: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _invalid(field, value, f"a number from {least} to {most}")


def _flag(field: str, value: object) -> None:
    if value is not None and not isinstance(value, bool):
        raise _invalid(field, value, "true, false or nothing")


def _choice(field: str, value: object, choices: frozenset[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise _invalid(field, value, f"one of {', '.join(sorted(choices))}")


def _invalid(field: str, value: object, meaning: str) -> exception.Invalid:
    return exception.Invalid(field=field, reason=f"{value!r:.200} is not {meaning}")
