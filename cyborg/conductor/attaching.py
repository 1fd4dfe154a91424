# SPDX-License-Identifier: Apache-2.0
"""Attaching accelerators to an instance that exists, and detaching them: what is decided at once.

Nova and Placement are asked first; then one transaction claims everything, or hides what is to go,
and leaves the rest to ``cyborg.conductor.attachwork``. Whatever is refused has changed nothing.
Lock order is instance, ARQs, handles, each by id.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from cyborg import exception
from cyborg.clients.allocations import Allocations
from cyborg.clients.nova import Nova, Server
from cyborg.conductor import attachable
from cyborg.conductor.operations import known
from cyborg.db import (
    arq_moves,
    attach_handles,
    attaching,
    events,
    hosts,
    instances,
    offers,
    operations,
    profile_moves,
    work,
)
from cyborg.db.bulk import Record
from cyborg.db.engine import Database, retried
from cyborg.db.models import Arq
from cyborg.model import device_profile, wire
from cyborg.model.arq import State, arq_uuids
from cyborg.model.attaching import Plan, Step
from cyborg.model.caller import Caller
from cyborg.model.device import DeviceStatus
from cyborg.model.operation import HostResult, Operation, ResultState
from cyborg.model.work import WorkKind

#: An attach that loses the race for a new instance's row looks again; the winner is there then.
_LOOKS = 3


@dataclass(frozen=True)
class _Asked:
    """One attach: who asks for which profile for which server, and where it could be placed."""

    caller: Caller
    operation: str
    server: Server
    profile: str
    wanted: profile_moves.Wanted
    ways: Sequence[Mapping[int, str]]

    def refuse(self, reason: str) -> exception.CannotAttach:
        return exception.CannotAttach(instance=self.server.uuid, reason=reason)


@dataclass(frozen=True)
class _Unit:
    """One ARQ about to be made, and the handle that it gets."""

    uuid: str
    group: int
    offer: Record
    handle: attach_handles.Claimed

    @property
    def prepares(self) -> bool:
        return bool(self.offer.prepare) or self.handle.waits


class Attacher:
    """Begins attaching and detaching; ``wake`` is called when work waits after a commit.

    ``bind_timeout`` is the time in milliseconds that a host has for its preparations,
    ``down_after`` how long an agent may be silent, in milliseconds, before it is down.
    """

    def __init__(
        self,
        *,
        db: Database,
        nova: Nova,
        placement: Allocations,
        wake: Callable[[], None],
        bind_timeout: int,
        down_after: int,
    ) -> None:
        self._db = db
        self._nova = nova
        self._placement = placement
        self._wake = wake
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
                begun = self._begin(asked)
            except exception.Conflict as error:
                looks -= 1
                # Only the database's own Conflict: a rival was faster, or this very operation.
                if type(error) is not exception.Conflict or not looks:
                    raise
                begun = self._known(caller, operation, WorkKind.ATTACH)
        self._wake()
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
        self._wake()
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
    ) -> _Asked:
        """Ask everybody, before anything is touched."""
        server = self._server(caller, instance_uuid)
        with self._db.reader() as tx:
            # Once more under lock; here it is the better answer than that of a reboot's state.
            attachable.check_alone(tx, instance_uuid)
        attachable.check_ready(server)
        if server.profile is None:
            raise exception.CannotAttach(
                instance=server.uuid,
                reason="its flavor names no device profile (accel:device_profile), and only then "
                "does Nova hand a guest the accelerators that are listed for it",
            )
        profile = profile_name or server.profile
        with self._db.reader() as tx:
            wanted = profile_moves.wanted(tx, profile, operation)
        if wanted is None:
            raise exception.NotFound(noun="Device profile", key=profile)
        root = self._placement.find_by_name(server.node or "")
        ways = [] if root is None else self._placement.candidates(root.uuid, wanted.groups)
        return _Asked(caller, operation, server, profile, wanted, ways)

    @retried
    def _begin(self, asked: _Asked) -> Operation:
        """Claim everything and leave the rest to be done, in one transaction."""
        server = asked.server
        with self._db.writer() as tx:
            bound = instances.lock(tx, [server.uuid])
            begun = known(tx, asked.caller, asked.operation, WorkKind.ATTACH.value)
            if begun is not None:
                return begun
            attachable.check_alone(tx, server.uuid)
            units = self._claim(tx, asked)
            _check_types(tx, asked, units)
            self._check_agent(tx, units)
            if server.uuid not in bound or not bound[server.uuid].bound:
                row = {
                    "uuid": server.uuid,
                    "project_id": server.project_id,
                    "hostname": server.node,
                    "operation_id": asked.operation,
                }
                instances.bind(tx, self._db.now, bound, [row])
            self._store(tx, asked, units)
            return self._operation(tx, asked.caller, asked.operation, server, verb=WorkKind.ATTACH)

    def _claim(self, tx: sa.Connection, asked: _Asked) -> list[_Unit]:
        way, found = _choose(tx, asked)
        groups = [
            index
            for index in sorted(way)
            for _ in range(device_profile.units(asked.wanted.groups[index]))
        ]
        free: dict[int, list[attach_handles.Claimed]] = {}
        for offer in sorted(found.values(), key=lambda one: int(one.id)):
            count = sum(1 for index in groups if way[index] == offer.rp_uuid)
            # Nothing was skipped before, so that there is no harm in waiting for rivals.
            free[offer.id] = attach_handles.claim(tx, offer.id, count, wait=True)
            if len(free[offer.id]) < count:
                raise exception.NoFreeHandle(provider=offer.rp_uuid, wanted=count)
        uuids = arq_uuids(asked.operation, len(groups))
        return [
            _Unit(uuid, index, found[way[index]], free[found[way[index]].id].pop(0))
            for uuid, index in zip(uuids, groups, strict=True)
        ]

    def _check_agent(self, tx: sa.Connection, units: Sequence[_Unit]) -> None:
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

    def _store(self, tx: sa.Connection, asked: _Asked, units: Sequence[_Unit]) -> None:
        server, now = asked.server, self._db.now
        attach_handles.hold(tx, [one.handle.id for one in units if not one.handle.waits])
        arq_moves.insert(tx, [_arq(asked, one) for one in units])
        plan = Plan(
            Step.PREPARE,
            tuple(one.uuid for one in units),
            server.node or "",
            {one.offer.rp_uuid: one.offer.resource_class for one in units},
        )
        preparing = [self._preparation(asked, one) for one in units if one.prepares]
        work.add(tx, now, [*preparing, _work(WorkKind.ATTACH, asked.operation, server, plan)])
        entries = [
            events.Entry(
                "arq",
                one.uuid,
                State.BIND_STARTED.value,
                instance_uuid=server.uuid,
                hostname=server.node,
            )
            for one in units
        ]
        events.record(
            tx,
            now,
            [*entries, _entry(server, "attach")],
            caller=asked.caller,
            operation=asked.operation,
        )

    def _preparation(self, asked: _Asked, unit: _Unit) -> dict[str, Any]:
        return {
            "kind": WorkKind.PREPARE,
            "instance_uuid": asked.server.uuid,
            "arq_uuid": unit.uuid,
            "operation_id": asked.operation,
            "host_id": unit.offer.host_id,
            "deployable_id": unit.offer.id,
            "attach_handle_id": unit.handle.id,
            "spec": device_profile.wishes(asked.wanted.groups[unit.group]),
            "deadline_in": self._bind_timeout,
        }

    @retried
    def _hide(
        self, caller: Caller, operation: str, server: Server, arq_uuid: str | None
    ) -> Operation:
        """Take what is to go off the instance's list; its handles are held until it is gone."""
        with self._db.writer() as tx:
            instances.lock(tx, [server.uuid])
            begun = known(tx, caller, operation, WorkKind.DETACH.value)
            if begun is not None:
                return begun
            attachable.check_alone(tx, server.uuid)
            terms = [Arq.instance_uuid == server.uuid]
            terms += [] if arq_uuid is None else [Arq.uuid == arq_uuid]
            rows = arq_moves.lock(tx, *terms)
            if arq_uuid is not None:
                attachable.check_one(server, arq_uuid, rows)
            rows = [one for one in rows if one.origin == attaching.ATTACHED]
            if rows:
                attachable.check_ready(server)
                arq_moves.hide(tx, [one.id for one in rows], hidden=True)
                uuids = tuple(one.uuid for one in rows)
                providers = attaching.providers(tx, uuids)
                plan = Plan(Step.REBOOT, uuids, server.node or "", providers, leaving=True)
                work.add(tx, self._db.now, [_work(WorkKind.DETACH, operation, server, plan)])
            entry = _entry(server, "detach" if rows else "nothing to detach")
            events.record(tx, self._db.now, [entry], caller=caller, operation=operation)
            begun = self._operation(tx, caller, operation, server, verb=WorkKind.DETACH)
            return begun if rows else self._nothing(tx, operation, server)

    def _operation(
        self, tx: sa.Connection, caller: Caller, operation: str, server: Server, *, verb: WorkKind
    ) -> Operation:
        """Store the operation that begins here."""
        host = server.node or ""
        operations.begin(tx, self._db.now, caller, uuid=operation, verb=verb.value, hosts=[host])
        begun = operations.show(tx, operation)
        assert begun is not None
        return begun

    def _nothing(self, tx: sa.Connection, operation: str, server: Server) -> Operation:
        """End an operation that has nothing to do."""
        done = HostResult(server.node or "", ResultState.SUCCEEDED, {"arqs": []})
        operations.end(tx, self._db.now, operation, done)
        ended = operations.show(tx, operation)
        assert ended is not None
        return ended


