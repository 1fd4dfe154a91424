# SPDX-License-Identifier: Apache-2.0
"""Begin to attach accelerators to existing instances and to detach them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import sqlalchemy as sa

from cyborg import exception
from cyborg.clients.nova import Nova, Server
from cyborg.clients.placement import Allocations
from cyborg.conductor.arqs import images
from cyborg.conductor.operations.operations import (
    Done,
    HostRef,
    Operations,
    Order,
    Task,
    begun_before,
)
from cyborg.db import (
    arqs,
    attach_handles,
    attachments,
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
from cyborg.model.attachment import Plan, Step
from cyborg.model.caller import Caller
from cyborg.model.device import DeviceStatus
from cyborg.model.operation import Operation
from cyborg.model.work import WorkKind

#: In these states Nova hands over the accelerators: by a hard reboot, or when the server starts.
_READY = frozenset({"ACTIVE", "SHUTOFF"})
#: How often an attach is tried that loses the race to insert the row of an instance. The row of
#: the winner is there at the next attempt.
_ATTEMPTS = 3


@dataclass(frozen=True)
class AttachRequest:
    """An attach with the answers of Nova and Placement.

    ``candidates`` are the possible placements, in Placement's order; each maps the index of a group
    to the uuid of its provider.
    """

    caller: Caller
    request_key: str
    server: Server
    profile_name: str
    profile: device_profiles.ProfileGroups
    candidates: Sequence[Mapping[int, str]]


@dataclass(frozen=True)
class Unit:
    """An ARQ about to be created, and the attach handle that it gets."""

    uuid: str
    group: int
    #: The deployable, with its device and host.
    offer: Record
    handle: attach_handles.Claim
    #: Whether the guest gets the unit only after an image was loaded.
    loads: bool

    @property
    def prepares(self) -> bool:
        """Return whether the host must prepare the unit for the guest."""
        return bool(self.offer.prepare) or self.handle.waits or self.loads


class Attacher:
    """Begin to attach and to detach.

    A host has ``bind_timeout`` milliseconds for its preparations. An agent is down when it has been
    silent for ``down_after`` milliseconds.
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
        self, caller: Caller, request_key: str, instance_uuid: str, profile_name: str | None
    ) -> Operation:
        """Begin to attach all accelerators of a profile (None: that of the flavor), or none.

        Raises what ``ConductorClient.attach`` lists. A repeated request changes nothing more.
        """
        begun = self._begun_before(caller, request_key, WorkKind.ATTACH)
        attempts = _ATTEMPTS
        while begun is None:
            request = self._check_request(caller, request_key, instance_uuid, profile_name)
            try:
                begun = self._begin_attach(request)
            except exception.Conflict as error:
                attempts -= 1
                # Only a Conflict of the database itself: another request was faster, or the same.
                if type(error) is not exception.Conflict or not attempts:
                    raise
                begun = self._begun_before(caller, request_key, WorkKind.ATTACH)
        return begun

    def detach(
        self, caller: Caller, request_key: str, instance_uuid: str, arq_uuid: str | None
    ) -> Operation:
        """Begin to detach one ARQ that attach created, or all of them (None), if there are any.

        Raises what ``ConductorClient.detach`` lists. A repeated request changes nothing more.
        """
        begun = self._begun_before(caller, request_key, WorkKind.DETACH)
        if begun is not None:
            return begun
        server = self._server(caller, instance_uuid)

        def plan(tx: sa.Connection) -> list[Task | Done]:
            instances.lock(tx, [server.uuid])
            _check_alone(tx, server.uuid)
            terms = [Arq.instance_uuid == server.uuid]
            terms += [] if arq_uuid is None else [Arq.uuid == arq_uuid]
            rows = arqs.lock(tx, *terms)
            if arq_uuid is not None and not rows:
                raise exception.NotFound(noun="Accelerator request", key=arq_uuid)
            if arq_uuid is not None and rows[0].origin != attachments.ATTACHED:
                raise exception.CannotAttach(
                    instance=server.uuid,
                    reason=f"accelerator request {arq_uuid} came with its flavor or a port, and "
                    "only an attached accelerator can be detached",
                )
            rows = [row for row in rows if row.origin == attachments.ATTACHED]
            if not rows:
                self._record(tx, caller, request_key, server, action="nothing to detach")
                host = HostRef(server.node or "")
                return [Done(host, {"arqs": []}, {"instance": server.uuid})]
            _check_ready(server)
            # Nova no longer sees the ARQs. Their handles are held until the guest has lost them.
            arqs.hide(tx, [row.id for row in rows], hidden=True)
            self._record(tx, caller, request_key, server, action="detach")
            uuids = tuple(row.uuid for row in rows)
            providers = attachments.providers(tx, uuids)
            detachment = Plan(Step.REBOOT, uuids, server.node or "", providers, being_removed=True)
            return [_task(server, WorkKind.DETACH, detachment)]

        return self._operations.begin(Order(caller, request_key, WorkKind.DETACH.value), plan)

    def _begun_before(self, caller: Caller, request_key: str, verb: WorkKind) -> Operation | None:
        with self._db.reader() as tx:
            return begun_before(tx, caller, request_key, verb.value)

    def _server(self, caller: Caller, instance_uuid: str) -> Server:
        server = self._nova.server(instance_uuid)
        foreign = server is not None and server.project_id != caller.project_id
        if server is None or (foreign and not caller.all_projects):
            raise exception.NotFound(noun="Instance", key=instance_uuid)
        return server

    def _check_request(
        self, caller: Caller, request_key: str, instance_uuid: str, profile_name: str | None
    ) -> AttachRequest:
        """Ask Nova, the database and Placement before anything is changed."""
        server = self._server(caller, instance_uuid)
        with self._db.reader() as tx:
            # Checked again under a lock. Here it goes before the state of a server that reboots.
            _check_alone(tx, instance_uuid)
        _check_ready(server)
        if server.profile is None:
            raise exception.CannotAttach(
                instance=server.uuid,
                reason="its flavor names no device profile (accel:device_profile), and Nova hands "
                "accelerators only to a guest whose flavor names one",
            )
        name = profile_name or server.profile
        with self._db.reader() as tx:
            profile = device_profiles.groups(tx, name, request_key)
        if profile is None:
            raise exception.NotFound(noun="Device profile", key=name)
        root = self._placement.find_by_name(server.node or "")
        candidates = [] if root is None else self._placement.candidates(root.uuid, profile.groups)
        return AttachRequest(caller, request_key, server, name, profile, candidates)

    def _begin_attach(self, request: AttachRequest) -> Operation:
        """Claim the handles, create the ARQs and queue the rest, in one transaction.

        Raises Unavailable, naming the host, if an agent has to prepare a unit and is down.
        """
        server = request.server

        def plan(tx: sa.Connection) -> list[Task]:
            bound = instances.lock(tx, [server.uuid])
            _check_alone(tx, server.uuid)
            units = _claim(tx, request)
            for host_id in sorted({int(unit.offer.host_id) for unit in units if unit.prepares}):
                agent = hosts.agent_of(tx, self._db.now, self._down_after, host_id)
                if agent is None or not agent.up:
                    raise exception.Unavailable(
                        peer=f"The agent of {hosts.name_of(tx, host_id)}",
                        reason="it is down, and it would have to prepare the accelerators; nothing "
                        "was changed. Repeat it when the agent is back.",
                    )
            if server.uuid not in bound or not bound[server.uuid].bound:
                row = {
                    "uuid": server.uuid,
                    "project_id": server.project_id,
                    "hostname": server.node,
                    "operation_id": request.request_key,
                }
                instances.bind(tx, self._db.now, bound, [row])
            self._store(tx, request, units)
            self._record(tx, request.caller, request.request_key, server, action="attach")
            providers = {unit.offer.rp_uuid: unit.offer.resource_class for unit in units}
            uuids = tuple(unit.uuid for unit in units)
            preparing = Plan(Step.PREPARE, uuids, server.node or "", providers)
            return [_task(server, WorkKind.ATTACH, preparing)]

        order = Order(request.caller, request.request_key, WorkKind.ATTACH.value)
        return self._operations.begin(order, plan)

    def _store(self, tx: sa.Connection, request: AttachRequest, units: Sequence[Unit]) -> None:
        """Hold the handles, insert the ARQs, and queue the preparations of the hosts."""
        attach_handles.hold(tx, [unit.handle.id for unit in units if not unit.handle.waits])
        server = request.server
        created_at = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
        rows = [
            {
                "uuid": unit.uuid,
                "state": State.BIND_STARTED.value,
                "project_id": server.project_id,
                "device_profile_id": request.profile.id,
                "device_profile_group_id": unit.group,
                "group_spec": request.profile.groups[unit.group],
                "hostname": server.node,
                "device_rp_uuid": unit.offer.rp_uuid,
                "instance_uuid": server.uuid,
                "attach_handle_id": unit.handle.id,
                "deployable_id": unit.offer.id,
                # As with a bind: while the host still cleans up after the last guest, the work
                # sets this.
                "prepared": bool(unit.offer.prepare) and not unit.handle.waits,
                "origin": attachments.ATTACHED,
                "hidden": True,
                "operation_id": request.request_key,
                "created_at": created_at,
            }
            for unit in units
        ]
        arqs.insert(tx, rows)
        preparations = [
            {
                "kind": WorkKind.PREPARE,
                "instance_uuid": server.uuid,
                "arq_uuid": unit.uuid,
                "operation_id": request.request_key,
                "host_id": unit.offer.host_id,
                "deployable_id": unit.offer.id,
                "attach_handle_id": unit.handle.id,
                "spec": device_profile.accel_requirements(request.profile.groups[unit.group]),
                "deadline_in": self._bind_timeout,
            }
            for unit in units
            if unit.prepares
        ]
        work.add(tx, self._db.now, preparations)
        entries = [
            events.Entry(
                "arq",
                unit.uuid,
                State.BIND_STARTED.value,
                instance_uuid=server.uuid,
                hostname=server.node,
                device_uuid=unit.offer.device_uuid,
            )
            for unit in units
        ]
        events.record(
            tx, self._db.now, entries, caller=request.caller, request_key=request.request_key
        )

    def _record(
        self, tx: sa.Connection, caller: Caller, request_key: str, server: Server, *, action: str
    ) -> None:
        entry = events.Entry(
            "instance", server.uuid, action, instance_uuid=server.uuid, hostname=server.node
        )
        events.record(tx, self._db.now, [entry], caller=caller, request_key=request_key)


