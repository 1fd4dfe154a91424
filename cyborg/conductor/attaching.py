# SPDX-License-Identifier: Apache-2.0
"""Attaching accelerators to an instance that exists, and detaching them: what is decided at once.

Nova and Placement are asked first; then one transaction claims everything, or hides what is to go,
and leaves the rest to ``cyborg.conductor.attachwork``. Whatever is refused has changed nothing.
Lock order is instance, ARQs, handles, each by id.
"""

from collections.abc import Sequence

import sqlalchemy as sa

from cyborg import exception
from cyborg.clients.allocations import Allocations
from cyborg.clients.nova import Nova, Server
from cyborg.conductor import attach_claims, attachable
from cyborg.conductor.attach_claims import Asked, Unit
from cyborg.conductor.operations import Done, Operations, Order, Place, Task, known
from cyborg.db import arq_moves, attaching, events, hosts, instances, profile_moves
from cyborg.db.engine import Database
from cyborg.db.models import Arq
from cyborg.model import wire
from cyborg.model.attaching import Plan, Step
from cyborg.model.caller import Caller
from cyborg.model.operation import Operation
from cyborg.model.work import WorkKind

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
        return Asked(caller, operation, server, profile, wanted, ways)

    def _take(self, asked: Asked) -> Operation:
        """Claim everything and leave the rest to be done, in one transaction."""
        server = asked.server

        def plan(tx: sa.Connection) -> list[Task]:
            bound = instances.lock(tx, [server.uuid])
            attachable.check_alone(tx, server.uuid)
            units = attach_claims.claim(tx, asked)
            self._check_agent(tx, units)
            if server.uuid not in bound or not bound[server.uuid].bound:
                row = {
                    "uuid": server.uuid,
                    "project_id": server.project_id,
                    "hostname": server.node,
                    "operation_id": asked.operation,
                }
                instances.bind(tx, self._db.now, bound, [row])
            attach_claims.keep(tx, self._db.now, asked, units, bind_timeout=self._bind_timeout)
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
            attachable.check_alone(tx, server.uuid)
            terms = [Arq.instance_uuid == server.uuid]
            terms += [] if arq_uuid is None else [Arq.uuid == arq_uuid]
            rows = arq_moves.lock(tx, *terms)
            if arq_uuid is not None:
                attachable.check_one(server, arq_uuid, rows)
            rows = [one for one in rows if one.origin == attaching.ATTACHED]
            if not rows:
                self._record(tx, caller, operation, _entry(server, "nothing to detach"))
                about = {"instance": server.uuid}
                return [Done(Place(_node(server)), {"arqs": []}, about)]
            attachable.check_ready(server)
            arq_moves.hide(tx, [one.id for one in rows], hidden=True)
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
