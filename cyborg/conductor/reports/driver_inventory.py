# SPDX-License-Identifier: Apache-2.0
"""What a report tells beside devices: drivers, their backends, and all hardware of the host.

Facts for operators to read; nothing is bound to them. So what a driver does not see any more goes,
but for what it only could not tell. A piece of hardware that is a device has the device's uuid.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from cyborg.db import base, drivers, host_inventory
from cyborg.db import drivers as equipment
from cyborg.db.base import Record
from cyborg.db.models import Backend, Driver, Hardware
from cyborg.model import device as facts
from cyborg.model.report import DriverHello, DriverReport, DriverState, Report

LOG = logging.getLogger(__name__)

Row = dict[str, Any]
#: What tells hardware of one host apart, and devices: driver and key.
Key = tuple[str, str]


@dataclass
class DriverInventory:
    """The rows of a host as they stand, ready to be looked up; the writes need its lock."""

    host_id: int
    drivers: dict[str, Record] = field(default_factory=dict)
    #: Driver id → its backends by name.
    backends: dict[int, dict[str, Record]] = field(default_factory=lambda: defaultdict(dict))
    hardware: dict[Key, Record] = field(default_factory=dict)

    @classmethod
    def read(cls, tx: sa.Connection, host_id: int) -> "DriverInventory":
        """Two statements."""
        found = cls(host_id)
        for row in equipment.driven(tx, host_id):
            found.drivers[row.name] = row
            if row.backend_id is not None:
                found.backends[row.id][row.backend_name] = row
        for row in equipment.hardware(tx, host_id):
            found.hardware[row.driver, row.hardware_key] = row
        return found

    def note_drivers(self, tx: sa.Connection, now: sa.ColumnElement[int], report: Report) -> bool:
        """Keep each driver's state and backends; True when one changed between ready and not."""
        changed = False
        fresh: list[Row] = []
        for one in report.drivers:
            old = self.drivers.get(one.driver)
            if old is None:
                enabled = one.state is not DriverState.STOPPED
                columns = {**_driver_columns(one), "enabled": enabled}
                fresh.append({"uuid": str(uuid4()), "name": one.driver, **columns})
                # Devices of a driver that is news may stand here since an upgrade.
                changed |= one.state is not DriverState.READY
            else:
                _change(tx, Driver, old, _driver_columns(one) | _enabled(old, one.state))
                changed |= old.state != one.state.value
        for name in self.drivers.keys() - {one.driver for one in report.drivers}:
            row = self.drivers[name]
            stopped = {"state": DriverState.STOPPED.value, **_enabled(row, DriverState.STOPPED)}
            _change(tx, Driver, row, stopped)
        common = {"host_id": self.host_id, "discovered_ms": now}
        ids = equipment.add_drivers(tx, fresh, common)
        known = {row.name: row.id for row in self.drivers.values()}
        asked = [known[one.driver] for one in _ready(report) if one.driver in known]
        equipment.seen(tx, Driver, asked, now)
        known |= {row["name"]: ids[row["uuid"]] for row in fresh}
        self._note_backends(tx, now, report, known)
        return changed

    def note_hardware(
        self,
        tx: sa.Connection,
        now: sa.ColumnElement[int],
        report: Report,
        devices: Mapping[Key, str],
    ) -> set[str]:
        """Keep the hardware; ``devices`` are the uuids of the host's devices.

        Answers the uuids of what has to be set up, and had not when it was last reported.
        """
        silent = {one.driver for one in report.drivers if one.hardware is None}
        left = {key: row for key, row in self.hardware.items() if key[0] not in silent}
        taken = set(devices.values())
        fresh: list[Row] = []
        changes: list[tuple[Record, Row]] = []
        unready: set[str] = set()
        for key, one in _entries(report).items():
            old = left.pop(key, None)
            uuid = devices.get(key)
            if uuid is None:
                keeps = old is not None and old.uuid not in taken
                uuid = old.uuid if keeps else str(uuid4())
            if one.setup_required and not (old is not None and old.setup_required):
                unready.add(uuid)
            columns = {"uuid": uuid, **_hardware_columns(one)}
            if old is None:
                fresh.append({"driver": key[0], "hardware_key": key[1], **columns})
            else:
                changes.append((old, columns))
        equipment.remove(tx, Hardware, [row.id for row in left.values()])
        # Those that give up a device's uuid come before the one that gets it.
        for old, columns in sorted(changes, key=lambda change: change[1]["uuid"] in taken):
            _change(tx, Hardware, old, columns)
        base.insert(tx, Hardware, fresh, {"host_id": self.host_id, "seen_ms": now})
        return unready

    def uuid_for(self, driver: str, key: str, taken: Iterable[str]) -> str:
        """The uuid for a device that is news: that which it had as hardware, if it had any."""
        row = self.hardware.get((driver, key))
        return str(uuid4()) if row is None or row.uuid in taken else str(row.uuid)

    def _note_backends(
        self,
        tx: sa.Connection,
        now: sa.ColumnElement[int],
        report: Report,
        drivers: Mapping[str, int],
    ) -> None:
        gone = [
            row.backend_id
            for name in self.drivers.keys() - {one.driver for one in report.drivers}
            for row in self.backends[self.drivers[name].id].values()
        ]
        fresh: list[Row] = []
        seen = []
        for one in report.drivers:
            if one.backends is None:
                continue
            driver_id = drivers[one.driver]
            left = dict(self.backends[driver_id])
            for name, backend in _sound(one.driver, "Backend", one.backends, "name").items():
                columns = _backend_columns(backend)
                old = left.pop(name, None)
                if old is None:
                    fresh.append(
                        {"uuid": str(uuid4()), "driver_id": driver_id, "name": name, **columns}
                    )
                    continue
                seen.append(old.backend_id)
                was = {
                    "state": old.backend_state,
                    "services": old.services,
                    "capabilities": old.capabilities,
                    "creates": old.creates,
                }
                if was != columns:
                    host_inventory.change(tx, Backend, old.backend_id, columns)
            gone += [row.backend_id for row in left.values()]
        equipment.remove(tx, Backend, gone)
        equipment.seen(tx, Backend, seen, now)
        base.insert(tx, Backend, fresh, {"discovered_ms": now})


