# SPDX-License-Identifier: Apache-2.0
"""The verbs of conductors and agents, each with its arguments, answer, errors and version.

A change that operators or the service ask of a conductor carries the key of its request. A
repetition with the same key changes nothing and returns the same answer.
"""

from dataclasses import field
from typing import Any, Final, TypeVar

from cyborg import exception
from cyborg.exception import (
    BadState,
    BoundArqs,
    CannotAttach,
    CannotProgram,
    Conflict,
    DeviceInUse,
    DeviceUnavailable,
    Duplicate,
    Forbidden,
    InstanceAlreadyBound,
    Invalid,
    NoFreeHandle,
    NotFound,
    OverLimit,
    ProfileInUse,
    StaleEpoch,
    Unavailable,
)
from cyborg.model.arq import Arq, Binding
from cyborg.model.attribute import Attribute
from cyborg.model.caller import Caller
from cyborg.model.creation import Creation
from cyborg.model.device import DeviceStatus
from cyborg.model.device_profile import DeviceProfile, ProfileChange
from cyborg.model.guests import HostGuests
from cyborg.model.operation import Operation
from cyborg.model.probation import HealthOrder
from cyborg.model.process import HostStatus
from cyborg.model.report import (
    Acknowledged,
    AgentHeartbeat,
    Desired,
    HeartbeatReply,
    Reading,
    Report,
)
from cyborg.model.work import (
    Discovered,
    DiscoveryTask,
    HandleTask,
    ImageOrder,
    InstallTask,
    Outcome,
    ProgramTask,
    UnitUses,
)
from cyborg.rpc.command import Command, history

Answer = TypeVar("Answer")
TaskAnswer = TypeVar("TaskAnswer", bound=Discovered | Outcome)


class ToConductor(Command[Answer], raises=(Forbidden,)):
    """A command that any conductor handles."""


class ApiHeartbeat(ToConductor[None], verb="api_heartbeat"):
    """Report that the API is served on this host; each of its processes may do so."""

    host: str
    version: str
    endpoint: str


class Write(ToConductor[Answer]):
    """A change that a user requests; ``request_key`` is the same in each repetition."""

    caller: Caller
    request_key: str

    @property
    def origin(self) -> tuple[Caller, str]:
        """Return who requests the change, and the key of the request."""
        return self.caller, self.request_key


class CreateArqs(Write[list[Arq]], verb="create_arqs", raises=(NotFound, OverLimit)):
    """Create the ARQs that a device profile requests, all or none."""

    profile_name: str


class PatchArqs(
    Write[None],
    verb="patch_arqs",
    raises=(
        NotFound,
        BadState,
        InstanceAlreadyBound,
        Invalid,
        DeviceUnavailable,
        NoFreeHandle,
        OverLimit,
    ),
):
    """Bind and unbind ARQs, all or none."""

    bindings: list[Binding]
    unbindings: list[str]


class DeleteArqs(Write[None], verb="delete_arqs", raises=(BoundArqs, NotFound)):
    """Delete those of the ARQs that exist and may be deleted.

    Afterwards fail if some are bound and the request has no service token, or else if some do not
    exist.
    """

    uuids: list[str]


class DeleteInstanceArqs(Write[None], verb="delete_instance_arqs"):
    """Delete all ARQs of an instance, if there are any."""

    instance_uuid: str


class Attach(
    Write[Operation],
    verb="attach",
    raises=(NotFound, CannotAttach, NoFreeHandle, Conflict, OverLimit, Unavailable),
):
    """Start to attach the devices that a profile requests to an instance, all or none.

    Without ``profile_name`` it is the profile of the instance's flavor. A request key of another
    request is a conflict.
    """

    instance_uuid: str
    profile_name: str | None


class Detach(
    Write[Operation], verb="detach", raises=(NotFound, CannotAttach, Conflict, Unavailable)
):
    """Start to detach one ARQ that attach created, or all of them (None), if there are any.

    A request key of another request is a conflict.
    """

    instance_uuid: str
    arq_uuid: str | None


class CreateDeviceProfile(Write[DeviceProfile], verb="create_device_profile", raises=(Duplicate,)):
    """Store a validated profile."""

    profile: DeviceProfile


