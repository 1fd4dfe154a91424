# SPDX-License-Identifier: Apache-2.0
"""What a driver is: the one class that every driver derives from, with honest defaults.

A driver reaches the machine through its ``Host`` only, returns frozen facts and keeps no truth of
its own: what it must know to go on after a restart is what the machine shows. Only ``discover``
is mandatory. Every verb that changes something is idempotent: the agent may ask again with the
same operation id at any time, and a driver that finds its work done answers as if it had just
done it.
"""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, NoReturn

from oslo_config import cfg

from cyborg import exception
from cyborg.drivers.host import Host
from cyborg.model.device import Backend, Device, Hardware
from cyborg.model.work import HandleTask, ProgramTask, Unit


@dataclass(frozen=True)
class DriverContext:
    """What the agent knows about its host and no driver can read from the machine.

    ``claims`` maps canonical PCI addresses to a sentence why others own them (Nova's providers
    in Placement). ``managed_deployables`` holds the names of the
    deployables that the conductor keeps for this host, lost ones included: what they offer may be in
    a guest because this service attached it.
    """

    claims: Mapping[str, str] = field(default_factory=dict)
    managed_deployables: frozenset[str] = frozenset()


#: A host about which the agent knows nothing yet.
EMPTY_CONTEXT = DriverContext()


@dataclass(frozen=True)
class CleanStep:
    """One step that makes a device fit for its next user; ``timeout`` is in seconds.

    Steps of a higher ``priority`` come first; one that is not ``interruptible`` must not be cut
    off, or the device may be damaged.
    """

    name: str
    priority: int
    timeout: float
    interruptible: bool = True


@dataclass(frozen=True)
class Health:
    """Whether a device works; ``reason`` is the evidence when it does not, else None."""

    healthy: bool
    reason: str | None = None


class Driver(abc.ABC):
    """One kind of accelerator on one host.

    ``name`` is the entry point's name in ``cyborg.accelerator.driver``, ``device_type`` a word for
    the hardware that it supports (None: of several kinds). A constructor reads the
    options it needs once, touches no hardware, and raises exception.ConfigError with one
    sentence when they cannot be used. Whatever else a driver cannot do it says with
    exception.HostError, exception.DriverFailed or exception.DriverCannot.

    ``operator_created`` maps keys to the devices that operators created on those of its backends
    that allow it (``Backend.creates``); the agent sets it. ``discover`` and ``hardware`` show them, too,
    as they are given but for what only the driver knows of them; one that the host cannot have now
    is like any other that is not offered.
    """

    name: ClassVar[str]
    device_type: str | None = None
    can_program: bool = False
    #: Names of options that only the host's own configuration may set, such as commands to run.
    local_options: ClassVar[frozenset[str]] = frozenset()

    operator_created: Mapping[str, Device] = MappingProxyType({})

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        self.host = host

    @abc.abstractmethod
    def discover(self, context: DriverContext = EMPTY_CONTEXT) -> list[Device]:
        """What this driver offers now, ordered by key.

        Pure reading: two calls on an unchanged machine are equal, and nothing is written. A
        device that vanishes while it is read is left out; one that cannot be read stops no other.
        Raises exception.HostError only when nothing at all can be said about the host.
        """

    def hardware(self, context: DriverContext = EMPTY_CONTEXT) -> list[Hardware]:
        """All devices of this driver's kind, those it does not offer included, with the reason."""
        return [Hardware.of(one) for one in self.discover(context)]

    def backends(self) -> Sequence[Backend]:
        """The backends attached to this host, with the services on each, in the same order.

        Pure reading, as for ``discover``; most hardware has no such thing.
        """
        return ()

    def install(self, device_key: str, operation: str) -> None:
        """Make a device that needs setting up ready to be offered."""
        self._cannot(f"install {device_key}")

    def prepare(self, task: HandleTask) -> None:  # noqa: B027 - doing nothing is the answer
        """Make one attach handle ready for its guest; nothing to do for most hardware."""

    def release(self, task: HandleTask) -> None:  # noqa: B027 - doing nothing is the answer
        """Take one attach handle back from its guest; nothing to do for most hardware."""

    def prepared(self) -> Sequence[Unit]:
        """The units of this driver that the host shows as ready for a guest; pure reading.

        Whoever can tell has them prepared again after a reboot, and released when nobody has
        them. A unit that is half ready may be left out or not. What others made on the host, as
        far as it can be told apart, is never among them.
        """
        self._cannot("tell what is prepared")

    def clean_steps(self, device_key: str) -> Sequence[CleanStep]:
        """How this device is cleaned between two users; empty when there is nothing to clean."""
        return ()

    def health(self, device_key: str) -> Health:
        """Return the health of one device.

        The agent calls it for every device at an interval, from a thread of its own for each
        driver and also while other verbs are at work; it must end in a limited time. The units of
        a device that is not healthy are reserved until it is healthy again. An error keeps the
        last answer.
        """
        self._cannot(f"tell the health of {device_key}")

    def stats(self, device_key: str) -> Mapping[str, float]:
        """Figures of the device by name, in the units in which the names end.

        Those of ``cyborg.model.reading.FIGURES`` are shown in metrics, others are broadcast with
        them. Pure reading; it may be asked at any time, while other verbs are at work, too, and
        from a thread of its own: one that hangs keeps nobody waiting but itself.
        """
        self._cannot(f"measure {device_key}")

    def program(self, task: ProgramTask, image_path: str) -> None:
        """Load the image file into the deployable; loading the same image again does no harm."""
        self._cannot(f"program {task.deployable}")

    def _cannot(self, verb: str) -> NoReturn:
        raise exception.DriverCannot(driver=self.name, verb=verb)
