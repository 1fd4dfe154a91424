# SPDX-License-Identifier: Apache-2.0
"""The input of an audit: the rows of the database, and the answers of other services and hosts.

Times are ages in milliseconds by the database's clock.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from cyborg.conductor.audit.placement_view import HostView
from cyborg.model.arq import State
from cyborg.model.process import HostStatus
from cyborg.model.provider import Provider
from cyborg.model.readiness import Process
from cyborg.model.work import WorkKind
from cyborg.tests.oracle.availability import Standing, Unit, claimable, reserved


@dataclass(frozen=True)
class HostRow:
    """A compute host; ``changed_age`` counts from the last change of its desired state.

    ``agent_silence`` is the age of its agent's last heartbeat, None if it never sent one. ``agent``
    is the row of that process, if there is one. ``status`` tells whether an operator took the host
    out of service.
    """

    id: int
    name: str
    changed_age: int
    agent_silence: int | None
    status: str = HostStatus.ENABLED
    unchecked: bool = False
    agent: Process | None = None


@dataclass(frozen=True)
class DriverRow:
    """A driver of a host in the state that its agent last reported."""

    host_id: int
    name: str
    state: str
    error: str | None = None


@dataclass(frozen=True)
class DeviceRow:
    """A device; ``lost_age`` is None unless it is lost."""

    id: int
    uuid: str
    host_id: int
    driver: str
    status: str
    lost_age: int | None = None
    health: str | None = None


@dataclass(frozen=True)
class DeployableRow:
    """A deployable, which is a resource provider with ``traits``.

    ``key`` is the name that its driver uses; None: ``name``. Guests take ``group_size`` units at a
    time; None: one.
    """

    id: int
    device_id: int
    name: str
    rp_uuid: str | None
    resource_class: str
    prepare: bool = False
    lost: bool = False
    publish_error: str | None = None
    key: str | None = None
    group_size: int | None = None
    traits: frozenset[str] = frozenset()


@dataclass(frozen=True)
class HandleRow:
    """An attach handle."""

    id: int
    uuid: str
    deployable_id: int
    key: str
    state: str
    lost: bool = False
    suspect: bool = False
    blocked: bool = False
    cleaning: bool = False


@dataclass(frozen=True)
class ArqRow:
    """An accelerator request; ``age`` counts from its last change, None if it is unknown.

    ``hidden``: an attach or a detach changes it now.
    """

    uuid: str
    state: str
    instance_uuid: str | None = None
    hostname: str | None = None
    rp_uuid: str | None = None
    handle_id: int | None = None
    deployable_id: int | None = None
    prepared: bool = False
    hidden: bool = False
    age: int | None = None

    @property
    def binds(self) -> bool:
        """Return whether the ARQ has a unit or will get one."""
        return self.state in (State.BOUND, State.BIND_STARTED)


@dataclass(frozen=True)
class WorkRow:
    """Work in the queue; ``overdue`` counts from its deadline (negative before it)."""

    uuid: str
    kind: str
    age: int
    waiting: int
    arq_uuid: str | None = None
    instance_uuid: str | None = None
    handle_id: int | None = None
    host_id: int | None = None
    overdue: int | None = None
    attempts: int = 0
    error: str | None = None


@dataclass(frozen=True)
class Snapshot:
    """All rows that the invariants are about.

    ``taken_ms`` is the database's clock at that moment, in milliseconds since the epoch.
    ``conductor_silence`` is the age of the latest heartbeat of any conductor, None if there never
    was one. ``conductors`` are the rows of those processes.
    """

    hosts: tuple[HostRow, ...] = ()
    drivers: tuple[DriverRow, ...] = ()
    devices: tuple[DeviceRow, ...] = ()
    deployables: tuple[DeployableRow, ...] = ()
    handles: tuple[HandleRow, ...] = ()
    arqs: tuple[ArqRow, ...] = ()
    work: tuple[WorkRow, ...] = ()
    conductor_silence: int | None = None
    taken_ms: int = 0
    conductors: tuple[Process, ...] = ()

    @cached_property
    def host_by_id(self) -> dict[int, HostRow]:
        return {host.id: host for host in self.hosts}

    @cached_property
    def device_by_id(self) -> dict[int, DeviceRow]:
        return {device.id: device for device in self.devices}

    @cached_property
    def deployable_by_id(self) -> dict[int, DeployableRow]:
        return {deployable.id: deployable for deployable in self.deployables}

    @cached_property
    def handle_by_id(self) -> dict[int, HandleRow]:
        return {handle.id: handle for handle in self.handles}

    @cached_property
    def arq_by_uuid(self) -> dict[str, ArqRow]:
        return {arq.uuid: arq for arq in self.arqs}

    @cached_property
    def holders(self) -> dict[int, list[ArqRow]]:
        """Return the ARQs that refer to a handle, by the id of the handle."""
        arqs: dict[int, list[ArqRow]] = defaultdict(list)
        for arq in self.arqs:
            if arq.handle_id is not None:
                arqs[arq.handle_id].append(arq)
        return arqs

    @cached_property
    def handles_of(self) -> dict[int, list[HandleRow]]:
        """Return the handles by the id of their deployable."""
        handles: dict[int, list[HandleRow]] = defaultdict(list)
        for handle in self.handles:
            handles[handle.deployable_id].append(handle)
        return handles

    @cached_property
    def deployables_of(self) -> dict[int, list[DeployableRow]]:
        """Return the deployables by the id of their host."""
        deployables: dict[int, list[DeployableRow]] = defaultdict(list)
        for deployable in self.deployables:
            deployables[self.device_by_id[deployable.device_id].host_id].append(deployable)
        return deployables

    @cached_property
    def providers(self) -> frozenset[str]:
        """Return the uuids of all providers of this service."""
        return frozenset(
            deployable.rp_uuid for deployable in self.deployables if deployable.rp_uuid is not None
        )

    @cached_property
    def bound_units(self) -> dict[str, Counter[str]]:
        """Return how many ARQs bind a unit: provider → instance → number."""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for arq in self.arqs:
            if arq.binds and arq.rp_uuid is not None and arq.instance_uuid is not None:
                counts[arq.rp_uuid][arq.instance_uuid] += 1
        return counts

    @cached_property
    def owed_units(self) -> dict[str, Counter[str]]:
        """Return the same for ARQs whose allocation must exist by now."""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for arq in self.arqs:
            if arq.binds and arq.rp_uuid and arq.instance_uuid and not arq.hidden:
                counts[arq.rp_uuid][arq.instance_uuid] += 1
        return counts

    @cached_property
    def release_of(self) -> dict[int, WorkRow]:
        """Return the work that releases a handle, by the id of the handle."""
        return {
            work.handle_id: work
            for work in self.work
            if work.kind == WorkKind.RELEASE and work.handle_id is not None
        }

    def host_of(self, deployable_id: int | None) -> HostRow | None:
        """Return the host of a deployable, None if the deployable does not exist."""
        deployable = self.deployable_by_id.get(deployable_id or 0)
        if deployable is None:
            return None
        return self.host_by_id[self.device_by_id[deployable.device_id].host_id]

    def place_of(self, arq: ArqRow) -> str | None:
        """Return the name of the host where an ARQ has its unit, or will have it."""
        handle = self.handle_by_id.get(arq.handle_id or 0)
        host = self.host_of(handle.deployable_id if handle else arq.deployable_id)
        return host.name if host else arq.hostname

    def desired(self, deployable: DeployableRow) -> Provider:
        """Return the provider that Placement shows after the agent has published a deployable."""
        units = self._units(deployable)
        return Provider(
            uuid=deployable.rp_uuid or "",
            name=deployable.name,
            resource_class=deployable.resource_class,
            total=len(units),
            reserved=reserved(self._standing(deployable), units),
            traits=deployable.traits,
            deployable=deployable.key,
            group_size=deployable.group_size or 1,
        )

    def unclaimed(self, deployable: DeployableRow) -> list[HandleRow]:
        """Return the units of a deployable that no ARQ has, and that are not suspect."""
        return [
            handle
            for handle in self.handles_of.get(deployable.id, [])
            if handle.id not in self.holders and not handle.suspect
        ]

    def claimable(self, deployable: DeployableRow) -> int:
        """Return how many units of a deployable the next binds can use."""
        return claimable(self._standing(deployable), self._units(deployable))

    def _units(self, deployable: DeployableRow) -> list[Unit]:
        return [
            Unit(
                handle.state,
                handle.lost,
                blocked=handle.blocked,
                cleaning=handle.cleaning,
                used=handle.id in self.holders,
            )
            for handle in self.handles_of.get(deployable.id, [])
        ]

    def _standing(self, deployable: DeployableRow) -> Standing:
        device = self.device_by_id[deployable.device_id]
        return Standing(
            device.status,
            lost=device.lost_age is not None or deployable.lost,
            driver=self._driver_states.get((device.host_id, device.driver)),
            host=self.host_by_id[device.host_id].status,
            health=device.health,
            refused=deployable.publish_error is not None,
            unchecked=self.host_by_id[device.host_id].unchecked,
        )

    @cached_property
    def _driver_states(self) -> dict[tuple[int, str], str]:
        return {(driver.host_id, driver.name): driver.state for driver in self.drivers}


@dataclass(frozen=True)
class AuditViews:
    """The answers of other services; an audit concludes nothing from a missing answer.

    ``placement`` are views by host name. ``vanished`` are uuids for which Nova answered that it
    has no server. ``consumer_ages`` tells how long, at least, consumers have had allocations
    without ARQs. ``prepared`` are the units, as (deployable name, handle key), that hosts (by
    name) hold ready for guests. ``nodes`` are the nodes of the consumers that are servers with
    which Nova does nothing now. ``guests`` are the servers that Nova shows as active on a host, and
    does nothing with, whose guests run there: server → name of the host, and the ids of the handles
    that its process has. ``foreign`` has the resource classes of which a server's flavor requests
    itself just as many units as the server has beside its requests.
    """

    placement: Mapping[str, HostView] = field(default_factory=dict)
    vanished: frozenset[str] = frozenset()
    consumer_ages: Mapping[str, int] = field(default_factory=dict)
    prepared: Mapping[str, frozenset[tuple[str, str]]] = field(default_factory=dict)
    nodes: Mapping[str, str | None] = field(default_factory=dict)
    guests: Mapping[str, tuple[str, frozenset[int]]] = field(default_factory=dict)
    foreign: Mapping[str, frozenset[str]] = field(default_factory=dict)
