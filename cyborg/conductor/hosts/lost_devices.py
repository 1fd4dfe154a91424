# SPDX-License-Identifier: Apache-2.0
"""Remove lost devices, deployables and units when their time is over or an operator orders it.

Inventory goes first. The desired tree no longer holds the providers of such devices, nor those of
such deployables of other devices; it names them as providers to remove. The agent deletes them in
Placement, which refuses while something is allocated there, and tells the conductor which ones are
deleted. Only then the conductor removes the rows.

A single unit has no provider of its own. It has been reserved since it was lost, so Placement can
allocate the same number of units without it. The conductor removes its row at once, and the next
desired state does not count it.

The order to delete a device that an operator created makes the device lost, and it is removed in
the same way.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from cyborg import exception
from cyborg.conductor.context import Conductor, handles
from cyborg.conductor.leases import check_epoch
from cyborg.db import devices, dirty_units, events, hosts, lost_devices, pools, work
from cyborg.db.engine import retried
from cyborg.db.lost_devices import Due, LostDeployable
from cyborg.db.transaction import Transaction
from cyborg.rpc.verbs import DeleteDevice, SendProvidersRemoved

LOG = logging.getLogger(__name__)

_DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True)
class Removed:
    """A removed 'device', 'deployable' or 'handle', and the reason in a clause.

    ``device_uuid`` is the device itself, or the device that it is a part of.
    """

    noun: str
    uuid: str
    device_uuid: str
    reason: str
    operator_created: bool = False


def expire(ctx: Conductor) -> None:
    """Begin to remove the lost things that are due, on every host.

    The agents fetch their desired state again. Things without a provider are removed at once.
    """
    with ctx.db.reader() as tx:
        host_ids = lost_devices.due_hosts(tx, ctx.settings.lost_ms, ctx.settings.agent_down_ms)
    for host_id in host_ids:
        _expire_on(ctx, host_id)


@handles(DeleteDevice)
def request_removal(ctx: Conductor, c: DeleteDevice) -> None:
    """Begin to remove a device that is lost, or that an operator created.

    Any other device stays, and only those of its deployables and attach handles are removed
    that its host no longer reports. The agent must delete the providers first. Raises NotFound,
    DeviceInUse, and Conflict when there is nothing to remove or, without ``force``, units are
    not cleaned.
    """
    host_id = _request(ctx, c)
    if host_id is not None:
        _expire_on(ctx, host_id)


@retried
def _request(ctx: Conductor, c: DeleteDevice) -> int | None:
    """Return the id of the device's host; None for a repeated request."""
    with ctx.db.writer(*c.origin) as tx:
        if events.is_repeated(tx, c.request_key):
            return None
        row = devices.with_agent(tx, c.uuid)
        if row is None:
            raise exception.NotFound(noun="Device", key=c.uuid)
        tx.publish(row.host_id, row.service_host)
        lost_devices.lock_handles_of_device(tx, row.id)
        # Read after the locks, so that a bind or a report that was faster shows.
        held = devices.arqs_of(tx, row.id)
        if held:
            raise exception.DeviceInUse(uuid=c.uuid, arqs=", ".join(held))
        dirty_units.check_clean(tx, *lost_devices.removable(row.id), force=c.force)
        work.cancel_install(tx, row.id)
        whole = devices.request_removal(tx, row.id)
        if not whole and not lost_devices.request_part_removal(tx, row.id):
            raise exception.Conflict(
                reason=f"Device {c.uuid} is present: its host would report it again. Disable "
                "it, or delete it when it is lost."
            )
        action = "forgotten" if whole else "lost parts forgotten"
        entry = events.Entry("device", c.uuid, action, hostname=row.hostname)
        events.record(tx, [entry])
    LOG.info(
        "Device %s on host %s: an operator ordered the removal of %s",
        *(c.uuid, row.hostname, "the device" if whole else "its lost parts"),
    )
    return row.host_id


