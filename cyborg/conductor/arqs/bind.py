# SPDX-License-Identifier: Apache-2.0
"""Bind ARQs to instances, and complete a bind after its device is prepared."""

import logging
from collections.abc import Mapping, Sequence

from cyborg import exception
from cyborg.conductor.arqs import claims, quotas, release
from cyborg.conductor.arqs.claims import ClaimedUnit, repeated
from cyborg.conductor.arqs.quotas import Check
from cyborg.conductor.context import Conductor, handles
from cyborg.db import arqs, attach_handles, attachments, deployables, events, instances, work
from cyborg.db.arqs import LockedArq
from cyborg.db.deployables import Offer
from cyborg.db.engine import retried
from cyborg.db.instances import LockedInstance
from cyborg.db.models import Arq
from cyborg.db.transaction import Transaction
from cyborg.model import device_profile
from cyborg.model.arq import BINDING, MOVES, Binding, Event, State
from cyborg.model.caller import Caller
from cyborg.model.work import WorkKind
from cyborg.rpc.verbs import PatchArqs

LOG = logging.getLogger(__name__)


@handles(PatchArqs)
def patch(ctx: Conductor, c: PatchArqs) -> None:
    """Bind and unbind ARQs, all or none; a repeated request changes nothing more.

    Raises what ``cyborg.rpc.verbs.PatchArqs`` lists.
    """
    units = quotas.run(ctx, lambda check: _patch(ctx, c, check=check), required=False)
    for unit in units:
        claim, device = unit.claim, unit.claim.deployable
        place = (claim.hostname, device.device_uuid, unit.handle.id)
        facts = (claim.arq_uuid, claim.instance_uuid, *place)
        if unit.state is State.BOUND:
            LOG.info("ARQ %s bound to instance %s on host %s (device %s, handle %s)", *facts)
        else:
            LOG.info(
                "ARQ %s is being prepared for instance %s on host %s (device %s, handle %s)",
                *facts,
            )
        if claim.hostname != device.hostname:
            LOG.debug(
                "ARQ %s is bound on host %s to a device of host %s",
                *(claim.arq_uuid, claim.hostname, device.hostname),
            )


@repeated
@retried
def _patch(
    ctx: Conductor, c: PatchArqs, *, check: Check, wait: bool = False
) -> Sequence[ClaimedUnit]:
    units: Sequence[ClaimedUnit] = ()
    with ctx.db.writer(*c.origin) as tx:
        if c.bindings:
            units = _bind(ctx, tx, c, check=check, wait=wait)
        if c.unbindings:
            release.unbind(tx, c.caller, c.unbindings, request_key=c.request_key)
    return units


def _bind(
    ctx: Conductor, tx: Transaction, c: PatchArqs, *, check: Check, wait: bool
) -> Sequence[ClaimedUnit]:
    """Move the ARQs and return their units; none when this request has already been done.

    An identical bind by another request has been done as well: clients repeat a PATCH whose
    answer they did not get.
    """
    caller, request_key, bindings = c.caller, c.request_key, c.bindings
    providers = deployables.by_provider(tx, (binding.device_rp_uuid for binding in bindings))
    claims.lock_pools(tx, providers.values())
    existing = instances.lock(tx, (binding.instance_uuid for binding in bindings))
    bound = instances.bound(tx, existing)
    if bound and all(row.operation_id == request_key for row in bound):
        return ()
    uuids = [binding.arq_uuid for binding in bindings]
    own = arqs.of_caller(caller)
    rows = {row.uuid: row for row in arqs.lock(tx, Arq.uuid.in_(uuids), *own)}
    if all(_is_done(binding, rows, providers) for binding in bindings):
        return ()
    if bound:
        raise exception.InstanceAlreadyBound(instance=bound[0].uuid)
    missing = sorted(set(uuids) - rows.keys())
    if missing:
        raise exception.NotFound(noun="Accelerator request", key=", ".join(missing))
    if all(row.operation_id == request_key for row in rows.values()):
        # A new instance has no row to wait for: an earlier attempt of this request committed
        # after the instances were read.
        return ()
    unbound = any(row.state == State.UNBOUND for row in rows.values())
    if unbound and events.is_repeated(tx, request_key):
        # A late repetition must not bind again what has been unbound in the meantime.
        return ()
    for row in rows.values():
        arqs.check(row, Event.BIND)
    # Rows of the existing service may have what no state allows, until the audit takes it away.
    attach_handles.check_none(tx, [row.id for row in rows.values() if row.attach_handle_id])
    requests = [
        claims.Claim(
            binding.arq_uuid,
            row.group_spec or {},
            _deployable(row, binding, providers),
            binding.instance_uuid,
            binding.hostname,
            _owner(caller, binding, row, existing.get(binding.instance_uuid)),
        )
        for binding in bindings
        for row in (rows[binding.arq_uuid],)
    ]
    partial = claims.partial_group(requests)
    if partial is not None:
        raise exception.Invalid(field="device_rp_uuid", reason=partial)
    claims.check_quotas(tx, requests, check)
    values = {
        claim.instance_uuid: {
            "uuid": claim.instance_uuid,
            "project_id": claim.project_id,
            "hostname": claim.hostname,
            "operation_id": request_key,
        }
        for claim in requests
    }
    instances.bind(tx, existing, [values[uuid] for uuid in sorted(values)])
    units = claims.lock(tx, requests, wait=wait)
    moves = {
        rows[unit.claim.arq_uuid].id: (unit.state, unit.columns(request_key)) for unit in units
    }
    arqs.move_each(tx, moves, set(MOVES[Event.BIND].sources))
    claims.store(tx, units, bind_timeout=ctx.settings.bind_ms)
    return units


