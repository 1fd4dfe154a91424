# SPDX-License-Identifier: Apache-2.0
"""Attach accelerators to existing instances and detach them: checks, claims and the operation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from cyborg import exception
from cyborg.clients.allocations import Allocations
from cyborg.clients.nova import Nova, Server
from cyborg.conductor.arqs import images
from cyborg.conductor.operations.operations import Done, Operations, Order, Place, Task, known
from cyborg.db import (
    arqs,
    attach_handles,
    attaching,
    deployables,
    device_profiles,
    events,
    hosts,
    instances,
    work,
)
from cyborg.db.base import Record
from cyborg.db.engine import Database
from cyborg.db.models import Arq
from cyborg.model import device_profile, health, wire
from cyborg.model.arq import State, arq_uuids
from cyborg.model.attaching import Plan, Step
from cyborg.model.caller import Caller
from cyborg.model.device import DeviceStatus
from cyborg.model.operation import Operation
from cyborg.model.work import WorkKind

#: In these Nova takes what is listed: at once by a hard reboot, or when the server is started.
_READY = frozenset({"ACTIVE", "SHUTOFF"})


def check_ready(server: Server) -> None:
    """Raise CannotAttach unless Nova would carry out a hard reboot of the server, or need none."""
    reason = None
    if server.status not in _READY:
        reason = f"it is {server.status}; it must be {' or '.join(sorted(_READY))}"
    elif server.task is not None:
        reason = f"Nova is busy with it ({server.task}); try again when that is over"
    elif server.node is None:
        reason = "it has no host"
    if reason is not None:
        raise exception.CannotAttach(instance=server.uuid, reason=reason)


def check_one(server: Server, arq_uuid: str, rows: Sequence[Record]) -> None:
    """Raise NotFound or CannotAttach unless attach made the one request that ``rows`` may hold."""
    if not rows:
        raise exception.NotFound(noun="Accelerator request", key=arq_uuid)
    if rows[0].origin != attaching.ATTACHED:
        raise exception.CannotAttach(
            instance=server.uuid,
            reason=f"accelerator request {arq_uuid} came with its flavor or a port, and only what "
            "was attached can be detached",
        )


def check_alone(tx: sa.Connection, instance_uuid: str) -> None:
    """Raise CannotAttach while another attach or detach is at work on the instance."""
    rival = attaching.busy(tx, instance_uuid)
    if rival is not None:
        raise exception.CannotAttach(
            instance=instance_uuid, reason=f"operation {rival.operation_id} ({rival.kind}) is at it"
        )


@dataclass(frozen=True)
class Asked:
    """One attach: who asks for which profile for which server, and where it could be placed."""

    caller: Caller
    operation: str
    server: Server
    profile: str
    wanted: device_profiles.Wanted
    ways: Sequence[Mapping[int, str]]

    def refuse(self, reason: str) -> exception.CannotAttach:
        """The error that tells why not."""
        return exception.CannotAttach(instance=self.server.uuid, reason=reason)


@dataclass(frozen=True)
class Unit:
    """One ARQ about to be made, and the handle that it gets."""

    uuid: str
    group: int
    offer: Record
    handle: attach_handles.Claimed
    #: Whether an image is loaded, or being loaded, before the guest may have it.
    loads: bool

    @property
    def prepares(self) -> bool:
        """Whether its host has work to do before it is the guest's."""
        return bool(self.offer.prepare) or self.handle.waits or self.loads


