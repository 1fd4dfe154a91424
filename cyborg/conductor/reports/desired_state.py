# SPDX-License-Identifier: Apache-2.0
"""The desired state of a host, computed from its rows: resource providers and prepared units."""

import json
from collections.abc import Iterable, Sequence
from typing import TypeVar
from uuid import uuid4

from cyborg.conductor.context import Conductor, handles
from cyborg.conductor.leases import check_epoch
from cyborg.db import (
    created_accelerators,
    drivers,
    host_inventory,
    hosts,
    lost_devices,
    models,
    providers,
)
from cyborg.db.engine import retried
from cyborg.db.providers import Part
from cyborg.model import device_profile
from cyborg.model.arq import State
from cyborg.model.device import (
    AttachHandle,
    AttachType,
    Deployable,
    Device,
    DeviceType,
    HandleState,
)
from cyborg.model.pci import PciAddress
from cyborg.model.provider import ProviderTree
from cyborg.model.report import CreatedDevice, Desired, ObsoleteProvider, RequestedDriver
from cyborg.model.work import HandleTask, UnitUse, UnitUses, Use
from cyborg.rpc.verbs import FetchDesired, FetchUnitUses


@handles(FetchDesired)
def desired(ctx: Conductor, c: FetchDesired) -> Desired:
    """Return the provider tree and the drivers of an agent's host; raises NotFound, StaleEpoch.

    Devices and deployables are removed when they have been lost for the retention of the settings
    (0: never), when they are lost and an operator has asked for their removal, and at once when
    their driver was uninstalled.
    """
    with ctx.db.writer() as tx:
        host = check_epoch(hosts.lock_for_agent(tx, c.host), c.host, c.epoch)
        parts = sorted(providers.of_hosts(tx, [host.id])[host.id], key=lambda part: part.row.name)
        driver_rows = drivers.of_host(tx, host.id)
        created_devices = created_accelerators.devices(tx, host.id)
        handles = host_inventory.handles(tx, host.id) if created_devices else ()
        ordered = created_accelerators.requests(tx, host.id)
        # Ids of the deployables to be removed, alone or with their devices.
        removed: set[int] = set()
        if any(part.row.device_lost for part in parts):
            due_devices = lost_devices.due_devices(tx, host.id, ctx.settings.lost_ms)
            device_ids = {row.id for row in due_devices}
            removed |= {part.row.id for part in parts if part.row.device_id in device_ids}
        if any(part.row.lost_ms is not None for part in parts):
            due_parts = lost_devices.due_deployables(tx, host.id, ctx.settings.lost_ms)
            removed |= {row.id for row in due_parts}
    tree = ProviderTree(
        host.name,
        tuple(part.desired for part in parts if part.row.id not in removed and part.desired.uuid),
    )
    obsolete_providers = tuple(
        ObsoleteProvider(row.rp_uuid, row.name)
        for row in children_first(part.row for part in parts)
        if row.id in removed and row.rp_uuid is not None
    )
    refused = {
        part.row.name: part.row.publish_error
        for part in parts
        if part.row.publish_error is not None
    }
    published = {
        part.row.name: list(part.published) for part in parts if part.published is not None
    }
    created = [CreatedDevice(row.driver, _facts(row, parts, handles)) for row in created_devices]
    created += [CreatedDevice(order.driver, order.facts) for order in ordered]
    return Desired(
        host.desired_generation,
        tree,
        refused,
        obsolete_providers,
        _requested_drivers(driver_rows.values()),
        operator_created=tuple(sorted(created, key=lambda item: (item.driver, item.device.key))),
        published=published,
    )


def _facts(
    device: models.Device, parts: Iterable[Part], handles: Sequence[models.AttachHandle]
) -> Device:
    """Return a device that an operator created, as its driver has to report it."""
    return Device(
        key=device.device_key,
        type=DeviceType(device.type),
        vendor=device.vendor,
        model=device.model,
        control_path=PciAddress.parse(device.device_key).info(),
        deployables=tuple(
            Deployable(
                name=part.row.key or part.row.name,
                resource_class=part.row.resource_class,
                driver_name=part.row.driver_name or "",
                handles=tuple(
                    AttachHandle(
                        handle.handle_key,
                        AttachType(handle.attach_type),
                        json.loads(handle.attach_info),
                    )
                    for handle in sorted(handles, key=lambda handle: handle.handle_key)
                    if handle.deployable_id == part.row.id
                ),
                traits=tuple(sorted(part.desired.traits)),
                prepare=part.row.prepare,
            )
            for part in parts
            if part.row.device_id == device.id
        ),
        backend=device.backend,
        operator_created=True,
    )


def _requested_drivers(rows: Iterable[models.Driver]) -> tuple[RequestedDriver, ...]:
    """Return what operators have requested of drivers, ordered by name."""
    return tuple(
        RequestedDriver(
            row.name,
            row.requested,
            # Without a request of an operator the configuration of the host decides.
            enabled=row.enabled or row.requested is None,
            options=dict(row.options or {}),
        )
        for row in sorted(rows, key=lambda row: row.name)
        if row.requested is not None or row.options
    )


D = TypeVar("D", bound=models.Deployable)


def children_first(deployables: Iterable[D]) -> list[D]:
    """Return the deployables ordered so that each comes before its parent."""
    rows = {row.id: row for row in deployables}

    def depth(row: D) -> int:
        return 0 if row.parent_id not in rows else 1 + depth(rows[row.parent_id])

    return sorted(rows.values(), key=lambda row: (-depth(row), row.name))


@handles(FetchUnitUses)
@retried
def unit_uses(ctx: Conductor, c: FetchUnitUses) -> UnitUses:
    """Return all units of a host that are prepared for a bind; raises NotFound, StaleEpoch."""
    with ctx.db.writer() as tx:
        host = check_epoch(hosts.lock_for_agent(tx, c.host), c.host, c.epoch)
        rows = host_inventory.prepared_units(tx, host.id)
    units = []
    for row in rows:
        # Unless the unit is clearly prepared or free, its work decides. On an unchecked host a
        # guest that the database does not know may have it.
        use = Use.IN_TRANSITION
        certain = not row.lost and not host.unchecked
        bound = row.holder_state == State.BOUND and row.state == HandleState.READY
        if certain and bound and row.prepared:
            use = Use.PREPARED
        elif certain and row.holder_state is None and row.state == HandleState.READY:
            use = Use.FREE
        task = HandleTask(
            request_key=str(uuid4()),
            driver=row.driver,
            device_key=row.device_key,
            deployable=row.deployable_key,
            handle_key=row.handle_key,
            handle_uuid=row.uuid,
            spec=device_profile.accel_requirements(row.group_spec or {}),
        )
        units.append(UnitUse(task, use))
    return UnitUses(tuple(units))