@retried
def _expire_on(ctx: Conductor, host_id: int) -> None:
    with ctx.db.writer() as tx:
        tx.publish(host_id)
        name = hosts.name_of(tx, host_id)
        # A device without deployables has no provider that must be deleted first.
        removed, _ = _remove(ctx, tx, host_id, frozenset())
        # The lock of the host keeps single units lost, no bind claims a lost unit, and a held
        # unit is not due. So the units that are due stay so until the commit.
        units = lost_devices.due_handles(
            tx, host_id, age_ms=ctx.settings.lost_ms, silent_ms=ctx.settings.agent_down_ms
        )
        if units:
            lost_devices.remove_handles(tx, [row.id for row in units])
            # A unit in quarantine took shared capacity.
            pools.book(tx, {row.device_uuid for row in units})
        removed += [_removed("handle", row) for row in units]
        _record(tx, removed, name)
    _log(removed, name)


@handles(SendProvidersRemoved)
@retried
def confirm_removal(ctx: Conductor, c: SendProvidersRemoved) -> None:
    """Remove lost things without a provider, after the agent deleted those of ``names``.

    ``names`` are deployables. Things that the host reports again, or that are in use, stay and
    are published again. Raises NotFound, StaleEpoch.
    """
    with ctx.db.writer() as tx:
        host = check_epoch(hosts.lock_for_agent(tx, c.host), c.host, c.epoch)
        removed, staying = _remove(ctx, tx, host.id, frozenset(c.names))
        _record(tx, removed, host.name)
        # The driver learns from the desired state which created devices it must not show.
        if staying or any(item.operator_created for item in removed):
            tx.publish(host.id, c.host)
    _log(removed, host.name)


def _remove(
    ctx: Conductor, tx: Transaction, host_id: int, names: frozenset[str]
) -> tuple[list[Removed], bool]:
    """Remove devices and deployables that have no provider left; the caller locks the host.

    ``names`` are deployables whose providers are deleted. Return what was removed, and whether
    one of ``names`` belongs to nothing that is due to be removed.
    """
    lost = lost_devices.all_lost(tx, host_id)
    unpublished = _without_provider(lost, names)
    lost_devices.lock_handles_of(tx, [row.id for row in unpublished if row.id is not None])
    # Read after the lock, so that a bind that was faster shows.
    due_devices = lost_devices.due_devices(tx, host_id, ctx.settings.lost_ms)
    due_parts = lost_devices.due_deployables(tx, host_id, ctx.settings.lost_ms)
    due_ids = {row.id for row in due_devices}
    due_names = {row.name for row in lost if row.whole and row.device_id in due_ids}
    due_names |= {row.name for row in due_parts}
    unpublished_ids = {row.device_id for row in unpublished}
    due_devices = [row for row in due_devices if row.id in unpublished_ids]
    due_parts = [row for row in due_parts if row.name in names]
    lost_devices.remove(tx, [row.id for row in due_devices])
    lost_devices.remove_deployables(tx, [row.id for row in due_parts])
    if pools.book(tx, {row.device_uuid for row in due_parts}):
        tx.publish(host_id)
    removed = [
        _removed("device", row, operator_created=row.operator_created) for row in due_devices
    ]
    removed += [_removed("deployable", row) for row in due_parts]
    return removed, not names <= due_names


def _record(tx: Transaction, removed: list[Removed], host: str) -> None:
    entries = [
        events.Entry(
            item.noun,
            item.uuid,
            "retired",
            hostname=host,
            reason=item.reason,
            device_uuid=item.device_uuid,
        )
        for item in removed
    ]
    events.record(tx, entries)


def _without_provider(
    lost: Iterable[LostDeployable], names: frozenset[str]
) -> list[LostDeployable]:
    """Return the rows of ``lost`` whose device, or whose deployable, has no provider left.

    ``names`` are deployables whose providers are deleted. A lost device is among them only when
    the providers of all of its deployables are deleted.
    """
    rows = list(lost)
    published = {row.device_id for row in rows if row.name is not None and row.name not in names}
    return [
        row for row in rows if (row.device_id not in published if row.whole else row.name in names)
    ]


def _removed(noun: str, row: Due, *, operator_created: bool = False) -> Removed:
    reason = f"it had been lost for {row.lost_for // _DAY_MS} days"
    if row.being_removed:
        reason = "an operator ordered its removal"
    elif row.uninstalled:
        reason = "its driver was uninstalled"
    return Removed(noun, row.uuid, row.device_uuid, reason, operator_created)


def _log(removed: list[Removed], host: str) -> None:
    for item in removed:
        LOG.info(
            "%s %s on host %s removed: %s",
            *(item.noun.capitalize(), item.uuid, host, item.reason),
        )
