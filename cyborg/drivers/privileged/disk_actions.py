# SPDX-License-Identifier: Apache-2.0
"""The privileged actions on NVMe disks; see ``actions``.

Virtualization management: NVM Express Base Specification 2.0, sections 5.29 and 8.26.
"""

import contextlib
import re
from dataclasses import dataclass
from typing import Any, Final

from cyborg import exception
from cyborg.drivers.privileged import fields, nvme, places
from cyborg.drivers.privileged.action import Action, Context, T
from cyborg.drivers.privileged.kernel import Kernel
from cyborg.model.pci import PciAddress

#: The number of each namespace with the digests of its blocks.
Samples = tuple[tuple[int, tuple[str, ...]], ...]

#: How many blocks of a disk are sampled, and their size in bytes: that of the largest blocks.
_SAMPLES: Final = 256
_SAMPLE: Final = 4096
_CONTROLLER: Final = re.compile(r"nvme[0-9]{1,4}")


@dataclass(frozen=True)
class ControllerAction(Action[T]):
    """An action on an NVMe controller of a PCI function."""

    context = Context.NVME

    function: PciAddress
    controller: str

    def check(self) -> None:
        fields.text("controller", self.controller, _CONTROLLER, "the name of an NVMe controller")


@dataclass(frozen=True)
class FormatNamespace(ControllerAction[None]):
    """Erase one namespace of an NVMe disk by a format that keeps block size and protection.

    A namespace that is in use is refused with EBUSY; the controller would not ask. ``erase`` is
    ``user-data`` or ``crypto``. The action returns when the controller has finished.
    """

    namespace: int
    erase: str

    def check(self) -> None:
        super().check()
        fields.number("namespace", self.namespace, 1, 2**32 - 2)
        fields.choice("erase", self.erase, frozenset(nvme.Erase))

    def run(self, kernel: Kernel) -> None:
        path, node = places.controller(kernel, self.function, self.controller)
        disk = places.namespaces(kernel, path).get(self.namespace)
        if disk is None:
            reason = f"{self.controller} has no namespace {self.namespace}"
            raise exception.HostError(action=str(self), reason=reason)
        identity = kernel.nvme_admin(node, nvme.identify_namespace(self.namespace))
        command = nvme.format_namespace(self.namespace, identity, nvme.Erase(self.erase))
        kernel.nvme_admin(node, command, exclusive=(disk,))


@dataclass(frozen=True)
class Sanitize(ControllerAction[None]):
    """Begin to erase all data of an NVMe disk; ``ReadSanitize`` tells how far it is.

    A disk with a namespace in use is refused with EBUSY. Other controllers of the same NVMe
    subsystem are not checked.
    ``method`` is ``block``, ``overwrite`` or ``crypto``.
    """

    method: str

    def check(self) -> None:
        super().check()
        fields.choice("method", self.method, frozenset(nvme.SanitizeMethod))

    def run(self, kernel: Kernel) -> None:
        path, node = places.controller(kernel, self.function, self.controller)
        disks = tuple(places.namespaces(kernel, path).values())
        command = nvme.sanitize(nvme.SanitizeMethod(self.method))
        kernel.nvme_admin(node, command, exclusive=disks)


@dataclass(frozen=True)
class ReadSanitize(ControllerAction[nvme.SanitizeProgress]):
    """Read the progress of the last sanitize operation."""

    changes = False

    def run(self, kernel: Kernel) -> nvme.SanitizeProgress:
        _, node = places.controller(kernel, self.function, self.controller)
        return nvme.sanitize_progress(kernel.nvme_admin(node, nvme.sanitize_log()))

    def answer(self, value: Any) -> nvme.SanitizeProgress:
        state, fraction = value
        return nvme.SanitizeProgress(nvme.SanitizeState(state), fraction)


@dataclass(frozen=True)
class ReadController(ControllerAction[nvme.ControllerFacts]):
    """Read how the data of an NVMe disk can be erased."""

    changes = False

    def run(self, kernel: Kernel) -> nvme.ControllerFacts:
        path, node = places.controller(kernel, self.function, self.controller)
        facts = nvme.controller_facts(kernel.nvme_admin(node, nvme.identify_controller()))
        if facts.private:
            private = all(
                nvme.is_private(kernel.nvme_admin(node, nvme.identify_namespace(namespace)))
                for namespace in places.namespaces(kernel, path)
            )
            facts = facts._replace(private=private)
        if facts.shared:
            # A controller that cannot list them may have some.
            with contextlib.suppress(exception.HostError):
                controllers = kernel.nvme_admin(node, nvme.identify_controllers())
                facts = facts._replace(shared=nvme.controller_count(controllers) != 1)
        return facts

    def answer(self, value: Any) -> nvme.ControllerFacts:
        formats, crypto, shared, private, methods = value
        sanitizes = tuple(map(nvme.SanitizeMethod, methods))
        return nvme.ControllerFacts(formats, crypto, shared, private, sanitizes)


@dataclass(frozen=True)
class ReadNamespaces(ControllerAction[tuple[int, ...]]):
    """List the namespaces of an NVMe disk, also those that the host does not show."""

    changes = False

    def run(self, kernel: Kernel) -> tuple[int, ...]:
        _, node = places.controller(kernel, self.function, self.controller)
        return nvme.namespace_numbers(kernel.nvme_admin(node, nvme.identify_namespaces()))

    def answer(self, value: Any) -> tuple[int, ...]:
        return tuple(value)