class UpdateDeviceProfile(
    Write[DeviceProfile], verb="update_device_profile", raises=(NotFound, Duplicate)
):
    """Change the profile with this UUID or name.

    ``denied`` has the rules of the policy that the caller does not pass, see ``refuse_denied`` of
    the model: such a profile must not result from the change.
    """

    key: str
    change: ProfileChange
    denied: list[str] | None = None


class DeleteDeviceProfiles(
    Write[None], verb="delete_device_profiles", raises=(NotFound, ProfileInUse)
):
    """Delete profiles by UUID or name, all or none."""

    keys: list[str]


class SetDeviceStatus(Write[None], verb="set_device_status", raises=(NotFound,)):
    """Set the status of a device, which enables or disables all its deployables."""

    uuid: str
    status: DeviceStatus


class SetServiceStatus(Write[None], verb="set_service_status", raises=(NotFound, Conflict)):
    """Disable, drain or enable the host of an agent; any other process is a conflict."""

    uuid: str
    status: HostStatus
    reason: str | None


class RemoveService(Write[Operation], verb="remove_service", raises=(NotFound, Conflict)):
    """Start to remove the record of a process that is down; for an agent, the whole host.

    A process that is up, or a host with units that ARQs have, is a conflict, and so is a host with
    units that are not cleaned, unless the caller forces it.
    """

    uuid: str
    force: bool | None = None


class UpdateDevice(
    Write[None], verb="update_device", raises=(NotFound, Forbidden, Invalid, DeviceInUse, Conflict)
):
    """Set the status, the labels and the ``facts`` (model, traits) of a device, all or none.

    ``reason`` explains a status that disables the device. ``health`` is an order about its faults.
    ``project`` limits the change to labels of devices that the ARQs of this project hold. ``facts``
    of a device that a driver discovered are a conflict. ``free_unit`` is the key of a unit in
    quarantine that is given out again without another attempt of its host to clean it.
    """

    uuid: str
    status: DeviceStatus | None
    labels: dict[str, str | None]
    project: str | None
    facts: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None
    free_unit: str | None = None
    health: HealthOrder | None = None


class CreateDevice(
    Write[Operation], verb="create_device", raises=(NotFound, Unavailable, Invalid, Conflict)
):
    """Create an accelerator on a backend."""

    creation: Creation
    wait: bool


class DeleteDevice(Write[None], verb="delete_device", raises=(NotFound, DeviceInUse, Conflict)):
    """Remove a device that an operator created, or the lost parts of any other device.

    A device without lost parts is a conflict, and so is one with units that are not cleaned, unless
    the caller forces it.
    """

    uuid: str
    force: bool | None = None


class ProgramDeployable(
    Write[None], verb="program_deployable", raises=(NotFound, CannotProgram, DeviceInUse)
):
    """Load a Glance image into a deployable."""

    uuid: str
    image_uuid: str


class CreateAttribute(Write[Attribute], verb="create_attribute", raises=(NotFound, Duplicate)):
    """Add an attribute of an operator; ``deployable`` is a number or a UUID."""

    deployable: int | str
    key: str
    value: str
    uuid: str | None


class DeleteAttribute(Write[None], verb="delete_attribute", raises=(NotFound,)):
    """Remove an attribute."""

    uuid: str


class HostsCommand(Write[Operation], raises=(NotFound, Unavailable, Conflict)):
    """A change that hosts must carry out; with ``wait`` also hosts that are down, later."""


class DiscoverServices(HostsCommand, verb="discover_services"):
    """Scan the hardware of hosts now.

    With ``setup`` the hosts also set up the inactive devices of the driver that need it.
    """

    hosts: list[str] | None
    driver: str | None
    wait: bool
    setup: bool | None = None


class InstallDriver(HostsCommand, verb="install_driver"):
    """Load a driver on hosts from now on."""

    driver: str
    hosts: list[str] | None
    options: dict[str, str] | None
    wait: bool


class UpdateDriver(HostsCommand, verb="update_driver"):
    """Set options of a driver (None removes an option), and enable or disable the driver."""

    driver: str
    options: dict[str, str | None] | None
    enabled: bool | None
    wait: bool


