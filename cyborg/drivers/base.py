# SPDX-License-Identifier: Apache-2.0
"""The base class of every driver, and the types that its methods take and return.

A driver reaches the machine through its ``Host`` only, returns frozen objects and keeps no state of
its own: after a restart it reads everything it needs from the machine. Only ``discover`` is
mandatory. Every method that changes something is idempotent: the agent may call it again at any
time, with the same or another request key, and a driver whose work is already done returns as if
it had just done it.
"""

import abc
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from threading import TIMEOUT_MAX
from types import MappingProxyType
from typing import ClassVar, NoReturn

from oslo_config import cfg

from cyborg import exception
from cyborg.drivers.host import Host
from cyborg.drivers.pci_function import parse_name
from cyborg.drivers.scan import Scan
from cyborg.model.cleaning import CleanLevel
from cyborg.model.device import Backend, Device, Hardware
from cyborg.model.health import Signal
from cyborg.model.pci import PciAddress
from cyborg.model.work import HandleTask, ProgramTask, Unit

#: Tells the operator how far a long call has come: the part that is done, from 0 to 1, and what it
#: does now, as a clause: "writing the flash memory". Any thread may call it, as often as it likes.
Progress = Callable[[float, str], None]
#: The longest name of a clean step, in characters.
_NAME_WIDTH = 255


def no_progress(done: float, step: str) -> None:
    """Tell nobody; see Progress."""


@dataclass(frozen=True)
class ImageFile:
    """An image that was downloaded and verified; ``path`` is removed after the call."""

    uuid: str
    path: str


class ResetLevel(StrEnum):
    """What a reset affects: the function of the device alone, or its whole card."""

    FUNCTION = "function"
    CARD = "card"


@dataclass(frozen=True)
class CleanStep:
    """A step that removes the data of the last guest from a unit, after ``release``.

    ``name`` is what operators read: "secure erase". ``work`` is a level with which the agent calls
    ``Driver.reset``, or a function of the driver that does the step; like all work on a device it
    can be repeated. Steps of a higher ``priority`` run first. A step that does not end within
    ``timeout`` seconds has failed: the unit is not given out, and nothing else is done to the
    device before the step has ended. An agent that stops waits for a step unless it is
    ``interruptible``; the next agent begins the release again. ``level`` is the least level of
    cleaning that includes the step: FULL for one that erases data. Such a step runs only after a
    guest of this service. ``resets`` is the key of the device that a function of the driver resets
    by the step; None: it resets a part of a device only, or nothing. Faults of this device that
    last until a reset end with the step. Raises ValueError for a name that is not a text of 1 to
    255 printable characters, and for other values that no agent can use.
    """

    name: str
    work: ResetLevel | Callable[[Progress], None]
    priority: int = 50
    timeout: float = 300.0
    interruptible: bool = False
    level: CleanLevel = CleanLevel.RESET
    resets: str | None = None

    def __post_init__(self) -> None:
        # Drivers are not type-checked by all vendors; the agent must fail the release, not itself.
        valid = (
            isinstance(self.name, str)
            and self.name.isprintable()
            and 0 < len(self.name) <= _NAME_WIDTH
            and (isinstance(self.work, ResetLevel) or callable(self.work))
            and isinstance(self.priority, int)
            and isinstance(self.timeout, int | float)
            # Neither infinite nor no number; a thread cannot wait any longer.
            and 0 < self.timeout <= TIMEOUT_MAX
            and self.level in (CleanLevel.RESET, CleanLevel.FULL)
            and (self.resets is None or isinstance(self.resets, str))
        )
        if not valid:
            raise ValueError(f"{self!r} is not valid")


@dataclass(frozen=True)
class CardLayouts:
    """What a card can be divided into, and how it is divided now.

    ``card`` is the key of the card, for a PCI function its address. ``layouts`` names all layouts
    that the card can have, the one of the whole card included. ``current`` is the layout that the
    host shows, None if it cannot be told. ``desired`` is the one that the configuration of the host
    requests; None: the agent leaves the card as it is.

    ``deployables`` are the names that the whole card and each part that it has now would have as
    deployables, offered or not: the agent changes nothing while the conductor keeps one of them.
    ``refusal`` is a clause that says why the layout must not change now, for example because
    something uses a part; None if the driver knows no reason.
    """

    KIND: ClassVar[str] = "CardLayouts"

    card: str
    layouts: tuple[str, ...]
    current: str | None
    desired: str | None
    deployables: frozenset[str]
    refusal: str | None = None


