# SPDX-License-Identifier: Apache-2.0
"""Bind ARQs to instances, and complete a bind after its device is prepared."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.arqs import images, release
from cyborg.db import arqs, attach_handles, attachments, deployables, events, instances, work
from cyborg.db.base import Record
from cyborg.db.engine import Database, retried
from cyborg.db.models import Arq
from cyborg.model import device_profile, health
from cyborg.model.arq import MOVES, Binding, Event, State
from cyborg.model.caller import Caller
from cyborg.model.device import DeviceStatus
from cyborg.model.work import WorkKind

LOG = logging.getLogger(__name__)

#: Attempts of a bind. A bind that loses the race for the row of a new instance is attempted again;
#: by then the other bind has committed that row.
_ATTEMPTS = 3


class _TooFewHandles(Exception):
    """Other transactions may have locked handles.

    This transaction holds locks on handles itself, so it must not wait for them.
    """


@dataclass(frozen=True)
class _Claim:
    """An ARQ that is about to be moved, its binding, and the unit that it gets."""

    row: Record
    binding: Binding
    deployable: Record
    handle_id: int
    #: Whether the handle is still being released.
    waits: bool
    #: The state that the ARQ gets now: Bound, or BindStarted when the agent has work to do.
    state: State


@dataclass(frozen=True, kw_only=True)
class ArqBinder:
    """Binds and unbinds ARQs.

    It calls ``wake`` after each commit, since there may be new work. ``bind_timeout`` is the time
    in milliseconds that an agent has to prepare a device.
    """

    db: Database
    wake: Callable[[], None]
    bind_timeout: int

    def patch(
        self,
        caller: Caller,
        request_key: str,
        bindings: Sequence[Binding],
        unbindings: Sequence[str],
    ) -> None:
        """Bind and unbind ARQs, all or none; a repeated request changes nothing more.

        Raises what ``ConductorClient.patch_arqs`` lists.
        """
        attempts, wait = _ATTEMPTS, False
        claims: Sequence[_Claim] = ()
        while attempts:
            try:
                claims = self._patch(caller, request_key, bindings, unbindings, wait=wait)
                break
            except _TooFewHandles:
                # Raised only once: the next attempt waits for the handles. It holds no handle
                # while it waits, and locks them in order.
                wait = True
            except exception.Conflict as error:
                attempts -= 1
                # Only the database's own Conflict: another bind inserted the instance's row first.
                if type(error) is not exception.Conflict or not attempts:
                    raise
        for claim in claims:
            binding = claim.binding
            place = (binding.hostname, claim.deployable.device_uuid, claim.handle_id)
            facts = (binding.arq_uuid, binding.instance_uuid, *place)
            if claim.state is State.BOUND:
                LOG.info("ARQ %s bound to instance %s on host %s (device %s, handle %s)", *facts)
            else:
                LOG.info(
                    "ARQ %s is being prepared for instance %s on host %s (device %s, handle %s)",
                    *facts,
                )
            if binding.hostname != claim.deployable.hostname:
                LOG.debug(
                    "ARQ %s is bound on host %s to a device of host %s",
                    *(binding.arq_uuid, binding.hostname, claim.deployable.hostname),
                )
        self.wake()

    @retried
    def _patch(
        self,
        caller: Caller,
        request_key: str,
        bindings: Sequence[Binding],
        unbindings: Sequence[str],
        *,
        wait: bool,
    ) -> Sequence[_Claim]:
        claims: Sequence[_Claim] = ()
        with self.db.writer() as tx:
            if bindings:
                new = self._bind(tx, caller, request_key, bindings, wait=wait)
                if new is None:
                    return ()
                claims = new
            if unbindings:
                release.unbind(tx, self.db.now, caller, unbindings, request_key=request_key)
        return claims

    def _bind(
        self,
        tx: sa.Connection,
        caller: Caller,
        request_key: str,
        bindings: Sequence[Binding],
        *,
        wait: bool,
    ) -> Sequence[_Claim] | None:
        """Move the ARQs and return their claims; None when this request has already been done."""
        providers = deployables.by_provider(tx, (binding.device_rp_uuid for binding in bindings))
        existing = instances.lock(tx, (binding.instance_uuid for binding in bindings))
        bound = [row for row in existing.values() if row.bound]
        if bound:
            if all(row.operation_id == request_key for row in bound):
                return None
            raise exception.InstanceAlreadyBound(instance=bound[0].uuid)
        uuids = [binding.arq_uuid for binding in bindings]
        scope = arqs.of_caller(caller)
        rows = {row.uuid: row for row in arqs.lock(tx, Arq.uuid.in_(uuids), *scope)}
        missing = sorted(set(uuids) - set(rows))
        if missing:
            raise exception.NotFound(noun="Accelerator request", key=", ".join(missing))
        if all(row.operation_id == request_key for row in rows.values()):
            # A new instance has no row to wait for: an earlier attempt of this request committed
            # after the instances were read.
            return None
        unbound = any(row.state == State.UNBOUND for row in rows.values())
        if unbound and events.is_repeated(tx, request_key):
            # A late repetition must not bind again what has been unbound in the meantime.
            return None
        for row in rows.values():
            arqs.check(row, Event.BIND)
        for binding in bindings:
            _check(rows[binding.arq_uuid], binding, providers)
        owners = {binding.arq_uuid: _owner(caller, binding, rows, existing) for binding in bindings}
        values = {
            binding.instance_uuid: {
                "uuid": binding.instance_uuid,
                "project_id": owners[binding.arq_uuid],
                "hostname": binding.hostname,
                "operation_id": request_key,
            }
            for binding in bindings
        }
        instances.bind(tx, self.db.now, existing, [values[uuid] for uuid in sorted(values)])
        claims = _claim(tx, rows, bindings, providers, wait=wait)
        self._store(tx, caller, request_key, claims=claims, owners=owners)
        return claims

    def _store(
        self,
        tx: sa.Connection,
        caller: Caller,
        request_key: str,
        *,
        claims: Sequence[_Claim],
        owners: Mapping[str, str | None],
    ) -> None:
        attach_handles.hold(tx, [claim.handle_id for claim in claims if not claim.waits])
        moves: dict[int, tuple[State, dict[str, Any]]] = {}
        tasks: list[dict[str, Any]] = []
        entries = []
        for claim in claims:
            binding, deployable = claim.binding, claim.deployable
            values: dict[str, Any] = {
                "hostname": binding.hostname,
                "device_rp_uuid": binding.device_rp_uuid,
                "instance_uuid": binding.instance_uuid,
                "project_id": owners[claim.row.uuid],
                "attach_handle_id": claim.handle_id,
                "deployable_id": deployable.id,
                # Nothing can have been prepared while the unit is still being released for its
                # last instance; the work sets this before it calls the agent.
                "prepared": bool(deployable.prepare) and not claim.waits,
                "operation_id": request_key,
            }
            moves[claim.row.id] = (claim.state, values)
            task = {
                "kind": WorkKind.NOTIFY,
                "instance_uuid": binding.instance_uuid,
                "arq_uuid": claim.row.uuid,
                "operation_id": request_key,
            }
            if claim.state is State.BIND_STARTED:
                # Nova is notified after the unit is prepared.
                task |= {
                    "kind": WorkKind.PREPARE,
                    "host_id": deployable.host_id,
                    "deployable_id": deployable.id,
                    "attach_handle_id": claim.handle_id,
                    "spec": device_profile.accel_requirements(claim.row.group_spec),
                    "deadline_in": self.bind_timeout,
                }
            tasks.append(task)
            entry = events.Entry(
                "arq",
                claim.row.uuid,
                claim.state.value,
                instance_uuid=binding.instance_uuid,
                hostname=binding.hostname,
                device_uuid=deployable.device_uuid,
            )
            entries.append(entry)
        arqs.move_each(tx, moves, set(MOVES[Event.BIND].sources))
        work.add(tx, self.db.now, tasks)
        events.record(tx, self.db.now, entries, caller=caller, request_key=request_key)


def _check(row: Record, binding: Binding, providers: Mapping[str, Record]) -> None:
    """Raise NotFound, Invalid or DeviceUnavailable unless the ARQ may have a unit there."""
    deployable = providers.get(binding.device_rp_uuid)
    if deployable is None:
        raise exception.NotFound(noun="Resource provider", key=binding.device_rp_uuid)
    if deployable.resource_class not in device_profile.resource_classes(row.group_spec):
        raise exception.Invalid(
            field="device_rp_uuid",
            reason=f"provider {binding.device_rp_uuid} offers {deployable.resource_class}, which "
            f"accelerator request {row.uuid} did not ask for",
        )
    status = deployable.status
    if deployable.lost_ms is not None or deployable.device_lost_ms is not None:
        status = "lost"
    elif deployable.publish_error is not None:
        status = "refused by Placement"
    elif deployable.host_disabled:
        status = "out of service with its host"
    elif not health.offered(deployable.health):
        status = f"not healthy ({deployable.health})"
    if status != DeviceStatus.ENABLED:
        raise exception.DeviceUnavailable(
            uuid=deployable.device_uuid, provider=binding.device_rp_uuid, status=status
        )


def _owner(
    caller: Caller,
    binding: Binding,
    rows: Mapping[str, Record],
    existing: Mapping[str, Record],
) -> str | None:
    """Return the project that owns the ARQ after the bind; ``existing`` are rows of instances.

    A caller with a scope of all projects (Nova for an administrator) acts for the project that
    owned the instance before. A project can bind only for itself.
    """
    if binding.project_id is not None:
        return binding.project_id
    remembered = existing.get(binding.instance_uuid)
    if caller.all_projects and remembered is not None and remembered.project_id is not None:
        return str(remembered.project_id)
    owner: str | None = rows[binding.arq_uuid].project_id
    return owner


def _claim(
    tx: sa.Connection,
    rows: Mapping[str, Record],
    bindings: Sequence[Binding],
    providers: Mapping[str, Record],
    *,
    wait: bool,
) -> list[_Claim]:
    """Lock a handle for each binding; raises _TooFewHandles, NoFreeHandle, DeviceUnavailable."""
    requested = {uuid: images.requested_image(row.group_spec) for uuid, row in rows.items()}
    # ARQs that request no image come last, so that their work waits for the image.
    bindings = sorted(bindings, key=lambda binding: requested[binding.arq_uuid] is None)
    groups = []
    for deployable in sorted(providers.values(), key=lambda deployable: int(deployable.id)):
        group = [binding for binding in bindings if binding.device_rp_uuid == deployable.rp_uuid]
        images_by_arq = {binding.arq_uuid: requested[binding.arq_uuid] for binding in group}
        groups.append((deployable, group, images.admit(tx, deployable, images_by_arq)))
    claims: list[_Claim] = []
    for deployable, group, loads in groups:
        # Placement has allocated these units, so a handle that is still being released counts too.
        handles = attach_handles.claim(tx, deployable.id, len(group), wait=wait)
        if len(handles) < len(group):
            if not wait:
                raise _TooFewHandles
            raise exception.NoFreeHandle(provider=deployable.rp_uuid, requested=len(group))
        for binding, handle in zip(group, handles, strict=True):
            agent_works = handle.waits or loads or deployable.prepare
            state = MOVES[Event.START if agent_works else Event.BIND].target
            row = rows[binding.arq_uuid]
            claims.append(_Claim(row, binding, deployable, handle.id, handle.waits, state))
    return claims


def resolve(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    rows: Sequence[Record],
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
    attachments.make_due(tx, now, {row.instance_uuid for row in rows if row.hidden})
    if event is Event.FINISH:
        rows = [row for row in rows if not row.hidden]
    started = [row for row in rows if row.state == State.BIND_STARTED]
    if not started:
        return False
    arqs.move(tx, event, [row.id for row in started], fault=fault)
    if event is Event.FAIL:
        release.release_handles(tx, now, started, request_key=request_key)
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
    work.add(tx, now, notifications)
    entries = [release.arq_entry(row, MOVES[event].target.value, reason=fault) for row in started]
    events.record(tx, now, entries, request_key=request_key, ordered_by=ordered_by)
    return True
