# SPDX-License-Identifier: Apache-2.0
"""The difference between a report and the rows of its host: computed in memory, then written.

The write takes few statements. A report never deletes a device: a device that is not reported is
marked lost, and is restored unchanged when it is reported again. A report never changes what
operators made: attributes, created devices and the status of a device.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Final, NamedTuple, TypeVar
from uuid import uuid4

from cyborg.conductor.reports.comparison import Comparison, L, LosableComparison, Row
from cyborg.conductor.reports.matching import stored_identity
from cyborg.db import base, bulk, events, host_inventory
from cyborg.db.deployables import clear_lost_images
from cyborg.db.models import AttachHandle, Attribute, ControlpathId, Deployable, Device
from cyborg.db.transaction import Transaction
from cyborg.model import device as facts
from cyborg.model import wire
from cyborg.model.attribute import Labels, Origin
from cyborg.model.device import (
    Confidence,
    DeviceStatus,
    initial_status,
    merge_identity,
)
from cyborg.model.provider import provider_uuid

#: The place of a row in the tree of its host: uuid of the device, key of the deployable, and key
#: of the handle or key and value of the attribute. That of its parent is shorter.
Path = tuple[str, ...]
_S = TypeVar("_S", Deployable, AttachHandle)
#: The fields of a reported device that are columns of its row: those that have the name of one.
_FACTS: Final = tuple(
    field.name for field in fields(facts.Device) if field.name in Device.__table__.columns
)
#: How much of a name is kept when a part of a uuid follows: Placement takes 200 characters.
_BASE_NAME = 191


class DeviceAction(NamedTuple):
    """A change of a device for its history."""

    uuid: str
    action: str
    #: The new status, where the action does not imply it.
    state: str | None = None
    reason: str | None = None

    def entry(self, hostname: str) -> events.Entry:
        """Return the event of the history."""
        return events.Entry(
            "device",
            self.uuid,
            self.action,
            hostname=hostname,
            reason=self.reason,
            state=self.state,
        )

    def __str__(self) -> str:
        return self.action if self.reason is None else f"{self.action}: {self.reason}"


@dataclass
class StoredDevices:
    """The rows of a host before a report."""

    devices: Sequence[Device] = ()
    #: Id of the device → its deployables by key, which is their name unless the device has moved.
    deployables: dict[int, dict[str, Deployable]] = field(default_factory=lambda: defaultdict(dict))
    #: Id of the deployable → its handles by key, and its attributes by key and value.
    handles: dict[int, dict[str, AttachHandle]] = field(default_factory=lambda: defaultdict(dict))
    attributes: dict[int, dict[Path, Attribute]] = field(default_factory=lambda: defaultdict(dict))

    @classmethod
    def read(cls, tx: Transaction, host_id: int) -> "StoredDevices":
        """Read the rows: one statement for a host without devices, four for any other."""
        stored = cls(host_inventory.devices(tx, host_id))
        if stored.devices:
            for deployable in host_inventory.deployables(tx, host_id):
                stored.deployables[deployable.device_id][deployable.key or deployable.name] = (
                    deployable
                )
            for handle in host_inventory.handles(tx, host_id):
                stored.handles[handle.deployable_id][handle.handle_key] = handle
            for fact in host_inventory.attributes(tx, host_id):
                stored.attributes[fact.deployable_id][fact.key, fact.value] = fact
        return stored


class DeviceDiff:
    """The difference of the devices of a host; the caller adds each device of the report to it.

    ``auto_enable`` are the drivers whose new devices are enabled at once; ``*`` stands for every
    driver.
    """

    def __init__(
        self, host_id: int, hostname: str, auto_enable: Collection[str], stored: StoredDevices
    ) -> None:
        self.host_id = host_id
        self.hostname = hostname
        self.stored = stored
        self.devices = LosableComparison[Path, Device]()
        self.deployables = LosableComparison[Path, Deployable]()
        self.handles = LosableComparison[Path, AttachHandle]()
        self.attributes = Comparison[Path, Attribute]()
        self.history: list[DeviceAction] = []
        #: Names of reported deployables that exist, at any place of any host.
        self.taken_names: Collection[str] = ()
        #: The rows of devices whose place another device has.
        self._displaced: list[Device] = []
        #: Id → columns of the deployables and units that are not where their device was before.
        self._left: dict[type[base.Base], list[tuple[int, Row]]] = {
            Deployable: [],
            AttachHandle: [],
        }
        #: The control paths of new devices by uuid.
        self._control_paths: dict[str, str] = {}
        #: The uuids of the reported devices by driver and key.
        self._reported: dict[tuple[str, str], str] = {}
        self._auto_enable = auto_enable

    @property
    def waiting(self) -> int:
        """Number of new devices that wait to be enabled."""
        return len(self.new_devices(DeviceStatus.INACTIVE))

    def new_devices(self, status: DeviceStatus) -> set[str]:
        """Return the uuids of the new devices that get this status."""
        return {
            uuid for (uuid,), row in self.devices.added.items() if row["status"] == status.value
        }

    def uuids(self) -> dict[tuple[str, str], str]:
        """Return the uuids of all devices of the host by driver and key, with those it gets."""
        placed = set(self._reported.values())
        others = {
            (row.driver, row.device_key): row.uuid
            for row in self.stored.devices
            if row.uuid not in placed
        }
        return others | self._reported

    def pooled(self) -> set[str]:
        """Return the uuids of the devices whose units share capacity, now or before this report."""
        stored = {row.uuid for row in self.stored.devices if row.pools is not None}
        reported = self.devices.reported.items()
        return stored | {uuid for (uuid,), columns in reported if columns.get("pools")}

    @property
    def devices_changed(self) -> bool:
        """Whether devices came or went, so that others may have got their addresses."""
        return bool(self.devices.added or self.devices.lost or self.devices.returned)

    @property
    def units_changed(self) -> bool:
        """Whether units came, or units may have other addresses."""
        parts = self.deployables.returned or self.handles.added or self.handles.returned
        return self.devices_changed or bool(parts)

    def units_before(self) -> set[int]:
        """Return the ids of the handles that the host had before this report."""
        devices = {row.id for row in self.stored.devices if row.lost_ms is None}
        return {
            handle.id
            for device_id in devices
            for part in self.stored.deployables[device_id].values()
            if part.lost_ms is None
            for handle in self.stored.handles[part.id].values()
            if handle.lost_ms is None
        }

    def stored_units(self) -> set[int]:
        """Return the ids of all handles of the host that were stored before this report."""
        return {row.id for rows in self.stored.handles.values() for row in rows.values()}

    def add_device(
        self, driver: str, device: facts.Device, uuid: str, labels: Labels | None = None
    ) -> None:
        """Add a device that was never reported by this host, with the uuid that it gets."""
        status = initial_status(driver, self._auto_enable).value
        self.devices.reported[uuid,] = {
            "status": status,
            "device_key": device.key,
            "device_state": "available",
            "origin": (Origin.OPERATOR if device.operator_created else Origin.DISCOVERED).value,
            "labels": labels or None,
            "driver": driver,
            **_device_columns(device, None),
        }
        self._control_paths[uuid] = json.dumps(device.control_path)
        action = "created" if device.operator_created else "discovered"
        self.history.append(DeviceAction(uuid, action, status))
        self._find(driver, device, uuid)

    def compare_device(self, row: Device, driver: str, device: facts.Device) -> None:
        """Compare a device with its row; another driver may have reported it, or it may be lost.

        A device that has moved keeps its deployables with their names, and their handles. Those
        that it does not show at its new place tell no address any more.
        """
        columns = {"driver": driver, "device_key": device.key, **_device_columns(device, row)}
        self._return_device(row, columns)
        moved = row.device_key != device.key
        if moved:
            where = f"from {row.device_key} to {device.key}"
            if row.device_key == row.uuid:
                where = f"to {device.key}"
            self.history.append(DeviceAction(row.uuid, "moved", reason=where))
        reported = {deployable.name: deployable for deployable in device.deployables}
        deployables = self.stored.deployables[row.id]
        for name, deployable in (_moved(deployables, reported) if moved else deployables).items():
            path = (row.uuid, name)
            self.deployables.stored[path] = deployable
            if name not in reported:
                # Its handles and attributes stay as they are, for when it returns.
                if moved:
                    self._leave(row, {name: deployable})
                continue
            handles = self.stored.handles[deployable.id]
            if moved:
                keys = {handle.key for handle in reported[name].handles}
                handles = _moved(handles, keys)
                self._leave_units(row, {k: unit for k, unit in handles.items() if k not in keys})
            for key, handle in handles.items():
                self.handles.stored[*path, key] = handle
            for fact, attribute in self.stored.attributes[deployable.id].items():
                self.attributes.stored[*path, *fact] = attribute
        self._find(driver, device, row.uuid)

    def compare_created(self, row: Device, device: facts.Device) -> None:
        """Compare a device that an operator created: its facts are the operator's.

        Only the driver knows which hardware it is, whether the host prepares units for a bind, and
        whether the device takes images.
        """
        self._reported[row.driver, row.device_key] = row.uuid
        if row.being_removed:
            return
        columns = _device_columns(device, row)
        self._return_device(
            row, {name: columns[name] for name in ("identity", "topology", "pools")}
        )
        rows = self.stored.deployables[row.id]
        for deployable in device.deployables:
            if deployable.name in rows:
                path = (row.uuid, deployable.name)
                self.deployables.stored[path] = rows[deployable.name]
                self.deployables.reported[path] = {
                    "prepare": deployable.prepare,
                    "programmable": deployable.programmable,
                    "cost": deployable.cost or None,
                    "group_size": _group_column(deployable),
                    "clean": deployable.clean and deployable.clean.value,
                }

    def lose_devices(
        self, displaced: Collection[int], kept: Collection[int], failed: Collection[str]
    ) -> None:
        """Mark the devices lost whose rows are ``displaced``, or not ``kept``.

        A driver that is not enabled any more has lost its devices. A driver that has ``failed`` may
        see them again.
        """
        for row in self.stored.devices:
            if row.id in displaced:
                self.displace_device(row)
            elif row.id not in kept and row.driver not in failed:
                self.lose_device(row)

    def lose_device(self, row: Device) -> None:
        """Mark a device lost that its driver does not report any more."""
        self.devices.stored[row.uuid,] = row
        if row.lost_ms is None:
            self.history.append(DeviceAction(row.uuid, "lost"))

    def displace_device(self, row: Device) -> None:
        """Mark a device lost whose place another device has now.

        It has neither a key nor an address until it is reported again, so that nothing reaches the
        other device under its name, or under those of its parts.
        """
        self.lose_device(row)
        self._displaced.append(row)
        self._leave(row, self.stored.deployables[row.id])

    def _leave(self, row: Device, deployables: Mapping[str, Deployable]) -> None:
        """Take the addresses of deployables of a device, and of all their units."""
        for deployable, key in _nameless(row, deployables):
            self._left[Deployable].append((deployable.id, {"key": key}))
            self._leave_units(row, self.stored.handles[deployable.id])

    def _leave_units(self, row: Device, units: Mapping[str, AttachHandle]) -> None:
        """Take the addresses of units of a deployable: another device may have them now."""
        for unit, key in _nameless(row, units):
            columns = {"handle_key": key, "attach_info": "{}"}
            self._left[AttachHandle].append((unit.id, columns))

    def write(self, tx: Transaction) -> bool:
        """Store the difference; return whether there is any.

        One statement for each kind of new, lost, returned and removed row, and one for all rows of
        a table whose changes concern the same columns.
        """
        self._free_keys(tx)
        changed = self._insert(tx)
        changed |= _update(tx, Device, self.devices)
        changed |= _update(tx, Deployable, self.deployables)
        changed |= _update(tx, AttachHandle, self.handles)
        gone = [row.id for row in self.attributes.missing]
        bulk.remove(tx, Attribute, gone)
        return changed or bool(gone)

    def _free_keys(self, tx: Transaction) -> None:
        """Take the keys of what moves, because keys are unique and devices may exchange them."""
        moved = [
            row.id
            for path, row in self.devices.stored.items()
            if self.devices.reported.get(path, {}).get("device_key", row.device_key)
            != row.device_key
        ]
        bulk.change(tx, Device, [(id_, {"device_key": f"moving {id_}"}) for id_ in moved])
        if moved:
            # They have been without power.
            clear_lost_images(tx, moved)
        displaced = []
        for row in self._displaced:
            kept = [
                fact for fact in stored_identity(row) if fact.confidence is not Confidence.PLACE
            ]
            columns = {"identity": wire.plain(kept) or None, "topology": None}
            displaced.append((row.id, {"device_key": row.uuid, **columns}))
        bulk.change(tx, Device, displaced)
        bulk.change(tx, Deployable, self._left[Deployable])
        rekeyed: list[tuple[int, Row]] = [
            (row.id, {"handle_key": f"moving {row.id}", "attach_info": row.attach_info})
            for path, row in self.handles.stored.items()
            if path[2] != row.handle_key
        ]
        # Binds lock handles in the order of their ids, too.
        units = sorted(self._left[AttachHandle] + rekeyed, key=lambda change: change[0])
        bulk.change(tx, AttachHandle, units)

    def _insert(self, tx: Transaction) -> bool:
        """Insert the new rows, parents first; return whether there are any."""
        devices = [
            {"uuid": uuid, "host_id": self.host_id, "hostname": self.hostname, **columns}
            for (uuid,), columns in self.devices.added.items()
        ]
        new_ids = bulk.insert_ids(tx, Device, devices)
        device_ids = {uuid: row.id for (uuid,), row in self.devices.stored.items()} | new_ids
        paths = {
            uuid: {
                "uuid": str(uuid4()),
                "device_id": new_ids[uuid],
                "cpid_type": "PCI",
                "cpid_info": info,
            }
            for uuid, info in self._control_paths.items()
        }
        path_ids = bulk.insert_ids(tx, ControlpathId, list(paths.values()))
        # Device id → id of its control path.
        cpid_ids = {new_ids[uuid]: path_ids[str(path["uuid"])] for uuid, path in paths.items()}
        deployables: dict[Path, Row] = {}
        for path, columns in self.deployables.added.items():
            uuid, name = str(uuid4()), path[1]
            if name in self.taken_names:
                # The name stays with a device that was here before: allocations refer to it.
                name = f"{name[:_BASE_NAME]}_{uuid[:8]}"
            deployables[path] = {
                "uuid": uuid,
                "device_id": device_ids[path[0]],
                **columns,
                "name": name,
                "key": _key(path[1], name),
                "rp_uuid": provider_uuid(name),
            }
        new_ids = bulk.insert_ids(tx, Deployable, list(deployables.values()))
        deployable_ids = {path: row.id for path, row in self.deployables.stored.items()}
        deployable_ids |= {path: new_ids[row["uuid"]] for path, row in deployables.items()}
        attributes = [
            {
                "uuid": str(uuid4()),
                "deployable_id": deployable_ids[uuid, name],
                "key": key,
                "value": value,
                "origin": Origin.DISCOVERED.value,
            }
            for uuid, name, key, value in self.attributes.added
        ]
        bulk.insert(tx, Attribute, attributes)
        added = self.handles.added
        if older := {device_ids[path[0]] for path in added} - cpid_ids.keys():
            cpid_ids |= host_inventory.control_paths(tx, older)
        handles = [
            {
                "uuid": str(uuid4()),
                "deployable_id": deployable_ids[uuid, name],
                "cpid_id": cpid_ids[device_ids[uuid]],
                **columns,
            }
            for (uuid, name, _), columns in added.items()
        ]
        bulk.insert(tx, AttachHandle, handles)
        return bool(devices or deployables or attributes or handles)

    def _find(self, driver: str, device: facts.Device, uuid: str) -> None:
        self._reported[driver, device.key] = uuid
        for deployable in device.deployables:
            path = (uuid, deployable.name)
            row = self.deployables.stored.get(path)
            self.deployables.reported[path] = {
                "key": _key(deployable.name, deployable.name if row is None else row.name),
                "num_accelerators": len(deployable.handles),
                "driver_name": deployable.driver_name,
                "resource_class": deployable.resource_class,
                "prepare": deployable.prepare,
                "programmable": deployable.programmable,
                "cost": deployable.cost or None,
                "group_size": _group_column(deployable),
                "clean": deployable.clean and deployable.clean.value,
                "product_traits": list(deployable.product_traits) or None,
            }
            for handle in deployable.handles:
                self.handles.reported[*path, handle.key] = {
                    "handle_key": handle.key,
                    "attach_type": handle.type.value,
                    "attach_info": json.dumps(handle.info),
                }
            for attribute in deployable.attributes:
                self.attributes.reported[*path, attribute.key, attribute.value] = {}

    def _return_device(self, row: Device, columns: Row) -> None:
        self.devices.stored[row.uuid,] = row
        self.devices.reported[row.uuid,] = columns
        if row.lost_ms is not None:
            self.history.append(DeviceAction(row.uuid, "found again", row.status))


def _key(reported: str, name: str) -> str | None:
    """Return the column for the name that the driver of a deployable uses."""
    return None if reported == name else reported


def _nameless(row: Device, parts: Mapping[str, _S]) -> list[tuple[_S, str]]:
    """Return parts of a device with keys that no driver uses, in the order of their keys."""
    ordered = [part for _, part in sorted(parts.items())]
    return [(part, f"{row.uuid}/{number:05}/{part.id}") for number, part in enumerate(ordered)]


def _moved(stored: Mapping[str, _S], reported: Collection[str]) -> dict[str, _S]:
    """Return the rows below a device that has moved, by the keys that they have now.

    Keys contain addresses as a rule, so they are matched by their order if their number is as it
    was. Otherwise only equal keys are the same.
    """
    present = {key: row for key, row in stored.items() if row.lost_ms is None}
    lost = {key: row for key, row in stored.items() if key not in present}
    if len(present) != len(reported) or lost.keys() & set(reported):
        return dict(stored)
    return lost | {
        now: present[before] for before, now in zip(sorted(present), sorted(reported), strict=True)
    }


def _update(tx: Transaction, model: type[base.Base], rows: LosableComparison[Path, L]) -> bool:
    """Change the rows of a table, and mark them as lost or found; return whether there are any."""
    changed = bulk.change(tx, model, rows.changed)
    host_inventory.set_lost(tx, model, rows.lost, tx.now)
    host_inventory.set_lost(tx, model, rows.returned, None)
    return changed or bool(rows.lost or rows.returned)


def _group_column(deployable: facts.Deployable) -> int | None:
    return None if deployable.group_size == 1 else deployable.group_size


def _device_columns(device: facts.Device, row: Device | None) -> Row:
    """Return the columns that the report of a device decides; ``row`` is None for a new device."""
    columns = {name: wire.plain(getattr(device, name)) for name in _FACTS}
    identity = merge_identity(stored_identity(row) if row else (), device.identity)
    columns["identity"] = wire.plain(identity)
    columns["std_board_info"] = device.std_board_info and json.dumps(device.std_board_info)
    # An empty list or object is stored as NULL: a missing value has one form only.
    return {name: None if value in ([], {}) else value for name, value in columns.items()}