def _choose(tx: sa.Connection, asked: _Asked) -> tuple[Mapping[int, str], dict[str, Record]]:
    """The first way that leads to devices of ours that are offered."""
    found = offers.by_provider(tx, {rp for way in asked.ways for rp in way.values()})
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
    )


def _check_types(tx: sa.Connection, asked: _Asked, units: Sequence[_Unit]) -> None:
    """Older Nova drops all accelerators of a guest when their attach types are mixed."""
    new = attaching.types_of(tx, [one.handle.id for one in units])
    held = attaching.attach_types(tx, asked.server.uuid)
    if len(held | new) > 1:
        has = " and ".join(sorted(held)) or "none yet"
        raise asked.refuse(
            f"attach types must not be mixed: it has {has}, device profile {asked.profile} would "
            f"bring {' and '.join(sorted(new))}"
        )


def _arq(asked: _Asked, unit: _Unit) -> dict[str, Any]:
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


def _work(kind: WorkKind, operation: str, server: Server, plan: Plan) -> dict[str, Any]:
    return {
        "kind": kind,
        "instance_uuid": server.uuid,
        "operation_id": operation,
        "spec": wire.dump(plan),
    }


def _entry(server: Server, action: str) -> events.Entry:
    return events.Entry(
        "instance", server.uuid, action, instance_uuid=server.uuid, hostname=server.node
    )