def introduce(tx: sa.Connection, host_id: int, hellos: Sequence[DriverHello]) -> None:
    """Keep what drivers said when their agent started; how they are, its report will tell.

    One statement where there is no news.
    """
    known = drivers.of_host(tx, host_id)
    fresh = []
    for one in hellos:
        columns: Row = {
            "version": one.version,
            "device_type": one.type,
            "endpoint": one.endpoint,
        }
        if one.driver in known:
            _change(tx, Driver, known[one.driver], columns)
            continue
        ready = one.status is DriverState.READY
        state = DriverState.STARTING if ready else one.status
        enabled = one.status is not DriverState.STOPPED
        columns |= {"name": one.driver, "state": state.value, "enabled": enabled}
        fresh.append({"uuid": str(uuid4()), **columns})
    equipment.add_drivers(tx, fresh, {"host_id": host_id})


def _ready(report: Report) -> list[DriverReport]:
    return [one for one in report.drivers if one.state is DriverState.READY]


def _entries(report: Report) -> dict[Key, facts.Hardware]:
    """All hardware that can be kept, once each."""
    return {
        (one.driver, key): entry
        for one in report.drivers
        for key, entry in _sound(one.driver, "Hardware", one.hardware or (), "key").items()
    }


def _sound(driver: str, what: str, found: Sequence[Any], key: str) -> dict[str, Any]:
    """Those of a driver's things that the database can keep, by their key."""
    sound: dict[str, Any] = {}
    for one in found:
        word = getattr(one, key)
        flaw = one.validate() or (f"{word} is reported twice" if word in sound else None)
        if flaw is not None:
            LOG.warning("%s %r of %s is left out: %s", what, word, driver, flaw)
            continue
        sound[word] = one
    return sound


def _change(tx: sa.Connection, model: Any, row: Record, columns: Row) -> None:
    """Write what differs."""
    changed = {name: value for name, value in columns.items() if getattr(row, name) != value}
    if changed:
        host_inventory.change(tx, model, row.id, changed)


def _driver_columns(one: DriverReport) -> Row:
    return {
        "state": one.state.value,
        "error": one.error,
        "version": one.version,
        "device_type": one.type,
        "endpoint": one.endpoint,
        "accepts": [asdict(option) for option in one.accepts],
    }


def _enabled(row: Record, state: DriverState) -> Row:
    """Whether a driver is enabled is the host's word, until an operator has spoken."""
    return {} if row.wanted is not None else {"enabled": state is not DriverState.STOPPED}


def _backend_columns(backend: facts.Backend) -> Row:
    services = sorted(backend.services, key=lambda one: one.name)
    return {
        "state": backend.state,
        "services": [{"name": one.name, "state": one.state} for one in services],
        "capabilities": backend.capabilities,
        "creates": None if backend.creates is None else backend.creates.value,
    }


def _hardware_columns(one: facts.Hardware) -> Row:
    return {
        "device_type": one.kind,
        "offered": one.offered,
        "setup_required": one.setup_required,
        "reboot_required": one.reboot_required,
        "reason": one.reason,
        "acc_specs": {
            "device_type": one.kind,
            "num": one.num,
            "remote": one.remote,
            "acc_capability": one.capability,
        },
        "acc_status": {
            "setup_required": one.setup_required,
            "reboot_required": one.reboot_required,
            "reason": one.reason,
        },
    }
