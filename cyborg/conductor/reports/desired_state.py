# SPDX-License-Identifier: Apache-2.0
"""The desired state of a host, computed from its rows: resource providers and prepared units."""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import uuid4

from cyborg.conductor.leases import check_epoch
from cyborg.db import created_accelerators, drivers, host_inventory, hosts, lost_devices
from cyborg.db.drivers import StoredDriver
from cyborg.db.engine import Database, retried
from cyborg.db.host_inventory import StoredDeployable, StoredDevice, StoredHandle
from cyborg.db.hosts import HostDeployable
from cyborg.model import device_profile
from cyborg.model.arq import State
from cyborg.model.attribute import Origin
from cyborg.model.availability import Standing, Unit, reserved
from cyborg.model.device import (
    AttachHandle,
    AttachType,
    Deployable,
    Device,
    DeviceType,
    HandleState,
)
from cyborg.model.pci import PciAddress
from cyborg.model.provider import Provider, ProviderTree
from cyborg.model.report import CreatedDevice, Desired, ObsoleteProvider, RequestedDriver
from cyborg.model.work import HandleTask, UnitUse, UnitUses, Use


@dataclass(frozen=True, kw_only=True)
class DesiredStates:
    """Compute the desired states of hosts.

    Devices and deployables are removed when they have been lost for ``lost_retention`` milliseconds
    (0: never), when they are lost and an operator has asked for their removal, and at once when
    their driver was uninstalled.
    """

    db: Database
    lost_retention: int = 0

    def desired(self, service_host: str, epoch: int) -> Desired:
        """Return the provider tree and the drivers of an agent's host; raises NotFound, StaleEpoch.

        ``total`` counts all units, lost units too, because allocations may refer to them.
        ``reserved`` follows ``cyborg.model.availability``.
        """
        with self.db.writer() as tx:
            host = check_epoch(hosts.lock_for_agent(tx, service_host), service_host, epoch)
            devices = {row.id: row for row in host_inventory.devices(tx, host.id)}
            deployables = host_inventory.deployables(tx, host.id)
            handle_rows = host_inventory.handles(tx, host.id)
            attributes = host_inventory.attributes(tx, host.id)
            driver_rows = drivers.of_host(tx, host.id)
            ordered = created_accelerators.requests(tx, host.id)
            # Ids of the deployables to be removed, alone or with their devices.
            removed: set[int] = set()
            if any(row.lost_ms is not None for row in devices.values()):
                due_devices = lost_devices.due_devices(tx, host.id, self.lost_retention)
                device_ids = {row.id for row in due_devices}
                removed |= {row.id for row in deployables if row.device_id in device_ids}
            if any(row.lost_ms is not None for row in deployables):
                due_parts = lost_devices.due_deployables(tx, host.id, self.lost_retention)
                removed |= {row.id for row in due_parts}
        # Deployable id → its handles, and its traits.
        handles = defaultdict(list)
        for handle in handle_rows:
            handles[handle.deployable_id].append(handle)
        traits = defaultdict(set)
        for attribute in attributes:
            if attribute.key.startswith("trait"):
                traits[attribute.deployable_id].add(attribute.value)
        providers = tuple(
            _provider(
                row.rp_uuid,
                row,
                devices[row.device_id],
                handles[row.id],
                traits=traits[row.id],
                driver=driver_rows.get(devices[row.device_id].driver),
                host=host,
            )
            for row in sorted(deployables, key=lambda row: row.name)
            if row.id not in removed and row.rp_uuid is not None
        )
        obsolete_providers = tuple(
            ObsoleteProvider(row.rp_uuid, row.name)
            for row in children_first(deployables)
            if row.id in removed and row.rp_uuid is not None
        )
        refused = {
            row.name: row.publish_error for row in deployables if row.publish_error is not None
        }
        published = {
            row.name: [row.published_total, row.published_reserved or 0]
            for row in deployables
            if row.published_total is not None
        }
        created = [
            CreatedDevice(row.driver, _facts(row, deployables, handles, traits))
            for row in devices.values()
            if row.origin == Origin.OPERATOR.value
        ]
        created += [CreatedDevice(order.driver, order.facts) for order in ordered]
        return Desired(
            host.desired_generation,
            ProviderTree(host.name, providers),
            refused,
            obsolete_providers,
            _requested_drivers(driver_rows.values()),
            operator_created=tuple(
                sorted(created, key=lambda item: (item.driver, item.device.key))
            ),
            published=published,
        )


