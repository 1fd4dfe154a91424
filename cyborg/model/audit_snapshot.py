# SPDX-License-Identifier: Apache-2.0
"""The whole cloud at one moment, as plain rows: what the invariants are checked on.

What Placement, Nova and the hosts showed at about the same time stands in
``cyborg.model.audit_views``. Times are ages in milliseconds by the database's clock.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property

from cyborg.model.arq import State
from cyborg.model.availability import Standing, Unit, reserved
from cyborg.model.device import HandleState
from cyborg.model.health_view import Process
from cyborg.model.provider import Provider
from cyborg.model.work import WorkKind


@dataclass(frozen=True)
class HostRow:
    """A compute host; ``changed_age`` counts from the last change of what is desired of it.

    ``agent_silence`` is the age of its agent's last heartbeat; None when it never sent one.
    ``agent`` is the row of that process, where it is known. An operator has taken a ``disabled``
    host out of service.
    """

    id: int
    name: str
    changed_age: int
    agent_silence: int | None
    disabled: bool = False
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
    """A device; ``lost_age`` is None while it is there."""

    id: int
    uuid: str
    host_id: int
    driver: str
    status: str
    lost_age: int | None = None
    health: str | None = None


@dataclass(frozen=True)
class DeployableRow:
    """A deployable, which is a resource provider with ``traits``."""

    id: int
    device_id: int
    name: str
    rp_uuid: str | None
    resource_class: str
    prepare: bool = False
    lost: bool = False
    publish_error: str | None = None
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


@dataclass(frozen=True)
class ArqRow:
    """An accelerator request; ``age`` counts from its last change, None when that is unknown.

    ``hidden``: an attach or a detach is at it.
    """

    uuid: str
    state: str
    instance_uuid: str | None = None
    hostname: str | None = None
    rp_uuid: str | None = None
    handle_id: int | None = None
    deployable_id: int | None = None
    prepared: bool = False
    age: int | None = None
    hidden: bool = False

    @property
    def binds(self) -> bool:
        """Whether it has a unit, or is about to."""
        return self.state in (State.BOUND, State.BIND_STARTED)


@dataclass(frozen=True)
class InstanceRow:
    """An instance that is bound, or that an ARQ names."""

    uuid: str
    bound: bool
    hostname: str | None = None


@dataclass(frozen=True)
class WorkRow:
    """Work that is not done; ``overdue`` counts from its deadline (negative before it)."""

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
    """All rows that an invariant speaks of.

    ``taken_ms`` is the database's clock at that moment, in milliseconds since the epoch.
    ``conductor_silence`` is the age of the youngest heartbeat of any conductor; None when there
    never was one. ``conductors`` are the rows of those processes.
    """

    hosts: tuple[HostRow, ...] = ()
    drivers: tuple[DriverRow, ...] = ()
    devices: tuple[DeviceRow, ...] = ()
    deployables: tuple[DeployableRow, ...] = ()
    handles: tuple[HandleRow, ...] = ()
    arqs: tuple[ArqRow, ...] = ()
    instances: tuple[InstanceRow, ...] = ()
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
        """Handle id → the ARQs that refer to it."""
        arqs: dict[int, list[ArqRow]] = defaultdict(list)
        for arq in self.arqs:
            if arq.handle_id is not None:
                arqs[arq.handle_id].append(arq)
        return arqs

    @cached_property
    def handles_of(self) -> dict[int, list[HandleRow]]:
        """Deployable id → its handles."""
        handles: dict[int, list[HandleRow]] = defaultdict(list)
        for handle in self.handles:
            handles[handle.deployable_id].append(handle)
        return handles

    @cached_property
    def deployables_of(self) -> dict[int, list[DeployableRow]]:
        """Host id → its deployables."""
        deployables: dict[int, list[DeployableRow]] = defaultdict(list)
        for deployable in self.deployables:
            deployables[self.device_by_id[deployable.device_id].host_id].append(deployable)
        return deployables

    @cached_property
    def providers(self) -> frozenset[str]:
        """The uuids of all our providers."""
        return frozenset(
            deployable.rp_uuid for deployable in self.deployables if deployable.rp_uuid is not None
        )

    @cached_property
    def bound_units(self) -> dict[str, Counter[str]]:
        """Provider → instance → how many ARQs bind a unit there, or are about to."""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for arq in self.arqs:
            if arq.binds and arq.rp_uuid is not None and arq.instance_uuid is not None:
                counts[arq.rp_uuid][arq.instance_uuid] += 1
        return counts

    @cached_property
    def owed_units(self) -> dict[str, Counter[str]]:
        """The same of those only whose allocation must stand by now."""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for arq in self.arqs:
            if arq.binds and arq.rp_uuid and arq.instance_uuid and not arq.hidden:
                counts[arq.rp_uuid][arq.instance_uuid] += 1
        return counts

    @cached_property
    def release_of(self) -> dict[int, WorkRow]:
        """Handle id → the work that is to release it."""
        return {
            work.handle_id: work
            for work in self.work
            if work.kind == WorkKind.RELEASE and work.handle_id is not None
        }

    def host_of(self, deployable_id: int | None) -> HostRow | None:
        """The host of a deployable, None for one that is not there."""
        deployable = self.deployable_by_id.get(deployable_id or 0)
        if deployable is None:
            return None
        return self.host_by_id[self.device_by_id[deployable.device_id].host_id]

    def place_of(self, arq: ArqRow) -> str | None:
        """The name of the host where an ARQ has its unit, or wants it."""
        handle = self.handle_by_id.get(arq.handle_id or 0)
        host = self.host_of(handle.deployable_id if handle else arq.deployable_id)
        return host.name if host else arq.hostname

    def offers(self, deployable: DeployableRow) -> bool:
        """Whether units of a deployable may be given out at all."""
        return self._standing(deployable).offered

    def desired(self, deployable: DeployableRow) -> Provider:
        """What Placement shall show of a deployable, once its agent has published it."""
        handles = self.handles_of.get(deployable.id, [])
        units = [Unit(handle.state, handle.lost) for handle in handles]
        return Provider(
            uuid=deployable.rp_uuid or "",
            name=deployable.name,
            resource_class=deployable.resource_class,
            total=len(handles),
            reserved=reserved(self._standing(deployable), units),
            traits=deployable.traits,
        )

    def claimable(self, deployable: DeployableRow) -> int:
        """How many units the next binds may have: free or about to be, and promised to nobody."""
        if not self.offers(deployable):
            return 0
        return sum(
            1
            for handle in self.handles_of.get(deployable.id, [])
            if handle.state in (HandleState.FREE, HandleState.RELEASING)
            and not handle.lost
            and handle.id not in self.holders
        )

    def _standing(self, deployable: DeployableRow) -> Standing:
        device = self.device_by_id[deployable.device_id]
        return Standing(
            device.status,
            lost=device.lost_age is not None or deployable.lost,
            driver=self._driver_states.get((device.host_id, device.driver)),
            disabled=self.host_by_id[device.host_id].disabled,
            health=device.health,
        )

    @cached_property
    def _driver_states(self) -> dict[tuple[int, str], str]:
        return {(driver.host_id, driver.name): driver.state for driver in self.drivers}
