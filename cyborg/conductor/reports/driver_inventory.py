# SPDX-License-Identifier: Apache-2.0
"""Drivers, their backends and all hardware of a host, as its agent reports them.

Operators read these facts; nothing is bound to them. So a row is deleted when its driver does not
report it any more, and kept when the driver could not tell. Hardware that is a device has the uuid
of the device.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import uuid4

from cyborg.conductor.reports.comparison import Comparison
from cyborg.db import bulk
from cyborg.db import drivers as drivers_db
from cyborg.db.models import Backend, Driver, Hardware
from cyborg.db.transaction import Transaction
from cyborg.model.report import DriverReport, DriverState, InstalledDriver, Report, cut, label

LOG = logging.getLogger(__name__)

#: Driver and key or name, which identify a device, a backend or a piece of hardware of a host.
Key = tuple[str, str]


@dataclass
class DriverInventory:
    """The rows of a host before a report; the caller holds the lock of the host."""

    host_id: int
    drivers: dict[str, Driver] = field(default_factory=dict)
    backends: dict[Key, drivers_db.StoredBackend] = field(default_factory=dict)
    hardware: dict[Key, Hardware] = field(default_factory=dict)

    @classmethod
    def read(cls, tx: Transaction, host_id: int) -> "DriverInventory":
        """Read the rows of a host with two statements."""
        hardware = {(row.driver, row.hardware_key): row for row in drivers_db.hardware(tx, host_id)}
        return cls(host_id, *drivers_db.with_backends(tx, host_id), hardware)

    def note_drivers(self, tx: Transaction, report: Report) -> bool:
        """Store each driver's state and backends; return whether a driver's state has changed."""
        rows = Comparison(self.drivers)
        changed = False
        for driver in report.drivers:
            old = self.drivers.get(driver.driver)
            columns = rows.reported[driver.driver] = {
                "state": driver.state.value,
                "error": driver.error and cut(driver.error),
                **_described(driver),
                "accepts": driver.accepts
                if driver.accepts is None
                else [asdict(option) for option in driver.accepts],
            }
            if old is None or old.requested is None:
                # The host decides until an operator has enabled or disabled the driver.
                columns["enabled"] = driver.state is not DriverState.STOPPED
            # After an upgrade a driver without a row may have devices.
            before = DriverState.READY.value if old is None else old.state
            changed |= before != driver.state.value
        ready = {driver.driver for driver in report.drivers if driver.state is DriverState.READY}
        for row in rows.missing:
            rows.reported[row.name] = {"state": DriverState.STOPPED.value}
            if row.requested is None:
                rows.reported[row.name]["enabled"] = False
        bulk.change(tx, Driver, rows.changed)
        seen = [row.id for row in rows.kept if row.name in ready]
        drivers_db.set_discovered(tx, Driver, seen, tx.now)
        added = {name: {"uuid": str(uuid4()), **row} for name, row in rows.added.items()}
        common = {"host_id": self.host_id, "discovered_ms": tx.now}
        ids = bulk.insert_ids(
            tx, Driver, [{"name": name, **row} for name, row in added.items()], common
        )
        driver_ids = {name: row.id for name, row in self.drivers.items()}
        driver_ids |= {name: ids[row["uuid"]] for name, row in added.items()}
        self._note_backends(tx, report, driver_ids)
        return changed

    def note_hardware(
        self,
        tx: Transaction,
        report: Report,
        devices: Mapping[Key, str],
    ) -> set[str]:
        """Store the hardware; ``devices`` are the uuids of the host's devices.

        Return the uuids of the hardware that has to be set up now and had not to when it was last
        reported.
        """
        silent = {driver.driver for driver in report.drivers if driver.hardware is None}
        rows = Comparison({key: row for key, row in self.hardware.items() if key[0] not in silent})
        taken = set(devices.values())
        unready: set[str] = set()
        entries = {
            (driver.driver, key): entry
            for driver in report.drivers
            for key, entry in _valid(
                driver.driver, "Hardware", driver.hardware or (), "key"
            ).items()
        }
        for key, entry in entries.items():
            old = rows.stored.get(key)
            uuid = devices.get(key)
            if uuid is None:
                uuid = str(uuid4()) if old is None or old.uuid in taken else old.uuid
            if entry.setup_required and not (old is not None and old.setup_required):
                unready.add(uuid)
            kind = {"device_type": entry.kind}
            status = {
                "setup_required": entry.setup_required,
                "reboot_required": entry.reboot_required,
                "reason": entry.reason and cut(entry.reason),
            }
            rows.reported[key] = {
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
        # Rows may exchange their uuids: a row whose uuid another one gets is inserted again. If its
        # driver is silent, and another one has taken over the device, it is inserted later.
        keys = {row["uuid"]: key for key, row in rows.reported.items()}
        given = {key: row for key, row in self.hardware.items() if keys.get(row.uuid, key) != key}
        gone = {row.id for row in rows.missing} | {row.id for row in given.values()}
        bulk.remove(tx, Hardware, gone)
        for key in given:
            rows.stored.pop(key, None)
        bulk.change(tx, Hardware, rows.changed)
        added = [
            {"driver": driver, "hardware_key": key, **row}
            for (driver, key), row in rows.added.items()
        ]
        bulk.insert(tx, Hardware, added, {"host_id": self.host_id, "seen_ms": tx.now})
        return unready

    def _note_backends(
        self,
        tx: Transaction,
        report: Report,
        driver_ids: Mapping[str, int],
    ) -> None:
        """Store the backends; ``driver_ids`` are the ids of all drivers of the report by name."""
        silent = {driver.driver for driver in report.drivers if driver.backends is None}
        rows = Comparison({key: row for key, row in self.backends.items() if key[0] not in silent})
        for driver in report.drivers:
            backends = _valid(driver.driver, "Backend", driver.backends or (), "name")
            for name, backend in backends.items():
                services = sorted(backend.services, key=lambda service: service.name)
                rows.reported[driver.driver, name] = {
                    "state": backend.state,
                    "services": [
                        {"name": service.name, "state": service.state} for service in services
                    ],
                    "capabilities": backend.capabilities,
                    "creates": None if backend.creates is None else backend.creates.value,
                }
        bulk.change(tx, Backend, rows.changed)
        bulk.remove(tx, Backend, [row.id for row in rows.missing])
        drivers_db.set_discovered(tx, Backend, [row.id for row in rows.kept], tx.now)
        added = [
            {"uuid": str(uuid4()), "driver_id": driver_ids[driver], "name": name, **row}
            for (driver, name), row in rows.added.items()
        ]
        bulk.insert(tx, Backend, added, {"discovered_ms": tx.now})


def register_drivers(
    tx: Transaction, host_id: int, installed_drivers: Sequence[InstalledDriver]
) -> None:
    """Store the drivers that an agent names in a heartbeat; its report will tell their state.

    One statement where nothing has changed.
    """
    rows = Comparison(drivers_db.of_host(tx, host_id))
    for installed in installed_drivers:
        columns = rows.reported[installed.driver] = _described(installed)
        if installed.driver not in rows.stored:
            ready = installed.status is DriverState.READY
            columns["state"] = (DriverState.STARTING if ready else installed.status).value
            columns["enabled"] = installed.status is not DriverState.STOPPED
    bulk.change(tx, Driver, rows.changed)
    added = [{"uuid": str(uuid4()), "name": name, **row} for name, row in rows.added.items()]
    bulk.insert(tx, Driver, added, {"host_id": host_id})


def _described(driver: DriverReport | InstalledDriver) -> dict[str, Any]:
    """Return the columns that describe a driver; their text is that of a vendor."""
    return {
        "version": label(driver.version, 64),
        "device_type": label(driver.type, 64),
        "endpoint": label(driver.endpoint, 255),
    }


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