def claim(tx: sa.Connection, asked: Asked) -> list[Unit]:
    """A handle for each ARQ to be, by the first way that leads to free devices.

    Raises CannotAttach when no way does, or attach types would be mixed, and NoFreeHandle.
    """
    way, found = _choose(tx, asked)
    groups = [
        index
        for index in sorted(way)
        for _ in range(device_profile.units(asked.wanted.groups[index]))
    ]
    uuids = arq_uuids(asked.operation, len(groups))
    wishes = [images.requested_image(asked.wanted.groups[index]) for index in groups]
    loading = {
        offer.id: images.admit(
            tx,
            offer,
            {
                uuid: wish
                for uuid, wish, index in zip(uuids, wishes, groups, strict=True)
                if way[index] == offer.rp_uuid
            },
        )
        for offer in sorted(found.values(), key=lambda one: int(one.id))
    }
    free: dict[int, list[attach_handles.Claimed]] = {}
    for offer in sorted(found.values(), key=lambda one: int(one.id)):
        count = sum(1 for index in groups if way[index] == offer.rp_uuid)
        # Nothing was skipped before, so that there is no harm in waiting for rivals.
        free[offer.id] = attach_handles.claim(tx, offer.id, count, wait=True)
        if len(free[offer.id]) < count:
            raise exception.NoFreeHandle(provider=offer.rp_uuid, wanted=count)
    units = [
        Unit(
            uuid,
            index,
            found[way[index]],
            free[found[way[index]].id].pop(0),
            loading[found[way[index]].id],
        )
        for uuid, index in zip(uuids, groups, strict=True)
    ]
    _check_types(tx, asked, units)
    return units


def keep(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    asked: Asked,
    units: Sequence[Unit],
    *,
    bind_timeout: int,
) -> None:
    """Hold the handles and make the ARQs; what has to be prepared for them is work of the hosts.

    ``bind_timeout`` is the time in milliseconds that a host has for it.
    """
    attach_handles.hold(tx, [one.handle.id for one in units if not one.handle.waits])
    arqs.insert(tx, [_arq(asked, one) for one in units])
    work.add(tx, now, [_preparation(asked, one, bind_timeout) for one in units if one.prepares])
    begun = State.BIND_STARTED.value
    server = asked.server
    entries = [
        events.Entry(
            "arq",
            one.uuid,
            begun,
            instance_uuid=server.uuid,
            hostname=server.node,
            device_uuid=one.offer.device_uuid,
        )
        for one in units
    ]
    events.record(tx, now, entries, caller=asked.caller, operation=asked.operation)


def _preparation(asked: Asked, unit: Unit, bind_timeout: int) -> dict[str, Any]:
    return {
        "kind": WorkKind.PREPARE,
        "instance_uuid": asked.server.uuid,
        "arq_uuid": unit.uuid,
        "operation_id": asked.operation,
        "host_id": unit.offer.host_id,
        "deployable_id": unit.offer.id,
        "attach_handle_id": unit.handle.id,
        "spec": device_profile.wishes(asked.wanted.groups[unit.group]),
        "deadline_in": bind_timeout,
    }


def _choose(tx: sa.Connection, asked: Asked) -> tuple[Mapping[int, str], dict[str, Record]]:
    """The first way that leads to devices of ours that are offered."""
    found = deployables.by_provider(tx, {rp for way in asked.ways for rp in way.values()})
    for way in asked.ways:
        if all(_is_offered(found.get(rp)) for rp in way.values()):
            return way, {rp: found[rp] for rp in way.values()}
    raise asked.refuse(
        f"its host {asked.server.node} has no free accelerators for device profile {asked.profile}"
    )


def _is_offered(offer: Record | None) -> bool:
    return (
        offer is not None
        and offer.status == DeviceStatus.ENABLED
        and offer.lost_ms is None
        and offer.device_lost_ms is None
        and offer.publish_error is None
        and not offer.host_disabled
        and health.offered(offer.health)
    )


def _check_types(tx: sa.Connection, asked: Asked, units: Sequence[Unit]) -> None:
    """Older Nova drops all accelerators of a guest when their attach types are mixed."""
    new = attaching.types_of(tx, [one.handle.id for one in units])
    held = attaching.attach_types(tx, asked.server.uuid)
    if len(held | new) > 1:
        has = " and ".join(sorted(held)) or "none yet"
        raise asked.refuse(
            f"attach types must not be mixed: it has {has}, device profile {asked.profile} would "
            f"bring {' and '.join(sorted(new))}"
        )


