# SPDX-License-Identifier: Apache-2.0
"""Bind ARQs to instances, and complete a bind after its device is prepared."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cyborg import exception
from cyborg.conductor.arqs import claims, release
from cyborg.conductor.arqs.claims import ClaimedUnit, repeated
from cyborg.conductor.arqs.quotas import NO_QUOTAS, Check, Quotas
from cyborg.db import arqs, attachments, deployables, events, instances, work
from cyborg.db.arqs import LockedArq
from cyborg.db.deployables import Offer
from cyborg.db.engine import Database, retried
from cyborg.db.instances import LockedInstance
from cyborg.db.models import Arq
from cyborg.db.transaction import Transaction
from cyborg.model import device_profile
from cyborg.model.arq import MOVES, Binding, Event, State
from cyborg.model.caller import Caller
from cyborg.model.work import WorkKind
from cyborg.rpc.agent import AgentClient

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ArqBinder:
    """Binds and unbinds ARQs.

    It calls ``wake`` after each commit, since there may be new work, and ``agents`` publish what a
    bind leaves of a device whose units share capacity. ``bind_timeout`` is the time
    in milliseconds that an agent has to prepare a device.
    """

    db: Database
    agents: AgentClient
    wake: Callable[[], None]
    bind_timeout: int
    quotas: Quotas = NO_QUOTAS

    def patch(
        self,
        caller: Caller,
        request_key: str,
        bindings: Sequence[Binding],
        unbindings: Sequence[str],
    ) -> None:
        """Bind and unbind ARQs, all or none; a repeated request changes nothing more.

        Raises what ``cyborg.rpc.verbs.PatchArqs`` lists.
        """
        units = self.quotas.run(
            lambda check: self._patch(caller, request_key, bindings, unbindings, check=check),
            required=False,
        )
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
        self.wake()
        claims.publish(self.agents, (unit.claim.deployable for unit in units))

    @repeated
    @retried
    def _patch(
        self,
        caller: Caller,
        request_key: str,
        bindings: Sequence[Binding],
        unbindings: Sequence[str],
        *,
        check: Check,
        wait: bool = False,
    ) -> Sequence[ClaimedUnit]:
        units: Sequence[ClaimedUnit] = ()
        with self.db.writer(caller, request_key) as tx:
            if bindings:
                units = self._bind(tx, caller, request_key, bindings, check=check, wait=wait)
            if unbindings:
                release.unbind(tx, caller, unbindings, request_key=request_key)
        return units

    def _bind(
        self,
        tx: Transaction,
        caller: Caller,
        request_key: str,
        bindings: Sequence[Binding],
        *,
        check: Check,
        wait: bool,
    ) -> Sequence[ClaimedUnit]:
        """Move the ARQs and return their units; none when this request has already been done."""
        providers = deployables.by_provider(tx, (binding.device_rp_uuid for binding in bindings))
        claims.lock_pools(tx, providers.values())
        existing = instances.lock(tx, (binding.instance_uuid for binding in bindings))
        bound = [row for row in existing.values() if row.bound]
        if bound:
            if all(row.operation_id == request_key for row in bound):
                return ()
            raise exception.InstanceAlreadyBound(instance=bound[0].uuid)
        uuids = [binding.arq_uuid for binding in bindings]
        own = arqs.of_caller(caller)
        rows = {row.uuid: row for row in arqs.lock(tx, Arq.uuid.in_(uuids), *own)}
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
        claims.store(tx, units, bind_timeout=self.bind_timeout)
        return units


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
    if deployable.unavailable is not None:
        raise exception.DeviceUnavailable(
            uuid=deployable.device_uuid,
            provider=binding.device_rp_uuid,
            status=f"out of service ({deployable.unavailable})",
        )
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
        release.release_units(tx, release.held_units(started), request_key=request_key)
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
