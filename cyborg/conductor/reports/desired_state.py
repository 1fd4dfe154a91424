# SPDX-License-Identifier: Apache-2.0
"""The desired state of a host, derived from the rows alone: providers and prepared units."""

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
from cyborg.model.report import Desired, Made, RequestedDriver, Retired
from cyborg.model.work import HandleTask, Holding, Holdings, Use


class DesiredStates:
    """Computes desired states.

    What has been lost for ``lost_retention`` milliseconds (0 means never) is given up, and what is
    lost and an operator wants to be forgotten. Devices of a driver that was uninstalled go at once.
    """

    def __init__(self, *, db: Database, lost_retention: int = 0) -> None:
        self._db = db
        self._lost_retention = lost_retention

    def desired(self, service_host: str, epoch: int) -> Desired:
        """The provider tree of an agent's host; raises NotFound, StaleEpoch.

        ``total`` counts every unit known, lost ones too, because allocations may hang on them;
        ``reserved`` takes back what must not be given out: everything of a device that is not
        enabled, is lost, is not healthy or has a driver in trouble, else units lost or in
        quarantine.
        """
        with self._db.writer() as tx:
            host = hosts.lock_for_agent(tx, service_host)
            check_epoch(host, service_host, epoch)
            devices = {row.id: row for row in host_inventory.devices(tx, host.id)}
            deployables = host_inventory.deployables(tx, host.id)
            handles = _by_deployable(host_inventory.handles(tx, host.id))
            traits = _traits(host_inventory.attributes(tx, host.id))
            known = drivers.of_host(tx, host.id)
            ordered = created_accelerators.ordered(tx, host.id)
            leaving = self._leaving(tx, host.id, devices.values(), deployables)
        providers = tuple(
            _provider(
                one,
                handles[one.id],
                traits[one.id],
                standing=_standing(one, devices[one.device_id], known, disabled=host.disabled),
            )
            for one in sorted(deployables, key=lambda row: str(row.name))
            if one.id not in leaving
        )
        retired = tuple(
            Retired(one.rp_uuid, one.name)
            for one in children_first(deployables)
            if one.id in leaving
        )
        refused = {
            one.name: one.publish_error for one in deployables if one.publish_error is not None
        }
        made = [
            Made(one.driver, _facts(one, deployables, handles, traits))
            for one in devices.values()
            if one.origin == Origin.OPERATOR.value
        ]
        made += [Made(one.driver, one.facts) for one in ordered]
        return Desired(
            host.desired_generation,
            ProviderTree(host.name, providers),
            refused,
            retired,
            _wishes(known.values()),
            made=tuple(sorted(made, key=lambda one: (one.driver, one.device.key))),
        )

    def _leaving(
        self,
        tx: sa.Connection,
        host_id: int,
        devices: Iterable[Record],
        deployables: Iterable[Record],
    ) -> set[int]:
        """The ids of the deployables that are given up, alone or with their devices."""
        leaving: set[int] = set()
        if any(one.lost_ms is not None for one in devices):
            found = lost_devices.due(tx, self._db.now, host_id, self._lost_retention)
            ids = {one.id for one in found}
            leaving |= {one.id for one in deployables if one.device_id in ids}
        if any(one.lost_ms is not None for one in deployables):
            parts = lost_devices.deployables(tx, self._db.now, host_id, self._lost_retention)
            leaving |= {one.id for one in parts}
        return leaving


def _by_deployable(rows: Iterable[Record]) -> Mapping[int, list[Record]]:
    found = defaultdict(list)
    for row in rows:
        found[row.deployable_id].append(row)
    return found


def _traits(attributes: Iterable[Record]) -> Mapping[int, set[str]]:
    found = defaultdict(set)
    for row in attributes:
        if row.key.startswith("trait"):
            found[row.deployable_id].add(row.value)
    return found


