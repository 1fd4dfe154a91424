# SPDX-License-Identifier: Apache-2.0
"""Clouds in which everything holds, of as many parts as wanted, and what peers show of them."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from uuid import UUID, uuid5

from cyborg.conductor.audit.placement_view import HostView, ProviderView
from cyborg.model.arq import State
from cyborg.model.provider import provider_uuid
from cyborg.model.work import WorkKind
from cyborg.tests.oracle.rows import (
    ArqRow,
    AuditViews,
    DeployableRow,
    DeviceRow,
    DriverRow,
    HandleRow,
    HostRow,
    Snapshot,
    WorkRow,
)

MINUTE = 60_000
HOUR = 60 * MINUTE
RESOURCE_CLASS = "CUSTOM_CARD"
#: What others put on our providers, and beside them.
FOREIGN_TRAIT = "CUSTOM_SOMEBODY_ELSES"
FOREIGN_PROVIDER = "5f3b6a3e-7c1d-4e9c-9d0b-8c2f1a6b7d10"
_SPACE = UUID("6f1f6f0e-3c39-4b6e-8f6e-0d6c2f6a1b11")


class Unit(StrEnum):
    """What may be going on with one unit of a card while all is well."""

    FREE = "free"
    SCHEDULED = "scheduled"  # allocated, and not bound yet
    BOUND = "bound"
    STARTED = "started"  # its host prepares it
    CLEANED = "cleaned"  # its host releases it
    AWAITED = "awaited"  # the same, and the next ARQ has it already
    LOST = "lost"
    LOST_UNDER_GUEST = "lost under guest"


_RELEASED = (Unit.CLEANED, Unit.AWAITED)
_ARQ = {
    Unit.BOUND: State.BOUND,
    Unit.STARTED: State.BIND_STARTED,
    Unit.AWAITED: State.BIND_STARTED,
    Unit.LOST_UNDER_GUEST: State.BOUND,
}
_LOST = (Unit.LOST, Unit.LOST_UNDER_GUEST)


@dataclass(frozen=True)
class Card:
    """A card as a test wants it."""

    units: tuple[Unit, ...]
    status: str = "enabled"
    lost_age: int | None = None
    prepare: bool = True


@dataclass(frozen=True)
class Whole:
    """A cloud and what its peers show."""

    cloud: Snapshot
    peers: AuditViews


def root_of(host: str) -> str:
    """The uuid of a compute's own provider."""
    return str(uuid5(_SPACE, host))


