# SPDX-License-Identifier: Apache-2.0
"""The difference between a report and the rows of its host: computed in memory, then written.

The write takes few statements. A report never deletes a device: a device that is not reported is
marked lost, and is restored unchanged when it is reported again. A report never changes what
operators made: attributes, created devices and the status of a device.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from cyborg.db import base, host_inventory
from cyborg.db.base import Record
from cyborg.db.models import AttachHandle, Attribute, ControlpathId, Deployable, Device
from cyborg.model import device as facts
from cyborg.model.attribute import Labels, Origin
from cyborg.model.device import DeviceStatus, initial_status
from cyborg.model.provider import provider_uuid

Row = dict[str, Any]


@dataclass
class StoredDevices:
    """The rows of a host before a report."""

    devices: Sequence[Record] = ()
    deployables: Sequence[Record] = ()
    handles: Sequence[Record] = ()
    attributes: Sequence[Record] = ()

    @classmethod
    def read(cls, tx: sa.Connection, host_id: int) -> "StoredDevices":
        """Read the rows: one statement for a host without devices, four for any other."""
        devices = host_inventory.devices(tx, host_id)
        if not devices:
            return cls()
        return cls(
            devices,
            host_inventory.deployables(tx, host_id),
            host_inventory.handles(tx, host_id),
            host_inventory.attributes(tx, host_id),
        )


@dataclass
class DeviceDiff:
    """The rows to be written; false when the report changes nothing."""

    host_id: int
    hostname: str
    #: Drivers whose new devices are enabled at once; ``*`` stands for every driver.
    auto_enable: frozenset[str]
    devices: list[Row] = field(default_factory=list)
    control_paths: list[Row] = field(default_factory=list)
    deployables: list[Row] = field(default_factory=list)
    attributes: list[Row] = field(default_factory=list)
    handles: list[Row] = field(default_factory=list)
    changes: list[tuple[Any, int, Row]] = field(default_factory=list)
    #: Model → ids of the rows that the report does not show any more.
    lost: dict[Any, set[int]] = field(default_factory=dict)
    #: Model → ids of the lost rows that the report shows again.
    returned: dict[Any, set[int]] = field(default_factory=dict)
    gone_attributes: set[int] = field(default_factory=set)
    #: The uuids of devices that were stored before, by the driver and key that they have now.
    moved: dict[tuple[str, str], str] = field(default_factory=dict)
    #: (device uuid, action, status where the action does not imply it) for the history.
    history: list[tuple[str, str, str | None]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(
            self.devices
            or self.deployables
            or self.attributes
            or self.handles
            or self.changes
            or any(self.lost.values())
            or any(self.returned.values())
            or self.gone_attributes
        )

    @property
    def waiting(self) -> int:
        """Number of new devices that wait to be enabled."""
        return sum(row["status"] == DeviceStatus.INACTIVE.value for row in self.devices)

    def uuids(self, stored: StoredDevices) -> dict[tuple[str, str], str]:
        """Return the uuids of all devices of the host by driver and key, with those it gets."""
        before = {(row.driver, row.device_key): row.uuid for row in stored.devices}
        added = {(row["driver"], row["device_key"]): row["uuid"] for row in self.devices}
        moved = {uuid for key, uuid in self.moved.items() if before.get(key) != uuid}
        return {key: uuid for key, uuid in before.items() if uuid not in moved} | added | self.moved

    def add_device(
        self, driver: str, device: facts.Device, uuid: str, labels: Labels | None = None
    ) -> None:
        """Add a device that was never reported by this host, with the uuid that it gets."""
        self.devices.append(
            {
                "uuid": uuid,
                "host_id": self.host_id,
                "hostname": self.hostname,
                "status": initial_status(driver, self.auto_enable).value,
                "driver": driver,
                "device_key": device.key,
                "device_state": "available",
                "origin": (Origin.OPERATOR if device.operator_created else Origin.DISCOVERED).value,
                "labels": labels or None,
                **_device_columns(device),
            }
        )
        self.control_paths.append(
            {
                "uuid": str(uuid4()),
                "device_uuid": uuid,
                "cpid_type": "PCI",
                "cpid_info": json.dumps(device.control_path),
            }
        )
        action = "created" if device.operator_created else "discovered"
        self.history.append((uuid, action, self.devices[-1]["status"]))
        for deployable in device.deployables:
            self._add_deployable(deployable, {"device_uuid": uuid})

    def compare_device(
        self, row: Record, driver: str, device: facts.Device, stored: StoredDevices
    ) -> None:
        """Compare a device with its row; another driver may have reported it, or it may be lost."""
        self.moved[driver, device.key] = row.uuid
        columns = {"driver": driver, **_device_columns(device)}
        self._compare(Device, row, columns)
        self._restore_device(row)
        missing = {
            deployable_row.name: deployable_row
            for deployable_row in stored.deployables
            if deployable_row.device_id == row.id
        }
        for deployable in device.deployables:
            old = missing.pop(deployable.name, None)
            if old is None:
                self._add_deployable(deployable, {"device_id": row.id})
            else:
                self._compare_deployable(old, deployable, stored)
        self._lose(Deployable, missing.values())

    def compare_created(self, row: Record, device: facts.Device, stored: StoredDevices) -> None:
        """Compare a device that an operator created: its facts are the operator's.

        Only the driver knows whether the host prepares units for a bind, and whether the device
        takes images.
        """
        self.moved[row.driver, row.device_key] = row.uuid
        if row.being_removed:
            return
        self._restore_device(row)
        deployables = {deployable.name: deployable for deployable in device.deployables}
        for old in stored.deployables:
            if old.device_id == row.id and old.name in deployables:
                deployable = deployables[old.name]
                values = {"prepare": deployable.prepare, "programmable": deployable.programmable}
                self._compare(Deployable, old, values)

    def _restore_device(self, row: Record) -> None:
        if row.lost_ms is not None:
            self.returned.setdefault(Device, set()).add(row.id)
            self.history.append((row.uuid, "found again", row.status))

    def lose_device(self, row: Record) -> None:
        """Mark a device lost that its driver does not report any more."""
        if row.lost_ms is None:
            self._lose(Device, [row])
            self.history.append((row.uuid, "lost", None))

    def _add_deployable(self, deployable: facts.Deployable, owner: Row) -> None:
        uuid = str(uuid4())
        self.deployables.append(
            {
                "uuid": uuid,
                "name": deployable.name,
                "rp_uuid": provider_uuid(deployable.name),
                **owner,
                **_deployable_columns(deployable),
            }
        )
        for attribute in deployable.attributes:
            self._add_attribute(attribute, {"deployable_uuid": uuid})
        for handle in deployable.handles:
            self._add_handle(handle, {"deployable_uuid": uuid, **owner})

    def _compare_deployable(
        self, old: Record, deployable: facts.Deployable, stored: StoredDevices
    ) -> None:
        self._compare(Deployable, old, _deployable_columns(deployable))
        if old.lost_ms is not None:
            self.returned.setdefault(Deployable, set()).add(old.id)
        attributes = {
            (row.key, row.value): row.id for row in stored.attributes if row.deployable_id == old.id
        }
        for attribute in deployable.attributes:
            if attributes.pop((attribute.key, attribute.value), None) is None:
                self._add_attribute(attribute, {"deployable_id": old.id})
        self.gone_attributes |= set(attributes.values())
        missing = {row.handle_key: row for row in stored.handles if row.deployable_id == old.id}
        for handle in deployable.handles:
            row = missing.pop(handle.key, None)
            if row is None:
                self._add_handle(handle, {"deployable_id": old.id, "device_id": old.device_id})
                continue
            self._compare(AttachHandle, row, _handle_columns(handle))
            if row.lost_ms is not None:
                self.returned.setdefault(AttachHandle, set()).add(row.id)
        self._lose(AttachHandle, missing.values())

    def _add_attribute(self, attribute: facts.Attribute, owner: Row) -> None:
        self.attributes.append(
            {
                "uuid": str(uuid4()),
                "key": attribute.key,
                "value": attribute.value,
                "origin": Origin.DISCOVERED.value,
                **owner,
            }
        )

    def _add_handle(self, handle: facts.AttachHandle, owner: Row) -> None:
        self.handles.append(
            {"uuid": str(uuid4()), "handle_key": handle.key, **owner, **_handle_columns(handle)}
        )

    def _compare(self, model: Any, row: Record, columns: Row) -> None:
        changed = {name: value for name, value in columns.items() if getattr(row, name) != value}
        if changed:
            self.changes.append((model, row.id, changed))

    def _lose(self, model: Any, rows: Iterable[Record]) -> None:
        self.lost.setdefault(model, set()).update(row.id for row in rows if row.lost_ms is None)


def write(tx: sa.Connection, now: sa.ColumnElement[int], diff: DeviceDiff) -> None:
    """Store a difference: one statement for each kind of new row and for each changed row."""
    device_ids = base.insert_ids(tx, Device, diff.devices)
    _refer(diff.control_paths, "device_uuid", "device_id", device_ids)
    path_ids = {row["uuid"]: row["device_id"] for row in diff.control_paths}
    # Device id → id of its control path.
    paths = {
        path_ids[uuid]: id_
        for uuid, id_ in base.insert_ids(tx, ControlpathId, diff.control_paths).items()
    }
    _refer(diff.deployables, "device_uuid", "device_id", device_ids)
    deployable_ids = base.insert_ids(tx, Deployable, diff.deployables)
    _refer(diff.attributes, "deployable_uuid", "deployable_id", deployable_ids)
    base.insert(tx, Attribute, diff.attributes)
    _refer(diff.handles, "deployable_uuid", "deployable_id", deployable_ids)
    _refer(diff.handles, "device_uuid", "device_id", device_ids)
    old_device_ids = {row["device_id"] for row in diff.handles} - set(paths)
    if old_device_ids:
        paths |= host_inventory.control_paths(tx, old_device_ids)
    for row in diff.handles:
        row["cpid_id"] = paths[row.pop("device_id")]
    base.insert(tx, AttachHandle, diff.handles)
    for model, id_, values in diff.changes:
        host_inventory.change(tx, model, id_, values)
    for model, ids in diff.lost.items():
        host_inventory.set_lost(tx, model, ids, now)
    for model, ids in diff.returned.items():
        host_inventory.set_lost(tx, model, ids, None)
    base.remove(tx, Attribute, diff.gone_attributes)


def _refer(rows: Iterable[Row], reference: str, column: str, ids: dict[str, int]) -> None:
    """Replace references by uuid to rows that have just been stored with their ids."""
    for row in rows:
        if reference in row:
            row[column] = ids[row.pop(reference)]


def _device_columns(device: facts.Device) -> Row:
    return {
        "type": device.type.value,
        "vendor": device.vendor,
        "model": device.model,
        "std_board_info": host_inventory.board_text(device.std_board_info),
        "vendor_board_info": device.vendor_board_info,
        "numa_node": device.numa_node,
        "backend": device.backend,
    }


def _deployable_columns(deployable: facts.Deployable) -> Row:
    return {
        "num_accelerators": len(deployable.handles),
        "driver_name": deployable.driver_name,
        "resource_class": deployable.resource_class,
        "prepare": deployable.prepare,
        "programmable": deployable.programmable,
    }


def _handle_columns(handle: facts.AttachHandle) -> Row:
    return {"attach_type": handle.type.value, "attach_info": json.dumps(handle.info)}