@dataclass(frozen=True)
class ReadControllerHealth(ControllerAction[nvme.ControllerHealth]):
    """Read the health of an NVMe disk from its log."""

    changes = False

    def run(self, kernel: Kernel) -> nvme.ControllerHealth:
        _, node = places.controller(kernel, self.function, self.controller)
        return nvme.controller_health(kernel.nvme_admin(node, nvme.health_log()))

    def answer(self, value: Any) -> nvme.ControllerHealth:
        warnings, *others = value
        return nvme.ControllerHealth(tuple(warnings), *others)


@dataclass(frozen=True)
class SampleNamespaces(ControllerAction[Samples]):
    """Read digests of blocks that are spread over each namespace of an NVMe disk.

    The result has the digests of each namespace by its number: of the same places at each call, and
    an empty text for a block whose bytes are all equal. The content of the disk does not leave the
    privileged process. A disk with a namespace in use is refused with EBUSY.
    """

    changes = False

    def run(self, kernel: Kernel) -> Samples:
        path, _ = places.controller(kernel, self.function, self.controller)
        samples = []
        for number, disk in places.namespaces(kernel, path).items():
            device = places.device(kernel, f"/sys/class/block/{disk.name}")
            # The file has the size in units of 512 bytes, whatever the block size is.
            blocks = places.read_number(kernel, f"{device}/size") * 512 // _SAMPLE
            step = max(1, blocks // _SAMPLES)
            sampled = sorted({*range(0, blocks, step), blocks - 1} - {-1})
            digests = kernel.sample(disk, [block * _SAMPLE for block in sampled], _SAMPLE)
            samples.append((number, tuple(digests)))
        return tuple(samples)

    def answer(self, value: Any) -> Samples:
        return tuple((number, tuple(digests)) for number, digests in value)


@dataclass(frozen=True)
class ReadVirtualControllers(ControllerAction[tuple[nvme.VirtualController, ...]]):
    """List the controllers of the virtual functions of an NVMe disk."""

    changes = False

    def run(self, kernel: Kernel) -> tuple[nvme.VirtualController, ...]:
        _, node = places.controller(kernel, self.function, self.controller)
        return nvme.virtual_controllers(
            kernel.nvme_admin(node, nvme.identify_virtual_controllers())
        )

    def answer(self, value: Any) -> tuple[nvme.VirtualController, ...]:
        return tuple(nvme.VirtualController(*row) for row in value)


@dataclass(frozen=True)
class ReleaseQueues(ControllerAction[bool]):
    """Let a disk release the queues and interrupts that its virtual functions can have.

    Returns whether it has some now, and releases them at its next reset. A disk with a namespace in
    use is refused with EBUSY: it will be reset.
    """

    def run(self, kernel: Kernel) -> bool:
        path, node = places.controller(kernel, self.function, self.controller)
        flexible = nvme.flexible(kernel.nvme_admin(node, nvme.identify_flexible()))
        disks = tuple(places.namespaces(kernel, path).values())
        if flexible.held:
            for resource in nvme.Resource:
                command = nvme.manage(flexible.identifier, nvme.Management.RELEASE, resource)
                kernel.nvme_admin(node, command, exclusive=disks)
        return flexible.held


@dataclass(frozen=True)
class StartVirtualControllers(ControllerAction[None]):
    """Give the controllers of the first ``count`` virtual functions of a disk equal shares.

    Each gets as many queues and interrupts as ``count`` controllers can have, and goes online. One
    that is online is not changed. The disk must have released them, see ``ReleaseQueues``.
    """

    count: int

    def check(self) -> None:
        super().check()
        fields.number("count", self.count, 1, 127)

    def run(self, kernel: Kernel) -> None:
        _, node = places.controller(kernel, self.function, self.controller)
        flexible = nvme.flexible(kernel.nvme_admin(node, nvme.identify_flexible()))
        share = self._share(flexible)
        listed = kernel.nvme_admin(node, nvme.identify_virtual_controllers())
        controllers = {part.vf: part for part in nvme.virtual_controllers(listed)}
        missing = [str(vf) for vf in range(1, self.count + 1) if vf not in controllers]
        if missing:
            reason = f"{self.controller} has no controller for function {', '.join(missing)}"
            raise exception.HostError(action=str(self), reason=reason)
        for vf in range(1, self.count + 1):
            identifier = controllers[vf].identifier
            if controllers[vf].online:
                continue
            for resource, count in (
                (nvme.Resource.QUEUES, share.queues),
                (nvme.Resource.INTERRUPTS, share.interrupts),
            ):
                command = nvme.manage(identifier, nvme.Management.ASSIGN, resource, count)
                kernel.nvme_admin(node, command)
            kernel.nvme_admin(node, nvme.manage(identifier, nvme.Management.ONLINE))

    def _share(self, flexible: nvme.Flexible) -> nvme.Share:
        """Return what each of the controllers gets; a queue is for the commands of the admin."""
        counts = []
        for name, least in (("queues", 2), ("interrupts", 1)):
            total, most, step = (
                getattr(part, name) for part in (flexible.total, flexible.most, flexible.step)
            )
            count = min(total // self.count, most or total) // step * step
            if count < least:
                reason = f"{self.controller} has {total} {name} for {self.count} virtual functions"
                raise exception.HostError(
                    action=str(self), reason=f"{reason}, and each needs {least}; create fewer"
                )
            counts.append(count)
        return nvme.Share(*counts)


#: The actions of this module.
ACTIONS: Final[tuple[type[Action[Any]], ...]] = (
    *(FormatNamespace, Sanitize, ReadSanitize, ReadController, ReadControllerHealth),
    *(ReadNamespaces, SampleNamespaces, ReadVirtualControllers, ReleaseQueues),
    StartVirtualControllers,
)
