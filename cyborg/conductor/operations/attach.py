# SPDX-License-Identifier: Apache-2.0
"""Begin to attach accelerators to existing instances and to detach them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from cyborg import exception
from cyborg.clients.nova import Server
from cyborg.conductor.arqs import claims, quotas
from cyborg.conductor.arqs.claims import repeated
from cyborg.conductor.arqs.quotas import Check
from cyborg.conductor.context import Conductor, handles
from cyborg.conductor.operations.operations import Done, HostRef, Task, begin, begun_before
from cyborg.db import (
    arqs,
    attachments,
    deployables,
    device_profiles,
    events,
    hosts,
    instances,
    projects,
)
from cyborg.db.models import Arq
from cyborg.db.transaction import Transaction
from cyborg.model import device_profile, wire
from cyborg.model.arq import arq_uuids
from cyborg.model.attachment import Plan
from cyborg.model.caller import Caller
from cyborg.model.operation import Operation
from cyborg.model.work import WorkKind
from cyborg.rpc.verbs import Attach, Detach, Write

#: In these states Nova hands over the accelerators: by a hard reboot, or when the server starts.
_READY = frozenset({"ACTIVE", "SHUTOFF"})


@dataclass(frozen=True)
class AttachRequest:
    """An attach with the answers of Nova and Placement.

    ``candidates`` are the possible placements, in Placement's order; each maps the index of a group
    to the uuid of its provider.
    """

    command: Attach
    server: Server
    profile_name: str
    profile: device_profiles.ProfileGroups
    candidates: Sequence[Mapping[int, str]]


@handles(Attach)
@repeated
def attach(ctx: Conductor, c: Attach) -> Operation:
    """Begin to attach all accelerators of a profile (None: that of the flavor), or none.

    Raises what ``cyborg.rpc.verbs.Attach`` lists. A repeated request changes nothing more.
    """
    begun = _begun_before(ctx, c, WorkKind.ATTACH)
    if begun is not None:
        return begun
    request = _check_request(ctx, c)
    return quotas.run(ctx, partial(_begin_attach, ctx, request), required=True)


@handles(Detach)
def detach(ctx: Conductor, c: Detach) -> Operation:
    """Begin to detach one ARQ that attach created, or all of them (None), if there are any.

    Raises what ``cyborg.rpc.verbs.Detach`` lists. A repeated request changes nothing more.
    """
    begun = _begun_before(ctx, c, WorkKind.DETACH)
    if begun is not None:
        return begun
    server = _server(ctx, c.caller, c.instance_uuid)

    arq_uuid = c.arq_uuid

    def plan(tx: Transaction) -> list[Task | Done]:
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
        size = 1 if arq_uuid is None else attachments.group_size(tx, arq_uuid)
        if size > 1:
            raise exception.CannotAttach(
                instance=server.uuid,
                reason=f"accelerator request {arq_uuid} has one unit of a group of {size}, and "
                "a guest has whole groups only; detach all attached accelerators",
            )
        rows = [row for row in rows if row.origin == attachments.ATTACHED]
        if not rows:
            _record(tx, server, action="nothing to detach")
            host = HostRef(server.node or "")
            return [Done(host, {"arqs": []}, {"instance": server.uuid})]
        _check_ready(server)
        # Nova no longer sees the ARQs. Their handles are held until the guest has lost them.
        arqs.hide(tx, [row.id for row in rows], hidden=True)
        _record(tx, server, action="detach")
        uuids = tuple(row.uuid for row in rows)
        providers = attachments.providers(tx, uuids)
        detachment = Plan(uuids, server.node or "", providers)
        return [_task(server, WorkKind.DETACH, detachment)]

    return begin(ctx, c, WorkKind.DETACH.value, plan)


def _begun_before(ctx: Conductor, c: Write[Operation], verb: WorkKind) -> Operation | None:
    with ctx.db.reader() as tx:
        return begun_before(tx, c, verb.value)


def _server(ctx: Conductor, caller: Caller, instance_uuid: str) -> Server:
    server = ctx.nova.server(instance_uuid)
    foreign = server is not None and server.project_id != caller.project_id
    if server is None or (foreign and not caller.all_projects):
        raise exception.NotFound(noun="Instance", key=instance_uuid)
    return server


def _check_request(ctx: Conductor, c: Attach) -> AttachRequest:
    """Ask Nova, the database and Placement before anything is changed."""
    server = _server(ctx, c.caller, c.instance_uuid)
    with ctx.db.reader() as tx:
        # Checked again under a lock. Here it goes before the state of a server that reboots.
        _check_alone(tx, c.instance_uuid)
    _check_ready(server)
    if server.profile is None:
        raise exception.CannotAttach(
            instance=server.uuid,
            reason="its flavor names no device profile (accel:device_profile), and Nova hands "
            "accelerators only to a guest whose flavor names one",
        )
    name = c.profile_name or server.profile
    with ctx.db.reader() as tx:
        profile = device_profiles.groups(tx, name, c.request_key, c.caller)
    if profile is None:
        raise exception.NotFound(noun="Device profile", key=name)
    root = ctx.placement.find_by_name(server.node or "")
    candidates = [] if root is None else ctx.placement.candidates(root.uuid, profile.groups)
    return AttachRequest(c, server, name, profile, candidates)


def _begin_attach(ctx: Conductor, request: AttachRequest, check: Check) -> Operation:
    """Claim the handles, create the ARQs and queue the rest, in one transaction.

    Raises Unavailable, naming the host, if an agent has to prepare a unit and is down.
    """
    server = request.server

    def plan(tx: Transaction) -> list[Task]:
        offers = deployables.by_provider(
            tx, {uuid for placement in request.candidates for uuid in placement.values()}
        )
        claims.lock_pools(tx, offers.values())
        existing = instances.lock(tx, [server.uuid])
        _check_alone(tx, server.uuid)
        row = {
            "uuid": server.uuid,
            "project_id": server.project_id,
            "hostname": server.node,
            "operation_id": request.command.request_key,
        }
        instances.bind(tx, existing, [row])
        groups, requests = _choose(tx, request, offers)
        check.apply(tx, server.project_id, {projects.REQUESTS: len(requests)})
        claims.check_quotas(tx, requests, check)
        units = claims.lock(tx, requests, wait=True)
        _check_types(tx, request, units)
        for host_id in sorted({int(u.claim.deployable.host_id) for u in units if u.prepares}):
            agent = hosts.agent_of(tx, ctx.settings.agent_down_ms, host_id)
            if agent is None or not agent.up:
                raise exception.Unavailable(
                    peer=f"The agent of {hosts.name_of(tx, host_id)}",
                    reason="it is down, and it would have to prepare the accelerators; nothing "
                    "was changed. Repeat it when the agent is back.",
                )
        created_at = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
        rows = {
            unit.claim.arq_uuid: {
                **unit.columns(request.command.request_key),
                "uuid": unit.claim.arq_uuid,
                "state": unit.state.value,
                "device_profile_id": request.profile.id,
                "device_profile_group_id": groups[unit.claim.arq_uuid],
                "group_spec": unit.claim.group_spec,
                "origin": attachments.ATTACHED,
                "hidden": unit.claim.hidden,
                "created_at": created_at,
            }
            for unit in units
        }
        _check_access(tx, request)
        arqs.insert(tx, [rows[uuid] for uuid in groups])
        claims.store(tx, units, bind_timeout=ctx.settings.bind_ms)
        _record(tx, server, action="attach")
        claimed = [claim.deployable for claim in requests]
        providers = {row.rp_uuid: row.resource_class for row in claimed}
        preparing = Plan(tuple(groups), server.node or "", providers)
        return [_task(server, WorkKind.ATTACH, preparing)]

    return begin(ctx, request.command, WorkKind.ATTACH.value, plan)


def _record(tx: Transaction, server: Server, *, action: str) -> None:
    entry = events.Entry(
        "instance", server.uuid, action, instance_uuid=server.uuid, hostname=server.node
    )
    events.record(tx, [entry])


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


def _check_access(tx: Transaction, request: AttachRequest) -> None:
    """Raise an error unless the project of the instance may use the profile, until the commit.

    The project of the ARQs is known here, so the check also holds for administrators.
    """
    server, profile = request.server, request.profile
    if device_profiles.is_usable(tx, profile.id, server.project_id):
        return
    if not request.command.caller.all_projects:
        raise exception.NotFound(noun="Device profile", key=profile.name)
    raise exception.CannotAttach(
        instance=server.uuid,
        reason=f"device profile {profile.name} is private, and project {server.project_id} may "
        "not use it",
    )


def _check_alone(tx: Transaction, instance_uuid: str) -> None:
    """Raise CannotAttach while another attach or detach of the instance is in progress."""
    other = attachments.work_of(tx, instance_uuid)
    if other is not None:
        raise exception.CannotAttach(
            instance=instance_uuid,
            reason=f"operation {other.operation_id} ({other.kind}) is in progress",
        )


def _choose(
    tx: Transaction, request: AttachRequest, offers: Mapping[str, deployables.Offer]
) -> tuple[dict[str, int], list[claims.Claim]]:
    """Return the new ARQs with their groups, and a claim for each, in one order.

    They are for the first placement whose providers are all available. Raises CannotAttach when
    there is none.
    """
    server, profile = request.server, request.profile
    available = {uuid for uuid, offer in offers.items() if offer.unavailable is None}
    for placement in request.candidates:
        if available >= set(placement.values()):
            break
    else:
        raise exception.CannotAttach(
            instance=server.uuid,
            reason=f"its host {server.node} has no free accelerators for device profile "
            f"{request.profile_name}{_group_hint(tx, request)}",
        )
    indexes = [
        index
        for index in sorted(placement)
        for _ in range(device_profile.units(profile.groups[index]))
    ]
    uuids = arq_uuids(request.command.request_key, len(indexes))
    groups = dict(zip(uuids, indexes, strict=True))
    requests = [
        claims.Claim(
            uuid,
            profile.groups[index],
            offers[placement[index]],
            server.uuid,
            server.node,
            server.project_id,
            hidden=True,
        )
        for uuid, index in groups.items()
    ]
    partial = claims.partial_group(requests)
    if partial is not None:
        raise exception.CannotAttach(instance=server.uuid, reason=partial)
    return groups, requests


def _group_hint(tx: Transaction, request: AttachRequest) -> str:
    """Return a clause about the units that the host gives out in groups; empty if it has none.

    Placement has no candidate for a profile that requests a part of a group, and says no reason.
    """
    classes = {
        name for group in request.profile.groups for name in device_profile.resource_classes(group)
    }
    sizes = deployables.group_sizes(tx, request.server.node or "", classes)
    return "".join(f"; it gives out {name} in groups of {size} units" for name, size in sizes)


def _check_types(
    tx: Transaction, request: AttachRequest, units: Sequence[claims.ClaimedUnit]
) -> None:
    """Raise CannotAttach if the instance would have units of several attach types.

    Older releases of Nova drop all accelerators of such a guest.
    """
    added = attachments.types_of_handles(tx, [unit.handle.id for unit in units])
    existing = attachments.types_of_instance(tx, request.server.uuid)
    if len(existing | added) > 1:
        raise exception.CannotAttach(
            instance=request.server.uuid,
            reason="attach types must not be mixed: it has "
            f"{' and '.join(sorted(existing)) or 'none yet'}, device profile "
            f"{request.profile_name} would add {' and '.join(sorted(added))}",
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
