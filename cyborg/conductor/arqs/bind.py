# SPDX-License-Identifier: Apache-2.0
"""Bind ARQs to instances, and complete a bind once its device is prepared."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.arqs import images, release
from cyborg.db import arqs, attach_handles, attaching, deployables, events, instances, work
from cyborg.db.base import Record
from cyborg.db.engine import Database, retried
from cyborg.db.models import Arq
from cyborg.model import device_profile, health
from cyborg.model.arq import MOVES, Binding, Event, State
from cyborg.model.caller import Caller
from cyborg.model.device import DeviceStatus
from cyborg.model.work import WorkKind


def resolve(
    tx: sa.Connection,
    now: sa.ColumnElement[int],
    rows: Sequence[Record],
    event: Event,
    *,
    fault: str | None = None,
    operation: str | None = None,
    ordered_by: Mapping[str, str] | None = None,
) -> bool:
    """Let a bind FINISH or FAIL inside the caller's transaction; ``rows`` are locked ARQs.

    Those that are not being bound any more are left as they are; False when that is all of them.
    A failed one lets go of its handle, and ``fault`` says why it failed. One that an attach is
    preparing is bound by that, in its own time, and no Nova waits for it. ``ordered_by`` are the
    ids of the request that began the bind.
    """
    attached = {one.instance_uuid for one in rows if one.hidden}
    attaching.wake(tx, now, attached)
    if event is Event.FINISH:
        rows = [one for one in rows if not one.hidden]
    started = [one for one in rows if one.state == State.BIND_STARTED]
    if not started:
        return False
    arqs.move(tx, event, [one.id for one in started], fault=fault)
    if event is Event.FAIL:
        release.free_handles(tx, now, started, operation=operation)
        arqs.clear_handle(tx, [one.id for one in started])
    told = [
        {
            "kind": WorkKind.NOTIFY,
            "instance_uuid": one.instance_uuid,
            "arq_uuid": one.uuid,
            "operation_id": operation,
        }
        for one in started
        if one.instance_uuid is not None and not one.hidden
    ]
    work.add(tx, now, told)
    entries = [
        events.Entry(
            "arq",
            one.uuid,
            MOVES[event].target.value,
            instance_uuid=one.instance_uuid,
            hostname=one.hostname,
            reason=fault,
            device_uuid=one.device_uuid,
        )
        for one in started
    ]
    events.record(tx, now, entries, operation=operation, ordered_by=ordered_by)
    return True


LOG = logging.getLogger(__name__)

#: A bind that loses the race for a new instance's row looks again; the winner is there then.
_LOOKS = 3


class _Scarce(Exception):
    """Rivals may have handles locked, as this transaction has: it must not wait for them."""


@dataclass(frozen=True)
class _Claim:
    """One ARQ about to be moved: what it asked for, what it gets."""

    row: Record
    binding: Binding
    offer: Record
    handle_id: int
    waits: bool
    #: Whether an image is loaded, or being loaded, before the guest may have it.
    loads: bool

    @property
    def state(self) -> State:
        event = Event.START if self.waits or self.loads or self.offer.prepare else Event.BIND
        return MOVES[event].target


class ArqBinder:
    """Binds and unbinds; ``wake`` is called when work waits after a commit.

    ``bind_timeout`` is the time in milliseconds that a host has for its preparations.
    """

    def __init__(self, *, db: Database, wake: Callable[[], None], bind_timeout: int) -> None:
        self._db = db
        self._wake = wake
        self._bind_timeout = bind_timeout

    def patch(
        self,
        caller: Caller,
        operation: str,
        bindings: Sequence[Binding],
        unbindings: Sequence[str],
    ) -> None:
        """All or none; a repeated operation changes nothing more.

        Raises what ``ConductorClient.patch_arqs`` lists.
        """
        looks, wait = _LOOKS, False
        while looks:
            try:
                self._patch(caller, operation, bindings, unbindings, wait=wait)
                break
            except _Scarce:
                # Raised once only: who waits holds no handle before, and gets them in order.
                wait = True
            except exception.Conflict as error:
                looks -= 1
                # Only the database's own Conflict: a rival made the instance's row first.
                if type(error) is not exception.Conflict or not looks:
                    raise
        for one in bindings:
            LOG.info("ARQ %s is for %s on %r", one.arq_uuid, one.instance_uuid, one.hostname)
        self._wake()

    @retried
    def _patch(
        self,
        caller: Caller,
        operation: str,
        bindings: Sequence[Binding],
        unbindings: Sequence[str],
        *,
        wait: bool,
    ) -> None:
        with self._db.writer() as tx:
            if bindings and not self._bind(tx, caller, operation, bindings, wait=wait):
                return
            if unbindings:
                release.unbind(tx, self._db.now, caller, unbindings, operation=operation)

    def _bind(
        self,
        tx: sa.Connection,
        caller: Caller,
        operation: str,
        bindings: Sequence[Binding],
        *,
        wait: bool,
    ) -> bool:
        """False when this very operation is done already."""
        found = deployables.by_provider(tx, (one.device_rp_uuid for one in bindings))
        known = instances.lock(tx, (one.instance_uuid for one in bindings))
        bound = [row for row in known.values() if row.bound]
        if bound:
            if all(row.operation_id == operation for row in bound):
                return False
            raise exception.InstanceAlreadyBound(instance=bound[0].uuid)
        rows = self._lock_arqs(tx, caller, bindings)
        if all(row.operation_id == operation for row in rows.values()):
            # A new instance has no row to wait for: this operation committed just after the look.
            return False
        unbound = any(row.state == State.UNBOUND for row in rows.values())
        if unbound and events.operation_known(tx, operation):
            # A late repetition does not bind again what has been unbound since.
            return False
        for row in rows.values():
            arqs.check(row, Event.BIND)
        for one in bindings:
            _check(rows[one.arq_uuid], one, found)
        owners = {one.arq_uuid: _owner(caller, one, rows, known) for one in bindings}
        instances.bind(tx, self._db.now, known, _instance_rows(operation, bindings, owners))
        claims = self._claim(tx, rows, bindings, found, wait=wait)
        self._store(tx, caller, operation, claims=claims, owners=owners)
        return True

    def _lock_arqs(
        self, tx: sa.Connection, caller: Caller, bindings: Sequence[Binding]
    ) -> dict[str, Record]:
        uuids = [one.arq_uuid for one in bindings]
        scope = arqs.of_caller(caller)
        rows = {row.uuid: row for row in arqs.lock(tx, Arq.uuid.in_(uuids), *scope)}
        missing = sorted(set(uuids) - set(rows))
        if missing:
            raise exception.NotFound(noun="Accelerator request", key=", ".join(missing))
        return rows

    def _claim(
        self,
        tx: sa.Connection,
        rows: Mapping[str, Record],
        bindings: Sequence[Binding],
        found: Mapping[str, Record],
        *,
        wait: bool,
    ) -> list[_Claim]:
        claims: list[_Claim] = []
        wishes = {uuid: images.requested_image(row.group_spec) for uuid, row in rows.items()}
        # Units without a wish come last, so that their work waits for the image.
        bindings = sorted(bindings, key=lambda one: wishes[one.arq_uuid] is None)
        offers_by_id = sorted(found.values(), key=lambda one: int(one.id))
        loading = {
            offer.id: images.admit(
                tx,
                offer,
                {
                    one.arq_uuid: wishes[one.arq_uuid]
                    for one in bindings
                    if one.device_rp_uuid == offer.rp_uuid
                },
            )
            for offer in offers_by_id
        }
        for offer in offers_by_id:
            wanted = [one for one in bindings if one.device_rp_uuid == offer.rp_uuid]
            # Placement gave these units away already: one that is being cleaned up is as good.
            handles = attach_handles.claim(tx, offer.id, len(wanted), wait=wait)
            if len(handles) < len(wanted):
                if not wait:
                    raise _Scarce
                raise exception.NoFreeHandle(provider=offer.rp_uuid, wanted=len(wanted))
            claims += [
                _Claim(rows[one.arq_uuid], one, offer, handle.id, handle.waits, loading[offer.id])
                for one, handle in zip(wanted, handles, strict=True)
            ]
        return claims

    def _store(
        self,
        tx: sa.Connection,
        caller: Caller,
        operation: str,
        *,
        claims: Sequence[_Claim],
        owners: Mapping[str, str | None],
    ) -> None:
        attach_handles.hold(tx, [one.handle_id for one in claims if not one.waits])
        arqs.move_each(
            tx,
            {one.row.id: (one.state, _bound_values(one, operation, owners)) for one in claims},
            set(MOVES[Event.BIND].sources),
        )
        work.add(tx, self._db.now, [self._work(one, operation) for one in claims])
        entries = [
            events.Entry(
                "arq",
                one.row.uuid,
                one.state.value,
                instance_uuid=one.binding.instance_uuid,
                hostname=one.binding.hostname,
                device_uuid=one.offer.device_uuid,
            )
            for one in claims
        ]
        events.record(tx, self._db.now, entries, caller=caller, operation=operation)
        for one in claims:
            if one.binding.hostname != one.offer.hostname:
                LOG.debug(
                    "ARQ %s is bound for %s to a device of %s",
                    one.row.uuid,
                    one.binding.hostname,
                    one.offer.hostname,
                )

    def _work(self, claim: _Claim, operation: str) -> dict[str, Any]:
        row: dict[str, Any] = {
            "kind": WorkKind.NOTIFY,
            "instance_uuid": claim.binding.instance_uuid,
            "arq_uuid": claim.row.uuid,
            "operation_id": operation,
        }
        if claim.state is State.BIND_STARTED:
            row |= {
                "kind": WorkKind.PREPARE,
                "host_id": claim.offer.host_id,
                "deployable_id": claim.offer.id,
                "attach_handle_id": claim.handle_id,
                "spec": device_profile.wishes(claim.row.group_spec),
                "deadline_in": self._bind_timeout,
            }
        return row


def _check(row: Record, binding: Binding, found: Mapping[str, Record]) -> None:
    offer = found.get(binding.device_rp_uuid)
    if offer is None:
        raise exception.NotFound(noun="Resource provider", key=binding.device_rp_uuid)
    if offer.resource_class not in device_profile.resource_classes(row.group_spec):
        raise exception.Invalid(
            field="device_rp_uuid",
            reason=f"provider {binding.device_rp_uuid} offers {offer.resource_class}, which "
            f"accelerator request {row.uuid} did not ask for",
        )
    status = offer.status
    if offer.lost_ms is not None or offer.device_lost_ms is not None:
        status = "lost"
    elif offer.publish_error is not None:
        status = "refused by Placement"
    elif offer.host_disabled:
        status = "out of service with its host"
    elif not health.offered(offer.health):
        status = f"not healthy ({offer.health})"
    if status != DeviceStatus.ENABLED:
        raise exception.DeviceUnavailable(
            uuid=offer.device_uuid, provider=binding.device_rp_uuid, status=status
        )


def _owner(
    caller: Caller,
    binding: Binding,
    rows: Mapping[str, Record],
    known: Mapping[str, Record],
) -> str | None:
    """Whose the ARQ is from now on.

    Who may act everywhere (Nova for an administrator) acts in the name of the owner that the
    instance had before; a project's own request can only be for itself.
    """
    if binding.project_id is not None:
        return binding.project_id
    remembered = known.get(binding.instance_uuid)
    if caller.everywhere and remembered is not None and remembered.project_id is not None:
        return str(remembered.project_id)
    owner: str | None = rows[binding.arq_uuid].project_id
    return owner


def _instance_rows(
    operation: str, bindings: Sequence[Binding], owners: Mapping[str, str | None]
) -> list[dict[str, str | None]]:
    rows = {
        one.instance_uuid: {
            "uuid": one.instance_uuid,
            "project_id": owners[one.arq_uuid],
            "hostname": one.hostname,
            "operation_id": operation,
        }
        for one in bindings
    }
    return [rows[uuid] for uuid in sorted(rows)]


def _bound_values(
    claim: _Claim, operation: str, owners: Mapping[str, str | None]
) -> dict[str, Any]:
    return {
        "hostname": claim.binding.hostname,
        "device_rp_uuid": claim.binding.device_rp_uuid,
        "instance_uuid": claim.binding.instance_uuid,
        "project_id": owners[claim.row.uuid],
        "attach_handle_id": claim.handle_id,
        "deployable_id": claim.offer.id,
        # Where the last guest's traces are still being removed nothing can have been prepared;
        # the work sets it before it asks the host.
        "prepared": bool(claim.offer.prepare) and not claim.waits,
        "operation_id": operation,
    }
