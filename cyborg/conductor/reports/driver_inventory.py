# SPDX-License-Identifier: Apache-2.0
"""Drivers, their backends and all hardware of a host, as its agent reports them.

Operators read these facts; nothing is bound to them. So a row is deleted when its driver does not
report it any more, and kept when the driver could not tell. Hardware that is a device has the uuid
of the device.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from cyborg.db import base, host_inventory
from cyborg.db import drivers as drivers_db
from cyborg.db.base import Record
from cyborg.db.models import Backend, Driver, Hardware
from cyborg.model.report import DriverState, InstalledDriver, Report

LOG = logging.getLogger(__name__)

Row = dict[str, Any]
#: Driver and key, which identify a device or a piece of hardware of a host.
Key = tuple[str, str]


@dataclass
class DriverInventory:
    """The rows of a host before a report; the caller holds the lock of the host."""

    host_id: int
    drivers: dict[str, Record] = field(default_factory=dict)
    #: Driver id → its backends by name.
    backends: dict[int, dict[str, Record]] = field(default_factory=lambda: defaultdict(dict))
    hardware: dict[Key, Record] = field(default_factory=dict)

    @classmethod
    def read(cls, tx: sa.Connection, host_id: int) -> "DriverInventory":
        """Read the rows of a host with two statements."""
        inventory = cls(host_id)
        for row in drivers_db.with_backends(tx, host_id):
            inventory.drivers[row.name] = row
            if row.backend_id is not None:
                inventory.backends[row.id][row.backend_name] = row
        for row in drivers_db.hardware(tx, host_id):
            inventory.hardware[row.driver, row.hardware_key] = row
        return inventory

    def note_drivers(self, tx: sa.Connection, now: sa.ColumnElement[int], report: Report) -> bool:
        """Store each driver's state and backends; return whether a driver's state has changed."""
        changed = False
        added: list[Row] = []
        for driver in report.drivers:
            old = self.drivers.get(driver.driver)
            columns: Row = {
                "state": driver.state.value,
                "error": driver.error,
                "version": driver.version,
                "device_type": driver.type,
                "endpoint": driver.endpoint,
                "accepts": [asdict(option) for option in driver.accepts],
            }
            if old is None or old.requested is None:
                # The host decides until an operator has enabled or disabled the driver.
                columns["enabled"] = driver.state is not DriverState.STOPPED
            if old is None:
                added.append({"uuid": str(uuid4()), "name": driver.driver, **columns})
                # After an upgrade a driver without a row may have devices.
                changed |= driver.state is not DriverState.READY
            else:
                _change(tx, Driver, old, columns)
                changed |= old.state != driver.state.value
        for name in self.drivers.keys() - {driver.driver for driver in report.drivers}:
            row = self.drivers[name]
            stopped: Row = {"state": DriverState.STOPPED.value}
            if row.requested is None:
                stopped["enabled"] = False
            _change(tx, Driver, row, stopped)
        common = {"host_id": self.host_id, "discovered_ms": now}
        added_ids = base.insert_ids(tx, Driver, added, common)
        ids = {row.name: row.id for row in self.drivers.values()}
        ready_ids = [
            ids[driver.driver]
            for driver in report.drivers
            if driver.state is DriverState.READY and driver.driver in ids
        ]
        drivers_db.set_discovered(tx, Driver, ready_ids, now)
        ids |= {row["name"]: added_ids[row["uuid"]] for row in added}
        self._note_backends(tx, now, report, ids)
        return changed

    def note_hardware(
        self,
        tx: sa.Connection,
        now: sa.ColumnElement[int],
        report: Report,
        devices: Mapping[Key, str],
    ) -> set[str]:
        """Store the hardware; ``devices`` are the uuids of the host's devices.

        Return the uuids of the hardware that has to be set up now and had not to when it was last
        reported.
        """
        silent = {driver.driver for driver in report.drivers if driver.hardware is None}
        remaining = {key: row for key, row in self.hardware.items() if key[0] not in silent}
        taken = set(devices.values())
        added: list[Row] = []
        changes: list[tuple[Record, Row]] = []
        unready: set[str] = set()
        entries = {
            (driver.driver, key): entry
            for driver in report.drivers
            for key, entry in _valid(
                driver.driver, "Hardware", driver.hardware or (), "key"
            ).items()
        }
        for key, entry in entries.items():
            old = remaining.pop(key, None)
            uuid = devices.get(key)
            if uuid is None:
                keeps = old is not None and old.uuid not in taken
                uuid = old.uuid if keeps else str(uuid4())
            if entry.setup_required and not (old is not None and old.setup_required):
                unready.add(uuid)
            kind = {"device_type": entry.kind}
            status = {
                "setup_required": entry.setup_required,
                "reboot_required": entry.reboot_required,
                "reason": entry.reason,
            }
            columns = {
                "uuid": uuid,
                "offered": entry.offered,
                **kind,
                **status,
                "acc_specs": {
                    **kind,
                    "num": entry.num,
                    "remote": entry.remote,
                    "acc_capability": entry.capability,
                },
                "acc_status": status,
            }
            if old is None:
                added.append({"driver": key[0], "hardware_key": key[1], **columns})
            else:
                changes.append((old, columns))
        base.remove(tx, Hardware, [row.id for row in remaining.values()])
        # A row that gives up a device's uuid is changed before the row that gets it.
        for old, columns in sorted(changes, key=lambda change: change[1]["uuid"] in taken):
            _change(tx, Hardware, old, columns)
        base.insert(tx, Hardware, added, {"host_id": self.host_id, "seen_ms": now})
        return unready

    def _note_backends(
        self,
        tx: sa.Connection,
        now: sa.ColumnElement[int],
        report: Report,
        driver_ids: Mapping[str, int],
    ) -> None:
        """Store the backends; ``driver_ids`` are the ids of all drivers of the report by name."""
        removed_ids = [
            row.backend_id
            for name in self.drivers.keys() - {driver.driver for driver in report.drivers}
            for row in self.backends[self.drivers[name].id].values()
        ]
        added: list[Row] = []
        seen_ids = []
        for driver in report.drivers:
            if driver.backends is None:
                continue
            driver_id = driver_ids[driver.driver]
            remaining = dict(self.backends[driver_id])
            backends = _valid(driver.driver, "Backend", driver.backends, "name")
            for name, backend in backends.items():
                services = sorted(backend.services, key=lambda service: service.name)
                columns = {
                    "state": backend.state,
                    "services": [
                        {"name": service.name, "state": service.state} for service in services
                    ],
                    "capabilities": backend.capabilities,
                    "creates": None if backend.creates is None else backend.creates.value,
                }
                old = remaining.pop(name, None)
                if old is None:
                    added.append(
                        {"uuid": str(uuid4()), "driver_id": driver_id, "name": name, **columns}
                    )
                    continue
                seen_ids.append(old.backend_id)
                before = {
                    "state": old.backend_state,
                    "services": old.services,
                    "capabilities": old.capabilities,
                    "creates": old.creates,
                }
                if before != columns:
                    host_inventory.change(tx, Backend, old.backend_id, columns)
            removed_ids += [row.backend_id for row in remaining.values()]
        base.remove(tx, Backend, removed_ids)
        drivers_db.set_discovered(tx, Backend, seen_ids, now)
        base.insert(tx, Backend, added, {"discovered_ms": now})


def register_drivers(
    tx: sa.Connection, host_id: int, installed_drivers: Sequence[InstalledDriver]
) -> None:
    """Store the drivers that an agent names in a heartbeat; its report will tell their state.

    One statement where nothing has changed.
    """
    rows = drivers_db.of_host(tx, host_id)
    added = []
    for installed in installed_drivers:
        columns: Row = {
            "version": installed.version,
            "device_type": installed.type,
            "endpoint": installed.endpoint,
        }
        if installed.driver in rows:
            _change(tx, Driver, rows[installed.driver], columns)
            continue
        ready = installed.status is DriverState.READY
        state = DriverState.STARTING if ready else installed.status
        enabled = installed.status is not DriverState.STOPPED
        columns |= {"name": installed.driver, "state": state.value, "enabled": enabled}
        added.append({"uuid": str(uuid4()), **columns})
    base.insert_ids(tx, Driver, added, {"host_id": host_id})


def _valid(driver: str, noun: str, items: Sequence[Any], key: str) -> dict[str, Any]:
    """Return a driver's items that the database can hold, by their attribute ``key``.

    Each item that is left out is logged with the reason.
    """
    valid: dict[str, Any] = {}
    for item in items:
        name = getattr(item, key)
        flaw = item.validate() or (f"{name} is reported twice" if name in valid else None)
        if flaw is not None:
            LOG.warning("%s %r of driver %s is not stored: %s", noun, name, driver, flaw)
            continue
        valid[name] = item
    return valid


def _change(tx: sa.Connection, model: Any, row: Record, columns: Row) -> None:
    """Write the columns that differ from the row."""
    changed = {name: value for name, value in columns.items() if getattr(row, name) != value}
    if changed:
        host_inventory.change(tx, model, row.id, changed)