class UninstallDriver(HostsCommand, verb="uninstall_driver"):
    """Uninstall a driver from its hosts; with ``drain`` as soon as no ARQ uses it.

    Units that are not cleaned are a conflict, or are awaited, unless the caller forces it.
    """

    driver: str
    drain: bool
    wait: bool
    force: bool | None = None


class AgentRequest(ToConductor[Answer], raises=(StaleEpoch, Forbidden)):
    """What an agent sends for its host."""

    @property
    def of_host(self) -> str:
        """Return the host that the request is about."""
        raise NotImplementedError


class Heartbeat(AgentRequest[HeartbeatReply], verb="heartbeat"):
    """Send the heartbeat of an agent, with the status of its host and drivers."""

    heartbeat: AgentHeartbeat

    @property
    def of_host(self) -> str:
        """See the base."""
        return self.heartbeat.host


class HostRequest(AgentRequest[Answer], raises=(NotFound,)):
    """A request of the agent with this epoch for its host."""

    host: str
    epoch: int

    @property
    def of_host(self) -> str:
        """See the base."""
        return self.host


class SendReport(HostRequest[Acknowledged], verb="report"):
    """Report the findings of the drivers."""

    report: Report


class FetchDesired(HostRequest[Desired], verb="desired"):
    """Fetch the desired state of this host."""


class FetchUnitUses(HostRequest[UnitUses], verb="unit_uses"):
    """Fetch the units of this host that binds prepare, with their use."""


class SendPublished(HostRequest[None], verb="published"):
    """Report which deployables Placement refused (name → reason).

    ``published`` is what Placement has of the deployables (name → total and reserved units).
    """

    refused: dict[str, str]
    published: dict[str, list[int]]


class SendProvidersRemoved(HostRequest[None], verb="providers_removed"):
    """Report removed deployables whose provider was deleted."""

    names: list[str]


class SendGuests(HostRequest[None], verb="guests", raises=(Invalid,)):
    """Report the guests that run on this host, and the processes that have its units."""

    guests: HostGuests


class SendReadings(HostRequest[None], verb="readings"):
    """Report the readings of the devices of this host."""

    readings: list[Reading]


class ToAgent(Command[Answer]):
    """A command that the agent of one host handles; all are idempotent by request key."""


class Task(ToAgent[TaskAnswer], raises=(StaleEpoch,)):
    """Work of a host. If the answer is not ``done``, the caller repeats the command."""

    task: Any

    def read(self, body: Any) -> TaskAnswer:
        """Return the answer; raise exception.Invalid for an answer to another task."""
        answer = super().read(body)
        if answer.request_key != self.task.request_key:
            raise exception.Invalid(
                field="request_key", reason=f"{answer.request_key} is not {self.task.request_key}"
            )
        return answer


class Prepare(Task[Outcome], verb="prepare"):
    """Prepare an attach handle for its guest; with ``image`` load that image first."""

    task: HandleTask
    image: ImageOrder | None = None


class Release(Task[Outcome], verb="release"):
    """Revert the preparation of an attach handle, and clean up after the guest."""

    task: HandleTask


class Program(Task[Outcome], verb="program"):
    """Load an image into a deployable."""

    task: ProgramTask


class Discover(Task[Discovered], verb="discovery"):
    """Fetch the desired state, scan the hardware and report it; return the findings."""

    task: DiscoveryTask


class Reload(ToAgent[None], verb="reload"):
    """Restart the agent of this epoch, after it has finished its current work.

    The restart is complete when the agent of the host sends a heartbeat with another epoch.
    """

    agent_epoch: int


class Install(Task[Outcome], verb="install"):
    """Set up a device, check that it is ready, and scan the host again."""

    task: InstallTask


class DesiredChanged(ToAgent[None], verb="desired_changed"):
    """Hint that the desired state has changed; without it the next heartbeat shows this."""


#: What was added to the verbs of conductors and agents since the first release.
CONDUCTOR: Final = history(ToConductor)
AGENT: Final = history(ToAgent)
