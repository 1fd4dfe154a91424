# SPDX-License-Identifier: Apache-2.0
"""One way to damage a cloud for each kind of finding.

A damage takes a cloud in which all holds and a number that chooses among its rows; it gives the
damaged one and the key of what must be found, or None where the cloud has nothing to break so.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from cyborg.conductor.audit.placement_view import HostView, ProviderView
from cyborg.model.arq import State
from cyborg.model.audit_findings import Kind
from cyborg.model.process import AGENT
from cyborg.model.provider import provider_uuid
from cyborg.model.readiness import Process
from cyborg.model.work import WorkKind
from cyborg.tests.oracle.rows import (
    ArqRow,
    DeployableRow,
    HandleRow,
    HostRow,
    WorkRow,
)
from cyborg.tests.unit.model.clouds import HOUR, RESOURCE_CLASS, Whole, reshow

DAY = 24 * HOUR
T = TypeVar("T")
Damaged = tuple[Whole, str]
Damage = Callable[[Whole, int], Damaged]


class NothingToBreak(Exception):
    """A cloud has no such row."""


def _pick(rows: list[T], choice: int) -> T:
    if not rows:
        raise NothingToBreak
    return rows[choice % len(rows)]


def _swap(whole: Whole, table: str, old: Any, *new: Any) -> Whole:
    """Put rows in the place of one."""
    rows = [one for one in getattr(whole.cloud, table) if one is not old]
    changed: dict[str, Any] = {table: (*rows, *new)}
    return replace(whole, cloud=replace(whole.cloud, **changed))


def _arq(whole: Whole, choice: int, *states: State) -> ArqRow:
    return _pick([one for one in whole.cloud.arqs if one.state in states], choice)


def _handle_of(whole: Whole, arq: ArqRow) -> HandleRow:
    return whole.cloud.handle_by_id[arq.handle_id or 0]


def _lone(whole: Whole, choice: int, state: str) -> HandleRow:
    """A handle in a state that no ARQ has."""
    rows = [
        one
        for one in whole.cloud.handles
        if one.state == state and one.id not in whole.cloud.holders and not one.lost
    ]
    return _pick(rows, choice)


def _work(whole: Whole, choice: int, kind: WorkKind) -> WorkRow:
    return _pick([one for one in whole.cloud.work if one.kind == kind], choice)


def _place(whole: Whole, deployable: DeployableRow) -> tuple[HostRow, str, ProviderView]:
    host = whole.cloud.host_of(deployable.id)
    assert host is not None
    provider = deployable.rp_uuid or ""
    return host, provider, whole.peers.placement[host.name].providers[provider]


def _deployable(whole: Whole, choice: int) -> DeployableRow:
    return _pick(list(whole.cloud.deployables), choice)


def _release_without_work(whole: Whole, choice: int) -> Damaged:
    work = _work(whole, choice, WorkKind.RELEASE)
    return _swap(whole, "work", work), whole.cloud.handle_by_id[work.handle_id or 0].uuid


def _refused_release(whole: Whole, choice: int) -> Damaged:
    work = _work(whole, choice, WorkKind.RELEASE)
    handle = whole.cloud.handle_by_id[work.handle_id or 0]
    failing = replace(work, attempts=8, error="it is stuck")
    stuck = _swap(whole, "work", work, failing)
    return _swap(stuck, "handles", handle, replace(handle, state="quarantined")), handle.uuid


def _quarantined_but_bound(whole: Whole, choice: int) -> Damaged:
    arq = _arq(whole, choice, State.BOUND)
    handle = _handle_of(whole, arq)
    return _swap(whole, "handles", handle, replace(handle, state="quarantined")), handle.uuid


def _held_by_a_failed_one(whole: Whole, choice: int) -> Damaged:
    arq = _arq(whole, choice, State.INITIAL, State.UNBOUND, State.BIND_FAILED)
    handle = _lone(whole, choice, "ready")
    return _swap(whole, "arqs", arq, replace(arq, handle_id=handle.id)), arq.uuid


def _bound_to_nothing(whole: Whole, choice: int) -> Damaged:
    arq = _arq(whole, choice, State.BOUND)
    return _swap(whole, "arqs", arq, replace(arq, handle_id=None)), arq.uuid


def _bound_elsewhere(whole: Whole, choice: int) -> Damaged:
    arq = _arq(whole, choice, State.BOUND, State.BIND_STARTED)
    other = provider_uuid("another")
    return _swap(whole, "arqs", arq, replace(arq, rp_uuid=other)), arq.uuid


def _server_deleted(whole: Whole, choice: int) -> Damaged:
    arq = _arq(whole, choice, State.BOUND, State.BIND_FAILED)
    if arq.instance_uuid is None:
        raise NothingToBreak
    gone = frozenset({arq.instance_uuid})
    return replace(whole, peers=replace(whole.peers, vanished=gone)), arq.instance_uuid


def _reserved_lowered(whole: Whole, choice: int) -> Damaged:
    """Placement gives out units that are reserved, or that nobody has."""
    deployable = _deployable(whole, choice)
    host, provider, shown = _place(whole, deployable)
    total = len(whole.cloud.handles_of[deployable.id])
    inventory = {**shown.inventories[RESOURCE_CLASS], "total": 2 * total + 1, "reserved": 0}
    shown = replace(shown, inventories={RESOURCE_CLASS: inventory})
    return reshow(whole, host.name, provider, shown), provider


def _allocation_deleted(whole: Whole, choice: int) -> Damaged:
    arq = _arq(whole, choice, State.BOUND)
    if arq.instance_uuid is None:
        raise NothingToBreak
    host, provider, shown = _place(whole, whole.cloud.deployable_by_id[arq.deployable_id or 0])
    left = {one: of for one, of in shown.allocations.items() if one != arq.instance_uuid}
    shown = replace(shown, allocations=left)
    return reshow(whole, host.name, provider, shown), arq.instance_uuid


def _deployable_deleted(whole: Whole, choice: int) -> Damaged:
    host = whole.cloud.hosts[choice % len(whole.cloud.hosts)]
    name = f"{host.name}_card_forgotten"
    shown = ProviderView(name, whole.peers.placement[host.name].root)
    return reshow(whole, host.name, provider_uuid(name), shown), provider_uuid(name)


def _bind_forgotten(whole: Whole, choice: int) -> Damaged:
    work = _work(whole, choice, WorkKind.PREPARE)
    return _swap(whole, "work", work), work.arq_uuid or ""


def _bind_overdue(whole: Whole, choice: int) -> Damaged:
    work = _work(whole, choice, WorkKind.PREPARE)
    return _swap(whole, "work", work, replace(work, overdue=HOUR)), work.arq_uuid or ""


def _arq_aged(whole: Whole, choice: int) -> Damaged:
    arq = _arq(whole, choice, State.INITIAL, State.UNBOUND)
    return _swap(whole, "arqs", arq, replace(arq, age=2 * DAY)), arq.uuid


def _state_of_old(whole: Whole, choice: int) -> Damaged:
    arq = _arq(whole, choice, State.BIND_FAILED)
    return _swap(whole, "arqs", arq, replace(arq, state="UnbindFailed")), arq.uuid


def _conductors_dead(whole: Whole, choice: int) -> Damaged:
    work = _pick(list(whole.cloud.work), choice)
    waiting = _swap(whole, "work", work, replace(work, waiting=HOUR))
    return replace(waiting, cloud=replace(waiting.cloud, conductor_silence=HOUR)), "work"


def _nova_silent(whole: Whole, choice: int) -> Damaged:
    work = _work(whole, choice, WorkKind.NOTIFY)
    error = "Nova is not available"
    return _swap(whole, "work", work, replace(work, age=HOUR, error=error)), work.arq_uuid or ""


def _compute_gone(whole: Whole, choice: int) -> Damaged:
    deployable = _deployable(whole, choice)
    host, _, _ = _place(whole, deployable)
    views = {**whole.peers.placement, host.name: HostView(None)}
    return replace(whole, peers=replace(whole.peers, placement=views)), host.name


def _provider_gone(whole: Whole, choice: int) -> Damaged:
    deployable = _deployable(whole, choice)
    host, provider, _ = _place(whole, deployable)
    return reshow(whole, host.name, provider, None), provider


def _provider_moved(whole: Whole, choice: int) -> Damaged:
    deployable = _deployable(whole, choice)
    host, provider, shown = _place(whole, deployable)
    moved = replace(shown, parent_uuid=provider_uuid("elsewhere"))
    return reshow(whole, host.name, provider, moved), provider


def _provider_renamed(whole: Whole, choice: int) -> Damaged:
    deployable = _deployable(whole, choice)
    other = provider_uuid("another")
    return _swap(whole, "deployables", deployable, replace(deployable, rp_uuid=other)), other


def _provider_refused(whole: Whole, choice: int) -> Damaged:
    deployable = _deployable(whole, choice)
    refused = replace(deployable, publish_error="claimed")
    return _swap(whole, "deployables", deployable, refused), deployable.rp_uuid or ""


def _trait_lost(whole: Whole, choice: int) -> Damaged:
    deployable = _deployable(whole, choice)
    host, provider, shown = _place(whole, deployable)
    return reshow(whole, host.name, provider, replace(shown, traits=frozenset())), provider


def _trait_lost_just_now(whole: Whole, choice: int) -> Damaged:
    deployable = _deployable(whole, choice)
    damaged = _trait_lost(whole, choice)
    host, _, _ = _place(whole, deployable)
    return _swap(damaged[0], "hosts", host, replace(host, changed_age=1000)), damaged[1]


def _consumer_gone(whole: Whole, choice: int, *, age: int | None) -> Damaged:
    known = {arq.instance_uuid for arq in whole.cloud.arqs}
    consumers = sorted(
        consumer
        for view in whole.peers.placement.values()
        for shown in view.providers.values()
        for consumer in shown.allocations
        if consumer not in known
    )
    consumer = _pick(consumers, choice)
    ages = {} if age is None else {consumer: age}
    peers = replace(whole.peers, vanished=frozenset({consumer}), consumer_ages=ages)
    return replace(whole, peers=peers), consumer


def _holder_unknown(whole: Whole, choice: int) -> Damaged:
    """A server runs on its host, and a restored database does not have its ARQ."""
    known = {arq.instance_uuid for arq in whole.cloud.arqs}
    unknown = sorted(
        (consumer, name, uuid)
        for name, view in whole.peers.placement.items()
        for uuid, shown in view.providers.items()
        for consumer in shown.allocations.keys() - known
    )
    consumer, name, uuid = _pick(unknown, choice)
    return replace(whole, peers=replace(whole.peers, nodes={consumer: name})), uuid


def _allocation_foreign(whole: Whole, choice: int) -> Damaged:
    """A server has a unit because its flavor requests the class, and not by a profile."""
    unknown, _ = _holder_unknown(whole, choice)
    (consumer,) = unknown.peers.nodes
    foreign = {consumer: frozenset(row.resource_class for row in whole.cloud.deployables)}
    return replace(unknown, peers=replace(unknown.peers, foreign=foreign)), consumer


def _handle_suspect(whole: Whole, choice: int) -> Damaged:
    work = _work(whole, choice, WorkKind.RELEASE)
    handle = whole.cloud.handle_by_id[work.handle_id or 0]
    suspect = replace(handle, state="quarantined", suspect=True)
    return _swap(_swap(whole, "work", work), "handles", handle, suspect), handle.uuid


def _guest_bare(whole: Whole, choice: int) -> Damaged:
    """Nova has started a guest after a reboot of its host, without its unit."""
    arq = _pick(
        [
            arq
            for arq in whole.cloud.arqs
            if arq.state == State.BOUND and not _handle_of(whole, arq).lost
        ],
        choice,
    )
    host = whole.cloud.host_of(arq.deployable_id)
    assert host is not None
    instance = arq.instance_uuid or ""
    guests = {instance: (host.name, frozenset[int]())}
    return replace(whole, peers=replace(whole.peers, guests=guests)), instance


def _preparation_lost(whole: Whole, choice: int) -> Damaged:
    arq = _pick(
        [one for one in whole.cloud.arqs if one.state == State.BOUND and one.prepared], choice
    )
    host = whole.cloud.host_of(arq.deployable_id)
    assert host is not None
    nothing = {**whole.peers.prepared, host.name: frozenset[tuple[str, str]]()}
    return replace(whole, peers=replace(whole.peers, prepared=nothing)), arq.uuid


def _preparation_left(whole: Whole, choice: int) -> Damaged:
    handle = _lone(whole, choice, "ready")
    deployable = whole.cloud.deployable_by_id[handle.deployable_id]
    host, _, _ = _place(whole, deployable)
    there = whole.peers.prepared[host.name] | {(deployable.name, handle.key)}
    prepared = {**whole.peers.prepared, host.name: there}
    key = f"{deployable.name}/{handle.key}"
    return replace(whole, peers=replace(whole.peers, prepared=prepared)), key


def _agent_deaf(whole: Whole, choice: int) -> Damaged:
    host = _pick([one for one in whole.cloud.hosts if one.agent_silence is not None], choice)
    seen = whole.cloud.taken_ms
    agent = Process(AGENT, host.name, 0, seen, "403 ACCESS_REFUSED", seen)
    return _swap(whole, "hosts", host, replace(host, agent=agent)), f"{AGENT}@{host.name}"


def _agent_refused(whole: Whole, choice: int) -> Damaged:
    host = _pick([one for one in whole.cloud.hosts if one.agent_silence is not None], choice)
    seen = whole.cloud.taken_ms
    error = "Placement is not available: GET /resource_providers was answered 403"
    agent = Process(AGENT, host.name, 0, seen, publish_error=error, publish_error_ms=seen)
    return _swap(whole, "hosts", host, replace(host, agent=agent)), f"{AGENT}@{host.name}"


def _host_unchecked(whole: Whole, choice: int) -> Damaged:
    host = whole.cloud.hosts[choice % len(whole.cloud.hosts)]
    return _swap(whole, "hosts", host, replace(host, unchecked=True)), host.name


def _agent_dead(whole: Whole, choice: int) -> Damaged:
    host = whole.cloud.hosts[choice % len(whole.cloud.hosts)]
    return _swap(whole, "hosts", host, replace(host, agent_silence=HOUR)), host.name


def _release_stuck(whole: Whole, choice: int) -> Damaged:
    work = _work(whole, choice, WorkKind.RELEASE)
    stuck = _swap(whole, "work", work, replace(work, age=DAY, attempts=9, error="no answer"))
    return stuck, whole.cloud.handle_by_id[work.handle_id or 0].uuid


def _driver_broken(whole: Whole, choice: int) -> Damaged:
    drivers = whole.cloud.drivers
    driver = drivers[choice % len(drivers)]
    broken = replace(driver, name="other", state="FAILED", error="no such library")
    host = whole.cloud.host_by_id[driver.host_id]
    return _swap(whole, "drivers", driver, driver, broken), f"{host.name}/other"


def _device_away(whole: Whole, choice: int) -> Damaged:
    lost = [one for one in whole.cloud.devices if one.lost_age is not None]
    device = _pick(lost, choice)
    return _swap(whole, "devices", device, replace(device, lost_age=30 * DAY)), device.uuid


_DAMAGES: Mapping[Kind, Damage] = {
    Kind.STRANDED_RELEASE: _release_without_work,
    Kind.UNSAFE_HANDLE: _quarantined_but_bound,
    Kind.NEEDLESS_HOLD: _held_by_a_failed_one,
    Kind.EMPTY_BIND: _bound_to_nothing,
    Kind.WRONG_PROVIDER: _bound_elsewhere,
    Kind.VANISHED_INSTANCE: _server_deleted,
    Kind.EXCESS_INVENTORY: _reserved_lowered,
    Kind.UNKNOWN_HOLDER: _holder_unknown,
    Kind.FOREIGN_ALLOCATION: _allocation_foreign,
    Kind.SUSPECT_HANDLE: _handle_suspect,
    Kind.UNALLOCATED: _allocation_deleted,
    Kind.ORPHAN_PROVIDER: _deployable_deleted,
    Kind.FORGOTTEN_BIND: _bind_forgotten,
    Kind.OVERDUE_BIND: _bind_overdue,
    Kind.AGED_ARQ: _arq_aged,
    Kind.OBSOLETE_STATE: _state_of_old,
    Kind.NO_CONDUCTOR: _conductors_dead,
    Kind.NOVA_NOT_NOTIFIED: _nova_silent,
    Kind.NO_COMPUTE: _compute_gone,
    Kind.MISSING_PROVIDER: _provider_gone,
    Kind.MISPLACED_PROVIDER: _provider_moved,
    Kind.MISNAMED_PROVIDER: _provider_renamed,
    Kind.REFUSED_PROVIDER: _provider_refused,
    Kind.DRIFT: _trait_lost,
    Kind.PUBLISHING: _trait_lost_just_now,
    Kind.STALE_ALLOCATION: lambda whole, choice: _consumer_gone(whole, choice, age=DAY),
    Kind.UNDATED_ALLOCATION: lambda whole, choice: _consumer_gone(whole, choice, age=None),
    Kind.UNATTACHED_BIND: _guest_bare,
    Kind.UNPREPARED: _preparation_lost,
    Kind.LEFTOVER: _preparation_left,
    Kind.SILENT_AGENT: _agent_dead,
    Kind.NOT_RECEIVING: _agent_deaf,
    Kind.CANNOT_PUBLISH: _agent_refused,
    Kind.UNCHECKED_HOST: _host_unchecked,
    Kind.STUCK_WORK: _release_stuck,
    Kind.FAILED_DRIVER: _driver_broken,
    Kind.LOST_DEVICE: _device_away,
    Kind.QUARANTINED_HANDLE: _refused_release,
}


def _or_none(damage: Damage) -> Callable[[Whole, int], Damaged | None]:
    def done(whole: Whole, choice: int) -> Damaged | None:
        try:
            return damage(whole, choice)
        except NothingToBreak:
            return None

    return done


#: Every kind of finding has a damage that leads to it.
DAMAGES = {kind: _or_none(damage) for kind, damage in _DAMAGES.items()}