@dataclass
class _Builder:
    hosts: list[HostRow] = field(default_factory=list)
    devices: list[DeviceRow] = field(default_factory=list)
    deployables: list[DeployableRow] = field(default_factory=list)
    handles: list[HandleRow] = field(default_factory=list)
    arqs: list[ArqRow] = field(default_factory=list)
    work: list[WorkRow] = field(default_factory=list)
    allocations: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    prepared: dict[str, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))
    made: int = 0

    def uuid(self) -> str:
        """The next one, always the same for the same calls."""
        self.made += 1
        return str(uuid5(_SPACE, str(self.made)))

    def card(self, host: HostRow, card: Card) -> None:
        device = DeviceRow(
            len(self.devices) + 1, self.uuid(), host.id, "card", card.status, card.lost_age
        )
        self.devices.append(device)
        name = f"{host.name}_card_{device.id}"
        deployable = DeployableRow(
            id=device.id + 100,
            device_id=device.id,
            name=name,
            rp_uuid=provider_uuid(name),
            resource_class=RESOURCE_CLASS,
            prepare=card.prepare,
            traits=frozenset({"CUSTOM_CARD"}),
        )
        self.deployables.append(deployable)
        for unit in card.units:
            self.unit(host, deployable, unit)

    def unit(self, host: HostRow, deployable: DeployableRow, unit: Unit) -> None:
        handle = HandleRow(
            id=len(self.handles) + 1001,
            uuid=self.uuid(),
            deployable_id=deployable.id,
            key=f"unit-{len(self.handles)}",
            state="releasing" if unit in _RELEASED else "ready",
            lost=unit in _LOST,
        )
        self.handles.append(handle)
        provider = deployable.rp_uuid or ""
        if unit is Unit.SCHEDULED:
            self.allocations[provider][self.uuid()] += 1
        if unit in _RELEASED:
            self.add_work(WorkKind.RELEASE, handle_id=handle.id)
        if unit not in _ARQ:
            return
        instance = self.uuid()
        arq = ArqRow(
            uuid=self.uuid(),
            state=_ARQ[unit],
            instance_uuid=instance,
            hostname=host.name,
            rp_uuid=provider,
            handle_id=handle.id,
            deployable_id=deployable.id,
            prepared=deployable.prepare and unit is not Unit.AWAITED,
            age=HOUR,
        )
        self.arqs.append(arq)
        self.allocations[provider][instance] += 1
        if arq.state == State.BIND_STARTED:
            self.add_work(WorkKind.PREPARE, handle_id=handle.id, arq_uuid=arq.uuid, overdue=-1000)
        elif deployable.prepare:
            self.prepared[host.name].add((deployable.name, handle.key))

    def add_work(
        self,
        kind: WorkKind,
        *,
        handle_id: int | None = None,
        arq_uuid: str | None = None,
        overdue: int | None = None,
    ) -> None:
        self.work.append(
            WorkRow(
                uuid=self.uuid(),
                kind=kind.value,
                age=1000,
                waiting=1000,
                arq_uuid=arq_uuid,
                handle_id=handle_id,
                overdue=overdue,
            )
        )

    def loose_arqs(self, host: HostRow) -> None:
        """ARQs that have nothing, and may be so."""
        self.arqs.append(ArqRow(self.uuid(), State.INITIAL, age=MINUTE))
        self.arqs.append(ArqRow(self.uuid(), State.UNBOUND, age=HOUR))
        instance = self.uuid()
        failed = ArqRow(
            self.uuid(), State.BIND_FAILED, instance, host.name, rp_uuid=self.uuid(), age=HOUR
        )
        self.arqs.append(failed)
        self.add_work(WorkKind.NOTIFY, arq_uuid=failed.uuid)


def build(hosts: Sequence[Sequence[Card]]) -> Whole:
    """A cloud of these hosts with these cards, and Placement and hosts in agreement with it."""
    builder = _Builder()
    for index, cards in enumerate(hosts, start=1):
        host = HostRow(index, f"host-{index}", changed_age=HOUR, agent_silence=1000)
        builder.hosts.append(host)
        for card in cards:
            builder.card(host, card)
        builder.loose_arqs(host)
    cloud = Snapshot(
        hosts=tuple(builder.hosts),
        drivers=tuple(DriverRow(one.id, "card", "READY") for one in builder.hosts),
        devices=tuple(builder.devices),
        deployables=tuple(builder.deployables),
        handles=tuple(builder.handles),
        arqs=tuple(builder.arqs),
        work=tuple(builder.work),
        conductor_silence=500,
    )
    views = {one.name: _view(cloud, one, builder.allocations) for one in cloud.hosts}
    ready = {one.name: frozenset(builder.prepared[one.name]) for one in cloud.hosts}
    # A host may still hold ready what it is about to clean up, or to hand out.
    return Whole(cloud, AuditViews(placement=views, prepared=ready))


def _view(cloud: Snapshot, host: HostRow, allocations: dict[str, Counter[str]]) -> HostView:
    root = root_of(host.name)
    providers = {FOREIGN_PROVIDER: ProviderView(f"{host.name}_0000_81_00_0", root)}
    for one in cloud.deployables_of.get(host.id, []):
        desired = cloud.desired(one)
        providers[desired.uuid] = ProviderView(
            name=one.name,
            parent_uuid=root,
            inventories=desired.inventories(),
            traits=desired.traits | {FOREIGN_TRAIT},
            allocations={
                consumer: {RESOURCE_CLASS: units}
                for consumer, units in allocations[desired.uuid].items()
            },
        )
    return HostView(root, providers)


def reshow(whole: Whole, host: str, provider: str, shown: ProviderView | None) -> Whole:
    """Placement shows one provider otherwise, or not at all."""
    view = whole.peers.placement[host]
    providers = {uuid: one for uuid, one in view.providers.items() if uuid != provider}
    if shown is not None:
        providers[provider] = shown
    views = {**whole.peers.placement, host: HostView(view.root, providers)}
    return Whole(whole.cloud, replace(whole.peers, placement=views))
