# SPDX-License-Identifier: Apache-2.0
"""The desired state of a host, computed from its rows: resource providers and prepared units."""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from uuid import uuid4

import sqlalchemy as sa

from cyborg.conductor.leases import check_epoch
from cyborg.db import created_accelerators, drivers, host_inventory, hosts, lost_devices
from cyborg.db.base import Record
from cyborg.db.engine import Database, retried
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


class DesiredStates:
    """Compute the desired states of hosts.

    Devices and deployables are removed when they have been lost for ``lost_retention`` milliseconds
    (0: never), when they are lost and an operator has asked for their removal, and at once when
    their driver was uninstalled.
    """

    def __init__(self, *, db: Database, lost_retention: int = 0) -> None:
        self._db = db
        self._lost_retention = lost_retention

    def desired(self, service_host: str, epoch: int) -> Desired:
        """Return the provider tree and the drivers of an agent's host; raises NotFound, StaleEpoch.

        ``total`` counts all units, lost units too, because allocations may refer to them.
        ``reserved`` counts the units that must not be allocated: all units of a device that is not
        enabled, is lost, is not healthy or has a driver that is not ready; of other devices the
        units that are lost or in quarantine.
        """
        with self._db.writer() as tx:
            host = hosts.lock_for_agent(tx, service_host)
            check_epoch(host, service_host, epoch)
            devices = {row.id: row for row in host_inventory.devices(tx, host.id)}
            deployables = host_inventory.deployables(tx, host.id)
            handles = _by_deployable(host_inventory.handles(tx, host.id))
            traits = _traits(host_inventory.attributes(tx, host.id))
            driver_rows = drivers.of_host(tx, host.id)
            ordered = created_accelerators.ordered(tx, host.id)
            removed = self._removed(tx, host.id, devices.values(), deployables)
        providers = tuple(
            _provider(
                row,
                handles[row.id],
                traits[row.id],
                standing=_standing(
                    row, devices[row.device_id], driver_rows, disabled=host.disabled
                ),
            )
            for row in sorted(deployables, key=lambda row: str(row.name))
            if row.id not in removed
        )
        obsolete_providers = tuple(
            ObsoleteProvider(row.rp_uuid, row.name)
            for row in children_first(deployables)
            if row.id in removed
        )
        refused = {
            row.name: row.publish_error for row in deployables if row.publish_error is not None
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
        )

    def _removed(
        self,
        tx: sa.Connection,
        host_id: int,
        devices: Iterable[Record],
        deployables: Iterable[Record],
    ) -> set[int]:
        """Return the ids of the deployables to be removed, alone or with their devices."""
        removed: set[int] = set()
        if any(row.lost_ms is not None for row in devices):
            due = lost_devices.due(tx, self._db.now, host_id, self._lost_retention)
            device_ids = {row.id for row in due}
            removed |= {row.id for row in deployables if row.device_id in device_ids}
        if any(row.lost_ms is not None for row in deployables):
            due = lost_devices.deployables(tx, self._db.now, host_id, self._lost_retention)
            removed |= {row.id for row in due}
        return removed


def _by_deployable(rows: Iterable[Record]) -> Mapping[int, list[Record]]:
    groups = defaultdict(list)
    for row in rows:
        groups[row.deployable_id].append(row)
    return groups


def _traits(attributes: Iterable[Record]) -> Mapping[int, set[str]]:
    """Return the traits of deployables by deployable id."""
    traits = defaultdict(set)
    for row in attributes:
        if row.key.startswith("trait"):
            traits[row.deployable_id].add(row.value)
    return traits


def _facts(
    device: Record,
    deployables: Iterable[Record],
    handles: Mapping[int, Iterable[Record]],
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
                name=row.name,
                resource_class=row.resource_class,
                driver_name=row.driver_name,
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
            for row in sorted(deployables, key=lambda row: str(row.name))
            if row.device_id == device.id
        ),
        backend=device.backend,
        operator_created=True,
    )


def _requested_drivers(rows: Iterable[Record]) -> tuple[RequestedDriver, ...]:
    """Return what operators have requested of drivers, ordered by name."""
    return tuple(
        RequestedDriver(
            row.name,
            row.requested,
            # Without a request of an operator the configuration of the host decides.
            enabled=row.enabled or row.requested is None,
            options=dict(row.options or {}),
        )
        for row in sorted(rows, key=lambda row: str(row.name))
        if row.requested is not None or row.options
    )


def children_first(deployables: Iterable[Record]) -> list[Record]:
    """Return the deployables ordered so that each comes before its parent."""
    rows = {row.id: row for row in deployables}

    def depth(row: Record) -> int:
        return 0 if row.parent_id not in rows else 1 + depth(rows[row.parent_id])

    return sorted(rows.values(), key=lambda row: (-depth(row), row.name))


def _provider(
    deployable: Record, handles: Sequence[Record], traits: Collection[str], *, standing: Standing
) -> Provider:
    return Provider(
        uuid=deployable.rp_uuid,
        name=deployable.name,
        resource_class=deployable.resource_class,
        total=len(handles),
        reserved=reserved(standing, (Unit(row.state, row.lost_ms is not None) for row in handles)),
        traits=frozenset(traits),
    )


def _standing(
    deployable: Record, device: Record, driver_rows: Mapping[str, Record], *, disabled: bool
) -> Standing:
    driver = driver_rows.get(device.driver)
    return Standing(
        device.status,
        lost=device.lost_ms is not None or deployable.lost_ms is not None,
        driver=driver.state if driver is not None else None,
        disabled=disabled,
        health=device.health,
    )


class PreparedUnits:
    """Tell agents what the units of their hosts are used for."""

    def __init__(self, *, db: Database) -> None:
        self._db = db

    @retried
    def unit_uses(self, service_host: str, epoch: int) -> UnitUses:
        """Return all units of a host that are prepared for a bind; raises NotFound, StaleEpoch."""
        with self._db.writer() as tx:
            host = hosts.lock_for_agent(tx, service_host)
            check_epoch(host, service_host, epoch)
            rows = host_inventory.of_host(tx, host.id)
        return UnitUses(tuple(UnitUse(_task(row), _use(row)) for row in rows))


def _use(row: Record) -> Use:
    """Return IN_TRANSITION unless the unit is clearly prepared or free: its work decides then."""
    if row.lost:
        return Use.IN_TRANSITION
    if row.holder_state == State.BOUND and row.state == HandleState.HELD and row.prepared:
        return Use.PREPARED
    if row.holder_state is None and row.state == HandleState.FREE:
        return Use.FREE
    return Use.IN_TRANSITION


def _task(row: Record) -> HandleTask:
    return HandleTask(
        request_key=str(uuid4()),
        driver=row.driver,
        device_key=row.device_key,
        deployable=row.name,
        handle_key=row.handle_key,
        handle_uuid=row.uuid,
        spec=device_profile.wishes(row.group_spec or {}),
    )
