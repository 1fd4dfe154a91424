# SPDX-License-Identifier: Apache-2.0
"""Work that continues after its transaction: its kinds, and the tasks of agents."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, NamedTuple

from cyborg.model.cleaning import CleanedStep
from cyborg.model.device import BackendService
from cyborg.model.health import DeviceHealth
from cyborg.model.report import DriverState


class WorkKind(StrEnum):
    """The kinds of work; each has one handler in the conductor."""

    NOTIFY = "notify"
    PREPARE = "prepare"
    RELEASE = "release"
    PROGRAM = "program"
    ATTACH = "attach"
    DETACH = "detach"
    DISCOVER = "discover"
    CONFIGURE_DRIVER = "configure_driver"
    UNINSTALL_DRIVER = "uninstall_driver"
    REMOVE_SERVICE = "remove_service"
    SET_UP_DEVICE = "set_up_device"
    CREATE_DEVICE = "create_device"


class Unit(NamedTuple):
    """An attachable unit, by names that are the same in the database and on the host.

    The deployable's name is unique in the cloud, the handle's key within the deployable.
    """

    deployable: str
    handle_key: str


@dataclass(frozen=True)
class HandleTask:
    """Prepare or release one attach handle on the agent's host.

    ``request_key`` identifies the task: an agent that meets it again answers as before. ``spec``
    holds the ``accel:*`` requirements of the device profile's group, as strings; for a release it
    has only ``clean``, the level of cleaning, or nothing. ``order`` rises
    with each task of a handle: one that arrives after a later one is refused. ``issued_ms`` is when
    the conductor's database wrote the task, by its clock; 0 if unknown. It tells a stale
    task from a new one of a database that was restored from a backup, whose orders go back.
    ``agent_epoch`` is that of the agent that is asked, 0 where that is not told: one that has been
    superseded refuses.
    """

    KIND: ClassVar[str] = "HandleTask"

    request_key: str
    driver: str
    device_key: str
    deployable: str
    handle_key: str
    handle_uuid: str
    spec: dict[str, str] = field(default_factory=dict)
    order: int = 0
    issued_ms: int = 0
    agent_epoch: int = 0

    @property
    def unit(self) -> Unit:
        """Return the unit of the task."""
        return Unit(self.deployable, self.handle_key)

    def program_task(self, image_uuid: str) -> "ProgramTask":
        """Return the task that loads an image into the deployable of the handle."""
        return ProgramTask(
            request_key=self.request_key,
            driver=self.driver,
            device_key=self.device_key,
            deployable=self.deployable,
            image_uuid=image_uuid,
            agent_epoch=self.agent_epoch,
            order=self.order,
            issued_ms=self.issued_ms,
        )


@dataclass(frozen=True)
class ProgramTask:
    """Load one Glance image into a deployable on the agent's host; see HandleTask.

    ``order`` rises with each task of a deployable.
    """

    KIND: ClassVar[str] = "ProgramTask"

    request_key: str
    driver: str
    device_key: str
    deployable: str
    image_uuid: str
    agent_epoch: int = 0
    order: int = 0
    issued_ms: int = 0

    @property
    def unit(self) -> Unit:
        """Return the unit of the task: the deployable itself, without a handle."""
        return Unit(self.deployable, "")


@dataclass(frozen=True)
class ImageOrder:
    """The image that ``prepare`` loads into the deployable before the handle is made ready.

    Either ``bitstream_id`` (a Glance image) or ``function_id`` (the property
    ``accel:function_id`` of exactly one active image) is given. ``loaded`` is the image that the
    deployable has now, None when nobody knows. Nothing is loaded when it is the one that is asked
    for, and never unless ``exclusive``: others use the deployable. ``prepare`` is that of the
    deployable: without it the driver is asked for nothing but the image.
    """

    KIND: ClassVar[str] = "ImageOrder"

    bitstream_id: str | None = None
    function_id: str | None = None
    loaded: str | None = None
    exclusive: bool = False
    prepare: bool = True


@dataclass(frozen=True)
class InstallTask:
    """Set one device up on the agent's host, so that it can be offered; see HandleTask."""

    KIND: ClassVar[str] = "InstallTask"

    request_key: str
    driver: str
    device_key: str
    agent_epoch: int = 0


@dataclass(frozen=True)
class PartitionTask:
    """Divide one card into a layout; the agent itself gives itself this task after a scan."""

    request_key: str
    driver: str
    device_key: str
    layout: str


@dataclass(frozen=True)
class Outcome:
    """The state or the result of a task.

    ``done`` False: the agent is still at it, ask again with the same request key; ``progress`` is
    then a line for the operator, if the driver has told how far it is. ``fault`` is None
    when it succeeded, else a sentence for the operator. ``note`` is what the operator should know
    of a success. ``image`` is the UUID of the image that an ``ImageOrder`` led to. ``health`` is
    the health of the device after a set-up, None where it is not known. ``cleaned`` are the clean
    steps that a release has completed.
    """

    KIND: ClassVar[str] = "Outcome"

    request_key: str
    done: bool = True
    fault: str | None = None
    note: str | None = None
    image: str | None = None
    health: DeviceHealth | None = None
    progress: str | None = None
    cleaned: tuple[CleanedStep, ...] = ()


class Use(StrEnum):
    """How the conductor uses one unit that an agent must prepare.

    ``PREPARED``: a guest has the prepared unit. ``FREE``: no guest has it and no work is under way.
    ``IN_TRANSITION``: work of the conductor is under way or due, or the unit is lost, so that no
    other work may touch it. The values are the words on the bus.
    """

    PREPARED = "prepared"
    FREE = "free"
    IN_TRANSITION = "in_transition"


@dataclass(frozen=True)
class UnitUse:
    """One unit and its use; ``task`` is what preparing or releasing it would take."""

    task: HandleTask
    use: Use


@dataclass(frozen=True)
class UnitUses:
    """All units of a host whose binds are prepared, as they are used at one moment."""

    KIND: ClassVar[str] = "UnitUses"

    units: tuple[UnitUse, ...]


@dataclass(frozen=True)
class DiscoveryTask:
    """Look at the hardware of the agent's host now: through one driver, or all (None).

    Before that the agent fetches what is desired of its host, so that a driver that has just been
    ordered is loaded. See HandleTask for ``request_key`` and ``agent_epoch``.
    """

    KIND: ClassVar[str] = "DiscoveryTask"

    request_key: str
    driver: str | None = None
    agent_epoch: int = 0


@dataclass(frozen=True)
class BackendFindings:
    """What was found on one backend: what runs there, and its devices as in DriverFindings.

    One that the driver does not have any more is ``STOPPED``.
    """

    name: str
    state: str
    services: tuple[BackendService, ...] = ()
    discovered: int = 0
    added: int = 0
    changed: int = 0
    lost: int = 0
    failed: int = 0


@dataclass(frozen=True)
class DriverFindings:
    """What one driver found, against what the host last reported.

    The numbers are of devices; ``failed`` are those that the conductor does not keep. ``accepted``
    False: what was ordered of the driver cannot be done (``error`` says why), and it is as it was.
    """

    name: str
    state: DriverState
    discovered: int = 0
    added: int = 0
    changed: int = 0
    lost: int = 0
    failed: int = 0
    error: str | None = None
    accepted: bool = True
    backends: tuple[BackendFindings, ...] = ()


@dataclass(frozen=True)
class Discovered:
    """The answer to a DiscoveryTask; ``done`` False: ask again, it has not come to it yet."""

    KIND: ClassVar[str] = "Discovered"

    request_key: str
    done: bool = True
    drivers: tuple[DriverFindings, ...] = ()