def _facts(
    device: StoredDevice,
    deployables: Iterable[StoredDeployable],
    handles: Mapping[int, Iterable[StoredHandle]],
    traits: Mapping[int, Collection[str]],
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
                name=row.key or row.name,
                resource_class=row.resource_class,
                driver_name=row.driver_name or "",
                handles=tuple(
                    AttachHandle(
                        handle.handle_key,
                        AttachType(handle.attach_type),
                        json.loads(handle.attach_info),
                    )
                    for handle in sorted(handles[row.id], key=lambda handle: handle.handle_key)
                ),
                traits=tuple(sorted(traits[row.id])),
                prepare=row.prepare,
            )
            for row in sorted(deployables, key=lambda row: row.name)
            if row.device_id == device.id
        ),
        backend=device.backend,
        operator_created=True,
    )


def _requested_drivers(rows: Iterable[StoredDriver]) -> tuple[RequestedDriver, ...]:
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


D = TypeVar("D", bound=HostDeployable)


def children_first(deployables: Iterable[D]) -> list[D]:
    """Return the deployables ordered so that each comes before its parent."""
    rows = {row.id: row for row in deployables}

    def depth(row: D) -> int:
        return 0 if row.parent_id not in rows else 1 + depth(rows[row.parent_id])

    return sorted(rows.values(), key=lambda row: (-depth(row), row.name))


def _provider(
    uuid: str,
    deployable: StoredDeployable,
    device: StoredDevice,
    handles: Sequence[StoredHandle],
    *,
    traits: Collection[str],
    driver: StoredDriver | None,
    host: hosts.LockedHost,
) -> Provider:
    standing = Standing(
        device.status,
        lost=device.lost_ms is not None or deployable.lost_ms is not None,
        driver=driver.state if driver is not None else None,
        disabled=host.disabled,
        health=device.health,
        refused=deployable.publish_error is not None,
        unchecked=host.unchecked,
    )
    return Provider(
        uuid=uuid,
        name=deployable.name,
        deployable=deployable.key,
        resource_class=deployable.resource_class,
        total=len(handles),
        reserved=reserved(
            standing,
            (
                Unit(row.state, row.lost_ms is not None, blocked=row.blocked, cleaning=row.cleaning)
                for row in handles
            ),
        ),
        traits=frozenset(traits),
        group_size=deployable.group_size or 1,
    )


@dataclass(frozen=True, kw_only=True)
class PreparedUnits:
    """Tell agents what the units of their hosts are used for."""

    db: Database

    @retried
    def unit_uses(self, service_host: str, epoch: int) -> UnitUses:
        """Return all units of a host that are prepared for a bind; raises NotFound, StaleEpoch."""
        with self.db.writer() as tx:
            host = check_epoch(hosts.lock_for_agent(tx, service_host), service_host, epoch)
            rows = host_inventory.prepared_units(tx, host.id)
        units = []
        for row in rows:
            # Unless the unit is clearly prepared or free, its work decides. On an unchecked host a
            # guest that the database does not know may have it.
            use = Use.IN_TRANSITION
            certain = not row.lost and not host.unchecked
            bound = row.holder_state == State.BOUND and row.state == HandleState.HELD
            if certain and bound and row.prepared:
                use = Use.PREPARED
            elif certain and row.holder_state is None and row.state == HandleState.FREE:
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