def _check_ready(server: Server) -> None:
    """Raise CannotAttach unless the server is off, or Nova would reboot it now."""
    reason = None
    if server.status not in _READY:
        reason = f"it is {server.status}; it must be {' or '.join(sorted(_READY))}"
    elif server.task is not None:
        reason = f"Nova is busy with it ({server.task}); try again when that task has ended"
    elif server.node is None:
        reason = "it has no host"
    if reason is not None:
        raise exception.CannotAttach(instance=server.uuid, reason=reason)


def _check_alone(tx: sa.Connection, instance_uuid: str) -> None:
    """Raise CannotAttach while another attach or detach of the instance is in progress."""
    other = attachments.work_of(tx, instance_uuid)
    if other is not None:
        raise exception.CannotAttach(
            instance=instance_uuid,
            reason=f"operation {other.operation_id} ({other.kind}) is in progress",
        )


def _claim(tx: sa.Connection, request: AttachRequest) -> list[Unit]:
    """Return an ARQ and a handle for each unit of the profile, from the first possible placement.

    Raises CannotAttach when there is no such placement or attach types would be mixed, and
    NoFreeHandle.
    """
    placement, offers = _choose(tx, request)
    profile = request.profile
    groups = [
        index
        for index in sorted(placement)
        for _ in range(device_profile.units(profile.groups[index]))
    ]
    uuids = arq_uuids(request.request_key, len(groups))
    requested = [images.requested_image(profile.groups[index]) for index in groups]
    by_id = sorted(offers.values(), key=lambda offer: int(offer.id))
    loading = {
        offer.id: images.admit(
            tx,
            offer,
            {
                uuid: image
                for uuid, image, index in zip(uuids, requested, groups, strict=True)
                if placement[index] == offer.rp_uuid
            },
        )
        for offer in by_id
    }
    handles: dict[int, list[attach_handles.Claim]] = {}
    for offer in by_id:
        count = sum(1 for index in groups if placement[index] == offer.rp_uuid)
        # No locked handle was skipped before, so waiting for other transactions is safe.
        handles[offer.id] = attach_handles.claim(tx, offer.id, count, wait=True)
        if len(handles[offer.id]) < count:
            raise exception.NoFreeHandle(provider=offer.rp_uuid, requested=count)
    units = []
    for uuid, index in zip(uuids, groups, strict=True):
        offer = offers[placement[index]]
        units.append(Unit(uuid, index, offer, handles[offer.id].pop(0), loading[offer.id]))
    # Older releases of Nova drop all accelerators of a guest that has several attach types.
    added = attachments.types_of_handles(tx, [unit.handle.id for unit in units])
    existing = attachments.types_of_instance(tx, request.server.uuid)
    if len(existing | added) > 1:
        raise exception.CannotAttach(
            instance=request.server.uuid,
            reason="attach types must not be mixed: it has "
            f"{' and '.join(sorted(existing)) or 'none yet'}, device profile "
            f"{request.profile_name} would add {' and '.join(sorted(added))}",
        )
    return units


def _choose(
    tx: sa.Connection, request: AttachRequest
) -> tuple[Mapping[int, str], dict[str, Record]]:
    """Return the first placement whose providers are all available, and their deployables."""
    provider_uuids = {uuid for placement in request.candidates for uuid in placement.values()}
    available = {
        uuid: offer
        for uuid, offer in deployables.by_provider(tx, provider_uuids).items()
        if offer.status == DeviceStatus.ENABLED
        and offer.lost_ms is None
        and offer.device_lost_ms is None
        and offer.publish_error is None
        and not offer.host_disabled
        and health.offered(offer.health)
    }
    for placement in request.candidates:
        if available.keys() >= set(placement.values()):
            return placement, {uuid: available[uuid] for uuid in placement.values()}
    raise exception.CannotAttach(
        instance=request.server.uuid,
        reason=f"its host {request.server.node} has no free accelerators for device profile "
        f"{request.profile_name}",
    )


def _task(server: Server, kind: WorkKind, plan: Plan) -> Task:
    """Return the work of an instance; it has no deadline."""
    return Task(
        HostRef(plan.node),
        kind,
        wire.dump(plan),
        unlimited=True,
        instance=server.uuid,
        subject={"instance": server.uuid},
    )