def _facts(
    device: Record,
    deployables: Iterable[Record],
    handles: Mapping[int, Iterable[Record]],
    traits: Mapping[int, Collection[str]],
) -> Device:
    """What an operator created, as its driver shall show it."""
    return Device(
        key=device.device_key,
        type=DeviceType(device.type),
        vendor=device.vendor,
        model=device.model,
        control_path=PciAddress.parse(device.device_key).info(),
        deployables=tuple(
            Deployable(
                name=one.name,
                resource_class=one.resource_class,
                driver_name=one.driver_name,
                handles=tuple(
                    AttachHandle(
                        unit.handle_key,
                        AttachType(unit.attach_type),
                        json.loads(unit.attach_info),
                    )
                    for unit in sorted(handles[one.id], key=lambda unit: unit.handle_key)
                ),
                traits=tuple(sorted(traits[one.id])),
                prepare=one.prepare,
            )
            for one in sorted(deployables, key=lambda one: str(one.name))
            if one.device_id == device.id
        ),
        backend=device.backend,
        made=True,
    )


def _wishes(drivers: Iterable[Record]) -> tuple[RequestedDriver, ...]:
    """What operators want of drivers, in the order of their names."""
    return tuple(
        RequestedDriver(
            one.name,
            one.wanted,
            # Until an operator has spoken, a driver that is not enabled is what its host wants.
            enabled=one.enabled or one.wanted is None,
            options=dict(one.options or {}),
        )
        for one in sorted(drivers, key=lambda row: str(row.name))
        if one.wanted is not None or one.options
    )


def children_first(deployables: Iterable[Record]) -> list[Record]:
    """Deployables in an order in which each comes before the one that it stands below."""
    known = {one.id: one for one in deployables}

    def depth(one: Record) -> int:
        return 0 if one.parent_id not in known else 1 + depth(known[one.parent_id])

    return sorted(known.values(), key=lambda one: (-depth(one), one.name))


def _provider(
    deployable: Record, handles: Sequence[Record], traits: Collection[str], *, standing: Standing
) -> Provider:
    return Provider(
        uuid=deployable.rp_uuid,
        name=deployable.name,
        resource_class=deployable.resource_class,
        total=len(handles),
        reserved=reserved(standing, (Unit(one.state, one.lost_ms is not None) for one in handles)),
        traits=frozenset(traits),
    )


def _standing(
    deployable: Record, device: Record, known: Mapping[str, Record], *, disabled: bool
) -> Standing:
    driver = known.get(device.driver)
    return Standing(
        device.status,
        lost=device.lost_ms is not None or deployable.lost_ms is not None,
        driver=driver.state if driver is not None else None,
        disabled=disabled,
        health=device.health,
    )


class PreparedUnits:
    """Tells agents what their hosts' units are used for."""

    def __init__(self, *, db: Database) -> None:
        self._db = db

    @retried
    def holdings(self, service_host: str, epoch: int) -> Holdings:
        """All units of an agent's host that binds prepare; raises NotFound, StaleEpoch."""
        with self._db.writer() as tx:
            host = hosts.lock_for_agent(tx, service_host)
            check_epoch(host, service_host, epoch)
            rows = host_inventory.of_host(tx, host.id)
        return Holdings(tuple(Holding(_task(row), _use(row)) for row in rows))


def _use(row: Record) -> Use:
    """Whatever is not plainly one or the other is left to the work that is about it."""
    if row.lost:
        return Use.IN_TRANSITION
    if row.holder_state == State.BOUND and row.state == HandleState.HELD and row.prepared:
        return Use.PREPARED
    if row.holder_state is None and row.state == HandleState.FREE:
        return Use.FREE
    return Use.IN_TRANSITION


def _task(row: Record) -> HandleTask:
    return HandleTask(
        operation=str(uuid4()),
        driver=row.driver,
        device_key=row.device_key,
        deployable=row.name,
        handle_key=row.handle_key,
        handle_uuid=row.uuid,
        spec=device_profile.wishes(row.group_spec or {}),
    )