def clean_calls(
    driver: "Driver", task: HandleTask
) -> list[tuple[CleanStep, Callable[[Progress], None]]]:
    """Return the clean steps of a unit in their order, each with the call that does it."""

    def call_of(step: CleanStep) -> Callable[[Progress], None]:
        level = step.work
        if not isinstance(level, ResetLevel):
            return level
        return lambda progress: driver.reset(task.device_key, level, progress=progress)

    steps = sorted(driver.clean_steps(task), key=lambda step: -step.priority)
    return [(step, call_of(step)) for step in steps]


class Driver(abc.ABC):
    """One kind of accelerator on one host.

    ``name`` is the name of the entry point in ``cyborg.accelerator.driver``. ``device_type`` names
    the hardware that the driver supports, None for several kinds. A constructor reads the options
    it needs once, touches no hardware, and raises exception.ConfigError with one sentence when it
    cannot use them. The other methods report a failure with exception.HostError,
    exception.DriverFailed or exception.DriverCannot.

    ``operator_created`` maps keys to the devices that operators created on those backends of the
    driver that allow it (``Backend.creates``); the agent sets it. ``discover`` and ``hardware``
    return these devices too: unchanged, except for the fields that only the driver can fill in. A
    created device that the host cannot offer now is treated like any other that is not offered.

    ``attach_handles`` maps the UUIDs of the attach handles that the conductor keeps for deployables
    with ``prepare`` of the driver to their units; None until the agent has asked the conductor. The
    agent sets it from time to time: handles of deployables that were reported since are missing.

    ``scan`` is what the current round reads from the host, once for all drivers; it also has the
    facts that no driver can read. The methods that change something read their device again.
    """

    name: ClassVar[str]
    device_type: str | None = None
    can_program: bool = False
    #: False for a driver that only lists hardware, which guests never get. Operators can have this
    #: hardware cleaned, with ``cyborg-agent --clean``: the clean steps refuse what is in use.
    offers_devices: ClassVar[bool] = True
    #: Names of the options that REST requests may set, whatever their group. All other options come
    #: from the configuration files of the host alone. Never name an option that selects devices by
    #: address, or that names a command, a path or a library: an operator of the API is not root.
    remote_options: ClassVar[frozenset[str]] = frozenset()

    #: The directory with the entries for the signals of a driver of another package, in the format
    #: of ``cyborg.drivers.health_policy``.
    health_entries: ClassVar[Path | None] = None

    operator_created: Mapping[str, Device] = MappingProxyType({})
    attach_handles: Mapping[str, Unit] | None = None

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        self.host = host

    @abc.abstractmethod
    def discover(self, scan: Scan) -> list[Device]:
        """Return the devices that this driver offers now, ordered by key.

        The method only reads: two calls on an unchanged machine return equal results. It leaves out
        a device that vanishes while it is read. A device that cannot be read does not hide the
        others. Raises exception.HostError only when nothing at all can be read from the host.
        """

    def hardware(self, scan: Scan) -> list[Hardware]:
        """Return all devices of this driver's kind; those that it does not offer have a reason."""
        return [Hardware.of(device) for device in self.discover(scan)]

    def functions(self, scan: Scan) -> Collection[PciAddress]:
        """Return the PCI functions that the configuration gives to this driver, used or not.

        Root lists them for the process that runs privileged actions: this process changes no other
        function, except virtual functions of these. By default they are those of ``hardware``.
        """
        addresses = (parse_name(item.key) for item in self.hardware(scan))
        return {address for address in addresses if address is not None}

    def backends(self, scan: Scan) -> Sequence[Backend]:
        """Return the backends attached to this host with their services, in a stable order.

        The method only reads, like ``discover``; most hardware has no backends.
        """
        return ()

    def install(
        self, device_key: str, request_key: str, *, progress: Progress = no_progress
    ) -> None:
        """Set up a device, so that it can be offered."""
        self._cannot(f"install {device_key}")

    def prepare(
        self,
        task: HandleTask,
        image: ImageFile | None = None,
        *,
        progress: Progress = no_progress,
    ) -> None:
        """Load the image, if any, into the deployable, and prepare one handle for its guest.

        The image of a deployable whose ``prepare`` failed counts as unknown.
        """
        if image is not None:
            self.program(task.program_task(image.uuid), image.path, progress=progress)

    def release(  # noqa: B027 - doing nothing is the answer
        self, task: HandleTask, *, progress: Progress = no_progress
    ) -> None:
        """Release one attach handle after its guest; most hardware needs nothing."""

    def clean_steps(self, task: HandleTask) -> Sequence[CleanStep]:
        """Return the steps that remove the data of the last guest; the method only reads.

        The agent runs them after each ``release``: of a deployable with ``prepare``, or whose
        ``clean`` says that it can be cleaned.
        """
        return ()

    def settings(self, scan: Scan, device_key: str, handle_key: str) -> Mapping[str, str]:
        """Return what a guest of a unit can change for good, as it is now; the method only reads.

        The names, such as "firmware", are for operators. What is not known now, for example while a
        guest has the device, is left out. The agent keeps the first value of each, and compares
        after each guest: a unit with another value, or whose values cannot be read any more, is
        not given out.
        """
        return {}

    def reset(
        self, device_key: str, level: ResetLevel, *, progress: Progress = no_progress
    ) -> None:
        """Reset a device that no guest has; the agent calls the method for clean steps.

        A driver that cannot reset at this level, or only together with functions that others use,
        raises an error and changes nothing.
        """
        self._cannot(f"reset {device_key} ({level})")

    def prepared(self, scan: Scan) -> Sequence[Unit]:
        """Return the units of this driver that the host shows as prepared; the method only reads.

        With this method, the agent prepares the units again after a reboot, and releases those that
        no request holds. A unit whose preparation is incomplete may be left out. If guests take
        units ``group_size`` at a time, one that is prepared may bring the others of its group.
        Units that another program prepared on the host are left out, as far as they can be
        distinguished. A unit that the host knows only by the UUID of its attach handle, such as a
        mediated device, is listed with this UUID as its key.
        """
        self._cannot("list the prepared units")

    def signals(self, scan: Scan, device_key: str) -> Iterable[Signal]:
        """Yield what one device tells about its health, good and bad; without a verdict.

        The policy of the host says what each signal means: the entries of the service, of
        ``health_entries`` and of the operator. A signal without an entry makes the device
        ``degraded``. The units of a device with a signal that means ``drain`` or ``dead`` are
        reserved until a later call no longer yields it. A device that yields nothing has no fault.

        The agent calls the method periodically for each device by itself, so that a device that
        hangs does not hide the others, in one thread per driver, also while other methods run; the
        method must return within a limited time. After an error the last result stays valid, unless
        a signal before it means ``drain`` or ``dead``: the signals so far are the result then.
        """
        self._cannot(f"check the health of {device_key}")

    def stats(self, scan: Scan, device_key: str) -> Mapping[str, float]:
        """Return the statistics of a device by name; the end of each name is its unit.

        The names in ``cyborg.model.report.FIGURES`` become metrics; all names are in the
        notifications. The method only reads. The agent calls it at any time, also while other
        methods run, in a separate thread: a call that hangs delays only the statistics of its
        driver.
        """
        self._cannot(f"measure {device_key}")

    def program(
        self, task: ProgramTask, image_path: str, *, progress: Progress = no_progress
    ) -> None:
        """Load the image file into the deployable; the same image may be loaded again."""
        self._cannot(f"program {task.deployable}")

    def islands(self, scan: Scan) -> Sequence[Collection[str]]:
        """Return groups of devices that fast links join, such as NVLink, by their keys.

        The groups are in a stable order and have no device in common. The method only reads.
        """
        return ()

    def layouts(self, scan: Scan) -> Sequence[CardLayouts]:
        """Return the cards that this driver can divide, ordered by key.

        The method only reads, like ``discover``; most hardware cannot be divided. The claims of
        other services, which only ``scan`` has, belong into ``refusal``.
        """
        return ()

    def partition(self, card_key: str, layout: str, *, progress: Progress = no_progress) -> None:
        """Divide a card into this layout; a card that has it already is not changed.

        The agent calls the method for cards whose layout is not the desired one, also after each
        reboot of the host. A driver reads the card again, and raises an error and changes nothing
        if the card or a part of it is in use, or may be. A repeated call completes a change that
        was interrupted.
        """
        self._cannot(f"divide {card_key} into {layout}")

    def _cannot(self, verb: str) -> NoReturn:
        raise exception.DriverCannot(driver=self.name, verb=verb)