def _arq(asked: Asked, unit: Unit) -> dict[str, Any]:
    return {
        "uuid": unit.uuid,
        "state": State.BIND_STARTED.value,
        "project_id": asked.server.project_id,
        "device_profile_id": asked.wanted.id,
        "device_profile_group_id": unit.group,
        "group_spec": asked.wanted.groups[unit.group],
        "hostname": asked.server.node,
        "device_rp_uuid": unit.offer.rp_uuid,
        "instance_uuid": asked.server.uuid,
        "attach_handle_id": unit.handle.id,
        "deployable_id": unit.offer.id,
        # As with a bind: where the last guest's traces are still being removed, the work sets it.
        "prepared": bool(unit.offer.prepare) and not unit.handle.waits,
        "origin": attaching.ATTACHED,
        "hidden": True,
        "operation_id": asked.operation,
        "created_at": datetime.now(UTC).replace(tzinfo=None, microsecond=0),
    }


#: An attach that loses the race for a new instance's row looks again; the winner is there then.
_LOOKS = 3


class Attacher:
    """Begins attaching and detaching.

    ``bind_timeout`` is the time in milliseconds that a host has for its preparations,
    ``down_after`` how long an agent may be silent, in milliseconds, before it is down.
    """

    def __init__(
        self,
        *,
        db: Database,
        nova: Nova,
        placement: Allocations,
        operations: Operations,
        bind_timeout: int,
        down_after: int,
    ) -> None:
        self._db = db
        self._nova = nova
        self._placement = placement
        self._operations = operations
        self._bind_timeout = bind_timeout
        self._down_after = down_after

    def attach(
        self, caller: Caller, operation: str, instance_uuid: str, profile_name: str | None
    ) -> Operation:
        """Begin to attach what a profile asks for (None: the one of the flavor), all or nothing.

        Raises what ``ConductorClient.attach`` lists. A repeated operation changes nothing more.
        """
        begun = self._known(caller, operation, WorkKind.ATTACH)
        looks = _LOOKS
        while begun is None:
            asked = self._ask(caller, operation, instance_uuid, profile_name)
            try:
                begun = self._take(asked)
            except exception.Conflict as error:
                looks -= 1
                # Only the database's own Conflict: a rival was faster, or this very operation.
                if type(error) is not exception.Conflict or not looks:
                    raise
                begun = self._known(caller, operation, WorkKind.ATTACH)
        return begun

    def detach(
        self, caller: Caller, operation: str, instance_uuid: str, arq_uuid: str | None
    ) -> Operation:
        """Begin to detach one ARQ that attach made, or all of them (None); none is fine.

        Raises what ``ConductorClient.detach`` lists. A repeated operation changes nothing more.
        """
        begun = self._known(caller, operation, WorkKind.DETACH)
        if begun is None:
            server = self._server(caller, instance_uuid)
            begun = self._hide(caller, operation, server, arq_uuid)
        return begun

    def _known(self, caller: Caller, operation: str, verb: WorkKind) -> Operation | None:
        """What this id has begun before; raises Conflict when that was something else."""
        with self._db.reader() as tx:
            return known(tx, caller, operation, verb.value)

    def _server(self, caller: Caller, instance_uuid: str) -> Server:
        server = self._nova.server(instance_uuid)
        foreign = server is not None and server.project_id != caller.project_id
        if server is None or (foreign and not caller.everywhere):
            raise exception.NotFound(noun="Instance", key=instance_uuid)
        return server

    def _ask(
        self, caller: Caller, operation: str, instance_uuid: str, profile_name: str | None
    ) -> Asked:
        """Ask everybody, before anything is touched."""
        server = self._server(caller, instance_uuid)
        with self._db.reader() as tx:
            # Once more under lock; here it is the better answer than that of a reboot's state.
            check_alone(tx, instance_uuid)
        check_ready(server)
        if server.profile is None:
            raise exception.CannotAttach(
                instance=server.uuid,
                reason="its flavor names no device profile (accel:device_profile), and only then "
                "does Nova hand a guest the accelerators that are listed for it",
            )
        profile = profile_name or server.profile
        with self._db.reader() as tx:
            wanted = device_profiles.wanted(tx, profile, operation)
        if wanted is None:
            raise exception.NotFound(noun="Device profile", key=profile)
        root = self._placement.find_by_name(server.node or "")
        ways = [] if root is None else self._placement.candidates(root.uuid, wanted.groups)
        return Asked(caller, operation, server, profile, wanted, ways)

    def _take(self, asked: Asked) -> Operation:
        """Claim everything and leave the rest to be done, in one transaction."""
        server = asked.server

        def plan(tx: sa.Connection) -> list[Task]:
            bound = instances.lock(tx, [server.uuid])
            check_alone(tx, server.uuid)
            units = claim(tx, asked)
            self._check_agent(tx, units)
            if server.uuid not in bound or not bound[server.uuid].bound:
                row = {
                    "uuid": server.uuid,
                    "project_id": server.project_id,
                    "hostname": server.node,
                    "operation_id": asked.operation,
                }
                instances.bind(tx, self._db.now, bound, [row])
            keep(tx, self._db.now, asked, units, bind_timeout=self._bind_timeout)
            self._record(tx, asked.caller, asked.operation, _entry(server, "attach"))
            providers = {one.offer.rp_uuid: one.offer.resource_class for one in units}
            uuids = tuple(one.uuid for one in units)
            return [
                _task(server, WorkKind.ATTACH, Plan(Step.PREPARE, uuids, _node(server), providers))
            ]

        order = Order(asked.caller, asked.operation, WorkKind.ATTACH.value)
        return self._operations.begin(order, plan)

    def _check_agent(self, tx: sa.Connection, units: Sequence[Unit]) -> None:
        """Raise Unavailable, naming the host, if its agent is needed now and is down."""
        for host_id in sorted({int(one.offer.host_id) for one in units if one.prepares}):
            agent = hosts.agent_of(tx, self._db.now, self._down_after, host_id)
            if agent is None or not agent.up:
                name = hosts.name_of(tx, host_id)
                raise exception.Unavailable(
                    peer=f"The agent of {name}",
                    reason="it is down, and it would have to prepare the accelerators; nothing was "
                    "changed. Repeat it when the agent is back.",
                )

    def _hide(
        self, caller: Caller, operation: str, server: Server, arq_uuid: str | None
    ) -> Operation:
        """Take what is to go off the instance's list; its handles are held until it is gone."""

        def plan(tx: sa.Connection) -> list[Task | Done]:
            instances.lock(tx, [server.uuid])
            check_alone(tx, server.uuid)
            terms = [Arq.instance_uuid == server.uuid]
            terms += [] if arq_uuid is None else [Arq.uuid == arq_uuid]
            rows = arqs.lock(tx, *terms)
            if arq_uuid is not None:
                check_one(server, arq_uuid, rows)
            rows = [one for one in rows if one.origin == attaching.ATTACHED]
            if not rows:
                self._record(tx, caller, operation, _entry(server, "nothing to detach"))
                about = {"instance": server.uuid}
                return [Done(Place(_node(server)), {"arqs": []}, about)]
            check_ready(server)
            arqs.hide(tx, [one.id for one in rows], hidden=True)
            self._record(tx, caller, operation, _entry(server, "detach"))
            uuids = tuple(one.uuid for one in rows)
            providers = attaching.providers(tx, uuids)
            going = Plan(Step.REBOOT, uuids, _node(server), providers, leaving=True)
            return [_task(server, WorkKind.DETACH, going)]

        return self._operations.begin(Order(caller, operation, WorkKind.DETACH.value), plan)

    def _record(
        self, tx: sa.Connection, caller: Caller, operation: str, entry: events.Entry
    ) -> None:
        events.record(tx, self._db.now, [entry], caller=caller, operation=operation)


def _node(server: Server) -> str:
    return server.node or ""


def _task(server: Server, kind: WorkKind, plan: Plan) -> Task:
    """The work of an instance, which may take as long as it takes."""
    spec = wire.dump(plan)
    about = {"instance": server.uuid}
    place = Place(_node(server))
    return Task(place, kind, spec, patient=True, instance=server.uuid, about=about)


def _entry(server: Server, action: str) -> events.Entry:
    return events.Entry(
        "instance", server.uuid, action, instance_uuid=server.uuid, hostname=server.node
    )
