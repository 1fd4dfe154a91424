# SPDX-License-Identifier: Apache-2.0
"""The difference between a report and the rows of its host: computed in memory, then written.

The write takes few statements. A report never deletes a device: a device that is not reported is
marked lost, and is restored unchanged when it is reported again. A report never changes what
operators made: attributes, created devices and the status of a device.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from cyborg.conductor.reports.comparison import Comparison, L, LosableComparison, Row
from cyborg.db import base, host_inventory
from cyborg.db.host_inventory import (
    StoredAttribute,
    StoredDeployable,
    StoredDevice,
    StoredHandle,
)
from cyborg.db.models import AttachHandle, Attribute, ControlpathId, Deployable, Device
from cyborg.db.transaction import Transaction
from cyborg.model import device as facts
from cyborg.model.attribute import Labels, Origin
from cyborg.model.device import (
    Confidence,
    DeviceStatus,
    Identity,
    IdentityKind,
    initial_status,
    merge_identity,
)
from cyborg.model.provider import provider_uuid

#: The place of a row in the tree of its host: uuid of the device, name of the deployable, and key
#: of the handle or key and value of the attribute. That of its parent is shorter.
Path = tuple[str, ...]


@dataclass
class StoredDevices:
    """The rows of a host before a report."""

    devices: Sequence[StoredDevice] = ()
    #: Id of the device → its deployables by name.
    deployables: dict[int, dict[str, StoredDeployable]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    #: Id of the deployable → its handles by key, and its attributes by key and value.
    handles: dict[int, dict[str, StoredHandle]] = field(default_factory=lambda: defaultdict(dict))
    attributes: dict[int, dict[Path, StoredAttribute]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    @classmethod
    def read(cls, tx: Transaction, host_id: int) -> "StoredDevices":
        """Read the rows: one statement for a host without devices, four for any other."""
        stored = cls(host_inventory.devices(tx, host_id))
        if stored.devices:
            for deployable in host_inventory.deployables(tx, host_id):
                stored.deployables[deployable.device_id][deployable.name] = deployable
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
        self, host_id: int, hostname: str, auto_enable: frozenset[str], stored: StoredDevices
    ) -> None:
        self.host_id = host_id
        self.hostname = hostname
        self.stored = stored
        self.devices = LosableComparison[Path, StoredDevice]()
        self.deployables = LosableComparison[Path, StoredDeployable]()
        self.handles = LosableComparison[Path, StoredHandle]()
        self.attributes = Comparison[Path, StoredAttribute]()
        #: (device uuid, action, status where the action does not imply it) for the history.
        self.history: list[tuple[str, str, str | None]] = []
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
            **_device_columns(device),
            **_place_columns(device, None),
        }
        self._control_paths[uuid] = json.dumps(device.control_path)
        self.history.append((uuid, "created" if device.operator_created else "discovered", status))
        self._find(driver, device, uuid)

    def compare_device(self, row: StoredDevice, driver: str, device: facts.Device) -> None:
        """Compare a device with its row; another driver may have reported it, or it may be lost."""
        columns = {**_device_columns(device), **_place_columns(device, row)}
        self._return_device(row, {"driver": driver, **columns})
        reported = {deployable.name for deployable in device.deployables}
        for name, deployable in self.stored.deployables[row.id].items():
            path = (row.uuid, name)
            self.deployables.stored[path] = deployable
            if name not in reported:
                # Its handles and attributes stay as they are, for when it returns.
                continue
            for key, handle in self.stored.handles[deployable.id].items():
                self.handles.stored[*path, key] = handle
            for fact, attribute in self.stored.attributes[deployable.id].items():
                self.attributes.stored[*path, *fact] = attribute
        self._find(driver, device, row.uuid)

    def compare_created(self, row: StoredDevice, device: facts.Device) -> None:
        """Compare a device that an operator created: its facts are the operator's.

        Only the driver knows which hardware it is, whether the host prepares units for a bind, and
        whether the device takes images.
        """
        self._reported[row.driver, row.device_key] = row.uuid
        if row.being_removed:
            return
        self._return_device(row, _place_columns(device, row))
        rows = self.stored.deployables[row.id]
        for deployable in device.deployables:
            if deployable.name in rows:
                path = (row.uuid, deployable.name)
                self.deployables.stored[path] = rows[deployable.name]
                self.deployables.reported[path] = {
                    "prepare": deployable.prepare,
                    "programmable": deployable.programmable,
                }

    def lose_device(self, row: StoredDevice) -> None:
        """Mark a device lost that its driver does not report any more."""
        self.devices.stored[row.uuid,] = row
        if row.lost_ms is None:
            self.history.append((row.uuid, "lost", None))

    def write(self, tx: Transaction) -> bool:
        """Store the difference; return whether there is any.

        One statement for each kind of new, lost, returned and removed row, and one for all rows of
        a table whose changes concern the same columns.
        """
        changed = self._insert(tx)
        changed |= _update(tx, Device, self.devices)
        changed |= _update(tx, Deployable, self.deployables)
        changed |= _update(tx, AttachHandle, self.handles)
        gone = [row.id for row in self.attributes.missing]
        base.remove(tx, Attribute, gone)
        return changed or bool(gone)

    def _insert(self, tx: Transaction) -> bool:
        """Insert the new rows, parents first; return whether there are any."""
        devices = [
            {"uuid": uuid, "host_id": self.host_id, "hostname": self.hostname, **columns}
            for (uuid,), columns in self.devices.added.items()
        ]
        new_ids = base.insert_ids(tx, Device, devices)
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
        path_ids = base.insert_ids(tx, ControlpathId, list(paths.values()))
        # Device id → id of its control path.
        cpid_ids = {new_ids[uuid]: path_ids[str(path["uuid"])] for uuid, path in paths.items()}
        deployables = {
            path: {
                "uuid": str(uuid4()),
                "device_id": device_ids[path[0]],
                "name": path[1],
                "rp_uuid": provider_uuid(path[1]),
                **columns,
            }
            for path, columns in self.deployables.added.items()
        }
        new_ids = base.insert_ids(tx, Deployable, list(deployables.values()))
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
        base.insert(tx, Attribute, attributes)
        added = self.handles.added
        if older := {device_ids[path[0]] for path in added} - cpid_ids.keys():
            cpid_ids |= host_inventory.control_paths(tx, older)
        handles = [
            {
                "uuid": str(uuid4()),
                "deployable_id": deployable_ids[uuid, name],
                "cpid_id": cpid_ids[device_ids[uuid]],
                "handle_key": key,
                **columns,
            }
            for (uuid, name, key), columns in added.items()
        ]
        base.insert(tx, AttachHandle, handles)
        return bool(devices or deployables or attributes or handles)

    def _find(self, driver: str, device: facts.Device, uuid: str) -> None:
        self._reported[driver, device.key] = uuid
        for deployable in device.deployables:
            path = (uuid, deployable.name)
            self.deployables.reported[path] = {
                "num_accelerators": len(deployable.handles),
                "driver_name": deployable.driver_name,
                "resource_class": deployable.resource_class,
                "prepare": deployable.prepare,
                "programmable": deployable.programmable,
            }
            for handle in deployable.handles:
                self.handles.reported[*path, handle.key] = {
                    "attach_type": handle.type.value,
                    "attach_info": json.dumps(handle.info),
                }
            for attribute in deployable.attributes:
                self.attributes.reported[*path, attribute.key, attribute.value] = {}

    def _return_device(self, row: StoredDevice, columns: Row) -> None:
        self.devices.stored[row.uuid,] = row
        self.devices.reported[row.uuid,] = columns
        if row.lost_ms is not None:
            self.history.append((row.uuid, "found again", row.status))


def _update(tx: Transaction, model: type[base.Base], rows: LosableComparison[Path, L]) -> bool:
    """Change the rows of a table, and mark them as lost or found; return whether there are any."""
    changed = base.change(tx, model, rows.changed)
    host_inventory.set_lost(tx, model, rows.lost, tx.now)
    host_inventory.set_lost(tx, model, rows.returned, None)
    return changed or bool(rows.lost or rows.returned)


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


def _place_columns(device: facts.Device, row: StoredDevice | None) -> Row:
    """Return what identifies a device and where it is; ``row`` is None for a new device.

    Databases keep the order of lists only, so that equal facts are equal values.
    """
    stored = [
        Identity(IdentityKind(item["kind"]), item["value"], Confidence(item["confidence"]))
        for item in (row.identity if row else None) or ()
        # A later release may have stored other words.
        if item["kind"] in set(IdentityKind) and item["confidence"] in set(Confidence)
    ]
    identity = merge_identity(stored, device.identity)
    return {
        "identity": [{name: str(value) for name, value in vars(item).items()} for item in identity]
        or None,
        "topology": None
        if device.topology is None
        else {**vars(device.topology), "siblings": list(device.topology.siblings)},
    }
