# SPDX-License-Identifier: Apache-2.0
"""What a report changes in a host's tree: computed in memory, written in few statements.

A scan never deletes: what is not seen is marked lost and comes back as it was. What operators
made (attributes, created devices, the status) is never a report's business.
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
from cyborg.model.attribute import Origin
from cyborg.model.device import DeviceStatus
from cyborg.model.device_life import first_status
from cyborg.model.labels import Labels
from cyborg.model.provider import provider_uuid

Row = dict[str, Any]


@dataclass
class StoredDevices:
    """The rows of a host as they stand, ready to be looked up."""

    devices: Sequence[Record] = ()
    deployables: Sequence[Record] = ()
    handles: Sequence[Record] = ()
    attributes: Sequence[Record] = ()

    @classmethod
    def read(cls, tx: sa.Connection, host_id: int) -> "StoredDevices":
        """One statement for a host that has no devices yet, four for any other."""
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
    """What is to be written; nothing in it means that the report brought nothing new."""

    host_id: int
    hostname: str
    #: Drivers whose new devices are in service at once; ``*`` stands for every one.
    auto_enable: frozenset[str]
    devices: list[Row] = field(default_factory=list)
    control_paths: list[Row] = field(default_factory=list)
    deployables: list[Row] = field(default_factory=list)
    attributes: list[Row] = field(default_factory=list)
    handles: list[Row] = field(default_factory=list)
    changes: list[tuple[Any, int, Row]] = field(default_factory=list)
    lost: dict[Any, set[int]] = field(default_factory=dict)
    found: dict[Any, set[int]] = field(default_factory=dict)
    gone_attributes: set[int] = field(default_factory=set)
    #: The uuids of devices that stood already, by the driver and key that they have now.
    moved: dict[tuple[str, str], str] = field(default_factory=dict)
    #: (device uuid, what happened, its status where that does not tell) for the history.
    history: list[tuple[str, str, str | None]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(
            self.devices
            or self.deployables
            or self.attributes
            or self.handles
            or self.changes
            or any(self.lost.values())
            or any(self.found.values())
            or self.gone_attributes
        )

    @property
    def waiting(self) -> int:
        """How many of the new devices are not put into service at once."""
        return sum(one["status"] == DeviceStatus.INACTIVE.value for one in self.devices)

    def add_device(
        self, driver: str, device: facts.Device, uuid: str, labels: Labels | None = None
    ) -> None:
        """A device that was never seen on this host, and its uuid from now on."""
        self.devices.append(
            {
                "uuid": uuid,
                "host_id": self.host_id,
                "hostname": self.hostname,
                "status": first_status(driver, self.auto_enable).value,
                "driver": driver,
                "device_key": device.key,
                "device_state": "available",
                "origin": (Origin.OPERATOR if device.made else Origin.DISCOVERED).value,
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
        what = "created" if device.made else "discovered"
        self.history.append((uuid, what, self.devices[-1]["status"]))
        for one in device.deployables:
            self._add_deployable(one, {"device_uuid": uuid})

    def compare_device(
        self, row: Record, driver: str, device: facts.Device, known: StoredDevices
    ) -> None:
        """A device that was seen before, perhaps by another driver, perhaps lost since."""
        self.moved[driver, device.key] = row.uuid
        columns = {"driver": driver, **_device_columns(device)}
        self._compare(Device, row, columns)
        self._find(row)
        mine = {one.name: one for one in known.deployables if one.device_id == row.id}
        for deployable in device.deployables:
            old = mine.pop(deployable.name, None)
            if old is None:
                self._add_deployable(deployable, {"device_id": row.id})
            else:
                self._compare_deployable(old, deployable, known)
        self._lose(Deployable, mine.values())

    def see_made(self, row: Record, device: facts.Device, known: StoredDevices) -> None:
        """A device that an operator created is there: facts are the operator's.

        But whether a bind needs the host's work, and whether it takes images, its driver tells.
        """
        self.moved[row.driver, row.device_key] = row.uuid
        if row.leaving:
            return
        self._find(row)
        told = {one.name: one for one in device.deployables}
        for one in known.deployables:
            if one.device_id == row.id and one.name in told:
                new = told[one.name]
                values = {"prepare": new.prepare, "programmable": new.programmable}
                self._compare(Deployable, one, values)

    def _find(self, row: Record) -> None:
        if row.lost_ms is not None:
            self.found.setdefault(Device, set()).add(row.id)
            self.history.append((row.uuid, "found again", row.status))

    def lose_device(self, row: Record) -> None:
        """A device that its driver no longer sees."""
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
        self, old: Record, deployable: facts.Deployable, known: StoredDevices
    ) -> None:
        self._compare(Deployable, old, _deployable_columns(deployable))
        if old.lost_ms is not None:
            self.found.setdefault(Deployable, set()).add(old.id)
        self._compare_attributes(old, deployable, known)
        handles = {one.handle_key: one for one in known.handles if one.deployable_id == old.id}
        for handle in deployable.handles:
            was = handles.pop(handle.key, None)
            if was is None:
                self._add_handle(handle, {"deployable_id": old.id, "device_id": old.device_id})
                continue
            self._compare(AttachHandle, was, _handle_columns(handle))
            if was.lost_ms is not None:
                self.found.setdefault(AttachHandle, set()).add(was.id)
        self._lose(AttachHandle, handles.values())

    def _compare_attributes(
        self, old: Record, deployable: facts.Deployable, known: StoredDevices
    ) -> None:
        mine = {
            (one.key, one.value): one.id for one in known.attributes if one.deployable_id == old.id
        }
        for attribute in deployable.attributes:
            if mine.pop((attribute.key, attribute.value), None) is None:
                self._add_attribute(attribute, {"deployable_id": old.id})
        self.gone_attributes |= set(mine.values())

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
        self.lost.setdefault(model, set()).update(one.id for one in rows if one.lost_ms is None)


def write(tx: sa.Connection, now: sa.ColumnElement[int], new: DeviceDiff) -> None:
    """Store a difference: one statement for each kind of new row, one for each changed one."""
    device_ids = base.insert_ids(tx, Device, new.devices)
    _refer(new.control_paths, "device_uuid", "device_id", device_ids)
    path_ids = {row["uuid"]: row["device_id"] for row in new.control_paths}
    paths = {
        path_ids[uuid]: id_
        for uuid, id_ in base.insert_ids(tx, ControlpathId, new.control_paths).items()
    }
    _refer(new.deployables, "device_uuid", "device_id", device_ids)
    deployable_ids = base.insert_ids(tx, Deployable, new.deployables)
    _refer(new.attributes, "deployable_uuid", "deployable_id", deployable_ids)
    base.insert(tx, Attribute, new.attributes)
    _refer(new.handles, "deployable_uuid", "deployable_id", deployable_ids)
    _refer(new.handles, "device_uuid", "device_id", device_ids)
    _insert_handles(tx, new.handles, paths)
    for model, id_, values in new.changes:
        host_inventory.change(tx, model, id_, values)
    for model, ids in new.lost.items():
        host_inventory.set_lost(tx, model, ids, now)
    for model, ids in new.found.items():
        host_inventory.set_lost(tx, model, ids, None)
    host_inventory.remove_attributes(tx, new.gone_attributes)


def _insert_handles(tx: sa.Connection, rows: list[Row], paths: dict[int, int]) -> None:
    unknown = {row["device_id"] for row in rows} - set(paths)
    if unknown:
        paths = {**paths, **host_inventory.control_paths(tx, unknown)}
    for row in rows:
        row["cpid_id"] = paths[row.pop("device_id")]
    base.insert(tx, AttachHandle, rows)


def _refer(rows: Iterable[Row], word: str, column: str, ids: dict[str, int]) -> None:
    """Turn references by uuid, to rows that have just been stored, into ids."""
    for row in rows:
        if word in row:
            row[column] = ids[row.pop(word)]


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
