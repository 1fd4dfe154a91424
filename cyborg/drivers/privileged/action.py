# SPDX-License-Identifier: Apache-2.0
"""What an action of the privileged process is; ``actions`` and ``disk_actions`` define them."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Generic, TypeVar

from cyborg.drivers.privileged import fields, places
from cyborg.drivers.privileged.kernel import Kernel
from cyborg.model.pci import PciAddress

T = TypeVar("T")


class Context(StrEnum):
    """A kind of action, which has a process and capabilities of its own."""

    SYSFS = "sysfs"
    NETWORK = "network"
    NVME = "nvme"
    VENDOR = "vendor"
    OBSERVE = "observe"


@dataclass(frozen=True)
class Reach:
    """The PCI functions and mediated devices that an action works on.

    ``named`` must be on root's list of functions. Nothing may use any of ``disturbed``, and no
    process may hold one of ``mediated``, which are directories below ``/sys/devices``.
    """

    named: PciAddress
    disturbed: tuple[PciAddress, ...] = ()
    mediated: tuple[str, ...] = ()


@dataclass(frozen=True)
class Action(Generic[T]):
    """One action. The constructor raises exception.Invalid for a field that is not allowed."""

    context: ClassVar[Context] = Context.SYSFS
    #: Whether the action changes the host; an action that only reads is not journalled.
    changes: ClassVar[bool] = True
    #: Whether the action takes the functions from their host drivers, or resets them below the
    #: drivers: no process may have a device file of them open.
    detaches: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the types that the fields of several actions share, then ``check`` the others."""
        for field in dataclasses.fields(self):
            if field.name == "function" and not isinstance(self.__dict__["function"], PciAddress):
                raise fields.invalid("function", self.__dict__["function"], "a PCI address")
        self.check()

    def check(self) -> None:
        """Check the fields; raises exception.Invalid."""

    def reach(self, kernel: Kernel) -> Reach:
        """Return what an action that changes the host works on.

        By default this is the function with its virtual functions, and the mediated devices of all
        of them. Raises exception.HostError if they cannot be read.
        """
        function: PciAddress = self.__dict__["function"]
        return whole(kernel, function, [function])

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


def whole(kernel: Kernel, named: PciAddress, functions: Iterable[PciAddress]) -> Reach:
    """Return the reach of an action on functions and on everything that is a part of them."""
    disturbed = [
        part
        for function in functions
        for part in (function, *places.virtual_functions(kernel, function).values())
    ]
    return Reach(named, tuple(dict.fromkeys(disturbed)), places.mediated(kernel, disturbed))