def _is_done(
    binding: Binding, rows: Mapping[str, LockedArq], providers: Mapping[str, Offer]
) -> bool:
    """Return whether the ARQ is bound, or being bound, exactly as the binding requests."""
    row, deployable = rows.get(binding.arq_uuid), providers.get(binding.device_rp_uuid)
    return (
        row is not None
        and deployable is not None
        and row.state in BINDING
        and not row.hidden
        and row.deployable_id == deployable.id
        and (row.hostname, row.instance_uuid) == (binding.hostname, binding.instance_uuid)
        and binding.project_id in (None, row.project_id)
    )


def _deployable(row: LockedArq, binding: Binding, providers: Mapping[str, Offer]) -> Offer:
    """Return the deployable of a binding.

    Raises NotFound, Invalid or DeviceUnavailable unless the ARQ may have a unit there.
    """
    deployable = providers.get(binding.device_rp_uuid)
    if deployable is None:
        raise exception.NotFound(noun="Resource provider", key=binding.device_rp_uuid)
    if deployable.resource_class not in device_profile.resource_classes(row.group_spec or {}):
        raise exception.Invalid(
            field="device_rp_uuid",
            reason=f"provider {binding.device_rp_uuid} offers {deployable.resource_class}, which "
            f"accelerator request {row.uuid} did not ask for",
        )
    claims.check_offered(deployable)
    return deployable


def _owner(
    caller: Caller, binding: Binding, row: LockedArq, remembered: LockedInstance | None
) -> str | None:
    """Return the project that owns the ARQ after the bind; ``remembered`` is its instance or None.

    A caller with a scope of all projects (Nova for an administrator) acts for the project that
    owned the instance before. A project can bind only for itself.
    """
    if binding.project_id is not None:
        return binding.project_id
    if caller.all_projects and remembered is not None and remembered.project_id is not None:
        return str(remembered.project_id)
    return row.project_id


def resolve(
    tx: Transaction,
    rows: Sequence[LockedArq],
    event: Event,
    *,
    fault: str | None = None,
    request_key: str | None = None,
    ordered_by: Mapping[str, str] | None = None,
) -> bool:
    """FINISH or FAIL binds inside the caller's transaction; ``rows`` are locked ARQs.

    Return False when none of the ARQs is in state BindStarted; ARQs in other states are not
    changed. A failed ARQ releases its handle, and ``fault`` says why it failed. A hidden ARQ
    belongs to an attach operation: that operation binds it later, and Nova waits for no event of
    it. ``ordered_by`` holds the ids of the request that began the bind.
    """
    attachments.make_due(
        tx, {row.instance_uuid for row in rows if row.hidden and row.instance_uuid}
    )
    if event is Event.FINISH:
        rows = [row for row in rows if not row.hidden]
    started = [row for row in rows if row.state == State.BIND_STARTED]
    if not started:
        return False
    arqs.move(tx, event, [row.id for row in started], fault=fault)
    if event is Event.FAIL:
        release.release_units(tx, started, request_key=request_key)
        arqs.clear_handle(tx, [row.id for row in started])
    notifications = [
        {
            "kind": WorkKind.NOTIFY,
            "instance_uuid": row.instance_uuid,
            "arq_uuid": row.uuid,
            "operation_id": request_key,
        }
        for row in started
        if row.instance_uuid is not None and not row.hidden
    ]
    work.add(tx, notifications)
    entries = [release.arq_entry(row, MOVES[event].target.value, reason=fault) for row in started]
    events.record_for(tx, entries, request_key=request_key, ordered_by=ordered_by)
    return True
